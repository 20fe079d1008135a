"""Matches in a text, and in a text that still streams: what is decided of it, and what may still become a match.

`Matcher` and `Scanner` are what guards use. `Machine` is the one implementation of both: `Pattern` and `Words` give it
an automaton. Matches are the leftmost and longest ones, do not overlap, and are never empty. No text takes more than a
bounded time for each of its characters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import zip_longest
from typing import Protocol

from middlechain.guardrails.states import (
    BIRTH,
    END,
    GROWTH,
    LAST,
    PLACES,
    ROW,
    Automaton,
    Errand,
    State,
    Table,
)

__all__ = ["Machine", "Matcher", "Scanner", "Span"]

Span = tuple[int, int]
"""Where a match begins and where it ends, in the text as it was written."""

_PIECE = 4096


class Scanner(Protocol):
    """Reads one text as it streams."""

    @property
    def safe(self) -> int:
        """How many characters are decided: nothing that may still come changes which of them are in which match."""
        ...

    @property
    def spans(self) -> list[Span]:
        """The decided matches, all of them before `safe`."""
        ...

    @property
    def hit(self) -> bool:
        """Whether a match is certain, whatever comes; where it begins or ends may still be undecided."""
        ...

    def push(self, delta: str, /) -> None:
        """Read on."""
        ...

    def close(self) -> None:
        """The text ends here, which decides all."""
        ...


class Matcher(Protocol):
    """Finds matches."""

    def spans(self, text: str, /) -> list[Span]:
        """The leftmost-longest matches that do not overlap; none is empty."""
        ...

    def found(self, text: str, /) -> bool:
        """Whether there is a match that is not empty."""
        ...

    def scanner(self) -> Scanner:
        """Reads one text as it streams."""
        ...


class Machine:
    """A matcher on an automaton. `fold` gives what a character is matched as: nothing, one character or several."""

    def __init__(self, automaton: Automaton, fold: Callable[[str], str] | None = None) -> None:
        self._table = Table(automaton, fold)

    def spans(self, text: str, /) -> list[Span]:
        """The leftmost-longest matches that do not overlap; none is empty."""
        scan = Scan(self._table)
        scan.push(text)
        scan.close()
        return scan.spans

    def found(self, text: str, /) -> bool:
        """Whether there is a match that is not empty."""
        scan = Scan(self._table)
        for start in range(0, len(text), _PIECE):
            scan.push(text[start : start + _PIECE])
            if scan.hit:
                return True
        scan.close()
        return scan.hit

    def scanner(self) -> Scan:
        """Reads one text as it streams."""
        return Scan(self._table)


class Scan:
    """One text, as far as it was read.

    `_starts` are the places of the state's groups; what lies beyond them in the list is stale. `_noted` are matches
    that were seen, of which an earlier or longer one may still take the place.
    """

    __slots__ = ("_before", "_end", "_length", "_noted", "_starts", "_state", "_table", "safe", "spans")

    def __init__(self, table: Table) -> None:
        self.safe = 0
        self.spans: list[Span] = []
        self._table = table
        self._state = table.start
        self._starts: list[int] = []
        self._noted: list[Span] = []
        self._length = 0
        self._end = 0  # of what is seen, where characters that are not came last
        self._before: Scan | None = None  # the last line feed

    @property
    def hit(self) -> bool:
        """Whether a match is certain, whatever comes; where it begins or ends may still be undecided."""
        if self.spans:
            return True
        certain = bool(self._noted) or self._table.certain(self._state)
        return certain and (not self._state.forked or bool(self._if_it_ended()))

    def push(self, delta: str, /) -> None:
        """Read on."""
        state, starts, noted = self._state, self._starts, self._noted
        for index, character in enumerate(delta, self._length):
            state = state[character]
            errand = state.errand
            if errand is not None:
                quick = errand.quick
                if quick == BIRTH:
                    starts[errand.stop :] = (index,)
                    state = errand.target
                elif quick == ROW:
                    starts[errand.stop :] = (index,) if errand.born else ()
                    del starts[: errand.first]
                    state = errand.target
                elif quick == PLACES:
                    starts.append(index)
                    starts[:] = errand.pick(starts)
                    state = errand.target
                elif quick == GROWTH:
                    noted[-1] = starts[errand.certain], index + 1
                    state = errand.target
                else:
                    state = self._run(errand, index)
        self._state = state
        self._length += len(delta)
        self._decide()

    def close(self) -> None:
        """The text ends here, which decides all."""
        self.spans += self._if_it_ended()
        self._state, self._noted, self.safe = self._table.start, [], self._length

    def _run(self, errand: Errand, index: int) -> State:
        if errand.spelling:
            return self._spell(errand, index)
        if errand.gap:
            self._end = index
            return errand.target
        if errand.fork:
            self._before = self._copy(errand.source, index)
        self._move(errand, index, self._end if errand.source.gapped else index)
        return errand.target

    def _move(self, errand: Errand, index: int, end: int) -> None:
        starts = self._starts
        if errand.accept >= 0:
            self._note(starts[errand.accept], end)
        starts.append(index)
        starts[:] = errand.pick(starts)
        if errand.certain >= 0:
            self._note(starts[errand.certain], index + 1)

    def _note(self, start: int, end: int) -> None:
        noted = self._noted
        while noted and noted[-1][0] >= start:
            noted.pop()
        noted.append((start, end))

    def _spell(self, errand: Errand, index: int) -> State:
        """Read several characters that one was folded to; no two matches share a character as it was written."""
        table, state, may_begin = self._table, errand.source, True
        for place, character in enumerate(errand.spelling):
            symbol = table.automaton.symbol(character)
            found = table.step(state, symbol, may_begin)
            if place and found.errand is not None and found.errand.accept >= 0:
                may_begin = False
                found = table.step(state, symbol, may_begin)
            end = index + 1 if place else self._end if state.gapped else index
            state = found
            if found.errand is not None:
                self._move(found.errand, index, end)
                state = found.errand.target
                may_begin = may_begin and found.errand.certain < 0
        return table.noted(state) if self._is_noted(state, index + 1) else state

    def _is_noted(self, state: State, end: int) -> bool:
        """Whether the last place's match was noted as ending with this character, though within what it folded to."""
        last = state.last
        return last >= 0 and not state.settled and (self._starts[last], end) in self._noted[-1:]

    def _decide(self) -> None:
        first = self._starts[0] if self._state.groups else self._length
        if self._state.forked:
            first = self._agreed(first)
        noted = self._noted
        if noted and noted[0][0] < first:
            decided = bisect_left(noted, (first,))
            self.spans += noted[:decided]
            del noted[:decided]
        self.safe = first

    def _agreed(self, first: int) -> int:
        """How far it makes no difference whether the line feed that came last is the last character."""
        going_on = [span for span in self._noted if span[0] < first]
        for one, other in zip_longest(going_on, self._if_it_ended()):
            if one != other:
                return min(first, *(span[0] for span in (one, other) if span))
        return first

    def _if_it_ended(self) -> list[Span]:
        """The matches beyond `safe` if nothing else came."""
        if self._state.forked and self._before is not None:
            ended = self._before._copy(self._before._state, self._before._length)
            ended._read(LAST)
        else:
            ended = self._copy(self._state, self._length)
        ended._read(END)
        return [span for span in ended._noted if span[0] >= self.safe]

    def _copy(self, state: State, length: int) -> Scan:
        copy = Scan(self._table)
        copy._state, copy._length, copy._end = state, length, self._end
        copy._starts, copy._noted = list(self._starts), list(self._noted)
        return copy

    def _read(self, sign: str) -> None:
        found = self._state[sign]
        errand = found.errand
        self._state = found if errand is None else self._run(errand, self._length)
        self._length += 1
