"""What a guarded stream may send, and when (S1, S4, S6): holds, scans, closing, resets, and streams without resets."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from middlechain import (
    Agent,
    App,
    ChatReply,
    Context,
    Deny,
    Enforced,
    Event,
    GuardrailDenied,
    GuardrailFired,
    ModelFinished,
    ReasoningDelta,
    Result,
    RunFinished,
    StreamDenied,
    TextDelta,
    TextReset,
    ToolUse,
    guardrail,
    observes,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go
from .guarding import (
    CANNED,
    FOUND,
    Scanning,
    WordScan,
    against,
    as_deltas,
    cuts,
    found,
    noting,
    redacting,
    setup,
    working,
)
from .scenes import RESET, Boom, deltas

pytestmark = pytest.mark.anyio

PHRASE = "wire transfer"
REPLY = "please make a wire transfer now"
DENIED = Deny("not this")


async def passing(call: Any, next: Any) -> Any:
    return await next()


@observes
async def watching(call: Any, next: Any) -> Any:
    return await next()


async def streamed(agent: Any, app: App | None = None, **options: Any) -> tuple[list[str], Result]:
    """The deltas and resets of a stream, and its result."""
    events, result = await collect((app or App()).stream(agent, "hi", **options))
    return deltas(events), result


async def read(agent: Any, app: App | None = None, **options: Any) -> tuple[list[Event], Any]:
    """All events, and the result or the error."""
    events: list[Event] = []
    try:
        async with (app or App()).stream(agent, "hi", **options) as stream:
            async for event in stream:
                events.append(event)  # noqa: PERF401 - those before an error too
        return events, stream.result
    except Exception as error:
        return events, error


class Waiting:
    """A model that says one piece after the other, each when it is let; one can look at what came out meanwhile."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = pieces
        self.given = 0
        self.may_go_on = anyio.Event()
        self.model = ScriptedModel(lambda call: [item for piece in pieces for item in (piece, Pause(self))])
        self.events: list[Event] = []
        self.outcome: Any = None

    async def pause(self) -> None:
        self.given += 1
        self.may_go_on = anyio.Event()
        await self.may_go_on.wait()

    async def look(self, *guards: Any, app: App | None = None, **options: Any) -> list[list[str]]:
        """What has come out by each pause, and in the end."""
        agent = Agent(model=self.model, guardrails={"output": guards}, **options.pop("agent", {}))
        seen: list[list[str]] = []

        async def reading() -> None:
            try:
                async with (app or App()).stream(agent, "hi", **options) as stream:
                    async for event in stream:
                        self.events.append(event)
                self.outcome = stream.result
            except GuardrailDenied as error:
                self.outcome = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reading)
            for _ in self.pieces:
                await anyio.wait_all_tasks_blocked()
                seen.append(deltas(self.events))
                self.may_go_on.set()
        return [*seen, deltas(self.events)]


