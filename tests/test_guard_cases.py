"""Reported faults of text guards, as cases, in `run` and `stream` (B24, B25, B54)."""

from __future__ import annotations

import anyio
import pytest

from middlechain import Agent, App, TextDelta, ToolUse, tool
from middlechain.guardrails import banned_words, regex
from middlechain.testing import ScriptedModel, collect

from .conftest import Go

pytestmark = pytest.mark.anyio

BANNED = ["badword", "ass", "deskin"]
TRIP = [
    "BADWORD",
    "bad\u200bword",
    "bad\u00adword",
    "bad\u2060word",
    "\uff42\uff41\uff44word",
    "b\u0430dword",
    "ba\u0301dword",
    "you badword!",
    "it ends in badword",
]
PASS = [
    "class",
    "a desk in the room",
    "badwordy",
    "\U0001f469\u200d\U0001f4bb at work",
    "caf\u00e9 \u0430\u0431\u0432",
    "",
]


def agent(text: str, guard: object, chunk: int | None = None) -> Agent:
    return Agent(name="a", model=ScriptedModel(lambda call: text, chunk=chunk), guardrails={"output": [guard]})


@pytest.mark.parametrize("chunk", [1, 2, 3, None])
@pytest.mark.parametrize("text", TRIP)
async def test_g12_look_alikes_and_what_is_not_seen_do_not_hide_a_banned_word(
    text: str, chunk: int | None, go: Go
) -> None:
    """B24."""
    result = await go(App(), agent(text, banned_words(BANNED), chunk), "hi")
    assert (result.blocked, result.blocked_by) == (True, "banned_words")


@pytest.mark.parametrize("chunk", [1, 2, None])
@pytest.mark.parametrize("text", PASS)
async def test_g12_harmless_words_pass_and_are_delivered_as_they_are(text: str, chunk: int | None, go: Go) -> None:
    """B24: matching folds, the text does not."""
    result = await go(App(), agent(text, banned_words(BANNED), chunk), "hi")
    assert (result.blocked, result.text) == (False, text)


@pytest.mark.parametrize("cut", range(1, 5))
async def test_g12_a_word_that_is_cut_is_judged_whole_also_at_the_end_of_the_stream(cut: int) -> None:
    """B24: `cl` and `ass` are no word, and nothing of a banned word leaves."""
    for text, blocked in (("class", False), ("an ass", True)):
        model = ScriptedModel([[text[:cut], text[cut:]]])
        one = Agent(name="a", model=model, guardrails={"output": [banned_words(BANNED)]})
        events, result = await collect(App().stream(one, "hi", resets=False))
        sent = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert (result.blocked, sent) == (blocked, result.text)
        assert ("as" in sent) == (not blocked)


async def test_g12_a_redaction_replaces_the_span_as_it_was_written_joiners_included(go: Go) -> None:
    """B24."""
    guard = banned_words(BANNED, outcome="rewrite", replacement="[*]")
    result = await go(App(), agent("a b\u0430d\u200bword, twice: BADWORD.", guard, 2), "hi")
    assert result.text == "a [*], twice: [*]."


@pytest.mark.parametrize("text", ["a" * 40 + "!", "a" * 100_000 + "!", "ab" * 100_000])
async def test_g13_no_text_hangs_a_pattern_with_nested_quantifiers(text: str, go: Go) -> None:
    """B25: a backtracking engine would need longer than anybody lives."""
    with anyio.fail_after(20):
        result = await go(App(), agent(text, regex("(a+)+$"), 4096), "hi")
    assert (result.blocked, result.text) == (False, text)


async def test_g13_an_ordinary_pattern_judges_a_megabyte(go: Go) -> None:
    """B25: the negative twin."""
    text = "word " * 200_000
    assert (await go(App(), agent(text, regex(r"\bsecret\b"), 4096), "hi")).text == text
    assert (await go(App(), agent(text + "secret", regex(r"\bsecret\b"), 4096), "hi")).blocked


async def test_t6_a_redaction_of_arguments_comes_before_the_tool_and_its_result_is_cut_last(go: Go) -> None:
    """B54: a guard concerns what the model says; a tool's own result is cut after `after_tool` has seen it whole."""
    seen: list[int] = []

    @tool(max_result_chars=200)
    async def look(query: str) -> str:
        return f"{query}: " + "é" * 5000

    uses = ToolUse("look", {"query": "badword"})
    one = Agent(
        name="a",
        model=ScriptedModel([[uses], "done"]),
        tools=[look],
        hooks=[{"after_tool": lambda result, ctx: seen.append(len(result.output))}],
        guardrails={"output": [banned_words(BANNED, outcome="rewrite", replacement="[*]")]},
    )
    result = await go(App(), one, "hi")
    [message] = [message for message in result.messages if message.role == "tool"]
    assert message.text.startswith("[*]: é")
    assert len(message.text) <= 200
    assert seen == [5005]
