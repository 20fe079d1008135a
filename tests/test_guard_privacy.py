"""What a guard has blocked is kept nowhere (G8): a canary is planted in what the model says, and looked for."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatReply,
    Context,
    Deny,
    Enforced,
    Event,
    GuardrailDenied,
    LimitExceeded,
    Limits,
    ModelFinished,
    ReasoningDelta,
    Result,
    TextDelta,
    TextReset,
    ToolUse,
    User,
    guardrail,
    observes,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go
from .guarding import CANNED, Scanning, against, setup, working
from .scenes import Boom
from .test_deadlines import in_fast_time

pytestmark = pytest.mark.anyio

CANARY = "canary-4711"
KINDS: dict[str, Any] = {"enforced": Enforced("found"), "deny": Deny("found"), "crash": RuntimeError("down")}
REPLIES: dict[str, ChatReply] = {
    "text": ChatReply(f"it is {CANARY}, I think"),
    "reasoning": ChatReply("it is 4712", reasoning=f"not {CANARY}"),
    "arguments": ChatReply("let me see", (ToolUse("work", {"x": ["y", {"z": CANARY}]}),)),
    "malformed arguments": ChatReply("let me see", (ToolUse("work", '{"x": "' + CANARY),)),
    "text beside a tool call": ChatReply(f"it is {CANARY}", (ToolUse("work"),)),
}


def texts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """All text that can be reached from a value; what belongs to the run itself (`ctx`, `agent`) is not looked into."""
    if isinstance(value, str):
        yield value
    if value is None or isinstance(value, str | int | float | Context | Agent) or id(value) in seen:
        return
    seen[id(value)] = value  # kept, or another object might get its id
    if isinstance(value, BaseException):
        yield from (str(value), repr(value), "".join(traceback.format_exception(value)))
        yield from texts([*value.args, value.__cause__, value.__context__, vars(value)], seen)
    elif is_dataclass(value) and not isinstance(value, type):
        yield repr(value)
        yield from texts([getattr(value, field.name) for field in fields(value)], seen)
    elif isinstance(value, Mapping):
        yield from texts([*value.keys(), *value.values()], seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from texts(item, seen)


class Search:
    """Runs something, and collects all that comes out of it: what is kept, and what was told or streamed."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.out: list[Any] = []
        self.result: Result | None = None
        self.error: Exception | None = None
        self.app = App().observe(self.events.append)

    async def layer(self, call: Any, next: Any) -> Any:
        """An agent or run layer, which is outside of the guards on replies."""
        try:
            answer = await next()
        except Exception as error:
            self.out.append(error)
            raise
        self.out.append(answer)
        return answer

    @property
    def hooks(self) -> dict[str, Callable[..., Any]]:
        """Hooks that run after a block."""
        return {
            "after_run": observes(lambda result, ctx: self.out.extend([result, ctx.messages])),
            "on_error": lambda error, ctx: self.out.extend([error, ctx.messages, repr(ctx)]),
        }

    async def run(self, go: Go, agent: Any, **options: Any) -> None:
        with capture_logs() as logs:
            try:
                self.result = await go(self.app, agent, "hi", **options)
            except (GuardrailDenied, LimitExceeded, Boom) as error:
                self.error = error
        self.out += [*logs, self.result, self.error, *self.events]

    async def stream(self, agent: Any, **options: Any) -> None:
        async def read(app: App, agent: Any, input: str, **options: Any) -> Result:
            async with app.stream(agent, input, **options) as stream:
                async for event in stream:
                    self.out.append(event)
                return stream.result

        await self.run(read, agent, **options)

    def found(self, word: str = CANARY, pickled: bool = True) -> list[str]:
        """Where the word is."""
        dumps = [pickle.dumps(one) for one in (self.result, self.error) if one is not None and pickled]
        return [text for text in texts([*self.out, *map(repr, dumps)], {}) if word in text]


def again(error: Exception | None) -> Any:
    """The error as another process gets it."""
    return pickle.loads(pickle.dumps(error))


# --- the search finds things -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", REPLIES)
async def test_g8_the_search_finds_a_canary_that_nobody_blocked(go: Go, place: str) -> None:
    search = Search()
    agent, _ = setup([REPLIES[place], "done"], output=[against(CANARY, mode="observe")], tools=[working([])])
    await search.run(go, agent)
    assert search.found()