class Pause:
    """Awaits the model's leave; begins when it is awaited."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting

    def __await__(self) -> Any:
        return self.waiting.pause().__await__()


# --- how much is held ------------------------------------------------------------------------------------------------


async def test_s4_without_a_word_of_its_own_a_guard_has_the_whole_reply_held() -> None:
    assert await Waiting("a", "b", "c").look(noting([])) == [[], [], [], ["abc"]]


async def test_s4_without_guards_nothing_is_held() -> None:
    assert await Waiting("a", "b").look() == [["a"], ["a", "b"], ["a", "b"]]


async def test_s4_hold_says_how_many_characters_stay_behind() -> None:
    assert await Waiting("abc", "d", "", "efgh").look(noting([], hold=2)) == [
        ["a"],
        ["a", "b"],
        ["a", "b"],
        ["a", "b", "cdef"],
        ["a", "b", "cdef", "gh"],
    ]
    assert await Waiting("ab", "c").look(noting([], hold=0)) == [["ab"], ["ab", "c"], ["ab", "c"]]
    assert await Waiting("ab", "c").look(noting([], hold=9)) == [[], [], ["abc"]]


async def test_s4_hold_a_sentence_lets_go_when_it_has_ended() -> None:
    pieces = ("Well", ". So", " it", "! is", " 3.5. ", "最", "後\u3002はい", "\n\nend.")
    seen = await Waiting(*pieces).look(noting([], hold="sentence"))
    assert [entry[-1] if entry else "" for entry in seen] == [
        "",
        "Well. ",
        "Well. ",
        "So it! ",
        "is 3.5. ",
        "is 3.5. ",
        "最後\u3002",
        "はい\n\n",
        "end.",
    ]
    assert "".join(seen[-1]) == "".join(pieces)


async def test_s4_a_scan_says_how_much_of_the_whole_text_may_go_out() -> None:
    seen = await Waiting("a wi", "nd", " and a wire", " trap").look(Scanning(PHRASE))
    assert seen == [
        ["a "],
        ["a ", "wind"],
        ["a ", "wind", " and a "],
        ["a ", "wind", " and a ", "wire trap"],
        ["a ", "wind", " and a ", "wire trap"],
    ]


async def test_s4_a_scan_may_say_more_or_less_than_there_is() -> None:
    class Odd(Scanning):
        def __init__(self, *answers: Any) -> None:
            super().__init__("bad")
            self.answers = list(answers)

        def scan(self, ctx: Any) -> Any:
            return self

        def push(self, delta: str) -> int:
            return int(self.answers.pop(0))

    assert await Waiting("abc", "d", "e", "f").look(Odd(99, 2, 4, 5)) == [
        ["abc"],
        ["abc"],
        ["abc", "d"],
        ["abc", "d", "e"],
        ["abc", "d", "e", "f"],
    ]


async def test_s4_a_scan_may_give_the_text_that_goes_out_instead() -> None:
    class Shouting:
        name = "shouting"

        def judge(self, text: str, ctx: Any) -> str:
            return text.upper()

        def scan(self, ctx: Any) -> Any:
            return self

        def feed(self, delta: str) -> str:
            return delta.upper()

    waiting = Waiting("ab", "c")
    assert await waiting.look(Shouting(), Scanning("X")) == [["AB"], ["AB", "C"], ["AB", "C"]]
    assert waiting.outcome.text == "ABC"


async def test_s4_what_one_guard_lets_go_the_next_may_hold() -> None:
    assert await Waiting("abcd", "efgh").look(noting([], hold=1), noting([], hold=2)) == [
        ["a"],
        ["a", "bcde"],
        ["a", "bcde", "fgh"],
    ]
    assert await Waiting("abcd").look(noting([], hold=1), noting([])) == [[], ["abcd"]]


@pytest.mark.parametrize("options", [{}, {"hold": 3}])
async def test_g10_a_guard_that_observes_holds_nothing_back(options: Any) -> None:
    waiting = Waiting("a bad", " word")
    guard = against("bad", mode="observe", **options)
    assert await waiting.look(guard) == [["a bad"], ["a bad", " word"], ["a bad", " word"]]
    assert found(waiting.outcome) == [("words", "enforced")]
    scanning = Scanning("bad")
    scanning.mode = "observe"  # type: ignore[attr-defined]
    assert await Waiting("a bad", " word").look(scanning) == [["a bad"], ["a bad", " word"], ["a bad", " word"]]


async def test_g7_a_final_guard_holds_the_text_back_and_no_reasoning() -> None:
    agent, _ = setup([["a", ReasoningDelta("h"), ReasoningDelta("m"), "b"]], output=[noting([], when="final", hold=0)])
    events, _ = await collect(App().stream(agent, "hi"))
    shown = [event.type for event in events if isinstance(event, TextDelta | ReasoningDelta | ModelFinished)]
    assert shown == ["ReasoningDelta", "ReasoningDelta", "ModelFinished", "TextDelta"]


async def test_g7_text_beside_tool_calls_is_let_go_when_the_reply_has_passed() -> None:
    agent, _ = setup([["let me see", ToolUse("work")], "done"], output=[noting([], when="final")], tools=[working([])])
    events, _ = await collect(App().stream(agent, "hi"))
    shown = [event.type for event in events if isinstance(event, TextDelta) or event.type.startswith("Tool")]
    assert shown == ["TextDelta", "ToolStarted", "ToolFinished", "TextDelta"]


async def test_g7_reasoning_is_held_like_text() -> None:
    def pieces(event: Event) -> bool:
        return isinstance(event, ReasoningDelta)

    for guard, expected in (
        (noting([]), ["abcd"]),
        (noting([], hold=1), ["a", "bc", "d"]),
        (Scanning("cx"), ["ab", "cd"]),
    ):
        agent, _ = setup([[ReasoningDelta("ab"), ReasoningDelta("cd"), "x"]], output=[guard])
        events, result = await collect(App().stream(agent, "hi"))
        assert [event.text for event in events if isinstance(event, ReasoningDelta)] == expected
        assert result.message.reasoning == "abcd"


# --- the verdict is that of run, however the reply is cut (S4) -------------------------------------------------------

GUARDS: dict[str, Any] = {
    "whole": lambda answer: [against(PHRASE, answer)],
    "number": lambda answer: [against(PHRASE, answer, hold=len(PHRASE))],
    "too small a number": lambda answer: [against(PHRASE, answer, hold=3)],
    "sentence": lambda answer: [against(PHRASE, answer, hold="sentence")],
    "final": lambda answer: [against(PHRASE, answer, when="final")],
    "scan": lambda answer: [Scanning(PHRASE, answer)],
    "scan, second": lambda answer: [noting([], hold=0), Scanning(PHRASE, answer)],
    "scan, before another": lambda answer: [Scanning(PHRASE, answer), against("now", name="now", hold=3)],
    "scan, after a rewrite": lambda answer: [redacting("make", hold=4), Scanning(PHRASE, answer)],
    "observing": lambda answer: [against(PHRASE, answer, mode="observe"), noting([], hold=1)],
}
EXACT = {"whole", "final", "scan", "scan, second", "scan, before another"}


def told(outcome: Any) -> Any:
    """What must be the same in run and in stream."""
    if isinstance(outcome, GuardrailDenied):
        return "denied", outcome.guardrail, outcome.reason, outcome.validation
    return (
        outcome.text,
        outcome.finish_reason,
        outcome.blocked,
        outcome.blocked_by,
        outcome.validations,
        outcome.messages,
    )


@pytest.mark.parametrize("guards", GUARDS)
@pytest.mark.parametrize("answer", [FOUND, DENIED, "other words"], ids=["enforced", "deny", "rewrite"])
@pytest.mark.parametrize("text", [REPLY, "please make a wire", "a clean one, now"])
async def test_s4_verdict_and_text_equal_those_of_run_for_every_cut(guards: str, answer: Any, text: str) -> None:
    """B20: and no letter of the phrase leaves, where the guard says how much to hold."""
    reply = ChatReply(text, reasoning="hm")
    try:
        expected: Any = await App().run(setup([reply], output=GUARDS[guards](answer))[0], "hi")
    except GuardrailDenied as error:
        expected = error
    for pieces in cuts(text):
        agent, _ = setup([as_deltas(reply, pieces)], output=GUARDS[guards](answer))
        events, outcome = await read(agent)
        assert told(outcome) == told(expected), pieces
        sent = deltas(events)
        if isinstance(outcome, Result):
            assert "".join(sent).split(RESET)[-1] == outcome.text, pieces
        if guards in EXACT and PHRASE in text:
            before = "".join(sent[: sent.index(RESET)] if RESET in sent else sent)
            before = before.removesuffix(expected.text) if isinstance(expected, Result) else before
            assert "please make a ".startswith(before), pieces


@pytest.mark.parametrize("answer", [FOUND, DENIED, "other words"], ids=["enforced", "deny", "rewrite"])
@pytest.mark.parametrize("guards", GUARDS)
async def test_s6_an_append_only_stream_ends_with_the_results_text_for_every_cut(guards: str, answer: Any) -> None:
    for pieces in cuts(REPLY)[::3]:
        agent, _ = setup([as_deltas(ChatReply(REPLY), pieces)], output=GUARDS[guards](answer))
        events, outcome = await read(agent, resets=False)
        sent = "".join(deltas(events))
        assert RESET not in sent
        if isinstance(outcome, Result):
            assert sent == outcome.text, pieces
        if guards in EXACT:
            assert PHRASE not in sent, pieces


# --- what follows a block --------------------------------------------------------------------------------------------


async def test_s4_a_block_after_text_was_sent_takes_it_back() -> None:
    agent, _ = setup([["so far ", "so bad"]], output=[against("bad", hold=3)])
    sent, result = await streamed(agent)
    assert (sent, result.text) == (["so f", "ar so ", RESET, CANNED], CANNED)


async def test_s4_a_number_holds_back_a_word_of_that_length_at_the_end_for_every_cut() -> None:
    text = f"please make a {PHRASE}"
    for pieces in cuts(text):
        agent, _ = setup([as_deltas(ChatReply(text), pieces)], output=[against(PHRASE, hold=len(PHRASE))])
        sent, result = await streamed(agent)
        assert "".join(sent).removesuffix(CANNED).removesuffix(RESET) == "please make a ", pieces
        assert result.text == CANNED


async def test_s4_a_canned_answer_without_text_before_it_follows_without_a_reset() -> None:
    agent, _ = setup([["bad"]], output=[against("bad")])
    assert (await streamed(agent))[0] == [CANNED]


async def test_s4_a_rewritten_reply_follows_what_was_sent_as_far_as_it_can() -> None:
    agent, _ = setup([["a good and ", "a bad word"]], output=[redacting("bad", hold=10)])
    sent, result = await streamed(agent)
    assert (sent, result.text) == (["a", " good and ", "a *** word"], "a good and a *** word")


async def test_g3_a_denial_after_sent_text_is_a_stream_denied_and_nothing_is_taken_back() -> None:
    for resets in (True, False):
        agent, _ = setup([["so far ", "so bad"]], output=[against("bad", DENIED, hold=3)])
        events, error = await read(agent, resets=resets)
        assert type(error) is StreamDenied
        assert (error.guardrail, error.direction, error.reason) == ("words", "output", "not this")
        assert "".join(deltas(events)) == "so far so "
        assert [event.outcome for event in events if isinstance(event, RunFinished)] == ["failed"]


async def test_g3_a_denial_before_any_text_of_the_turn_was_sent_is_a_plain_one() -> None:
    """Text of an earlier turn is not this turn's; reasoning that went out is."""
    replies = [["fine so far", ToolUse("work")], "bad"]
    agent, _ = setup(replies, output=[against("bad", DENIED)], tools=[working([])])
    events, error = await read(agent)
    assert (type(error), deltas(events)) == (GuardrailDenied, ["fine so far"])
    agent, _ = setup([[ReasoningDelta("long thought"), "bad"]], output=[against("bad", DENIED, hold=3)])
    assert type((await read(agent))[1]) is StreamDenied


