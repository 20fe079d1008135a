"""S1, S6 and S11 as a property: for random stacks, `run` equals `stream`, both equal the oracle, and the folded stream
equals the result; the same for an append-only stream, which differs from `run` only in what was out already."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatReply,
    Event,
    FatalToolError,
    LimitExceeded,
    Limits,
    ReasoningDelta,
    Result,
    Stream,
    TextDelta,
    TextReset,
    ToolOutput,
    ToolUse,
    WrongReturn,
    observes,
    repeats,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .oracle import MARK, OPS, SEND_OPS, Boom, Breach, Limit, Oracle, Reply, Scenario

TEXTS = st.lists(st.sampled_from(["a", "bc", "d e", "", "é", "!"]), max_size=4)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    tools = draw(st.one_of(st.just([]), st.just(["fatal"]), st.lists(st.sampled_from(["ok", "error"]), max_size=2)))
    return Reply(
        draw(TEXTS), draw(st.sampled_from(["", "", "hm"])), tools, draw(st.sampled_from([False, False, False, True]))
    )


def ops(most: int, extra: tuple[str, ...] = ()) -> st.SearchStrategy[list[str]]:
    """Layers: all marked, or marked here and there. To change deltas under the mark is nothing one may do."""
    marked = tuple(op + MARK for op in OPS + extra if op not in {"upper", "noise"})
    quiet = tuple(op + MARK for op in ("pass", "keep", "retry", "fail_late", *extra[1:3]))
    return st.one_of(
        *(st.lists(st.sampled_from(some), max_size=most) for some in (OPS + extra + marked, marked, quiet))
    )


HOOKS = st.one_of(
    st.dictionaries(
        st.sampled_from(["after_response", "after_run", "after_tool", "on_error"]),
        st.sampled_from(["rewrite", "empty", "fail"]),
        max_size=3,
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "after_response": st.just("keep@"),
            "after_run": st.just("keep@"),
            "on_error": st.sampled_from(["rewrite", "empty"]),
        },
    ),
)
SCENARIOS = st.builds(
    Scenario,
    replies=st.lists(replies(), max_size=4),
    run=ops(2),
    agent=ops(2),
    chat=ops(3, SEND_OPS),
    tool=ops(2),
    hooks=HOOKS,
    turns=st.integers(1, 3),
    stops=st.booleans(),
)


def layer(op: str, answer: Any) -> Any:
    """The library's layer for an op; `answer(text)` makes a fresh answer of its scope."""

    marked, op = op.endswith(MARK), op.removesuffix(MARK)

    async def act(call: Any, next: Any) -> Any:
        if op == "short":
            return answer("short")
        if op == "fail":
            raise Boom
        if op in {"retry", "swallow"}:
            try:
                return await next()
            except Exception:
                return await next() if op == "retry" else answer("swallowed")
        if op in SEND_OPS:
            return await next(call.replace(send=sender(op, call.send)))
        first = await next()
        if op == "fail_late":
            raise Boom
        if op == "fresh":
            return answer("fresh")
        if op in {"rewrite", "append", "empty"}:
            name = "content" if isinstance(first, ToolOutput) else "text"
            text = getattr(first, name)
            return first.replace(**{name: {"rewrite": f"<{text}>", "append": text + "!", "empty": ""}[op]})
        if op.startswith("twice"):
            last = await next()
            return {"twice_first": first, "twice_last": last, "twice_keep": None}[op]
        return None if op == "keep" else first

    act = repeats(act) if op.startswith("twice") else act
    return observes(act) if marked else act


def sender(op: str, send: Any) -> Any:
    held: list[TextDelta] = []

    async def my_send(delta: Any) -> None:
        if isinstance(delta, TextReset):
            held.clear()
            await send(delta)
        elif not isinstance(delta, TextDelta):
            await send(delta)
        elif op == "upper":
            await send(TextDelta(delta.text.upper()))
        elif op == "hold":
            held.append(delta)
            if len(held) > 2:
                await send(held.pop(0))
        elif op == "noise":
            await send(TextDelta("~"))
            await send(delta)

    return my_send


def build(scenario: Scenario) -> tuple[App, Agent]:
    """The scenario in terms of the library."""

    @tool
    async def work(kind: str) -> ToolOutput:
        if kind == "fatal":
            raise FatalToolError("fatal")
        return ToolOutput(kind, is_error=kind == "error")

    def reply(spoken: Reply) -> list[Any]:
        items: list[Any] = [ReasoningDelta(spoken.reasoning)] if spoken.reasoning else []
        items += [piece for piece in spoken.pieces if piece]
        items += [ToolUse("work", {"kind": kind}) for kind in spoken.tools]
        return [*items, Boom()] if spoken.fails else items

    scripted = [reply(one) for one in scenario.replies]
    model = ScriptedModel(lambda call: scripted.pop(0) if scripted else "done")
    agent = Agent(
        name="a",
        model=model,
        tools=[work],
        hooks=[{name: hook(name, what) for name, what in scenario.hooks.items()}],
        limits=Limits(turns=scenario.turns, on_exceed="stop" if scenario.stops else "raise"),
    )
    answers = {"run": Result, "agent": Result, "chat": ChatReply, "tool": ToolOutput}
    app = App()
    app.told_of_holds = True  # who holds is not the matter here
    for scope, answer in answers.items():
        layers = [layer(op, answer) for op in getattr(scenario, scope)]
        if layers:
            app.use(**{scope: layers})
    return app, agent


