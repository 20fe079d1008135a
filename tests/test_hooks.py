"""Hooks (H1-H7, H9): what they are given, what they may return, in which order they run, and what `on_error` mends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from middlechain import (
    Agent,
    AgentHooks,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    ConfigurationError,
    Context,
    FatalToolError,
    Next,
    Result,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolResult,
    ToolUse,
    User,
    WrongReturn,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go

pytestmark = pytest.mark.anyio

HOOKS = ["before_run", "before_prompt", "before_tool", "after_tool", "after_response", "after_run", "on_error"]
ADDING = [ToolUse("add", {"a": 2, "b": 3}, "c1")]


@tool
async def add(a: int = 0, b: int = 0) -> int:
    return a + b


@tool
async def broken() -> str:
    raise ValueError("secret")


@tool
async def fatal() -> str:
    raise FatalToolError("no way on")


def setup(
    *hooks: object, replies: Any = None, kind: type[Agent] = Agent, **options: Any
) -> tuple[Agent, ScriptedModel]:
    """An agent whose model adds 2 and 3 and then says "5"."""
    model = ScriptedModel([ADDING, "5"] if replies is None else replies)
    options = {"tools": [add, broken, fatal], "instructions": "P", **options}
    return kind(name="a", model=model, hooks=list(hooks), **options), model


def returning(name: str, value: Any) -> dict[str, Callable[..., Any]]:
    return {name: lambda given, ctx: value}


def raising(name: str, error: BaseException) -> dict[str, Callable[..., Any]]:
    def hook(given: Any, ctx: Any) -> None:
        raise error

    return {name: hook}


def noting(log: list[Any], *names: str, mark: str = "") -> dict[str, Callable[..., Any]]:
    """Hooks that note what they are given, and keep it."""

    def note(name: str) -> Callable[..., Any]:
        return lambda given, ctx: log.append(mark + name if mark else (name, given))

    return {name: note(name) for name in names or HOOKS}


def tool_texts(messages: Any) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolMessage)]


def prompt_of(call: ChatCall) -> str | None:
    first = call.messages[0]
    return first.text if isinstance(first, System) else None


def effect(hook: str, model: ScriptedModel, result: Result) -> Any:
    """The one thing that a hook's value decides."""
    if hook == "before_run":
        return [call.messages[1].text for call in model.calls][-1]
    if hook == "before_prompt":
        return {prompt_of(call) for call in model.calls}.pop()
    if hook in {"before_tool", "after_tool"}:
        return tool_texts(model.calls[-1].messages)[0]
    return result.text


def replies_for(hook: str) -> list[Any]:
    return [ConnectionError("down")] if hook == "on_error" else [ADDING, "5"]


# H1


@pytest.mark.parametrize("style", ["sync", "async", "awaitable of an awaitable"])
@pytest.mark.parametrize(
    ("hook", "value", "expected"),
    [
        ("before_run", "other", "other"),
        ("before_run", [Text("pa"), Text("rts")], "parts"),
        ("before_run", User("named", name="eve"), "named"),
        ("before_prompt", "Q", "Q"),
        ("before_tool", ToolCall("add", {"a": 40, "b": 2}), "42"),
        ("after_tool", "told", "told"),
        ("after_tool", ToolOutput("told"), "told"),
        ("after_response", "five", "five"),
        ("after_run", "done", "done"),
        ("after_run", Result("done"), "done"),
        ("on_error", "sorry", "sorry"),
    ],
)
async def test_h1_a_returned_value_replaces_whether_the_hook_is_sync_or_async(
    go: Go, hook: str, value: Any, expected: str, style: str
) -> None:
    threads: list[int] = []

    def plain(given: Any, ctx: Any) -> Any:
        threads.append(threading.get_ident())
        return value

    async def coroutine(given: Any, ctx: Any) -> Any:
        return plain(given, ctx)

    async def nested(given: Any, ctx: Any) -> Any:
        return coroutine(given, ctx)

    function = {"sync": plain, "async": coroutine}.get(style, nested)
    agent, model = setup({hook: function}, replies=replies_for(hook))
    result = await go(App(), agent, "hi")
    assert effect(hook, model, result) == expected
    assert set(threads) == {threading.get_ident()}, "hooks run on the event loop, sync ones too"


