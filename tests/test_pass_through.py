"""Layers that pass everything through change nothing (M7)."""

from __future__ import annotations

from typing import Any

import pytest

from middlechain import (
    Agent,
    App,
    ChatReply,
    FatalToolError,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .scenes import SCOPES, Boom, Go

pytestmark = pytest.mark.anyio
every_scope = pytest.mark.parametrize("scope", SCOPES)


async def kept(call: Any, next: Any) -> None:
    await next()


async def copied(call: Any, next: Any) -> Any:
    return await next(call.replace())


async def rethrown(call: Any, next: Any) -> Any:
    try:
        return await next()
    except BaseException:
        raise


CONVERSATIONS: dict[str, list[Any]] = {
    "plain": ["hello"],
    "streamed": [["hel", "lo"]],
    "empty": [""],
    "tool": [["let me see", ToolUse("add", {"a": 1, "b": 2})], "3"],
    "two tools": [[ToolUse("add", {"a": 1, "b": 2}), ToolUse("add", {"a": 3, "b": 4})], "3 and 7"],
    "unknown tool": [[ToolUse("adn", {"a": 1, "b": 2})], "sorry"],
    "arguments that are no JSON": [[ToolUse("add", '{"a": ')], "sorry"],
    "arguments that are no object": [[ToolUse("add", "[1]")], "sorry"],
    "missing argument": [[ToolUse("add", {"a": 1})], "sorry"],
    "tool that raises": [[ToolUse("broken", {})], "sorry"],
    "tool that ends the step": [[ToolUse("fatal", {})], "never"],
    "reply that was cut off": [ChatReply("x", (ToolUse("add", {"a": 1, "b": 2}),), finish_reason="length"), "again"],
    "provider that raises": [Boom("down")],
    "provider that raises in the second turn": [[ToolUse("add", {"a": 1, "b": 2})], Boom("down")],
    "provider that raises in mid-stream": [["hel", Boom("down")]],
}


def stage(replies: list[Any]) -> tuple[App, Agent, ScriptedModel]:
    @tool
    async def add(a: int, b: int) -> int:
        return a + b

    @tool
    async def broken() -> None:
        raise ConnectionError("secret")

    @tool
    async def fatal() -> None:
        raise FatalToolError("fatal")

    model = ScriptedModel(replies)
    return App(), Agent(name="a", model=model, instructions="be brief", tools=[add, broken, fatal]), model


async def outcome(go: Go, app: App, agent: Agent, model: ScriptedModel) -> tuple[Any, ...]:
    said: Any
    try:
        result = await go(app, agent, "hi")
        said = result.text, result.messages, result.finish_reason, result.usage, result.error
    except Exception as error:
        said = type(error), str(error), error.__cause__, error if isinstance(error, Boom) else None
    requests = [
        (call.messages, [one.name for one in call.tools], call.settings, call.streaming) for call in model.calls
    ]
    return said, requests


@pytest.mark.parametrize("layer", [kept, copied, rethrown, lambda call, go_on: go_on()])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
async def test_m7_pass_through_layers_change_nothing(conversation: str, layer: Any, go: Go) -> None:
    """B11: same answers, errors, messages and provider requests with three more layers in each scope; B01: an observer
    does not change what the agent does."""
    replies = CONVERSATIONS[conversation]
    app, agent, model = stage(replies)
    bare = await outcome(go, app, agent, model)
    app, agent, model = stage(replies)
    app.use(**{scope: [layer] * 3 for scope in SCOPES})
    assert await outcome(go, app, agent, model) == bare


@pytest.mark.parametrize("conversation", CONVERSATIONS)
async def test_m7_pass_through_layers_do_not_change_what_on_error_gets(conversation: str, go: Go) -> None:
    """B11: the same exception reaches the hook, with and without layers."""
    heard: list[list[tuple[type, str]]] = []
    for count in (0, 3):
        app, agent, _ = stage(CONVERSATIONS[conversation])
        errors: list[tuple[type, str]] = []

        def note(error: Exception, ctx: Any, errors: list[tuple[type, str]] = errors) -> str:
            errors.append((type(error), str(error)))
            return "degraded"

        agent.hooks = [{"on_error": note}]
        if count:
            app.use(**{scope: [kept] * count for scope in SCOPES})
        await go(app, agent, "hi")
        heard.append(errors)
    assert heard[0] == heard[1]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
async def test_m7_pass_through_layers_do_not_change_the_stream(conversation: str) -> None:
    streams: list[Any] = []
    for count in (0, 3):
        app, agent, _ = stage(CONVERSATIONS[conversation])
        events: list[Any] = []
        app.observe(events.append)
        if count:
            app.use(**{scope: [kept] * count for scope in SCOPES})
        try:
            await collect(app.stream(agent, "hi", run_id="r"))
        except Exception as error:
            events.append(type(error))
        streams.append([event if isinstance(event, type) else (event.type, event.turn, event.step) for event in events])
    assert streams[0] == streams[1]
