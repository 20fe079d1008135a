"""S4 and S6 as a law: for random guards, texts and cuts, a stream comes to what `run` comes to, and leaks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from middlechain import Agent, App, GuardrailDenied, Result, StreamDenied, TextDelta, TextReset
from middlechain.guardrails import banned_words, regex
from middlechain.guardrails.patterns import Pattern
from middlechain.guardrails.words import Words
from middlechain.testing import ScriptedModel

PATTERNS = ("ab", "a+b", "(ab|ba)+", "a{2,3}", r"\bab\b", "a(?=b)", "(?<!b)a", "b$", "^a", "[ab]c", "a.c", "aab|b")
WORDS = ("ab", "a b", "abc", "ba", "c+", "aab")
# Pieces that are matches, near misses, and matches that grow.
PIECES = ("a", "b", "c", " ", "ab", "aab", "aaab", "a b", "abab", "abc", "ba", "c+", "\n", ".", "A", "a\u0301b")


class Case(NamedTuple):
    """One guard, in words: its kind, what it looks for, and what it does."""

    kind: Any
    looks_for: Any
    outcome: Any

    def guard(self) -> Any:
        if self.kind == "regex":
            return regex(self.looks_for, outcome=self.outcome, replacement="[*]")
        return banned_words(list(self.looks_for), match=self.kind, outcome=self.outcome, replacement="[*]")

    def spans(self, text: str) -> list[tuple[int, int]]:
        matcher: Any = Pattern(self.looks_for) if self.kind == "regex" else Words(self.looks_for, match=self.kind)
        found: list[tuple[int, int]] = matcher.spans(text)
        return found

    def rewritten(self, text: str) -> str:
        if self.outcome != "rewrite":
            return text
        said, done = "", 0
        for start, end in self.spans(text):
            said += text[done:start] + "[*]"
            done = end
        return said + text[done:]


OUTCOMES = st.sampled_from(["enforce", "deny", "rewrite"])
CASES = st.one_of(
    st.builds(Case, st.just("regex"), st.sampled_from(PATTERNS), OUTCOMES),
    st.builds(
        Case,
        st.sampled_from(["word", "substring"]),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True).map(tuple),
        OUTCOMES,
    ),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and a way to cut it: into one, two, all, or some pieces."""
    text = draw(TEXTS)
    places = draw(
        st.one_of(
            st.just([]),
            st.integers(0, len(text)).map(lambda place: [place]),
            st.just(list(range(len(text)))),
            st.lists(st.integers(0, len(text)), max_size=4).map(sorted),
        )
    )
    ends = [*places, len(text)]
    return text, [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


class Heard(NamedTuple):
    """What came of a stream: what was sent before anything was taken back, all deltas, and the result or the error."""

    sent: str
    live: str
    outcome: Any


def said(outcome: Any) -> Any:
    """What a run and a stream have to agree on."""
    if isinstance(outcome, Result):
        return outcome.text, outcome.blocked, outcome.blocked_by, outcome.finish_reason, outcome.validations
    assert isinstance(outcome, GuardrailDenied)
    return outcome.guardrail, outcome.reason, outcome.validation


async def heard(agent: Agent, resets: bool) -> Heard:
    events: list[Any] = []
    try:
        async with App().stream(agent, "hi", resets=resets) as stream:
            async for event in stream:
                events.append(event)  # noqa: PERF401 - also those before an error
        outcome: Any = stream.result
    except GuardrailDenied as error:
        outcome = error
    deltas = [event for event in events if isinstance(event, TextDelta | TextReset)]
    first = next((place for place, event in enumerate(deltas) if isinstance(event, TextReset)), len(deltas))
    live = ""
    for event in deltas:
        live = "" if isinstance(event, TextReset) else live + event.text
    return Heard("".join(event.text for event in deltas[:first]), live, outcome)  # type: ignore[union-attr]


async def check(cases: Sequence[Case], text: str, pieces: list[str]) -> None:
    guards = [case.guard() for case in cases]

    def agent(*replies: Any) -> Agent:
        return Agent(name="a", model=ScriptedModel(replies), guardrails={"output": guards})

    try:
        plain: Any = await App().run(agent([text]), "hi")
    except GuardrailDenied as error:
        plain = error
    retracting, appending = await heard(agent(pieces), resets=True), await heard(agent(pieces), resets=False)
    blocked_at = _blocking(cases, text)
    for told in (retracting, appending):
        leaked_nothing(told.sent if told is retracting else told.live, cases, text, blocked_at)
        if isinstance(plain, GuardrailDenied):
            assert said(told.outcome) == said(plain)
            assert isinstance(told.outcome, StreamDenied) == bool(told.live)
        elif told is retracting:
            assert said(told.outcome) == said(plain)
            assert told.live == plain.text
        else:
            assert said(told.outcome)[1:] == said(plain)[1:]
            assert told.live == told.outcome.text
            assert told.live.endswith(plain.text)


def _blocking(cases: Sequence[Case], text: str) -> int | None:
    """The place of the first guard that blocks."""
    for place, case in enumerate(cases):
        if case.outcome != "rewrite" and case.spans(text):
            return place
        text = case.rewritten(text)
    return None


def leaked_nothing(sent: str, cases: Sequence[Case], text: str, blocked_at: int | None) -> None:
    """What was sent is a beginning of what the guards let through, up to where the first match of a block begins."""
    if blocked_at is None:
        return
    for case in cases[:blocked_at]:
        text = case.rewritten(text)
    blocking = cases[blocked_at]
    text = text[: blocking.spans(text)[0][0]]
    if all(case.outcome != "rewrite" for case in cases[blocked_at:]):
        sent = sent.removesuffix("I can't help with that.").removesuffix("\n\n")
        assert text.startswith(sent)


@pytest.mark.parametrize(("backend", "count"), [("asyncio", 700), ("trio", 400)])
def test_s4_s6_a_stream_comes_to_what_run_comes_to_and_leaks_nothing(backend: str, count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(CASES, min_size=1, max_size=3), cut_texts())
    def law(cases: list[Case], cut: tuple[str, list[str]]) -> None:
        anyio.run(check, cases, *cut, backend=backend)

    law()
