"""What a built-in guard lets out of a reply that streams, held against its verdict on the whole text (S4)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from middlechain.guardrails import (
    banned_words,
    check,
    contains,
    json_schema,
    json_valid,
    length,
    min_length,
    pii,
    prompt_injection,
    regex,
    secrets,
)
from middlechain.guards import Guard

from .test_builtin_guards import CARD, FOUND, KEYS, NO_CONTEXT, Make, judged, made, rewritten

LOOKING: list[Make] = [
    lambda **given: banned_words(["badword", "bad", "C++", "two words"], **given),
    lambda **given: banned_words(["ass", "assess"], match="substring", **given),
    lambda **given: regex("(ab)+|a.c$", **given),
    lambda **given: regex("se+cret", fold=True, **given),
    pii,
    lambda **given: pii(kinds=["credit_card"], **given),
    lambda **given: pii(kinds=["iban", "phone"], **given),
    secrets,
    lambda **given: secrets(kinds=["password", "llm"], **given),
    prompt_injection,
]
PIECES = [
    *(
        "badword",
        "bad",
        "b\u00e1d",
        "C++",
        "C",
        "+",
        "two words",
        "assess",
        "ass",
        "ab",
        "abc",
        "aXc",
        "seecret",
        "\u200b",
    ),
    *(text for texts in FOUND.values() for text in texts[:3]),
    *(texts[0] for texts in KEYS.values()),
    *(
        "4111",
        "1234 ",
        "DE89 ",
        "OK12 ",
        "3704 ",
        "1.2",
        ".3",
        "::",
        "2001:",
        "+1 ",
        "(415) ",
        "555-",
        "@",
        ".com",
        "sk-",
    ),
    *("password", "=", '"', "ignore all ", "previous ", "instructions", "your system ", "prompt", "-----"),
    *(" ", "\n", ". ", "x", "7", "The rest of it. "),
]
texts = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
cuts = st.lists(st.integers(0, 400), max_size=12)


def chunks(text: str, at: Iterable[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[start:end] for start, end in pairwise(places)]


def scan_of(guard: Guard) -> Any:
    assert guard.scan is not None
    scan: Any = guard.scan(NO_CONTEXT)
    return scan


def first_match(make: Make, text: str) -> int:
    """Where the first match begins, or the length of the text."""
    changed = rewritten(made(make, outcome="rewrite", replacement="\0"), text)
    return changed.find("\0") if "\0" in changed else len(text)


def blocking_is_true(make: Make, text: str, at: Iterable[int]) -> None:
    guard, first = made(make), first_match(make, text)
    blocked = judged(guard, text)
    assert (blocked is not None) == (first < len(text))
    scan, out, seen = scan_of(guard), 0, ""
    for delta in chunks(text, at):
        seen += delta
        now = scan.push(delta)
        assert out <= now <= min(first, len(seen))
        out = now
        if scan.hit:
            assert blocked is not None
            assert judged(guard, seen) == blocked
            assert scan.push("more") == out


def rewriting_is_true(make: Make, text: str, at: Iterable[int]) -> None:
    guard = made(make, outcome="rewrite", replacement="<>")
    whole, scan, out = rewritten(guard, text), scan_of(guard), ""
    for delta in chunks(text, at):
        out += scan.feed(delta)
        assert whole.startswith(out)


@pytest.mark.parametrize("make", LOOKING)
@settings(max_examples=60, deadline=None)
@given(text=texts, at=cuts)
@example(text=f"x {CARD[:9]} {CARD} y", at=range(60))
@example(text="OK12 DE89 3704 0044 0532 0130 00 it is", at=range(60))
@example(text="+1 415-555-0123@example.com and so", at=range(60))
def test_s4_no_character_of_a_match_goes_out_and_what_goes_out_is_right(
    make: Make, text: str, at: Iterable[int]
) -> None:
    blocking_is_true(make, text, at)
    rewriting_is_true(make, text, at)


@pytest.mark.parametrize("make", LOOKING)
@pytest.mark.parametrize("text", [*PIECES, f"a {CARD} 123 b", 'x password="hunter2!" y', "It is bad, ab, ass.\n"])
def test_s4_it_is_so_for_every_cut_in_two_and_for_single_characters(make: Make, text: str) -> None:
    for place in range(len(text)):
        blocking_is_true(make, text, [place])
        rewriting_is_true(make, text, [place])
    blocking_is_true(make, text, range(len(text)))
    rewriting_is_true(make, text, range(len(text)))


@pytest.mark.parametrize("make", LOOKING)
def test_s4_what_cannot_become_a_match_goes_out_at_once(make: Make) -> None:
    text = "Well, this is a very harmless sentence! "
    assert scan_of(made(make)).push(text) == len(text)
    assert scan_of(made(make, outcome="rewrite")).feed(text) == text


@pytest.mark.parametrize(
    ("make", "text", "out"),
    [
        (LOOKING[0], "he is ba", 6),
        (LOOKING[0], "he is bax", 9),
        (LOOKING[0], "he is bad", 6),
        (pii, "call 4111 1111 1111 111", 5),
        (pii, "call 4111 1111 1111 1112 x", 25),  # a checksum that fails: it was no match
        (pii, "call 4111 1111 1111 1111 x", 5),
        (secrets, "the AKIAIOSF", 4),
        (secrets, "the AKIAio", 10),
        (prompt_injection, "please ignore all ", 7),
        (prompt_injection, "please ignore all of", 7),
        (prompt_injection, "please ignore all mail", 22),
    ],
)
def test_s4_what_is_held_back_is_what_may_still_become_a_match(make: Make, text: str, out: int) -> None:
    assert scan_of(made(make)).push(text) == out
    rewriting = scan_of(made(make, outcome="rewrite"))
    assert rewriting.feed(text).partition("[")[0] == text[:out]


def test_s4_the_scans_see_a_hit_as_soon_as_it_is_certain() -> None:
    scan = scan_of(secrets())
    assert (scan.push("key ghp_" + "a1B2" * 8), scan.hit) == (4, False)
    assert (scan.push("a1B2"), scan.hit) == (4, True)
    scan = scan_of(pii())
    assert (scan.push(f"it is {CARD}"), scan.hit) == (6, False)  # one more digit, and it is none
    assert (scan.push(" x"), scan.hit) == (6, True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: contains(["hello", "you"]),
        lambda: regex("b+a", expect_match=True),
        lambda: min_length(9),
    ],
)
@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.sampled_from(["hel", "lo", "HELLO", "y\u00f3", "u", "b", "ba", " "]), max_size=9).map("".join),
    at=cuts,
)
def test_s4_a_guard_that_waits_lets_out_nothing_and_then_all(make: Make, text: str, at: Iterable[int]) -> None:
    guard = make()
    scan, seen = scan_of(guard), ""
    for delta in chunks(text, at):
        seen += delta
        out = scan.push(delta)
        assert out in {0, len(seen)}
        assert out == 0 or judged(guard, seen) is judged(guard, text) is None
        assert not getattr(scan, "hit", False)
    if judged(guard, text) is None and text:
        assert scan.push(" ") == len(text) + 1


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=20), at=cuts)
@example(text="\ud83d\ude00" * 5, at=range(20))
def test_s4_a_text_that_is_too_long_is_hit_as_soon_as_it_is(text: str, at: Iterable[int]) -> None:
    guard = length(max_characters=9, max_tokens=5)
    scan, seen = scan_of(guard), ""
    for delta in chunks(text, at):
        seen += delta
        assert scan.push(delta) == 0
        assert scan.hit == (judged(guard, seen) is not None)


def test_s4_a_text_that_must_be_known_whole_is_held_whole() -> None:
    assert [make.scan for make in (json_valid(), json_schema({}), check(str.isascii))] == [None, None, None]
