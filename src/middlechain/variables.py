"""Context variables without a task: how a run, and each tool call in it, has a copy of its own (M8)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as Variables
from typing import Any, Generic, TypeVar

__all__ = ["Variables", "RunIn"]

T = TypeVar("T")


class RunIn(Generic[T]):
    """Await a coroutine with context variables of its own, without a task: `await RunIn(variables, coroutine)`."""

    __slots__ = ("_coroutine", "_variables")

    def __init__(self, variables: Variables, coroutine: Coroutine[Any, Any, T]) -> None:
        self._variables = variables
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        enter, coroutine = self._variables.run, self._coroutine
        step: Callable[[Any], Any] = coroutine.send
        sent: Any = None
        while True:
            try:
                waited_for = enter(step, sent)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                sent = yield waited_for
                step = coroutine.send
            except GeneratorExit:
                enter(coroutine.close)
                raise
            except BaseException as thrown:  # noqa: BLE001 - a cancellation on its way in: it belongs to the coroutine
                sent = thrown
                step = coroutine.throw
