"""Agents as tools: a model asks another agent, which answers in a step of its own (A5, A6)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from middlechain import (
    Agent,
    AgentFinished,
    AgentStarted,
    App,
    ChatReply,
    ConfigurationError,
    Context,
    Deny,
    FatalToolError,
    GuardrailDenied,
    LimitExceeded,
    Limits,
    ModelError,
    Result,
    RunFinished,
    System,
    TextDelta,
    Tool,
    ToolError,
    ToolMessage,
    ToolOutput,
    ToolUse,
    Usage,
    User,
    loop,
    parallel,
    sequence,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go
from .guarding import CANNED, against, found
from .scenes import Boom, fold

pytestmark = pytest.mark.anyio


def ask(input: str = "sub", id: str = "c1", name: str = "b") -> ToolUse:
    """A call of an agent as a model writes it."""
    return ToolUse(name, {"input": input}, id)


def inner(*replies: Any, **options: Any) -> Agent:
    """The agent that is a tool."""
    options = {"name": "b", "instructions": "You are b.", "model": ScriptedModel(replies or ["b says"]), **options}
    return Agent(**options)


def outer(*tools: Any, replies: Any = None, **options: Any) -> Agent:
    """The agent that has it: it asks once, and is done."""
    model = ScriptedModel([[ask()], "done"] if replies is None else replies)
    return Agent(**{"name": "a", "model": model, "tools": tools, **options})


def calls_of(agent: Any) -> list[Any]:
    """The calls that the agent's model got."""
    calls: list[Any] = agent.model.calls
    return calls


def told(result: Any) -> list[tuple[str, bool]]:
    """What the outer model was told of each call, and whether that is an error."""
    return [(message.text, message.is_error) for message in result.messages if isinstance(message, ToolMessage)]


# --- the tool --------------------------------------------------------------------------------------------------------


def test_a5_the_tool_has_one_argument_a_text() -> None:
    made = inner().as_tool()
    assert isinstance(made, Tool)
    assert made.schema["required"] == ["input"]
    assert {name: value["type"] for name, value in made.schema["properties"].items()} == {"input": "string"}


def test_a5_name_and_description_are_the_agents_unless_they_are_given() -> None:
    agent = inner(name="Billing desk", description="Knows all bills.")
    assert (agent.as_tool().name, agent.as_tool().description) == ("Billing_desk", "Knows all bills.")
    given = agent.as_tool("bills", "Ask about a bill.")
    assert (given.name, given.description) == ("bills", "Ask about a bill.")
    assert agent.as_tool(name="bills").description == "Knows all bills."


def test_a5_an_agent_without_a_description_is_described_by_its_name() -> None:
    assert inner().as_tool().description == "Ask b."


@pytest.mark.parametrize("name", ["", "two words", "ü", "x" * 65, "a.b", 3])
def test_a5_a_name_that_no_server_takes_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"as_tool\(\) of b: .* is no name of a tool"):
        inner().as_tool(name)


@pytest.mark.parametrize("name", ["x" * 64, "a-b_C9"])
def test_a5_a_name_that_servers_take_is_taken(name: str) -> None:
    assert inner().as_tool(name).name == name


def test_a5_a_class_is_described_by_its_attributes() -> None:
    class Bee(Agent):
        """One of many."""

        name = "bee"
        description = "Buzzes."

    assert (Bee.as_tool().name, Bee.as_tool().description) == ("bee", "Buzzes.")


def test_t2_an_agent_and_a_tool_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a has two tools named 'b'"):
        outer(inner().as_tool(), inner().as_tool())


# --- asking it -------------------------------------------------------------------------------------------------------


async def test_a5_it_answers_with_a_history_of_its_own_and_its_text_is_the_result(go: Go) -> None:
    b = inner()
    a = outer(b.as_tool())
    result = await go(App(), a, "hi", history=[User("earlier")])
    assert calls_of(b)[0].messages == (System("You are b."), User("sub"))
    assert calls_of(a)[1].messages[-1] == ToolMessage("b says", "c1", "b")
    assert (result.text, result.agent) == ("done", "a")
    assert [type(message).__name__ for message in result.messages] == ["User", "Assistant", "ToolMessage", "Assistant"]