async def test_g3_text_that_was_taken_back_does_not_count_as_sent() -> None:
    agent, _ = setup([["so far so good", TextReset(), "bad"]], output=[against("bad", DENIED, hold=3)])
    assert type((await read(agent))[1]) is GuardrailDenied


async def test_g3_a_degraded_answer_after_a_stream_denied_takes_the_place_of_what_was_sent() -> None:
    agent, _ = setup(
        [["so far ", "so bad"]],
        output=[against("bad", DENIED, hold=3)],
        hooks=[{"on_error": lambda error, ctx: type(error).__name__}],
    )
    sent, result = await streamed(agent)
    assert (sent[-2:], result.text, result.blocked) == ([RESET, "StreamDenied"], "StreamDenied", True)
    agent.model = ScriptedModel([["so far ", "so bad"]])
    sent, result = await streamed(agent, resets=False)
    assert "".join(sent) == result.text == "so far so \n\nStreamDenied"


async def test_g2_an_enforced_input_streams_the_canned_answer_alone() -> None:
    for resets in (True, False):
        agent, model = setup([], input=[against("hi")])
        events, result = await collect(App().stream(agent, "hi", resets=resets))
        assert (deltas(events), result.text, model.calls) == ([CANNED], CANNED, [])
        assert [event.turn for event in events if isinstance(event, TextDelta)] == [1]


