"""Cancellation and interrupts around tools (B27, L5, T9): never an error, nothing left running, threads waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.from_thread
import pytest

from middlechain import (
    Context,
    FatalToolError,
    Result,
    ToolCall,
    ToolMessage,
    tool,
)

from .conftest import Go
from .test_tool_endings import STYLES, Lab, raising

pytestmark = pytest.mark.anyio


INTERRUPTS = [KeyboardInterrupt, SystemExit, GeneratorExit]

# B27: interrupts


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("company", [0, 2], ids=["alone", "among others"])
@pytest.mark.parametrize("interrupt", INTERRUPTS)
async def test_t4_an_interrupt_out_of_a_tool_leaves_the_run_as_itself(
    go: Go, style: str, company: int, interrupt: type[BaseException]
) -> None:
    """B27 b, c and d: nothing answers for it, no request follows, the tools beside it are cancelled and awaited."""
    error = interrupt("ctrl-c")
    ended: list[str] = []
    waiting = anyio.Event()

    async def patient() -> str:
        try:
            if company and len(lab.model.calls) == 1:
                waiting.set()
            await anyio.sleep_forever()
        finally:
            ended.append("patient")
        return "never"

    async def instant() -> str:
        return "ok"

    others = [tool(name="patient")(patient), tool(name="instant")(instant)][:company]
    lab = Lab(tool(name="bad")(raising(style, error)), *others)
    with pytest.raises(interrupt) as caught:
        await go(lab.app, lab.agent, "hi")
    assert caught.value is error
    assert (lab.errors, len(lab.model.calls)) == ([], 1)
    assert "caught" not in lab.unwound
    assert lab.unwound[-2:] == ["AgentCall", "RunCall"]
    assert ended == ["patient"] * waiting.is_set()


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("hook", ["before_tool", "after_tool"])
async def test_t4_an_interrupt_out_of_a_hook_beside_a_running_tool_leaves_the_run_as_itself(
    go: Go, interrupt: type[BaseException], hook: str
) -> None:
    """B27."""
    error = interrupt("ctrl-c")
    ended: list[str] = []
    started = anyio.Event()

    async def patient() -> None:
        try:
            started.set()
            await anyio.sleep_forever()
        finally:
            ended.append("patient")

    async def instant() -> str:
        return "ok"

    async def act(given: Any, ctx: Any) -> None:
        if given.name == "instant":
            await started.wait()
            raise error

    lab = Lab(patient, instant)
    lab.agent.hooks = [*lab.agent.hooks, {hook: act}]
    with pytest.raises(interrupt) as caught:
        await go(lab.app, lab.agent, "hi")
    assert caught.value is error
    assert (lab.errors, ended, len(lab.model.calls)) == ([], ["patient"], 1)


async def test_t4_an_interrupt_is_never_hidden_behind_an_error_that_came_first(go: Go) -> None:
    """B27: one call has failed, and the cleanup of another one meets ctrl-c."""
    error = KeyboardInterrupt("ctrl-c")
    started = anyio.Event()

    async def patient() -> None:
        try:
            started.set()
            await anyio.sleep_forever()
        finally:
            raise error

    async def failing() -> None:
        await started.wait()
        raise FatalToolError("first")

    lab = Lab(patient, failing)
    with pytest.raises(KeyboardInterrupt) as caught:
        await go(lab.app, lab.agent, "hi")
    assert caught.value is error
    assert lab.errors == []


# B27: cancellation


class Waiting:
    """Waits forever in one place of a run, and notes that its cleanup ran."""

    def __init__(self, place: str) -> None:
        self.started = anyio.Event()
        self.cleaned: list[str] = []
        self.place = place
        tools: dict[str, list[Any]] = {
            "tool": [self.tool],
            "tools": [self.quick, self.tool, self.other_tool],
            "async generator": [self.generator],
        }
        replies = [["par", self.Wait(self), "tial"]] if place == "model" else None
        self.lab = Lab(*tools.get(place, [self.quick]), replies=replies)
        if place.endswith("layer"):
            self.lab.app.use(**{place.removesuffix(" layer"): self.layer})
        elif place in {"before_run", "before_prompt", "before_tool", "after_tool", "after_response", "after_run"}:
            self.lab.agent.hooks = [*self.lab.agent.hooks, {place: self.hook}]

    class Wait:
        def __init__(self, owner: Waiting) -> None:
            self.owner = owner

        def __await__(self) -> Any:
            return self.owner.forever("model").__await__()

    async def forever(self, name: str) -> None:
        try:
            self.started.set()
            await anyio.sleep_forever()
        finally:
            self.cleaned.append(name)

    async def quick(self) -> str:
        return "quick"

    async def tool(self) -> None:
        await self.forever("tool")

    async def other_tool(self) -> None:
        await self.forever("other tool")

    async def generator(self) -> AsyncIterator[str]:
        yield "a"
        await self.forever("generator")

    async def hook(self, given: Any, ctx: Any) -> None:
        await self.forever(self.place)

    async def layer(self, call: Any, next: Any) -> Any:
        await self.forever(self.place)
        return await next()

    def check(self) -> None:
        assert self.lab.errors == [], "on_error gets no cancellation"
        assert "caught" not in self.lab.unwound, "except Exception sees no cancellation"
        assert self.lab.unwound[-1] == "RunCall"
        assert self.cleaned
        assert len(self.lab.model.calls) == (
            0 if self.place in {"before_run", "before_prompt", "run layer", "agent layer", "chat layer"}
            else 2 if self.place in {"after_response", "after_run"} else 1
        )  # fmt: skip
        if self.place == "tools":
            assert sorted(self.cleaned) == ["other tool", "tool"]


PLACES = ["tool", "tools", "async generator", "model", "run layer", "agent layer", "chat layer", "tool layer",
          "before_run", "before_prompt", "before_tool", "after_tool", "after_response", "after_run"]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
async def test_l5_a_cancelled_scope_ends_the_run_wherever_it_waits_and_is_no_error(go: Go, place: str) -> None:
    """B27 a, on both event loops."""
    waiting = Waiting(place)
    scope = anyio.CancelScope()
    results: list[Result] = []

    async def caller() -> None:
        with scope:
            results.append(await go(waiting.lab.app, waiting.lab.agent, "hi"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller)
        await waiting.started.wait()
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
    assert scope.cancelled_caught
    assert results == []
    waiting.check()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("place", PLACES)
async def test_l5_a_cancelled_asyncio_task_ends_with_cancelled_error(anyio_backend: str, go: Go, place: str) -> None:
    """B27 a, as asyncio programs do it."""
    waiting = Waiting(place)
    task = asyncio.ensure_future(go(waiting.lab.app, waiting.lab.agent, "hi"))
    await waiting.started.wait()
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    waiting.check()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("place", PLACES)
async def test_l5_an_asyncio_timeout_around_a_run_is_a_timeout_error_to_its_owner_alone(
    anyio_backend: str, go: Go, place: str
) -> None:
    """B27: the cancellation behind it is counted, so swallowing or keeping one would show here."""
    waiting = Waiting(place)

    async def timed() -> None:
        async with asyncio.timeout(None) as timeout:
            loop = asyncio.get_running_loop()
            watch = loop.create_task(waiting.started.wait())
            watch.add_done_callback(lambda _: timeout.reschedule(loop.time()))
            await go(waiting.lab.app, waiting.lab.agent, "hi")

    with pytest.raises(TimeoutError):
        await timed()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    waiting.check()


@pytest.mark.parametrize("ending", ["scope", "task"])
@pytest.mark.parametrize("company", [0, 1])
async def test_l5_a_tool_that_swallows_its_cancellation_does_not_keep_the_run_alive(
    go: Go, ending: str, company: int, anyio_backend: str
) -> None:
    """B27."""
    if ending == "task" and anyio_backend != "asyncio":
        pytest.skip("only asyncio cancels tasks")
    started = anyio.Event()
    scope = anyio.CancelScope()

    async def stubborn() -> str:
        started.set()
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()
        return "I go on"

    async def quick() -> str:
        return "quick"

    lab = Lab(stubborn, *[quick][:company])

    async def caller() -> None:
        with scope:
            await go(lab.app, lab.agent, "hi")

    async with anyio.create_task_group() as tasks:
        task: asyncio.Future[None] | None = None
        if ending == "task":
            task = asyncio.ensure_future(caller())
        else:
            tasks.start_soon(caller)
        await started.wait()
        await anyio.wait_all_tasks_blocked()
        if task is None:
            scope.cancel()
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert scope.cancelled_caught is (ending == "scope")
    assert (lab.errors, len(lab.model.calls)) == ([], 1)


# T9


@pytest.mark.parametrize("failure", [KeyError("x"), FatalToolError("x")])
async def test_t9_when_a_step_ends_by_error_every_tool_it_started_was_cancelled_and_awaited(
    go: Go, failure: Exception
) -> None:
    log: list[str] = []
    started = anyio.Event()

    async def patient() -> None:
        try:
            started.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            log.append("cleaned up")

    async def failing() -> None:
        await started.wait()
        raise FatalToolError("x")

    async def before_tool(call: ToolCall, ctx: Context) -> None:
        if call.name == "failing" and isinstance(failure, KeyError):
            await started.wait()
            raise failure

    lab = Lab(patient, failing)
    lab.agent.hooks = [*lab.agent.hooks, {"before_tool": before_tool}]
    result = await go(lab.app, lab.agent, "hi")
    log.append("ended")
    assert (result.text, type(result.error)) == ("sorry", type(failure))
    assert log == ["cleaned up", "ended"]
    texts = [m.text for m in result.messages if isinstance(m, ToolMessage)]
    assert "did not finish" in texts[0]


@pytest.mark.parametrize("ending", ["scope", "task", "task, twice", "interrupt"])
async def test_t9_a_tool_in_a_thread_is_waited_for(go: Go, ending: str, anyio_backend: str) -> None:
    """B27, T2: a thread cannot be cancelled, so the end of the run waits for it."""
    if ending.startswith("task") and anyio_backend != "asyncio":
        pytest.skip("only asyncio cancels tasks")
    release = threading.Event()
    started, go_on = anyio.Event(), anyio.Event()
    log: list[str] = []

    def slow() -> str:
        anyio.from_thread.run_sync(started.set)
        assert release.wait(10)
        log.append("thread ended")
        return "ok"

    async def interrupting() -> None:
        await go_on.wait()
        raise KeyboardInterrupt

    lab = Lab(slow, *([interrupting] if ending == "interrupt" else []))
    scope = anyio.CancelScope()

    async def caller() -> None:
        try:
            with scope:
                await go(lab.app, lab.agent, "hi")
        except KeyboardInterrupt:
            log.append("interrupted")
        finally:
            log.append("run ended")

    async with anyio.create_task_group() as tasks:
        task = asyncio.ensure_future(caller()) if ending.startswith("task") else tasks.start_soon(caller)
        await started.wait()
        try:
            for _ in range(2 if ending == "task, twice" else 1):
                if ending == "scope":
                    scope.cancel()
                elif ending == "interrupt":
                    go_on.set()
                else:
                    task.cancel()
                await anyio.wait_all_tasks_blocked()
            assert log == []
        finally:
            release.set()
        if ending.startswith("task"):
            with pytest.raises(asyncio.CancelledError):
                await task
    assert log == ["thread ended", *(["interrupted"] if ending == "interrupt" else []), "run ended"]
    assert lab.errors == []
    assert len(lab.model.calls) == 1


def cancels_itself_and_waits(own: list[Any]) -> Callable[..., Any]:
    async def selfish() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        own.append(task)
        await anyio.sleep_forever()
        return "never"

    return selfish


def raises_cancelled(own: list[Any]) -> Callable[..., Any]:
    async def selfish() -> str:
        raise asyncio.CancelledError("mine")

    return selfish


def awaits_a_cancelled_future(own: list[Any]) -> Callable[..., Any]:
    async def selfish() -> str:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return "never"

    return selfish


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("company", [0, 1])
@pytest.mark.parametrize("make", [cancels_itself_and_waits, raises_cancelled, awaits_a_cancelled_future])
async def test_t9_a_tool_that_cancels_its_own_task_has_failed_like_any_other(
    go: Go, make: Callable[[list[Any]], Callable[..., Any]], company: int, anyio_backend: str
) -> None:
    async def fine() -> str:
        await anyio.wait_all_tasks_blocked()
        return "fine"

    lab = Lab(make([]), *[fine][:company])
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert [(m.text, m.is_error) for m in lab.results] == [
        ("CancelledError: the tool 'selfish' failed.", True),
        *[("fine", False)][:company],
    ]
    assert lab.errors == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_t9_a_tool_that_cancels_its_task_and_returns_at_once_hurts_nobody(go: Go, anyio_backend: str) -> None:
    async def selfish() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "bye"

    lab = Lab(selfish)
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert len(lab.results) == 1


async def test_t9_a_tool_may_cancel_a_scope_of_its_own(go: Go) -> None:
    async def careful() -> str:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep_forever()
        return "gave up"

    lab = Lab(careful)
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert [(m.text, m.is_error) for m in lab.results] == [("gave up", False)]
