"""`ctx`: what hooks, layers and tools see of the run they belong to. What is behind it is in `records`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from middlechain.events import CustomEvent
from middlechain.limits import Limits, Usage
from middlechain.messages import Input, Message, MessageBase

if TYPE_CHECKING:  # names for editors and type checkers; at run time no import points up
    from structlog.typing import FilteringBoundLogger

    from middlechain.agent import Agent
    from middlechain.app import App
    from middlechain.chat import ChatReply, Model
    from middlechain.records import Loop, Step
    from middlechain.results import Result
    from middlechain.tools import Tool, ToolOutput

__all__ = ["Context", "State"]

StateT = TypeVar("StateT", default=Any)


class State:
    """The free attributes of a run: what hooks and layers set on `ctx`."""

    def __getattr__(self, name: str) -> Any:
        raise _never_set(name, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # what it holds may change

    def __repr__(self) -> str:
        return f"State({', '.join(sorted(vars(self)))})"


def _never_set(name: str, state: State) -> AttributeError:
    known = ", ".join(sorted(vars(state))) or "none yet"
    return AttributeError(
        f"nothing has set {name!r} on ctx in this run (set were: {known}); "
        f"set it first, or read it with ctx.get({name!r}, default)",
        name=name,
        obj=state,
    )


class Context(Generic[StateT]):
    """What a run shows of itself to hooks, layers and tools.

    Free attributes (`ctx.approved = True`) are shared by all steps of the run. `agent`, `turn`, `messages` and `log`
    are the step's, the rest is the run's.
    """

    __slots__ = ("_log", "_step")

    _step: Step

    def __init__(self, step: Step) -> None:
        _set_step(self, step)
        _set_log(self, None)

    @property
    def run_id(self) -> str:
        """Id of the run, unique unless the caller gave one."""
        return self._step.run.id

    @property
    def app(self) -> App:
        """The app that the run belongs to."""
        return self._step.run.app

    @property
    def agent(self) -> Agent:
        """The agent of this step."""
        agent: Agent = self._step.agent
        return agent

    @property
    def turn(self) -> int:
        """Which turn the step is in, from 1; 0 before the first."""
        return self._step.turn

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history, and what was said in this step so far; never the system prompt."""
        return (*self._step.history, *self._step.exchange)

    @property
    def usage(self) -> Usage:
        """What the run has used so far."""
        return self._step.run.meter.usage

    @property
    def limits(self) -> Limits:
        """What the run may use."""
        return self._step.run.limits

    @property
    def state(self) -> StateT:
        """The object that the caller gave as `state=`; without one, the free attributes of `ctx`."""
        return cast("StateT", self._step.run.state)

    @property
    def data(self) -> Mapping[str, Any]:
        """What the caller gave as `data=`: read-only, never sent, logged or put in events."""
        return self._step.run.data

    @property
    def log(self) -> FilteringBoundLogger:
        """A structlog logger that knows the run and the agent."""
        if self._log is None:
            import structlog

            logger = structlog.get_logger("middlechain")
            _set_log(self, logger.bind(run_id=self.run_id, agent=self._step.agent_name))
        return cast("FilteringBoundLogger", self._log)

    @property
    def loop(self) -> Loop | None:
        """How far the nearest `loop` has come (`iteration` from 1, `max_iterations`); None outside of one."""
        return self._step.loop

    async def chat(
        self,
        messages: Input | Sequence[MessageBase | Mapping[str, Any]],
        *,
        model: Model | str | None = None,
        tools: Sequence[Tool] = (),
    ) -> ChatReply:
        """One model call through the chat layers, limits and events of this run.

        Args:
            messages: an input, or whole messages (or dicts in OpenAI's shape); nothing of the step's own history, nor
                its instructions, is added.
            model: default: the agent's.
            tools: what the model may ask for; default: nothing. Tool calls in the reply are yours to make, with
                `ctx.call_tool`.

        Returns:
            The reply. It does not enter the history of the step, and is not streamed.

        Raises:
            LimitExceeded: when the run may not call a model any more.
            ModelError: when the model fails.
        """
        return await self._step.run.engine.chat(self._step, messages, model, tools)

    async def call_tool(self, name: str, args: Mapping[str, Any] | None = None) -> ToolOutput:
        """Call one of the agent's tools through its hooks, the tool layers, limits and events of this run.

        Args:
            name: the tool's name.
            args: its arguments, by name.

        Returns:
            What a model would see of the result: a tool's failure is an output marked `is_error`.

        Raises:
            LimitExceeded: when the run may not call tools any more.
            FatalToolError: when the tool raises it.
        """
        return await self._step.run.engine.call_tool(self._step, name, args or {})

    async def run(self, target: Agent | type[Agent] | str, input: Input) -> Result:
        """Run another agent as a step nested in this one, with a history of its own.

        Args:
            target: an agent, an agent class, or the name of an agent of the app.
            input: what it is asked.

        Raises:
            LimitExceeded: when steps are nested too deeply, or a limit of the run is reached.
        """
        return await self._step.run.engine.delegate(self._step, target, input)

    async def emit(self, name: str, data: Any = None) -> None:
        """Tell observers and the stream something of your own, as a `CustomEvent`."""
        await self._step.emit(CustomEvent, name, data)

    def stop(self, reason: str = "") -> None:
        """End every step of the run before its next turn; the result is what there is by then."""
        self._step.run.stop_reason = reason

    def defer(self, callback: Callable[[], Any]) -> None:
        """Call `callback()`, sync or async, when the run ends, however it ends; the last one first."""
        self._step.run.deferred.append(callback)

    def get(self, name: str, default: Any = None) -> Any:
        """A free attribute, or `default` where nothing has set it."""
        return vars(self._step.run.free).get(name, default)

    def __getattr__(self, name: str) -> Any:
        if name in _GUARD_NAMES:
            raise AttributeError(f"ctx.{name} exists inside guards only", name=name, obj=self)
        return getattr(self._step.run.free, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN_NAMES:
            raise AttributeError(
                f"ctx.{name} belongs to the runtime and cannot be assigned; choose another name", name=name, obj=self
            )
        setattr(self._step.run.free, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN_NAMES:
            raise AttributeError(f"ctx.{name} belongs to the runtime and cannot be deleted", name=name, obj=self)
        delattr(self._step.run.free, name)

    def __repr__(self) -> str:
        return f"<Context of {self._step.agent_name!r} in run {self._step.run.id}, turn {self._step.turn}>"


_set_step = Context.__dict__["_step"].__set__
_set_log = Context.__dict__["_log"].__set__

_GUARD_NAMES = frozenset({"message", "reply", "direction", "channel"})
_OWN_NAMES = _GUARD_NAMES | {name for name in vars(Context) if not name.startswith("__")} | {"_step", "_log"}
