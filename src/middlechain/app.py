"""The app: where layers are registered, and where runs begin."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeVar, overload

import anyio
from typing_extensions import Unpack

from middlechain.agent import Agent, Plan, name_of_agent, plan_of
from middlechain.bus import Bus, Observer
from middlechain.chat import ChatCall, ChatReply, Model
from middlechain.checks import check, known_names, known_tools
from middlechain.conversation import Begin, Conversation
from middlechain.delegation import Delegation
from middlechain.errors import ConfigurationError, ContractError
from middlechain.explanation import Chain, explain
from middlechain.guards import Guardrails, read_guardrails
from middlechain.layers import KINDS, Found, LimitedTo, OneOrMore, Stack, Typed, read_layers
from middlechain.lifespan import Lifespan
from middlechain.limits import Limits
from middlechain.messages import Input, MessageBase, history_of
from middlechain.options import ExchangeOptions, RunOptions, SendOptions, StreamOptions, Target, refuse_unknown
from middlechain.override import Override
from middlechain.records import Run, Tell
from middlechain.registry import check_model
from middlechain.results import AgentCall, Result, RunCall
from middlechain.runs import execute
from middlechain.streams import Listener, Stream
from middlechain.targets import agent_for, object_of
from middlechain.tool_calls import ToolCall
from middlechain.tools import ToolOutput

if TYPE_CHECKING:
    from middlechain.sessions import Sessions

__all__ = ["App", "run"]

RunLayer = TypeVar("RunLayer", bound=Typed[RunCall, Result])
AgentLayer = TypeVar("AgentLayer", bound=Typed[AgentCall, Result])
ChatLayer = TypeVar("ChatLayer", bound=Typed[ChatCall, ChatReply])
ToolLayer = TypeVar("ToolLayer", bound=Typed[ToolCall, ToolOutput])
_DELEGATION = Delegation()


class App:
    """Layers around every agent's runs, steps, model calls and tool calls.

    `async with app` starts the bundles that have a `start()` and stops them in reverse; without it, the first run that
    needs one starts it, and nothing stops it.

    Args:
        name: for logs; default `"app"`.
        model: the model of agents that name none.
        agents: agents that can be addressed by name; the first is the command line's default.
        limits: what each run may spend; default `Limits()`.
        guardrails: guards of every agent's steps: `{"input": [...], "output": [...]}`; see `guard`.

    Raises:
        ConfigurationError: for two agents of one name, an unknown model prefix, or a keyword it does not have.
    """

    def __init__(
        self,
        name: str = "app",
        model: Model | str | None = None,
        agents: Iterable[Agent | type[Agent]] = (),
        limits: Limits | None = None,
        guardrails: Guardrails | Mapping[str, Iterable[object]] | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown, "App()", ("name", "model", "agents", "limits", "guardrails"))
        if not isinstance(name, str):
            raise ConfigurationError(f"the name of an app is {name!r:.80}; give a str, and agents as App(agents=[...])")
        check_model(model, f"the app {name!r}")
        self.name = name
        self.model = model
        self.limits = Limits() if limits is None else _limits(limits, "App()")
        self.agents = _by_name(agents)
        self._stack = Stack(_found(read_guardrails(guardrails, "App()")))
        self._models: dict[str, Model] = {}
        self._warned: set[str] = set()
        self.told_of_holds = False
        self._override: Override | None = None
        self.lifespan = Lifespan()
        self._entered = False

    async def __aenter__(self) -> Self:
        """Start the bundles of the app and of `App(agents=)` that have a `start()`."""
        if self._entered:
            raise ContractError(f"the app {self.name!r} has been entered already; enter it once, around all its runs")
        self._entered = True
        try:
            agents = [read_layers(agent.middleware, {}, None, name) for name, agent in self.agents.items()]
            await self.lifespan.start((*self._stack.starters, *(one for found in agents for one in found.starters)))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop what was started, the last one first."""
        self._entered = False
        await self.lifespan.stop()

    def use(
        self,
        *bundles: object,
        run: OneOrMore[RunCall, Result] = None,
        agent: OneOrMore[AgentCall, Result] = None,
        chat: OneOrMore[ChatCall, ChatReply] = None,
        tool: OneOrMore[ToolCall, ToolOutput] = None,
        only: LimitedTo = None,
    ) -> Self:
        """Register layers. The first one registered is the outermost; runs that have begun are not affected.

        Args:
            bundles: objects with methods `run`, `agent`, `chat`, `tool` or `on_event`, and `start` or `stop`.
            run: a layer `(call, next)` around whole runs, or a list of them; likewise the others.
            agent: around steps.
            chat: around model calls.
            tool: around tool calls.
            only: limits all of them to agents, tools, names of either, or a predicate of the call.

        Returns:
            The app.

        Raises:
            ConfigurationError: for a function without its scope, or something that is no layer.
        """
        layers: dict[str, Any] = {"run": run, "agent": agent, "chat": chat, "tool": tool}
        found = read_layers(bundles, layers, only, "app.use()")
        if not any(found):
            raise ConfigurationError("app.use() got no layer; give it one, such as app.use(chat=log)")
        self._stack = self._stack.with_more(found)
        return self

    @overload
    def middleware(self, scope: Literal["run"], only: LimitedTo = None) -> Callable[[RunLayer], RunLayer]: ...
    @overload
    def middleware(self, scope: Literal["agent"], only: LimitedTo = None) -> Callable[[AgentLayer], AgentLayer]: ...
    @overload
    def middleware(self, scope: Literal["chat"], only: LimitedTo = None) -> Callable[[ChatLayer], ChatLayer]: ...
    @overload
    def middleware(self, scope: Literal["tool"], only: LimitedTo = None) -> Callable[[ToolLayer], ToolLayer]: ...
    def middleware(
        self, scope: Literal["run", "agent", "chat", "tool"], only: LimitedTo = None
    ) -> Callable[[Any], Any]:
        """The decorator form of `use`: `@app.middleware("chat")`.

        Args:
            scope: `"run"`, `"agent"`, `"chat"` or `"tool"`.
            only: as in `use`.
        """
        if scope not in KINDS:
            raise ConfigurationError(
                f'there is no scope {scope!r:.60}; give one of {", ".join(KINDS)}, such as @app.middleware("chat")'
            )

        def register(layer: Any) -> Any:
            layers: dict[str, Any] = {scope: layer}
            self.use(only=only, **layers)
            return layer

        return register

    def guard(self, *, input: Iterable[object] = (), output: Iterable[object] = ()) -> Self:
        """Register guards for every agent's steps in later runs; those registered first judge first.

        Args:
            input: judge what an agent is asked: guards, functions of `(text, ctx)`, or objects with `name` and `judge`.
            output: judge what its model says.

        Returns:
            The app.

        Raises:
            ConfigurationError: for something that is no guard.
        """
        self._stack = self._stack.with_more(_found(Guardrails(input, output)))
        return self

    def observe(self, callback: Observer) -> Self:
        """Call `callback(event)`, sync or async, with every event of later runs.

        What it raises is logged and dropped.
        """
        if not callable(callback):
            raise ConfigurationError(f"app.observe() got {callback!r:.80}; give a callable that takes an event")
        self._stack = self._stack.with_more(Found(observers=(callback,)))
        return self

    async def run(self, target: Target, input: Input, **options: Unpack[RunOptions]) -> Result:
        """Run an agent.

        Args:
            target: an agent, an agent class (one object of it for this run), or the name of one of `App(agents=)`.
            input: what it is asked: text, parts, or a `User` message.
            options: see `RunOptions`.

        Raises:
            ConfigurationError: when something is put together wrongly; nothing is spent then.
            LimitExceeded: when the run would spend more than it may.
            ModelError: when the model fails.
            Exception: what layers and hooks raise, unchanged.
        """
        history = history_of(options.get("history", ()))
        return await self._listened(options, lambda run: execute(run, target, input, history))

    async def _listened(self, options: SendOptions, begin: Begin) -> Result:
        """Begin a run, and hand the text of its answer to `on_text=`, if that is given."""
        on_text = options.get("on_text")
        if on_text is None:
            return await begin(self._record(options))
        if not callable(on_text):
            raise ConfigurationError(f"on_text= is {on_text!r:.80}; give a callable that takes a str, such as print")
        listener = Listener(on_text)
        return await listener.listen(begin(self._record(options, tell=listener.tell)))

    def run_sync(self, target: Target, input: Input, **options: Unpack[RunOptions]) -> Result:
        """`run` for code that is not async.

        Raises:
            ContractError: inside a running event loop.
        """
        try:
            anyio.get_current_task()
        except RuntimeError:  # no event loop runs in this thread, as it should be
            return anyio.run(partial(self.run, target, input, **options))
        raise ContractError("app.run_sync() was called inside a running event loop; write: await app.run(...)")

    def stream(self, target: Target, input: Input, *, resets: bool = True, **options: Unpack[StreamOptions]) -> Stream:
        """Run an agent and read its events: `async with app.stream(...) as stream: async for event in stream: ...`.

        What was streamed of a turn since its last `TextReset` is what the result says. For the text alone:
        `async for piece in stream.text()`, which is append-only.

        Args:
            target: as in `run`.
            input: as in `run`.
            resets: whether text may be taken back by a `TextReset`. Without (`False`), what may still change the text
                delays it, unless it is marked `@observes`.
            options: see `StreamOptions`.

        Raises:
            ConfigurationError: for a keyword that it does not have.
        """
        history = history_of(options.get("history", ()))
        return self._streamed(options, lambda run: execute(run, target, input, history), resets)

    def _streamed(self, options: ExchangeOptions, begin: Begin, resets: bool) -> Stream:
        """A stream of the run that `begin` begins."""
        refuse_unknown(options, "stream()", RunOptions.__annotations__)
        if options.get("on_text") is not None:
            raise ConfigurationError(
                "stream() has no on_text=; read stream.text(), or give it to app.run(..., on_text=...)"
            )

        async def start(stream: Stream) -> Result:
            return await begin(self._record(options, stream))

        return Stream(start, resets)

    def conversation(
        self,
        target: Target,
        *,
        history: Sequence[MessageBase | Mapping[str, Any]] = (),
        sessions: Sessions | None = None,
        id: str | None = None,
        **options: Unpack[ExchangeOptions],
    ) -> Conversation:
        """A conversation: exchanges one after the other, in which what was said before is the history.

        Args:
            target: as in `run`.
            history: what was said before; a store that has the conversation goes before it.
            sessions: the store that keeps it, such as `SqliteSessions(path)`; default: this object alone.
            id: what the store knows it by; default, without a store alone: made up.
            options: of each of its runs; see `ExchangeOptions`.

        Raises:
            ConfigurationError: for something that is no target, or a store without an id.
        """
        refuse_unknown(options, "app.conversation()", ExchangeOptions.__annotations__)
        if sessions is not None and not id:
            raise ConfigurationError("app.conversation(sessions=) got no id; give what the store is to know it by")
        said, known_as = history_of(history), id or os.urandom(8).hex()
        return Conversation(self, self._listened, self._streamed, target, said, options, sessions, known_as)

    def _record(self, options: ExchangeOptions, stream: Stream | None = None, tell: Tell | None = None) -> Run:
        refuse_unknown(options, "app.run()", RunOptions.__annotations__)
        stack = self._stack
        use, guardrails = options.get("use"), options.get("guardrails")
        if use is not None or guardrails is not None:
            guards = _found(read_guardrails(guardrails, "app.run()"))
            stack = stack.for_run(read_layers(() if use is None else use, {}, None, "use=").and_more(guards))
        limits = options.get("limits")
        data = options.get("data")
        if data is not None and not isinstance(data, Mapping):
            raise ConfigurationError(f"data= is {data!r:.80}; give a mapping of names to values")
        return Run(
            id=options.get("run_id") or os.urandom(8).hex(),
            app=self,
            bus=Bus(stack.observers, stream),
            engine=_DELEGATION,
            stack=stack,
            limits=self.limits if limits is None else _limits(limits, "app.run()"),
            own_limits=limits is not None,
            models=self._models,
            override=self._override,
            state=options.get("state"),
            data=data,
            streaming=stream is not None or tell is not None,
            append_only=tell is not None or (stream is not None and stream.append_only),
            tell=tell,
        )

    def agent_named(self, name: str) -> Agent | type[Agent]:
        """The agent of that name among those given as `App(agents=)`.

        Raises:
            ConfigurationError: when there is none.
        """
        agent = self.agents.get(name)
        if agent is None:
            known = ", ".join(self.agents) or "none; give them with App(agents=[...])"
            raise ConfigurationError(f"the app {self.name!r} has no agent {name!r}; it has: {known}")
        return agent

    def explain(self, target: Target) -> Chain:
        """What wraps what for an agent, outermost first: print it.

        Args:
            target: an agent, an agent class, or the name of one of `App(agents=)`.

        Raises:
            ConfigurationError: when that is put together wrongly.
        """
        agent = agent_for(self, target)
        return explain(self, self._stack, plan_of(agent if isinstance(agent, Agent) else object_of(agent)))

    def check(self, *targets: Target) -> None:
        """Refuse what is put together wrongly, all of it at once, without running anything.

        Args:
            targets: what to look at; default: all of `App(agents=)`.

        Raises:
            ConfigurationError: when something is; each of its `issues` says what and the fix.
        """
        check(self, self._stack, targets)

    @contextmanager
    def override(
        self, *, model: Model | str | None = None, tools: Mapping[str, Callable[..., Any]] | None = None
    ) -> Generator[None]:
        """Put others in the place of models and tools, for the runs that begin meanwhile: `with app.override(...):`.

        Layers, hooks and schemas stay as they are. Overrides nest.

        Args:
            model: answers every model call, whatever agents and layers say; default: those.
            tools: by the name of a tool, the function that runs in its place, sync or async, with the same arguments.

        Raises:
            ConfigurationError: for something that is no model or function; when the block ends, for the name of a tool
                that no agent of the app has and that no run has called.
        """
        check_model(model, "app.override()")
        outer, self._override = self._override, Override(model, {} if tools is None else tools, self._override)
        override = self._override
        try:
            yield
        finally:
            self._override = outer
        override.check_names(known_tools(self, *self.agents.values()))

    def warn_of_unknown_names(self, stack: Stack, plan: Plan) -> None:
        """Warn once of each name in an `only=` that neither the target, nor an agent of the app, nor a tool bears."""
        if stack.names(plan) <= self._warned:
            return
        for warning, name in stack.unknown_names(plan, known_names(self, plan)).items():
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(warning, stacklevel=2)

    def __repr__(self) -> str:
        return f"App(name={self.name!r}, agents=[{', '.join(self.agents)}])"


