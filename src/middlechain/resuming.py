"""Resuming: how a step goes on where it stopped for approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from middlechain.admission import Admission
from middlechain.agent import Agent, Plan, name_of_agent, plan_of
from middlechain.chat import ChatReply
from middlechain.errors import ConfigurationError
from middlechain.judging import Block
from middlechain.messages import Assistant, Message, ToolMessage, ToolUse
from middlechain.nested import AgentAsTool
from middlechain.pauses import Decisions, Pause, decided_for
from middlechain.records import Step
from middlechain.results import last_answer
from middlechain.targets import heir, object_of, tools_with_transfers
from middlechain.tool_calls import Decided, ToolCall, Waiting, parse_arguments
from middlechain.tools import Tool, ToolOutput
from middlechain.turn import Pending, judge_with, pending_call, run_all, settle_turn

if TYPE_CHECKING:
    from middlechain.app import App

__all__ = ["check_changed", "go_on"]


async def go_on(step: Step) -> Block | None:
    """Run the calls that were approved since the step stopped, and put their results where they belong.

    Returns:
        A guard's block of a call that was changed; nothing runs then.

    Raises:
        GuardrailDenied: for a `Deny` of one.
    """
    pause, decisions = cast("Pause", step.pause), step.decisions
    place = cast("int", last_answer(step.exchange))
    reply = cast("Assistant", step.exchange[place])
    decided = [use for use in reply.tool_calls if _is_decided(use, pause, decisions)]
    block = await _judge_changed(step, [use for use in decided if use.id in pause.calls], decisions)
    if block is not None:
        return block
    admission = Admission(step)
    pending = [_decided(step, use, pause, decisions, admission) for use in decided]
    fresh = [one for one in pending if one.output is None]
    waiting = {id: Waiting(call) for id, call in pause.calls.items() if id not in decisions}
    undecided = [id for id in pause.inner if not decided_for(pause, id, decisions)]
    step.waiting = {**waiting, **{id: Waiting(None, pause.inner[id]) for id in undecided}}
    step.transfer = _handoff(step, pause.transfer)
    try:
        if fresh:
            await run_all(step, fresh, admission)
    finally:
        ran = any(one.output is not None or one.ticket.ran is not None for one in pending)
        known = {one.use.id: one.message() for one in pending} if ran else {}
        step.exchange[place + 1 :] = [_or_known(message, known) for message in step.exchange[place + 1 :]]
        step.carried = tuple(step.exchange[1:])  # so also for a layer that begins the step again
        done = [one for one in fresh if not one.waits and one.use.id in known]
        outputs = {(id(pause), one.use.id): _as_output(known[one.use.id]) for one in done}
        step.run.outputs = {**step.run.outputs, **outputs}
    settle_turn(step, pending)
    return None


def _handoff(step: Step, name: str | None) -> object:
    """Whoever gets the conversation: the handoff of that name, or None."""
    named = {target if isinstance(target, str) else name_of_agent(target): target for target in step.plan.handoffs}
    return None if name is None else named.get(name, name)


def _as_output(message: ToolMessage) -> ToolOutput:
    return ToolOutput(message.text, message.is_error)


def _is_decided(use: ToolUse, pause: Pause, decisions: Decisions) -> bool:
    return (use.id in pause.calls and use.id in decisions) or (
        use.id in pause.inner and bool(decided_for(pause, use.id, decisions))
    )


def _or_known(message: Message, known: Mapping[str, ToolMessage]) -> Message:
    return known.get(message.tool_call_id, message) if isinstance(message, ToolMessage) else message


async def _judge_changed(step: Step, uses: Sequence[ToolUse], decisions: Decisions) -> Block | None:
    """Have the guards judge what was put in the place of calls of the model."""
    changed = tuple(
        ToolUse(call.name, call.args, use.id) for use in uses if isinstance(call := decisions.get(use.id), ToolCall)
    )
    if not changed or step.guards is None or not step.guards.output:
        return None
    judged = await judge_with(step, step.guards.reply, ChatReply(tool_calls=changed))
    if isinstance(judged, Block):
        return judged
    step.decisions = {
        **decisions,
        **{use.id: ToolCall(use.name, parse_arguments(use.arguments)[0]) for use in judged.tool_calls},
    }
    return None


def _decided(step: Step, use: ToolUse, pause: Pause, decisions: Decisions, admission: Admission) -> Pending:
    """A call of which it was said whether it may run, or in which something was."""
    decision = step.decisions.get(use.id) if use.id in pause.calls else None  # what is inside may have the same id
    asked = ToolUse(decision.name, decision.args, use.id) if isinstance(decision, ToolCall) else use
    known = step.run.outputs.get((id(pause), use.id))
    one = pending_call(step, asked, step.by_name, admission if known is None else Admission(step))
    one.use = use
    one.output = known  # an approved call runs once, however often a layer begins the step again
    decided = one.ticket.decided = Decided()
    decided.refused = decision is False
    if decision is True:
        decided.approved = pause.calls[use.id]
    elif isinstance(decision, ToolCall):
        decided.approved = one.call
    if use.id in pause.inner:
        decided.inside = pause.inner[use.id], decided_for(pause, use.id, decisions)
    return one


def check_changed(app: App, target: object, pause: Pause, decisions: Decisions) -> None:
    """Hold the calls that were put in the place of others against the tools of whoever stopped.

    Raises:
        ConfigurationError: for an unknown tool, or arguments that it does not take.
    """
    agent = heir(app, target, pause.agent)
    plan = plan_of(agent if isinstance(agent, Agent) else object_of(agent))
    by_name = tools_with_transfers(app, plan)[1]
    for id in pause.calls:
        if isinstance(call := decisions.get(id), ToolCall):
            _check_call(call, by_name, plan.name)
    for way, inner in pause.inner.items():
        check_changed(app, _inside(plan, pause, way), inner, decided_for(pause, way, decisions))


def _check_call(call: ToolCall, by_name: Mapping[str, Tool], owner: str) -> None:
    tool = by_name.get(call.name)
    if tool is None:
        known = ", ".join(by_name)
        raise ConfigurationError(f"{owner!r} has no tool {call.name!r} to run in place of the other (it has: {known})")
    try:
        tool.signature.check(call.args)
    except ValueError as error:
        raise ConfigurationError(
            f"the tool {call.name!r} cannot be called with {call.args!r:.200}: {error}; correct the arguments"
        ) from error


def _inside(plan: Plan, pause: Pause, way: str) -> object:
    """Whoever was asked there: a member of a flow, or the agent that is the tool of that call."""
    if plan.conduct is not None:
        return cast("Any", plan.agent).members[int(way)]
    uses = (use for message in pause.exchange if isinstance(message, Assistant) for use in message.tool_calls)
    name = next(use.name for use in uses if use.id == way)
    return cast("AgentAsTool", plan.by_name[name].function).agent