@pytest.mark.parametrize(
    ("hook", "value", "expected"),
    [
        ("before_run", "", ""),
        ("before_prompt", "", None),
        ("before_tool", ToolCall("add", {}), "0"),
        ("after_tool", "", ""),
        ("after_tool", ToolOutput(""), ""),
        ("after_response", "", ""),
        ("after_run", "", ""),
        ("after_run", Result(""), ""),
        ("on_error", "", ""),
    ],
)
async def test_h1_an_empty_value_replaces_like_any_other(go: Go, hook: str, value: Any, expected: Any) -> None:
    """B02: only None keeps the original."""
    agent, model = setup(returning(hook, value), replies=replies_for(hook))
    result = await go(App(), agent, "hi")
    assert effect(hook, model, result) == expected
    if hook == "before_prompt":
        assert [type(message) for message in model.calls[0].messages] == [User], "no system message is sent at all"


async def test_h1_none_keeps_and_watching_changes_nothing(go: Go) -> None:
    """B01: no hook, one hook that only looks, a layer that only awaits next(), and all hooks returning None."""

    async def onward(call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:
        await next()

    seen: list[Any] = []
    outcomes = []
    for app, hooks in [
        (App(), []),
        (App(), [noting(seen, "after_response")]),
        (App().use(chat=onward), []),
        (App(), [noting([])]),
    ]:
        agent, model = setup(*hooks)
        result = await go(app, agent, "hi")
        outcomes.append((result.text, result.messages, [call.messages for call in model.calls]))
    assert outcomes[1:] == outcomes[:1] * 3
    text, messages, requests = outcomes[0]
    assert (text, tool_texts(messages), len(requests)) == ("5", ["5"], 2)
    assert seen == [("after_response", "5")]


WRONG: dict[str, list[Any]] = {
    "before_run": [5, False, {}, b"hi", ["hi"], ToolUse("add")],
    "before_prompt": [5, False, b"Q", ["Q"], System("Q")],
    "before_tool": ["DENIED", "", False, {}, {"a": 1}, ToolUse("add")],
    "after_tool": [5, False, {}, b"x", ToolMessage("x", "c1", "add")],
    "after_response": [5, False, {}, ["x"], ChatReply("x"), Assistant("x")],
    "after_run": [5, False, {}, ["x"], ChatReply("x")],
    "on_error": [5, False, {}, Result("x"), ValueError("x")],
}


@pytest.mark.parametrize(("hook", "value"), [(hook, value) for hook, values in WRONG.items() for value in values])
async def test_h1_a_wrong_type_raises_wrong_return_and_nothing_is_coerced(go: Go, hook: str, value: Any) -> None:
    agent, _ = setup(returning(hook, value), replies=replies_for(hook))
    with pytest.raises(WrongReturn, match=r"None to keep what there is$") as caught:
        await go(App(), agent, "hi")
    assert hook in str(caught.value)
    assert "returning.<locals>.<lambda>" in str(caught.value)
    assert type(value).__name__ in str(caught.value)


@pytest.mark.parametrize("hook", HOOKS)
async def test_h1_hooks_are_optional_and_only_the_one_that_exists_is_called(go: Go, hook: str) -> None:
    log: list[Any] = []
    agent, _ = setup(noting(log, hook), replies=[ADDING, "5"])
    assert (await go(App(), agent, "hi")).text == "5"
    times = {"before_prompt": 2, "on_error": 0}.get(hook, 1)
    assert [name for name, _ in log] == [hook] * times


# H2, H3


async def test_h2_the_order_is_the_one_in_the_contract(go: Go) -> None:
    log: list[str] = []

    @tool
    async def work() -> str:
        log.append("tool")
        return "ok"

    def reply(*items: Any) -> Callable[[ChatCall], list[Any]]:
        def answer(call: ChatCall) -> list[Any]:
            log.append("model")
            return list(items)

        return answer

    replies = [reply(ToolUse("work")), reply(ToolUse("work")), reply("done")]
    agent, _ = setup(noting(log, mark=" "), replies=replies, tools=[work])
    await go(App(), agent, "hi")
    turn = ["before_prompt", "model", "before_tool", "tool", "after_tool"]
    order = ["before_run", *turn, *turn, "before_prompt", "model", "after_response", "after_run"]
    assert [name.strip() for name in log] == order


async def test_h2_each_call_of_one_reply_has_its_hooks_around_it(go: Go) -> None:
    log: list[str] = []

    class Watch:
        def before_tool(self, call: ToolCall, ctx: Context) -> None:
            log.append(f"before {call.id}")

        def after_tool(self, result: ToolResult, ctx: Context) -> None:
            log.append(f"after {result.id}")

    agent, _ = setup(Watch(), replies=[[ToolUse("add", {}, "x"), ToolUse("add", {}, "y")], "done"])
    await go(App(), agent, "hi")
    for id in "xy":
        assert [entry for entry in log if entry.endswith(id)] == [f"before {id}", f"after {id}"]


class Marks:
    """Every hook puts its mark behind the value."""

    mark = ""

    def before_run(self, input: Any, ctx: Context) -> str:
        return f"{input}{self.mark}"

    def before_prompt(self, prompt: str, ctx: Context) -> str:
        return prompt + self.mark

    def before_tool(self, call: ToolCall, ctx: Context) -> ToolCall:
        return call.replace(args={"text": call.args["text"] + self.mark})

    def after_tool(self, result: ToolResult, ctx: Context) -> str:
        return result.output + self.mark

    def after_response(self, response: str, ctx: Context) -> str:
        return response + self.mark

    def after_run(self, result: Result, ctx: Context) -> str:
        return result.text + self.mark

    def on_error(self, error: Exception, ctx: Context) -> None:
        ctx.errors_seen = ctx.get("errors_seen", "") + self.mark


class Own(Marks, Agent):
    mark = "o"


class Overriding(Own):
    mark = "O"

    def before_run(self, input: Any, ctx: Context) -> str:
        return super().before_run(input, ctx) + "!"


def marks(mark: str) -> Marks:
    hooks = Marks()
    hooks.mark = mark
    return hooks


@tool
async def echo(text: str) -> str:
    return text


async def test_h3_objects_run_first_to_last_inwards_last_to_first_outwards_the_agents_own_innermost(go: Go) -> None:
    echoing = [ToolUse("echo", {"text": "t"}), "x"]
    agent, model = setup(marks("1"), marks("2"), replies=[echoing, "r"], kind=Own, tools=[echo])
    result = await go(App(), agent, "i")
    assert result.messages[0].text == "i12o"
    assert {prompt_of(call) for call in model.calls} == {"P12o"}
    assert tool_texts(result.messages) == ["t12oo21"]
    assert result.text == "ro21o21"


async def test_h3_on_error_runs_outwards_too(go: Go) -> None:
    agent, _ = setup(marks("1"), marks("2"), replies=[ConnectionError("down")], kind=Own)
    state: dict[str, Any] = {}

    class Keep(AgentHooks):
        def on_error(self, error: Exception, ctx: Context) -> None:
            state["seen"] = ctx.get("errors_seen")

    agent.hooks = [Keep(), *agent.hooks]
    with pytest.raises(ConnectionError):
        await go(App(), agent, "i")
    assert state["seen"] == "o21"


async def test_h3_subclasses_override_and_call_super_as_in_any_class(go: Go) -> None:
    agent, model = setup(replies=["r"], kind=Overriding)
    await go(App(), agent, "i")
    assert model.calls[0].messages[-1].text == "iO!"


async def test_h3_the_base_class_adds_no_behaviour_and_super_of_it_keeps(go: Go) -> None:
    class Polite(AgentHooks):
        def after_response(self, response: str, ctx: Context) -> Any:
            return super().after_response(response, ctx)

    agent, _ = setup(Polite(), AgentHooks())
    assert (await go(App(), agent, "hi")).text == "5"


def test_section_1_a_method_named_like_a_hook_is_refused_with_the_nearest_name() -> None:
    class Typo:
        def before_tools(self, call: ToolCall, ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'before_tools'.*'before_tool'"):
        setup(Typo())
    with pytest.raises(ConfigurationError, match=r"'on_eror'.*'on_error'"):
        type("Bad", (Agent,), {"on_eror": lambda self, error, ctx: None})
    with pytest.raises(ConfigurationError, match="'after_all'"):
        setup({"after_all": print})
