"""Targets: which agent one means, and the record of a step of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from middlechain.agent import Agent, Plan, name_of_agent, plan_of
from middlechain.append_only import AppendOnlyEdge
from middlechain.edge import Edge, RetractingEdge
from middlechain.errors import ConfigurationError
from middlechain.holds import Hold, Moment, holds_of
from middlechain.limits import Limits, Meter
from middlechain.messages import Assistant, Message
from middlechain.nested import AgentAsTool, tool_name, transfer_tool
from middlechain.pauses import Decisions, Pause, said_at
from middlechain.records import Run, Step
from middlechain.tools import Tool, tools_of

if TYPE_CHECKING:
    from middlechain.app import App

__all__ = [
    "agent_for",
    "continue_exchange",
    "heir",
    "object_of",
    "plan_for",
    "reached",
    "refuse_cycles",
    "step_for",
    "step_to_resume",
    "successor_of",
    "tool_names",
    "tools_with_transfers",
]

_NO_LIMITS = Limits(turns=None, depth=None)


def agent_for(app: App, target: object) -> Agent | type[Agent]:
    """The agent, or agent class, that a target means: itself, or the one of that name in the app.

    Raises:
        ConfigurationError: for anything else.
    """
    if isinstance(target, str):
        return app.agent_named(target)
    if isinstance(target, Agent) or _is_class(target):
        return cast("Agent | type[Agent]", target)
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


def step_for(
    run: Run, plan: Plan, *, caller: Step | None, history: tuple[Message, ...] = (), answering: bool = False
) -> Step:
    """The record of a new step, or of a flow.

    Args:
        run: what it belongs to.
        plan: whose step it is.
        caller: the step or the flow that asks for it; None for the first of the run.
        history: what was said before its exchange.
        answering: whether its answer is that of its caller.
    """
    outer = run.meter if caller is None else caller.meter
    step = _step(run, plan, caller, outer, history, depth=0 if caller is None else caller.depth + 1)
    step.parent = None if caller is None else caller.id
    if caller is not None:
        if caller.by_code:
            step.by_code = True
        step.in_line = caller.in_line and caller.plan.conduct is not None
        step.answering = answering and caller.answering
        step.until = caller.until
    return _ready(step)


def successor_of(step: Step, said: tuple[Message, ...]) -> Step:
    """The record of the step to which a step hands the conversation over.

    Args:
        step: the one that has ended.
        said: its exchange, which the other one continues.
    """
    run, plan = step.run, plan_for(step.run, step.transfer)
    outer = run.meter if step.host is None else step.host.meter
    successor = _step(run, plan, step, outer, step.history, step.depth + 1)
    successor.host, successor.parent, successor.in_line = step.host, step.parent, step.in_line
    successor.answering, step.answering = step.answering, False
    successor.until = step.until
    successor.branch = step.branch
    if step.by_code:
        successor.by_code = True
    successor.ledger = step.ledger
    continue_exchange(successor, said[1:])
    return _ready(successor)


def step_to_resume(
    run: Run,
    target: object,
    pause: Pause,
    decisions: Decisions,
    *,
    caller: Step | None,
    history: tuple[Message, ...] = (),
    answering: bool = False,
) -> Step:
    """The record of a step, or of a flow, that goes on where it stopped.

    Raises:
        ConfigurationError: when neither the target nor anyone it may hand over to has the name of who stopped.
    """
    plan = plan_for(run, heir(run.app, target, pause.agent))
    step = step_for(run, plan, caller=caller, history=history, answering=answering)
    step.pause, step.decisions = pause, decisions
    continue_exchange(step, said_at(pause)[1:] if plan.conduct is None else said_at(pause)[1 : 1 + pause.carried])
    return step


def heir(app: App, target: object, name: str) -> Agent | type[Agent]:
    """The agent of that name: the target, or one that it may hand over to, by any number of handoffs.

    Raises:
        ConfigurationError: when there is none.
    """
    first = agent_for(app, target)
    known: dict[str, Agent | type[Agent]] = {name_of_agent(first): first}
    line = [first]
    while line and name not in known:
        agent = line.pop(0)
        for other in plan_of(agent if isinstance(agent, Agent) else object_of(agent)).handoffs:
            found = agent_for(app, other)
            called = other if isinstance(other, str) else name_of_agent(found)
            if called not in known:
                known[called] = found
                line.append(found)
    if name not in known:
        raise ConfigurationError(
            f"{name_of_agent(first)!r} has no agent {name!r} to go on with (it and its handoffs: {', '.join(known)}); "
            "give the conversation the target that it was begun with"
        )
    return known[name]


def reached(app: App, *targets: object, unknown: list[str] | None = None) -> Iterator[Agent | type[Agent]]:
    """All that may come to run: the targets, their handoffs, members, and the agents among their tools.

    Args:
        app: whose they are.
        targets: where to begin.
        unknown: takes a sentence for each name that no agent of the app has; default: nobody is told.
    """
    line, known = list(targets), set[int]()
    while line:
        try:
            agent = agent_for(app, line.pop(0))
        except ConfigurationError as error:
            if unknown is not None:
                unknown.append(str(error))
            continue
        if id(agent) not in known:
            known.add(id(agent))
            yield agent
            line += [*_listed(agent.handoffs), *_inside(agent)]


def refuse_cycles(app: App, target: object) -> None:
    """Refuse agents that are tools of each other: each would ask the next one, and none would answer.

    Raises:
        ConfigurationError: for a cycle among all that may come to run.
    """
    clear: set[int] = set()
    for agent in reached(app, target):
        _refuse_cycle(app, agent, (), clear)


def _refuse_cycle(app: App, agent: Agent | type[Agent], way: tuple[Agent | type[Agent], ...], clear: set[int]) -> None:
    if id(agent) in clear:
        return
    places = [place for place, one in enumerate(way) if one is agent]
    if places:
        cycle = " > ".join(map(name_of_agent, (*way[places[0] :], agent)))
        raise ConfigurationError(f"these agents are tools of each other: {cycle}; take one of them out of the cycle")
    for other in _inside(agent):
        _refuse_cycle(app, agent_for(app, other), (*way, agent), clear)
    clear.add(id(agent))


def _inside(agent: Agent | type[Agent]) -> list[Any]:
    """The agents that run inside of one's steps: those that are its tools, or its members."""
    found = [
        tool.function.agent
        for tool in _listed(agent.tools)
        if isinstance(tool, Tool) and isinstance(tool.function, AgentAsTool)
    ]
    members = getattr(agent, "members", ()) if hasattr(agent, "_conduct") else ()
    return found + [one for one in members if isinstance(one, str | Agent) or _is_class(one)]


