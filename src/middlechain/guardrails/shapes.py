"""Guards for the shape of an answer: how long it is, and whether it is the JSON that was asked for.

They judge the step's answer (`when="final"`) where nothing else is said. Little of it can go out before it is known
whole, and it can only be blocked: there is no part to rewrite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from typing_extensions import Unpack

from middlechain.context import Context
from middlechain.guardrails.parameters import BlockOutcome, Given, Options, block
from middlechain.guardrails.scans import AtLeast, AtMost
from middlechain.guardrails.schemas import accepts_of
from middlechain.guards import Guard, Outcome

__all__ = ["json_schema", "json_valid", "length", "min_length"]


def length(
    *,
    max_characters: int | None = None,
    max_tokens: int | None = None,
    outcome: BlockOutcome = "enforce",
    **options: Unpack[Options],
) -> Guard:
    """A guard against texts that are too long. At least one of the two maxima must be given.

    Args:
        max_characters: how many characters a text may have; default: any number.
        max_tokens: how many tokens it may have, by an estimate that knows no model: four bytes of UTF-8 are a token,
            rounded up. Default: any number.
        outcome: `"enforce"` (default) or `"deny"`.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(length, options)
    limits: dict[Callable[[str], int], int] = {}
    if max_characters is not None:
        limits[len] = given.number("max_characters", max_characters, 0) or 0
    if max_tokens is not None:
        limits[_bytes] = (given.number("max_tokens", max_tokens, 0) or 0) * _BYTES_PER_TOKEN
    if not limits:
        given.issues.append("max_characters= and max_tokens= are both missing; give at least one of them")
    given.choice("outcome", outcome, ("enforce", "deny"))

    def judge(text: str, _ctx: Context[Any]) -> Outcome | None:
        too_long = any(measure(text) > most for measure, most in limits.items())
        return block(outcome, "is too long") if too_long else None

    return given.guard(judge, outcome, when="final", scan=lambda _ctx: AtMost(limits))


def min_length(min_characters: int, *, outcome: BlockOutcome = "enforce", **options: Unpack[Options]) -> Guard:
    """A guard against texts that are too short. An empty text is judged by no guard, so that it passes.

    Args:
        min_characters: how many characters a text must have.
        outcome: `"enforce"` (default) or `"deny"`.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(min_length, options)
    least = given.number("min_characters", min_characters, 1) or 1
    given.choice("outcome", outcome, ("enforce", "deny"))

    def judge(text: str, _ctx: Context[Any]) -> Outcome | None:
        return block(outcome, "is too short") if len(text) < least else None

    return given.guard(judge, outcome, when="final", scan=lambda _ctx: AtLeast(least))


def json_valid(*, outcome: BlockOutcome = "enforce", **options: Unpack[Options]) -> Guard:
    """A guard against texts that are no JSON. The whole text must be: no code fence, no word around it.

    Args:
        outcome: `"enforce"` (default) or `"deny"`.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(json_valid, options)
    return _of_json(given, lambda _value: True, "is not JSON", outcome, parse_int=float)


def json_schema(schema: Mapping[str, Any], *, outcome: BlockOutcome = "enforce", **options: Unpack[Options]) -> Guard:
    """A guard against texts that are no JSON, or JSON that does not fit a schema.

    Args:
        schema: a JSON schema (2020-12, or the draft that its `$schema` names), such as `Model.model_json_schema()`. A
            `$ref` must point into it. Its patterns are matched as those of `regex`; `format` checks nothing.
        outcome: `"enforce"` (default) or `"deny"`.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong, and where `jsonschema` is not installed.
    """
    given = Given(json_schema, options)
    if not isinstance(schema, Mapping):
        given.refuse("schema", schema, 'give a JSON schema, such as {"type": "object"}')
    accepts = given.attempt(accepts_of, schema if isinstance(schema, Mapping) else None)
    return _of_json(given, accepts, "is not JSON that fits the schema", outcome)


_BYTES_PER_TOKEN = 4


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _of_json(
    given: Given, accepts: Callable[[Any], bool], reason: str, outcome: str, parse_int: Callable[[str], object] = int
) -> Guard:
    given.choice("outcome", outcome, ("enforce", "deny"))

    def judge(text: str, _ctx: Context[Any]) -> Outcome | None:
        try:
            accepted = accepts(json.loads(text, parse_int=parse_int, parse_constant=_refuse))
        except (ValueError, ArithmeticError, RecursionError):  # no JSON, or larger or deeper than Python follows
            accepted = False
        return None if accepted else block(outcome, reason)

    return given.guard(judge, outcome, when="final")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # Python reads NaN and Infinity, which are no JSON
