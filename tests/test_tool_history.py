"""What of a turn is recorded (T7, T8), and that the next request is always valid."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from middlechain import (
    ChatReply,
    Context,
    Next,
    ToolCall,
    ToolFinished,
    ToolMessage,
    ToolOutput,
    ToolResult,
    ToolStarted,
    ToolUse,
)

from .conftest import Go
from .test_tools import Lab, check_history

pytestmark = pytest.mark.anyio


# T7


async def test_t7_a_tool_that_ran_is_recorded_though_after_tool_raised(go: Go) -> None:
    def after_tool(result: ToolResult, ctx: Context) -> None:
        raise KeyError("later")

    hooks = [{"after_tool": after_tool, "on_error": lambda error, ctx: "sorry"}]
    lab = Lab(["hm", ToolUse("ping", {}, "c1")], hooks=hooks)
    result = await go(lab.app, lab.agent, "hi")
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    message = result.messages[2]
    assert isinstance(message, ToolMessage)
    assert message.is_error
    assert "ran" in message.text
    assert "withheld" in message.text
    assert "pong" not in message.text
    check_history(result.messages)


@pytest.mark.parametrize("place", ["a layer, after the tool", "the next model call", "a layer, before the tool"])
async def test_t7_a_tool_that_ran_is_recorded_whatever_fails_later_and_one_that_did_not_is_not(
    go: Go, place: str
) -> None:
    async def layer(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        if place == "a layer, before the tool":
            raise KeyError("before")
        output = await next()
        if place == "a layer, after the tool":
            raise KeyError("after")
        return output

    replies = [[ToolUse("ping", {}, "c1")], *([KeyError("model")] if place == "the next model call" else [])]
    lab = Lab(*replies, hooks=[{"on_error": lambda error, ctx: "sorry"}])
    result = await go(lab.app.use(tool=layer), lab.agent, "hi")
    ran = place != "a layer, before the tool"
    assert [m.role for m in result.messages] == ["user", *(["assistant", "tool"] if ran else []), "assistant"]
    assert result.text == "sorry"
    check_history(result.messages)


async def test_t7_every_call_of_a_turn_has_one_result_though_only_one_ran(go: Go) -> None:
    entered = anyio.Event()

    async def layer(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        if call.id == "ran":
            output = await next()
            entered.set()
            return output
        await entered.wait()
        if call.id == "waits":
            await anyio.sleep_forever()
        await anyio.wait_all_tasks_blocked()
        raise KeyError("layer")

    uses = [ToolUse("ping", {}, "waits"), ToolUse("ping", {}, "ran"), ToolUse("ping", {}, "fails")]
    lab = Lab(uses, hooks=[{"on_error": lambda error, ctx: "sorry"}])
    result = await go(lab.app.use(tool=layer), lab.agent, "hi")
    messages = [m for m in result.messages if isinstance(m, ToolMessage)]
    assert [(m.tool_call_id, m.is_error) for m in messages] == [("waits", True), ("ran", False), ("fails", True)]
    assert ["did not run" in m.text for m in messages] == [True, False, True]
    check_history(result.messages)


@pytest.mark.parametrize(
    "turns",
    [
        [["x", "x"]],
        [["", ""]],
        [["call_0"], ["call_0"]],
        [["", "call_1_0", "call_1_0", "call_1_1"]],
        [["ok", "fine"], ["", "ok"]],
        [[None, "a"]],
    ],
)
async def test_t7_ids_are_unique_in_a_message_and_never_empty(go: Go, turns: list[list[Any]]) -> None:
    """B47: each result goes to its own call, ids that were fine are kept, the same history gives the same ids."""

    def replies() -> list[Any]:
        return [[ToolUse("search", {"q": n}, id) for n, id in enumerate(ids)] for ids in turns]

    requests = []
    for _ in range(2):
        lab = Lab(*replies())
        await go(lab.app, lab.agent, "hi")
        requests.append(lab.model.calls[-1].messages)
        check_history(lab.model.calls[-1].messages)
        assert [m.text for m in lab.results] == [f"found {n}" for ids in turns for n in range(len(ids))]
        given = [id for ids in turns for id in ids]
        for old, new in zip(given, [use.id for use in lab.sent], strict=True):
            if old and given.count(old) == 1:
                assert new == old
    assert requests[0] == requests[1]


# T8


@pytest.mark.parametrize("reason", ["length", "safety", "content_filter", "incomplete"])
async def test_t8_tool_calls_of_a_reply_that_was_cut_off_do_not_run_and_are_asked_for_again(
    go: Go, reason: str
) -> None:
    uses = (ToolUse("search", '{"q": 1', "c1"), ToolUse("ping", {}, "c2"))
    lab = Lab(ChatReply("so far", uses, finish_reason=reason), [ToolUse("ping", {}, "c3")])
    result = await go(lab.app, lab.agent, "hi")
    assert (result.text, len(lab.model.calls)) == ("done", 3)
    first, second, third = lab.results
    for message in (first, second):
        assert message.is_error
        assert "again" in message.text
        assert reason in message.text
    assert (third.text, third.is_error) == ("pong", False)
    assert lab.ran == [{}]
    for seen in (lab.before, lab.layer, lab.after):
        assert [call.id for call in seen] == ["c3"]
    events = [e for e in lab.events if isinstance(e, ToolStarted | ToolFinished)]
    assert [e.call.id for e in events] == ["c3", "c3"]
    assert [use.arguments for use in lab.sent] == ["{}", "{}", "{}"], "what does not parse is sent back as {}"
    check_history(lab.model.calls[-1].messages)
