"""The commands `middlechain pack check` and `middlechain pack run`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Annotated, Any

import anyio
import typer

from middlechain import App, ConfigurationError
from middlechain.cli.asking import ask, model_of, question_of
from middlechain.cli.reporting import reporting
from middlechain.cli.screen import Screen, printable
from middlechain.packs import Issue, Pack, load
from middlechain.packs.issues import nearest

__all__ = ["packs"]

packs = typer.Typer(
    help="Check PromptPack files, and ask their prompts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

File = Annotated[str, typer.Argument(metavar="FILE", help="A PromptPack file.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


@packs.command()
def check(file: File, debug: Debug = False) -> None:
    """Print all that there is to know about a pack, a line each: place, kind, message. Exit with 2 for an error."""
    screen = Screen(sys.stdout, sys.stderr)
    issues: Sequence[Issue] = ()
    with reporting(screen, debug):
        issues = load(file).check()
        for issue in issues:
            screen.write(" ".join(printable(str(issue)).split("\n")) + "\n")
        if not issues:
            screen.note(f"{file}: nothing to say")
    if any(issue.kind == "error" for issue in issues):
        raise typer.Exit(2)


@packs.command()
def run(
    file: File,
    prompt: Annotated[str, typer.Argument(help="Which prompt of the pack.")],
    message: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    model: Annotated[str | None, typer.Option(help="Who answers, such as openai:gpt-5 or demo.")] = None,
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that has the --model.")] = None,
    var: Annotated[list[str] | None, typer.Option(help="A variable, as NAME=VALUE; may be repeated.")] = None,
    debug: Debug = False,
) -> None:
    """Ask a prompt of a pack. Its answer goes to standard output, all else to standard error."""
    screen = Screen(sys.stdout, sys.stderr)
    with reporting(screen, debug), redirect_stdout(screen.beside):
        question = question_of(message)
        answering = model_of(model, base_url)
        if answering is None:
            raise ConfigurationError("a pack names no model; add --model NAME, such as openai:gpt-5, or --model demo")
        pack = load(file)
        values = _values(var or [], pack.variables(prompt))
        _refuse_tools(pack, prompt)
        agent = pack.agent(prompt, model=answering, variables=values)
        anyio.run(ask, App(pack.id or "pack", agents=[agent]), agent.name, question, screen, False)


def _values(given: Sequence[str], types: Mapping[str, str]) -> dict[str, Any]:
    """The values of variables as they were typed: text for a string, and JSON for any other type."""
    values: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals or name not in types:
            fix = nearest(name, types, "it has") if equals else "write --var NAME=VALUE"
            raise ConfigurationError(f"--var {one!r} sets no variable of the prompt; {fix}")
        values[name] = text if types[name] == "string" else _json(one, text, types[name])
    return values


def _json(option: str, text: str, kind: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--var {option!r} is no {kind} ({error}); write its value as JSON") from error


def _refuse_tools(pack: Pack, prompt: str) -> None:
    """Say at once that the command line has no functions to give."""
    tools = pack.tools(prompt)
    if tools:
        raise ConfigurationError(
            f"the prompt {prompt!r} has tools, and no functions for them are given here ({', '.join(tools)}); "
            "give them in Python, with pack.agent(..., tools={...}), and run that app with middlechain run"
        )
