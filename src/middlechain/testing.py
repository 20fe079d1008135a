"""What tests of apps and layers need: a model that says what it is told to, and a reader of streams."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from middlechain.chain import settle
from middlechain.chat import ChatCall, ChatReply
from middlechain.errors import ConfigurationError
from middlechain.events import Delta, Event, ReasoningDelta, TextDelta, TextReset
from middlechain.messages import ToolUse
from middlechain.registry import no_requests
from middlechain.results import Result
from middlechain.streams import Stream

__all__ = ["Collected", "ScriptedModel", "collect", "no_requests"]

Failure: TypeAlias = BaseException | type[BaseException]
Piece: TypeAlias = str | Delta | ToolUse | BaseException | Awaitable[object]
Played: TypeAlias = str | ChatReply | ToolUse | Failure | Sequence[Piece]
Scripted: TypeAlias = Played | Callable[[ChatCall], Played | Awaitable[Played]]


class Collected(NamedTuple):
    """All that a stream gave."""

    events: list[Event]
    result: Result


async def collect(stream: Stream) -> Collected:
    """Read a stream to its end: all events and the result.

    Args:
        stream: what `app.stream(...)` gave, not entered yet.

    Raises:
        Exception: the run's own error.
    """
    async with stream:
        events = [event async for event in stream]
        return Collected(events, stream.result)


class ScriptedModel:
    """A model that answers from a list and records every call.

    Args:
        replies: one for each call. A reply is a `str`, a `ChatReply`, an exception (raised), a list of what to stream
            in order (`str` and deltas are sent, an exception ends the stream there, an awaitable is awaited, a
            `ToolUse` is a tool call; joined when the call does not stream), or a callable of the call that returns one
            of these. A callable in place of the list answers every call.
        chunk: characters of the pieces in which plain replies stream; default: one piece.
        name: what the model is called; default `"scripted"`.

    Attributes:
        calls: every `ChatCall`, in order.
    """

    def __init__(
        self,
        replies: Iterable[Scripted] | Callable[[ChatCall], Played | Awaitable[Played]],
        *,
        chunk: int | None = None,
        name: str = "scripted",
    ) -> None:
        if chunk is not None and chunk < 1:
            raise ConfigurationError(
                f"ScriptedModel(chunk={chunk}) cannot cut anything; give a number from 1 up, or None"
            )
        if isinstance(replies, str):
            raise ConfigurationError(f"ScriptedModel({replies!r}) is one text; give a list of replies: [{replies!r}]")
        self.name = name
        self.calls: list[ChatCall] = []
        self._answer_all = replies if callable(replies) else None
        self._replies: Sequence[Scripted] = () if callable(replies) else list(replies)
        self._chunk = chunk

    async def chat(self, call: ChatCall) -> ChatReply:
        """Answer with the next reply.

        Raises:
            ConfigurationError: when the list is used up.
        """
        place = len(self.calls)
        self.calls.append(call)
        if self._answer_all is not None:
            reply: Any = self._answer_all
        elif place < len(self._replies):
            reply = self._replies[place]
        else:
            raise ConfigurationError(
                f"the ScriptedModel {self.name!r} has {len(self._replies)} replies and was asked for one more "
                f"(number {place + 1}); give it another, or a callable that answers every call"
            )
        if callable(reply) and not isinstance(reply, type):
            reply = await settle(reply(call))
        return await self._play(call, reply)

    async def _play(self, call: ChatCall, reply: Scripted) -> ChatReply:
        if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
            raise reply
        if isinstance(reply, ToolUse):
            reply = [reply]
        if isinstance(reply, list | tuple):
            return await self._stream(call, reply)
        if isinstance(reply, str):
            reply = ChatReply(reply)
        if not isinstance(reply, ChatReply):
            raise ConfigurationError(
                f"ScriptedModel cannot play {reply!r:.80}; give a str, a ChatReply, an exception, a list or a callable"
            )
        if call.streaming:
            if reply.reasoning:
                await call.send(ReasoningDelta(reply.reasoning))
            size = self._chunk or len(reply.text) or 1
            for start in range(0, len(reply.text), size):
                await call.send(TextDelta(reply.text[start : start + size]))
        return reply

    async def _stream(self, call: ChatCall, items: Sequence[Any]) -> ChatReply:
        text: list[str] = []
        reasoning: list[str] = []
        tool_calls: list[ToolUse] = []
        for given in items:
            item = TextDelta(given) if isinstance(given, str) else given
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, ToolUse):
                tool_calls.append(item)
                continue
            if inspect.isawaitable(item):
                await item
                continue
            if isinstance(item, TextReset):
                text.clear()
                reasoning.clear()
            elif isinstance(item, TextDelta | ReasoningDelta):
                (text if isinstance(item, TextDelta) else reasoning).append(item.text)
            else:
                raise ConfigurationError(
                    f"ScriptedModel cannot stream {item!r:.80}; "
                    "give a str, a delta, a ToolUse, an awaitable or an exception"
                )
            if call.streaming:
                await call.send(item)
        return ChatReply("".join(text), tuple(tool_calls), "".join(reasoning) or None)
