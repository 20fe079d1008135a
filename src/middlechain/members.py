"""Members: what a flow is made of, and how one of them has its turn. How a step goes on is the business of `steps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from middlechain.agent import Agent, name_of_agent
from middlechain.chain import name_of, settle
from middlechain.context import Context
from middlechain.errors import ConfigurationError, GuardrailDenied, LimitExceeded, WrongReturn
from middlechain.holds import Moment
from middlechain.judging import ledger_of, note_denial
from middlechain.messages import Assistant, Input, Message, User, user_message
from middlechain.outcomes import assistants, of_run, result_of, said_in, speaker_of
from middlechain.pauses import decided_for, first_input, waiting_in
from middlechain.records import Step, current
from middlechain.results import Result
from middlechain.steps import check_depth, in_time, run_through
from middlechain.targets import continue_exchange, plan_for, step_for, step_to_resume
from middlechain.tool_calls import ToolCall

__all__ = [
    "Flow",
    "Function",
    "Member",
    "STOPPED",
    "answer_text",
    "call_function",
    "checked",
    "close",
    "has_answer",
    "input_of_member",
    "is_agent",
    "is_answer",
    "said_nothing",
    "take",
    "waiting_calls",
]

Function: TypeAlias = Callable[[Any, Context[Any]], Any]  # (input, ctx) -> str, Result, None, or something to await
Member: TypeAlias = Agent | type[Agent] | str | Function

STOPPED = frozenset({"limit", "stop", "fails"})


class Flow(Agent):
    """Several agents as one: what `sequence`, `parallel` and `loop` make. It goes wherever an agent goes."""

    shown = ""  # how its members go on

    def __init__(self, members: Sequence[Member], name: str, description: str, maker: str) -> None:
        super().__init__(name=name, description=description)
        self.members = checked(members, maker)

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
            close(flow)
            current.reset(token)
        if has_answer(flow):
            flow.exchange.pop()  # as in any step: what the run layers make of it comes in its place
        return result

    if TYPE_CHECKING:  # what each kind does

        async def _go(self, flow: Step, message: User) -> Result: ...

    async def _member(self, flow: Step, place: int, message: User, answering: bool) -> Result:
        """The result of one member; its messages begin with what it was asked."""
        member = self.members[place]
        if not is_agent(member):
            return await call_function(flow, cast("Function", member), message)
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
            step.given = (input_of_member(message), message)
        return step, input_of_member(message)

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
        close(flow, partial)
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


def checked(members: Sequence[Member], maker: str) -> tuple[Member, ...]:
    """The members as they were given to `maker`.

    Raises:
        ConfigurationError: for none, something that cannot be one, or two agents of one name.
    """
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


async def call_function(flow: Step, function: Function, message: User) -> Result:
    """What a function of a flow makes of an input, as the result of a member."""
    name = getattr(function, "__name__", None) or name_of(function)
    said = (message, *(() if flow.exchange else flow.carried))
    try:
        value = await in_time(flow, lambda: settle(function(input_of_member(message), flow.ctx)))
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
    text = answer_text(value, f"the function {name_of(function)!r} of a flow")
    made = value if isinstance(value, Result) else Result(text)
    reason = made.finish_reason or "stop"
    answer = Assistant(text, finish_reason=reason, blocked=made.blocked)
    kept = {key: getattr(made, key) for key in ("blocked", "blocked_by", "degraded", "error", "stopped_by")}
    return Result(text, made.output, (*said, answer), finish_reason=reason, agent=name, **kept)


def answer_text(value: object, who: str) -> str:
    """The text of what a function gave.

    Raises:
        WrongReturn: when it is neither a str nor a `Result`.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Result):
        return value.text
    raise WrongReturn(
        f"{who} returned a value of type {type(value).__name__} ({value!r:.60}); return a str or a Result, or None to "
        "keep what there is"
    )


def input_of_member(message: User) -> Input:
    """What a member is asked, without the name of who asks: the step notes that."""
    return message if message.blocked else message.content


def take(flow: Step, result: Result) -> None:
    """Put what a member said behind what was said before, and have its turns found there."""
    speaker = speaker_of(flow)
    if speaker is not flow:
        speaker.base += assistants(flow.exchange)
    flow.exchange += result.messages
    flow.members = ()


def close(flow: Step, partial: Result | None = None) -> None:
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


def is_answer(message: Message) -> bool:
    """Whether it is an answer of the assistant, and asks for no tool."""
    return isinstance(message, Assistant) and not message.tool_calls


def has_answer(flow: Step) -> bool:
    """Whether the last that was said in the flow is an answer."""
    return bool(flow.exchange) and is_answer(flow.exchange[-1])


def said_nothing(result: Result) -> bool:
    """Whether a member was stopped before it said anything."""
    return result.stopped_by in STOPPED and len(result.messages) == 1


def waiting_calls(result: Result) -> tuple[ToolCall, ...]:
    """The calls that wait for approval in a result."""
    return () if result.pause is None else tuple(waiting_in(result.pause).values())
