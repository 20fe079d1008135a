"""Apps: how one is put together, looked at, started and stopped, and changed for a test."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import assert_type

import middlechain
from middlechain import Agent, App, Chain, ConfigurationError, Context, Event, Limits, Model, tool
from middlechain.testing import ScriptedModel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Greeter(Agent):
    model = "demo"
    tools = (add,)


class Named(App):
    """An app of one's own is that app in all that gives it back."""


app = App("greetings", model="demo", agents=[Greeter, Agent(name="other")], limits=Limits(turns=3))
App(model=ScriptedModel(["hello"]), agents=(Greeter(),), limits=None)

assert_type(app, App)
assert_type(app.name, str)
assert_type(app.limits, Limits)
assert_type(app.model, Model | str | None)
assert_type(app.agents, dict[str, Agent | type[Agent]])
assert_type(app.agent_named("other"), Agent | type[Agent])


def saw(event: Event) -> None:
    print(event.type)


async def saw_later(event: Event) -> None:
    print(event.type)


assert_type(app.observe(saw).observe(saw_later).observe(lambda event: print(event.seq)), App)
assert_type(Named().observe(print), Named)


def looked_at() -> None:
    assert_type(app.explain(Greeter), Chain)
    assert_type(app.explain("other"), Chain)
    print(app.explain(Greeter()))
    for link in app.explain(Greeter).links:
        assert_type((link.scope, link.kind, link.name, link.owner), tuple[str, str, str, str])
        assert_type(str(link), str)
    assert_type(app.check(), None)
    app.check(Greeter, "other", Agent())
    try:
        app.check()
    except ConfigurationError as error:
        assert_type(error.issues, tuple[str, ...])


async def started_and_stopped() -> None:
    async with app as entered:
        assert_type(entered, App)
    async with Named() as named:
        assert_type(named, Named)


async def add_for_tests(a: int, b: int, ctx: Context) -> int:
    return 42


async def changed_for_a_test() -> None:
    others: AbstractContextManager[None, bool | None] = app.override(model=ScriptedModel(["hello"]))
    with others, app.override(tools={"add": add_for_tests}):
        await app.run(Greeter, "hello")
    with app.override(model="demo", tools={"add": add}) as nothing:
        assert_type(nothing, None)


looked_at()


def refused_apps() -> None:
    App(nme="greetings")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App(modle="demo")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App(model=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App(agents=Greeter)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App(agents=Greeter())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App(agents=["greeter"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    App(limits=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App(limits={"turns": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.observe(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.observe(lambda: None)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
    app.observe(add_for_tests)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.agent_named(Greeter)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.runs  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    app.stack  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def refused_looks() -> None:
    app.explain()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.explain(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.explain(App)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.explain(Greeter, "other")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await app.explain(Greeter)  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    app.explain(Greeter).print()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    app.check(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.check([Greeter])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.check()  # type: ignore[func-returns-value, misc]  # pyright: ignore[reportGeneralTypeIssues]
    failed: bool = app.check()  # type: ignore[assignment, func-returns-value]  # pyright: ignore[reportAssignmentType]
    print(failed)


async def refused_lifespans() -> None:
    with app:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    async with App:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    await app  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    app.start()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def refused_overrides() -> None:
    app.override("demo")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.override(modle="demo")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.override(model=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.override(model=ScriptedModel)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.override(tools=[add])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.override(tools={"add": 42})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    app.override(tools={add: add_for_tests})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    async with app.override(model="demo"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    await app.override(model="demo")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    app.override(model="demo").run(Greeter, "hello")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def refused_names() -> None:
    middlechain.Agnt  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