def hook(name: str, what: str) -> Any:
    def act(value: Any, ctx: Any) -> str | None:
        if what == "fail":
            raise Boom
        if what.endswith(MARK):
            return None
        if name == "on_error":
            return "" if what == "empty" else "degraded"
        text = value.output if name == "after_tool" else value.text if name == "after_run" else value
        return "" if what == "empty" else f"[{text}]"

    return observes(act) if what.endswith(MARK) else act


def fold(events: list[Event]) -> dict[tuple[str, int], tuple[str, str]]:
    """What a consumer has of each turn in the end: its text and its reasoning."""
    live: dict[tuple[str, int], tuple[str, str]] = {}
    for event in events:
        key = (event.step, event.turn)
        text, reasoning = live.get(key, ("", ""))
        if isinstance(event, TextReset):
            assert text or reasoning, "a reset of nothing"
            live[key] = ("", "")
        elif isinstance(event, TextDelta):
            assert event.text
            live[key] = (text + event.text, reasoning)
        elif isinstance(event, ReasoningDelta):
            live[key] = (text, reasoning + event.text)
    return live


def check_stream(events: list[Event], result: Result) -> None:
    live = {key: said for key, said in fold(events).items() if said != ("", "")}
    assert len({step for step, _ in live}) <= 1
    answers = [(m.text, m.reasoning or "") for m in result.messages if isinstance(m, Assistant)]
    by_turn = {turn: said for (_, turn), said in live.items()}
    assert [by_turn.get(turn, ("", "")) for turn in range(1, len(answers) + 1)] == answers
    assert set(by_turn) <= set(range(1, len(answers) + 1))


def outcome(said: Result | BaseException) -> Any:
    if isinstance(said, Result):
        unknown = "did not", "withheld"
        return said.text, [
            (m.role, "?" if m.role == "tool" and any(word in m.text for word in unknown) else m.text)
            for m in said.messages
        ]
    kinds = {LimitExceeded: Limit, WrongReturn: Breach, Boom: Boom, FatalToolError: Boom}
    return next((as_told for kind, as_told in kinds.items() if isinstance(said, kind)), said)


async def outcome_of(scenario: Scenario, go: Any) -> Any:
    """What a fresh app for the scenario gives, or raises."""
    app, agent = build(scenario)
    try:
        return await go(app, agent)
    except Exception as error:
        return error


async def both(scenario: Scenario) -> None:
    plain = await outcome_of(scenario, lambda app, agent: app.run(agent, "hi"))
    streamed = await outcome_of(scenario, lambda app, agent: collect(app.stream(agent, "hi")))
    assert outcome(plain) == Oracle(scenario).expect()
    if isinstance(streamed, Exception):
        assert outcome(streamed) == outcome(plain)
        return
    events, result = streamed
    assert outcome(result) == outcome(plain)
    assert (result.finish_reason, result.degraded) == (plain.finish_reason, plain.degraded)
    check_stream(events, result)


async def append_only(scenario: Scenario) -> None:
    text: list[str] = []
    told: list[str] = []
    streamed = await outcome_of(scenario, lambda app, agent: collect(app.stream(agent, "hi", resets=False)))
    read = await outcome_of(scenario, lambda app, agent: _read(app.stream(agent, "hi"), text))
    plain = await outcome_of(scenario, lambda app, agent: app.run(agent, "hi", on_text=told.append))
    expected = Oracle(scenario, append_only=True).expect()
    assert outcome(read) == outcome(plain) == expected
    assert text == told
    assert all(text)
    if isinstance(streamed, Exception):
        assert outcome(streamed) == expected
        return
    events, result = streamed
    assert outcome(result) == expected
    assert not any(isinstance(event, TextReset) for event in events)
    check_stream(events, result)
    assert "".join(text) == "\n\n".join(m.text for m in result.messages if isinstance(m, Assistant) and m.text)
    assert "".join(text).endswith(result.text)


async def _read(stream: Stream, text: list[str]) -> Result:
    async with stream:
        async for piece in stream.text():
            text.append(piece)  # noqa: PERF401 - as a reader would, so that what it got before an error counts
    return stream.result


@pytest.mark.parametrize("law", [both, append_only])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCENARIOS)
def test_s1_s6_s11_run_stream_and_oracle_agree_and_the_stream_says_what_the_result_says(
    law: Any, backend: str, scenario: Scenario
) -> None:
    anyio.run(law, scenario, backend=backend)