async def test_a5_asked_twice_it_knows_nothing_of_the_first_time(go: Go) -> None:
    b = inner("one", "two")
    result = await go(App(), outer(b.as_tool(), replies=[[ask("first")], [ask("second", "c2")], "done"]), "hi")
    assert told(result) == [("one", False), ("two", False)]
    assert calls_of(b)[1].messages == (System("You are b."), User("second"))


async def test_a5_it_may_use_tools_and_only_its_last_text_comes_back(go: Go) -> None:
    @tool
    async def look() -> str:
        return "seen"

    b = inner(["I look.", ToolUse("look", {}, "l1")], "b says", tools=[look])
    result = await go(App(), outer(b.as_tool()), "hi")
    assert told(result) == [("b says", False)]


async def test_t5_a_call_without_input_does_not_ask_anyone(go: Go) -> None:
    b = inner()
    result = await go(App(), outer(b.as_tool(), replies=[[ToolUse("b", {}, "c1")], "done"]), "hi")
    ((text, is_error),) = told(result)
    assert is_error
    assert "input" in text
    assert calls_of(b) == []


async def test_a5_layers_see_its_result_as_data(go: Go) -> None:
    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append(await next())

    await go(App().use(tool=layer), outer(inner().as_tool()), "hi")
    (output,) = seen
    assert (output.content, output.is_error, output.data.text, output.data.agent) == ("b says", False, "b says", "b")
    assert isinstance(output.data, Result)
    assert [message.text for message in output.data.messages] == ["sub", "b says"]


async def test_c3_a_class_is_one_object_in_each_run(go: Go) -> None:
    made: list[Agent] = []

    class Bee(Agent):
        """Notes that it was made."""

        name = "b"
        model = ScriptedModel(lambda call: "buzz")

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    a = outer(Bee.as_tool(), replies=lambda call: "done" if len(call.messages) > 1 else [ask(), ask("more", "c2")])
    app = App()
    for _ in range(2):
        made.clear()
        assert told(await go(app, a, "hi")) == [("buzz", False)] * 2
        assert len(made) == 1


async def test_a4_a_flow_may_be_a_tool(go: Go) -> None:
    b, c = inner(), inner("c says", name="c")
    team = sequence(b, c, name="team", description="Two of them.")
    assert (team.as_tool().name, team.as_tool().description) == ("team", "Two of them.")
    result = await go(App(), outer(team.as_tool(), replies=[[ask(name="team")], "done"]), "hi")
    assert told(result) == [("c says", False)]
    assert calls_of(c)[0].messages == (System("You are b."), User("sub"), User("b says", name="b"))


@pytest.mark.parametrize("make", [parallel, loop])
async def test_a4_any_flow_may_be_a_tool(make: Any, go: Go) -> None:
    options = {"max_iterations": 1} if make is loop else {}
    team = make(inner(), lambda input, ctx: f"{input}!", name="team", **options)
    result = await go(App(), outer(team.as_tool(), replies=[[ask(name="team")], "done"]), "hi")
    assert told(result) == [("b says!" if make is loop else "b says\n\nsub!", False)]


async def test_h8_an_agent_that_owns_its_step_may_be_a_tool(go: Go) -> None:
    class Own(Agent):
        """Answers without a model."""

        async def run(self, input: Any, ctx: Context) -> str:
            return f"{input}?"

    assert told(await go(App(), outer(Own(name="b").as_tool()), "hi")) == [("sub?", False)]


async def test_h8_an_agent_that_owns_its_step_may_ask_one_that_is_its_tool(go: Go) -> None:
    class Own(Agent):
        """Asks by code."""

        tools = (inner().as_tool(),)

        async def run(self, input: Any, ctx: Context) -> str:
            return (await ctx.call_tool("b", {"input": "sub"})).content

    assert (await go(App(), Own(), "hi")).text == "b says"


