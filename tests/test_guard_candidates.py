"""Matches with a check, and of several kinds: a scanner finds what is found in the whole text, at every cut (S4)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from middlechain.guardrails.candidates import AnyOf, Checked
from middlechain.guardrails.matching import Matcher, Span
from middlechain.guardrails.patterns import Pattern

from .test_guard_streaming import chunks


def evens(candidate: str) -> int:
    """As far as the sum of the digits is even, at the end of a word."""
    ends = [word.end() for word in re.finditer("[0-9]+", candidate)]
    return max((end for end in ends if sum(map(int, re.findall("[0-9]", candidate[:end]))) % 2 == 0), default=0)


NUMBERS = Checked(Pattern("(?<![0-9])[0-9]{2}(?: [0-9]{2}){1,2}(?![0-9])"), evens)
TOKENS = Checked(Pattern("(?<![a-z])x[a-z-]{2,}"), lambda text: len(text) if "e" in text else 0, inside=False)
WORDS = Pattern("[a-z]+@[a-z]+")
ALL = AnyOf([NUMBERS, TOKENS, WORDS])


def by_hand(text: str) -> list[Span]:
    """What `NUMBERS` finds, candidate by candidate."""
    spans, at, pattern = list[Span](), 0, re.compile(r"(?<!\d)\d\d(?: \d\d){1,2}(?!\d)")
    while found := pattern.search(text, at):
        candidate = found[0]  # Python prefers the longest here, too
        length = evens(candidate)
        if length:
            spans.append((found.start(), found.start() + length))
        at = found.start() + (length or 2)
    return spans


@pytest.mark.parametrize("matcher", [NUMBERS, TOKENS, WORDS, ALL])
@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(["1", "2", "12", " 34", " 21", " ", "x", "ab", "-", "e", "@", "xyz", "."]), max_size=14
    ),
    at=st.lists(st.integers(0, 60), max_size=60),
)
def test_s4_a_scanner_finds_the_same_at_every_cut(matcher: Matcher, text: list[str], at: Iterable[int]) -> None:
    whole = "".join(text)
    expected = matcher.spans(whole)
    assert matcher.found(whole) == bool(expected)
    if matcher is NUMBERS:
        assert expected == by_hand(whole)
    scanner, seen, safe = matcher.scanner(), 0, 0
    for delta in chunks(whole, at):
        scanner.push(delta)
        seen += len(delta)
        assert safe <= scanner.safe <= seen
        safe = scanner.safe
        assert list(scanner.spans) == [span for span in expected if span[1] <= safe]
        assert not any(start < safe < end for start, end in expected)
        assert not scanner.hit or expected
    scanner.close()
    assert list(scanner.spans) == expected
    assert scanner.safe == len(whole)
    assert scanner.hit == bool(expected)


def test_g11_spans_of_two_kinds_that_overlap_are_one() -> None:
    assert ALL.spans("xab-e@b and 12 34") == [(0, 7), (12, 17)]
    assert ALL.spans("a@b") == [(0, 3)]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("12 34", [(0, 5)]),
        ("12 35", []),
        ("10 20 20 13", [(3, 11)]),
        ("12 34 21", [(0, 5)]),
        ("12 35 1", []),
        ("112 34", []),
    ],
)
def test_g11_the_search_goes_on_inside_of_what_is_no_match(text: str, spans: list[Span]) -> None:
    assert NUMBERS.spans(text) == spans


def test_g13_what_looks_like_numbers_costs_no_more_than_its_length() -> None:
    asked = 0

    def none(_candidate: str) -> int:
        nonlocal asked
        asked += 1
        return 0

    numbers = Checked(Pattern("(?<![0-9])[0-9]{2}(?: [0-9]{2}){1,2}(?![0-9])"), none)
    assert numbers.spans("12 " * 10_000) == []
    assert asked == 9_999  # one for each place where a number may begin
