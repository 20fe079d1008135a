"""How a stream ends: read to its end, failed, left, cancelled or closed (S5, M6)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from middlechain import Agent, App, ContractError, RunFinished, TextDelta
from middlechain.testing import ScriptedModel

from .scenes import BLOCK, SCOPES, Boom, Scene, Stage, delegating

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


# --- leaving early ---------------------------------------------------------------------------------------------------


async def test_s5_break_ends_the_run_before_the_block_is_left() -> None:
    stage = Stage()
    async with stage.stream() as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        assert stage.log == []
    stage.check_all_over()


async def test_s5_return_ends_the_run_as_well() -> None:
    stage = Stage()

    async def first_text() -> str:
        async with stage.stream() as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    return event.text
        raise AssertionError("no text")

    assert await first_text() == "a"
    stage.check_all_over()


@pytest.mark.parametrize("kind", [Boom, KeyboardInterrupt, StopIteration, StopAsyncIteration, GeneratorExit])
async def test_s5_an_exception_of_the_body_ends_the_run_and_comes_out_as_itself(kind: type[BaseException]) -> None:
    stage, error = Stage(), kind("x")
    try:
        async with stage.stream() as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    raise error
    except kind as caught:
        assert caught is error
    else:
        raise AssertionError("it was swallowed")
    stage.check_all_over()


async def test_s5_a_group_that_the_body_raises_comes_out_as_itself() -> None:
    stage, error = Stage(), ExceptionGroup("several", [Boom()])
    with pytest.raises(ExceptionGroup) as caught:
        await stage.enter_and_leave(error)
    assert caught.value is error
    stage.check_all_over()


async def test_s5_a_stream_that_is_never_read_ends_its_run_all_the_same() -> None:
    stage = Stage()
    await stage.enter_and_leave()
    stage.check_all_over()


async def test_s5_a_stream_left_at_once_leaves_nothing_behind() -> None:
    stage = Stage()
    async with stage.stream():
        pass
    assert (stage.log, stage.outcomes) in [([], []), (["model", "chat", "agent", "run"], ["cancelled"])]


def test_s5_a_stream_can_be_made_where_no_loop_runs_and_is_nothing_until_it_is_entered() -> None:
    agent = Agent(model=ScriptedModel(["x"]))
    made = App().stream(agent, "hi")

    async def enter() -> str:
        async with made as stream:
            async for _ in stream:
                pass
            return str(stream.result.text)

    assert anyio.run(enter) == "x"


@pytest.mark.parametrize("scope", SCOPES)
async def test_s5_whatever_waits_inside_a_layer_is_cancelled(scope: str) -> None:
    """Also a tool, and a layer that waits by itself."""
    waiting = anyio.Event()

    async def waits(call: Any, next: Any) -> Any:
        waiting.set()
        await anyio.sleep_forever()

    scene = Scene(scope, waits)
    async with scene.app.stream(scene.agent, "hi"):
        await waiting.wait()
    assert [event.outcome for event in scene.events if isinstance(event, RunFinished)] == ["cancelled"]


async def test_s5_a_tool_is_cancelled_and_awaited() -> None:
    scene = Scene("tool", script=[BLOCK])
    async with scene.app.stream(scene.agent, "hi"):
        await scene.blocked.wait()
        assert not scene.cleaned_up
    assert scene.cleaned_up


async def test_s5_nested_steps_are_cancelled_and_awaited() -> None:
    stages = [Stage(), Stage()]
    agent = delegating(*(stage.agent for stage in stages))

    async def drain() -> None:
        async for _ in stream:
            pass

    async with anyio.create_task_group() as tasks, App().stream(agent, "hi") as stream:
        tasks.start_soon(drain)
        for stage in stages:
            await stage.blocked.wait()
    assert [stage.log for stage in stages] == [["model"]] * 2


async def test_s5_a_run_that_waits_for_its_reader_is_ended_too() -> None:
    ended: list[str] = []

    async def reply(call: Any) -> list[Any]:
        return ["x"] * 100

    async def layer(call: Any, next: Any) -> None:
        try:
            await next()
        finally:
            ended.append("chat")

    async with App().use(chat=layer).stream(Agent(model=ScriptedModel(reply)), "hi") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await anyio.wait_all_tasks_blocked()
        assert ended == []
    assert ended == ["chat"]


async def test_s5_what_a_finally_raises_while_the_stream_is_left_comes_out_as_itself() -> None:
    stage, error = Stage(), Boom("in a finally")

    async def layer(call: Any, next: Any) -> Any:
        try:
            return await next()
        finally:
            raise error

    stage.app.use(chat=layer)
    with pytest.raises(Boom) as caught:
        await stage.enter_and_leave()
    assert caught.value is error
    assert stage.log == ["model", "chat", "agent", "run"]


async def test_s5_what_a_finally_raises_does_not_replace_the_exception_of_the_body() -> None:
    stage, error = Stage(), Boom("of the body")

    async def layer(call: Any, next: Any) -> Any:
        try:
            return await next()
        finally:
            raise ValueError("in a finally")

    stage.app.use(chat=layer)
    with pytest.raises(Boom) as caught:
        await stage.enter_and_leave(error)
    assert caught.value is error


# --- the run's own end -----------------------------------------------------------------------------------------------


async def test_s5_before_the_end_the_result_says_that_the_run_has_not_ended() -> None:
    stage = Stage()
    async with stage.stream() as stream:
        await stage.blocked.wait()
        with pytest.raises(ContractError, match=r"the run has not ended.*; read the stream to its end first$"):
            stream.result  # noqa: B018 - reading it is what raises


@pytest.mark.parametrize("error", [Boom("x"), KeyboardInterrupt("x"), ExceptionGroup("g", [Boom()])], ids=repr)
@pytest.mark.parametrize("scope", SCOPES)
async def test_s5_iteration_and_result_raise_the_runs_error_and_leaving_adds_nothing(
    scope: str, error: BaseException
) -> None:
    """B27: the same object, not in a group; also an interrupt that a layer raised."""

    async def fail(call: Any, next: Any) -> Any:
        raise error

    scene = Scene(scope, fail)
    async with scene.app.stream(scene.agent, "hi") as stream:
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                [event async for event in stream]
            assert caught.value is error
        with pytest.raises(type(error)) as caught:
            stream.result  # noqa: B018 - reading it is what raises
        assert caught.value is error
    assert [event.outcome for event in scene.events if isinstance(event, RunFinished)] == ["failed"]


@pytest.mark.parametrize("error", [Boom("x"), KeyboardInterrupt("x")], ids=repr)
async def test_s5_the_runs_error_comes_out_of_the_block_as_itself(error: BaseException) -> None:
    read: list[str] = []
    with pytest.raises(type(error)) as caught:
        await read_all(Agent(model=ScriptedModel([["he", error]])), read)
    assert caught.value is error
    assert read == ["he"]


async def read_all(target: Any, read: list[str]) -> None:
    async with App().stream(target, "hi") as stream:
        async for event in stream:
            read.extend([event.text] if isinstance(event, TextDelta) else [])


async def leave_unread(model: ScriptedModel, error: Exception | None = None) -> None:
    async with App().stream(Agent(model=model), "hi"):
        await anyio.wait_all_tasks_blocked()
        if error is not None:
            raise error


async def test_s5_leaving_a_run_that_has_failed_unread_adds_nothing() -> None:
    await leave_unread(ScriptedModel([Boom()]))


async def test_s5_leaving_a_run_that_has_failed_unread_keeps_the_exception_of_the_body() -> None:
    with pytest.raises(ValueError, match="body"):
        await leave_unread(ScriptedModel([KeyboardInterrupt()]), ValueError("body"))


async def test_m6_an_interrupt_that_nobody_has_read_comes_out_of_the_block() -> None:
    error = KeyboardInterrupt("x")
    with pytest.raises(KeyboardInterrupt) as caught:
        await leave_unread(ScriptedModel([error]))
    assert caught.value is error


async def test_s5_an_error_of_a_run_that_never_began_comes_out_of_the_stream_too() -> None:
    with pytest.raises(Exception, match="no agent 'nobody'"):
        await read_all("nobody", [])


async def test_s5_a_stream_read_to_its_end_ends_again_and_keeps_its_result() -> None:
    async with App().stream(Agent(model=ScriptedModel(["hello"])), "hi") as stream:
        events = [event async for event in stream]
        assert [event async for event in stream] == []
        assert events[-1].type == "RunFinished"
    assert stream.result.text == "hello"


async def test_s5_reading_may_pause_and_go_on() -> None:
    async with App().stream(Agent(model=ScriptedModel([["x"] * 30])), "hi") as stream:
        first = [await anext(stream) for _ in range(5)]
        await anyio.wait_all_tasks_blocked()
        rest = [event async for event in stream]
    assert [event.seq for event in first + rest] == list(range(1, len(first + rest) + 1))


# --- wrong use -------------------------------------------------------------------------------------------------------


async def test_s5_a_stream_is_read_inside_its_block_and_by_one_task_and_entered_once() -> None:
    stage = Stage()
    stream = stage.stream()
    with pytest.raises(ContractError, match=r"inside its block; write: async with app.stream\(...\) as stream$"):
        await anext(stream)

    async def consume() -> None:
        async for _ in stream:
            pass

    async with anyio.create_task_group() as tasks, stream:
        tasks.start_soon(consume)
        await stage.blocked.wait()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ContractError, match=r"read by another task; read it in one, and hand the events on$"):
            await anext(stream)
    with pytest.raises(ContractError, match=r"entered before; call app.stream\(...\) again for another run$"):
        await stream.__aenter__()


@pytest.mark.parametrize("leave", ["aclose", "drop", "wait_for"])
def test_s5_a_block_may_be_left_in_another_task_than_it_was_entered_in(leave: str) -> None:
    """As an async generator around it does that is dropped, or read with a timeout of its own for each item."""
    log: list[str] = []

    async def layer(call: Any, next: Any) -> Any:
        try:
            return await next()
        finally:
            log.append("ended")

    async def body() -> Any:
        async with App().use(chat=layer).stream(Agent(model=ScriptedModel([["a"] * 40])), "hi") as stream:
            async for event in stream:
                yield event

    async def read_elsewhere() -> None:
        with anyio.CancelScope() as around:
            generator = body()
            await asyncio.create_task(generator.__anext__())
            await asyncio.wait_for(generator.__anext__(), 10)
            if leave == "aclose":
                await asyncio.create_task(generator.aclose())
            del generator
        assert not around.cancelled_caught
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(read_elsewhere())
    assert log == ["ended"]


@pytest.mark.anyio
async def test_s5_a_generator_around_a_stream_may_be_left_early_within_aclosing() -> None:
    async def body() -> Any:
        async with App().stream(Agent(model=ScriptedModel([["a"] * 40])), "hi") as stream:
            async for event in stream:
                yield event

    with anyio.fail_after(5):
        async with aclosing(body()) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break


@pytest.fixture
def no_garbage_is_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@on_asyncio
async def test_s5_a_generator_that_a_cancelled_task_has_dropped_ends_the_run(no_garbage_is_collected: None) -> None:
    """Also where the traceback of the cancellation holds it in a cycle, as it does when a task group has cancelled."""
    stage, sending = Stage(), asyncio.Event()

    async def body() -> Any:
        async with stage.stream() as stream:
            async for event in stream:
                yield event

    async def send() -> None:
        cycle: list[Any] = [body()]
        cycle.append(cycle)
        async for event in cycle[0]:
            if isinstance(event, TextDelta):
                sending.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(send())
    await sending.wait()
    task.cancel()
    with anyio.fail_after(5):
        await stage.finished.wait()
    stage.check_all_over()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("behind", [0, 20])
def test_s5_a_loop_that_ends_while_a_run_waits_for_its_reader_ends_the_run(backend: str, behind: int) -> None:
    """Nobody reads on by then: the generator around the stream is closed only when all tasks have ended."""
    outcomes: list[str] = []
    kept: list[Any] = []

    def note(event: Any) -> None:
        if isinstance(event, RunFinished):
            outcomes.append(event.outcome)

    async def body() -> Any:
        async with App().observe(note).stream(Agent(model=ScriptedModel([["a"] * 100])), "hi") as stream:
            async for event in stream:
                yield event

    async def main() -> None:
        kept.append(body())
        await anext(kept[0])
        for _ in range(behind):
            await anyio.lowlevel.checkpoint()

    anyio.run(main, backend=backend)
    assert outcomes in ([], ["cancelled"])
    assert outcomes or not behind
