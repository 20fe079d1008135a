"""What is said: messages, their parts, and the tool calls in them. All of it is immutable.

How a message looks on the wire of one provider is that provider's model's business, not this room's.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast

from typing_extensions import TypedDict, Unpack

from middlechain.errors import ConfigurationError
from middlechain.parts import Audio, File, Image, Part, Text, read_part, write_part

__all__ = [
    "Assistant",
    "Audio",
    "Content",
    "File",
    "Image",
    "Input",
    "Message",
    "Part",
    "System",
    "Text",
    "ToolMessage",
    "ToolUse",
    "User",
    "dump",
    "load",
]


Content: TypeAlias = str | Sequence[Part]


def arguments_of(data: object) -> str:
    """Arguments as JSON text that can be sent: half of a surrogate pair, which no encoding takes, stays escaped."""
    arguments = json.dumps(data, ensure_ascii=False)
    return arguments if arguments.isascii() or not _HALVES.search(arguments) else json.dumps(data)


_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call as the model wrote it.

    Args:
        name: the tool's name.
        arguments: JSON text; a mapping is encoded for you.
        id: what ties the call to its result; the runtime makes one up where it is empty (default).
    """

    name: str
    arguments: str = "{}"
    id: str = ""

    def __init__(self, name: str, arguments: str | Mapping[str, Any] = "{}", id: str = "") -> None:
        if not isinstance(arguments, str):
            arguments = arguments_of(dict(arguments))
        object.__setattr__(self, "name", name or "")  # some servers send null
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "id", id)


