"""The lazy machine: an automaton made deterministic as the text asks for it, with the places where matches may begin.

A match that may begin here and one that may have begun there can be in one node at once; what comes decides the same
for both, so that only the earlier one counts. A state therefore is a list of groups of nodes, one for each place where
a match may have begun, the earliest first. The scanner knows the places, the state does not: it is found once for all
texts and kept. What a scanner has to do along the way, such as to note a place, is the errand of the transition.

Here is neither the syntax of patterns (`patterns.py`) nor the text (`matching.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

__all__ = ["END", "LAST", "Automaton", "Errand", "State", "Table"]

END = ""
"""Read where the text ends."""

LAST = "\n\n"
"""Read in place of a line feed that is the last character of the text, where that makes a difference."""

MOST_KEPT = 100_000
"""Transitions and states that are kept before all are dropped and found anew."""

_HERE = -1
"""The place of the character that is read; it comes after the others."""

MOST_LOOKED_AT = 200
"""States that are looked at to tell whether a match is certain; beyond, it counts as uncertain."""


class Automaton(Protocol):
    """What a state is made of. A symbol is a class of characters, a kind is what the next step must know of the last.

    A node is a place in a pattern after at least one character. Only nodes that some continuation leads to a match
    are given.
    """

    forks: bool
    """Whether a last line feed differs from others."""
    start: int
    """The kind where the text begins."""

    def symbol(self, character: str, /) -> int: ...
    def kind(self, symbol: int, /) -> int: ...
    def symbols(self, kind: int, /) -> Iterable[int]:
        """All that may come after a kind."""
        ...

    def births(self, kind: int, symbol: int, /) -> Iterable[int]:
        """The nodes of a match that begins with this symbol."""
        ...

    def moves(self, node: int, kind: int, symbol: int, /) -> Iterable[int]: ...
    def look(self, symbol: int, /) -> int:
        """The bit that stands for the symbol in `ends`."""
        ...

    def ends(self, node: int, kind: int, /) -> int:
        """Before which symbols a match at this node ends, as bits."""
        ...

    def every(self, kind: int, /) -> int:
        """The bits of all that may come after a kind."""
        ...

    def grows(self, node: int, kind: int, /) -> bool:
        """Whether some continuation leads to a match that ends further on."""
        ...


BIRTH, ROW, PLACES, GROWTH = 1, 2, 3, 4
"""Errands that are quickly done: a match may begin here, too; the same where the first places are given up, or none
begins; the places change in another way; the match that was noted last ends with this character now."""


@dataclass(slots=True)
class Errand:
    """What a scanner does on the way to the target."""

    target: State
    source: State
    quick: int = 0
    """Which of the above is all of it, if any."""
    first: int = 0
    """In a row, the first place of the source that is kept, ..."""
    stop: int = 0
    """... the end of those that are, ..."""
    born: bool = False
    """... and whether the place of this character comes after them."""
    pick: Callable[[list[int]], Iterable[int]] = iter
    """From the places in the source, and that of this character after them, those that the target knows."""
    accept: int = -1
    """The place, by its number in the source, of a match that ends before this character."""
    certain: int = -1
    """The place, by its number in the target, of a match that ends with this character, whatever comes."""
    fork: bool = False
    """This line feed may be the last character."""
    gap: bool = False
    """A character that is not seen comes after one with which a match may end."""
    spelling: str = ""
    """Several characters, read as one."""


class State(dict[str, "State"]):
    """Where a scanner stands, and its transitions as far as they are known.

    A transition with an errand leads to a state that has nothing but that errand.
    """

    __slots__ = ("errand", "forked", "gapped", "groups", "kind", "pending", "settled", "steps", "sure", "table")

    def __init__(self, table: Table, groups: tuple[tuple[int, ...], ...], kind: int, settled: bool, gapped: bool):
        super().__init__()
        self.table = table
        self.groups = groups
        self.kind = kind
        self.settled = settled  # the last group's match was noted as ending here, and may grow
        self.gapped = gapped  # characters that are not seen came last
        self.errand: Errand | None = None
        self.steps: dict[tuple[int, bool], State] = {}
        self.sure: bool | None = None
        ends = table.automaton.ends
        self.pending = bool(groups) and any(ends(node, kind) for group in self.unsettled for node in group)
        self.forked = table.automaton.forks and kind == table.line_feed

    @property
    def unsettled(self) -> tuple[tuple[int, ...], ...]:
        """The groups of which it is not known whether a match ends here."""
        return self.groups[:-1] if self.settled else self.groups

    @property
    def last(self) -> int:
        """The number of the last group, or -1."""
        return len(self.groups) - 1

    def __missing__(self, character: str) -> State:
        return self.table.find(self, character)


class Table:
    """All states and transitions of one automaton that are known so far."""

    def __init__(self, automaton: Automaton, fold: Callable[[str], str] | None) -> None:
        self.automaton = automaton
        self.fold = fold
        self.line_feed = automaton.kind(automaton.symbol("\n")) if automaton.forks else -1
        self._end = automaton.symbol(END)
        self._states: dict[tuple[object, ...], State] = {}
        self._groups: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._known = 0
        self.start = self._state((), automaton.start)

    def _state(
        self, groups: tuple[tuple[int, ...], ...], kind: int, settled: bool = False, gapped: bool = False
    ) -> State:
        key = (groups, kind, settled, gapped)
        state = self._states.get(key)
        if state is None:
            self._known += 1 + len(groups) // 10
            state = self._states[key] = State(self, groups, kind, settled, gapped)
        return state

    def _errand(self, errand: Errand) -> State:
        state = State(self, (), errand.target.kind, settled=False, gapped=False)
        state.errand = errand
        return state

    def find(self, state: State, character: str) -> State:
        """Find a transition and keep it."""
        if self._known >= MOST_KEPT:
            self._forget()
        self._known += 1
        state[character] = found = self._transition(state, character)
        return found

    def _forget(self) -> None:
        """Begin anew; a scanner that stands in an old state finds its way from there to new ones."""
        for state in list(self._states.values()):
            state.clear()
            state.steps.clear()
        self._states.clear()
        self._groups.clear()
        self._known = 0
        self.start = self._state((), self.automaton.start)

    def _transition(self, state: State, character: str) -> State:
        seen = character if self.fold is None or character in {END, LAST} else self.fold(character)
        if seen == character or len(seen) == 1:
            return self.step(state, self.automaton.symbol(seen))
        if seen:
            return self._errand(Errand(state, state, spelling=seen))
        if state.gapped or not state.pending:
            return state
        gapped = self._state(state.groups, state.kind, state.settled, gapped=True)
        return self._errand(Errand(gapped, state, gap=True))

    def step(self, state: State, symbol: int, may_begin: bool = True) -> State:
        """The transition by a symbol; `may_begin` is False where no match may begin with it."""
        key = (symbol, may_begin)
        found = state.steps.get(key)
        if found is None:
            self._known += 1
            found = state.steps[key] = self._step(state, symbol, may_begin)
        return found

    def _step(self, state: State, symbol: int, may_begin: bool) -> State:
        automaton = self.automaton
        accept = self._accepting(state, symbol)
        keep, groups = self._moved(state.groups[: accept + 1] if accept >= 0 else state.groups, state.kind, symbol)
        born = set(automaton.births(state.kind, symbol) if may_begin else ())
        if born:
            born.difference_update(*groups)
        if born:
            groups.append(self._group(born))
        kind = automaton.kind(symbol)
        certain, settled = self._settle(groups, kind)
        target = self._state(tuple(groups), kind, settled)
        places = [*keep, _HERE] if born else keep
        if certain >= 0:
            del places[certain + 1 :]
        errand = Errand(target, state, accept=accept, certain=certain)
        errand.fork = automaton.forks and kind == self.line_feed
        return self._shortest(errand, places)

    def noted(self, state: State) -> State:
        """The same state where the last group's match was noted as ending here, so that it counts only how it grows."""
        groups, grows = list(state.groups), self.automaton.grows
        growing = self._group(node for node in groups.pop() if grows(node, state.kind))
        return self._state((*groups, growing) if growing else tuple(groups), state.kind, settled=bool(growing))

    def _accepting(self, state: State, symbol: int) -> int:
        if not state.pending:
            return -1
        ends, look, kind = self.automaton.ends, self.automaton.look(symbol), state.kind
        for place, group in enumerate(state.unsettled):
            if any(ends(node, kind) & look for node in group):
                return place
        return -1

    def _moved(
        self, groups: Sequence[tuple[int, ...]], kind: int, symbol: int
    ) -> tuple[list[int], list[tuple[int, ...]]]:
        moves = self.automaton.moves
        taken: set[int] = set()
        keep: list[int] = []
        moved: list[tuple[int, ...]] = []
        for place, group in enumerate(groups):
            nodes = {target for node in group for target in moves(node, kind, symbol)} - taken
            if nodes:
                taken |= nodes
                keep.append(place)
                moved.append(self._group(nodes))
        return keep, moved

    def _group(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Nodes in order; states share what is equal."""
        group = tuple(sorted(nodes))
        return self._groups.setdefault(group, group)

    def _settle(self, groups: list[tuple[int, ...]], kind: int) -> tuple[int, bool]:
        """Drop what a match that ends here for certain rules out, and return its place and whether it may grow."""
        automaton, every = self.automaton, self.automaton.every(kind)
        for place, group in enumerate(groups):
            bits = 0
            for node in group:
                bits |= automaton.ends(node, kind)
            if bits == every:
                growing = self._group(node for node in group if automaton.grows(node, kind))
                groups[place:] = [growing] if growing else []
                return place, bool(growing)
        return -1, False

    def _shortest(self, errand: Errand, places: list[int]) -> State:
        """The target itself where nothing is to do on the way."""
        errand.born = places[-1:] == [_HERE]
        kept = places[:-1] if errand.born else places
        errand.first, errand.stop = (kept[0], kept[-1] + 1) if kept else (0, 0)
        row = kept == list(range(errand.first, errand.stop))
        errand.pick = _picking(places)
        if errand.accept < 0 and not errand.fork:
            if errand.certain < 0:
                if row and not errand.first and not errand.born:
                    return errand.target
                errand.quick = PLACES if not row else BIRTH if not errand.first else ROW
            elif errand.source.settled and row and not errand.first:
                errand.quick = GROWTH if errand.certain == errand.stop - 1 == errand.source.last else 0
        return self._errand(errand)

    def certain(self, state: State) -> bool:
        """Whether there will be a match, whatever comes."""
        if state.sure is None:
            state.sure = self._is_certain(state)
        return state.sure

    def _is_certain(self, state: State) -> bool:
        seen, waiting = {id(state)}, [state]
        while waiting:
            one = waiting.pop()
            for symbol in self.automaton.symbols(one.kind):
                found = self.step(one, symbol)
                errand = found.errand
                if errand is not None and (errand.accept >= 0 or errand.certain >= 0):
                    continue
                if symbol == self._end or len(seen) > MOST_LOOKED_AT:
                    return False
                target = found if errand is None else errand.target
                if id(target) not in seen:
                    seen.add(id(target))
                    waiting.append(target)
        return True


def _picking(places: list[int]) -> Callable[[list[int]], Iterable[int]]:
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1 or None) if places else slice(0))
