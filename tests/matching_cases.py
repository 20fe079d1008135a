"""Random patterns, words and texts for `test_matching.py`, and what they must match by a slow and plain rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from unicodedata import category

from hypothesis import strategies as st

from middlechain.guardrails.folding import fold
from middlechain.guardrails.matching import Machine, Scan, Span

LETTERS = "ab-\n"
"""What texts and patterns are made of."""
OTHERS = "ab-\nc "
"""The same, with one more character of a word and one more that is of none: one of each class of the patterns."""

CHARACTERS = ["a", "a", "b", "b", "-", r"\n", ".", "[ab]", "[^a]", "[b-]", r"[^\n-]", r"\w", r"\W", r"\s", "(?s:.)"]
CONDITIONS = [r"\b", r"\B", "^", "$", r"\A", r"\Z", "(?m:^)", "(?m:$)", "(?=a)", "(?!a)", "(?<=b)", "(?<!b)"]
CONDITIONS += [r"(?=\W)", r"(?!\n)", r"(?<=-)", r"(?<![a-])", r"(?=-|$)", r"(?!b|\Z)", r"(?<!\n)", "(?=[^a])"]
REPEATS = ["?", "*", "+", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}", "{2,}", "{2,3}?"]


def _larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(parts, min_size=2, max_size=4).map("".join),
        st.lists(parts, min_size=2, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.builds("(?:{}){}".format, parts, st.sampled_from(REPEATS)),
    )


_pieces = st.one_of(st.sampled_from(CHARACTERS), st.sampled_from(CHARACTERS), st.sampled_from(CONDITIONS))
patterns = st.builds(
    "{}{}".format,
    st.sampled_from(["", "", "", "(?m)", "(?s)", "(?i)", "(?a)"]),
    st.recursive(_pieces, _larger, max_leaves=8),
)
texts = st.text(LETTERS, max_size=9)

FOLDED = "abBáà\u0301\u200b\ufb01ßfis½- \n"
"""Characters that fold to themselves, to others, to nothing, or to several."""
FOLDED_OTHERS = "abfisc12\u2044- \n\u200b\ufb01"
"""What else may come: one of each class, what folds to nothing and what folds to several."""

folded_texts = st.text(FOLDED, max_size=8)
word_lists = st.lists(
    st.text("abBfis-2 á\u200b", min_size=1, max_size=4).filter(lambda word: word != "\u200b" * len(word)),
    min_size=1,
    max_size=5,
)


@lru_cache(maxsize=4096)
def _up_to(pattern: str, rest: int) -> re.Pattern[str]:
    return re.compile(f"{within(pattern)}(?=(?s:.{{{rest}}})\\Z)")


def within(pattern: str) -> str:
    """The pattern as a part of another one, with its flags."""
    flags = re.match(r"(?:\(\?([aims])\))?", pattern)
    assert flags
    return f"(?{flags[1] or ''}:{pattern[flags.end() :]})"


def of_re(pattern: str, text: str) -> Callable[[int, int], bool]:
    """Whether a pattern matches all between two places of a text."""
    return lambda start, end: _up_to(pattern, len(text) - end).match(text, start) is not None


def slowly(text: str, matches: Callable[[int, int], bool], places: Sequence[int] | None = None) -> list[Span]:
    """The leftmost-longest matches of all that match; of those that begin in one place of the text, only the first."""
    spans: list[Span] = []
    start = 0
    while start < len(text):
        end = next((end for end in range(len(text), start, -1) if matches(start, end)), None)
        if end is not None:
            spans.append((start, end))
        start = start + 1 if end is None else end
        while end is not None and places and start < len(text) and places[start] == places[end - 1]:
            start += 1
    return spans


def is_of_word(character: str) -> bool:
    return re.match(r"\w", character) is not None or category(character).startswith("M")


def of_words(words: Iterable[str], text: str, whole: bool) -> Callable[[int, int], bool]:
    """Whether one of the words is between two places of a text."""

    def matches(start: int, end: int) -> bool:
        if text[start:end] not in words:
            return False
        begins_within = start > 0 and is_of_word(text[start - 1]) and is_of_word(text[start])
        ends_within = end < len(text) and is_of_word(text[end - 1]) and is_of_word(text[end])
        return not (whole and (begins_within or ends_within))

    return matches


def folded(text: str) -> str:
    return "".join(map(fold, text))


def unfolded(text: str, matcher_of: Callable[[str], Callable[[int, int], bool]]) -> list[Span]:
    """Spans in a text by what matches in the folded one; no two of them share a character of the text."""
    places = [index for index, character in enumerate(text) for _ in fold(character)]
    seen = folded(text)
    return [(places[start], places[end - 1] + 1) for start, end in slowly(seen, matcher_of(seen), places)]


def continuations(machine: Machine, text: str, letters: str, most: int, up_to: int | None = None) -> Iterator[str]:
    """What may follow a text, shortest first: all of up to two characters, then once for each state of a scanner.

    With `up_to`, only while the match at that place is undecided, and once for each state of that match.
    """
    waiting, seen = [""], set[object]()
    for count, more in enumerate(waiting):
        if count == most:
            return
        yield more
        scanner = machine.scanner()
        scanner.push(text + more)
        state = _state(scanner, len(text)) if up_to is None else _first_of(scanner)
        new = state not in seen and (up_to is None or scanner.safe <= up_to)
        if new:
            seen.add(state)
        if new or len(more) < 2:
            waiting += [more + letter for letter in letters]


def _state(scanner: Scan, length: int) -> object:
    """The state of a scanner, and where in the text its matches may begin."""
    starts = scanner._starts[: len(scanner._state.groups)]
    return id(scanner._state), tuple(min(start, length) for start in starts)


def _first_of(scanner: Scan) -> object:
    """The state of the first match that may be."""
    return scanner._state.groups[:1], scanner._state.kind, bool(scanner._noted)
