"""Runs: what they take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from typing_extensions import Unpack

from middlechain import Agent, App, Assistant, Event, Image, Input, Layers, Limits, Result, Text, User, run
from middlechain.options import RunOptions, Target
from middlechain.testing import ScriptedModel


class Greeter(Agent):
    model = "demo"


app = App(agents=[Greeter, Agent(name="other")])

assert_type(app.run_sync(Greeter, "hello"), Result)
assert_type(app.run_sync(Greeter, "hello").text, str)


async def said(piece: str) -> None:
    print(piece)


def saw(event: Event) -> None:
    print(event.type)


async def main(agent: Agent, before: Result, question: User) -> None:
    assert_type(await app.run(agent, "hello"), Result)
    typed: Result[int] = await app.run(agent, "hello")  # of an agent with output=int
    assert_type(typed.output, int)
    assert_type(await app.run(Greeter, "hello"), Result)
    assert_type(await app.run("other", "hello"), Result)
    assert_type(await run(Greeter, "hello"), Result)
    assert_type(await run(agent, "hello", model=ScriptedModel(["hello"]), limits=Limits(turns=1)), Result)
    assert_type((await app.run(agent, "hello")).text, str)
    await app.run(agent, question)
    await app.run(agent, [Text("What is this?"), Image(url="https://example.com/cat.png")])
    await app.run(
        agent,
        "hello",
        history=before.messages,
        state={"seen": 0},
        data={"user": 7},
        limits=Limits(seconds=2.5),
        use=[Layers(chat=lambda call, next: next())],
        run_id="7",
        on_text=said,
    )
    await app.run(agent, "hello", on_text=print, limits=None, data=None, run_id=None)
    await app.run(agent, "hello", on_text=lambda piece: print(piece.upper()))
    await app.run(agent, "hello", history=[User("hi"), Assistant("Hello!")])
    await app.run(agent, "hello", history=[*before.messages, {"role": "user", "content": "hi"}])
    of_two_kinds = [User("hi"), Assistant("Hello!")]
    await app.run(agent, "hello", history=of_two_kinds)
    of_dicts = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello!"}]
    await app.run(agent, "hello", history=of_dicts)


async def ask(target: Target, input: Input, **options: Unpack[RunOptions]) -> str:
    """A function of one's own around `run`, with all of its keywords."""
    return (await app.run(target, input, **options)).text


class Polite(App):
    """An app of one's own."""

    async def run(self, target: Target, input: Input, **options: Unpack[RunOptions]) -> Result:
        return await super().run(target, input, **options)


async def around(agent: Agent, data: Mapping[str, Any]) -> None:
    assert_type(await ask(agent, "hello", data=data, on_text=print), str)
    assert_type(await Polite().run(agent, "hello"), Result)


async def refused_runs(agent: Agent) -> None:
    await ask(agent, "hello", colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await app.run(agent)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await app.run(agent, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, ["hello"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await app.run(7, "hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(App, "hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await app.run(agent, "hello", history="hi")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", history=["hi"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", limits=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", limits={"turns": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", data="user")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", use=Layers(chat=lambda call, next: next()))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", run_id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", on_text="print")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", on_text=lambda: None)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", on_text=saw)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run(agent, "hello", model="demo")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await run(agent, "hello", colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await run("other", "hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def refused_waiting(agent: Agent) -> None:
    await app.run_sync(agent, "hello")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    app.run(agent, "hello")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    app.run(agent, "hello").text  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    result: Result = app.run(agent, "hello")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    text: str = await app.run(agent, "hello")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(result, text)
    async with app.run(agent, "hello") as _:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        pass
