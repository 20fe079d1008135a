"""What a reader takes for the same letter: the folded text that words are matched on.

Each character folds by itself, so that a stream folds as it comes: NFKD, case-folded, without format characters,
variation selectors and Latin combining marks, and look-alikes of Latin letters mapped to them by `LOOK_ALIKES`. Other
scripts' marks are part of their words and stay. What a character folds to folds to itself.
"""

# ruff: noqa: RUF001  # characters that look alike are what this room is about

from __future__ import annotations

from functools import lru_cache
from unicodedata import category, normalize

__all__ = ["LOOK_ALIKES", "fold"]

_TABLE = """
a а α ɑ ᴀ         b в β ʙ           c с ᴄ             d ԁ ɗ đ ᴅ ð
e е є ε ҽ ɛ ᴇ     f ғ ϝ ꜰ ƒ         g ɡ ԍ ɢ           h н һ η հ ħ ʜ
i і ι ı ɩ ɪ ӏ     j ј ϳ ᴊ           k к κ қ ᴋ         l ł ʟ ǀ
m м μ ᴍ           n п ո ɴ ŋ         o о ο ø օ σ ᴏ ө   p р ρ ᴘ
q ԛ գ             r г ʀ             s ѕ ꜱ ʂ           t т τ ŧ ᴛ
u υ ս ʋ ᴜ         v ν ѵ ᴠ           w ԝ ω ա ѡ ᴡ       x х χ ҳ
y у γ ү ʏ         z ζ ʐ ᴢ
"""
"""Each Latin letter, then what is taken for it in Cyrillic, Greek, Armenian and phonetic type, small or capital."""

_LATIN_MARKS = ((0x0300, 0x036F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F))
_SELECTORS = ((0xFE00, 0xFE0F), (0x180B, 0x180F), (0xE0100, 0xE01EF))
_FILLERS = ((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x3164, 0x3164), (0xFFA0, 0xFFA0))
_UNSEEN = _LATIN_MARKS + _SELECTORS + _FILLERS


def _look_alikes() -> dict[str, str]:
    table: dict[str, str] = {}
    letter = ""
    for one in _TABLE.split():
        if one.isascii():
            letter = one
        else:
            table[one] = letter
    return table


LOOK_ALIKES = _look_alikes()
"""From a case-folded character to the Latin letter that it is taken for."""


def _is_unseen(character: str) -> bool:
    code = ord(character)
    return category(character) == "Cf" or any(first <= code <= last for first, last in _UNSEEN)


@lru_cache(maxsize=65_536)
def fold(character: str) -> str:
    """What one character is matched as: nothing for one that is not seen, several for a ligature."""
    plain = normalize("NFKD", normalize("NFKD", character).casefold())
    return "".join(LOOK_ALIKES.get(one, one) for one in plain if not _is_unseen(one))
