"""Guards on what the model says (G2-G10, and G3's layers): outcomes, order, channels, and judging again."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from middlechain import (
    Agent,
    AgentFinished,
    Allow,
    App,
    Assistant,
    ChatReply,
    Context,
    Deny,
    Enforced,
    Event,
    GuardrailDenied,
    GuardrailFired,
    LimitExceeded,
    Limits,
    ModelFinished,
    Result,
    Rewrite,
    RunFinished,
    StreamDenied,
    ToolMessage,
    ToolStarted,
    ToolUse,
    User,
    Validation,
    WrongReturn,
    guardrail,
    repeats,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go
from .guarding import CANNED, FOUND, against, failed, found, noting, redacting, setup, working
from .scenes import Boom, delegating
from .test_deadlines import in_fast_time

pytestmark = pytest.mark.anyio

DENIED = Deny("not this", metadata={"rule": 7})
WORK = ToolUse("work", {"x": 1}, "c1")


def raising(error: BaseException) -> Any:
    def hook(given: Any, ctx: Any) -> None:
        raise error

    return hook


async def passing(call: Any, next: Any) -> Any:
    return await next()


# --- Enforced (G2) ---------------------------------------------------------------------------------------------------


async def test_g2_an_enforced_output_is_answered_with_the_canned_message(go: Go) -> None:
    agent, _ = setup(["a bad word"], output=[against("bad")])
    result = await go(App(), agent, "hi")
    assert (result.text, result.output, result.finish_reason) == (CANNED, CANNED, "safety")
    assert (result.blocked, result.blocked_by, result.degraded, result.error) == (True, "words", False, None)
    assert result.validations == (Validation("words", "", "words", "output", False, "enforced", "found"),)
    assert result.messages == (User("hi"), Assistant(CANNED, finish_reason="safety", blocked=True))


async def test_g2_an_output_that_passes_is_the_answer_and_says_so(go: Go) -> None:
    agent, _ = setup(["a good word"], output=[against("bad")])
    result = await go(App(), agent, "hi")
    assert (result.text, result.finish_reason, result.blocked, result.blocked_by) == (
        "a good word",
        "stop",
        False,
        None,
    )
    assert result.validations == (Validation("words", "", "words", "output"),)
    assert result.messages == (User("hi"), Assistant("a good word", finish_reason="stop"))


@pytest.mark.parametrize(
    ("answer", "options", "said"),
    [
        (Enforced("r"), {}, CANNED),
        (Enforced("r"), {"message": "the guard's"}, "the guard's"),
        (Enforced("r", "its own"), {"message": "the guard's"}, "its own"),
    ],
)
async def test_g2_the_message_is_the_outcomes_or_the_guards_or_a_constant(
    go: Go, answer: Any, options: Any, said: str
) -> None:
    agent, _ = setup(["a bad word"], output=[against("bad", answer, **options)])
    assert (await go(App(), agent, "hi")).text == said


async def test_g2_tool_calls_of_a_blocked_reply_are_dropped_and_no_tool_runs(go: Go) -> None:
    ran: list[Any] = []
    for word, expected in (("bad", []), ("good", [1])):
        agent, model = setup([[word, WORK], "done"], output=[against("bad")], tools=[working(ran)])
        events: list[Event] = []
        result = await go(App().observe(events.append), agent, "hi")
        assert ran == expected
        assert len(model.calls) == len(expected) + 1
        assert len([event for event in events if isinstance(event, ToolStarted)]) == len(expected)
        assert [message.text for message in result.messages] == (
            ["hi", "good", "worked", "done"] if ran else ["hi", CANNED]
        )


async def test_g2_after_run_fires_and_after_response_does_not(go: Go) -> None:
    log: list[Any] = []
    hooks = {
        name: lambda given, ctx, name=name: log.append((name, getattr(given, "text", given)))
        for name in ("before_run", "before_prompt", "after_response", "after_run", "on_error")
    }
    agent, _ = setup(["a bad word"], output=[against("bad")], hooks=[hooks])
    assert (await go(App(), agent, "hi")).blocked
    assert log == [("before_run", "hi"), ("before_prompt", ""), ("after_run", CANNED)]


async def test_g2_agent_layers_unwind_with_the_canned_answer_and_chat_layers_with_the_reply(go: Go) -> None:
    seen: list[Any] = []

    async def look(call: Any, next: Any) -> None:
        answer = await next()
        seen.append((type(answer).__name__, answer.text, answer.finish_reason))

    agent, _ = setup(["a bad word"], output=[against("bad")])
    await go(App().use(run=look, agent=look, chat=look), agent, "hi")
    assert seen == [("ChatReply", "a bad word", "stop"), ("Result", CANNED, "safety"), ("Result", CANNED, "safety")]


async def test_g2_a_block_after_tools_ran_leaves_their_turns_in_history(go: Go) -> None:
    """The user's message, the calls that had run with their results, and the canned answer."""
    agent, model = setup([["let me see", WORK], "a bad word", "fine"], output=[against("bad")], tools=[working([])])
    result = await go(App(), agent, "hi")
    assert result.messages == (
        User("hi"),
        Assistant("let me see", [WORK], finish_reason="tool_calls"),
        ToolMessage("worked", "c1", "work"),
        Assistant(CANNED, finish_reason="safety", blocked=True),
    )
    again = await go(App(), agent, "and now?", history=result.messages)
    assert again.text == "fine"
    assert model.calls[-1].messages == (*result.messages, User("and now?")), "and all of it is sent"


async def test_g2_events_tell_of_the_block_and_the_run_ends_blocked(go: Go) -> None:
    events: list[Event] = []
    agent, _ = setup(["a bad word"], output=[against("bad")])
    result = await go(App().observe(events.append), agent, "hi")
    (fired,) = [event for event in events if isinstance(event, GuardrailFired)]
    (finished,) = [event for event in events if isinstance(event, ModelFinished)]
    assert (fired.validation, fired.turn) == (result.validations[0], 1)
    assert finished.reply is not None
    assert (finished.reply.text, finished.reply.finish_reason) == (CANNED, "safety")
    assert [event.outcome for event in events if isinstance(event, RunFinished)] == ["blocked"]
    agent, _ = setup(["a good word"], output=[against("bad")])
    events.clear()
    await go(App().observe(events.append), agent, "hi")
    assert [event for event in events if isinstance(event, GuardrailFired)] == []


# --- Deny (G3) -------------------------------------------------------------------------------------------------------


