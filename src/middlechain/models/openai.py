"""A model behind OpenAI's chat-completions protocol: OpenAI itself and every server that speaks like it.

What is said on the wire is read and written in `wire`; this room keeps connections, asks, and maps what goes wrong.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import RunVar

from middlechain.chat import ChatCall, ChatReply
from middlechain.errors import ConfigurationError, IncompleteReply, ModelError, ModelTimeout, ModelUnavailable
from middlechain.events import ReasoningDelta, TextDelta
from middlechain.models.failure import error_for
from middlechain.models.loose import parse
from middlechain.models.request import request_body
from middlechain.models.wire import Assembler, Events, read_reply
from middlechain.registry import check_requests

if TYPE_CHECKING:
    import httpx2
    import openai

__all__ = ["OpenAIModel"]

# How long to wait for the end of a body after [DONE], so that its connection can be used again. Seconds.
_PATIENCE = 0.1


class OpenAIModel:
    """A model of OpenAI, or of any server that speaks OpenAI's chat-completions protocol.

    One object serves any number of event loops, in turn and at once, on asyncio and on trio. Connections are kept per
    event loop, shared by all models, and closed when the loop shuts down its generators, as `asyncio.run`, `anyio.run`
    and `trio.run` do at their end. Whoever drives a loop by hand calls `loop.shutdown_asyncgens()`.

    Args:
        name: as the server knows it, such as `"gpt-5"`.
        base_url: address of the server, up to and with `/v1`; default: `OPENAI_BASE_URL`, else OpenAI.
        api_key: default: `OPENAI_API_KEY`. With a `base_url` none is needed, since servers at home ask for none.
        client: an `openai.AsyncOpenAI` to use instead, for proxies, Azure or another way of signing in. It is yours to
            close, and it lives in one event loop. Its own retries are off for what is asked here.
        lenient_finish: whether a stream may end without a finish reason, for servers that never send one; a stream
            that broke off cannot be told from a finished one then. Default False.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: openai.AsyncOpenAI | None = None,
        lenient_finish: bool = False,
    ) -> None:
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigurationError(
                f"OpenAIModel({name!r}) got a client together with a base_url or an api_key; give these to the client"
            )
        self.name = name
        self._base_url = base_url
        self._api_key = api_key
        self._client = client
        self._lenient = lenient_finish

    def __repr__(self) -> str:
        address = "" if self._base_url is None else f", base_url={_without_secrets(self._base_url)!r}"
        return f"OpenAIModel({self.name!r}{address})"

    async def chat(self, call: ChatCall, /) -> ChatReply:
        """Ask the server once. When `call.streaming`, deltas go to `call.send` as they come.

        Raises:
            ConfigurationError: when there is no API key, or inside `no_requests()`.
            RateLimited: for status 429; `retry_after` as the server said.
            ModelTimeout: when the server did not answer in time, or says so (408).
            ModelUnavailable: when it cannot be reached, or for a status from 500.
            BadRequest: for any other status from 400.
            IncompleteReply: when the reply broke off or cannot be read.
            ModelError: when a reply of status 200 reports an error of no known kind.
        """
        check_requests(self.name)
        client = self._client or await self._client_here()
        response = await self._ask(client, self._body(call, client), stream=call.streaming)
        if not call.streaming:
            return read_reply(parse(response.content, _answer_of(response)), who=self.name)
        async with _bytes_of(response) as parts:
            if "application/json" in response.headers.get("content-type", ""):
                return await self._read_whole(parts, _answer_of(response), call)
            return await self._read_stream(parts, call)

    def _body(self, call: ChatCall, client: openai.AsyncOpenAI) -> dict[str, Any]:
        """The whole request. Whether it streams is for the call to say, not for `settings.extra`."""
        body = {"model": self.name, **request_body(call)}
        if client.base_url.host == "api.openai.com" and "max_tokens" in body:
            # OpenAI's newer models refuse the old name, which is the only one that many other servers know
            body["max_completion_tokens"] = body.pop("max_tokens")
        if call.streaming:
            return {"stream_options": {"include_usage": True}} | body | {"stream": True}
        return {name: value for name, value in body.items() if name not in {"stream", "stream_options"}}

    async def _ask(self, client: openai.AsyncOpenAI, body: dict[str, Any], *, stream: bool) -> httpx2.Response:
        """The response; of a stream the body is yet to be read."""
        import httpx2
        import openai

        try:
            # Not client.chat.completions.create(): it walks through all messages once more, and its streams are
            # nested generators, of which trio warns when they are left early
            response: httpx2.Response = await client.post(
                "/chat/completions", cast_to=httpx2.Response, body=body, options={"max_retries": 0}, stream=stream
            )
        except openai.OpenAIError as error:
            raise self._error_of(error) from error
        except _broken() as error:  # in the body of a status error
            raise ModelUnavailable(f"the model {self.name!r} broke off its answer ({error!r}); ask again") from error
        return response

    def _error_of(self, error: openai.OpenAIError) -> ModelError:
        import openai

        if isinstance(error, openai.APIStatusError):
            return error_for(error.status_code, error.body, error.response.headers, who=self.name, now=time.time())
        if isinstance(error, openai.APITimeoutError):
            return ModelTimeout(
                f"the model {self.name!r} did not answer in time at {_address(error)}; ask again, or allow it more time"
            )
        if isinstance(error, openai.APIConnectionError):
            return ModelUnavailable(
                f"the model {self.name!r} cannot be reached at {_address(error)} ({error.__cause__ or error}); "
                "is the server running? check base_url"
            )
        return ModelError(f"the model {self.name!r} could not be asked: {error}; check how its client signs in")

    async def _read_stream(self, parts: AsyncIterator[bytes], call: ChatCall) -> ChatReply:
        events, assembler = Events(), Assembler(lenient=self._lenient, who=self.name)
        while not events.done and (part := await self._next(parts)) is not None:
            await _pass_on(events.feed(part), assembler, call)
        await _pass_on(events.close(), assembler, call)
        with anyio.move_on_after(_PATIENCE), suppress(ModelError):
            while await self._next(parts) is not None:
                pass
        return assembler.finish()

    async def _read_whole(self, parts: AsyncIterator[bytes], what: str, call: ChatCall) -> ChatReply:
        """The reply of a server that was asked for a stream and sent a completion, or an error, in one piece."""
        body = b""
        while (part := await self._next(parts)) is not None:
            body += part
        reply = read_reply(parse(body, what), who=self.name)
        if reply.reasoning:
            await call.send(ReasoningDelta(reply.reasoning))
        if reply.text:
            await call.send(TextDelta(reply.text))
        return reply

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes | None:
        """The next bytes of a stream, or None at its end."""
        import httpx2

        try:
            return await anext(parts, None)
        except httpx2.TimeoutException as error:
            raise ModelTimeout(
                f"the model {self.name!r} fell silent in the middle of its reply; ask again, or allow it more time"
            ) from error
        except _broken() as error:
            raise IncompleteReply(f"the model {self.name!r} broke off its reply ({error!r}); ask again") from error

    async def _client_here(self) -> openai.AsyncOpenAI:
        """This model's client in the running event loop."""
        connections = _here.get()
        if connections is None:
            connections = _Connections()
            _here.set(connections)
            await anext(connections.life)
        client = connections.clients.get(self)
        if client is None:
            client = connections.clients[self] = self._new_client(connections.http)
        return client

    def _new_client(self, http: httpx2.AsyncClient) -> openai.AsyncOpenAI:
        import httpx2
        import openai

        base_url = self._base_url or os.environ.get("OPENAI_BASE_URL") or None
        try:
            return openai.AsyncOpenAI(base_url=base_url, api_key=self._key(base_url), http_client=http, max_retries=0)
        except httpx2.InvalidURL as error:
            raise ConfigurationError(
                f"the base_url of the model {self.name!r} is no address ({error}); "
                'give one such as "http://localhost:8000/v1"'
            ) from error

    def _key(self, base_url: str | None) -> str:
        key = (self._api_key or os.environ.get("OPENAI_API_KEY") or "").strip()
        if not key and base_url is None:
            raise ConfigurationError(
                f"the model {self.name!r} has no API key; set OPENAI_API_KEY, or give OpenAIModel(..., api_key=...)"
            )
        if not (key.isascii() and key.isprintable()):  # the error of the HTTP library would print it
            raise ConfigurationError(
                f"the API key of the model {self.name!r} holds characters that no key has; copy it again"
            )
        return key or "none-needed"


