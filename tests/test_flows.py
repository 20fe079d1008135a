"""Flows: agents in a row, side by side, and over and over (A1-A4, A6). What they stream is in `test_flow_streams`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from itertools import permutations
from typing import Any, Literal

import anyio
import pytest
from pydantic import BaseModel

from middlechain import (
    Agent,
    AgentCall,
    AgentFinished,
    AgentStarted,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    ConfigurationError,
    Context,
    Deny,
    Enforced,
    Event,
    Flow,
    GuardrailDenied,
    Image,
    Layers,
    LimitExceeded,
    LimitReached,
    Limits,
    Result,
    Rewrite,
    RunFinished,
    RunStarted,
    System,
    Text,
    ToolError,
    ToolMessage,
    ToolOutput,
    ToolUse,
    Usage,
    User,
    WrongReturn,
    answered,
    called_tool,
    guardrail,
    loop,
    parallel,
    sequence,
    tool,
)
from middlechain.guards import Guard
from middlechain.testing import ScriptedModel

from .conftest import Go
from .scenes import Boom
from .test_deadlines import in_fast_time

CANNED = "I can't help with that."
Said = tuple[str, str | None, str]


@tool
async def ping() -> str:
    return "pong"


@tool
async def fail() -> str:
    raise ToolError("no")


def says(name: str, *replies: Any, **options: Any) -> Agent:
    """An agent that gives these replies, one after the other."""
    return Agent(name=name, model=ScriptedModel(replies), **options)


def calls_of(agent: Agent) -> list[ChatCall]:
    model = agent.model
    assert isinstance(model, ScriptedModel)
    return model.calls


def said(messages: Sequence[Any]) -> list[Said]:
    """The messages as role, name and text."""
    return [(message.role, getattr(message, "name", None), message.text) for message in messages]


def asked(agent: Agent) -> list[list[Said]]:
    """What each request to the agent's model said."""
    return [said(call.messages) for call in calls_of(agent)]


def texts(result: Result) -> list[str]:
    return [message.text for message in result.messages]


def shout(input: str, ctx: Context) -> str:
    return input.upper()


async def shout_later(input: str, ctx: Context) -> str:
    await anyio.lowlevel.checkpoint()
    return input.upper()


def shout_as_result(input: str, ctx: Context) -> Result:
    return Result(input.upper())


def keep(input: str, ctx: Context) -> None:
    return None


async def keep_later(input: str, ctx: Context) -> None:
    await anyio.lowlevel.checkpoint()


def against(word: str, answer: Any = None, name: str = "no-words") -> Guard:
    """A guard that finds one word."""
    return guardrail(name)(lambda text, ctx: (answer or Enforced("found")) if word in text else None)


def check_history(messages: Sequence[Any]) -> None:
    """It begins with what a user asked, and every call has exactly one result, right behind it."""
    if not messages:
        return
    assert isinstance(messages[0], User)
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id in open_calls
            open_calls.remove(message.tool_call_id)
        else:
            assert not open_calls
            open_calls = [use.id for use in message.tool_calls] if isinstance(message, Assistant) else []
    assert not open_calls
    ids = [use.id for message in messages if isinstance(message, Assistant) for use in message.tool_calls]
    assert all(ids)


# A1: what one says is what the next one is asked


@pytest.mark.anyio
async def test_a1_the_answer_of_one_is_what_the_next_is_asked_and_stands_in_the_history_once(go: Go) -> None:
    a, b, c = says("a", "one"), says("b", "two"), says("c", "three")
    result = await go(App(), sequence(a, b, c), "q")
    assert said(result.messages) == [
        ("user", None, "q"),
        ("user", "a", "one"),
        ("user", "b", "two"),
        ("assistant", None, "three"),
    ]
    assert (result.text, result.output, result.agent, result.message.text) == ("three", "three", "c", "three")
    assert (result.stopped_by, result.finish_reason, result.blocked) == (None, "stop", False)
    assert asked(a) == [[("user", None, "q")]]
    assert asked(b) == [[("user", None, "q"), ("user", "a", "one")]]
    assert asked(c) == [[("user", None, "q"), ("user", "a", "one"), ("user", "b", "two")]]


@pytest.mark.anyio
async def test_a1_members_share_the_history_and_the_turns_of_those_before_them(go: Go) -> None:
    a = says("a", ["looks", ToolUse("ping", "{}", "id-1")], "one", tools=[ping], instructions="I am a.")
    b = says("b", "two", instructions="I am b.")
    history = [User("before"), Assistant("fine")]
    result = await go(App(), sequence(a, b), "q", history=history)
    assert calls_of(b)[0].messages == (
        System("I am b."),
        *history,
        User("q"),
        Assistant("looks", [ToolUse("ping", "{}", "id-1")], finish_reason="tool_calls"),
        ToolMessage("pong", "id-1", "ping"),
        User("one", name="a"),
    )
    assert result.messages[0] == User("q")
    assert texts(result) == ["q", "looks", "pong", "one", "two"]
    check_history(result.messages)


@pytest.mark.anyio
async def test_a1_a_conversation_goes_on_with_what_all_members_said() -> None:
    a, b = says("a", "one", "three"), says("b", "two", "four")
    conversation = App().conversation(sequence(a, b, name="team"))
    await conversation.send("q")
    await conversation.send("r")
    assert said(conversation.messages) == [
        ("user", None, "q"),
        ("user", "a", "one"),
        ("assistant", None, "two"),
        ("user", None, "r"),
        ("user", "a", "three"),
        ("assistant", None, "four"),
    ]
    assert asked(a)[1] == said(conversation.messages)[:4]
    assert conversation.agent == "team"


@pytest.mark.anyio
async def test_a1_the_name_stays_when_a_hook_or_a_layer_rewrites_what_a_member_is_asked(go: Go) -> None:
    async def rewrite(call: AgentCall, next: Any) -> Any:
        return await next(call.replace(input=f"layer({call.input})"))

    def by_hook(input: Any, ctx: Context) -> str:
        return f"hook({input})"

    def as_user(input: Any, ctx: Context) -> User:
        return User("from me", name="me")

    b = says("b", "two", hooks=[{"before_run": by_hook}])
    result = await go(App().use(agent=rewrite, only="b"), sequence(says("a", "one"), b), "q")
    assert asked(b)[0][-1] == ("user", "a", "hook(layer(one))")
    assert said(result.messages)[1] == ("user", "a", "hook(layer(one))")
    c = says("c", "three", hooks=[{"before_run": as_user}])
    await go(App(), sequence(says("a", "one"), c), "q")
    assert asked(c)[0][-1] == ("user", "me", "from me")  # a name of its own is kept


@pytest.mark.anyio
async def test_a1_an_input_guard_may_rewrite_what_a_member_is_asked_and_the_name_stays(go: Go) -> None:
    b = says("b", "two", guardrails={"input": [against("one", Rewrite("***"))]})
    result = await go(App(), sequence(says("a", "one"), b), "q")
    assert asked(b)[0][-1] == said(result.messages)[1] == ("user", "a", "***")


@pytest.mark.anyio
async def test_a1_what_after_response_makes_of_an_answer_is_what_the_next_is_asked(go: Go) -> None:
    b = says("b", "two")
    await go(App(), sequence(says("a", "one", hooks=[{"after_response": lambda text, ctx: "ONE"}]), b), "q")
    assert asked(b)[0][-1] == ("user", "a", "ONE")


@pytest.mark.anyio
async def test_a1_parts_and_a_user_message_reach_the_first_member_as_they_are(go: Go) -> None:
    parts = (Text("look"), Image(url="https://example.org/x.png"))
    a = says("a", "one", "two")
    await go(App(), sequence(a), parts)
    await go(App(), sequence(a), User("hi", name="ann"))
    assert [call.messages for call in calls_of(a)] == [(User(parts),), (User("hi", name="ann"),)]


@pytest.mark.anyio
async def test_a1_the_answer_of_an_output_type_is_handed_on_as_text_and_the_last_one_is_the_output(go: Go) -> None:
    class Mood(BaseModel):
        mood: Literal["good", "bad"]

    b = says("b", "two")
    result = await go(App(), sequence(says("a", '{"mood":"good"}', output=Mood), b), "q")
    assert asked(b)[0][-1] == ("user", "a", '{"mood":"good"}')
    assert result.output == "two"
    flow = sequence(says("a", "one"), says("b", "what?", '{"mood":"bad"}', output=Mood))
    result = await go(App(), flow, "q")
    assert result.output == Mood(mood="bad")
    assert texts(result) == ["q", "one", '{"mood":"bad"}']
    result = await go(App(), sequence(says("b", '{"mood":"bad"}', output=Mood), keep), "q")
    assert result.output == result.text == '{"mood":"bad"}'


@pytest.mark.anyio
async def test_a1_a_degraded_answer_is_handed_on_and_only_that_of_the_last_marks_the_result(go: Go) -> None:
    saved = {"on_error": lambda error, ctx: "sorry"}
    b = says("b", "two")
    result = await go(App(), sequence(says("a", Boom(), hooks=[saved]), b), "q")
    assert asked(b)[0][-1] == ("user", "a", "sorry")
    assert (result.text, result.degraded, result.error) == ("two", False, None)
    boom = Boom()
    result = await go(App(), sequence(says("a", "one"), says("b", boom, hooks=[saved])), "q")
    assert (result.text, result.degraded, result.error) == ("sorry", True, boom)
    assert said(result.messages)[1:] == [("user", "a", "one"), ("assistant", None, "sorry")]


@pytest.mark.anyio
async def test_a1_a_members_error_goes_on_as_itself_and_the_next_are_not_asked(go: Go) -> None:
    boom, c = Boom(), says("c", "three")
    with pytest.raises(Boom) as caught:
        await go(App(), sequence(says("a", "one"), says("b", boom), c), "q")
    assert caught.value is boom
    assert asked(c) == []


@pytest.mark.anyio
async def test_a1_usage_is_that_of_all_members(go: Go) -> None:
    used = Usage(input_tokens=2, output_tokens=1)
    flow = sequence(says("a", ChatReply("one", usage=used)), says("b", ChatReply("two", usage=used)))
    result = await go(App(), flow, "q")
    assert result.usage == Usage(input_tokens=4, output_tokens=2, total_tokens=6, requests=2)


@pytest.mark.anyio
async def test_a1_validations_have_one_for_each_guard_and_side_over_all_members(go: Go) -> None:
    everywhere = against("bad", Rewrite("***"), "everywhere")
    app = App(guardrails={"input": [everywhere], "output": [everywhere]})
    own = against("nothing", name="own")
    flow = sequence(says("a", "a bad one"), says("b", "two", guardrails={"output": [own]}))
    result = await go(app, flow, "q")
    found = [(one.name, one.direction, one.outcome) for one in result.validations]
    assert found == [("everywhere", "input", "allow"), ("everywhere", "output", "rewrite"), ("own", "output", "allow")]
    assert (await go(App(), sequence(says("a", "one")), "q")).validations == ()


# A1: the last one that has its turn


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.anyio
async def test_a1_a_member_that_was_blocked_is_the_last_one(side: str, place: int, go: Go) -> None:
    guards = {side: [guardrail("no")(lambda text, ctx: Enforced("no"))]}
    members = [says("a", "one"), says("b", "two"), says("c", "three")]
    members[place].guardrails = guards
    result = await go(App(), sequence(*members), "q")
    assert (result.text, result.blocked, result.blocked_by) == (CANNED, True, "no")
    assert (result.finish_reason, result.agent, result.stopped_by) == ("safety", members[place].name, None)
    assert result.messages[-1] == Assistant(CANNED, finish_reason="safety", blocked=True)
    assert asked(members[place + 1]) == []
    assert len(result.messages) == place + 2


