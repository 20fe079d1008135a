"""Regular expressions as automata.

The syntax is Python's (`syntax.py` says what is not taken). What matches is the longest of the leftmost ones, however
the pattern prefers: `a|ab` finds all of "ab", and so does `ab??`.
"""

from __future__ import annotations

from collections.abc import Sequence

from middlechain.errors import ConfigurationError
from middlechain.guardrails.folding import fold as folded
from middlechain.guardrails.matching import Machine
from middlechain.guardrails.positions import Positions

__all__ = ["Pattern", "any_of"]


class Pattern(Machine):
    r"""Finds what a regular expression matches.

    Args:
        pattern: In Python's syntax, without back-references, conditions on groups, atomic groups, possessive
            quantifiers, and look-around at more than one character. Groups capture nothing, and of all that begins at
            the leftmost place the longest is matched, also by a lazy quantifier.
        fold: Match on folded text (`folding.py`): literals are folded as well, case is ignored, and a character that
            folding drops is not there at all, neither for `.` nor for `\b`.

    Raises:
        ConfigurationError: When the pattern is not valid, has what is not taken, or is too long: more than 1,000
            characters and conditions, its repeats written out.
    """

    def __init__(self, pattern: str, *, fold: bool = False) -> None:
        super().__init__(Positions([pattern], fold), folded if fold else None)
        self._pattern = pattern

    def __repr__(self) -> str:
        return f"Pattern({self._pattern!r})"


class _AnyOf(Machine):
    def __init__(self, patterns: Sequence[str], fold: bool) -> None:
        super().__init__(Positions(patterns, fold), folded if fold else None)
        self._patterns = list(patterns)

    def __repr__(self) -> str:
        return f"any_of({self._patterns!r})"


def any_of(patterns: Sequence[str], *, fold: bool = False) -> Machine:
    """Find what any of the regular expressions matches, with one automaton for all.

    Args:
        patterns: At least one, each as in `Pattern`, with flags of its own.
        fold: As in `Pattern`.

    Raises:
        ConfigurationError: When there is none, or one of them is refused by `Pattern`.
    """
    if isinstance(patterns, str) or not patterns:
        raise ConfigurationError(f"any_of needs a list with at least one pattern, and got {patterns!r}")
    return _AnyOf(patterns, fold)
