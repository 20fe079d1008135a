"""The records behind `ctx`: a `Run` is what all steps of one run share, a `Step` is one agent's part of it.

Both are data: how a step goes on is the business of the rooms above, which `ctx` reaches through an `Engine`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from anyio import CancelScope

from middlechain.bus import Bus
from middlechain.context import Context, State
from middlechain.errors import ConfigurationError, GuardrailDenied
from middlechain.events import Origin
from middlechain.limits import Limits, Meter, Usage
from middlechain.messages import Content, Input, Message, User, sendable, user_message

if TYPE_CHECKING:  # names for type checkers; at run time no import points up
    from middlechain.agent import Plan
    from middlechain.app import App
    from middlechain.chat import ChatReply, Model
    from middlechain.edge import Edge
    from middlechain.guards import StepGuards
    from middlechain.holds import Hold
    from middlechain.judging import Ledger
    from middlechain.layers import Stack
    from middlechain.override import Override
    from middlechain.pauses import Decisions, Pause
    from middlechain.results import Result
    from middlechain.tool_calls import ToolCall, Waiting
    from middlechain.tools import Tool, ToolOutput

__all__ = ["Engine", "Loop", "Run", "Step", "Tell", "current", "step_of", "this_step"]

Tell: TypeAlias = Callable[[int, str], Awaitable[None] | None]  # takes a turn and a piece of its text


class Engine(Protocol):
    """What `ctx` asks of the rooms above: a turn, a tool call and a step, through the layers of the run."""

    async def chat(self, step: Step, messages: Any, model: Any, tools: Any, for_guard: bool = ..., /) -> ChatReply: ...

    async def call_tool(self, step: Step, name: str, args: Mapping[str, Any], /) -> ToolOutput: ...

    async def delegate(
        self, step: Step, target: Any, input: Input, via: str = ..., resumed: Any = ..., /
    ) -> Result: ...


class Loop:
    """How far a `loop` has come: `ctx.loop`.

    Attributes:
        iteration: which pass it is in, from 1.
        max_iterations: how many there may be.
    """

    __slots__ = ("_max_fails", "_outer", "fails", "iteration", "max_iterations", "since")

    def __init__(self, max_iterations: int, max_fails: int | None, outer: Loop | None) -> None:
        self.iteration = 0
        self.max_iterations = max_iterations
        self.since = 0  # how many messages were there when the pass began
        self._max_fails = max_fails
        self.fails = 0  # consecutive failed tool turns
        self._outer = outer

    def note(self, failed: bool) -> None:
        """Count a turn whose tools ran."""
        self.fails = self.fails + 1 if failed else 0
        if self._outer is not None:
            self._outer.note(failed)

    @property
    def has_failed(self) -> bool:
        """Whether it, or one around it, has seen too many failed turns."""
        own = self._max_fails is not None and self.fails >= self._max_fails
        return own or (self._outer is not None and self._outer.has_failed)

    def __repr__(self) -> str:
        return f"Loop(iteration={self.iteration}, max_iterations={self.max_iterations})"


class _Seldom:
    """What most runs never set: these have no slots, so that the others do not pay for them."""

    spent: bool = False  # whether a limit of the run has stopped a step
    keep: Callable[[], Awaitable[None]] | None = None  # called after each turn whose tools ran
    outputs: Mapping[tuple[int, str], ToolOutput] = MappingProxyType({})  # of approved calls that have run
    ids: Mapping[str, ToolCall | None] = MappingProxyType({})  # of calls that wait, and (None) of decided ones
    resumed: Any = None  # where the run goes on, and what was decided since
    line: Sequence[Step] = ()  # of a stream, the steps that have spoken in the exchange since the root step began


class Run(_Seldom):
    """The record of one run: what its steps share."""

    __slots__ = (
        "app",
        "append_only",
        "bus",
        "calls_by_code",
        "data",
        "deadline",
        "deferred",
        "denial",
        "engine",
        "free",
        "holds",
        "id",
        "instances",
        "limits",
        "meter",
        "models",
        "override",
        "own_limits",
        "root",
        "scope",
        "stack",
        "stamps",
        "state",
        "steps",
        "stop_reason",
        "streaming",
        "target",
        "tell",
    )

    def __init__(
        self,
        *,
        id: str,
        app: App,
        bus: Bus,
        engine: Engine,
        stack: Stack,
        limits: Limits,
        own_limits: bool,
        models: dict[str, Model],
        override: Override | None,
        state: Any,
        data: Mapping[str, Any] | None,
        streaming: bool,
        append_only: bool,
        tell: Tell | None,
    ) -> None:
        self.id = id
        self.app = app
        self.bus = bus
        self.engine = engine
        self.stack = stack
        self.limits = limits
        self.own_limits = own_limits
        self.models = models
        self.override = override
        self.meter = Meter(limits)
        self.free = State()
        self.state = self.free if state is None else state
        self.data = MappingProxyType(dict(data)) if data else _NO_DATA
        self.streaming = streaming
        self.append_only = append_only  # whether what was streamed can be taken back
        self.tell = tell
        self.denial: GuardrailDenied | None = None  # of the root step
        self.holds: tuple[Hold, ...] = ()  # of the run layers
        self.deadline: float | None = None
        self.scope: CancelScope | None = None  # holds the deadline while no step does
        self.stop_reason: str | None = None
        self.deferred: list[Callable[[], Any]] = []
        self.instances: dict[type, Any] = {}
        self.stamps: list[Usage] = []  # the usages that the runtime put on results, to tell them from a layer's own
        self.root: Step | None = None
        self.target: Any = None  # as the caller gave it
        self.steps = 0
        self.calls_by_code = 0


_NO_DATA: Mapping[str, Any] = MappingProxyType({})
_NO_TEXTS: frozenset[str] = frozenset()


class _Place:
    """Where a step belongs, and what most steps never set: as of a run, these have no slots."""

    asked_by: str | None = None  # the name of the agent whose answer the input is
    carried: tuple[Message, ...] = ()  # what had been said in the exchange when the step began
    base: int = 0  # how many messages of the assistant come before the first turn in its result
    in_line: bool = True  # whether it is part of the exchange: the first step, members of flows, who got it handed over
    answering: bool = True  # whether its answer is that of the run, as far as that is known
    until: int = 0  # a `Moment`: when it is known
    loop: Loop | None = None  # the nearest one around it
    place: int = 0  # of a member, in its flow
    branch: str = ""  # of a member that others go on beside: tells the ids that are made up in it from theirs
    members: Sequence[Step] = ()  # of a flow, the steps that are going on
    handed: tuple[int, Result] | None = None  # of a flow: the last answer that was handed on, and where it stood
    speaker: Step | None = None  # who answers in its place: a member, or who got the conversation
    transfer: Any = None  # the agent that gets it
    # An answer of the output type:
    repairs: tuple[tuple[int, Message, Message], ...] = ()  # answers that did not parse, and where; sent, and not kept
    repaired: int = 0
    parsed: tuple[str, Any] | None = None  # the answer that did, and what it says
    # Calls that wait for approval:
    by_code: bool = False  # whether code has asked for it, or for what it is nested in, which cannot wait
    waiting: Mapping[str, Waiting] = MappingProxyType({})  # those of the last reply, by id
    pause: Pause | None = None  # where the step goes on
    decisions: Decisions = MappingProxyType({})


class Step(_Place):
    """The record of one step: whose it is, how far it has got, and what was said in it."""

    __slots__ = (
        "agent",
        "agent_name",
        "by_name",
        "caller",
        "chains",
        "ctx",
        "denial",
        "depth",
        "edge",
        "exchange",
        "given",
        "guards",
        "history",
        "host",
        "id",
        "judged",
        "ledger",
        "listening",
        "made",
        "meter",
        "parent",
        "passed",
        "plan",
        "reply",
        "run",
        "sendable",
        "stamps",
        "tools",
        "turn",
        "turns_taken",
    )

    def __init__(
        self,
        run: Run,
        plan: Plan,
        *,
        id: str,
        parent: str | None = None,
        depth: int = 0,
        history: tuple[Message, ...] = (),
        meter: Meter | None = None,
        caller: Step | None = None,
    ) -> None:
        self.run = run
        self.plan = plan
        self.agent = plan.agent
        self.agent_name = plan.name
        self.chains = run.stack.chains_of(plan)
        self.depth = depth
        self.history = history
        self.sendable = history  # without what was blocked on its way in
        for message in history:
            if type(message) is User and message.blocked:
                self.sendable = sendable(history)
                break
        self.guards: StepGuards | None = None  # None where there are none
        self.ledger: Ledger | None = None  # what they found
        self.judged: Content | None = None  # the input that passed
        self.passed: frozenset[str] = _NO_TEXTS  # those of the model that passed
        self.denial: GuardrailDenied | None = None  # the last one in this step, or in one nested in it
        self.meter = run.meter if meter is None else meter
        self.tools: tuple[Tool, ...] = plan.tools  # and those that hand the conversation over
        self.by_name: Mapping[str, Tool] = plan.by_name
        self.edge: Edge | None = None
        self.exchange: list[Message] = []  # the user's message, then the turns whose tools ran
        self.turn = 0
        self.reply: ChatReply | None = None  # the turn's, until the turn is recorded
        self.turns_taken = 0  # as `turn`, but not set back when an agent layer starts the step again
        self.made: Result | None = None  # the result as the runtime made it last
        self.stamps = run.stamps
        self.id = id
        self.listening = run.bus.listening
        self.parent = parent
        self.given: tuple[Input, User] | None = None  # the input, and the message made of it
        self.caller = caller  # the step, or the flow, that asked for it
        self.host = caller  # the one that it is nested in
        if caller is not None and caller.loop is not None:
            self.loop = caller.loop
        self.ctx: Context[Any] = Context(self)

    def restart(self, input: Input) -> None:
        """Begin the step, or begin it again."""
        if self.given is None or self.given[0] is not input:
            self.given = (input, user_message(input) if self.asked_by is None else self.message_of(input))
        self.turn = 0
        self.reply = None
        self.denial = None
        self.exchange = [self.given[1], *self.carried]
        if self.repaired:
            self.repairs, self.repaired = (), 0
        if self.transfer is not None or self.waiting:
            self.transfer, self.waiting = None, _NO_DATA

    def message_of(self, input: Input) -> User:
        """The input as a message, of whoever asked.

        Raises:
            ConfigurationError: when it is no input.
        """
        message = user_message(input)
        return message if self.asked_by is None or message.name is not None else replace(message, name=self.asked_by)

    def next_turn(self) -> int:
        """Begin a turn and say which."""
        self.turn += 1
        return self.turn

    def at(self, turn: int) -> Origin:
        """The origin of an event of that turn."""
        return Origin(
            self.run.id, self.agent_name, self.id, self.parent, turn, self.answering and self.transfer is None
        )

    async def emit(self, kind: Callable[..., Any], *payload: Any) -> None:
        """Tell observers and the stream, if there are any."""
        if self.listening:
            await self.run.bus.emit(self.at(self.turn), kind, *payload)


current: ContextVar[Step] = ContextVar("middlechain_step")


def this_step() -> Step:
    """The innermost step that this code runs in.

    Raises:
        ConfigurationError: outside of any.
    """
    step = current.get(None)
    if step is None:
        raise ConfigurationError("there is no run here; read it in a hook, a layer or a tool")
    return step


def step_of(ctx: Context[Any]) -> Step:
    """The record behind a context, for the rooms above."""
    return ctx._step
