"""Where layers are registered, and what `only=` limits them to (M2, M12)."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from middlechain import (
    Agent,
    App,
    ConfigurationError,
    Context,
    Layers,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go


@tool
async def ping() -> str:
    return "pong"


async def keep(call: Any, next: Any) -> None:
    await next()


def model(*replies: Any) -> ScriptedModel:
    return ScriptedModel(replies or (lambda call: "done"))


class Counting:
    """A layer for any scope that counts."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, call: Any, next: Any) -> None:
        self.count += 1
        await next()


def keep_tool() -> None: ...


# Layers and their scope


class Bundle:
    async def chat(self, call: Any, next: Any) -> None:
        await next()


def test_m12_a_bare_function_is_refused_with_the_fix() -> None:
    for where in (
        lambda: App().use(keep),
        lambda: Agent(middleware=[keep]),
        lambda: App().use(lambda call, _: None),
    ):
        with pytest.raises(ConfigurationError, match=r"without its scope; say which calls it wraps, such as chat="):
            where()


@pytest.mark.anyio
async def test_m12_a_bare_function_in_use_of_a_run_is_refused_too(go: Go) -> None:
    with pytest.raises(ConfigurationError, match="use= got the function 'keep' without its scope"):
        await go(App(), Agent(model=model()), "q", use=[keep])


def test_m12_a_class_in_place_of_an_object_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"the class Bundle; give an object of it: Bundle\(\)"):
        App().use(Bundle)


def test_an_unknown_scope_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no scope 'model'; give one of run, agent, chat, tool"):
        App().middleware("model")  # type: ignore[call-overload]


@pytest.mark.anyio
async def test_layers_of_every_scope_go_wherever_layers_go(go: Go) -> None:
    counts = [Counting() for _ in range(4)]
    app = App().use(Layers(run=counts[0], agent=[counts[0], counts[0]], chat=(counts[0],), tool=counts[0]))
    app.use(run=counts[1], agent=counts[1], chat=counts[1], tool=counts[1])
    inner = Layers(agent=counts[2], chat=counts[2], tool=counts[2])
    agent = Agent(model=model([ToolUse("ping")], "done"), tools=[ping], middleware=[inner])
    await go(app, agent, "q", use=[Layers(run=counts[3], agent=counts[3], chat=counts[3], tool=counts[3])])
    assert [one.count for one in counts] == [6, 5, 4, 5]  # one run, one step, two model calls and a tool call


def test_layers_without_a_layer_or_with_something_else_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"holds no layer; give it one, such as Layers\(chat=log\)"):
        Layers()
    with pytest.raises(ConfigurationError, match=r"chat= got .*7.*; give a callable"):
        App().use(Layers(chat=7))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        Layers(chat=keep).chat = None  # type: ignore[misc]


def test_use_and_observe_give_the_app_and_middleware_gives_the_function() -> None:
    app = App()
    assert app.use(chat=keep) is app
    assert app.observe(print) is app
    assert app.middleware("chat")(keep) is keep


# only=


class Shop(Agent):
    name = "shop"
    tools = [ping]  # noqa: RUF012


def shop() -> Shop:
    return Shop(model=model([ToolUse("ping")], "done"))


INSTANCE = shop()
# what only= says, and how many calls of the run, agent, chat and tool scopes it lets through
ONLY: list[tuple[str, Any, tuple[int, int, int, int]]] = [
    ("nothing", None, (1, 1, 2, 1)),
    ("an agent", INSTANCE, (1, 1, 2, 1)),
    ("its class", Shop, (1, 1, 2, 1)),
    ("a base class", Agent, (1, 1, 2, 1)),
    ("its name", "shop", (1, 1, 2, 1)),
    ("a tool", ping, (0, 0, 0, 1)),
    ("a tool's name", "ping", (0, 0, 0, 1)),
    ("a predicate", lambda call: type(call).__name__ in {"ChatCall", "RunCall"}, (1, 0, 2, 0)),
    ("a list of them", [ping, lambda call: type(call).__name__ == "AgentCall"], (0, 1, 0, 1)),
    ("another agent", Agent(name="other"), (0, 0, 0, 0)),
    ("another class", type("Other", (Agent,), {}), (0, 0, 0, 0)),
    ("another tool", tool(name="other")(keep_tool), (0, 0, 0, 0)),
    ("a predicate that never holds", lambda call: False, (0, 0, 0, 0)),
]


