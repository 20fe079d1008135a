"""`middlechain demo`: the help desk, with who is in it and what wraps what, and some messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from rich.text import Text

from middlechain import AgentStarted, Event, ModelFinished, Stream, ToolFinished
from middlechain.cli import helpdesk, team
from middlechain.cli.approving import is_approved
from middlechain.cli.helpdesk import COLLEAGUE
from middlechain.cli.picture import show_chain
from middlechain.cli.screen import Answer, Screen, described, printable
from middlechain.cli.team import help_desk
from middlechain.tool_calls import Waiting

__all__ = ["MESSAGES", "play"]

MESSAGES = (
    "What is the status of order 1042?",
    "Please refund order 1042: 20 euros",
    "Please refund order 1042: 120 euros",
    "Please refund order 1042: 180 euros",
    "What is the total on the invoice of order 1042?",
    'Write a letter to the customer: "your order 1043 is late"',
)


async def play(messages: Sequence[str], database: Path, screen: Screen, approve: bool | None = None) -> None:
    """Show the help desk and put the messages to it, each in a conversation of its own.

    Args:
        messages: what to ask.
        database: path of its file, which is created unless it is there.
        screen: where all of it is shown.
        approve: what to say to calls that wait for approval; default: ask, and refuse where nobody can be asked.

    Raises:
        ConfigurationError: when the file cannot be used.
    """
    app = help_desk(database)
    log = _Log()
    screen.show("A help desk over a SQLite file, offline: its models are sets of rules.\n")
    for agent in app.agents.values():
        screen.write(f"  {agent.name:11}  {agent.description}\n")
    screen.show("\nWhat wraps what at the refund desk:\n")
    show_chain(app.explain("refund desk"), screen)
    for message in messages:
        screen.show("")
        screen.show(Text(f"> {printable(message)}", style="bold"))
        conversation = app.conversation("front desk", data=COLLEAGUE)
        await _show(conversation.stream(message, resets=False), screen, log)
        while conversation.pending:
            decisions = {call.id: await is_approved(call, screen, approve) for call in conversation.pending}
            await _show(conversation.stream(resume=decisions, resets=False), screen, log)
    screen.note(f"\nThe code of this help desk: {helpdesk.__file__}\nand {team.__file__}")


async def _show(stream: Stream, screen: Screen, log: _Log) -> None:
    """Show the answer as it comes, with notes of what is done for it, and then what was logged.

    The run may be ahead of who reads its stream, so that a log entry may come before the events it follows.
    """
    answer, passes = Answer(screen), Counter[str]()
    async with stream:
        async for event in stream:
            answer.take(event)
            note = _note(event, passes)
            if note is not None:
                screen.note(f"  {note}")
        if not stream.result.pending:  # there is no answer yet
            answer.finish(stream.result)
    log.show(screen)


def _note(event: Event, passes: Counter[str]) -> str | None:
    """What to say of an event beside the answer, if anything; how often each member of a loop has begun is counted."""
    match event:
        case AgentStarted(via="handoff"):
            return f"{event.agent} has the conversation now"
        case AgentStarted(via="flow"):
            passes[event.agent] += 1
        case ModelFinished(reply=reply) if reply is not None and event.agent in passes:
            return f"pass {passes[event.agent]}, {event.agent}: {reply.text}"
        case ToolFinished():
            return f"tool: {described(event.call)} -> {_outcome(event)}"
        case _:
            pass
    return None


def _outcome(event: ToolFinished) -> str:
    if event.output is None:
        return "ended the step"
    if isinstance(event.output.data, Waiting):
        return "waits for approval"
    return "error" if event.output.is_error else "ok"


class _Log(list[str]):
    """A logger that keeps a short line for each entry, whatever its level, until it is shown."""

    def __init__(self) -> None:
        structlog.configure(processors=[_short], logger_factory=lambda *_: self)

    def __getattr__(self, level: str) -> Any:
        return self.append

    def show(self, screen: Screen) -> None:
        """Show what there is, and begin anew."""
        for line in self:
            screen.note(line)
        self.clear()


def _short(logger: Any, method: str, entry: MutableMapping[str, Any]) -> str:
    fields = {name: value for name, value in entry.items() if name not in {"event", "run_id", "agent"}}
    return f"  log: {entry['event']} {structlog.processors.LogfmtRenderer()(logger, method, fields)}".rstrip()
