"""A step: one agent's part of a run, from its input to its result, through its guards and layers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import anyio

from middlechain.agent import Agent
from middlechain.answering import answer, as_judged, reached
from middlechain.chain import Scope, settle
from middlechain.errors import GuardrailDenied, LimitExceeded
from middlechain.events import AgentFinished, AgentStarted
from middlechain.guards import Deny, StepGuards
from middlechain.holds import Moment
from middlechain.judging import Block, judge_answer, judge_input, note_denial, refuse
from middlechain.limits import NO_USAGE, Limits
from middlechain.messages import Assistant, Input, input_of
from middlechain.outcomes import (
    blocked_input,
    blocked_output,
    complete,
    hands_over,
    of_run,
    result_of,
    stopped,
    structured,
)
from middlechain.records import Step, current, step_of
from middlechain.results import AgentCall, Result, attach
from middlechain.structured import Unfit
from middlechain.targets import successor_of
from middlechain.turn import chain_of, wrong_return

__all__ = ["check_depth", "in_time", "run_through"]


T = TypeVar("T")


def run_through(step: Step, input: Input, via: str) -> Coroutine[Any, Any, Result]:
    """Run a step, and those that the conversation is handed over to, one after the other; or a flow.

    Args:
        step: its record.
        input: what it is asked.
        via: how it came to be asked; the members of a flow are asked by the flow.
    """
    if step.plan.conduct is not None:
        return step.plan.conduct(step, input)
    return _handing_over(step, input, via) if step.plan.handoffs else run_step(step, input, via)


async def _handing_over(first: Step, input: Input, via: str) -> Result:
    """Run a step, and those of whoever gets the conversation, as long as the last turn hands it over."""
    step, usage = first, NO_USAGE
    result = await run_step(step, input, via)
    while step.transfer is not None and result.pause is None:
        usage += step.meter.usage
        step = first.speaker = successor_of(step, result.messages)
        if first.host is None:
            first.run.root = step
        input = input_of(result.messages[0])
        conduct = step.plan.conduct
        result = await (run_step(step, input, "handoff") if conduct is None else conduct(step, input))
    if first.host is None or step is first or result.usage is not step.meter.usage:
        return result
    usage += step.meter.usage
    step.stamps.append(usage)
    return replace(result, usage=usage)


def _asking(caller: Step | None) -> Agent | None:
    """The agent that asked for a step: whoever the flows around it belong to."""
    while caller is not None and caller.plan.conduct is not None:
        caller = caller.caller
    return None if caller is None else caller.agent


async def run_step(step: Step, input: Input, via: str) -> Result:
    """Run a step from its first event to its last; what was streamed of it by then is what its result says."""
    call = AgentCall(
        input,
        None if step.caller is None else _asking(step.caller),
        via,
        step.depth,
        ctx=step.ctx,
        agent=step.plan.agent,
    )
    token = current.set(step)
    try:
        if step.plan.found.starters:
            await step.run.app.lifespan.start(step.plan.found.starters)
        if step.listening:
            await step.emit(AgentStarted, via)
        try:
            step.restart(input)
            result = await _guarded(step, call)
        except Exception as error:  # noqa: BLE001 - on_error gets any exception of the step; what it keeps goes on
            try:
                recovered = await _recovered_and_judged(step, error)
                if recovered is None:
                    raise
            except Exception:
                await step.emit(AgentFinished, None)
                raise
            result = recovered
        except BaseException:  # cancelled, or interrupted: it has ended all the same
            with anyio.CancelScope(shield=True):
                await step.emit(AgentFinished, None)
            raise
        if step.transfer is not None and result.pause is None and not hands_over(step, result):
            step.transfer = None  # a layer, or `on_error`, has answered instead
        if step.ledger is not None:
            result = replace(result, validations=step.ledger.validations)
        if step.edge is not None:
            result = await step.edge.finish(result, Moment.STEPPED)
        if step.listening:
            await step.emit(AgentFinished, result)
    except GuardrailDenied as denial:  # whoever catches it further out leaves its mark on the result
        if step.host is None:
            step.run.denial = denial
        else:
            note_denial(step.host, denial)
        raise
    finally:
        current.reset(token)
    return result


async def _recovered_and_judged(step: Step, error: Exception) -> Result | None:
    """What there is instead of an answer, judged once by the output guards, as far as they have not yet."""
    if isinstance(error, GuardrailDenied):
        note_denial(step, error)
    recovered = await _recovered(step, error)
    guards = step.guards
    if recovered is None or guards is None:
        return recovered
    judged = await judge_answer(step, guards.output if recovered.degraded else guards.final, recovered.text)
    if isinstance(judged, str):
        return recovered if judged == recovered.text else _reread(step, recovered, judged)
    if isinstance(judged.outcome, Deny):
        raise refuse(step, judged) from error
    blocked = blocked_output(step, judged)
    return replace(blocked, degraded=True, error=error) if recovered.degraded else blocked


def _reread(step: Step, recovered: Result, text: str) -> Result:
    """A degraded answer that a guard changed; the value says what the text says, or there is none."""
    output, rewritten = step.plan.output, recovered.replace(text=text)
    if output is None or recovered.output is None:
        return rewritten
    try:
        return replace(rewritten, output=output.parse(text))
    except Unfit:
        return replace(rewritten, output=None)


async def _guarded(step: Step, call: AgentCall) -> Result:
    """The step through its guards and its chain, within its depth and its deadline."""
    if step.depth:
        await check_depth(step)
    if step.run.deadline is None and step.plan.limits is None:
        return await _judged(step, call)
    return await in_time(step, lambda: _judged(step, call))


async def in_time(step: Step, work: Callable[[], Awaitable[T]]) -> T:
    """What the work gives, within the deadline of the step.

    Raises:
        LimitExceeded: when that has passed.
    """
    deadline, owner = _deadline_of(step)
    if deadline is None:
        return await work()
    if anyio.current_time() < deadline:
        with anyio.CancelScope(deadline=deadline):
            return await work()
    raise await reached(step, owner, "seconds", owner.seconds or 0)


async def check_depth(step: Step) -> None:
    """Refuse a step, or a flow, that is nested too deeply.

    Raises:
        LimitExceeded: then.
    """
    limits = step.run.limits
    if limits.depth is not None and step.depth > limits.depth:
        raise await reached(step, limits, "depth", limits.depth)


async def _judged(step: Step, call: AgentCall) -> Result:
    """The step through its chain, with its input judged before, and its answer afterwards."""
    guards = step.guards
    if guards is not None and guards.input and step.pause is None:
        block = await judge_input(step, guards)
        if block is not None:
            return blocked_input(step, block)
        call = call.replace(input=as_judged(step, call.input))
    result = complete(step, await chain_of(step, AGENT, answer)(call))
    if step.denial is not None and not result.blocked:  # a layer has caught it and answered
        result = replace(result, blocked=True, blocked_by=step.denial.guardrail)
    if guards is not None and guards.output and result.pause is None:
        result = await _judge_result(step, guards, result)
    return result if step.plan.output is None else structured(step, result)


async def _judge_result(step: Step, guards: StepGuards, result: Result) -> Result:
    """Judge the step's answer if a hook or a layer has changed it; some guards judge nothing else."""
    changed = result.text not in step.passed
    if not changed and result.blocked:
        return result
    reply, step.reply = step.reply, None  # what did not pass is not for a limit to give away
    if not changed and hands_over(step, result):
        return result
    judged = await judge_answer(step, guards.output if changed else guards.final, result.text)
    if isinstance(judged, Block):
        if isinstance(judged.outcome, Deny):
            raise refuse(step, judged)
        return blocked_output(step, judged)
    if judged != result.text:
        return result.replace(text=judged)
    if not changed:
        step.reply = reply
    return result