class _Connections:
    """The HTTP client of one event loop, and the models' clients that stand on it.

    Making an `AsyncOpenAI` takes 20 ms, nearly all of it for the TLS settings; on a given HTTP client it takes 0.04.
    """

    def __init__(self) -> None:
        import openai

        self.http: httpx2.AsyncClient = openai.DefaultAsyncHttpxClient(verify=_tls())
        self.clients: WeakKeyDictionary[OpenAIModel, openai.AsyncOpenAI] = WeakKeyDictionary()
        self.life = self._live()

    async def _live(self) -> AsyncGenerator[None, None]:
        # That a loop ends is told to nobody but the generators that were begun in it: asyncio and trio close those
        try:
            yield
        finally:
            _here.set(None)
            with anyio.CancelScope(shield=True):
                await self.http.aclose()


_here: RunVar[_Connections | None] = RunVar("middlechain_openai_connections", None)


@cache
def _tls() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


async def _pass_on(chunks: Iterable[object], assembler: Assembler, call: ChatCall) -> None:
    for chunk in chunks:
        for delta in assembler.feed(chunk):
            await call.send(delta)


@asynccontextmanager
async def _bytes_of(response: httpx2.Response) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """The body of a response in parts. However the block is left, the response is closed and its generators have ended.

    httpx2 reads through nested generators, and one that is dropped half-way is a warning on trio and a stray task on
    asyncio. Closing the outer one drops the inner ones; reading on after the response was closed ends them all.
    """
    parts = response.aiter_bytes()
    try:
        yield parts
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()
            with suppress(*_broken()):
                _ = [part async for part in parts]  # what was on its way, which may be nothing


def _broken() -> tuple[type[Exception], ...]:
    """What breaks a connection: errors of httpx2, of what shines through it, and of httpx for a client that uses it."""
    import httpx2

    legacy = sys.modules.get("httpx")
    errors = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)
    return errors if legacy is None else (*errors, legacy.RequestError)


def _address(about: openai.APIConnectionError | httpx2.Response) -> str:
    return _without_secrets(str(about.request.url))


def _answer_of(response: httpx2.Response) -> str:
    return f"the answer of {_address(response)}"


def _without_secrets(url: str) -> str:
    return re.sub("//[^/]*@", "//", url).partition("?")[0]
