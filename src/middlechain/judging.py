"""How a step has its texts judged: each text once, by the guards in order, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import anyio

from middlechain.chain import settle
from middlechain.chat import ChatReply, Model
from middlechain.context import Context
from middlechain.errors import GuardrailDenied, StreamDenied, WrongReturn
from middlechain.events import GuardrailFired
from middlechain.guards import (
    CANNED,
    Allow,
    Deny,
    Enforced,
    Guard,
    Outcome,
    OutcomeName,
    Rewrite,
    StepGuards,
    Validation,
)
from middlechain.messages import Assistant, Input, Message, MessageBase, Part, Text, ToolUse, User, arguments_of
from middlechain.records import Step
from middlechain.tools import Tool

__all__ = [
    "Block",
    "GuardContext",
    "Ledger",
    "judge_answer",
    "judge_input",
    "judge_reply",
    "ledger_of",
    "note_denial",
    "refuse",
]


_SEVERITY = ("allow", "rewrite", "errored", "enforced", "deny")


class Ledger:
    """What the guards found in one step: one `Validation` a guard and side, the most severe, the first of equals."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[object, str], Validation] = {}

    def add(self, key: object, validation: Validation) -> None:
        """Note what a guard found; `key` tells guards of one name apart."""
        place = (key, validation.direction)
        known = self._found.get(place)
        if known is None or _severity(validation) > _severity(known):
            self._found[place] = validation

    def absorb(self, other: Ledger) -> None:
        """Add what was found in a step that belongs to this one."""
        for (key, _), validation in other._found.items():
            self.add(key, validation)

    @property
    def validations(self) -> tuple[Validation, ...]:
        """In the order in which the guards ran first."""
        return tuple(self._found.values())


def _severity(validation: Validation) -> int:
    return _SEVERITY.index(validation.outcome)


class GuardContext(Context[Any]):
    """`ctx` as guards see it: with the message or the reply under judgement."""

    __slots__ = ("_view",)

    _view: View

    def __init__(self, step: Step, view: View) -> None:
        super().__init__(step)
        object.__setattr__(self, "_view", view)

    @property
    def message(self) -> Message:
        """The message under judgement, with all its parts."""
        return self._view.message

    @property
    def reply(self) -> ChatReply | None:
        """The reply under judgement; None on the way in."""
        return self._view.reply

    @property
    def direction(self) -> str:
        """`"input"` or `"output"`."""
        return self._view.direction

    @property
    def channel(self) -> str:
        """Which text of it: `"message"`, `"reasoning"`, `"answer"` or `"arguments"`."""
        return self._view.channel

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history before the message under judgement."""
        return self._view.before

    async def chat(
        self,
        messages: Input | Sequence[MessageBase | Mapping[str, Any]],
        *,
        model: Model | str | None = None,
        tools: Sequence[Tool] = (),
    ) -> ChatReply:
        """As everywhere, but no guard judges the reply: this one would be asked about its own question."""
        return await self._step.run.engine.chat(self._step, messages, model, tools, True)


class View(NamedTuple):
    """What a guard is shown beside the text."""

    direction: str
    channel: str
    message: Message
    reply: ChatReply | None
    before: tuple[Message, ...]


class Piece:
    """One text under judgement; a `Rewrite` changes it."""

    __slots__ = ("channel", "text")

    def __init__(self, channel: str, text: str) -> None:
        self.channel = channel
        self.text = text


class Block(NamedTuple):
    """A guard's block of a message or a reply."""

    guard: Guard
    outcome: Enforced | Deny
    validation: Validation
    cause: BaseException | None

    @property
    def canned(self) -> str:
        """What is said instead."""
        return self.outcome.message or self.guard.message or CANNED


class Judgement(NamedTuple):
    """What one guard said of one text, and what made it fail, if it did."""

    outcome: Outcome
    failure: BaseException | None = None


async def _ask(guard: Guard, text: str, ctx: Context[Any]) -> Judgement:
    """What the guard says; whatever goes wrong with it counts as `Deny`."""
    deadline = _deadline(guard)
    try:
        with anyio.CancelScope(deadline=deadline):
            value = await settle(guard.judge(text, ctx))
            if guard.timeout is None or anyio.current_time() <= deadline:  # a sync guard cannot be cancelled
                return Judgement(_blocked_as(guard, _outcome(guard, value)))
    except Exception as failure:  # noqa: BLE001 - a guard that fails has not let the text pass (G9)
        return _failed(guard, f"raised {type(failure).__name__}", failure)
    return _failed(guard, f"took longer than {guard.timeout} seconds", TimeoutError(f"after {guard.timeout} seconds"))