async def test_g3_a_denied_input_streams_nothing() -> None:
    for resets in (True, False):
        agent, model = setup([], input=[against("hi", DENIED)])
        events, error = await read(agent, resets=resets)
        assert (deltas(events), type(error), model.calls) == ([], GuardrailDenied, [])


# --- a certain block closes the model's stream (S4) ------------------------------------------------------------------


class Endless:
    """A model whose stream says `a`, the word, and then waits for ever."""

    def __init__(self, word: str = "bad", delta: Any = TextDelta) -> None:
        self.closed = False
        self.said = [delta("a "), delta(word)]
        self.name = "endless"

    async def chat(self, call: Any) -> Any:
        try:
            for delta in self.said:
                await call.send(delta)
            await anyio.sleep_forever()
        finally:
            self.closed = True


@pytest.mark.parametrize("delta", [TextDelta, ReasoningDelta])
@pytest.mark.parametrize("answer", [FOUND, DENIED])
@pytest.mark.parametrize("resets", [True, False])
async def test_s4_a_hit_of_the_first_guard_closes_the_stream_at_once(delta: Any, answer: Any, resets: bool) -> None:
    model = Endless(delta=delta)
    agent = Agent(model=model, guardrails={"output": [Scanning("bad", answer), noting([])]})
    events, outcome = await read(agent, resets=resets)
    assert model.closed
    assert isinstance(outcome, GuardrailDenied if answer is DENIED else Result)
    assert len([event for event in events if isinstance(event, GuardrailFired)]) == 1
    assert len([event for event in events if isinstance(event, ModelFinished)]) == 1
    if isinstance(outcome, Result):
        assert (outcome.text, outcome.blocked, found(outcome)) == (CANNED, True, [("scanning", "enforced")])


