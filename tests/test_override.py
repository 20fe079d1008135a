"""`app.override(model=, tools=)`: others in the place of models and tools, for tests."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from middlechain import Agent, App, ConfigurationError, Context, ToolOutput, ToolUse, tool
from middlechain.testing import ScriptedModel, no_requests

from .conftest import Go

pytestmark = pytest.mark.anyio


@tool
def refund(order: int, ctx: Context) -> str:
    """Pay back."""
    raise AssertionError("the real tool ran")


@tool
async def status(order: int) -> str:
    return f"{order} is real"


def calling(name: str) -> ScriptedModel:
    return ScriptedModel(
        lambda call: [ToolUse(name, {"order": 7})] if len(call.messages) < 2 else call.messages[-1].text
    )


def shop() -> App:
    return App(agents=[Agent(name="desk", model="openai:gpt-none", tools=[refund, status])])


async def test_the_model_answers_whatever_agents_and_layers_say(go: Go) -> None:
    async def fall_back(call: Any, next: Any) -> Any:
        return await next(call.replace(model="openai:gpt-other"))

    app = shop().use(chat=fall_back)
    model = ScriptedModel(lambda call: "scripted")
    with app.override(model=model), no_requests():
        assert (await go(app, "desk", "hi")).text == "scripted"
    assert model.calls[0].model == "openai:gpt-other"
    with pytest.raises(ConfigurationError, match="no_requests"), no_requests():
        await go(app, "desk", "hi")


async def test_the_model_may_be_a_name(go: Go) -> None:
    app = shop()
    with app.override(model="demo"), no_requests():
        assert (await go(app, "desk", "hi")).text


async def test_it_answers_ctx_chat_and_nested_steps_too(go: Go) -> None:
    class Own(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            return (await ctx.chat("x", model="openai:gpt-none")).text + (await ctx.run("desk", "y")).text

    app = shop()
    with app.override(model=ScriptedModel(["a", "b"])):
        assert (await go(app, Own, "hi")).text == "ab"


@pytest.mark.parametrize("kind", ["sync", "async", "lambda", "tool"])
async def test_a_stand_in_runs_with_the_arguments_that_the_tool_would_get(kind: str, go: Go) -> None:
    got: list[Any] = []

    def fake(order: int, ctx: Context) -> str:
        got.append((order, ctx.run_id))
        return "fake"

    async def later(order: int, ctx: Context) -> str:
        await anyio.lowlevel.checkpoint()
        return fake(order, ctx)

    stand_ins: dict[str, Any] = {
        "sync": fake,
        "async": later,
        "lambda": lambda **given: fake(**given),
        "tool": tool(name="another")(later),
    }
    app = shop()
    with app.override(model=calling("refund"), tools={"refund": stand_ins[kind]}):
        result = await go(app, "desk", "hi", run_id="r1")
    assert (result.text, got) == ("fake", [(7, "r1")])


async def test_other_tools_and_everything_around_the_tool_stay(go: Go) -> None:
    seen: list[Any] = []

    async def policy(call: Any, next: Any) -> Any:
        seen.append((call.name, call.tool is status, call.tool.description))
        output = await next()
        return output.replace(content=output.content + "!")

    app = shop().use(tool=policy, only=status)
    with app.override(model=calling("status"), tools={"status": lambda order: ToolOutput(f"{order} is fake")}):
        assert (await go(app, "desk", "hi")).text == "7 is fake!"
    with app.override(model=calling("status")):
        assert (await go(app, "desk", "hi")).text == "7 is real!"
    assert seen == [("status", True, "")] * 2


async def test_arguments_are_still_held_against_the_schema_of_the_tool(go: Go) -> None:
    app = shop()
    model = ScriptedModel([[ToolUse("refund", {"order": "x"})], "done"])
    with app.override(model=model, tools={"refund": lambda **given: pytest.fail("ran")}):
        await go(app, "desk", "hi")
    assert "order" in model.calls[1].messages[-1].text


async def test_a_stand_in_that_fails_fails_as_a_tool(go: Go) -> None:
    def broken(**given: Any) -> str:
        raise ValueError("secret")

    app = shop()
    with app.override(model=calling("refund"), tools={"refund": broken}):
        assert (await go(app, "desk", "hi")).text == "ValueError: the tool 'refund' failed."


async def test_a_stand_in_with_other_parameters_is_refused_and_is_no_result_of_a_tool(go: Go) -> None:
    app = shop()
    with (
        app.override(model=calling("refund"), tools={"refund": lambda number: "fake"}),
        pytest.raises(ConfigurationError, match=r"place of the tool 'refund' does not take its arguments .*; give it"),
    ):
        await go(app, "desk", "hi")


async def test_overrides_nest_and_end_with_their_block(go: Go) -> None:
    app = shop()
    with app.override(model=calling("status"), tools={"status": lambda order: "outer"}):
        with app.override(tools={"status": lambda order: "inner"}):
            assert (await go(app, "desk", "hi")).text == "inner"
        with app.override(model=ScriptedModel(lambda call: "another model")):
            assert (await go(app, "desk", "hi")).text == "another model"
        assert (await go(app, "desk", "hi")).text == "outer"
        with pytest.raises(KeyError), app.override(model=ScriptedModel([])):
            raise KeyError
        assert (await go(app, "desk", "hi")).text == "outer"


async def test_a_run_that_began_before_the_block_is_not_affected() -> None:
    began, go_on = anyio.Event(), anyio.Event()

    async def reply(call: Any) -> Any:
        began.set()
        await go_on.wait()
        return [ToolUse("status", {"order": 7})] if len(call.messages) < 2 else call.messages[-1].text

    app = App(agents=[Agent(name="desk", model=ScriptedModel(reply), tools=[status])])
    texts: list[str] = []

    async def run() -> None:
        texts.append((await app.run("desk", "hi")).text)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await began.wait()
            with app.override(model=ScriptedModel([]), tools={"status": lambda order: "fake"}):
                go_on.set()
                await anyio.wait_all_tasks_blocked()
    assert texts == ["7 is real"]


def test_a_name_that_no_tool_bears_is_refused_when_the_block_ends() -> None:
    app = shop()
    with pytest.raises(
        ConfigurationError, match=r"replaced 'refnd' in no run, .*\(they have: refund, status\); correct the name$"
    ), app.override(tools={"refnd": lambda: "x", "refund": lambda: "x"}):  # fmt: skip
        pass
    with app.override(tools={"refund": lambda: "x"}):
        pass


async def test_a_tool_of_an_agent_that_the_app_does_not_know_will_do_once_it_was_called(go: Go) -> None:
    app = App()
    agent = Agent(model="demo", tools=[status])
    with app.override(model=calling("status"), tools={"status": lambda order: "fake"}):
        assert (await go(app, agent, "hi")).text == "fake"


def test_an_error_of_the_block_is_not_hidden_by_a_wrong_name() -> None:
    with pytest.raises(KeyError), shop().override(tools={"refnd": lambda: "x"}):
        raise KeyError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "gpt"}, r"no known prefix"),
        ({"model": object()}, r"model of app.override\(\) is .*give a name"),
        ({"tools": {"refund": "x"}}, r"tools=\) has 'refund': 'x'; map the name of a tool to a function"),
        ({"tools": {refund: refund}}, r"map the name of a tool to a function"),
    ],
)
def test_what_cannot_stand_in_is_refused_at_once(options: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says), shop().override(**options):
        pytest.fail("entered")