@pytest.mark.anyio
async def test_a1_a_member_after_one_that_passed_its_guards_is_asked(go: Go) -> None:
    b = says("b", "two")
    result = await go(App(), sequence(says("a", "one", guardrails={"output": [against("bad")]}), b), "q")
    assert (result.blocked, len(asked(b))) == (False, 1)


@pytest.mark.anyio
async def test_a1_g3_a_denial_goes_on_and_stays_on_a_result_that_a_layer_gives_instead(go: Go) -> None:
    def flow() -> Flow:
        return sequence(says("a", "one"), says("b", "x", guardrails={"input": [against("one", Deny("no"))]}))

    async def caught(call: Any, next: Any) -> Any:
        try:
            return await next()
        except GuardrailDenied:
            return "caught"

    with pytest.raises(GuardrailDenied):
        await go(App(), flow(), "q")
    result = await go(App().use(run=caught), flow(), "q")
    assert (result.text, result.blocked, result.blocked_by) == ("caught", True, "no-words")

    async def nested(call: Any, next: Any) -> Any:
        try:
            await call.ctx.run(flow(), "q")
        except GuardrailDenied:
            return "caught"

    result = await go(App(), says("outer", middleware=[Layers(agent=nested)]), "q")
    assert (result.text, result.blocked, result.blocked_by) == ("caught", True, "no-words")


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
@pytest.mark.anyio
async def test_a1_l2_a_member_that_a_limit_of_the_run_stopped_is_the_last_and_the_answer_before_it_is_the_flows(
    on_exceed: Any, go: Go
) -> None:
    b, c = says("b", "two"), says("c", "three")
    flow = sequence(says("a", ["looks", ToolUse("ping")], "one", tools=[ping]), b, c)
    app = App(limits=Limits(chat_calls=2, on_exceed=on_exceed))
    if on_exceed == "stop":
        result = await go(app, flow, "q")
    else:
        with pytest.raises(LimitExceeded) as caught:
            await go(app, flow, "q")
        result = caught.value.result
    assert (result.text, result.finish_reason, result.stopped_by) == ("one", "limit", "limit")
    assert said(result.messages) == [
        ("user", None, "q"),
        ("assistant", None, "looks"),
        ("tool", "ping", "pong"),
        ("assistant", None, "one"),
    ]
    assert result.agent == "a"
    assert (asked(b), asked(c)) == ([], [])
    assert result.usage.requests == 2


@pytest.mark.anyio
async def test_a1_l2_a_limit_that_allows_all_stops_nobody(go: Go) -> None:
    flow = sequence(says("a", "one"), says("b", "two"))
    result = await go(App(limits=Limits(chat_calls=2, on_exceed="stop")), flow, "q")
    assert (result.text, result.stopped_by) == ("two", None)


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
@pytest.mark.anyio
async def test_a1_l2_text_of_a_member_that_was_stopped_later_is_the_flows(on_exceed: Any, go: Go) -> None:
    c = says("c", "three")
    b = says("b", ["checks", ToolUse("ping")], ["checks again", ToolUse("ping")], tools=[ping])
    app = App(limits=Limits(turns=2, on_exceed=on_exceed))
    if on_exceed == "stop":
        result = await go(app, sequence(says("a", "one"), b, c), "q")
    else:
        with pytest.raises(LimitExceeded) as caught:
            await go(app, sequence(says("a", "one"), b, c), "q")
        result = caught.value.result
    assert texts(result) == ["q", "one", "checks", "pong", "checks again"]
    assert said(result.messages)[1] == ("user", "a", "one")
    assert (result.text, result.finish_reason, result.stopped_by) == ("checks again", "limit", "limit")
    assert asked(c) == []
    check_history(result.messages)


@pytest.mark.anyio
async def test_a1_l2_a_first_member_that_is_stopped_at_once_leaves_the_question(go: Go) -> None:
    b = says("b", "two")
    result = await go(App(limits=Limits(chat_calls=0, on_exceed="stop")), sequence(says("a", "one"), b), "q")
    assert (result.text, result.stopped_by, texts(result)) == ("", "limit", ["q"])
    with pytest.raises(LimitExceeded) as caught:
        await go(App(limits=Limits(chat_calls=0)), sequence(says("a", "one"), b), "q")
    assert texts(caught.value.result) == ["q"]
    assert asked(b) == []


async def spend(input: str, ctx: Context) -> str:
    return (await ctx.chat(input, model=ScriptedModel(["spent"] * 9))).text


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
@pytest.mark.anyio
async def test_a1_l2_a_function_that_a_limit_stopped_leaves_the_answer_before_it(on_exceed: Any, go: Go) -> None:
    c = says("c", "three")
    app = App(limits=Limits(chat_calls=1, on_exceed=on_exceed))
    if on_exceed == "stop":
        result = await go(app, sequence(says("a", "one"), spend, c), "q")
    else:
        with pytest.raises(LimitExceeded) as caught:
            await go(app, sequence(says("a", "one"), spend, c), "q")
        result = caught.value.result
    assert (result.text, result.finish_reason, result.stopped_by) == ("one", "limit", "limit")
    assert said(result.messages) == [("user", None, "q"), ("assistant", None, "one")]
    assert asked(c) == []


@pytest.mark.anyio
async def test_a1_l2_a_parallel_whose_members_were_stopped_at_once_leaves_the_answer_before_it(go: Go) -> None:
    flow = sequence(says("a", "one"), parallel(says("b", "two"), says("c", "three")))
    result = await go(App(limits=Limits(chat_calls=1, on_exceed="stop")), flow, "q")
    assert (result.text, result.stopped_by) == ("one", "limit")
    assert said(result.messages) == [("user", None, "q"), ("assistant", None, "one")]


def stop_after(value: Any, ctx: Context) -> None:
    ctx.stop("enough")


def stop_here(input: str, ctx: Context) -> str:
    ctx.stop("enough")
    return "stopped"


@pytest.mark.anyio
async def test_a1_a_member_that_ctx_stop_stopped_is_the_last_one(go: Go) -> None:
    @tool
    async def end(ctx: Context) -> str:
        ctx.stop("enough")
        return "ended"

    b = says("b", "two")
    flow = sequence(says("a", ["looks", ToolUse("end")], "never", tools=[end]), b)
    result = await go(App(), flow, "q")
    assert (result.text, result.stopped_by, result.finish_reason) == ("looks", "stop", "stop")
    assert texts(result) == ["q", "looks", "ended"]
    assert asked(b) == []


@pytest.mark.anyio
async def test_a1_what_ctx_stop_kept_from_its_turn_shows_in_stopped_by_and_in_the_outcome(go: Go) -> None:
    for first in stop_here, says("a", "one", hooks=[{"after_run": stop_after}]):
        b, events = says("b", "two"), list[Event]()
        result = await go(App().observe(events.append), sequence(first, b), "q")
        assert (result.text, result.stopped_by) == ("stopped" if first is stop_here else "one", "stop")
        assert events[-1] == RunFinished("stopped")
        assert asked(b) == []


@pytest.mark.anyio
async def test_a1_ctx_stop_in_the_last_member_keeps_nobody_from_a_turn(go: Go) -> None:
    result = await go(App(), sequence(says("a", "one"), stop_here), "q")
    assert (result.text, result.stopped_by) == ("stopped", None)


# A4: functions


@pytest.mark.parametrize("function", [shout, shout_later, shout_as_result], ids=lambda one: str(one.__name__))
@pytest.mark.anyio
async def test_a4_a_function_answers_at_the_first_a_middle_and_the_last_place(function: Any, go: Go) -> None:
    name, a = function.__name__, says("a", "one")
    result = await go(App(), sequence(function, a), "q")
    assert said(result.messages) == [("user", None, "q"), ("user", name, "Q"), ("assistant", None, "one")]
    assert asked(a) == [said(result.messages)[:2]]
    a, b = says("a", "one"), says("b", "two")
    result = await go(App(), sequence(a, function, b), "q")
    assert asked(b) == [[("user", None, "q"), ("user", "a", "one"), ("user", name, "ONE")]]
    result = await go(App(), sequence(says("a", "one"), function), "q")
    assert said(result.messages) == [("user", None, "q"), ("user", "a", "one"), ("assistant", None, "ONE")]
    assert (result.text, result.output, result.finish_reason, result.agent) == ("ONE", "ONE", "stop", name)
    result = await go(App(), sequence(function), "q")
    assert said(result.messages) == [("user", None, "q"), ("assistant", None, "Q")]


@pytest.mark.parametrize("function", [keep, keep_later], ids=lambda one: str(one.__name__))
@pytest.mark.anyio
async def test_a4_a_function_that_returns_none_passes_on_what_came_in(function: Any, go: Go) -> None:
    b = says("b", "two")
    await go(App(), sequence(says("a", "one"), function, b), "q")
    assert asked(b)[0][-1][2] == "one"
    assert (await go(App(), sequence(says("a", "one"), function), "q")).text == "one"
    assert (await go(App(), sequence(function), "q")).text == "q"
    assert (await go(App(), sequence(lambda input, ctx: "", says("c", "three")), "q")).messages[1].text == ""


@pytest.mark.anyio
async def test_a4_a_function_that_returns_none_passes_on_parts_as_they_came_in(go: Go) -> None:
    parts = (Text("look"), Image(url="https://example.org/x.png"))
    a, seen = says("a", "one"), list[Any]()

    def note(input: Any, ctx: Context) -> None:
        seen.append(input)

    await go(App(), sequence(note, a), parts)
    assert seen == [parts]
    question = calls_of(a)[0].messages[-1]
    assert isinstance(question, User)
    assert question.content == parts


@pytest.mark.parametrize("value", [0, False, {}, ["one"], b"one", ChatReply("one")], ids=repr)
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.anyio
async def test_a4_a_function_that_returns_something_else_is_refused(value: Any, place: str, go: Go) -> None:
    def wrong(input: str, ctx: Context) -> Any:
        return value

    async def wrong_later(input: str, ctx: Context) -> Any:
        return value

    for function in wrong, wrong_later:
        flow = sequence(function, says("a", "one")) if place == "first" else sequence(says("a", "one"), function)
        with pytest.raises(WrongReturn, match=rf"{function.__name__}.*{type(value).__name__}.*return a str"):
            await go(App(), flow, "q")


@pytest.mark.parametrize("place", range(3))
@pytest.mark.anyio
async def test_a4_what_a_function_raises_goes_on_as_itself(place: int, go: Go) -> None:
    boom = Boom()

    async def fails(input: str, ctx: Context) -> str:
        raise boom

    members: list[Any] = [says("a", "one"), says("b", "two")]
    members.insert(place, fails)
    with pytest.raises(Boom) as caught:
        await go(App(), sequence(*members), "q")
    assert caught.value is boom


@pytest.mark.anyio
async def test_a4_a_function_answers_under_its_plain_name_wherever_it_was_written(go: Go) -> None:
    def draft(input: str, ctx: Context) -> str:
        return "drafted"

    b = says("b", "two")
    await go(App(), sequence(draft, b), "q")
    assert asked(b)[0][-1] == ("user", "draft", "drafted")
    assert (await go(App(), sequence(draft), "q")).agent == "draft"


