"""The test kit: `ScriptedModel`, `collect` and `no_requests` (section 13)."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from middlechain import (
    Agent,
    App,
    ChatCall,
    ChatReply,
    ConfigurationError,
    Event,
    Message,
    ReasoningDelta,
    Result,
    RunFinished,
    RunStarted,
    TextDelta,
    TextReset,
    ToolUse,
    Usage,
    User,
    tool,
)
from middlechain.testing import ScriptedModel, collect, no_requests

from .conftest import Go

pytestmark = pytest.mark.anyio


class Boom(Exception):
    pass


@tool
async def ping() -> str:
    return "pong"


async def ask(replies: Any, **options: Any) -> tuple[ChatReply, list[Any]]:
    """The reply of a call that streams, and the deltas."""
    sent: list[Any] = []

    async def send(delta: Any) -> None:
        sent.append(delta)

    model = ScriptedModel(replies, **options)
    return await model.chat(ChatCall((User("q"),), streaming=True, send=send)), sent


async def ask_plainly(replies: Any, **options: Any) -> ChatReply:
    async def send(delta: Any) -> None:
        raise AssertionError("a call that does not stream got a delta")

    return await ScriptedModel(replies, **options).chat(ChatCall((User("q"),), send=send))


def texts(events: list[Event] | list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


# K1: the forms of a reply

HM = ReasoningDelta("hm")
USE = ToolUse("ping", "{}", "1")
FORMS: list[tuple[Any, ChatReply, list[Any]]] = [
    ("hi", ChatReply("hi"), [TextDelta("hi")]),
    ("", ChatReply(""), []),
    (
        ChatReply("hi", reasoning="hm", usage=Usage(requests=1)),
        ChatReply("hi", reasoning="hm", usage=Usage(requests=1)),
        [HM, TextDelta("hi")],
    ),
    (["a", TextDelta("b")], ChatReply("ab"), [TextDelta("a"), TextDelta("b")]),
    ([HM, "a", USE], ChatReply("a", (USE,), "hm"), [HM, TextDelta("a")]),
    (
        ["a", HM, TextReset(), "b"],
        ChatReply("b"),
        [TextDelta("a"), HM, TextReset(), TextDelta("b")],
    ),
    ([USE, ToolUse("t", {"n": 1})], ChatReply("", (USE, ToolUse("t", {"n": 1}))), []),
    ([], ChatReply(""), []),
]


def wraps(reply: Any) -> list[Any]:
    """The reply itself, and the callables of the call that return it."""

    async def later(call: ChatCall) -> Any:
        return reply

    return [reply, lambda call: reply, later]


@pytest.mark.parametrize(("reply", "expected", "deltas"), FORMS)
@pytest.mark.parametrize("form", range(3), ids=["itself", "a callable", "an async callable"])
async def test_k1_a_reply_in_every_form(reply: Any, expected: ChatReply, deltas: list[Any], form: int) -> None:
    assert await ask([wraps(reply)[form]]) == (expected, deltas)
    assert await ask_plainly([wraps(reply)[form]]) == expected  # joined when the call does not stream


@pytest.mark.parametrize("form", range(3))
async def test_k1_an_exception_is_raised_as_it_is(go: Go, form: int) -> None:
    error = Boom("out")
    with pytest.raises(Boom) as caught:
        await go(App(), Agent(model=ScriptedModel([wraps(error)[form]])), "q")
    assert caught.value is error


async def test_k1_an_exception_in_a_list_ends_the_stream_there(go: Go) -> None:
    error = Boom("out")
    with pytest.raises(Boom) as caught:
        await go(App(), Agent(model=ScriptedModel([["a", error, "b"]])), "q")
    assert caught.value is error

    sent: list[Any] = []

    async def send(delta: Any) -> None:
        sent.append(delta)

    with pytest.raises(Boom):
        await ScriptedModel([["a", error, "b"]]).chat(ChatCall((), streaming=True, send=send))
    assert sent == [TextDelta("a")]


@pytest.mark.parametrize("streaming", [True, False])
async def test_k1_an_awaitable_in_a_list_is_awaited_in_its_place(streaming: bool) -> None:
    order: list[str] = []
    gate = anyio.Event()

    async def send(delta: Any) -> None:
        order.append(delta.text)

    async def wait() -> None:
        await gate.wait()
        order.append("awaited")

    model = ScriptedModel([["a", wait(), "b"]])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(model.chat, ChatCall((), streaming=streaming, send=send))
        await anyio.wait_all_tasks_blocked()
        assert order == (["a"] if streaming else [])
        gate.set()
    assert order == (["a", "awaited", "b"] if streaming else ["awaited"])


async def test_k1_an_awaitable_in_a_list_that_raises_ends_the_stream_there() -> None:
    async def fail() -> None:
        raise Boom

    with pytest.raises(Boom):
        await ask([["a", fail(), "b"]])


async def test_k1_a_tool_use_in_a_list_is_a_whole_tool_call(go: Go) -> None:
    model = ScriptedModel([["let me see", ToolUse("ping")], "done"])
    result = await go(App(), Agent(model=model, tools=[ping]), "q")
    assert [message.text for message in result.messages] == ["q", "let me see", "pong", "done"]


async def test_k1_a_callable_gets_the_call_and_may_return_a_list_too(go: Go) -> None:
    def answer(call: ChatCall) -> list[Any]:
        return ["you said ", call.messages[-1].text]

    assert (await go(App(), Agent(model=ScriptedModel([answer])), "q")).text == "you said q"


@pytest.mark.parametrize("form", range(1, 3))
async def test_k1_a_callable_in_place_of_the_list_answers_every_call(go: Go, form: int) -> None:
    model = ScriptedModel(wraps("a")[form])
    app, agent = App(), Agent(model=model)
    for count in range(1, 4):
        assert (await go(app, agent, "q")).text == "a"
        assert len(model.calls) == count


async def test_k1_it_records_every_call(go: Go) -> None:
    model = ScriptedModel([ToolUse_reply(), "b", Boom()])
    app, agent = App(), Agent(model=model, tools=[ping], instructions="be brief")
    await go(app, agent, "q")
    assert [[message.text for message in call.messages] for call in model.calls] == [
        ["be brief", "q"],
        ["be brief", "q", "", "pong"],
    ]
    assert all(isinstance(call, ChatCall) and call.tools == (ping,) for call in model.calls)
    with pytest.raises(Boom):
        await go(app, agent, "q")
    assert len(model.calls) == 3  # failed ones too


def ToolUse_reply() -> ChatReply:
    return ChatReply(tool_calls=(ToolUse("ping"),))


async def test_k1_replies_are_given_in_order_and_a_used_up_list_says_so(go: Go) -> None:
    model = ScriptedModel(["a", "b"], name="mine")
    app, agent = App(), Agent(model=model)
    assert [(await go(app, agent, "q")).text for _ in range(2)] == ["a", "b"]
    with pytest.raises(ConfigurationError, match=r"'mine' has 2 replies and was asked for .*3\W*; give it "):
        await go(app, agent, "q")


async def test_k1_an_empty_list_says_so_at_once(go: Go) -> None:
    with pytest.raises(ConfigurationError, match=r"'scripted' has 0 replies .*; give it "):
        await go(App(), Agent(model=ScriptedModel([])), "q")


@pytest.mark.parametrize(
    ("chunk", "pieces"), [(None, ["hello"]), (1, list("hello")), (2, ["he", "ll", "o"]), (5, ["hello"]), (9, ["hello"])]
)
async def test_k1_plain_replies_stream_in_pieces_of_chunk_characters(chunk: int | None, pieces: list[str]) -> None:
    for reply in ("hello", ChatReply("hello")):
        answered, sent = await ask([reply], chunk=chunk)
        assert (answered.text, texts(sent)) == ("hello", pieces)
        assert (await ask_plainly([reply], chunk=chunk)).text == "hello"


async def test_k1_a_list_streams_as_it_is_whatever_chunk_says() -> None:
    assert texts((await ask([["hello", "you"]], chunk=1))[1]) == ["hello", "you"]


@given(st.text(max_size=12), st.integers(1, 13))
def test_k1_the_pieces_are_the_text_for_every_cut(text: str, chunk: int) -> None:
    async def check() -> None:
        reply, sent = await ask([text], chunk=chunk)
        assert "".join(texts(sent)) == reply.text == text
        assert all(0 < len(piece) <= chunk for piece in texts(sent))

    anyio.run(check)


@pytest.mark.parametrize("chunk", [0, -1])
async def test_k1_a_chunk_that_cuts_nothing_is_refused(chunk: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"chunk={chunk}\).*; give a number from 1 up"):
        ScriptedModel(["a"], chunk=chunk)


async def test_k1_one_text_in_place_of_the_list_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"give a list of replies: \['hi'\]"):
        ScriptedModel("hi")


@pytest.mark.parametrize("reply", [7, None, {"text": "a"}, [7], ["a", None]])
async def test_k1_what_is_no_reply_is_refused_with_what_is_one(go: Go, reply: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ScriptedModel cannot (play|stream) .*; give a str, a "):
        await go(App(), Agent(model=ScriptedModel([reply])), "q")


async def test_k1_the_list_is_read_once_and_changing_it_later_changes_nothing() -> None:
    replies: list[Any] = ["a"]
    model = ScriptedModel(replies)
    replies.clear()
    assert (await model.chat(ChatCall(()))).text == "a"
    assert (await ScriptedModel(iter(["b"])).chat(ChatCall(()))).text == "b"


async def test_k1_calls_at_once_each_take_the_next_reply(anyio_backend: str) -> None:
    model = ScriptedModel([str(number) for number in range(20)])
    agent, app, said = Agent(model=model), App(), []

    async def one() -> None:
        said.append((await app.run(agent, "q")).text)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(one)
    assert sorted(said, key=int) == [str(number) for number in range(20)]


# K2: collect and no_requests


async def test_k2_collect_gives_all_events_and_the_result() -> None:
    collected = await collect(App().stream(Agent(model=ScriptedModel([["a", "b"]])), "q"))
    assert collected == (collected.events, collected.result)
    assert isinstance(collected.result, Result)
    assert collected.result.text == "ab" == "".join(texts(collected.events))
    assert isinstance(collected.events[0], RunStarted)
    assert collected.events[-1] == RunFinished("completed")
    assert [event.seq for event in collected.events] == list(range(1, len(collected.events) + 1))


async def test_k2_collect_raises_the_error_of_the_run() -> None:
    error = Boom("out")
    with pytest.raises(Boom) as caught:
        await collect(App().stream(Agent(model=ScriptedModel([error])), "q"))
    assert caught.value is error


async def test_k2_inside_no_requests_real_models_refuse_to_be_called(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    with (
        no_requests(),
        pytest.raises(ConfigurationError, match=r"'(openai:)?gpt-5'.*inside no_requests\(\); give the agent"),
    ):
        await go(App(), Agent(model="openai:gpt-5"), "q")


async def test_k2_inside_no_requests_scripted_models_and_layers_still_answer(go: Go) -> None:
    async def answer(call: ChatCall, next: Any) -> str:
        return "cached"

    with no_requests():
        assert (await go(App(), Agent(model=ScriptedModel(["a"])), "q")).text == "a"
        assert (await go(App().use(chat=answer), Agent(model="openai:gpt-5"), "q")).text == "cached"


async def test_k2_no_requests_ends_with_its_block_also_by_an_exception_and_may_be_nested(go: Go) -> None:
    async def why_not() -> str:
        with pytest.raises(ConfigurationError) as caught:
            await go(App(), Agent(model="openai:gpt-5"), "q")
        return "refused" if "inside no_requests()" in str(caught.value) else "no key"

    assert await why_not() == "no key"
    with pytest.raises(Boom), no_requests(), no_requests():
        raise Boom
    assert await why_not() == "no key"
    with no_requests():
        with no_requests():
            assert await why_not() == "refused"
        assert await why_not() == "refused"
    assert await why_not() == "no key"


# K4: no test needs a key, a network or a sleep


async def test_k4_a_test_that_would_leave_this_machine_fails() -> None:
    with socket.socket() as outside, pytest.raises(AssertionError, match="leave this machine"):
        outside.connect(("192.0.2.1", 80))


async def test_k4_the_kit_needs_no_key(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    history: list[Message] = [User("before")]
    assert (await go(App(), Agent(model=ScriptedModel(["a"])), "q", history=history)).text == "a"


async def test_k1_a_tool_call_may_be_a_reply_by_itself(go: Go) -> None:
    agent = Agent(model=ScriptedModel([ToolUse("work", {}), "done"]), tools=[tool(name="work")(lambda: "x")])
    assert [message.text for message in (await go(App(), agent, "hi")).messages] == ["hi", "", "x", "done"]
