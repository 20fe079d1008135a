"""Append-only streams, `stream.text()`, `on_text=` and `@observes` (S6, S7)."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatReply,
    ConfigurationError,
    Context,
    ContractError,
    Event,
    FatalToolError,
    Limits,
    NextCalledAgain,
    ReasoningDelta,
    Result,
    RunFinished,
    TextDelta,
    TextReset,
    ToolUse,
    WrongReturn,
    observes,
    repeats,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go
from .scenes import ANSWERS, SCOPES, Boom, Scene, Stage, delegating, deltas, fold

pytestmark = pytest.mark.anyio

WRAPPING = ("chat", "agent", "run")  # the scopes whose layers may change what is streamed
ANSWER_HOOKS = ("after_response", "after_run")


@observes
async def watching(call: Any, next: Any) -> Any:
    return await next()


async def passing(call: Any, next: Any) -> Any:
    return await next()


async def once_more(call: Any, next: Any) -> Any:
    try:
        return await next()
    except Boom:
        return await next()


async def appended(app: App, agent: Any) -> tuple[list[Event], Result]:
    return await collect(app.stream(agent, "hi", resets=False))


async def texts(app: App, agent: Any) -> list[str]:
    async with app.stream(agent, "hi") as stream:
        return [piece async for piece in stream.text()]


class Halfway:
    """A model that has said `a` and waits to go on with `b`; meanwhile one looks at what came out."""

    def __init__(self, **layers: Any) -> None:
        self.said = anyio.Event()
        self.go_on = anyio.Event()
        self.model = ScriptedModel(self.reply)
        self.app = App().use(**layers) if layers else App()

    async def reply(self, call: Any) -> list[Any]:
        return ["a", self, "b"]

    def __await__(self) -> Any:
        return self.wait().__await__()

    async def wait(self) -> None:
        self.said.set()
        await self.go_on.wait()

    async def look(self, agent: Any) -> tuple[list[str], list[str]]:
        """What had come out by half, and all that came."""
        pieces: list[str] = []

        async def read() -> None:
            async with self.app.stream(agent, "hi") as stream:
                async for piece in stream.text():
                    pieces.append(piece)  # noqa: PERF401 - as they come

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await self.said.wait()
            await anyio.wait_all_tasks_blocked()
            half = list(pieces)
            self.go_on.set()
        return half, pieces


# --- what holds back, and what does not ------------------------------------------------------------------------------


async def test_s6_without_layers_text_comes_as_the_model_gives_it() -> None:
    halfway = Halfway()
    assert await halfway.look(Agent(model=halfway.model)) == (["a"], ["a", "b"])


@pytest.mark.parametrize("scope", WRAPPING)
async def test_s6_an_unmarked_layer_holds_text_back_and_a_marked_one_does_not(scope: str) -> None:
    halfway = Halfway(**{scope: passing})
    assert await halfway.look(Agent(model=halfway.model)) == ([], ["ab"])
    halfway = Halfway(**{scope: watching})
    assert await halfway.look(Agent(model=halfway.model)) == (["a"], ["a", "b"])


async def test_s6_tool_layers_and_what_is_on_the_way_in_hold_nothing_back() -> None:
    @tool
    async def work() -> str:
        return "done"

    def keep(value: Any, ctx: Context) -> None:
        return None

    halfway = Halfway(tool=passing)
    hooks = [dict.fromkeys(("before_run", "before_prompt", "before_tool", "after_tool", "on_error"), keep)]
    agent = Agent(model=halfway.model, tools=[work], hooks=hooks)
    assert await halfway.look(agent) == (["a"], ["a", "b"])


@pytest.mark.parametrize("hook", ANSWER_HOOKS)
async def test_s6_an_unmarked_hook_on_the_answer_holds_it_back_and_a_marked_one_does_not(hook: str) -> None:
    def keep(value: Any, ctx: Context) -> None:
        return None

    halfway = Halfway()
    assert await halfway.look(Agent(model=halfway.model, hooks=[{hook: keep}])) == ([], ["ab"])
    halfway = Halfway()
    assert await halfway.look(Agent(model=halfway.model, hooks=[{hook: observes(keep)}])) == (["a"], ["a", "b"])


async def test_s6_a_layer_that_cannot_apply_holds_nothing_back() -> None:
    halfway = Halfway()
    halfway.app.use(chat=passing, only="somebody")
    with pytest.warns(UserWarning, match="somebody"):
        assert await halfway.look(Agent(model=halfway.model)) == (["a"], ["a", "b"])


async def test_s6_a_layer_that_may_apply_to_a_call_holds_back() -> None:
    halfway = Halfway()
    halfway.app.use(chat=passing, only=lambda call: False)
    assert await halfway.look(Agent(model=halfway.model)) == ([], ["ab"])


async def test_s6_a_layer_that_repeats_holds_back_even_if_it_is_marked() -> None:
    halfway = Halfway(chat=observes(repeats(partial(passing))))
    assert await halfway.look(Agent(model=halfway.model)) == ([], ["ab"])


async def test_s6_the_mark_may_be_on_a_method_an_object_or_its_class() -> None:
    class Method:
        @observes
        async def chat(self, call: Any, next: Any) -> Any:
            return await next()

    class Plain:
        async def chat(self, call: Any, next: Any) -> Any:
            return await next()

    for bundle in (Method(), observes(Plain()), observes(type("Marked", (Plain,), {}))()):
        halfway = Halfway()
        halfway.app.use(bundle)
        assert await halfway.look(Agent(model=halfway.model)) == (["a"], ["a", "b"])
    halfway = Halfway()
    halfway.app.use(Plain())
    assert await halfway.look(Agent(model=halfway.model)) == ([], ["ab"])


async def test_s6_after_response_leaves_text_beside_tool_calls_alone() -> None:
    """B31: the answer alone may be changed by it, so only the answer waits."""

    @tool
    async def work() -> str:
        ran.append("work")
        return "done"

    ran: list[str] = []
    agent = Agent(
        model=ScriptedModel([["let me ", "see", ToolUse("work", {})], ["it is ", "done"]]),
        tools=[work],
        hooks=[{"after_response": lambda text, ctx: text.upper()}],
    )
    events, result = await appended(App(), agent)
    assert deltas(events) == ["let me see", "IT IS DONE"]
    assert result.text == "IT IS DONE"


@pytest.mark.parametrize("scope", WRAPPING)
async def test_s6_a_held_text_that_a_layer_changes_is_sent_as_changed_and_never_as_it_was(scope: str) -> None:
    async def shout(call: Any, next: Any) -> Any:
        answer = await next()
        return answer.replace(text=answer.text.upper())

    agent = Agent(model=ScriptedModel([["a", "b"]]))
    events, result = await appended(App().use(**{scope: shout}), agent)
    assert (deltas(events), result.text) == (["AB"], "AB")


async def test_s6_a_layer_around_one_step_does_not_hold_back_another() -> None:
    inner = Agent(name="inner", model=ScriptedModel([["x", "y"]]))
    app = App().use(agent=passing, only="outer")
    events, _ = await appended(app, delegating(inner))
    assert [event.text for event in events if isinstance(event, TextDelta) and event.parent] == ["x", "y"]


# --- the log line ----------------------------------------------------------------------------------------------------


async def test_s6_the_first_hold_is_logged_once_for_an_app_and_names_who_holds() -> None:
    app = App().use(chat=passing)
    with capture_logs() as logs:
        for _ in range(2):
            await texts(app, Agent(model=ScriptedModel(["a"])))
    assert [(line["log_level"], line["event"]) for line in logs] == [
        (
            "info",
            (
                "text of an append-only stream is held back by the chat layer 'passing'; "
                "mark with @observes what returns None or the very object that it was given"
            ),
        )
    ]
    with capture_logs() as logs:
        await texts(App().use(chat=watching), Agent(model=ScriptedModel(["a"])))
        await collect(App().use(chat=passing).stream(Agent(model=ScriptedModel(["a"])), "hi"))
        await App().use(chat=passing).run(Agent(model=ScriptedModel(["a"])), "hi")
    assert logs == []


# --- what comes after text that was sent -----------------------------------------------------------------------------


def failing_after(*sent: Any) -> ScriptedModel:
    return ScriptedModel([[*sent, Boom()]])


async def test_s6_a_degraded_answer_after_sent_text_is_a_new_paragraph_and_the_result_says_the_whole() -> None:
    agent = Agent(model=failing_after("ab"), hooks=[{"on_error": lambda error, ctx: "sorry"}])
    events, result = await appended(App(), agent)
    assert deltas(events) == ["ab", "\n\nsorry"]
    assert (result.text, result.message.text, result.degraded) == ("ab\n\nsorry", "ab\n\nsorry", True)
    assert isinstance(result.error, Boom)
    assert (await App().run(Agent(model=failing_after("ab"), hooks=agent.hooks), "hi")).text == "sorry"


async def test_s6_a_degraded_answer_without_sent_text_before_it_is_as_in_run() -> None:
    agent = Agent(model=failing_after(), hooks=[{"on_error": lambda error, ctx: "sorry"}])
    events, result = await appended(App(), agent)
    assert (deltas(events), result.text) == (["sorry"], "sorry")


async def test_s6_an_empty_degraded_answer_leaves_what_was_sent() -> None:
    agent = Agent(model=failing_after("ab"), hooks=[{"on_error": lambda error, ctx: ""}])
    events, result = await appended(App(), agent)
    assert (deltas(events), result.text) == (["ab"], "ab")


async def test_s6_reasoning_that_was_sent_stays_with_the_degraded_answer() -> None:
    agent = Agent(model=failing_after(ReasoningDelta("hm")), hooks=[{"on_error": lambda error, ctx: "sorry"}])
    events, result = await appended(App(), agent)
    assert [event.text for event in events if isinstance(event, ReasoningDelta)] == ["hm"]
    assert (result.message.reasoning, result.text) == ("hm", "sorry")


async def test_s6_a_degraded_answer_after_tools_ran_is_a_turn_of_its_own() -> None:
    @tool
    async def explode() -> str:
        raise FatalToolError("broken")

    uses = ToolUse("explode", {})
    agent = Agent(
        model=ScriptedModel([["let me see", uses]]), tools=[explode], hooks=[{"on_error": lambda error, ctx: "sorry"}]
    )
    events, result = await appended(App(), agent)
    assert [(event.turn, event.text) for event in events if isinstance(event, TextDelta)] == [
        (1, "let me see"),
        (2, "sorry"),
    ]
    assert result.text == "sorry"
    assert "".join(await texts(App(), Agent(model=ScriptedModel([["let me see", uses]]), tools=[explode],
                                            hooks=agent.hooks))) == "let me see\n\nsorry"  # fmt: skip


async def test_s6_a_failure_without_a_degraded_answer_leaves_what_was_sent_and_is_raised() -> None:
    pieces: list[str] = []
    with pytest.raises(Boom):
        await App().run(Agent(model=failing_after("ab")), "hi", on_text=pieces.append)
    assert pieces == ["ab"]


async def test_s6_a_model_that_takes_text_back_goes_on_in_a_new_paragraph() -> None:
    agent = Agent(model=ScriptedModel([["ab", ReasoningDelta("x"), TextReset(), "c", ReasoningDelta("y"), "d"]]))
    events, result = await appended(App(), agent)
    assert deltas(events) == ["ab", "\n\nc", "d"]
    assert (result.text, result.message.reasoning) == ("ab\n\ncd", "x\n\ny")
    agent = Agent(model=ScriptedModel([["ab", TextReset(), "cd", TextReset(), "ef"]]))
    assert (await appended(App(), agent))[1].text == "ab\n\ncd\n\nef"


async def test_s6_a_reply_that_says_something_else_than_its_deltas_follows_them() -> None:
    class Liar:
        name = "liar"

        async def chat(self, call: Any) -> ChatReply:
            await call.send(TextDelta("ab"))
            return ChatReply("xy")

    events, result = await appended(App(), Agent(model=Liar()))
    assert (deltas(events), result.text) == (["ab", "\n\nxy"], "ab\n\nxy")


async def test_s6_text_of_a_turn_that_a_deadline_cut_off_is_in_the_result() -> None:
    agent = Agent(model=ScriptedModel([["ab", Forever()]]))
    limits = Limits(seconds=60, on_exceed="stop")
    app = App()
    with anyio.fail_after(5):
        async with app.stream(agent, "hi", resets=False, limits=limits) as stream:
            events = []
            async for event in stream:
                events.append(event)
                if isinstance(event, TextDelta):
                    Forever.scope.deadline = anyio.current_time() - 1
    assert (stream.result.text, stream.result.finish_reason) == ("ab", "limit")
    assert [message.text for message in stream.result.messages] == ["hi", "ab"]


class Forever:
    """Waits, within a scope that a test may end in place of the run's deadline."""

    scope: anyio.CancelScope

    def __await__(self) -> Any:
        return self.wait().__await__()

    async def wait(self) -> None:
        with anyio.CancelScope() as type(self).scope:
            await anyio.sleep_forever()
        from middlechain import LimitExceeded

        error = LimitExceeded("seconds", 60)
        error.stops = True
        raise error