def tool_names(agent: Agent | type[Agent]) -> set[str]:
    """The names of an agent's tools, those that hand over included."""
    tools = tools_of(_listed(agent.tools), name_of_agent(agent))
    names = [target if isinstance(target, str) else name_of_agent(target) for target in _listed(agent.handoffs)]
    return {tool.name for tool in tools} | {tool_name(f"transfer_to_{name}") for name in names}


def _listed(given: object) -> Sequence[Any]:
    """What is given as a list; a class may have a property in its place, and then nothing is known."""
    return given if isinstance(given, list | tuple) else ()


def _is_class(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Agent)


def continue_exchange(step: Step, carried: tuple[Message, ...]) -> None:
    """Have a step begin where its exchange has come to."""
    step.carried = carried
    step.base = sum(type(message) is Assistant for message in carried)


def _step(run: Run, plan: Plan, caller: Step | None, outer: Meter, history: tuple[Message, ...], depth: int) -> Step:
    run.steps += 1
    own = plan.limits if plan.limits is not None else None if caller is None else _NO_LIMITS
    meter = outer if own is None else Meter(own, outer)
    return Step(run, plan, id=f"{run.id}/{run.steps}", depth=depth, history=history, meter=meter, caller=caller)


def _ready(step: Step) -> Step:
    run, chains = step.run, step.chains
    if "guards" not in chains:
        chains["guards"] = run.stack.guards_of(step.plan)
    step.guards = chains["guards"]
    if step.plan.handoffs:
        tools = None if step.plan.key is not None else chains.get("tools")  # objects of a class have tools of their own
        if tools is None:
            tools = chains["tools"] = tools_with_transfers(run.app, step.plan)
        step.tools, step.by_name = tools
    if run.streaming:
        step.edge = _edge(step)
        if step.in_line:
            run.line = (*run.line, step)
    return step


def tools_with_transfers(app: App, plan: Plan) -> tuple[tuple[Tool, ...], dict[str, Tool]]:
    """The tools of an agent, and those that hand the conversation over.

    Raises:
        ConfigurationError: for a handoff to an unknown agent, or one whose tool has the name of another.
    """
    transfers = []
    for target in plan.handoffs:
        try:
            agent = agent_for(app, target)
        except ConfigurationError as error:
            raise ConfigurationError(f"{plan.name!r} has a handoff to {target!r}, and {error}") from error
        name = target if isinstance(target, str) else name_of_agent(agent)
        transfers.append(transfer_tool(agent, name, agent.description))
    tools = tools_of((*plan.tools, *transfers), f"{plan.name} with its handoffs")
    return tools, {tool.name: tool for tool in tools}


def _edge(step: Step) -> Edge:
    run = step.run
    if not run.append_only:
        return RetractingEdge(step)
    holds: tuple[Hold, ...] | None = step.chains.get("holds")
    if holds is None:
        holds = step.chains["holds"] = holds_of(run.stack, step.plan)
    if step.answering:
        holds = (*run.holds, *_until_known(step), *holds)
    return AppendOnlyEdge(step, holds)


def _until_known(step: Step) -> tuple[Hold, ...]:
    """What holds text back until it is known whether the step is the one that answers."""
    loop = (Hold("the loop around it", Moment(step.until), is_layer=False),) if step.until else ()
    return (*loop, Hold("its handoffs", Moment.ANSWERED, is_layer=False)) if step.plan.handoffs else loop
