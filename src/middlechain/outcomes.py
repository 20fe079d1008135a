"""Outcomes: how the result of a step is made, and made complete where a hook or a layer made it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from middlechain.agent import name_of_agent
from middlechain.errors import LimitExceeded, OutputError
from middlechain.guards import Deny
from middlechain.judging import Block, refuse
from middlechain.limits import NO_USAGE, Meter
from middlechain.messages import Assistant, Message, ToolMessage, User
from middlechain.pauses import Pause, told_apart, waiting_in
from middlechain.records import Step
from middlechain.results import Result, last_answer
from middlechain.structured import Unfit

__all__ = [
    "assistants",
    "blocked_input",
    "blocked_output",
    "complete",
    "hands_over",
    "of_run",
    "pending",
    "result_of",
    "said_in",
    "speaker_of",
    "stopped",
    "structured",
    "unfit",
]


def result_of(
    step: Step,
    *last: Message,
    stopped_by: str | None = None,
    finish_reason: str | None = None,
    answers: bool = True,
) -> Result:
    """The result of the step as it stands, with the message that ends it, if there is one.

    Args:
        step: its record.
        last: the message that ends it.
        stopped_by: what stopped it.
        finish_reason: default: that of the message.
        answers: whether its text is an answer, which may yet be read as the agent's output type.
    """
    messages = (*step.exchange, *last)
    place = last_answer(messages)
    message = None if place is None else messages[place]
    step.stamps.append(step.meter.usage)
    text = "" if message is None else message.text
    step.made = Result(
        text,
        text if answers or step.plan.output is None else cast("Any", None),
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
    return result_of(step, *last, stopped_by=by, finish_reason=reason, answers=False)


def pending(step: Step) -> Result:
    """What there is while calls wait for approval."""
    reply = cast("Assistant", step.exchange[cast("int", last_answer(step.exchange))])
    waits = {use.id: step.waiting[use.id] for use in reply.tool_calls if use.id in step.waiting}  # as in the reply
    calls = {id: waiting.call for id, waiting in waits.items() if waiting.call is not None}
    inner = {id: waiting.pause for id, waiting in waits.items() if waiting.pause is not None}
    transfer = step.transfer
    name = transfer if transfer is None or isinstance(transfer, str) else name_of_agent(transfer)
    asked = {id: waiting.asked for id, waiting in waits.items() if waiting.asked is not None}
    pause = Pause(step.plan.name, tuple(step.exchange), calls, inner, name, asked=asked)
    pause = told_apart(pause, step.run.ids)
    result = result_of(step, finish_reason="pending")
    step.made = replace(result, pending=tuple(waiting_in(pause).values()), pause=pause)
    return step.made


def hands_over(step: Step, result: Result) -> bool:
    """Whether a step ends with the turn that hands the conversation over: no layer has answered in its place."""
    handed = step.transfer is not None and result.pause is None
    return handed and bool(result.messages) and isinstance(result.messages[-1], ToolMessage)


def structured(step: Step, result: Result) -> Result:
    """The result with the answer as the agent's output type.

    Raises:
        OutputError: when a hook or a layer has made it an answer that is not of that type.
    """
    output = step.plan.output
    if output is None:
        return result
    text, value = step.parsed or (None, None)
    if result.text == text and result.output is value:
        return result
    if result.output is not value and not (isinstance(result.output, str) and result.output == result.text):
        return result  # a layer's own
    if (
        result.blocked
        or result.degraded
        or result.stopped_by is not None
        or result.pause is not None
        or (hands_over(step, result))
    ):
        return replace(result, output=cast("Any", None))
    try:
        step.parsed = result.text, output.parse(result.text)
    except Unfit as error:
        raise unfit(step, error) from error
    return replace(result, output=step.parsed[1])


def unfit(step: Step, error: Unfit) -> OutputError:
    """The error for an answer that is not of the agent's output type."""
    times = f" after {step.repaired} of {step.plan.output_retries} repairs" if step.repaired else ""
    return OutputError(
        f"the answer of {step.plan.name!r} is not of its output type{times}: {error}; "
        "ask for less, explain the fields in the instructions, or allow more output_retries"
    )


def of_run(step: Step, error: LimitExceeded) -> bool:
    """Whether a limit that stopped a step is one of the whole run."""
    return error.limit not in {"turns", "depth"} and error.limits is step.run.limits


def assistants(messages: Iterable[Message]) -> int:
    """How many of the messages are the assistant's."""
    return sum(type(message) is Assistant for message in messages)


def speaker_of(step: Step) -> Step:
    """The step whose answer is that of a step or a flow."""
    while step.speaker is not None and step.speaker is not step:
        step = step.speaker
    return step


def said_in(step: Step) -> tuple[Message, ...]:
    """What was said so far in the exchange that a step or a flow is part of, with results for all calls."""
    if step.speaker is not None and not step.members:
        return (
            said_in(step.speaker)
            if step.plan.conduct is None
            else tuple(step.exchange) or ((step.given[1],) if step.given else ())
        )
    said = tuple(step.exchange)
    if not said and not step.members and step.given is not None:
        return (step.given[1],)  # it has not begun
    for place, member in enumerate(step.members):
        said += said_in(member)[1 if place else 0 :]
    return said


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
    carried = step.carried
    if carried and result.messages and result.messages[1 : 1 + len(carried)] != carried:  # of a step that was nested
        result = replace(result, messages=(result.messages[0], *carried, *result.messages[1:]))
        changes["messages"] = result.messages
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
    return replace(result_of(step, answer, answers=False), blocked=True, blocked_by=block.guard.name)


def blocked_output(step: Step, block: Block) -> Result:
    """The canned answer in place of one that was blocked."""
    step.passed |= {block.canned}
    answer = Assistant(block.canned, finish_reason="safety", blocked=True)
    result = result_of(step, answer, answers=False)
    return replace(result, blocked=True, blocked_by=block.guard.name)
