"""Whether the tools of a reply may run: all of them, or none."""

from __future__ import annotations

from middlechain.errors import LimitExceeded
from middlechain.events import LimitReached
from middlechain.records import Step

__all__ = ["Admission"]


class Admission:
    """Lets the tool calls of one reply through the limits together or not at all.

    The first one to arrive asks for all that the reply may run, whichever it is; those that end without having run
    give their place back.
    """

    __slots__ = ("_expected", "_places", "_refusal", "_settled", "_step", "transfer")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._expected: tuple[object, ...] = ()
        self._settled: tuple[object, ...] = ()
        self._places: list[object] | None = None  # given and not used yet
        self._refusal: LimitExceeded | None = None
        self.transfer: object | None = None  # the ticket of the one call that may hand the conversation over

    def expect(self, ticket: object) -> None:
        """One more call of the reply that will run unless a layer answers it."""
        self._expected += (ticket,)

    async def enter(self, ticket: object) -> None:
        """Called where the tool is about to run.

        Raises:
            LimitExceeded: when the limits do not allow it.
        """
        if self._refusal is not None:
            raise self._refusal
        try:
            if self._places is None and ticket in self._expected:
                self._step.meter.reserve_tools(len(self._expected))
                self._places = list(self._expected)
                for settled in self._settled:
                    self.settle(settled)
            elif self._places is None or ticket not in self._places:
                self._step.meter.reserve_tools(1)  # a call that a layer repaired or repeats
                return
        except LimitExceeded as error:
            self._refusal = error
            await self._step.emit(LimitReached, error.limit, error.value)
            raise
        self._places.remove(ticket)

    def settle(self, ticket: object) -> None:
        """Called when the call has ended, however."""
        if self._places is None:
            self._settled += (ticket,)
        elif ticket in self._places:
            self._places.remove(ticket)
            self._step.meter.add_tools(-1)