async def test_s6_nested_steps_text_is_not_the_answers() -> None:
    inner = Agent(name="inner", model=ScriptedModel(["inner text"]))
    assert await texts(App(), delegating(inner)) == ["done"]


async def test_s6_texts_of_several_turns_are_separated_by_a_blank_line() -> None:
    @tool
    async def work() -> str:
        return "x"

    def agent() -> Agent:
        return Agent(
            model=ScriptedModel([["let ", "me", ToolUse("work", {})], [ToolUse("work", {})], ["it ", "is"]]),
            tools=[work],
        )

    expected = ["let ", "me", "\n\nit ", "is"]
    told: list[str] = []
    result = await App().run(agent(), "hi", on_text=told.append)
    assert await texts(App(), agent()) == told == expected
    assert result.text == "it is"
    events, streamed = await appended(App(), agent())
    assert [message.text for message in streamed.messages] == [message.text for message in result.messages]
    assert {turn: text for (_, turn), text in fold(events).items()} == {1: "let me", 3: "it is"}


@pytest.mark.parametrize("held", [False, True])
async def test_empty_deltas_are_not_sent_and_what_is_no_delta_is_refused(held: bool) -> None:
    app = App().use(chat=passing) if held else App()
    model = ScriptedModel([[TextDelta(""), ReasoningDelta(""), "a"]])
    events, _ = await appended(app, Agent(model=model))
    assert [(type(event), event.text) for event in events if isinstance(event, TextDelta | ReasoningDelta)] == [
        (TextDelta, "a")
    ]

    async def send_a_str(call: Any) -> str:
        await call.send("a")
        return "a"

    with pytest.raises(WrongReturn, match=r"send\(\) got a value of type str \('a'\); give it a TextDelta"):
        await appended(app, Agent(model=ScriptedModel(send_a_str)))