async def test_g8_the_search_finds_what_an_error_carries() -> None:
    for plant in (
        lambda error: setattr(error, "metadata", {"k": [CANARY]}),
        lambda error: error.add_note(CANARY),
        lambda error: setattr(error, "__cause__", Boom(CANARY)),
    ):
        search = Search()
        search.error = GuardrailDenied("words", "output", "found")
        plant(search.error)
        search.out.append(search.error)
        assert search.found()


# --- blocked as it leaves the chat layers ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", REPLIES)
async def test_g8_a_blocked_reply_is_kept_nowhere(go: Go, place: str, kind: str) -> None:
    search = Search()
    search.app.use(agent=search.layer, run=search.layer)
    agent, model = setup(
        [REPLIES[place]], output=[against(CANARY, KINDS[kind])], tools=[working([])], hooks=[search.hooks]
    )
    await search.run(go, agent)
    assert search.found() == []
    assert len(model.calls) == 1
    assert (search.result is None) is (kind != "enforced")
    if kind == "deny":
        assert again(search.error).reason == "found"


@pytest.mark.parametrize("kind", KINDS)
async def test_g8_a_blocked_reply_after_a_tool_ran_is_kept_nowhere(go: Go, kind: str) -> None:
    search = Search()
    agent, _ = setup(
        [["fine", ToolUse("work")], REPLIES["text"]],
        output=[against(CANARY, KINDS[kind])],
        tools=[working([])],
        hooks=[search.hooks],
    )
    await search.run(go, agent)
    assert search.found() == []
    assert search.found("worked")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hooked", [False, True])
async def test_g8_an_answer_that_a_final_guard_blocked_is_kept_nowhere(go: Go, kind: str, hooked: bool) -> None:
    """Hooks and agent layers made the answer, so they have seen it; nothing beyond them has."""
    search = Search()
    search.app.use(run=search.layer)
    hooks = [{"after_response": lambda text, ctx: f"{text}!"}] if hooked else []
    agent, _ = setup([REPLIES["text"]], output=[against(CANARY, KINDS[kind], when="final")], hooks=hooks)
    await search.run(go, agent)
    assert search.found() == []


async def test_g8_an_event_tells_a_reply_that_no_final_guard_has_passed_without_its_text(go: Go) -> None:
    for final in (True, False):
        search = Search()
        agent, _ = setup(
            [ChatReply("fine", reasoning="hm"), "fine"], output=[against("bad", when="final" if final else "reply")]
        )
        await search.run(go, agent)
        (finished,) = [event.reply for event in search.events if isinstance(event, ModelFinished)]
        assert finished is not None
        assert (finished.text, finished.reasoning) == ("" if final else "fine", "hm")
        assert search.result is not None
        assert search.result.text == "fine"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", ["after_response", "after_run"])
async def test_g8_a_blocked_answer_of_a_hook_is_kept_nowhere(go: Go, hook: str, kind: str) -> None:
    search = Search()
    search.app.use(run=search.layer)
    agent, _ = setup(
        ["fine"], output=[against(CANARY, KINDS[kind])], hooks=[{hook: lambda value, ctx: f"it is {CANARY}"}]
    )
    await search.run(go, agent)
    assert search.found() == []


@pytest.mark.parametrize("kind", KINDS)
async def test_g8_a_blocked_degraded_answer_is_kept_nowhere(go: Go, kind: str) -> None:
    search = Search()
    search.app.use(run=search.layer)
    agent, _ = setup(
        [Boom()], output=[against(CANARY, KINDS[kind])], hooks=[{"on_error": lambda error, ctx: f"it is {CANARY}"}]
    )
    await search.run(go, agent)
    assert search.found() == []
    assert (search.result is None) is (kind != "enforced")


@pytest.mark.parametrize("kind", KINDS)
async def test_g8_a_blocked_reply_behind_a_degraded_answer_is_kept_nowhere(go: Go, kind: str) -> None:
    search = Search()

    def on_error(error: Exception, ctx: Context) -> str:
        search.out += [error, ctx.messages]
        return f"no: {error}"

    agent, _ = setup([REPLIES["text"]], output=[against(CANARY, KINDS[kind])], hooks=[{"on_error": on_error}])
    await search.run(go, agent)
    assert search.found() == []
    assert search.result is not None
    assert search.result.text == (CANNED if kind == "enforced" else f"no: {search.result.error}")


