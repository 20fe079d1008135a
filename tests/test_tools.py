"""Turns and tool calls (T1, T3, T5, T7, T8): what runs, what the model reads of it, and that history stays valid."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    Context,
    LimitExceeded,
    Limits,
    Message,
    Next,
    Result,
    ToolCall,
    ToolError,
    ToolMessage,
    ToolOutput,
    ToolResult,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go

pytestmark = pytest.mark.anyio


class Lab:
    """An app and an agent with two tools, that note what runs and what hooks and layers see."""

    def __init__(self, *replies: Any, tools: Sequence[Any] = (), **options: Any) -> None:
        self.ran: list[dict[str, Any]] = []
        self.before: list[ToolCall] = []
        self.layer: list[ToolCall] = []
        self.outputs: list[ToolOutput] = []
        self.after: list[ToolResult] = []
        self.events: list[Any] = []

        @tool
        async def search(q: int, opts: dict[str, Any] | None = None) -> str:
            self.ran.append({"q": q})
            return f"found {q}"

        @tool
        async def ping() -> str:
            self.ran.append({})
            return "pong"

        async def layer(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> None:
            self.layer.append(call)
            self.outputs.append(await next())

        self.model = ScriptedModel([*replies, "done"])
        self.app = App().use(tool=layer).observe(self.events.append)
        hooks = [{"before_tool": lambda call, ctx: self.before.append(call)}]
        hooks += [{"after_tool": lambda result, ctx: self.after.append(result)}]
        options["hooks"] = [*hooks, *options.get("hooks", ())]
        self.agent = Agent(name="a", model=self.model, tools=[search, ping, *tools], **options)

    @property
    def results(self) -> list[ToolMessage]:
        """The tool results in the last request."""
        return [m for m in self.model.calls[-1].messages if isinstance(m, ToolMessage)]

    @property
    def sent(self) -> list[ToolUse]:
        """The tool calls in the last request."""
        return [use for m in self.model.calls[-1].messages if isinstance(m, Assistant) for use in m.tool_calls]


def check_history(messages: Sequence[Message]) -> None:
    """Every request is valid: one result for each call, in order, ids unique in a message, arguments an object."""
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        if not isinstance(message, Assistant):
            assert not isinstance(message, ToolMessage), "a result without its call"
            continue
        ids = [use.id for use in message.tool_calls]
        assert len(set(ids)) == len(ids)
        assert all(ids)
        results = messages[place : place + len(ids)]
        assert [m.tool_call_id for m in results if isinstance(m, ToolMessage)] == ids
        assert [m.name for m in results if isinstance(m, ToolMessage)] == [use.name for use in message.tool_calls]
        place += len(ids)
        for use in message.tool_calls:
            assert isinstance(strictly(use.arguments), dict)


def strictly(text: str) -> Any:
    """JSON as servers that are not Python read it: without NaN and infinities, and as bytes of UTF-8."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text.encode(), parse_constant=refuse)


# T1


async def test_t1_turns_repeat_until_a_reply_has_no_tool_calls(go: Go) -> None:
    lab = Lab([ToolUse("ping")], ["hm", ToolUse("search", {"q": 1}), ToolUse("ping")])
    result = await go(lab.app, lab.agent, "hi")
    assert (result.text, result.finish_reason, len(lab.model.calls)) == ("done", "stop", 3)
    assert [m.role for m in result.messages] == [
        "user",
        *["assistant", "tool"],
        *["assistant", "tool", "tool"],
        "assistant",
    ]
    assert len(lab.ran) == 3
    for call in lab.model.calls:
        check_history(call.messages)


@pytest.mark.parametrize("on_exceed", ["raise", "stop"])
async def test_t1_when_no_further_turn_is_allowed_the_last_replys_tools_do_not_run(go: Go, on_exceed: Any) -> None:
    lab = Lab([ToolUse("ping")], ["hm", ToolUse("ping")], limits=Limits(turns=2, on_exceed=on_exceed))
    if on_exceed == "raise":
        with pytest.raises(LimitExceeded) as caught:
            await go(lab.app, lab.agent, "hi")
        assert (caught.value.limit, caught.value.value) == ("turns", 2)
        partial = caught.value.result
    else:
        partial = await go(lab.app, lab.agent, "hi")
        assert (partial.text, partial.finish_reason, partial.stopped_by) == ("hm", "limit", "limit")
    assert isinstance(partial, Result)
    assert (len(lab.model.calls), len(lab.ran), len(lab.before)) == (2, 1, 1)
    check_history(partial.messages)


