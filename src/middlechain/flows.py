"""Flows: agents and functions in a row, side by side, or over and over. A flow is an agent that is made of others.

It has no step of its own: no agent layer and no guard wraps it, only its members'. How a member's step goes on is the
business of `steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from middlechain.agent import Agent, name_of_agent
from middlechain.bus import pump
from middlechain.chain import name_of, settle
from middlechain.context import Context
from middlechain.errors import ConfigurationError, GuardrailDenied, LimitExceeded, WrongReturn
from middlechain.holds import Moment
from middlechain.judging import ledger_of, note_denial
from middlechain.messages import Assistant, Input, Message, ToolMessage, User, user_message
from middlechain.outcomes import assistants, of_run, result_of, said_in, speaker_of
from middlechain.pauses import Pause, decided_for, first_input, told_apart, waiting_in
from middlechain.records import Loop, Step, current
from middlechain.results import Result
from middlechain.steps import check_depth, in_time, run_through
from middlechain.structured import Unfit
from middlechain.targets import continue_exchange, plan_for, reached, step_for, step_to_resume

__all__ = ["Flow", "Member", "answered", "called_tool", "is_agent", "loop", "parallel", "sequence"]

Function: TypeAlias = Callable[[Any, Context[Any]], Any]  # (input, ctx) -> str, Result, None, or something to await
Member: TypeAlias = Agent | type[Agent] | str | Function
Merge: TypeAlias = Callable[[Sequence[Result], Context[Any]], Any]
Until: TypeAlias = Callable[[Context[Any]], Any]
BREAK = "\n\n"


def sequence(*members: Member, name: str = "sequence", description: str = "") -> Flow:
    """One member after the other: the answer of one is what the next one is asked, as a user message of its name.

    They share the history. A member that a guardrail blocked, or that a limit or `ctx.stop` stopped, is the last one.

    Args:
        members: agents, agent classes, names of agents of the app, flows, and functions `(input, ctx)` that return a
            str or a `Result` (None passes on what came in).
        name: for the app, for events and for messages; default `"sequence"`.
        description: what others are told of it, when it is a tool.

    Raises:
        ConfigurationError: for no members, something that cannot be one, or two agents of one name.
    """
    return _Sequence(members, name, description)


def parallel(*members: Member, merge: Merge | None = None, name: str = "parallel", description: str = "") -> Flow:
    """All members at the same time, each with the same input and a snapshot of the history.

    When one fails, the others are cancelled and have ended before its error goes on.

    Args:
        members: as of `sequence`.
        merge: `merge(results, ctx)`, sync or async, gets their results in the order in which they stand here and makes
            the answer, a str or a `Result`; the history then has each member's answer before it, as a user message of
            its name. Default, also for None: the texts, with a blank line between them.
        name: who gives the merged answer; default `"parallel"`.
        description: as of `sequence`.

    Raises:
        ConfigurationError: as `sequence`.
    """
    return _Parallel(members, name, description, merge)


def loop(
    *members: Member,
    until: Until | None = None,
    max_iterations: int = 10,
    max_fails: int | None = 5,
    name: str = "loop",
    description: str = "",
) -> Flow:
    """The members in a row, over and over; a further pass begins with the last answer.

    `Result.stopped_by` says what ended it: `until`, `iterations`, `fails`, `limit` or `stop`.

    Args:
        members: as of `sequence`.
        until: `until(ctx)`, sync or async, is asked after each pass; what is true ends the loop. See `answered` and
            `called_tool`.
        max_iterations: most passes; default 10.
        max_fails: how many turns in a row whose tools have all failed end it, in the middle of a step too; default 5,
            None for any number.
        name: default `"loop"`.
        description: as of `sequence`.

    Raises:
        ConfigurationError: as `sequence`, and for numbers below 1.
    """
    return _Loop(members, name, description, until, max_iterations, max_fails)


def answered(ctx: Context[Any]) -> bool:
    """For `until=`: whether the last step came to an answer by itself, with a text, and no limit ended it."""
    last = ctx.messages[-1] if ctx.messages else None
    return isinstance(last, Assistant) and bool(last.text) and last.finish_reason not in _NO_ANSWER


_NO_ANSWER = frozenset({"limit", "length", "incomplete", "pending", "degraded"})


def called_tool(name: str) -> Until:
    """For `until=`: whether a tool was called in this pass, with a result that is no error.

    Args:
        name: the tool's name.
    """

    def called(ctx: Context[Any]) -> bool:
        since = 0 if ctx.loop is None else ctx.loop.since
        return any(
            isinstance(message, ToolMessage) and message.name == name and not message.is_error
            for message in ctx.messages[since:]
        )

    return called


class Flow(Agent):
    """Several agents as one: what `sequence`, `parallel` and `loop` make. It goes wherever an agent goes."""

    shown = ""  # how its members go on

    def __init__(self, members: Sequence[Member], name: str, description: str, maker: str) -> None:
        super().__init__(name=name, description=description)
        self.members = _checked(members, maker)

    async def _conduct(self, flow: Step, input: Input) -> Result:
        """Run the members, within the depth and the deadline of the run."""
        flow.exchange = [] if flow.pause is None else list(flow.pause.exchange)
        flow.given = (input, flow.message_of(input))
        token = current.set(flow)
        try:
            await check_depth(flow)
            result = await self._streamed(flow, await self._go(flow, flow.given[1]))
        except LimitExceeded as error:
            error.result = partial = self._so_far(flow, error.result)
            if not error.stops:
                raise
            return partial
        except GuardrailDenied as denial:
            if flow.host is None:
                flow.run.denial = denial
            else:
                note_denial(flow.host, denial)
            raise
        finally:
            _close(flow)
            current.reset(token)
        if _has_answer(flow):
            flow.exchange.pop()  # as in any step: what the run layers make of it comes in its place
        return result

    if TYPE_CHECKING:  # what each kind does

        async def _go(self, flow: Step, message: User) -> Result: ...

    async def _member(self, flow: Step, place: int, message: User, answering: bool) -> Result:
        """The result of one member; its messages begin with what it was asked."""
        member = self.members[place]
        if not is_agent(member):
            return await _call_function(flow, cast("Function", member), message)
        step, input = self._step(flow, place, message, answering)
        step.place = place
        step.branch = flow.branch + self._branch(place)
        flow.members = tuple(sorted((*flow.members, step), key=lambda one: one.place))
        flow.speaker = step
        try:
            return await run_through(step, input, "flow")
        finally:
            if step.ledger is not None:
                ledger_of(flow).absorb(step.ledger)

    def _branch(self, place: int) -> str:
        return ""

    def _step(self, flow: Step, place: int, message: User, answering: bool) -> tuple[Step, Input]:
        """The record of a member's step, and what it is asked."""
        run, target, pause = flow.run, self.members[place], flow.pause
        history = (*flow.history, *flow.exchange)
        if pause is None or str(place) not in pause.inner:
            step = step_for(run, plan_for(run, target), caller=flow, history=history, answering=answering)
            if flow.carried and not flow.exchange:  # the flow got the conversation handed over
                continue_exchange(step, flow.carried)
        else:
            inner, decisions = pause.inner[str(place)], decided_for(pause, str(place), flow.decisions)
            step = step_to_resume(run, target, inner, decisions, caller=flow, history=history, answering=answering)
            message = user_message(first_input(inner))
        step.asked_by = message.name
        if step.pause is None:
            step.given = (_input(message), message)
        return step, _input(message)

    def _result(self, flow: Step, result: Result, **changes: Any) -> Result:
        """A member's result as that of the flow."""
        flow.stamps.append(flow.meter.usage)
        flow.made = replace(
            result,
            messages=tuple(flow.exchange),
            usage=flow.meter.usage,
            validations=() if flow.ledger is None else flow.ledger.validations,
            run_id=flow.run.id,
            state=flow.run.state,
            **changes,
        )
        return flow.made

    def _so_far(self, flow: Step, partial: Result | None) -> Result:
        """What there is when a limit has ended the flow; a member that it has ended has left what it said."""
        _close(flow, partial)
        if not flow.exchange and flow.given is not None:
            flow.exchange = [flow.given[1]]
        agent = flow.plan.name
        if flow.handed is not None and len(flow.exchange) <= flow.handed[0] + 1:
            place, earlier = flow.handed
            agent = earlier.agent
            flow.exchange[place:] = [Assistant(earlier.text, finish_reason="limit")]
        flow.made = replace(result_of(flow, stopped_by="limit", finish_reason="limit"), agent=agent)
        return flow.made

    async def _streamed(self, flow: Step, result: Result) -> Result:
        """Send what no member has sent of the answer."""
        speaker = speaker_of(flow)
        if speaker is not flow and flow.run.append_only and flow.answering and not speaker.answering:
            speaker = flow.speaker = flow  # it was sent as something else
        if flow.edge is None or speaker is not flow:
            return result
        flow.base = assistants(result.messages) - 1
        return await flow.edge.finish(result, Moment.STEPPED)