async def test_g3_a_denied_output_raises_and_says_who_and_why(go: Go) -> None:
    events: list[Event] = []
    agent, _ = setup(["a bad word"], output=[against("bad", DENIED)])
    with pytest.raises(GuardrailDenied, match=r"^guardrail 'words' denied the output: not this$") as caught:
        await go(App().observe(events.append), agent, "hi")
    error = caught.value
    assert type(error) is GuardrailDenied, "no text had been sent"
    assert (error.guardrail, error.direction, error.reason, error.metadata) == (
        "words",
        "output",
        "not this",
        {"rule": 7},
    )
    assert error.validation == Validation("words", "", "words", "output", False, "deny", "not this", None, {"rule": 7})
    assert error.__cause__ is None
    assert [event.reply for event in events if isinstance(event, ModelFinished)] == [None]
    assert [event.outcome for event in events if isinstance(event, RunFinished)] == ["failed"]


async def test_g3_after_a_denial_only_on_error_runs(go: Go) -> None:
    log: list[str] = []
    hooks = {
        name: lambda given, ctx, name=name: log.append(name) for name in ("after_response", "after_run", "on_error")
    }
    agent, _ = setup(["a bad word"], output=[against("bad", DENIED)], hooks=[hooks])
    with pytest.raises(GuardrailDenied):
        await go(App(), agent, "hi")
    assert log == ["on_error"]


async def test_g3_a_denial_that_on_error_mends_stays_visible(go: Go) -> None:
    agent, _ = setup(
        ["a bad word"], output=[against("bad", DENIED)], hooks=[{"on_error": lambda error, ctx: f"no: {error.reason}"}]
    )
    result = await go(App(), agent, "hi")
    assert (result.text, result.degraded, result.finish_reason) == ("no: not this", True, "degraded")
    assert (result.blocked, result.blocked_by) == (True, "words")
    assert isinstance(result.error, GuardrailDenied)
    assert failed(result) is result.error.validation
    assert result.messages == (User("hi"), Assistant("no: not this", finish_reason="degraded"))


async def test_g3_tools_of_a_denied_reply_do_not_run_and_earlier_ones_stay_paired(go: Go) -> None:
    ran: list[Any] = []
    agent, _ = setup(
        [["fine", WORK], ["bad", ToolUse("work", {"x": 2}, "c2")]],
        output=[against("bad", DENIED)],
        tools=[working(ran)],
        hooks=[{"on_error": lambda error, ctx: "sorry"}],
    )
    result = await go(App(), agent, "hi")
    assert ran == [1]
    assert [message.text for message in result.messages] == ["hi", "fine", "worked", "sorry"]


# --- what on_error says is judged once (H7) --------------------------------------------------------------------------


def mending(text: str, *guards: Any, error: BaseException | None = None) -> Agent:
    """An agent that fails, and whose `on_error` says `text`."""
    agent: Agent
    agent, _ = setup([error or Boom()], output=guards, hooks=[{"on_error": lambda error, ctx: text}])
    return agent


@pytest.mark.parametrize("when", ["reply", "final"])
async def test_h7_a_degraded_answer_is_judged_once(go: Go, when: str) -> None:
    log: list[str] = []
    result = await go(App(), mending("sorry", noting(log, when=when)), "hi")
    assert log == ["sorry"]
    assert (result.text, result.degraded, result.blocked, found(result)) == (
        "sorry",
        True,
        False,
        [("noting", "allow")],
    )


@pytest.mark.parametrize("when", ["reply", "final"])
async def test_h7_a_block_of_a_degraded_answer_stands(go: Go, when: str) -> None:
    result = await go(App(), mending("a bad excuse", against("bad", when=when)), "hi")
    assert (result.text, result.finish_reason) == (CANNED, "safety")
    assert (result.blocked, result.blocked_by, result.degraded) == (True, "words", True)
    assert isinstance(result.error, Boom)
    assert result.messages == (User("hi"), Assistant(CANNED, finish_reason="safety", blocked=True))


async def test_h7_a_denial_of_a_degraded_answer_is_raised_and_mended_by_nobody(go: Go) -> None:
    events: list[Event] = []
    first = Boom("first")
    with pytest.raises(GuardrailDenied, match="not this") as caught:
        await go(App().observe(events.append), mending("a bad excuse", against("bad", DENIED), error=first), "hi")
    assert caught.value.__cause__ is first
    assert [event.result for event in events if isinstance(event, AgentFinished)] == [None]


async def test_h7_a_degraded_answer_may_be_rewritten(go: Go) -> None:
    result = await go(App(), mending("a bad excuse", redacting("bad")), "hi")
    assert (result.text, result.message.text, result.degraded) == ("a *** excuse", "a *** excuse", True)


async def test_h7_a_denial_mended_by_a_text_that_is_blocked_too_stays_denied_in_the_record(go: Go) -> None:
    guard = against("bad", lambda text: DENIED if "very" in text else FOUND)
    agent, _ = setup(["very bad"], output=[guard], hooks=[{"on_error": lambda error, ctx: "just bad"}])
    result = await go(App(), agent, "hi")
    assert (result.text, result.blocked, result.degraded) == (CANNED, True, True)
    assert found(result) == [("words", "deny")], "the most severe one"


# --- Rewrite (G4) ----------------------------------------------------------------------------------------------------


async def test_g4_a_rewritten_reply_is_what_history_hooks_and_the_result_have(go: Go) -> None:
    seen: list[str] = []
    agent, model = setup(
        [["a bad start", WORK], "a bad end"],
        output=[redacting("bad")],
        tools=[working([])],
        hooks=[{"after_response": lambda text, ctx: seen.append(text)}],
    )
    events: list[Event] = []
    result = await go(App().observe(events.append), agent, "hi")
    assert (result.text, seen, result.blocked) == ("a *** end", ["a *** end"], False)
    assert [message.text for message in result.messages] == ["hi", "a *** start", "worked", "a *** end"]
    assert model.calls[1].messages[1].text == "a *** start"
    assert result.validations == (Validation("redact", "", "redact", "output", True, "rewrite"),)
    replies = [event.reply for event in events if isinstance(event, ModelFinished)]
    assert [reply.text for reply in replies if reply is not None] == ["a *** start", "a *** end"]


async def test_g4_the_next_guard_sees_the_new_text_and_the_first_block_wins(go: Go) -> None:
    log: list[str] = []
    agent, _ = setup(
        ["a bad word"],
        output=[redacting("bad"), noting(log, "second"), against("***", name="third"), noting(log, "fourth")],
    )
    result = await go(App(), agent, "hi")
    assert log == ["a *** word"]
    assert (result.blocked_by, found(result)) == (
        "third",
        [("redact", "rewrite"), ("second", "allow"), ("third", "enforced")],
    )


@pytest.mark.parametrize(("answer", "text"), [(Rewrite("", "r"), ""), ("", ""), ("other", "other")])
async def test_g1_a_str_is_a_rewrite_and_an_empty_one_is_a_text(go: Go, answer: Any, text: str) -> None:
    agent, _ = setup(["a bad word"], output=[against("bad", answer)])
    result = await go(App(), agent, "hi")
    assert (result.text, found(result)) == (text, [("words", "rewrite")])


