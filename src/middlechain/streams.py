"""A stream: a run in a task of its own, and its events as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio

from middlechain.background import start_task
from middlechain.bus import was_cancelled
from middlechain.errors import ContractError
from middlechain.events import Event
from middlechain.results import Result

__all__ = ["Stream"]

AHEAD = 8  # events that a run may be ahead of its reader


class Stream:
    """The events of a run, to be read inside `async with app.stream(...) as stream`.

    Iterating gives each event as it comes and raises the run's error at its end. Leaving the block ends the run: the
    model's stream is closed, tools are cancelled, and every `finally` has run before the block is left.
    """

    def __init__(self, start: Callable[[Stream], Awaitable[Result]]) -> None:
        self._start = start
        self._events: deque[Event] = deque()
        self._scope: anyio.CancelScope
        self._entered = False
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._raised = False
        self._reading = False
        self._closing = False
        self._ended = False
        self._over: anyio.Event
        self._arrived: anyio.Event | None = None
        self._taken: anyio.Event | None = None

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ContractError("this stream was entered before; call app.stream(...) again for another run")
        self._entered = True
        self._over = anyio.Event()
        self._scope = anyio.CancelScope()
        start_task(self._produce)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        await self._until_over()
        if error is None:
            self._raise_unseen()

    async def _until_over(self) -> None:
        """Wait for the end of the run, whatever happens to this task meanwhile."""
        interrupted: BaseException | None = None
        while not self._over.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await self._over.wait()
            except anyio.get_cancelled_exc_class() as cancelled:  # asyncio's own cancel() passes through a shield
                interrupted = cancelled
        if interrupted is not None:
            raise interrupted

    def _raise_unseen(self) -> None:
        """Raise what came while the run was being closed, or an interrupt, if nobody has seen it yet."""
        if not self._raised and (self._closing or not isinstance(self._error, Exception)):
            self._raise()

    async def _produce(self) -> None:
        try:
            with self._scope:
                self._result = await self._start(self)
        except BaseException as error:
            if isinstance(error, anyio.get_cancelled_exc_class()) and was_cancelled():
                raise
            self._error = error  # for the reader, as itself: out of a task it would come in a group
        finally:
            self._ended = True
            self._over.set()
            self._wake()

    def put(self, event: Event) -> bool:
        """Called by the run with each event; says whether the reader is `AHEAD` events behind."""
        if self._closing:
            return False
        self._events.append(event)
        if self._arrived is not None:
            self._wake()
        return len(self._events) >= AHEAD

    async def wait(self) -> None:
        """Called by the run when the reader is too far behind."""
        while len(self._events) >= AHEAD and not self._closing:
            if self._taken is None:
                self._taken = anyio.Event()
            await self._taken.wait()

    def _wake(self) -> None:
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._ended or self._closing:
                self._raise()
                raise StopAsyncIteration
            if not self._entered:
                raise ContractError("a stream runs inside its block; write: async with app.stream(...) as stream")
            if self._reading:
                raise ContractError("this stream is being read by another task; read it in one, and hand the events on")
            self._reading = True
            self._arrived = arrived = anyio.Event()
            try:
                await arrived.wait()
            finally:
                self._reading = False
                self._arrived = None
        event = self._events.popleft()
        if not self._events and self._taken is not None:
            self._taken.set()
            self._taken = None
        return event

    def _raise(self) -> None:
        if self._error is None:
            return
        self._raised = True
        if isinstance(self._error, StopAsyncIteration):  # Python would take it for the end of the stream
            raise RuntimeError("the run raised StopAsyncIteration") from self._error
        raise self._error

    @property
    def result(self) -> Result:
        """The run's result.

        Raises:
            ContractError: before the run has ended, or after it was closed early.
            BaseException: the run's own error, if it has failed.
        """
        self._raise()
        if self._result is not None:
            return self._result
        if self._closing:
            raise ContractError(
                "the stream was closed before its run had ended, so there is no result; read it to its end"
            )
        raise ContractError("the run has not ended, so there is no result yet; read the stream to its end first")

    def _close(self) -> None:
        if not self._ended:
            self._closing = True
            self._events.clear()
            self._scope.cancel()
            self._wake()
            if self._taken is not None:
                self._taken.set()

    async def aclose(self) -> None:
        """End the run as leaving the block does, and wait until it has ended. May be called again, from any task."""
        if self._entered:
            self._close()
            await self._over.wait()  # without a shield, since the run itself may have called this
            self._raise_unseen()
