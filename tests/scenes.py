"""What tests of layers share: an agent of which one call of a scope goes through layers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from middlechain import (
    Agent,
    AgentStarted,
    App,
    ChatCall,
    ChatReply,
    Context,
    Event,
    ModelStarted,
    Result,
    RunFinished,
    RunStarted,
    TextDelta,
    TextReset,
    ToolMessage,
    ToolOutput,
    ToolStarted,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel

Go = Callable[..., Awaitable[Result]]
SCOPES = ("run", "agent", "chat", "tool")
ANSWERS: dict[str, Any] = {"run": Result, "agent": Result, "chat": ChatReply, "tool": ToolOutput}
STARTED: dict[str, type[Event]] = {
    "run": RunStarted,
    "agent": AgentStarted,
    "chat": ModelStarted,
    "tool": ToolStarted,
}
BLOCK = object()


class Boom(Exception):
    """Raised by a layer, a hook or the model."""


def said(answer: Any) -> str:
    """The text of an answer of any scope."""
    text: str = answer.content if isinstance(answer, ToolOutput) else answer.text
    return text


class Scene:
    """An agent whose calls of one scope go through `layers`; what is innermost says `inner 1`, `inner 2`, ...

    `script` overrides what it says: a text, an exception to raise, or `BLOCK` to wait for cancellation.
    """

    def __init__(self, scope: str, *layers: Any, script: Sequence[Any] = (), hooks: Sequence[Any] = ()) -> None:
        self.scope = scope
        self.script = list(script)
        self.ran = 0
        self.blocked = anyio.Event()
        self.cleaned_up = False
        self.events: list[Event] = []
        inner = self.inner

        @tool
        async def work(x: int = 0) -> str:
            return await inner()

        def tool_turns(call: ChatCall) -> Any:
            return "done" if isinstance(call.messages[-1], ToolMessage) else [ToolUse("work", {"x": 1})]

        self.model = ScriptedModel(tool_turns if scope == "tool" else lambda call: inner())
        self.agent = Agent(name="a", model=self.model, tools=[work], hooks=hooks)
        self.app = App().observe(self.events.append)
        if layers:
            self.use(*layers)

    def use(self, *layers: Any) -> None:
        self.app.use(**{self.scope: list(layers)})

    async def inner(self) -> str:
        self.ran += 1
        what = self.script.pop(0) if self.script else f"inner {self.ran}"
        if isinstance(what, BaseException):
            raise what
        if what is BLOCK:
            self.blocked.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.cleaned_up = True
        return str(what)

    def answer(self, text: str) -> Any:
        """A fresh answer of the scope."""
        return ANSWERS[self.scope](text)

    async def go(self, go: Go, **options: Any) -> str:
        """Run it, and what the scope's call came to."""
        result = await go(self.app, self.agent, "hi", **options)
        if self.scope != "tool":
            return result.text
        [message] = [message for message in result.messages if isinstance(message, ToolMessage)]
        return message.text


class Stage:
    """A run that has sent `a` and waits in its model; every `finally` on the way notes that it has run to its end."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.blocked = anyio.Event()
        self.outcomes: list[str] = []
        self.finished = anyio.Event()
        self.agent = Agent(name="a", model=ScriptedModel(self.reply))
        self.app = App().use(**{scope: self.layer(scope) for scope in ("chat", "agent", "run")})
        self.app.observe(self.note)

    def note(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            self.outcomes.append(event.outcome)
            self.finished.set()

    async def reply(self, call: Any) -> list[Any]:
        return ["a", self, "b"]

    def __await__(self) -> Any:
        return self.wait().__await__()

    async def wait(self) -> None:
        self.blocked.set()
        await self.cleaned_up("model", anyio.sleep_forever)

    def layer(self, scope: str) -> Callable[..., Any]:
        async def layer(call: Any, next: Any) -> None:
            await self.cleaned_up(scope, next)

        return layer

    async def cleaned_up(self, name: str, wait: Any) -> None:
        try:
            await wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                self.log.append(name)

    def stream(self) -> Any:
        return self.app.stream(self.agent, "hi")

    async def enter_and_leave(self, error: BaseException | None = None) -> None:
        async with self.stream():
            await self.blocked.wait()
            if error is not None:
                raise error

    def check_all_over(self) -> None:
        assert self.log == ["model", "chat", "agent", "run"]
        assert self.outcomes == ["cancelled"]


def delegating(*inner: Agent) -> Agent:
    """An agent that has each of `inner` answer as a nested step, in one tool call each, all at once."""

    @tool
    async def delegate(place: int, ctx: Context) -> str:
        return (await ctx.run(inner[place], "sub")).text

    uses = [ToolUse("delegate", {"place": place}) for place in range(len(inner))]
    return Agent(name="outer", model=ScriptedModel([uses, "done"]), tools=[delegate])


def fold(events: Sequence[Event]) -> dict[tuple[str, int], str]:
    """What a consumer has of each turn of each step in the end."""
    live: dict[tuple[str, int], str] = {}
    for event in events:
        key = event.step, event.turn
        if isinstance(event, TextReset):
            live[key] = ""
        elif isinstance(event, TextDelta):
            live[key] = live.get(key, "") + event.text
    return live


def deltas(events: Sequence[Event]) -> list[str]:
    """The text deltas and resets (as `RESET`) in order."""
    shown = [event for event in events if isinstance(event, TextDelta | TextReset)]
    return [event.text if isinstance(event, TextDelta) else RESET for event in shown]


RESET = "<reset>"
