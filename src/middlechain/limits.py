"""What a run may spend, and what it has spent."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from middlechain.errors import ConfigurationError, LimitExceeded

__all__ = ["Limits", "Meter", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls used. A field that nobody reported is None, never 0.

    Args:
        input_tokens: tokens sent, the cached ones included.
        output_tokens: tokens received, those of reasoning included.
        cached_tokens: tokens sent that the server had in a cache.
        reasoning_tokens: tokens received that were reasoning.
        total_tokens: as reported; the sum of input and output where only these were.
        requests: calls of a model, failed ones included.
        cost: in the currency of whoever reported it.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    requests: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if self.total_tokens is None and self.input_tokens is not None and self.output_tokens is not None:
            object.__setattr__(self, "total_tokens", self.input_tokens + self.output_tokens)

    def __repr__(self) -> str:
        known = (f"{name}={value}" for name in _FIELDS if (value := getattr(self, name)) is not None)
        return f"Usage({', '.join(known)})"

    def __add__(self, other: Usage) -> Usage:
        if self == NO_USAGE:
            return other
        if other == NO_USAGE:
            return self
        sums = {field: _add(getattr(self, field), getattr(other, field)) for field in _FIELDS}
        return Usage(**sums)  # type: ignore[arg-type]  # counts stay int, cost stays float


def _add(one: float | None, other: float | None) -> float | None:
    if one is None:
        return other
    return one if other is None else one + other


_FIELDS = tuple(field.name for field in fields(Usage))
NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be spent. None is no limit, 0 is one; exactly n is allowed.

    Args:
        turns: turns of each step, answered by a layer or by a model; default 10.
        chat_calls: calls of a model in the whole run.
        tool_calls: tools that run in the whole run. Those of one reply are admitted together or not at all.
        tokens: total tokens of the run; known after a call, so the call that crosses is the last.
        cost: as `Usage.cost`, known afterwards too.
        seconds: from the start of the run; what is in flight then is cancelled.
        depth: how deep steps may nest below the first; default 16.
        on_exceed: `"raise"` a `LimitExceeded` (default), or `"stop"` with the result so far.
    """

    turns: int | None = 10
    chat_calls: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    depth: int | None = 16
    on_exceed: Literal["raise", "stop"] = "raise"

    def __post_init__(self) -> None:
        for field in fields(self)[:-1]:
            value = getattr(self, field.name)
            kind = int | float if field.name in {"cost", "seconds"} else int
            if value is not None and (isinstance(value, bool) or not isinstance(value, kind) or not value >= 0):
                raise ConfigurationError(
                    f"Limits({field.name}={value!r}) is not a limit; give "
                    f"a {'number' if kind is not int else 'whole number'} from 0 up, or None for no limit"
                )
        if self.on_exceed not in {"raise", "stop"}:
            raise ConfigurationError(f'Limits(on_exceed={self.on_exceed!r}) is unknown; give "raise" or "stop"')


class Meter:
    """Counts what a run or a step spends against its limits; what a step spends counts for all it is nested in."""

    __slots__ = ("_reported", "_total", "limits", "outer", "requests", "tool_calls")

    def __init__(self, limits: Limits, outer: Meter | None = None) -> None:
        self.limits = limits
        self.outer = outer
        self.requests = 0
        self.tool_calls = 0
        self._reported = NO_USAGE  # without requests, which are counted apart
        self._total: Usage | None = None  # both, put together when asked for

    @property
    def usage(self) -> Usage:
        """All that was used so far; the same object until more is used."""
        if self._total is None:
            told = self._reported
            self._total = Usage(
                told.input_tokens,
                told.output_tokens,
                told.cached_tokens,
                told.reasoning_tokens,
                told.total_tokens,
                self.requests or None,
                told.cost,
            )
        return self._total

    def start_chat(self) -> None:
        """Count a call of a model that is about to be made.

        Raises:
            LimitExceeded: when no further call is allowed; nothing is counted then.
        """
        meter: Meter | None = self
        while meter is not None:
            limits = meter.limits
            if limits.chat_calls is not None and meter.requests >= limits.chat_calls:
                raise exceeded(limits, "chat_calls", limits.chat_calls)
            if limits.tokens is not None and (meter._reported.total_tokens or 0) >= limits.tokens:
                raise exceeded(limits, "tokens", limits.tokens)
            if limits.cost is not None and (meter._reported.cost or 0) >= limits.cost:
                raise exceeded(limits, "cost", limits.cost)
            meter = meter.outer
        meter = self
        while meter is not None:
            meter.requests += 1
            meter._total = None
            meter = meter.outer

    def count(self, usage: Usage) -> None:
        """Add what a call of a model reported. It was counted as a request when it started."""
        if usage is NO_USAGE:
            return
        further = 0 if usage.requests is None else usage.requests - 1
        tokens = Usage(*(None if name == "requests" else getattr(usage, name) for name in _FIELDS))
        meter: Meter | None = self
        while meter is not None:
            meter.requests += further
            meter._reported += tokens
            meter._total = None
            meter = meter.outer

    def reserve_tools(self, count: int) -> None:
        """Count tools that are about to run, all or none.

        Raises:
            LimitExceeded: when not all of them are allowed; nothing is counted then.
        """
        meter: Meter | None = self
        while meter is not None:
            limit = meter.limits.tool_calls
            if limit is not None and meter.tool_calls + count > limit:
                raise exceeded(meter.limits, "tool_calls", limit)
            meter = meter.outer
        self.add_tools(count)

    def add_tools(self, count: int) -> None:
        """Change the count without asking; negative for tools that were reserved and did not run."""
        meter: Meter | None = self
        while meter is not None:
            meter.tool_calls += count
            meter = meter.outer


def exceeded(limits: Limits, limit: str, value: float) -> LimitExceeded:
    """The error for one limit; it remembers whether its `Limits` say to stop rather than to raise."""
    error = LimitExceeded(limit, value)
    error.stops = limits.on_exceed == "stop"
    error.limits = limits
    return error
