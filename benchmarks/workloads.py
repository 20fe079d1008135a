"""The workloads: what is done on either side, and which figure is held against which budget."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from bare import ANSWER, DELTAS, Bare, Said
from flights import AT_ONCE, loads
from imports import imports
from ours import Instant, Talker, agent, listen, read
from samples import Pair, Row, Work, growth, medians, python_calls, row, sample, slope

import middlechain as mc

LAYERS = (0, 1, 10, 50)
CROSSINGS = 3  # of each layer in W2: two model calls and one tool call
PARALLEL = 20
STREAM_LAYERS = 10
HISTORY, COUNTED = 10_000, 100  # messages from before the run: where it is timed, and where calls are counted
SHORT, LONG = 100, 400  # sequential tool calls


async def measure(quick: bool) -> list[Row]:
    """All rows of the table."""
    share = 10 if quick else 1
    return [
        *await turns(100 // share),
        await parallel_tools(100 // share),
        *await stream(60 // share),
        await runs_at_once(20 // share),
        *await loads(),
        imports(30 // share),
        await history(40 // share),
        *await sequential_tools(40 // share),
    ]


async def turns(rounds: int) -> list[Row]:
    """W1, W2 and one layer crossing."""
    app = mc.App()
    pairs: list[Pair] = [(partial(app.run, agent(Instant()), "hi"), partial(Bare().run, "hi"), 200, 1_000)]
    for layers in LAYERS:
        ours = partial(app.run, agent(Instant(3), layers), "hi")
        pairs.append((ours, partial(Bare(3, layers=layers).run, "hi"), 50, 500))
    for layers in (LAYERS[0], LAYERS[-1]):
        ours = partial(app.run, agent(Instant(3), layers), "hi")
        pairs.append((ours, partial(Bare(3, layers=layers, once=True).run, "hi"), 50, 500))
    w1, *w2, without, with_all = await sample(pairs, rounds)
    return [
        row("W1 turn: message in, text out", w1, 35),
        *(
            row(f"W2 one tool call, {layers} layers", one, {0: 20.0, 50: 8.0}.get(layers))
            for layers, one in zip(LAYERS, w2, strict=True)
        ),
        row("   one layer crossing", slope(without, with_all, LAYERS[-1] * CROSSINGS), 6),
    ]


async def parallel_tools(rounds: int) -> Row:
    """W3."""
    ours = partial(mc.App().run, agent(Instant(2, "add_slowly", PARALLEL)), "hi")
    pairs: list[Pair] = [(ours, partial(Bare(2, "add_slowly", PARALLEL).run, "hi"), 1, 1)]
    [w3] = await sample(pairs, rounds, time.perf_counter)
    return row(f"W3 {PARALLEL} parallel tools of 10 ms", w3, 1.2)


async def stream(rounds: int) -> list[Row]:
    """W4, read as events and told to a callback."""
    ours, told = (partial(way, mc.App(), agent(Talker(), STREAM_LAYERS)) for way in (read, listen))
    bare = Bare(layers=STREAM_LAYERS).read
    events, text = await sample([(ours, bare, 1, 5), (told, bare, 1, 5)], rounds)
    return [
        row(f"W4 per delta, {STREAM_LAYERS} silent layers", events, 13, DELTAS),
        row("   the same with on_text=", text, 3, DELTAS),
    ]


async def at_once(work: Work) -> Any:
    """The last result of `AT_ONCE` runs, all begun at the same time."""
    return (await asyncio.gather(*[work() for _ in range(AT_ONCE)]))[-1]


async def in_turn(work: Work) -> Any:
    """The last result of as many runs, one after the other."""
    return [await work() for _ in range(AT_ONCE)][-1]


async def runs_at_once(rounds: int) -> Row:
    """W5, the rate: that of runs at once, divided by that of the same runs in turn."""
    ours, bare = partial(mc.App().run, agent(Instant(3)), "hi"), partial(Bare(3).run, "hi")
    pairs: list[Pair] = [(partial(way, ours), partial(way, bare), 1, 1) for way in (at_once, in_turn)]
    together, apart = await sample(pairs, rounds)
    rate = growth(together, apart)
    each = medians(together, AT_ONCE)
    return Row(f"W5 {AT_ONCE:,} W2 at once, each", *each, rate, "x rate in turn", 0.5, floor=True)


async def history(rounds: int) -> Row:
    """W7, each message from before the run."""
    app, target, bare = mc.App(), agent(Instant()), Bare()
    said: list[mc.Message] = [mc.User("hi"), mc.Assistant(ANSWER)] * (HISTORY // 2)
    bare_said = [Said("user", "hi"), Said("assistant", ANSWER)] * (HISTORY // 2)
    pairs: list[Pair] = [
        (partial(app.run, target, "hi"), partial(bare.run, "hi"), 20, 20),
        (partial(app.run, target, "hi", history=said), partial(bare.run, "hi", bare_said), 20, 20),
    ]
    empty, full = await sample(pairs, rounds)
    calls = await python_calls(partial(app.run, target, "hi", history=said[:COUNTED]))
    touching = (calls - await python_calls(partial(app.run, target, "hi"))) / COUNTED
    each = medians(slope(empty, full, HISTORY))
    return Row("W7 each prior message, per run", *each, touching, "Python calls", 0)


async def sequential_tools(rounds: int) -> list[Row]:
    """W7, many tool calls one after the other."""
    app = mc.App(limits=mc.Limits(turns=None))
    pairs: list[Pair] = [
        (partial(app.run, agent(Instant(2 * n)), "hi"), partial(Bare(2 * n).run, "hi"), 1, 5) for n in (SHORT, LONG)
    ]
    short, long = await sample(pairs, rounds)
    each = medians(long, LONG)
    return [
        row(f"W7 {SHORT} sequential tool calls, each", short, per=SHORT),
        Row(f"W7 {LONG} sequential tool calls, each", *each, growth(short, long), f"x t({SHORT})", 4.5),
    ]
