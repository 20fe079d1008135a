"""Sets of characters as Python's regular expressions mean them, and the classes that a pattern tells apart.

A set is a tuple of ranges of code points, in order and apart. Two numbers beyond Unicode stand for what is not a
character of its own: `LAST_FEED`, a line feed that is the last character of the text, and `EDGE`, no character at all.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from re import _compiler, _parser  # type: ignore[attr-defined]  # Python's own, without types

from middlechain.guardrails.folding import fold

__all__ = ["ANYTHING", "EDGE", "LAST_FEED", "LINE_FEED", "Alphabet", "Ranges", "characters", "complement", "union"]

Ranges = tuple[tuple[int, int], ...]

LINE_FEED, LAST_FEED, EDGE = 0x0A, 0x110000, 0x110001
_CASED_END = 0x20000  # beyond it no character has another case
ANYTHING: Ranges = ((0, LAST_FEED),)


def union(*sets: Ranges) -> Ranges:
    """What is in one of the sets."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(one for ranges in sets for one in ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges, end: int = LAST_FEED) -> Ranges:
    """What is not in the set, of all up to the end."""
    starts = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), end]
    return tuple((first, last) for first, last in zip(starts, ends, strict=True) if first <= last)


@lru_cache(maxsize=4096)
def characters(operation: object, argument: object, flags: int) -> Ranges:
    """The set of one parsed item, as the flags in force have it; the items of a class come as a tuple."""
    plain = _plain(operation, argument, flags)
    if not flags & re.IGNORECASE:
        return plain
    items = list(argument) if isinstance(argument, tuple) else argument
    parsed = _parser.SubPattern(_parser.State(), [(operation, items)])
    cased = _cased()
    same_case = re.compile(_compiler.compile(parsed, flags))
    alike = union(*(((ord(one), ord(one)),) for one in cased if same_case.match(one)))
    uncased = complement(union(complement(plain), _cased_ranges()))
    return _with_last_feed(union(uncased, alike))


def _plain(operation: object, argument: object, flags: int) -> Ranges:
    """The set, upper and lower case told apart."""
    name = str(operation)
    if name == "ANY":
        return ANYTHING if flags & re.DOTALL else complement(_one(LINE_FEED))
    if name == "NOT_LITERAL":
        return complement(_one(argument))
    if name == "IN":
        items = list(argument)  # type: ignore[call-overload]
        negated = str(items[0][0]) == "NEGATE"
        found = union(*(_plain(kind, one, flags) for kind, one in items[negated:]))
        return complement(found) if negated else found
    if name == "RANGE":
        return _with_last_feed((argument,))  # type: ignore[arg-type]
    return _category(str(argument), bool(flags & re.ASCII)) if name == "CATEGORY" else _one(argument)


def _one(code: object) -> Ranges:
    assert isinstance(code, int)  # noqa: S101  # what the parser gives
    return _with_last_feed(((code, code),))


def _with_last_feed(ranges: Ranges) -> Ranges:
    has_feed = any(first <= LINE_FEED <= last for first, last in ranges)
    return union(ranges, ((LAST_FEED, LAST_FEED),)) if has_feed else ranges


@lru_cache(maxsize=16)
def _category(name: str, ascii_only: bool) -> Ranges:
    r"""The set of `\w` and its kind, found by asking for every character once."""
    letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[name.rpartition("_")[2]]
    everything = "".join(map(chr, range(LAST_FEED)))
    found = re.finditer(rf"\{letter}+", everything, re.ASCII if ascii_only else 0)
    ranges = _with_last_feed(tuple((one.start(), one.end() - 1) for one in found))
    return complement(ranges) if "_NOT_" in name else ranges


@lru_cache(maxsize=1)
def _cased() -> tuple[str, ...]:
    return tuple(one for one in map(chr, range(_CASED_END)) if one.lower() != one or one.upper() != one)


@lru_cache(maxsize=1)
def _cased_ranges() -> Ranges:
    return union(tuple((ord(one), ord(one)) for one in _cased()))


class Alphabet:
    """The classes of characters that the sets tell apart, numbered from 0, and in which set each of them is.

    Args:
        sets: All sets of the pattern.
        forks: Whether a line feed is told apart, and a last one from others.
        folds: Whether texts are folded, so that what never comes out of folding is in no class that counts.
    """

    def __init__(self, sets: Sequence[Ranges], forks: bool, folds: bool) -> None:
        extra: list[Ranges] = [((LAST_FEED, LAST_FEED),), ((EDGE, EDGE),)]
        if forks:
            extra.append(((LINE_FEED, LINE_FEED),))
        self._starts, signatures = _signatures([*sets, *extra])
        numbers: dict[int, int] = {}
        self._classes = [numbers.setdefault(one, len(numbers)) for one in signatures]
        self.signatures = list(numbers)
        """Of each class, the sets that it is in, as bits."""
        self.edge, self.feed, self.last_feed = map(self.of, (EDGE, LINE_FEED, LAST_FEED))
        self.classes = [one for one in numbers.values() if self._counts(one, forks, folds)]
        """The classes that a text may have, the edge among them."""

    def of(self, code: int) -> int:
        """The class of a code point."""
        return self._classes[bisect_right(self._starts, code) - 1]

    def _counts(self, number: int, forks: bool, folds: bool) -> bool:
        if number == self.last_feed:
            return forks
        return not folds or number == self.edge or any(fold(one) == one for one in self._members(number))

    def _members(self, number: int) -> Iterator[str]:
        ends = [*self._starts[1:], EDGE + 1]
        for start, end, one in zip(self._starts, ends, self._classes, strict=True):
            if one == number:
                yield from map(chr, range(start, end))


def _signatures(sets: Iterable[Ranges]) -> tuple[list[int], list[int]]:
    """Where the code points that are in the same sets begin, and which sets these are."""
    changes: dict[int, int] = {0: 0}
    for number, ranges in enumerate(sets):
        for first, last in ranges:
            changes[first] = changes.get(first, 0) ^ 1 << number
            changes[last + 1] = changes.get(last + 1, 0) ^ 1 << number
    changes.pop(EDGE + 1, None)
    starts, signatures, signature = sorted(changes), [], 0
    for start in starts:
        signature ^= changes[start]
        signatures.append(signature)
    return starts, signatures
