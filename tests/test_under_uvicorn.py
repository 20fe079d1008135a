"""Streams behind a web server: every way to serve one, and every way in which a client leaves (S5, L5).

The server is a real uvicorn on loopback, once bare and once with what `uvicorn[standard]` adds; clients are sockets.
Whatever the ways, the run has ended without the help of the garbage collector, and nobody has anything to complain of.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from itertools import chain
from typing import Annotated, Any, Self

import anyio
import pytest
import uvicorn
from fastapi import Depends, FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from middlechain import Event, RunFinished, Stream, TextDelta, observes

from .scenes import Boom, Stage

PATIENCE = 5.0  # seconds until a test gives up
SMALL = 2**14  # bytes that a socket buffers, so that a client that does not read is soon noticed


class Never:
    """What a model waits for that says no more."""

    def __await__(self) -> Any:
        return anyio.sleep_forever().__await__()


NEVER = Never()
LONG = (*["x" * 2**16] * 32, NEVER)


class Play(Stage):
    """A run that says `<1>`, waits until the test lets it go on, and says the rest. May be served many times at once.

    Args:
        rest: what `ScriptedModel` can stream.
        patience: seconds for which an endpoint that has a timeout waits for the second piece.
        fails: whether the endpoint raises at the second piece.
    """

    def __init__(self, *rest: Any, patience: float = PATIENCE, fails: bool = False) -> None:
        super().__init__()
        self.rest = rest
        self.patience = PATIENCE
        self.patience_later = patience
        self.fails = fails
        self.opened = anyio.Event()
        self.waiting, self.over = threading.Semaphore(0), threading.Semaphore(0)

    def layer(self, scope: str) -> Callable[..., Any]:
        return observes(super().layer(scope))

    async def reply(self, call: Any) -> list[Any]:
        return ["<1>", self, *self.rest]

    async def wait(self) -> None:
        self.waiting.release()
        await self.cleaned_up("model", self.opened.wait)

    def note(self, event: Event) -> None:
        super().note(event)
        if isinstance(event, RunFinished):
            self.over.release()

    def handle(self, piece: str) -> str:
        """What an endpoint does with each piece."""
        self.patience = self.patience_later
        if self.fails and piece != "<1>":
            raise Boom("in the endpoint")
        return piece

    def check(self, outcome: str, *also: str, runs: int = 1) -> None:
        """See that all runs have come to this outcome, and every `finally` has run: those of the run, and others."""
        assert self.outcomes == [outcome] * runs
        assert sorted(self.log) == sorted([*["model", "chat", "agent", "run"] * runs, *also])


PLAY: ContextVar[Play] = ContextVar("play")  # of the request


# --- the ways to serve a stream ---------------------------------------------------------------------------------------


async def text() -> AsyncIterator[str]:
    play = PLAY.get()
    async with play.stream() as stream:
        async for piece in stream.text():
            yield play.handle(piece)


async def events() -> AsyncIterator[str]:
    play = PLAY.get()
    async with play.stream() as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                yield play.handle(event.text)


async def cleaning_up() -> AsyncIterator[str]:
    play = PLAY.get()
    async with play.stream() as stream:
        try:
            async for piece in stream.text():
                yield play.handle(piece)
        finally:
            play.log.append("endpoint")


async def by_wait_for() -> AsyncIterator[str]:
    """As asyncio's `wait_for` does up to Python 3.11, each piece is read in a task of its own."""
    pieces = text()
    with suppress(StopAsyncIteration):
        while True:
            yield await asyncio.wait_for(anext(pieces), PLAY.get().patience)


async def by_fail_after() -> AsyncIterator[str]:
    play = PLAY.get()
    async with play.stream() as stream:
        pieces = stream.text()
        while True:
            with anyio.fail_after(play.patience):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield play.handle(piece)


async def by_move_on_after() -> AsyncIterator[str]:
    play = PLAY.get()
    async with play.stream() as stream:
        pieces = stream.text()
        while True:
            piece: str | None = "<still there>"
            with anyio.move_on_after(play.patience):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield play.handle(piece)


web = FastAPI()
web.get("/yields", response_class=StreamingResponse)(text)
web.get("/lines")(text)
web.get("/server_sent", response_class=EventSourceResponse)(text)


@web.get("/response/{way}")
async def response(way: str) -> StreamingResponse:
    return StreamingResponse(WAYS[way]())


async def session() -> AsyncIterator[None]:
    play = PLAY.get()
    try:
        yield
    finally:
        play.log.append("dependency")


@web.get("/dependency", dependencies=[Depends(session)])
async def dependency() -> StreamingResponse:
    return StreamingResponse(text())


async def entered() -> AsyncIterator[Stream]:
    async with PLAY.get().stream() as stream:
        yield stream


