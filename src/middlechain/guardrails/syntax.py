"""From Python's parsed regular expressions to a graph, and which of them have one.

Groups are no more than brackets, and lazy repeats are like others: the longest match is looked for in any case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from re import _constants, _parser  # type: ignore[attr-defined]  # Python's own, without types
from typing import Any

from middlechain.errors import ConfigurationError
from middlechain.guardrails.alphabet import (
    EDGE,
    LAST_FEED,
    LINE_FEED,
    Ranges,
    characters,
    complement,
    union,
)
from middlechain.guardrails.folding import fold

__all__ = ["MOST_CHARACTERS", "Fork", "Leaf", "Look", "Node", "parse"]

MOST_CHARACTERS = 1_000
"""How long a pattern may be, its repeats written out."""

_WAY_OUT = "write the check as a function instead: check(fn)"

_REFUSED = {
    "GROUPREF": "a back-reference, which no automaton can follow",
    "GROUPREF_EXISTS": "a condition on a group, which no automaton can follow",
    "ATOMIC_GROUP": "an atomic group, which changes what matches by how it is tried",
    "POSSESSIVE_REPEAT": "a possessive quantifier, which changes what matches by how it is tried",
}


@dataclass(slots=True)
class Leaf:
    """One character of the set, then the target."""

    ranges: Ranges
    target: Node


@dataclass(slots=True)
class Look:
    """The target if the character ahead or behind is in the set."""

    ahead: bool
    ranges: Ranges
    target: Node


@dataclass(slots=True)
class Fork:
    """Any of the targets; the one without a target is the end."""

    targets: list[Node]


Node = Leaf | Look | Fork


def parse(pattern: str, fold: bool) -> tuple[Node, Node]:
    """Parse a pattern into a graph.

    Returns:
        Where it begins and where it ends.

    Raises:
        ConfigurationError: When Python does not take the pattern, or it has something that no automaton can follow, or
            is too long.
    """
    if not isinstance(pattern, str):
        raise ConfigurationError(f"a pattern is a str, and this is {pattern!r}; write it as a str")
    try:
        items = _parser.parse(pattern, re.IGNORECASE if fold else 0)
        size = _size(items)
        if size > MOST_CHARACTERS:
            why = f"has {size:,} characters with its repeats written out, more than {MOST_CHARACTERS:,}"
            raise _refusal(pattern, why)
        end = Fork([])
        return _Builder(pattern, fold).sequence(items, end, items.state.flags), end
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigurationError(f"the pattern {pattern!r} is not valid: {error}; correct it, or {_WAY_OUT}") from error


def _refusal(pattern: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"the pattern {pattern!r} {why}; {_WAY_OUT}")


def _size(items: Any) -> int:
    """How many characters and conditions there are, repeats written out."""
    return sum(_size_of(str(operation), argument) for operation, argument in items)


def _size_of(name: str, argument: Any) -> int:
    if name == "BRANCH":
        return 1 + sum(map(_size, argument[1]))
    if name == "SUBPATTERN":
        return 1 + _size(argument[3])
    if name in {"MAX_REPEAT", "MIN_REPEAT"}:
        least, most, body = argument
        times: int = max(least, 1) if most is _constants.MAXREPEAT else most
        return 1 + _size(body) * times
    return 1


class _Builder:
    """Builds from the end to the beginning: each part is given what comes after it."""

    def __init__(self, pattern: str, fold: bool) -> None:
        self._pattern = pattern
        self._fold = fold

    def sequence(self, items: Any, target: Node, flags: int) -> Node:
        for operation, argument in reversed(list(items)):
            target = self._item(str(operation), operation, argument, target, flags)
        return target

    def _item(self, name: str, operation: Any, argument: Any, target: Node, flags: int) -> Node:
        if name in {"LITERAL", "NOT_LITERAL", "ANY", "IN"}:
            return self._character(name, operation, argument, target, flags)
        if name == "BRANCH":
            return Fork([self.sequence(branch, target, flags) for branch in argument[1]])
        if name == "SUBPATTERN":
            return self.sequence(argument[3], target, _with_flags(flags, argument[1], argument[2]))
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            least, most, body = argument
            return self._repeat(least, most, body, target, flags)
        if name == "AT":
            return _position(str(argument), target, flags)
        if name in {"ASSERT", "ASSERT_NOT"}:
            direction, around = argument
            return self._around(direction > 0, around, name == "ASSERT", target, flags)
        raise _refusal(self._pattern, f"has {_REFUSED.get(name, name.lower())}")

    def _character(self, name: str, operation: Any, argument: Any, target: Node, flags: int) -> Node:
        if self._fold and name == "LITERAL":
            for one in reversed(fold(chr(argument))):
                target = Leaf(characters(operation, ord(one), flags), target)
            return target
        return Leaf(self._set(operation, argument, flags), target)

    def _set(self, operation: Any, argument: Any, flags: int) -> Ranges:
        """The set of one item; in folded text, its characters stand for what they fold to."""
        if str(operation) != "IN":
            return characters(operation, argument, flags)
        items = [(kind, _folded(kind, one) if self._fold else one) for kind, one in argument]
        return characters(operation, tuple(items), flags)

    def _repeat(self, least: int, most: int, body: Any, target: Node, flags: int) -> Node:
        if most is _constants.MAXREPEAT:
            loop = Fork([target])
            again = self.sequence(body, loop, flags)
            loop.targets.append(again)
            entry, least = (again, least - 1) if least else (loop, 0)
        else:
            entry = target
            for _ in range(most - least):
                entry = Fork([self.sequence(body, entry, flags), target])
        for _ in range(least):
            entry = self.sequence(body, entry, flags)
        return entry

    def _around(self, ahead: bool, items: Any, positive: bool, target: Node, flags: int) -> Node:
        ranges = self._one_character(list(items), flags, ahead)
        if ranges is None:
            raise _refusal(self._pattern, "looks around for more or less than one character")
        return Look(ahead, ranges if positive else complement(ranges, EDGE), target)

    def _one_character(self, items: Sequence[Any], flags: int, ahead: bool) -> Ranges | None:
        """The set, if the items are one character, or the end of the text there."""
        if len(items) != 1:
            return None
        operation, argument = items[0]
        name = str(operation)
        if name == "SUBPATTERN":
            return self._one_character(list(argument[3]), _with_flags(flags, argument[1], argument[2]), ahead)
        if name == "BRANCH":
            branches = [self._one_character(list(branch), flags, ahead) for branch in argument[1]]
            known = [one for one in branches if one is not None]
            return union(*known) if len(known) == len(branches) else None
        if name == "AT":
            return _edges(str(argument), flags) if ahead == ("END" in str(argument)) else None
        return self._set(operation, argument, flags) if name in {"LITERAL", "NOT_LITERAL", "ANY", "IN"} else None


def _folded(kind: Any, argument: Any) -> Any:
    """A literal of a class as it is in folded text, where it is one character there."""
    if str(kind) == "LITERAL" and len(fold(chr(argument))) == 1:
        return ord(fold(chr(argument)))
    return argument


def _with_flags(flags: int, added: int, removed: int) -> int:
    """The flags inside of a group, as Python combines them."""
    if added & _parser.TYPE_FLAGS:
        flags &= ~_parser.TYPE_FLAGS
    return (flags | added) & ~removed


_NOTHING: Ranges = ((EDGE, EDGE),)
_LAST_ONE: Ranges = ((LAST_FEED, EDGE),)
_LINE: Ranges = ((LINE_FEED, LINE_FEED), *_LAST_ONE)

_EDGES = {"AT_BEGINNING": _NOTHING, "AT_BEGINNING_STRING": _NOTHING, "AT_END": _LAST_ONE, "AT_END_STRING": _NOTHING}


def _edges(name: str, flags: int) -> Ranges | None:
    """What is behind at the beginning, or ahead at the end, of a text or line."""
    return _LINE if flags & re.MULTILINE and name in {"AT_BEGINNING", "AT_END"} else _EDGES.get(name)


def _position(name: str, target: Node, flags: int) -> Node:
    edges = _edges(name, flags)
    if edges is not None:
        return Look("END" in name, edges, target)
    word = characters(_constants.CATEGORY, _constants.CATEGORY_WORD, flags & re.ASCII)
    other = complement(word, EDGE)
    pairs = ((word, other), (other, word)) if name == "AT_BOUNDARY" else ((word, word), (other, other))
    return Fork([Look(False, before, Look(True, after, target)) for before, after in pairs])
