"""What of a reply may go out before its guards have judged it: the deltas of a stream on their way through the guards.

Nothing is decided here: the verdict is that of `judging`, on the whole reply. The edge then sends what was held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from middlechain.chat import ChatReply, Send
from middlechain.context import Context
from middlechain.events import Delta, ReasoningDelta, TextDelta
from middlechain.guards import Guard

__all__ = ["Watch"]


class Stage(Protocol):
    """One guard's part in holding text back."""

    @property
    def hit(self) -> bool:
        """Whether a block is certain."""
        ...

    def push(self, delta: str, /) -> str:
        """Take more text, and return what may go on."""
        ...


class HoldAll:
    """Lets nothing through."""

    hit = False

    def push(self, delta: str) -> str:
        """Take it; the edge sends the reply when it has been judged."""
        return ""


class HoldCharacters:
    """Holds the last `count` characters back."""

    hit = False

    def __init__(self, count: int) -> None:
        self._count = count
        self._held = ""

    def push(self, delta: str) -> str:
        """Let all but the last ones go."""
        text = self._held + delta
        place = max(0, len(text) - self._count)
        self._held = text[place:]
        return text[:place]


class HoldSentence:
    """Holds the last sentence back until it has ended."""

    hit = False
    _ends = (". ", "! ", "? ", ".\n", "!\n", "?\n", "\n\n", "\u3002", "\uff01", "\uff1f")  # the last three are CJK

    def __init__(self) -> None:
        self._held = ""

    def push(self, delta: str) -> str:
        """Let all sentences go that have ended."""
        text = self._held + delta
        place = max((text.rfind(end) + len(end) for end in self._ends if end in text), default=0)
        self._held = text[place:]
        return text[:place]


class Counted:
    """Lets go as many characters as a scan says."""

    def __init__(self, scan: Any) -> None:
        self._scan = scan
        self._held: list[str] = []
        self._gone = 0

    @property
    def hit(self) -> bool:
        """Whether the scan says that a block is certain."""
        return getattr(self._scan, "hit", False) is True

    def push(self, delta: str) -> str:
        """Ask the scan."""
        self._held.append(delta)
        more: int = self._scan.push(delta) - self._gone
        if more <= 0:
            return ""
        text = "".join(self._held)
        self._held = [text[more:]]
        self._gone += min(more, len(text))
        return text[:more]


class Rewriting:
    """Lets go what a scan gives in place of the text."""

    hit = False

    def __init__(self, scan: Any) -> None:
        self._feed: Callable[[str], str] = scan.feed

    def push(self, delta: str) -> str:
        """Ask the scan."""
        return self._feed(delta)


class Failsafe:
    """A stage of somebody's own code. Once that has failed, nothing goes out any more until the verdict."""

    def __init__(self, make: Callable[[], Stage]) -> None:
        self._stage: Stage = HoldAll()
        self._try(lambda: setattr(self, "_stage", make()))

    def _try(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception:  # noqa: BLE001 - whatever a scan raises: it only decides what goes out early
            self._stage = HoldAll()
            return ""

    @property
    def hit(self) -> bool:
        """As the stage says."""
        return self._try(lambda: self._stage.hit) is True

    def push(self, delta: str) -> str:
        """As the stage says."""
        text: str = self._try(lambda: self._stage.push(delta))
        return text


def stage_of(guard: Guard, ctx: Context[Any]) -> Stage | None:
    """What a guard does to a text that streams; None for nothing."""
    if guard.mode == "observe":
        return None
    if guard.when == "final":
        return HoldAll()
    scan = guard.scan
    if scan is not None:
        return Failsafe(lambda: _scanning(scan(ctx)))
    if guard.hold is None:
        return HoldAll()
    return HoldSentence() if guard.hold == "sentence" else HoldCharacters(guard.hold)


def _scanning(scan: Any) -> Stage:
    return Rewriting(scan) if hasattr(scan, "feed") else Counted(scan)


class Watch:
    """Stands between the chat layers and the edge while one reply streams.

    Args:
        guards: of the step's output, in order.
        ctx: for their scans.
        send: the edge's.
        closes: whether a block of the first guard that is certain closes the model's stream.

    Attributes:
        scope: around the model call, so that it can be closed.
        closed: whether it was.
    """

    def __init__(self, guards: Sequence[Guard], ctx: Context[Any], send: Send, closes: bool) -> None:
        self._guards = guards
        self._ctx = ctx
        self._send = send
        self._closes = closes
        self.scope = anyio.CancelScope()
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._text_stages = self._stages(self._guards)
        self._reasoning_stages = self._stages([guard for guard in self._guards if guard.when != "final"])

    def _stages(self, guards: Sequence[Guard]) -> list[Stage]:
        stages = [stage_of(guard, self._ctx) for guard in guards]
        return [stage for stage in stages if stage is not None]

    @property
    def reply(self) -> ChatReply:
        """What had been said when the stream was closed."""
        return ChatReply("".join(self._text), (), "".join(self._reasoning) or None, finish_reason="incomplete")

    async def send(self, delta: Delta) -> None:
        """Let what may go out of the delta go to the edge."""
        kind = type(delta)
        if kind is TextDelta:
            await self._let_go(TextDelta, self._text_stages, self._text, delta.text)  # type: ignore[union-attr]
        elif kind is ReasoningDelta:
            await self._let_go(ReasoningDelta, self._reasoning_stages, self._reasoning, delta.text)  # type: ignore[union-attr]
        else:
            self._begin()
            await self._send(delta)

    async def _let_go(self, kind: Any, stages: Sequence[Stage], said: list[str], text: str) -> None:
        said.append(text)
        for stage in stages:
            text = stage.push(text)
            if not text:
                break
        if text:
            await self._send(kind(text))
        if self._closes and stages and stages[0].hit:
            self.closed = True
            self.scope.cancel()
            await anyio.lowlevel.checkpoint()
