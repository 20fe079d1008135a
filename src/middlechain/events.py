"""What a run tells about itself while it goes on.

Deltas are events too: a model sends a bare one, the runtime stamps it with where it came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from middlechain.chat import ChatReply
    from middlechain.guards import Validation
    from middlechain.results import Result
    from middlechain.tool_calls import ToolCall
    from middlechain.tools import ToolOutput

__all__ = [
    "AgentFinished",
    "AgentStarted",
    "CustomEvent",
    "Delta",
    "Event",
    "GuardrailFired",
    "LimitReached",
    "ModelFinished",
    "ModelStarted",
    "Origin",
    "ReasoningDelta",
    "RunFinished",
    "RunStarted",
    "TextDelta",
    "TextReset",
    "ToolFinished",
    "ToolStarted",
]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an event came from."""

    run_id: str = ""
    agent: str = ""
    step: str = ""
    parent: str | None = None
    turn: int = 0
    answering: bool = True


_NOWHERE = Origin()


@dataclass(frozen=True, slots=True)
class Event:
    """What all events share. `origin` and `seq` are set by the runtime, and two events are equal without them."""

    origin: Origin = field(default=_NOWHERE, kw_only=True, repr=False, compare=False)
    seq: int = field(default=0, kw_only=True, repr=False, compare=False)

    @property
    def type(self) -> str:
        """The name of the class."""
        return type(self).__name__

    @property
    def run_id(self) -> str:
        """Which run it belongs to."""
        return self.origin.run_id

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return self.origin.agent

    @property
    def step(self) -> str:
        """Which step it belongs to; unique per step, `""` outside of any."""
        return self.origin.step

    @property
    def parent(self) -> str | None:
        """The step that this step is nested in, if any."""
        return self.origin.parent

    @property
    def turn(self) -> int:
        """Which turn of the step, from 1; 0 before the first."""
        return self.origin.turn

    @property
    def answering(self) -> bool:
        """Whether its step is the one that answers the run, as far as that is known; `stream.text()` is its text."""
        return self.origin.answering


@dataclass(frozen=True, slots=True, init=False)
class _Piece(Event):
    """A delta with text. There are thousands in a run, so its slots are set without a detour."""

    text: str

    def __init__(self, text: str, *, origin: Origin = _NOWHERE, seq: int = 0) -> None:
        _set_text(self, text)
        _set_origin(self, origin)
        _set_seq(self, seq)


_set_text, _set_origin, _set_seq = (
    vars(cls)[slot].__set__ for cls, slot in ((_Piece, "text"), (Event, "origin"), (Event, "seq"))
)


@dataclass(frozen=True, slots=True, init=False)
class TextDelta(_Piece):
    """More text of the turn's answer."""


@dataclass(frozen=True, slots=True, init=False)
class ReasoningDelta(_Piece):
    """More of the turn's reasoning."""


@dataclass(frozen=True, slots=True)
class TextReset(Event):
    """The text and the reasoning that this turn has sent so far do not hold any more."""


Delta: TypeAlias = TextDelta | ReasoningDelta | TextReset


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The first event of a run."""


@dataclass(frozen=True, slots=True)
class AgentStarted(Event):
    """A step begins."""

    via: str = "root"


@dataclass(frozen=True, slots=True)
class ModelStarted(Event):
    """A turn asks for a reply, which a model or a layer will give."""


@dataclass(frozen=True, slots=True)
class ModelFinished(Event):
    """The reply of a turn as it left the chat layers (a `ChatReply`), or None if it failed."""

    reply: ChatReply | None = None


@dataclass(frozen=True, slots=True)
class ToolStarted(Event):
    """A tool call (a `ToolCall`) as the model made it, before hooks and layers."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolFinished(Event):
    """What came of a tool call: the `ToolOutput` that history gets, or None if the call ended the step."""

    call: ToolCall
    output: ToolOutput | None = None


@dataclass(frozen=True, slots=True)
class GuardrailFired(Event):
    """A guard did more than let a text pass: its `Validation`."""

    validation: Validation


@dataclass(frozen=True, slots=True)
class LimitReached(Event):
    """A limit does not allow more: the name of a field of `Limits`, and what it says."""

    limit: str
    value: float


@dataclass(frozen=True, slots=True)
class CustomEvent(Event):
    """What `ctx.emit(name, data)` sent."""

    name: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class AgentFinished(Event):
    """The step's `Result`, or None if it failed."""

    result: Result | None = None


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The last event of a run, exactly one.

    `outcome` is one of `completed, blocked, pending, stopped, failed, cancelled`.
    """

    outcome: Literal["completed", "blocked", "pending", "stopped", "failed", "cancelled"]


@cache
def payload_fields(kind: type[Event]) -> tuple[str, ...]:
    """The fields that an event of this kind adds to those that all share."""
    return tuple(field.name for field in fields(kind) if field.name not in {"origin", "seq"})