async def test_s4_layers_that_are_marked_unwind_when_the_stream_is_closed() -> None:
    log: list[str] = []

    @observes
    async def around(call: Any, next: Any) -> Any:
        try:
            return await next()
        finally:
            log.append("left")

    model = Endless()
    agent = Agent(model=model, guardrails={"output": [Scanning("bad")]})
    _, result = await read(agent, App().use(chat=[around, watching], agent=passing, run=passing))
    assert (result.text, model.closed, log) == (CANNED, True, ["left"])


class Finishing(Endless):
    """The same, but it goes on when it is let, and notes whether it has ended by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False

    async def chat(self, call: Any) -> ChatReply:
        for delta in self.said:
            await call.send(delta)
        await anyio.lowlevel.checkpoint()
        self.ended = True
        return ChatReply("a bad end")


def scanning(**options: Any) -> Scanning:
    guard = Scanning("bad")
    for name, value in options.items():
        setattr(guard, name, value)
    return guard


@pytest.mark.parametrize(
    ("guards", "layers", "closes"),
    [
        ([scanning()], [], True),
        ([scanning()], [watching], True),
        ([scanning()], [passing], False),
        ([noting([], hold=0), scanning()], [], False),
        ([scanning(mode="observe"), scanning(name="second")], [], False),
        ([scanning(when="final")], [], False),
        ([scanning(outcome="rewrite")], [], False),
        ([scanning(outcome="deny")], [], True),
        ([against("bad", hold=1)], [], False),
    ],
)
async def test_s4_nothing_else_closes_it(guards: Any, layers: Any, closes: bool) -> None:
    """Not a later guard, which the first may come before; nor one that observes, rewrites, or judges the answer alone;
    and not where a layer could still change the reply."""
    model = Finishing()
    agent = Agent(model=model, guardrails={"output": guards})
    await read(agent, App().use(chat=layers) if layers else None)
    assert model.ended is not closes


async def test_s4_a_layer_may_change_the_reply_that_a_scan_was_certain_of() -> None:
    async def soften(call: Any, next: Any) -> str:
        reply = await next()
        return str(reply.text.replace("bad", "nice"))

    agent, _ = setup([["a bad", " word"]], output=[Scanning("bad")])
    sent, result = await streamed(agent, App().use(chat=soften))
    assert ("".join(sent), result.text, result.blocked) == ("a nice word", "a nice word", False)


async def test_s4_a_scan_that_was_wrong_about_its_hit_does_not_pass_off_half_a_reply_as_whole() -> None:
    class Liar(Scanning):
        def judge(self, text: str, ctx: Any) -> None:
            return None

    agent, _ = setup([["a bad", " word"]], output=[Liar("bad")])
    _, result = await streamed(agent)
    assert (result.text, result.finish_reason) == ("a bad", "incomplete")


async def test_s4_a_scan_that_fails_lets_nothing_more_out_and_changes_no_verdict() -> None:
    class Failing(Scanning):
        def __init__(self, where: str) -> None:
            super().__init__("bad")
            self.where = where
            self.pushed = 0

        def scan(self, ctx: Any) -> Any:
            if self.where == "scan":
                raise Boom
            return self

        @property
        def hit(self) -> bool:
            if self.where == "hit" and self.pushed > 1:
                raise Boom
            return False

        def push(self, delta: str) -> Any:
            self.pushed += 1
            if self.where == "push" and self.pushed > 1:
                raise Boom
            return None if self.where == "type" else self.pushed

    for where, before in (("scan", []), ("push", ["a"]), ("hit", ["a", "b"]), ("type", [])):
        for resets in (True, False):
            agent, _ = setup([["ab", "cd", "ef"]], output=[Failing(where)])
            sent, result = await streamed(agent, resets=resets)
            assert (sent[:-1], "".join(sent), result.text) == (before, "abcdef", "abcdef")
            agent, _ = setup([["ab", "cd", "bad"]], output=[Failing(where)])
            _, result = await streamed(agent, resets=resets)
            assert result.blocked


# --- retries and resets ----------------------------------------------------------------------------------------------


async def test_s7_a_retry_begins_with_fresh_scans_and_judges_the_reply_that_counts() -> None:
    async def retry(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Boom:
            return await next()

    guard = Scanning(PHRASE)
    agent, _ = setup([["a wire", Boom()], [" transfer", " it is"]], output=[guard])
    sent, result = await streamed(agent, App().use(chat=retry))
    assert (sent, result.text) == (["a ", RESET, " transfer", " it is"], " transfer it is")
    assert guard.judged == [" transfer it is"]


async def test_s7_a_model_that_takes_its_text_back_is_judged_by_what_stands() -> None:
    agent, _ = setup([["bad", ReasoningDelta("bad"), TextReset(), "fine"]], output=[against("bad")])
    sent, result = await streamed(agent)
    assert (sent, result.text, result.blocked) == (["fine"], "fine", False)


@pytest.mark.parametrize("end", [[], [Boom()], ["!"]], ids=["no end", "error", "end"])
@pytest.mark.parametrize("text", ["it is all fine", "it is a bad", "a bad thing"])
@pytest.mark.parametrize("resets", [True, False])
async def test_b22_at_the_end_nothing_is_lost_unjudged_or_told_twice(end: Any, text: str, resets: bool) -> None:
    """B22: held text, a word at the very end, a hit in the middle; with an end, without one, and with an error."""
    guard = Scanning("bad")
    agent, _ = setup([[*text, *end]], output=[guard])
    events, outcome = await read(agent, resets=resets)
    sent = "".join(deltas(events)).split(RESET)[-1]
    if "bad" not in text and end and isinstance(end[0], Boom):
        assert isinstance(outcome, Boom)
        assert text.startswith(sent), "text that was checked, and nothing else"
        assert guard.judged == []
        return
    assert isinstance(outcome, Result)
    assert sent == outcome.text
    assert len(guard.judged) == 1
    if "bad" in text:
        assert (outcome.blocked, found(outcome)) == (True, [("scanning", "enforced")])
        assert len([event for event in events if isinstance(event, GuardrailFired)]) == 1
        assert "bad" not in "".join(deltas(events))
    else:
        assert outcome.text == text + "".join(end)


@pytest.mark.parametrize("options", [{}, {"hold": 2}, {"hold": "sentence"}])
@pytest.mark.parametrize("resets", [True, False])
async def test_s4_held_text_does_not_leave_when_the_run_fails(options: Any, resets: bool) -> None:
    agent, _ = setup([["One. Two", Boom()]], output=[noting([], **options)])
    events, error = await read(agent, resets=resets)
    assert isinstance(error, Boom)
    assert "".join(deltas(events)) == {None: "", 2: "One. T", "sentence": "One. "}[options.get("hold")]


# --- no buffering by accident (S3, B36) ------------------------------------------------------------------------------


async def test_s3_a_guard_without_hold_back_and_layers_that_pass_delay_nothing() -> None:
    """B36: each delta reaches the consumer before the next is let through."""
    number = 20
    pieces = [f"{place} " for place in range(number)]
    seen = await Waiting(*pieces).look(noting([], hold=0), app=App().use(chat=[passing] * 3))
    assert [len(entry) for entry in seen] == [*range(1, number + 1), number]
    assert seen[-1] == pieces


async def test_s3_a_consumer_that_stops_reading_stops_the_model_through_a_guard() -> None:
    given: list[str] = []

    class Counting:
        name = "counting"

        async def chat(self, call: Any) -> ChatReply:
            for place in range(1000):
                await call.send(TextDelta(f"{place} "))
                given.append("")
            return ChatReply("")

    agent = Agent(model=Counting(), guardrails={"output": [noting([], hold=0)]})
    async with App().stream(agent, "hi") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await anyio.wait_all_tasks_blocked()
        assert len(given) <= 9


# --- streams that take nothing back (S6) -----------------------------------------------------------------------------


async def test_s6_a_block_after_sent_text_follows_as_a_new_paragraph_and_the_result_is_the_whole() -> None:
    agent, _ = setup([["so far ", "so bad"]], output=[against("bad", hold=3)])
    sent, result = await streamed(agent, resets=False)
    assert "".join(sent) == result.text == f"so far so \n\n{CANNED}"
    assert (result.message.text, result.blocked, result.finish_reason) == (result.text, True, "safety")


async def test_s6_a_block_without_text_before_it_is_the_canned_answer_alone() -> None:
    agent, _ = setup([["so far ", "so bad"]], output=[against("bad")])
    sent, result = await streamed(agent, resets=False)
    assert (sent, result.text) == ([CANNED], CANNED)


async def test_s6_a_block_in_a_later_turn_is_a_paragraph_of_that_turn() -> None:
    agent, _ = setup(
        [["let me see", ToolUse("work")], ["so far ", "so bad"]], output=[against("bad", hold=3)], tools=[working([])]
    )
    pieces: list[str] = []
    result = await App().run(agent, "hi", on_text=pieces.append)
    assert "".join(pieces) == f"let me see\n\nso far so \n\n{CANNED}"
    assert result.text == f"so far so \n\n{CANNED}"


async def test_s6_a_rewrite_of_what_was_held_goes_on_where_the_text_stands_and_another_is_a_paragraph() -> None:
    agent, _ = setup([["so far ", "so bad"]], output=[redacting("bad", hold=3)])
    sent, result = await streamed(agent, resets=False)
    assert (sent, result.text) == (["so f", "ar so ", "***"], "so far so ***")
    agent, _ = setup([["so far ", "so bad"]], output=[redacting("far", hold=3)])
    sent, result = await streamed(agent, resets=False)
    assert "".join(sent) == result.text == "so far so \n\nso *** so bad"


async def test_g6_a_text_that_stands_behind_one_that_was_sent_is_judged_once() -> None:
    log: list[str] = []
    agent, _ = setup([["ab", TextReset(), "cd"]], output=[noting(log, hold=0)])
    sent, result = await streamed(agent, resets=False)
    assert ("".join(sent), result.text, log) == ("ab\n\ncd", "ab\n\ncd", ["cd"])


@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("scope", ["chat", "agent"])
async def test_s6_what_a_layer_answers_is_judged_before_it_is_sent(scope: str, resets: bool) -> None:
    async def answer(call: Any, next: Any) -> str:
        await next()
        return "a bad word"

    agent, _ = setup([["fi", "ne"]], output=[against("bad", hold=0)])
    sent, result = await streamed(agent, App().use(**{scope: answer}), resets=resets)
    assert result.blocked
    assert "bad" not in "".join(sent)
    if not resets:
        assert sent == [CANNED], "what could change the reply held it back"


@pytest.mark.parametrize("hook", ["after_response", "after_run"])
@pytest.mark.parametrize("resets", [True, False])
async def test_s6_what_a_hook_answers_is_judged_before_it_is_sent(hook: str, resets: bool) -> None:
    hooks = [{hook: lambda value, ctx: "a bad word"}]
    agent, _ = setup([["fi", "ne"]], output=[against("bad")], hooks=hooks)
    sent, result = await streamed(agent, resets=resets)
    assert (sent[-1], result.text, "bad" in "".join(sent)) == (CANNED, CANNED, False)
    agent, _ = setup([["fi", "ne"]], output=[against("worse")], hooks=hooks)
    sent, result = await streamed(agent, resets=resets)
    assert ("".join(sent).split(RESET)[-1], result.text) == ("a bad word", "a bad word")


async def test_s6_a_hold_by_a_guard_is_no_news_for_the_log() -> None:
    """The line is about what may still change a text; a guard that holds does as it says."""
    with capture_logs() as logs:
        agent, _ = setup([["a", "b"]], output=[noting([])])
        await streamed(agent, resets=False)
    assert logs == []


async def test_s6_text_and_on_text_give_what_was_judged() -> None:
    for guard, expected in ((Scanning(PHRASE), ["a ", "wind"]), (noting([]), ["a wind"])):
        agent, _ = setup(lambda call: ["a wi", "nd"], output=[guard])
        pieces: list[str] = []
        await App().run(agent, "hi", on_text=pieces.append)
        async with App().stream(agent, "hi") as stream:
            assert [piece async for piece in stream.text()] == pieces == expected


# --- run and stream are one engine (S11) -----------------------------------------------------------------------------


async def test_s11_run_and_stream_log_the_same_line_by_line() -> None:
    """B34: one conversation with a tool turn, all hooks, layers and guards, all of them logging."""

    def setting(log: list[Any]) -> tuple[App, Agent, ScriptedModel]:
        def layer(name: str) -> Any:
            async def wrapped(call: Any, next: Any) -> None:
                log.append(f"{name} in")
                answer = await next()
                log.append(f"{name} out {getattr(answer, 'text', getattr(answer, 'content', ''))}")

            return wrapped

        def hook(name: str) -> Any:
            return lambda value, ctx: log.append((name, getattr(value, "text", getattr(value, "name", value))))

        @guardrail("in")
        def arriving(text: str, ctx: Context) -> str:
            log.append(("in", text, ctx.channel))
            return text + "!"

        @guardrail("out", hold=0)
        def leaving(text: str, ctx: Context) -> None:
            log.append(("out", text, ctx.channel, ctx.turn))

        hooks = dict.fromkeys(
            ("before_run", "before_prompt", "before_tool", "after_tool", "after_response", "after_run")
        )
        agent, model = setup(
            [ChatReply("first", (ToolUse("work", {"x": "arg"}, "c1"),), "hm"), "second"],
            input=[arriving],
            output=[leaving],
            tools=[working(log)],
            hooks=[{name: hook(name) for name in hooks}],
        )
        layers: dict[str, Any] = {
            kind: [layer(f"{kind} 1"), layer(f"{kind} 2")] for kind in ("chat", "tool", "agent", "run")
        }
        return App().use(**layers), agent, model

    outcomes = []
    for stream in (False, True):
        log: list[Any] = []
        app, agent, model = setting(log)
        result = (await collect(app.stream(agent, "hi"))).result if stream else await app.run(agent, "hi")
        requests = [call.messages for call in model.calls]
        outcomes.append((log, requests, result.messages, result.usage, result.finish_reason, result.validations))
    assert outcomes[0] == outcomes[1]
    log, requests, _, usage, reason, validations = outcomes[0]
    assert (len(requests), usage.requests, reason) == (2, 2, "stop")
    assert [(one.name, one.outcome) for one in validations] == [("in", "rewrite"), ("out", "allow")]
    assert len(log) > 20


async def test_s4_a_judge_may_be_told_of_a_scan_per_text() -> None:
    """One scan for each text that streams, made anew for each reply."""
    made: list[WordScan] = []

    class Counting(Scanning):
        def scan(self, ctx: Any) -> WordScan:
            made.append(super().scan(ctx))
            return made[-1]

    agent, _ = setup(
        [[ReasoningDelta("hm"), "one", ToolUse("work")], "two"], output=[Counting("bad")], tools=[working([])]
    )
    await streamed(agent)
    assert [scan.text for scan in made] == ["one", "hm", "two", ""]
    made.clear()
    agent.model = ScriptedModel(["one"])
    await App().run(agent, "hi")
    assert made == [], "nothing streams there"


async def test_s4_code_that_asks_the_model_streams_nothing() -> None:
    class Owning(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            return (await ctx.chat("q")).text

    agent = Owning(model=ScriptedModel([["a ", "bad"]]), guardrails={"output": [Scanning("bad", Enforced("r", "no"))]})
    assert (await streamed(agent))[0] == ["no"]


async def test_s4_a_guard_that_is_let_fail_does_not_close_the_stream_by_a_hit(go: Go) -> None:
    class Scan:
        hit = False

        def push(self, delta: str) -> int:
            self.hit = self.hit or "bad" in delta
            return 0

    class Flaky:
        name = "flaky"
        on_failure = "allow"

        def judge(self, text: str, ctx: Context) -> None:
            raise ConnectionError("down")

        def scan(self, ctx: Context) -> Scan:
            return Scan()

    agent = Agent(model=ScriptedModel([["one bad word", " and", " the rest."]]), guardrails={"output": [Flaky()]})
    result = await go(App(), agent, "hi")
    assert (result.text, [one.outcome for one in result.validations]) == ("one bad word and the rest.", ["errored"])
