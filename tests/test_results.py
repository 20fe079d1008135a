"""Calls and answers: made of one text, changed by copies, never in place (sections 1 and 2)."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middlechain import (
    Agent,
    AgentCall,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    Context,
    Message,
    Result,
    RunCall,
    Settings,
    TextDelta,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolResult,
    ToolUse,
    Usage,
    User,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go

EXCHANGE: tuple[Message, ...] = (
    User("q"),
    Assistant("let me see", [ToolUse("t", "{}", "1")], finish_reason="tool_calls"),
    ToolMessage("r", "1", "t"),
    Assistant("a", reasoning="hm", finish_reason="stop"),
)


@tool
async def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


def in_step(result: Result) -> None:
    """`text`, `message` and `messages` say the same."""
    assert result.message.text == result.text
    answers = [message for message in result.messages if isinstance(message, Assistant)]
    assert not answers or answers[-1] == result.message


# constructors with one text


def test_a_result_is_made_of_one_text() -> None:
    result = Result("hi")
    assert (result.text, result.output, result.message) == ("hi", "hi", Assistant("hi"))
    assert (result.messages, result.validations, result.pending, result.usage) == ((), (), (), Usage())
    assert (result.blocked, result.degraded, result.error, result.stopped_by) == (False, False, None, None)


def test_a_chat_reply_is_made_of_one_text() -> None:
    reply = ChatReply("hi")
    assert (reply.text, reply.tool_calls, reply.reasoning, reply.validations) == ("hi", (), None, ())
    assert (reply.usage, reply.finish_reason, reply.model) == (Usage(), None, None)


def test_a_tool_output_is_made_of_one_text() -> None:
    output = ToolOutput("hi")
    assert (output.content, output.is_error, output.data, output.error) == ("hi", False, None, None)


@pytest.mark.parametrize(("content", "text"), [(None, "null"), (3, "3"), ({"a": [1]}, '{"a":[1]}'), (b"a", "YQ==")])
def test_the_content_of_a_tool_output_is_text_when_it_is_made(content: Any, text: str) -> None:
    assert ToolOutput(content).content == text
    assert ToolOutput("x").replace(content=content).content == text


def test_a_tool_call_is_made_of_a_name_and_arguments() -> None:
    call = ToolCall("add", {"a": 1})
    assert (call.name, call.args, call.id, call.tool, call.problem) == ("add", {"a": 1}, "", None, None)
    assert ToolCall("add").args == {}


@pytest.mark.anyio
async def test_the_runtime_fills_in_the_rest_of_a_result(go: Go) -> None:
    async def answer(call: Any, next: Any) -> Any:
        return Result("hi")

    for scope in ("run", "agent"):
        layers: dict[str, Any] = {scope: answer}
        result = await go(App().use(**layers), Agent(name="a"), "q", run_id="r1", state="s")
        assert (result.text, result.agent, result.run_id, result.state) == ("hi", "a", "r1", "s")
        assert result.finish_reason == "stop"
        assert result.messages == (User("q"), Assistant("hi", finish_reason="stop"))
        assert result.usage == Usage()


@pytest.mark.anyio
async def test_the_runtime_fills_in_the_rest_of_a_chat_reply(go: Go) -> None:
    seen: list[ChatReply] = []
    replies = iter([ChatReply("", [ToolUse("add", {"a": 1})]), ChatReply("done")])  # a list is taken too

    async def watch(call: ChatCall, next: Any) -> None:
        seen.append(await next())

    async def answer(call: ChatCall, next: Any) -> ChatReply:
        return next_reply()

    def next_reply() -> ChatReply:
        return next(replies)

    result = await go(App().use(chat=[watch, answer]), Agent(tools=[add]), "q")
    assert [reply.finish_reason for reply in seen] == ["tool_calls", "stop"]
    assert seen[0].tool_calls[0].id
    assert (result.text, result.finish_reason) == ("done", "stop")


# Result.replace


def test_a_new_text_changes_message_and_messages() -> None:
    result = Result("a", messages=EXCHANGE).replace(text="b")
    assert (result.text, result.output, result.message.text) == ("b", "b", "b")
    assert result.messages == (*EXCHANGE[:-1], Assistant("b", reasoning="hm", finish_reason="stop"))


def test_a_new_message_changes_text_and_messages() -> None:
    said = Assistant("b", reasoning="well")
    result = Result("a", messages=EXCHANGE).replace(message=said)
    assert (result.text, result.output, result.message) == ("b", "b", said)
    assert result.messages == (*EXCHANGE[:-1], said)


def test_new_messages_change_text_and_message() -> None:
    result = Result("a", messages=EXCHANGE).replace(messages=[User("q"), Assistant("b")])
    assert (result.text, result.output, result.message) == ("b", "b", Assistant("b"))
    assert result.messages == (User("q"), Assistant("b"))


def test_other_changes_leave_text_and_messages_alone() -> None:
    result = Result("a", messages=EXCHANGE)
    changed = result.replace(degraded=True, blocked_by="g")
    assert (changed.degraded, changed.blocked_by) == (True, "g")
    assert (changed.text, changed.messages) == ("a", EXCHANGE)
    assert not result.degraded


def test_an_output_that_is_not_the_text_stays_when_the_text_changes() -> None:
    result: Result[Any] = Result("a", output={"n": 1}, messages=EXCHANGE)
    assert result.replace(text="b").output == {"n": 1}
    assert result.replace(output=2).output == 2
    assert result.replace(output=2).text == "a"


def test_an_empty_text_is_a_value() -> None:
    result = Result("a", messages=EXCHANGE).replace(text="")
    assert (result.text, result.output, result.message.text) == ("", "", "")
    in_step(result)


def test_a_text_for_an_exchange_without_an_answer_adds_the_answer() -> None:
    result = Result("", messages=EXCHANGE[:1]).replace(text="b")
    assert result.messages == (User("q"), Assistant("b"))
    in_step(result)


def test_a_text_before_the_exchange_is_known_needs_no_messages() -> None:
    result = Result("a").replace(text="b")
    assert (result.text, result.message, result.messages) == ("b", Assistant("b"), ())


def test_the_message_is_the_last_one_of_the_assistant_where_tools_spoke_last() -> None:
    result = Result("let me see", messages=EXCHANGE[:3])
    assert result.message == EXCHANGE[1]
    assert result.replace(text="b").messages[1:] == (EXCHANGE[1].with_text("b"), EXCHANGE[2])


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from(["", "a", "new"]),
        "message": st.sampled_from([Assistant(""), Assistant("said", reasoning="r")]),
        "messages": st.sampled_from([EXCHANGE, EXCHANGE[:3], EXCHANGE[:2], EXCHANGE[:1], ()]),
        "finish_reason": st.just("limit"),
    },
)


@given(st.sampled_from([Result("a", messages=EXCHANGE), Result("a"), Result()]), CHANGES, CHANGES)
def test_text_message_and_messages_are_in_step_after_any_replace(
    result: Result, one: dict[str, Any], two: dict[str, Any]
) -> None:
    changed = result.replace(**one).replace(**two)
    in_step(changed)
    if "text" in two:
        assert changed.text == two["text"]
    assert changed.output == changed.text


@pytest.mark.anyio
async def test_a_replaced_result_is_the_answer_in_text_messages_and_stream() -> None:
    class Loud(Agent):
        def after_run(self, result: Result, ctx: Context) -> Result:
            return result.replace(message=result.message.with_text(result.text.upper()))

    events, result = await collect(App(model=ScriptedModel(["hi"])).stream(Loud, "q"))
    assert (result.text, result.messages[-1].text) == ("HI", "HI")
    assert [event.text for event in events if isinstance(event, TextDelta)][-1] == "HI"


# typed replace


def test_a_reply_is_changed_by_copy() -> None:
    reply = ChatReply("a", model="m")
    changed = reply.replace(text="b", tool_calls=[ToolUse("t")], finish_reason="stop")
    assert changed == ChatReply("b", (ToolUse("t"),), finish_reason="stop", model="m")
    assert reply == ChatReply("a", model="m")


CALLS: list[Any] = [
    RunCall("target", "in"),
    AgentCall("in"),
    ChatCall((User("q"),)),
    ToolCall("add", {"a": 1}),
]
ANSWERS: list[Any] = [Result("a"), ChatReply("a"), ToolOutput("a")]


def by_class(thing: object) -> str:
    return type(thing).__name__


@pytest.mark.parametrize("thing", [*CALLS, *ANSWERS], ids=by_class)
def test_an_unknown_field_is_refused_by_name(thing: Any) -> None:
    with pytest.raises(TypeError, match="colour"):
        thing.replace(colour="red")
    with pytest.raises(TypeError, match="colour"):
        type(thing)("a", colour="red")


@pytest.mark.parametrize("thing", [*CALLS, *ANSWERS], ids=by_class)
def test_replace_without_changes_gives_an_equal_copy(thing: Any) -> None:
    assert thing.replace() == thing


def test_calls_are_changed_by_copy() -> None:
    assert CALLS[0].replace(input="b") == RunCall("target", "b")
    assert CALLS[0].replace(target="other").target == "other"
    assert CALLS[1].replace(input="b") == AgentCall("b")
    changed = CALLS[2].replace(messages=[User("b")], tools=[add], settings=Settings(seed=1), model="demo")
    assert (changed.messages, changed.tools, changed.model) == ((User("b"),), (add,), "demo")
    assert CALLS[3].replace(args={"a": 2}) == ToolCall("add", {"a": 2})
    assert CALLS[3].replace(name="sub", id="9") == ToolCall("sub", {"a": 1}, "9")


# immutability


@pytest.mark.parametrize("thing", [*CALLS, *ANSWERS, Usage(), Settings()], ids=by_class)
def test_calls_and_answers_are_immutable(thing: Any) -> None:
    names = getattr(thing, "__dataclass_fields__", None) or ("name", "args", "id", "tool", "problem")
    for name in names:
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(thing, name, None)
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            delattr(thing, name)
    with pytest.raises((AttributeError, TypeError)):
        thing.unheard_of = 1


def test_a_tool_call_says_how_to_change_it() -> None:
    with pytest.raises(AttributeError, match=r"immutable; use call\.replace\(name=\.\.\.\)"):
        ToolCall("add").name = "sub"  # type: ignore[misc]


def test_h9_changing_arguments_in_place_has_no_effect() -> None:
    given_args: dict[str, Any] = {"a": [1], "b": {"c": 1}}
    call, result = ToolCall("t", given_args), ToolResult("t", given_args, "out", False, "1")
    given_args["a"].append(2)
    for one in (call, call.replace(name="u")):
        one.args["b"]["c"] = 2
        one.args["new"] = 1
        assert one.args == {"a": [1], "b": {"c": 1}}
    result.args["b"]["c"] = 2
    assert result.args["b"] == {"c": 1}
    assert (result.name, result.output, result.is_error, result.id) == ("t", "out", False, "1")


def test_lists_given_are_kept_as_tuples() -> None:
    uses, said = [ToolUse("t")], [User("q")]
    reply, result, call = ChatReply("", uses), Result("a", messages=said), ChatCall(said, [add])
    uses.clear()
    said.clear()
    assert (reply.tool_calls, result.messages, call.messages, call.tools) == (
        (ToolUse("t"),),
        (User("q"),),
        (User("q"),),
        (add,),
    )


@pytest.mark.parametrize("thing", [*CALLS, *ANSWERS, Result("a", messages=EXCHANGE)], ids=by_class)
def test_what_travels_copies_and_pickles_by_value(thing: Any) -> None:
    for again in (copy.copy(thing), copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))):
        assert again == thing


# .ctx and .agent


@pytest.mark.anyio
async def test_each_call_has_ctx_and_agent_and_copies_keep_them(go: Go) -> None:
    seen: list[tuple[str, Any, Any]] = []

    async def note(call: Any, next: Any) -> Any:
        seen.append((type(call).__name__, call.ctx.run_id, call.agent))
        copied = call.replace()
        assert (copied.ctx, copied.agent) == (call.ctx, call.agent)
        return await next(copied)

    agent = Agent(name="a", model=ScriptedModel([[ToolUse("add", {"a": 1})], "b"]), tools=[add])
    app = App().use(run=[note, note], agent=[note, note], chat=[note, note], tool=[note, note])
    result = await go(app, agent, "q", run_id="r")
    assert result.text == "b"
    names = [name for name, run_id, its_agent in seen if (run_id, its_agent) == ("r", agent)]
    assert names == [name for name in ("RunCall", "AgentCall", "ChatCall", "ToolCall", "ChatCall") for _ in range(2)]


@pytest.mark.anyio
async def test_a_call_that_a_layer_made_itself_gets_ctx_and_agent(go: Go) -> None:
    seen: list[tuple[Any, Any]] = []

    async def remake(call: Any, next: Any) -> Any:
        made: dict[Any, Any] = {
            RunCall: lambda: RunCall(call.target, call.input),
            AgentCall: lambda: AgentCall(call.input),
            ChatCall: lambda: ChatCall(call.messages, call.tools, model=call.model),
            ToolCall: lambda: ToolCall(call.name, call.args),
        }
        fresh = made[type(call)]()
        assert (fresh.ctx, fresh.agent) == (None, None)
        return await next(fresh)

    async def note(call: Any, next: Any) -> Any:
        seen.append((call.ctx.run_id, call.agent))
        return await next()

    agent = Agent(name="a", model=ScriptedModel([[ToolUse("add", {"a": 1})], "b"]), tools=[add])
    app = App().use(run=[remake, note], agent=[remake, note], chat=[remake, note], tool=[remake, note])
    assert (await go(app, agent, "q", run_id="r")).text == "b"
    assert seen == [("r", agent)] * 5


@pytest.mark.anyio
async def test_calls_carry_what_section_1_lists(go: Go) -> None:
    seen: dict[str, Any] = {}

    async def note(call: Any, next: Any) -> Any:
        seen.setdefault(type(call).__name__, call)
        return await next()

    model = ScriptedModel([[ToolUse("add", {"a": 1}, "i")], "b"])
    agent = Agent(name="a", model=model, tools=[add], settings=Settings(seed=3))
    await go(App().use(run=note, agent=note, chat=note, tool=note), agent, "q")
    assert (seen["RunCall"].target, seen["RunCall"].input) == (agent, "q")
    step = seen["AgentCall"]
    assert (step.input, step.caller, step.via, step.depth) == ("q", None, "root", 0)
    chat = seen["ChatCall"]
    assert (chat.messages, chat.tools, chat.settings, chat.model) == ((User("q"),), (add,), Settings(seed=3), model)
    assert isinstance(chat.streaming, bool)
    assert callable(chat.send)
    called = seen["ToolCall"]
    assert (called.name, called.args, called.id, called.tool, called.problem) == ("add", {"a": 1}, "i", add, None)


# Usage


def test_a_field_of_usage_that_nobody_reported_is_none() -> None:
    assert set(vars_of(Usage()).values()) == {None}
    assert vars_of(Usage(input_tokens=1)) == {**vars_of(Usage()), "input_tokens": 1}
    assert Usage(input_tokens=1, output_tokens=0).total_tokens == 1


def test_usage_adds_up_field_by_field_and_none_is_not_zero() -> None:
    one, other = Usage(input_tokens=1, cost=0.5), Usage(input_tokens=2, requests=0)
    assert one + other == Usage(input_tokens=3, cost=0.5, requests=0)
    assert one + Usage() == one == Usage() + one


def vars_of(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in usage.__dataclass_fields__}
