"""Bundles that are started before a run needs them and stopped when their app ends: pools, clients, files."""

from __future__ import annotations

from collections.abc import Iterable

import anyio

from middlechain.chain import settle

__all__ = ["Lifespan", "has_lifespan"]


def has_lifespan(bundle: object) -> bool:
    """Whether a bundle has a `start()` or a `stop()`."""
    return any(callable(getattr(bundle, method, None)) for method in ("start", "stop"))


class Lifespan:
    """Starts each bundle once, in the order in which they are asked for, and stops all in reverse."""

    def __init__(self) -> None:
        self._started: list[object] = []
        self._starting: list[tuple[object, anyio.Event]] = []

    async def start(self, bundles: Iterable[object]) -> None:
        """Start those that have not been started; what another task is just starting is waited for.

        Raises:
            Exception: what a `start()` raises; that bundle, and those after it, have not been started then.
        """
        for bundle in bundles:
            while (other := self._other_start(bundle)) is not None:
                await other.wait()
            if not _among(bundle, self._started):
                await self._start(bundle)

    def _other_start(self, bundle: object) -> anyio.Event | None:
        return next((done for starting, done in self._starting if starting is bundle), None)

    async def _start(self, bundle: object) -> None:
        going = (bundle, anyio.Event())
        self._starting.append(going)
        try:
            start = getattr(bundle, "start", None)
            if start is not None:
                await settle(start())
            self._started.append(bundle)
        finally:
            self._starting.remove(going)
            going[1].set()

    async def stop(self) -> None:
        """Stop all that were started, the last one first, also in a task that is cancelled.

        Raises:
            Exception: the first that a `stop()` raised, when all have been called; further ones are notes on it.
        """
        failures: list[Exception] = []
        with anyio.CancelScope(shield=True):
            while self._started:
                stop = getattr(self._started.pop(), "stop", None)
                try:
                    if stop is not None:
                        await settle(stop())
                except Exception as failure:  # noqa: BLE001 - the others must be stopped, too
                    failures.append(failure)
        for other in failures[1:]:
            failures[0].add_note(f"another stop() failed too: {type(other).__name__}: {other}")
        if failures:
            raise failures[0]


def _among(bundle: object, others: Iterable[object]) -> bool:
    return any(other is bundle for other in others)
