"""Agents: what one is made of, and the plan that the runtime works by.

An agent is data and hooks, or a `run` of its own. It starts nothing itself: `app.run(agent, ...)` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from typing_extensions import TypedDict, Unpack

from middlechain.chain import name_of, settle
from middlechain.chat import DEFAULT_SETTINGS, Model, Settings
from middlechain.context import Context
from middlechain.errors import ConfigurationError
from middlechain.guards import NO_GUARDRAILS, Guardrails, read_guardrails
from middlechain.layers import read_layers
from middlechain.limits import Limits
from middlechain.messages import Input, Part, User
from middlechain.nested import agent_tool
from middlechain.records import this_step
from middlechain.registry import check_model
from middlechain.results import Result
from middlechain.structured import structure_of
from middlechain.tool_calls import ToolCall, ToolResult
from middlechain.tools import Tool, ToolOutput, tools_of

__all__ = ["Agent", "AgentHooks", "Plan", "name_of_agent", "plan_of"]

Prompt: TypeAlias = str | Awaitable[str]

T = TypeVar("T")
Maybe: TypeAlias = T | Awaitable[T | None] | None


class AgentHooks:
    """The hooks and their signatures, for editors and type checkers. Inheriting it adds no calls.

    A returned value replaces, None keeps. Each may be sync or async.
    """

    def before_run(self, input: Input, ctx: Context[Any], /) -> Maybe[str | Sequence[Part] | User]:
        """The step's input, before anything else."""
        return None

    def before_prompt(self, prompt: str, ctx: Context[Any], /) -> Maybe[str]:
        """The system prompt, before each model call; `""` sends none."""
        return None

    def before_tool(self, call: ToolCall, ctx: Context[Any], /) -> Maybe[ToolCall]:
        """A tool call, before its layers; a new name is looked up, new arguments are checked, the id stays."""
        return None

    def after_tool(self, result: ToolResult, ctx: Context[Any], /) -> Maybe[str | ToolOutput]:
        """A tool's result: a str replaces the text and keeps the error mark, a `ToolOutput` replaces both."""
        return None

    def after_response(self, response: str, ctx: Context[Any], /) -> Maybe[str]:
        """The text of the answer, once per step, before it enters the history."""
        return None

    def after_run(self, result: Result, ctx: Context[Any], /) -> Maybe[Result | str]:
        """The step's result."""
        return None

    def on_error(self, error: Exception, ctx: Context[Any], /) -> Maybe[str]:
        """Any exception of the step; a returned text is a degraded answer in its place."""
        return None


INWARD = ("before_run", "before_prompt", "before_tool")
OUTWARD = ("after_tool", "after_response", "after_run", "on_error")
HOOKS = INWARD + OUTWARD


class AgentOptions(TypedDict, total=False):
    """The keywords of `Agent`, which are also the class attributes of a subclass."""

    name: str
    model: Model | str | None
    instructions: str | Path | Callable[[Context[Any]], Prompt]
    tools: Iterable[Tool | Callable[..., Any]]
    hooks: Iterable[object]
    settings: Settings
    limits: Limits | None
    description: str
    middleware: Iterable[object]
    guardrails: Guardrails | Mapping[str, Iterable[object]] | None
    handoffs: Iterable[Agent | type[Agent] | str]
    output: Any
    output_retries: int


_OPTIONS = tuple(AgentOptions.__annotations__)
_CALLERS = {
    "run": "await app.run(agent, ...)",
    "run_sync": "app.run_sync(agent, ...)",
    "stream": "app.stream(agent, ...)",
}


class _AsTool:
    """`as_tool` of an agent, and of an agent class, which gives one object of it for each run."""

    def __get__(self, agent: Agent | None, cls: type[Agent]) -> _ToolOf:
        return _ToolOf(cls if agent is None else agent)


class _ToolOf:
    def __init__(self, agent: Agent | type[Agent]) -> None:
        self._agent = agent

    def __call__(self, name: str | None = None, description: str | None = None) -> Tool:
        """A tool that asks this agent: one argument, `input`, a history of its own, and its answer's text back.

        Args:
            name: default: the agent's name, with `_` for what no tool's name may have.
            description: default: the agent's own.

        Raises:
            ConfigurationError: for a name that no server takes.
        """
        return agent_tool(self._agent, name_of_agent(self._agent), name, description)


