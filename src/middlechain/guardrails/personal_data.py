"""A guard against personal data that can be told by its form. Names and addresses have none: they are not found.

Numbers are held against their checksums, or against the ranges that are in use, by python-stdnum. Text is looked at as
it was written; `docs/reference/guardrails.md` says what is missed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Literal, TypeAlias

from typing_extensions import Unpack

from middlechain.guardrails.candidates import AnyOf, Checked
from middlechain.guardrails.looking import guard_against
from middlechain.guardrails.matching import Matcher
from middlechain.guardrails.parameters import Given, MatchOutcome, Options, needed
from middlechain.guardrails.patterns import Pattern
from middlechain.guards import Guard

__all__ = ["PII_KINDS", "Pii", "pii"]

Pii: TypeAlias = Literal["email", "phone", "credit_card", "iban", "us_ssn", "ip_address"]

_ALONE = "(?<![0-9A-Za-z])", "(?![0-9A-Za-z])"  # beside it is no letter and no digit


def pii(
    *,
    kinds: Iterable[Pii] | None = None,
    outcome: MatchOutcome = "enforce",
    replacement: str = "[redacted]",
    **options: Unpack[Options],
) -> Guard:
    """A guard against personal data: what has a form of its own, such as a card number.

    Args:
        kinds: any of `email`, `phone`, `credit_card`, `iban`, `us_ssn`, `ip_address`; default: all.
        outcome: `"enforce"` (default), `"deny"`, or `"rewrite"`: each match is replaced.
        replacement: what takes the place of a match; of several that overlap, once.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong, and where `python-stdnum` is not installed.
    """
    given = Given(pii, options)
    chosen = [*PII_KINDS] if kinds is None else given.texts("kinds", kinds, PII_KINDS) or []
    matchers = [given.attempt(PII_KINDS[kind]) for kind in dict.fromkeys(chosen)]
    return guard_against(given, AnyOf(matchers), "contains personal data", outcome, replacement)


def _email() -> Matcher:
    return Pattern(r"[0-9A-Za-z._%+-]+@(?:[0-9A-Za-z-]+\.)+[A-Za-z]{2,}")


def _phone() -> Matcher:
    before, after = "(?<![0-9A-Za-z+])", _ALONE[1]
    international = r"\+[1-9](?:[ .()\u00a0-]{0,2}[0-9]){7,14}"
    american = r"(?:\+?1[ .-]?)?(?:\([0-9]{3}\) ?|[0-9]{3}[ .-])[0-9]{3}[ .-][0-9]{4}"
    return Pattern(f"{before}(?:{international}|{american}){after}")


def _credit_card() -> Matcher:
    luhn = needed("stdnum.luhn", "pii")
    forms = (
        "[2-6][0-9]{12,18}",
        "[2-6][0-9]{3}(?:[ -][0-9]{4}){3}(?:[ -][0-9]{1,3})?",
        "3[0-9]{3}[ -][0-9]{6}[ -][0-9]{4,5}",
    )

    def is_card(number: str) -> bool:
        return len(number) >= 13 and bool(luhn.is_valid(number))

    def accept(candidate: str) -> int:
        ends = [word.end() for word in re.finditer("[0-9]+", candidate)]
        return max((end for end in ends if is_card(re.sub("[ -]", "", candidate[:end]))), default=0)

    return _numbers(f"(?<![+])(?:{'|'.join(forms)})", accept)


def _iban() -> Matcher:
    iban, numdb = needed("stdnum.iban", "pii"), needed("stdnum.numdb", "pii")

    @cache
    def length_in(country: str) -> int:
        """How many characters an IBAN of the country has beside those that all have; 0 where there are none."""
        (_, about), *_ = numdb.get("iban").info(country)
        return sum(map(int, re.findall("[0-9]+", about.get("bban", ""))))

    def accept(candidate: str) -> int:
        length = length_in(candidate[:2]) + 4
        end = length + (length - 1) // 4 if " " in candidate else length
        return end if candidate[end : end + 1].strip() == "" and iban.is_valid(candidate[:end]) else 0

    return _numbers("[A-Z]{2}[0-9]{2}(?:[0-9A-Z]{11,30}|(?: [0-9A-Z]{4}){2,7}(?: [0-9A-Z]{1,3})?)", accept)


def _us_ssn() -> Matcher:
    ssn = needed("stdnum.us.ssn", "pii")

    def accept(candidate: str) -> int:
        return len(candidate) if ssn.is_valid(candidate.replace(" ", "-")) else 0

    return _numbers("[0-9]{3}(?:-[0-9]{2}-| [0-9]{2} )[0-9]{4}", accept)


def _ip_address() -> Matcher:
    v4 = r"(?<![0-9A-Za-z.])[0-9]{1,3}(?:\.[0-9]{1,3}){3,}" + _ALONE[1]
    v6 = "(?<![0-9A-Za-z:.])[0-9A-Fa-f]{1,4}(?:::?[0-9A-Fa-f]{1,4}){2,}" + _ALONE[1]
    return Checked(Pattern(f"{v4}|{v6}"), lambda text: len(text) if _is_address(text) else 0)


PII_KINDS: Mapping[str, Callable[[], Matcher]] = {
    "email": _email,
    "phone": _phone,
    "credit_card": _credit_card,
    "iban": _iban,
    "us_ssn": _us_ssn,
    "ip_address": _ip_address,
}
"""What finds each kind."""


def _numbers(pattern: str, accept: Callable[[str], int]) -> Matcher:
    before, after = _ALONE
    return Checked(Pattern(f"{before}(?:{pattern}){after}"), accept)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
