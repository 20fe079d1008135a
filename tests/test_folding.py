"""What a character is matched as (G12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middlechain.guardrails.folding import LOOK_ALIKES, fold


@pytest.mark.parametrize(
    ("character", "seen"),
    [
        ("a", "a"),
        ("A", "a"),
        ("Á", "a"),
        ("ß", "ss"),
        ("İ", "i"),
        ("\uff21", "a"),  # full-width
        ("\U0001d400", "a"),  # mathematical
        ("\ufb01", "fi"),
        ("½", "1\u20442"),
        ("\u00a0", " "),
        ("\u0430", "a"),  # Cyrillic
        ("\u041d", "h"),
        ("\u03bf", "o"),  # Greek
        ("\u0391", "a"),
        ("\u1d00", "a"),  # a small capital
        ("й", "и"),
        ("ж", "ж"),
        ("字", "字"),
        ("\u0947", "\u0947"),  # a mark of Devanagari is part of its word
        ("が", "か\u3099"),
        ("\U0001f469", "\U0001f469"),
        ("\n", "\n"),
        ("", ""),
    ],
)
def test_g12_a_character_folds_to_what_a_reader_takes_it_for(character: str, seen: str) -> None:
    assert fold(character) == seen


@pytest.mark.parametrize(
    "character",
    ["\u0301", "\u00ad", "\u200b", "\u200d", "\u2060", "\ufeff", "\ufe0f", "\U000e0100", "\u034f", "\u3164"],
)
def test_g12_what_is_not_seen_folds_to_nothing(character: str) -> None:
    assert fold(character) == ""


@given(st.characters())
def test_what_a_character_folds_to_folds_to_itself(character: str) -> None:
    assert "".join(map(fold, fold(character))) == fold(character)


def test_every_look_alike_is_in_use_and_becomes_a_latin_letter() -> None:
    assert all(fold(one) == letter and fold(letter) == letter for one, letter in LOOK_ALIKES.items())
    assert set(LOOK_ALIKES.values()) <= set("abcdefghijklmnopqrstuvwxyz")
