"""Approval: which calls do not run, since they wait for a person's word, or have been refused."""

from __future__ import annotations

from typing import Any

from middlechain.chain import name_of, settle
from middlechain.errors import WrongReturn
from middlechain.nested import AgentAsTool, Transfer
from middlechain.records import step_of
from middlechain.tool_calls import WAITS, Ticket, ToolCall, Waiting
from middlechain.tools import Tool, ToolOutput
from middlechain.values import plain_of

__all__ = ["held_back"]

REFUSED = "The call was refused by the person who was asked to approve it. Do not make it again; go on without it."


async def held_back(call: ToolCall, tool: Tool, ticket: Ticket) -> ToolOutput | None:
    """What there is in place of a call that must not run; None for one that may.

    It is asked last, where hooks and layers have had their say, so that what is approved is what runs.

    Raises:
        WrongReturn: when a predicate gives no bool. Whatever it raises itself goes on, and the call does not run.
    """
    decided = ticket.decided
    if decided is not None and decided.refused:
        return ToolOutput(REFUSED, is_error=True)
    if isinstance(tool.function, Transfer):
        return _second_transfer(call, ticket)
    if decided is not None and decided.inside is not None and isinstance(tool.function, AgentAsTool):
        return None  # it was approved when it began
    if tool.approve is False or not await _needs_approval(call, tool):
        return None
    if ticket.by_code or step_of(call.ctx).by_code:
        text = f"The tool {call.name!r} did not run: it needs approval, and code cannot wait for one."
        return ToolOutput(text, is_error=True)
    wanted = ToolCall(call.name, _plain(call.args), call.id, tool)
    approved = None if decided is None else decided.approved
    if approved is not None and (approved.name, _plain(approved.args)) == (call.name, wanted.args):
        return None
    asked = None if decided is None else decided.asked
    return ToolOutput(WAITS, is_error=True, data=Waiting(wanted, asked=asked))


async def _needs_approval(call: ToolCall, tool: Tool) -> bool:
    if isinstance(tool.approve, bool):
        return tool.approve
    value = await settle(tool.approve(call))
    if not isinstance(value, bool):
        raise WrongReturn(
            f"the predicate {name_of(tool.approve)!r} of tool({tool.name!r}, approve=) returned a value of type "
            f"{type(value).__name__}; return True for a call that needs approval, and False for one that does not"
        )
    return value


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments as they survive a process."""
    plain: dict[str, Any] = plain_of(args)
    return plain


def _second_transfer(call: ToolCall, ticket: Ticket) -> ToolOutput | None:
    admission = ticket.admission
    if admission.transfer is None:
        admission.transfer = ticket
    if admission.transfer is ticket:
        return None
    text = f"{call.name} did not run: another transfer of the same reply has been taken. One reply can make one."
    return ToolOutput(text, is_error=True)
