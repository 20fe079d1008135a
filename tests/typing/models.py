"""Models: what may stand in for one, and the models for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_type

from middlechain import (
    Agent,
    App,
    ChatCall,
    ChatReply,
    Model,
    OpenAIModel,
    ReasoningDelta,
    TextDelta,
    TextReset,
    ToolUse,
)
from middlechain.models.demo import DemoModel
from middlechain.testing import ScriptedModel, no_requests


class Echo:
    name = "echo"

    async def chat(self, call: ChatCall) -> ChatReply:
        text = call.messages[-1].text
        if call.streaming:
            await call.send(ReasoningDelta("they said it first"))
            await call.send(TextReset())
            await call.send(TextDelta(text))
        return ChatReply(text)


@dataclass(frozen=True)
class Fixed:
    name: str
    text: str

    async def chat(self, call: ChatCall, /, *, loud: bool = False) -> ChatReply:
        return ChatReply(self.text.upper() if loud else self.text)


class Counting:
    """A model around another one."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner
        self.calls = 0

    @property
    def name(self) -> str:
        return self.inner.name

    async def chat(self, call: ChatCall, /) -> ChatReply:
        self.calls += 1
        return await self.inner.chat(call)


scripted = ScriptedModel(["hello", ChatReply("hello"), ["he", "llo", ToolUse("add")], ValueError("no")], chunk=3)
assert_type(scripted, ScriptedModel)
assert_type(scripted.calls, list[ChatCall])
assert_type(scripted.name, str)
ScriptedModel(lambda call: call.messages[-1].text, name="echo")
ScriptedModel([ValueError, lambda call: ["he", TextDelta("llo"), TextReset()], Echo().chat])
replies = ["hello", "goodbye"]
ScriptedModel(replies)

models: list[Model] = [Echo(), Fixed("fixed", "hello"), Counting(Echo()), scripted, DemoModel(), OpenAIModel("gpt-5")]
assert_type(OpenAIModel("gpt-5", base_url="http://localhost:8000/v1", api_key="none", lenient_finish=True), OpenAIModel)
for each in models:
    App(agents=[Agent(model=each)], model=each)

with no_requests():
    pass


class Nameless:
    async def chat(self, call: ChatCall) -> ChatReply:
        return ChatReply("hello")


class Mute:
    name = "mute"


class NotAsync:
    name = "not async"

    def chat(self, call: ChatCall) -> ChatReply:
        return ChatReply("hello")


class OfText:
    name = "of text"

    async def chat(self, call: ChatCall) -> str:
        return "hello"


class OfMessages:
    name = "of messages"

    async def chat(self, messages: Iterable[str]) -> ChatReply:
        return ChatReply(" ".join(messages))


async def refused(call: ChatCall) -> None:
    Agent(model=Nameless())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(model=Mute())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(model=NotAsync())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(model=OfText())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(model=OfMessages())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(model=Echo)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App(model=OfText())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    OpenAIModel("gpt-5", "http://localhost:8000/v1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    OpenAIModel("gpt-5", key="none")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    OpenAIModel()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ScriptedModel()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ScriptedModel(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ScriptedModel(["hello"], 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ScriptedModel(["hello"], chunk="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ScriptedModel([7])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    ScriptedModel([["hello", 7]])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    ScriptedModel(lambda call: 7)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    call.send(TextDelta("hello"))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ScriptedModel(lambda: "hello")  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
    await call.send("hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await call.send(ChatReply("hello"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