@pytest.mark.anyio
async def test_a4_a_functions_result_has_its_output(go: Go) -> None:
    def count(input: str, ctx: Context) -> Result:
        return Result(str(len(input)), output=len(input))

    result = await go(App(), sequence(says("a", "one"), count), "q")
    assert (result.text, result.output) == ("3", 3)
    b = says("b", "two")
    result = await go(App(), sequence(count, b), "q")
    assert (asked(b)[0][-1][2], result.output) == ("1", "two")


@pytest.mark.anyio
async def test_a4_a_function_may_answer_by_asking_an_agent_and_what_blocked_that_ends_the_flow(go: Go) -> None:
    async def ask(input: str, ctx: Context) -> Result:
        return await ctx.run(says("inner", "fine", guardrails={"input": [against("bad")]}), input)

    b = says("b", "two")
    result = await go(App(), sequence(ask, b), "q")
    assert (result.text, asked(b)[0][-1][2]) == ("two", "fine")
    b = says("b", "two")
    result = await go(App(), sequence(ask, b), "bad")
    assert (result.text, result.blocked, result.blocked_by) == (CANNED, True, "no-words")
    assert asked(b) == []


@pytest.mark.anyio
async def test_a4_c1_inside_a_function_ctx_is_the_flows(go: Go) -> None:
    seen: list[Any] = []

    async def look(input: str, ctx: Context) -> None:
        seen.append((ctx.agent, said(ctx.messages), ctx.loop, ctx.data["who"]))
        ctx.seen = "yes"

    a = says("a", ["looks", ToolUse("ping")], "one", tools=[ping])
    flow = sequence(a, look, says("b", "two", hooks=[{"before_run": lambda input, ctx: seen.append(ctx.seen)}]))
    result = await go(App(), flow, "q", data={"who": "ann"}, history=[User("before")])
    agent, messages, around, who = seen[0]
    assert (agent, around, who, seen[1]) == (flow, None, "ann", "yes")
    assert messages[:4] == [
        ("user", None, "before"),
        ("user", None, "q"),
        ("assistant", None, "looks"),
        ("tool", "ping", "pong"),
    ]
    assert result.state.seen == "yes"


@pytest.mark.anyio
async def test_a4_what_a_function_or_a_merge_returns_is_not_judged(go: Go) -> None:
    app = App(guardrails={"output": [against("BAD")]})
    assert (await go(app, sequence(says("a", "bad"), shout), "q")).text == "BAD"
    flow = parallel(says("a", "bad"), merge=lambda results, ctx: "BAD")
    assert (await go(app, flow, "q")).text == "BAD"
    result = await go(app, sequence(says("a", "BAD"), shout), "q")
    assert (result.text, result.blocked) == (CANNED, True)  # what an agent says is


# A4: what members may be


class Polite(Agent):
    model = ScriptedModel(lambda call: f"please {call.messages[-1].text}")


@pytest.mark.anyio
async def test_a4_classes_and_names_of_agents_of_the_app_are_members(go: Go) -> None:
    app = App(agents=[says("known", "one", "one")])
    result = await go(app, sequence("known", Polite), "q")
    assert said(result.messages) == [
        ("user", None, "q"),
        ("user", "known", "one"),
        ("assistant", None, "please one"),
    ]
    assert result.agent == "Polite"
    with pytest.raises(ConfigurationError, match="no agent 'stranger'; it has: known"):
        await go(app, sequence("known", "stranger"), "q")


@pytest.mark.anyio
async def test_a4_a_class_gives_one_object_for_a_run(go: Go) -> None:
    objects: list[Agent] = []

    class Counts(Agent):
        model = ScriptedModel(lambda call: "one")

        def before_run(self, input: Any, ctx: Context) -> None:
            objects.append(self)

    await go(App(), sequence(Counts, Counts), "q")
    await go(App(), sequence(Counts), "q")
    assert objects[0] is objects[1]
    assert objects[2] is not objects[0]


@pytest.mark.anyio
async def test_a4_an_agent_that_owns_its_step_is_a_member(go: Go) -> None:
    class Owns(Agent):
        async def run(self, input: str, ctx: Context) -> str:
            return f"own {input}"

    result = await go(App(), sequence(says("a", "one"), Owns), "q")
    assert said(result.messages)[1:] == [("user", "a", "one"), ("assistant", None, "own one")]


NESTED: dict[str, Callable[..., Flow]] = {
    "sequence": lambda *members, name="sequence": sequence(*members, name=name),
    "loop": lambda *members, name="loop": loop(*members, name=name, max_iterations=1),
}


@pytest.mark.parametrize("outer", NESTED)
@pytest.mark.parametrize("inner", NESTED)
@pytest.mark.anyio
async def test_a4_a_flow_in_a_flow_hands_on_and_is_asked_under_the_names_of_who_answered(
    outer: str, inner: str, go: Go
) -> None:
    a, b, c, d = says("a", "one"), says("b", "two"), says("c", "three"), says("d", "four")
    result = await go(App(), NESTED[outer](a, NESTED[inner](b, c, name="inner"), d), "q")
    assert said(result.messages) == [
        ("user", None, "q"),
        ("user", "a", "one"),
        ("user", "b", "two"),
        ("user", "c", "three"),
        ("assistant", None, "four"),
    ]
    assert asked(b) == [said(result.messages)[:2]]
    assert asked(d) == [said(result.messages)[:4]]
    assert result.agent == "d"


@pytest.mark.anyio
async def test_a4_flows_nest_without_names_of_their_own(go: Go) -> None:
    flow = sequence(sequence(says("a", "one")), parallel(parallel(says("b", "two"))), sequence(says("c", "three")))
    result = await go(App(), loop(loop(flow, max_iterations=1), max_iterations=1), "q")
    assert said(result.messages) == [
        ("user", None, "q"),
        ("user", "a", "one"),
        ("user", "parallel", "two"),
        ("assistant", None, "three"),
    ]


@pytest.mark.anyio
async def test_a4_one_flow_may_be_a_member_twice(go: Go) -> None:
    twice = sequence(says("a", "one", "three"), shout)
    result = await go(App(), sequence(twice, twice), "q")
    assert texts(result) == ["q", "one", "ONE", "three", "THREE"]


@pytest.mark.parametrize("make", [sequence, parallel, loop], ids=["sequence", "parallel", "loop"])
def test_a4_a_flow_refuses_what_cannot_be_a_member(make: Callable[..., Flow]) -> None:
    name = make.__name__
    with pytest.raises(ConfigurationError, match=rf"{name}\(\) got no members; give it agents"):
        make()
    for wrong in (None, 1, ["a"], object()):
        with pytest.raises(ConfigurationError, match=rf"{name}\(\) got .*; give agents"):
            make(says("a"), wrong)
    with pytest.raises(ConfigurationError, match=rf"{name}\(\) got two agents named 'a'; rename one"):
        make(says("a"), says("a"))
    twin = type("a", (Agent,), {})
    with pytest.raises(ConfigurationError, match="two agents named 'a'"):
        make(twin, says("a"))
    same = says("a")
    flow = make(same, shout, same, twin.__name__, Polite, Polite, sequence(same), sequence(same))
    assert len(flow.members) == 8
    assert isinstance(flow, Agent)
    assert flow.name == name


def test_a4_a_flow_has_a_name_and_a_description() -> None:
    flow = sequence(shout, name="team", description="Shouts.")
    assert (flow.name, flow.description, flow.as_tool().description) == ("team", "Shouts.", "Shouts.")
    assert parallel(shout, name="side").name == "side"
    assert loop(shout, name="round", description="Goes on.").description == "Goes on."


@pytest.mark.anyio
async def test_a4_an_app_knows_a_flow_by_its_name(go: Go) -> None:
    app = App(agents=[sequence(says("a", "one"), shout, name="team")])
    assert (await go(app, "team", "q")).text == "ONE"
    assert (await go(App(agents=[sequence(Polite, name="team")]), sequence("team", shout), "q")).text == "PLEASE Q"


@pytest.mark.anyio
async def test_a4_a5_a_flow_is_a_tool(go: Go) -> None:
    b = says("b", "two")
    team = sequence(says("a", "one"), b, name="the team", description="Knows all.")
    outer = says("outer", [ToolUse("the_team", {"input": "go"})], "done", tools=[team.as_tool()])
    result = await go(App(), outer, "q")
    assert [text for _, _, text in said(result.messages)] == ["q", "", "two", "done"]
    assert asked(b) == [[("user", None, "go"), ("user", "a", "one")]]
    assert result.usage.requests == 4
    assert calls_of(outer)[0].tools[0].description == "Knows all."


@pytest.mark.anyio
async def test_a4_a5_what_a_flow_that_is_a_tool_raises_is_the_calls_result(go: Go) -> None:
    team = sequence(says("a", Boom()), name="team")
    outer = says("outer", [ToolUse("team", {"input": "go"})], "done", tools=[team.as_tool()])
    result = await go(App(), outer, "q")
    message = result.messages[2]
    assert isinstance(message, ToolMessage)
    assert message.is_error
    assert result.text == "done"


@pytest.mark.anyio
async def test_a4_ctx_run_asks_a_flow(go: Go) -> None:
    async def ask(input: str, ctx: Context) -> str:
        return (await ctx.run(sequence(says("a", "one"), shout), input)).text

    assert (await go(App(), sequence(ask), "q")).text == "ONE"


@pytest.mark.anyio
async def test_a4_a5_a_conversation_is_handed_over_to_a_flow(go: Go) -> None:
    a, b = says("a", "one"), says("b", "two")
    team = sequence(a, b, name="team")
    first = says("first", ["goes", ToolUse("transfer_to_team")], handoffs=[team])
    result = await go(App(), first, "q")
    assert (result.text, result.agent, result.usage.requests) == ("two", "b", 3)
    assert texts(result)[:2] == ["q", "goes"]
    assert said(result.messages)[-2:] == [("user", "a", "one"), ("assistant", None, "two")]
    check_history(result.messages)
    assert ("assistant", None, "goes") in asked(a)[0]  # it sees all turns of this exchange
    assert ("user", None, "q") in asked(a)[0]


@pytest.mark.anyio
async def test_a4_a5_a_member_hands_over_and_the_next_is_asked_what_the_other_answered(go: Go) -> None:
    other, b = says("other", "from the other"), says("b", "two")
    a = says("a", ["goes", ToolUse("transfer_to_other")], handoffs=[other])
    result = await go(App(), sequence(a, b), "q")
    assert asked(b)[0][-1] == ("user", "other", "from the other")
    assert (result.text, result.usage.requests) == ("two", 3)
    check_history(result.messages)


# A4, A6: layers, depth and events


