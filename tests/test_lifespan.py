"""Bundles with `start()` and `stop()`, and `async with app` (M12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from middlechain import Agent, App, ContractError, Event
from middlechain.testing import ScriptedModel

from .conftest import Go
from .scenes import Boom, delegating

pytestmark = pytest.mark.anyio


class Pool:
    """A bundle that notes what happens to it."""

    def __init__(self, log: list[str], name: str = "pool", *, start: Any = None, stop: Any = None) -> None:
        self.log, self.name = log, name
        self._fails = {"start": start, "stop": stop}

    async def start(self) -> None:
        await self._note("start")

    async def stop(self) -> None:
        await self._note("stop")

    async def _note(self, what: str) -> None:
        await anyio.lowlevel.checkpoint()
        if self._fails[what] is not None:
            raise self._fails[what]
        self.log.append(f"{what} {self.name}")

    async def chat(self, call: Any, next: Any) -> Any:
        self.log.append(f"use {self.name}")
        return await next()


def said(text: str = "a", **options: Any) -> Agent:
    return Agent(model=ScriptedModel(lambda call: text), **options)


async def test_m12_async_with_app_starts_in_order_and_stops_in_reverse(go: Go) -> None:
    log: list[str] = []
    app = App(agents=[said(name="a", middleware=[Pool(log, "3")])]).use(Pool(log, "1"), Pool(log, "2"))
    async with app as entered:
        assert entered is app
        assert log == ["start 1", "start 2", "start 3"]
        await go(app, "a", "hi")
        await go(app, "a", "hi")
    assert log == [
        *("start 1", "start 2", "start 3"),
        *("use 1", "use 2", "use 3") * 2,
        *("stop 3", "stop 2", "stop 1"),
    ]


async def test_m12_without_it_the_first_run_starts_what_it_needs_and_nothing_stops_it(go: Go) -> None:
    log: list[str] = []
    app = App().use(Pool(log))
    for _ in range(2):
        await go(app, said(), "hi")
    assert log == ["start pool", "use pool", "use pool"]


async def test_m12_a_bundle_of_an_agent_of_a_nested_step_or_of_one_run_is_started_before_its_first_use(go: Go) -> None:
    log: list[str] = []
    inner = said(name="inner", middleware=[Pool(log, "inner")])
    app = App()
    async with app:
        await go(app, delegating(inner), "hi", use=[Pool(log, "run")])
        assert log == ["start run", "use run", "start inner", "use inner", "use run", "use run"]
    assert log[6:] == ["stop inner", "stop run"]


async def test_m12_the_bundles_of_an_agent_class_are_started_too(go: Go) -> None:
    log: list[str] = []
    cls = type("Own", (Agent,), {"middleware": [Pool(log)], "model": ScriptedModel(["a"])})
    async with App(agents=[cls]) as app:
        await go(app, "Own", "hi")
    assert log == ["start pool", "use pool", "stop pool"]


async def test_m12_one_object_that_is_registered_twice_is_started_once(go: Go) -> None:
    log: list[str] = []
    pool = Pool(log)
    async with App().use(pool, pool) as app:
        await go(app, said(middleware=[pool]), "hi")
    assert log == ["start pool", *["use pool"] * 3, "stop pool"]


async def test_m12_runs_at_once_start_a_bundle_once_and_wait_until_it_has_started() -> None:
    log: list[str] = []
    app = App().use(Pool(log))
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(app.run, said(), "hi")
    assert log == ["start pool", *["use pool"] * 5]


async def test_m12_start_and_stop_may_be_sync_and_either_may_be_missing(go: Go) -> None:
    log: list[str] = []

    class Starts:
        def start(self) -> None:
            log.append("start")

        def on_event(self, event: Event) -> None: ...

    class Stops:
        def stop(self) -> None:
            log.append("stop")

        async def run(self, call: Any, next: Any) -> Any:
            return await next()

    async with App().use(Starts(), Stops()) as app:
        await go(app, said(), "hi")
    assert log == ["start", "stop"]


async def test_m12_a_bundle_may_have_nothing_but_a_start_or_a_stop(go: Go) -> None:
    log: list[str] = []
    only_start = type("OnlyStart", (), {"start": lambda self: log.append("start")})()
    only_stop = type("OnlyStop", (), {"stop": lambda self: log.append("stop")})()
    async with App().use(only_start).use(only_stop) as app:
        await go(app, said(), "hi")
    assert log == ["start", "stop"]


async def test_m12_a_start_that_fails_reaches_whoever_asked_and_the_next_run_tries_again(go: Go) -> None:
    log: list[str] = []
    events: list[Event] = []
    pool = Pool(log, start=Boom("no connection"))
    app = App().use(pool).observe(events.append)
    degrading = said(hooks=[{"on_error": lambda error, ctx: "sorry"}])
    with pytest.raises(Boom, match="no connection"):
        await go(app, degrading, "hi")
    assert events == []
    pool._fails["start"] = None
    assert (await go(app, degrading, "hi")).text == "a"
    assert log == ["start pool", "use pool"]


async def test_m12_a_start_that_was_cancelled_is_made_by_the_one_who_waited() -> None:
    log: list[str] = []

    class Slow(Pool):
        async def start(self) -> None:
            if not began.is_set():
                began.set()
                await anyio.sleep_forever()
            await super().start()

    began = anyio.Event()
    app = App().use(Slow(log))
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(_cancel_when_both_wait, began, scope, tasks, app)
            await app.run(said(), "hi")
    assert log == ["start pool", "use pool"]


async def _cancel_when_both_wait(began: anyio.Event, scope: anyio.CancelScope, tasks: Any, app: App) -> None:
    await began.wait()
    tasks.start_soon(app.run, said(), "hi")
    await anyio.wait_all_tasks_blocked()
    scope.cancel()


async def test_m12_what_was_started_is_stopped_when_a_later_start_fails() -> None:
    log: list[str] = []
    app = App().use(Pool(log, "1"), Pool(log, "2", start=Boom("no")), Pool(log, "3"))
    with pytest.raises(Boom):
        await app.__aenter__()
    assert log == ["start 1", "stop 1"]


async def test_m12_every_stop_is_called_and_the_first_error_is_raised() -> None:
    log: list[str] = []
    app = App().use(Pool(log, "1"), Pool(log, "2", stop=Boom("two")), Pool(log, "3", stop=Boom("three")))
    await app.__aenter__()
    with pytest.raises(Boom, match="three") as raised:
        await app.__aexit__()
    assert raised.value.__notes__ == ["another stop() failed too: Boom: two"]
    assert log == ["start 1", "start 2", "start 3", "stop 1"]


@pytest.mark.parametrize("leave", ["error", "cancel"])
async def test_m12_bundles_are_stopped_however_the_block_is_left(leave: str) -> None:
    log: list[str] = []

    async def enter_and_leave(scope: anyio.CancelScope) -> None:
        async with App().use(Pool(log)):
            if leave == "error":
                raise Boom
            scope.cancel()
            await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        if leave == "error":
            with pytest.raises(Boom):
                await enter_and_leave(scope)
        else:
            await enter_and_leave(scope)
    assert log == ["start pool", "stop pool"]


async def test_m12_an_app_may_be_entered_again_but_not_twice_at_once(go: Go) -> None:
    log: list[str] = []
    app = App().use(Pool(log))
    for _ in range(2):
        async with app:
            with pytest.raises(ContractError, match=r"entered already; enter it once, around all its runs$"):
                await app.__aenter__()
    assert log == ["start pool", "stop pool"] * 2
    await go(app, said(), "hi")
    assert log[4:] == ["start pool", "use pool"]


def test_m12_one_app_serves_several_event_loops_in_turn() -> None:
    log: list[str] = []
    app = App().use(Pool(log))
    go: Callable[..., Any] = app.run
    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(go, said(), "hi", backend=backend)
    assert log == ["start pool", *["use pool"] * 3]
