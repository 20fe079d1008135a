"""The commands and their options. What they do with them is in the other rooms."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import anyio
import structlog
import typer

from middlechain import App, ConfigurationError
from middlechain.cli.asking import ask, model_of, question_of
from middlechain.cli.demo import MESSAGES, play
from middlechain.cli.packs import packs
from middlechain.cli.picture import show_chain
from middlechain.cli.reporting import complain, forget, reporting
from middlechain.cli.screen import Screen
from middlechain.cli.target import load_app

__all__ = ["commands", "invoke"]

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

commands.add_typer(packs, name="pack")

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


@commands.callback(invoke_without_command=True)
def middlechain(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Run agents from the command line."""
    if show_version:
        typer.echo(f"middlechain {version('middlechain')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@commands.command()
def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, or path/to/file.py:APP.")],
    message: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    agent: Annotated[str | None, typer.Option(help="Who is asked; default: the first of App(agents=[...]).")] = None,
    model: Annotated[str | None, typer.Option(help="Who answers, such as openai:gpt-5, whatever the app says.")] = None,
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that has the --model.")] = None,
    events: Annotated[bool, typer.Option("--events", help="Print every event as a line of JSON instead.")] = False,
    debug: Debug = False,
) -> None:
    """Ask an agent of an app. Its answer goes to standard output, all else to standard error.

    On a terminal its text is shown as it comes; a file or a pipe gets the final answer alone.
    """
    screen = Screen(sys.stdout, sys.stderr)
    # What the app prints is not the answer, so it goes beside it; an app that sets up its own logging has its way
    with reporting(screen, debug), redirect_stdout(screen.beside):
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(screen.beside))
        question = question_of(message)
        stand_in = model_of(model, base_url)
        app = load_app(target)
        name = _agent_name(app, agent)
        with app.override(model=stand_in):
            anyio.run(ask, app, name, question, screen, events)


@commands.command()
def explain(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, or path/to/file.py:APP.")],
    agent: Annotated[str | None, typer.Option(help="Of which agent; default: of all in App(agents=[...]).")] = None,
    debug: Debug = False,
) -> None:
    """Show what wraps what for an agent of an app: layers, hooks, limits, and which of them hold text back."""
    screen = Screen(sys.stdout, sys.stderr)
    with reporting(screen, debug):
        with redirect_stdout(screen.beside):
            app = load_app(target)
            names = [_agent_name(app, agent)] if agent is not None or not app.agents else list(app.agents)
            chains = [app.explain(name) for name in names]
        for place, chain in enumerate(chains):
            screen.write("\n" if place else "")
            show_chain(chain, screen)


@commands.command()
def demo(
    message: Annotated[str | None, typer.Argument(help="What to ask; - reads it from standard input.")] = None,
    database: Annotated[Path | None, typer.Option(help="Keep its SQLite file here; default: a temporary one.")] = None,
    approve: Annotated[
        bool | None,
        typer.Option("--yes/--no", help="What to say to calls that wait for approval; default: ask at the terminal."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Play a help desk, offline: agents that work together, layers, hooks, and a refund that waits for approval.

    Without a message it answers a few of its own. Where nobody can be asked for approval, it is refused.
    """
    screen = Screen(sys.stdout, sys.stdout)
    with reporting(screen, debug), tempfile.TemporaryDirectory(prefix="middlechain-") as directory:
        messages = MESSAGES if message is None else [question_of(message)]
        anyio.run(play, messages, database or Path(directory, "orders.sqlite"), screen, approve)


def _agent_name(app: App, name: str | None) -> str:
    if not app.agents:
        raise ConfigurationError(f"the app {app.name!r} has no agents to ask; give it some with App(agents=[...])")
    if name is None:
        return next(iter(app.agents))
    app.agent_named(name)
    return name


def _flush_notes() -> None:
    """Nobody has to read the notes: what is left of them for a reader who has gone is dropped."""
    try:
        sys.stderr.flush()
    except BrokenPipeError:
        forget(sys.stderr)


@runtime_checkable
class _UsageError(Protocol):
    """What typer raises for arguments that it does not understand. It has no public name that all versions share."""

    ctx: Any

    def format_message(self) -> str: ...


def invoke(arguments: Sequence[str] | None) -> int:
    """Run the command that the arguments name, and return the exit code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the shell has closed it: >&-
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for the life of the process
        else:  # a letter that the terminal's encoding lacks is no reason to crash
            stream.reconfigure(errors="replace")
    try:
        return _invoke(arguments)
    finally:
        _flush_notes()


def _invoke(arguments: Sequence[str] | None) -> int:
    try:
        code: object = commands(arguments, standalone_mode=False, prog_name="middlechain")
    except Exception as error:
        if not isinstance(error, _UsageError):
            raise
        command = getattr(error.ctx, "command_path", "middlechain")
        complain(f"{error.format_message().rstrip('.')}; see {command} --help")
        return 2
    return code if isinstance(code, int) else 0
