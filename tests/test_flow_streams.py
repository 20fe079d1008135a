"""What flows stream: each step says what its result says, and the text of the answer is the result's (S1, S6, S7).

And a law: for random trees of flows, `run`, `stream` and `text()` come to what a tiny interpreter says (A1-A4, S11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from middlechain import (
    Agent,
    AgentFinished,
    App,
    Assistant,
    ChatCall,
    Context,
    Enforced,
    Event,
    Flow,
    Layers,
    LimitExceeded,
    Limits,
    NextCalledAgain,
    Result,
    TextDelta,
    TextReset,
    ToolMessage,
    ToolUse,
    User,
    guardrail,
    loop,
    observes,
    parallel,
    sequence,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go
from .scenes import RESET, Boom, deltas, fold
from .test_deadlines import in_fast_time

Said = tuple[str, str | None, str]  # role, name, text
BREAK = "\n\n"


@tool
async def ping() -> str:
    return "pong"


def says(name: str, *replies: Any, **options: Any) -> Agent:
    return Agent(name=name, model=ScriptedModel(replies), **options)


def two_each() -> list[Agent]:
    return [says("a", "one", "three"), says("b", "two", "four")]


def shout(input: str, ctx: Context) -> str:
    return input.upper()


async def text_of(app: App, target: Any, input: Any = "q", **options: Any) -> tuple[str, Result]:
    """What `stream.text()` gives, joined, and the result."""
    pieces: list[str] = []
    async with app.stream(target, input, **options) as stream:
        async for piece in stream.text():
            assert piece
            pieces.append(piece)
    return "".join(pieces), stream.result


async def told_of(app: App, target: Any, input: Any = "q", **options: Any) -> tuple[str, Result]:
    """What `on_text=` gets, joined, and the result."""
    pieces: list[str] = []
    result = await app.run(target, input, on_text=pieces.append, **options)
    return "".join(pieces), result


both_texts = pytest.mark.parametrize("read", [text_of, told_of], ids=["text()", "on_text"])


def answers_of(result: Result) -> list[str]:
    return [message.text for message in result.messages if isinstance(message, Assistant)]


def check_s1(events: Sequence[Event], flow: Flow, result: Result) -> None:
    """Every step says what its result says, and whoever answers says what the flow's does."""
    shown = fold(events)
    for event in events:
        if isinstance(event, AgentFinished) and event.result is not None:
            said = [shown.get((event.step, turn), "") for turn in range(1, len(answers_of(event.result)) + 1)]
            assert said == answers_of(event.result)
    own = [event.step for event in events if isinstance(event, TextDelta) and event.agent == flow.name]
    own += [event.step for event in events if isinstance(event, AgentFinished)]
    last = {step: text for (step, _), text in sorted(shown.items(), key=lambda item: item[0][1]) if text}
    assert result.text in ["", *last.values()], (result.text, last)


# S1


