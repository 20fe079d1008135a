"""Matching whole texts and streams: exact, linear, and the same however a text is cut (G11-G13, S4)."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from re import _parser  # type: ignore[attr-defined]  # what the library builds on

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from middlechain.errors import ConfigurationError
from middlechain.guardrails import states
from middlechain.guardrails.alphabet import characters
from middlechain.guardrails.matching import Machine, Span
from middlechain.guardrails.patterns import Pattern, any_of
from middlechain.guardrails.words import Words

from .matching_cases import (
    FOLDED_OTHERS,
    OTHERS,
    continuations,
    folded,
    folded_texts,
    of_re,
    of_words,
    patterns,
    slowly,
    texts,
    unfolded,
    within,
    word_lists,
)

CASES = int(os.environ.get("MATCHING_CASES", "1000"))
many = settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
fewer = settings(many, max_examples=CASES // 4)
wholes = st.booleans()


def words_of(words: Sequence[str], whole: bool, fold: bool = True) -> Words:
    return Words(words, match="word" if whole else "substring", fold=fold)


# what matches


@many
@given(patterns, texts)
def test_g13_matches_are_the_leftmost_longest_of_all_that_re_can_find(pattern: str, text: str) -> None:
    assert Pattern(pattern).spans(text) == slowly(text, of_re(pattern, text))


@fewer
@given(st.lists(patterns, min_size=1, max_size=3), texts)
def test_g13_several_patterns_match_like_one_with_alternatives(some: list[str], text: str) -> None:
    assert any_of(some).spans(text) == slowly(text, of_re("|".join(map(within, some)), text))


@fewer
@given(word_lists, wholes, folded_texts)
def test_g11_words_match_text_as_it_is_written_without_folding(words: list[str], whole: bool, text: str) -> None:
    assert words_of(words, whole, fold=False).spans(text) == slowly(text, of_words(words, text, whole))


# streams


def scanned(machine: Machine, pieces: Sequence[str]) -> list[Span]:
    """The spans of a text in pieces. On the way, what was decided stays, and ends before what is not."""
    scanner = machine.scanner()
    safe, spans = 0, list[Span]()
    for piece in pieces:
        scanner.push(piece)
        assert safe <= scanner.safe
        assert scanner.spans[: len(spans)] == spans
        assert all(end <= scanner.safe for _, end in scanner.spans)
        safe, spans = scanner.safe, list(scanner.spans)
    scanner.close()
    assert scanner.spans[: len(spans)] == spans
    assert scanner.safe == len("".join(pieces))
    assert scanner.hit == bool(scanner.spans)
    return scanner.spans


def cuts(text: str, most: int = 2) -> Iterator[list[str]]:
    """All cuts into one, two, ... pieces, empty ones among them, and into single characters."""
    yield list(text)
    for count in range(most):
        for places in combinations_with_replacement(range(len(text) + 1), count):
            yield [text[start:end] for start, end in zip((0, *places), (*places, len(text)), strict=True)]


def same_in_every_cut(machine: Machine, text: str) -> None:
    spans = machine.spans(text)
    assert machine.found(text) == bool(spans)
    assert all(scanned(machine, pieces) == spans for pieces in cuts(text))


def is_sound(machine: Machine, text: str, letters: str) -> None:
    """Nothing that comes changes what is decided, and where a match is certain there is one."""
    scanner = machine.scanner()
    scanner.push(text)
    for more in continuations(machine, text, letters, most=150):
        spans = machine.spans(text + more)
        assert [span for span in spans if span[0] < scanner.safe] == scanner.spans, more
        assert spans or not scanner.hit, more


def is_minimal(machine: Machine, text: str, letters: str) -> None:
    """Two continuations differ in the match at the first undecided place, and one has no match where none is certain.

    What may follow is searched as far as 3,000 continuations, once for each state of what may begin at that place.
    """
    scanner = machine.scanner()
    scanner.push(text)
    outcomes: set[tuple[Span, ...]] = set()
    avoided = scanner.hit
    for more in continuations(machine, text, letters, most=3000, up_to=scanner.safe):
        spans = machine.spans(text + more)
        outcomes.add(tuple(span for span in spans if span[0] <= scanner.safe))
        avoided = avoided or not spans
        if avoided and (len(outcomes) > 1 or scanner.safe == len(text)):
            return
    pytest.fail(f"nothing changes beyond {scanner.safe} of {text!r}, and no match is avoided: {outcomes}")


def is_exact(machine: Machine, text: str, letters: str) -> None:
    same_in_every_cut(machine, text)
    is_sound(machine, text, letters)
    is_minimal(machine, text, letters)


@many
@given(patterns, texts)
def test_s4_a_pattern_holds_exactly_what_may_change_for_every_cut(pattern: str, text: str) -> None:
    is_exact(Pattern(pattern), text, OTHERS)


@many
@given(patterns, folded_texts)
def test_g12_a_folding_pattern_matches_folded_text_and_is_as_exact(pattern: str, text: str) -> None:
    machine = Pattern(pattern, fold=True)
    assert machine.spans(text) == unfolded(text, lambda seen: of_re(pattern, seen))
    is_exact(machine, text, FOLDED_OTHERS)


@many
@given(word_lists, wholes, folded_texts)
def test_g12_words_match_folded_text_and_hold_exactly_what_may_change(words: list[str], whole: bool, text: str) -> None:
    machine, wanted = words_of(words, whole), set(map(folded, words))
    assert machine.spans(text) == unfolded(text, lambda seen: of_words(wanted, seen, whole))
    is_exact(machine, text, FOLDED_OTHERS)


@fewer
@given(word_lists, wholes, folded_texts)
def test_s4_words_without_folding_are_as_exact(words: list[str], whole: bool, text: str) -> None:
    is_exact(words_of(words, whole, fold=False), text, FOLDED_OTHERS + "Bá")


@settings(max_examples=50, deadline=None)
@given(patterns, folded_texts)
@example(r"\bab\b", "ab abb á\ufb01")
def test_what_was_found_may_be_forgotten_at_any_time(pattern: str, text: str) -> None:
    fresh = Pattern(pattern, fold=True).spans(text * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "MOST_KEPT", 3)
        assert scanned(Pattern(pattern, fold=True), text * 3) == fresh


def test_what_is_forgotten_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MOST_KEPT", 50)
    machine = Pattern("(a|b)*a(a|b){9}c")
    for number in range(500):
        machine.spans(format(number * 997, "b").replace("0", "a").replace("1", "b"))
    gc.collect()
    kept = [one for one in gc.get_objects() if type(one) is states.State and one.table is machine._table]
    assert len(kept) < 200


# examples


def states_of(machine: Machine, text: str) -> list[int]:
    """How much is safe after each character."""
    scanner = machine.scanner()
    found: list[int] = []
    for character in text:
        scanner.push(character)
        found.append(scanner.safe)
    return found


def test_s4_no_letter_of_a_banned_phrase_is_released_in_any_cut() -> None:
    text, words = "please make a wire transfer now", Words(["wire transfer"])
    for pieces in cuts(text, most=3):
        scanner, sent = words.scanner(), ""
        for piece in pieces:
            scanner.push(piece)
            sent = text[: scanner.spans[0][0] if scanner.spans else scanner.safe]
            if scanner.hit:
                break
        assert "please make a ".startswith(sent)
        assert scanner.hit


def test_s4_what_is_held_at_the_end_is_decided_by_the_end() -> None:
    words = Words(["badword"])
    for text, spans in {"a clean bad": [], "it is a badword": [(8, 15)], "a badword here": [(2, 9)]}.items():
        scanner = words.scanner()
        scanner.push(text)
        scanner.close()
        assert (scanner.safe, scanner.spans, scanner.hit) == (len(text), spans, bool(spans))


@pytest.mark.parametrize(
    "text",
    [
        "BADWORD",
        "bad\u200bword",
        "bad\u00adword",
        "bad\u2060word",
        "\uff42\uff41\uff44word",
        "b\u0430dword",
        "ba\u0301dword",
        "\U0001d41b\U0001d41a\U0001d41dword",
    ],
)
def test_g12_a_disguised_word_is_found_and_its_span_is_all_of_it(text: str) -> None:
    words = Words(["badword", "ass", "deskin"])
    assert words.spans(f"a {text}.") == [(2, 2 + len(text))]
    same_in_every_cut(words, f"a {text}.")


@pytest.mark.parametrize(
    "text", ["class", "a desk in the room", "badwordy", "\U0001f469\u200d\U0001f4bb", "bad word", "bad-word"]
)
def test_g12_a_harmless_text_is_not_found(text: str) -> None:
    words = Words(["badword", "ass", "deskin"])
    assert not words.found(text)
    same_in_every_cut(words, text)


def test_g12_an_unseen_character_neither_ends_a_word_nor_begins_one() -> None:
    words = Words(["badword"])
    assert words.spans("badword\u200by x\u200bbadword") == []
    assert words.spans("\u200bbadword\u0301\u200b!") == [(1, 8)]


def test_g12_a_boundary_is_asked_for_only_where_the_phrase_ends_in_a_letter() -> None:
    words = Words(["C++", ".net", "C"])
    assert words.spans("C++x, C+, vc++, a.NETs .net") == [(0, 3), (6, 7), (23, 27)]
    assert Words(["к"]).spans("к\u0947 к") == [(3, 4)]  # a mark that stays is of the word


def test_g12_no_two_matches_share_a_character_of_the_text() -> None:
    words = Words(["f", "ic"], match="substring")
    assert words.spans("o\ufb01cf") == [(1, 2), (3, 4)]
    assert Words(["ic"], match="substring").spans("o\ufb01c") == [(1, 3)]
    assert Words(["1", "2"]).spans("½") == [(0, 1)]


def test_the_longest_of_the_words_is_found() -> None:
    words = Words(["bad", "bad word", "word game"])
    assert words.spans("bad word game, bad wor, word game") == [(0, 8), (15, 18), (24, 33)]


def test_matches_that_may_begin_in_several_places_are_told_apart() -> None:
    pattern = Pattern("a....|b.X|c.\n")
    assert [pattern.spans(text) for text in ["abcde", "abcd\n", "abcX"]] == [[(0, 5)], [(2, 5)], [(1, 4)]]
    same_in_every_cut(pattern, "aabcd\n")


def test_s4_what_is_held_is_what_may_become_a_match() -> None:
    assert states_of(Words(["bad word"]), "a bad wo-bad ") == [1, 2, 2, 2, 2, 2, 2, 2, 9, 9, 9, 9, 9]
    assert states_of(Words(["bad"]), "bad, bady") == [0, 0, 0, 4, 5, 5, 5, 5, 9]
    assert states_of(Words(["bad"], match="substring"), "abady") == [1, 1, 1, 4, 5]


def test_s4_a_lone_line_feed_at_the_end_is_held_where_it_makes_a_difference() -> None:
    assert states_of(Pattern("a$"), "a\na") == [0, 0, 2]
    assert states_of(Pattern("a$|a"), "a\na") == [1, 2, 3]
    assert states_of(Pattern(r"\n(?=(?s:.))|$\n"), "\nx") == [1, 2]
    assert Pattern("ab$|b\n|\n").spans("ab\nab\n") == [(1, 3), (3, 5), (5, 6)]


def test_s4_a_match_may_be_certain_before_its_end_is() -> None:
    for pattern, text in {r"a\b|a\w": "a", r"a\b|a\w\b|a\w\w": "a", "ab|ab+": "ab", "a$|a(?!$)|a\n": "a"}.items():
        scanner = Pattern(pattern).scanner()
        scanner.push(text)
        assert (scanner.hit, scanner.spans) == (True, [])
    scanner = Pattern(r"a\b|a\w(?=\w)").scanner()
    scanner.push("a")
    assert not scanner.hit


def test_s4_whether_a_match_is_certain_is_not_looked_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MOST_LOOKED_AT", 0)
    scanner = Pattern(r"a\b|a\w\b|a\w\w").scanner()
    scanner.push("a")
    assert not scanner.hit


def test_s4_nothing_is_held_for_what_never_comes_out_of_folding() -> None:
    assert states_of(Pattern("a(?-i:[A-Z])", fold=True), "aA") == [1, 2]


def test_s4_nothing_is_held_for_an_end_within_the_same_letter() -> None:
    assert states_of(Pattern(r"s|ss\b", fold=True), "ß") == [1]
    pattern = Pattern(r"s|ss\b|ssx", fold=True)
    assert states_of(pattern, "ß ßx") == [0, 2, 2, 4]
    assert pattern.spans("ß ßx") == [(0, 1), (2, 4)]


def test_an_empty_match_is_none() -> None:
    for pattern in ["", "a*", "^", "$", r"\b", "(?=a)", "(?:a{0})*"]:
        assert Pattern(pattern).spans("b") == []
        assert not Pattern(pattern).found("b")
    assert Pattern("a*").spans("baab") == [(1, 3)]


@pytest.mark.parametrize(
    ("pattern", "text", "spans"),
    [
        ("(?x) a b # comment", "ab", [(0, 2)]),
        ("(?P<name>a)|(b)", "ab", [(0, 1), (1, 2)]),
        ("a|ab|abc??", "abc", [(0, 3)]),
        ("(?i)straße", "STRAßE", [(0, 6)]),
        ("(?i)[^a-c]+", "xABCy", [(0, 1), (4, 5)]),
        ("(?s)a.b", "a\nb", [(0, 3)]),
        ("(?m)^b$", "a\nb\nc", [(2, 3)]),
        ("(?a:\\w)+", "aé", [(0, 1)]),
        ("(?u:\\w)+", "aé", [(0, 2)]),
        ("(?i:a)B", "AB Ab", [(0, 2)]),
        (r"[\d.]+", "1.2 ٣", [(0, 3), (4, 5)]),
        (r"[^\W\d]+", "ab1", [(0, 2)]),
        (r"\S+", " ab ", [(1, 3)]),
        ("(?:(?:a+)+)+", "aab", [(0, 2)]),
        ("a(?=(b|[cd]))", "ab ad ae", [(0, 1), (3, 4)]),
        ("a(?=.|\\Z)", "a\na", [(2, 3)]),
    ],
)
def test_g13_the_syntax_is_that_of_python(pattern: str, text: str, spans: list[Span]) -> None:
    assert Pattern(pattern).spans(text) == spans


def test_g12_the_literals_of_a_folding_pattern_fold_too() -> None:
    pattern = Pattern("É[Ä,][^a]STRA\u00adßE", fold=True)
    assert pattern.spans("xeabstrasse, ÉÁÄ") == [(1, 11)]
    assert Pattern("[ßx]", fold=True).spans("ß") == []  # it folds to two characters, which are in no class
    assert Pattern("BAD").spans("bad") == []


@pytest.mark.parametrize(
    "pattern",
    [r"\w", r"(?a)\D", "(?i)k", "(?i)[^s-z]", "(?i)ß", r"[^\s]", ".", "(?i)[à-þ]", r"(?i)[^İ\d]", "(?i)\u03c3"],
)
def test_g13_classes_mean_what_they_mean_to_re_for_every_character(pattern: str) -> None:
    everything = "".join(map(chr, range(0x110000)))
    parsed = _parser.parse(pattern)
    operation, argument = parsed[0]
    found = characters(operation, tuple(argument) if isinstance(argument, list) else argument, parsed.state.flags)
    expected = [(one.start(), one.end() - 1) for one in re.finditer(f"{pattern}+", everything)]
    assert [(first, min(last, 0x10FFFF)) for first, last in found if first < 0x110000] == expected


# refusals


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", "back-reference"),
        ("(a)(?(1)b|c)", "condition on a group"),
        ("(?>a)", "atomic group"),
        ("a++", "possessive quantifier"),
        ("(?=ab)", "looks around for more or less than one character"),
        ("(?=a*)", "looks around"),
        ("(?!)", "looks around"),
        ("(?=a|bc)", "looks around"),
        ("(?=^)", "looks around"),
        ("(?<=$)a", "looks around"),
        (r"(?=\b)", "looks around"),
        ("(", "not valid: missing )"),
        ("(" * 5000 + "a" + ")" * 5000, "not valid"),
        ("a{99999999999}", "not valid"),
        ("x{1,100000}", "has 100,001 characters"),
        ("((a{100}){100}){100}", "characters with its repeats written out, more than 1,000"),
        ("(?:a?b?){150}", "ways to go on"),
    ],
)
def test_g13_what_no_automaton_can_follow_is_refused_with_a_way_out(pattern: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)) as caught:
        any_of(["ok", pattern])
    assert "write the check as a function instead: check(fn)" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: Pattern(b"a"), "a pattern is a str"),  # type: ignore[arg-type]
        (lambda: any_of([]), "at least one pattern"),
        (lambda: any_of("ab"), "at least one pattern"),
        (lambda: Words([]), "at least one word"),
        (lambda: Words("bad"), "at least one word"),
        (lambda: Words([""]), "it is empty"),
        (lambda: Words(["ok", "\u200b\u0301"]), "nothing is left of it"),
        (lambda: Words([3]), "needs texts"),  # type: ignore[list-item]
        (lambda: Words(["a"], match="words"), 'say match="word"'),  # type: ignore[arg-type]
    ],
)
def test_g9_bad_parameters_are_refused_when_the_matcher_is_built(wrong: Callable[[], object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        wrong()


def test_a_matcher_shows_what_it_finds() -> None:
    assert repr(Pattern("a+")) == "Pattern('a+')"
    assert repr(any_of(["a", "b"])) == "any_of(['a', 'b'])"
    assert repr(Words(["secret", "word"])) == "Words(2 words)"


# time


def seconds(machine: Machine, text: str, piece: int) -> float:
    start = time.process_time()
    scanner = machine.scanner()
    for place in range(0, len(text), piece):
        scanner.push(text[place : place + piece])
    scanner.close()
    return time.process_time() - start


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 40 + "!"),
        ("(a+)+$", "a" * 1_000_000 + "!"),
        ("(?:(?:(?:a*)*b?)*c?)*d", "a" * 300_000 + "!"),
        (r"(?:\w+\s?)+!", "word " * 60_000 + "?"),
        ("(?:a|a)*b", "a" * 300_000),
        ("badword", "badwor " * 140_000),
        ("x{1,100}y", "x" * 100_000),
    ],
)
def test_g13_no_pattern_hangs_on_a_near_miss(pattern: str, text: str) -> None:
    machine = Pattern(pattern)
    assert seconds(machine, text, 4096) < 2
    assert not machine.found(text)


def test_g13_an_automaton_that_is_too_large_to_keep_is_still_linear() -> None:
    text = "".join(format(number * number, "b") for number in range(300)).replace("0", "a").replace("1", "b")
    assert Pattern("(a|b)*a(a|b){20}").spans(text) == [(0, text.rindex("a", 0, -20) + 21)]


def test_thousands_of_words_take_about_as_long_as_fifty() -> None:
    letters = "etaoinshrdlu"
    many_words = [
        f"{one}{two}{three}{four}q" for one in letters for two in letters for three in letters for four in "xyz"
    ]
    text = " ".join(word[:-1] + "e" for word in many_words[::7]) * 40
    few, lots = Words(many_words[:50]), Words(many_words)
    few.spans(text)
    lots.spans(text)
    assert min(seconds(lots, text, 4096) for _ in range(3)) < 3 * min(seconds(few, text, 4096) for _ in range(3))
