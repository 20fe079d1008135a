"""`OpenAIModel` against real HTTP servers on loopback (O2, O4): llmock for what it can say, raw bytes for the rest."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Protocol, cast

import anyio
import anyio.to_thread
import httpx2
import openai
import pytest
import trio
from llmock.pytest_plugin import LLMock

from middlechain.chat import ChatCall, ChatReply, Send, Settings
from middlechain.errors import (
    BadRequest,
    ConfigurationError,
    IncompleteReply,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
)
from middlechain.events import Delta, ReasoningDelta, TextDelta
from middlechain.limits import Usage
from middlechain.messages import ToolUse, User
from middlechain.models.openai import OpenAIModel
from middlechain.registry import no_requests
from middlechain.tools import Tool

pytestmark = pytest.mark.anyio


class FakeTool:
    """What a request needs of a tool."""

    name = "add"
    description = "Add two numbers."
    schema: ClassVar = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def ask(model: OpenAIModel, **changes: Any) -> ChatReply:
    return await model.chat(ChatCall((User("hi"),), model=model, **changes))


async def stream(model: OpenAIModel, send: Send | None = None, **changes: Any) -> tuple[list[Delta], ChatReply]:
    deltas: list[Delta] = []

    async def collect(delta: Delta) -> None:
        deltas.append(delta)

    return deltas, await ask(model, streaming=True, send=send or collect, **changes)


class Way(Protocol):
    """A way to ask."""

    async def __call__(self, model: OpenAIModel, **changes: Any) -> ChatReply: ...


async def by_stream(model: OpenAIModel, **changes: Any) -> ChatReply:
    deltas, reply = await stream(model, **changes)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == reply.text
    return reply


@pytest.fixture(params=[ask, by_stream], ids=["plain", "stream"])
def way(request: pytest.FixtureRequest) -> Way:
    return cast("Way", request.param)


# ---- A server that says what it is told to, byte by byte


@dataclass
class Answer:
    """What to answer. `claimed`: bytes said to follow that do not; `held`: whether to keep the body open."""

    body: bytes
    type: str = "text/event-stream"
    status: int = 200
    claimed: int = 0
    held: bool = False


@dataclass
class Raw:
    """The server as a test sees it."""

    url: str = ""
    answer: Answer = field(default_factory=lambda: Answer(b""))
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    connections: int = 0
    left: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    raw: Raw

    def setup(self) -> None:
        super().setup()
        self.raw.connections += 1

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        self.raw.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.raw.headers.append({name.lower(): value for name, value in self.headers.items()})
        answer = self.raw.answer
        if not answer.status:
            self.raw.over.wait(5)
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("content-type", answer.type)
        if answer.claimed or answer.held:
            self.send_header("content-length", str(len(answer.body) + (answer.claimed or 1)))
            self.close_connection = True
        else:
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
        if answer.held:  # nothing more is read of the client but that it leaves
            with suppress(ConnectionError):
                self.rfile.read(1)
            self.raw.left.set()

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()


@pytest.fixture
def raw() -> Iterator[Raw]:
    raw = Raw()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"raw": raw}))
    server.daemon_threads = True
    raw.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield raw
    raw.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def sse(*chunks: object) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def says(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


COMPLETE = sse(says("hi"), says(None, "stop")) + b"data: [DONE]\n\n"
COMPLETION = json.dumps(
    {"choices": [{"message": {"content": "hi", "reasoning_content": "R"}, "finish_reason": "stop"}]}
).encode()


# ---- Replies


async def test_o2_a_reply_has_text_usage_and_the_model_that_answered(llmock: LLMock, way: Way) -> None:
    llmock.reply("Grüße, World")
    reply = await way(OpenAIModel("gpt-4o"))
    assert (reply.text, reply.finish_reason, reply.model) == ("Grüße, World", "stop", "gpt-4o")
    assert reply.usage.input_tokens is not None
    assert reply.usage.output_tokens
    assert reply.usage.requests is None


async def test_o2_a_stream_asks_for_usage_and_comes_in_pieces(llmock: LLMock) -> None:
    llmock.reply("one two three four")
    deltas, reply = await stream(OpenAIModel("gpt-4o"))
    assert len(deltas) > 1
    assert reply.text == "one two three four"
    body = llmock.last_request.body
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


async def test_o2_extra_may_say_what_a_stream_asks_for(raw: Raw) -> None:
    raw.answer = Answer(COMPLETE)
    await stream(OpenAIModel("m", base_url=raw.url), settings=Settings(extra={"stream_options": {}, "stream": False}))
    assert (raw.bodies[0]["stream"], raw.bodies[0]["stream_options"]) == (True, {})


async def test_o2_a_plain_request_says_nothing_about_streams(llmock: LLMock) -> None:
    await ask(OpenAIModel("gpt-4o"), settings=Settings(extra={"stream": True, "stream_options": {}}))
    assert set(llmock.last_request.body) == {"model", "messages"}


async def test_o2_tool_calls_are_read(llmock: LLMock, way: Way) -> None:
    llmock.call_tool("add", {"a": 1})
    reply = await way(OpenAIModel("gpt-4o"), tools=(cast("Tool", FakeTool()),))
    (use,) = reply.tool_calls
    assert (use.name, json.loads(use.arguments)) == ("add", {"a": 1})
    assert use.id
    assert reply.finish_reason == "tool_calls"


async def test_o2_a_server_that_does_not_stream_is_read_all_the_same(raw: Raw) -> None:
    raw.answer = Answer(COMPLETION, "application/json; charset=utf-8")
    deltas, reply = await stream(OpenAIModel("m", base_url=raw.url))
    assert deltas == [ReasoningDelta("R"), TextDelta("hi")]
    assert reply == ChatReply("hi", (), "R", Usage(), "stop")


async def test_o2_a_whole_completion_in_a_stream_may_have_no_text(raw: Raw) -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}
    body = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "stop"}]}
    raw.answer = Answer(json.dumps(body).encode(), "application/json")
    deltas, reply = await stream(OpenAIModel("m", base_url=raw.url))
    assert (deltas, reply.tool_calls) == ([], (ToolUse("add", '{"a": 1}', "c1"),))


@pytest.mark.parametrize("base_url", [None, "http://localhost/v1"])
async def test_o2_only_openai_gets_the_new_name_of_max_tokens(base_url: str | None) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(200, content=COMPLETION)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        client = openai.AsyncOpenAI(api_key="k", base_url=base_url, http_client=http)
        await ask(OpenAIModel("m", client=client), settings=Settings(max_tokens=5))
    assert bodies[0].get("max_completion_tokens") == (5 if base_url is None else None)
    assert bodies[0].get("max_tokens") == (None if base_url is None else 5)


# ---- Errors


async def test_o2_a_rate_limit_says_how_long_to_wait_and_is_not_retried(llmock: LLMock, way: Way) -> None:
    llmock.rate_limit(retry_after=7)
    with pytest.raises(RateLimited) as caught:
        await way(OpenAIModel("gpt-4o"))
    assert (caught.value.status, caught.value.retry_after, caught.value.retryable) == (429, 7.0, True)
    assert len(llmock.requests) == 1


async def test_o2_an_outage_is_not_retried(llmock: LLMock, way: Way) -> None:
    llmock.outage()
    with pytest.raises(ModelUnavailable, match="'gpt-4o' answered 503") as caught:
        await way(OpenAIModel("gpt-4o"))
    assert caught.value.status == 503
    assert isinstance(caught.value.__cause__, openai.APIStatusError)
    assert len(llmock.requests) == 1


async def test_o2_a_bad_request_has_the_servers_words(llmock: LLMock, way: Way) -> None:
    llmock.context_overflow()
    with pytest.raises(BadRequest, match="maximum context length was exceeded") as caught:
        await way(OpenAIModel("gpt-4o"))
    assert (caught.value.status, caught.value.retryable) == (400, False)


async def test_o2_a_server_that_is_not_there_is_named(way: Way, free_tcp_port: int) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        await way(OpenAIModel("m", base_url=f"http://me:secret@127.0.0.1:{free_tcp_port}/v1?key=secret"))
    text = str(caught.value)
    assert f" at http://127.0.0.1:{free_tcp_port}/v1" in text
    assert text.endswith("is the server running? check base_url")
    assert "secret" not in text


async def test_o2_an_answer_that_is_not_json_is_an_incomplete_reply(raw: Raw, way: Way) -> None:
    raw.answer = Answer(b"<html>", "application/json")
    with pytest.raises(IncompleteReply, match=r"the answer of http://127\.0\.0\.1.* is not JSON: b'<html>'"):
        await way(OpenAIModel("m", base_url=raw.url))


async def test_b49_an_error_inside_a_good_answer_is_raised(raw: Raw, way: Way) -> None:
    raw.answer = Answer(b'{"error": {"message": "quota", "code": 429}}', "application/json")
    with pytest.raises(RateLimited, match="quota"):
        await way(OpenAIModel("m", base_url=raw.url))


async def test_o2_an_error_that_breaks_off_is_an_unavailable_server(raw: Raw, way: Way) -> None:
    raw.answer = Answer(b"{", "application/json", status=400, claimed=9)
    with pytest.raises(ModelUnavailable):
        await way(OpenAIModel("m", base_url=raw.url))


async def test_o2_a_server_that_does_not_answer_in_time_is_a_timeout(raw: Raw, way: Way) -> None:
    raw.answer = Answer(b"", status=0)
    async with openai.AsyncOpenAI(api_key="k", base_url=raw.url, timeout=0.05) as client:
        with pytest.raises(ModelTimeout, match="did not answer in time at http"):
            await way(OpenAIModel("m", client=client))
    assert len(raw.bodies) == 1


async def test_o2_a_server_that_falls_silent_is_a_timeout(raw: Raw) -> None:
    raw.answer = Answer(sse(says("half")), held=True)
    async with openai.AsyncOpenAI(api_key="k", base_url=raw.url, timeout=0.05) as client:
        with pytest.raises(ModelTimeout, match="fell silent in the middle of its reply"):
            await stream(OpenAIModel("m", client=client))


async def test_o2_a_client_that_cannot_sign_in_is_a_model_error(way: Way) -> None:
    async def no_key() -> str:
        raise openai.OpenAIError("no token today")

    async with openai.AsyncOpenAI(api_key=no_key, base_url="http://127.0.0.1:1/v1") as client:
        with pytest.raises(ModelError, match="no token today; check how its client signs in") as caught:
            await way(OpenAIModel("m", client=client))
    assert type(caught.value) is ModelError


# ---- Streams that break off (B49)


async def test_b49_a_truncated_stream_is_an_incomplete_reply(llmock: LLMock) -> None:
    llmock.reply("one two three four").truncate(after_chunks=2)
    with pytest.raises(IncompleteReply, match="ended without a finish reason"):
        await stream(OpenAIModel("gpt-4o"))


async def test_b49_a_lenient_model_takes_a_truncated_stream_for_finished(llmock: LLMock) -> None:
    llmock.reply("one two three four").truncate(after_chunks=2)
    _, reply = await stream(OpenAIModel("gpt-4o", lenient_finish=True))
    assert reply.finish_reason == "stop"
    assert "one two three four".startswith(reply.text)


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("fault", [LLMock.disconnect, LLMock.corrupt])
async def test_b49_a_broken_stream_is_an_incomplete_reply(
    llmock: LLMock, fault: Callable[..., LLMock], lenient: bool
) -> None:
    fault(llmock.reply("one two three four"), after_chunks=2)
    with pytest.raises(IncompleteReply) as caught:
        await stream(OpenAIModel("gpt-4o", lenient_finish=lenient))
    assert caught.value.retryable


@pytest.mark.parametrize("loaded", [False, True])
async def test_b49_a_broken_stream_is_told_whichever_httpx_is_loaded(
    raw: Raw, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    if loaded:
        pytest.importorskip("httpx")
    else:
        monkeypatch.delitem(sys.modules, "httpx", raising=False)
    raw.answer = Answer(sse(says("half")), claimed=9)
    with pytest.raises(IncompleteReply, match="broke off its reply"):
        await stream(OpenAIModel("m", base_url=raw.url))


async def test_b49_an_error_in_the_middle_comes_after_what_was_said(raw: Raw) -> None:
    raw.answer = Answer(sse(says("hi"), {"choices": None, "error_message": "context too long"}))
    deltas: list[Delta] = []

    async def collect(delta: Delta) -> None:
        deltas.append(delta)

    with pytest.raises(ModelError, match="context too long"):
        await stream(OpenAIModel("m", base_url=raw.url), collect)
    assert deltas == [TextDelta("hi")]


async def test_o2_a_last_event_without_its_blank_line_counts(raw: Raw) -> None:
    raw.answer = Answer(sse(says("hi"), says(None, "stop")).rstrip())
    _, reply = await stream(OpenAIModel("m", base_url=raw.url))
    assert (reply.text, reply.finish_reason) == ("hi", "stop")


async def test_o2_what_comes_after_done_is_read_and_forgotten(raw: Raw) -> None:
    raw.answer = Answer(COMPLETE + sse(says("more")) * 10_000)
    model = OpenAIModel("m", base_url=raw.url)
    assert [(await stream(model))[1].text for _ in range(2)] == ["hi", "hi"]
    assert raw.connections == 1


async def test_o2_a_body_that_stays_open_after_done_is_not_waited_for(raw: Raw) -> None:
    raw.answer = Answer(COMPLETE, held=True)
    with anyio.fail_after(5):
        _, reply = await stream(OpenAIModel("m", base_url=raw.url))
    assert reply.text == "hi"
    assert await anyio.to_thread.run_sync(raw.left.wait, 5)


# ---- Leaving early (S5)


async def test_s5_the_stream_is_closed_when_send_raises(raw: Raw) -> None:
    raw.answer = Answer(sse(*[says("x" * 100)] * 500), held=True)

    async def refuse(delta: Delta) -> None:
        raise KeyError(delta)

    with pytest.raises(KeyError):
        await stream(OpenAIModel("m", base_url=raw.url), refuse)
    assert await anyio.to_thread.run_sync(raw.left.wait, 5)
    gc.collect()  # a generator left half-read would be a warning now


@pytest.mark.parametrize("place", ["send", "read"])
async def test_s5_the_stream_is_closed_when_it_is_cancelled(raw: Raw, place: str) -> None:
    raw.answer = Answer(sse(says("half")), held=True)
    with anyio.CancelScope() as scope:

        async def cancel(delta: Delta) -> None:
            scope.cancel()
            if place == "send":
                await anyio.sleep_forever()

        await stream(OpenAIModel("m", base_url=raw.url), cancel)
    assert scope.cancelled_caught
    assert await anyio.to_thread.run_sync(raw.left.wait, 5)
    gc.collect()


async def test_s5_an_error_of_the_connection_that_send_raises_stays_what_it_is(raw: Raw) -> None:
    raw.answer = Answer(COMPLETE)

    async def fail(delta: Delta) -> None:
        raise httpx2.ReadError("of the consumer")

    with pytest.raises(httpx2.ReadError, match="of the consumer"):
        await stream(OpenAIModel("m", base_url=raw.url), fail)


# ---- Event loops and connections (O4, B50)


async def test_o4_models_of_one_loop_share_its_connections(raw: Raw) -> None:
    for name in ("a", "b"):
        model = OpenAIModel(name, base_url=raw.url)
        for _ in range(2):
            raw.answer = Answer(COMPLETION, "application/json")
            await ask(model)
            raw.answer = Answer(COMPLETE)
            await stream(model)
    assert (len(raw.bodies), raw.connections) == (8, 1)


@pytest.fixture
def in_turn(raw: Raw) -> Callable[[], Any]:
    model = OpenAIModel("m", base_url=raw.url)
    raw.answer = Answer(COMPLETE)

    async def both() -> str:
        await stream(model)
        return (await stream(model))[1].text

    return both


def test_b50_one_model_serves_one_loop_after_another(raw: Raw, in_turn: Callable[[], Any]) -> None:
    answers = [run(in_turn) for run in (_asyncio, _asyncio, _asyncio, trio.run, trio.run, _asyncio)]
    assert answers == ["hi"] * 6
    assert raw.connections == 6
    gc.collect()  # an unclosed connection would be a warning now


def _asyncio(function: Callable[[], Any]) -> object:
    return asyncio.run(function())


def test_b50_one_model_serves_two_loops_at_once(in_turn: Callable[[], Any]) -> None:
    answers: list[object] = []
    threads = [threading.Thread(target=lambda: answers.append(_asyncio(in_turn))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["hi", "hi"]
    gc.collect()


def test_b50_nothing_is_left_unclosed_at_exit(raw: Raw) -> None:
    raw.answer = Answer(COMPLETION, "application/json")
    code = f"""
