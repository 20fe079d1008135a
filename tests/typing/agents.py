"""Agents: what an editor knows of their options, and which it refuses."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, assert_type

from middlechain import Agent, Context, Input, Layers, Limits, Model, Result, Settings, System, User, tool
from middlechain.testing import ScriptedModel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def subtract(a: int, b: int) -> int:
    """Subtract one number from another."""
    return a - b


async def prompt(ctx: Context[Any]) -> str:
    return f"You answer run {ctx.run_id}."


class Calculator(Agent):
    name = "calculator"
    description = "Calculates."
    model = "openai:gpt-5"
    instructions = "You calculate."
    tools = (add, subtract)
    settings = Settings(temperature=0)
    limits = Limits(turns=3)


class Scripted(Agent):
    model = ScriptedModel(["hello"])
    tools = [add]


class OfADesk(Agent):
    """An agent with arguments of its own."""

    def __init__(self, desk: str, model: Model) -> None:
        self.desk = desk
        super().__init__(name=f"desk {desk}", model=model)


everything = Agent(
    name="everything",
    model=ScriptedModel(["hello"]),
    instructions=prompt,
    tools=[add, subtract, len],
    hooks=[],
    settings=Settings(seed=1),
    limits=None,
    description="All options at once.",
    middleware=[],
)
assert_type(everything, Agent)
assert_type(Calculator(), Calculator)
assert_type(Calculator(model="demo", tools=[subtract]), Calculator)
assert_type(OfADesk("a", ScriptedModel([])).desk, str)
assert_type(everything.name, str)
assert_type(everything.description, str)
assert_type(everything.settings, Settings)
assert_type(everything.limits, Limits | None)
assert_type(everything.model, Model | str | None)

Agent(instructions="You are brief.")
Agent(instructions=lambda ctx: f"You answer run {ctx.run_id}.")
everything.tools = [add]
everything.settings = Settings(temperature=1)


class Reading(Agent):
    """What a method of an agent sees of the run that it is called in."""

    def after_response(self, response: str, ctx: Context[Any]) -> None:
        assert_type(self.ctx, Context[Any])
        assert_type(self.ctx.run_id, str)
        self.state.answers = 1


class Prompted(Agent):
    """Instructions as a method."""

    def instructions(self, ctx: Context[Any]) -> str:
        return f"You answer run {ctx.run_id}."


class PromptedLater(Agent):
    async def instructions(self, ctx: Context[Any]) -> str:
        return f"You answer run {ctx.run_id}."


class PromptedByAFunction(Agent):
    instructions = prompt


class Router(Agent):
    """An agent that owns its step."""

    tools = (add,)

    async def run(self, input: Input, ctx: Context[Any]) -> str:
        reply = await ctx.chat([System("Answer yes or no."), User("Is it about money?")])
        if reply.text == "yes":
            return (await ctx.run("accounts", input)).text
        return (await ctx.call_tool("add", {"a": 1, "b": 2})).content


class Handing(Agent):
    """The same without `async`, and with a `Result`."""

    def run(self, input: Input, ctx: Context[Any]) -> Awaitable[Result]:
        return ctx.run("accounts", input)


assert_type(Router(tools=[]), Router)


def refused(path: Path) -> None:
    Agent(modle="demo")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Agent(name=path)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(model=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(instructions=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(instructions=lambda ctx: 7)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    Agent(tools=add)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(tools="add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(tools=["add"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent(hooks=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(settings={"temperature": 0})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(limits=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(middleware=Layers(chat=lambda call, next: next()))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent("calculator")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Agent().walk()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    Calculator.tool  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    everything.settings = {"temperature": 0}  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    OfADesk("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def refused_since_the_app_runs_agents(agent: Agent) -> None:
    await agent.run("What is 2 and 2?")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    agent.run_sync("What is 2 and 2?")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    agent.stream("What is 2 and 2?")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def refused_class_attributes() -> None:
    class Wrong(Agent):
        name = 7  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        model = 7  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        tools = add  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        settings = {"temperature": 0}  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        limits = 3  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    print(Wrong)


def refused_since_the_context_is_the_runtimes(agent: Agent, ctx: Context[Any]) -> None:
    agent.ctx = ctx  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    agent.state = 7  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
