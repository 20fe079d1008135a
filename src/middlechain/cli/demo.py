"""`middlechain demo`: the help desk, with what wraps what in it, and some messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from rich.text import Text

from middlechain import App, ToolFinished
from middlechain.cli import helpdesk
from middlechain.cli.helpdesk import COLLEAGUE, help_desk
from middlechain.cli.picture import show_chain
from middlechain.cli.screen import Answer, Screen, printable

__all__ = ["MESSAGES", "play"]

MESSAGES = (
    "What is the status of order 1042?",
    "Please refund order 1042: 20 euros",
    "Please refund order 1042: 120 euros",
    "What is the total on the invoice of order 1042?",
)


async def play(messages: Sequence[str], database: Path, screen: Screen) -> None:
    """Show the help desk and put the messages to it, one after the other.

    Args:
        messages: what to ask.
        database: path of its file, which is created unless it is there.
        screen: where all of it is shown.

    Raises:
        ConfigurationError: when the file cannot be used.
    """
    app = help_desk(database)
    _log_to(screen)
    screen.show("A help desk over a SQLite file, offline: the model is a set of rules. What wraps what in it:\n")
    show_chain(app.explain("HelpDesk"), screen)
    for message in messages:
        screen.show("")
        screen.show(Text(f"> {printable(message)}", style="bold"))
        await _ask(app, message, screen)
    screen.note(f"\nThe code of this help desk: {helpdesk.__file__}")


async def _ask(app: App, message: str, screen: Screen) -> None:
    answer = Answer(screen)
    async with app.stream("HelpDesk", message, data=COLLEAGUE, resets=False) as stream:
        async for event in stream:
            answer.take(event)
            if isinstance(event, ToolFinished):
                screen.note(f"  tool: {_described(event)}")
        answer.finish(stream.result)


def _described(event: ToolFinished) -> str:
    args = ", ".join(f"{name}={value!r}" for name, value in event.call.args.items())
    outcome = "ended the step" if event.output is None else "error" if event.output.is_error else "ok"
    return f"{event.call.name}({args}) -> {outcome}"


def _log_to(screen: Screen) -> None:
    """Have structlog write one short line for each entry, beside the answers."""
    render = structlog.processors.LogfmtRenderer(key_order=["event"])

    def line(logger: Any, method: str, entry: Any) -> str:
        short = {
            name: value for name, value in entry.items() if name not in {"run_id", "agent"}
        }  # there is one of each
        return f"  log: {render(logger, method, short)}"

    structlog.configure(processors=[line], logger_factory=lambda *_: _Notes(screen))


class _Notes:
    """A logger that writes each entry as a note, whatever its level."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __getattr__(self, level: str) -> Any:
        return self._screen.note
