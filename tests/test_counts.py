"""What a run may cost, counted and not timed, so that a busy machine cannot change the verdict."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
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

Work = Callable[[], Awaitable[Any]]


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
    assert {send.__qualname__ for send in sends} == {"Edge.sender.<locals>.send"}  # bare, whatever is around the call


async def _read(app: App, target: Agent) -> None:
    await collect(app.stream(target, "hi"))
