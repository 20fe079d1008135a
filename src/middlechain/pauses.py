"""Pauses: where a step or a flow stopped for calls that wait for approval. Plain data that survives a process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeGuard

from middlechain.messages import Input, Message, ToolMessage, ToolUse, dump, input_of, load
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
    "in_flight",
    "load_pause",
    "said_at",
    "taken",
    "told_apart",
    "waits",
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
        calls: of a step, by the ids of its last reply: the calls that wait, with the ids that decisions have.
        inner: the steps and flows inside that stopped: by the id of the call that asked for them, or by their place in
            the flow.
        transfer: of a step, the agent that gets the conversation when all calls of that reply have settled.
        iteration: of a loop, the pass it is in.
        fails: of a loop, consecutive failed tool turns so far.
        since: of a loop, how many messages of its exchange come before the pass.
        done: of a flow whose members go on side by side, the results of those that have ended, by their place.
        asked: of a step, by the ids of its last reply: what was put in the place of a call and waits again.
        flow: whether it is a flow's.
        carried: of a flow that got the conversation, how many messages each of its members has of those before it.
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
    asked: Mapping[str, ToolUse] = field(default_factory=dict)
    flow: bool = False
    carried: int = 0


def waiting_in(pause: Pause) -> dict[str, ToolCall]:
    """The calls that wait, by the ids that decisions have."""
    waiting = {call.id: call for call in pause.calls.values()}
    for inner in pause.inner.values():
        waiting |= waiting_in(inner)
    return waiting


def decided_for(pause: Pause, way: str, decisions: Decisions) -> dict[str, bool | ToolCall]:
    """The decisions about what is nested there."""
    return {id: decisions[id] for id in waiting_in(pause.inner[way]) if id in decisions}


def told_apart(pause: Pause, used: Mapping[str, ToolCall | None]) -> Pause:
    """The pause with ids that tell its calls apart: the model's own, unless another call has it, or had it before.

    Args:
        pause: of which calls may have the same ids.
        used: the ids that somebody may have seen: of calls that wait already, which keep them, and of decided ones.
    """
    return _told_apart(pause, used, set())


def _told_apart(pause: Pause, used: Mapping[str, ToolCall | None], taken: set[str]) -> Pause:
    calls: dict[str, ToolCall] = {}
    for way, call in pause.calls.items():
        id, number = call.id, 1
        while id in taken or (id in used and used[id] is not call):
            number += 1
            id = f"{way}/{number}"
        taken.add(id)
        calls[way] = call if id == call.id else call.replace(id=id)
    return replace(pause, calls=calls, inner={way: _told_apart(one, used, taken) for way, one in pause.inner.items()})


def first_input(pause: Pause) -> Input:
    """What was asked at the beginning of the exchange."""
    if pause.exchange:
        return input_of(pause.exchange[0])
    return first_input(next(iter(pause.inner.values())))


def taken(pause: Pause, decisions: Decisions) -> Pause:
    """The pause as it is once the decided calls are about to run: should nobody come back to say, they have run."""
    inner = {way: taken(one, decisions) for way, one in pause.inner.items()}
    calls = {id: call for id, call in pause.calls.items() if call.id not in decisions}
    begun = [*(pause.calls.keys() - calls.keys()), *(way for way, one in inner.items() if not waiting_in(one))]
    exchange = tuple(
        replace(message, content=UNKNOWN_OUTCOME) if waits(message) and message.tool_call_id in begun else message
        for message in pause.exchange
    )
    return replace(pause, exchange=exchange, calls=calls, inner=inner)


def waits(message: Message) -> TypeGuard[ToolMessage]:
    """Whether it is the result of a call that waits."""
    return isinstance(message, ToolMessage) and message.content == WAITS


def in_flight(pause: Pause, decisions: Decisions) -> Iterator[tuple[ToolMessage, bool]]:
    """The results in the history that say of a call that it waits, and whether it is about to run."""
    if pause.flow:
        for inner in pause.inner.values():
            yield from in_flight(inner, decisions)
        return
    for before, after in zip(pause.exchange, taken(pause, decisions).exchange, strict=True):
        if waits(before):
            yield before, not waits(after)


def said_at(pause: Pause) -> tuple[Message, ...]:
    """What was said in the exchange by then."""
    if not pause.flow:
        return pause.exchange
    members: dict[int, Sequence[Message]] = {int(place): result.messages for place, result in pause.done.items()}
    members |= {int(place): said_at(inner) for place, inner in pause.inner.items()}
    said = pause.exchange
    for number, place in enumerate(sorted(members)):
        said += tuple(members[place])[1 + pause.carried if number else 0 :]
    return said


def dump_pause(pause: Pause) -> dict[str, Any]:
    """The pause as plain data for JSON."""
    return {
        "agent": pause.agent,
        "exchange": dump(pause.exchange),
        "calls": [{"id": id, "as": call.id, "name": call.name, "args": call.args} for id, call in pause.calls.items()],
        "inner": {way: dump_pause(inner) for way, inner in pause.inner.items()},
        "transfer": pause.transfer,
        "iteration": pause.iteration,
        "fails": pause.fails,
        "since": pause.since,
        "done": {place: _dump_result(result) for place, result in pause.done.items()},
        "asked": {id: [use.name, use.arguments] for id, use in pause.asked.items()},
        "flow": pause.flow,
        "carried": pause.carried,
    }


def load_pause(data: Mapping[str, Any]) -> Pause:
    """The pause that `dump_pause` wrote."""
    return Pause(
        data["agent"],
        tuple(load(data["exchange"])),
        {call["id"]: ToolCall(call["name"], call["args"], call["as"]) for call in data["calls"]},
        {way: load_pause(inner) for way, inner in data["inner"].items()},
        data["transfer"],
        data["iteration"],
        data["fails"],
        data["since"],
        {place: _load_result(result) for place, result in data["done"].items()},
        {id: ToolUse(name, arguments, id) for id, (name, arguments) in data["asked"].items()},
        data["flow"],
        data["carried"],
    )


_KEPT = ("text", "finish_reason", "blocked", "blocked_by", "degraded", "agent", "stopped_by")


def _dump_result(result: Result) -> dict[str, Any]:
    return {"messages": dump(result.messages), **{name: getattr(result, name) for name in _KEPT}}


def _load_result(data: Mapping[str, Any]) -> Result:
    return Result(messages=load(data["messages"]), **{name: data[name] for name in _KEPT})
