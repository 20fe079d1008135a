"""Settings and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, assert_type

from middlechain import ChatCall, Limits, Settings

everything = Settings(
    temperature=0.2,
    top_p=1,
    max_tokens=100,
    stop=["END"],
    seed=7,
    tool_choice="required",
    parallel_tool_calls=False,
    extra={"reasoning_effort": "low"},
)
assert_type(everything.temperature, float | None)
assert_type(everything.max_tokens, int | None)
assert_type(everything.stop, Sequence[str] | None)
assert_type(everything.tool_choice, str | None)
assert_type(everything.parallel_tool_calls, bool | None)
assert_type(everything.extra, Mapping[str, Any])

limits = Limits(turns=3, chat_calls=5, tool_calls=None, tokens=1000, cost=0.5, seconds=2.5, depth=2, on_exceed="stop")
assert_type(limits.turns, int | None)
assert_type(limits.cost, float | None)
assert_type(limits.seconds, float | None)
assert_type(limits.on_exceed, Literal["raise", "stop"])
Limits(cost=1, seconds=1)


def cooler(call: ChatCall) -> ChatCall:
    return call.replace(settings=replace(call.settings, temperature=0.0))


def refused(settings: Settings, limits: Limits) -> None:
    Settings(temprature=0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Settings(temperature="hot")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Settings(max_tokens=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Settings(stop=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Settings(extra=[])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    settings.temperature = 0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    settings.temprature  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    Limits(turn=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Limits(turns=2.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Limits(turns="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Limits(on_exceed="stops")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Limits(on_exceed=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    limits.turns = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    limits.turn  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
