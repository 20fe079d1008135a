"""The automaton of regular expressions: where in the patterns a match may be, and what may come there.

It is made of the graphs of `syntax.py` and the classes of `alphabet.py`. All that does not lead to a match, whatever
comes, is found when it is built, so that nothing is held for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from middlechain.errors import ConfigurationError
from middlechain.guardrails.alphabet import LAST_FEED, LINE_FEED, Alphabet, Ranges
from middlechain.guardrails.states import END, LAST
from middlechain.guardrails.syntax import Fork, Leaf, Look, Node, parse

__all__ = ["MOST_BRANCHES", "Positions"]

MOST_BRANCHES = 20_000
"""How many ways there may be to go on, counted over all places in the patterns."""


class _Graph:
    """The nodes of the patterns by number, and the sets that they ask for."""

    def __init__(self, patterns: Sequence[str], fold: bool) -> None:
        parsed = [parse(pattern, fold) for pattern in patterns]
        self.entry = Fork([entry for entry, _ in parsed])
        self._kept = [end for _, end in parsed]
        self.ends = set(map(id, self._kept))
        self.leaves: list[Leaf] = []
        self.sets: dict[Ranges, int] = {}
        self.numbers: dict[int, int] = {}
        self.behind = self.ahead = 0
        self._visit(self.entry)
        self.forks = any(_holds(one, LINE_FEED) != _holds(one, LAST_FEED) for one in self.sets)

    def _visit(self, entry: Node) -> None:
        waiting, seen = [entry], {id(entry)}
        while waiting:
            node = waiting.pop()
            if isinstance(node, Leaf):
                self.numbers[id(node)] = len(self.leaves)
                self.leaves.append(node)
            if not isinstance(node, Fork):
                self._add_set(node)
            new = [one for one in _targets(node) if id(one) not in seen]
            seen.update(map(id, new))
            waiting += new

    def _add_set(self, node: Leaf | Look) -> None:
        bit = 1 << self.sets.setdefault(node.ranges, len(self.sets))
        if isinstance(node, Look):
            self.ahead |= bit if node.ahead else 0
            self.behind |= 0 if node.ahead else bit


def _targets(node: Node) -> list[Node]:
    return node.targets if isinstance(node, Fork) else [node.target]


def _holds(ranges: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


class _Reach:
    """What can be read next at a node, without reading: the leaves, and whether a match ends there."""

    __slots__ = ("ends", "leaves", "looked")

    def __init__(self) -> None:
        self.ends = False
        self.leaves: list[int] = []
        self.looked = False  # it depends on what is behind or ahead


class Positions:
    """The automaton of patterns; a node is a leaf that was read, and a symbol is a class of the alphabet.

    A kind is what the looks behind can tell of the last character, and a line feed is of a kind of its own where the
    last one differs: after the last one nothing comes, and after another one something does.
    """

    def __init__(self, patterns: Sequence[str], fold: bool) -> None:
        self._graph = _Graph(patterns, fold)
        self.forks = self._graph.forks
        self._alphabet = Alphabet(list(self._graph.sets), self.forks, fold)
        self._set_bits = [1 << self._graph.sets[leaf.ranges] for leaf in self._graph.leaves]
        self._sort_classes()
        self.start = self._kinds[self._alphabet.edge]
        self._reaches: dict[tuple[int, int, int], _Reach] = {}
        self._branches = 0
        self._kinds_by_set: dict[tuple[int, int], set[int]] = {}
        self._find_useful()

    def _sort_classes(self) -> None:
        alphabet, graph = self._alphabet, self._graph
        special = {alphabet.feed, alphabet.last_feed} if self.forks else set[int]()
        kinds: dict[tuple[int, int], int] = {}
        looks: dict[int, int] = {}
        self._kinds, self._looks = [], []
        for number, signature in enumerate(alphabet.signatures):
            key = signature & graph.behind, number if number in special else -1
            self._kinds.append(kinds.setdefault(key, len(kinds)))
            self._looks.append(looks.setdefault(signature & graph.ahead, len(looks)))
        self._behind, self._ahead = [one for one, _ in kinds], list(looks)
        self._after = {kind: self._classes_after(kind) for kind in kinds.values()}
        self._every = {kind: self._bits(after) for kind, after in self._after.items()}

    def _classes_after(self, kind: int) -> list[int]:
        alphabet = self._alphabet
        if self.forks and kind == self._kinds[alphabet.last_feed]:
            return [alphabet.edge]
        feed = self.forks and kind == self._kinds[alphabet.feed]
        ending = [] if feed else [alphabet.edge]
        return ending + [one for one in alphabet.classes if one != alphabet.edge]

    def _bits(self, classes: Iterable[int]) -> int:
        bits = 0
        for one in classes:
            bits |= 1 << self._looks[one]
        return bits

    def _find_useful(self) -> None:
        """Find the leaves, and the kinds read there, that some continuation leads to a match."""
        self._ends: dict[tuple[int, int], int] = {}
        before: dict[tuple[int, int], list[tuple[int, int]]] = {}
        waiting = list({pair for kind in self._after for pair in self._next(-1, kind)})
        found = set(waiting)
        while waiting:
            pair = waiting.pop()
            self._ends[pair] = self._ends_of(*pair)
            for following in self._next(*pair):
                before.setdefault(following, []).append(pair)
                if following not in found:
                    found.add(following)
                    waiting.append(following)
        self._growing = set[tuple[int, int]]()
        waiting = [pair for pair, ends in self._ends.items() if ends]
        while waiting:
            new = set(before.get(waiting.pop(), ())) - self._growing
            self._growing |= new
            waiting += new
        self._useful = self._growing | {pair for pair, ends in self._ends.items() if ends}

    def _next(self, node: int, kind: int) -> set[tuple[int, int]]:
        """Which leaves may be read after a node, and as which kind."""
        if self.forks and kind == self._kinds[self._alphabet.last_feed]:
            return set()
        pairs: set[tuple[int, int]] = set()
        for look in _bits_of(self._every[kind]):
            reach = self._reach(node, kind, look)
            pairs.update((leaf, one) for leaf in reach.leaves for one in self._kinds_of(leaf, look, reach.looked))
            if not reach.looked:
                break
        return pairs

    def _kinds_of(self, leaf: int, look: int, looked: bool) -> set[int]:
        """As which kinds a leaf may be read, by the characters that the look allows."""
        bit, signatures = self._set_bits[leaf], self._alphabet.signatures
        key = bit, look if looked else -1
        known = self._kinds_by_set.get(key)
        if known is None:
            known = self._kinds_by_set[key] = {
                self._kinds[one]
                for one in self._alphabet.classes
                if signatures[one] & bit and (not looked or self._looks[one] == look)
            }
        return known

    def _ends_of(self, node: int, kind: int) -> int:
        bits = 0
        for look in _bits_of(self._every[kind]):
            reach = self._reach(node, kind, look)
            bits |= reach.ends << look
            if not reach.looked:
                return self._every[kind] if reach.ends else 0
        return bits

    def _reach(self, node: int, kind: int, look: int) -> _Reach:
        target = self._graph.entry if node < 0 else self._graph.leaves[node].target
        found = self._reaches.get((id(target), -1, -1)) or self._reaches.get((id(target), kind, look))
        if found is None:
            found = self._look_around(target, self._behind[kind], self._ahead[look])
            self._reaches[(id(target), kind, look) if found.looked else (id(target), -1, -1)] = found
            self._branches += len(found.leaves)
            if self._branches > MOST_BRANCHES:
                raise ConfigurationError(
                    f"the patterns have more than {MOST_BRANCHES:,} ways to go on, counted over all places; make "
                    "optional parts that repeat simpler, or write the check as a function instead: check(fn)"
                )
        return found

    def _look_around(self, entry: Node, behind: int, ahead: int) -> _Reach:
        reach, sets, numbers = _Reach(), self._graph.sets, self._graph.numbers
        waiting, seen = [entry], {id(entry)}
        while waiting:
            node = waiting.pop()
            if isinstance(node, Leaf):
                reach.leaves.append(numbers[id(node)])
                continue
            if isinstance(node, Look):
                reach.looked = True
                if not (ahead if node.ahead else behind) >> sets[node.ranges] & 1:
                    continue
            reach.ends = reach.ends or id(node) in self._graph.ends
            new = [one for one in _targets(node) if id(one) not in seen]
            seen.update(map(id, new))
            waiting += new
        return reach

    def symbol(self, character: str, /) -> int:
        if character == END:
            return self._alphabet.edge
        return self._alphabet.last_feed if character == LAST else self._alphabet.of(ord(character))

    def kind(self, symbol: int, /) -> int:
        return self._kinds[symbol]

    def symbols(self, kind: int, /) -> Iterable[int]:
        return self._after[kind]

    def births(self, kind: int, symbol: int, /) -> Iterable[int]:
        return self.moves(-1, kind, symbol)

    def moves(self, node: int, kind: int, symbol: int, /) -> Iterable[int]:
        signature, after = self._alphabet.signatures[symbol], self._kinds[symbol]
        leaves = self._reach(node, kind, self._looks[symbol]).leaves
        return [one for one in leaves if signature & self._set_bits[one] and (one, after) in self._useful]

    def look(self, symbol: int, /) -> int:
        return 1 << self._looks[symbol]

    def ends(self, node: int, kind: int, /) -> int:
        return self._ends[node, kind]

    def every(self, kind: int, /) -> int:
        return self._every[kind]

    def grows(self, node: int, kind: int, /) -> bool:
        return (node, kind) in self._growing


def _bits_of(bits: int) -> Iterable[int]:
    return [place for place in range(bits.bit_length()) if bits >> place & 1]
