"""Where layers are registered, in which order they nest, and to which calls they are limited (M2, M12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from middlechain import (
    Agent,
    App,
    ConfigurationError,
    Context,
    Layers,
    RunFinished,
    RunStarted,
    ToolCall,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel

from .scenes import SCOPES, Go, Scene, delegating

pytestmark = pytest.mark.anyio
every_scope = pytest.mark.parametrize("scope", SCOPES)


def marking(trace: list[str], name: str) -> Callable[..., Any]:
    async def mark(call: Any, next: Any) -> Any:
        trace.append(name)
        answer = await next()
        trace.append(f"/{name}")
        return answer

    return mark


def unwound(*names: str) -> list[str]:
    return [*names, *(f"/{name}" for name in reversed(names))]


# --- M2: order -------------------------------------------------------------------------------------------------------


@every_scope
async def test_m2_registration_order_is_nesting_order_and_app_lies_outside_agent_outside_run(
    scope: str, go: Go
) -> None:
    trace: list[str] = []

    def layer(name: str) -> Any:
        return marking(trace, name)

    scene = Scene(scope)
    scene.agent.middleware = [Layers(**{scope: [layer("agent 1"), layer("agent 2")]})]
    scene.app.use(**{scope: layer("app 1")}).use(**{scope: [layer("app 2"), layer("app 3")]})
    scene.app.middleware(scope)(layer("app 4"))  # type: ignore[call-overload]
    await scene.go(go, use=[Layers(**{scope: layer("run 1")}), Layers(**{scope: layer("run 2")})])
    assert trace == unwound("app 1", "app 2", "app 3", "app 4", "agent 1", "agent 2", "run 1", "run 2")


async def test_m2_scopes_nest_in_each_other_whatever_the_order_of_registration(go: Go) -> None:
    trace: list[str] = []
    scene = Scene("tool")
    scene.app.use(**{scope: marking(trace, scope) for scope in reversed(SCOPES)})
    await scene.go(go)
    assert trace == ["run", "agent", "chat", "/chat", "tool", "/tool", "chat", "/chat", "/agent", "/run"]


def test_m2_the_decorator_gives_back_the_function_and_use_gives_back_the_app() -> None:
    app, layer = App(), marking([], "x")
    assert app.middleware("chat")(layer) is layer
    assert app.use(chat=layer) is app


@every_scope
async def test_m2_app_use_during_a_run_affects_later_runs_only(scope: str, go: Go) -> None:
    """B38: not the next turn, nor a nested step, nor a scope that has not begun yet."""
    trace: list[str] = []

    async def register(value: Any, ctx: Context) -> None:
        if not trace:
            trace.append("registered")
            ctx.app.use(**{scope: marking(trace, "late")})
            await ctx.run(Agent(name="other", model=ScriptedModel(["x"])), "sub")

    scene = Scene("tool", hooks=[{"before_run": register}])
    await scene.go(go)
    assert trace == ["registered"]
    await scene.go(go)
    assert "late" in trace


@every_scope
async def test_m2_the_layers_of_one_run_are_of_that_run_alone(scope: str, go: Go) -> None:
    trace: list[str] = []
    for options in ({"use": [Layers(**{scope: marking(trace, "mine")})]}, {}):
        scene = Scene(scope)
        await scene.go(go, **options)
    assert trace == unwound("mine")


async def test_m2_an_agents_layers_are_of_that_agent_alone(go: Go) -> None:
    trace: list[str] = []
    inner = Agent(name="inner", model=ScriptedModel(["x"]), middleware=[Layers(chat=marking(trace, "inner"))])
    outer = delegating(inner)
    outer.middleware = [Layers(chat=marking(trace, "outer"))]
    await go(App().use(chat=marking(trace, "app")), outer, "hi")
    assert trace == unwound("app", "outer") + unwound("app", "inner") + unwound("app", "outer")


# --- M2: only= -------------------------------------------------------------------------------------------------------


class Inner(Agent):
    name = "inner"
    model = ScriptedModel(lambda call: "x")


@tool
async def look() -> str:
    return "seen"


@tool
async def touch() -> str:
    return "touched"


def pair() -> tuple[Agent, Agent]:
    inner = Inner()
    return delegating(inner), inner


@pytest.mark.parametrize("scope", ["agent", "chat"])
@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (lambda outer, inner: inner, ["inner"]),
        (lambda outer, inner: outer, ["outer"]),
        (lambda outer, inner: Inner, ["inner"]),
        (lambda outer, inner: "inner", ["inner"]),
        (lambda outer, inner: ["outer", inner], ["outer", "inner"]),
        (lambda outer, inner: {"outer", "inner"}, ["outer", "inner"]),
        (lambda outer, inner: lambda call: call.agent is inner, ["inner"]),
        (lambda outer, inner: [lambda call: False, "outer"], ["outer"]),
        (lambda outer, inner: lambda call: False, []),
    ],
    ids=["agent", "other agent", "class", "name", "list", "set", "predicate", "predicate or name", "never"],
)
async def test_m2_only_limits_a_layer_to_agents(scope: str, only: Any, expected: list[str], go: Go) -> None:
    outer, inner = pair()
    seen: list[str] = []

    def note(call: Any, next: Any) -> Any:
        seen.append(call.ctx.agent.name)
        return next()

    app = App(agents=[outer, inner]).use(**{scope: note}, only=only(outer, inner))
    assert (await go(app, outer, "hi")).text == "done"
    assert list(dict.fromkeys(seen)) == expected


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (look, ["look"]),
        ("look", ["look"]),
        ([look, "touch"], ["look", "touch"]),
        ("a", ["look", "touch"]),
        (Inner, []),
        (lambda call: call.name != "look", ["touch"]),
        ([look, lambda call: call.name == "touch"], ["look", "touch"]),
    ],
    ids=["tool", "name", "list", "agent", "other agent", "predicate", "tool or predicate"],
)
async def test_m2_only_limits_a_tool_layer_to_tools(only: Any, expected: list[str], go: Go) -> None:
    seen: list[str] = []

    def note(call: Any, next: Any) -> Any:
        seen.append(call.name)
        return next()

    model = ScriptedModel([[ToolUse("look"), ToolUse("touch")], "done"])
    agent = Agent(name="a", model=model, tools=[look, touch])
    await go(App().use(tool=note, only=only), agent, "hi")
    assert sorted(seen) == sorted(expected)


async def test_m2_only_looks_at_the_call_as_it_arrives(go: Go) -> None:
    """B18: a tool layer sees the name that will execute, whoever renamed it: a hook, or a layer outside."""
    seen: list[str] = []

    def deny(call: Any, next: Any) -> str:
        seen.append(call.name)
        return "denied"

    def rename(call: Any, next: Any) -> Any:
        return next(call.replace(name="touch"))

    for app, hooks in [
        (App(), [{"before_tool": lambda call, ctx: ToolCall("touch")}]),
        (App().use(tool=rename), []),
    ]:
        model = ScriptedModel([[ToolUse("look")], "done"])
        agent = Agent(name="a", model=model, tools=[look, touch], hooks=hooks)
        result = await go(app.use(tool=deny, only="touch"), agent, "hi")
        assert result.messages[2].text == "denied"
    assert seen == ["touch", "touch"]


async def test_m2_only_of_layers_limits_them_alone(go: Go) -> None:
    trace: list[str] = []
    scene = Scene("chat")
    limited = Layers(chat=marking(trace, "limited"), only=lambda call: False)
    await scene.go(go, use=[limited, Layers(chat=marking(trace, "free"))])
    assert trace == unwound("free")


async def test_m2_only_of_the_decorator_limits(go: Go) -> None:
    trace: list[str] = []
    outer, inner = pair()
    app = App(agents=[outer, inner])
    app.middleware("chat", only=inner)(marking(trace, "inner"))
    await go(app, outer, "hi")
    assert trace == unwound("inner")


async def test_m2_a_name_that_nothing_within_reach_bears_is_warned_of_once(go: Go) -> None:
    scene = Scene("chat")
    scene.app.use(chat=marking([], "x"), only="serch")
    with pytest.warns(UserWarning, match=r"only='serch' of the chat layer .*mark.*; correct the name") as caught:
        await scene.go(go)
    assert len(caught) == 1
    await scene.go(go)  # a second warning would be an error here


async def test_m2_names_of_agents_and_tools_within_reach_are_not_warned_of(go: Go) -> None:
    scene = Scene("chat")
    app = App(agents=[Inner]).use(chat=marking([], "x"), only=["a", "work", "inner"])
    await go(app, scene.agent, "hi")


@pytest.mark.parametrize("wrong", [3, object(), ["a", None]])
def test_m2_only_refuses_what_it_cannot_be_limited_to(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"only= got .*; give agents, tools, names of either, or a predicate"):
        App().use(chat=marking([], "x"), only=wrong)


# --- M12: bundles ----------------------------------------------------------------------------------------------------


class Everything:
    def __init__(self) -> None:
        self.trace: list[str] = []

    async def run(self, call: Any, next: Any) -> Any:
        self.trace.append("run")
        return await next()

    async def agent(self, call: Any, next: Any) -> Any:
        self.trace.append("agent")
        return await next()

    def chat(self, call: Any, next: Any) -> Any:
        self.trace.append("chat")
        return next()

    def tool(self, call: Any, next: Any) -> Any:
        self.trace.append("tool")
        return next()

    def on_event(self, event: Any) -> None:
        if isinstance(event, RunStarted | RunFinished):
            self.trace.append(event.type)


async def test_m12_a_bundle_is_any_object_with_one_or_more_of_the_methods(go: Go) -> None:
    bundle, scene = Everything(), Scene("tool")
    scene.app.use(bundle)
    await scene.go(go)
    assert bundle.trace == ["RunStarted", "run", "agent", "chat", "tool", "chat", "RunFinished"]


@every_scope
async def test_m12_one_method_is_enough(scope: str, go: Go) -> None:
    trace: list[str] = []
    scene = Scene(scope)
    scene.app.use(type("Bundle", (), {scope: staticmethod(marking(trace, scope))})())
    await scene.go(go)
    assert trace == unwound(scope)


async def test_m12_a_bundle_that_only_observes_is_one(go: Go) -> None:
    class Log:
        def __init__(self) -> None:
            self.types: list[str] = []

        async def on_event(self, event: Any) -> None:
            self.types.append(event.type)

    log, scene = Log(), Scene("chat")
    scene.app.use(log)
    await scene.go(go)
    assert (log.types[0], log.types[-1]) == ("RunStarted", "RunFinished")


async def test_m12_bundles_are_for_agents_and_single_runs_too(go: Go) -> None:
    class Log:
        def __init__(self) -> None:
            self.count = 0

        def chat(self, call: Any, next: Any) -> Any:
            self.count += 1
            return next()

    mine, once, scene = Log(), Log(), Scene("chat")
    scene.agent.middleware = [mine]
    await scene.go(go, use=[once])
    await scene.go(go)
    assert (mine.count, once.count) == (2, 1)


async def test_m12_one_object_registered_twice_runs_twice(go: Go) -> None:
    """B12: once per registration, and not more because of nesting."""
    bundle, inner = Everything(), Agent(name="inner", model=ScriptedModel(["x"]))
    await go(App().use(bundle, bundle), delegating(inner), "hi")
    counts = {name: bundle.trace.count(name) for name in SCOPES}
    assert counts == {"run": 2, "agent": 4, "chat": 6, "tool": 2}


def refusals(register: Any) -> None:
    async def log(call: Any, next: Any) -> Any:
        return await next()

    class CallableObject:
        async def __call__(self, call: Any, next: Any) -> Any:
            return await next()

    with pytest.raises(ConfigurationError, match=r"function .*log.* without its scope; .* chat=.*log$"):
        register(log)
    with pytest.raises(ConfigurationError, match=r"CallableObject.* without its scope; .* chat=.*CallableObject$"):
        register(CallableObject())
    with pytest.raises(ConfigurationError, match=r"class Everything; give an object of it: Everything\(\)$"):
        register(Everything)
    with pytest.raises(ConfigurationError, match=r"got 3, which has none of the methods run, agent, chat, tool"):
        register(3)


def test_m12_a_bare_function_is_refused_with_the_fix() -> None:
    refusals(App().use)
    refusals(lambda bundle: Agent(middleware=[bundle]))


async def test_m12_a_bare_function_as_layer_of_a_run_is_refused_with_the_fix(go: Go) -> None:
    scene = Scene("chat")
    with pytest.raises(ConfigurationError, match=r"use= got the function .*mark.* without its scope; .* chat="):
        await scene.go(go, use=[marking([], "x")])
    assert (scene.ran, scene.events) == (0, [])


def test_m12_what_is_no_layer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"app.use\(\) chat= got .*int.*; give a callable \(call, next\)"):
        App().use(chat=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"got no layer; give it one, such as app.use\(chat=log\)$"):
        App().use()
    with pytest.raises(ConfigurationError, match=r"no scope 'chats'; give one of run, agent, chat, tool, such as"):
        App().middleware("chats")  # type: ignore[call-overload]
    with pytest.raises(
        ConfigurationError, match=r"Layers\(\) holds no layer; give it one, such as Layers\(chat=log\)$"
    ):
        Layers()
