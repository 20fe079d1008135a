"""Measuring two sides in turn, and the rows that come of it."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from types import FrameType
from typing import Any, TypeAlias

Work: TypeAlias = Callable[[], Awaitable[Any]]  # Any: a result of either side, which has a text
Pair: TypeAlias = tuple[Work, Work, int, int]  # ours, bare, and how often each is done in a round
Clock: TypeAlias = Callable[[], float]
Sample: TypeAlias = tuple[float, float]  # of ours and of bare in one round


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what either side takes, and the figure that is held against the budget, if there is one.

    `measure` says what the two sides are measured in, `unit` what the figure is in. The budget is the most that the
    figure may be, or, of a `floor`, the least.
    """

    workload: str
    ours: float
    bare: float
    figure: float
    unit: str = "x bare"
    budget: float | None = None
    measure: str = "us"
    floor: bool = False

    @property
    def verdict(self) -> str:
        """OK, OVER, UNDER (a floor), or nothing without a budget."""
        if self.budget is None:
            return ""
        if self.floor:
            return "OK" if self.figure >= self.budget else "UNDER"
        return "OK" if self.figure <= self.budget else "OVER"


async def sample(pairs: Sequence[Pair], rounds: int, clock: Clock = time.process_time) -> list[list[Sample]]:
    """The microseconds of each pair. A round takes each, one side after the other; which goes first alternates."""

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


def medians(samples: Sequence[Sample], per: int = 1) -> Sample:
    """The median of either side."""
    ours, bare = (median(side) / per for side in zip(*samples, strict=True))
    return ours, bare


def row(workload: str, samples: Sequence[Sample], budget: float | None = None, per: int = 1) -> Row:
    """The medians of either side and of their ratio."""
    return Row(workload, *medians(samples, per), median(ours / bare for ours, bare in samples), budget=budget)


def growth(less: Sequence[Sample], more: Sequence[Sample]) -> float:
    """How many times as long ours takes for more: the median of the rounds."""
    return median(more[0] / less[0] for less, more in zip(less, more, strict=True))


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
