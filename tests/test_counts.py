"""What a run may cost, counted and not timed, so that a busy machine cannot change the verdict."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import anyio.to_thread
import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    Layers,
    Limits,
    TextDelta,
    ToolUse,
    User,
    tool,
)
from middlechain.testing import collect
from tests.conftest import Go

Work = Callable[[], Awaitable[Any]]

AT_ONCE = 1_000  # runs


@tool
async def add(a: int, b: int) -> int:
    return a + b


@tool
def slowly(a: int, b: int) -> int:
    return a + b


class Instant:
    """Answers at once, and keeps nothing: with tool calls as long as there are any left to make."""

    name = "instant"

    def __init__(self, calls: int = 0, name: str = "add", parallel: int = 1) -> None:
        self.until = 1 + calls * (1 + parallel)
        self.uses = tuple(ToolUse(name, '{"a": 1, "b": 2}', f"c{n}") for n in range(parallel))

    async def chat(self, call: ChatCall) -> ChatReply:
        more = len(call.messages) < self.until
        return ChatReply("", self.uses, finish_reason="tool_calls") if more else ChatReply("done", finish_reason="stop")


async def silent(call: Any, next: Any) -> Any:
    return await next()


def agent(calls: int = 0, name: str = "add", parallel: int = 1, layers: int = 0) -> Agent:
    stack = [Layers(chat=[silent] * layers, tool=[silent] * layers)] if layers else []
    return Agent(model=Instant(calls, name, parallel), tools=[add, slowly], middleware=stack)


async def python_calls(work: Work) -> int:
    """How many Python functions are entered or resumed meanwhile, once everything is warm."""
    await work()
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    gc.disable()  # others have callbacks in it
    sys.setprofile(count)
    try:
        await work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_a_silent_layer_costs_a_fixed_number_of_python_calls() -> None:
    app = App()

    async def each(low: int, high: int) -> float:
        without = await python_calls(lambda: app.run(agents[low], "hi"))
        return (await python_calls(lambda: app.run(agents[high], "hi")) - without) / (high - low)

    agents = {layers: agent(layers=layers) for layers in (1, 10, 50)}
    assert asyncio.run(each(1, 10)) == asyncio.run(each(10, 50)) <= 5


@pytest.mark.parametrize("messages", [1, 100, 1000])
def test_w7_no_python_call_touches_a_message_of_the_history(messages: int) -> None:
    app, one = App(), agent()
    said = [User("hi"), Assistant("ho")] * messages

    async def more() -> int:
        without = await python_calls(lambda: app.run(one, "hi"))
        return await python_calls(lambda: app.run(one, "hi", history=said)) - without

    assert asyncio.run(more()) == 0


def test_w7_each_further_tool_call_costs_the_same() -> None:
    app = App(limits=Limits(turns=None))

    async def calls(count: int) -> int:
        one = agent(calls=count)
        return await python_calls(lambda: app.run(one, "hi"))

    ten, twenty, forty = (asyncio.run(calls(count)) for count in (10, 20, 40))
    assert forty - twenty == 2 * (twenty - ten)


@pytest.mark.parametrize(
    ("one", "tasks", "threads"),
    [
        (agent(), 0, 0),
        (agent(layers=50), 0, 0),
        (agent(calls=1), 1, 0),
        (agent(calls=1, layers=50), 1, 0),
        (agent(calls=1, parallel=5), 5, 0),
        (agent(calls=1, name="slowly"), 1, 1),
    ],
    ids=["a turn", "layers", "a tool", "a tool in layers", "five tools", "a tool in a thread"],
)
def test_a_run_has_no_task_and_a_tool_call_has_one(
    one: Agent, tasks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops = 0
    run_sync = anyio.to_thread.run_sync

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal hops
        hops += 1
        return await run_sync(*args, **kwargs)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counted)

    async def count() -> int:
        made = 0

        def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            nonlocal made
            made += 1
            return asyncio.Task(coroutine, loop=loop, **options)

        asyncio.get_running_loop().set_task_factory(factory)
        await App().run(one, "hi")
        return made

    assert (asyncio.run(count()), hops) == (tasks, threads)


class Gate:
    """Where runs wait, as they would for a server, until it is full and opened."""

    def __init__(self) -> None:
        self.close()

    def close(self) -> None:
        self.full, self.opened, self.waiting = asyncio.Event(), asyncio.Event(), 0

    async def enter(self) -> None:
        self.waiting += 1
        if self.waiting == AT_ONCE:
            self.full.set()
        await self.opened.wait()

    def before_the_answer(self) -> Agent:
        gate = self

        class Held(Instant):
            async def chat(self, call: ChatCall) -> ChatReply:
                reply = await super().chat(call)
                if not reply.tool_calls:
                    await gate.enter()
                return reply

        return Agent(model=Held(calls=1), tools=[add])

    def in_the_tool(self) -> Agent:
        async def add(a: int, b: int) -> int:
            await self.enter()
            return a + b

        return Agent(model=Instant(calls=1), tools=[add])


async def while_all_wait(gate: Gate, run: Callable[[], Coroutine[Any, Any, Any]], look: Callable[[], int]) -> int:
    """What there is to see while `AT_ONCE` runs, each begun in a task, wait at the gate."""
    gate.close()
    async with asyncio.TaskGroup() as callers:
        for _ in range(AT_ONCE):
            callers.create_task(run())
        await gate.full.wait()
        seen = look()
        gate.opened.set()
    return seen


@pytest.mark.parametrize(("held", "tasks"), [(Gate.before_the_answer, 0), (Gate.in_the_tool, 1)])
def test_w5_a_run_in_flight_has_no_task_beside_its_callers_and_its_tools(
    held: Callable[[Gate], Agent], tasks: int
) -> None:
    async def beside_callers() -> int:
        gate, others = Gate(), len(asyncio.all_tasks())
        one = held(gate)
        there = await while_all_wait(gate, lambda: App().run(one, "hi"), lambda: len(asyncio.all_tasks()))
        assert len(asyncio.all_tasks()) == others  # none is left behind
        return there - others - AT_ONCE

    assert asyncio.run(beside_callers()) == tasks * AT_ONCE


def test_w5_a_run_that_waits_for_its_model_holds_less_than_ten_kibibytes() -> None:
    async def kibibytes() -> float:
        app, gate = App(), Gate()
        one = gate.before_the_answer()
        await while_all_wait(gate, lambda: app.run(one, "hi"), lambda: 0)  # what is made once, and tables that grow
        before = traced()
        return (await while_all_wait(gate, lambda: app.run(one, "hi"), traced) - before) / AT_ONCE / 1024

    with memory_traced():
        each = asyncio.run(kibibytes(), debug=False)  # in debug mode a task remembers where it was made
    assert 1 < each < 10  # its caller's task is in it; less than one would be no measurement


def traced() -> int:
    """The bytes in use. A full collection also frees the objects that Python keeps to use again, which hide others."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@contextmanager