import asyncio
from middlechain.chat import ChatCall
from middlechain.messages import User
from middlechain.models.openai import OpenAIModel
model = OpenAIModel("m", base_url={raw.url!r})
for _ in range(3):
    print(asyncio.run(model.chat(ChatCall((User("hi"),)))).text)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("hi\n" * 3, "", 0)


def test_o2_openai_is_imported_only_when_it_is_used() -> None:
    code = (
        "import sys, middlechain.models.openai as m; m.OpenAIModel('m'); print({'openai', 'httpx2'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# ---- Set-up


async def test_k2_no_request_leaves_inside_no_requests(llmock: LLMock, way: Way) -> None:
    with no_requests(), pytest.raises(ConfigurationError, match="'gpt-4o' was asked inside no_requests"):
        await way(OpenAIModel("gpt-4o"))
    assert llmock.requests == []


async def test_o2_a_missing_key_is_told_with_the_fix(way: Way) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await way(OpenAIModel("gpt-5"))
    assert str(caught.value) == (
        "the model 'gpt-5' has no API key; set OPENAI_API_KEY, or give OpenAIModel(..., api_key=...)"
    )


@pytest.mark.parametrize("by_environment", [False, True])
async def test_o2_a_server_with_an_address_of_its_own_needs_no_key(
    raw: Raw, monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    raw.answer = Answer(COMPLETION, "application/json")
    if by_environment:
        monkeypatch.setenv("OPENAI_BASE_URL", raw.url)
    await ask(OpenAIModel("m", base_url=None if by_environment else raw.url))
    assert raw.headers[0]["authorization"] == "Bearer none-needed"


@pytest.mark.parametrize("by_environment", [False, True])
async def test_o2_a_key_is_sent_without_the_blanks_around_it(
    raw: Raw, monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    raw.answer = Answer(COMPLETION, "application/json")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\n" if by_environment else "sk-2")
    await ask(OpenAIModel("m", base_url=raw.url, api_key=None if by_environment else "sk-1\n"))
    assert raw.headers[0]["authorization"] == "Bearer sk-1"


@pytest.mark.parametrize("key", ["sk-secret\nx", "sk-secrét"])
async def test_o2_a_key_that_cannot_be_one_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigurationError, match="holds characters that no key has") as caught:
        await ask(OpenAIModel("m", api_key=key))
    assert "secr" not in str(caught.value)


async def test_o2_a_base_url_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the base_url of the model 'm' is no address"):
        await ask(OpenAIModel("m", base_url="http://localhost:port/v1"))


async def test_o2_a_given_client_is_used_without_its_retries_and_left_open(llmock: LLMock, way: Way) -> None:
    async with openai.AsyncOpenAI(max_retries=2) as client:
        llmock.fail(503).reply("hi")
        model = OpenAIModel("gpt-4o", client=client)
        with pytest.raises(ModelUnavailable):
            await way(model)
        assert (await way(model)).text == "hi"
        assert len(llmock.requests) == 2
        assert not client.is_closed()


@pytest.mark.parametrize("also", [{"base_url": "http://localhost/v1"}, {"api_key": "k"}])
def test_o2_a_client_and_its_settings_are_not_given_together(also: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="give these to the client"):
        OpenAIModel("m", client=openai.AsyncOpenAI(api_key="k"), **also)


def test_o2_a_model_does_not_show_its_secrets() -> None:
    assert repr(OpenAIModel("m", api_key="secret")) == "OpenAIModel('m')"
    model = OpenAIModel("m", base_url="https://me:secret@example.org/v1?key=secret", api_key="secret")
    assert repr(model) == "OpenAIModel('m', base_url='https://example.org/v1')"