async def test_g1_allow_lets_pass_and_leaves_its_score(go: Go) -> None:
    agent, _ = setup(["a bad word"], output=[against("bad", Allow(0.3, {"k": "v"}))])
    result = await go(App(), agent, "hi")
    assert result.text == "a bad word"
    assert result.validations == (Validation("words", "", "words", "output", score=0.3, metadata={"k": "v"}),)


@pytest.mark.parametrize("answer", [Enforced("r", "m", {"k": 1}, 0.9), Deny("r", "m", {"k": 1}, 0.9)])
@pytest.mark.parametrize(
    ("outcome", "recorded"), [(None, None), ("enforce", "enforced"), ("deny", "deny"), ("rewrite", "rewrite")]
)
async def test_g1_outcome_says_what_a_block_of_the_guard_is(go: Go, answer: Any, outcome: Any, recorded: Any) -> None:
    agent, _ = setup(
        ["a bad word"],
        output=[against("bad", answer, outcome=outcome)],
        hooks=[{"on_error": lambda error, ctx: "degraded"}],
    )
    result = await go(App(), agent, "hi")
    if recorded is None:
        recorded = "deny" if isinstance(answer, Deny) else "enforced"
    (validation,) = result.validations
    assert validation == Validation("words", "", "words", "output", recorded == "rewrite", recorded, "r", 0.9, {"k": 1})
    assert result.text == ("degraded" if recorded == "deny" else "m")
    assert result.blocked is (recorded != "rewrite")


async def test_g1_outcome_leaves_what_is_no_block_alone(go: Go) -> None:
    agent, _ = setup(["a bad word"], output=[redacting("bad", outcome="deny"), noting([], outcome="deny")])
    assert (await go(App(), agent, "hi")).text == "a *** word"


async def test_g1_a_rewriting_block_without_a_message_says_the_constant(go: Go) -> None:
    agent, _ = setup(["a bad word"], output=[against("bad", outcome="rewrite")])
    assert (await go(App(), agent, "hi")).text == CANNED


# --- judged once, and again if it was changed (G6) -------------------------------------------------------------------


async def test_g6_a_reply_is_judged_once_however_many_layers_and_hooks_look_at_it(go: Go) -> None:
    log: list[str] = []
    hooks = dict.fromkeys(("after_response", "after_run"), lambda given, ctx: None)
    agent, _ = setup([["one", WORK], "two"], output=[noting(log)], tools=[working([])], hooks=[hooks])
    await go(App().use(run=passing, agent=passing, chat=passing), agent, "hi")
    assert log == ["one", "two"]


