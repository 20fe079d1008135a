"""What layers raise, and what they see of what is inside them (M6, M11)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from middlechain import Agent, App, FatalToolError, RunFinished, TextDelta, ToolError, ToolOutput, ToolUse, tool
from middlechain.testing import ScriptedModel, collect

from .scenes import BLOCK, SCOPES, Boom, Go, Scene, delegating

pytestmark = pytest.mark.anyio
every_scope = pytest.mark.parametrize("scope", SCOPES)


def before(error: BaseException) -> Callable[..., Any]:
    async def fails_before(call: Any, next: Any) -> Any:
        raise error

    return fails_before


def after(error: BaseException) -> Callable[..., Any]:
    async def fails_after(call: Any, next: Any) -> Any:
        await next()
        raise error

    return fails_after


def sync(error: BaseException) -> Callable[..., Any]:
    def fails_at_once(call: Any, next: Any) -> Any:
        raise error

    return fails_at_once


def degrading(heard: list[Any]) -> dict[str, Any]:
    """An `on_error` that notes what it gets."""

    def on_error(error: Exception, ctx: Any) -> str:
        heard.append(error)
        return "degraded"

    return {"on_error": on_error}


WAYS = [before, after, sync]
ERRORS = [Boom("x"), ValueError("x"), ToolError("x"), FatalToolError("x"), ExceptionGroup("several", [Boom("x")])]

# --- M6 --------------------------------------------------------------------------------------------------------------


@every_scope
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_m6_an_exception_of_a_layer_goes_outward_as_the_same_object(
    scope: str, way: Any, error: Exception, go: Go
) -> None:
    """B11: never wrapped, never in a group, never a tool result."""
    scene = Scene(scope, way(error))
    with pytest.raises(type(error)) as caught:
        await scene.go(go)
    assert caught.value is error
    assert error.__cause__ is None
    assert len(scene.model.calls) == (scope == "tool" or way is after)


@every_scope
async def test_m6_layers_outside_see_the_same_object(scope: str, go: Go) -> None:
    error, seen = Boom("x"), []

    async def outer(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Boom as caught:
            seen.append(caught)
            return "handled"

    assert await Scene(scope, outer, before(error)).go(go) == "handled"
    assert seen == [error]
    assert seen[0] is error


@every_scope
@pytest.mark.parametrize("way", WAYS)
async def test_m6_it_goes_to_on_error_from_every_layer_but_a_run_layer(scope: str, way: Any, go: Go) -> None:
    error = Boom("x")
    heard: list[Exception] = []
    scene = Scene(scope, way(error), hooks=[degrading(heard)])
    if scope == "run":
        with pytest.raises(Boom) as caught:
            await scene.go(go)
        assert (caught.value, heard) == (error, [])
    else:
        result = await go(scene.app, scene.agent, "hi")
        assert (result.text, result.error, heard) == ("degraded", error, [error])


@every_scope
@pytest.mark.parametrize("error", [KeyboardInterrupt("x"), SystemExit(3), BaseException("x")], ids=repr)
async def test_m6_an_interrupt_of_a_layer_passes_on_error_by(scope: str, error: BaseException, go: Go) -> None:
    """B27: as itself, in `run` and out of a stream."""
    heard: list[Any] = []
    scene = Scene(scope, before(error), hooks=[degrading(heard)])
    with pytest.raises(type(error)) as caught:
        await scene.go(go)
    assert (caught.value is error, heard) == (True, [])
    assert [event.outcome for event in scene.events if isinstance(event, RunFinished)] == ["failed"]


@every_scope
@pytest.mark.parametrize("way", WAYS)
async def test_m6_a_stop_iteration_becomes_a_runtime_error_with_it_as_cause(scope: str, way: Any, go: Go) -> None:
    error = StopIteration("x")
    with pytest.raises(RuntimeError) as caught:
        await Scene(scope, way(error)).go(go)
    assert caught.value.__cause__ is error


@every_scope
async def test_m6_on_error_gets_the_runtime_error_of_a_stop_iteration(scope: str, go: Go) -> None:
    error = StopIteration("x")
    heard: list[Exception] = []
    scene = Scene(scope, sync(error), hooks=[degrading(heard)])
    if scope == "run":
        with pytest.raises(RuntimeError):
            await scene.go(go)
    else:
        await go(scene.app, scene.agent, "hi")
        assert [(type(one), one.__cause__) for one in heard] == [(RuntimeError, error)]


@every_scope
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
async def test_m6_neither_stop_iteration_nor_stop_async_iteration_is_the_end_of_a_stream(
    scope: str, way: Any, kind: type[Exception]
) -> None:
    error = kind("x")
    scene = Scene(scope, way(error))
    async with scene.app.stream(scene.agent, "hi") as stream:
        with pytest.raises(RuntimeError) as caught:
            [event async for event in stream]
        assert caught.value.__cause__ is error
        with pytest.raises(RuntimeError) as again:
            stream.result  # noqa: B018 - reading it is what raises
        assert again.value.__cause__ is error


@every_scope
async def test_m6_a_stop_async_iteration_leaves_run_as_itself(scope: str) -> None:
    error = StopAsyncIteration("x")
    scene = Scene(scope, before(error))
    with pytest.raises(StopAsyncIteration) as caught:
        await scene.app.run(scene.agent, "hi")
    assert caught.value is error


async def test_m6_an_exception_of_a_tool_layer_is_never_a_tool_result(go: Go) -> None:
    """Also for one call of several: the others are cancelled and awaited, and there is no group."""
    error, ended = Boom("x"), []

    @tool
    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    @tool
    async def works() -> str:
        return "fine"

    async def layer(call: Any, next: Any) -> Any:
        if call.name == "works":
            await anyio.wait_all_tasks_blocked()
            raise error
        return await next()

    model = ScriptedModel([[ToolUse("waits"), ToolUse("works"), ToolUse("waits")], "never"])
    with pytest.raises(Boom) as caught:
        await go(App().use(tool=layer), Agent(model=model, tools=[waits, works]), "hi")
    assert (caught.value is error, len(model.calls), ended) == (True, 1, [True, True])


async def test_m6_a_tool_layer_refuses_with_an_output_that_the_model_can_recover_from(go: Go) -> None:
    scene = Scene("tool", lambda call, go_on: ToolOutput("not allowed", is_error=True))
    result = await go(scene.app, scene.agent, "hi")
    sent = scene.model.calls[1].messages[-1]
    assert (result.text, scene.ran, sent.text, sent.is_error) == ("done", 0, "not allowed", True)  # type: ignore[union-attr]


# --- M11 -------------------------------------------------------------------------------------------------------------


def watching(log: list[str]) -> Callable[..., Any]:
    async def watch(call: Any, next: Any) -> Any:
        try:
            answer = await next()
        except anyio.get_cancelled_exc_class():
            log.append("cancelled")
            raise
        except Exception as error:
            log.append(type(error).__name__)
            raise
        finally:
            log.append("finally")
        log.append("after")
        return answer

    return watch


@every_scope
async def test_m11_a_layer_sees_a_failure_in_mid_stream(scope: str, go: Go) -> None:
    log: list[str] = []
    model = ScriptedModel([["hel", Boom("mid"), "lo"]])
    if scope == "tool":  # a tool whose nested agent fails in mid-stream ends as a result, so it fails in the tool here
        scene = Scene(scope, watching(log), script=[FatalToolError("mid")])
        with pytest.raises(FatalToolError):
            await scene.go(go)
        assert log == ["FatalToolError", "finally"]
        return
    app = App().use(**{scope: watching(log)})
    with pytest.raises(Boom, match="mid"):
        await go(app, Agent(model=model), "hi")
    assert log == ["Boom", "finally"]


@every_scope
async def test_m11_what_follows_next_runs_after_the_last_delta(scope: str) -> None:
    order: list[str] = []

    async def watch(call: Any, next: Any) -> Any:
        try:
            return await next()
        finally:
            order.append("finally")

    app = App().use(**{scope: watch})
    app.observe(lambda event: order.append(event.text) if isinstance(event, TextDelta) else None)

    if scope == "tool":
        agent = delegating(Agent(name="inner", model=ScriptedModel([["a", "b", "c"]])))
    else:
        agent = Agent(model=ScriptedModel([["a", "b", "c"]]))
    await collect(app.stream(agent, "hi"))
    assert order[:4] == ["a", "b", "c", "finally"]


@asynccontextmanager
async def cancelled_when_blocked(scene: Scene) -> AsyncIterator[None]:
    """Cancel what is inside once the scene's innermost waits."""

    async def cancel() -> None:
        await scene.blocked.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        yield


