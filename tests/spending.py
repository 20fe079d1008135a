"""What tests of limits and usage share: an agent that spends, and an app that keeps its events."""

from __future__ import annotations

from typing import Any

import pytest

from middlechain import (
    Agent,
    App,
    ChatReply,
    Event,
    LimitExceeded,
    LimitReached,
    Limits,
    Result,
    RunFinished,
    ToolUse,
    Usage,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go

SPENT = Usage(input_tokens=6, output_tokens=4, cost=0.5)  # per call: 10 tokens


@tool
async def ping() -> str:
    return "pong"


PING = ToolUse("ping")


class Pinger(Agent):
    """Calls a tool `rounds` times with `calls` calls each, then answers."""

    tools = [ping]  # noqa: RUF012  # as users write it

    def __init__(self, rounds: int = 1, calls: int = 1, usage: Usage | None = None, **options: Any) -> None:
        spent: dict[str, Any] = {} if usage is None else {"usage": usage}
        said = [ChatReply(f"round {n}", (PING,) * calls, **spent) for n in range(1, rounds + 1)]
        self.scripted = ScriptedModel([*said, ChatReply("done", **spent)])
        super().__init__(name="pinger", model=self.scripted, **options)


class Watched(App):
    """An app that keeps its events."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.events: list[Event] = []
        self.observe(self.events.append)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


async def refused(go: Go, limits: Limits, agent: Agent, limit: str, value: float) -> LimitExceeded:
    """The error of a run that goes over a limit, after the checks that hold for all of them."""
    app = Watched(limits=limits)
    with pytest.raises(LimitExceeded) as caught:
        await go(app, agent, "q")
    error = caught.value
    assert (error.limit, error.value) == (limit, value)
    assert f"{limit}={value:g}" in str(error)
    assert LimitReached(limit, value) in app.of(LimitReached)
    assert app.of(RunFinished) == [RunFinished("failed")]
    assert isinstance(error.result, Result)
    assert (error.result.finish_reason, error.result.stopped_by) == ("limit", "limit")
    return error
