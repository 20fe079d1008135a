"""Layers: what may be registered around which calls, and what `next` gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, assert_type

from middlechain import (
    Agent,
    AgentCall,
    App,
    ChatCall,
    ChatReply,
    Context,
    Event,
    Input,
    Layers,
    Message,
    Model,
    Next,
    Result,
    RunCall,
    Settings,
    System,
    Tool,
    ToolCall,
    ToolOutput,
    ToolUse,
    observes,
    repeats,
)

Call = TypeVar("Call")
Answer = TypeVar("Answer")

app = App()


# A layer of each scope.


async def around_run(call: RunCall, next: Next[RunCall, Result]) -> Result:
    assert_type(call.input, Input)
    assert_type(call.target, Agent | type[Agent] | str)
    assert_type(call.replace(input="changed"), RunCall)
    assert_type(call.ctx, Context[Any])
    assert_type(await next(call.replace(target="other", input="changed")), Result)
    return await next()


async def around_agent(call: AgentCall, next: Next[AgentCall, Result]) -> Result:
    assert_type(call.agent, Agent)
    assert_type(call.caller, Agent | None)
    assert_type(call.depth, int)
    assert_type(call.replace(input="changed"), AgentCall)
    result = await next()
    assert_type(result, Result)
    return result.replace(text=result.text.upper())


async def around_chat(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    assert_type(call.messages, tuple[Message, ...])
    assert_type(call.tools, tuple[Tool, ...])
    assert_type(call.settings, Settings)
    assert_type(call.model, Model | str | None)
    assert_type(call.streaming, bool)
    assert_type(call.replace(messages=[System("Be brief."), *call.messages]), ChatCall)
    assert_type(call.replace(messages=call.messages[1:], tools=(), model="demo", settings=Settings(seed=1)), ChatCall)
    reply = await next(call.replace(messages=call.messages[-1:]))
    assert_type(reply, ChatReply)
    assert_type(reply.text, str)
    assert_type(reply.tool_calls, tuple[ToolUse, ...])
    return reply.replace(text=reply.text.upper(), tool_calls=[])


async def around_tool(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
    assert_type(call.name, str)
    assert_type(call.args, dict[str, Any])
    assert_type(call.tool, Tool | None)
    assert_type(call.problem, str | None)
    assert_type(call.replace(name="add", args={"a": 1}), ToolCall)
    output = await next()
    assert_type(output, ToolOutput)
    assert_type(output.content, str)
    assert_type(output.error, BaseException | None)
    return output


assert_type(app.use(run=around_run, agent=around_agent, chat=around_chat, tool=around_tool), App)


class Named(App):
    """An app of one's own."""


assert_type(Named().use(chat=around_chat), Named)


# All that a chat layer may be and return.


async def short(call: ChatCall, next: Next[ChatCall, ChatReply]) -> str:
    return "no model was asked"