def _deadline(guard: Guard) -> float:
    return float("inf") if guard.timeout is None else anyio.current_time() + guard.timeout


def _outcome(guard: Guard, value: object) -> Outcome:
    if value is None:
        return Allow()
    if isinstance(value, str):
        return Rewrite(value)
    if isinstance(value, Allow | Enforced | Deny | Rewrite):
        text = value.text if isinstance(value, Rewrite) else "" if isinstance(value, Allow) else value.message or ""
        if isinstance(text, str):
            return value
        raise WrongReturn(
            f"the guard {guard.name!r} returned {type(value).__name__} with a text of type {type(text).__name__}; "
            "give it a str"
        )
    raise WrongReturn(
        f"the guard {guard.name!r} returned a value of type {type(value).__name__}; "
        "return None, Enforced(...), Deny(...), Rewrite(...), Allow(...) or a str"
    )


def _blocked_as(guard: Guard, outcome: Outcome) -> Outcome:
    """A block as the guard's `outcome=` wants it."""
    if guard.outcome is None or not isinstance(outcome, Enforced | Deny):
        return outcome
    if guard.outcome == "rewrite":
        text = outcome.message or guard.message or CANNED
        return Rewrite(text, outcome.reason, outcome.metadata, outcome.score)
    kind = Deny if guard.outcome == "deny" else Enforced
    return kind(outcome.reason, outcome.message, outcome.metadata, outcome.score)


def _failed(guard: Guard, what: str, failure: BaseException) -> Judgement:
    return Judgement(Deny(f"the guard {what}"), failure)


async def _judge(
    step: Step, guards: Iterable[Guard], pieces: Sequence[Piece], view: Callable[[str], View]
) -> Block | None:
    """Have the guards judge the pieces, one guard after the other; the first block wins."""
    for guard in guards:
        worst: Validation | None = None
        block: Block | None = None
        for piece in pieces:
            if not piece.text:
                continue
            seen = view(piece.channel)
            judgement = await _ask(guard, piece.text, GuardContext(step, seen))
            validation = _validation(guard, seen.direction, judgement, piece.text)
            if worst is None or _severity(validation) > _severity(worst):
                worst = validation
            block = _apply(guard, judgement, validation, piece)
            if block is not None:
                break
        if worst is not None:
            await _note(step, guard, worst)
        if block is not None:
            return block
    return None


def _apply(guard: Guard, judgement: Judgement, validation: Validation, piece: Piece) -> Block | None:
    outcome = judgement.outcome
    if guard.mode == "observe" or validation.outcome == "errored":
        return None
    if isinstance(outcome, Rewrite):
        piece.text = outcome.text
    if isinstance(outcome, Enforced | Deny):
        return Block(guard, outcome, validation, judgement.failure)
    return None


_NAMES: Mapping[type[Outcome], OutcomeName] = {Allow: "allow", Rewrite: "rewrite", Enforced: "enforced", Deny: "deny"}


def _validation(guard: Guard, direction: str, judgement: Judgement, text: str) -> Validation:
    outcome = judgement.outcome
    errored = judgement.failure is not None and guard.on_failure == "allow"
    blocked = isinstance(outcome, Enforced | Deny)
    return Validation(
        guard.name,
        guard.id,
        guard.type,
        direction,
        passed=not blocked,
        outcome="errored" if errored else _NAMES[type(outcome)],
        reason="" if isinstance(outcome, Allow) else outcome.reason,
        score=outcome.score,
        metadata=outcome.metadata,
        blocked_text=text if blocked and guard.audit else None,
    )


def ledger_of(step: Step) -> Ledger:
    """What the guards found in a step, to be added to."""
    if step.ledger is None:
        step.ledger = Ledger()
    return step.ledger


async def _note(step: Step, guard: Guard, validation: Validation) -> None:
    ledger_of(step).add(guard, validation)
    if validation.outcome != "allow":
        await step.emit(GuardrailFired, validation)


def refuse(step: Step, block: Block) -> GuardrailDenied:
    """The error for a `Deny`: that text of the turn had been sent shows in its class."""
    outcome, direction = block.outcome, block.validation.direction
    sent = direction == "output" and step.edge is not None and step.edge.has_sent(step.turn)
    kind = StreamDenied if sent else GuardrailDenied
    error = kind(block.guard.name, direction, outcome.reason, outcome.metadata)
    error.validation = block.validation
    error.__cause__ = block.cause
    return error