class Agent(AgentHooks):
    """An agent: a model with instructions and tools, and hooks as methods of a subclass.

    A subclass with a method `run(self, input, ctx)` owns its step: that method takes the place of the turns, calls
    `ctx.chat(...)` and `ctx.call_tool(...)` as it likes, and returns the answer, a str or a `Result`. No hook fires.

    Args:
        name: default: the name of the class.
        model: who answers: an object with `chat`, or a name such as `"openai:gpt-5"` or `"demo"`; default: the app's.
        instructions: the system prompt: text, the `pathlib.Path` of a text file, or a callable of `ctx`; default: none.
        tools: what the model may call.
        hooks: objects with any of the hook methods, or mappings of hook name to function.
        settings: how the model is to answer.
        limits: for each step of this agent, on top of those of the run.
        description: what others are told of it.
        middleware: layers around this agent's calls, inside those of the app: bundles, or `Layers(chat=...)`.
        guardrails: guards of this agent's steps, after those of the app: `{"input": [...], "output": [...]}`.
        handoffs: agents that the model may hand the conversation over to, by `transfer_to_<name>`: agents, agent
            classes, or names of agents of the app.
        output: type of the answer, anything that pydantic has a JSON schema for; default: text. The model is sent the
            schema, and `Result.output` is the answer as that type.
        output_retries: how often an answer that does not fit the type goes back to the model; default 2.

    Raises:
        ConfigurationError: for an unknown keyword, a method named like a hook that is none, two tools or two handoffs
            of one name, an unknown model prefix, an output type without a JSON schema, or a file of instructions that
            cannot be read.
    """

    name: str = "Agent"
    model: Model | str | None = None
    instructions: (
        str
        | Path
        | Callable[[Context[Any]], Prompt]
        | Callable[[Any, Context[Any]], Prompt]  # a method, before it is bound
        | Callable[[], Prompt]  # a function of ctx alone, as a type checker binds it
    ) = ""
    tools: Iterable[Tool | Callable[..., Any]] = ()
    hooks: Iterable[object] = ()
    settings: Settings = DEFAULT_SETTINGS
    limits: Limits | None = None
    description: str = ""
    middleware: Iterable[object] = ()
    guardrails: Guardrails | Mapping[str, Iterable[object]] | None = None
    handoffs: Iterable[Agent | type[Agent] | str] = ()
    output: Any = None
    output_retries: int = 2
    as_tool = _AsTool()
    _is_named = False  # whether the class, or one that it inherits from, says what its name is
    pack_guards: Guardrails = NO_GUARDRAILS  # of an agent that was loaded from a pack; they come before the app's

    def __init__(self, **options: Unpack[AgentOptions]) -> None:
        for name in options:
            _check_option(name, type(self))
        for name, value in options.items():
            setattr(self, name, value)
        plan_of(self)  # so that what is wrong shows here

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if vars(cls).get("name"):
            cls._is_named = True
        elif not cls._is_named:
            cls.name = cls.__name__
        _check_hook_names(cls, cls.__name__)
        tools_of(cls.tools, cls.__name__) if isinstance(cls.tools, list | tuple | Tool) else None
        check_model(cls.model, cls.__name__) if not hasattr(cls.model, "__get__") else None

    def __setattr__(self, name: str, value: Any) -> None:
        if (
            name in {"tools", "hooks", "middleware", "handoffs"}
            and isinstance(value, Iterable)
            and not isinstance(value, str | Mapping)
        ):
            value = tuple(value)  # what is changed afterwards would not be seen
        object.__setattr__(self, name, value)
        if name in _OPTIONS or name in HOOKS:
            vars(self).pop("_plan", None)

    if not TYPE_CHECKING:  # or a type checker would take any attribute for one

        def __getattr__(self, name: str) -> Any:
            if name in _CALLERS:
                raise AttributeError(f"an agent does not run by itself; write {_CALLERS[name]}", name=name, obj=self)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def ctx(self) -> Context[Any]:
        """The context of the step that this code runs in."""
        return this_step().ctx

    @property
    def state(self) -> Any:
        """The state of the run that this code runs in."""
        return this_step().run.state

    def __repr__(self) -> str:
        name = self.name or type(self).__name__
        return f"{type(self).__name__}(name={name!r})"