CHANGES: dict[str, Any] = {
    "after_response": lambda text, ctx: "a bad word",
    "after_run": lambda result, ctx: "a bad word",
    "after_run, a Result": lambda result, ctx: result.replace(text="a bad word"),
    "after_run, another Result": lambda result, ctx: Result("a bad word"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["reply", "final"])
async def test_g6_an_answer_that_a_hook_changed_is_judged_again(go: Go, change: str, when: str) -> None:
    log: list[str] = []
    agent, _ = setup(
        ["fine"], output=[noting(log), against("bad", when=when)], hooks=[{change.partition(",")[0]: CHANGES[change]}]
    )
    result = await go(App(), agent, "hi")
    assert (result.text, result.blocked, result.finish_reason) == (CANNED, True, "safety")
    assert log == ["fine", "a bad word"]
    assert result.messages == (User("hi"), Assistant(CANNED, finish_reason="safety", blocked=True))


@pytest.mark.parametrize("scope", ["chat", "agent"])
@pytest.mark.parametrize("calls_next", [True, False])
async def test_g6_an_answer_that_a_layer_changed_or_gave_is_judged(go: Go, scope: str, calls_next: bool) -> None:
    async def answer(call: Any, next: Any) -> str:
        if calls_next:
            await next()
        return "a bad word"

    agent, _ = setup(["fine"], output=[against("bad")])
    result = await go(App().use(**{scope: answer}), agent, "hi")
    assert (result.text, result.blocked) == (CANNED, True)
    agent, _ = setup(["fine"], output=[against("bad", DENIED)])
    with pytest.raises(GuardrailDenied):
        await go(App().use(**{scope: answer}), agent, "hi")


async def test_g6_a_changed_answer_may_be_rewritten(go: Go) -> None:
    async def answer(call: Any, next: Any) -> str:
        await next()
        return "a bad word"

    agent, _ = setup(["fine"], output=[redacting("bad")])
    result = await go(App().use(agent=answer), agent, "hi")
    assert (result.text, result.message.text, result.blocked) == ("a *** word", "a *** word", False)


async def test_g6_what_a_run_layer_answers_is_the_applications_own(go: Go) -> None:
    async def answer(call: Any, next: Any) -> str:
        await next()
        return "a bad word"

    agent, _ = setup(["fine"], output=[against("bad")])
    result = await go(App().use(run=answer), agent, "hi")
    assert (result.text, result.blocked) == ("a bad word", False)


async def test_g6_a_canned_answer_that_a_layer_replaces_is_judged_too_and_stays_blocked(go: Go) -> None:
    async def reword(call: Any, next: Any) -> Any:
        result = await next()
        return result.replace(text="worded otherwise") if result.blocked else None

    log: list[str] = []
    agent, _ = setup(["a bad word"], output=[against("bad"), noting(log)])
    result = await go(App().use(agent=reword), agent, "hi")
    assert (result.text, result.blocked, result.blocked_by) == ("worded otherwise", True, "words")
    assert log == ["worded otherwise"]


async def test_g6_the_canned_answer_is_judged_by_nobody(go: Go) -> None:
    log: list[str] = []
    agent, _ = setup(["a bad word"], output=[noting(log, when="final"), against("bad")])
    assert (await go(App(), agent, "hi")).text == CANNED
    assert log == []


async def test_g6_each_reply_is_judged_before_its_tools_run(go: Go) -> None:
    log: list[Any] = []
    agent, _ = setup([["one", WORK], "two"], output=[noting(log)], tools=[working(log)])
    await go(App(), agent, "hi")
    assert log == ["one", 1, "two"]


async def test_g6_what_a_limit_leaves_is_judged_as_the_answer(go: Go) -> None:
    agent, _ = setup([["a bad word", WORK]], output=[against("bad", when="final")], tools=[working([])])
    result = await go(App(), agent, "hi", limits=Limits(turns=1, on_exceed="stop"))
    assert (result.text, result.blocked) == (CANNED, True)


def test_g6_an_answer_that_ran_into_the_deadline_before_it_was_judged_is_not_given(go: Go) -> None:
    """A guard that was cancelled has passed nothing."""
    begun: list[str] = []

    @guardrail("slow", when="final")
    async def slow(text: str, ctx: Context) -> None:
        begun.append(text)
        await anyio.sleep_forever()

    async def test() -> None:
        agent, _ = setup(["fine"] * 2, output=[slow])
        result = await go(App(), agent, "hi", limits=Limits(seconds=60, on_exceed="stop"))
        assert (begun, result.text, result.finish_reason, result.stopped_by) == (["fine"], "", "limit", "limit")
        with pytest.raises(LimitExceeded) as caught:
            await go(App(), agent, "hi", limits=Limits(seconds=60))
        assert caught.value.result.text == ""

    in_fast_time(test)


@pytest.mark.parametrize(
    ("answer", "text"), [(FOUND, CANNED), (lambda text: "other", "other"), (None, "a bad start"), (DENIED, "")]
)
def test_g6_what_a_deadline_leaves_is_judged_by_the_final_guards_too(go: Go, answer: Any, text: str) -> None:
    @tool
    async def hang() -> None:
        await anyio.sleep_forever()

    async def test() -> None:
        log: list[str] = []
        guard = noting([], when="final") if answer is None else against("bad", answer, when="final")
        agent, _ = setup([["a bad start", ToolUse("hang")]], output=[guard, noting(log)], tools=[hang])
        limits = Limits(seconds=60, on_exceed="stop")
        if answer is DENIED:
            with pytest.raises(GuardrailDenied) as caught:
                await go(App(), agent, "hi", limits=limits)
            assert isinstance(caught.value.__cause__, LimitExceeded)
            return
        result = await go(App(), agent, "hi", limits=limits)
        assert (result.text, result.blocked, result.degraded) == (text, text == CANNED, False)
        assert log == ["a bad start"], "and by the others once, as every reply"

    in_fast_time(test)


# --- channels (G7) ---------------------------------------------------------------------------------------------------


async def test_g7_reasoning_answer_and_arguments_are_texts_by_themselves(go: Go) -> None:
    seen: list[Any] = []

    @guardrail("look")
    async def look(text: str, ctx: Context) -> None:
        seen.append((ctx.direction, ctx.channel, text, ctx.turn))
        assert ctx.reply is not None
        assert (ctx.reply.text, ctx.reply.reasoning, ctx.reply.tool_calls[0].name) == ("an answer", "a thought", "work")
        assert ctx.message == Assistant("an answer", ctx.reply.tool_calls, "a thought", "tool_calls")
        assert ctx.messages == (User("before"), User("hi"))
        assert "slots" not in repr(ctx)

    uses = (
        ToolUse("work", {"x": "one", "y": ["two", {"z": "three"}], "n": 4}, "c1"),
        ToolUse("work", {"x": "four"}, "c2"),
    )
    agent, _ = setup(
        [ChatReply("an answer", uses, "a thought"), "done"],
        output=[look],
        tools=[working([])],
    )
    with pytest.raises(LimitExceeded):
        await go(App(), agent, "hi", history=[User("before")], limits=Limits(turns=1))
    assert seen == [
        ("output", channel, text, 1)
        for channel, text in [
            ("reasoning", "a thought"),
            ("answer", "an answer"),
            ("arguments", "one"),
            ("arguments", "two"),
            ("arguments", "three"),
            ("arguments", "four"),
        ]
    ]


@pytest.mark.parametrize(
    "reply",
    [
        ChatReply("fine", reasoning="a bad thought"),
        ChatReply("", (ToolUse("work", {"x": {"deep": ["", "a bad value"]}}),)),
        ChatReply("fine", (ToolUse("work", '{"x": "a bad value'),)),
        ChatReply("fine", (ToolUse("work", '"a bad value"'),)),
    ],
)
@pytest.mark.parametrize("answer", [FOUND, DENIED])
async def test_g7_a_block_in_any_channel_blocks_the_reply(go: Go, reply: ChatReply, answer: Any) -> None:
    ran: list[Any] = []
    agent, _ = setup(
        [reply], output=[against("bad", answer)], tools=[working(ran)], hooks=[{"on_error": lambda e, ctx: "denied"}]
    )
    result = await go(App(), agent, "hi")
    assert (result.blocked, ran) == (True, [])
    assert result.text == ("denied" if answer is DENIED else CANNED)
    assert result.message.reasoning is None


async def test_b19_a_reply_without_text_asks_no_guard_for_it_and_the_next_is_judged(go: Go) -> None:
    log: list[str] = []
    agent, _ = setup(
        [ChatReply("", (ToolUse("work"),)), "a bad end"], output=[noting(log), against("bad")], tools=[working([])]
    )
    result = await go(App(), agent, "hi")
    assert (log, result.blocked) == (["a bad end"], True)


async def test_g7_redaction_rewrites_string_values_and_keeps_shape_and_types(go: Go) -> None:
    ran: list[Any] = []
    given = {"bad key": "a bad value", "list": ["bad", 1, None, True, 1.5, {"x": "very bad"}], "n": 10**30, "s": "ä"}
    reply = ChatReply("bad", (ToolUse("work", {"x": given}, "c1"),), "bad thought")
    agent, model = setup([reply, "done"], output=[redacting("bad")], tools=[working(ran)])
    result = await go(App(), agent, "hi")
    expected = {"bad key": "a *** value", "list": ["***", 1, None, True, 1.5, {"x": "very ***"}], "n": 10**30, "s": "ä"}
    assert ran == [expected]
    sent = model.calls[1].messages[1]
    assert json.loads(sent.tool_calls[0].arguments) == {"x": expected}
    assert (sent.text, sent.reasoning, sent.tool_calls[0].id) == ("***", "*** thought", "c1")
    assert found(result) == [("redact", "rewrite")]


@pytest.mark.parametrize(
    "arguments", ['{"x":  "fine"}', '{"x": "\\u00e4", "x": "twice"}', "{not json", "", "[1, null]"]
)
async def test_g7_arguments_that_no_guard_changes_stay_as_the_model_wrote_them(go: Go, arguments: str) -> None:
    use = ToolUse("work", arguments, "c1")
    agent, _ = setup([[use]], output=[redacting("bad")], tools=[working([])])
    events: list[Event] = []
    with pytest.raises(LimitExceeded):
        await go(App().observe(events.append), agent, "hi", limits=Limits(turns=1))
    (finished,) = [event for event in events if isinstance(event, ModelFinished)]
    assert finished.reply is not None
    assert finished.reply.tool_calls == (use,)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"x": "bad', '{"x": "***'), ('"bad"', '"***"'), ('["bad", [], {}]', '["***", [], {}]'), ("bad", "***")],
)
async def test_g7_arguments_that_are_no_object_are_rewritten_as_they_are(go: Go, arguments: str, expected: str) -> None:
    events: list[Event] = []
    agent, _ = setup([[ToolUse("work", arguments, "c1")]], output=[redacting("bad")], tools=[working([])])
    with pytest.raises(LimitExceeded):
        await go(App().observe(events.append), agent, "hi", limits=Limits(turns=1))
    (finished,) = [event for event in events if isinstance(event, ModelFinished)]
    assert finished.reply is not None
    assert finished.reply.tool_calls == (ToolUse("work", expected, "c1"),)


