"""The edge of a step, where its text leaves for the stream: what was sent is what the result says."""

from __future__ import annotations

from collections.abc import Sequence

from middlechain.chat import Send
from middlechain.errors import WrongReturn
from middlechain.events import Delta, ReasoningDelta, TextDelta, TextReset
from middlechain.messages import Assistant, Message
from middlechain.records import Step

__all__ = ["Edge", "correction"]


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


class Edge:
    """Sends the text of one step's turns, and knows what of it still holds."""

    __slots__ = ("_reasoning", "_step", "_text")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._text: dict[int, list[str]] = {}
        self._reasoning: dict[int, list[str]] = {}

    def sender(self, turn: int) -> Send:
        """The `send` of that turn's call, outside all layers."""
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
                raise WrongReturn(
                    f"send() got a value of type {kind.__name__} ({delta!r:.60}); "
                    "give it a TextDelta, a ReasoningDelta or a TextReset"
                )

        return send

    async def settle(self, turn: int, text: str, reasoning: str | None = None) -> None:
        """Make what was sent of that turn say this."""
        sent, sent_reasoning = "".join(self._text.get(turn, ())), "".join(self._reasoning.get(turn, ()))
        if sent == text and sent_reasoning == (reasoning or ""):
            return
        send = self.sender(turn)
        for delta in correction(sent, sent_reasoning, text, reasoning or ""):
            await send(delta)

    async def settle_all(self, messages: Sequence[Message]) -> None:
        """Make what was sent of each turn say what the result says: turn n is its nth message of the assistant."""
        answers = [message for message in messages if isinstance(message, Assistant)]
        for turn, answer in enumerate(answers, 1):
            await self.settle(turn, answer.text, answer.reasoning)
        for turn in sorted(self._text):
            if turn > len(answers):
                await self.settle(turn, "")
