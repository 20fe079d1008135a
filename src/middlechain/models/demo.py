"""A model without a server: a handful of rules, so that everything can be tried offline and without a key.

Bounded on purpose. All that it can do is said in `DemoModel`; whoever needs more needs a language model.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from itertools import takewhile
from typing import Any

from middlechain.chat import ChatCall, ChatReply
from middlechain.events import TextDelta
from middlechain.messages import Assistant, Message, ToolMessage, ToolUse, User
from middlechain.tools import Tool

__all__ = ["DemoModel"]

_ABOUT = "(I am a set of rules, not a language model.)"
_WORD = re.compile(r"[^\W\d_]+")
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a about all an and any are as at be by can could do does for from give has have how i in is it its me my no "
        "not of on one or our out please so that the their them there this to up us was we what when where which who "
        "will with would you your"
    )
)
_QUOTED = re.compile(r"""["“]([^"“”]*)["”]|(?<!\w)'([^']*)'(?!\w)""")
# As many digits as every float holds exactly: `int()` refuses texts of some thousand digits.
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,15})?(?!\w|\.\d)")


class DemoModel:
    """Answers by rules: offline, the same every time, and it says of itself what it is.

    - To a user's message it calls the one tool whose name or description shares most words with it, and fills the
      arguments from the numbers, the quoted strings and the enum values in the message. Where a required argument
      is not there, it asks for it instead.
    - After a tool's result it answers with that result.
    - When another agent has handed the conversation over to it (`transfer_to_...`), it goes by the user's message.
    - To anything else it says plainly what it heard.

    It streams word by word, and reports no usage, since it has none.

    Args:
        name: what stands after the colon of `"demo:..."`; it makes no difference.
    """

    def __init__(self, name: str = "") -> None:
        self.name = "demo"

    def __repr__(self) -> str:
        return "DemoModel()"

    async def chat(self, call: ChatCall, /) -> ChatReply:
        """Answer the call by the rules."""
        asked = _asked(call)
        tool = _fitting(call.tools, asked)
        arguments, missing = ({}, None) if tool is None else _arguments(tool, asked)
        if tool is not None and missing is None:
            return ChatReply(tool_calls=(ToolUse(tool.name, arguments),), model=self.name)
        text = f"{missing or _answer(call, asked)} {_ABOUT}"
        if call.streaming:
            for word in re.findall(r"\s*\S+", text):
                await call.send(TextDelta(word))
        return ChatReply(text, model=self.name)


def _asked(call: ChatCall) -> str:
    """The user's message, as long as nothing has been done about it but to hand it over to this agent."""
    own = {tool.name for tool in call.tools}
    last = next((message for message in reversed(call.messages) if not _hands_over(message, own)), None)
    return last.text if isinstance(last, User) else ""


def _hands_over(message: Message, own: Container[str]) -> bool:
    """Whether a message is part of a handoff, given that all that come after it are.

    A tool of the agent's own that is named like one is none: it would be called over and over.
    """
    if isinstance(message, ToolMessage):
        return message.name.startswith("transfer_to_") and message.name not in own and not message.is_error
    return isinstance(message, Assistant) and bool(message.tool_calls)


def _answer(call: ChatCall, asked: str) -> str:
    """What there is to say without calling a tool."""
    newest_first = takewhile(lambda message: isinstance(message, ToolMessage), reversed(call.messages))
    results = [message for message in newest_first if isinstance(message, ToolMessage)]
    if results and not asked:
        return "\n".join(
            f"{result.name} {'reports an error' if result.is_error else 'says'}: {result.text}"
            for result in reversed(results)
        )
    heard = f"You said: {asked.strip()}" if asked.strip() else "You said nothing that I can read."
    if not call.tools:
        return heard
    return f"{heard}\nNo tool of mine shares a word with that; I have {', '.join(tool.name for tool in call.tools)}."


def _fitting(tools: Sequence[Tool], text: str) -> Tool | None:
    """The tool that shares most words with the text, the first of equals; None if none shares any."""
    asked = _words(text)

    def shared(tool: Tool) -> int:
        return len(asked & _words(f"{tool.name} {tool.description}"))

    best = max(tools, key=shared, default=None)
    return best if best is not None and shared(best) else None


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower())) - _STOP_WORDS


def _arguments(tool: Tool, text: str) -> tuple[dict[str, Any], str | None]:
    """The tool's arguments as far as the text holds them, and what to say if a required one is missing."""
    required = tool.schema.get("required", ())
    properties = tool.schema.get("properties", {})
    found = _Found(text)
    arguments: dict[str, Any] = {}
    for name in sorted(properties, key=lambda name: name not in required):
        kind = _kind(properties[name], tool.schema)
        value = found.take(kind)
        if value is not None:
            arguments[name] = value
        elif name in required:
            return {}, f"To call {tool.name} I need {name!r}, and your message does not hold it; {_how_to_say(kind)}."
    return arguments, None


def _kind(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a parameter, behind a reference or an "or null"."""
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    schema = options[0] if options else schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def _choices(kind: Mapping[str, Any]) -> Sequence[Any]:
    return [kind["const"]] if "const" in kind else kind.get("enum", ())


def _how_to_say(kind: Mapping[str, Any]) -> str:
    if _choices(kind):
        return f"say one of {', '.join(map(str, _choices(kind)))}"
    ways = {"integer": "give it as a whole number", "number": "give it as a number", "string": "put it in quotes"}
    return ways.get(kind.get("type", ""), "I cannot read a value of its type from a message")


class _Found:
    """The values in a message. Each number and each quoted string is used once, in order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.quoted = [double or single for double, single in _QUOTED.findall(text)]
        self.numbers = _NUMBER.findall(_QUOTED.sub(" ", text))

    def take(self, kind: Mapping[str, Any]) -> Any:
        """A value of that kind, or None."""
        if _choices(kind):
            return next((choice for choice in _choices(kind) if self._mentions(str(choice))), None)
        if kind.get("type") == "string":
            return self.quoted.pop(0) if self.quoted else None
        if kind.get("type") not in {"integer", "number"}:
            return None
        fit = [number for number in self.numbers if kind["type"] == "number" or "." not in number]
        if not fit:
            return None
        self.numbers.remove(fit[0])
        return float(fit[0]) if "." in fit[0] else int(fit[0])

    def _mentions(self, choice: str) -> bool:
        return re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", self.text, re.IGNORECASE) is not None