def memory_traced() -> Iterator[None]:
    """Count bytes, and stop what measures coverage or debugs: it makes an object of each frame, which a run has not."""
    tracer = sys.gettrace()
    sys.settrace(None)
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        sys.settrace(tracer)


@pytest.mark.anyio
@pytest.mark.parametrize("layers", [0, 10])
async def test_w7_no_turn_makes_anew_what_the_model_was_shown_before(go: Go, layers: int) -> None:
    calls: list[ChatCall] = []

    class Reader(Instant):
        async def chat(self, call: ChatCall) -> ChatReply:
            calls.append(call)
            return await super().chat(call)

    said, asked = [User("hi"), Assistant("ho")], User("please")
    app = App().use(chat=[silent] * layers) if layers else App()
    result = await go(app, Agent(model=Reader(calls=5), tools=[add]), asked, history=said)
    whole = [*said, asked, *result.messages[1:]]
    assert result.messages[0] is asked
    assert [len(call.messages) for call in calls] == [3, 5, 7, 9, 11]
    for call in calls:
        assert ids(call.messages) == ids(whole[: len(call.messages)])  # the objects themselves, and no copies
        assert call.tools is calls[0].tools
        assert call.settings is calls[0].settings


def ids(things: Iterable[object]) -> list[int]:
    return [id(thing) for thing in things]


def test_w4_a_delta_goes_past_the_layers_that_do_not_touch_it() -> None:
    class Talker:
        name = "talker"

        async def chat(self, call: ChatCall) -> ChatReply:
            sends.append(call.send)
            await call.send(TextDelta("ab"))
            return ChatReply("ab")

    sends: list[Any] = []
    for layers in (0, 50):
        app = App().use(chat=[silent] * layers) if layers else App()
        asyncio.run(_read(app, Agent(model=Talker())))
    bare = "RetractingEdge.sender.<locals>.send"  # whatever is around the call
    assert {send.__qualname__ for send in sends} == {bare}


async def _read(app: App, target: Agent) -> None:
    await collect(app.stream(target, "hi"))
