"""What can be wrong with an app before anything runs, all of it at once: `app.check()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from middlechain.agent import Agent, Plan, name_of_agent, plan_of
from middlechain.chain import name_of
from middlechain.errors import ConfigurationError
from middlechain.layers import Stack
from middlechain.members import Flow
from middlechain.registry import check_named
from middlechain.targets import object_of, reached, refuse_cycles, tool_names, tools_with_transfers

if TYPE_CHECKING:
    from middlechain.app import App

__all__ = ["check", "known_names", "known_tools"]

_CHOICES = {None, "auto", "none", "required"}


def check(app: App, stack: Stack, targets: Sequence[object]) -> None:
    """Raise one error with all issues.

    Args:
        app: whose they are.
        stack: its layers.
        targets: agents, agent classes or names; none for all of `App(agents=)`.

    Raises:
        ConfigurationError: when there are any; its `issues` are a tuple of sentences.
    """
    issues = list(dict.fromkeys(_issues(app, stack, targets or tuple(app.agents.values()))))
    if issues:
        count = "1 issue" if len(issues) == 1 else f"{len(issues)} issues"
        lines = "".join(f"\n- {issue}" for issue in issues)
        raise ConfigurationError(f"the app {app.name!r} has {count}:{lines}", tuple(issues))


def _issues(app: App, stack: Stack, targets: Sequence[object]) -> Iterator[str]:
    named: dict[str, object] = {}
    if not targets:
        yield "there is nothing to check: no agents; give them with App(agents=[...]), or name them: app.check(agent)"
    for target in targets:
        unknown: list[str] = []
        try:
            for agent in reached(app, target, unknown=unknown):
                other = named.setdefault(name_of_agent(agent), agent)
                if other is not agent and not isinstance(agent, Flow):
                    yield (
                        f"two agents that {_shown(target)} may reach are named {name_of_agent(agent)!r}; "
                        "rename one with Agent(name=...)"
                    )
                yield from _of_agent(app, stack, agent, target)
            yield from unknown
            refuse_cycles(app, target)
        except ConfigurationError as error:
            yield str(error)


def _of_agent(app: App, stack: Stack, agent: Agent | type[Agent], target: object) -> Iterator[str]:
    try:
        plan = plan_of(agent if isinstance(agent, Agent) else object_of(agent))
        tools_with_transfers(app, plan)
    except ConfigurationError as error:
        yield str(error)
    else:
        yield from _of_plan(app, stack, plan, target)


def _shown(target: object) -> str:
    return repr(target) if isinstance(target, str) else repr(name_of_agent(cast("Agent | type[Agent]", target)))


def _of_plan(app: App, stack: Stack, plan: Plan, target: object) -> Iterator[str]:
    model = app.model if plan.model is None else plan.model
    if model is None and plan.own_run is None and plan.conduct is None:
        yield f"the agent {plan.name!r} has no model; give it one with Agent(model=...) or App(model=...)"
    if isinstance(model, str):
        try:
            check_named(model)
        except ConfigurationError as error:
            yield str(error)
    choice = plan.settings.tool_choice
    tools = {tool.name for tool in tools_with_transfers(app, plan)[0]}
    if choice not in _CHOICES and choice not in tools:
        yield (
            f"the settings of {plan.name!r} say tool_choice={choice!r}, and it has no such tool "
            f"(it has: {', '.join(sorted(tools)) or 'none'}); correct the name"
        )
    if plan.own_run is not None and plan.handoffs:
        yield f"the handoffs= of {plan.name!r} are never offered, since {name_of(plan.own_run)} owns the step"
    if plan.own_run is not None and tuple(plan.agent.hooks):
        yield (
            f"the hooks= of {plan.name!r} never fire, since {name_of(plan.own_run)} owns the step; "
            "take them off, or do in run() what they do"
        )
    yield from _of_signatures(stack, plan)
    yield from stack.unknown_names(plan, known_names(app, plan, target), tools=True)


def _of_signatures(stack: Stack, plan: Plan) -> Iterator[str]:
    """What cannot be called as hooks and layers are: `(value, ctx)` and `(call, next)`."""
    for hook, functions in plan.hooks.items():
        for function in functions:
            if not _takes_two(function):
                yield f"the hook {name_of(function)!r} cannot be called with two arguments; write {hook}(value, ctx)"
    for registration in stack.around(plan):
        if not _takes_two(registration.layer):
            yield (
                f"the {registration.kind} layer {name_of(registration.layer)!r} cannot be called with two arguments; "
                "write it as (call, next)"
            )


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = signature(function)
    except (TypeError, ValueError):  # it does not tell, as a function in C may
        return True
    try:
        parameters.bind(None, None)
    except TypeError:
        return False
    return True


def known_names(app: App, plan: Plan | None = None, *others: object) -> set[str]:
    """The names that agents and tools bear: those reached from the app's agents, the plan's, and the others."""
    targets = (*app.agents.values(), *(() if plan is None else (plan.agent,)), *others)
    known = set(app.agents) | {name_of_agent(one) for one in reached(app, *targets)}
    known |= known_tools(app, *targets)
    return known if plan is None else known | {*plan.by_name}


def known_tools(app: App, *targets: object) -> set[str]:
    """The names of the tools of all that is reached from the targets."""
    return {name for one in reached(app, *targets) for name in tool_names(one)}