async def test_t1_a_turn_that_is_allowed_runs_its_tools_and_the_next_one_answers(go: Go) -> None:
    lab = Lab([ToolUse("ping")], limits=Limits(turns=2))
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert len(lab.ran) == 1


@pytest.mark.parametrize("reason", ["stop", None, "function_call", "eos", "tool_calls", "weird"])
async def test_t1_tools_run_whatever_the_finish_reason_says(go: Go, reason: str | None) -> None:
    """B45: the label is not trusted; only a reply that was cut off is another matter (T8)."""
    lab = Lab(ChatReply("", (ToolUse("ping"),), finish_reason=reason))
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert (len(lab.ran), len(lab.model.calls)) == (1, 2)


async def test_t1_a_reply_without_tool_calls_is_the_answer_whatever_the_finish_reason_says(go: Go) -> None:
    """B45."""
    lab = Lab(ChatReply("hi", finish_reason="tool_calls"))
    assert (await go(lab.app, lab.agent, "hi")).text == "hi"
    assert len(lab.model.calls) == 1


# T3


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
async def test_t3_calls_run_concurrently_and_results_are_in_call_order_whatever_finishes_first(
    go: Go, order: tuple[int, ...]
) -> None:
    """B40: one call is refused at once, one is unknown, three finish in each possible order."""
    turns = [anyio.Event() for _ in range(4)]
    started: list[int] = []

    @tool
    async def work(n: int) -> str:
        started.append(n)
        if len(started) == 3:
            turns[0].set()
        place = order.index(n)
        await turns[place].wait()
        turns[place + 1].set()
        return f"r{n}"

    async def deny(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput | None:
        return ToolOutput("denied", is_error=True) if call.id == "c1" else await next()

    uses = [ToolUse("work", {"n": 0}, "c0"), ToolUse("ping", {}, "c1"), ToolUse("work", {"n": 1}, "c2")]
    uses += [ToolUse("nope", {}, "c3"), ToolUse("work", {"n": 2}, "c4")]
    lab = Lab(uses, tools=[work])
    await go(lab.app.use(tool=deny), lab.agent, "hi")
    assert [m.tool_call_id for m in lab.results] == ["c0", "c1", "c2", "c3", "c4"]
    texts = [m.text for m in lab.results]
    assert [texts[0], texts[1], texts[2], texts[4]] == ["r0", "denied", "r1", "r2"]
    check_history(lab.model.calls[-1].messages)


# T5


async def test_t5_an_unknown_name_is_an_error_result_that_says_which_names_there_are(go: Go) -> None:
    """B51 a: hooks and layers see the call, its tool is None, the run goes on."""
    lab = Lab([ToolUse("serch", {"q": 1})])
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    (message,) = lab.results
    assert message.is_error
    assert "'serch'" in message.text
    assert "'search'" in message.text
    assert "ping" in message.text
    assert [(c.name, c.args, c.tool) for c in (*lab.before, *lab.layer)] == [("serch", {"q": 1}, None)] * 2
    assert [(r.name, r.is_error) for r in lab.after] == [("serch", True)]
    assert [output.is_error for output in lab.outputs] == [True]
    assert lab.ran == []


async def test_t5_a_known_name_comes_with_its_tool_and_no_problem(go: Go) -> None:
    lab = Lab([ToolUse("search", {"q": 1}, "c1")])
    await go(lab.app, lab.agent, "hi")
    for call in (*lab.before, *lab.layer):
        assert call.tool is not None
        assert (call.tool.name, call.args, call.id, call.problem, call.agent) == (
            "search",
            {"q": 1},
            "c1",
            None,
            lab.agent,
        )
        assert call.ctx.agent is lab.agent
    assert [(r.name, r.args, r.output, r.is_error, r.id) for r in lab.after] == [
        ("search", {"q": 1}, "found 1", False, "c1")
    ]


@pytest.mark.parametrize("name", ["", None])
async def test_t5_a_call_without_a_name_is_an_unknown_one(go: Go, name: Any) -> None:
    """B51 d."""
    lab = Lab([ToolUse(name, {}, "c1")])
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert [m.is_error for m in lab.results] == [True]
    assert [r.is_error for r in lab.after] == [True]


BAD_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "a list": ("[1]", "list"),
    "a text": ('"x"', "str"),
    "null": ("null", "object"),
    "a number": ("3", "int"),
    "broken": ('{"q":', "JSON"),
    "not JSON": ("q=1", "JSON"),
    "NaN": ('{"q": NaN}', "NaN"),
    "an infinity": ('{"q": 1, "opts": {"x": -Infinity}}', "Infinity"),
    "nothing": ("", "q"),
    "blank": ("  ", "q"),
    "missing": ("{}", "q"),
    "wrong type": ({"q": "many"}, "q"),
    "too much": ({"q": 1, "z": 2}, "z"),
    "too deep for JSON": ('{"q":' * 100_000, ""),
    "a huge number": ('{"q": ' + "9" * 10_000 + "}", ""),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
async def test_t5_bad_arguments_run_nothing_and_tell_the_model_what_to_correct(go: Go, case: str) -> None:
    """B44 c, d and e: what is sent back is an object all the same (T8)."""
    arguments, culprit = BAD_ARGUMENTS[case]
    lab = Lab([ToolUse("search", arguments, "c1")])
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    (message,) = lab.results
    assert lab.ran == []
    assert message.is_error
    assert "'search'" in message.text
    assert culprit in message.text
    assert message.text.endswith("Correct the arguments and call it again.")
    assert [(c.args, bool(c.problem)) for c in (*lab.before, *lab.layer)] == [({}, True)] * 2
    assert [(r.args, r.is_error) for r in lab.after] == [({}, True)]
    check_history(lab.model.calls[-1].messages)


@pytest.mark.parametrize("depth", [100, 300, 400, 600, 900, 5000])
async def test_t5_deeply_nested_arguments_never_break_the_run(go: Go, depth: int) -> None:
    """B44: whether the tool gets them or not, the model gets a result and the next request is valid."""
    lab = Lab([ToolUse("search", '{"q": 1, "opts": ' + '{"x":' * depth + "1" + "}" * depth + "}", "c1")])
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert [m.is_error for m in lab.results] == [not lab.ran]
    check_history(lab.model.calls[-1].messages)


@pytest.mark.parametrize(
    ("name", "arguments", "ran"),
    [
        ("search", {"q": 1}, {"q": 1}),
        ("search", ' {"q": 1}\n', {"q": 1}),
        ("ping", "", {}),
        ("ping", "  ", {}),
        ("ping", {}, {}),
    ],
)
async def test_t5_good_arguments_run_the_tool(go: Go, name: str, arguments: Any, ran: dict[str, Any]) -> None:
    """B44 a and b: nothing at all is no arguments, and what is sent back is JSON text of an object."""
    lab = Lab([ToolUse(name, arguments)])
    await go(lab.app, lab.agent, "hi")
    assert lab.ran == [ran]
    assert [json.loads(use.arguments) for use in lab.sent] == [ran]
    check_history(lab.model.calls[-1].messages)


@pytest.mark.parametrize("by", ["layer", "hook"])
@pytest.mark.parametrize("use", [ToolUse("serch", {"q": 7}), ToolUse("search", '{"q":'), ToolUse("search", {})])
async def test_t5_a_layer_or_hook_may_repair_the_call(go: Go, use: ToolUse, by: str) -> None:
    async def layer(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        return await next(call.replace(name="search", args={"q": 7}))

    hooks = [{"before_tool": lambda call, ctx: call.replace(name="search", args={"q": 7})}] if by == "hook" else []
    lab = Lab([use], hooks=hooks)
    await go(lab.app.use(tool=layer) if by == "layer" else lab.app, lab.agent, "hi")
    assert [(m.text, m.is_error) for m in lab.results] == [("found 7", False)]


async def test_t5_a_layer_may_answer_for_a_name_that_there_is_not(go: Go) -> None:
    """B51 b."""

    async def answer(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> Any:
        return "a guess" if call.tool is None else await next()

    lab = Lab([ToolUse("serch", {}), ToolUse("ping")])
    await go(lab.app.use(tool=answer), lab.agent, "hi")
    assert [(m.text, m.is_error) for m in lab.results] == [("a guess", False), ("pong", False)]


@pytest.mark.parametrize("narrowed", [True, False])
async def test_t5_tools_taken_away_in_a_chat_layer_may_not_be_called(go: Go, narrowed: bool) -> None:
    async def narrow(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
        return await next(call.replace(tools=call.tools[:1]) if narrowed else call)

    lab = Lab([ToolUse("ping")])
    await go(lab.app.use(chat=narrow), lab.agent, "hi")
    assert [m.is_error for m in lab.results] == [narrowed]
    assert lab.ran == ([] if narrowed else [{}])
    assert [call.tool is None for call in lab.before] == [narrowed]


async def test_t5_the_checked_call_is_the_executed_call(go: Go) -> None:
    """B18: a policy in a tool layer sees the name and arguments that the hook made."""
    deleted: list[str] = []
    judged: list[tuple[str, dict[str, Any]]] = []

    @tool
    async def delete(path: str) -> None:
        deleted.append(path)

    async def policy(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        judged.append((call.name, call.args))
        return ToolOutput("not allowed", is_error=True) if call.name == "delete" else await next()

    def rename(call: ToolCall, ctx: Context) -> ToolCall:
        return call.replace(name="delete", args={"path": "/"}, id="forged")

    lab = Lab([ToolUse("search", {"q": 1}, "c1")], tools=[delete], hooks=[{"before_tool": rename}])
    await go(lab.app.use(tool=policy), lab.agent, "hi")
    assert (deleted, judged) == ([], [("delete", {"path": "/"})])
    assert [(m.text, m.is_error, m.tool_call_id) for m in lab.results] == [("not allowed", True, "c1")]


# section 1: ToolCall


async def test_section_1_tool_calls_are_immutable_and_replace_knows_its_fields() -> None:
    call = ToolCall("add", {"a": 1}, "c1")
    assert (call.name, call.args, call.id, call.tool, call.problem) == ("add", {"a": 1}, "c1", None, None)
    changed = call.replace(args={"a": 2})
    assert (changed.args, call.args) == ({"a": 2}, {"a": 1})
    assert call == ToolCall("add", {"a": 1}, "c1") != changed
    with pytest.raises(AttributeError, match=r"call\.replace\(args="):
        call.args = {}  # type: ignore[misc]  # that is the point
    with pytest.raises(TypeError, match=r"arguments.*name, args and id$"):
        call.replace(arguments={})  # type: ignore[call-arg]  # that is the point
    assert repr(call) == "ToolCall(name='add', args={'a': 1}, id='c1')"


async def test_section_1_ctx_call_tool_takes_the_same_way_and_leaves_no_trace_in_history(go: Go) -> None:
    outputs: list[ToolOutput] = []

    @tool
    async def outer(ctx: Context) -> str:
        outputs.extend(
            [await ctx.call_tool("search", {"q": 3}), await ctx.call_tool("nope"), await ctx.call_tool("search")]
        )
        raise ToolError("enough")

    lab = Lab([ToolUse("outer", {}, "c1")], tools=[outer])
    await go(lab.app, lab.agent, "hi")
    assert [(o.content, o.is_error) for o in outputs[:1]] == [("found 3", False)]
    assert [o.is_error for o in outputs[1:]] == [True, True]
    assert [c.name for c in lab.before] == [c.name for c in lab.layer] == ["outer", "search", "nope", "search"]
    assert [(m.text, m.is_error) for m in lab.results] == [("enough", True)]
