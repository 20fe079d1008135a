"""What middlechain costs beside a bare loop: `python benchmarks/overhead.py [--quick] [--check] [--json]`.

Each workload runs on middlechain and on `Bare`, a hand-written loop, in one process and in turn, with models that
answer at once. The table gives the median time of either side and the median of the rounds' ratios: the times are those
of this machine, the ratios carry over. Times are processor time, which other processes disturb less, but for W3, which
waits. The budgets are in `README.md` beside this file. Many runs at once, memory and imports are not measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from types import FrameType
from typing import Any, TypeAlias, TypeVar

import middlechain as mc

Call = TypeVar("Call")
Answer = TypeVar("Answer")

ANSWER, ARGUMENTS = "It is five.", '{"a": 2, "b": 3}'
LAYERS = (0, 1, 10, 50)
CROSSINGS = 3  # of each layer in W2: two model calls and one tool call
PARALLEL, TOOL_SECONDS = 20, 0.01
PIECE, DELTAS, STREAM_LAYERS = "abcd", 2_000, 10
HISTORY, COUNTED = 10_000, 100  # messages from before the run: where it is timed, and where calls are counted
SHORT, LONG = 100, 400  # sequential tool calls


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def add_slowly(a: int, b: int) -> int:
    """Add two numbers after `TOOL_SECONDS`."""
    await asyncio.sleep(TOOL_SECONDS)
    return a + b


# middlechain's side. Models make a new reply for each call, on either side, as they would of what a server sends.


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


# The bare side.

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


# Measuring.


Work: TypeAlias = Callable[[], Awaitable[Any]]  # Any: a result of either side, which has a text
Pair: TypeAlias = tuple[Work, Work, int, int]  # ours, bare, and how often each is done in a round
Clock: TypeAlias = Callable[[], float]
Sample: TypeAlias = tuple[float, float]  # microseconds of ours and of bare in one round


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: microseconds, and the figure that is held against the budget, if there is one."""

    workload: str
    ours: float
    bare: float
    figure: float
    unit: str = "x bare"
    budget: float | None = None

    @property
    def verdict(self) -> str:
        """OK, OVER, or nothing without a budget."""
        return "" if self.budget is None else "OK" if self.figure <= self.budget else "OVER"


async def sample(pairs: Sequence[Pair], rounds: int, clock: Clock = time.process_time) -> list[list[Sample]]:
    """The samples of each pair. A round takes each pair, one side after the other; which goes first alternates."""

    async def timed(work: Work, times: int) -> float:
        start = clock()
        for _ in range(times):
            await work()
        return (clock() - start) / times * 1e6

    for ours, bare, *_ in pairs:
        said, bare_said = (await ours()).text, (await bare()).text
        if said != bare_said:
            raise SystemExit(f"the two sides do not do the same work: {said!r:.60} and {bare_said!r:.60}")
    gc.freeze()  # what is there by now is not looked at again by each collection
    samples: list[list[Sample]] = [[] for _ in pairs]
    for number in range(rounds + 1):
        gc.collect()
        for (ours, bare, times, bare_times), taken in zip(pairs, samples, strict=True):
            first = await timed(bare, bare_times) if number % 2 else 0.0
            mine = await timed(ours, times)
            theirs = first or await timed(bare, bare_times)
            if number:  # the first round warms up
                taken.append((mine, theirs))
    return samples


def row(workload: str, samples: Sequence[Sample], budget: float | None = None, per: int = 1) -> Row:
    """The medians of either side and of their ratio."""
    ours, bare = (median(side) / per for side in zip(*samples, strict=True))
    return Row(workload, ours, bare, median(ours / bare for ours, bare in samples), budget=budget)


def slope(low: Sequence[Sample], high: Sequence[Sample], per: int) -> list[Sample]:
    """What one more of something costs, by round."""
    return [((b[0] - a[0]) / per, (b[1] - a[1]) / per) for a, b in zip(low, high, strict=True)]


