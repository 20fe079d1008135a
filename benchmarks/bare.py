"""The bare side: an agent loop as one writes it by hand, and the texts and tools that both sides work with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

Call = TypeVar("Call")
Answer = TypeVar("Answer")

ANSWER, ARGUMENTS = "It is five.", '{"a": 2, "b": 3}'
PIECE, DELTAS = "abcd", 2_000
TOOL_SECONDS = 0.01


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def add_slowly(a: int, b: int) -> int:
    """Add two numbers after `TOOL_SECONDS`."""
    await asyncio.sleep(TOOL_SECONDS)
    return a + b


Inner: TypeAlias = Callable[[Call], Coroutine[Any, Any, Answer]]  # Any: nobody sends anything into these
Layer: TypeAlias = Callable[[Call, Inner[Call, Answer]], Coroutine[Any, Any, Answer]]


@dataclass(slots=True)
class Use:
    """A tool call."""

    name: str
    arguments: str
    id: str


@dataclass(slots=True)
class Said:
    """A message."""

    role: str
    content: str
    uses: Sequence[Use] = ()
    use_id: str | None = None


@dataclass(slots=True)
class Request:
    """What the model is given."""

    messages: list[Said]
    tools: Mapping[str, Callable[..., Awaitable[object]]]


@dataclass(slots=True)
class Piece:
    """A delta."""

    text: str


@dataclass(slots=True)
class Told:
    """What a run returns."""

    text: str
    messages: list[Said]


async def bare_silent(call: Call, next: Inner[Call, Answer]) -> Answer:
    """A layer that does nothing."""
    return await next(call)


def fold(layers: Sequence[Layer[Call, Answer]], endpoint: Inner[Call, Answer]) -> Inner[Call, Answer]:
    """Nest the layers in closures, the first outermost."""

    def around(layer: Layer[Call, Answer], inner: Inner[Call, Answer]) -> Inner[Call, Answer]:
        return lambda call: layer(call, inner)

    for layer in reversed(layers):
        endpoint = around(layer, endpoint)
    return endpoint


class Bare:
    """An agent loop as one writes it by hand: the same visible work, and nothing that a library is for.

    It keeps a list of messages, gives the model a request with them, looks a tool up in a dict, reads its arguments
    with `json.loads` and writes its output with `json.dumps`, runs several with `asyncio.gather` and one alone without
    a task, and returns the text with the messages. Layers are closures, nested for each run, as in a loop whose
    endpoints close over the run (or `once`, where one crossing alone is compared). Records are small dataclasses that
    check nothing. It has no run record, events, limits, hooks or context variables, no task for a tool to cancel, no
    check of arguments or of what layers return, and no error becomes a result.

    Its stream is two nested async generators, the model's and the loop's, with no queue and no task. The layers wrap
    the call that opens the model's generator, so none of them is on the path of a delta: about the least that
    `async for` can cost. Layers that handed on each delta in generators of their own would cost more for each.
    """

    def __init__(
        self, until: int = 0, tool: str = "add", parallel: int = 1, layers: int = 0, once: bool = False
    ) -> None:
        self._until, self._tool_name = until, tool
        self._ids = [f"call_{n}" for n in range(parallel)]
        self._tools = {"add": add, "add_slowly": add_slowly}
        self._layers = [bare_silent] * layers
        self._nested = self._nest() if once else None
        self._open: Inner[Request, AsyncIterator[Piece]] = fold([bare_silent] * layers, self._talker)

    def _nest(self) -> tuple[Inner[Request, Said], Inner[Use, Said]]:
        return fold(self._layers, self._model), fold(self._layers, self._call_tool)

    async def _model(self, request: Request) -> Said:
        if len(request.messages) < self._until:
            return Said("assistant", "", tuple([Use(self._tool_name, ARGUMENTS, id) for id in self._ids]))
        return Said("assistant", ANSWER)

    async def _talker(self, request: Request) -> AsyncIterator[Piece]:
        async def pieces() -> AsyncIterator[Piece]:
            for _ in range(DELTAS):
                yield Piece(PIECE)

        return pieces()

    async def _call_tool(self, use: Use) -> Said:
        output = await self._tools[use.name](**json.loads(use.arguments))
        return Said("tool", json.dumps(output), use_id=use.id)

    async def run(self, text: str, history: Sequence[Said] = ()) -> Told:
        """Turns until there is an answer."""
        messages = [*history, Said("user", text)]
        chat, tool = self._nested or self._nest()
        while True:
            reply = await chat(Request(messages, self._tools))
            messages.append(reply)
            if not reply.uses:
                return Told(reply.content, messages)
            if len(reply.uses) == 1:
                messages.append(await tool(reply.uses[0]))
            else:
                messages += await asyncio.gather(*map(tool, reply.uses))

    async def stream(self, text: str) -> AsyncIterator[Piece]:
        """The pieces of one turn."""
        messages = [Said("user", text)]
        texts: list[str] = []
        async for piece in await self._open(Request(messages, self._tools)):
            texts.append(piece.text)
            yield piece
        messages.append(Said("assistant", "".join(texts)))

    async def read(self) -> Told:
        """Stream a run, and read it."""
        return Told("".join([piece.text async for piece in self.stream("hi") if type(piece) is Piece]), [])
