"""Running a tool: the endpoint that the tool layers wrap, and what its exceptions become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from types import CoroutineType
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from middlechain.approval import held_back
from middlechain.bus import pump, was_cancelled
from middlechain.chain import settle
from middlechain.errors import FatalToolError, GuardrailDenied, LimitExceeded, ToolError
from middlechain.nested import AgentAsTool, Transfer
from middlechain.records import step_of
from middlechain.signature import Arguments
from middlechain.tool_calls import Ticket, ToolCall
from middlechain.tools import Tool, ToolOutput
from middlechain.values import consumed, text_of
from middlechain.variables import RunIn

__all__ = ["run_tool"]


async def run_tool(call: ToolCall) -> ToolOutput:
    """The endpoint of the tool layers: limits, validation, the tool. What the tool raises becomes an error result.

    The tool runs in a task of its own, so that one that cancels its task cancels nothing else, and so that a run
    whose caller is cancelled waits for a tool in a thread. Where the call has one that no layer shares, that will do.
    """
    ticket = cast("Ticket", call.ticket)
    tool = call.tool
    if tool is None:
        return ToolOutput(_unknown(call.name, ticket.by_name), is_error=True)
    if call.problem is not None:
        return ToolOutput(
            f"The tool {call.name!r} did not run: {call.problem}. Correct the arguments and call it again.",
            is_error=True,
        )
    if tool.approve is not False or ticket.decided is not None or type(tool.function) is Transfer:
        held = await held_back(call, tool, ticket)
        if held is not None:
            return held
    await ticket.admission.enter(ticket)
    positional, named = tool.signature.bind(_arguments(call, ticket).given, call.ctx)
    ticket.ran = tool
    override = step_of(call.ctx).run.override
    if override is not None:
        tool = override.stand_in(tool)
        override.check_call(tool, positional, named)
    if ticket.decided is not None and ticket.decided.inside is not None and isinstance(tool.function, AgentAsTool):
        tool = replace(tool, function=tool.function.after(*ticket.decided.inside))
    if ticket.alone:
        output = await _attempt(tool, positional, named)
        ticket.ended = True
        await _forget_own_cancellation()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return output
    outputs: list[ToolOutput] = []

    async def child() -> None:
        outputs.append(await RunIn(ticket.variables, _attempt(tool, positional, named)))
        ticket.ended = True

    await pump(step_of(call.ctx).run.bus, child)
    await anyio.lowlevel.checkpoint_if_cancelled()  # the tool may have outlasted, or swallowed, a cancellation
    return outputs[0]


def _arguments(call: ToolCall, ticket: Ticket) -> Arguments:
    checked, ticket.checked = ticket.checked, None
    if checked is not None and checked[0] is call._args:
        return checked[1]
    return cast("Tool", call.tool).signature.check(call.args)


async def _forget_own_cancellation() -> None:
    """Take the sting out of a tool that cancelled its own task and ended before it noticed."""
    if not was_cancelled() and anyio.get_current_task().has_pending_cancellation():
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.lowlevel.checkpoint()


async def _attempt(tool: Tool, positional: Sequence[Any], named: dict[str, Any]) -> ToolOutput:
    try:
        value = (
            tool.function(*positional, **named) if tool.signature.on_loop else await _threaded(tool, positional, named)
        )
        value = await consumed(await value if type(value) is CoroutineType else await settle(value))
    except (FatalToolError, LimitExceeded, GuardrailDenied):
        raise
    except anyio.get_cancelled_exc_class() as error:
        if was_cancelled():
            raise
        return _failure(tool, error)
    except Exception as error:  # noqa: BLE001 - the tool-error rule (T4): a tool's own exception is its result
        return _failure(tool, _as_raised(error))
    return _output(tool, value)


async def _threaded(tool: Tool, positional: Sequence[Any], named: dict[str, Any]) -> Any:
    value, error = await anyio.to_thread.run_sync(partial(_in_thread, tool.function, positional, named))
    if error is not None:
        raise error
    return value


def _in_thread(
    function: Callable[..., Any], positional: Sequence[Any], named: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    try:
        return function(*positional, **named), None
    except BaseException as error:  # noqa: BLE001 - handed over as a value: no future carries every exception
        return None, error


def _as_raised(error: Exception) -> Exception:
    """What the tool raised, where Python put a RuntimeError in its place (a StopIteration out of a coroutine)."""
    return error.__cause__ if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration) else error


def _failure(tool: Tool, error: BaseException) -> ToolOutput:
    text = f"{type(error).__name__}: the tool {tool.name!r} failed."
    if isinstance(error, ToolError) or tool.expose_errors:
        try:
            text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
        except Exception as second:  # noqa: BLE001 - an exception that cannot say what it is: its name must do
            error.add_note(f"its message cannot be had: {type(second).__name__}")
    return ToolOutput(text_of(text), is_error=True, error=error)


def _output(tool: Tool, value: Any) -> ToolOutput:
    try:
        return value if isinstance(value, ToolOutput) else ToolOutput(text_of(value))
    except ValueError as error:
        return ToolOutput(f"The tool {tool.name!r} ran, but {error}.", is_error=True, error=error)


def _unknown(name: str, by_name: Mapping[str, Tool]) -> str:
    if not by_name:
        return f"There is no tool {name!r}: no tools may be called now. Answer without one."
    near = get_close_matches(name, by_name, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no tool {name!r}.{hint} The tools are: {', '.join(by_name)}."
