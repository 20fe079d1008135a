"""How often, and when, a layer may call `next()` (M5)."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import anyio
import pytest

from middlechain import FatalToolError, NextCalledAgain, NextCalledLate, NothingReturned, ToolMessage, repeats

from .scenes import BLOCK, SCOPES, Boom, Go, Scene, said

pytestmark = pytest.mark.anyio
every_scope = pytest.mark.parametrize("scope", SCOPES)
failure = FatalToolError("once")


async def twice(call: Any, next: Any) -> Any:
    await next()
    return await next()


async def twice_with_copies(call: Any, next: Any) -> Any:
    await next(call.replace())
    return await next(call.replace())


async def retry(call: Any, next: Any) -> Any:
    try:
        return await next()
    except FatalToolError:
        return await next()


async def once_more_and_keep(call: Any, next: Any) -> None:
    await next()
    await next()


# --- again -----------------------------------------------------------------------------------------------------------


@every_scope
async def test_m5_next_may_be_called_again_after_it_raised(scope: str, go: Go) -> None:
    """B07 (a): a retry."""
    scene = Scene(scope, retry, script=[failure])
    assert (await scene.go(go), scene.ran) == ("inner 2", 2)


@every_scope
async def test_m5_the_layers_inside_a_retry_run_again_too(scope: str, go: Go) -> None:
    """B07 (a): one after the other, and one answer is recorded."""
    trace: list[str] = []

    async def inside(call: Any, next: Any) -> Any:
        trace.append("in")
        try:
            return await next()
        finally:
            trace.append("out")

    scene = Scene(scope, retry, inside, script=[failure])
    result = await go(scene.app, scene.agent, "hi")
    assert trace == ["in", "out", "in", "out"]
    if scope == "tool":
        assert [type(message) for message in result.messages].count(ToolMessage) == 1
    else:
        assert len(result.messages) == 2


@every_scope
async def test_m5_next_may_be_called_again_after_it_was_cancelled(scope: str, go: Go) -> None:
    async def timeout(call: Any, next: Any) -> Any:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_when_blocked, tasks)
            await next()
        return await next()

    async def cancel_when_blocked(tasks: Any) -> None:
        await scene.blocked.wait()
        tasks.cancel_scope.cancel()

    scene = Scene(scope, timeout, script=[BLOCK])
    assert (await scene.go(go), scene.ran, scene.cleaned_up) == ("inner 2", 2, True)


@every_scope
@pytest.mark.parametrize("layer", [twice, twice_with_copies, once_more_and_keep])
async def test_m5_next_again_after_it_succeeded_is_refused(scope: str, layer: Any, go: Go) -> None:
    """B07: it would run and charge twice in silence; copies made with `.replace()` do not dodge the count."""
    scene = Scene(scope, layer)
    with pytest.raises(NextCalledAgain, match=rf"{scope} layer '{layer.__name__}' .*mark the layer with @repeats$"):
        await scene.go(go)
    assert scene.ran == 1


@every_scope
async def test_m5_next_again_is_refused_after_a_retry_that_succeeded(scope: str, go: Go) -> None:
    async def restless(call: Any, next: Any) -> Any:
        await retry(call, next)
        return await next()

    scene = Scene(scope, restless, script=[failure])
    with pytest.raises(NextCalledAgain, match="restless"):
        await scene.go(go)
    assert scene.ran == 2


@every_scope
async def test_m5_the_first_success_holds_when_the_refusal_is_caught(scope: str, go: Go) -> None:
    async def stubborn(call: Any, next: Any) -> None:
        await next()
        with pytest.raises(NextCalledAgain):
            await next()

    scene = Scene(scope, stubborn)
    assert (await scene.go(go), scene.ran) == ("inner 1", 1)


@every_scope
async def test_m5_the_same_layer_may_call_next_once_in_each_of_several_calls(scope: str, go: Go) -> None:
    """The count belongs to one crossing, not to the layer."""
    scene = Scene(scope, *[partial(twice_never)] * 3)
    assert [await scene.go(go), scene.ran] == ["inner 1", 1]
    assert [await scene.go(go), scene.ran] == ["inner 2", 2]


async def twice_never(call: Any, next: Any) -> Any:
    return await next()


# --- @repeats --------------------------------------------------------------------------------------------------------


@every_scope
async def test_m5_a_layer_marked_repeats_may_go_again_and_none_keeps_the_last_success(scope: str, go: Go) -> None:
    scene = Scene(scope, repeats(partial(once_more_and_keep)))
    assert (await scene.go(go), scene.ran) == ("inner 2", 2)


@every_scope
async def test_m5_a_layer_marked_repeats_may_choose_the_first_answer(scope: str, go: Go) -> None:
    @repeats
    async def first_of_two(call: Any, next: Any) -> Any:
        first = await next()
        await next()
        return first

    scene = Scene(scope, first_of_two)
    assert (await scene.go(go), scene.ran) == ("inner 1", 2)


@every_scope
async def test_m5_the_last_success_is_kept_when_a_later_next_fails(scope: str, go: Go) -> None:
    @repeats
    async def daring(call: Any, next: Any) -> None:
        await next()
        with pytest.raises(FatalToolError):
            await next()

    scene = Scene(scope, daring, script=["fine", failure])
    assert (await scene.go(go), scene.ran) == ("fine", 2)


@every_scope
async def test_m5_an_object_of_a_class_marked_repeats_is_marked(scope: str, go: Go) -> None:
    @repeats
    class Again:
        async def __call__(self, call: Any, next: Any) -> Any:
            return await twice(call, next)

    scene = Scene(scope, Again())
    assert (await scene.go(go), scene.ran) == ("inner 2", 2)


async def test_m5_a_method_of_a_bundle_can_be_marked_repeats(go: Go) -> None:
    class Best:
        @repeats
        async def chat(self, call: Any, next: Any) -> Any:
            return await twice(call, next)

    scene = Scene("chat")
    scene.app.use(Best())
    assert (await scene.go(go), scene.ran) == ("inner 2", 2)


def test_m5_repeats_gives_back_the_same_object() -> None:
    assert repeats(twice_never) is twice_never
    del twice_never.__repeats__  # type: ignore[attr-defined]  # the mark, so that other tests find it as it was


# --- two at once -----------------------------------------------------------------------------------------------------


@every_scope
@pytest.mark.parametrize("mark", [repeats, lambda layer: layer], ids=["repeats", "bare"])
async def test_m5_two_calls_of_next_at_once_are_always_refused(scope: str, mark: Any, go: Go) -> None:
    """B07 (c): never two answers for one call."""
    refused: list[str] = []

    async def gather(call: Any, next: Any) -> None:
        async def one() -> None:
            try:
                await next()
            except NextCalledAgain as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)

    class Yielding:
        async def __call__(self, call: Any, next: Any) -> Any:
            await anyio.lowlevel.checkpoint()
            return await next()

    scene = Scene(scope, mark(gather), Yielding())
    assert (await scene.go(go), scene.ran) == ("inner 1", 1)
    [message] = refused
    assert f"{scope} layer" in message
    assert "gather" in message
    assert message.endswith("await one before the other")


# --- late ------------------------------------------------------------------------------------------------------------


@every_scope
async def test_m5_a_next_called_after_its_layer_returned_raises(scope: str, go: Go) -> None:
    """B07 (b): a stored `next` does nothing, then."""
    stored: list[Any] = []

    async def hoard(call: Any, next: Any) -> str:
        stored.append(next)
        return "early"

    scene = Scene(scope, hoard)
    assert await scene.go(go) == "early"
    with pytest.raises(NextCalledLate, match=rf"{scope} layer .*hoard.*; await it inside the layer, before its return"):
        await stored[0]()
    assert scene.ran == 0


@every_scope
async def test_m5_a_next_called_late_raises_also_after_a_success_and_with_repeats(scope: str, go: Go) -> None:
    stored: list[Any] = []

    @repeats
    async def hoard(call: Any, next: Any) -> Any:
        stored.append(next)
        return await next()

    scene = Scene(scope, hoard)
    await scene.go(go)
    with pytest.raises(NextCalledLate):
        await stored[0]()
    assert scene.ran == 1


@every_scope
async def test_m5_a_next_called_late_raises_also_within_the_run(scope: str, go: Go) -> None:
    stored: list[Any] = []

    async def outer(call: Any, next: Any) -> Any:
        answer = await next()
        with pytest.raises(NextCalledLate):
            await stored[0]()
        return answer

    async def hoard(call: Any, next: Any) -> Any:
        stored.append(next)
        return "early"

    scene = Scene(scope, outer, hoard)
    assert (await scene.go(go), scene.ran) == ("early", 0)


@every_scope
async def test_m5_a_next_called_after_its_layer_raised_is_late_too(scope: str, go: Go) -> None:
    stored: list[Any] = []

    async def hoard(call: Any, next: Any) -> Any:
        stored.append(next)
        raise Boom

    scene = Scene(scope, hoard)
    with pytest.raises(Boom):
        await scene.go(go)
    with pytest.raises(NextCalledLate):
        await stored[0]()
    assert scene.ran == 0


@every_scope
async def test_m5_a_layer_that_returns_while_its_next_is_running_raises(scope: str, go: Go) -> None:
    async with anyio.create_task_group() as tasks:

        async def hasty(call: Any, next: Any) -> Any:
            tasks.start_soon(next)
            await scene.blocked.wait()
            return "hasty"

        scene = Scene(scope, hasty, script=[BLOCK])
        with pytest.raises(NextCalledLate, match=rf"{scope} layer .*hasty.*still running; await it before the return"):
            await scene.go(go)
        tasks.cancel_scope.cancel()


@every_scope
async def test_m5_an_exception_of_a_layer_whose_next_is_running_is_not_replaced(scope: str, go: Go) -> None:
    async with anyio.create_task_group() as tasks:

        async def hasty(call: Any, next: Any) -> Any:
            tasks.start_soon(next)
            await scene.blocked.wait()
            raise Boom("mine")

        scene = Scene(scope, hasty, script=[BLOCK])
        with pytest.raises(Boom, match="mine"):
            await scene.go(go)
        tasks.cancel_scope.cancel()


# --- never awaited ---------------------------------------------------------------------------------------------------


@every_scope
@pytest.mark.parametrize("value", [None, "mine"])
async def test_m5_a_next_that_was_never_awaited_raises_and_the_message_says_await(
    scope: str, value: str | None, go: Go
) -> None:
    """And no warning of a coroutine that was never awaited: warnings are errors here."""

    async def forgetful(call: Any, next: Any) -> Any:
        next()
        return value

    scene = Scene(scope, forgetful)
    with pytest.raises(
        NothingReturned, match=rf"{scope} layer .*forgetful.*never awaited it.*; write: await next\(\)$"
    ):
        await scene.go(go)
    assert scene.ran == 0


@every_scope
async def test_m5_one_forgotten_next_beside_one_that_was_awaited_raises_too(scope: str, go: Go) -> None:
    async def half(call: Any, next: Any) -> Any:
        next()
        return await next()

    scene = Scene(scope, half)
    with pytest.raises(NothingReturned, match="half"):
        await scene.go(go)


@every_scope
async def test_m5_a_layer_that_raises_after_it_forgot_to_await_next_raises_as_itself(scope: str, go: Go) -> None:
    async def careless(call: Any, next: Any) -> Any:
        next()
        raise Boom("mine")

    with pytest.raises(Boom, match="mine"):
        await Scene(scope, careless).go(go)


@every_scope
async def test_m5_a_next_that_was_made_early_and_awaited_later_is_one_call(scope: str, go: Go) -> None:
    async def early(call: Any, next: Any) -> Any:
        going = next()
        await anyio.lowlevel.checkpoint()
        return said(await going) + "!"

    scene = Scene(scope, early)
    assert (await scene.go(go), scene.ran) == ("inner 1!", 1)


@every_scope
async def test_m5_next_may_be_awaited_in_a_task_of_the_layers_own(scope: str, go: Go) -> None:
    async def hedge(call: Any, next: Any) -> Any:
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await next())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
        return answers[0]

    scene = Scene(scope, hedge)
    assert (await scene.go(go), scene.ran) == ("inner 1", 1)


@every_scope
async def test_m5_a_crash_after_a_forgotten_await_says_that_it_was_forgotten(scope: str, go: Go) -> None:
    async def forgetful(call: Any, next: Any) -> Any:
        return next().text

    with pytest.raises(AttributeError) as raised:
        await Scene(scope, forgetful).go(go)
    [note] = raised.value.__notes__
    assert re.search(rf"the {scope} layer .*forgetful' called next\(\) and never awaited it; write: await next", note)
