"""Many agents: flows, handoffs, agents as tools, conversations and approvals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

from middlechain import (
    Agent,
    App,
    Context,
    Conversation,
    Flow,
    Message,
    Result,
    Stream,
    Tool,
    ToolCall,
    answered,
    called_tool,
    loop,
    parallel,
    sequence,
    tool,
)
from middlechain.sessions import Saved, Sessions, SqliteSessions


class Writer(Agent):
    description = "Writes."


class Router(Agent):
    handoffs = (Writer, "other")
    tools = (Writer.as_tool("write", "Write a text."),)
    output = int
    output_retries = 1


def trim(input: str, ctx: Context[Any]) -> str:
    return input.strip()


async def shorten(input: str, ctx: Context[Any]) -> Result | None:
    return None


def best(results: Sequence[Result], ctx: Context[Any]) -> str:
    return max(results, key=lambda result: len(result.text)).text


def approved(ctx: Context[Any]) -> bool:
    return ctx.loop is not None and ctx.loop.iteration == ctx.loop.max_iterations


def large(call: ToolCall) -> bool:
    return bool(call.args["amount"] > 50)


@tool(approve=large)
def refund(amount: int) -> str:
    """Refund it."""
    return f"{amount} refunded"


team = sequence(trim, Writer, loop(Writer, shorten, until=approved), parallel(Writer, "other", merge=best), name="team")
assert_type(team, Flow)
assert_type(loop(Writer, until=answered, max_fails=None), Flow)
assert_type(loop(Writer, until=called_tool("refund")), Flow)
assert_type(Writer(name="w").as_tool(), Tool)
assert_type(team.as_tool("team"), Tool)
app = App(agents=[Router, team])


async def main(sessions: SqliteSessions) -> None:
    assert_type(await app.run(team, "hello"), Result)
    conversation = app.conversation(Router, sessions=sessions, id="7", data={"user": 7})
    assert_type(conversation, Conversation)
    assert_type(await conversation.send("hello", on_text=print), Result)
    assert_type(conversation.messages, tuple[Message, ...])
    assert_type(conversation.pending, tuple[ToolCall, ...])
    decisions = {conversation.pending[0].id: True}
    assert_type(await conversation.resume(decisions), Result)
    assert_type(await conversation.resume({"1": ToolCall("refund", {"amount": 2}), "2": False}), Result)
    assert_type(conversation.stream("hello", resets=False), Stream)
    assert_type(conversation.stream(resume={"1": True}), Stream)
    assert_type(await sessions.load("7"), Saved | None)
    store: Sessions = sessions
    print(store)


async def refused(conversation: Conversation) -> None:
    sequence(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    parallel(Writer, merge="texts")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    loop(Writer, max_iterations="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    loop(Writer, until=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(handoffs=[7])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await conversation.send()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await conversation.send("hello", history=[])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await conversation.resume({"1": "yes"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    app.conversation(Writer, sessions="file.db")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
