"""What tests of guardrails share: guards that do as they are told, and one that lets text go as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from middlechain import Agent, ChatReply, Deny, Enforced, ReasoningDelta, TextDelta, Validation, guardrail, tool
from middlechain.guards import Guard
from middlechain.testing import ScriptedModel

CANNED = "I can't help with that."
FOUND = Enforced("found")


def against(word: str, answer: Any = FOUND, name: str = "words", **options: Any) -> Guard:
    """A guard that answers so to a text with the word in it, or raises it; other texts pass."""

    async def judge(text: str, ctx: Any) -> Any:
        if word not in text:
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer(text) if callable(answer) else answer

    return guardrail(name, **options)(judge)


def noting(log: list[Any], name: str = "noting", **options: Any) -> Guard:
    """A guard that lets all pass and notes the texts."""
    return guardrail(name, **options)(lambda text, ctx: log.append(text))


def redacting(word: str, name: str = "redact", **options: Any) -> Guard:
    """A guard that puts `***` in the place of the word."""
    return against(word, lambda text: text.replace(word, "***"), name, **options)


class Scanning:
    """A guard as an object: it blocks a word, and holds back what may still become one."""

    def __init__(self, word: str, answer: Any = FOUND, name: str = "scanning") -> None:
        self.name = name
        self.word = word
        self.answer = answer
        self.judged: list[str] = []

    def judge(self, text: str, ctx: Any) -> Any:
        self.judged.append(text)
        return self.answer if self.word in text else None

    def scan(self, ctx: Any) -> WordScan:
        return WordScan(self.word, isinstance(self.answer, Enforced | Deny))


class WordScan:
    """Says how many characters of a text can be no part of the word, and whether the word makes a block certain."""

    def __init__(self, word: str, blocks: bool) -> None:
        self.word = word
        self.blocks = blocks
        self.text = ""
        self.hit = False

    def push(self, delta: str) -> int:
        self.text += delta
        place = self.text.find(self.word)
        if place >= 0:
            self.hit = self.blocks
            return place
        sizes = range(min(len(self.word), len(self.text)), 0, -1)
        return len(self.text) - next((size for size in sizes if self.text.endswith(self.word[:size])), 0)


def setup(replies: Any, *, input: Sequence[Any] = (), output: Sequence[Any] = (), **options: Any) -> Any:
    """An agent with these guards, and its model."""
    model = ScriptedModel(replies)
    agent = Agent(name="a", model=model, guardrails={"input": input, "output": output}, **options)
    return agent, model


def found(result: Any) -> list[tuple[str, str]]:
    """The validations of a result (or a reply), in short."""
    return [(validation.name, validation.outcome) for validation in result.validations]


def cuts(text: str) -> list[list[str]]:
    """The text in one piece, in two (cut in every place), and letter by letter with empty pieces thrown in."""
    two = [[text[:place], text[place:]] for place in range(1, len(text))]
    return [[text], *two, [piece for letter in text for piece in (letter, "")]]


def as_deltas(reply: ChatReply, pieces: Sequence[str]) -> list[Any]:
    """The reply as a model streams it, its text in these pieces."""
    thought = [ReasoningDelta(reply.reasoning)] if reply.reasoning else []
    return [*thought, *map(TextDelta, pieces), *reply.tool_calls]


def working(ran: list[Any]) -> Any:
    """A tool that notes what it is called with."""

    @tool
    async def work(x: Any = None) -> str:
        """Work."""
        ran.append(x)
        return "worked"

    return work


def failed(result: Any) -> Validation:
    """The one validation of a result that did not pass."""
    (validation,) = [validation for validation in result.validations if not validation.passed]
    assert isinstance(validation, Validation)
    return validation
