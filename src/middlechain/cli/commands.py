"""The commands and their options. What they do with them is in the other rooms."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Protocol, TextIO, runtime_checkable

import anyio
import structlog
import typer

from middlechain import App, ConfigurationError, MiddlechainError, Model
from middlechain.cli.demo import MESSAGES, play
from middlechain.cli.jsonlines import json_line
from middlechain.cli.picture import show_chain
from middlechain.cli.screen import Answer, OutputClosed, Screen, printable
from middlechain.cli.target import load_app
from middlechain.registry import check_model

__all__ = ["commands", "invoke"]

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

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
    with _reporting(screen, debug), redirect_stdout(screen.beside):
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(screen.beside))
        question = _question(message)
        stand_in = _model(model, base_url)
        app = load_app(target)
        name = _agent_name(app, agent)
        with app.override(model=stand_in):
            anyio.run(_ask, app, name, question, screen, events)


@commands.command()
def explain(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, or path/to/file.py:APP.")],
    agent: Annotated[str | None, typer.Option(help="Of which agent; default: of all in App(agents=[...]).")] = None,
    debug: Debug = False,
) -> None:
    """Show what wraps what for an agent of an app: layers, hooks, limits, and which of them hold text back."""
    screen = Screen(sys.stdout, sys.stderr)
    with _reporting(screen, debug):
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
    debug: Debug = False,
) -> None:
    """Play a help desk with a database, layers and hooks, offline. Without a message it answers a few of its own."""
    screen = Screen(sys.stdout, sys.stdout)
    with _reporting(screen, debug), tempfile.TemporaryDirectory(prefix="middlechain-") as directory:
        messages = MESSAGES if message is None else [_question(message)]
        anyio.run(play, messages, database or Path(directory, "orders.sqlite"), screen)


async def _ask(app: App, agent: str, question: str, screen: Screen, events: bool) -> None:
    answer = Answer(screen)
    live = screen.terminal and not events
    async with app.stream(agent, question, resets=not live) as stream:
        async for event in stream:
            if events:
                screen.write(json_line(event) + "\n")
            elif live:
                answer.take(event)
        if not events:
            answer.finish(stream.result)


def _question(message: str) -> str:
    """The message, or what standard input holds in its place."""
    try:
        text = sys.stdin.read().rstrip("\n") if message == "-" else message
        text.encode()  # the arguments of a process may hold bytes that are no text
    except UnicodeError as error:
        raise ConfigurationError(f"the message is no text ({error}); give it as {sys.stdin.encoding}") from error
    if not text.strip():
        raise ConfigurationError("the message is empty; say what to ask, or - to read it from standard input")
    return text


def _agent_name(app: App, name: str | None) -> str:
    if not app.agents:
        raise ConfigurationError(f"the app {app.name!r} has no agents to ask; give it some with App(agents=[...])")
    if name is None:
        return next(iter(app.agents))
    app.agent_named(name)
    return name


def _model(name: str | None, base_url: str | None) -> Model | str | None:
    """The model that is to answer every call, whatever agents and layers say."""
    if name is None:
        if base_url is not None:
            raise ConfigurationError("--base-url says where, but not which model; add --model NAME")
        return None
    if base_url is None:
        check_model(name, "--model")
        return name
    if not base_url.startswith(("http://", "https://")):
        raise ConfigurationError(f"--base-url {base_url!r} is no address; give one such as http://localhost:8000/v1")
    from middlechain.models.openai import OpenAIModel

    return OpenAIModel(name.removeprefix("openai:"), base_url=base_url)


@contextmanager
def _reporting(screen: Screen, debug: bool) -> Generator[None]:
    """Turn what goes wrong into one line on standard error and an exit code, see `main`."""
    try:
        with screen:
            yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except OutputClosed:
        _forget(sys.stdout)
        raise typer.Exit(141) from None
    except Exception as error:  # anything else goes on
        ours = _is_ours(error)
        if debug:  # its last line is the message
            typer.echo(printable(traceback.format_exc()), err=True, nl=False)
        elif ours:
            _complain(str(error))
        else:
            what = ": ".join(filter(None, (type(error).__name__, str(error))))
            _complain(f"the app raised {what}; --debug shows where")
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


def _complain(message: str) -> None:
    typer.echo(f"error: {printable(message)}", err=True)


def _forget(stream: TextIO) -> None:
    """Keep the interpreter from flushing into a closed pipe when it ends."""
    with suppress(OSError):  # where the stream is no file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _flush_notes() -> None:
    """Nobody has to read the notes: what is left of them for a reader who has gone is dropped."""
    try:
        sys.stderr.flush()
    except BrokenPipeError:
        _forget(sys.stderr)


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
        _complain(f"{error.format_message().rstrip('.')}; see {command} --help")
        return 2
    return code if isinstance(code, int) else 0