def _check_option(name: str, cls: type) -> None:
    if name in _OPTIONS:
        return
    if name in HOOKS:
        raise ConfigurationError(
            f"{cls.__name__}: a hook is not a keyword; write hooks=[{{{name!r}: function}}], or a method"
        )
    near = get_close_matches(name, _OPTIONS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(_OPTIONS)}"
    raise ConfigurationError(f"{cls.__name__} has no option {name!r}; {hint}")


def _check_hook_names(source: object, owner: str, but: str = "") -> None:
    for name in dir(source):
        if name == but:
            continue
        if name.startswith(("before_", "after_", "on_")) and name not in HOOKS and callable(getattr(source, name)):
            near = get_close_matches(name, HOOKS, 1, cutoff=0)[0]
            raise ConfigurationError(
                f"{owner} has a method {name!r}, which is named like a hook and is none; did you mean {near!r}? "
                f"The hooks are {', '.join(HOOKS)}; give a helper another name, or a leading underscore"
            )


def name_of_agent(agent: Agent | type[Agent]) -> str:
    """Its name, which by default is that of the class."""
    return agent.name or (agent if isinstance(agent, type) else type(agent)).__name__


class Plan:
    """What the runtime works by: an agent's options, checked and looked up once."""

    __slots__ = (
        "__weakref__",
        "agent",
        "asked",
        "by_name",
        "conduct",
        "found",
        "guards",
        "handoffs",
        "hooks",
        "instructions",
        "key",
        "limits",
        "model",
        "name",
        "output",
        "output_retries",
        "own_run",
        "pack_guards",
        "settings",
        "tools",
    )

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.key: type[Agent] | None = None  # the class, for an instance that belongs to one run
        self.name = name_of_agent(agent)
        self.model = agent.model
        self.settings = self.asked = agent.settings  # of what code asks, and of the step's own turns
        self.limits = agent.limits
        check_model(self.model, self.name)
        if not isinstance(self.name, str):
            raise ConfigurationError(f"the name of an agent is {self.name!r:.80}; give a str")
        if not isinstance(self.settings, Settings):
            raise ConfigurationError(f"the settings of {self.name} are {self.settings!r:.80}; give Settings(...)")
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise ConfigurationError(f"the limits of {self.name} are {self.limits!r:.80}; give Limits(...)")
        self.instructions = _instructions(agent.instructions, self.name)
        self.tools = tools_of(agent.tools, self.name)
        self.by_name = {tool.name: tool for tool in self.tools}
        run = getattr(agent, "run", None) if hasattr(type(agent), "run") else None
        self.own_run: Callable[[Input, Context[Any]], Any] | None = run  # of an agent that owns its step
        self.hooks: Mapping[str, tuple[Callable[..., Any], ...]] = (
            _hooks(agent, self.name) if run is None else dict.fromkeys(HOOKS, ())
        )
        self.conduct: Callable[..., Coroutine[Any, Any, Result]] | None = getattr(agent, "_conduct", None)  # of a flow
        self.handoffs = _handoffs(agent.handoffs, self.name)
        self.output = structure_of(agent.output, self.name)
        self.output_retries = agent.output_retries
        if type(self.output_retries) is not int or self.output_retries < 0:
            raise ConfigurationError(
                f"the output_retries of {self.name} are {self.output_retries!r:.60}; give a whole number from 0 up"
            )
        if self.output is not None:
            self.asked = self.output.settings(self.settings)
            if isinstance(self.instructions, str):
                self.instructions = self.output.instructions(self.instructions)
        self.found = read_layers(agent.middleware, {}, None, f"Agent({self.name!r}, middleware=)")
        self.guards = read_guardrails(agent.guardrails, f"Agent({self.name!r})")
        self.pack_guards = agent.pack_guards
        if self.found.observers:
            raise ConfigurationError(f"the middleware of {self.name} has an on_event(); give that bundle to app.use()")

    async def prompt(self, ctx: Context[Any]) -> str:
        """The system prompt as the agent has it; `""` for none."""
        prompt = self.instructions if isinstance(self.instructions, str) else await settle(self.instructions(ctx))
        if not isinstance(prompt, str):
            raise ConfigurationError(
                f"the instructions {name_of(self.instructions)!r} of {self.name} gave {prompt!r:.60}; return a str"
            )
        if self.output is None or isinstance(self.instructions, str):
            return prompt
        return self.output.instructions(prompt)


