"""Resuming: how a step goes on where it stopped for approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from middlechain.admission import Admission
from middlechain.agent import Agent, Plan, name_of_agent, plan_of
from middlechain.chat import ChatReply
from middlechain.errors import ConfigurationError
from middlechain.judging import Block
from middlechain.messages import Assistant, Message, ToolMessage, ToolUse, arguments_of
from middlechain.nested import AgentAsTool
from middlechain.pauses import Decisions, Pause, decided_for, waiting_in
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
    block = await _judge_changed(step, pause, decided)
    if block is not None:
        return block
    admission = Admission(step)
    pending = [_decided(step, use, pause, admission) for use in decided]
    fresh = [one for one in pending if one.output is None]
    goes_on = {use.id for use in decided}
    undecided = {id: call for id, call in pause.calls.items() if id not in goes_on}
    waiting = {id: Waiting(call, asked=pause.asked.get(id)) for id, call in undecided.items()}
    inside = {id: Waiting(None, inner) for id, inner in pause.inner.items() if id not in goes_on}
    step.waiting = {**waiting, **inside}
    step.transfer = _handoff(step, pause.transfer)
    if step.transfer is not None:
        admission.transfer = pause  # the reply has made its transfer
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
    """Whether something goes on there: a call that was decided, or one in which something was, or nothing waits."""
    if use.id in pause.calls:
        return pause.calls[use.id].id in decisions
    inner = pause.inner.get(use.id)
    return inner is not None and (not (waiting := waiting_in(inner)) or any(id in decisions for id in waiting))


def _or_known(message: Message, known: Mapping[str, ToolMessage]) -> Message:
    return known.get(message.tool_call_id, message) if isinstance(message, ToolMessage) else message


async def _judge_changed(step: Step, pause: Pause, uses: Sequence[ToolUse]) -> Block | None:
    """Have the guards judge what was put in the place of calls of the model."""
    decisions = step.decisions
    ids = {use.id: pause.calls[use.id].id for use in uses if use.id in pause.calls}
    changed = tuple(
        ToolUse(call.name, call.args, id) for id, by in ids.items() if isinstance(call := decisions[by], ToolCall)
    )
    if not changed or step.guards is None or not step.guards.output:
        return None
    judged = await judge_with(step, step.guards.reply, ChatReply(tool_calls=changed))
    if isinstance(judged, Block):
        return judged
    step.decisions = {
        **decisions,
        **{ids[use.id]: ToolCall(use.name, parse_arguments(use.arguments)[0]) for use in judged.tool_calls},
    }
    return None


def _decided(step: Step, use: ToolUse, pause: Pause, admission: Admission) -> Pending:
    """A call of which it was said whether it may run, or in which something was."""
    call = pause.calls.get(use.id)
    decision = None if call is None else step.decisions[call.id]
    asked = pause.asked.get(use.id)
    if isinstance(decision, ToolCall):
        asked = ToolUse(decision.name, decision.args, use.id)
    known = step.run.outputs.get((id(pause), use.id))
    decided = Decided()
    decided.asked, decided.refused = asked, decision is False
    own = admission if known is None else Admission(step)
    one = pending_call(step, use if asked is None else asked, step.by_name, own, decided)
    one.use = use
    one.output = known  # an approved call runs once, however often a layer begins the step again
    if decision is True:
        decided.approved = call
    elif isinstance(decision, ToolCall):
        decided.approved = one.call
    if use.id in pause.inner:
        decided.inside = pause.inner[use.id], decided_for(pause, use.id, step.decisions)
    return one


def check_changed(app: App, target: object, pause: Pause, decisions: Decisions) -> None:
    """Hold the calls that were put in the place of others against the tools of whoever stopped.

    Raises:
        ConfigurationError: for an unknown tool, or arguments that it does not take.
    """
    if not _leads_to(app, target, pause.agent):
        return  # a run layer had somebody else answer, and may do so again
    agent = heir(app, target, pause.agent)
    plan = plan_of(agent if isinstance(agent, Agent) else object_of(agent))
    by_name = tools_with_transfers(app, plan)[1]
    for waiting in pause.calls.values():
        if isinstance(call := decisions.get(waiting.id), ToolCall):
            _check_call(call, by_name, plan.name)
    for way, inner in pause.inner.items():
        changed = {id: call for id, call in decided_for(pause, way, decisions).items() if isinstance(call, ToolCall)}
        asked = _inside(app, plan, pause, way) if changed else None
        if asked is not None:
            check_changed(app, asked, inner, changed)


def _check_call(call: ToolCall, by_name: Mapping[str, Tool], owner: str) -> None:
    tool = by_name.get(call.name)
    if tool is None:
        known = ", ".join(by_name)
        raise ConfigurationError(f"{owner!r} has no tool {call.name!r} to run in place of the other (it has: {known})")
    try:
        tool.signature.check(call.args)
        problem = parse_arguments(arguments_of(call.args))[1]
        if problem is not None:
            raise ValueError(problem)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the tool {call.name!r} cannot be called with {call.args!r:.200}: {error}; correct the arguments"
        ) from error


def _inside(app: App, plan: Plan, pause: Pause, way: str) -> object:
    """Whoever was asked there: a member of a flow, or the agent that is the tool of that call.

    None where a hook or a layer has made a call of it to an agent that cannot be told by the name.
    """
    if plan.conduct is not None:
        return cast("Any", plan.agent).members[int(way)]
    uses = (use for message in pause.exchange if isinstance(message, Assistant) for use in message.tool_calls)
    name = next(use.name for use in uses if use.id == way)
    tools = [tool for tool in (plan.by_name.get(name), *plan.tools) if tool is not None]
    agents = [tool.function.agent for tool in tools if isinstance(tool.function, AgentAsTool)]
    return next((agent for agent in agents if _leads_to(app, agent, pause.inner[way].agent)), None)


def _leads_to(app: App, target: object, name: str) -> bool:
    with suppress(ConfigurationError):
        heir(app, target, name)
        return True
    return False
