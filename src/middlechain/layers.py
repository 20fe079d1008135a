"""Which layers apply where: bundles, `Layers`, `only=`, and the stack that an app keeps of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from middlechain.bus import Observer
from middlechain.chain import Layer, Next, check_layer, name_of
from middlechain.errors import ConfigurationError
from middlechain.guards import Guard, StepGuards
from middlechain.lifespan import has_lifespan
from middlechain.tools import Tool

if TYPE_CHECKING:
    from middlechain.agent import Plan
    from middlechain.chat import ChatCall, ChatReply
    from middlechain.results import AgentCall, Result, RunCall
    from middlechain.tool_calls import ToolCall
    from middlechain.tools import ToolOutput

__all__ = ["Found", "Layers", "Registration", "Stack", "read_layers"]

KINDS = ("run", "agent", "chat", "tool")

Call = TypeVar("Call")
Answer = TypeVar("Answer")
Typed: TypeAlias = Callable[[Call, Next[Call, Answer]], Answer | str | Awaitable[Answer | str | None] | None]


class Named(Protocol):
    """An agent, an agent class, or a tool."""

    @property
    def name(self) -> str: ...


class Function(Protocol):
    """A plain function among an agent's `tools=`, whatever it takes."""

    @property
    def __name__(self) -> str: ...


OneLimit: TypeAlias = str | Named | Function | Callable[[Any], Any]
LimitedTo: TypeAlias = OneLimit | Collection[OneLimit] | None
OneOrMore: TypeAlias = Typed[Call, Answer] | Sequence[Typed[Call, Answer]] | None


@dataclass(frozen=True, slots=True)
class Layers:
    """Bare functions as a bundle, for `Agent(middleware=[...])` and `use=[...]`.

    Args:
        run: one layer around runs, or a list; likewise the others.
        agent: around steps.
        chat: around model calls.
        tool: around tool calls.
        only: agents, tools, names of either, or a predicate of the call; default: no limit.
    """

    run: OneOrMore[RunCall, Result] = field(default=None, kw_only=True)
    agent: OneOrMore[AgentCall, Result] = field(default=None, kw_only=True)
    chat: OneOrMore[ChatCall, ChatReply] = field(default=None, kw_only=True)
    tool: OneOrMore[ToolCall, ToolOutput] = field(default=None, kw_only=True)
    only: LimitedTo = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if all(getattr(self, kind) is None for kind in KINDS):
            raise ConfigurationError("Layers() holds no layer; give it one, such as Layers(chat=log)")


class Only:
    """To which calls a layer is limited."""

    __slots__ = ("_agents", "_given", "_predicates", "_tools", "names")

    def __init__(self, given: Any) -> None:
        self._given = given
        self._agents: list[Any] = []
        self._tools: list[Tool] = []
        self._predicates: list[Callable[[Any], bool]] = []
        self.names: set[str] = set()
        items = given if isinstance(given, list | tuple | set | frozenset) else [given]
        if not items:
            raise ConfigurationError("only= is empty, so its layer would never apply; name something, or leave it out")
        for item in items:
            if isinstance(item, str):
                self.names.add(item)
            elif isinstance(item, Tool):
                self._tools.append(item)
            elif isinstance(item, type) or (not callable(item) and hasattr(item, "name")):
                self._agents.append(item)
            elif callable(item):
                self._predicates.append(cast("Callable[[Any], bool]", item))
            else:
                raise ConfigurationError(
                    f"only= got {item!r:.80}; give agents, tools, names of either, or a predicate of the call"
                )

    @property
    def all_names(self) -> set[str]:
        """The names in it, and those of the tools in it."""
        return {*self.names, *(tool.name for tool in self._tools)}

    def __str__(self) -> str:
        """As it was written."""
        items = self._given if isinstance(self._given, list | tuple | set | frozenset) else [self._given]
        shown = [repr(item) if isinstance(item, str) else _name(item) for item in items]
        return shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"

    def reach(self, kind: str, plan: Plan) -> bool | Callable[[Any], bool]:
        """Whether the layer applies to that agent's calls of that kind: always, never, or as a condition says."""
        if plan.name in self.names or any(
            isinstance(plan.agent, one) if isinstance(one, type) else plan.agent is one for one in self._agents
        ):
            return True
        # A plain function among the agent's tools is that tool, not a predicate to be called. A tool is known by its
        # function: each object of an agent class makes its own tools, and all share what is folded here.
        plain = [tool.function for tool in plan.tools if tool.function in self._predicates]
        functions = [*(tool.function for tool in self._tools), *plain]
        predicates = [predicate for predicate in self._predicates if predicate not in functions]

        def applies(call: Any) -> bool:
            return any(predicate(call) for predicate in predicates)

        if kind == "tool" and (self.names or functions):
            return lambda call: (
                call.name in self.names or (call.tool is not None and call.tool.function in functions) or applies(call)
            )
        return applies if predicates else False


