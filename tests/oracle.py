"""A reference interpreter: what a scenario must come to, said plainly, by code that knows nothing of streams.

A scenario is data: what the model says, and what each layer and hook does. `expect` walks through it in the order of
the contract; `test_oracle.py` builds the same scenario for the library and compares.

Of append-only streams it knows one thing: which text was out by the time that something else happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# What a layer may do. Those from "upper" on only touch the deltas of a stream, so they change nothing here.
OPS = ("pass", "keep", "rewrite", "append", "empty", "short", "fresh", "retry", "fail", "fail_late", "swallow",
       "twice_first", "twice_last", "twice_keep")  # fmt: skip
SEND_OPS = ("upper", "hold", "drop", "noise")
MARK = "@"  # after an op: its layer is marked @observes
BREACHES = ("rewrite", "append", "empty", "short", "fresh", "twice_first")  # what a marked layer may not do


class Boom(Exception):
    """Raised by a layer, a hook or the model."""


class Breach(Boom):
    """A layer marked @observes gave an answer of its own."""


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
    hooks: dict[str, str]  # hook -> "rewrite", "empty", "fail", or marked: "keep@"
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


def holds(op: str) -> bool:
    """Whether a layer holds text back in an append-only stream."""
    return not op.endswith(MARK) or op.startswith("twice")


class Oracle:
    """Interprets one scenario."""

    def __init__(self, scenario: Scenario, append_only: bool = False) -> None:
        self.scenario = scenario
        self.append_only = append_only
        self.out: dict[int, tuple[str, str]] = {}  # what an append-only stream has sent: text and reasoning by turn
        self.requests = 0
        self.recorded: list[tuple[str, str]] = []  # the step as far as its tools ran
        self.taken = 0
        self.turn = 0

    def expect(self) -> tuple[str, list[tuple[str, str]]] | type[Exception]:
        """The text and messages of the result, or the kind of error."""

        try:
            said = self.through("run", self.step, self.changed, self.fresh)
        except (Boom, Limit) as error:
            return type(error)
        messages = self.whole(said.messages or [])
        return messages[-1][1] if self.out and messages[-1][0] == "assistant" else said.text, messages

    def through(
        self,
        scope: str,
        inner: Callable[[], Said],
        change: Callable[[Said, str], Said],
        fresh: Callable[[str], Said],
        depth: int = 0,
    ) -> Said:
        """One call through the layers of a scope, the first outermost."""
        ops: list[str] = getattr(self.scenario, scope)[depth:]
        if not ops:
            return inner()
        op = ops[0].removesuffix(MARK)
        marked = ops[0].endswith(MARK)

        def go() -> Said:
            return self.through(scope, inner, change, fresh, depth + 1)

        if op == "short" and not marked:
            return fresh("short")
        if op == "short":
            raise Breach
        if op == "fail":
            raise Boom
        if op in {"retry", "swallow"}:
            try:
                return go()
            except (Boom, Limit):
                if op == "swallow" and marked:
                    raise Breach from None
                if op == "retry" and self.is_out(scope):
                    raise
                return go() if op == "retry" else fresh("swallowed")
        first = go()
        if op == "fail_late":
            raise Boom
        if op.startswith("twice"):
            last = go()
            if op == "twice_first" and marked:
                raise Breach
            return first if op == "twice_first" else last
        if marked and op in BREACHES:
            raise Breach
        if op == "fresh":
            return fresh("fresh")
        return change(
            first, {"rewrite": f"<{first.text}>", "append": first.text + "!", "empty": ""}.get(op, first.text)
        )

    # What an append-only stream has sent.

    def is_out(self, scope: str) -> bool:
        """Whether something went out that a further attempt in that scope would have to take back."""
        return self.turn in self.out if scope == "chat" else bool(self.out) and scope != "tool"

    def held(self, moment: str, tools: bool = False) -> bool:
        """Whether text is held: as the model speaks, when a reply is there, when hooks or layers have answered."""
        layers, hooks = self.scenario, self.scenario.hooks
        inward = ("step", "answer", "reply", "model")
        reached = inward.index(moment)
        holding = list(layers.run)
        holding += layers.agent if reached > 0 else []
        holding += [hooks.get("after_run", MARK)] if reached > 1 else []
        holding += [hooks.get("after_response", MARK)] if reached > 1 and not tools else []
        holding += layers.chat if reached > 2 else []
        return not self.append_only or any(map(holds, holding))

    def release(self, said: Said, moment: str) -> Said:
        """All of a step's text goes out, if nothing further out holds it."""
        if not self.held(moment):
            said.messages = self.whole(said.messages or [])
            said.text = said.messages[-1][1] if said.messages[-1][0] == "assistant" else said.text
            turn = 0
            for role, text in said.messages:
                turn += role == "assistant"
                if role == "assistant" and text:
                    self.out[turn] = (text, "")
        return said

    def send(self, text: str, reasoning: str) -> None:
        if text or reasoning:
            self.out[self.turn] = (text, reasoning)

    def speak(self, reply: Reply) -> None:
        """What goes out while the model speaks: all but what the layers hold or drop."""
        pieces = [piece for piece in reply.pieces if piece]
        for op in self.scenario.chat:
            if op == "hold" + MARK:
                pieces = pieces[:-2]
            elif op == "drop" + MARK:
                pieces = []
        if not self.held("model"):
            self.send("".join(pieces), reply.reasoning)

    def whole(self, messages: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """The messages with what was sent before them in their turn."""
        turn = 0
        said = []
        for role, text in messages:
            turn += role == "assistant"
            sent = self.out.get(turn, ("", ""))[0] if role == "assistant" else ""
            said.append((role, text if text.startswith(sent) else "\n\n".join(filter(None, (sent, text)))))
        return said

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
            return self.release(self.through("agent", self.attempt, self.changed, self.fresh), "step")
        except (Boom, Limit):
            hook = self.scenario.hooks.get("on_error")
            if hook is None:
                raise
            if hook == "fail":
                raise Boom from None
            return self.release(self.fresh("" if hook == "empty" else "degraded"), "step")

    def attempt(self) -> Said:
        self.turn = 0
        self.recorded = [("user", "hi")]
        said = self.take_turns()
        text = self.hook("after_run", said.text)
        return self.release(self.changed(said, text) if text != said.text else said, "answer")

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
            self.turn += 1
            reply = self.through("chat", self.model, self.reworded, Said)
            if not self.held("reply", tools=bool(reply.tools)):
                self.send(reply.text, reply.reasoning)
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
        self.speak(reply)
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
            said = self.through("tool", lambda: run(kind), lambda said, text: Said(text), Said)
            return Said(self.hook("after_tool", said.text))

        try:
            results = [("tool", one(kind).text) for kind in reply.tools]
        except Boom:
            if ran:
                self.recorded += [("assistant", reply.text), *(("tool", "?") for _ in reply.tools)]
            raise
        self.recorded += [("assistant", reply.text), *results]