@web.get("/entered")
async def stream_of_a_dependency(stream: Annotated[Stream, Depends(entered)]) -> StreamingResponse:
    play = PLAY.get()
    return StreamingResponse(play.handle(piece) async for piece in stream.text())


@web.get("/plain")
async def plain() -> str:
    play = PLAY.get()
    return (await play.app.run(play.agent, "hi")).text


@web.websocket("/socket")
async def web_socket(client: WebSocket) -> None:
    play = PLAY.get()
    await client.accept()
    with suppress(WebSocketDisconnect):
        async with play.stream() as stream:
            async for piece in stream.text():
                await client.send_text(play.handle(piece))
        await client.close()


async def leave_with(client: WebSocket, scope: anyio.CancelScope) -> None:
    while (await client.receive())["type"] != "websocket.disconnect":
        pass
    scope.cancel()


@web.websocket("/watched")
async def watched_socket(client: WebSocket) -> None:
    play = PLAY.get()
    await client.accept()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave_with, client, tasks.cancel_scope)
        with suppress(WebSocketDisconnect):
            async with play.stream() as stream:
                async for piece in stream.text():
                    await client.send_text(play.handle(piece))
            await client.close()
        tasks.cancel_scope.cancel()


async def of_starlette(request: Request) -> Response:
    return StreamingResponse(text())


async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


MIDDLEWARE = [Middleware(BaseHTTPMiddleware, dispatch=pass_on)]
web.mount("/starlette", Starlette(routes=[Route("/response", of_starlette)]))
web.mount("/middleware", Starlette(routes=[Mount("/", web)], middleware=MIDDLEWARE))

WAYS = {way.__name__: way for way in (text, events, cleaning_up, by_wait_for, by_fail_after, by_move_on_after)}
YIELDING = ["/yields", "/lines", "/server_sent"]
PAGES = [*YIELDING, *[f"/response/{way}" for way in WAYS], "/dependency", "/entered", "/starlette/response"]
PAGES += [f"/middleware{page}" for page in [*YIELDING, "/response/text", "/entered", "/starlette/response"]]
SOCKETS = ["/socket", "/watched"]
FINALLY = {"/response/cleaning_up": ["endpoint"], "/dependency": ["dependency"]}  # what a page's own way adds


# --- the server and its clients ---------------------------------------------------------------------------------------


class Site:
    """A uvicorn in a thread of its own, which serves `play` in every way, and what its event loop complains of.

    Args:
        options: uvicorn's own.
    """

    def __init__(self, **options: Any) -> None:
        self.complaints: list[str] = []
        self.perform(Play())
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        config = uvicorn.Config(self, log_config=None, access_log=False, ws="websockets-sansio", **options)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self.loop = asyncio.get_running_loop()
            self.loop.set_exception_handler(lambda loop, context: self.complaints.append(str(context)))
            self.tasks = asyncio.all_tasks()
        PLAY.set(self.play)

        async def sending(message: MutableMapping[str, Any]) -> None:
            waits = self.loop.call_soon(self.stuck.release)
            try:
                await send(message)
            finally:
                waits.cancel()

        await web(scope, receive, sending)

    def perform(self, play: Play) -> Play:
        """Serve this from now on."""
        self.play = play
        self.stuck = threading.Semaphore(0)  # released when a client does not read what it is sent
        return play

    def go_on(self) -> None:
        """Let the model say the rest."""
        self.loop.call_soon_threadsafe(self.play.opened.set)

    def check_all_over(self, outcome: str, *also: str) -> None:
        """See that the run has come to this outcome, and that nothing is left of it and of its request."""
        assert self.play.over.acquire(timeout=PATIENCE), f"the run goes on; {self.play.log} has ended"
        asyncio.run_coroutine_threadsafe(self.tasks_to_end(), self.loop).result(PATIENCE)
        self.play.check(outcome, *also)
        assert self.complaints == []

    async def tasks_to_end(self) -> None:
        """Wait for all tasks that a request has started; only then collect garbage, which may complain too."""
        for _ in range(2):
            while left := asyncio.all_tasks() - self.tasks - {asyncio.current_task()}:
                _, pending = await asyncio.wait(left, timeout=PATIENCE / 2)
                assert not pending
            gc.collect()
            await asyncio.sleep(0)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
GOODBYE = b"\x88\x80mask"  # a frame of a client that closes its websocket
LAST_FRAME, LAST_CHUNK = b"\x88\x02\x03\xe8", b"\r\n0\r\n\r\n"