def note_denial(step: Step, error: GuardrailDenied) -> None:
    """Note in a step that it was denied, by a guard of its own, by a layer, or in a step nested in it."""
    step.denial = error
    validation = error.validation
    if validation is None:
        validation = error.validation = Validation(
            error.guardrail, "", "layer", error.direction, False, "deny", error.reason, None, error.metadata
        )
    ledger = ledger_of(step)
    if not any(_same_denial(one, validation) for one in ledger.validations):
        ledger.add(validation.name, validation)


def _same_denial(one: Validation, other: Validation) -> bool:
    return (one.name, one.id, one.direction, one.outcome) == (other.name, other.id, other.direction, other.outcome)


# Which texts there are.


async def judge_input(step: Step, guards: StepGuards) -> Block | None:
    """Judge the user's message, part by part; what a guard rewrites takes its place."""
    message: User = step.exchange[0]  # type: ignore[assignment]  # a step begins with it
    step.judged = None
    parts: Sequence[Part] = [Text(message.content)] if isinstance(message.content, str) else message.content
    pieces = [Piece("message", part.text) if isinstance(part, Text) else part for part in parts]
    texts = [piece for piece in pieces if isinstance(piece, Piece)]

    def view(channel: str) -> View:
        return View("input", channel, message, None, step.history)

    block = await _judge(step, guards.input, texts, view)
    if block is not None:
        return block
    judged = [Text(piece.text) if isinstance(piece, Piece) else piece for piece in pieces]
    if judged != list(parts):
        content = judged[0].text if isinstance(message.content, str) and isinstance(judged[0], Text) else tuple(judged)
        step.exchange[0] = replace(message, content=content)
    step.judged = step.exchange[0].content
    return None


async def judge_reply(step: Step, guards: Sequence[Guard], reply: ChatReply) -> ChatReply | Block:
    """Judge a reply as it left the chat layers: its reasoning, its text, and the strings in its tool calls."""
    reasoning, answer = Piece("reasoning", reply.reasoning or ""), Piece("answer", reply.text)
    calls = [_Arguments(use) for use in reply.tool_calls]
    pieces = [reasoning, answer, *(piece for call in calls for piece in call.pieces)]
    block = await _judge(step, guards, pieces, _output_view(step, reply))
    if block is not None:
        return block
    changes: dict[str, Any] = {}
    if answer.text != reply.text:
        changes["text"] = answer.text
    if reasoning.text != (reply.reasoning or ""):
        changes["reasoning"] = reasoning.text or None
    uses = tuple([call.use() for call in calls])
    if uses != reply.tool_calls:
        changes["tool_calls"] = uses
    return replace(reply, **changes, validations=ledger_of(step).validations)


async def judge_answer(step: Step, guards: Sequence[Guard], text: str) -> str | Block:
    """Judge the step's answer, or one that took its place."""
    answer = Piece("answer", text)
    block = await _judge(step, guards, [answer], _output_view(step, ChatReply(text)))
    return answer.text if block is None else block


def _output_view(step: Step, reply: ChatReply) -> Callable[[str], View]:
    before = (*step.history, *step.exchange)
    message = Assistant(reply.text, reply.tool_calls, reply.reasoning, reply.finish_reason)

    def view(channel: str) -> View:
        return View("output", channel, message, reply, before)

    return view


class _Arguments:
    """The string values in a tool call's arguments: pieces of their own, and put back where they were."""

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._before: list[str] = []
        self.pieces: list[Piece] = []
        try:
            self._data = self._taken(json.loads(use.arguments))
        except (ValueError, RecursionError):  # no JSON: the text as it is
            self._data = self._taken(use.arguments)
            self._is_json = False
        else:
            self._is_json = True
        self._before = [piece.text for piece in self.pieces]

    def _taken(self, value: Any) -> Any:
        if isinstance(value, str):
            self.pieces.append(Piece("arguments", value))
            return self.pieces[-1]
        if isinstance(value, list):
            return [self._taken(item) for item in value]
        if isinstance(value, dict):
            return {name: self._taken(item) for name, item in value.items()}
        return value

    def use(self) -> ToolUse:
        """The call with what became of the pieces."""
        if self._before == [piece.text for piece in self.pieces]:
            return self._use
        data = _put_back(self._data)
        arguments = arguments_of(data) if self._is_json else str(data)
        return ToolUse(self._use.name, arguments, self._use.id)


def _put_back(value: Any) -> Any:
    if isinstance(value, Piece):
        return value.text
    if isinstance(value, list):
        return [_put_back(item) for item in value]
    if isinstance(value, dict):
        return {name: _put_back(item) for name, item in value.items()}
    return value
