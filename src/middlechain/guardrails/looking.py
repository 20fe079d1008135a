"""Guards that look for something: whatever a matcher finds is blocked or replaced."""

from __future__ import annotations

from typing import Any

from middlechain.context import Context
from middlechain.guardrails.matching import Matcher
from middlechain.guardrails.parameters import Given, block
from middlechain.guardrails.scans import Blocking, Redacting, redact
from middlechain.guards import Guard, Outcome, Rewrite

__all__ = ["guard_against"]


def guard_against(given: Given, matcher: Matcher, reason: str, outcome: str, replacement: str) -> Guard:
    """The guard that lets no match pass.

    Args:
        given: what it was given.
        matcher: finds the matches.
        reason: the constant one.
        outcome: `"enforce"`, `"deny"`, or `"rewrite"`: each match is replaced.
        replacement: what takes the place of a match.

    Raises:
        ConfigurationError: with all that is wrong with what was given.
    """
    given.choice("outcome", outcome, ("enforce", "deny", "rewrite"))
    given.text("replacement", replacement)
    if not given.issues and outcome == "rewrite" and matcher.found(replacement):
        given.refuse("replacement", replacement, "it is itself what the guard looks for; give another one")

    if outcome == "rewrite":

        def rewrite(text: str, _ctx: Context[Any]) -> Outcome | None:
            changed = redact(matcher, text, replacement)
            return None if changed is None else Rewrite(changed, reason)

        return given.guard(rewrite, outcome, scan=lambda _ctx: Redacting(matcher.scanner(), replacement))

    def judge(text: str, _ctx: Context[Any]) -> Outcome | None:
        return block(outcome, reason) if matcher.found(text) else None

    return given.guard(judge, outcome, scan=lambda _ctx: Blocking(matcher.scanner()))
