"""What holds text back in an append-only stream: whatever may still change it, unless it is marked `@observes`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from middlechain.chain import is_marked, name_of, observes, repeats

if TYPE_CHECKING:
    from middlechain.agent import Plan
    from middlechain.app import App
    from middlechain.layers import Stack

__all__ = ["Hold", "Moment", "holds_back", "holds_of", "holds_of_run", "log_hold"]


class Moment(IntEnum):
    """How far out a text has come: until when it may be held."""

    SENT = 0  # by the model
    REPLIED = 1  # the chat layers have returned
    ANSWERED = 2  # after_response and after_run have returned
    STEPPED = 3  # the agent layers have returned
    FLOWED = 4  # the flow around the step has its answer
    ENDED = 5  # the run layers have returned


_LAYERS = {"chat": Moment.REPLIED, "agent": Moment.STEPPED, "run": Moment.ENDED}
_HOOKS = ("after_response", "after_run")


@dataclass(frozen=True, slots=True)
class Hold:
    """One layer or hook that holds text back.

    Args:
        name: in words.
        until: when it has had its say.
        answer_only: whether it leaves the text of turns with tool calls alone.
        is_layer: whether it is a layer or a hook, which could be marked.
    """

    name: str
    until: Moment
    answer_only: bool = False
    is_layer: bool = True


def holds_back(function: object) -> bool:
    """Whether a layer that wraps answers, or a hook that may replace them, holds their text back."""
    return not is_marked(function, observes) or is_marked(function, repeats)


def holds_of(stack: Stack, plan: Plan) -> tuple[Hold, ...]:
    """What holds back the text of an agent's steps, outermost first. What depends on a call may apply, so it counts."""
    hooks = [
        Hold(f"the hook {name_of(function)!r}", Moment.ANSWERED, hook == "after_response")
        for hook in reversed(_HOOKS)
        for function in plan.hooks[hook]
        if holds_back(function)
    ]
    if plan.output is not None:
        hooks.append(Hold(f"the output type of {plan.name!r}", Moment.ANSWERED, answer_only=True, is_layer=False))
    return (*_of_layers(stack, plan, "agent"), *hooks, *_of_layers(stack, plan, "chat"))


def holds_of_run(stack: Stack, plan: Plan) -> tuple[Hold, ...]:
    """What holds back the text of a run whose target is that agent, in addition."""
    return _of_layers(stack, plan, "run")


def _of_layers(stack: Stack, plan: Plan, kind: str) -> tuple[Hold, ...]:
    return tuple(
        Hold(f"the {kind} layer {name_of(layer)!r}", _LAYERS[kind])
        for layer, _ in stack.applying(kind, plan)
        if holds_back(layer)
    )


def log_hold(app: App, holds: tuple[Hold, ...]) -> None:
    """Log what holds text back, the first time in an app that anything does."""
    layers = [hold for hold in holds if hold.is_layer]
    if app.told_of_holds or not layers:
        return
    app.told_of_holds = True
    import structlog

    structlog.get_logger("middlechain").info(
        f"text of an append-only stream is held back by {' and '.join(hold.name for hold in layers)}; "
        "mark with @observes what returns None or the very object that it was given"
    )