async def test_g7_reasoning_that_was_rewritten_to_nothing_is_none(go: Go) -> None:
    agent, _ = setup([ChatReply("fine", reasoning="bad")], output=[against("bad", "")])
    assert (await go(App(), agent, "hi")).message.reasoning is None


async def test_g7_a_final_guard_judges_the_steps_answer_alone(go: Go) -> None:
    log: list[str] = []
    every: list[str] = []
    reply = ChatReply("a bad start", (ToolUse("work", {"x": "bad"}, "c1"),), "bad thought")
    agent, _ = setup(
        [reply, ChatReply("an end", reasoning="bad too")],
        output=[noting(log, when="final"), against("bad", name="shape", when="final"), noting(every, "every")],
        tools=[working([])],
        hooks=[{"after_response": lambda text, ctx: text + "!"}],
    )
    result = await go(App(), agent, "hi")
    assert (result.text, result.blocked) == ("an end!", False)
    assert log == ["an end!"]
    assert every == ["bad thought", "a bad start", "bad", "bad too", "an end", "an end!"]


@pytest.mark.parametrize(
    ("answer", "text"), [(FOUND, CANNED), (DENIED, "denied"), (lambda text: text.replace("bad", "***"), "a *** end")]
)
async def test_g7_a_final_guard_blocks_or_rewrites_the_answer(go: Go, answer: Any, text: str) -> None:
    agent, _ = setup(
        [["a bad start", WORK], "a bad end"],
        output=[against("bad", answer, when="final")],
        tools=[working([])],
        hooks=[{"on_error": lambda error, ctx: "denied"}],
    )
    result = await go(App(), agent, "hi")
    assert (result.text, result.message.text) == (text, text)
    assert [message.text for message in result.messages] == ["hi", "a bad start", "worked", text]


async def test_g7_a_final_guard_sees_what_the_hooks_made_of_the_answer(go: Go) -> None:
    agent, _ = setup(
        ["no shape"],
        output=[against("no shape", when="final")],
        hooks=[{"after_response": lambda text, ctx: "in shape"}],
    )
    assert (await go(App(), agent, "hi")).text == "in shape"


# --- ctx.chat and agents that own their step -------------------------------------------------------------------------


class Owning(Agent):
    """Asks its model once, and says what it said."""

    async def run(self, input: Any, ctx: Context) -> str:
        reply = await ctx.chat("q")
        replies.append(reply)
        return reply.text


replies: list[ChatReply] = []


def owning(reply: Any, *guards: Any, kind: type[Agent] = Owning) -> Agent:
    from middlechain.testing import ScriptedModel

    replies.clear()
    return kind(name="own", model=ScriptedModel(reply if callable(reply) else [reply]), guardrails={"output": guards})


async def test_g2_code_that_asks_the_model_gets_the_canned_reply_and_goes_on(go: Go) -> None:
    agent = owning(ChatReply("a bad word", (WORK,), "thought"), against("bad"))
    result = await go(App(), agent, "hi")
    assert result.text == CANNED
    (reply,) = replies
    assert (reply.text, reply.tool_calls, reply.reasoning, reply.finish_reason) == (CANNED, (), None, "safety")
    assert found(reply) == found(result) == [("words", "enforced")]


