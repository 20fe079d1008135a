"""Where a run is shown: the answer's text on one side, everything else on the other.

Which text that is, is `Answer`'s business; where it goes, and that notes never land in the middle of a line of it, is
`Screen`'s.
"""

from __future__ import annotations

import re
from contextlib import suppress
from errno import EIO, EPIPE
from typing import Any, Self, TextIO, cast

from rich.console import Console, RenderableType
from rich.text import Text

from middlechain import Event, Result, TextDelta, ToolCall, ToolStarted

__all__ = ["Answer", "OutputClosed", "Screen", "described", "printable"]

# What a terminal obeys instead of showing it, but for tab and newline.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class OutputClosed(Exception):
    """Nobody reads the output any more."""


def printable(text: str) -> str:
    """The text without the characters by which it could steer a terminal."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def described(call: ToolCall) -> str:
    """The call on one line, as `name(argument=value)`."""
    args = ", ".join(f"{name}={value!r}".removesuffix(".0") for name, value in call.args.items())
    return f"{call.name}({args})"


class Screen:
    """Text that is written as it comes, and notes beside it.

    Args:
        out: takes the text.
        err: takes the notes; may be the same.

    Attributes:
        terminal: whether the text goes to a terminal, where somebody reads it as it comes.
        beside: a file to hand to `print` and to loggers. While it shares a terminal (or the file) with a line of text
            that has not ended, it holds back what it gets until it has.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self.out = out
        self.err = err
        self.beside = cast("TextIO", _Beside(self))  # a file as far as print, loggers and rich ask
        self.terminal = out.isatty()
        self._shared = out is err or (self.terminal and err.isatty())
        self.open_line = False
        self._console = Console(file=self.beside, highlight=False, markup=False, emoji=False)
        self._held: list[str] = []

    def write(self, text: str) -> None:
        """Write text, at once.

        Raises:
            OutputClosed: when nobody reads it.
        """
        _write(self.out, printable(text) if self.terminal else text)
        self.open_line = not text.endswith("\n")

    def end_line(self) -> None:
        """End the line of text, if there is one, and write what was held back for it."""
        if self.open_line:
            self.write("\n")
        held, self._held = self._held, []
        if held:
            self.aside("".join(held))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """End the line, so that what the shell or an error says next has one of its own."""
        with suppress(OutputClosed):
            self.end_line()

    def aside(self, text: str) -> None:
        """Write beside the text, once the line has ended that this would land in.

        Raises:
            OutputClosed: when nobody reads it.
        """
        if self.open_line and self._shared:
            self._held.append(text)
        else:
            _write(self.err, text)

    def note(self, text: str) -> None:
        """Write a line beside the text, which may have to wait for its end. It is wrapped for a terminal only."""
        self._console.print(Text(printable(text), style="dim"), soft_wrap=not self.err.isatty())

    def show(self, renderable: RenderableType) -> None:
        """End the line of text, and write anything that rich can render beside it."""
        self.end_line()
        self._console.print(renderable)


class _Beside:
    """The notes of a screen, as a file."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, text: str) -> int:
        with suppress(OutputClosed):  # whoever prints here is in the middle of a run, which can do without
            self._screen.aside(text)
        return len(text)

    def flush(self) -> None:
        pass  # nothing waits here but for the end of a line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._screen.err, name)


def _write(file: TextIO, text: str) -> None:
    try:
        file.write(text)
        file.flush()
    except OSError as error:
        if error.errno not in {EPIPE, EIO}:  # EIO says that a terminal has gone
            raise
        raise OutputClosed from None


class Answer:
    """The text of one run on its way to a screen, as the events of an append-only stream bring it.

    The texts of several turns are separated by a blank line.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._turn: int | None = None  # whose text was written last

    def take(self, event: Event) -> None:
        """Write what the event adds to the answer. Steps within steps are not the answer's business."""
        if not event.answering:
            return
        if isinstance(event, TextDelta):
            if self._turn not in {None, event.turn}:
                self._screen.end_line()
                self._screen.write("\n")
            self._turn = event.turn
            self._screen.write(event.text)
        elif isinstance(event, ToolStarted):
            self._screen.end_line()

    def finish(self, result: Result) -> None:
        """End the answer; all of it is written now if no event has brought any of it."""
        if self._turn is None and result.text:
            self._screen.write(result.text)
        self._screen.end_line()
        for remark in _remarks(result):
            self._screen.note(f"[{remark}]")


def _remarks(result: Result) -> list[str]:
    """What the text of a result does not tell by itself."""
    remarks: list[str] = []
    if result.blocked and not result.degraded:
        remarks.append(f"blocked by the guardrail {result.blocked_by!r}")
    if result.degraded:
        remarks.append(f"degraded: on_error answered in place of {type(result.error).__name__}: {result.error}")
    if result.stopped_by is not None:
        remarks.append(f"stopped ({result.stopped_by}): this is what there was by then")
    elif result.pending:
        remarks.append(f"waits for approval: {', '.join(described(call) for call in result.pending)}")
    elif not result.text:
        remarks.append("the answer is empty")
    return remarks
