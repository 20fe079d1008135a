"""The bus that carries the events of a run to its observers and to its stream, in order and in the run's own task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from itertools import count
from traceback import format_exc
from typing import Any, Protocol, TypeAlias

import anyio

from middlechain.chain import name_of, settle
from middlechain.events import Event, Origin

__all__ = ["Bus", "Observer", "Sink", "log_failure", "pump", "was_cancelled"]

Observer: TypeAlias = Callable[[Event], Any]


class Sink(Protocol):
    """Where the events of a stream go."""

    def put(self, event: Event, /) -> bool:
        """Take an event, and say whether the run should wait for the reader now."""
        ...

    async def wait(self) -> None:
        """Until the reader has caught up."""
        ...


class _Left:
    """An event that waits to be delivered by another task, and the task that waits for that."""

    __slots__ = ("alive", "delivered", "event", "look")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.alive = True  # whether its task still waits
        self.delivered = False
        self.look = anyio.Event()


class Bus:
    """Carries the events of one run, in order and one at a time, to its observers and then to its stream.

    All is delivered in the run's own task. While that task waits for child tasks in `pump`, they leave their events
    here and wait until it has delivered them; so do tasks that a layer started, while another one delivers.
    """

    __slots__ = ("_busy", "_left", "_look", "_pumping", "_seq", "_sink", "listening", "observers")

    def __init__(self, observers: tuple[Observer, ...] = (), sink: Sink | None = None) -> None:
        self.observers = observers
        self.listening = bool(observers) or sink is not None
        self._sink = sink
        self._pumping = False
        self._busy = False
        if self.listening:
            self._seq = count(1)
            self._left: deque[_Left] = deque()
            self._look = anyio.Event()

    async def emit(self, origin: Origin, kind: Callable[..., Event], *payload: Any) -> None:
        """Build the event and deliver it; without a listener nothing is built."""
        waiting = self.post(origin, kind, *payload)
        if waiting is not None:
            await waiting

    def post(self, origin: Origin, kind: Callable[..., Event], *payload: Any) -> Coroutine[Any, Any, None] | None:
        """As `emit`, but what has to wait is returned, to be awaited: to a stream alone, most events need no wait."""
        if not self.listening:
            return None
        event = kind(*payload, origin=origin, seq=next(self._seq))
        if self.observers and _observing.get():
            return self._deliver(event)
        if self._pumping or self._busy:
            return self._leave(event)
        if self.observers or self._sink is None:
            return self._carry(event)
        return self._carry() if self._sink.put(event) else None

    async def _leave(self, event: Event) -> None:
        left = _Left(event)
        self._left.append(left)
        self.wake()
        try:
            while not left.delivered:
                await left.look.wait()
                left.look = anyio.Event()
                if not (left.delivered or self._busy or self._pumping):
                    await self._carry()  # who was to deliver it was cancelled, so it is for us to go on
        finally:
            left.alive = False
            self._hand_over()

    async def _carry(self, *events: Event) -> None:
        """Deliver these events, and then those that others have left."""
        self._busy = True
        try:
            if self._sink is not None and not events:
                await self._sink.wait()
            for event in events:
                await self._deliver(event)
            while self._left:
                left = self._left.popleft()
                left.delivered = True
                try:
                    await self._deliver(left.event)
                finally:
                    left.look.set()
        finally:
            self._busy = False
            self._hand_over()

    def _hand_over(self) -> None:
        if self._pumping:
            self.wake()
        elif not self._busy:
            for left in self._left:
                if left.alive:
                    left.look.set()
                    return

    async def _deliver(self, event: Event) -> None:
        try:
            if self.observers:
                await self._observe(event)
        finally:  # an observer may be cancelled, the stream gets the event all the same
            if self._sink is not None and self._sink.put(event):
                await self._sink.wait()

    async def _observe(self, event: Event) -> None:
        token = _observing.set(True)
        try:
            for observer in self.observers:
                try:
                    await settle(observer(event))
                except Exception:  # noqa: BLE001 - an observer cannot harm the run; cancellation and interrupts do pass
                    log_failure("an observer failed", observer=name_of(observer), event_type=event.type)
        finally:
            _observing.reset(token)

    def wake(self) -> None:
        """Let the pump look again; only of use while somebody listens."""
        self._look.set()

    async def deliver_until(self, done: Callable[[], bool]) -> None:
        """Deliver what child tasks leave here until `done()`; they call `wake` when they end."""
        self._pumping = True
        try:
            while True:
                self._look = anyio.Event()
                if self._left and not self._busy:
                    await self._carry()
                elif done():
                    return
                else:
                    await self._look.wait()
        finally:
            self._pumping = False
            self._hand_over()

    @property
    def pumping(self) -> bool:
        """Whether the run's own task is delivering for child tasks already."""
        return self._pumping


# An observer that emits would wait for itself; what it emits is delivered at once instead.
_observing: ContextVar[bool] = ContextVar("middlechain_observing", default=False)


def log_failure(what: str, **about: str) -> None:
    """Log the exception that is being handled, and that the run goes on.

    The text of the traceback is logged, since a renderer may print local variables with one, secrets included.
    """
    import structlog

    structlog.get_logger("middlechain").error(what, **about, exception=format_exc())


async def pump(bus: Bus, *children: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the children, each in a task of its own, until all have ended; deliver their events meanwhile.

    The first child that raises has the others cancelled and awaited, and its exception goes on as itself, never in a
    group. One that another child raised as well is added to it as a note; an interrupt goes before an error.
    """
    failures: list[BaseException] = []
    interrupts: list[BaseException] = []
    left = len(children)
    listening = bus.listening

    async def run(child: Callable[[], Coroutine[Any, Any, None]]) -> None:
        nonlocal left
        try:
            await child()
        except anyio.get_cancelled_exc_class() as cancelled:
            if was_cancelled():
                raise
            failures.append(cancelled)
            tasks.cancel_scope.cancel()
        except Exception as failure:  # noqa: BLE001 - left in a task group it would come out as a group
            failures.append(failure)
            tasks.cancel_scope.cancel()
        except BaseException as interrupt:  # noqa: BLE001 - the same
            interrupts.append(interrupt)
            tasks.cancel_scope.cancel()
        finally:
            left -= 1
            if listening:
                bus.wake()

    try:
        async with anyio.create_task_group() as tasks:
            for child in children:
                tasks.start_soon(run, child)
            if listening and not bus.pumping:
                await bus.deliver_until(lambda: not left)
    finally:
        if interrupts:  # goes before a cancellation, too
            raise interrupts[0]
    if failures:
        for other in failures[1:]:
            if other is not failures[0]:
                failures[0].add_note(f"another task of the same step failed too: {type(other).__name__}: {other}")
        raise failures[0]


def was_cancelled() -> bool:
    """Whether a cancellation seen here came from a scope around this task, and not from the task itself."""
    return anyio.current_effective_deadline() == float("-inf")
