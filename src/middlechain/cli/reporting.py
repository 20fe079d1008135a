"""What goes wrong, as one line on standard error and an exit code, see `cli.main`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TextIO

import typer

from middlechain import ConfigurationError, MiddlechainError
from middlechain.cli.screen import OutputClosed, Screen, printable

__all__ = ["complain", "forget", "reporting"]


@contextmanager
def reporting(screen: Screen, debug: bool) -> Generator[None]:
    """Turn what goes wrong into one line on standard error and an exit code, see `main`."""
    try:
        with screen:
            yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except OutputClosed:
        forget(sys.stdout)
        raise typer.Exit(141) from None
    except Exception as error:  # anything else goes on
        ours = _is_ours(error)
        if debug:  # its last line is the message
            typer.echo(printable(traceback.format_exc()), err=True, nl=False)
        elif ours:
            complain(str(error))
        else:
            what = ": ".join(filter(None, (type(error).__name__, str(error))))
            complain(f"the app raised {what}; --debug shows where")
        raise typer.Exit(2 if ours else 1) from error


def _is_ours(error: Exception) -> bool:
    """Whether the error's message is the library's own, which says what happened and ends with the fix.

    The rule: it is one of our errors, and a room of ours raised it. The app's code raises our errors too, in words of
    its own: FatalToolError, say, or a ModelError of its own model. A ScriptedModel raises what the app gave it, so what
    comes from there is the app's; what it complains of itself is a ConfigurationError.
    """
    *_, (raised_in, _) = traceback.walk_tb(error.__traceback__)
    room = raised_in.f_globals.get("__name__", "")
    scripted = room == "middlechain.testing" and not isinstance(error, ConfigurationError)
    return isinstance(error, MiddlechainError) and room.partition(".")[0] == "middlechain" and not scripted


def complain(message: str) -> None:
    """Write one line of what went wrong."""
    typer.echo(f"error: {printable(message)}", err=True)


def forget(stream: TextIO) -> None:
    """Keep the interpreter from flushing into a closed pipe when it ends."""
    with suppress(OSError):  # where the stream is no file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
