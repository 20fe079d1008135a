"""A stream: a run in a task of its own, and its events as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel

from middlechain.append_only import Paragraphs
from middlechain.background import on_cancelled, start_task
from middlechain.chain import settle
from middlechain.errors import ContractError
from middlechain.events import AgentFinished, Event, RunFinished, TextDelta
from middlechain.results import Result

__all__ = ["Listener", "Stream"]

AHEAD = 8  # events that a run may be ahead of its reader


class Stream:
    """The events of a run, to be read inside `async with app.stream(...) as stream`.

    Iterating gives each event as it comes and raises the run's error at its end. Leaving the block ends the run: the
    model's stream is closed, tools are cancelled, and every `finally` has run before the block is left.
    """

    def __init__(self, start: Callable[[Stream], Awaitable[Result]], resets: bool = True) -> None:
        self.append_only = not resets
        self._start = start
        self._began = False
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
        self._being_cancelled = start_task(self._produce)
        self._forget = on_cancelled(self._close)  # a generator around this block may be dropped, and hang in a cycle
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._forget()
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
                await anyio.lowlevel.checkpoint()  # the reader may yet say by text() which kind of stream it is
                self._began = True
                self._result = await self._start(self)
        except BaseException as error:  # noqa: BLE001 - for the reader, as itself; nobody else waits for this task
            self._error = error
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
        last = type(event) is RunFinished or (type(event) is AgentFinished and event.result is None)
        return len(self._events) >= AHEAD and not last  # neither may keep what is being cancelled from its end

    async def wait(self) -> None:
        """Called by the run when the reader is too far behind."""
        while len(self._events) >= AHEAD and not (self._closing or self._being_cancelled()):
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

    def text(self) -> AsyncIterator[str]:
        """The text of the answer as plain strings, which are never taken back: `async for piece in stream.text()`.

        It is the text of the target's own step; between the texts of several turns stands a blank line. Where it ends,
        the run's error is raised, if there was one. The other events are skipped.

        Raises:
            ContractError: when the run has begun as a stream that takes text back.
        """
        if not self.append_only and self._began:
            raise ContractError(
                "stream.text() was called when the run had begun as a stream that may take text back; call it first "
                "in the block, or write app.stream(..., resets=False)"
            )
        self.append_only = True
        return _TextOf(self)

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


class _TextOf:
    """The text of a stream. No generator, so that nothing is left open when a reader drops it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._paragraphs = Paragraphs()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        async for event in self._stream:
            if type(event) is TextDelta and event.origin.answering:
                return self._paragraphs.next(event.turn, event.text)
        raise StopAsyncIteration


class Listener:
    """The `on_text=` of a run, which gets the text of an append-only stream in the run's own task.

    What it raises ends the run as leaving a stream does, and goes on to the caller as itself.
    """

    def __init__(self, callback: Callable[[str], Any]) -> None:
        self._callback = callback
        self._paragraphs = Paragraphs()
        self._turn = 0  # whose text it gets
        self._scope = anyio.CancelScope()
        self._error: Exception | None = None

    async def listen(self, run: Coroutine[Any, Any, Result]) -> Result:
        """The result of the run."""
        result: list[Result] = []
        try:
            with self._scope:
                result.append(await run)
        finally:
            if self._error is not None:
                raise self._error
        return result[0]  # only tell() cancels this scope, and it leaves an error behind

    def tell(self, turn: int, text: str) -> Awaitable[None] | None:
        """Hand on a piece of a turn's text; what has to wait is returned, to be awaited."""
        if turn != self._turn:
            self._turn = turn
            text = self._paragraphs.next(turn, text)
        try:
            value = self._callback(text)
        except Exception as error:  # noqa: BLE001 - it is not the run's: the caller gets it
            return self._fail(error)
        return None if value is None else self._settled(value)

    async def _settled(self, value: object) -> None:
        try:
            await settle(value)
        except Exception as error:  # noqa: BLE001 - as above
            await self._fail(error)

    async def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._scope.cancel()
        await anyio.lowlevel.checkpoint()