class Client:
    """A connection that has asked for a page, once its first words are there and the model is waited for."""

    def __init__(self, site: Site, page: str) -> None:
        self.site = site
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self.socket.connect(site.socket.getsockname())
        self.ask(page)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, page: str) -> None:
        self.got = b""
        self.last = LAST_FRAME if page in SOCKETS else LAST_CHUNK
        upgrade = UPGRADE if page in SOCKETS else ""
        self.socket.sendall(f"GET {page} HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n".encode())
        if page != "/plain":
            self.read_until(b"<1>")
        assert self.site.play.waiting.acquire(timeout=PATIENCE)

    def read_until(self, text: bytes) -> None:
        while text not in self.got:
            piece = self.socket.recv(2**16)
            assert piece, f"closed after {self.got!r}"
            self.got += piece

    def read_to_end(self) -> None:
        """Read what the model says when it is let go on, and the end of the response."""
        self.site.go_on()
        self.read_until(b"<2>")
        self.read_until(self.last)

    def read_to_close(self) -> bytes:
        while piece := self.socket.recv(2**16):
            self.got += piece
        return self.got


def close(client: Client) -> None:
    client.socket.close()


def half_close(client: Client) -> None:
    client.socket.shutdown(socket.SHUT_WR)
    client.read_to_close()


def reset(client: Client) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def time_out(client: Client) -> None:
    client.socket.settimeout(0.001)
    with pytest.raises(TimeoutError):
        client.read_to_close()
    client.socket.close()


def say_goodbye(client: Client) -> None:
    client.socket.sendall(GOODBYE)
    client.read_to_close()


BARE = {"loop": "asyncio", "http": "h11"}
STANDARD = {"loop": "uvloop", "http": "httptools"}


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nobody logs anything that the test does not take, and what ends is ended by somebody, not as garbage."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()
    assert [record.getMessage() for record in caplog.get_records("call")] == []


