"""An agent class that defines `run(self, input, ctx)` owns its step (H8)."""

from __future__ import annotations

from typing import Any

import pytest

from middlechain import (
    Agent,
    AgentFinished,
    App,
    Assistant,
    ChatReply,
    Context,
    Event,
    FatalToolError,
    LimitExceeded,
    Limits,
    ModelFinished,
    ModelStarted,
    NothingReturned,
    Result,
    System,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    ToolUse,
    User,
    WrongReturn,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go
from .scenes import Boom, deltas

pytestmark = pytest.mark.anyio


@tool
async def double(n: int) -> int:
    return 2 * n


class Owner(Agent):
    """Asks twice, calls a tool in between, and notes which hooks fire: none should."""

    tools = (double,)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        object.__setattr__(self, "fired", [])

    fired: list[str]

    async def run(self, input: Any, ctx: Context) -> str:
        plan = await ctx.chat([System("plan"), User(input)])
        output = await ctx.call_tool("double", {"n": 21})
        answer = await ctx.chat(f"{plan.text}: {output.content}")
        return answer.text.upper()

    def before_run(self, input: Any, ctx: Context) -> None:
        self.fired.append("before_run")

    def before_prompt(self, prompt: str, ctx: Context) -> None:
        self.fired.append("before_prompt")

    def before_tool(self, call: Any, ctx: Context) -> None:
        self.fired.append("before_tool")

    def after_tool(self, result: Any, ctx: Context) -> None:
        self.fired.append("after_tool")

    def after_response(self, response: str, ctx: Context) -> None:
        self.fired.append("after_response")

    def after_run(self, result: Any, ctx: Context) -> None:
        self.fired.append("after_run")

    def on_error(self, error: Exception, ctx: Context) -> str:
        self.fired.append("on_error")
        return "sorry"


def owning(run: Any, **options: Any) -> Agent:
    """An agent that owns its step with that function."""
    cls = type("Own", (Agent,), {"run": run})
    agent: Agent = cls(**options)
    return agent


async def test_h8_the_method_answers_and_its_calls_reach_model_and_tool(go: Go) -> None:
    agent = Owner(model=(model := ScriptedModel(lambda call: f"said {len(model.calls)}")))
    result = await go(App(), agent, "hi")
    assert result.text == "SAID 2"
    assert [type(message) for message in result.messages] == [User, Assistant]
    assert (result.finish_reason, result.agent, result.usage.requests) == ("stop", "Owner", 2)
    assert [[message.text for message in call.messages] for call in model.calls] == [["plan", "hi"], ["said 1: 42"]]
    assert agent.fired == []


async def test_h8_a_class_with_hooks_and_no_run_has_them_fire(go: Go) -> None:
    """The negative twin: what makes the hooks silent is `run`."""

    class Plain(Agent):
        before_run = Owner.before_run
        fired: list[str]

    agent = Plain(model=ScriptedModel(["x"]))
    object.__setattr__(agent, "fired", [])
    await go(App(), agent, "hi")
    assert agent.fired == ["before_run"]


async def test_h8_no_hook_fires_when_it_raises_on_error_included(go: Go) -> None:
    async def run(self: Agent, input: Any, ctx: Context) -> str:
        raise Boom

    hooked: list[str] = []

    def on_error(error: Exception, ctx: Context) -> str:
        hooked.append("on_error")
        return "sorry"

    agent = owning(run, hooks=[{"on_error": on_error}])
    with pytest.raises(Boom):
        await go(App(), agent, "hi")
    assert hooked == []


async def test_h8_its_calls_pass_through_layers_limits_and_events(go: Go) -> None:
    trace: list[str] = []
    events: list[Event] = []

    def layer(scope: str) -> Any:
        async def act(call: Any, next: Any) -> Any:
            trace.append(scope)
            return await next()

        return act

    app = App().use(**{scope: layer(scope) for scope in ("run", "agent", "chat", "tool")}).observe(events.append)
    await go(app, Owner(model=ScriptedModel(["a", "b"])), "hi")
    assert trace == ["run", "agent", "chat", "tool", "chat"]
    kinds = ModelStarted | ModelFinished | ToolStarted | ToolFinished | AgentFinished
    assert [(event.type, event.turn) for event in events if isinstance(event, kinds)] == [
        ("ModelStarted", 1),
        ("ModelFinished", 1),
        ("ToolStarted", 1),
        ("ToolFinished", 1),
        ("ModelStarted", 2),
        ("ModelFinished", 2),
        ("AgentFinished", 2),
    ]


async def test_h8_a_layer_may_change_answer_or_refuse_its_calls(go: Go) -> None:
    async def shout(call: Any, next: Any) -> Any:
        reply = await next()
        return reply.replace(text=reply.text + "!")

    async def refuse(call: Any, next: Any) -> Any:
        return ToolOutput("no", is_error=True)

    model = ScriptedModel(["a", "b"])
    result = await go(App().use(chat=shout, tool=refuse), Owner(model=model), "hi")
    assert (result.text, model.calls[1].messages[0].text) == ("B!", "a!: no")


@pytest.mark.parametrize("limits", [Limits(chat_calls=1), Limits(turns=1)], ids=["chat_calls", "turns"])
async def test_h8_limits_hold_for_its_calls(limits: Limits, go: Go) -> None:
    with pytest.raises(LimitExceeded):
        await go(App(limits=limits), Owner(model=ScriptedModel(["a", "b"])), "hi")
    two = Limits(chat_calls=2, turns=2)
    assert (await go(App(limits=two), Owner(model=ScriptedModel(["a", "b"])), "hi")).text == "B"


async def test_h8_a_limit_that_stops_gives_what_there_is(go: Go) -> None:
    limits = Limits(turns=1, on_exceed="stop")
    result = await go(App(limits=limits), Owner(model=ScriptedModel(["a", "b"])), "hi")
    assert (result.text, result.finish_reason, result.stopped_by) == ("", "limit", "limit")


async def test_h8_ctx_chat_of_an_agent_without_a_run_of_its_own_is_no_turn(go: Go) -> None:
    turns: list[int] = []

    async def ask(input: Any, ctx: Context) -> None:
        await ctx.chat("aside")
        turns.append(ctx.turn)

    agent = Agent(model=ScriptedModel(["aside", "a"]), hooks=[{"before_run": ask}])
    result = await go(App(limits=Limits(turns=1)), agent, "hi")
    assert (result.text, turns) == ("a", [0])


async def test_h8_the_answer_may_be_a_result(go: Go) -> None:
    async def run(self: Agent, input: Any, ctx: Context) -> Result:
        return Result("mine", finish_reason="length")

    result = await go(App(), owning(run), "hi")
    assert (result.text, result.finish_reason, result.agent) == ("mine", "length", "Own")
    assert [message.text for message in result.messages] == ["hi", "mine"]


async def test_h8_the_answer_may_be_that_of_another_agent(go: Go) -> None:
    other = Agent(name="other", model=ScriptedModel(["theirs"]))

    async def run(self: Agent, input: Any, ctx: Context) -> Result:
        return await ctx.run(other, input)

    result = await go(App(), owning(run), "hi")
    assert (result.text, result.agent) == ("theirs", "other")


async def test_h8_it_may_be_a_plain_function_and_give_an_empty_text(go: Go) -> None:
    assert (await go(App(), owning(lambda self, input, ctx: ""), "hi")).text == ""


async def test_h8_nothing_and_the_wrong_thing_are_refused_with_the_fix(go: Go) -> None:
    async def run(self: Agent, input: Any, ctx: Context) -> None:
        await ctx.chat(input)

    with pytest.raises(NothingReturned, match=r"run returned None; return the answer, a str or a Result$"):
        await go(App(), owning(run, model=ScriptedModel(["a"])), "hi")

    async def raw(self: Agent, input: Any, ctx: Context) -> ChatReply:
        return await ctx.chat(input)

    with pytest.raises(WrongReturn, match=r"raw returned a value of type ChatReply .*a str \(such as reply\.text\)"):
        await go(App(), owning(raw, model=ScriptedModel(["a"])), "hi")


async def test_h8_what_a_tool_says_to_end_the_step_comes_out_of_call_tool(go: Go) -> None:
    @tool
    async def explode() -> str:
        raise FatalToolError("broken")

    async def run(self: Agent, input: Any, ctx: Context) -> str:
        try:
            await ctx.call_tool("explode")
        except FatalToolError:
            return "went on"
        return "nothing happened"

    assert (await go(App(), owning(run, tools=[explode]), "hi")).text == "went on"


async def test_h8_agent_layers_change_its_input_and_start_it_again(go: Go) -> None:
    inputs: list[Any] = []

    async def run(self: Agent, input: Any, ctx: Context) -> str:
        inputs.append(input)
        if len(inputs) == 1:
            raise Boom
        return f"{input}!"

    async def twice(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Boom:
            return await next(call.replace(input="again"))

    assert (await go(App().use(agent=twice), owning(run), "hi")).text == "again!"
    assert inputs == ["hi", "again"]


async def test_h8_a_class_as_target_gives_an_object_per_run(go: Go) -> None:
    class Counter(Agent):
        count = 0

        async def run(self, input: Any, ctx: Context) -> str:
            self.count += 1
            return f"{self.count} {self.ctx is ctx} {self.state == ctx.state}"

    app = App(agents=[Counter])
    assert [(await go(app, "Counter", "hi")).text for _ in range(2)] == ["1 True True"] * 2


async def test_h8_its_answer_is_streamed_when_it_has_returned_and_what_it_asked_is_not() -> None:
    events: list[Event] = []
    async with App().stream(Owner(model=ScriptedModel(["a", "b"])), "hi") as stream:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - as they come
    assert deltas(events) == ["B"] == [stream.result.text]
    async with App().stream(Owner(model=ScriptedModel(["a", "b"])), "hi") as stream:
        assert [piece async for piece in stream.text()] == ["B"]


async def test_h8_tool_calls_of_its_replies_have_ids_that_are_unique_in_the_step(go: Go) -> None:
    ids: list[str] = []

    async def run(self: Agent, input: Any, ctx: Context) -> str:
        for _ in range(2):
            reply = await ctx.chat(input, tools=[double])
            ids.extend(use.id for use in reply.tool_calls)
        return "done"

    use = ToolUse("double", {"n": 1})
    await go(App(), owning(run, model=ScriptedModel([ChatReply("", (use,)), ChatReply("", (use,))])), "hi")
    assert len(set(ids)) == 2


def test_an_agent_without_a_run_still_says_who_runs_it() -> None:
    with pytest.raises(AttributeError, match=r"does not run by itself; write await app\.run\(agent, \.\.\.\)"):
        getattr(Agent(), "run")  # noqa: B009 - a type checker knows that there is none
