"""Branches: members side by side, and what becomes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from middlechain.agent import name_of_agent
from middlechain.bus import pump
from middlechain.chain import name_of, settle
from middlechain.context import Context
from middlechain.errors import ConfigurationError
from middlechain.members import STOPPED, Flow, Member, answer_text, is_agent, is_answer, said_nothing
from middlechain.messages import Assistant, User
from middlechain.pauses import Pause, told_apart, waiting_in
from middlechain.records import Step
from middlechain.results import Result
from middlechain.steps import in_time
from middlechain.structured import Unfit
from middlechain.targets import plan_for, reached

__all__ = ["Merge", "SideBySide"]

Merge: TypeAlias = Callable[[Sequence[Result], Context[Any]], Any]
BREAK = "\n\n"


class SideBySide(Flow):
    """What `parallel` makes."""

    shown = "its members, at the same time"

    def __init__(self, members: Sequence[Member], name: str, description: str, merge: Merge | None) -> None:
        if merge is not None and not callable(merge):
            raise ConfigurationError(f"parallel(merge={merge!r:.60}) cannot be called; give a function (results, ctx)")
        super().__init__(members, name, description, "parallel")
        self._merge = merge

    async def _go(self, flow: Step, message: User) -> Result:
        done = {} if flow.pause is None else flow.pause.done
        found = {int(place): self._as_answered(flow, int(place), result) for place, result in done.items()}

        def branch(place: int) -> Callable[[], Coroutine[Any, Any, None]]:
            async def run() -> None:
                found[place] = await self._member(flow, place, message, answering=False)

            return run

        await pump(flow.run.bus, *(branch(place) for place in range(len(self.members)) if place not in found))
        results = [found[place] for place in range(len(self.members))]
        flow.members = ()
        flow.speaker = flow
        if any(result.pause is not None for result in results):
            return self._paused(flow, results)
        return await self._merged(flow, results)

    def _branch(self, place: int) -> str:
        return f"_{place}"

    def _as_answered(self, flow: Step, place: int, result: Result) -> Result:
        """A result that a pause has kept, with its answer as the output type of whoever gave it."""
        member = self.members[place]
        if not is_agent(member) or result.output != result.text:
            return result
        app = flow.run.app
        agent = next((one for one in reached(app, member) if name_of_agent(one) == result.agent), None)
        output = None if agent is None else plan_for(flow.run, agent).output
        if output is None:
            return result
        try:
            return replace(result, output=output.parse(result.text))
        except Unfit:  # it was blocked, say
            return replace(result, output=None)

    def _paused(self, flow: Step, results: Sequence[Result]) -> Result:
        inner = {str(place): one.pause for place, one in enumerate(results) if one.pause is not None}
        done = {str(place): one for place, one in enumerate(results) if one.pause is None}
        pause = Pause(self.name, inner=inner, done=done, flow=True, carried=len(flow.carried))
        pause = told_apart(pause, flow.run.ids)
        for place, one in enumerate(results):
            flow.exchange += one.messages[1 + len(flow.carried) if place else 0 :]
        merged = _together(results, self.name, "")
        waiting = tuple(waiting_in(pause).values())
        return self._result(flow, merged, pause=pause, pending=waiting, finish_reason="pending")

    async def _merged(self, flow: Step, results: Sequence[Result]) -> Result:
        question = results[0].messages[0]
        if isinstance(question, User) and any(getattr(one.messages[0], "blocked", False) for one in results):
            question = replace(question, blocked=True)
        flow.exchange.append(question)
        for place, one in enumerate(results):
            said = list(one.messages[1 + len(flow.carried) if place else 1 :])
            if said and is_answer(said[-1]):
                answer = said.pop()
                said += [] if self._merge is None else [User(answer.content, name=one.agent)]
            flow.exchange += said
        value = None
        merge = self._merge
        if merge is not None:
            value = await in_time(flow, lambda: settle(merge(tuple(results), flow.ctx)))
        if value is None and all(map(said_nothing, results)):
            return self._result(flow, _together(results, self.name, ""))
        if value is None:
            value = BREAK.join(one.text for one in results if one.text)
        text = answer_text(value, f"the merge {name_of(self._merge)!r}")
        merged = _together(results, self.name, text)
        if isinstance(value, Result) and value.output != value.text:
            merged = replace(merged, output=value.output)
        flow.exchange.append(Assistant(text, finish_reason=merged.finish_reason))
        return self._result(flow, merged)


def _together(results: Sequence[Result], name: str, text: str) -> Result:
    """What the results of several members have in common, with an answer."""
    blocked = next((one for one in results if one.blocked), None)
    degraded = next((one for one in results if one.degraded), None)
    stopped = next((one.stopped_by for one in results if one.stopped_by in STOPPED), None)
    return Result(
        text,
        finish_reason="stop" if stopped is None else "limit" if stopped == "limit" else "stop",
        blocked=blocked is not None,
        blocked_by=None if blocked is None else blocked.blocked_by,
        degraded=degraded is not None,
        error=None if degraded is None else degraded.error,
        agent=name,
        stopped_by=stopped,
    )
