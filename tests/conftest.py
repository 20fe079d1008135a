"""What all tests share: both event loops, both ways to run, and no way out of this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from middlechain import App, Result
from middlechain.testing import collect

Go = Callable[..., Awaitable[Result]]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every async test runs on both."""
    return str(request.param)


async def by_run(app: App, target: Any, input: Any, **options: Any) -> Result:
    """Run it plainly."""
    return await app.run(target, input, **options)


async def by_stream(app: App, target: Any, input: Any, **options: Any) -> Result:
    """Run it as a stream that is read to its end."""
    return (await collect(app.stream(target, input, **options))).result


@pytest.fixture(params=[by_run, by_stream], ids=["run", "stream"])
def go(request: pytest.FixtureRequest) -> Go:
    """`await go(app, target, input)`: one result, either way. What is tested with it holds in both (S11)."""
    way: Go = request.param
    return way


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse any connection that would leave this machine (K4)."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in {socket.AF_INET, socket.AF_INET6} and not ipaddress.ip_address(address[0]).is_loopback:
            raise AssertionError(f"a test tried to leave this machine for {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what the machine's environment says of a model server."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
