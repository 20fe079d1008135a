"""The edge of a step, where its text leaves for the stream: what was sent is what the result says.

A `RetractingEdge` takes back what does not hold any more. Its sibling for streams that cannot is in `append_only`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from middlechain.chat import ChatReply, Send
from middlechain.errors import WrongReturn
from middlechain.events import Delta, ReasoningDelta, TextDelta, TextReset
from middlechain.holds import Moment
from middlechain.messages import Assistant, Message
from middlechain.records import Step
from middlechain.results import Result

__all__ = ["Edge", "RetractingEdge", "correction", "refuse_delta"]


class Edge(Protocol):
    """Sends the text of one step's turns, and sees to it that the result says the same."""

    def sender(self, turn: int, /) -> Send:
        """The `send` of that turn's call, outside all layers."""
        ...

    def has_sent(self, turn: int, /) -> bool:
        """Whether any of that turn's text or reasoning has gone out."""
        ...

    def may_begin_again(self, turn: int, failure: BaseException | None, /) -> None:
        """Called before an attempt at a turn is abandoned, with what it raised; its text is taken back then."""
        ...

    async def begin_again(self, failure: BaseException | None, /) -> None:
        """Called before the step begins again: nothing that it has sent holds any more."""
        ...

    async def retract(self, turn: int, /) -> None:
        """Called when the reply of a turn is no answer: another one takes its place."""
        ...

    async def replied(self, turn: int, reply: ChatReply, /) -> ChatReply:
        """Called with a turn's reply as it left the chat layers; gives it back, with all that was sent of it."""
        ...

    async def finish(self, result: Result, moment: Moment, /) -> Result:
        """Called with the result as it came that far out; gives it back, with all that was sent.

        Turn n is the nth message of the assistant in it, after the `base` that came before the step.
        """
        ...


def correction(sent: str, sent_reasoning: str, text: str, reasoning: str) -> list[Delta]:
    """What must follow what was sent, so that all of it since the last reset says `text` and `reasoning`."""
    if not (text.startswith(sent) and reasoning.startswith(sent_reasoning)):
        return [TextReset(), *correction("", "", text, reasoning)]
    deltas: list[Delta] = []
    if len(reasoning) > len(sent_reasoning):
        deltas.append(ReasoningDelta(reasoning[len(sent_reasoning) :]))
    if len(text) > len(sent):
        deltas.append(TextDelta(text[len(sent) :]))
    return deltas


def refuse_delta(delta: object) -> NoReturn:
    """Refuse what is no delta."""
    raise WrongReturn(
        f"send() got a value of type {type(delta).__name__} ({delta!r:.60}); "
        "give it a TextDelta, a ReasoningDelta or a TextReset"
    )


class RetractingEdge:
    """Sends text at once, and takes back what does not hold any more."""

    __slots__ = ("_reasoning", "_step", "_text")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._text: dict[int, list[str]] = {}
        self._reasoning: dict[int, list[str]] = {}

    def sender(self, turn: int) -> Send:
        """Sends each delta as it comes, and notes it."""
        text = self._text.setdefault(turn, [])
        reasoning = self._reasoning.setdefault(turn, [])
        origin = self._step.at(turn)
        post = self._step.run.bus.post

        async def send(delta: Delta) -> None:
            kind = type(delta)
            if kind is TextDelta or kind is ReasoningDelta:
                piece: str = delta.text  # type: ignore[union-attr]  # its type was just looked at
                if piece:
                    (text if kind is TextDelta else reasoning).append(piece)
                    waiting = post(origin, kind, piece)
                    if waiting is not None:
                        await waiting
            elif kind is TextReset:
                if text or reasoning:
                    text.clear()
                    reasoning.clear()
                    await self._step.run.bus.emit(origin, TextReset)
            else:
                refuse_delta(delta)

        return send

    def has_sent(self, turn: int) -> bool:
        """Whether any of it still holds."""
        return bool(self._text.get(turn) or self._reasoning.get(turn))

    def may_begin_again(self, turn: int, failure: BaseException | None) -> None:
        """Always."""

    async def begin_again(self, failure: BaseException | None) -> None:
        """Take back all that was sent."""
        await self._settle_all(())

    async def retract(self, turn: int) -> None:
        """Take back what was sent of that turn."""
        await self._settle(turn, "", None)

    async def replied(self, turn: int, reply: ChatReply) -> ChatReply:
        """Make what was sent of that turn say what the reply says."""
        await self._settle(turn, reply.text, reply.reasoning)
        return reply

    async def finish(self, result: Result, moment: Moment) -> Result:
        """Make what was sent of each turn say what the result says."""
        await self._settle_all(result.messages)
        return result

    async def _settle(self, turn: int, text: str, reasoning: str | None) -> None:
        sent, sent_reasoning = "".join(self._text.get(turn, ())), "".join(self._reasoning.get(turn, ()))
        if sent == text and sent_reasoning == (reasoning or ""):
            return
        send = self.sender(turn)
        for delta in correction(sent, sent_reasoning, text, reasoning or ""):
            await send(delta)

    async def _settle_all(self, messages: Sequence[Message]) -> None:
        answers = [message for message in messages if isinstance(message, Assistant)][self._step.base :]
        for turn, answer in enumerate(answers, 1):
            await self._settle(turn, answer.text, answer.reasoning)
        for turn in sorted(self._text):
            if turn > len(answers):
                await self._settle(turn, "", None)