def _deadline_of(step: Step) -> tuple[float | None, Limits]:
    """The earlier one of the run's deadline and the agent's own, with the limits it comes from."""
    own, run = step.plan.limits, step.run
    if own is None or own.seconds is None:
        return run.deadline, run.limits
    deadline = anyio.current_time() + own.seconds
    return (deadline, own) if run.deadline is None or deadline < run.deadline else (run.deadline, run.limits)


async def _recovered(step: Step, error: Exception) -> Result | None:
    """What there is of a step that a limit stopped, or what `on_error` makes of a failed one, or None."""
    if isinstance(error, LimitExceeded):
        error.result = partial = stopped(step)
        if error.stops:
            step.run.spent = step.run.spent or of_run(step, error)
            return partial
    for hook in step.plan.hooks["on_error"]:
        try:
            value = await settle(hook(error, step.ctx))
        except Exception as second:  # it goes on in place of the first, which is its cause
            if second is error:
                raise
            raise second from error
        if value is None:
            continue
        output = step.plan.output
        text = output.text_of(value) if output is not None and output.accepts(value) else value
        if not isinstance(text, str):
            expected = "a str" if output is None else "a str or a value of the output type"
            raise wrong_return(hook, "on_error", value, expected) from error
        denied = isinstance(error, GuardrailDenied)
        given: Any = text if output is None else None if value is text else value
        return replace(
            result_of(step, Assistant(text, finish_reason="degraded")),
            output=given,
            degraded=True,
            error=error,
            blocked=denied,
            blocked_by=error.guardrail if isinstance(error, GuardrailDenied) else None,
        )
    return None


async def _abandon(call: AgentCall, failure: BaseException | None) -> None:
    """An agent layer begins the step again."""
    edge = step_of(call.ctx).edge
    if edge is not None:
        await edge.begin_again(failure)


def _complete(call: AgentCall, result: Result) -> Result:
    step = step_of(call.ctx)
    return structured(step, complete(step, result))


AGENT: Scope[AgentCall, Result] = Scope("agent", AgentCall, Result, _abandon, attach, _complete)
