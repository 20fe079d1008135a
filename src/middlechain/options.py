"""Options: what may be a target, and the keywords that the ways to run one share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from typing_extensions import TypedDict

from middlechain.agent import Agent
from middlechain.errors import ConfigurationError
from middlechain.guards import Guardrails
from middlechain.limits import Limits
from middlechain.messages import MessageBase

__all__ = ["ExchangeOptions", "RunOptions", "SendOptions", "StreamOptions", "Target", "refuse_unknown"]

Target: TypeAlias = Agent | type[Agent] | str


class ExchangeOptions(TypedDict, total=False):
    """The keywords of all ways to run.

    state: any object; it is `ctx.state` and `result.state`. Default: the free attributes of `ctx`.
    data: what the run carries and the model must not see: `ctx.data`, read-only.
    limits: what the run may spend; default: the app's.
    use: layers of this run alone, innermost: bundles, or `Layers(chat=...)`.
    run_id: default: made up.
    guardrails: guards of this run alone, after all others: `{"input": [...], "output": [...]}`.
    """

    state: Any
    data: Mapping[str, Any] | None
    limits: Limits | None
    use: Iterable[object]
    run_id: str | None
    guardrails: Guardrails | Mapping[str, Iterable[object]] | None


class SendOptions(ExchangeOptions, total=False):
    """The keywords of `conversation.send` and `conversation.resume`: those of all, and one.

    on_text: called with each piece of the answer's text as it comes, sync or async. Pieces are never taken back, so
        what may still change the text delays them (see `@observes`). What it raises ends the run.
    """

    on_text: Callable[[str], Any] | None


class StreamOptions(ExchangeOptions, total=False):
    """The keywords of `stream`: those of all, and one.

    history: what was said before: messages, or dicts in OpenAI's shape.
    """

    history: Sequence[MessageBase | Mapping[str, Any]]


class RunOptions(StreamOptions, SendOptions, total=False):
    """The keywords of `run` and `run_sync`: those of `stream`, and `on_text` as in `SendOptions`."""


def refuse_unknown(given: Mapping[str, Any], where: str, known: Iterable[str]) -> None:
    """Refuse keywords by name.

    Raises:
        ConfigurationError: for one that is not known.
    """
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{where} has no keyword {name!r}; it has {', '.join(known)}")
