"""Whether a call that waits for approval may run: somebody at the terminal says so, or an option."""

from __future__ import annotations

import os
import sys

import anyio

from middlechain import ToolCall
from middlechain.cli.screen import Screen, described

__all__ = ["is_approved"]


async def is_approved(call: ToolCall, screen: Screen, given: bool | None) -> bool:
    """Ask, and show what was decided. Whatever is not a plain yes refuses the call.

    Args:
        call: what waits.
        screen: where the question is shown.
        given: the answer, if it was given on the command line.

    Raises:
        OutputClosed: when nobody reads the question.
    """
    question = f"Approve {described(call)}?"
    if given is None and _somebody_is_there(screen):
        return await _asked(question, screen)
    if given is None:
        screen.note(f"  {question} No, since nobody can be asked here; --yes approves it.")
    else:
        screen.note(f"  {question} {'Yes, says --yes.' if given else 'No, says --no.'}")
    return given is True


def _somebody_is_there(screen: Screen) -> bool:
    """Whether there is a terminal to read the question and to answer it; that of Windows cannot be waited for."""
    return screen.terminal and sys.stdin is not None and sys.stdin.isatty() and os.name != "nt"


async def _asked(question: str, screen: Screen) -> bool:
    screen.end_line()
    screen.write(f"  {question} [y/N] ")
    typed = await _typed()
    screen.open_line = not typed.endswith("\n")  # the terminal itself shows what is typed
    screen.end_line()
    return typed.strip().lower() in {"y", "yes"}


async def _typed() -> str:
    """The line that is typed at the terminal; `""` when it is closed.

    It is waited for in the event loop, so that Ctrl-C ends the run: a read that blocks would sit it out.
    """
    terminal = sys.stdin.fileno()
    await anyio.wait_readable(terminal)
    return os.read(terminal, 4096).decode(errors="replace")
