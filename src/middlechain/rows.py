"""Rows: members one after the other, once or over and over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from middlechain.chain import settle
from middlechain.context import Context
from middlechain.errors import ConfigurationError, LimitExceeded
from middlechain.holds import Moment
from middlechain.members import STOPPED, Flow, Member, has_answer, said_nothing, take, waiting_calls
from middlechain.messages import Assistant, Message, User
from middlechain.outcomes import speaker_of
from middlechain.pauses import Pause
from middlechain.records import Loop, Step
from middlechain.results import Result
from middlechain.steps import in_time

__all__ = ["InARow", "OverAndOver", "Until"]

Until: TypeAlias = Callable[[Context[Any]], Any]


class InTurn(Flow):
    """Members one after the other: a sequence, and the body of a loop."""

    async def _in_turn(self, flow: Step, message: User) -> Result:
        """The result of the last member that had its turn."""
        place = 0 if flow.pause is None else int(next(iter(flow.pause.inner)))
        while True:
            last = place == len(self.members) - 1
            before = tuple(flow.exchange)
            result = await self._member(flow, place, message, answering=last)
            flow.pause = None
            if result.pause is not None:
                result = replace(result, pause=self._pause(flow, before, {str(place): result.pause}))
            elif flow.handed is not None and said_nothing(result):
                earlier = flow.handed[1]
                result = replace(earlier, stopped_by=result.stopped_by, finish_reason=result.finish_reason)
                result = result.replace(messages=(Assistant(earlier.text, finish_reason=result.finish_reason),))
                flow.speaker = flow  # the member that was stopped has not said it
            take(flow, result)
            if last or _ends(flow, result):
                if not last and flow.run.stop_reason is not None and result.stopped_by is None:
                    result = replace(result, stopped_by="stop")
                return result
            message = _handed_on(flow, result)
            place += 1

    def _pause(self, flow: Step, before: tuple[Message, ...], inner: dict[str, Pause]) -> Pause:
        return Pause(self.name, before, inner=inner, flow=True, carried=len(flow.carried))


class InARow(InTurn):
    """What `sequence` makes."""

    shown = "its members, one after the other"

    def __init__(self, members: Sequence[Member], name: str, description: str) -> None:
        super().__init__(members, name, description, "sequence")

    async def _go(self, flow: Step, message: User) -> Result:
        result = await self._in_turn(flow, message)
        stopped = result.stopped_by if result.stopped_by in STOPPED else None
        return self._result(flow, result, stopped_by=stopped, pending=waiting_calls(result))


class OverAndOver(InTurn):
    """What `loop` makes."""

    shown = "its members, over and over"

    def __init__(
        self,
        members: Sequence[Member],
        name: str,
        description: str,
        until: Until | None,
        max_iterations: int,
        max_fails: int | None,
    ) -> None:
        for number, what in ((max_iterations, "max_iterations"), (1 if max_fails is None else max_fails, "max_fails")):
            if type(number) is not int or number < 1:
                raise ConfigurationError(f"loop({what}={number!r:.60}) is no number of times; give one from 1 up")
        if until is not None and not callable(until):
            raise ConfigurationError(f"loop(until={until!r:.60}) cannot be called; give a function of ctx")
        super().__init__(members, name, description, "loop")
        self._until = until
        self._max_iterations = max_iterations
        self._max_fails = max_fails

    async def _go(self, flow: Step, message: User) -> Result:
        loop = flow.loop = Loop(self._max_iterations, self._max_fails, flow.loop)
        outermost = not flow.until
        flow.until = Moment.FLOWED  # which pass is the last is known afterwards
        begun = len(flow.exchange)
        if flow.pause is not None:
            loop.iteration, loop.fails, begun = flow.pause.iteration - 1, flow.pause.fails, flow.pause.since
        while True:
            loop.iteration += 1
            loop.since = len(flow.history) + begun
            result = await self._in_turn(flow, message)
            by = "pending" if result.pause is not None else await self._ended(flow, loop, result)
            result = self._result(flow, result, stopped_by=by, pending=waiting_calls(result))
            if by == "limit":
                result = replace(result, finish_reason="limit")
            speaker = speaker_of(flow)
            if speaker is not flow:  # or the flow sends it, once it is known
                if by is None:
                    speaker.answering = False
                if speaker.edge is not None and flow.run.append_only and (by is None or outermost):
                    result = await speaker.edge.finish(result, Moment.FLOWED)
            if by is not None:
                return replace(result, stopped_by=None) if by in {"pending", "blocked"} else result
            message = _handed_on(flow, result) if has_answer(flow) else message
            begun = len(flow.exchange)

    def _pause(self, flow: Step, before: tuple[Message, ...], inner: dict[str, Pause]) -> Pause:
        loop = cast("Loop", flow.loop)
        since = loop.since - len(flow.history)
        return replace(super()._pause(flow, before, inner), iteration=loop.iteration, fails=loop.fails, since=since)

    async def _ended(self, flow: Step, loop: Loop, result: Result) -> str | None:
        """What ends the loop after this pass, if anything does."""
        if flow.run.stop_reason is not None:
            return "stop"
        if flow.run.spent:
            return "limit"
        if loop.has_failed:
            return "fails"
        if result.blocked:
            return "blocked"
        until = self._until
        try:
            if until is not None and await in_time(flow, lambda: settle(until(flow.ctx))):
                return "until"
        except LimitExceeded as error:
            if not error.stops:
                raise
            return "limit"
        return "iterations" if loop.iteration >= loop.max_iterations else None


def _ends(flow: Step, result: Result) -> bool:
    """Whether the members after this one have no turn."""
    stops = result.stopped_by in STOPPED or result.blocked or result.pause is not None
    return stops or flow.run.stop_reason is not None


def _handed_on(flow: Step, result: Result) -> User:
    """The last answer as the next one's input; it stands in the history once."""
    answer = flow.exchange.pop()
    flow.handed = len(flow.exchange), result
    return User(answer.content, name=result.agent)
