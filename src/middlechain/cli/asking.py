"""Asking an agent from the command line: what is asked, who answers, and where the answer goes."""

from __future__ import annotations

import sys

from middlechain import App, ConfigurationError, Model
from middlechain.cli.jsonlines import json_line
from middlechain.cli.screen import Answer, Screen
from middlechain.registry import check_model

__all__ = ["ask", "model_of", "question_of"]


async def ask(app: App, agent: str, question: str, screen: Screen, events: bool) -> None:
    """Ask, and show the answer, or every event as a line of JSON."""
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


def question_of(message: str) -> str:
    """The message, or what standard input holds in its place."""
    try:
        text = sys.stdin.read().rstrip("\n") if message == "-" else message
        text.encode()  # the arguments of a process may hold bytes that are no text
    except UnicodeError as error:
        raise ConfigurationError(f"the message is no text ({error}); give it as {sys.stdin.encoding}") from error
    if not text.strip():
        raise ConfigurationError("the message is empty; say what to ask, or - to read it from standard input")
    return text


def model_of(name: str | None, base_url: str | None) -> Model | str | None:
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