@pytest.mark.anyio
async def test_a4_no_layer_guard_or_hook_wraps_a_flow_and_no_event_tells_of_its_step(go: Go) -> None:
    steps: list[Any] = []
    events: list[Event] = []
    judged: list[str] = []

    async def note(call: AgentCall, next: Any) -> Any:
        steps.append((call.agent.name, call.via, call.depth, call.caller))
        return await next()

    watch = guardrail("watch")(lambda text, ctx: judged.append(text))
    app = App(guardrails={"input": [watch], "output": [watch]}).use(agent=note).observe(events.append)
    flow = sequence(says("a", "one"), sequence(says("b", "two"), name="inner"), shout, name="outer")
    await go(app, flow, "q")
    assert steps == [("a", "flow", 1, None), ("b", "flow", 2, None)]
    assert judged == ["q", "one", "one", "two"]
    started = [event for event in events if isinstance(event, AgentStarted)]
    assert [(event.agent, event.via) for event in started] == [("a", "flow"), ("b", "flow")]
    assert [event.agent for event in events if isinstance(event, AgentFinished)] == ["a", "b"]
    assert isinstance(events[0], RunStarted)
    assert (events[0].agent, events[-1]) == ("outer", RunFinished("completed"))
    assert started[0].parent != started[1].parent


@pytest.mark.anyio
async def test_m10_the_caller_of_a_member_is_the_agent_that_asked_the_flow(go: Go) -> None:
    seen: list[Any] = []

    async def note(call: AgentCall, next: Any) -> Any:
        seen.append((call.agent.name, call.caller and call.caller.name, call.via, call.depth))
        return await next()

    team = sequence(says("a", "one"), parallel(says("b", "two"), name="side"), name="team")
    outer = says("outer", [ToolUse("team", {"input": "go"})], "done", tools=[team.as_tool()])
    await go(App().use(agent=note), outer, "q")
    assert seen == [("outer", None, "root", 0), ("a", "outer", "flow", 2), ("b", "outer", "flow", 3)]


@pytest.mark.anyio
async def test_m9_layers_of_a_run_wrap_a_flow_once_and_the_others_each_of_its_calls(go: Go) -> None:
    seen: list[str] = []

    def noting(scope: str) -> Any:
        async def note(call: Any, next: Any) -> Any:
            seen.append(scope)
            return await next()

        return note

    app = App().use(**{scope: noting(scope) for scope in ("run", "agent", "chat", "tool")})
    a = says("a", [ToolUse("ping")], "one", tools=[ping])
    await go(app, sequence(a, parallel(says("b", "two"))), "q")
    assert seen == ["run", "agent", "chat", "tool", "chat", "agent", "chat"]


@pytest.mark.anyio
async def test_l1_members_are_one_deeper_than_their_flow(go: Go) -> None:
    def flow() -> Flow:
        return sequence(says("a", "one"), sequence(says("b", "two"), name="inner"))

    assert (await go(App(limits=Limits(depth=2)), flow(), "q")).text == "two"
    with pytest.raises(LimitExceeded, match="depth=1") as caught:
        await go(App(limits=Limits(depth=1)), flow(), "q")
    assert caught.value.result.text == "one"
    result = await go(App(limits=Limits(depth=1, on_exceed="stop")), flow(), "q")
    assert (result.text, result.stopped_by) == ("one", "limit")
    with pytest.raises(LimitExceeded, match="depth=0"):
        await go(App(limits=Limits(depth=0)), flow(), "q")


@pytest.mark.anyio
async def test_l1_a_flow_itself_may_be_too_deep(go: Go) -> None:
    flow = sequence(says("a", "one"), sequence(sequence(says("b", "two"), name="deep"), name="inner"))
    events: list[Event] = []
    app = App(limits=Limits(depth=1, on_exceed="stop")).observe(events.append)
    result = await go(app, flow, "q")
    assert (result.text, result.stopped_by, texts(result)) == ("one", "limit", ["q", "one"])
    assert [event for event in events if isinstance(event, LimitReached)] == [LimitReached("depth", 1)]


@pytest.mark.anyio
async def test_a6_members_share_data_state_and_the_limits_of_the_run(go: Go) -> None:
    class State:
        def __init__(self) -> None:
            self.seen: list[str] = []

    def note(input: Any, ctx: Context[State]) -> None:
        ctx.state.seen.append(f"{ctx.agent.name} {ctx.data['who']} {ctx.limits.chat_calls} {ctx.run_id}")

    members = [says(name, name, hooks=[{"before_run": note}]) for name in ("a", "b", "c")]
    state = State()
    flow = sequence(members[0], parallel(*members[1:]), note)
    result = await go(App(), flow, "q", state=state, data={"who": "ann"}, limits=Limits(chat_calls=3), run_id="run-1")
    expected = [f"{name} ann 3 run-1" for name in ("a", "b", "c", "sequence")]
    assert sorted(state.seen) == expected
    assert (result.state, result.run_id) == (state, "run-1")


@pytest.mark.anyio
async def test_a6_turns_are_counted_for_each_step_and_calls_for_the_run(go: Go) -> None:
    def flow() -> Flow:
        return sequence(*(says(name, [ToolUse("ping")], name, tools=[ping]) for name in ("a", "b", "c")))

    assert (await go(App(limits=Limits(turns=2, chat_calls=6, tool_calls=3)), flow(), "q")).text == "c"
    for limits in Limits(turns=1), Limits(chat_calls=5), Limits(tool_calls=2):
        with pytest.raises(LimitExceeded):
            await go(App(limits=limits), flow(), "q")


# A2


async def noted(results: Sequence[Result], ctx: Context) -> str:
    await anyio.lowlevel.checkpoint()
    return "+".join(result.text for result in results)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.anyio
async def test_a2_results_are_in_the_order_of_the_members_whatever_order_they_end_in(
    order: tuple[int, ...], go: Go
) -> None:
    gates = [anyio.Event() for _ in range(4)]
    ended: list[int] = []

    def branch(place: int) -> Agent:
        async def reply(call: ChatCall) -> str:
            await gates[order.index(place)].wait()
            return f"text {place}"

        def done(result: Result, ctx: Context) -> None:
            ended.append(place)
            gates[order.index(place) + 1].set()

        replies = [[f"looks {place}", ToolUse("ping", "{}", "same-id")], reply]
        return says(f"b{place}", *replies, tools=[ping], hooks=[{"after_run": done}])

    gates[0].set()
    merged: list[list[str]] = []

    def merge(results: Sequence[Result], ctx: Context) -> None:
        merged.append([result.text for result in results])

    result = await go(App(), parallel(*map(branch, range(3)), merge=merge), "q")
    assert ended == list(order)
    assert merged == [["text 0", "text 1", "text 2"]]
    assert result.text == "text 0\n\ntext 1\n\ntext 2"
    expected: list[Said] = [("user", None, "q")]
    for place in range(3):
        expected += [
            ("assistant", None, f"looks {place}"),
            ("tool", "ping", "pong"),
            ("user", f"b{place}", f"text {place}"),
        ]
    assert said(result.messages) == [*expected, ("assistant", None, result.text)]
    check_history(result.messages)


@pytest.mark.anyio
async def test_a2_members_run_at_the_same_time(go: Go) -> None:
    begun = [anyio.Event(), anyio.Event()]

    def branch(place: int) -> Agent:
        async def reply(call: ChatCall) -> str:
            begun[place].set()
            await begun[1 - place].wait()
            return "met"

        return says(f"b{place}", reply)

    assert (await go(App(), parallel(branch(0), branch(1)), "q")).text == "met\n\nmet"


@pytest.mark.anyio
async def test_a2_each_member_has_the_same_input_and_a_snapshot_of_the_history(go: Go) -> None:
    b = says("b", ["looks", ToolUse("ping")], "two", tools=[ping])
    c, d = says("c", "three"), says("d", "four")
    result = await go(App(), sequence(says("a", "one"), parallel(b, c, name="both"), d), "q")
    start: list[Said] = [("user", None, "q"), ("user", "a", "one")]
    assert (asked(b)[0], asked(c)[0]) == (start, start)
    assert asked(d) == [
        [*start, ("assistant", None, "looks"), ("tool", "ping", "pong"), ("user", "both", "two\n\nthree")]
    ]
    assert (result.text, result.agent) == ("four", "d")


@pytest.mark.anyio
async def test_a2_without_merge_the_answer_is_the_texts_and_only_turns_are_in_the_history(go: Go) -> None:
    flow = parallel(
        says("a", ["looks", ToolUse("ping")], "one", tools=[ping]), says("b", ""), shout, says("c", "three")
    )
    result = await go(App(), flow, "q")
    assert result.text == result.output == "one\n\nQ\n\nthree"
    assert said(result.messages) == [
        ("user", None, "q"),
        ("assistant", None, "looks"),
        ("tool", "ping", "pong"),
        ("assistant", None, result.text),
    ]
    assert (result.agent, result.finish_reason, result.stopped_by) == ("parallel", "stop", None)
    assert result.usage.requests == 4


@pytest.mark.parametrize(
    ("merge", "text"),
    [
        (lambda results, ctx: "|".join(result.text for result in results), "one|Q"),
        (noted, "one+Q"),
        (lambda results, ctx: Result("as result"), "as result"),
        (lambda results, ctx: results[0], "one"),
        (lambda results, ctx: "", ""),
        (lambda results, ctx: None, "one\n\nQ"),
    ],
    ids=["str", "async", "Result", "one of them", "empty", "None"],
)
@pytest.mark.anyio
async def test_a2_merge_gives_the_answer_and_the_history_has_each_members_own_before_it(
    merge: Any, text: str, go: Go
) -> None:
    result = await go(App(), parallel(says("a", "one"), shout, merge=merge, name="both"), "q")
    assert said(result.messages) == [
        ("user", None, "q"),
        ("user", "a", "one"),
        ("user", "shout", "Q"),
        ("assistant", None, text),
    ]
    assert (result.text, result.output, result.agent) == (text, text, "both")


@pytest.mark.anyio
async def test_a2_the_output_of_what_merge_returns_is_the_results(go: Go) -> None:
    flow = parallel(says("a", "one"), shout, merge=lambda results, ctx: Result("2", output=len(results)))
    result = await go(App(), flow, "q")
    assert (result.text, result.output) == ("2", 2)


@pytest.mark.parametrize("value", [0, False, ["one"], {}], ids=repr)
@pytest.mark.anyio
async def test_a2_a_merge_that_returns_something_else_is_refused(value: Any, go: Go) -> None:
    def wrong(results: Sequence[Result], ctx: Context) -> Any:
        return value

    with pytest.raises(WrongReturn, match=rf"the merge .*wrong.*{type(value).__name__}.*return a str or a Result"):
        await go(App(), parallel(says("a", "one"), merge=wrong), "q")


@pytest.mark.anyio
async def test_a2_what_a_merge_raises_goes_on_as_itself(go: Go) -> None:
    boom = Boom()

    async def fails(results: Sequence[Result], ctx: Context) -> str:
        raise boom

    with pytest.raises(Boom) as caught:
        await go(App(), parallel(says("a", "one"), merge=fails), "q")
    assert caught.value is boom
    with pytest.raises(ConfigurationError, match=r"parallel\(merge='x'\) cannot be called"):
        parallel(shout, merge="x")  # type: ignore[arg-type]  # what is refused


@pytest.mark.anyio
async def test_a2_c1_inside_a_merge_ctx_is_the_flows(go: Go) -> None:
    seen: list[Any] = []

    def merge(results: Sequence[Result], ctx: Context) -> None:
        seen.extend([ctx.agent, said(ctx.messages), ctx.loop])

    flow = parallel(says("a", "one"), says("b", "two"), merge=merge)
    await go(App(), flow, "q", history=[User("before")])
    assert seen == [
        flow,
        [("user", None, "before"), ("user", None, "q"), ("user", "a", "one"), ("user", "b", "two")],
        None,
    ]


