"""Pauses: where a step or a flow stopped for calls that wait for approval. Plain data that survives a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from middlechain.messages import Input, Message, ToolMessage, dump, input_of, load
from middlechain.results import Result
from middlechain.tool_calls import WAITS, ToolCall

__all__ = [
    "NEVER_RAN",
    "UNKNOWN_OUTCOME",
    "Decisions",
    "Pause",
    "decided_for",
    "dump_pause",
    "first_input",
    "load_pause",
    "taken",
    "waiting_in",
]

Decisions: TypeAlias = Mapping[str, bool | ToolCall]

NEVER_RAN = "The call has not run: the exchange ended while it waited for approval."
UNKNOWN_OUTCOME = "The tool was started and did not finish; what it did by then is not known."


@dataclass(frozen=True, slots=True)
class Pause:
    """Where something stopped.

    Args:
        agent: name of the agent, or of the flow.
        exchange: what was said in it: of a step with a result for each call, of a flow what came before its members.
        calls: of a step, by id: the calls of its last reply that wait.
        inner: the steps and flows inside that stopped: by the id of the call that asked for them, or by their place in
            the flow.
        transfer: of a step, the agent that gets the conversation when all calls of that reply have settled.
        iteration: of a loop, the pass it is in.
        fails: of a loop, consecutive failed tool turns so far.
        since: of a loop, how many messages of its exchange come before the pass.
        done: of a flow whose members go on side by side, the results of those that have ended, by their place.
    """

    agent: str
    exchange: tuple[Message, ...] = ()
    calls: Mapping[str, ToolCall] = field(default_factory=dict)
    inner: Mapping[str, Pause] = field(default_factory=dict)
    transfer: str | None = None
    iteration: int = 1
    fails: int = 0
    since: int = 0
    done: Mapping[str, Result] = field(default_factory=dict)


def waiting_in(pause: Pause) -> dict[str, ToolCall]:
    """The calls that wait, by ids that are unique among them: the model's own, unless two have the same."""
    return {id: call if call.id == id else call.replace(id=id) for id, (_, _, call) in _ways(pause).items()}


def decided_for(pause: Pause, way: str, decisions: Decisions) -> dict[str, bool | ToolCall]:
    """The decisions about what is nested there, by the ids that its calls have there."""
    return {there: decisions[id] for id, (found, there, _) in _ways(pause).items() if found == way and id in decisions}


def _ways(pause: Pause) -> dict[str, tuple[str | None, str, ToolCall]]:
    """The way to each call that waits (None for the step's own), and its id there."""
    ways: dict[str, tuple[str | None, str, ToolCall]] = {id: (None, id, call) for id, call in pause.calls.items()}
    for way, inner in pause.inner.items():
        for id, call in waiting_in(inner).items():
            ways[f"{way}/{id}" if id in ways else id] = way, id, call
    return ways


def first_input(pause: Pause) -> Input:
    """What was asked at the beginning of the exchange."""
    if pause.exchange:
        return input_of(pause.exchange[0])
    return first_input(next(iter(pause.inner.values())))


def taken(pause: Pause, decisions: Decisions) -> Pause:
    """The pause as it is once the decided calls are about to run: should nobody come back to say, they have run."""
    exchange = tuple(
        replace(message, content=UNKNOWN_OUTCOME)
        if isinstance(message, ToolMessage) and message.text == WAITS and message.tool_call_id in decisions
        else message
        for message in pause.exchange
    )
    calls = {id: call for id, call in pause.calls.items() if id not in decisions}
    inner = {way: taken(one, decided_for(pause, way, decisions)) for way, one in pause.inner.items()}
    return replace(pause, exchange=exchange, calls=calls, inner=inner)


def dump_pause(pause: Pause) -> dict[str, Any]:
    """The pause as plain data for JSON."""
    return {
        "agent": pause.agent,
        "exchange": dump(pause.exchange),
        "calls": [{"id": id, "name": call.name, "args": call.args} for id, call in pause.calls.items()],
        "inner": {way: dump_pause(inner) for way, inner in pause.inner.items()},
        "transfer": pause.transfer,
        "iteration": pause.iteration,
        "fails": pause.fails,
        "since": pause.since,
        "done": {place: _dump_result(result) for place, result in pause.done.items()},
    }


def load_pause(data: Mapping[str, Any]) -> Pause:
    """The pause that `dump_pause` wrote."""
    return Pause(
        data["agent"],
        tuple(load(data["exchange"])),
        {call["id"]: ToolCall(call["name"], call["args"], call["id"]) for call in data["calls"]},
        {way: load_pause(inner) for way, inner in data["inner"].items()},
        data["transfer"],
        data["iteration"],
        data["fails"],
        data["since"],
        {place: _load_result(result) for place, result in data["done"].items()},
    )


_KEPT = ("text", "finish_reason", "blocked", "blocked_by", "degraded", "agent", "stopped_by")


def _dump_result(result: Result) -> dict[str, Any]:
    return {"messages": dump(result.messages), **{name: getattr(result, name) for name in _KEPT}}


def _load_result(data: Mapping[str, Any]) -> Result:
    return Result(messages=load(data["messages"]), **{name: data[name] for name in _KEPT})
