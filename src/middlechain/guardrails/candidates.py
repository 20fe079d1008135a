"""Matches that a pattern alone cannot tell, such as numbers with a checksum, and several kinds of matches at once.

A pattern finds a candidate, and a check says how much of it is a match. After one that is none, the search goes on
behind the first word of it, since a match may begin inside of what looked like one. So that the time stays linear, such
a candidate is short, or nothing in it can begin another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from middlechain.guardrails.matching import Matcher, Scanner, Span

__all__ = ["AnyOf", "Checked"]

_WORD = re.compile("[0-9A-Za-z]+")
_PIECE = 32  # characters that are looked at before a candidate sends the search back, so that it never goes far back


class Checked:
    """A matcher whose matches are candidates: a check says which of them are matches.

    Args:
        matcher: finds the candidates. One begins with an ASCII letter or digit that follows on none, and ends likewise.
        accept: takes a candidate; says how many characters of it, from its start, are a match, or 0. They end where a
            word ends.
        inside: whether a match may begin inside of a candidate that is none; default True.
    """

    __slots__ = ("_accept", "_inside", "_matcher")

    def __init__(self, matcher: Matcher, accept: Callable[[str], int], *, inside: bool = True) -> None:
        self._matcher = matcher
        self._accept = accept
        self._inside = inside

    def scanner(self) -> Scanner:
        """For a text that still comes."""
        return _CheckedScanner(self._matcher, self._accept, self._inside)

    def spans(self, text: str, /) -> list[Span]:
        """What a scanner finds, too."""
        return _all(self, text) if self._matcher.found(text) else []

    def found(self, text: str, /) -> bool:
        """Whether there are any."""
        return bool(self.spans(text))


class _CheckedScanner:
    __slots__ = ("_accept", "_at", "_fed", "_inner", "_inside", "_matcher", "_origin", "_seen", "_text", "spans")

    def __init__(self, matcher: Matcher, accept: Callable[[str], int], inside: bool) -> None:
        self._matcher = matcher
        self._accept = accept
        self._inside = inside
        self._text = ""  # what may still be a candidate, or was not looked at
        self._at = 0  # where it begins in the whole text
        self.spans: list[Span] = []
        self._start_at(0)

    def _start_at(self, origin: int) -> None:
        self._inner = self._matcher.scanner()
        self._origin = self._fed = origin
        self._seen = 0

    @property
    def safe(self) -> int:
        return self._origin + self._inner.safe

    @property
    def hit(self) -> bool:
        return bool(self.spans)

    def push(self, delta: str, /) -> None:
        self._text += delta
        self._feed()

    def close(self) -> None:
        self._inner.close()
        while not self._settled():
            self._feed()
            self._inner.close()

    def _feed(self) -> None:
        end = self._at + len(self._text)
        while self._fed < end:
            fed = self._fed - self._at
            piece = self._text[fed : fed + _PIECE]
            self._fed += len(piece)
            self._inner.push(piece)
            self._settled()
        self._text = self._text[self.safe - self._at :]
        self._at = self.safe

    def _settled(self) -> bool:
        """Take what was found by now; whether the search goes on from where it was."""
        for start, end in self._inner.spans[self._seen :]:
            self._seen += 1
            begin = self._origin + start
            candidate = self._text[begin - self._at : begin - self._at + end - start]
            length = self._accept(candidate)
            if length:
                self.spans.append((begin, begin + length))
            if length < len(candidate) and (length or self._inside):
                self._start_at(begin + (length or len(_WORD.findall(candidate)[0])))
                return False
        return True


class AnyOf:
    """What any of several matchers find; spans of two that overlap become one."""

    __slots__ = ("_matchers",)

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self._matchers = matchers

    def scanner(self) -> Scanner:
        """For a text that still comes."""
        return _AnyScanner([matcher.scanner() for matcher in self._matchers])

    def spans(self, text: str, /) -> list[Span]:
        """What a scanner finds, too."""
        return _merged([span for matcher in self._matchers for span in matcher.spans(text)])

    def found(self, text: str, /) -> bool:
        """Whether there are any."""
        return any(matcher.found(text) for matcher in self._matchers)


class _AnyScanner:
    __slots__ = ("_open", "_scanners", "_seen", "safe", "spans")

    def __init__(self, scanners: Sequence[Scanner]) -> None:
        self._scanners = scanners
        self._seen = [0] * len(scanners)
        self._open: list[Span] = []  # found by one, and another is not as far yet
        self.safe = 0
        self.spans: list[Span] = []

    @property
    def hit(self) -> bool:
        return any(scanner.hit for scanner in self._scanners)

    def push(self, delta: str, /) -> None:
        for scanner in self._scanners:
            scanner.push(delta)
        self._settle()

    def close(self) -> None:
        for scanner in self._scanners:
            scanner.close()
        self._settle()

    def _settle(self) -> None:
        for at, scanner in enumerate(self._scanners):
            self._open += scanner.spans[self._seen[at] :]
            self._seen[at] = len(scanner.spans)
        decided = min(scanner.safe for scanner in self._scanners)
        merged = _merged(self._open)
        done = [span for span in merged if span[1] <= decided]
        self.spans += done
        self._open = merged[len(done) :]
        self.safe = min(decided, self._open[0][0]) if self._open else decided


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _all(matcher: Matcher, text: str) -> list[Span]:
    scanner = matcher.scanner()
    scanner.push(text)
    scanner.close()
    return scanner.spans
