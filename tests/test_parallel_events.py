"""Events of steps that run at the same time in tasks of a hook's own (S1, S8, S9): none is lost when one step ends
early, whoever was delivering by then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from middlechain import Agent, App, Context, Event, TextDelta, ToolUse, tool
from middlechain.testing import ScriptedModel, collect

from .scenes import delegating

pytestmark = pytest.mark.anyio

CHUNKS = 40


class Branches:
    """An agent whose hook runs two steps at once: one with tools, `first`, which is cancelled by `cancel`, and one that
    talks, `second`, which begins when `begin` is set."""

    def __init__(self, in_tool: Callable[[Context], Awaitable[None]], *, nested: bool) -> None:
        self.scope = anyio.CancelScope()
        self.begin = anyio.Event()

        @tool(name="work")
        async def work(ctx: Context) -> str:
            await in_tool(ctx)
            await anyio.sleep_forever()
            return "never"

        first = Agent(name="first", model=ScriptedModel([[ToolUse("work"), ToolUse("work")]]), tools=[work])
        second = Agent(name="second", model=ScriptedModel([["x"] * CHUNKS]))
        self.first, self.second = first, delegating(second) if nested else second
        self.agent = Agent(name="root", model=ScriptedModel(["done"]), hooks=[{"before_run": self.run}])

    async def run(self, value: Any, ctx: Context) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.run_first, ctx)
            await self.begin.wait()
            await ctx.run(self.second, "sub")

    async def run_first(self, ctx: Context) -> None:
        with self.scope:
            await ctx.run(self.first, "sub")


def check(read: list[Event]) -> None:
    assert sum(isinstance(event, TextDelta) and event.agent == "second" for event in read) == CHUNKS
    assert read[-1].type == "RunFinished"


every_depth = pytest.mark.parametrize("nested", [False, True])


@every_depth
async def test_s9_none_is_lost_when_a_step_is_cancelled_while_the_other_one_talks(nested: bool) -> None:
    async def in_tool(ctx: Context) -> None:
        branches.begin.set()

    branches = Branches(in_tool, nested=nested)
    read: list[Event] = []
    with anyio.fail_after(2):
        async with App().stream(branches.agent, "hi") as stream:
            async for event in stream:
                read.append(event)
                await anyio.wait_all_tasks_blocked()
                if isinstance(event, TextDelta) and not branches.scope.cancel_called:
                    branches.scope.cancel()
    check(read)


@every_depth
async def test_s9_none_is_lost_when_the_step_that_waits_for_the_reader_is_cancelled(nested: bool) -> None:
    """The first step delivers and waits for the reader; its own tools and the second step wait behind it."""

    async def in_tool(ctx: Context) -> None:
        branches.begin.set()
        while True:
            await ctx.emit("noise")

    branches = Branches(in_tool, nested=nested)
    read: list[Event] = []
    with anyio.fail_after(2):
        async with App().stream(branches.agent, "hi") as stream:
            await anyio.wait_all_tasks_blocked()
            while not branches.begin.is_set():
                read.append(await anext(stream))
                await anyio.wait_all_tasks_blocked()
            await anyio.wait_all_tasks_blocked()
            branches.scope.cancel()
            read += [event async for event in stream]
    check(read)


@every_depth
@pytest.mark.parametrize("kind", ["ModelStarted", "TextDelta", "AgentFinished"])
async def test_s9_none_is_lost_when_the_step_whose_task_observes_is_cancelled(nested: bool, kind: str) -> None:
    """An observer waits with an event of the second step, in the task of the first, when that is cancelled."""

    async def in_tool(ctx: Context) -> None:
        branches.begin.set()

    async def observer(event: Event) -> None:
        if event.agent == "second" and event.type == kind and not branches.scope.cancel_called:
            branches.scope.cancel()
            await anyio.lowlevel.checkpoint()

    branches = Branches(in_tool, nested=nested)
    with anyio.fail_after(2):
        events, _ = await collect(App().observe(observer).stream(branches.agent, "hi"))
    check(events)
    assert any(event.agent == "second" and event.type == kind for event in events)
