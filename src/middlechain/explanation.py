"""What wraps what for an agent, as `app.explain(agent)` shows it. It says what the engine does; it decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from middlechain.agent import Agent, Plan, plan_of
from middlechain.chain import name_of
from middlechain.guards import Guard, Guardrails, StepGuards
from middlechain.holds import holds_back
from middlechain.layers import Found, Registration, Stack
from middlechain.limits import Limits
from middlechain.members import Flow, is_agent
from middlechain.targets import agent_for, object_of, tools_with_transfers

if TYPE_CHECKING:
    from middlechain.app import App

__all__ = ["Branch", "Chain", "Link", "explain"]


@dataclass(frozen=True, slots=True)
class Link:
    """One thing that a call meets on its way.

    Args:
        scope: `"run"`, `"agent"`, `"chat"` or `"tool"`.
        kind: `"layer"`, `"observer"`, `"input guard"`, `"output guard"`, the name of a hook, `"limits"`,
            `"validation"`, `"model"`, `"tools"` or `"run"`.
        name: of the function, or of the object as its repr says.
        owner: who it is registered with: `"app"`, `"agent"` or `"pack"`; `""` for what belongs to the runtime.
        only: what it is limited to, as it was written; `""` for no limit.
        holds: which text it holds back: a guard in any stream, others in an append-only one; `""` for none.
        crash: where an exception of it goes.
    """

    scope: str
    kind: str
    name: str
    owner: str = ""
    only: str = ""
    holds: str = ""
    crash: str = ""

    def __str__(self) -> str:
        """The kind and the name, and of whom."""
        only = f", only={self.only}" if self.only else ""
        return f"{self.kind} {self.name}{only}{f' ({self.owner})' if self.owner else ''}"

    @property
    def remarks(self) -> str:
        """What it does to text on its way, and where its exceptions go."""
        may_hold = self.kind in {"layer", "output guard", *_HELD_BY_HOOK}
        holds = f"holds {self.holds or 'nothing'}" if may_hold else ""
        return "; ".join(filter(None, (holds, f"a crash {self.crash}" if self.crash else "")))


Item: TypeAlias = "Link | Branch"


@dataclass(frozen=True, slots=True)
class Branch:
    """A scope, or a part of one, with what is in it: the outermost first."""

    title: str
    items: tuple[Item, ...]

    def __iter__(self) -> Iterator[Link]:
        for item in self.items:
            if isinstance(item, Branch):
                yield from item
            else:
                yield item


@dataclass(frozen=True, slots=True)
class Chain:
    """The effective chain of an agent in an app; `print` it.

    Args:
        root: the tree of it.
    """

    root: Branch

    @property
    def links(self) -> tuple[Link, ...]:
        """All links, outermost first within their scope: run, agent, chat, tool."""
        return tuple(self.root)

    def __str__(self) -> str:
        """One link a line, indented under what it lies in."""
        rows = [(self.root.title, ""), *_rows(self.root, "")]
        width = min(60, max((len(left) for left, right in rows if right), default=0))
        return "\n".join(f"{left:{width}}  {right}".rstrip() for left, right in rows)


def _rows(branch: Branch, indent: str) -> Iterator[tuple[str, str]]:
    for place, item in enumerate(branch.items):
        last = place == len(branch.items) - 1
        arm, stem = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(item, Branch):
            yield f"{indent}{arm}{item.title}", ""
            yield from _rows(item, indent + stem)
        else:
            yield f"{indent}{arm}{item}", item.remarks


_TO_CALLER = "goes to the caller"
_HELD = {"chat": "the whole reply", "agent": "all text of the step", "run": "all text of the run"}
_HELD_BY_HOOK = {"after_response": "the whole answer", "after_run": "all text of the step"}
_LIMITS = {"chat": ("turns", "chat_calls", "tokens", "cost"), "tool": ("tool_calls",)}


def explain(app: App, stack: Stack, plan: Plan) -> Chain:
    """What wraps what when that agent is the target of a run, or of a step."""
    return Chain(_Explanation(app, stack, plan).run())


class _Explanation:
    def __init__(self, app: App, stack: Stack, plan: Plan) -> None:
        self.app = app
        self.stack = stack
        self.plan = plan
        self.to_on_error = "goes to on_error" if plan.hooks["on_error"] else _TO_CALLER
        self.guarded = stack.guards_of(plan) or StepGuards((), ())

    def run(self) -> Branch:
        observers = [
            Link("run", "observer", _shown(observer), "app", crash="is logged and dropped")
            for observer in self.stack.observers
        ]
        if isinstance(self.plan.agent, Flow):
            inside = Branch(self.plan.agent.shown, tuple(self.members(self.plan.agent)))
        else:
            inside = Branch("agent, once per step", (*self.agent(),))
        title = f"{self.plan.name} in {self.app.name!r}, outermost first"
        return Branch(title, (Branch("run, once per run", (*observers, *self.layers("run", _TO_CALLER), inside)),))

    def members(self, flow: Flow) -> Iterator[Item]:
        for member in flow.members:
            if not is_agent(member):
                yield Link("flow", "function", name_of(member), "flow", crash=_TO_CALLER)
                continue
            agent = agent_for(self.app, member)
            plan = plan_of(agent if isinstance(agent, Agent) else object_of(agent))
            inner = _Explanation(self.app, self.stack, plan)
            if isinstance(plan.agent, Flow):
                yield Branch(f"{plan.name}: {plan.agent.shown}", tuple(inner.members(plan.agent)))
            else:
                yield Branch(f"{plan.name}: agent, once per step", (*inner.agent(),))

    def agent(self) -> Iterator[Item]:
        own_run = self.plan.own_run
        crash = self.to_on_error
        yield from self.hooks("agent", "on_error", "goes to the caller, caused by the first one")
        yield from self.guards("agent", "input", self.guarded.input)
        yield from self.guards("agent", "output", self.guarded.final)
        yield from self.layers("agent", crash)
        yield from self.hooks("agent", "before_run", crash)
        yield from self.hooks("agent", "after_run", crash)
        if own_run is not None:
            yield Link("agent", "run", name_of(own_run), "agent", crash=crash)
        yield from self.hooks("agent", "after_response", crash)
        yield Branch("chat, once per turn" if own_run is None else "chat, each ctx.chat()", (*self.chat(),))
        yield Branch("tool, once per tool call" if own_run is None else "tool, each ctx.call_tool()", (*self.tool(),))

    def chat(self) -> Iterator[Item]:
        model = self.app.model if self.plan.model is None else self.plan.model
        shown = "none: give the agent or the app one" if model is None else _model(model)
        yield from self.hooks("chat", "before_prompt", self.to_on_error)
        yield from self.guards("chat", "output", self.guarded.reply)
        yield from self.layers("chat", self.to_on_error)
        yield self.limits("chat")
        yield Link("chat", "model", shown, crash=self.to_on_error)

    def tool(self) -> Iterator[Item]:
        yield from self.hooks("tool", "before_tool", self.to_on_error)
        yield from self.hooks("tool", "after_tool", self.to_on_error)
        yield from self.layers("tool", self.to_on_error)
        yield self.limits("tool")
        yield Link("tool", "validation", "of the arguments")
        names = ", ".join(tool.name for tool in tools_with_transfers(self.app, self.plan)[0])
        yield Link("tool", "tools", names or "none", crash="is an error result for the model" if names else "")

    def guards(self, scope: str, side: str, guards: Sequence[Guard]) -> Iterator[Link]:
        for guard in guards:
            failed = "is recorded, and the text passes" if guard.on_failure == "allow" else "counts as a deny"
            held = _held(guard) if side == "output" else ""
            yield Link(scope, f"{side} guard", guard.name, self.owner(guard), "", held, failed)

    def owner(self, guard: Guard) -> str:
        places: Mapping[str, Guardrails | Found] = {
            "pack": self.plan.pack_guards,
            "app": self.stack.found,
            "agent": self.plan.guards,
        }
        return next(name for name, place in places.items() if guard in (*place.input, *place.output))

    def layers(self, kind: str, crash: str) -> Iterator[Link]:
        for owner, registrations in (("app", self.stack.found.registrations), ("agent", self.plan.found.registrations)):
            for registration in registrations:
                if registration.kind == kind and self.applies(registration):
                    held = _HELD.get(kind, "") if holds_back(registration.layer) else ""
                    only = "" if registration.only is None else str(registration.only)
                    yield Link(kind, "layer", _shown(registration.layer), owner, only, held, crash)

    def applies(self, registration: Registration) -> bool:
        return registration.only is None or registration.only.reach(registration.kind, self.plan) is not False

    def hooks(self, scope: str, hook: str, crash: str) -> Iterator[Link]:
        hooks: Mapping[str, Sequence[Callable[..., Any]]] = self.plan.hooks
        functions = hooks[hook]
        for function in functions if hook.startswith("before_") else reversed(functions):
            held = _HELD_BY_HOOK.get(hook, "") if holds_back(function) else ""
            yield Link(scope, hook, name_of(function), "agent", "", held, crash)

    def limits(self, scope: str) -> Link:
        own, names = self.plan.limits, _LIMITS[scope]
        found = [_limits(self.app.limits, [name for name in names if own is None or name != "turns"])]
        found.append("" if own is None else _limits(own, names))
        return Link(scope, "limits", ", ".join(filter(None, found)) or "none")


def _held(guard: Guard) -> str:
    """How much of a reply a guard holds back while it streams."""
    if guard.mode == "observe":
        return ""
    if guard.when == "final":
        return "the whole answer"
    if guard.scan is not None:
        return "what its scan does not let go"
    if guard.hold is None:
        return "the whole reply"
    return "the last sentence" if guard.hold == "sentence" else f"the last {guard.hold} characters"


def _limits(limits: Limits, names: Sequence[str]) -> str:
    values = {name: getattr(limits, name) for name in names}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _shown(layer: object) -> str:
    """A bundle as its repr says, if its class has one of its own; anything else by its name."""
    bearer = getattr(layer, "__self__", layer)
    kind = type(bearer)
    own_repr = kind.__module__ not in {"builtins", "functools"} and kind.__repr__ is not object.__repr__
    return f"{' '.join(repr(bearer).split()):.100}" if own_repr else name_of(layer)


def _model(model: object) -> str:
    return repr(model) if isinstance(model, str) else repr(getattr(model, "name", model))
