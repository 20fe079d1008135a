"""middlechain's side. Models make a new reply for each call, on either side, as they would of what a server sends."""

from __future__ import annotations

from typing import TypeVar

from bare import ANSWER, ARGUMENTS, DELTAS, PIECE, Told, add, add_slowly

import middlechain as mc

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class Instant:
    """Answers at once: with tool calls until the messages are `until` in number, and then with text."""

    name = "instant"

    def __init__(self, until: int = 0, tool: str = "add", parallel: int = 1) -> None:
        self._until, self._tool = until, tool
        self._ids = [f"call_{n}" for n in range(parallel)]

    async def chat(self, call: mc.ChatCall) -> mc.ChatReply:
        """Answer."""
        if len(call.messages) < self._until:
            uses = tuple([mc.ToolUse(self._tool, ARGUMENTS, id) for id in self._ids])
            return mc.ChatReply("", uses, finish_reason="tool_calls")
        return mc.ChatReply(ANSWER, finish_reason="stop")


class Talker:
    """Streams `DELTAS` pieces."""

    name = "talker"

    async def chat(self, call: mc.ChatCall) -> mc.ChatReply:
        """Stream."""
        for _ in range(DELTAS):
            await call.send(mc.TextDelta(PIECE))
        return mc.ChatReply(PIECE * DELTAS)


@mc.observes
async def silent(call: Call, next: mc.Next[Call, Answer]) -> Answer:
    """A layer that does nothing."""
    return await next()


def agent(model: mc.Model, layers: int = 0) -> mc.Agent:
    """An agent with that many layers around its model calls and around its tool calls."""
    stack = [mc.Layers(chat=[silent] * layers, tool=[silent] * layers)] if layers else []
    return mc.Agent(model=model, tools=[add, add_slowly], middleware=stack)


async def read(app: mc.App, target: mc.Agent) -> Told:
    """Stream a run, and read it."""
    async with app.stream(target, "hi") as stream:
        return Told("".join([event.text async for event in stream if type(event) is mc.TextDelta]), [])


async def listen(app: mc.App, target: mc.Agent) -> Told:
    """Run it with a callback for its text."""
    texts: list[str] = []
    await app.run(target, "hi", on_text=texts.append)
    return Told("".join(texts), [])
