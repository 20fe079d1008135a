"""A guard against secrets that can be told by their form: keys and tokens of well-known services, and assignments.

The forms are public: each service prints in its documentation how its tokens begin, so that they can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

from typing_extensions import Unpack

from middlechain.guardrails.candidates import AnyOf, Checked
from middlechain.guardrails.looking import guard_against
from middlechain.guardrails.matching import Matcher
from middlechain.guardrails.parameters import Given, MatchOutcome, Options
from middlechain.guardrails.patterns import Pattern, any_of
from middlechain.guards import Guard

__all__ = ["SECRET_KINDS", "Secret", "secrets"]

Secret: TypeAlias = Literal[
    "aws", "github", "gitlab", "google", "huggingface", "jwt", "llm", "npm", "password", "private_key", "pypi", "slack",
    "stripe",
]  # fmt: skip

_BEFORE = "(?<![0-9A-Za-z])"
_AFTER = "(?![0-9A-Za-z])"
_PEM_BODY = r"(?:\s*[A-Za-z-]+: [^\n]*\n)*[0-9A-Za-z+/=\s\\]*"
_PEM_MARK = "[0-9A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
_TOKENS: Mapping[str, str] = {
    "aws": f"{_BEFORE}(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{{16}}{_AFTER}",
    "github": f"{_BEFORE}(?:gh[oprsu]_[0-9A-Za-z]{{36,}}|github_pat_[0-9A-Za-z_]{{22,}})",
    "gitlab": f"{_BEFORE}gl(?:pat|ptt|rt|dt)-[0-9A-Za-z_-]{{20,}}",
    "google": f"{_BEFORE}AIza[0-9A-Za-z_-]{{35}}(?![0-9A-Za-z_-])",
    "huggingface": f"{_BEFORE}hf_[0-9A-Za-z]{{34,}}",
    "jwt": rf"{_BEFORE}eyJ[0-9A-Za-z_-]{{10,}}\.eyJ[0-9A-Za-z_-]{{10,}}\.[0-9A-Za-z_-]*",
    "npm": f"{_BEFORE}npm_[0-9A-Za-z]{{36,}}",
    "private_key": f"-----BEGIN {_PEM_MARK}(?:{_PEM_BODY}(?:-----END {_PEM_MARK})?)?",
    "pypi": f"{_BEFORE}pypi-AgE[0-9A-Za-z_-]{{40,}}",
    "slack": rf"{_BEFORE}(?:xox[abeoprs]-|xapp-[0-9]-|https://hooks\.slack\.com/[a-z]+/)[0-9A-Za-z/_-]{{10,}}",
    "stripe": f"{_BEFORE}(?:[rs]k_(?:live|test)_[0-9A-Za-z]{{16,}}|whsec_[0-9A-Za-z+/=]{{32,}})",
}


def secrets(
    *,
    kinds: Iterable[Secret] | None = None,
    outcome: MatchOutcome = "enforce",
    replacement: str = "[redacted]",
    **options: Unpack[Options],
) -> Guard:
    """A guard against keys, tokens and passwords: what has a form of its own, or is assigned to a telling name.

    Args:
        kinds: any of `aws`, `github`, `gitlab`, `google`, `huggingface`, `jwt`, `llm` (keys that begin with `sk-`, such
            as OpenAI's and Anthropic's), `npm`, `password` (an assignment such as `password = "..."`), `private_key`
            (PEM), `pypi`, `slack`, `stripe`; default: all.
        outcome: `"enforce"` (default), `"deny"`, or `"rewrite"`: each match is replaced, an assignment with its name.
        replacement: what takes the place of a match; of several that overlap, once.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(secrets, options)
    chosen = [*SECRET_KINDS] if kinds is None else given.texts("kinds", kinds, SECRET_KINDS) or []
    matchers: list[Matcher] = [_WITH_CHECK[kind]() for kind in dict.fromkeys(chosen) if kind in _WITH_CHECK]
    tokens = [_TOKENS[kind] for kind in dict.fromkeys(chosen) if kind in _TOKENS]
    if tokens:
        matchers.append(any_of(tokens))
    return guard_against(given, AnyOf(matchers), "contains a secret", outcome, replacement)


def _llm() -> Matcher:
    # Names of style classes and branches look the same, but for the digits.
    pattern = Pattern(f"{_BEFORE}sk-[0-9A-Za-z_-]{{20,}}")
    return Checked(pattern, lambda key: len(key) if _has_digit(key) else 0, inside=False)


def _password() -> Matcher:
    name = "(?:password|passwd|pwd|passphrase|(?:(?:api|secret|private|access|encryption)[_-]?){1,2}key"
    name += "|(?:access|auth|api|secret|bearer)[_-]?token|(?:client|app|shared)[_-]?secret|secret)"
    value = "0-9A-Za-z!#%&*+./?@^_~$-"
    quoted = r""""[^"\s]{8,}"|'[^'\s]{8,}'"""
    bare = rf"[{value}]{{8,}}={{0,2}}(?![(\[{{{value}])"  # no call, and no place in a list
    pattern = rf"""{_BEFORE}(?i:{name})["']?[ \t]*(?:=|:|:=|=>)[ \t]*(?:{quoted}|{bare})"""
    return Checked(Pattern(pattern), lambda text: len(text) if text[-1] in "\"'" or _has_digit(text) else 0)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


_WITH_CHECK: Mapping[str, Callable[[], Matcher]] = {"llm": _llm, "password": _password}

SECRET_KINDS: tuple[str, ...] = tuple(sorted([*_TOKENS, *_WITH_CHECK]))
"""The kinds there are."""
