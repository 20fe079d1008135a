"""What a call says on the wire of OpenAI's chat-completions protocol. Pure code."""

from __future__ import annotations

import base64
import re
from typing import Any

from middlechain.chat import ChatCall, Settings
from middlechain.messages import Assistant, Audio, Image, Message, Part, Text, ToolMessage, ToolUse, User
from middlechain.models.loose import is_object

__all__ = ["request_body"]


def request_body(call: ChatCall) -> dict[str, Any]:
    """The request for a call, without the model's name and without `stream`.

    Args:
        call: its messages, tools and settings are what is sent; `settings.extra` comes last and wins.
    """
    body: dict[str, Any] = {"messages": [_message(message) for message in call.messages]}
    body |= _settings(call.settings)
    if call.tools:  # without tools, servers refuse what is said about them
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in call.tools
        ]
        body |= _tool_settings(call.settings)
    return body | dict(call.settings.extra)


def _settings(settings: Settings) -> dict[str, Any]:
    stop = settings.stop
    body = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "stop": stop if stop is None or isinstance(stop, str) else list(stop),
        "seed": settings.seed,
    }
    return {name: value for name, value in body.items() if value is not None}


def _tool_settings(settings: Settings) -> dict[str, Any]:
    choice = settings.tool_choice
    body = {
        "tool_choice": choice
        if choice in {None, "auto", "none", "required"}
        else {"type": "function", "function": {"name": choice}},
        "parallel_tool_calls": settings.parallel_tool_calls,
    }
    return {name: value for name, value in body.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    content = message.content
    data: dict[str, Any] = {
        "role": message.role,
        "content": content if isinstance(content, str) else [_part(part) for part in content],
    }
    if isinstance(message, User) and message.name:
        # OpenAI refuses these characters in a name, which may be an agent's and hold any
        data["name"] = re.sub(r"[\s<|\\/>]+", "_", message.name)[:64]
    elif isinstance(message, Assistant):
        if message.tool_calls:
            data["tool_calls"] = [_tool_use(use) for use in message.tool_calls]
        if message.reasoning is not None:
            data["reasoning_content"] = message.reasoning
    elif isinstance(message, ToolMessage):
        data["tool_call_id"] = message.tool_call_id
    return data


def _tool_use(use: ToolUse) -> dict[str, Any]:
    # Strict servers refuse a history for ever if it holds a call whose arguments do not parse
    arguments = use.arguments if is_object(use.arguments) else "{}"
    return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": arguments}}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Audio):
        return {"type": "input_audio", "input_audio": {"data": _base64(part.data), "format": part.format}}
    if isinstance(part, Image):
        url = _data_url(part.data, part.media_type) if part.url is None else part.url
        return {"type": "image_url", "image_url": {"url": url} | _given(detail=part.detail)}
    if part.id is not None:
        return {"type": "file", "file": {"file_id": part.id}}
    return {"type": "file", "file": {"file_data": _data_url(part.data, part.media_type)} | _given(filename=part.name)}


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _data_url(data: bytes | None, media_type: str) -> str:
    return f"data:{media_type};base64,{_base64(data or b'')}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
