"""What a guard may let out of a reply that still streams, for guards that look for something or wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from middlechain.guardrails.matching import Matcher, Scanner

__all__ = ["AtLeast", "AtMost", "Blocking", "Redacting", "Waiting", "redact"]


def redact(matcher: Matcher, text: str, replacement: str) -> str | None:
    """The text with the replacement in place of each span; None if there is none."""
    pieces, at = list[str](), 0
    for start, end in matcher.spans(text):
        pieces += (text[at:start], replacement)
        at = end
    return "".join((*pieces, text[at:])) if pieces else None


class Blocking:
    """Lets out what no match can reach any more, and stops at the first match."""

    __slots__ = ("_out", "_scanner", "hit")

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._out = 0
        self.hit = False

    def push(self, delta: str, /) -> int:
        """Take more of the text; how much of it may go out."""
        if not self.hit:
            scanner = self._scanner
            scanner.push(delta)
            self.hit = scanner.hit
            self._out = min(scanner.safe, scanner.spans[0][0]) if scanner.spans else scanner.safe
        return self._out


class Redacting:
    """Lets out the rewritten text as far as it is decided."""

    __slots__ = ("_at", "_done", "_replacement", "_scanner", "_text")

    def __init__(self, scanner: Scanner, replacement: str) -> None:
        self._scanner = scanner
        self._replacement = replacement
        self._text = ""  # what was not let out yet
        self._at = 0  # where it begins in the whole text
        self._done = 0  # how many spans were replaced

    def feed(self, delta: str, /) -> str:
        """Take more of the text; what may go out in its place."""
        scanner = self._scanner
        scanner.push(delta)
        self._text += delta
        pieces = list[str]()
        for start, end in scanner.spans[self._done :]:
            pieces += (self._take(start), self._replacement)
            self._take(end)
            self._done += 1
        return "".join((*pieces, self._take(scanner.safe)))

    def _take(self, end: int) -> str:
        taken = self._text[: end - self._at]
        self._text = self._text[end - self._at :]
        self._at = end
        return taken


class Waiting:
    """Holds all until everything that the text must have is there, then lets all out."""

    __slots__ = ("_length", "_scanners")

    def __init__(self, matchers: Iterable[Matcher]) -> None:
        self._scanners = [matcher.scanner() for matcher in matchers]
        self._length = 0

    def push(self, delta: str, /) -> int:
        """Take more of the text; how much of it may go out."""
        self._length += len(delta)
        for scanner in self._scanners:
            scanner.push(delta)
        self._scanners = [scanner for scanner in self._scanners if not scanner.hit]
        return 0 if self._scanners else self._length


class AtMost:
    """Holds all, and hits as soon as the text measures more than it may.

    Args:
        limits: measures, and how much each may say. What a measure says of two pieces adds up to what it says of both.
    """

    __slots__ = ("_limits", "_measured", "hit")

    def __init__(self, limits: Mapping[Callable[[str], int], int]) -> None:
        self._limits = limits
        self._measured = dict.fromkeys(limits, 0)
        self.hit = False

    def push(self, delta: str, /) -> int:
        """Take more of the text; nothing may go out."""
        for measure, most in self._limits.items():
            self._measured[measure] += measure(delta)
            self.hit = self.hit or self._measured[measure] > most
        return 0


class AtLeast:
    """Holds all until the text is long enough, then lets all out."""

    __slots__ = ("_least", "_length")

    def __init__(self, least: int) -> None:
        self._least = least
        self._length = 0

    def push(self, delta: str, /) -> int:
        """Take more of the text; how much of it may go out."""
        self._length += len(delta)
        return self._length if self._length >= self._least else 0