@pytest.mark.parametrize("place", REPLIES)
@pytest.mark.parametrize("kind", KINDS)
async def test_g8_a_blocked_reply_to_code_is_kept_nowhere(go: Go, place: str, kind: str) -> None:
    search = Search()

    class Owning(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            reply = await ctx.chat("q")
            search.out.append(reply)
            return reply.text

    agent = Owning(model=ScriptedModel([REPLIES[place]]), guardrails={"output": [against(CANARY, KINDS[kind])]})
    await search.run(go, agent)
    assert search.found() == []


@pytest.mark.parametrize("kind", KINDS)
async def test_g8_a_blocked_reply_of_a_nested_step_is_kept_nowhere(go: Go, kind: str) -> None:
    search = Search()
    inner, _ = setup([REPLIES["text"]], output=[against(CANARY, KINDS[kind])])

    @tool
    async def delegate(ctx: Context) -> str:
        return (await ctx.run(inner, "sub")).text

    await search.run(go, Agent(name="outer", model=ScriptedModel([[ToolUse("delegate")], "done"]), tools=[delegate]))
    assert search.found() == []


@pytest.mark.parametrize("when", ["reply", "final"])
@pytest.mark.parametrize("word", ["found", "fine"])
@pytest.mark.parametrize("on_exceed", ["raise", "stop"])
def test_g8_a_deadline_after_a_block_gives_nothing_away(go: Go, when: Any, word: str, on_exceed: Any) -> None:
    """The answer has been blocked, and a run layer runs into the deadline: what is left is not that answer."""

    async def linger(call: Any, next: Any) -> None:
        await next()
        await anyio.sleep_forever()

    async def test() -> None:
        search = Search()
        search.app.use(run=linger)
        agent, _ = setup([f"it is {word}"], output=[against("found", when=when)])
        await search.run(go, agent, limits=Limits(seconds=60, on_exceed=on_exceed))
        partial = search.result if on_exceed == "stop" else getattr(search.error, "result", None)
        assert partial is not None
        assert (partial.text, partial.finish_reason) == ("" if word == "found" else "it is fine", "limit")
        assert search.found("it is found") == []

    in_fast_time(test)


async def test_g8_a_rewritten_word_is_kept_nowhere_either(go: Go) -> None:
    for when in ("reply", "final"):
        search = Search()
        agent, _ = setup(
            [REPLIES["text"]], output=[against(CANARY, lambda text: text.replace(CANARY, "***"), when=when)]
        )
        await search.run(go, agent)
        assert search.found() == []
        assert search.found("it is ***")


# --- streams ---------------------------------------------------------------------------------------------------------

HOLDING: dict[str, Callable[..., Any]] = {
    "whole": lambda kind: against(CANARY, KINDS[kind]),
    "number": lambda kind: against(CANARY, KINDS[kind], hold=len(CANARY)),
    "scan": lambda kind: Scanning(CANARY, Boom() if kind == "crash" else KINDS[kind]),
}


@pytest.mark.parametrize("kind", ["enforced", "deny"])
@pytest.mark.parametrize("holding", HOLDING)
@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_g8_no_piece_of_a_stream_has_it(kind: str, holding: str, resets: bool, size: int) -> None:
    text = f"Well. It is {CANARY}"
    search = Search()
    model = ScriptedModel([ChatReply(text, reasoning="hm"), "next"], chunk=size)
    agent = Agent(model=model, guardrails={"output": [HOLDING[holding](kind)]}, hooks=[search.hooks])
    await search.stream(agent, resets=resets)
    assert search.found() == []
    sent = "".join(event.text for event in search.events if isinstance(event, TextDelta))
    assert CANARY not in sent
    assert "canary" not in sent, "nor a part of it"
    assert sent.startswith("Well. It is ") is (holding != "whole")


@pytest.mark.parametrize("resets", [True, False])
async def test_g8_nothing_of_a_text_that_was_held_leaves_when_the_run_fails(resets: bool) -> None:
    search = Search()
    agent, _ = setup([[CANARY, ReasoningDelta(CANARY), Boom("down")]], output=[against("anything")])
    await search.stream(agent, resets=resets)
    assert isinstance(search.error, Boom)
    assert search.found() == []


@pytest.mark.parametrize("resets", [True, False])
async def test_g8_nothing_of_a_text_that_was_held_leaves_when_the_run_is_left(resets: bool) -> None:
    search = Search()
    here = anyio.Event()

    async def wait() -> None:
        here.set()
        await anyio.sleep_forever()

    agent, _ = setup(lambda call: [CANARY, wait()], output=[against("anything")])
    async with search.app.stream(agent, "hi", resets=resets) as stream:
        await here.wait()
        await stream.aclose()
    search.out += search.events
    assert search.found() == []
    assert search.events


async def test_g8_a_model_that_took_its_text_back_has_said_nothing() -> None:
    for resets in (True, False):
        search = Search()
        agent, _ = setup([[CANARY, TextReset(), "fine"]], output=[against("bad")])
        await search.stream(agent, resets=resets)
        assert search.found() == []
        assert search.result is not None
        assert search.result.text == "fine"


async def test_g8_a_scan_that_crashes_over_the_text_tells_nobody_of_it() -> None:
    class Crashing(Scanning):
        def scan(self, ctx: Any) -> Any:
            return self

        def push(self, delta: str) -> int:
            raise RuntimeError(delta)

    for resets in (True, False):
        search = Search()
        agent, _ = setup([REPLIES["text"]], output=[Crashing(CANARY)])
        await search.stream(agent, resets=resets)
        assert search.found() == []
        assert search.result is not None
        assert search.result.blocked


# --- audit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_g8_with_audit_the_validation_has_it_and_nothing_else_has(go: Go, kind: str) -> None:
    search = Search()
    agent, _ = setup([REPLIES["text"]], output=[against(CANARY, KINDS[kind], audit=True)])
    await search.run(go, agent)
    if search.result is not None:
        (validation,) = search.result.validations
    else:
        assert isinstance(search.error, GuardrailDenied)
        validation = search.error.validation
    assert validation.blocked_text == REPLIES["text"].text
    told = [event for event in search.events if getattr(event, "validation", None) is not None]
    assert [event.validation for event in told] == [validation]  # type: ignore[attr-defined]
    assert set(search.found(pickled=False)) == {validation.blocked_text}, "and no repr has it"


async def test_g8_audit_keeps_the_text_that_was_blocked_and_no_other(go: Go) -> None:
    agent, _ = setup([ChatReply("fine", reasoning="a bad thought")], output=[against("bad", audit=True)])
    (validation,) = (await go(App(), agent, "hi")).validations
    assert validation.blocked_text == "a bad thought"
    agent, _ = setup(["a bad word"], output=[against("bad", lambda text: "other", audit=True)])
    (validation,) = (await go(App(), agent, "hi")).validations
    assert validation.blocked_text is None


# --- what is kept of a blocked input ---------------------------------------------------------------------------------


async def test_g8_a_blocked_input_stays_in_the_result_marked_and_no_model_ever_gets_it(go: Go) -> None:
    seen: list[Any] = []

    class Owning(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            seen.append(ctx.messages)
            return (await ctx.chat([*ctx.messages, User("q")])).text

    agent, model = setup(["fine"], input=[against(CANARY)])
    app = App()
    first = await go(app, agent, CANARY)
    assert first.messages == (
        User(CANARY, blocked=True),
        Assistant(CANNED, finish_reason="safety", blocked=True),
    )
    second = await go(app, agent, "hello", history=first.messages)
    assert (second.text, second.blocked) == ("fine", False)
    assert [call.messages for call in model.calls] == [(User("hello"),)]
    own = Owning(model=ScriptedModel(["fine"]))
    await go(app, own, "hello", history=first.messages)
    assert seen == [(*first.messages, User("hello"))], "code may read it"
    (call,) = own.model.calls  # type: ignore[union-attr]
    assert call.messages == (User("hello"), User("q")), "and cannot send it by accident"


async def test_g8_guards_may_read_what_was_blocked_before() -> None:
    seen: list[Any] = []

    @guardrail("history")
    def history(text: str, ctx: Context) -> None:
        seen.append([(message.text, getattr(message, "blocked", False)) for message in ctx.messages])

    agent, _ = setup(["fine"], input=[history])
    before = [User(CANARY, blocked=True), Assistant(CANNED, blocked=True), User("and"), Assistant("so")]
    await App().run(agent, "hello", history=before)
    assert seen == [[(CANARY, True), (CANNED, True), ("and", False), ("so", False)]]