class _InTurn(Flow):
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
            elif flow.handed is not None and _said_nothing(result):
                earlier = flow.handed[1]
                result = replace(earlier, stopped_by=result.stopped_by, finish_reason=result.finish_reason)
                result = result.replace(messages=(Assistant(earlier.text, finish_reason=result.finish_reason),))
                flow.speaker = flow  # the member that was stopped has not said it
            _take(flow, result)
            if last or _ends(flow, result):
                if not last and flow.run.stop_reason is not None and result.stopped_by is None:
                    result = replace(result, stopped_by="stop")
                return result
            message = _handed_on(flow, result)
            place += 1

    def _pause(self, flow: Step, before: tuple[Message, ...], inner: dict[str, Pause]) -> Pause:
        return Pause(self.name, before, inner=inner, flow=True, carried=len(flow.carried))


class _Sequence(_InTurn):
    shown = "its members, one after the other"

    def __init__(self, members: Sequence[Member], name: str, description: str) -> None:
        super().__init__(members, name, description, "sequence")

    async def _go(self, flow: Step, message: User) -> Result:
        result = await self._in_turn(flow, message)
        stopped = result.stopped_by if result.stopped_by in _STOPPED else None
        return self._result(flow, result, stopped_by=stopped, pending=_pending(result))


class _Loop(_InTurn):
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
            result = self._result(flow, result, stopped_by=by, pending=_pending(result))
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
            message = _handed_on(flow, result) if _has_answer(flow) else message
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


