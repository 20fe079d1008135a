"""Events as JSON, one object a line: what `middlechain run --events` prints.

Left out are `data=` of a tool's output, which is not meant to leave the process, and messages of exceptions, which may
hold secrets: an error is told by its class.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from middlechain import ChatReply, Event, Result, ToolCall, ToolOutput, ToolUse, Usage
from middlechain.events import payload_fields
from middlechain.messages import dump
from middlechain.values import plain_of

__all__ = ["json_line"]

_SHARED = ("type", "run_id", "agent", "step", "parent", "turn", "seq")


def json_line(event: Event) -> str:
    """The event as one line of JSON, without the newline.

    Args:
        event: any event; what its payload holds that has no JSON form becomes a text that names its type.

    Returns:
        ASCII: what is not is escaped, so that no encoding and no line separator of Unicode can break the line.
    """
    payload = payload_fields(type(event))  # type: ignore[arg-type]  # mypy asks an object's __hash__ of its class
    record = {name: getattr(event, name) for name in _SHARED}
    record |= {name: _plain(getattr(event, name)) for name in payload}
    return json.dumps(record, allow_nan=False)


def _plain(value: Any) -> Any:
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    try:
        return plain_of(value)
    except (ValueError, RecursionError):
        return f"({type(value).__name__} has no JSON form)"


def _tool_call(call: ToolCall) -> Mapping[str, Any]:
    return {"name": call.name, "args": _plain(call.args), "id": call.id, "problem": call.problem}


def _tool_use(use: ToolUse) -> Mapping[str, Any]:
    return {"name": use.name, "arguments": use.arguments, "id": use.id}


def _tool_output(output: ToolOutput) -> Mapping[str, Any]:
    return {"content": output.content, "is_error": output.is_error, "error": _error(output.error)}


def _reply(reply: ChatReply) -> Mapping[str, Any]:
    return {
        "text": reply.text,
        "tool_calls": [_tool_use(use) for use in reply.tool_calls],
        "reasoning": reply.reasoning,
        "usage": _usage(reply.usage),
        "finish_reason": reply.finish_reason,
        "model": reply.model,
    }


def _result(result: Result) -> Mapping[str, Any]:
    return {
        "text": result.text,
        "messages": dump(result.messages),
        "usage": _usage(result.usage),
        "finish_reason": result.finish_reason,
        "stopped_by": result.stopped_by,
        "blocked": result.blocked,
        "blocked_by": result.blocked_by,
        "degraded": result.degraded,
        "error": _error(result.error),
        "agent": result.agent,
    }


def _usage(usage: Usage) -> Mapping[str, Any]:
    """What was reported; the rest is not 0, so it is not there."""
    named = {field.name: getattr(usage, field.name) for field in fields(usage)}
    return {name: _plain(value) for name, value in named.items() if value is not None}


def _error(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__


_WRITERS: Mapping[type, Callable[[Any], Any]] = {
    ToolCall: _tool_call,
    ToolOutput: _tool_output,
    ChatReply: _reply,
    Result: _result,
}