def _name(item: object) -> str:
    name = getattr(item, "name", "")
    return name if name and isinstance(name, str) else name_of(item)


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """One layer of one kind, with what it is limited to."""

    kind: str
    layer: Layer
    only: Only | None


class Found(NamedTuple):
    """What was registered: layers and observers in nesting order, what is to be started first, and guards."""

    registrations: tuple[Registration, ...] = ()
    observers: tuple[Observer, ...] = ()
    starters: tuple[object, ...] = ()
    input: tuple[Guard, ...] = ()
    output: tuple[Guard, ...] = ()

    def and_more(self, other: Found) -> Found:
        """Both, the other one's layers inside."""
        return Found(
            self.registrations + other.registrations,
            self.observers + other.observers,
            self.starters + other.starters,
            self.input + other.input,
            self.output + other.output,
        )


def read_layers(bundles: Iterable[object], layers: Mapping[str, Any], only: Any, where: str) -> Found:
    """What was given to `where`.

    Args:
        bundles: objects with methods `run`, `agent`, `chat`, `tool`, `on_event`, or `Layers`.
        layers: bare layers by kind.
        only: what all of them are limited to.
        where: for messages.

    Raises:
        ConfigurationError: for a bare function, an object without such a method, or a layer that is not callable.
    """
    if isinstance(bundles, Layers | str) or not isinstance(bundles, Iterable):
        raise ConfigurationError(f"{where} got {bundles!r:.80}; give a list of bundles, such as [Layers(chat=log)]")
    limit = None if only is None else Only(only)
    registrations: list[Registration] = []
    observers: list[Observer] = []
    starters: list[object] = []
    for bundle in bundles:
        if isinstance(bundle, Layers):
            if bundle.only is not None and limit is not None:
                raise ConfigurationError(f"{where} has an only= and so have its Layers(); give it in one place")
            own = limit if bundle.only is None else Only(bundle.only)
            registrations += _bare({kind: getattr(bundle, kind) for kind in KINDS}, own, where)
            continue
        _check_bundle(bundle, where)
        registrations += [
            Registration(kind, getattr(bundle, kind), limit) for kind in KINDS if callable(getattr(bundle, kind, None))
        ]
        if callable(getattr(bundle, "on_event", None)):
            observers.append(bundle.on_event)  # type: ignore[attr-defined]  # just looked up
        if has_lifespan(bundle):
            starters.append(bundle)
    return Found((*registrations, *_bare(layers, limit, where)), tuple(observers), tuple(starters))


def _bare(layers: Mapping[str, Any], only: Only | None, where: str) -> list[Registration]:
    registrations = []
    for kind, given in layers.items():
        for layer in [] if given is None else given if isinstance(given, list | tuple) else [given]:
            check_layer(layer, f"{where} {kind}=")
            registrations.append(Registration(kind, cast("Layer", layer), only))
    return registrations


