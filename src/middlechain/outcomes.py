"""Outcomes: how the result of a step is made, and made complete where a hook or a layer made it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from middlechain.guards import Deny
from middlechain.judging import Block, refuse
from middlechain.limits import NO_USAGE, Meter
from middlechain.messages import Assistant, Message, User
from middlechain.records import Step
from middlechain.results import Result, last_answer

__all__ = ["blocked_input", "blocked_output", "complete", "result_of", "stopped"]


def result_of(step: Step, *last: Message, stopped_by: str | None = None, finish_reason: str | None = None) -> Result:
    """The result of the step as it stands, with the message that ends it, if there is one."""
    messages = (*step.exchange, *last)
    place = last_answer(messages)
    message = None if place is None else messages[place]
    step.stamps.append(step.meter.usage)
    step.made = Result(
        "" if message is None else message.text,
        messages=messages,
        usage=step.meter.usage,
        finish_reason=finish_reason or (message.finish_reason if isinstance(message, Assistant) else None),
        agent=step.plan.name,
        run_id=step.run.id,
        state=step.run.state,
        stopped_by=stopped_by,
    )
    return step.made


def stopped(step: Step, by: str = "limit") -> Result:
    """What there is when no further turn is allowed; tool calls of the last reply that did not run are dropped."""
    reason = "limit" if by == "limit" else "stop"
    reply = step.reply
    last = (
        ()
        if reply is None or not (reply.text or reply.reasoning)
        else (Assistant(reply.text, (), reply.reasoning, reason),)
    )
    return result_of(step, *last, stopped_by=by, finish_reason=reason)


def complete(step: Step, result: Result, meter: Meter | None = None) -> Result:
    """A result that a hook or a layer made or changed, with what only the runtime knows."""
    changes: dict[str, Any] = {}
    if not result.run_id:
        reason = result.finish_reason or "stop"
        changes |= {"finish_reason": reason, "agent": result.agent or step.plan.name, "run_id": step.run.id}
        if not result.messages:
            changes["messages"] = (*step.exchange, Assistant(result.text, finish_reason=reason))
    elif result is step.made and (meter or step.meter).usage is result.usage:
        return result
    if result.messages and (last_answer(result.messages) is None or result.message.text != result.text):
        changes["messages"] = result.replace(text=result.text).messages
    if result.usage is NO_USAGE or any(result.usage is stamp for stamp in step.stamps):
        changes["usage"] = (meter or step.meter).usage
        step.stamps.append(changes["usage"])
    if not result.validations and step.ledger is not None:
        changes["validations"] = step.ledger.validations
    if result.state is None:
        changes["state"] = step.run.state
    step.made = replace(result, **changes)
    return step.made


def blocked_input(step: Step, block: Block) -> Result:
    """The canned answer to a message that was blocked; both stay in history, marked.

    Raises:
        GuardrailDenied: for a `Deny`.
    """
    if isinstance(block.outcome, Deny):
        raise refuse(step, block)
    step.exchange[0] = replace(cast("User", step.exchange[0]), blocked=True)
    step.passed |= {block.canned}
    answer = Assistant(block.canned, finish_reason="safety", blocked=True)
    return replace(result_of(step, answer), blocked=True, blocked_by=block.guard.name)


def blocked_output(step: Step, block: Block) -> Result:
    """The canned answer in place of one that was blocked."""
    step.passed |= {block.canned}
    result = result_of(step, Assistant(block.canned, finish_reason="safety", blocked=True))
    return replace(result, blocked=True, blocked_by=block.guard.name)
