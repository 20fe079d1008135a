"""Answering: the inside of a step, which the agent layers wrap: turns until there is an answer, and its hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from middlechain.chain import name_of, settle
from middlechain.chat import ChatReply
from middlechain.errors import ConfigurationError, GuardrailDenied, LimitExceeded, NothingReturned, WrongReturn
from middlechain.events import LimitReached
from middlechain.holds import Moment
from middlechain.judging import Block, judge_input, note_denial
from middlechain.limits import Limits, exceeded
from middlechain.messages import Assistant, Input, User, user_message
from middlechain.outcomes import (
    blocked_input,
    blocked_output,
    complete,
    of_run,
    pending,
    result_of,
    stopped,
    structured,
    unfit,
)
from middlechain.records import Step, step_of
from middlechain.results import AgentCall, Result
from middlechain.resuming import go_on
from middlechain.structured import Structure, Unfit
from middlechain.turn import ask, check_mark, run_tools, wrong_return

__all__ = ["answer", "as_judged", "begin_turn", "reached"]


async def answer(call: AgentCall) -> Result:
    """The endpoint of the agent layers: the input's hooks, turns until there is an answer, the answer's hooks."""
    step = step_of(call.ctx)
    step.restart(call.input)
    try:
        result = await _answer(step, call.input)
    except GuardrailDenied as denial:
        note_denial(step, denial)
        raise
    if step.edge is None or (step.guards is not None and step.guards.output):  # what was changed is not judged yet
        return result
    return await step.edge.finish(result, Moment.ANSWERED)


async def _answer(step: Step, input: Input) -> Result:
    if step.pause is None:
        await _before_run(step, input)
    guards = step.guards
    if guards is not None and guards.input and step.pause is None and step.exchange[0].content != step.judged:
        block = await judge_input(step, guards)
        if block is not None:
            return blocked_input(step, block)
    try:
        result = await (_take_turns(step) if step.plan.own_run is None else _run_own(step, as_judged(step, input)))
    except LimitExceeded as error:
        if not error.stops:
            raise
        result = stopped(step)
        step.run.spent = step.run.spent or of_run(step, error)
    if result.pause is not None or step.transfer is not None:
        return result  # the step goes on later, or another one in its place
    if step.plan.output is None:
        return await _after_run(step, result)
    return structured(step, await _after_run(step, structured(step, result)))


async def _before_run(step: Step, input: Input) -> None:
    for hook in step.plan.hooks["before_run"]:
        value = await settle(hook(input, step.ctx))
        if value is not None:
            try:
                step.exchange[0] = step.message_of(value)
            except ConfigurationError:
                raise wrong_return(hook, "before_run", value, "a str, a list of parts or a User") from None
            input = value


async def _run_own(step: Step, input: Input) -> Result:
    """The answer of an agent that owns its step."""
    own_run = cast("Callable[..., Any]", step.plan.own_run)
    value = await settle(own_run(input, step.ctx))
    if isinstance(value, str):
        return result_of(step, Assistant(value, finish_reason="stop"))
    if isinstance(value, Result):
        return complete(step, value)
    if value is None:
        raise NothingReturned(f"{name_of(own_run)} returned None; return the answer, a str or a Result")
    raise WrongReturn(
        f"{name_of(own_run)} returned a value of type {type(value).__name__} ({value!r:.60}); "
        "return the answer, a str (such as reply.text) or a Result"
    )


async def _take_turns(step: Step) -> Result:
    if step.pause is not None:
        block = await go_on(step)
        if block is not None:
            return blocked_output(step, block)
        ended = await _after_tools(step)
        if ended is not None:
            return ended
    while True:
        if step.run.stop_reason is not None:
            return stopped(step, "stop")
        await begin_turn(step)
        reply, offer = await ask(step)
        if isinstance(reply, Block):
            return blocked_output(step, reply)
        step.reply = reply
        if not reply.tool_calls:
            if step.plan.output is not None and await _goes_back(step, reply):
                continue
            return await _answered(step, reply)
        if step.run.stop_reason is not None:
            return stopped(step, "stop")
        await _check_turns(step)
        await run_tools(step, reply, offer)
        if step.waiting or step.transfer is not None or step.loop is not None or step.run.keep is not None:
            ended = await _after_tools(step)
            if ended is not None:
                return ended


async def _after_tools(step: Step) -> Result | None:
    """What the step ends with when its tools have run, if it ends."""
    if step.run.keep is not None:
        await step.run.keep()
    if step.waiting:
        return pending(step)
    if step.transfer is not None:
        return result_of(step)
    return stopped(step, "fails") if step.loop is not None and step.loop.has_failed else None


async def _goes_back(step: Step, reply: ChatReply) -> bool:
    """Whether the answer goes back to the model, since it is not of the agent's output type.

    Raises:
        OutputError: when it has gone back often enough.
    """
    output = cast("Structure", step.plan.output)
    try:
        output.parse(reply.text)
    except Unfit as error:
        if step.repaired >= step.plan.output_retries:
            raise unfit(step, error) from error
        step.repaired += 1
        step.repairs = (*step.repairs, (len(step.exchange), Assistant(reply.text), User(output.repair(error))))
        if step.edge is not None:
            await step.edge.retract(step.turn)
        step.turn -= 1  # the next reply takes its place
        step.reply = None
        return True
    return False


async def begin_turn(step: Step) -> None:
    """Count a turn.

    Raises:
        LimitExceeded: when no further one is allowed.
    """
    await _check_turns(step)
    step.turns_taken += 1
    step.reply = None


async def _check_turns(step: Step) -> None:
    limits = _turn_limits(step)
    if limits is not None:
        raise await reached(step, limits, "turns", limits.turns or 0)


def _turn_limits(step: Step) -> Limits | None:
    """The limits that do not allow a further turn: the agent's own, those given to the run, or else the app's."""
    own, run = step.plan.limits, step.run
    for limits in (own, run.limits if own is None or run.own_limits else None):
        if limits is not None and limits.turns is not None and step.turns_taken >= limits.turns:
            return limits
    return None


async def _answered(step: Step, reply: ChatReply) -> Result:
    text = reply.text
    for hook in step.plan.hooks["after_response"]:
        value = await settle(hook(text, step.ctx))
        if value is not None:
            if not isinstance(value, str):
                raise wrong_return(hook, "after_response", value, "a str")
            check_mark(hook, "after_response", value, text)
            text = value
    return result_of(step, Assistant(text, (), reply.reasoning, reply.finish_reason))


async def _after_run(step: Step, result: Result) -> Result:
    for hook in step.plan.hooks["after_run"]:
        value = await settle(hook(result, step.ctx))
        if value is not None:
            check_mark(hook, "after_run", value, result)
            if isinstance(value, Result):
                result = complete(step, value)
            elif isinstance(value, str):
                result = result.replace(text=value)
            else:
                raise wrong_return(hook, "after_run", value, "a Result or a str")
    return result


def as_judged(step: Step, input: Input) -> Input:
    """The input as the guards left it; a text stays a text."""
    message = cast("User", step.exchange[0])
    if message.content == user_message(input).content:
        return input
    return message if isinstance(input, User) else message.content


async def reached(step: Step, limits: Limits, limit: str, value: float) -> LimitExceeded:
    """The error for a limit that does not allow more, of which observers are told."""
    await step.emit(LimitReached, limit, value)
    return exceeded(limits, limit, value)