class _Parallel(Flow):
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
            if said and _is_answer(said[-1]):
                answer = said.pop()
                said += [] if self._merge is None else [User(answer.content, name=one.agent)]
            flow.exchange += said
        value = None
        merge = self._merge
        if merge is not None:
            value = await in_time(flow, lambda: settle(merge(tuple(results), flow.ctx)))
        if value is None and all(map(_said_nothing, results)):
            return self._result(flow, _together(results, self.name, ""))
        if value is None:
            value = BREAK.join(one.text for one in results if one.text)
        text = _text(value, f"the merge {name_of(self._merge)!r}")
        merged = _together(results, self.name, text)
        if isinstance(value, Result) and value.output != value.text:
            merged = replace(merged, output=value.output)
        flow.exchange.append(Assistant(text, finish_reason=merged.finish_reason))
        return self._result(flow, merged)


_STOPPED = frozenset({"limit", "stop", "fails"})


def _checked(members: Sequence[Member], maker: str) -> tuple[Member, ...]:
    if not members:
        raise ConfigurationError(f"{maker}() got no members; give it agents, flows or functions (input, ctx)")
    named: dict[str, Member] = {}
    for member in members:
        if not is_agent(member) and not callable(member):
            raise ConfigurationError(
                f"{maker}() got {member!r:.80}; give agents, agent classes, flows or functions (input, ctx)"
            )
        if isinstance(member, str) or not is_agent(member) or isinstance(member, Flow):
            continue
        name = name_of_agent(cast("Agent | type[Agent]", member))
        if named.setdefault(name, member) is not member:
            raise ConfigurationError(f"{maker}() got two agents named {name!r}; rename one with Agent(name=...)")
    return tuple(members)