def plan_of(agent: Agent) -> Plan:
    """The agent's plan, made when it is first asked for and again after an option has changed."""
    plan: Plan | None = vars(agent).get("_plan")
    if plan is None or plan.agent is not agent:  # a copy of an agent brings the other's plan along
        plan = vars(agent)["_plan"] = Plan(agent)
    return plan


def _handoffs(given: object, owner: str) -> tuple[Agent | type[Agent] | str, ...]:
    if isinstance(given, str | type | Agent) or not isinstance(given, Iterable):
        raise ConfigurationError(f"the handoffs of {owner} are {given!r:.80}; give a list: handoffs=[agent]")
    targets = tuple(given)
    names: set[str] = set()
    for target in targets:
        if not isinstance(target, str | Agent) and not (isinstance(target, type) and issubclass(target, Agent)):
            raise ConfigurationError(
                f"the handoffs of {owner} have {target!r:.80}; give agents, agent classes, or names of the app's"
            )
        name = target if isinstance(target, str) else name_of_agent(target)
        if name in names:
            raise ConfigurationError(
                f"{owner} has two handoffs to agents named {name!r}; rename one with Agent(name=...)"
            )
        names.add(name)
    return targets


def _instructions(given: object, owner: str) -> str | Callable[[Context[Any]], Any]:
    if isinstance(given, Path):
        try:
            return given.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"the instructions of {owner} cannot be read from {str(given)!r} ({error}); "
                "give the path of a text file"
            ) from error
    if isinstance(given, str):
        return given
    if callable(given):
        return _unbound(given)
    raise ConfigurationError(
        f"the instructions of {owner} are {given!r:.80}; give text, the Path of a text file, or a callable of ctx"
    )


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `ctx` alone that was written as a class attribute, without the self that Python put before it."""
    plain = getattr(function, "__func__", None)
    if plain is not None and len(inspect.signature(plain).parameters) == 1:
        return cast("Callable[..., Any]", plain)
    return function


def _hooks(agent: Agent, owner: str) -> Mapping[str, tuple[Callable[..., Any], ...]]:
    """The functions of each hook in the order in which they run."""
    if isinstance(agent.hooks, str | Mapping) or not isinstance(agent.hooks, Iterable):
        raise ConfigurationError(f"the hooks of {owner} are {agent.hooks!r:.80}; give a list of objects or mappings")
    sources = [_functions(item, owner) for item in agent.hooks]
    own = {
        name: getattr(agent, name)
        for name in HOOKS
        if getattr(type(agent), name, None) is not getattr(AgentHooks, name) or name in vars(agent)
    }
    sources.append(own)
    hooks = {}
    for name in HOOKS:
        functions = [source[name] for source in sources if name in source]
        hooks[name] = tuple(functions if name in INWARD else reversed(functions))
    return hooks


def _functions(source: object, owner: str) -> Mapping[str, Callable[..., Any]]:
    if isinstance(source, Mapping):
        for name, function in source.items():
            if name not in HOOKS or not callable(function):
                raise ConfigurationError(
                    f"the hooks of {owner} have {name!r}: {function!r:.60}; "
                    f"map the name of a hook ({', '.join(HOOKS)}) to a function"
                )
        return cast("Mapping[str, Callable[..., Any]]", source)
    if isinstance(source, type):
        raise ConfigurationError(
            f"the hooks of {owner} have the class {source.__name__}; give an object of it: {source.__name__}()"
        )
    _check_hook_names(source, f"{type(source).__name__} in the hooks of {owner}", but="on_event")
    found = {
        name: getattr(source, name)
        for name in HOOKS
        if callable(getattr(source, name, None)) and getattr(type(source), name, None) is not getattr(AgentHooks, name)
    }
    if not found and not isinstance(source, AgentHooks):
        raise ConfigurationError(
            f"the hooks of {owner} have {source!r:.80} without any hook; give objects with methods such as "
            "before_tool, or mappings such as {'before_tool': function}"
        )
    return found