async def test_a_retry_of_a_call_that_a_layer_has_stream_without_a_reader_is_a_retry(go: Go) -> None:
    async def streaming(call: Any, next: Any) -> Any:
        return await next(call.replace(streaming=True))

    model = ScriptedModel([["ab", Boom()], "cd"])
    assert (await go(App().use(chat=[streaming, once_more]), Agent(model=model), "hi")).text == "cd"


# --- a breach of the mark --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("own", ["a copy", "a text", "in its place"])
async def test_s6_a_marked_layer_may_not_answer_by_itself(scope: str, own: str, go: Go) -> None:
    @observes
    async def traitor(call: Any, next: Any) -> Any:
        if own == "in its place":
            return ANSWERS[scope]("mine")
        answer = await next()
        return answer.replace() if own == "a copy" else "mine"

    scene = Scene(scope, traitor)
    says = rf"{scope} layer .*traitor' is marked @observes .*; return None or the very object .*or take off the mark$"
    with pytest.raises(WrongReturn, match=says):
        await scene.go(go)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("value", ["none", "the object"])
async def test_s6_a_marked_layer_may_keep_what_next_gave(scope: str, value: str, go: Go) -> None:
    @observes
    async def watch(call: Any, next: Any) -> Any:
        answer = await next()
        return answer if value == "the object" else None

    assert await Scene(scope, watch).go(go) == "inner 1"


