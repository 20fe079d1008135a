"""The edge of an append-only stream, for those who cannot take text back, such as a terminal or an HTTP response.

A text is sent once nothing can change it any more. What comes all the same after text that was sent, such as a degraded
answer, is a paragraph of its own, and the result says the whole.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from middlechain.chat import ChatReply, Send
from middlechain.edge import refuse_delta
from middlechain.errors import NextCalledAgain
from middlechain.events import Delta, ReasoningDelta, TextDelta, TextReset
from middlechain.holds import Hold, Moment, log_hold
from middlechain.messages import Assistant, Message
from middlechain.records import Step, Tell
from middlechain.results import Result

__all__ = ["AppendOnlyEdge", "Paragraphs"]

BREAK = "\n\n"


def _paragraphs(*texts: str) -> str:
    return BREAK.join(filter(None, texts))


class _Said:
    """What an append-only stream has sent of the text, or of the reasoning, of one turn."""

    __slots__ = ("_current", "_kept")

    def __init__(self) -> None:
        self._kept = ""  # what a reset came after
        self._current: list[str] = []

    def __str__(self) -> str:
        return _paragraphs(self._kept, "".join(self._current))

    def add(self, piece: str) -> str:
        """Note a piece, and return what to send."""
        self._current.append(piece)
        return BREAK + piece if self._kept and len(self._current) == 1 else piece

    def reset(self) -> None:
        """What was sent stays; what comes next is a new paragraph."""
        self._kept = str(self)
        self._current.clear()

    def with_all_of(self, text: str) -> str:
        """What the turn says in the end, if without what was sent before it would say this."""
        current = "".join(self._current)
        return _paragraphs(self._kept, *((text,) if text.startswith(current) else (current, text)))

    def grow(self, whole: str) -> str:
        """Note that all of this is said, and return what to send."""
        more = whole[len(str(self)) :]
        self._kept, self._current = "", [whole] if whole else []
        return more


class AppendOnlyEdge:
    """Sends text that nothing can change any more, and never takes it back."""

    __slots__ = ("_holds", "_said", "_step")

    def __init__(self, step: Step, holds: tuple[Hold, ...]) -> None:
        self._step = step
        self._holds = holds
        self._said: dict[int, tuple[_Said, _Said]] = {}

    @property
    def _tell(self) -> Tell | None:
        step = self._step
        return step.run.tell if step.answering and step.transfer is None else None

    def _of(self, turn: int) -> tuple[_Said, _Said]:
        return self._said.setdefault(turn, (_Said(), _Said()))

    def has_sent(self, turn: int) -> bool:
        """Whether any of it has gone out."""
        return any(map(str, self._of(turn)))

    def _until(self, tool_turn: bool) -> Moment:
        """When nothing can change the text of a turn any more."""
        return max((hold.until for hold in self._holds if not (tool_turn and hold.answer_only)), default=Moment.SENT)

    def sender(self, turn: int) -> Send:
        """Sends each delta as it comes, or drops it where the text is held: it is sent in one piece then."""
        said, pondered = self._of(turn)
        if self._holds:
            log_hold(self._step.run.app, self._holds)
            return _hold
        origin, tell, add, bus = self._step.at(turn), self._tell, said.add, self._step.run.bus
        post = bus.post if bus.listening else None

        async def send(delta: Delta) -> None:
            kind = type(delta)
            if kind is TextDelta:
                piece: str = delta.text  # type: ignore[union-attr]  # its type was just looked at
                if piece:
                    piece = add(piece)
                    waiting: Awaitable[None] | None
                    if post is not None:
                        waiting = post(origin, kind, piece)
                        if waiting is not None:
                            await waiting
                    if tell is not None:
                        waiting = tell(turn, piece)
                        if waiting is not None:
                            await waiting
            elif kind is ReasoningDelta:
                if delta.text:  # type: ignore[union-attr]  # as above
                    await bus.emit(origin, kind, pondered.add(delta.text))  # type: ignore[union-attr]
            elif kind is TextReset:
                said.reset()
                pondered.reset()
            else:
                refuse_delta(delta)

        return send

    def may_begin_again(self, turn: int, failure: BaseException | None) -> None:
        """Refuse to abandon an attempt that has sent something.

        Raises:
            BaseException: the failure of that attempt, as itself.
            NextCalledAgain: when it did not fail.
        """
        if not self.has_sent(turn):
            return
        if isinstance(failure, Exception):
            raise failure
        raise NextCalledAgain(
            "next() was called again in an append-only stream that had sent text of the first attempt, and nothing can "
            "be taken back there; let the first attempt's outcome stand, or stream with resets=True"
        )

    async def begin_again(self, failure: BaseException | None) -> None:
        """The same for all turns of the step."""
        for turn in self._said:
            self.may_begin_again(turn, failure)

    async def retract(self, turn: int) -> None:
        """Nothing: an answer that may yet go back to the model is held."""

    async def replied(self, turn: int, reply: ChatReply) -> ChatReply:
        """Send what is not held beyond the chat layers, and return the reply with all that was sent of it."""
        said, pondered = self._of(turn)
        text, reasoning = said.with_all_of(reply.text), pondered.with_all_of(reply.reasoning or "")
        if self._until(bool(reply.tool_calls)) <= Moment.REPLIED:
            await self._send(turn, text, reasoning)
        if text == reply.text and reasoning == (reply.reasoning or ""):
            return reply
        return reply.replace(text=text, reasoning=reasoning or None)

    async def finish(self, result: Result, moment: Moment) -> Result:
        """Send what is not held any longer, and return the result with all that was sent."""
        whole = self._with_all_that_was_sent(result)
        if self._until(tool_turn=False) <= moment:
            answers = [message for message in whole.messages if isinstance(message, Assistant)][self._step.base :]
            for turn, answer in enumerate(answers, 1):
                await self._send(turn, answer.text, answer.reasoning or "")
        return whole

    def _with_all_that_was_sent(self, result: Result) -> Result:
        messages: list[Message] = []
        turn = -self._step.base
        for message in result.messages:
            if isinstance(message, Assistant):
                turn += 1
                if turn > 0:
                    message = self._whole(turn, message)  # noqa: PLW2901  # the same, with more
            messages.append(message)
        cut_off = [later for later in sorted(self._said) if later > turn and self.has_sent(later)]
        messages += [self._whole(later, Assistant("", finish_reason=result.finish_reason)) for later in cut_off]
        same = len(messages) == len(result.messages) and all(map(_is, messages, result.messages))
        return result if same else result.replace(messages=messages)

    def _whole(self, turn: int, answer: Assistant) -> Assistant:
        said, pondered = self._of(turn)
        text, reasoning = said.with_all_of(answer.text), pondered.with_all_of(answer.reasoning or "")
        if text == answer.text and reasoning == (answer.reasoning or ""):
            return answer
        return replace(answer.with_text(text), reasoning=reasoning or None)

    async def _send(self, turn: int, text: str, reasoning: str) -> None:
        said, pondered = self._of(turn)
        bus, origin = self._step.run.bus, self._step.at(turn)
        more_reasoning, more = pondered.grow(reasoning), said.grow(text)
        if more_reasoning:
            await bus.emit(origin, ReasoningDelta, more_reasoning)
        if more:
            await bus.emit(origin, TextDelta, more)
            tell = self._tell
            waiting = None if tell is None else tell(turn, more)
            if waiting is not None:
                await waiting


async def _hold(delta: Delta) -> None:
    if not isinstance(delta, TextDelta | ReasoningDelta | TextReset):
        refuse_delta(delta)


def _is(one: object, other: object) -> bool:
    return one is other


class Paragraphs:
    """One text of the texts of several turns: a blank line stands between them."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn: int | None = None

    def next(self, turn: int, text: str) -> str:
        """What to add for a further piece of a turn."""
        first, self._turn = self._turn in {None, turn}, turn
        return text if first else BREAK + text
