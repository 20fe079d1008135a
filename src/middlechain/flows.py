"""Flows: agents and functions in a row, side by side, or over and over. A flow is an agent that is made of others.

It has no step of its own: no agent layer and no guard wraps it, only its members'. How a member's step goes on is the
business of `steps`.
"""

from __future__ import annotations

from typing import Any

from middlechain.branches import Merge, SideBySide
from middlechain.context import Context
from middlechain.members import Flow, Member
from middlechain.messages import Assistant, ToolMessage
from middlechain.rows import InARow, OverAndOver, Until

__all__ = ["Flow", "answered", "called_tool", "loop", "parallel", "sequence"]


def sequence(*members: Member, name: str = "sequence", description: str = "") -> Flow:
    """One member after the other: the answer of one is what the next one is asked, as a user message of its name.

    They share the history. A member that a guardrail blocked, or that a limit or `ctx.stop` stopped, is the last one.

    Args:
        members: agents, agent classes, names of agents of the app, flows, and functions `(input, ctx)` that return a
            str or a `Result` (None passes on what came in).
        name: for the app, for events and for messages; default `"sequence"`.
        description: what others are told of it, when it is a tool.

    Raises:
        ConfigurationError: for no members, something that cannot be one, or two agents of one name.
    """
    return InARow(members, name, description)


def parallel(*members: Member, merge: Merge | None = None, name: str = "parallel", description: str = "") -> Flow:
    """All members at the same time, each with the same input and a snapshot of the history.

    When one fails, the others are cancelled and have ended before its error goes on.

    Args:
        members: as of `sequence`.
        merge: `merge(results, ctx)`, sync or async, gets their results in the order in which they stand here and makes
            the answer, a str or a `Result`; the history then has each member's answer before it, as a user message of
            its name. Default, also for None: the texts, with a blank line between them.
        name: who gives the merged answer; default `"parallel"`.
        description: as of `sequence`.

    Raises:
        ConfigurationError: as `sequence`.
    """
    return SideBySide(members, name, description, merge)


def loop(
    *members: Member,
    until: Until | None = None,
    max_iterations: int = 10,
    max_fails: int | None = 5,
    name: str = "loop",
    description: str = "",
) -> Flow:
    """The members in a row, over and over; a further pass begins with the last answer.

    `Result.stopped_by` says what ended it: `until`, `iterations`, `fails`, `limit` or `stop`.

    Args:
        members: as of `sequence`.
        until: `until(ctx)`, sync or async, is asked after each pass; what is true ends the loop. See `answered` and
            `called_tool`.
        max_iterations: most passes; default 10.
        max_fails: how many turns in a row whose tools have all failed end it, in the middle of a step too; default 5,
            None for any number.
        name: default `"loop"`.
        description: as of `sequence`.

    Raises:
        ConfigurationError: as `sequence`, and for numbers below 1.
    """
    return OverAndOver(members, name, description, until, max_iterations, max_fails)


def answered(ctx: Context[Any]) -> bool:
    """For `until=`: whether the last step came to an answer by itself, with a text, and no limit ended it."""
    last = ctx.messages[-1] if ctx.messages else None
    return isinstance(last, Assistant) and bool(last.text) and last.finish_reason not in _NO_ANSWER


_NO_ANSWER = frozenset({"limit", "length", "incomplete", "pending", "degraded"})


def called_tool(name: str) -> Until:
    """For `until=`: whether a tool was called in this pass, with a result that is no error.

    Args:
        name: the tool's name.
    """

    def called(ctx: Context[Any]) -> bool:
        since = 0 if ctx.loop is None else ctx.loop.since
        return any(
            isinstance(message, ToolMessage) and message.name == name and not message.is_error
            for message in ctx.messages[since:]
        )

    return called