@pytest.mark.parametrize("hook", ANSWER_HOOKS)
async def test_s6_a_marked_hook_may_not_answer_by_itself(hook: str, go: Go) -> None:
    @observes
    def traitor(value: Any, ctx: Context) -> Any:
        return "mine"

    @observes
    def faithful(value: Any, ctx: Context) -> Any:
        return value

    agent = Agent(model=ScriptedModel(lambda call: "ab"), hooks=[{hook: traitor}])
    with pytest.raises(
        WrongReturn, match=rf"hook .*traitor' is marked @observes and returned .* from {hook}; return No"
    ):
        await go(App(), agent, "hi")
    assert (await go(App(), Agent(model=agent.model, hooks=[{hook: faithful}]), "hi")).text == "ab"


async def test_s6_a_marked_layer_may_raise_and_may_change_the_call(go: Go) -> None:
    @observes
    async def softer(call: Any, next: Any) -> Any:
        return await next(call.replace(messages=()))

    model = ScriptedModel(lambda call: f"{len(call.messages)}")
    assert (await go(App().use(chat=softer), Agent(model=model), "hi")).text == "0"

    @observes
    async def refuse(call: Any, next: Any) -> Any:
        raise Boom

    with pytest.raises(Boom):
        await go(App().use(chat=refuse), Agent(model=model), "hi")


