"""A run: one call of `app.run` and all that happens inside, in `run` and in `stream` alike."""

from __future__ import annotations

from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio

from middlechain.bus import log_failure
from middlechain.chain import Scope, name_of, settle
from middlechain.errors import ConfigurationError
from middlechain.events import LimitReached, Origin, RunFinished, RunStarted
from middlechain.holds import Moment, holds_of_run
from middlechain.limits import exceeded
from middlechain.messages import Input, Message
from middlechain.outcomes import complete, speaker_of, stopped, structured
from middlechain.pauses import Decisions, Pause, said_at
from middlechain.records import Run, Step, step_of
from middlechain.results import Result, RunCall, attach
from middlechain.steps import run_through
from middlechain.targets import plan_for, refuse_cycles, step_for, step_to_resume
from middlechain.turn import chain_of
from middlechain.variables import RunIn

if TYPE_CHECKING:
    from middlechain.agent import Plan
    from middlechain.edge import Edge

__all__ = ["Resumed", "execute"]

Resumed: TypeAlias = tuple[Pause, Decisions]


async def execute(
    run: Run, target: Any, input: Input, history: tuple[Message, ...], resumed: Resumed | None = None
) -> Result:
    """Run the target in this task, on a copy of the caller's context variables.

    Args:
        run: the record of the run.
        target: an agent, an agent class or a name.
        input: what it is asked.
        history: what was said before.
        resumed: where it goes on, and what was decided since; default: it begins.
    """
    return await RunIn(copy_context(), _execute(run, target, input, history, resumed))


async def _execute(
    run: Run, target: Any, input: Input, history: tuple[Message, ...], resumed: Resumed | None
) -> Result:
    run.target = target
    if resumed is not None:
        run.resumed = resumed
    plan = plan_for(run, target)
    if run.stack.starters or plan.found.starters:
        await run.app.lifespan.start((*run.stack.starters, *plan.found.starters))
    if run.append_only:
        run.holds = holds_of_run(run.stack, plan)
    entry = _entry(run, plan, target, history, resumed)
    entry.restart(input)
    if resumed is not None and plan.conduct is not None:
        entry.exchange = list(said_at(resumed[0]))  # should a run layer answer in its place
    if RUN.name not in entry.chains:  # the first run of this agent with these layers
        refuse_cycles(run.app, target)
        run.app.warn_of_unknown_names(run.stack, plan)
    outcome = "failed"
    outside = Origin(run.id, plan.name)
    await run.bus.emit(outside, RunStarted)
    try:
        result = await _within_deadline(entry, RunCall(target, input, ctx=entry.ctx, agent=plan.agent))
        result = complete(run.root or entry, result, run.meter)
        if run.denial is not None and not result.blocked:  # a run layer has caught it and answered
            result = replace(result, blocked=True, blocked_by=run.denial.guardrail)
        speaker = speaker_of(run.root or entry)
        if speaker.plan.output is not None:
            result = structured(speaker, result)
        if speaker.edge is not None:
            result = await speaker.edge.finish(result, Moment.ENDED)
        outcome = _outcome(result)
    except anyio.get_cancelled_exc_class():
        outcome = "cancelled"
        raise
    finally:
        await _finish(entry, outside, outcome)
    return result


def _entry(run: Run, plan: Plan, target: Any, history: tuple[Message, ...], resumed: Resumed | None) -> Step:
    """The step that the run layers see; who goes on may be somebody else, if one of them had that one answer."""
    if resumed is not None:
        with suppress(ConfigurationError):
            return step_to_resume(run, target, *resumed, caller=None, history=history)
    return step_for(run, plan, caller=None, history=history)


async def _within_deadline(entry: Step, call: RunCall) -> Result:
    """The run through its layers. A root step holds the deadline itself, so that its `on_error` learns of it."""
    run, limits = entry.run, entry.run.limits
    chain = chain_of(entry, RUN, _start)
    if limits.seconds is None:
        return await chain(call)
    run.deadline = anyio.current_time() + limits.seconds
    with anyio.CancelScope(deadline=run.deadline) as run.scope:
        return await chain(call)
    await run.bus.emit(Origin(run.id, entry.agent_name), LimitReached, "seconds", limits.seconds)
    error = exceeded(limits, "seconds", limits.seconds)
    error.result = partial = stopped(run.root or entry)
    if error.stops:
        return partial
    raise error


async def _start(call: RunCall) -> Result:
    """The endpoint of the run layers: the root step."""
    entry = step_of(call.ctx)
    run = entry.run
    plan = plan_for(run, call.target)
    step = entry
    changed = plan is not entry.plan and call.target is not run.target
    if run.root is not None or changed or (run.resumed is not None and entry.pause is None):
        if run.resumed is None:
            step = step_for(run, plan, caller=None, history=entry.history)
        else:
            step = step_to_resume(run, call.target, *run.resumed, caller=None, history=entry.history)
    step.given = entry.given
    run.root = step
    run.denial = None
    if run.scope is None or run.deadline is None:
        return await run_through(step, call.input, "root")
    run.scope.deadline = float("inf")
    try:
        return await run_through(step, call.input, "root")
    finally:
        if anyio.current_time() < run.deadline:
            run.scope.deadline = run.deadline


async def _abandon(call: RunCall, failure: BaseException | None) -> None:
    """A run layer begins the root step again."""
    run = step_of(call.ctx).run
    for step in run.line:
        await cast("Edge", step.edge).begin_again(failure)  # only steps of a stream are noted there
    run.line = ()


def _complete(call: RunCall, result: Result) -> Result:
    entry = step_of(call.ctx)
    return complete(entry.run.root or entry, result, entry.run.meter)


RUN: Scope[RunCall, Result] = Scope("run", RunCall, Result, _abandon, attach, _complete)


def _outcome(result: Result) -> str:
    if result.blocked:
        return "blocked"
    if result.pause is not None:
        return "pending"
    return "completed" if result.stopped_by in {None, "until"} else "stopped"


async def _finish(entry: Step, outside: Origin, outcome: str) -> None:
    """Run what was deferred, and say how the run ended, also when it was cancelled."""
    run = entry.run
    if not run.deferred and not run.bus.listening:
        return
    with anyio.CancelScope(shield=True):
        while run.deferred:
            callback = run.deferred.pop()
            try:
                await settle(callback())
            except Exception:  # noqa: BLE001 - the others must have their turn, and the run has its outcome
                log_failure("a deferred callback failed", callback=name_of(callback), run_id=run.id)
        await run.bus.emit(outside, RunFinished, outcome)