def is_agent(member: object) -> bool:
    """Whether a member has steps of its own; what has none is a function."""
    return isinstance(member, str | Agent) or (isinstance(member, type) and issubclass(member, Agent))


async def _call_function(flow: Step, function: Function, message: User) -> Result:
    """What a function of a flow makes of an input, as the result of a member."""
    name = getattr(function, "__name__", None) or name_of(function)
    said = (message, *(() if flow.exchange else flow.carried))
    try:
        value = await in_time(flow, lambda: settle(function(_input(message), flow.ctx)))
    except LimitExceeded as error:
        if not error.stops:
            raise
        flow.run.spent = flow.run.spent or of_run(flow, error)
        return Result(messages=said, finish_reason="limit", stopped_by="limit", agent=name)
    finally:
        flow.speaker = flow
    if value is None:  # what came in is kept, with all its parts
        answer = Assistant(message.content, finish_reason="stop")
        return Result(message.text, messages=(*said, answer), finish_reason="stop", agent=name)
    text = _text(value, f"the function {name_of(function)!r} of a flow")
    made = value if isinstance(value, Result) else Result(text)
    reason = made.finish_reason or "stop"
    answer = Assistant(text, finish_reason=reason, blocked=made.blocked)
    kept = {key: getattr(made, key) for key in ("blocked", "blocked_by", "degraded", "error", "stopped_by")}
    return Result(text, made.output, (*said, answer), finish_reason=reason, agent=name, **kept)


def _text(value: object, who: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Result):
        return value.text
    raise WrongReturn(
        f"{who} returned a value of type {type(value).__name__} ({value!r:.60}); return a str or a Result, or None to "
        "keep what there is"
    )


def _input(message: User) -> Input:
    return message if message.blocked else message.content


def _take(flow: Step, result: Result) -> None:
    """Put what a member said behind what was said before, and have its turns found there."""
    speaker = speaker_of(flow)
    if speaker is not flow:
        speaker.base += assistants(flow.exchange)
    flow.exchange += result.messages
    flow.members = ()


def _close(flow: Step, partial: Result | None = None) -> None:
    """Put what the members have said by now where it belongs, when they were ended."""
    if flow.members:
        speaker = speaker_of(flow.members[0])
        if len(flow.members) == 1:
            speaker.base += assistants(flow.exchange)
            flow.speaker = speaker
        for place, member in enumerate(flow.members):
            said = partial.messages if partial is not None and member.made is partial else said_in(member)
            flow.exchange += said[1 if place else 0 :]
        flow.members = ()


def _is_answer(message: Message) -> bool:
    return isinstance(message, Assistant) and not message.tool_calls


def _has_answer(flow: Step) -> bool:
    return bool(flow.exchange) and _is_answer(flow.exchange[-1])


def _said_nothing(result: Result) -> bool:
    """Whether a member was stopped before it said anything."""
    return result.stopped_by in _STOPPED and len(result.messages) == 1


def _ends(flow: Step, result: Result) -> bool:
    """Whether the members after this one have no turn."""
    stops = result.stopped_by in _STOPPED or result.blocked or result.pause is not None
    return stops or flow.run.stop_reason is not None


def _handed_on(flow: Step, result: Result) -> User:
    """The last answer as the next one's input; it stands in the history once."""
    answer = flow.exchange.pop()
    flow.handed = len(flow.exchange), result
    return User(answer.content, name=result.agent)


def _pending(result: Result) -> tuple[Any, ...]:
    return () if result.pause is None else tuple(waiting_in(result.pause).values())


def _together(results: Sequence[Result], name: str, text: str) -> Result:
    """What the results of several members have in common, with an answer."""
    blocked = next((one for one in results if one.blocked), None)
    degraded = next((one for one in results if one.degraded), None)
    stopped = next((one.stopped_by for one in results if one.stopped_by in _STOPPED), None)
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