async def keeps(call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:
    await next()


async def sometimes(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply | str | None:
    return "cached" if call.streaming else None


def without_async(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    return ChatReply("no model was asked")


def hands_on(call: ChatCall, next: Next[ChatCall, ChatReply]) -> Awaitable[ChatReply]:
    return next()


async def roughly_typed(call: ChatCall, next: Callable[..., Awaitable[ChatReply]]) -> ChatReply:
    return await next(call)


async def untyped(call: Any, next: Any) -> Any:
    return await next()


async def tagged(tag: str, call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    print(tag)
    return await next()


class Counter:
    async def __call__(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
        return await next()

    async def method(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
        return await next()


app.use(chat=short).use(chat=keeps).use(chat=sometimes).use(chat=without_async).use(chat=hands_on)
app.use(chat=roughly_typed).use(chat=untyped).use(chat=partial(tagged, "a")).use(chat=Counter())
app.use(chat=Counter().method)
app.use(chat=lambda call, next: next())
app.use(chat=lambda call, next: next(call.replace(model="demo")))
app.use(chat=lambda call, next: None if call.streaming else "cached")
app.use(chat=[around_chat, short, without_async]).use(chat=(keeps, lambda call, next: next()))


# A layer for all scopes alike.


async def timed(call: Call, next: Next[Call, Answer]) -> Answer:
    return await next(call)


app.use(run=timed, agent=timed, chat=timed, tool=[timed])


# Bundles, and layers for one agent or one run.


class Audit:
    async def run(self, call: RunCall, next: Next[RunCall, Result]) -> Result:
        return await next()

    async def tool(self, call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        return await next()

    def on_event(self, event: Event) -> None:
        print(event.type)

    async def start(self) -> None: ...

    def stop(self) -> None: ...


def of_add(call: ToolCall) -> bool:
    return call.name == "add"


app.use(Audit()).use(Audit(), Layers(chat=short), chat=keeps, only=["calculator", Agent])
app.use(tool=around_tool, only=of_add).use(tool=around_tool, only=lambda call: call.name == "add")
names = ["add", "look_up"]
app.use(tool=around_tool, only=names).use(tool=around_tool, only={"add"}).use(tool=around_tool, only=[Agent(), max])
assert_type(Layers(run=around_run, agent=[around_agent], chat=around_chat, tool=[around_tool], only="add"), Layers)
Agent(middleware=[Layers(chat=[short, keeps])])


# A decorator leaves the function as it was written.


@app.middleware("chat")
async def counted(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    return await next()


@app.middleware("tool", only="add")
@observes
def looked_at(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> Awaitable[ToolOutput]:
    return next()


@app.middleware("run")
async def counted_too(call: Call, next: Next[Call, Answer]) -> Answer:
    return await next()


@app.middleware("agent")
async def counted_roughly(call: Any, next: Any) -> Any:
    return await next()


@repeats
async def twice(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    await next()
    return await next()


@observes
class Watcher:
    async def chat(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:
        await next()


assert_type(Watcher(), Watcher)
app.use(Watcher()).use(chat=twice)


async def as_it_was_written(call: ChatCall, next: Next[ChatCall, ChatReply], tool_call: ToolCall) -> None:
    assert_type(await counted(call=call, next=next), ChatReply)
    assert_type(await twice(call=call, next=next), ChatReply)

    async def answer(call: ToolCall | None = None, /) -> ToolOutput:
        return ToolOutput("3")

    assert_type(await looked_at(call=tool_call, next=answer), ToolOutput)


async def refused_calls_of_what_was_decorated(call: ChatCall) -> None:
    await counted(call)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await twice(call, "next")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Watcher(call)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def returns_a_number(call: ChatCall, next: Next[ChatCall, ChatReply]) -> int:
    return 7


def returns_a_number_at_once(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> int:
    return 7


async def returns_another_answer(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ToolOutput:
    return ToolOutput("7")


async def takes_no_next(call: ChatCall) -> ChatReply:
    return ChatReply("alone")


async def takes_three(call: ChatCall, next: Next[ChatCall, ChatReply], third: int) -> ChatReply:
    return await next()


def refused_layers() -> None:
    app.use(tool=around_chat)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat=around_tool)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(run=around_agent)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat=returns_a_number)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(tool=returns_a_number_at_once)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat=returns_another_answer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat=takes_no_next)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat=takes_three)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat="around_chat")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat=[around_chat, around_tool])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    app.use(chat=lambda call, next: 7)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    app.use(chat=lambda call: None)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
    app.use(chats=around_chat)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.use(chat=around_chat, only=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.use(chat=around_chat, only=[7])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Layers(chats=around_chat)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Layers(tool=around_chat)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Layers(chat=around_chat).chat = None  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    app.use(chat=around_chat).chat  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def refused_scopes() -> None:
    app.middleware("chat")(around_tool)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    app.middleware("tool")(around_chat)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    app.middleware("chat")(returns_a_number)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    app.middleware("chats")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    app.middleware(around_chat)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    app.middleware("chat", onyl="add")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.middleware()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def refused_next(call: ChatCall, next: Next[ChatCall, ChatReply], tool_call: ToolCall) -> ChatReply:
    await next(tool_call)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await next("changed")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await next(call.messages)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await next(call=call)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await next(call, call)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    next()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    text: str = await next()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(text)
    return next()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def refused_changes(call: ChatCall, run_call: RunCall, agent_call: AgentCall, tool_call: ToolCall) -> None:
    call.replace(mesages=())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    call.replace(messages="hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    call.replace(messages=["hello"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    call.replace(settings={"temperature": 0})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    call.replace(call.messages)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    call.messages.append(System("Be brief."))  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    call.messages = ()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    call.mesages  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    run_call.replace(inptu="changed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    run_call.replace(input=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent_call.replace(depth=7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tool_call.replace(arguments={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tool_call.replace(args="{}")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tool_call.args = {}  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    tool_call.name = "add"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    tool_call.arguments  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
