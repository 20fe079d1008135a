"""A guard of a function that says yes or no: for what no built-in guard can tell."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from typing_extensions import Unpack

from middlechain.chain import name_of, settle
from middlechain.context import Context
from middlechain.errors import WrongReturn
from middlechain.guardrails.parameters import BlockOutcome, Given, Options, block
from middlechain.guards import Guard, Outcome

__all__ = ["check"]


def check(
    fn: Callable[..., bool | Awaitable[bool]],
    *,
    reason: str = "a check did not pass",
    outcome: BlockOutcome = "enforce",
    **options: Unpack[Options],
) -> Guard:
    """A guard of a function that returns whether a text may pass.

    What is to be rewritten needs no `check`: a guard may be a plain function `(text, ctx)` that returns the new text.

    Args:
        fn: `(text)` or `(text, ctx)`, sync or async; True lets the text pass, False blocks it, and anything else counts
            as a failure of the guard.
        reason: why it blocks, in one sentence.
        outcome: `"enforce"` (default) or `"deny"`.
        options: `name=` (default: that of the function), `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(check, options)
    with_ctx = given.attempt(_takes_ctx, fn) if callable(fn) else None
    if with_ctx is None:
        given.refuse("fn", fn, "give a function of (text), or of (text, ctx), that returns whether the text may pass")
    given.text("reason", reason)
    given.choice("outcome", outcome, ("enforce", "deny"))

    async def judge(text: str, ctx: Context[Any]) -> Outcome | None:
        passed = await settle(fn(text, ctx) if with_ctx else fn(text))
        if not isinstance(passed, bool):
            raise WrongReturn(
                f"the function {name_of(fn)} of a check() returned a value of type {type(passed).__name__}; "
                "return True to let the text pass, or False"
            )
        return None if passed else block(outcome, reason)

    name = name_of(fn).rpartition(".")[2]
    return given.guard(judge, outcome, name=name if name.isidentifier() else given.type)


def _takes_ctx(fn: Callable[..., object]) -> bool | None:
    """Whether the function wants both; None where it can be called with neither."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # some that are written in C have none; those take the text
        return False
    try:
        signature.bind("")
    except TypeError:
        pass
    else:
        return False
    try:
        signature.bind("", None)
    except TypeError:
        return None
    return True