def _limits(limits: object, where: str) -> Limits:
    if not isinstance(limits, Limits):
        raise ConfigurationError(f"{where}: limits= is {limits!r:.80}; give Limits(...)")
    return limits


def _found(guards: Guardrails) -> Found:
    return Found(input=guards.input, output=guards.output)


def _by_name(agents: Iterable[Agent | type[Agent]]) -> dict[str, Agent | type[Agent]]:
    if isinstance(agents, Agent | type | str) or not isinstance(agents, Iterable):
        raise ConfigurationError(f"App(agents=) got {agents!r:.80}; give a list of agents")
    named: dict[str, Agent | type[Agent]] = {}
    for agent in agents:
        if not isinstance(agent, Agent) and not (isinstance(agent, type) and issubclass(agent, Agent)):
            raise ConfigurationError(f"App(agents=) got {agent!r:.80}; give agents or agent classes")
        name = name_of_agent(agent)
        if name in named:
            raise ConfigurationError(f"App(agents=) has two agents named {name!r}; rename one with Agent(name=...)")
        named[name] = agent
    return named


async def run(
    target: Agent | type[Agent], input: Input, *, model: Model | str | None = None, **options: Unpack[RunOptions]
) -> Result:
    """Run an agent without an app, once.

    Args:
        target: an agent or an agent class.
        input: what it is asked.
        model: who answers where the agent names no model.
        options: see `RunOptions`.
    """
    return await App(model=model).run(target, input, **options)
