"""A step: one agent's part of a run, from its input to its result, through its guards and layers."""

from __future__ import annotations

from dataclasses import replace

import anyio

from middlechain.answering import answer, as_judged, reached
from middlechain.chain import Scope, settle
from middlechain.errors import GuardrailDenied, LimitExceeded
from middlechain.events import AgentFinished, AgentStarted
from middlechain.guards import Deny, StepGuards
from middlechain.holds import Moment
from middlechain.judging import Block, judge_answer, judge_input, note_denial, refuse
from middlechain.limits import Limits
from middlechain.messages import Assistant, Input
from middlechain.outcomes import blocked_input, blocked_output, complete, result_of, stopped
from middlechain.records import Step, current, step_of
from middlechain.results import AgentCall, Result, attach
from middlechain.turn import chain_of, wrong_return

__all__ = ["run_step"]


async def run_step(step: Step, input: Input, *, via: str = "root", caller: Step | None = None) -> Result:
    """Run a step from its first event to its last; what was streamed of it by then is what its result says."""
    call = AgentCall(
        input, None if caller is None else caller.agent, via, step.depth, ctx=step.ctx, agent=step.plan.agent
    )
    token = current.set(step)
    try:
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
        if step.ledger is not None:
            result = replace(result, validations=step.ledger.validations)
        if step.edge is not None:
            result = await step.edge.finish(result, Moment.STEPPED)
        if step.listening:
            await step.emit(AgentFinished, result)
    except GuardrailDenied as denial:  # whoever catches it further out leaves its mark on the result
        if caller is None:
            step.run.denial = denial
        else:
            note_denial(caller, denial)
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
        return recovered if judged == recovered.text else recovered.replace(text=judged)
    if isinstance(judged.outcome, Deny):
        raise refuse(step, judged) from error
    blocked = blocked_output(step, judged)
    return replace(blocked, degraded=True, error=error) if recovered.degraded else blocked


async def _guarded(step: Step, call: AgentCall) -> Result:
    """The step through its guards and its chain, within its depth and its deadline."""
    limits = step.run.limits
    if limits.depth is not None and step.depth > limits.depth:
        raise await reached(step, limits, "depth", limits.depth)
    deadline, owner = _deadline(step)
    if deadline is None:
        return await _judged(step, call)
    if anyio.current_time() < deadline:
        with anyio.CancelScope(deadline=deadline):
            return await _judged(step, call)
    raise await reached(step, owner, "seconds", owner.seconds or 0)


async def _judged(step: Step, call: AgentCall) -> Result:
    """The step through its chain, with its input judged before, and its answer afterwards."""
    guards = step.guards
    if guards is not None and guards.input:
        block = await judge_input(step, guards)
        if block is not None:
            return blocked_input(step, block)
        call = call.replace(input=as_judged(step, call.input))
    result = complete(step, await chain_of(step, AGENT, answer)(call))
    if step.denial is not None and not result.blocked:  # a layer has caught it and answered
        result = replace(result, blocked=True, blocked_by=step.denial.guardrail)
    return result if guards is None or not guards.output else await _judge_result(step, guards, result)


async def _judge_result(step: Step, guards: StepGuards, result: Result) -> Result:
    """Judge the step's answer if a hook or a layer has changed it; some guards judge nothing else."""
    changed = result.text not in step.passed
    if not changed and result.blocked:
        return result
    reply, step.reply = step.reply, None  # what did not pass is not for a limit to give away
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


def _deadline(step: Step) -> tuple[float | None, Limits]:
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
        if not isinstance(value, str):
            raise wrong_return(hook, "on_error", value, "a str") from error
        denied = isinstance(error, GuardrailDenied)
        return replace(
            result_of(step, Assistant(value, finish_reason="degraded")),
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
    return complete(step_of(call.ctx), result)


AGENT: Scope[AgentCall, Result] = Scope("agent", AgentCall, Result, _abandon, attach, _complete)
