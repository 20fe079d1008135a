"""`ctx`: with the type of the run's state, and without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_type

from middlechain import (
    Agent,
    App,
    ChatCall,
    ChatReply,
    Context,
    Limits,
    Message,
    Next,
    Result,
    ToolOutput,
    Usage,
    User,
    tool,
)


@dataclass
class Desk:
    open: bool = True
    asked: int = 0


async def read(ctx: Context[Desk]) -> None:
    assert_type(ctx.state, Desk)
    assert_type(ctx.state.asked, int)
    assert_type(ctx.run_id, str)
    assert_type(ctx.app, App)
    assert_type(ctx.agent, Agent)
    assert_type(ctx.turn, int)
    assert_type(ctx.messages, tuple[Message, ...])
    assert_type(ctx.usage, Usage)
    assert_type(ctx.limits, Limits)
    assert_type(ctx.data, Mapping[str, Any])
    ctx.log.info("read", turn=ctx.turn)


async def do(ctx: Context[Desk], agent: Agent) -> None:
    assert_type(await ctx.chat("Is this a question?"), ChatReply)
    assert_type(await ctx.chat([User("Is this a question?")], model="demo", tools=[]), ChatReply)
    assert_type(await ctx.chat(ctx.messages), ChatReply)
    assert_type(await ctx.call_tool("add", {"a": 1}), ToolOutput)
    assert_type(await ctx.call_tool("now"), ToolOutput)
    assert_type(await ctx.run(agent, "hello"), Result)
    assert_type(await ctx.run(Agent, "hello"), Result)
    assert_type(await ctx.run("other", "hello"), Result)
    assert_type(await ctx.emit("progress", 0.5), None)
    ctx.stop()
    ctx.stop("enough")
    ctx.defer(lambda: print("done"))
    ctx.defer(later)


async def later() -> None: ...


def without_a_type(ctx: Context, same: Context[Any]) -> None:
    assert_type(ctx, Context[Any])
    assert_type(ctx.state, Any)
    assert_type(ctx.run_id, str)
    ctx.approved = True
    print(ctx.approved, ctx.get("approved", default=False))
    del ctx.approved


async def in_a_layer(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    ctx: Context[Desk] = call.ctx
    ctx.state.asked += 1
    return await next()


@tool
def opening_hours(day: str, ctx: Context[Desk]) -> str:
    """Tell when we are open."""
    return "9 to 5" if ctx.state.open else "closed"


App(agents=[Agent(name="desk", tools=[opening_hours])]).use(chat=in_a_layer)


async def refused(ctx: Context[Desk], other: Context[int], agent: Agent) -> None:
    ctx.state.opne  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ctx.state = Desk()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    ctx.run_id = "7"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    ctx.turn += 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    ctx.data["user"] = 7  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    ctx.messages.append(User("hello"))  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ctx.loop.iteration  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    await ctx.chat()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.chat(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.chat(["hello"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.chat("hello", settings=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.chat("hello", model=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.call_tool(opening_hours)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.call_tool("add", "{}")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.run(agent)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.run(7, "hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.run(agent, "hello", history=[])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ctx.chat("hello")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.emit("progress")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await ctx.emit()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.stop()  # type: ignore[func-returns-value, misc]  # pyright: ignore[reportGeneralTypeIssues]
    ctx.stop(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ctx.defer(later())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await read(other)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(Context[Desk, int])  # type: ignore[misc]  # pyright: ignore[reportInvalidTypeArguments]
