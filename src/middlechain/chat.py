"""One model call: what goes out, what comes back, and the endpoint that the chat layers wrap.

How a reply is obtained from a server is the business of the models; this room only knows what a model is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, cast

from typing_extensions import TypedDict, Unpack

from middlechain.chain import Scope, settle
from middlechain.context import Context
from middlechain.errors import ConfigurationError, LimitExceeded, WrongReturn
from middlechain.events import Delta, LimitReached, TextReset
from middlechain.limits import NO_USAGE, Usage
from middlechain.messages import Assistant, Message, MessageBase, ToolUse
from middlechain.records import step_of
from middlechain.registry import model_named
from middlechain.tools import Tool

if TYPE_CHECKING:
    from middlechain.agent import Agent
    from middlechain.guards import Validation

__all__ = ["CHAT", "CUT_OFF", "ChatCall", "ChatReply", "Model", "Send", "Settings", "ask_model", "discard"]

Send: TypeAlias = Callable[[Delta], Coroutine[Any, Any, None]]

# Finish reasons of a reply that was cut off: what it asks for may be half of what it meant to ask for.
CUT_OFF = frozenset({"length", "safety", "content_filter", "incomplete"})


async def discard(delta: Delta) -> None:
    """The `send` of a call that does not stream."""


class Model(Protocol):
    """What answers a chat call. Any object with these two will do."""

    @property
    def name(self) -> str:
        """How the model is called in events and errors."""
        ...

    async def chat(self, call: ChatCall, /) -> ChatReply:
        """Answer the call; when `call.streaming`, `await call.send(delta)` with each piece as it comes."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is to answer. None leaves a setting to the model's server.

    Args:
        temperature: randomness, from 0.
        top_p: share of the probability mass to draw from, 0 to 1.
        max_tokens: most tokens of one reply.
        stop: texts at which a reply ends.
        seed: makes replies repeatable where the server can.
        tool_choice: `"auto"`, `"none"`, `"required"`, or the name of a tool.
        parallel_tool_calls: whether one reply may ask for several tools.
        extra: further fields of the request, sent as they are.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: Sequence[str] | None = None
    seed: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_SETTINGS = Settings()


class Offer:
    """The tools that the innermost call of a turn offers: only these may be called."""

    __slots__ = ("tools",)

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self.tools = tools


