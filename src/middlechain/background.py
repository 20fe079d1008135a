"""A task that belongs to no task group: the run behind a stream, which its reader may leave from any task.

A task group has to be left in the task that entered it, and a web framework drops the generator around a stream in
another one. Whoever starts a task here sees to its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any
from weakref import ref

import anyio.lowlevel

__all__ = ["on_cancelled", "start_task"]


# An event loop of asyncio does not keep its tasks alive, and a stream that was dropped is no one to do so.
_running: set[Any] = set()


def start_task(function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], bool]:
    """Start `function()` in a task of its own, on a copy of the caller's context variables.

    Args:
        function: handles what it raises itself, since nobody else sees it.

    Returns:
        Whether the task itself is being cancelled, as by a loop that ends; on trio it never says so.
    """
    loop: Any = anyio.lowlevel.current_token().native_token  # anyio itself has tasks in groups alone
    if hasattr(loop, "create_task"):
        task = loop.create_task(function())
        _running.add(task)
        task.add_done_callback(_running.discard)
        return lambda: bool(task.cancelling())
    import trio

    trio.lowlevel.spawn_system_task(function, context=copy_context())
    return lambda: False


def on_cancelled(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback()` when the current task ends by being cancelled; what is returned forgets about it.

    On trio, which tells nobody of that, nothing happens.
    """
    if not hasattr(anyio.lowlevel.current_token().native_token, "create_task"):
        return lambda: None

    def done(task: Any) -> None:
        if task.cancelled():
            callback()

    current = sys.modules["asyncio"].current_task()
    current.add_done_callback(done)
    task = ref(current)  # weak, since it may hold the very generator that is dropped

    def forget() -> None:
        still = task()
        if still is not None:
            still.remove_done_callback(done)

    return forget