@pytest.mark.anyio
async def test_a2_it_is_blocked_or_degraded_if_one_of_them_is(go: Go) -> None:
    boom = Boom()
    blocked = says("a", "one", guardrails={"output": [against("one")]})
    saved = says("b", boom, hooks=[{"on_error": lambda error, ctx: "sorry"}])
    events: list[Event] = []
    result = await go(App().observe(events.append), parallel(says("c", "three"), blocked), "q")
    assert (result.text, result.blocked, result.blocked_by) == (f"three\n\n{CANNED}", True, "no-words")
    assert (result.degraded, events[-1]) == (False, RunFinished("blocked"))
    result = await go(App(), parallel(says("c", "three"), saved, merge=lambda results, ctx: "x"), "q")
    assert (result.text, result.degraded, result.error, result.blocked) == ("x", True, boom, False)
    result = await go(App(), parallel(says("c", "three"), says("d", "four")), "q")
    assert (result.blocked, result.blocked_by, result.degraded, result.error) == (False, None, False, None)


@pytest.mark.anyio
async def test_a1_a2_a_parallel_with_a_member_that_was_blocked_is_the_last_of_a_sequence(go: Go) -> None:
    c = says("c", "three")
    blocked = says("a", "one", guardrails={"output": [against("one")]})
    result = await go(App(), sequence(parallel(blocked, says("b", "two")), c), "q")
    assert (result.blocked, asked(c)) == (True, [])


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.anyio
async def test_a2_g8_a_message_that_one_member_was_not_to_see_is_marked_at_whatever_place_that_stands(
    place: int,
) -> None:
    guarded = says("guarded", "one", guardrails={"input": [against("bad")]})
    members = [says("open", "two", "four")]
    members.insert(place, guarded)
    conversation = App().conversation(parallel(*members))
    await conversation.send("bad")
    await conversation.send("fine")
    assert [text for _, _, text in asked(guarded)[-1]] == ["fine"]


@pytest.mark.anyio
async def test_a2_limits_stop_members_and_show_in_the_result(go: Go) -> None:
    tools = [[f"looks {n}", ToolUse("ping")] for n in range(3)]
    flow = parallel(says("a", *tools, tools=[ping]), says("b", "two"))
    result = await go(App(limits=Limits(turns=2, on_exceed="stop")), flow, "q")
    assert (result.stopped_by, result.finish_reason) == ("limit", "limit")
    assert result.text == "looks 1\n\ntwo"
    check_history(result.messages)


@pytest.mark.anyio
async def test_a2_members_work_on_copies_of_the_context_variables(go: Go) -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    seen: list[str] = []
    met = [anyio.Event(), anyio.Event()]

    def branch(place: int) -> Agent:
        async def sets(input: Any, ctx: Context) -> None:
            seen.append(who.get())
            who.set(f"b{place}")
            met[place].set()
            await met[1 - place].wait()

        async def reply(call: ChatCall) -> str:
            return who.get()

        return says(f"b{place}", reply, hooks=[{"before_run": sets}])

    def first(input: str, ctx: Context) -> None:
        who.set("first")

    def last(input: str, ctx: Context) -> None:
        seen.append(who.get())

    result = await go(App(), sequence(first, parallel(branch(0), branch(1)), last), "q")
    assert result.text == "b0\n\nb1"
    assert seen == ["first", "first", "first"]
    assert who.get() == "nobody"


