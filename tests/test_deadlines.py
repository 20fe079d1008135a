"""The deadline of a run, and cancelling it from outside (L3, L5). Time is trio's MockClock; nothing sleeps."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from middlechain import (
    Agent,
    App,
    Assistant,
    Context,
    Event,
    LimitExceeded,
    LimitReached,
    Limits,
    Result,
    RunFinished,
    TextDelta,
    TextReset,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go


@tool
async def ping() -> str:
    return "pong"


Test = Callable[[], Awaitable[None]]


def in_fast_time(test: Test) -> None:
    """Run on a clock that jumps ahead whenever everybody waits."""
    anyio.run(test, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


class Witness:
    """A tool, a model and a layer that wait for ever, and what became of them."""

    def __init__(self) -> None:
        self.fate: list[str] = []
        self.begun = anyio.Event()
        self.hang = tool(name="hang")(self.wait)

    async def wait(self) -> None:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            self.fate.append("cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else repr(error))
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.fate.append("cleaned up")

    async def layer(self, call: Any, next: Any) -> None:
        await self.wait()

    async def around(self, call: Any, next: Any) -> Any:
        """A layer inside which something else waits: its finally runs too."""
        try:
            return await next()
        finally:
            self.fate.append("layer left")

    def agent(self, place: str = "model", **options: Any) -> Agent:
        """One that waits for ever in that place."""
        replies: dict[str, Any] = {
            "model": [["some ", "text", self.wait_later()]],
            "tool": [[ToolUse("hang")], "done"],
        }
        hooks: list[Any] = [{place: self.hook}] if "_" in place else []
        return Agent(
            name="a",
            model=ScriptedModel(replies.get(place, ["done"])),
            tools=[self.hang],
            **{"hooks": hooks, **options},
        )

    async def hook(self, value: Any, ctx: Context) -> None:
        await self.wait()

    def wait_later(self) -> Any:
        return Later(self.wait)


class Later:
    """An awaitable that begins only when it is awaited, so that one never reached leaves no warning."""

    def __init__(self, wait: Test) -> None:
        self.wait = wait

    def __await__(self) -> Any:
        return self.wait().__await__()


def by(go: Go) -> Any:
    """`go` as `start_soon` takes it."""
    return go


PLACES = ["model", "tool", "before_run", "before_prompt", "after_response", "after_run"]
LAYERS = ["run", "agent", "chat"]


def setting(witness: Witness, place: str, app: App) -> Agent:
    """An agent (and a layer in the app) that waits for ever in that place."""
    if place in LAYERS:
        app.use(**{place: witness.layer})
    return witness.agent(place)


# L3


@pytest.mark.parametrize("place", [*PLACES, *LAYERS])
def test_l3_the_deadline_cancels_what_is_in_flight(go: Go, place: str) -> None:
    async def test() -> None:
        witness, app = Witness(), App(limits=Limits(seconds=5))
        agent = setting(witness, place, app)
        events: list[Event] = []
        app.observe(events.append)
        start = anyio.current_time()
        with pytest.raises(LimitExceeded) as caught:
            await go(app, agent, "q")
        assert anyio.current_time() - start == pytest.approx(5)
        assert (caught.value.limit, caught.value.value) == ("seconds", 5)
        assert isinstance(caught.value.result, Result)
        assert caught.value.result.finish_reason == "limit"
        assert witness.fate == ["cancelled", "cleaned up"]
        assert [event for event in events if isinstance(event, LimitReached)] == [LimitReached("seconds", 5)]
        assert events[-1] == RunFinished("failed")

    in_fast_time(test)


@pytest.mark.parametrize("place", [*PLACES, *LAYERS])
def test_l2_l3_stop_gives_the_result_so_far_at_the_deadline(go: Go, place: str) -> None:
    async def test() -> None:
        witness, app = Witness(), App(limits=Limits(seconds=5, on_exceed="stop"))
        agent = setting(witness, place, app)
        events: list[Event] = []
        app.observe(events.append)
        result = await go(app, agent, "q")
        assert (result.finish_reason, result.stopped_by, result.degraded) == ("limit", "limit", False)
        assert result.messages[0].text == "q"
        assert events[-1] == RunFinished("stopped")
        assert witness.fate == ["cancelled", "cleaned up"]

    in_fast_time(test)


def test_l3_turns_whose_tools_ran_by_then_are_in_the_partial_result(go: Go) -> None:
    async def test() -> None:
        witness = Witness()
        model = ScriptedModel([["first", ToolUse("ping")], ["second", ToolUse("hang"), ToolUse("ping")]])
        agent = Agent(model=model, tools=[ping, witness.hang])
        result = await go(App(limits=Limits(seconds=5, on_exceed="stop")), agent, "q")
        assert result.text == "second"
        texts = [message.text for message in result.messages]
        assert texts[:4] == ["q", "first", "pong", "second"]
        assert "did not finish" in texts[4]
        assert texts[5] == "pong"

    in_fast_time(test)


def test_t7_l3_a_tool_in_a_thread_is_waited_for_and_recorded_as_having_run(go: Go) -> None:
    async def test() -> None:
        gate = threading.Event()

        @tool
        def in_thread() -> str:
            assert gate.wait(10)
            return "ran"

        async def later() -> None:
            await anyio.sleep(6)
            gate.set()

        agent = Agent(model=ScriptedModel([[ToolUse("in_thread")]]), tools=[in_thread])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later)
            result = await go(App(limits=Limits(seconds=5, on_exceed="stop")), agent, "q")
            assert gate.is_set()
        assert "ran" in result.messages[-1].text
        assert "did not finish" not in result.messages[-1].text

    in_fast_time(test)


def test_s1_l3_text_that_was_sent_and_is_not_in_the_result_is_taken_back() -> None:
    async def test() -> None:
        witness, said = Witness(), ""
        app = App(limits=Limits(seconds=5, on_exceed="stop"))
        async with app.stream(witness.agent("model"), "q") as stream:
            async for event in stream:
                said = "" if isinstance(event, TextReset) else said + getattr(event, "text", "")
        answers = [message.text for message in stream.result.messages if isinstance(message, Assistant)]
        assert said == stream.result.text == "".join(answers)

    in_fast_time(test)


def test_l3_a_run_that_ends_in_time_knows_nothing_of_its_deadline(go: Go) -> None:
    async def test() -> None:
        async def slow(call: Any, next: Any) -> None:
            await anyio.sleep(4)
            await next()

        app = App(limits=Limits(seconds=5)).use(chat=slow)
        result = await go(app, Agent(model=ScriptedModel(["done"])), "q")
        assert (result.text, result.stopped_by) == ("done", None)
        await anyio.sleep(2)  # past the deadline, with nothing left to cancel

    in_fast_time(test)


def test_l3_the_deadline_is_the_runs_not_that_of_each_step_or_turn(go: Go) -> None:
    async def test() -> None:
        async def slow(call: Any, next: Any) -> None:
            await anyio.sleep(2)
            await next()

        async def nested(input: Any, ctx: Context) -> None:
            await ctx.run(Agent(name="b", model=ScriptedModel(["b"])), "q")

        model = ScriptedModel([[ToolUse("ping")], "done"])
        agent = Agent(model=model, tools=[ping], hooks=[{"before_run": nested}])
        start = anyio.current_time()
        with pytest.raises(LimitExceeded, match="seconds=5 "):  # 2 in the nested step, 2 and 1 in the first two turns
            await go(App(limits=Limits(seconds=5)).use(chat=slow), agent, "q")
        assert anyio.current_time() - start == pytest.approx(5)
        assert len(model.calls) == 1
        model = ScriptedModel([[ToolUse("ping")], "done"])
        agent = Agent(model=model, tools=[ping], hooks=[{"before_run": nested}])
        assert (await go(App(limits=Limits(seconds=6.5)).use(chat=slow), agent, "q")).text == "done"

    in_fast_time(test)


def test_l3_the_limits_of_an_agent_have_a_deadline_for_each_of_its_steps(go: Go) -> None:
    async def test() -> None:
        witness = Witness()

        async def nested(input: Any, ctx: Context) -> None:
            with pytest.raises(LimitExceeded, match="seconds=1 "):
                await ctx.run(witness.agent("model", limits=Limits(seconds=1)), "q")

        model = ScriptedModel(["done"])
        result = await go(App(limits=Limits(seconds=5)), Agent(model=model, hooks=[{"before_run": nested}]), "q")
        assert (result.text, witness.fate) == ("done", ["cancelled", "cleaned up"])

    in_fast_time(test)


def test_h7_l3_on_error_gets_the_deadline_and_may_take_its_time_to_answer(go: Go) -> None:
    async def test() -> None:
        async def recover(error: Exception, ctx: Context) -> str:
            assert isinstance(error, LimitExceeded)
            await anyio.sleep(60)
            return "too late"

        agent = Witness().agent("model", hooks=[{"on_error": recover}])
        result = await go(App(limits=Limits(seconds=5)), agent, "q")
        assert (result.text, result.degraded) == ("too late", True)

    in_fast_time(test)


def test_m11_l3_layers_around_what_was_cancelled_are_left(go: Go) -> None:
    async def test() -> None:
        witness = Witness()
        app = App(limits=Limits(seconds=5))
        app.use(run=witness.around, agent=witness.around, chat=witness.around, tool=witness.around)
        with pytest.raises(LimitExceeded):
            await go(app, witness.agent("tool"), "q")
        # the first turn's chat, then what was in flight: the tool's, the step's and the run's
        assert witness.fate == ["layer left", "cancelled", "cleaned up", *["layer left"] * 3]

    in_fast_time(test)


def test_l3_a_callers_own_timeout_is_not_taken_for_the_runs(go: Go) -> None:
    async def test() -> None:
        witness = Witness()
        with anyio.move_on_after(3) as scope:
            await go(App(limits=Limits(seconds=5)), witness.agent("model"), "q")
        assert scope.cancelled_caught
        assert witness.fate == ["cancelled", "cleaned up"]

    in_fast_time(test)


def test_l3_a_layers_own_timeout_is_not_taken_for_the_runs(go: Go) -> None:
    async def test() -> None:
        async def hurry(call: Any, next: Any) -> Any:
            with anyio.move_on_after(1):
                return await next()
            return "in a hurry"

        witness = Witness()
        result = await go(App(limits=Limits(seconds=5)).use(chat=hurry), witness.agent("model"), "q")
        assert (result.text, result.stopped_by) == ("in a hurry", None)

    in_fast_time(test)


@pytest.mark.anyio
async def test_l1_l3_zero_seconds_are_a_limit_that_is_checked_before_spending(go: Go) -> None:
    model = ScriptedModel(["a"])
    with pytest.raises(LimitExceeded, match="seconds=0 ") as caught:
        await go(App(limits=Limits(seconds=0)), Agent(model=model), "q")
    assert [message.text for message in caught.value.result.messages] == ["q"]
    result = await go(App(limits=Limits(seconds=0, on_exceed="stop")), Agent(model=model), "q")
    assert (result.text, result.finish_reason) == ("", "limit")
    assert model.calls == []


@pytest.mark.anyio
async def test_l3_zero_seconds_of_an_agent_are_one_too(go: Go) -> None:
    model = ScriptedModel([])
    with pytest.raises(LimitExceeded, match="seconds=0 "):
        await go(App(), Agent(model=model, limits=Limits(seconds=0)), "q")
    assert model.calls == []


# L5


@pytest.mark.anyio
@pytest.mark.parametrize("place", [*PLACES, *LAYERS])
async def test_l5_cancelling_the_scope_that_awaits_a_run_ends_it_and_is_never_swallowed(go: Go, place: str) -> None:
    witness, app, events, deferred = Witness(), App(), list[Event](), list[str]()

    async def defers(call: Any, next: Any) -> None:
        call.ctx.defer(lambda: deferred.append("deferred"))
        await next()

    def never(error: Exception, ctx: Context) -> str:
        raise AssertionError("on_error never gets a cancellation (H7)")

    app.use(run=defers)
    app.observe(events.append)
    agent = setting(witness, place, app)
    agent.hooks = [*agent.hooks, {"on_error": never}]
    after: list[str] = []

    async def caller() -> None:
        await go(app, agent, "q")
        after.append("went on")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller)
        await witness.begun.wait()
        tasks.cancel_scope.cancel()
    assert tasks.cancel_scope.cancelled_caught
    assert after == []
    assert witness.fate == ["cancelled", "cleaned up"]
    assert deferred == ["deferred"]
    assert events[-1] == RunFinished("cancelled")


@pytest.mark.anyio
async def test_l5_layers_see_the_cancellation_and_their_finally_is_awaited(go: Go) -> None:
    witness = Witness()
    app = App().use(run=witness.around, agent=witness.around, chat=witness.around, tool=witness.around)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(by(go), app, witness.agent("tool"), "q")
            await witness.begun.wait()
            scope.cancel()
    assert witness.fate == ["layer left", "cancelled", "cleaned up", *["layer left"] * 3]


@pytest.mark.anyio
async def test_l5_a_cancelled_run_leaves_the_app_and_the_agent_usable(go: Go) -> None:
    witness, app = Witness(), App()
    agent = witness.agent("tool")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(by(go), app, agent, "q")
            await witness.begun.wait()
            scope.cancel()
    assert (await go(app, agent, "q")).text == "done"


@pytest.mark.anyio
async def test_l5_a_run_that_was_cancelled_before_it_began_spends_nothing(go: Go) -> None:
    model = ScriptedModel([[ToolUse("hang")], "done"])
    witness = Witness()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.lowlevel.checkpoint()
        await go(App(), Agent(model=model, tools=[witness.hang]), "q")
    assert scope.cancelled_caught
    assert model.calls == []


@pytest.mark.anyio
async def test_l5_a_nested_run_cancelled_by_a_layers_scope_ends_alone(go: Go) -> None:
    witness = Witness()

    async def nested(input: Any, ctx: Context) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ctx.run, witness.agent("model"), "q")
            await witness.begun.wait()
            tasks.cancel_scope.cancel()

    result = await go(App(), Agent(model=ScriptedModel(["done"]), hooks=[{"before_run": nested}]), "q")
    assert (result.text, witness.fate) == ("done", ["cancelled", "cleaned up"])


@pytest.mark.anyio
async def test_s1_deltas_of_a_cancelled_model_reach_the_reader_until_then() -> None:
    witness, said = Witness(), list[str]()
    with anyio.CancelScope() as scope:
        async with App().stream(witness.agent("model"), "q") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    said.append(event.text)
                if said == ["some ", "text"]:
                    await witness.begun.wait()
                    scope.cancel()
    assert scope.cancelled_caught
    assert witness.fate == ["cancelled", "cleaned up"]
