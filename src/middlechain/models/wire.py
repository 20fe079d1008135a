"""Reading OpenAI's chat-completions protocol, as OpenAI and many others speak it: pure code without I/O.

    read_reply(data)     a whole completion
    Events               the bytes of a stream -> its chunks
    Assembler            the chunks of a stream -> deltas, and the reply at the end

Servers differ, so what has the wrong type here is read as if it were not there; only what would pass half a reply off
as a whole one is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from middlechain.chat import ChatReply
from middlechain.errors import IncompleteReply
from middlechain.events import Delta, ReasoningDelta, TextDelta
from middlechain.limits import NO_USAGE, Usage
from middlechain.messages import ToolUse
from middlechain.models.failure import check_body
from middlechain.models.loose import integer, is_object, json_of, mapping, mappings, number, parse, text_of

__all__ = ["Assembler", "Events", "read_reply"]


def read_reply(data: object, *, who: str = "") -> ChatReply:
    """The reply that a whole completion holds.

    Args:
        data: the completion as it came, parsed.
        who: the model's name, for messages.

    Raises:
        ModelError: of the kind `error_for` says, when it is an error in spite of its status 200.
        IncompleteReply: when it holds no choice.
    """
    completion = mapping(data)
    check_body(completion, who)
    choice = next(iter(mappings(completion.get("choices"))), None)
    if choice is None:
        raise IncompleteReply(f"the model {who!r} sent a completion without a choice; ask again")
    check_body(choice, who)
    message = mapping(choice.get("message"))
    content, refusal = text_of(message.get("content")), text_of(message.get("refusal"))
    return ChatReply(
        content or refusal,
        tuple(_Call.read(call).use() for call in mappings(message.get("tool_calls"))),
        _reasoning(message) or None,
        _usage(completion.get("usage")),
        "refusal" if refusal else _finish_reason(choice),
        text_of(completion.get("model")) or None,
    )


def _reasoning(message: Mapping[str, object]) -> str:
    return text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))


def _finish_reason(choice: Mapping[str, object]) -> str | None:
    reason = text_of(choice.get("finish_reason"))
    return {"content_filter": "safety", "function_call": "tool_calls"}.get(reason, reason) or None


def _usage(value: object) -> Usage:
    data = mapping(value)
    if not data:
        return NO_USAGE
    sent, received = mapping(data.get("prompt_tokens_details")), mapping(data.get("completion_tokens_details"))
    cached = integer(sent.get("cached_tokens"))
    return Usage(
        input_tokens=integer(data.get("prompt_tokens")),
        output_tokens=integer(data.get("completion_tokens")),
        cached_tokens=integer(data.get("prompt_cache_hit_tokens")) if cached is None else cached,
        reasoning_tokens=integer(received.get("reasoning_tokens")),
        total_tokens=integer(data.get("total_tokens")),
        cost=number(data.get("cost")),
    )


def _larger(one: Usage, other: Usage) -> Usage:
    """What two reports on the same reply say: servers repeat them, raise them, and send empty ones in between."""
    pairs = {field.name: (getattr(one, field.name), getattr(other, field.name)) for field in fields(Usage)}
    return Usage(**{name: max((n for n in pair if n is not None), default=None) for name, pair in pairs.items()})


class Events:
    """Turns the bytes of an event stream into its chunks, however they are cut."""

    def __init__(self) -> None:
        self.done = False  # whether [DONE] was seen
        self._rest = b""
        self._after_cr = False
        self._event = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[object]:
        """The chunks that are complete now, parsed; read it to its end before the next call. Nothing follows [DONE].

        Raises:
            IncompleteReply: when a chunk is not JSON; the chunks before it came out first.
        """
        if not data:
            return
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        lines = (self._rest + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self.done:
                return
            if not line:
                yield from self._dispatch()
            else:
                self._take(line)

    def close(self) -> Iterator[object]:
        """What is left when the bytes end. Half a chunk is no error here: that no more came is for others to judge."""
        if self.done:
            return
        self._take(self._rest)
        try:
            yield from self._dispatch()
        except IncompleteReply:
            return

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.strip()

    def _dispatch(self) -> Iterator[object]:
        data, event = b"\n".join(self._data), self._event
        self._data, self._event = [], b""
        if data.strip() == b"[DONE]":
            self.done = True
        elif data:
            chunk = parse(data, "a chunk of the stream")
            yield chunk if event != b"error" or mapping(chunk).get("error") else {"error": chunk}


@dataclass(slots=True)
class _Call:
    """A tool call, or a piece of one."""

    index: int | None
    id: str
    name: str
    pieces: list[str]

    @classmethod
    def read(cls, data: Mapping[str, object]) -> _Call:
        function = mapping(data.get("function"))
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = json_of(arguments)
        number = integer(data.get("id"))
        identity = text_of(data.get("id")) if number is None else str(number)
        return cls(
            integer(data.get("index")), identity, text_of(function.get("name")), [arguments] if arguments else []
        )

    def use(self) -> ToolUse:
        arguments = "".join(self.pieces)
        return ToolUse(self.name, arguments if arguments.strip() else "{}", self.id)

    def is_whole(self) -> bool:
        return is_object("".join(self.pieces))

    def goes_on_with(self, piece: _Call) -> bool:
        """Whether the piece can be more of this call: no other id, and no name after arguments that are whole."""
        if piece.id and self.id and piece.id != self.id:
            return False
        begins = piece.name and (piece.pieces or piece.name != self.name)
        return not (begins and self.is_whole())

    def add(self, piece: _Call) -> None:
        if not (piece.name and self.is_whole()):  # else the server repeats the whole call
            self.pieces += piece.pieces
        self.id = self.id or piece.id
        # A name is repeated, sent as far as it is known, or sent in pieces
        self.name = piece.name if piece.name.startswith(self.name) else self.name + piece.name


class Assembler:
    """Puts a reply together from the chunks of its stream.

    Args:
        lenient: whether a stream may end without a finish reason; default False.
        who: the model's name, for messages.
    """

    def __init__(self, *, lenient: bool = False, who: str = "") -> None:
        self._lenient = lenient
        self._who = who
        self._begun = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._usage = NO_USAGE
        self._refused = False
        self._finish_reason: str | None = None
        self._model = ""

    def feed(self, chunk: object) -> list[Delta]:
        """Take the next chunk, parsed; returns what it adds to the reasoning and the text.

        Raises:
            ModelError: of the kind `error_for` says, when the chunk reports an error.
        """
        data = mapping(chunk)
        check_body(data, self._who)
        self._model = self._model or text_of(data.get("model"))
        if data.get("usage"):
            self._usage = _larger(self._usage, _usage(data["usage"]))
        for choice in mappings(data.get("choices")):
            if not choice.get("index"):  # of several choices the first is the reply
                return self._take(choice)
        return []

    def _take(self, choice: Mapping[str, object]) -> list[Delta]:
        check_body(choice, self._who)
        self._finish_reason = _finish_reason(choice) or self._finish_reason
        delta = mapping(choice.get("delta"))
        for place, data in enumerate(mappings(delta.get("tool_calls"))):
            self._add(_Call.read(data), first=place == 0)
        reasoning, text = _reasoning(delta), self._answer(delta)
        self._begun = self._begun or bool(text or self._calls)
        deltas: list[Delta] = []
        if reasoning:
            self._reasoning.append(reasoning)
            deltas.append(ReasoningDelta(reasoning))
        if text:
            self._text.append(text)
            deltas.append(TextDelta(text))
        return deltas

    def _answer(self, delta: Mapping[str, object]) -> str:
        content, refusal = text_of(delta.get("content")), text_of(delta.get("refusal"))
        # A refusal is the answer where there is no other; once begun, its pieces go on being it
        stands_alone = self._refused or not self._text
        self._refused = self._refused or bool(refusal)
        return content or (refusal if stands_alone else "")

    def _add(self, piece: _Call, *, first: bool) -> None:
        call = self._call_of(piece, first)
        if call is None:
            self._calls.append(piece)
        else:
            call.add(piece)

    def _call_of(self, piece: _Call, first: bool) -> _Call | None:
        """The call that a piece belongs to, or None if it begins one. `first`: of the calls in its chunk."""
        mine = [call for call in self._calls if piece.index is None or call.index == piece.index]
        if not piece.id and not piece.name:
            return next(reversed(mine or self._calls), None)
        same = [call for call in mine if piece.id and call.id == piece.id]
        call = next(reversed(same or mine), None)
        if call is None or (same and piece.index is not None):
            return call
        if piece.index is None and not first and not same:
            return None
        return call if call.goes_on_with(piece) else None

    def finish(self) -> ChatReply:
        """The reply, when no more chunks come.

        Raises:
            IncompleteReply: when there was no finish reason; a lenient one raises only when nothing came at all.
        """
        if self._finish_reason is None and not (self._lenient and self._begun):
            raise IncompleteReply(
                f"the stream of the model {self._who!r} ended without a finish reason; ask again, or give "
                "OpenAIModel(..., lenient_finish=True) if its server never sends one"
            )
        return ChatReply(
            "".join(self._text),
            tuple(call.use() for call in self._calls if call.id or call.name or call.pieces),
            "".join(self._reasoning) or None,
            self._usage,
            "refusal" if self._refused else self._finish_reason or "stop",
            self._model or None,
        )