async def python_calls(work: Work) -> int:
    """How many Python functions are entered or resumed meanwhile."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return calls


# The workloads.


async def measure(quick: bool) -> list[Row]:
    """All rows of the table."""
    app, share = mc.App(), 10 if quick else 1
    rows: list[Row] = []

    pairs: list[Pair] = [(partial(app.run, agent(Instant()), "hi"), partial(Bare().run, "hi"), 200, 1_000)]
    for layers in LAYERS:
        ours = partial(app.run, agent(Instant(3), layers), "hi")
        pairs.append((ours, partial(Bare(3, layers=layers).run, "hi"), 50, 500))
    for layers in (LAYERS[0], LAYERS[-1]):
        ours = partial(app.run, agent(Instant(3), layers), "hi")
        pairs.append((ours, partial(Bare(3, layers=layers, once=True).run, "hi"), 50, 500))
    w1, *w2, without, with_all = await sample(pairs, 100 // share)
    rows.append(row("W1 turn: message in, text out", w1, 35))
    for layers, one in zip(LAYERS, w2, strict=True):
        rows.append(row(f"W2 one tool call, {layers} layers", one, {0: 20.0, 50: 8.0}.get(layers)))
    rows.append(row("   one layer crossing", slope(without, with_all, LAYERS[-1] * CROSSINGS), 6))

    ours = partial(app.run, agent(Instant(2, "add_slowly", PARALLEL)), "hi")
    pairs = [(ours, partial(Bare(2, "add_slowly", PARALLEL).run, "hi"), 1, 1)]
    [w3] = await sample(pairs, 100 // share, time.perf_counter)
    rows.append(row(f"W3 {PARALLEL} parallel tools of 10 ms", w3, 1.2))

    pairs = [(partial(read, app, agent(Talker(), STREAM_LAYERS)), Bare(layers=STREAM_LAYERS).read, 1, 5)]
    [w4] = await sample(pairs, 60 // share)
    rows.append(row(f"W4 per delta, {STREAM_LAYERS} silent layers", w4, 13, DELTAS))

    target, bare = agent(Instant()), Bare()
    said: list[mc.Message] = [mc.User("hi"), mc.Assistant(ANSWER)] * (HISTORY // 2)
    bare_said = [Said("user", "hi"), Said("assistant", ANSWER)] * (HISTORY // 2)
    with_history = partial(app.run, target, "hi", history=said)
    pairs = [
        (partial(app.run, target, "hi"), partial(bare.run, "hi"), 20, 20),
        (with_history, partial(bare.run, "hi", bare_said), 20, 20),
    ]
    empty, full = await sample(pairs, 40 // share)
    each = row("", slope(empty, full, HISTORY))
    calls = await python_calls(partial(app.run, target, "hi", history=said[:COUNTED]))
    touching = (calls - await python_calls(partial(app.run, target, "hi"))) / COUNTED
    rows.append(Row("W7 each prior message, per run", each.ours, each.bare, touching, "Python calls", 0))

    endless = mc.Limits(turns=None)
    pairs = [
        (partial(app.run, agent(Instant(2 * n)), "hi", limits=endless), partial(Bare(2 * n).run, "hi"), 1, 5)
        for n in (SHORT, LONG)
    ]
    short, long = await sample(pairs, 40 // share)
    rows.append(row(f"W7 {SHORT} sequential tool calls, each", short, per=SHORT))
    growth = median(more[0] / less[0] for less, more in zip(short, long, strict=True))
    each = row("", long, per=LONG)
    rows.append(Row(f"W7 {LONG} sequential tool calls, each", each.ours, each.bare, growth, f"x t({SHORT})", 4.5))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    lines = [f"{'workload':<34}{'us':>11}{'bare us':>11}   {'figure':<22}{'budget':>6}"]
    for one in rows:
        figure, budget = f"{one.figure:.2f} {one.unit}", "" if one.budget is None else f"{one.budget:g}"
        line = f"{one.workload:<34}{one.ours:>11.3f}{one.bare:>11.3f}   {figure:<22}{budget:>6}  {one.verdict}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Time middlechain beside a bare loop.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds: quicker, and coarser")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a figure is over its budget")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.quick))
    data = [{**asdict(one), "verdict": one.verdict} for one in rows]
    print(json.dumps(data, indent=2) if options.json else table(rows))
    return int(options.check and any(one.verdict == "OVER" for one in rows))


if __name__ == "__main__":
    sys.exit(main())
