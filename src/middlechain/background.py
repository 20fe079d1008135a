"""A task that belongs to no task group: the run behind a stream, which its reader may leave from any task.

A task group has to be left in the task that entered it, and a web framework drops the generator around a stream in
another one. Whoever starts a task here sees to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

import anyio.lowlevel

__all__ = ["start_task"]


# An event loop of asyncio does not keep its tasks alive, and a stream that was dropped is no one to do so.
_running: set[Any] = set()


def start_task(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start `function()` in a task of its own, on a copy of the caller's context variables.

    Args:
        function: handles what it raises itself, since nobody else sees it.
    """
    loop: Any = anyio.lowlevel.current_token().native_token  # anyio itself has tasks in groups alone
    if hasattr(loop, "create_task"):
        task = loop.create_task(function())
        _running.add(task)
        task.add_done_callback(_running.discard)
        return
    import trio

    trio.lowlevel.spawn_system_task(function, context=copy_context())