@every_scope
async def test_m11_a_layer_sees_cancellation(scope: str, go: Go) -> None:
    log: list[str] = []
    scene = Scene(scope, watching(log), script=[BLOCK])
    async with cancelled_when_blocked(scene):
        await scene.go(go)
        raise AssertionError("the run went on")
    assert (log, scene.cleaned_up) == (["cancelled", "finally"], True)
    assert [event.outcome for event in scene.events if isinstance(event, RunFinished)] == ["cancelled"]


@every_scope
async def test_m11_a_layer_sees_the_consumer_leave(scope: str) -> None:
    log: list[str] = []
    scene = Scene(scope, watching(log), script=[BLOCK])
    async with scene.app.stream(scene.agent, "hi"):
        await scene.blocked.wait()
        assert log == []
    assert (log, scene.cleaned_up) == (["cancelled", "finally"], True)


@every_scope
async def test_m11_cleanup_that_takes_its_time_is_awaited(scope: str, go: Go) -> None:
    log: list[str] = []

    async def slow(call: Any, next: Any) -> Any:
        try:
            return await next()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                log.append("cleaned up")

    scene = Scene(scope, slow, script=[BLOCK])
    async with cancelled_when_blocked(scene):
        await scene.go(go)
    assert log == ["cleaned up"]


@every_scope
async def test_m11_a_layer_that_turns_a_failure_into_an_answer_saves_the_run(scope: str, go: Go) -> None:
    async def save(call: Any, next: Any) -> Any:
        try:
            return await next()
        except FatalToolError:
            return "saved"

    assert await Scene(scope, save, script=[FatalToolError("x")]).go(go) == "saved"
