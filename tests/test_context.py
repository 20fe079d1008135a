"""`ctx`, state and data (C1, C2). Context variables, targets and runs at once have files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from middlechain import (
    Agent,
    App,
    ChatCall,
    ConfigurationError,
    Context,
    CustomEvent,
    Event,
    Limits,
    Result,
    RunFinished,
    ToolUse,
    User,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go

pytestmark = pytest.mark.anyio


@tool
async def ping(ctx: Context) -> str:
    return f"pong in turn {ctx.turn}"


def scripted(*replies: Any) -> ScriptedModel:
    return ScriptedModel(replies or ["done"])


def hooked(hook: Any, place: str = "before_run", *replies: Any, **options: Any) -> Agent:
    """An agent with one hook that gets `ctx` alone."""

    async def call(value: Any, ctx: Context) -> Any:
        return await hook(ctx)

    return Agent(**{"name": "a", "model": scripted(*replies), "tools": [ping], "hooks": [{place: call}], **options})


# C1: what ctx has


async def test_c1_ctx_has_what_the_contract_lists(go: Go) -> None:
    seen: dict[str, Any] = {}

    async def look(call: ChatCall, next: Any) -> None:
        ctx = call.ctx
        seen.update({name: getattr(ctx, name) for name in ("run_id", "app", "agent", "turn", "messages", "limits")})
        seen.update(usage=ctx.usage, state=ctx.state, data=ctx.data, log=ctx.log, loop=ctx.loop)
        await next()

    limits = Limits(turns=3)
    app, agent = App(limits=limits).use(chat=look), Agent(model=scripted())
    await go(app, agent, "q", run_id="r1", state="s", data={"k": 1}, history=[User("before")])
    assert (seen["run_id"], seen["app"], seen["agent"], seen["turn"]) == ("r1", app, agent, 1)
    assert seen["messages"] == (User("before"), User("q"))  # never the system prompt
    assert (seen["limits"], seen["state"], dict(seen["data"]), seen["loop"]) == (limits, "s", {"k": 1}, None)
    assert seen["usage"].requests is None


async def test_c1_every_run_has_an_id_of_its_own(go: Go) -> None:
    ids = [(await go(App(), Agent(model=scripted()), "q")).run_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(ids)


async def test_c1_turn_and_messages_follow_the_step(go: Go) -> None:
    seen: list[tuple[int, list[str]]] = []

    async def look(ctx: Context) -> None:
        seen.append((ctx.turn, [message.text for message in ctx.messages]))

    agent = hooked(look, "before_prompt", ["one", ToolUse("ping")], "two", instructions="never seen")
    agent.hooks = [
        *agent.hooks,
        {"before_run": lambda _, ctx: look(ctx), "after_run": lambda _, ctx: look(ctx)},
    ]
    await go(App(), agent, "q")
    assert seen[0] == (0, ["q"])
    assert seen[1] == (1, ["q"])
    assert seen[2] == seen[3] == (2, ["q", "one", "pong in turn 1"])


async def test_c1_agent_turn_messages_and_log_are_the_steps_and_the_rest_is_the_runs(go: Go) -> None:
    inner: list[Context] = []
    outer: list[Context] = []
    inside: list[Any] = []

    async def in_child(ctx: Context) -> None:
        inner.append(ctx)
        inside.append((ctx.agent, ctx.turn, [message.text for message in ctx.messages]))

    child = hooked(in_child, "before_prompt", "c", name="child")

    async def in_parent(ctx: Context) -> None:
        outer.append(ctx)
        if ctx.turn == 2:
            await ctx.run(child, "sub")
            inside.append((ctx.agent, ctx.turn, len(ctx.messages)))

    parent = hooked(in_parent, "before_prompt", [ToolUse("ping")], "p")
    await go(App(), parent, "q", state="s", data={"k": 1})
    assert inside == [(child, 1, ["sub"]), (parent, 2, 3)]
    one, other = outer[0], inner[0]
    for name in ("run_id", "app", "limits", "state", "data", "usage"):
        assert getattr(one, name) == getattr(other, name)
    with capture_logs() as logs:
        one.log.info("hello")
        other.log.info("hello")
    assert [(entry["run_id"], entry["agent"]) for entry in logs] == [(one.run_id, "a"), (one.run_id, "child")]


async def test_c1_ctx_chat_takes_an_input_or_messages_with_a_model_and_tools(go: Go) -> None:
    other = ScriptedModel(lambda call: f"{len(call.messages)} {[one.name for one in call.tools]}")
    said: list[str] = []

    async def ask(ctx: Context) -> None:
        dicts: list[Any] = [{"role": "user", "content": "x"}]
        forms: tuple[Any, ...] = ("x", User("x"), [User("x"), User("y")], dicts)
        said.extend([(await ctx.chat(given, model=other)).text for given in forms])
        said.append((await ctx.chat("x", model=other, tools=[ping])).text)
        said.append((await ctx.chat("x")).text)  # the agent's own model

    agent = hooked(ask, "before_run", "mine", "done", instructions="be brief")
    assert (await go(App(), agent, "q", history=[User("before")])).text == "done"
    assert said == ["1 []", "1 []", "2 []", "1 []", "1 ['ping']", "mine"]


async def test_c1_m9_ctx_chat_call_tool_and_run_pass_through_the_layers_and_events_of_the_run(go: Go) -> None:
    crossed: list[str] = []

    async def note(call: Any, next: Any) -> None:
        crossed.append(type(call).__name__)
        await next()

    async def work(ctx: Context) -> None:
        await ctx.chat("x")
        crossed.append((await ctx.call_tool("ping")).content)
        assert (await ctx.run(Agent(name="b", model=scripted()), "sub")).agent == "b"

    events: list[Event] = []
    app = App().use(agent=note, chat=note, tool=note).observe(events.append)
    await go(app, hooked(work, "before_run", "x", "done"), "q")
    assert crossed == ["AgentCall", "ChatCall", "ToolCall", "pong in turn 0", "AgentCall", "ChatCall", "ChatCall"]
    types = [event.type for event in events]
    assert [types.count(name) for name in ("ModelStarted", "ToolStarted", "AgentStarted", "RunStarted")] == [3, 1, 2, 1]


@pytest.mark.parametrize("form", ["instance", "class", "name"])
async def test_c1_ctx_run_takes_an_agent_a_class_or_a_name(go: Go, form: str) -> None:
    class Child(Agent):
        model = ScriptedModel(lambda call: f"child of {call.messages[-1].text}")

    said: list[Result] = []

    async def delegate(ctx: Context) -> None:
        forms: dict[str, Any] = {"instance": Child(), "class": Child, "name": "Child"}
        said.append(await ctx.run(forms[form], "sub"))
        with pytest.raises(ConfigurationError, match=r"'Ghost'.*Child"):
            await ctx.run("Ghost", "sub")

    await go(App(agents=[Child]), hooked(delegate), "q")
    assert (said[0].text, said[0].agent) == ("child of sub", "Child")
    assert [message.text for message in said[0].messages] == ["sub", "child of sub"]  # a history of its own


async def test_c1_ctx_emit_tells_observers_and_the_stream(go: Go) -> None:
    events: list[Event] = []

    async def tell(ctx: Context) -> None:
        await ctx.emit("progress", {"done": 3})
        await ctx.emit("plain")

    await go(App().observe(events.append), hooked(tell), "q")
    told = [event for event in events if isinstance(event, CustomEvent)]
    assert told == [CustomEvent("progress", {"done": 3}), CustomEvent("plain", None)]
    assert {event.agent for event in told} == {"a"}
    streamed = (await collect(App().stream(hooked(tell), "q"))).events
    assert [event for event in streamed if isinstance(event, CustomEvent)] == told


async def test_c1_ctx_stop_ends_the_run_before_the_next_turn(go: Go) -> None:
    @tool
    async def enough(ctx: Context) -> str:
        ctx.stop("enough")
        return "stopped"

    events: list[Event] = []
    model = scripted(["one", ToolUse("enough")], "two")
    result = await go(App().observe(events.append), Agent(model=model, tools=[enough]), "q")
    assert (result.text, result.stopped_by, len(model.calls)) == ("one", "stop", 1)
    assert [message.text for message in result.messages] == ["q", "one", "stopped"]
    assert events[-1] == RunFinished("stopped")


async def test_c1_ctx_stop_in_a_nested_step_stops_its_callers_too(go: Go) -> None:
    async def stop(ctx: Context) -> None:
        ctx.stop()

    async def nested(ctx: Context) -> None:
        result = await ctx.run(hooked(stop), "sub")
        assert (result.text, result.stopped_by) == ("", "stop")

    agent = hooked(nested)
    result = await go(App(), agent, "q")
    assert (result.text, result.stopped_by) == ("", "stop")
    assert agent.model.calls == []  # type: ignore[union-attr]


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_c1_ctx_defer_calls_back_when_the_run_ends_last_one_first(go: Go, ends: str) -> None:
    order: list[str] = []

    async def clean(ctx: Context) -> None:
        async def later() -> None:
            await anyio.lowlevel.checkpoint()
            order.append("async")

        def broken() -> None:
            raise ValueError("no cleaning today")

        ctx.defer(lambda: order.append("first"))
        ctx.defer(later)
        ctx.defer(broken)
        ctx.defer(lambda: order.append("last"))
        await ctx.run(Agent(model=scripted("sub")), "sub")
        order.append("hook")

    agent = hooked(clean, "before_run", "done" if ends == "well" else ValueError("the model"))
    with capture_logs() as logs:
        if ends == "well":
            assert (await go(App(), agent, "q")).text == "done"
        else:
            with pytest.raises(ValueError, match="the model"):
                await go(App(), agent, "q")
    assert order == ["hook", "last", "async", "first"]
    assert len(logs) == 1  # the broken one is logged, and the others have their turn


# C1: free attributes


async def test_c1_free_attributes_are_shared_by_all_steps_of_the_run(go: Go) -> None:
    async def in_child(ctx: Context) -> None:
        assert ctx.approved is True
        ctx.found = ["child"]

    async def in_parent(ctx: Context) -> None:
        ctx.approved = True
        await ctx.run(hooked(in_child), "sub")
        ctx.found.append("parent")

    result = await go(App(), hooked(in_parent), "q")
    assert (result.state.approved, result.state.found) == (True, ["child", "parent"])


async def test_c1_reading_one_never_set_lists_those_that_were(go: Go) -> None:
    async def look(ctx: Context) -> None:
        with pytest.raises(AttributeError, match=r"'budget'.*none.*; set it first, or read it with ctx\.get"):
            ctx.budget  # noqa: B018
        ctx.bugdet, ctx.approved = 3, True
        for owner in (ctx, ctx.state):
            with pytest.raises(AttributeError, match=r"'budget'.*approved, bugdet.*ctx\.get\('budget', default\)$"):
                owner.budget  # noqa: B018
        assert not hasattr(ctx, "budget")
        assert (ctx.get("budget"), ctx.get("budget", 7), ctx.get("bugdet", 7)) == (None, 7, 3)
        del ctx.bugdet
        assert not hasattr(ctx, "bugdet")

    await go(App(), hooked(look), "q")


async def test_c1_get_tells_a_value_that_is_none_from_one_never_set(go: Go) -> None:
    async def look(ctx: Context) -> None:
        ctx.nothing = None
        assert ctx.get("nothing", 7) is None

    await go(App(), hooked(look), "q")


OWN = [
    *("run_id", "app", "agent", "turn", "messages", "usage", "limits", "state", "data", "log", "loop"),
    *("chat", "call_tool", "run", "emit", "stop", "defer", "get", "message", "reply", "direction", "channel"),
]


@pytest.mark.parametrize("name", OWN)
async def test_c1_the_runtimes_own_names_cannot_be_assigned(go: Go, name: str) -> None:
    async def assign(ctx: Context) -> None:
        refused = rf"ctx\.{name} belongs to the runtime"
        with pytest.raises(AttributeError, match=refused):
            setattr(ctx, name, 1)
        with pytest.raises(AttributeError, match=refused):
            delattr(ctx, name)

    result = await go(App(), hooked(assign), "q")
    assert not hasattr(result.state, name)


@pytest.mark.parametrize("name", ["message", "reply", "direction", "channel"])
async def test_c1_names_of_guards_exist_inside_guards_only(go: Go, name: str) -> None:
    async def look(ctx: Context) -> None:
        with pytest.raises(AttributeError, match=rf"ctx\.{name} exists inside guards only"):
            getattr(ctx, name)

    await go(App(), hooked(look), "q")


async def test_c1_with_a_state_of_the_callers_free_attributes_stay_on_ctx(go: Go) -> None:
    class Own:
        x = 1
        y = 2

    state = Own()

    async def use(ctx: Context) -> None:
        ctx.free = 2
        assert ctx.state is state
        with pytest.raises(AttributeError, match=r"'x'.*free"):
            ctx.x  # noqa: B018
        assert not hasattr(ctx.state, "free")
        ctx.state.y = 3

    result = await go(App(), hooked(use), "q", state=state)
    assert result.state is state
    assert vars(state) == {"y": 3}


# C2


@pytest.mark.parametrize("state", [{}, [], "", 0, False])
async def test_c2_state_is_any_object_the_caller_gives(go: Go, state: Any) -> None:
    async def look(ctx: Context) -> None:
        assert ctx.state is state

    assert (await go(App(), hooked(look), "q", state=state)).state is state


async def test_c2_without_a_state_all_four_ways_to_it_are_one(go: Go) -> None:
    class Stateful(Agent):
        model = scripted("done", "done")

        async def before_run(self, input: Any, ctx: Context) -> None:
            ctx.a = 1
            ctx.state.b = 2
            self.state.c = 3
            for owner in (ctx, ctx.state, self.state, self.ctx, self.ctx.state):
                assert (owner.a, owner.b, owner.c) == (1, 2, 3)

    result = await go(App(), Stateful, "q")
    assert (result.state.a, result.state.b, result.state.c) == (1, 2, 3)
    assert (await go(App(), Stateful, "q")).state is not result.state  # one per run


async def test_c2_data_is_a_read_only_mapping(go: Go) -> None:
    given = {"user": 7}

    async def look(ctx: Context) -> None:
        assert isinstance(ctx.data, Mapping)
        assert dict(ctx.data) == {"user": 7}
        with pytest.raises(TypeError):
            ctx.data["user"] = 8  # type: ignore[index]
        given["user"] = 9  # the caller's own changes do not reach a run that has begun
        assert ctx.data["user"] == 7

    await go(App(), hooked(look), "q", data=given)
    assert given == {"user": 9}

    async def empty(ctx: Context) -> None:
        assert dict(ctx.data) == {}

    await go(App(), hooked(empty), "q")


async def test_c2_data_is_never_sent_logged_or_put_in_events(go: Go) -> None:
    events: list[Event] = []
    model = scripted([ToolUse("ping")], "done")

    async def log(ctx: Context) -> None:
        ctx.log.info("working", ctx=ctx)
        await ctx.emit("working", 1)

    async def note(call: Any, next: Any) -> None:
        call.ctx.log.info("crossing", call=call)
        await next()

    agent = hooked(log, model=model, instructions="be brief")
    app = App().observe(events.append).use(run=note, agent=note, chat=note, tool=note)
    with capture_logs() as logs:
        result = await go(app, agent, "q", data={"token": "s3cret"})
    everything = repr((events, model.calls, logs, result, [vars_of(event) for event in events]))
    assert logs
    assert "s3cret" not in everything


def vars_of(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__dataclass_fields__}