# --- next() again (S7) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", WRAPPING)
async def test_s7_a_retry_after_text_went_out_raises_the_first_failure_again(scope: str) -> None:
    first, second = Boom("first"), Boom("second")
    model = ScriptedModel([["ab", first], ["cd", second]])
    with pytest.raises(Boom, match="first") as raised:
        await texts(App().use(**{scope: observes(partial(once_more))}), Agent(model=model))
    assert raised.value is first
    assert len(model.calls) == 1


@pytest.mark.parametrize("scope", WRAPPING)
async def test_s7_a_retry_before_any_text_went_out_is_a_retry(scope: str) -> None:
    model = ScriptedModel([[Boom()], ["cd"]])
    assert await texts(App().use(**{scope: observes(partial(once_more))}), Agent(model=model)) == ["cd"]


@pytest.mark.parametrize("scope", WRAPPING)
async def test_s7_a_retry_that_holds_text_back_is_a_retry_too(scope: str) -> None:
    model = ScriptedModel([["ab", Boom()], ["cd"]])
    assert await texts(App().use(**{scope: once_more}), Agent(model=model)) == ["cd"]


async def test_s7_a_retry_of_a_later_turn_does_not_mind_the_text_of_the_first() -> None:
    @tool
    async def work() -> str:
        return "x"

    model = ScriptedModel([["ab", ToolUse("work", {})], [Boom()], ["cd"]])
    agent = Agent(model=model, tools=[work])
    assert await texts(App().use(chat=observes(partial(once_more))), agent) == ["ab", "\n\ncd"]


async def test_s7_after_a_timeout_there_is_no_failure_to_raise_so_the_call_is_refused() -> None:
    @observes
    async def impatient(call: Any, next: Any) -> Any:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when, stage.blocked, scope)
                return await next()
        return await next()

    async def cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    stage = Stage()
    with pytest.raises(NextCalledAgain, match=r"append-only stream that had sent text .*stream with resets=True$"):
        await texts(App().use(chat=impatient), stage.agent)


# --- on_text= --------------------------------------------------------------------------------------------------------


