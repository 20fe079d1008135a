"""Targets: which agent one means, and the record of a step of it."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

from middlechain.agent import Agent, Plan, plan_of
from middlechain.append_only import AppendOnlyEdge
from middlechain.edge import Edge, RetractingEdge
from middlechain.errors import ConfigurationError
from middlechain.holds import Hold, holds_of
from middlechain.limits import Limits, Meter
from middlechain.messages import Message
from middlechain.records import Run, Step

if TYPE_CHECKING:
    from middlechain.app import App

__all__ = ["agent_for", "object_of", "plan_for", "step_for"]

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
