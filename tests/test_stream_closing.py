"""A stream that is cancelled or closed from outside (S5, L5)."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from middlechain import Agent, App, ContractError, RunFinished, TextDelta
from middlechain.testing import ScriptedModel

from .scenes import SCOPES, Scene, Stage

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


# --- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [True, False])
async def test_s5_a_scope_around_the_consumer_ends_the_run(reads: bool) -> None:
    """L5: and the scope learns that it was its own cancellation."""
    stage = Stage()
    with anyio.CancelScope() as scope:
        async with stage.stream() as stream:
            await stage.blocked.wait()
            scope.cancel()
            if reads:
                async for _ in stream:
                    pass
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    stage.check_all_over()


async def test_s5_cancelling_the_consumers_task_group_ends_the_run() -> None:
    stage = Stage()

    async def consume() -> None:
        async with stage.stream() as stream:
            async for _ in stream:
                pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        await stage.blocked.wait()
        tasks.cancel_scope.cancel()
    stage.check_all_over()


async def test_s5_a_deadline_around_the_consumer_is_told_from_the_runs_own_failures() -> None:
    stage = Stage()
    with anyio.move_on_after(1e9) as scope:
        async with stage.stream() as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    scope.deadline = anyio.current_time() - 1
    assert scope.cancelled_caught
    stage.check_all_over()


@on_asyncio
@pytest.mark.parametrize("reads", [True, False])
async def test_s5_native_cancellation_of_the_consumers_task_ends_the_run(reads: bool) -> None:
    stage = Stage()

    async def consume() -> None:
        async with stage.stream() as stream:
            if reads:
                async for _ in stream:
                    pass
            await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await stage.blocked.wait()
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    stage.check_all_over()


@on_asyncio
async def test_s5_native_cancellation_while_the_block_is_being_left_still_awaits_every_finally() -> None:
    stage, leaving = Stage(), asyncio.Event()

    async def layer(call: Any, next: Any) -> None:
        try:
            await next()
        finally:
            leaving.set()
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()

    stage.app.use(chat=layer)
    task = asyncio.create_task(stage.enter_and_leave())
    await leaving.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stage.check_all_over()


@on_asyncio
async def test_s5_asyncios_own_timeout_around_the_consumer_works() -> None:
    stage = Stage()

    async def consume() -> None:
        async with asyncio.timeout(None) as timeout, stage.stream() as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    timeout.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):
        await consume()
    stage.check_all_over()
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]  # this is a task


@on_asyncio
async def test_l5_native_cancellation_and_asyncios_timeout_end_a_plain_run_too() -> None:
    stage = Stage()
    task = asyncio.create_task(stage.app.run(stage.agent, "hi"))
    await stage.blocked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stage.check_all_over()
    stage = Stage()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stage.app.run(stage.agent, "hi"), 0)
    assert stage.log in ([], ["model", "chat", "agent", "run"])


# --- aclose ----------------------------------------------------------------------------------------------------------


async def test_s5_aclose_does_the_same_and_may_be_repeated() -> None:
    stage = Stage()
    async with stage.stream() as stream:
        await stage.blocked.wait()
        await stream.aclose()
        stage.check_all_over()
        await stream.aclose()
        assert [event async for event in stream] == []
    await stream.aclose()
    stage.check_all_over()


async def test_s5_aclose_ends_a_read_pending_in_another_task() -> None:
    stage, ended = Stage(), anyio.Event()

    async def consume() -> None:
        async for _ in stream:
            pass
        ended.set()

    async with anyio.create_task_group() as tasks, stage.stream() as stream:
        tasks.start_soon(consume)
        await stage.blocked.wait()
        await anyio.wait_all_tasks_blocked()
        assert not ended.is_set()
        await stream.aclose()
        stage.check_all_over()
        await ended.wait()


async def test_s5_aclose_from_another_task_ends_the_consumers_loop_and_block() -> None:
    stage = Stage()
    streams: list[Any] = []
    left = anyio.Event()

    async def consume() -> None:
        async with stage.stream() as stream:
            streams.append(stream)
            async for _ in stream:
                pass
        left.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        await stage.blocked.wait()
        await anyio.wait_all_tasks_blocked()
        await streams[0].aclose()
        stage.check_all_over()
        await left.wait()


async def test_s5_aclose_from_several_tasks_at_once_waits_in_each_for_the_end() -> None:
    stage = Stage()
    seen: list[int] = []

    async def close() -> None:
        await stream.aclose()
        seen.append(len(stage.log))

    async with stage.stream() as stream:
        await stage.blocked.wait()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(close)
    assert seen == [4, 4, 4]


@pytest.mark.parametrize("scope", SCOPES)
async def test_s5_aclose_from_inside_the_run_ends_it(scope: str) -> None:
    streams: list[Any] = []
    after: list[str] = []

    async def close(call: Any, next: Any) -> Any:
        await streams[0].aclose()
        after.append("went on")
        return await next()

    scene = Scene(scope, close)
    with anyio.fail_after(2):
        async with scene.app.stream(scene.agent, "hi") as stream:
            streams.append(stream)
            async for _ in stream:
                pass
    assert (scene.ran, after) == (0, [])
    assert [event.outcome for event in scene.events if isinstance(event, RunFinished)] == ["cancelled"]


async def test_s5_aclose_after_the_end_changes_nothing() -> None:
    async with App().stream(Agent(model=ScriptedModel(["hello"])), "hi") as stream:
        async for _ in stream:
            pass
        await stream.aclose()
        assert stream.result.text == "hello"
    assert stream.result.text == "hello"


async def test_s5_a_stream_that_was_closed_has_no_result_and_says_so() -> None:
    stage = Stage()
    async with stage.stream() as stream:
        await stage.blocked.wait()
        await stream.aclose()
        with pytest.raises(ContractError, match=r"closed before its run had ended.*; read it to its end$"):
            stream.result  # noqa: B018 - reading it is what raises