@pytest.fixture(scope="module", params=[BARE, STANDARD], ids=["bare", "standard"])
def running(request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(**request.param)
    gc.collect()
    gc.freeze()  # what is there by now need not be looked through after each test
    yield site
    gc.unfreeze()
    site.stop()


@pytest.fixture
def site(running: Site, quiet: None) -> Site:
    return running


def take_errors(caplog: pytest.LogCaptureFixture, error: str) -> None:
    """See that uvicorn has logged this error of an endpoint, and nothing about scopes, tasks or generators."""
    [*_, message] = caplog.messages
    assert message == "Exception in ASGI application\n"
    assert error in caplog.text
    assert "RuntimeError" not in caplog.text
    caplog.clear()


# --- the client leaves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, *SOCKETS])
def test_s5_a_response_that_is_read_to_its_end_has_completed_its_run(site: Site, page: str) -> None:
    site.perform(Play("<2>"))
    with Client(site, page) as client:
        client.read_to_end()
        site.check_all_over("completed", *FINALLY.get(page, ()))


@pytest.mark.parametrize("page", [*PAGES, "/watched"])
@pytest.mark.parametrize("leave", [close, half_close, reset, time_out])
def test_s5_a_client_that_leaves_while_the_model_is_waited_for_ends_the_run(
    site: Site, page: str, leave: Callable[[Client], None]
) -> None:
    site.perform(Play())
    with Client(site, page) as client:
        leave(client)
        site.check_all_over("cancelled", *FINALLY.get(page, ()))


@pytest.mark.parametrize("page", [*PAGES, "/watched"])
@pytest.mark.parametrize("leave", [close, half_close, reset])
def test_s5_a_client_that_leaves_while_it_is_sent_something_ends_the_run(
    site: Site, page: str, leave: Callable[[Client], None], caplog: pytest.LogCaptureFixture
) -> None:
    site.perform(Play(*LONG))
    with Client(site, page) as client:
        site.go_on()
        assert site.stuck.acquire(timeout=PATIENCE)
        leave(client)
        site.check_all_over("cancelled", *FINALLY.get(page, ()))
    if "/server_sent" in page and caplog.messages:
        take_errors(caplog, "BrokenResourceError")  # FastAPI's own, whatever generator it reads


@pytest.mark.parametrize("page", PAGES)
def test_s5_a_connection_serves_run_after_run_until_its_client_leaves(site: Site, page: str) -> None:
    site.perform(Play("<2>"))
    with Client(site, page) as client:
        client.read_to_end()
        site.check_all_over("completed", *FINALLY.get(page, ()))
        site.perform(Play("<2>"))
        client.ask(page)
    site.check_all_over("cancelled", *FINALLY.get(page, ()))
    site.perform(Play("<2>"))
    with Client(site, page) as client:
        client.read_to_end()
        site.check_all_over("completed", *FINALLY.get(page, ()))


def test_s5_a_websocket_that_is_watched_ends_its_run_when_its_client_says_goodbye(site: Site) -> None:
    site.perform(Play())
    with Client(site, "/watched") as client:
        say_goodbye(client)
        site.check_all_over("cancelled")


@pytest.mark.parametrize("leave", [close, half_close, reset, say_goodbye])
def test_s5_a_websocket_that_only_sends_notices_when_it_sends(site: Site, leave: Callable[[Client], None]) -> None:
    site.perform(Play(*LONG))
    with Client(site, "/socket") as client:
        leave(client)
        site.go_on()
        site.check_all_over("cancelled")


@pytest.mark.parametrize("leave", [close, half_close, reset, time_out])
def test_s5_a_plain_run_goes_on_when_its_client_leaves(site: Site, leave: Callable[[Client], None]) -> None:
    """As uvicorn has it: an endpoint that has not answered yet is not told."""
    site.perform(Play("<2>"))
    with Client(site, "/plain") as client:
        leave(client)
        site.go_on()
        site.check_all_over("completed")


# --- the endpoint or the model fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, *SOCKETS])
def test_s5_an_endpoint_that_raises_ends_the_run(site: Site, page: str, caplog: pytest.LogCaptureFixture) -> None:
    site.perform(Play("<2>", NEVER, fails=True))
    with Client(site, page) as client:
        site.go_on()
        client.read_to_close()
        site.check_all_over("cancelled", *FINALLY.get(page, ()))
    assert len(caplog.messages) == 1
    take_errors(caplog, "Boom: in the endpoint")


@pytest.mark.parametrize("page", [*PAGES, *SOCKETS])
def test_s5_a_model_that_fails_in_mid_stream_fails_its_run(
    site: Site, page: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.perform(Play("<2>", Boom("in the model")))
    with Client(site, page) as client:
        site.go_on()
        client.read_to_close()
        site.check_all_over("failed", *FINALLY.get(page, ()))
    assert len(caplog.messages) == 1
    take_errors(caplog, "Boom: in the model")


@pytest.mark.parametrize("page", ["/response/by_wait_for", "/response/by_fail_after"])
def test_s5_a_timeout_for_one_piece_ends_the_run(site: Site, page: str, caplog: pytest.LogCaptureFixture) -> None:
    site.perform(Play(patience=0.001))
    with Client(site, page) as client:
        assert client.last not in client.read_to_close()
        site.check_all_over("cancelled")
    take_errors(caplog, "TimeoutError")


def test_s5_a_timeout_that_is_caught_around_one_piece_leaves_the_run_alone(site: Site) -> None:
    site.perform(Play("<2>", patience=0.001))
    with Client(site, "/response/by_move_on_after") as client:
        client.read_until(b"<still there>")
        client.read_to_end()
        site.check_all_over("completed")


# --- the server stops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [BARE, STANDARD], ids=["bare", "standard"])
def test_s5_a_server_that_stops_lets_responses_end_and_closes_websockets(stack: dict[str, Any], quiet: None) -> None:
    site = Site(**stack)
    with ExitStack() as clients:
        told = site.play
        watched = clients.enter_context(Client(site, "/watched"))
        play = site.perform(Play("<2>"))
        others = [clients.enter_context(Client(site, page)) for page in [*PAGES, "/plain"]]
        site.server.should_exit = True
        watched.read_to_close()
        site.go_on()
        for client in others:
            assert b"<2>" in client.read_to_close()
        site.stop()
    told.check("cancelled")
    play.check("completed", *chain(*FINALLY.values()), runs=len(others))
    assert site.complaints == []


def serve_until_stopped(play: Play, pages: list[str], *, forced: bool) -> list[str]:
    """What the loop of a server complains of that serves all these pages, and does not wait for them when it stops."""
    site = Site(**BARE, timeout_graceful_shutdown=0)  # uvloop does not get on with connections that are left open
    site.perform(play)
    with ExitStack() as clients:
        for page in pages:
            clients.enter_context(Client(site, page))
        if play.rest:
            site.go_on()
            for _ in pages:
                assert site.stuck.acquire(timeout=PATIENCE)
        site.server.force_exit = forced
        site.stop()
    return site.complaints


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # uvicorn's connections
@pytest.mark.parametrize("forced", [False, True], ids=["cancelling", "forced"])
@pytest.mark.parametrize("rest", [(), LONG], ids=["waiting", "sending"])
def test_s5_a_server_that_does_not_wait_for_its_responses_ends_their_runs(
    rest: tuple[Any, ...], forced: bool, quiet: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A `finally` that waits is cancelled itself by a loop that ends, so it is the outcomes that are looked at."""
    play, pages = Play(*rest), [*PAGES, *SOCKETS]
    assert serve_until_stopped(play, pages, forced=forced) == []
    assert play.outcomes == ["cancelled"] * len(pages)
    take_errors(caplog, "CancelledError")
