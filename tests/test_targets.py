"""Class and instance targets, and runs at once on one app (section 1, C3, B38)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from middlechain import (
    Agent,
    App,
    ConfigurationError,
    Context,
    Result,
    ToolCall,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel

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


# Section 1: class and instance targets


class Remembering(Agent):
    """Keeps on `self` what it was asked, and says so at the end."""

    tools = [ping]  # noqa: RUF012
    model = ScriptedModel(lambda call: "done" if call.messages[-1].role == "tool" else [ToolUse("ping")])

    def before_run(self, input: Any, ctx: Context) -> None:
        self.mine = input
        ctx.asked = input

    def after_tool(self, result: Any, ctx: Context) -> str:
        return f"{ctx.asked} {self.state.asked} {self.ctx.run_id == ctx.run_id}"

    def after_run(self, result: Result, ctx: Context) -> str:
        return f"{self.mine} {self.state.asked} {ctx.asked} {self.ctx.run_id}"


async def test_a_class_is_instantiated_once_per_run_with_no_arguments(go: Go) -> None:
    made: list[Agent] = []

    class Counted(Agent):
        model = ScriptedModel(lambda call: "done")

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        async def before_run(self, input: Any, ctx: Context) -> None:
            if input == "q":
                await ctx.run(Counted, "nested")
            assert self is made[-1]

    app = App()
    for count in (1, 2):
        await go(app, Counted, "q")
        assert len(made) == count
    assert made[0] is not made[1]


async def test_an_instance_is_used_as_given(go: Go) -> None:
    agent, seen = Remembering(), list[Any]()

    async def note(call: Any, next: Any) -> None:
        seen.append(call.agent)
        await next()

    await go(App().use(agent=note), agent, "q")
    assert seen == [agent]
    assert agent.mine == "q"


async def test_a_class_given_by_name_is_instantiated_per_run_too(go: Go) -> None:
    seen: list[Any] = []

    async def note(call: Any, next: Any) -> None:
        seen.append(call.agent)
        await next()

    instance = Agent(name="given", model=scripted("a", "b"))
    app = App(agents=[Remembering, instance]).use(agent=note)
    for name in ("Remembering", "Remembering", "given", "given"):
        await go(app, name, "q")
    assert seen[0] is not seen[1]
    assert seen[2] is seen[3] is instance


def test_self_ctx_and_self_state_exist_inside_a_run_only() -> None:
    for name in ("ctx", "state"):
        with pytest.raises(ConfigurationError, match="no run here; read it in a hook, a layer or a tool"):
            getattr(Remembering(), name)


async def test_self_ctx_is_that_of_the_innermost_step_and_again_the_outer_ones_after_it(go: Go) -> None:
    seen: list[tuple[str, int]] = []

    class Nested(Agent):
        model = ScriptedModel(lambda call: "done")

        async def before_run(self, input: Any, ctx: Context) -> None:
            assert self.ctx is ctx
            self.ctx.get("x")
            if input == "q":
                await ctx.run(self, "nested")
            assert self.ctx is ctx
            seen.append((self.ctx.messages[-1].text, len(self.ctx.messages)))

    await go(App(), Nested(), "q")
    assert seen == [("nested", 1), ("q", 1)]


async def test_self_state_is_that_runs_in_tools_too_in_threads_as_well(go: Go) -> None:
    class Working(Agent):
        def before_run(self, input: Any, ctx: Context) -> None:
            self.state.asked = input

    agent = Working(model=scripted([ToolUse("on_loop"), ToolUse("in_thread")], "done"))

    async def on_loop() -> Any:
        return agent.state.asked

    def in_thread() -> Any:
        return agent.ctx.asked

    agent.tools = [on_loop, in_thread]
    result = await go(App(), agent, "q")
    assert [message.text for message in result.messages if message.role == "tool"] == ["q", "q"]


# C3


class Meeting:
    """Lets runs go on only when all of them have come to the same place."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.all_here = anyio.Event()

    async def tool(self, call: ToolCall, next: Any) -> None:
        self.left -= 1
        if not self.left:
            self.all_here.set()
        await self.all_here.wait()
        await next()


@pytest.mark.parametrize("form", ["class", "instance", "name"])
async def test_c3_b38_runs_at_once_are_isolated(go: Go, form: str) -> None:
    """B38: 50 runs at once on one app, each with a tool turn in which all of them meet."""
    app = App(agents=[Remembering]).use(Meeting(50))
    target: Any = {"class": Remembering, "instance": Remembering(), "name": "Remembering"}[form]
    results: dict[str, Result] = {}

    async def one(input: str) -> None:
        results[input] = await go(app, target, input, run_id=f"run {input}")

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(one, str(number))
    for input, result in results.items():
        mine, *rest = result.text.split(" ", 1)
        assert rest == [f"{input} {input} run {input}"]
        assert mine == input or form == "instance"  # an instance is shared as given, and so is what is set on it
        assert [message.text for message in result.messages] == [input, "", f"{input} {input} True", result.text]
        assert (result.usage.requests, result.state.asked) == (2, input)
    assert len({id(result.state) for result in results.values()}) == 50


async def test_b38_m2_app_use_during_a_run_affects_later_runs_only(go: Go) -> None:
    app, crossed = App(), list[str]()

    async def added(call: Any, next: Any) -> None:
        crossed.append(type(call).__name__)
        await next()

    async def use(ctx: Context) -> None:
        app.use(agent=added, chat=added, tool=added)

    agent = hooked(use, "before_run", [ToolUse("ping")], "done", "done")
    await go(app, agent, "q")
    assert crossed == []
    await go(app, agent, "q")
    assert crossed == ["AgentCall", "ChatCall"]


def test_c3_one_app_serves_several_event_loops_in_turn() -> None:
    app = App()
    app.use(chat=Passing())
    for backend in ("asyncio", "trio", "asyncio"):
        assert anyio.run(app.run, Remembering, backend, backend=backend).text.startswith(backend)


class Passing:
    async def __call__(self, call: Any, next: Any) -> Any:
        return await next()