KINDS: dict[str, Callable[[], Flow]] = {
    "a sequence": lambda: sequence(says("a", "one"), says("b", "two")),
    "a sequence with a function last": lambda: sequence(says("a", "one"), shout),
    "a sequence with a function first": lambda: sequence(shout, says("a", "one")),
    "only a function": lambda: sequence(shout),
    "a sequence that ended early": lambda: sequence(
        says("a", "one", guardrails={"output": [guardrail("no")(lambda text, ctx: Enforced("no"))]}), says("b", "two")
    ),
    "a sequence in one": lambda: sequence(says("a", "one"), sequence(says("b", "two"), says("c", "three"), name="in")),
    "a sequence in one, first": lambda: sequence(sequence(says("b", "two"), shout, name="in"), says("c", "three")),
    "a sequence in one, with a function last": lambda: sequence(
        says("a", "one"), sequence(says("b", "two"), shout, name="in")
    ),
    "a loop": lambda: loop(says("a", "one", "two", "three"), max_iterations=3),
    "a loop of one pass": lambda: loop(says("a", "one"), max_iterations=1),
    "a loop of two": lambda: loop(*two_each(), max_iterations=2),
    "a loop with a function last": lambda: loop(says("a", "one", "two", "three"), shout, max_iterations=3),
    "a loop of a function": lambda: loop(shout, max_iterations=2),
    "a loop of a sequence": lambda: loop(
        sequence(says("a", "one", "three"), says("b", "two", "four")), max_iterations=2
    ),
    "a loop of a parallel": lambda: loop(
        parallel(says("a", "one", "three"), says("b", "two", "four")), max_iterations=2
    ),
    "a loop of a loop": lambda: loop(
        loop(says("a", "one", "two", "three", "four"), name="in", max_iterations=2), max_iterations=2
    ),
    "a loop of a loop of a function": lambda: loop(loop(shout, name="in", max_iterations=2), max_iterations=2),
    "a loop in a sequence": lambda: sequence(says("a", "one"), loop(says("b", "two", "three"), max_iterations=2)),
    "a loop in a sequence, first": lambda: sequence(
        loop(says("b", "two", "three"), max_iterations=2), says("a", "one")
    ),
    "a parallel": lambda: parallel(says("a", "one"), says("b", "two")),
    "a parallel of one": lambda: parallel(says("a", "one")),
    "a parallel with a merge": lambda: parallel(says("a", "one"), shout, merge=lambda results, ctx: "both"),
    "a parallel, then one": lambda: sequence(parallel(says("a", "one"), says("b", "two")), says("c", "three")),
    "one, then a parallel": lambda: sequence(says("c", "three"), parallel(says("a", "one"), says("b", "two"))),
    "nothing": lambda: sequence(says("a", "")),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.anyio
async def test_s1_each_step_of_a_flow_streams_what_its_result_says(kind: str) -> None:
    flow = KINDS[kind]()
    events, result = await collect(App().stream(flow, "q"))
    plain = await App().run(KINDS[kind](), "q")
    assert (result.text, result.messages, result.agent) == (plain.text, plain.messages, plain.agent)
    assert not any(isinstance(event, TextReset) for event in events)
    check_s1(events, flow, result)


@every_kind
@both_texts
@pytest.mark.anyio
async def test_s6_the_text_of_a_flow_is_that_of_its_result_and_nothing_of_other_members(kind: str, read: Any) -> None:
    plain = await App().run(KINDS[kind](), "q")
    text, result = await read(App(), KINDS[kind]())
    assert text == result.text == plain.text
    assert result.messages == plain.messages


@every_kind
@pytest.mark.anyio
async def test_s6_an_append_only_stream_of_a_flow_has_the_same_result_and_takes_nothing_back(kind: str) -> None:
    flow = KINDS[kind]()
    events, result = await collect(App().stream(flow, "q", resets=False))
    plain = await App().run(KINDS[kind](), "q")
    assert (result.text, result.messages) == (plain.text, plain.messages)
    assert not any(isinstance(event, TextReset) for event in events)
    answering = [event for event in events if isinstance(event, TextDelta) and event.answering]
    assert "".join(event.text for event in answering) == result.text
    assert len({event.step for event in answering}) <= 1


@both_texts
@pytest.mark.anyio
async def test_s6_the_texts_of_several_turns_of_the_last_member_have_a_blank_line_between(read: Any) -> None:
    def flow() -> Flow:
        return sequence(
            says("a", ["looks", ToolUse("ping")], "one", tools=[ping]),
            says("b", ["checks", ToolUse("ping")], "two", tools=[ping]),
        )

    text, result = await read(App(), flow())
    assert text == "checks\n\ntwo"
    assert result.text == "two"
    assert result.messages == (await App().run(flow(), "q")).messages


@both_texts
@pytest.mark.anyio
async def test_s6_turns_of_a_member_before_a_function_are_no_text_of_the_flow(read: Any) -> None:
    def flow(last: Callable[[Agent], Flow]) -> Flow:
        agent = says("a", ["looks", ToolUse("ping")], "one", ["looks again", ToolUse("ping")], "two", tools=[ping])
        return last(agent)

    for text, result in (
        await read(App(), flow(lambda agent: sequence(agent, shout))),
        await read(App(), flow(lambda agent: parallel(agent, merge=lambda results, ctx: "ONE"))),
    ):
        assert text == result.text == "ONE"
        assert [message.text for message in result.messages] == ["q", "looks", "pong", "one", "ONE"]
    text, result = await read(App(), flow(lambda agent: loop(agent, shout, max_iterations=2)))
    assert text == result.text == "TWO"
    assert [message.text for message in result.messages] == [
        "q", "looks", "pong", "one", "ONE", "looks again", "pong", "two", "TWO"
    ]  # fmt: skip


def without_more_calls() -> Flow:
    """A flow whose second member may not call its model any more, with `Limits(chat_calls=1)`."""
    return sequence(says("a", "one"), says("b", "two"))


@pytest.mark.parametrize(
    "flow",
    [
        without_more_calls,
        lambda: loop(says("a", "one", "two")),
        lambda: loop(without_more_calls()),
        lambda: sequence(says("a", "one"), parallel(says("b", "two"), says("c", "three"))),
        lambda: sequence(says("a", "one"), sequence(says("b", "two"), name="in")),
        lambda: sequence(says("a", "one"), shout, says("b", "two")),
    ],
    ids=["sequence", "loop", "loop of a sequence", "parallel", "sequence in one", "after a function"],
)
@both_texts
@pytest.mark.anyio
async def test_s6_l2_where_a_limit_stops_a_flow_the_answer_before_is_its_text(flow: Any, read: Any) -> None:
    app = App(limits=Limits(chat_calls=1, on_exceed="stop"))
    plain = await app.run(flow(), "q")
    text, result = await read(app, flow())
    assert text == result.text == plain.text
    assert text.lower() == "one"
    assert result.stopped_by == "limit"
    assert (await collect(app.stream(flow(), "q"))).result.messages == result.messages == plain.messages


@pytest.mark.anyio
async def test_s6_events_of_members_before_the_last_are_not_of_the_step_that_answers() -> None:
    events, _ = await collect(App().stream(sequence(says("a", "one"), says("b", "two")), "q"))
    shown = [(event.agent, event.answering) for event in events if isinstance(event, TextDelta)]
    assert shown == [("a", False), ("b", True)]
    events, _ = await collect(App().stream(parallel(says("a", "one"), says("b", "two")), "q"))
    flags = {(event.agent, event.answering) for event in events if isinstance(event, TextDelta)}
    assert flags == {("a", False), ("b", False), ("parallel", True)}


@pytest.mark.anyio
async def test_s6_the_steps_of_a_flow_that_is_a_tool_are_no_text_of_the_agent_that_asks_it() -> None:
    inner = sequence(says("a", "one"), says("b", "two"), name="team")
    agent = says("outer", ["asks", ToolUse("team", {"input": "x"})], "done", tools=[inner.as_tool()])
    text, result = await text_of(App(), agent)
    assert (text, result.text) == ("asks\n\ndone", "done")


# S3


class Gate:
    """An item of a scripted reply that says that the model has come there, and waits to be opened."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.opened = anyio.Event()

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> None:
        self.reached.set()
        await self.opened.wait()


@pytest.mark.anyio
async def test_s3_the_last_member_of_a_sequence_streams_live() -> None:
    gate, pieces = Gate(), list[str]()
    flow = sequence(says("a", "one"), sequence(says("b", ["first, ", gate, "second"]), name="in"))
    async with App().stream(flow, "q") as stream:
        async for piece in stream.text():
            pieces.append(piece)
            if pieces == ["first, "]:
                assert not gate.opened.is_set()
                gate.opened.set()
    assert pieces == ["first, ", "second"]


@pytest.mark.anyio
async def test_s3_members_before_the_last_stream_live_as_events() -> None:
    gate, seen = Gate(), list[str]()
    async with App().stream(sequence(says("a", ["first, ", gate, "second"]), says("b", "two")), "q") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                seen.append(event.text)
                gate.opened.set()
    assert seen == ["first, ", "second", "two"]


async def before_the_gate(flow: Flow, gate: Gate, use: Sequence[object] = ()) -> tuple[list[str], str]:
    """What has been read of the text when all wait at the gate, and the whole."""
    pieces: list[str] = []
    early: list[str] = []

    async def read() -> None:
        async with App().stream(flow, "q", use=use) as stream:
            async for piece in stream.text():
                pieces.append(piece)  # noqa: PERF401 - as a reader would

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await gate.reached.wait()
        await anyio.wait_all_tasks_blocked()
        early = list(pieces)
        gate.opened.set()
    return early, "".join(pieces)


async def passes_on(call: Any, next: Any) -> Any:
    return await next()


@pytest.mark.anyio
async def test_s6_text_of_a_loop_is_held_until_it_is_known_which_pass_is_the_last() -> None:
    gate = Gate()

    async def until(ctx: Context) -> bool:
        await gate
        return True

    early, text = await before_the_gate(loop(says("a", "one"), until=until), gate)
    assert (early, text) == ([], "one")
    gate = Gate()
    early, text = await before_the_gate(sequence(says("a", ["one", gate, "!"])), gate)
    assert (early, text) == (["one"], "one!")


@pytest.mark.parametrize(
    ("layer", "held"),
    [(passes_on, True), (observes(lambda call, next: next()), False)],
    ids=["unmarked", "observes"],
)
@pytest.mark.parametrize("scope", ["run", "agent", "chat"])
@pytest.mark.anyio
async def test_s6_layers_hold_the_text_of_the_last_member_unless_they_are_marked(
    layer: Any, held: bool, scope: str
) -> None:
    gate = Gate()
    flow = sequence(says("a", "one"), says("b", ["two", gate, "!"]))
    early, text = await before_the_gate(flow, gate, [Layers(**{scope: layer})])
    assert (early, text) == ([] if held else ["two"], "two!")


@pytest.mark.anyio
async def test_s6_an_unmarked_run_layer_holds_what_the_flow_itself_says() -> None:
    for marked in False, True:
        gate = Gate()

        async def late(call: Any, next: Any, gate: Gate = gate) -> None:
            await next()
            await gate

        layer = Layers(run=observes(late) if marked else late)
        early, text = await before_the_gate(sequence(says("a", "one"), shout), gate, [layer])
        assert (early, text) == (["ONE"] if marked else [], "ONE")


# S7, and run layers


async def again(call: Any, next: Any) -> Any:
    """A run layer that tries once more."""
    try:
        return await next()
    except Boom:
        return await next()


FAILING: dict[str, Callable[[], Flow]] = {
    "sequence": lambda: sequence(says("a", "one", "three"), says("b", ["two", Boom()], "four")),
    "loop": lambda: loop(says("a", "one", ["two", Boom()], "three", "four"), max_iterations=2),
    "parallel": lambda: parallel(says("a", "one", "three"), sequence(says("b", ["two", Boom()], "four"))),
    "a sequence in a loop": lambda: loop(
        sequence(says("a", "one", "three"), says("b", ["two", Boom()], "four")), max_iterations=1
    ),
}


@pytest.mark.parametrize("kind", FAILING)
@pytest.mark.anyio
async def test_s7_what_members_said_is_taken_back_before_a_flow_begins_again(kind: str) -> None:
    events, result = await collect(App().use(run=again).stream(FAILING[kind](), "q"))
    shown = fold(events)
    assert sorted(text for text in shown.values() if text in {"one", "two"}) == []
    assert {"three", "four"} <= set(shown.values())
    taken_back = [event.agent for event in events if isinstance(event, TextReset)]
    assert len(taken_back) == 2
    assert result.text.endswith("four")
    assert result.messages[-1].text == result.text
    assert not any(message.text in {"one", "two"} for message in result.messages)
    assert result.usage.requests == 4  # the attempt that failed counts (L4)


@pytest.mark.parametrize("kind", FAILING)
@pytest.mark.anyio
async def test_s7_in_an_append_only_stream_the_failure_of_the_first_attempt_is_raised_again(kind: str) -> None:
    with pytest.raises(Boom):
        await text_of(App().use(run=observes(again)), FAILING[kind]())


@pytest.mark.anyio
async def test_s7_an_append_only_flow_that_has_sent_nothing_may_begin_again() -> None:
    flow = sequence(says("a", Boom(), ""), says("b", "two"))
    text, result = await text_of(App().use(run=observes(again)), flow)
    assert (text, result.text) == ("two", "two")


@pytest.mark.anyio
async def test_s7_what_a_function_said_is_taken_back_too() -> None:
    async def twice(call: Any, next: Any) -> Any:
        with pytest.raises(Boom):
            await next()
        return await next()

    async def fails_once(call: Any, next: Any) -> Any:
        result = await next()
        if not call.ctx.get("failed"):
            call.ctx.failed = True
            raise Boom
        return result

    events, result = await collect(App().use(run=[twice, fails_once]).stream(sequence(shout), "q"))
    assert deltas(events) == ["Q", RESET, "Q"]
    assert result.text == "Q"


@pytest.mark.parametrize(
    "flow",
    [
        lambda: sequence(says("a", "one"), says("b", "two")),
        lambda: sequence(says("a", "one"), shout),
        lambda: loop(says("a", "one", "two"), max_iterations=2),
        lambda: parallel(says("a", "one"), says("b", "two")),
    ],
    ids=["sequence", "function last", "loop", "parallel"],
)
@pytest.mark.parametrize("answer", ["mine", Result("mine")], ids=["str", "Result"])
@pytest.mark.anyio
async def test_s1_what_a_run_layer_makes_of_a_flow_is_what_was_streamed(flow: Any, answer: Any, go: Go) -> None:
    async def mine(call: Any, next: Any) -> Any:
        await next()
        return answer

    app = App().use(run=mine)
    result = await go(app, flow(), "q")
    before = await App().run(flow(), "q")
    assert result.text == "mine"
    assert [message.text for message in result.messages] == [*(m.text for m in before.messages[:-1]), "mine"]
    assert [message.role for message in result.messages] == [message.role for message in before.messages]
    events, streamed = await collect(app.stream(flow(), "q"))
    assert streamed.messages == result.messages
    last = [event for event in events if isinstance(event, TextDelta)][-1]
    assert fold(events)[last.step, last.turn] == "mine"
    for read in text_of, told_of:
        text, result = await read(app, flow())
        assert (text, result.text) == ("mine", "mine")


@pytest.mark.anyio
async def test_m4_a_run_layer_that_answers_in_the_place_of_a_flow_runs_no_member(go: Go) -> None:
    flow = sequence(says("a"), says("b"))
    app = App().use(run=lambda call, next: "canned")
    result = await go(app, flow, "q")
    assert (result.text, [message.text for message in result.messages]) == ("canned", ["q", "canned"])
    assert (await text_of(app, flow))[0] == "canned"


@pytest.mark.anyio
async def test_m5_a_second_next_after_success_is_refused_around_a_flow_too(go: Go) -> None:
    async def twice(call: Any, next: Any) -> Any:
        await next()
        return await next()

    with pytest.raises(NextCalledAgain):
        await go(App().use(run=twice), sequence(says("a", "one"), shout), "q")


# L3, in streams


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("place", ["function", "merge", "until"])
def test_s1_s6_l3_a_deadline_leaves_a_stream_that_says_what_the_result_says(place: str, stops: bool) -> None:
    async def forever(*args: Any) -> Any:
        await anyio.sleep_forever()

    def flow() -> Flow:
        if place == "function":
            return sequence(says("a", "one"), forever)
        if place == "merge":
            return parallel(says("a", "one"), merge=forever)
        return loop(says("a", "one"), until=forever)

    async def test() -> None:
        app = App(limits=Limits(seconds=5, on_exceed="stop" if stops else "raise"))
        if not stops:
            for read in text_of, told_of:
                with pytest.raises(LimitExceeded):
                    await read(app, flow())
            return
        for read in text_of, told_of:
            text, result = await read(app, flow())
            assert text == result.text
            assert result.stopped_by == "limit"
        events, result = await collect(app.stream(flow(), "q"))
        check_s1(events, flow(), result)

    in_fast_time(test)


# A law


@dataclass
class Node:
    """A member of a random flow, as data."""

    kind: str  # agent, function, sequence, parallel, loop
    name: str
    how: str = ""
    members: list[Node] = field(default_factory=list)
    passes: int = 1


AGENTS = ("says", "says", "empty", "tools", "silent tools")
FUNCTIONS = ("wraps", "async", "none", "Result", "empty")
MERGES = ("", "", "bars", "None", "async Result")


@st.composite
def nodes(draw: st.DrawFn, depth: int = 0, names: list[int] | None = None) -> Node:
    """A random tree; no two agents have one name, flows do now and then."""
    names = [0] if names is None else names
    names[0] += 1
    leaf = depth == 3 or (depth > 0 and draw(st.integers(0, 9)) < 6)
    if leaf:
        kind = draw(st.sampled_from(["agent", "agent", "agent", "function"]))
        return Node(kind, f"{kind[0]}{names[0]}", draw(st.sampled_from(AGENTS if kind == "agent" else FUNCTIONS)))
    kind = draw(st.sampled_from(["sequence", "parallel", "loop"]))
    name = draw(st.sampled_from([kind, f"{kind}-{names[0]}"]))
    members = [draw(nodes(depth + 1, names)) for _ in range(draw(st.integers(1, 3)))]
    how = draw(st.sampled_from(MERGES)) if kind == "parallel" else ""
    return Node(kind, name, how, members, draw(st.integers(1, 3)) if kind == "loop" else 1)


def agent_says(node: Node, count: int) -> list[str]:
    """The texts of the turns of a step: all but the last one call a tool."""
    answer = "" if node.how == "empty" else f"{node.name}.{count}"
    return {"tools": [f"{answer}?", answer], "silent tools": ["", answer]}.get(node.how, [answer])


def function_says(node: Node, input: str) -> str:
    return {"none": input, "empty": "", "Result": f"[{input}]"}.get(node.how, f"<{input}>")


class Interpreter:
    """Says what a tree must come to, in plain words."""

    def __init__(self) -> None:
        self.asked: dict[str, list[list[Said]]] = {}
        self.counts = Counter[str]()

    def run(self, node: Node, history: list[Said], question: Said) -> tuple[list[Said], str, list[str]]:
        """What was said, by whom it was answered, and the texts that whoever answers has streamed."""
        if node.kind == "agent":
            self.counts[node.name] += 1
            said = [question]
            texts = agent_says(node, self.counts[node.name])
            for place, text in enumerate(texts):
                self.asked.setdefault(node.name, []).append([*history, *said])
                said.append(("assistant", None, text))
                if place < len(texts) - 1:
                    said.append(("tool", "ping", "pong"))
            return said, node.name, texts
        if node.kind == "function":
            text = function_says(node, question[2])
            return [question, ("assistant", None, text)], node.name, [text]
        return self.parallel(node, history, question) if node.kind == "parallel" else self.row(node, history, question)

    def row(self, node: Node, history: list[Said], question: Said) -> tuple[list[Said], str, list[str]]:
        said: list[Said] = []
        line = node.members * node.passes
        for place, member in enumerate(line):
            more, name, spoken = self.run(member, [*history, *said], question)
            said += more
            if place < len(line) - 1:
                question = ("user", name, said.pop()[2])
        return said, name, spoken

    def parallel(self, node: Node, history: list[Said], question: Said) -> tuple[list[Said], str, list[str]]:
        said = [question]
        texts = []
        for member in node.members:
            more, name, _ = self.run(member, history, question)
            texts.append(more[-1][2])
            said += [*more[1:-1], *([("user", name, more[-1][2])] if node.how else [])]
        text = {"bars": "|".join(texts), "async Result": "+".join(texts)}.get(
            node.how, BREAK.join(text for text in texts if text)
        )
        return [*said, ("assistant", None, text)], node.name, [text]


class Built:
    """The same tree in terms of the library."""

    def __init__(self) -> None:
        self.models: dict[str, ScriptedModel] = {}

    def member(self, node: Node) -> Any:
        if node.kind == "agent":
            return self.agent(node)
        if node.kind == "function":
            return function_of(node)
        members = [self.member(member) for member in node.members]
        if node.kind == "sequence":
            return sequence(*members, name=node.name)
        if node.kind == "loop":
            return loop(*members, name=node.name, max_iterations=node.passes)
        return parallel(*members, name=node.name, merge=merge_of(node.how))

    def agent(self, node: Node) -> Agent:
        count = 0

        async def reply(call: ChatCall) -> Any:
            nonlocal count
            await anyio.lowlevel.checkpoint()
            after_tools = isinstance(call.messages[-1], ToolMessage)
            count += not after_tools
            texts = agent_says(node, count)
            return texts[-1] if after_tools or len(texts) == 1 else [*filter(None, texts[:1]), ToolUse("ping")]

        self.models[node.name] = ScriptedModel(reply, chunk=2)
        return Agent(name=node.name, model=self.models[node.name], tools=[ping])

    @property
    def asked(self) -> dict[str, list[list[Said]]]:
        return {name: [said_of(call.messages) for call in model.calls] for name, model in self.models.items()}


def function_of(node: Node) -> Any:
    def function(input: str, ctx: Context) -> Any:
        assert isinstance(ctx.agent, Flow)
        text = function_says(node, input)
        return {"none": None, "Result": Result(text)}.get(node.how, text)

    async def later(input: str, ctx: Context) -> str:
        await anyio.lowlevel.checkpoint()
        return function_says(node, input)

    function.__qualname__ = function.__name__ = later.__qualname__ = later.__name__ = node.name
    return later if node.how == "async" else function


def merge_of(how: str) -> Any:
    async def later(results: Sequence[Result], ctx: Context) -> Result:
        await anyio.lowlevel.checkpoint()
        return Result("+".join(result.text for result in results))

    return {
        "": None,
        "bars": lambda results, ctx: "|".join(result.text for result in results),
        "None": lambda results, ctx: None,
        "async Result": later,
    }[how]


def said_of(messages: Sequence[Any]) -> list[Said]:
    return [(message.role, getattr(message, "name", None), message.text) for message in messages]


HISTORY = [User("before"), Assistant("fine")]


async def the_law(tree: Node) -> None:
    interpreter = Interpreter()
    said, name, spoken = interpreter.run(tree, said_of(HISTORY), ("user", None, "q"))
    asked, texts = interpreter.asked, [text for text in spoken if text]

    def check(result: Result, built: Built) -> None:
        assert (result.text, said_of(result.messages), result.agent) == (said[-1][2], said, name)
        assert result.stopped_by == ("iterations" if tree.kind == "loop" else None)
        assert built.asked == {name: asked.get(name, []) for name in built.models}
        assert (result.usage.requests or 0) == sum(map(len, asked.values()))

    built = Built()
    check(await App().run(built.member(tree), "q", history=HISTORY), built)
    for resets in True, False:
        built = Built()
        flow = built.member(tree)
        events, result = await collect(App().stream(flow, "q", history=HISTORY, resets=resets))
        check(result, built)
        assert not any(isinstance(event, TextReset) for event in events)
        check_s1(events, flow, result)
    for read in text_of, told_of:
        built = Built()
        text, result = await read(App(), built.member(tree), history=HISTORY)
        check(result, built)
        assert text == BREAK.join(texts)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(nodes())
def test_a1_a2_a3_a4_s1_s6_s11_random_trees_of_flows_come_to_what_is_foretold(backend: str, tree: Node) -> None:
    anyio.run(the_law, tree, backend=backend)
