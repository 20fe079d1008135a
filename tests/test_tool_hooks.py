"""Hooks around tool calls and answers (H4-H6), and that they see data, not aliases (H9)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from middlechain import (
    App,
    Assistant,
    ChatCall,
    ChatReply,
    Context,
    Next,
    Result,
    TextDelta,
    TextReset,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolResult,
    ToolUse,
    User,
    WrongReturn,
    tool,
)
from middlechain.testing import collect

from .conftest import Go
from .test_hooks import ADDING, add, echo, noting, raising, returning, setup, tool_texts

pytestmark = pytest.mark.anyio


# H4, H5


async def test_h4_a_new_name_is_looked_up_and_the_id_stays(go: Go) -> None:
    """B18: also for a call that the hook made from nothing, with an id of its own."""
    agent, _ = setup(returning("before_tool", ToolCall("echo", {"text": "hey"}, "other")), tools=[add, echo])
    result = await go(App(), agent, "hi")
    (message,) = [message for message in result.messages if isinstance(message, ToolMessage)]
    assert (message.text, message.tool_call_id, message.is_error) == ("hey", "c1", False)


@pytest.mark.parametrize(
    ("changed", "words"),
    [(ToolCall("nope", {}), "nope"), (ToolCall("add", {"a": "many"}), "integer"), (ToolCall("add", {"c": 1}), "c")],
)
async def test_h4_a_changed_call_takes_the_ordinary_unknown_and_bad_argument_paths(
    go: Go, changed: ToolCall, words: str
) -> None:
    """B18."""
    log: list[Any] = []
    agent, _ = setup(returning("before_tool", changed), noting(log, "after_tool"))
    result = await go(App(), agent, "hi")
    (message,) = [message for message in result.messages if isinstance(message, ToolMessage)]
    assert message.is_error
    assert message.tool_call_id == "c1"
    assert words in message.text
    assert [given.is_error for _, given in log] == [True]


@pytest.mark.parametrize(
    "hook",
    [
        *[returning("before_tool", value) for value in ("DENIED", False)],
        raising("before_tool", PermissionError("not this one")),
    ],
    ids=["a str", "False", "raises"],
)
async def test_h4_a_before_tool_that_fails_or_returns_anything_else_runs_no_tool_and_ends_in_on_error(
    go: Go, hook: Mapping[str, Any]
) -> None:
    """B16 c and d."""
    ran: list[int] = []
    errors: list[Any] = []

    @tool
    async def act() -> None:
        ran.append(1)

    agent, model = setup(hook, noting(errors, "on_error"), replies=[[ToolUse("act")], "never"], tools=[act])
    with pytest.raises((WrongReturn, PermissionError)) as caught:
        await go(App(), agent, "hi")
    assert errors == [("on_error", caught.value)]
    assert (ran, len(model.calls)) == ([], 1)


@pytest.mark.parametrize(
    "case", ["failed", "refused", "unknown", "bad arguments", "not json", "short-circuited", "it ran"]
)
async def test_h5_after_tool_runs_for_every_call_however_it_ended(go: Go, case: str) -> None:
    async def layer(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput | str:
        if case == "refused":
            return ToolOutput("not allowed", is_error=True)
        return "cached" if case == "short-circuited" else await next()

    uses = {
        "failed": ToolUse("broken"),
        "unknown": ToolUse("nope"),
        "bad arguments": ToolUse("add", {"a": "x"}),
        "not json": ToolUse("add", '{"a":'),
    }
    seen: list[Any] = []
    agent, _ = setup(noting(seen, "after_tool"), replies=[[uses.get(case, ADDING[0])], "done"])
    result = await go(App().use(tool=layer), agent, "hi")
    ((_, given),) = seen
    assert given.is_error is (case not in {"short-circuited", "it ran"})
    assert given.output == tool_texts(result.messages)[0]


@pytest.mark.parametrize("source", ["the tool", "a layer"])
@pytest.mark.parametrize(
    ("value", "text", "is_error"),
    [
        ("could not read the file", "could not read the file", True),
        ("", "", True),
        (ToolOutput("fine", is_error=False), "fine", False),
        (None, None, True),
    ],
)
async def test_h5_a_str_from_after_tool_keeps_the_error_mark_and_a_tool_output_replaces_it(
    go: Go, source: str, value: Any, text: str | None, is_error: bool
) -> None:
    """B04: and a tool layer sees the tool's own result and mark."""
    marks_seen: list[bool] = []

    async def outer(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        output = await next()
        marks_seen.append(output.is_error)
        return output

    async def failing(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        return ToolOutput("boom", is_error=True) if source == "a layer" else await next()

    original = "boom" if source == "a layer" else "ValueError: the tool 'broken' failed."
    agent, model = setup(returning("after_tool", value), replies=[[ToolUse("broken")], "done"])
    await go(App().use(tool=[outer, failing]), agent, "hi")
    message = model.calls[-1].messages[-1]
    assert isinstance(message, ToolMessage)
    assert (message.text, message.is_error) == (original if text is None else text, is_error)
    assert marks_seen == [True]


# H6


async def test_h6_what_after_response_returns_is_in_history_in_the_stream_and_what_the_caller_of_the_step_gets() -> (
    None
):
    child, _ = setup(returning("after_response", "polished"), replies=["raw"], instructions="")
    seen: list[str] = []

    @tool
    async def consult(ctx: Context) -> str:
        answer = await ctx.run(child, "well?")
        seen.extend([answer.text, answer.messages[-1].text])
        return answer.text

    parent, model = setup(
        returning("after_response", "end"), replies=[[ToolUse("consult")], ["ra", "w"]], tools=[consult]
    )
    events, result = await collect(App().stream(parent, "hi"))
    assert seen == ["polished", "polished"]
    assert tool_texts(model.calls[-1].messages) == ["polished"]
    assert result.messages[-1].text == result.text == "end"
    said = ""
    for event in events:
        if event.turn == 2 and event.agent == "a" and event.parent is None:
            said = "" if isinstance(event, TextReset) else said + event.text if isinstance(event, TextDelta) else said
    assert said == "end"


async def test_h6_after_response_is_called_once_per_step_with_the_answer_only(go: Go) -> None:
    log: list[Any] = []
    agent, _ = setup(noting(log, "after_response"), replies=[["let me see", *ADDING], "5"])
    result = await go(App(), agent, "hi")
    assert log == [("after_response", "5")]
    assert [m.text for m in result.messages if isinstance(m, Assistant)] == ["let me see", "5"]


async def test_h6_a_changed_text_from_after_run_changes_history_too(go: Go) -> None:
    agent, _ = setup(returning("after_run", "final"))
    result = await go(App(), agent, "hi")
    assert result.text == result.output == result.message.text == result.messages[-1].text == "final"
    assert len(result.messages) == 4


# H9


async def test_h9_arguments_changed_in_place_reach_nobody(go: Go) -> None:
    """B06 b: hooks and layers each read their own copy."""
    views: list[Any] = []

    @tool
    async def read(path: str, opts: dict[str, list[int]]) -> str:
        return f"{path} {opts}"

    def spoil(args: dict[str, Any]) -> None:
        views.append(args["opts"]["tags"].copy())
        args.pop("path")
        args["opts"]["tags"].append(2)

    class Spoiler:
        def before_tool(self, call: ToolCall, ctx: Context) -> None:
            spoil(call.args)

        def after_tool(self, result: ToolResult, ctx: Context) -> None:
            spoil(result.args)

    async def layer(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        spoil(call.args)
        output = await next()
        spoil(call.args)
        return output

    use = ToolUse("read", {"path": "a", "opts": {"tags": [1]}}, "c1")
    agent, model = setup(Spoiler(), Spoiler(), replies=[[use], "done"], tools=[read])
    result = await go(App().use(tool=layer), agent, "hi")
    assert views == [[1]] * 6
    assert tool_texts(result.messages) == ["a {'tags': [1]}"]
    sent = model.calls[-1].messages[-2]
    assert isinstance(sent, Assistant)
    assert sent.tool_calls == (use,)


async def test_h9_a_call_does_not_follow_the_dict_that_it_was_made_from(go: Go) -> None:
    args: dict[str, Any] = {"text": "now"}
    made = ToolCall("echo", args)
    args["text"] = "later"
    agent, _ = setup(returning("before_tool", made), tools=[add, echo])
    assert tool_texts((await go(App(), agent, "hi")).messages) == ["now"]


async def test_h9_messages_and_calls_cannot_be_changed(go: Go) -> None:
    refused: list[str] = []

    async def layer(call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:
        for change in (
            lambda: setattr(call, "messages", ()),
            lambda: setattr(call.messages[-1], "content", "x"),
            lambda: call.messages.append(User("x")),  # type: ignore[attr-defined]  # that is the point
            lambda: call.ctx.messages.append(User("x")),  # type: ignore[attr-defined]
        ):
            with pytest.raises((AttributeError, TypeError)):
                change()
            refused.append("yes")
        await next()

    def before_tool(call: ToolCall, ctx: Context) -> None:
        with pytest.raises(AttributeError, match=r"call\.replace\(name="):
            call.name = "other"  # type: ignore[misc]

    agent, _ = setup({"before_tool": before_tool})
    assert (await go(App().use(chat=layer), agent, "hi")).text == "5"
    assert refused == ["yes"] * 8


async def test_h9_nothing_copies_ctx_or_what_hangs_on_it(go: Go) -> None:
    """B06: locks and clients cannot be copied."""
    lock = threading.Lock()
    state = {"lock": lock}
    seen: list[bool] = []

    class Hangs:
        def before_run(self, input: str, ctx: Context) -> None:
            ctx.lock = lock

        def before_tool(self, call: ToolCall, ctx: Context) -> None:
            seen.append(call.ctx.lock is ctx.lock is lock and ctx.state is state)

        def after_run(self, result: Result, ctx: Context) -> None:
            seen.append(ctx.lock is lock and result.state is state)

    agent, _ = setup(Hangs())
    assert (await go(App(), agent, "hi", state=state)).state is state
    assert seen == [True, True]
