"""Streams: what is read out of them, and how events are told apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, assert_type

from middlechain import (
    Agent,
    AgentFinished,
    AgentStarted,
    App,
    ChatReply,
    CustomEvent,
    Event,
    LimitReached,
    Limits,
    ModelFinished,
    ModelStarted,
    ReasoningDelta,
    Result,
    RunFinished,
    RunStarted,
    Stream,
    TextDelta,
    TextReset,
    ToolCall,
    ToolFinished,
    ToolOutput,
    ToolStarted,
)
from middlechain.testing import Collected, collect

app = App()


async def text_of(agent: Agent) -> AsyncIterator[str]:
    async with app.stream(agent, "hello") as stream:
        async for piece in stream.text():
            assert_type(piece, str)
            yield piece


async def events_of(agent: Agent) -> Result:
    async with app.stream(agent, "hello", resets=True, limits=Limits(turns=3)) as stream:
        assert_type(stream, Stream)
        async for event in stream:
            assert_type(event, Event)
            print(kind_of(event))
        assert_type(await anext(stream), Event)
        assert_type(await stream.aclose(), None)
        assert_type(stream.append_only, bool)
        assert_type(stream.result, Result)
        return stream.result


def kind_of(event: Event) -> str:
    assert_type(event.type, str)
    assert_type((event.run_id, event.agent, event.step), tuple[str, str, str])
    assert_type(event.parent, str | None)
    assert_type((event.turn, event.seq), tuple[int, int])
    if isinstance(event, TextDelta | ReasoningDelta):
        assert_type(event.text, str)
        return event.text
    match event:
        case ToolStarted(call=call):
            assert_type(call, ToolCall)
        case ToolFinished(call, output):
            assert_type(call, ToolCall)
            assert_type(output, ToolOutput | None)
        case ModelFinished(reply):
            assert_type(reply, ChatReply | None)
        case AgentFinished(result=Result(text=text)):
            assert_type(text, str)
        case CustomEvent("progress", data):
            assert_type(data, Any)
        case LimitReached(limit, value):
            assert_type(limit, str)
            assert_type(value, float)
        case RunFinished(outcome):
            return outcome
        case AgentStarted(via):
            return via
        case TextDelta(text) | ReasoningDelta(text):
            assert_type(text, str)
        case TextReset() | RunStarted() | ModelStarted():
            pass
        case _:
            assert_type(event, Event)
    return event.type


async def all_of(agent: Agent) -> None:
    assert_type(await collect(app.stream(agent, "hello")), Collected)
    events, result = await collect(app.stream(agent, "hello", resets=False))
    assert_type(events, list[Event])
    assert_type(result, Result)
    assert_type([event.text for event in events if isinstance(event, TextDelta)], list[str])


async def refused_streams(agent: Agent, stream: Stream) -> None:
    app.stream(agent)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.stream(agent, "hello", colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.stream(agent, "hello", resets="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.stream(agent, "hello", on_text=print)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.stream(agent, "hello", False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await app.stream(agent, "hello")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    await stream  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    await stream.text()  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    await stream.result  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    stream.aclose()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    stream.result = Result("hello")  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    with app.stream(agent, "hello") as _:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        pass
    for _ in stream:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        pass
    for _ in stream.text():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        pass
    async for _ in stream.text:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        pass
    await collect(app.run(agent, "hello"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await collect(agent)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def refused_events(event: Event) -> None:
    event.text  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    event.seq = 7  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    TextDelta()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    TextDelta(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    TextDelta("a").text = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    ToolStarted("add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def refused_payloads(called: ToolFinished, ended: RunFinished, answered: ModelFinished) -> None:
    called.output.content  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    called.result  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ended.result  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    print(ended.outcome == "done")  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
    answered.reply.text  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
