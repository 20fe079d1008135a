"""W5, counted: what each of many runs in flight holds while all of them wait, at the model or at a tool."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from bare import Bare, Request, Said
from ours import Instant
from samples import Row

import middlechain as mc

Run: TypeAlias = Callable[[], Coroutine[Any, Any, object]]  # Any: as in `Inner`

AT_ONCE = 1_000
KIB = 1_024


class Gate:
    """Where runs wait while it is closed, until it is `full`: until all `AT_ONCE` are there."""

    def __init__(self) -> None:
        self.full = asyncio.Event()
        self._waiting = 0
        self._open = asyncio.Event()
        self._open.set()

    def open(self) -> None:
        """Let all go on."""
        self._open.set()

    def close(self) -> None:
        """Let those wait who come from now on."""
        self._open.clear()
        self.full.clear()
        self._waiting = 0

    async def enter(self) -> None:
        """Wait while it is closed."""
        self._waiting += 1
        if self._waiting == AT_ONCE:
            self.full.set()
        await self._open.wait()

    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        await self.enter()
        return a + b


class HeldInstant(Instant):
    """`Instant`, whose text lies behind a gate."""

    def __init__(self, until: int, gate: Gate) -> None:
        super().__init__(until)
        self._gate = gate

    async def chat(self, call: mc.ChatCall) -> mc.ChatReply:
        """Answer."""
        reply = await super().chat(call)
        if not reply.tool_calls:
            await self._gate.enter()
        return reply


class HeldBare(Bare):
    """`Bare`, whose text and whose tool lie behind gates."""

    def __init__(self, until: int, model: Gate, tool: Gate) -> None:
        super().__init__(until)
        self._gate = model
        self._tools = {"add": tool.add}

    async def _model(self, request: Request) -> Said:
        reply = await super()._model(request)
        if not reply.uses:
            await self._gate.enter()
        return reply


@dataclass(frozen=True, slots=True)
class Load:
    """What one run in flight holds: its bytes with those of its caller's task, and its tasks beside that one."""

    bytes: float
    tasks: float


async def load(run: Run, gate: Gate) -> Load:
    """What each of `AT_ONCE` runs holds while all of them wait at the gate."""
    gate.close()
    others = len(asyncio.all_tasks())
    gc.collect()  # objects kept for reuse would not be counted
    tracemalloc.start()
    try:
        async with asyncio.TaskGroup() as callers:
            for _ in range(AT_ONCE):
                callers.create_task(run())
            await gate.full.wait()
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            tasks = len(asyncio.all_tasks()) - others - AT_ONCE
            gate.open()
    finally:
        tracemalloc.stop()
    return Load(held / AT_ONCE, tasks / AT_ONCE)


async def loads() -> list[Row]:
    """The rows of W5 that are counted."""
    at_model, at_tool = Gate(), Gate()
    target = mc.Agent(model=HeldInstant(3, at_model), tools=[at_tool.add])
    ours = partial(mc.App().run, target, "hi")
    bare = partial(HeldBare(3, at_model, at_tool).run, "hi")
    rows: list[Row] = []
    for place, gate, most_kib, most_tasks in (("the model", at_model, 10, 0), ("a tool", at_tool, None, 1)):
        for run in (ours, bare):
            await load(run, gate)  # tables that grow once, and what only a first run makes
        mine, theirs = await load(ours, gate), await load(bare, gate)
        kib = mine.bytes / KIB
        rows.append(Row(f"W5 each run that waits for {place}", mine.bytes, theirs.bytes, kib, "KiB", most_kib, "bytes"))
        rows.append(Row("   its tasks", mine.tasks, theirs.tasks, mine.tasks, "tasks", most_tasks, "tasks"))
    return rows