async def test_a5_two_of_them_answer_at_the_same_time(go: Go) -> None:
    both = anyio.Event()
    begun: list[str] = []

    async def meet(call: Any) -> str:
        text: str = call.messages[-1].text
        begun.append(text)
        if len(begun) == 2:
            both.set()
        await both.wait()
        return f"{text}!"

    b = inner(model=ScriptedModel(meet))
    with anyio.fail_after(5):
        result = await go(App(), outer(b.as_tool(), replies=[[ask("x"), ask("y", "c2")], "done"]), "hi")
    assert told(result) == [("x!", False), ("y!", False)]


async def test_t10_of_a_structured_answer_the_json_text_comes_back(go: Go) -> None:
    class Invoice(BaseModel):
        """What is asked for."""

        total: int

    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append((await next()).data.output)

    b = inner("nothing yet", '{"total": 3}', output=Invoice)
    result = await go(App().use(tool=layer), outer(b.as_tool()), "hi")
    assert told(result) == [('{"total": 3}', False)]
    assert seen == [Invoice(total=3)]


async def test_t6_what_comes_back_may_be_cut(go: Go) -> None:
    short = tool(max_result_chars=30)(inner("b says " * 20).as_tool())
    ((text, _),) = told(await go(App(), outer(short), "hi"))
    assert len(text) == 30


# --- layers ----------------------------------------------------------------------------------------------------------


async def test_m10_an_agent_layer_sees_who_asked(go: Go) -> None:
    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append((call.agent.name, call.input, call.via, call.caller, call.depth))
        await next()

    a = outer(inner().as_tool())
    await go(App().use(agent=layer), a, "hi")
    assert seen == [("a", "hi", "root", None, 0), ("b", "sub", "tool", a, 1)]


def of_the_tool(act: Any) -> Any:
    """An agent layer that acts on the step of the agent that is a tool, and passes all others."""

    async def layer(call: Any, next: Any) -> Any:
        return await act(call, next) if call.via == "tool" else await next()

    return layer


async def test_m10_an_agent_layer_may_ask_it_something_else(go: Go) -> None:
    async def rewrite(call: Any, next: Any) -> Any:
        return await next(call.replace(input=f"{call.input}, please"))

    b = inner()
    await go(App().use(agent=of_the_tool(rewrite)), outer(b.as_tool()), "hi")
    assert calls_of(b)[0].messages[-1] == User("sub, please")


async def test_m10_an_agent_layer_may_answer_in_its_place(go: Go) -> None:
    async def instead(call: Any, next: Any) -> str:
        return "by the layer"

    b = inner()
    result = await go(App().use(agent=of_the_tool(instead)), outer(b.as_tool()), "hi")
    assert (told(result), calls_of(b)) == ([("by the layer", False)], [])


async def test_m10_an_agent_layer_may_have_another_one_answer(go: Go) -> None:
    b, c = inner(), inner("c says", name="c")

    async def redirect(call: Any, next: Any) -> Any:
        return await call.ctx.run(c, call.input)

    result = await go(App().use(agent=of_the_tool(redirect)), outer(b.as_tool()), "hi")
    assert (told(result), calls_of(b)) == ([("c says", False)], [])


async def test_m10_an_agent_layer_may_change_its_answer(go: Go) -> None:
    async def shout(call: Any, next: Any) -> Any:
        return (await next()).text.upper()

    assert told(await go(App().use(agent=of_the_tool(shout)), outer(inner().as_tool()), "hi")) == [("B SAYS", False)]


async def test_m10_an_agent_layer_that_raises_refuses_the_call(go: Go) -> None:
    async def refuse(call: Any, next: Any) -> Any:
        raise Boom("secret")

    b = inner()
    result = await go(App().use(agent=of_the_tool(refuse)), outer(b.as_tool()), "hi")
    ((text, is_error),) = told(result)
    assert (is_error, calls_of(b), result.text) == (True, [], "done")
    assert "secret" not in text


