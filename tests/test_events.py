"""Events and observers (S8, S9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from middlechain import (
    Agent,
    AgentFinished,
    AgentStarted,
    App,
    Context,
    CustomEvent,
    Event,
    FatalToolError,
    LimitExceeded,
    LimitReached,
    Limits,
    ModelFinished,
    RunFinished,
    TextDelta,
    ToolFinished,
    ToolStarted,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .scenes import BLOCK, Boom, Go, Scene, delegating

pytestmark = pytest.mark.anyio


@tool
async def look() -> str:
    return "seen"


def with_a_tool_turn(hooks: Sequence[Any] = ()) -> Agent:
    return Agent(name="a", model=ScriptedModel([["hm", ToolUse("look")], "done"]), tools=[look], hooks=hooks)


def outcomes(events: Sequence[Event]) -> list[str]:
    return [event.outcome for event in events if isinstance(event, RunFinished)]


# --- S8 --------------------------------------------------------------------------------------------------------------

TOOL_TURN = ["RunStarted", "AgentStarted", "ModelStarted", "TextDelta", "ModelFinished", "ToolStarted", "ToolFinished",
             "ModelStarted", "TextDelta", "ModelFinished", "AgentFinished", "RunFinished"]  # fmt: skip


async def test_s8_the_events_of_a_run_in_order() -> None:
    events, _ = await collect(App().stream(with_a_tool_turn(), "hi"))
    assert [event.type for event in events] == TOOL_TURN
    assert all(type(event).__name__ == event.type for event in events)


async def test_s8_run_has_the_same_events_but_for_deltas() -> None:
    """B34: no event is silent in one of the two."""
    seen: list[Event] = []
    await App().observe(seen.append).run(with_a_tool_turn(), "hi")
    assert [event.type for event in seen] == [name for name in TOOL_TURN if name != "TextDelta"]


async def test_s8_observers_and_the_stream_get_the_same_events() -> None:
    seen: list[Event] = []
    events, _ = await collect(App().observe(seen.append).stream(with_a_tool_turn(), "hi"))
    assert all(one is other for one, other in zip(seen, events, strict=True))


async def test_s8_each_event_says_where_it_came_from() -> None:
    events, result = await collect(App().stream(with_a_tool_turn(), "hi", run_id="r"))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {event.run_id for event in events} == {"r"} == {result.run_id}
    assert {event.agent for event in events} == {"a"}
    assert [event.turn for event in events] == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0]
    assert {event.parent for event in events} == {None}
    assert len({event.step for event in events[1:-1]}) == 1


async def test_s8_the_payloads() -> None:
    events, result = await collect(App().stream(with_a_tool_turn(), "hi"))
    by_type = {event.type: event for event in events}
    started, finished = by_type["ToolStarted"], by_type["ToolFinished"]
    assert isinstance(started, ToolStarted)
    assert isinstance(finished, ToolFinished)
    assert (started.call.name, finished.call.name, finished.output and finished.output.content) == (
        "look",
        "look",
        "seen",
    )
    [last] = [event for event in events if isinstance(event, AgentFinished)]
    assert last.result == result
    replies = [event.reply for event in events if isinstance(event, ModelFinished)]
    assert [reply.text for reply in replies if reply] == ["hm", "done"]


async def test_s8_a_step_is_unique_and_knows_its_parent() -> None:
    innermost = Agent(name="innermost", model=ScriptedModel(["x"]))
    events, _ = await collect(App().stream(delegating(delegating(innermost), innermost_again()), "hi"))
    started = [event for event in events if isinstance(event, AgentStarted)]
    assert len({event.step for event in started}) == len(started) == 4
    parents = {event.step: event.parent for event in started}
    root = started[0].step
    assert parents[root] is None
    assert sorted(parents.values(), key=str).count(root) == 2
    for event in events[1:-1]:
        assert event.parent == parents[event.step]


def innermost_again() -> Agent:
    return Agent(name="innermost", model=ScriptedModel(["y"]))


async def test_s8_a_step_that_runs_twice_has_two_steps_in_one_run(go: Go) -> None:
    async def retry(call: Any, next: Any) -> Any:
        try:
            return await next()
        except FatalToolError:
            return await next()

    scene = Scene("run", retry, script=[FatalToolError("x")])
    await scene.go(go)
    steps = [event.step for event in scene.events if isinstance(event, AgentStarted)]
    assert len(set(steps)) == 2
    assert outcomes(scene.events) == ["completed"]


async def test_s8_what_a_layer_or_hook_or_tool_emits_is_an_event(go: Go) -> None:
    seen: list[Event] = []

    @tool(name="look")
    async def emits(ctx: Context) -> str:
        await ctx.emit("tool", {"n": 1})
        return "x"

    async def layer(call: Any, next: Any) -> Any:
        await call.ctx.emit("layer")
        return await next()

    async def hook(text: str, ctx: Context) -> None:
        await ctx.emit("hook", 3)

    agent = with_a_tool_turn([{"after_response": hook}])
    agent.tools = [emits]
    await go(App().observe(seen.append).use(tool=layer), agent, "hi")
    custom = [(event.name, event.data, event.turn) for event in seen if isinstance(event, CustomEvent)]
    assert custom == [("layer", None, 1), ("tool", {"n": 1}, 1), ("hook", 3, 2)]


async def test_s8_a_limit_that_is_reached_is_an_event(go: Go) -> None:
    seen: list[Event] = []
    with pytest.raises(LimitExceeded):
        await go(App().observe(seen.append), with_a_tool_turn(), "hi", limits=Limits(chat_calls=1))
    assert [(event.limit, event.value) for event in seen if isinstance(event, LimitReached)] == [("chat_calls", 1)]
    assert outcomes(seen) == ["failed"]


def stops(value: Any, ctx: Context) -> None:
    ctx.stop()


def fails(value: Any, ctx: Context) -> None:
    raise Boom


OUTCOMES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("completed", {}, {}),
    ("completed", {"after_response": fails, "on_error": lambda error, ctx: "sorry"}, {}),
    ("failed", {"after_response": fails}, {}),
    ("failed", {}, {"limits": Limits(turns=1)}),
    ("stopped", {}, {"limits": Limits(turns=1, on_exceed="stop")}),
    ("stopped", {"after_tool": stops}, {}),
]


@pytest.mark.parametrize(("outcome", "hooks", "options"), OUTCOMES)
async def test_s8_there_is_exactly_one_run_finished_with_the_outcome(
    outcome: str, hooks: dict[str, Any], options: dict[str, Any], go: Go
) -> None:
    seen: list[Event] = []
    try:
        await go(App().observe(seen.append), with_a_tool_turn([hooks]), "hi", **options)
    except (Boom, LimitExceeded):
        assert outcome == "failed"
    assert outcomes(seen) == [outcome]
    assert isinstance(seen[-1], RunFinished)


async def test_s8_a_cancelled_run_says_so(go: Go) -> None:
    scene = Scene("chat", script=[BLOCK])

    async def cancel() -> None:
        await scene.blocked.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        await scene.go(go)
    assert outcomes(scene.events) == ["cancelled"]
    assert scene.events[-1].type == "RunFinished"


async def test_s8_a_failure_that_a_run_layer_answers_is_no_failure_of_the_run(go: Go) -> None:
    async def save(call: Any, next: Any) -> Any:
        try:
            return await next()
        except FatalToolError:
            return "saved"

    scene = Scene("run", save, script=[FatalToolError("x")])
    await scene.go(go)
    assert outcomes(scene.events) == ["completed"]
    [finished] = [event for event in scene.events if isinstance(event, AgentFinished)]
    assert finished.result is None


# --- S9 --------------------------------------------------------------------------------------------------------------


async def test_s9_observers_sync_and_async_are_awaited_in_order(go: Go) -> None:
    trace: list[tuple[str, int]] = []

    async def slow(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        trace.append(("slow", event.seq))

    def quick(event: Event) -> None:
        trace.append(("quick", event.seq))

    await go(App().observe(slow).observe(quick), with_a_tool_turn(), "hi")
    last = trace[-1][1]
    assert trace == [(name, seq) for seq in range(1, last + 1) for name in ("slow", "quick")]


async def test_s9_the_run_waits_for_its_observers(go: Go) -> None:
    order: list[str] = []

    async def observer(event: Event) -> None:
        if isinstance(event, AgentStarted):
            await anyio.wait_all_tasks_blocked()
            order.append("observed")

    async def layer(call: Any, next: Any) -> Any:
        order.append("layer")
        return await next()

    await go(App().observe(observer).use(agent=layer), with_a_tool_turn(), "hi")
    assert order == ["observed", "layer"]


@pytest.mark.parametrize("count", [1, 3])
async def test_s9_observers_run_in_the_runs_own_task_also_for_what_tools_do(count: int, go: Go) -> None:
    tasks: set[int] = set()
    tools: set[int] = set()

    def here() -> int:
        return anyio.get_current_task().id

    @tool(name="look")
    async def emits(ctx: Context) -> str:
        tools.add(here())
        await ctx.emit("x")
        return "x"

    async def layer(call: Any, next: Any) -> Any:
        tasks.add(here())
        return await next()

    agent = Agent(model=ScriptedModel([[ToolUse("look")] * count, "done"]), tools=[emits])
    await go(App().observe(lambda event: tasks.add(here())).use(run=layer), agent, "hi")
    assert len(tasks) == 1
    assert not tasks & tools


@pytest.mark.parametrize("is_async", [False, True])
async def test_s9_an_observer_cannot_harm_the_run_and_what_it_raises_is_logged(is_async: bool, go: Go) -> None:
    seen: list[Event] = []

    def bad(event: Event) -> None:
        raise Boom("observer")

    async def bad_too(event: Event) -> None:
        raise Boom("observer")

    app = App().observe(bad_too if is_async else bad).observe(seen.append)
    with capture_logs() as logs:
        result = await go(app, with_a_tool_turn(), "hi")
    assert result.text == "done"
    assert len(logs) == len(seen)
    assert {log["log_level"] for log in logs} == {"error"}
    assert "bad" in logs[0]["observer"]
    assert logs[0]["event_type"] == "RunStarted"


@pytest.mark.parametrize("error", [StopIteration(), StopAsyncIteration(), ValueError(), LimitExceeded("turns", 1)])
async def test_s9_whatever_exception_it_is(error: Exception, go: Go) -> None:
    def bad(event: Event) -> None:
        raise error

    with capture_logs():
        assert (await go(App().observe(bad), with_a_tool_turn(), "hi")).text == "done"


async def test_s9_what_an_observer_returns_changes_nothing(go: Go) -> None:
    assert (await go(App().observe(lambda event: "other"), with_a_tool_turn(), "hi")).text == "done"


@pytest.mark.parametrize("count", [1, 2])
async def test_s9_an_observer_may_emit_an_event_of_its_own(count: int, go: Go) -> None:
    seen: list[str] = []
    contexts: list[Context] = []

    async def echo(event: Event) -> None:
        if isinstance(event, ToolStarted | TextDelta):
            await contexts[0].emit("echo")

    def keep(value: Any, ctx: Context) -> None:
        contexts.append(ctx)

    uses = [ToolUse("look")] * count
    agent = Agent(model=ScriptedModel([uses, "done"]), tools=[look], hooks=[{"before_run": keep}])
    app = App().observe(echo).observe(lambda event: seen.append(event.type))
    with anyio.fail_after(2):
        await go(app, agent, "hi")
    assert seen.count("CustomEvent") >= count


async def test_s9_observers_registered_during_a_run_see_later_runs_only(go: Go) -> None:
    seen: list[Event] = []

    def register(value: Any, ctx: Context) -> None:
        if not seen:
            ctx.app.observe(seen.append)

    app = App()
    await go(app, with_a_tool_turn([{"before_run": register}]), "hi")
    assert seen == []
    await go(app, with_a_tool_turn(), "hi")
    assert outcomes(seen) == ["completed"]


async def test_s9_the_observers_of_one_run_see_that_run_alone(go: Go) -> None:
    class Log:
        def __init__(self) -> None:
            self.events: list[Event] = []

        def on_event(self, event: Event) -> None:
            self.events.append(event)

    log, app = Log(), App()
    await go(app, with_a_tool_turn(), "hi", use=[log])
    await go(app, with_a_tool_turn(), "hi")
    assert outcomes(log.events) == ["completed"]