@dataclass(frozen=True, slots=True)
class MessageBase:
    """What all messages share. A list of several kinds is a list of these to a type checker."""

    content: Content

    def __post_init__(self) -> None:
        if type(self.content) is not str:
            object.__setattr__(self, "content", _content(self.content, type(self).__name__))

    @property
    def text(self) -> str:
        """All text of the content, parts joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, Text))

    def with_text(self, text: str) -> Self:
        """A copy that says `text`: parts that are not text stay, the first text part makes way for it."""
        if isinstance(self.content, str):
            return replace(self, content=text)
        parts: list[Part] = []
        placed = False
        for part in self.content:
            if not isinstance(part, Text):
                parts.append(part)
            elif not placed:
                placed = True
                parts.append(Text(text))
        return replace(self, content=(*parts,) if placed else (Text(text), *parts))


def _content(content: object, owner: str) -> Content:
    if isinstance(content, str):  # a subclass, such as a str enum: plain text from here on
        return str.__str__(content)
    if isinstance(content, Iterable) and not isinstance(content, bytes | Mapping):
        parts = tuple(content)
        if all(isinstance(part, Part) for part in parts):
            return cast("tuple[Part, ...]", parts)
    if isinstance(content, MessageBase):
        raise ConfigurationError(
            f"the content of a {owner} is a message already ({content!r:.80}); use it as it is, or its .content"
        )
    article = "an" if owner == "Assistant" else "a"
    raise ConfigurationError(
        f"the content of {article} {owner} is text or a list of parts, got {content!r:.80}; "
        "give a str, or [Text(...), Image(...)]"
    )


@dataclass(frozen=True, slots=True)
class System(MessageBase):
    """The system prompt."""

    role: ClassVar[Literal["system"]] = "system"


@dataclass(frozen=True, slots=True)
class User(MessageBase):
    """What a person says, or (with `name`) another agent.

    One that a guardrail `blocked` stays in the history with its canned answer, and neither is sent to a model.
    """

    name: str | None = None
    blocked: bool = False
    role: ClassVar[Literal["user"]] = "user"


class _AssistantChanges(TypedDict, total=False):
    content: Content
    tool_calls: Iterable[ToolUse]
    reasoning: str | None
    finish_reason: str | None
    blocked: bool


@dataclass(frozen=True, slots=True)
class Assistant(MessageBase):
    """What the model says.

    `finish_reason` and `blocked` (the canned answer of a guardrail) travel with the history; no model gets to see them.
    """

    tool_calls: tuple[ToolUse, ...] = ()
    reasoning: str | None = None
    finish_reason: str | None = None
    blocked: bool = False
    role: ClassVar[Literal["assistant"]] = "assistant"

    def __init__(
        self,
        content: Content,
        tool_calls: Iterable[ToolUse] = (),
        reasoning: str | None = None,
        finish_reason: str | None = None,
        blocked: bool = False,
    ) -> None:
        object.__setattr__(self, "content", content)
        object.__setattr__(self, "tool_calls", tuple(tool_calls))
        object.__setattr__(self, "reasoning", reasoning)
        object.__setattr__(self, "finish_reason", finish_reason)
        object.__setattr__(self, "blocked", blocked)
        self.__post_init__()

    def replace(self, **changes: Unpack[_AssistantChanges]) -> Assistant:
        """A copy with some fields changed."""
        return replace(self, **cast("dict[str, Any]", changes))


@dataclass(frozen=True, slots=True)
class ToolMessage(MessageBase):
    """The result of one tool call."""

    tool_call_id: str
    name: str
    is_error: bool = False
    role: ClassVar[Literal["tool"]] = "tool"


Message: TypeAlias = System | User | Assistant | ToolMessage
Input: TypeAlias = str | Sequence[Part] | User

_MESSAGES = frozenset({System, User, Assistant, ToolMessage})


def history_of(messages: Iterable[MessageBase | Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages as a tuple; OpenAI-style dicts among them are read. Messages are not touched one by one."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise ConfigurationError(f"the history is {messages!r:.80}; give a list of messages")
    given = tuple(messages)
    if _MESSAGES.issuperset(map(type, given)):
        return cast("tuple[Message, ...]", given)
    read: list[Message] = []
    names: dict[str, str] = {}
    for place, item in enumerate(given):
        message = item if isinstance(item, Message) else _read(item, place)
        if isinstance(message, Assistant):
            names.update({use.id: use.name for use in message.tool_calls})
        elif isinstance(message, ToolMessage) and isinstance(item, Mapping) and "name" not in item:  # as in OpenAI's
            message = replace(message, name=names.get(message.tool_call_id, ""))
        read.append(message)
    return tuple(read)


def sendable(history: tuple[Message, ...]) -> tuple[Message, ...]:
    """The history without what was blocked on its way in, and the canned answers to it; as it is if there is none."""
    blocked = [message for message in history if type(message) is User and message.blocked]
    if not blocked:
        return history
    kept: list[Message] = []
    skipping = False
    for message in history:
        skipping = message.blocked if isinstance(message, User) else skipping  # all that came of it, also a handoff
        if not skipping:
            kept.append(message)
    return tuple(kept)


def user_message(input: object) -> User:
    """The input as a `User` message.

    Raises:
        ConfigurationError: when it is neither text, nor parts, nor a `User`.
    """
    if isinstance(input, User):
        return input
    if isinstance(input, str) or (isinstance(input, Sequence) and not isinstance(input, bytes)):
        return User(cast("Content", input))
    raise ConfigurationError(f"the input is {input!r:.80}; give text, a list of parts or a User(...) message")


def input_of(message: Message) -> Input:
    """The message as an input: a text if it is nothing more."""
    if isinstance(message, User) and message.name is None and not message.blocked:
        return message.content
    return cast("User", message)


def dump(messages: Iterable[MessageBase]) -> list[dict[str, Any]]:
    """The messages as plain data for JSON, in OpenAI's shape where it has one. `load` gives the same messages back.

    Args:
        messages: any messages of this room.

    Returns:
        One dict a message; nothing of the message is left out.
    """
    return [_write(cast("Message", message)) for message in messages]


def load(data: Iterable[Mapping[str, Any]]) -> list[Message]:
    """The messages that `dump` wrote, or a history in OpenAI's shape.

    Raises:
        ConfigurationError: for anything that is not such a message, with its place in the list.
    """
    return list(history_of(data))


def _write(message: Message) -> dict[str, Any]:
    content = message.content
    data: dict[str, Any] = {
        "role": message.role,
        "content": content if isinstance(content, str) else [write_part(part) for part in content],
    }
    if isinstance(message, User):
        data |= {"name": message.name} if message.name is not None else {}
        data |= {"blocked": True} if message.blocked else {}
    elif isinstance(message, Assistant):
        if message.tool_calls:
            data["tool_calls"] = [
                {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.arguments}}
                for use in message.tool_calls
            ]
        if message.reasoning is not None:
            data["reasoning_content"] = message.reasoning
        if message.finish_reason is not None:
            data["finish_reason"] = message.finish_reason
        if message.blocked:
            data["blocked"] = True
    elif isinstance(message, ToolMessage):
        data |= {"tool_call_id": message.tool_call_id, "name": message.name}
        if message.is_error:
            data["is_error"] = True
    return data


def _read(item: object, place: int) -> Message:
    try:
        return _read_message(cast("Mapping[str, Any]", item))
    except (LookupError, TypeError, ValueError, AttributeError, ConfigurationError, binascii.Error) as error:
        raise ConfigurationError(
            f"message {place} of the history cannot be read ({type(error).__name__}: {error}): {item!r:.120}; "
            'give messages, or dicts such as {"role": "user", "content": "..."}'
        ) from error


def _read_message(data: Mapping[str, Any]) -> Message:
    role = data["role"]
    raw = data.get("content")
    content: Content = raw if isinstance(raw, str) else "" if raw is None else tuple(read_part(part) for part in raw)
    if role in {"system", "developer"}:
        return System(content)
    if role == "user":
        return User(content, data.get("name"), data.get("blocked", False))
    if role == "assistant":
        calls = data.get("tool_calls") or ()
        return Assistant(
            content,
            [ToolUse(call["function"]["name"], call["function"]["arguments"], call["id"]) for call in calls],
            data.get("reasoning_content"),
            data.get("finish_reason"),
            data.get("blocked", False),
        )
    if role == "tool":
        return ToolMessage(content, data["tool_call_id"], data.get("name") or "", data.get("is_error", False))
    raise ValueError(f"there is no role {role!r}")