async def test_m6_a_tool_layer_may_refuse_the_call(go: Go) -> None:
    async def layer(call: Any, next: Any) -> Any:
        return ToolOutput("not now", is_error=True)

    b = inner()
    result = await go(App().use(tool=layer), outer(b.as_tool()), "hi")
    assert (told(result), calls_of(b)) == ([("not now", True)], [])


async def test_m9_each_layer_runs_once_for_each_call_that_it_wraps(go: Go) -> None:
    log: list[str] = []

    def noting(scope: str) -> Any:
        async def layer(call: Any, next: Any) -> None:
            log.append(f"{scope} {call.agent.name}")
            await next()

        return layer

    app = App().use(**{scope: noting(scope) for scope in ("run", "agent", "chat", "tool")})
    await go(app, outer(inner().as_tool()), "hi")
    assert log == ["run a", "agent a", "chat a", "tool a", "agent b", "chat b", "chat a"]


async def test_m2_only_may_name_an_agent_that_is_a_tool(go: Go) -> None:
    seen: list[str] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append(call.agent.name)
        await next()

    app = App().use(chat=layer, only="b")
    await go(app, outer(inner().as_tool("bees"), replies=[[ask(name="bees")], "done"]), "hi")
    assert seen == ["b"]


async def test_k1_a_function_may_stand_in_for_an_agent_that_is_a_tool(go: Go) -> None:
    b, app = inner(), App()
    with app.override(tools={"b": lambda input: f"{input} stood in"}):
        result = await go(app, outer(b.as_tool()), "hi")
    assert (told(result), calls_of(b)) == ([("sub stood in", False)], [])


# --- A6: what the child inherits -------------------------------------------------------------------------------------


async def test_a6_it_has_the_data_and_the_state_of_the_run(go: Go) -> None:
    class Bee(Agent):
        """Reads what the other one set, and sets something."""

        def before_run(self, input: Any, ctx: Context) -> None:
            ctx.answer = (ctx.note, ctx.data["key"], ctx.run_id)

    def note(call: Any, ctx: Context) -> None:
        ctx.note = "set by a"

    a = outer(Bee(name="b", model="demo").as_tool(), hooks=[{"before_tool": note}])
    result = await go(App(), a, "hi", data={"key": 1})
    assert result.state.answer == ("set by a", 1, result.run_id)


def costing(text: str, tokens: int, *uses: ToolUse) -> ChatReply:
    return ChatReply(text, uses, usage=Usage(input_tokens=tokens, output_tokens=1))


async def test_a6_what_it_used_counts_for_the_parent(go: Go) -> None:
    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append((await next()).data.usage)

    b = inner(costing("b says", 20))
    result = await go(
        App().use(tool=layer), outer(b.as_tool(), replies=[costing("", 1, ask()), costing("done", 2)]), "hi"
    )
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.requests) == (23, 3, 3)
    assert (seen[0].input_tokens, seen[0].requests) == (20, 1)


async def test_a6_limits_of_the_parent_hold_for_what_it_asks_for(go: Go) -> None:
    b = inner()
    with pytest.raises(LimitExceeded) as raised:
        await go(App(), outer(b.as_tool(), limits=Limits(chat_calls=1)), "hi")
    assert (raised.value.limit, calls_of(b)) == ("chat_calls", [])


@pytest.mark.parametrize("limits", [Limits(chat_calls=1), Limits(depth=0), Limits(tool_calls=0)])
async def test_a5_limits_of_the_run_are_no_error_result(limits: Limits, go: Go) -> None:
    b = inner()
    with pytest.raises(LimitExceeded):
        await go(App(), outer(b.as_tool()), "hi", limits=limits)
    assert calls_of(b) == []


async def test_l1_exactly_as_much_as_both_need_is_allowed(go: Go) -> None:
    result = await go(App(), outer(inner().as_tool()), "hi", limits=Limits(chat_calls=3, depth=1, tool_calls=1))
    assert result.text == "done"


async def test_a5_limits_of_its_own_go_on_too(go: Go) -> None:
    b = inner([ToolUse("nothing", {}, "n1")], limits=Limits(turns=1))
    with pytest.raises(LimitExceeded) as raised:
        await go(App(), outer(b.as_tool()), "hi")
    assert raised.value.limit == "turns"


