"""A step: one agent's part of a run, from its input to its result, through its layers and hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import anyio

from middlechain.agent import Agent, Plan, plan_of
from middlechain.append_only import AppendOnlyEdge
from middlechain.chain import Scope, name_of, settle
from middlechain.chat import ChatReply, Model, discard
from middlechain.edge import Edge, RetractingEdge
from middlechain.errors import ConfigurationError, GuardrailDenied, LimitExceeded, NothingReturned, WrongReturn
from middlechain.events import AgentFinished, AgentStarted, LimitReached, ModelFinished
from middlechain.guards import Deny, StepGuards
from middlechain.holds import Hold, Moment, holds_of
from middlechain.judging import Block, judge_answer, judge_input, note_denial, refuse
from middlechain.limits import NO_USAGE, Limits, Meter, exceeded
from middlechain.messages import Assistant, Input, Message, User, history_of, sendable, user_message
from middlechain.records import Run, Step, current, step_of
from middlechain.results import AgentCall, Result, attach, last_answer
from middlechain.tools import Tool, ToolOutput, tools_of
from middlechain.turn import (
    ask,
    call_tool,
    canned_reply,
    chain_of,
    check_mark,
    converse,
    judge_with,
    run_tools,
    wrong_return,
)

if TYPE_CHECKING:
    from middlechain.app import App

__all__ = ["Delegation", "agent_for", "complete", "object_of", "plan_for", "run_step", "step_for", "stopped"]

_NO_LIMITS = Limits(turns=None, depth=None)


def agent_for(app: App, target: object) -> Agent | type[Agent]:
    """The agent, or agent class, that a target means: itself, or the one of that name in the app.

    Raises:
        ConfigurationError: for anything else.
    """
    if isinstance(target, str):
        return app.agent_named(target)
    if isinstance(target, Agent) or (isinstance(target, type) and issubclass(target, Agent)):
        return target
    raise ConfigurationError(
        f"the target of a run is {target!r:.80}; give an agent, an agent class, or the name of one"
    )


def plan_for(run: Run, target: object) -> Plan:
    """The plan of what a target means; of a class one object is made for the run.

    Raises:
        ConfigurationError: for anything else.
    """
    found = agent_for(run.app, target)
    if isinstance(found, Agent):
        return plan_of(found)
    agent = run.instances.get(found)
    if agent is None:
        agent = run.instances[found] = object_of(found)
        plan = plan_of(agent)
        shared = "middleware" not in vars(agent) and all(
            getattr(agent, name) is getattr(found, name) for name in ("guardrails", "pack_guards")
        )
        plan.key = found if shared else None
    return plan_of(agent)


def object_of(cls: type[Agent]) -> Agent:
    """An agent of that class.

    Raises:
        ConfigurationError: when it cannot be made without arguments.
    """
    try:
        signature(cls).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"{cls.__name__} cannot be made without arguments ({error}); give an object of it: {cls.__name__}(...)"
        ) from error
    return cls()


def step_for(run: Run, plan: Plan, *, caller: Step | None, history: tuple[Message, ...] = ()) -> Step:
    """The record of a new step."""
    run.steps += 1
    outer = run.meter if caller is None else caller.meter
    own = plan.limits if plan.limits is not None else None if caller is None else _NO_LIMITS
    step = Step(
        run,
        plan,
        id=f"{run.id}/{run.steps}",
        parent=None if caller is None else caller.id,
        depth=0 if caller is None else caller.depth + 1,
        history=history,
        meter=outer if own is None else Meter(own, outer),
    )
    if "guards" not in step.chains:
        step.chains["guards"] = run.stack.guards_of(plan)
    step.guards = step.chains["guards"]
    if run.streaming:
        step.edge = _edge(step)
    return step


def _edge(step: Step) -> Edge:
    run = step.run
    if not run.append_only:
        return RetractingEdge(step)
    holds: tuple[Hold, ...] | None = step.chains.get("holds")
    if holds is None:
        holds = step.chains["holds"] = holds_of(run.stack, step.plan)
    return AppendOnlyEdge(step, holds if step.parent is not None else (*run.holds, *holds))


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
    blocked = _blocked_output(step, judged)
    return replace(blocked, degraded=True, error=error) if recovered.degraded else blocked


async def _guarded(step: Step, call: AgentCall) -> Result:
    """The step through its guards and its chain, within its depth and its deadline."""
    limits = step.run.limits
    if limits.depth is not None and step.depth > limits.depth:
        raise await _reached(step, limits, "depth", limits.depth)
    deadline, owner = _deadline(step)
    if deadline is None:
        return await _judged(step, call)
    if anyio.current_time() < deadline:
        with anyio.CancelScope(deadline=deadline):
            return await _judged(step, call)
    raise await _reached(step, owner, "seconds", owner.seconds or 0)


async def _judged(step: Step, call: AgentCall) -> Result:
    """The step through its chain, with its input judged before, and its answer afterwards."""
    guards = step.guards
    if guards is not None and guards.input:
        block = await judge_input(step, guards)
        if block is not None:
            return _blocked_input(step, block)
        call = call.replace(input=_as_judged(step, call.input))
    result = complete(step, await chain_of(step, AGENT, answer)(call))
    if step.denial is not None and not result.blocked:  # a layer has caught it and answered
        result = replace(result, blocked=True, blocked_by=step.denial.guardrail)
    return result if guards is None or not guards.output else await _judge_result(step, guards, result)


def _as_judged(step: Step, input: Input) -> Input:
    """The input as the guards left it; a text stays a text."""
    message = cast("User", step.exchange[0])
    if message.content == user_message(input).content:
        return input
    return message if isinstance(input, User) else message.content


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
        return _blocked_output(step, judged)
    if judged != result.text:
        return result.replace(text=judged)
    if not changed:
        step.reply = reply
    return result


def _blocked_input(step: Step, block: Block) -> Result:
    """The canned answer to a message that was blocked; both stay in history, marked.

    Raises:
        GuardrailDenied: for a `Deny`.
    """
    if isinstance(block.outcome, Deny):
        raise refuse(step, block)
    step.exchange[0] = replace(cast("User", step.exchange[0]), blocked=True)
    step.passed |= {block.canned}
    answer = Assistant(block.canned, finish_reason="safety", blocked=True)
    return replace(_result(step, answer), blocked=True, blocked_by=block.guard.name)


def _blocked_output(step: Step, block: Block) -> Result:
    """The canned answer in place of one that was blocked."""
    step.passed |= {block.canned}
    result = _result(step, Assistant(block.canned, finish_reason="safety", blocked=True))
    return replace(result, blocked=True, blocked_by=block.guard.name)


def _deadline(step: Step) -> tuple[float | None, Limits]:
    """The earlier one of the run's deadline and the agent's own, with the limits it comes from."""
    own, run = step.plan.limits, step.run
    if own is None or own.seconds is None:
        return run.deadline, run.limits
    deadline = anyio.current_time() + own.seconds
    return (deadline, own) if run.deadline is None or deadline < run.deadline else (run.deadline, run.limits)


async def _reached(step: Step, limits: Limits, limit: str, value: float) -> LimitExceeded:
    await step.emit(LimitReached, limit, value)
    return exceeded(limits, limit, value)


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
    await _before_run(step, input)
    guards = step.guards
    if guards is not None and guards.input and step.exchange[0].content != step.judged:
        block = await judge_input(step, guards)
        if block is not None:
            return _blocked_input(step, block)
    try:
        result = await (_take_turns(step) if step.plan.own_run is None else _run_own(step, _as_judged(step, input)))
    except LimitExceeded as error:
        if not error.stops:
            raise
        result = stopped(step)
    return await _after_run(step, result)


async def _before_run(step: Step, input: Input) -> None:
    for hook in step.plan.hooks["before_run"]:
        value = await settle(hook(input, step.ctx))
        if value is not None:
            try:
                step.exchange[0] = user_message(value)
            except ConfigurationError:
                raise wrong_return(hook, "before_run", value, "a str, a list of parts or a User") from None
            input = value


async def _run_own(step: Step, input: Input) -> Result:
    """The answer of an agent that owns its step."""
    own_run = cast("Callable[..., Any]", step.plan.own_run)
    value = await settle(own_run(input, step.ctx))
    if isinstance(value, str):
        return _result(step, Assistant(value, finish_reason="stop"))
    if isinstance(value, Result):
        return complete(step, value)
    if value is None:
        raise NothingReturned(f"{name_of(own_run)} returned None; return the answer, a str or a Result")
    raise WrongReturn(
        f"{name_of(own_run)} returned a value of type {type(value).__name__} ({value!r:.60}); "
        "return the answer, a str (such as reply.text) or a Result"
    )


async def _take_turns(step: Step) -> Result:
    while True:
        if step.run.stop_reason is not None:
            return stopped(step, "stop")
        await _begin_turn(step)
        reply, offer = await ask(step)
        if isinstance(reply, Block):
            return _blocked_output(step, reply)
        step.reply = reply
        if not reply.tool_calls:
            return await _answered(step, reply)
        if step.run.stop_reason is not None:
            return stopped(step, "stop")
        await _check_turns(step)
        await run_tools(step, reply, offer)


async def _begin_turn(step: Step) -> None:
    await _check_turns(step)
    step.turns_taken += 1
    step.reply = None


async def _check_turns(step: Step) -> None:
    limits = _turn_limits(step)
    if limits is not None:
        raise await _reached(step, limits, "turns", limits.turns or 0)


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
    return _result(step, Assistant(text, (), reply.reasoning, reply.finish_reason))


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


def _result(step: Step, *last: Message, stopped_by: str | None = None, finish_reason: str | None = None) -> Result:
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
    return _result(step, *last, stopped_by=by, finish_reason=reason)


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
            _result(step, Assistant(value, finish_reason="degraded")),
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


class Delegation:
    """What `ctx` can ask for: a model call, a tool call, and a nested step, through the layers of the run."""

    async def chat(
        self, step: Step, messages: Any, model: Model | str | None, tools: Sequence[Tool], for_guard: bool = False
    ) -> ChatReply:
        """One model call that is not part of the step's own turns, unless code has them all: then it is one of them."""
        if step.plan.own_run is not None and not for_guard:
            await _begin_turn(step)
            step.next_turn()
        if isinstance(messages, Sequence) and messages and isinstance(messages[0], Message | Mapping):
            sent = sendable(history_of(messages))
        else:
            sent = (user_message(messages),)
        own = step.plan.model if model is None else model
        reply, _ = await converse(step, sent, tools_of(tools, "ctx.chat()"), own, discard)
        if step.guards is not None and step.guards.output and not for_guard:
            judged = await judge_with(step, step.guards.reply, reply)
            if isinstance(judged, Block):
                step.passed |= {judged.canned}
                return canned_reply(step, judged)
            reply = judged
            step.passed |= {reply.text}
        if step.listening:
            await step.emit(ModelFinished, reply)
        return reply

    async def call_tool(self, step: Step, name: str, args: Mapping[str, Any]) -> ToolOutput:
        """One tool call that is not part of the step's own turns."""
        return await call_tool(step, name, args)

    async def delegate(self, caller: Step, target: Any, input: Input) -> Result:
        """A step nested in this one."""
        plan = plan_for(caller.run, target)
        if plan.found.starters:
            await caller.run.app.lifespan.start(plan.found.starters)
        step = step_for(caller.run, plan, caller=caller)
        return await run_step(step, input, via="run", caller=caller)
