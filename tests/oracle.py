"""A reference interpreter: what a scenario must come to, said plainly, by code that knows nothing of streams.

A scenario is data: what the model says, and what each layer and hook does. `expect` walks through it in the order of
the contract; `test_oracle.py` builds the same scenario for the library and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# What a layer may do. Those from "upper" on only touch the deltas of a stream, so they change nothing here.
OPS = ("pass", "keep", "rewrite", "append", "empty", "short", "fresh", "retry", "fail", "fail_late", "swallow",
       "twice_first", "twice_last", "twice_keep")  # fmt: skip
SEND_OPS = ("upper", "hold", "drop", "noise")


class Boom(Exception):
    """Raised by a layer, a hook or the model."""


class Limit(Exception):
    """A step may take no further turn."""


@dataclass
class Reply:
    pieces: list[str]
    reasoning: str = ""
    tools: list[str] = field(default_factory=list)  # one call each: "ok", "error", "fatal"
    fails: bool = False


@dataclass
class Scenario:
    replies: list[Reply]
    run: list[str]
    agent: list[str]
    chat: list[str]
    tool: list[str]
    hooks: dict[str, str]  # hook -> "rewrite", "empty", "fail"
    turns: int = 3
    stops: bool = False


@dataclass
class Said:
    """An answer on its way out, and (for a step) the messages behind it as (role, text)."""

    text: str
    tools: list[str] = field(default_factory=list)
    reasoning: str = ""
    messages: list[tuple[str, str]] | None = None
    cut: bool = False  # whether the messages end in tool results, since a limit stopped the step there


def through(
    ops: list[str], inner: Callable[[], Said], change: Callable[[Said, str], Said], fresh: Callable[[str], Said]
) -> Said:
    """One call through the layers, the first outermost."""
    if not ops:
        return inner()
    op, rest = ops[0], ops[1:]

    def go() -> Said:
        return through(rest, inner, change, fresh)

    if op == "short":
        return fresh("short")
    if op == "fail":
        raise Boom
    if op in {"retry", "swallow"}:
        try:
            return go()
        except (Boom, Limit):
            return go() if op == "retry" else fresh("swallowed")
    first = go()
    if op == "fail_late":
        raise Boom
    if op == "fresh":
        return fresh("fresh")
    if op.startswith("twice"):
        last = go()
        return first if op == "twice_first" else last
    return change(first, {"rewrite": f"<{first.text}>", "append": first.text + "!", "empty": ""}.get(op, first.text))


class Oracle:
    """Interprets one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.requests = 0
        self.recorded: list[tuple[str, str]] = []  # the step as far as its tools ran
        self.taken = 0

    def expect(self) -> tuple[str, list[tuple[str, str]]] | type[Exception]:
        """The text and messages of the result, or the kind of error."""

        def change(said: Said, text: str) -> Said:
            return self.changed(said, text)

        try:
            said = through(self.scenario.run, self.step, change, self.fresh)
        except (Boom, Limit) as error:
            return type(error)
        return said.text, said.messages or []

    def fresh(self, text: str) -> Said:
        return Said(text, messages=[*(self.recorded or [("user", "hi")]), ("assistant", text)])

    def changed(self, said: Said, text: str) -> Said:
        messages = list(said.messages or [])
        places = [place for place, (role, _) in enumerate(messages) if role == "assistant"]
        if places:
            messages[places[-1]] = ("assistant", text)
        elif text:
            messages.append(("assistant", text))
        return Said(text, messages=messages)

    def step(self) -> Said:
        self.taken = 0
        self.recorded = [("user", "hi")]
        try:
            return through(self.scenario.agent, self.attempt, self.changed, self.fresh)
        except (Boom, Limit):
            hook = self.scenario.hooks.get("on_error")
            if hook is None:
                raise
            if hook == "fail":
                raise Boom from None
            return self.fresh("" if hook == "empty" else "degraded")

    def attempt(self) -> Said:
        self.recorded = [("user", "hi")]
        said = self.take_turns()
        text = self.hook("after_run", said.text)
        return self.changed(said, text) if text != said.text else said

    def hook(self, name: str, text: str) -> str:
        what = self.scenario.hooks.get(name)
        if what == "fail":
            raise Boom
        return {"rewrite": f"[{text}]", "empty": ""}.get(what or "", text)

    def take_turns(self) -> Said:
        while True:
            if self.taken >= self.scenario.turns:
                return self.limit(None)
            self.taken += 1
            reply = through(self.scenario.chat, self.model, self.reworded, Said)
            if not reply.tools:
                text = self.hook("after_response", reply.text)
                return Said(text, messages=[*self.recorded, ("assistant", text)])
            if self.taken >= self.scenario.turns:
                return self.limit(reply)
            self.tools(reply)

    def limit(self, reply: Said | None) -> Said:
        if not self.scenario.stops:
            raise Limit
        messages = [*self.recorded, *([("assistant", reply.text)] if reply and (reply.text or reply.reasoning) else [])]
        texts = [text for role, text in messages if role == "assistant"]
        return Said(texts[-1] if texts else "", messages=messages)

    def reworded(self, said: Said, text: str) -> Said:
        return Said(text, said.tools, said.reasoning)

    def model(self) -> Said:
        replies = self.scenario.replies
        reply = replies[self.requests] if self.requests < len(replies) else Reply(["done"])
        self.requests += 1
        if reply.fails:
            raise Boom
        return Said("".join(reply.pieces), reply.tools, reply.reasoning)

    def tools(self, reply: Said) -> None:
        ran = False
        results = []

        def run(kind: str) -> Said:
            nonlocal ran
            ran = True
            if kind == "fatal":
                raise Boom
            return Said(kind)

        def one(kind: str) -> Said:
            said = through(self.scenario.tool, lambda: run(kind), lambda said, text: Said(text), Said)
            return Said(self.hook("after_tool", said.text))

        try:
            results = [("tool", one(kind).text) for kind in reply.tools]
        except Boom:
            if ran:
                self.recorded += [("assistant", reply.text), *(("tool", "?") for _ in reply.tools)]
            raise
        self.recorded += [("assistant", reply.text), *results]
