"""Words and phrases, thousands of them at once, as one trie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal
from unicodedata import category

from middlechain.errors import ConfigurationError
from middlechain.guardrails.folding import fold as folded
from middlechain.guardrails.matching import Machine
from middlechain.guardrails.states import END

__all__ = ["Words"]

_OTHER, _WORD = 0, 1
"""The kinds, and the symbols of the characters that are in none of the words. A text begins and ends like `_OTHER`."""

_EITHER = 0b11


def _is_of_word(character: str) -> bool:
    """Whether a word goes on with it: a letter, a digit, an underscore, or a mark that folding has left."""
    return character.isalnum() or character == "_" or category(character)[0] == "M"


class _Trie:
    """The automaton of all words; a node is the beginning of a word."""

    forks = False
    start = _OTHER

    def __init__(self, words: Iterable[str], whole: bool) -> None:
        self._whole = whole
        self._symbols: dict[str, int] = {END: _OTHER}
        self._kinds = [_OTHER, _WORD]
        self._children: list[dict[int, int]] = [{}]
        self._ends = [0]
        for word in words:
            self._add(word)

    def _add(self, word: str) -> None:
        node = symbol = 0
        for character in word:
            symbol = self._symbols.setdefault(character, len(self._kinds))
            if symbol == len(self._kinds):
                self._kinds.append(self._kind_of(character))
            node = self._child(node, symbol)
        self._ends[node] = 1 << _OTHER if self._kinds[symbol] == _WORD else _EITHER

    def _child(self, node: int, symbol: int) -> int:
        child = self._children[node].setdefault(symbol, len(self._children))
        if child == len(self._children):
            self._children.append({})
            self._ends.append(0)
        return child

    def _kind_of(self, character: str) -> int:
        return _WORD if self._whole and _is_of_word(character) else _OTHER

    def symbol(self, character: str, /) -> int:
        known = self._symbols.get(character)
        return self._kind_of(character) if known is None else known

    def kind(self, symbol: int, /) -> int:
        return self._kinds[symbol]

    def symbols(self, kind: int, /) -> Iterable[int]:
        return range(len(self._kinds))

    def births(self, kind: int, symbol: int, /) -> Iterable[int]:
        if kind == _WORD == self._kinds[symbol]:
            return ()
        return self.moves(0, kind, symbol)

    def moves(self, node: int, kind: int, symbol: int, /) -> Iterable[int]:
        child = self._children[node].get(symbol)
        return () if child is None else (child,)

    def look(self, symbol: int, /) -> int:
        return 1 << self._kinds[symbol]

    def ends(self, node: int, kind: int, /) -> int:
        return self._ends[node]

    def every(self, kind: int, /) -> int:
        return _EITHER

    def grows(self, node: int, kind: int, /) -> bool:
        return bool(self._children[node])


class Words(Machine):
    """Finds words and phrases: the leftmost and longest ones.

    Args:
        words: What to find, at least one. A phrase is found as it is written, spaces included.
        match: "word": a match does not begin or end within a word. This counts only at an end of a phrase that is of a
            word (a letter, digit, underscore or mark) itself, so that `C++` is found in `C++x`. "substring": anywhere.
            Characters that folding drops, such as a soft hyphen, neither end a word nor begin one.
        fold: Match on folded text (`folding.py`): upper case, accents, invisible characters and look-alikes count as
            what they look like.

    Raises:
        ConfigurationError: When there are no words, one is no text or empty, also once folded, or `match` is neither.
    """

    def __init__(
        self, words: Sequence[str], *, match: Literal["word", "substring"] = "word", fold: bool = True
    ) -> None:
        if match not in {"word", "substring"}:
            raise ConfigurationError(f'Words(match={match!r}) is unknown; say match="word" or match="substring"')
        if isinstance(words, str) or not words:
            raise ConfigurationError(f"Words needs a list with at least one word, and got {words!r}; say Words([...])")
        seen = [_seen(word, fold) for word in words]
        super().__init__(_Trie(seen, match == "word"), folded if fold else None)
        self._count = len(seen)

    def __repr__(self) -> str:
        return f"Words({self._count} words)"


def _seen(word: str, fold: bool) -> str:
    """The word as it is matched."""
    if not isinstance(word, str):
        raise ConfigurationError(f"Words needs texts, and got {word!r}; leave it out, or write it as a str")
    seen = "".join(map(folded, word)) if fold else word
    if not seen:
        why = "nothing is left of it once folded" if word else "it is empty"
        raise ConfigurationError(f"Words cannot find {word!r}: {why}; leave it out")
    return seen