@pytest.mark.anyio
@pytest.mark.parametrize("row", ONLY, ids=lambda row: row[0])
@pytest.mark.parametrize("form", ["use", "middleware", "Layers", "agent", "run"])
async def test_m2_only_limits_a_layer(go: Go, row: tuple[str, Any, tuple[int, ...]], form: str) -> None:
    _, only, expected = row
    scopes = ["run", "agent", "chat", "tool"]
    layers = {scope: Counting() for scope in scopes}
    app, options = App(), dict[str, Any]()
    INSTANCE.model, INSTANCE.middleware = model([ToolUse("ping")], "done"), []
    if form == "middleware":
        for scope in scopes:
            app.middleware(scope, only=only)(layers[scope])  # type: ignore[call-overload]
    elif form == "use":
        app.use(**layers, only=only)
    else:
        bundle = Layers(**layers, only=only)
        if form == "Layers":
            app.use(bundle)
        elif form == "agent":
            INSTANCE.middleware = [bundle]
        else:
            options["use"] = [bundle]
    await go(app, INSTANCE, "q", **options)
    assert tuple(layers[scope].count for scope in scopes) == expected


def plain_ping() -> str:
    return "pong"


def other_ping() -> str:
    return "pong"


class Plain(Agent):
    """An agent whose tools are plain functions: each object of the class makes tools of them anew."""

    name = "plain"
    tools = (plain_ping,)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("only", "expected"),
    [(plain_ping, 2), (tool(plain_ping), 2), ("plain_ping", 2), ([plain_ping, "plain"], 2), (other_ping, 0)],
    ids=["function", "tool", "name", "list", "another"],
)
@pytest.mark.parametrize("target", [Plain, "plain", Plain()], ids=["class", "name", "object"])
async def test_m2_only_holds_in_every_run(go: Go, only: Any, expected: int, target: Any) -> None:
    layer = Counting()
    app = App(agents=[Plain], model=model(*[[ToolUse("plain_ping")], "done"] * 2)).use(tool=layer, only=only)
    for _ in range(2):
        if only is other_ping:  # a function that is no tool of the agent is a predicate, and this one takes no call
            with pytest.raises(TypeError):
                await go(app, target, "q")
            return
        await go(app, target, "q")
    assert layer.count == expected


@pytest.mark.anyio
async def test_m2_a_tool_in_only_that_nothing_bears_is_found_by_check(go: Go) -> None:
    app = App(agents=[Plain], model=model("done")).use(tool=keep, only=tool(name="gone")(other_ping))
    await go(app, "plain", "q")
    with pytest.raises(ConfigurationError, match=r"only='gone'"):
        app.check()


@pytest.mark.anyio
async def test_m2_only_holds_in_nested_steps_by_the_agent_of_the_step(go: Go) -> None:
    layer = Counting()

    async def nested(input: Any, ctx: Context) -> None:
        await ctx.run(Agent(name="child", model=model()), "q")

    app = App(agents=[Agent(name="child")]).use(chat=layer, only="child")
    await go(app, Agent(name="parent", model=model(), hooks=[{"before_run": nested}]), "q")
    assert layer.count == 1


def test_m2_what_only_cannot_be_is_refused() -> None:
    for only in (7, [None], [[ping]]):
        with pytest.raises(
            ConfigurationError, match=r"only= got .*; give agents, tools, names of either, or a predicate"
        ):
            App().use(chat=keep, only=only)  # type: ignore[arg-type]


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["use", "Layers", "run", "agent"])
async def test_m2_a_name_that_nothing_reachable_bears_is_warned_of_once(go: Go, form: str) -> None:
    app, agent, options = App(agents=[Agent(name="support")]), shop(), dict[str, Any]()
    if form == "use":
        app.use(chat=keep, only=["shop", "shpo"])
    elif form == "Layers":
        app.use(Layers(chat=keep, only="shpo"))
    elif form == "run":
        options["use"] = [Layers(chat=keep, only="shpo")]
    else:
        agent.middleware = [Layers(chat=keep, only="shpo")]
    with pytest.warns(
        UserWarning, match="'shpo' .*'keep'.*ping, shop, support.*; correct the name, or give the agent to App"
    ) as caught:
        await go(app, agent, "q", **options)
    assert len(caught) == 1
    agent.model = model()
    await go(app, agent, "q", **options)  # warnings are errors here, so a second one would show


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["shop", "ping", "support", "Plain", "look_up"])
async def test_m2_a_name_within_reach_is_not_warned_of(go: Go, name: str) -> None:
    @tool
    def look_up() -> None: ...

    class Plain(Agent):
        tools = [look_up]  # noqa: RUF012

    app = App(agents=[Agent(name="support"), Plain]).use(chat=keep, tool=keep, only=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await go(app, shop(), "q")