async def test_l2_limits_of_its_own_that_stop_it_give_what_it_said(go: Go) -> None:
    b = inner(["so far", ToolUse("nothing", {}, "n1")], limits=Limits(turns=1, on_exceed="stop"))
    result = await go(App(), outer(b.as_tool()), "hi")
    assert (told(result), result.text, result.stopped_by) == ([("so far", False)], "done", None)


# --- what it raises --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Boom("secret"), ModelError("secret"), StopAsyncIteration("secret")])
async def test_a5_what_it_raises_is_an_error_result_without_the_message(error: Exception, go: Go) -> None:
    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append((await next()).error)

    result = await go(App().use(tool=layer), outer(inner(error).as_tool()), "hi")
    ((text, is_error),) = told(result)
    assert is_error
    assert "secret" not in text
    assert type(error).__name__ in text
    assert seen == [error]
    assert result.text == "done"


async def test_t4_a_tool_error_that_leaves_it_is_told(go: Go) -> None:
    b = inner(ToolError("come back tomorrow"))
    assert told(await go(App(), outer(b.as_tool()), "hi")) == [("come back tomorrow", True)]


async def test_t4_a_fatal_tool_error_in_it_ends_both_steps(go: Go) -> None:
    @tool
    async def fatal() -> str:
        raise FatalToolError("no more")

    b = inner([ToolUse("fatal", {}, "f1")], tools=[fatal])
    with pytest.raises(FatalToolError, match="no more"):
        await go(App(), outer(b.as_tool()), "hi")


async def test_h7_its_own_on_error_answers_first_and_that_is_no_error_result(go: Go) -> None:
    b = inner(Boom(), hooks=[{"on_error": lambda error, ctx: "sorry"}])
    result = await go(App(), outer(b.as_tool()), "hi")
    assert (told(result), result.degraded) == ([("sorry", False)], False)


async def test_a5_its_denial_goes_on(go: Go) -> None:
    b = inner("bad", guardrails={"output": [against("bad", Deny("no"))]})
    with pytest.raises(GuardrailDenied) as raised:
        await go(App(), outer(b.as_tool()), "hi")
    assert raised.value.guardrail == "words"


async def test_g3_on_error_of_the_parent_may_answer_its_denial(go: Go) -> None:
    b = inner(guardrails={"input": [against("sub", Deny("no"))]})
    result = await go(App(), outer(b.as_tool(), hooks=[{"on_error": lambda error, ctx: "sorry"}]), "hi")
    assert (result.text, result.blocked, result.blocked_by, result.degraded) == ("sorry", True, "words", True)
    assert found(result) == [("words", "deny")]


async def test_g2_a_block_in_it_is_its_canned_text_and_the_parent_goes_on(go: Go) -> None:
    b = inner(guardrails={"input": [against("sub")]})
    result = await go(App(), outer(b.as_tool()), "hi")
    assert (told(result), result.text, result.blocked, found(result)) == ([(CANNED, False)], "done", False, [])


async def test_a6_leaving_the_stream_ends_it_too() -> None:
    asked = anyio.Event()
    log: list[str] = []

    async def wait(call: Any) -> str:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            log.append("ended")
        return "never"

    events: list[Any] = []
    app = App().observe(events.append)
    async with app.stream(outer(inner(model=ScriptedModel(wait)).as_tool()), "hi"):
        await asked.wait()
    assert log == ["ended"]
    assert [event.outcome for event in events if isinstance(event, RunFinished)] == ["cancelled"]


async def test_a6_cancelling_the_caller_ends_it_too() -> None:
    log: list[str] = []

    async def wait(call: Any) -> str:
        scope.cancel()
        try:
            await anyio.sleep_forever()
        finally:
            log.append("ended")
        return "never"

    with anyio.CancelScope() as scope:
        await App().run(outer(inner(model=ScriptedModel(wait)).as_tool()), "hi")
    assert scope.cancelled_caught
    assert log == ["ended"]


# --- events, streams -------------------------------------------------------------------------------------------------


