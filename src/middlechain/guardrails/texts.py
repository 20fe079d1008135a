"""Guards for words and patterns of your own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from typing_extensions import Unpack

from middlechain.context import Context
from middlechain.guardrails.looking import guard_against
from middlechain.guardrails.matching import Matcher
from middlechain.guardrails.parameters import BlockOutcome, Given, MatchOutcome, Options, block
from middlechain.guardrails.patterns import Pattern
from middlechain.guardrails.scans import Waiting
from middlechain.guardrails.words import Words
from middlechain.guards import Guard, Outcome

__all__ = ["banned_words", "contains", "regex"]

_A_PATTERN = r'give a pattern, such as r"\bsecret\b"'


def banned_words(
    words: Iterable[str],
    *,
    match: Literal["word", "substring"] = "word",
    outcome: MatchOutcome = "enforce",
    replacement: str = "[redacted]",
    **options: Unpack[Options],
) -> Guard:
    """A guard against words and phrases, however they are spelt: on folded text.

    Args:
        words: what may not be said; spaces within a phrase count as they are.
        match: `"word"` (default): whole words only, so that "class" may be said where "ass" may not; `"substring"`.
        outcome: `"enforce"` (default), `"deny"`, or `"rewrite"`: each match is replaced.
        replacement: what takes the place of a match.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(banned_words, options)
    choice = given.choice("match", match, ("word", "substring"))
    matcher = given.attempt(Words, given.texts("words", words), match=choice or "word")
    return guard_against(given, matcher, "contains a banned word", outcome, replacement)


def regex(
    pattern: str,
    *,
    expect_match: bool = False,
    fold: bool = False,
    outcome: MatchOutcome = "enforce",
    replacement: str = "[redacted]",
    **options: Unpack[Options],
) -> Guard:
    """A guard against texts that match a pattern, or against texts that do not.

    Args:
        pattern: in Python's syntax, as far as it can be matched in linear time; see `Pattern`. An empty match is none.
        expect_match: True blocks a text without a match.
        fold: match on folded text; default False: on the text as it was written.
        outcome: `"enforce"` (default), `"deny"`, or `"rewrite"`: each match is replaced (not with `expect_match=True`).
        replacement: what takes the place of a match.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(regex, options)
    given.flag("expect_match", expect_match)
    folds = given.flag("fold", fold)
    matcher = given.attempt(Pattern, given.text("pattern", pattern, _A_PATTERN), fold=folds or False)
    if expect_match is not True:
        return guard_against(given, matcher, "matches a forbidden pattern", outcome, replacement)
    given.text("replacement", replacement)
    given.choice("outcome", outcome, ("enforce", "deny"), "there is nothing to rewrite where a match is missing")
    return _guard_that_waits(given, [matcher], "does not match the pattern", outcome)


def contains(patterns: Iterable[str], *, outcome: BlockOutcome = "enforce", **options: Unpack[Options]) -> Guard:
    """A guard against texts that lack something: a text passes when each of the texts is in it, on folded text.

    Args:
        patterns: texts, not regular expressions, that must all be there, anywhere.
        outcome: `"enforce"` (default) or `"deny"`.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(contains, options)
    given.choice("outcome", outcome, ("enforce", "deny"))
    texts = given.texts("patterns", patterns) or ()
    matchers = [given.attempt(Words, [text], match="substring") for text in texts]
    return _guard_that_waits(given, matchers, "lacks a text that must be there", outcome)


def _guard_that_waits(given: Given, matchers: Sequence[Matcher], reason: str, outcome: str) -> Guard:
    def judge(text: str, _ctx: Context[Any]) -> Outcome | None:
        return None if all(matcher.found(text) for matcher in matchers) else block(outcome, reason)

    return given.guard(judge, outcome, scan=lambda _ctx: Waiting(matchers))