def _check_bundle(bundle: object, where: str) -> None:
    if isinstance(bundle, type):
        raise ConfigurationError(f"{where} got the class {bundle.__name__}; give an object of it: {bundle.__name__}()")
    found = [method for method in (*KINDS, "on_event", "start", "stop") if callable(getattr(bundle, method, None))]
    if not found and callable(bundle):
        raise ConfigurationError(
            f"{where} got the function {name_of(bundle)!r} without its scope; "
            f"say which calls it wraps, such as chat={name_of(bundle)}"
        )
    if not found:
        raise ConfigurationError(
            f"{where} got {bundle!r:.80}, which has none of the methods run, agent, chat, tool, on_event, start and "
            "stop; give a bundle, or a layer by its scope, such as chat=log"
        )


Condition: TypeAlias = Callable[[Any], bool] | None


class Stack:
    """The layers of an app, or of one run, as they were at one time. It never changes; more layers are a new one."""

    __slots__ = ("_chains", "found", "observers", "of_run", "starters")

    def __init__(self, found: Found = Found(), of_run: Found = Found()) -> None:  # noqa: B008 - it is immutable
        self.found = found
        self.of_run = of_run
        self.observers = found.observers + of_run.observers
        self.starters = found.starters + of_run.starters  # before a run
        self._chains: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()

    def with_more(self, found: Found) -> Stack:
        """This stack with further app layers inside."""
        return Stack(self.found.and_more(found))

    def for_run(self, found: Found) -> Stack:
        """This stack with the layers of one run, innermost."""
        return Stack(self.found, found)

    def guards_of(self, plan: Plan) -> StepGuards | None:
        """The guards around an agent's steps: a pack's, the app's, the agent's, those of one run; None for none."""
        places = (plan.pack_guards, self.found, plan.guards, self.of_run)
        guards = StepGuards(
            tuple(guard for place in places for guard in place.input),
            tuple(guard for place in places for guard in place.output),
        )
        return guards if guards.input or guards.output else None

    def around(self, plan: Plan) -> tuple[Registration, ...]:
        """All layers that may wrap an agent's calls, outermost first."""
        return (*self.found.registrations, *plan.found.registrations, *self.of_run.registrations)

    def chains_of(self, plan: Plan) -> dict[str, Any]:
        """The folded chains around an agent's calls by scope; the rooms that know the endpoints fill it in, once."""
        key = plan if plan.key is None else plan.key
        chains = self._chains.get(key)
        if chains is None:
            chains = self._chains[key] = {}
        return chains

    def applying(self, kind: str, plan: Plan) -> list[tuple[Layer, Condition]]:
        """The layers around an agent's calls of one kind, outermost first, each with its condition."""
        layers: list[tuple[Layer, Condition]] = []
        for registration in self.around(plan):
            if registration.kind != kind:
                continue
            reach = True if registration.only is None else registration.only.reach(kind, plan)
            if reach is True:
                layers.append((registration.layer, None))
            elif reach is not False:
                layers.append((registration.layer, reach))
        return layers

    def names(self, plan: Plan) -> set[str]:
        """The names in the `only=` of all layers."""
        names: set[str] = set()
        for registration in self.around(plan):
            if registration.only is not None:
                names |= registration.only.names
        return names

    def unknown_names(self, plan: Plan, known: set[str], tools: bool = False) -> dict[str, str]:
        """The names in an `only=` (of `tools` in it, too) that nothing known bears, by the sentence that says so."""
        return {
            f"only={name!r} of the {registration.kind} layer {name_of(registration.layer)!r} names no agent or tool "
            f"that is known from here (known: {', '.join(sorted(known))}); correct the name, or give the agent to "
            "App(agents=[...])": name
            for registration in self.around(plan)
            if registration.only is not None
            for name in sorted((registration.only.all_names if tools else registration.only.names) - known)
        }