class _ChatChanges(TypedDict, total=False):
    messages: Iterable[MessageBase]
    tools: Iterable[Tool]
    settings: Settings
    model: Model | str
    streaming: bool
    send: Send


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A model call on its way in.

    Args:
        messages: what is sent; begins with the `System` message, if there is one.
        tools: what the model may ask for.
        settings: how it is to answer.
        model: who is to answer; a layer may replace it by another model or by a name such as `"openai:gpt-5"`.
        streaming: whether anybody wants deltas.
        send: takes the deltas; wrap it to see or change them.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    settings: Settings = DEFAULT_SETTINGS
    model: Model | str | None = None
    streaming: bool = False
    send: Send = discard
    ctx: Context[Any] = field(default=cast("Context[Any]", None), kw_only=True, repr=False, compare=False)
    agent: Agent = field(default=cast("Agent", None), kw_only=True, repr=False, compare=False)
    offer: Offer | None = field(default=None, kw_only=True, repr=False, compare=False)

    if TYPE_CHECKING:  # what `__post_init__` takes

        def __init__(
            self,
            messages: Iterable[MessageBase],
            tools: Iterable[Tool] = (),
            settings: Settings = DEFAULT_SETTINGS,
            model: Model | str | None = None,
            streaming: bool = False,
            send: Send = discard,
            *,
            ctx: Context[Any] = ...,
            agent: Agent = ...,
            offer: Offer | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if type(self.messages) is not tuple:
            object.__setattr__(self, "messages", tuple(self.messages))
        if type(self.tools) is not tuple:
            object.__setattr__(self, "tools", tuple(self.tools))

    def replace(self, **changes: Unpack[_ChatChanges]) -> Self:
        """A copy with some fields changed."""
        return replace(self, **cast("dict[str, Any]", changes))


class _ReplyChanges(TypedDict, total=False):
    text: str
    tool_calls: Iterable[ToolUse]
    reasoning: str | None
    usage: Usage
    finish_reason: str | None
    model: str | None


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a model, or a layer in its place, answers.

    Args:
        text: the answer.
        tool_calls: the tools it asks for.
        reasoning: how it got there, if the model tells.
        usage: what the call used, as far as the server said.
        finish_reason: why it ended; None is filled in by the runtime with `"stop"` or `"tool_calls"`.
        model: name of the model that answered, as the server gave it.
        validations: what guardrails found.
    """

    text: str = ""
    tool_calls: tuple[ToolUse, ...] = ()
    reasoning: str | None = None
    usage: Usage = NO_USAGE
    finish_reason: str | None = None
    model: str | None = None
    validations: tuple[Validation, ...] = ()

    if TYPE_CHECKING:  # what `__post_init__` takes

        def __init__(
            self,
            text: str = "",
            tool_calls: Iterable[ToolUse] = (),
            reasoning: str | None = None,
            usage: Usage = NO_USAGE,
            finish_reason: str | None = None,
            model: str | None = None,
            validations: tuple[Validation, ...] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        if type(self.tool_calls) is not tuple:
            object.__setattr__(self, "tool_calls", tuple(self.tool_calls))

    def replace(self, **changes: Unpack[_ReplyChanges]) -> Self:
        """A copy with some fields changed."""
        return replace(self, **cast("dict[str, Any]", changes))


async def ask_model(call: ChatCall) -> ChatReply:
    """The endpoint of the chat layers: limits, then the model."""
    step = step_of(call.ctx)
    override = step.run.override
    model = call.model if override is None or override.model is None else override.model
    if model is None:
        raise ConfigurationError(
            f"the agent {step.agent_name!r} has no model; "
            'give it one with Agent(model="openai:...") or App(model=...), or try it with model="demo"'
        )
    if isinstance(model, str):
        model = model_named(model, step.run.models)
    try:
        step.meter.start_chat()
    except LimitExceeded as error:
        await step.emit(LimitReached, error.limit, error.value)
        raise
    cast("Offer", call.offer).tools = call.tools
    reply = await settle(model.chat(call))
    if not isinstance(reply, ChatReply):
        raise WrongReturn(
            f"the model {model.name!r} returned a value of type {type(reply).__name__}; chat() must return a ChatReply"
        )
    step.meter.count(reply.usage)
    return _complete(call, reply)


async def _restart(call: ChatCall, failure: BaseException | None) -> None:
    if not call.streaming:
        return
    step = step_of(call.ctx)
    if step.edge is not None:
        step.edge.may_begin_again(step.turn, failure)
    await call.send(TextReset())


def _attach(old: ChatCall, new: ChatCall) -> ChatCall:
    if new.ctx is None:
        model = old.model if new.model is None else new.model
        streaming, send = (old.streaming, old.send) if new.send is discard else (new.streaming, new.send)
        new = ChatCall(
            new.messages, new.tools, new.settings, model, streaming, send, ctx=old.ctx, agent=old.agent, offer=old.offer
        )
    cast("Offer", new.offer).tools = new.tools
    return new


def _complete(call: ChatCall, reply: ChatReply) -> ChatReply:
    """The reply with a finish reason, and with tool calls whose ids are unique and not empty."""
    uses = reply.tool_calls
    if uses:
        step = step_of(call.ctx)
        uses = with_ids(uses, f"{step.turn}{step.branch}", (*step.history, *step.exchange))
    reason = reply.finish_reason or ("tool_calls" if uses else "stop")
    if uses is reply.tool_calls and reason == reply.finish_reason:
        return reply
    return ChatReply(reply.text, uses, reply.reasoning, reply.usage, reason, reply.model, reply.validations)


def with_ids(uses: tuple[ToolUse, ...], turn: str, before: Sequence[Message]) -> tuple[ToolUse, ...]:
    """The tool calls with unique ids; those that were fine are kept, and the same history always gives the same ids."""
    taken = {use.id for use in uses}
    if len(taken) == len(uses) and "" not in taken and None not in taken:
        return uses
    taken |= {use.id for message in before if isinstance(message, Assistant) for use in message.tool_calls}
    seen: set[str] = set()
    named = []
    for place, use in enumerate(uses):
        id = use.id
        if not id or id in seen:
            id = next(made for n in count() if (made := f"call_{turn}_{place}" + "_" * n) not in taken | seen)
        seen.add(id)
        named.append(ToolUse(use.name, use.arguments, id))
    return tuple(named)


CHAT: Scope[ChatCall, ChatReply] = Scope("chat", ChatCall, ChatReply, _restart, _attach, _complete)
