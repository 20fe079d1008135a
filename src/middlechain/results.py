"""What a run and a step take and give: `RunCall`, `AgentCall` and `Result`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Self, cast

from typing_extensions import TypedDict, TypeVar, Unpack

from middlechain.context import Context
from middlechain.limits import NO_USAGE, Usage
from middlechain.messages import Assistant, Input, Message, MessageBase

if TYPE_CHECKING:
    from middlechain.agent import Agent
    from middlechain.guards import Validation
    from middlechain.pauses import Pause
    from middlechain.tool_calls import ToolCall

__all__ = ["AgentCall", "Result", "RunCall"]

Output = TypeVar("Output", default=Any)  # what `output=` of an agent says, a type checker does not see


class _RunChanges(TypedDict, total=False):
    target: Agent | type[Agent] | str
    input: Input


@dataclass(frozen=True, slots=True)
class RunCall:
    """A run on its way in.

    Args:
        target: what runs: an agent, an agent class, or the name of an agent of the app.
        input: what it is asked.
    """

    target: Agent | type[Agent] | str
    input: Input
    ctx: Context[Any] = field(default=cast("Context[Any]", None), kw_only=True, repr=False, compare=False)
    agent: Agent = field(default=cast("Agent", None), kw_only=True, repr=False, compare=False)

    def replace(self, **changes: Unpack[_RunChanges]) -> Self:
        """A copy with some fields changed."""
        return replace(self, **cast("dict[str, Any]", changes))


class _AgentChanges(TypedDict, total=False):
    input: Input


@dataclass(frozen=True, slots=True)
class AgentCall:
    """A step on its way in.

    Args:
        input: what the agent is asked.
        caller: the agent that asked for this step; None for the first one.
        via: how: `"root"` for the first step, `"flow"`, `"tool"`, `"handoff"`, or `"run"` for `ctx.run`.
        depth: how many steps it is nested in.
    """

    input: Input
    caller: Agent | None = None
    via: str = "root"
    depth: int = 0
    ctx: Context[Any] = field(default=cast("Context[Any]", None), kw_only=True, repr=False, compare=False)
    agent: Agent = field(default=cast("Agent", None), kw_only=True, repr=False, compare=False)

    def replace(self, **changes: Unpack[_AgentChanges]) -> Self:
        """A copy with another input."""
        return replace(self, **cast("dict[str, Any]", changes))


def attach(old: Any, new: Any) -> Any:
    """A call that a layer made, with the context of the one it replaces."""
    return replace(new, ctx=old.ctx, agent=old.agent) if new.ctx is None else new


class _ResultChanges(TypedDict, total=False):
    text: str
    output: Any
    message: Assistant
    messages: Iterable[MessageBase]
    usage: Usage
    finish_reason: str | None
    blocked: bool
    blocked_by: str | None
    validations: tuple[Validation, ...]
    degraded: bool
    error: BaseException | None
    stopped_by: str | None


_THE_TEXT: Any = object()


@dataclass(frozen=True, slots=True)
class Result(Generic[Output]):
    """The answer of a run or of a step. `Result("hi")` is enough to make one; the runtime fills in the rest.

    Args:
        text: the answer.
        output: the same, unless the agent has an output type.
        messages: those of this exchange: the user's, then the assistant's and the tools'.
        usage: what was used, as far as anybody reported it.
        finish_reason: `stop`, `limit`, `degraded`, ..., or the provider's word.
        blocked: whether a guardrail blocked it.
        blocked_by: name of that guardrail.
        validations: what guardrails found.
        degraded: whether `on_error` made the answer.
        error: the exception behind a degraded answer.
        agent: name of the agent that answered.
        run_id: id of the run.
        state: the run's state.
        stopped_by: `limit`, `stop` or `fails` when it ended before it was done; of a loop also `until` or `iterations`.
        pending: tool calls that wait for approval.
        pause: where the exchange goes on when they are decided; None if nothing waits.
    """

    text: str = ""
    output: Output = _THE_TEXT
    messages: tuple[Message, ...] = ()
    usage: Usage = NO_USAGE
    finish_reason: str | None = None
    blocked: bool = False
    blocked_by: str | None = None
    validations: tuple[Validation, ...] = ()
    degraded: bool = False
    error: BaseException | None = None
    agent: str = ""
    run_id: str = ""
    state: Any = field(default=None, repr=False)
    stopped_by: str | None = None
    pending: tuple[ToolCall, ...] = ()
    pause: Pause | None = field(default=None, repr=False, compare=False)

    if TYPE_CHECKING:  # what `__post_init__` takes

        def __init__(
            self,
            text: str = "",
            output: Output = ...,
            messages: Iterable[MessageBase] = (),
            usage: Usage = NO_USAGE,
            finish_reason: str | None = None,
            blocked: bool = False,
            blocked_by: str | None = None,
            validations: tuple[Validation, ...] = (),
            degraded: bool = False,
            error: BaseException | None = None,
            agent: str = "",
            run_id: str = "",
            state: Any = None,
            stopped_by: str | None = None,
            pending: tuple[ToolCall, ...] = (),
            pause: Pause | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.output is _THE_TEXT:
            object.__setattr__(self, "output", self.text)
        if type(self.messages) is not tuple:
            object.__setattr__(self, "messages", tuple(self.messages))

    @property
    def message(self) -> Assistant:
        """The last message of the assistant."""
        place = last_answer(self.messages)
        return (
            Assistant(self.text, finish_reason=self.finish_reason)
            if place is None
            else cast("Assistant", self.messages[place])
        )

    def replace(self, **changes: Unpack[_ResultChanges]) -> Self:
        """A copy with some fields changed; a new `text`, `message` or `messages` keeps the other two in step."""
        given = cast("dict[str, Any]", changes)
        message = given.pop("message", None)
        messages = tuple(given.get("messages", self.messages))
        place = last_answer(messages)
        if message is not None:
            given.setdefault("text", message.text)
        elif place is not None:
            message = cast("Assistant", messages[place])
        elif messages and given.get("text"):
            message = Assistant(given["text"], finish_reason=self.finish_reason)
        if "text" not in given and "messages" in given and message is not None:
            given["text"] = message.text
        if message is not None:
            if "text" in given and message.text != given["text"]:
                message = message.with_text(given["text"])
            messages = (*messages[:place], message, *(() if place is None else messages[place + 1 :]))
        if "text" in given and "output" not in given and self.output == self.text:
            given["output"] = given["text"]
        return replace(self, **{**given, "messages": messages})


def last_answer(messages: Sequence[Message]) -> int | None:
    """The place of the last message of the assistant."""
    for place in range(len(messages) - 1, -1, -1):
        if isinstance(messages[place], Assistant):
            return place
    return None