async def test_g3_code_that_asks_the_model_gets_the_denial(go: Go) -> None:
    agent = owning("a bad word", against("bad", DENIED))
    with pytest.raises(GuardrailDenied):
        await go(App(), agent, "hi")
    assert replies == []

    class Careful(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            try:
                return (await ctx.chat("q")).text
            except GuardrailDenied as denial:
                return f"no: {denial.reason}"

    result = await go(App(), owning("a bad word", against("bad", DENIED), kind=Careful), "hi")
    assert (result.text, found(result)) == ("no: not this", [("words", "deny")])


async def test_g4_code_that_asks_the_model_gets_the_rewritten_reply(go: Go) -> None:
    agent = owning(ChatReply("bad", (ToolUse("work", {"x": "bad"}, "c1"),), "bad"), redacting("bad"))
    await go(App(), agent, "hi")
    (reply,) = replies
    assert (reply.text, reply.reasoning, reply.tool_calls) == ("***", "***", (ToolUse("work", {"x": "***"}, "c1"),))


async def test_g6_a_reply_to_code_is_judged_once_and_so_is_another_answer_of_the_step(go: Go) -> None:
    log: list[str] = []
    await go(App(), owning("fine", noting(log)), "hi")
    assert log == ["fine"]

    class Adding(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            return (await ctx.chat("q")).text + ", bad"

    log.clear()
    result = await go(App(), owning("fine", noting(log), against("bad"), kind=Adding), "hi")
    assert (result.text, result.blocked, log) == (CANNED, True, ["fine", "fine, bad"])


async def test_g6_the_canned_reply_to_code_is_not_judged_again(go: Go) -> None:
    log: list[str] = []
    await go(App(), owning("a bad word", against("bad"), noting(log)), "hi")
    assert log == []


async def test_g7_a_final_guard_judges_what_an_owned_step_answers_and_no_reply_to_code(go: Go) -> None:
    log: list[str] = []

    class Summing(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            return f"{(await ctx.chat('q')).text} + {(await ctx.chat('q')).text}"

    agent = owning(lambda call: "1", noting(log, when="final"), kind=Summing)
    assert (await go(App(), agent, "hi")).text == "1 + 1"
    assert log == ["1 + 1"]


async def test_g6_hooks_and_tools_that_ask_the_model_are_judged_by_the_same_guards(go: Go) -> None:
    asked: list[str] = []

    @tool
    async def ask(ctx: Context) -> str:
        asked.append((await ctx.chat("q")).text)
        return "asked"

    agent, _ = setup([[ToolUse("ask")], "a bad word", "fine"], output=[against("bad")], tools=[ask])
    result = await go(App(), agent, "hi")
    assert (asked, result.text, result.blocked) == ([CANNED], "fine", False)
    assert found(result) == [("words", "enforced")]


# --- validations (G6, G10) -------------------------------------------------------------------------------------------


async def test_g10_one_validation_a_guard_and_side_the_most_severe_and_the_first_of_equals(go: Go) -> None:
    def judge(text: str, ctx: Context) -> Any:
        return {"allow": Allow(1), "rewrite": Rewrite("r", "first"), "again": Rewrite("s", "second")}.get(text)

    reply = ChatReply("rewrite", (ToolUse("work", {"x": "again"}),), "allow")
    agent, _ = setup([reply, "allow"], output=[judge, noting([], "other")], tools=[working([])])
    result = await go(App(), agent, "hi")
    assert [(one.name, one.outcome, one.reason) for one in result.validations] == [
        ("judge", "rewrite", "first"),
        ("other", "allow", ""),
    ]


async def test_g10_both_sides_of_a_guard_have_a_validation_each_in_the_order_in_which_they_ran(go: Go) -> None:
    both, other = noting([], "both"), noting([], "other")
    agent, _ = setup(["fine"], input=[both, other], output=[other, both])
    result = await go(App(), agent, "hi")
    assert [(one.name, one.direction) for one in result.validations] == [
        ("both", "input"),
        ("other", "input"),
        ("other", "output"),
        ("both", "output"),
    ]


async def test_g10_two_guards_of_one_name_have_a_validation_each(go: Go) -> None:
    agent, _ = setup(["fine"], output=[noting([], "same"), noting([], "same")])
    assert found(await go(App(), agent, "hi")) == [("same", "allow")] * 2


async def test_g10_a_guard_that_had_nothing_to_judge_has_none(go: Go) -> None:
    agent, _ = setup([""], input=[noting([])], output=[noting([])])
    assert (await go(App(), agent, "")).validations == ()


async def test_g10_validations_are_those_of_this_exchange(go: Go) -> None:
    agent, _ = setup(["a bad word", "fine"], output=[against("bad")])
    app = App()
    first = await go(app, agent, "hi")
    second = await go(app, agent, "hi", history=first.messages)
    assert (found(first), found(second)) == ([("words", "enforced")], [("words", "allow")])


@pytest.mark.parametrize(
    ("answer", "recorded", "passed"),
    [
        (FOUND, "enforced", False),
        (DENIED, "deny", False),
        ("other", "rewrite", True),
        (Boom(), "deny", False),
        (False, "deny", False),
    ],
)
async def test_g10_a_guard_that_observes_records_what_would_have_been_and_changes_nothing(
    go: Go, answer: Any, recorded: str, passed: bool
) -> None:
    ran: list[Any] = []
    events: list[Event] = []
    log: list[str] = []
    reply = ChatReply("bad", (ToolUse("work", {"x": "bad"}),), "bad")
    agent, _ = setup(
        [reply, "a bad word"],
        input=[against("bad", answer, mode="observe")],
        output=[against("bad", answer, mode="observe"), noting(log)],
        tools=[working(ran)],
    )
    result = await go(App().observe(events.append), agent, "bad input")
    assert (result.text, result.blocked, ran, result.messages[0].text) == ("a bad word", False, ["bad"], "bad input")
    assert log == ["bad", "bad", "bad", "a bad word"]
    assert [(one.name, one.outcome, one.passed) for one in result.validations] == [
        ("words", recorded, passed),
        ("words", recorded, passed),
        ("noting", "allow", True),
    ]
    assert [event.validation.outcome for event in events if isinstance(event, GuardrailFired)] == [recorded] * 3


async def test_g1_id_type_and_audit_are_in_the_validation(go: Go) -> None:
    for audit in (True, False):
        agent, _ = setup(["a bad word"], output=[against("bad", id="G-7", audit=audit)])
        (validation,) = (await go(App(), agent, "hi")).validations
        assert (validation.id, validation.type) == ("G-7", "words")
        assert validation.blocked_text == ("a bad word" if audit else None)
        assert "bad" not in repr(validation)


# --- fail closed (G9) ------------------------------------------------------------------------------------------------


async def never(text: str, ctx: Context) -> None:
    await anyio.sleep_forever()


def sync(text: str, ctx: Context) -> None: ...


def swallowing(text: str, ctx: Context) -> Any:
    async def judge() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()

    return judge()


FAILURES: dict[str, tuple[Any, type[BaseException], str]] = {
    "raises": (
        lambda text, ctx: raising(RuntimeError("down"))(text, ctx),
        RuntimeError,
        "the guard raised RuntimeError",
    ),
    "StopIteration": (lambda text, ctx: next(iter(())), StopIteration, "the guard raised StopIteration"),
    "True": (lambda text, ctx: True, WrongReturn, "the guard raised WrongReturn"),
    "False": (lambda text, ctx: False, WrongReturn, "the guard raised WrongReturn"),
    "number": (lambda text, ctx: 0, WrongReturn, "the guard raised WrongReturn"),
    "bytes": (lambda text, ctx: b"x", WrongReturn, "the guard raised WrongReturn"),
    "mapping": (lambda text, ctx: {}, WrongReturn, "the guard raised WrongReturn"),
    "class": (lambda text, ctx: Deny, WrongReturn, "the guard raised WrongReturn"),
    "no text": (lambda text, ctx: Rewrite(None), WrongReturn, "the guard raised WrongReturn"),  # type: ignore[arg-type]
    "no message": (lambda text, ctx: Enforced("r", 5), WrongReturn, "the guard raised WrongReturn"),  # type: ignore[arg-type]
    "signature": (lambda text: None, TypeError, "the guard raised TypeError"),
}
TIMEOUTS = {"waits": never, "sync": sync, "swallows": swallowing}


def failing(kind: str, **options: Any) -> Any:
    if kind in TIMEOUTS:
        return guardrail("flaky", timeout=1e-12, **options)(TIMEOUTS[kind])
    return guardrail("flaky", **options)(FAILURES[kind][0])


@pytest.mark.parametrize("kind", [*FAILURES, *TIMEOUTS])
@pytest.mark.parametrize("side", ["input", "output"])
async def test_g9_a_guard_that_fails_has_denied_with_the_cause_chained(go: Go, kind: str, side: str) -> None:
    """B16 (a), (b): control code that crashes lets nothing pass."""
    _, cause, reason = FAILURES.get(kind, (None, TimeoutError, "the guard took longer than 1e-12 seconds"))
    agent, model = setup(["fine"], **{side: [failing(kind)]})
    with pytest.raises(GuardrailDenied) as caught:
        await go(App(), agent, "hi")
    error = caught.value
    assert (type(error), error.guardrail, error.direction, error.reason) == (GuardrailDenied, "flaky", side, reason)
    assert type(error.__cause__) is cause
    assert error.validation.outcome == "deny"
    assert len(model.calls) == (side == "output")


@pytest.mark.parametrize("kind", [*FAILURES, *TIMEOUTS])
@pytest.mark.parametrize("side", ["input", "output"])
async def test_g9_only_an_explicit_option_lets_it_pass_and_the_record_says_errored(
    go: Go, kind: str, side: str
) -> None:
    events: list[Event] = []
    agent, _ = setup(["fine"], **{side: [failing(kind, on_failure="allow")]})
    result = await go(App().observe(events.append), agent, "hi")
    assert (result.text, result.blocked) == ("fine", False)
    assert [(one.outcome, one.passed) for one in result.validations] == [("errored", False)]
    assert [event.validation.outcome for event in events if isinstance(event, GuardrailFired)] == ["errored"]


async def test_g9_a_guard_that_may_fail_still_blocks(go: Go) -> None:
    agent, _ = setup(["a bad word"], output=[against("bad", on_failure="allow", timeout=60)])
    assert (await go(App(), agent, "hi")).blocked


async def test_g9_a_guard_within_its_time_passes(go: Go) -> None:
    @guardrail("quick", timeout=60)
    async def quick(text: str, ctx: Context) -> None:
        await anyio.lowlevel.checkpoint()

    agent, _ = setup(["fine"], input=[quick], output=[quick])
    assert found(await go(App(), agent, "hi")) == [("quick", "allow")] * 2


async def test_g9_a_failed_guard_ignores_its_outcome_option(go: Go) -> None:
    """A crash is no judgement, so it cannot be softened to a canned answer."""
    agent, _ = setup(["fine"], output=[failing("raises", outcome="enforce")])
    with pytest.raises(GuardrailDenied):
        await go(App(), agent, "hi")


async def test_g9_an_interrupt_in_a_guard_is_no_judgement(go: Go) -> None:
    class Stop(BaseException):
        pass

    agent, _ = setup(["fine"], output=[guardrail("stop", on_failure="allow")(raising(Stop()))])
    with pytest.raises(Stop):
        await go(App(), agent, "hi")


async def test_g9_a_guard_whose_run_is_cancelled_does_not_swallow_it(go: Go) -> None:
    waiting = anyio.Event()

    @guardrail("waits", on_failure="allow", timeout=60)
    async def waits(text: str, ctx: Context) -> None:
        waiting.set()
        await anyio.sleep_forever()

    agent, _ = setup(["fine"], output=[waits])

    async def run() -> None:
        await go(App(), agent, "hi")
        raise AssertionError("the run went on")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await waiting.wait()
        tasks.cancel_scope.cancel()


async def test_g1_a_guard_may_ask_a_model_itself_and_is_not_judge_of_what_that_says(go: Go) -> None:
    @guardrail("ask")
    async def ask(text: str, ctx: Context) -> Any:
        verdict = await ctx.chat(f"Is this bad? {text}")
        return Enforced("the model said so") if verdict.text == "yes" else None

    for verdict, blocked in (("yes", True), ("no", False)):
        agent, model = setup(["a word", verdict], output=[ask])
        result = await go(App(), agent, "hi")
        assert (result.blocked, len(model.calls), result.usage.requests) == (blocked, 2, 2)


# --- denials of layers, and denials that layers catch (G3) -----------------------------------------------------------


@pytest.mark.parametrize("scope", ["agent", "chat", "tool"])
async def test_g3_a_layer_that_denies_counts_like_a_guard(go: Go, scope: str) -> None:
    denial = GuardrailDenied("policy", "output", "not today", {"rule": 1})

    async def deny(call: Any, next: Any) -> None:
        raise denial

    agent, _ = setup([[WORK], "done"], tools=[working([])])
    app = App().use(**{scope: deny})
    with pytest.raises(GuardrailDenied) as caught:
        await go(app, agent, "hi")
    assert caught.value is denial
    expected = Validation("policy", "", "layer", "output", False, "deny", "not today", None, {"rule": 1})
    assert denial.validation == expected
    agent, _ = setup([[WORK], "done"], tools=[working([])], hooks=[{"on_error": lambda error, ctx: "sorry"}])
    result = await go(app, agent, "hi")
    assert (result.text, result.blocked, result.blocked_by, result.degraded) == ("sorry", True, "policy", True)
    assert result.validations == (expected,)


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_g3_a_layer_that_catches_the_denial_of_a_step_leaves_blocked_on_the_result(go: Go, scope: str) -> None:
    async def forgive(call: Any, next: Any) -> str | None:
        try:
            await next()
        except GuardrailDenied:
            return "forgiven"
        return None

    for word, blocked in (("bad", True), ("fine", False)):
        agent, _ = setup([word], output=[against("bad", DENIED)])
        result = await go(App().use(**{scope: forgive}), agent, "hi")
        assert (result.text, result.blocked) == (("forgiven", True) if blocked else ("fine", False))
        assert result.blocked_by == ("words" if blocked else None)


async def test_g3_a_denied_input_never_reaches_agent_layers_and_a_run_layer_may_catch_it(go: Go) -> None:
    seen: list[str] = []

    async def forgive(call: Any, next: Any) -> str:
        try:
            await next()
        except GuardrailDenied as denial:
            seen.append(denial.direction)
        return "forgiven"

    agent, _ = setup(["fine"], input=[against("bad", DENIED)])
    result = await go(App().use(run=forgive), agent, "bad")
    assert (result.text, result.blocked, result.blocked_by, seen) == ("forgiven", True, "words", ["input"])
    with pytest.raises(GuardrailDenied):
        await go(App().use(agent=forgive), agent, "bad")


@pytest.mark.parametrize("where", ["hook", "layer"])
async def test_g3_a_denial_of_changed_input_that_a_layer_catches_leaves_blocked_too(go: Go, where: str) -> None:
    async def forgive(call: Any, next: Any) -> str | None:
        try:
            await next(call.replace(input="bad") if where == "layer" else None)
        except GuardrailDenied:
            return "forgiven"
        return None

    hooks = [{"before_run": lambda input, ctx: "bad"}] if where == "hook" else []
    agent, model = setup(["fine"], input=[against("bad", DENIED)], hooks=hooks)
    result = await go(App().use(agent=forgive), agent, "hi")
    assert (result.text, result.blocked, result.blocked_by, model.calls) == ("forgiven", True, "words", [])


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_g3_a_denial_that_a_second_attempt_mended_leaves_no_block(go: Go, scope: str) -> None:
    async def again(call: Any, next: Any) -> Any:
        try:
            return await next()
        except GuardrailDenied:
            return await next()

    agent, _ = setup(["bad", "fine"], output=[against("bad", DENIED)])
    result = await go(App().use(**{scope: again}), agent, "hi")
    assert (result.text, result.blocked, result.blocked_by) == ("fine", False, None)


@pytest.mark.parametrize("scope", ["chat", "tool", "agent"])
@pytest.mark.parametrize("word", ["bad", "fine"])
async def test_g3_a_layer_that_catches_a_nested_steps_denial_leaves_blocked_on_the_result(
    go: Go, scope: str, word: str
) -> None:
    async def catch(call: Any, next: Any) -> str:
        try:
            if scope == "tool":
                return (await next()).content  # type: ignore[no-any-return]
            return (await call.ctx.run(inner, "sub")).text  # type: ignore[no-any-return]
        except GuardrailDenied:
            return "caught"

    inner, _ = setup(lambda call: word, output=[against("bad", DENIED)])
    outer = delegating(inner)
    result = await go(App().use(**{scope: catch}, only=[outer, "delegate"]), outer, "hi")
    assert result.text == ("done" if scope == "tool" else "caught" if word == "bad" else "fine")
    if word == "bad":
        assert (result.blocked, result.blocked_by) == (True, "words")
        assert failed(result).outcome == "deny"
    else:
        assert (result.blocked, result.blocked_by, result.validations) == (False, None, ())


async def test_g3_a_nested_denial_that_its_own_on_error_mended_blocks_the_nested_step_alone(go: Go) -> None:
    inner, _ = setup(["bad"], output=[against("bad", DENIED)], hooks=[{"on_error": lambda error, ctx: "mended"}])
    nested: list[Result] = []

    @tool
    async def delegate(ctx: Context) -> str:
        nested.append(await ctx.run(inner, "sub"))
        return nested[-1].text

    agent, _ = setup([[ToolUse("delegate")], "done"], tools=[delegate])
    result = await go(App(), agent, "hi")
    assert (nested[0].text, nested[0].blocked, nested[0].degraded) == ("mended", True, True)
    assert (result.text, result.blocked, result.validations) == ("done", False, ())


@pytest.mark.parametrize("mends", ["a bad excuse", GuardrailDenied("hook", "output", "no excuse")])
async def test_g3_a_denial_that_comes_of_on_error_is_seen_by_those_who_catch_it(go: Go, mends: Any) -> None:
    def on_error(error: Exception, ctx: Context) -> str:
        if isinstance(mends, Exception):
            raise mends
        return str(mends)

    async def forgive(call: Any, next: Any) -> str | None:
        try:
            await next()
        except GuardrailDenied:
            return "forgiven"
        return None

    agent, _ = setup([Boom()], output=[against("bad", DENIED)], hooks=[{"on_error": on_error}])
    result = await go(App().use(run=forgive), agent, "hi")
    assert (result.text, result.blocked) == ("forgiven", True)
    assert result.blocked_by == ("words" if isinstance(mends, str) else "hook")


async def test_g10_a_denial_is_noted_once_however_often_its_guard_denied(go: Go) -> None:
    """Code that catches a denial of `ctx.chat` and is denied again: one record for the guard, the first one."""

    class Stubborn(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            try:
                return (await ctx.chat("q")).text
            except GuardrailDenied:
                return (await ctx.chat("q")).text

    answers = iter([Deny("first"), Deny("second")])
    guard = against("bad", lambda text: next(answers))
    agent = owning(lambda call: "bad", guard, kind=Stubborn)
    agent.hooks = ()
    caught: list[Any] = []

    async def catch(call: Any, next: Any) -> str:
        try:
            await next()
        except GuardrailDenied as denial:
            caught.append(denial.reason)
        return "caught"

    result = await go(App().use(agent=catch), agent, "hi")
    assert (caught, result.blocked) == (["second"], True)
    assert [(one.outcome, one.reason) for one in result.validations] == [("deny", "first")]


# --- with everything else around -------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [FOUND, DENIED, "rewritten"])
@pytest.mark.parametrize("side", ["input", "output"])
async def test_m7_pass_through_layers_change_nothing_about_guards(go: Go, answer: Any, side: str) -> None:
    """B11: with none and with three pass-through layers in each scope, the same comes of it."""

    async def outcome(app: App) -> Any:
        agent, model = setup(["bad", "bad"], **{side: [against("bad", answer)]})
        try:
            result = await go(app, agent, "bad")
        except GuardrailDenied as error:
            return type(error), str(error), error.validation, len(model.calls)
        return result.text, result.messages, result.validations, result.blocked, [call.messages for call in model.calls]

    three = [passing] * 3
    app = App().use(run=three, agent=three, chat=three, tool=three)
    assert await outcome(App()) == await outcome(app)


async def test_c3_runs_at_once_keep_their_validations_apart() -> None:
    """B38: one app, one agent class, many runs at once."""

    class Bot(Agent):
        def __init__(self) -> None:
            self.seen: list[str] = []
            super().__init__(guardrails={"output": [guardrail("own")(self.look)]})

        async def look(self, text: str, ctx: Context) -> Any:
            self.seen.append(text)
            await anyio.lowlevel.checkpoint()
            assert self.seen == [text], "a guard of an object belongs to the run of that object"
            return Enforced(f"{text} is odd", f"no {text}") if int(text) % 2 else Allow(float(text))

    from middlechain.testing import ScriptedModel

    async def echo(call: Any) -> str:
        await anyio.lowlevel.checkpoint()
        return str(call.messages[-1].text)

    app = App(model=ScriptedModel(echo))
    results: dict[int, Result] = {}

    async def run(number: int) -> None:
        results[number] = await app.run(Bot, str(number))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(run, number)
    for number, result in results.items():
        (validation,) = result.validations
        assert (result.blocked, result.text) == ((True, f"no {number}") if number % 2 else (False, str(number)))
        assert (validation.score, validation.reason) == ((None, f"{number} is odd") if number % 2 else (number, ""))


async def test_g9_what_a_guard_may_see_and_not_set() -> None:
    @guardrail("curious")
    def curious(text: str, ctx: Context) -> None:
        ctx.noted = ctx.get("noted", 0) + 1
        with pytest.raises(AttributeError, match="belongs to the runtime"):
            ctx.reply = "mine"

    agent, _ = setup(["fine"], input=[curious], output=[curious])
    result = await App().run(agent, "hi")
    assert (found(result), result.state.noted) == ([("curious", "allow")] * 2, 2)


async def test_g3_stream_denied_is_a_denial() -> None:
    assert issubclass(StreamDenied, GuardrailDenied)


async def test_g3_once_is_enough_for_a_repeating_layer(go: Go) -> None:
    """A layer marked `@repeats` judges nothing itself: each reply that leaves the chat layers is judged."""

    @repeats
    async def twice(call: Any, next: Any) -> Any:
        await next()
        return await next()

    log: list[str] = []
    agent, _ = setup(["bad", "fine"], output=[noting(log), against("bad")])
    result = await go(App().use(chat=twice), agent, "hi")
    assert (result.text, result.blocked, log) == ("fine", False, ["fine"])


async def test_g7_a_rewrite_of_arguments_leaves_half_a_character_as_the_model_escaped_it(go: Go) -> None:
    """So that the history can be sent: no encoding takes half of a surrogate pair."""

    def hide(text: str, ctx: Any) -> str | None:
        return text.replace("secret", "***") if "secret" in text else None

    @tool
    async def work(a: str, b: str) -> str:
        return "x"

    model = ScriptedModel([[ToolUse("work", '{"a": "\\ud83d \\u00e9", "b": "secret"}')], "done"])
    result = await go(App(), Agent(model=model, tools=[work], guardrails={"output": [hide]}), "hi")
    [use] = [use for message in result.messages if message.role == "assistant" for use in message.tool_calls]
    assert use.arguments.encode() == b'{"a": "\\ud83d \\u00e9", "b": "***"}'
    assert ToolUse("work", {"a": "\ud83d"}).arguments.encode() == b'{"a": "\\ud83d"}'