async def test_s8_its_step_is_nested_in_that_of_the_parent() -> None:
    events, result = await collect(App().stream(outer(inner().as_tool()), "hi"))
    first, second = [event for event in events if isinstance(event, AgentStarted)]
    assert [(event.agent, event.via) for event in (first, second)] == [("a", "root"), ("b", "tool")]
    assert (first.parent, second.parent) == (None, first.step)
    assert [event.agent for event in events if isinstance(event, AgentFinished)] == ["b", "a"]
    assert fold(events) == {(second.step, 1): "b says", (first.step, 2): "done"}
    assert {event.answering for event in events if isinstance(event, TextDelta) and event.agent == "b"} == {False}
    assert result.text == "done"


async def test_s6_what_it_says_is_no_text_of_the_answer() -> None:
    async with App().stream(outer(inner().as_tool()), "hi") as stream:
        assert [piece async for piece in stream.text()] == ["done"]


# --- cycles ----------------------------------------------------------------------------------------------------------


def cycle_of_two() -> Agent:
    a, b = outer(), inner()
    a.tools, b.tools = [b.as_tool()], [a.as_tool()]
    return a


def cycle_of_one() -> Agent:
    a = outer()
    a.tools = [a.as_tool("again")]
    return a


def cycle_through_a_flow() -> Agent:
    a, b = outer(), inner()
    a.tools = [sequence(lambda input, ctx: None, b, name="team").as_tool()]
    b.tools = [a.as_tool()]
    return a


def cycle_that_begins_later() -> Agent:
    a = outer(cycle_of_one().as_tool("again"))
    a.name = "first"
    return a


def cycle_of_classes() -> type[Agent]:
    class A(Agent):
        """Its own tool."""

        name = "a"
        model = "demo"

    A.tools = (A.as_tool(),)
    return A


CYCLES = [
    (cycle_of_two, "a > b > a"),
    (cycle_of_one, "a > a"),
    (cycle_through_a_flow, "a > team > b > a"),
    (cycle_that_begins_later, "a > a"),
    (cycle_of_classes, "a > a"),
    (lambda: sequence(cycle_of_one()), "a > a"),
]


@pytest.mark.parametrize(("make", "shown"), CYCLES)
async def test_a5_agents_that_are_tools_of_each_other_are_refused_before_anything_runs(
    make: Any, shown: str, go: Go
) -> None:
    agent, events = make(), list[Any]()
    app = App().observe(events.append)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"tools of each other: {shown};"):
            await go(app, agent, "hi")
    assert events == []
    with pytest.raises(ConfigurationError, match=f"tools of each other: {shown};"):
        app.check(agent)


async def test_a5_another_agent_of_the_same_name_is_no_cycle(go: Go) -> None:
    b = Agent(model=ScriptedModel(["b says"]))
    a = Agent(model=ScriptedModel([[ask(name="helper")], "done"]), tools=[b.as_tool("helper")])
    assert told(await go(App(), a, "hi")) == [("b says", False)]


async def test_a5_an_agent_that_is_reached_in_two_ways_is_no_cycle(go: Go) -> None:
    d = inner("d says", "d again", name="d")
    b = inner([ask(name="d")], "b says", tools=[d.as_tool()])
    c = inner([ask(name="d")], "c says", name="c", tools=[d.as_tool()])
    a = outer(b.as_tool(), c.as_tool(), replies=[[ask(), ask(name="c", id="c2")], "done"])
    app = App()
    app.check(a)
    assert told(await go(app, a, "hi")) == [("b says", False), ("c says", False)]


def test_a5_check_looks_at_agents_that_are_tools() -> None:
    with pytest.raises(ConfigurationError, match="the agent 'b' has no model"):
        App().check(outer(inner(model=None).as_tool()))

    class Demanding(Agent):
        """Cannot be made without arguments."""

        def __init__(self, database: str) -> None:
            super().__init__()

    with pytest.raises(ConfigurationError, match="Demanding cannot be made without arguments"):
        App().check(outer(Demanding.as_tool()))