class Branches:
    """Branches that wait for ever and clean up slowly, and what became of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.waiting = 0
        self.all_wait = anyio.Event()

    async def wait(self, name: str, failing: BaseException | None = None) -> None:
        self.waiting += 1
        if self.waiting == 2:
            self.all_wait.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                self.log.append(name)
            if failing is not None:
                raise failing

    def in_model(self, name: str, failing: BaseException | None = None) -> Agent:
        async def reply(call: ChatCall) -> str:
            await self.wait(name, failing)
            return "never"

        return says(name, reply)

    def in_tool(self, name: str) -> Agent:
        @tool
        async def hang() -> str:
            await self.wait(name)
            return "never"

        return says(name, [ToolUse("hang"), ToolUse("ping")], tools=[hang, ping])

    def in_function(self, input: str, ctx: Context) -> Any:
        return self.wait("function")

    def fails(self, error: BaseException) -> Agent:
        async def reply(call: ChatCall) -> str:
            await self.all_wait.wait()
            raise error

        return says("fails", reply)


@pytest.mark.parametrize("error", [Boom("first"), KeyboardInterrupt("ctrl-c")], ids=repr)
@pytest.mark.anyio
async def test_a2_when_one_fails_the_others_have_ended_before_its_error_goes_on_as_itself(
    error: BaseException, go: Go
) -> None:
    branches = Branches()
    flow = parallel(
        branches.in_tool("tool"), branches.fails(error), sequence(branches.in_function), says("done", "done")
    )
    with pytest.raises(type(error)) as caught:
        await go(App(), flow, "q")
    assert caught.value is error
    assert sorted(branches.log) == ["function", "tool"]
    assert not hasattr(error, "__notes__")


@pytest.mark.anyio
async def test_a2_a_second_failure_is_a_note_on_the_first(go: Go) -> None:
    branches, first = Branches(), Boom("first")
    flow = parallel(branches.in_model("a", Boom("second")), branches.fails(first), branches.in_model("b"))
    with pytest.raises(Boom) as caught:
        await go(App(), flow, "q")
    assert caught.value is first
    assert [note for note in first.__notes__ if "Boom: second" in note] == first.__notes__
    assert sorted(branches.log) == ["a", "b"]


@pytest.mark.anyio
async def test_a2_an_interrupt_goes_before_an_error(go: Go) -> None:
    branches, interrupt = Branches(), KeyboardInterrupt("ctrl-c")
    flow = parallel(branches.in_model("a", interrupt), branches.fails(Boom("first")), branches.in_model("b"))
    with pytest.raises(KeyboardInterrupt) as caught:
        await go(App(), flow, "q")
    assert caught.value is interrupt


@pytest.mark.anyio
async def test_a2_a_failure_in_a_nested_parallel_cancels_all_around_it(go: Go) -> None:
    branches, error = Branches(), Boom("deep")
    inner = parallel(branches.fails(error), branches.in_model("inner"), name="inner")
    with pytest.raises(Boom) as caught:
        await go(App(), parallel(branches.in_tool("outer"), sequence(inner)), "q")
    assert caught.value is error
    assert sorted(branches.log) == ["inner", "outer"]


@pytest.mark.anyio
async def test_a2_what_on_error_saves_cancels_nobody(go: Go) -> None:
    gate = anyio.Event()

    def saved(error: Exception, ctx: Context) -> str:
        gate.set()
        return "sorry"

    async def reply(call: ChatCall) -> str:
        await gate.wait()
        return "two"

    result = await go(App(), parallel(says("a", Boom(), hooks=[{"on_error": saved}]), says("b", reply)), "q")
    assert result.text == "sorry\n\ntwo"


# C4, T7: cancelled anywhere


class Ticks:
    """Counts the points where something waits, and cancels at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.scope = anyio.CancelScope()

    def tick(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.scope.cancel()

    def during(self, awaitable: Any) -> Any:
        return _Ticking(self, awaitable)

    async def layer(self, call: Any, next: Any) -> Any:
        return await self.during(next())


class _Ticking:
    """Awaits something, and ticks each time that it waits."""

    def __init__(self, ticks: Ticks, awaitable: Any) -> None:
        self.ticks = ticks
        self.awaitable = awaitable

    def __await__(self) -> Any:
        inner = self.awaitable.__await__()
        step, value = inner.send, None
        while True:
            try:
                waits_for = step(value)
            except StopIteration as stop:
                return stop.value
            self.ticks.tick()
            try:
                value, step = (yield waits_for), inner.send
            except BaseException as error:
                value, step = error, inner.throw


class Crowd:
    """Agents that each call two tools at once and then answer; all that they enter, they leave."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.left: list[str] = []
        self.settled: dict[str, set[str]] = {}  # by agent, the tools that have ended

    async def within(self, what: str) -> None:
        self.entered.append(what)
        try:
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.left.append(what)

    def agent(self, name: str, tools: bool = True) -> Agent:
        ended = self.settled[name] = set()

        @tool
        async def quick() -> str:
            await self.within(f"quick of {name}")
            ended.add("quick")
            return "done"

        @tool
        async def slow() -> str:
            await self.within(f"slow of {name}")
            await anyio.lowlevel.checkpoint()
            ended.add("slow")
            return "done"

        async def reply(call: ChatCall) -> Any:
            check_history(call.messages)
            await self.within(f"model of {name}")
            if tools and not isinstance(call.messages[-1], ToolMessage):
                return [f"{name} looks", ToolUse("quick"), ToolUse("slow")]
            return [f"{name} ", "says"]

        return Agent(name=name, model=ScriptedModel(reply), tools=[quick, slow] if tools else [])

    async def function(self, input: str, ctx: Context) -> str:
        await self.within("function")
        return f"<{input}>"

    async def merge(self, results: Sequence[Result], ctx: Context) -> str:
        await self.within("merge")
        return "merged"


CROWDS: dict[str, Callable[[Crowd], Flow]] = {
    "side by side": lambda crowd: parallel(crowd.agent("a"), crowd.agent("b"), crowd.agent("c", tools=False)),
    "a function first": lambda crowd: parallel(sequence(crowd.function, crowd.agent("a")), crowd.agent("b")),
    "then one more": lambda crowd: sequence(
        crowd.agent("x"), parallel(crowd.agent("a"), crowd.agent("b"), merge=crowd.merge), crowd.function
    ),
    "over and over": lambda crowd: loop(
        parallel(crowd.agent("a"), sequence(crowd.agent("b", tools=False), crowd.agent("c"))), max_iterations=2
    ),
}


@pytest.mark.parametrize("kind", CROWDS)
@pytest.mark.parametrize("streaming", [False, True], ids=["run", "stream"])
@pytest.mark.anyio
async def test_a2_c4_t7_wherever_a_flow_is_cancelled_all_has_ended_and_what_ran_is_kept(
    kind: str, streaming: bool
) -> None:
    at, cancelled = 0, 0
    while True:
        at += 1
        crowd, ticks = Crowd(), Ticks(at)
        app = App().use(agent=ticks.layer, chat=ticks.layer, tool=ticks.layer)
        flow = CROWDS[kind](crowd)
        conversation = app.conversation(flow)
        before = len(anyio.get_running_tasks())

        async def read(conversation: Any = conversation) -> None:
            async with conversation.stream("q") as stream:
                async for _ in stream:
                    pass

        with ticks.scope:
            await ticks.during(read() if streaming else conversation.send("q"))
        assert len(anyio.get_running_tasks()) == before
        assert sorted(crowd.entered) == sorted(crowd.left)
        kept = [message.text for message in conversation.messages]
        check_history(conversation.messages)
        for name, ended in crowd.settled.items():
            looked = kept.index(f"{name} looks") if f"{name} looks" in kept else None
            assert looked is not None if ended else True, f"cancelled at {at}: a tool of {name} ran and is forgotten"
        if ticks.count < at:
            break
        cancelled += 1
        ticks.at = 0
        result = await conversation.send("again")
        assert result.stopped_by in {None, "iterations"}
        check_history(conversation.messages)
    assert cancelled > 20
    assert kept[0] == "q"
    assert len([text for text in kept if text.endswith("looks")]) >= 2


@pytest.mark.anyio
async def test_a2_c4_what_is_kept_of_a_cancelled_parallel_is_in_the_order_of_its_members() -> None:
    for _ in range(10):
        waiting, all_wait = list[str](), anyio.Event()

        def branch(name: str, waiting: list[str] = waiting, all_wait: anyio.Event = all_wait) -> Agent:
            async def reply(call: ChatCall) -> str:
                waiting.append(name)
                if len(waiting) == 3:
                    all_wait.set()
                await anyio.sleep_forever()
                return "never"

            return says(name, [name, ToolUse("ping")], reply, tools=[ping])

        conversation = App().conversation(parallel(branch("a"), branch("b"), branch("c")))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conversation.send, "q")
            await all_wait.wait()
            tasks.cancel_scope.cancel()
        kept = [message.text for message in conversation.messages]
        assert kept == ["q", "a", "pong", "b", "pong", "c", "pong"]


@pytest.mark.anyio
async def test_a2_c4_what_is_kept_begins_with_the_question_where_the_first_member_had_not_begun() -> None:
    at_last = anyio.Event()

    async def waits(*args: Any) -> Any:
        await anyio.sleep_forever()

    class Starts:
        agent = staticmethod(lambda call, next: next())
        start = waits

    async def reply(call: ChatCall) -> str:
        at_last.set()
        await anyio.sleep_forever()
        return "never"

    for first in (sequence(waits, says("z")), says("z", middleware=[Starts()]), loop(waits)):
        at_last = anyio.Event()
        b = says("b", ["looks", ToolUse("ping")], reply, tools=[ping])
        conversation = App().conversation(parallel(first, b))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conversation.send, "q")
            await at_last.wait()
            tasks.cancel_scope.cancel()
        assert [message.text for message in conversation.messages] == ["q", "looks", "pong"]


@pytest.mark.anyio
async def test_a1_c4_a_flow_that_failed_before_any_tool_ran_leaves_nothing_and_the_next_exchange_is_clean() -> None:
    a = says("a", "one", "three")
    conversation = App().conversation(sequence(a, says("b", Boom(), "four")))
    with pytest.raises(Boom):
        await conversation.send("q")
    assert conversation.messages == ()
    assert (await conversation.send("r")).text == "four"
    assert asked(a)[1] == [("user", None, "r")]


@pytest.mark.anyio
async def test_a1_c4_a_flow_that_failed_after_a_tool_ran_keeps_all_up_to_that_turn() -> None:
    a = says("a", "one")
    b = says("b", ["looks", ToolUse("ping")], Boom(), tools=[ping])
    conversation = App().conversation(sequence(a, b))
    with pytest.raises(Boom):
        await conversation.send("q")
    assert said(conversation.messages) == [
        ("user", None, "q"),
        ("user", "a", "one"),
        ("assistant", None, "looks"),
        ("tool", "ping", "pong"),
    ]


# A3


@pytest.mark.parametrize(
    "until",
    [
        lambda ctx: ctx.loop.iteration == 2,
        lambda ctx: ctx.messages[-1].text == "draft 2",
        lambda ctx: [1] if ctx.loop.iteration == 2 else [],
        lambda ctx: ctx.get("approved"),
    ],
    ids=["iteration", "messages", "truthy", "attribute"],
)
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
@pytest.mark.anyio
async def test_a3_until_ends_the_loop_after_a_pass(until: Any, awaited: bool, go: Go) -> None:
    async def later(ctx: Context) -> Any:
        await anyio.lowlevel.checkpoint()
        return until(ctx)

    def approve(result: Result, ctx: Context) -> None:
        ctx.approved = result.text == "draft 2"

    a = says("a", "draft 1", "draft 2", "draft 3", hooks=[{"after_run": approve}])
    events: list[Event] = []
    result = await go(App().observe(events.append), loop(a, until=later if awaited else until), "q")
    assert (result.text, result.stopped_by, result.agent) == ("draft 2", "until", "a")
    assert said(result.messages) == [
        ("user", None, "q"),
        ("user", "a", "draft 1"),
        ("assistant", None, "draft 2"),
    ]
    assert events[-1] == RunFinished("completed")


@pytest.mark.anyio
async def test_a3_the_members_run_at_least_once(go: Go) -> None:
    result = await go(App(), loop(says("a", "one"), until=lambda ctx: True, max_iterations=1), "q")
    assert (result.text, result.stopped_by) == ("one", "until")


@pytest.mark.anyio
async def test_a3_a_further_pass_begins_with_the_last_answer(go: Go) -> None:
    a, b = says("a", "a1", "a2"), says("b", "b1", "b2")
    result = await go(App(), loop(a, b, max_iterations=2), "q")
    assert asked(a)[1] == [("user", None, "q"), ("user", "a", "a1"), ("user", "b", "b1")]
    assert said(result.messages) == [*asked(a)[1], ("user", "a", "a2"), ("assistant", None, "b2")]
    assert (result.text, result.stopped_by, result.usage.requests) == ("b2", "iterations", 4)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.anyio
async def test_a3_max_iterations_ends_the_loop(passes: int, go: Go) -> None:
    events: list[Event] = []
    app = App().observe(events.append)
    result = await go(app, loop(shout, until=lambda ctx: False, max_iterations=passes), "q")
    assert (result.stopped_by, len(result.messages)) == ("iterations", passes + 1)
    assert events[-1] == RunFinished("stopped")
    assert (await go(App(), loop(shout), "q")).messages[10].role == "assistant"  # ten by default


@pytest.mark.anyio
async def test_a3_four_hundred_passes_do_not_recurse(go: Go) -> None:
    calls = 0

    async def reply(call: ChatCall) -> str:
        nonlocal calls
        calls += 1
        return str(calls)

    agent = Agent(name="a", model=ScriptedModel(reply))
    result = await go(App(), loop(sequence(agent), parallel(keep), max_iterations=400), "q")
    assert (result.text, calls, result.stopped_by) == ("400", 400, "iterations")


@pytest.mark.anyio
async def test_a3_a_loop_of_a_function_ends_as_any_other(go: Go) -> None:
    def longer(input: str, ctx: Context) -> str:
        return input + "!"

    result = await go(App(), loop(longer, until=lambda ctx: len(ctx.messages[-1].text) == 4), "q")
    assert (result.text, result.stopped_by) == ("q!!!", "until")


@pytest.mark.anyio
async def test_a3_what_until_raises_goes_on_as_itself(go: Go) -> None:
    boom = Boom()

    def fails(ctx: Context) -> bool:
        raise boom

    with pytest.raises(Boom) as caught:
        await go(App(), loop(shout, until=fails), "q")
    assert caught.value is boom


@pytest.mark.anyio
async def test_a3_a_limit_of_the_run_ends_the_loop_with_the_last_answer(go: Go) -> None:
    for on_exceed in "stop", "raise":
        flow = loop(says("a", "one", "two", "three"), until=lambda ctx: False)
        app = App(limits=Limits(chat_calls=2, on_exceed=on_exceed))
        if on_exceed == "stop":
            result = await go(app, flow, "q")
        else:
            with pytest.raises(LimitExceeded) as caught:
                await go(app, flow, "q")
            result = caught.value.result
        assert (result.text, result.stopped_by, result.finish_reason) == ("two", "limit", "limit")
        assert said(result.messages) == [("user", None, "q"), ("user", "a", "one"), ("assistant", None, "two")]


@pytest.mark.parametrize("member", [spend, sequence(spend)], ids=["function", "in a sequence"])
@pytest.mark.anyio
async def test_a3_a_limit_of_the_run_that_stops_a_function_ends_the_loop(member: Any, go: Go) -> None:
    asked_until: list[int] = []
    flow = loop(member, until=lambda ctx: asked_until.append(1))
    result = await go(App(limits=Limits(chat_calls=2, on_exceed="stop")), flow, "q")
    assert (result.text, result.stopped_by) == ("spent", "limit")
    assert len(asked_until) == 2


@pytest.mark.anyio
async def test_a3_a_limit_of_a_steps_own_ends_the_pass_and_not_the_loop(go: Go) -> None:
    turns = [[f"looks {n}", ToolUse("ping")] for n in range(4)]
    a, b = says("a", *turns, "done", tools=[ping], limits=Limits(turns=2, on_exceed="stop")), says("b", "two")
    result = await go(App(), loop(a, b, max_iterations=3), "q")
    assert (result.text, result.stopped_by) == ("two", "iterations")
    assert [len(asked(a)), len(asked(b))] == [5, 1]
    assert said(result.messages)[1:5] == [
        ("assistant", None, "looks 0"),
        ("tool", "ping", "pong"),
        ("user", "a", "looks 1"),
        ("assistant", None, "looks 2"),
    ]
    check_history(result.messages)


@pytest.mark.anyio
async def test_a3_ctx_stop_ends_the_loop(go: Go) -> None:
    b = says("b", "b1")
    result = await go(App(), loop(says("a", "a1"), stop_here, b), "q")
    assert (result.text, result.stopped_by, asked(b)) == ("stopped", "stop", [])
    result = await go(App(), loop(says("a", "a1", hooks=[{"after_run": stop_after}]), until=lambda ctx: True), "q")
    assert (result.text, result.stopped_by) == ("a1", "stop")


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.anyio
async def test_a3_a_block_ends_the_loop(side: str, go: Go) -> None:
    asked_until: list[int] = []
    a = says("a", "one", "two", guardrails={side: [against("one")]})
    flow = loop(a, until=lambda ctx: asked_until.append(1))
    result = await go(App(), flow, "q")
    assert (result.text, result.blocked, result.stopped_by) == (CANNED, True, None)
    assert len(asked_until) == (1 if side == "input" else 0)


# A3: max_fails


@pytest.mark.anyio
async def test_a3_max_fails_ends_a_loop_in_the_middle_of_a_step(go: Go) -> None:
    a = says("a", *([f"tries {n}", ToolUse("fail")] for n in range(9)), tools=[fail])
    b = says("b", "two")
    events: list[Event] = []
    result = await go(App().observe(events.append), loop(a, b, max_fails=3), "q")
    assert (result.stopped_by, len(asked(a)), len(asked(b)), result.text) == ("fails", 3, 0, "tries 2")
    assert events[-1] == RunFinished("stopped")
    check_history(result.messages)


@pytest.mark.anyio
async def test_a3_max_fails_counts_over_several_steps_and_success_begins_anew(go: Go) -> None:
    def turns(*tools: str) -> list[Any]:
        return [reply for name in tools for reply in ([ToolUse(name)], "answer")]

    a = says("a", *turns("fail", "fail", "fail", "fail"), tools=[fail, ping])
    result = await go(App(), loop(a, max_fails=3), "q")
    assert (result.stopped_by, len(asked(a))) == ("fails", 5)
    a = says("a", *turns("fail", "fail", "ping", "fail", "fail"), tools=[fail, ping])
    result = await go(App(), loop(a, max_fails=3, max_iterations=5), "q")
    assert (result.stopped_by, len(asked(a))) == ("iterations", 10)
    a, b = (says(name, *turns("fail", "fail"), tools=[fail]) for name in ("a", "b"))
    result = await go(App(), loop(a, b, max_fails=3), "q")
    assert (result.stopped_by, len(asked(a)), len(asked(b))) == ("fails", 3, 2)


@pytest.mark.anyio
async def test_a3_a_turn_fails_when_all_of_its_tools_have(go: Go) -> None:
    both = [ToolUse("fail"), ToolUse("ping")]
    a = says("a", both, both, both, "done", tools=[fail, ping])
    assert (await go(App(), loop(a, max_fails=1, max_iterations=1), "q")).stopped_by == "iterations"
    twice = [ToolUse("fail"), ToolUse("fail")]
    a = says("a", twice, "done", tools=[fail])
    assert (await go(App(), loop(a, max_fails=1, max_iterations=1), "q")).stopped_by == "fails"
    a = says("a", [ToolUse("unknown")], "done", tools=[fail])
    assert (await go(App(), loop(a, max_fails=1), "q")).stopped_by == "fails"


@pytest.mark.anyio
async def test_a3_five_failed_turns_end_a_loop_by_default_and_none_never(go: Go) -> None:
    turns = [[ToolUse("fail")] for _ in range(7)]
    a = says("a", *turns, "done", tools=[fail])
    assert (await go(App(), loop(a), "q")).stopped_by == "fails"
    assert len(asked(a)) == 5
    a = says("a", *turns, "done", tools=[fail])
    result = await go(App(), loop(a, max_fails=None, max_iterations=1), "q")
    assert (result.stopped_by, result.text) == ("iterations", "done")
    a = says("a", *turns, "done", tools=[fail])
    assert (await go(App(), sequence(a), "q")).text == "done"  # outside of a loop nobody counts


@pytest.mark.anyio
async def test_a3_fails_are_counted_by_all_loops_around_and_each_has_its_own_limit(go: Go) -> None:
    a = says("a", *([ToolUse("fail")] for _ in range(9)), "done", tools=[fail])
    inner = loop(a, max_fails=2, max_iterations=1, name="inner")
    result = await go(App(), loop(inner, max_fails=3, max_iterations=9), "q")
    assert (result.stopped_by, len(asked(a))) == ("fails", 3)
    a = says("a", *([ToolUse("fail")] for _ in range(9)), "done", tools=[fail])
    inner = loop(a, max_fails=None, max_iterations=1, name="inner")
    result = await go(App(), loop(inner, max_fails=2), "q")
    assert (result.stopped_by, len(asked(a))) == ("fails", 2)


@pytest.mark.anyio
async def test_a3_a_loop_that_failed_is_the_last_member_of_a_sequence(go: Go) -> None:
    a, b = says("a", ["tries", ToolUse("fail")], tools=[fail]), says("b", "two")
    result = await go(App(), sequence(loop(a, max_fails=1), b), "q")
    assert (result.stopped_by, asked(b)) == ("fails", [])
    result = await go(App(), sequence(loop(says("a", "one"), max_iterations=1), b), "q")
    assert (result.stopped_by, result.text) == (None, "two")


# A3: ctx.loop, and the helpers


@pytest.mark.anyio
async def test_a3_c2_ctx_loop_is_that_of_the_nearest_loop(go: Go) -> None:
    seen: list[Any] = []

    def note(where: str, ctx: Context) -> None:
        assert ctx.loop is None or repr(ctx.loop) == (
            f"Loop(iteration={ctx.loop.iteration}, max_iterations={ctx.loop.max_iterations})"
        )
        seen.append((where, ctx.loop and (ctx.loop.iteration, ctx.loop.max_iterations)))

    @tool
    async def look(ctx: Context) -> str:
        note("tool", ctx)
        return "looked"

    async def layer(call: AgentCall, next: Any) -> Any:
        note("layer", call.ctx)
        return await next()

    def hook(input: Any, ctx: Context) -> None:
        note("hook", ctx)

    a = Agent(
        name="a",
        model=ScriptedModel(lambda call: "done" if isinstance(call.messages[-1], ToolMessage) else [ToolUse("look")]),
        tools=[look],
        hooks=[{"before_run": hook}],
        middleware=[Layers(agent=layer)],
    )
    inner = loop(a, max_iterations=2, until=lambda ctx: note("inner until", ctx), name="inner")
    outer = loop(inner, lambda input, ctx: note("function", ctx), max_iterations=2)
    await go(App(), sequence(outer, lambda input, ctx: note("outside", ctx)), "q")
    one_pass = [(where, n) for n in (1, 2) for where in ("layer", "hook", "tool", "inner until")]
    expected: list[Any] = []
    for outer_pass in (1, 2):
        expected += [(where, (n, 2)) for where, n in one_pass]
        expected.append(("function", (outer_pass, 2)))
    assert seen == [*expected, ("outside", None)]


@pytest.mark.anyio
async def test_a3_called_tool_is_true_when_that_tool_gave_a_result_in_this_pass(go: Go) -> None:
    def turns(*names: str) -> list[Any]:
        return [reply for name in names for reply in ([[ToolUse(name)], "answer"] if name else ["answer"])]

    a = says("a", *turns("", "ping"), tools=[ping, fail])
    result = await go(App(), loop(a, until=called_tool("ping")), "q")
    assert (result.stopped_by, len(asked(a))) == ("until", 3)
    a = says("a", *turns("fail", "fail"), tools=[ping, fail])  # an error is none
    assert (await go(App(), loop(a, until=called_tool("fail"), max_iterations=2), "q")).stopped_by == "iterations"
    a = says("a", *turns("ping", ""), tools=[ping, fail])  # nor is another tool
    assert (await go(App(), loop(a, until=called_tool("pin"), max_iterations=2), "q")).stopped_by == "iterations"
    seen: list[bool] = []
    a = says("a", *turns("ping", "", "ping"), tools=[ping])  # nor what another pass did
    history = [Assistant("", [ToolUse("ping", "{}", "x")]), ToolMessage("pong", "x", "ping")]
    flow = loop(a, until=lambda ctx: seen.append(called_tool("ping")(ctx)), max_iterations=3)
    await go(App(), flow, "q", history=history)
    assert seen == [True, False, True]


@pytest.mark.anyio
async def test_a3_called_tool_in_a_loop_in_a_loop_looks_at_its_own_pass(go: Go) -> None:
    seen: list[tuple[str, bool]] = []

    def until(where: str) -> Any:
        return lambda ctx: seen.append((where, called_tool("ping")(ctx)))

    a = says("a", [ToolUse("ping")], "answer", "answer", tools=[ping])
    inner = loop(a, until=until("inner"), max_iterations=2, name="inner")
    await go(App(), loop(inner, until=until("outer"), max_iterations=1), "q")
    assert seen == [("inner", True), ("inner", False), ("outer", True)]


@pytest.mark.anyio
async def test_a3_called_tool_outside_of_a_loop_looks_at_all_that_was_said(go: Go) -> None:
    seen: list[bool] = []
    a = says("a", [ToolUse("ping")], "answer", tools=[ping])
    flow = sequence(a, lambda input, ctx: seen.append(called_tool("ping")(ctx)))
    await go(App(), flow, "q")
    assert seen == [True]


@pytest.mark.parametrize(
    ("agent", "is_answer"),
    [
        (lambda: says("a", "one"), True),
        (lambda: says("a", [ToolUse("ping")], "one", tools=[ping]), True),
        (lambda: says("a", ChatReply("one", finish_reason="stop")), True),
        (lambda: says("a", ""), False),
        (lambda: says("a", ChatReply("one", finish_reason="length")), False),
        (lambda: says("a", ChatReply("one", finish_reason="incomplete")), False),
        (lambda: says("a", ["looks", ToolUse("ping")], tools=[ping], limits=Limits(turns=1, on_exceed="stop")), False),
        (lambda: says("a", Boom(), hooks=[{"on_error": lambda error, ctx: "sorry"}]), False),
    ],
    ids=["text", "after tools", "stop", "empty", "length", "incomplete", "limit", "degraded"],
)
@pytest.mark.anyio
async def test_a3_answered_is_true_when_the_last_step_came_to_an_answer_by_itself(
    agent: Any, is_answer: bool, go: Go
) -> None:
    result = await go(App(), loop(agent(), until=answered, max_iterations=1), "q")
    assert result.stopped_by == ("until" if is_answer else "iterations")


@pytest.mark.anyio
async def test_a3_answered_is_false_where_nothing_was_said(go: Go) -> None:
    seen: list[bool] = []

    def note(input: str, ctx: Context) -> None:
        seen.append(answered(ctx))

    await go(App(), sequence(note), "q")
    await go(App(), loop(note, until=answered), "q")
    assert seen == [False, False]


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "3"], ids=repr)
@pytest.mark.parametrize("name", ["max_iterations", "max_fails"])
def test_a3_numbers_that_are_no_number_of_times_are_refused(name: str, number: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"loop\({name}=.*\) is no number of times; give one from 1 up"):
        loop(shout, **{name: number})


def test_a3_none_is_a_number_of_fails_and_no_number_of_passes() -> None:
    loop(shout, max_fails=None)
    with pytest.raises(ConfigurationError, match="max_iterations=None"):
        loop(shout, max_iterations=None)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ConfigurationError, match=r"loop\(until=True\) cannot be called; give a function of ctx"):
        loop(shout, until=True)  # type: ignore[arg-type]  # what is refused


# L3


async def forever(*args: Any) -> Any:
    await anyio.sleep_forever()


FOREVER: dict[str, tuple[Callable[[], Flow], list[str], str]] = {
    "a function": (lambda: sequence(forever), ["q"], ""),
    "a function after an agent": (lambda: sequence(says("a", "one"), forever, says("b")), ["q", "one"], "one"),
    "a function in a sequence in one": (
        lambda: sequence(says("a", "one"), sequence(forever, name="in")),
        ["q", "one"],
        "one",
    ),
    "until": (lambda: loop(says("a", "one"), until=forever), ["q", "one"], "one"),
}


@pytest.mark.parametrize("place", FOREVER)
@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
def test_a6_l3_the_deadline_passes_in_a_function_and_in_until(place: str, on_exceed: Any, go: Go) -> None:
    make, said_by_then, text = FOREVER[place]

    async def test() -> None:
        app, events = App(limits=Limits(seconds=5, on_exceed=on_exceed)), list[Event]()
        app.observe(events.append)
        start = anyio.current_time()
        if on_exceed == "stop":
            result = await go(app, make(), "q")
            assert events[-1] == RunFinished("stopped")
        else:
            with pytest.raises(LimitExceeded) as caught:
                await go(app, make(), "q")
            result = caught.value.result
            assert (caught.value.limit, caught.value.value) == ("seconds", 5)
        assert anyio.current_time() - start == pytest.approx(5)
        assert (result.text, texts(result)) == (text, said_by_then)
        assert (result.stopped_by, result.finish_reason) == ("limit", "limit")
        assert [event for event in events if isinstance(event, LimitReached)] == [LimitReached("seconds", 5)]

    in_fast_time(test)


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
def test_a6_l3_the_deadline_passes_in_a_merge_and_what_the_members_said_is_there(on_exceed: Any, go: Go) -> None:
    async def test() -> None:
        app = App(limits=Limits(seconds=5, on_exceed=on_exceed))
        flow = parallel(says("a", ["looks", ToolUse("ping")], "one", tools=[ping]), says("b", "two"), merge=forever)
        if on_exceed == "stop":
            result = await go(app, flow, "q")
        else:
            with pytest.raises(LimitExceeded) as caught:
                await go(app, flow, "q")
            result = caught.value.result
        assert said(result.messages)[:5] == [
            ("user", None, "q"),
            ("assistant", None, "looks"),
            ("tool", "ping", "pong"),
            ("user", "a", "one"),
            ("user", "b", "two"),
        ]
        assert result.stopped_by == "limit"

    in_fast_time(test)


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
def test_a6_l3_the_deadline_cancels_all_members_of_a_parallel(on_exceed: Any, go: Go) -> None:
    async def test() -> None:
        branches = Branches()
        flow = parallel(branches.in_tool("a"), branches.in_model("b"), says("c", "three"))
        app = App(limits=Limits(seconds=5, on_exceed=on_exceed))
        if on_exceed == "stop":
            result = await go(app, flow, "q")
            assert result.text.endswith("three")
        else:
            with pytest.raises(LimitExceeded) as caught:
                await go(app, flow, "q")
            result = caught.value.result
        assert sorted(branches.log) == ["a", "b"]
        assert result.stopped_by == "limit"
        check_history(result.messages)

    in_fast_time(test)


def test_a6_l3_a_flow_that_ends_in_time_knows_nothing_of_the_deadline(go: Go) -> None:
    async def slow(*args: Any) -> None:
        await anyio.sleep(1)

    async def test() -> None:
        flow = sequence(slow, parallel(slow, says("a", "one"), merge=slow), loop(shout, until=slow, max_iterations=1))
        result = await go(App(limits=Limits(seconds=5)), flow, "q")
        assert (result.text, result.stopped_by) == ("Q\n\nONE", None)

    in_fast_time(test)


@pytest.mark.anyio
async def test_a6_l3_no_seconds_at_all_stop_a_function_before_it_begins(go: Go) -> None:
    called: list[str] = []
    app = App(limits=Limits(seconds=0, on_exceed="stop"))
    result = await go(app, sequence(lambda input, ctx: called.append(input)), "q")
    assert (result.stopped_by, texts(result), called) == ("limit", ["q"], [])


# Layers around the run


@pytest.mark.anyio
async def test_m5_a_run_layer_begins_a_flow_again_and_nothing_of_the_attempt_before_is_in_the_result(go: Go) -> None:
    async def again(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Boom:
            return await next()

    a = says("a", "one", "three")
    result = await go(App().use(run=again), sequence(a, says("b", Boom(), "four")), "q")
    assert texts(result) == ["q", "three", "four"]
    assert asked(a) == [[("user", None, "q")]] * 2
    assert result.usage.requests == 4


@pytest.mark.anyio
async def test_m10_a_run_layer_may_have_a_flow_run_instead(go: Go) -> None:
    async def instead(call: Any, next: Any) -> Any:
        return await next(call.replace(target=sequence(says("b", "two"), shout)))

    assert (await go(App().use(run=instead), says("a"), "q")).text == "TWO"


@pytest.mark.anyio
async def test_m3_a_run_layers_answer_takes_the_place_of_the_flows(go: Go) -> None:
    async def replaced(call: Any, next: Any) -> Any:
        return (await next()).replace(text="mine")

    result = await go(App().use(run=replaced), sequence(says("a", "one"), says("b", "two")), "q")
    assert said(result.messages) == [("user", None, "q"), ("user", "a", "one"), ("assistant", None, "mine")]
    assert (result.text, result.usage.requests, result.agent) == ("mine", 2, "b")


# T11: what waits for approval


@tool(approve=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


def payer(name: str, *more: Any) -> Agent:
    return says(name, ["pays", ToolUse("pay", {"amount": 5}, f"pay-{name}")], f"{name} has paid", *more, tools=[pay])


@pytest.mark.anyio
async def test_a1_t11_a_member_that_waits_makes_its_sequence_wait_and_it_goes_on_there() -> None:
    c = says("c", "three")
    conversation = App().conversation(sequence(says("a", "one"), payer("b"), c))
    result = await conversation.send("q")
    assert (result.finish_reason, [call.id for call in result.pending], asked(c)) == ("pending", ["pay-b"], [])
    result = await conversation.resume({"pay-b": True})
    assert (result.text, result.pending) == ("three", ())
    assert said(conversation.messages) == [
        ("user", None, "q"),
        ("user", "a", "one"),
        ("assistant", None, "pays"),
        ("tool", "pay", "paid 5"),
        ("user", "b", "b has paid"),
        ("assistant", None, "three"),
    ]


@pytest.mark.anyio
async def test_a3_t11_a_member_that_waits_makes_its_loop_wait_and_it_goes_on_in_that_pass() -> None:
    passes: list[int] = []

    def note(input: str, ctx: Context) -> None:
        assert ctx.loop is not None
        passes.append(ctx.loop.iteration)

    again = ["pays", ToolUse("pay", {"amount": 6}, "pay-2")], "a has paid again"
    conversation = App().conversation(loop(note, payer("a", *again), max_iterations=2))
    result = await conversation.send("q")
    assert (result.stopped_by, [call.id for call in conversation.pending]) == (None, ["pay-a"])
    await conversation.resume({"pay-a": True})
    assert (passes, [call.id for call in conversation.pending]) == ([1, 2], ["pay-2"])
    result = await conversation.resume({"pay-2": False})
    assert (passes, result.text, result.stopped_by) == ([1, 2], "a has paid again", "iterations")
    check_history(conversation.messages)


@pytest.mark.anyio
async def test_a2_t11_a_member_that_waits_makes_its_parallel_wait_and_the_others_are_not_asked_again() -> None:
    a = says("a", "one")
    flow = parallel(a, payer("b"), payer("c"), merge=lambda results, ctx: "+".join(one.text for one in results))
    conversation = App().conversation(flow)
    result = await conversation.send("q")
    assert (result.finish_reason, [call.id for call in result.pending]) == ("pending", ["pay-b", "pay-c"])
    result = await conversation.resume({"pay-b": True})
    assert [call.id for call in result.pending] == ["pay-c"]
    result = await conversation.resume({"pay-c": False})
    assert result.text == "one+b has paid+c has paid"
    assert len(asked(a)) == 1
    assert [name for _, name, _ in said(conversation.messages)] == [
        None, "a", None, "pay", "b", None, "pay", "c", None
    ]  # fmt: skip
    check_history(conversation.messages)


# S10, and what app.check refuses


def test_s10_explain_shows_the_members_of_a_flow_in_their_order() -> None:
    async def log(call: Any, next: Any) -> Any:
        return await next()

    inner = parallel(Polite, sequence("known", name="third"), name="second")
    flow = sequence(says("a", tools=[ping]), inner, shout, loop("known", name="fourth"), name="first")
    app = App(agents=[says("known")], model=ScriptedModel([])).use(run=log, agent=log)
    shown = str(app.explain(flow))
    lines = [line.strip("│├└─ ") for line in shown.splitlines()]
    heads = [line for line in lines if ": " in line or line.startswith(("first", "its", "function"))]
    assert [head.split("  ")[0] for head in heads] == [
        "first in 'app', outermost first",
        "its members, one after the other",
        "a: agent, once per step",
        "second: its members, at the same time",
        "Polite: agent, once per step",
        "third: its members, one after the other",
        "known: agent, once per step",
        "function shout (flow)",
        "fourth: its members, over and over",
        "known: agent, once per step",
    ]
    assert lines.count("run, once per run") == 1
    links = app.explain(flow).links
    assert [link.scope for link in links].count("run") == 1
    assert [link.name for link in links if link.kind == "tools"] == ["ping", "none", "none", "none"]


def test_check_passes_a_flow_that_is_put_together_well() -> None:
    app = App(agents=[says("known")])
    flow = sequence("known", Polite, shout, parallel(says("a"), sequence(says("b"))), loop(loop(says("c"))))
    app.check(flow)
    App(agents=[says("known"), flow]).check()


def test_check_lists_all_that_is_wrong_with_the_members_of_a_flow() -> None:
    class Needs(Agent):
        def __init__(self, what: str) -> None:
            super().__init__(model=ScriptedModel([]))

    flow = sequence(
        Agent(name="silent"),
        parallel(says("twin"), Needs, name="side"),
        says("twin", handoffs=["nobody"]),
        "stranger",
        loop(Agent(name="mute"), name="round"),
    )
    with pytest.raises(ConfigurationError) as caught:
        App().check(flow)
    issues = caught.value.issues
    for expected in (
        "the agent 'silent' has no model",
        "the agent 'mute' has no model",
        "named 'twin'",
        "Needs cannot be made without arguments",
        "no agent 'nobody'",
        "no agent 'stranger'",
    ):
        assert [issue for issue in issues if expected in issue], f"{expected} is not among {issues}"


def test_check_refuses_a_member_without_a_model_and_takes_that_of_the_app() -> None:
    with pytest.raises(ConfigurationError, match="'a' has no model"):
        App().check(loop(Agent(name="a")))
    App(model=ScriptedModel([])).check(loop(Agent(name="a")))


@pytest.mark.anyio
async def test_check_and_a_run_refuse_flows_and_agents_that_contain_themselves(go: Go) -> None:
    own = App(agents=[sequence("own", name="own")])
    team = sequence(says("a", tools=[sequence("b", name="in").as_tool()]), name="team")
    round = App(agents=[team, says("b", tools=[parallel("team", name="back").as_tool()])])
    for app, target, cycle in (own, "own", "own > own"), (round, "team", "team > a > in > b > back > team"):
        with pytest.raises(ConfigurationError, match=cycle):
            app.check()
        with pytest.raises(ConfigurationError, match=cycle):
            await go(app, target, "q")


@pytest.mark.anyio
async def test_a_name_that_only_a_member_bears_is_known_to_only(go: Go) -> None:
    seen: list[str] = []

    async def note(call: Any, next: Any) -> Any:
        seen.append(call.agent.name)
        return await next()

    flow = sequence(says("a", "one"), parallel(says("b", "two")))
    await go(App().use(agent=note, only="b"), flow, "q")
    assert seen == ["b"]
    with pytest.warns(UserWarning, match="'c'"):
        await go(App().use(agent=note, only="c"), sequence(says("a", "one")), "q")


@pytest.mark.anyio
async def test_override_reaches_the_members_of_a_flow(go: Go) -> None:
    app = App(agents=[sequence(says("a"), parallel(says("b", tools=[ping])), name="team")])
    with app.override(model=ScriptedModel(lambda call: "other"), tools={"ping": lambda: "x"}):
        assert (await go(app, "team", "q")).text == "other"


@pytest.mark.anyio
async def test_a_layer_around_tools_refuses_for_all_members(go: Go) -> None:
    async def refuse(call: Any, next: Any) -> ToolOutput:
        return ToolOutput("no", is_error=True)

    flow = parallel(*(says(name, [ToolUse("ping")], name, tools=[ping]) for name in ("a", "b")))
    result = await go(App().use(tool=refuse), flow, "q")
    assert [message.text for message in result.messages if isinstance(message, ToolMessage)] == ["no", "no"]


@pytest.mark.anyio
async def test_t7_ids_that_are_made_up_side_by_side_are_told_apart(go: Go) -> None:
    @tool
    async def ping() -> str:
        return "pong"

    def pings(name: str) -> Agent:
        return Agent(name=name, model=ScriptedModel([[ToolUse("ping")], name.upper()]), tools=[ping])

    flow = sequence(parallel(pings("a"), parallel(pings("b"), pings("c"), name="inner")), pings("d"))
    result = await go(App(), flow, "q")
    uses = [use.id for message in result.messages if isinstance(message, Assistant) for use in message.tool_calls]
    assert (len(uses), len(set(uses))) == (4, 4)