async def test_s6_on_text_may_be_async_and_is_awaited_before_the_model_goes_on() -> None:
    log: list[str] = []

    async def told(text: str) -> None:
        await anyio.lowlevel.checkpoint()
        log.append(f"told {text}")

    async def note(word: str) -> None:
        log.append(word)

    model = ScriptedModel(lambda call: ["a", note("model"), "b"])
    result = await App().run(Agent(model=model), "hi", on_text=told)
    assert (log, result.text) == (["told a", "model", "told b"], "ab")


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("held", [False, True])
async def test_s6_what_on_text_raises_ends_the_run_and_is_nobody_elses(kind: str, held: bool) -> None:
    closed = Boom("the reader has gone")
    seen: list[Any] = []
    outcomes: list[str] = []

    def gone(text: str) -> None:
        raise closed

    async def gone_later(text: str) -> None:
        await anyio.lowlevel.checkpoint()
        raise closed

    async def layer(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Exception as error:
            seen.append(error)
            raise

    def note(event: Event) -> None:
        if isinstance(event, RunFinished):
            outcomes.append(event.outcome)

    model = ScriptedModel([["a", "b"]])
    agent = Agent(model=model, hooks=[{"on_error": lambda error, ctx: seen.append(error)}])
    app = App().use(chat=layer if held else observes(layer)).observe(note)
    with pytest.raises(Boom) as raised:
        await app.run(agent, "hi", on_text=gone if kind == "sync" else gone_later)
    assert raised.value is closed
    assert (seen, outcomes) == ([], ["cancelled"])


async def test_s6_what_on_text_raised_goes_before_what_the_run_raises_on_its_way_out() -> None:
    async def clumsy(call: Any, next: Any) -> Any:
        try:
            return await next()
        finally:
            raise Boom("on the way out")

    def gone(text: str) -> None:
        raise Boom("the reader has gone")

    app = App().use(chat=observes(clumsy))
    with pytest.raises(Boom, match="the reader has gone"):
        await app.run(Agent(model=ScriptedModel([["a", "b"]])), "hi", on_text=gone)


async def test_s6_an_error_of_the_run_passes_on_text_by() -> None:
    with pytest.raises(Boom, match="model"):
        await App().run(Agent(model=ScriptedModel([Boom("model")])), "hi", on_text=print)


async def test_s6_on_text_streams_though_nobody_listens_to_events() -> None:
    model = ScriptedModel([["a", "b"]])
    told: list[str] = []
    await App().run(Agent(model=model), "hi", on_text=told.append)
    assert (told, model.calls[0].streaming) == (["a", "b"], True)


async def test_s6_observers_see_the_same_as_on_text() -> None:
    events: list[Event] = []
    told: list[str] = []
    app = App().observe(events.append)
    await app.run(Agent(model=ScriptedModel([["a", "b"]])), "hi", on_text=told.append)
    assert deltas(events) == told == ["a", "b"]


async def test_s6_on_text_works_in_run_sync_too() -> None:
    told: list[str] = []

    def run() -> Result:
        return App().run_sync(Agent(model=ScriptedModel([["a", "b"]])), "hi", on_text=told.append)

    result = await anyio.to_thread.run_sync(run)
    assert (told, result.text) == (["a", "b"], "ab")


# --- wrong uses ------------------------------------------------------------------------------------------------------


async def test_on_text_that_cannot_be_called_is_refused_before_anything_is_spent() -> None:
    model = ScriptedModel(["a"])
    with pytest.raises(ConfigurationError, match=r"on_text= is 'print'; give a callable that takes a str"):
        await App().run(Agent(model=model), "hi", on_text="print")  # type: ignore[arg-type]
    assert model.calls == []


def test_a_stream_has_no_on_text() -> None:
    with pytest.raises(ConfigurationError, match=r"no on_text=; read stream\.text\(\), or give it to app\.run"):
        App().stream(Agent(), "q", on_text=print)  # type: ignore[call-arg]


async def test_text_of_a_stream_that_takes_text_back_is_refused_once_the_run_has_begun() -> None:
    stage = Stage()
    async with stage.stream() as stream:
        await stage.blocked.wait()
        with pytest.raises(ContractError, match=r"call it first in the block, or write .*resets=False\)$"):
            stream.text()


async def test_text_may_be_asked_for_at_any_time_where_nothing_is_taken_back() -> None:
    stage = Halfway()
    agent = Agent(model=stage.model)
    async with App().stream(agent, "hi", resets=False) as stream:
        await stage.said.wait()
        stage.go_on.set()
        assert [piece async for piece in stream.text()] == ["a", "b"]
        assert stream.result.text == "ab"


async def test_text_outside_the_block_says_where_it_belongs() -> None:
    stream = App().stream(Agent(model=ScriptedModel(["a"])), "hi")
    with pytest.raises(ContractError, match=r"a stream runs inside its block"):
        await anext(stream.text())


async def test_two_readers_of_the_text_are_refused() -> None:
    stage = Stage()

    async def read() -> None:
        async for _ in stream.text():
            pass

    async with anyio.create_task_group() as tasks, App().stream(stage.agent, "hi", resets=False) as stream:
        tasks.start_soon(read)
        await stage.blocked.wait()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ContractError, match=r"read by another task"):
            await anext(stream.text())


async def test_s6_text_raises_the_runs_error_at_its_end_and_leaving_adds_nothing() -> None:
    pieces: list[str] = []

    async def read() -> None:
        async with App().stream(Agent(model=failing_after("ab")), "hi") as stream:
            async for piece in stream.text():
                pieces.append(piece)  # noqa: PERF401 - as they come

    with pytest.raises(Boom):
        await read()
    assert pieces == ["ab"]


async def test_s6_leaving_in_the_middle_of_the_text_ends_the_run() -> None:
    stage = Stage()
    async with stage.app.stream(stage.agent, "hi", resets=False) as stream:
        await stage.blocked.wait()
        await stream.aclose()
        assert [piece async for piece in stream.text()] == []
    stage.check_all_over()


def test_the_whole_answer_is_in_the_history_for_the_next_run() -> None:
    async def go() -> list[str]:
        agent = Agent(model=failing_after("ab"), hooks=[{"on_error": lambda error, ctx: "sorry"}])
        _, result = await appended(App(), agent)
        return [message.text for message in result.messages if isinstance(message, Assistant)]

    assert anyio.run(go) == ["ab\n\nsorry"]
