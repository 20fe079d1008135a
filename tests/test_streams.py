"""What a stream says, and when it says it (S1, S2, S3, S7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatReply,
    Context,
    FatalToolError,
    ReasoningDelta,
    Result,
    TextDelta,
    TextReset,
    ToolUse,
    Usage,
    repeats,
    tool,
)
from middlechain.testing import Collected, ScriptedModel, collect

from .conftest import by_run, by_stream
from .scenes import RESET, Boom, deltas, fold

pytestmark = pytest.mark.anyio


async def stream(
    replies: Any, *, app: App | None = None, hooks: Sequence[Any] = (), tools: Sequence[Any] = ()
) -> Collected:
    """What it gives; and for whatever it gave, S1 holds."""
    agent = Agent(model=ScriptedModel(replies), hooks=hooks, tools=tools)
    said = await collect((app or App()).stream(agent, "hi"))
    answers = [message.text for message in said.result.messages if isinstance(message, Assistant)]
    live = {turn: text for (_, turn), text in fold(said.events).items()}
    assert [live.get(turn, "") for turn in range(1, len(answers) + 1)] == answers
    assert not any(text for turn, text in live.items() if turn > len(answers))
    return said


@tool
async def look() -> str:
    return "seen"


def rewording(text: str | None = None, *, append: str = "") -> Any:
    async def reword(call: Any, next: Any) -> Any:
        answer = await next()
        return answer.replace(text=answer.text + append if text is None else text)

    return reword


# --- S1 --------------------------------------------------------------------------------------------------------------


async def test_s1_the_joined_deltas_of_a_turn_are_its_message() -> None:
    events, result = await stream([["he", "l", "lo"]])
    assert (deltas(events), result.text) == (["he", "l", "lo"], "hello")


async def test_s1_each_turn_has_its_own_text() -> None:
    events, _ = await stream([["let me ", "see", ToolUse("look")], ["it ", "is"]], tools=[look])
    assert list(fold(events).values()) == ["let me see", "it is"]
    assert [event.turn for event in events if isinstance(event, TextDelta)] == [1, 1, 2, 2]
    assert deltas(events).count(RESET) == 0


@pytest.mark.parametrize("scope", ["chat", "agent", "run"])
async def test_s1_where_a_layer_changed_what_was_sent_a_reset_and_the_new_text_follow(scope: str) -> None:
    events, _ = await stream([["he", "llo"]], app=App().use(**{scope: rewording("bye")}))
    assert deltas(events) == ["he", "llo", RESET, "bye"]


@pytest.mark.parametrize("scope", ["chat", "agent", "run"])
async def test_s1_where_the_change_only_adds_only_the_addition_follows(scope: str) -> None:
    events, _ = await stream([["he", "llo"]], app=App().use(**{scope: rewording(append="!")}))
    assert deltas(events) == ["he", "llo", "!"]


@pytest.mark.parametrize("scope", ["chat", "agent", "run"])
async def test_s1_where_nothing_changed_nothing_follows(scope: str) -> None:
    events, _ = await stream([["he", "llo"]], app=App().use(**{scope: rewording("hello")}))
    assert deltas(events) == ["he", "llo"]


@pytest.mark.parametrize("scope", ["chat", "agent", "run"])
async def test_s1_a_text_that_became_empty_is_a_reset_alone(scope: str) -> None:
    events, _ = await stream([["he", "llo"]], app=App().use(**{scope: rewording("")}))
    assert deltas(events) == ["he", "llo", RESET]


async def test_s1_a_hook_that_changes_a_streamed_reply_is_called_once_and_makes_one_message() -> None:
    """B03."""
    heard: list[str] = []

    def upper(text: str, ctx: Any) -> str:
        heard.append(text)
        return text.upper()

    events, result = await stream([["a", "b", "c"]], hooks=[{"after_response": upper}])
    assert heard == ["abc"]
    assert deltas(events) == ["a", "b", "c", RESET, "ABC"]
    assert [message.text for message in result.messages] == ["hi", "ABC"]


@pytest.mark.parametrize("changed", ["bye", Result("bye")])
async def test_s1_what_after_run_makes_of_the_result_follows_too(changed: Any) -> None:
    events, result = await stream([["he", "llo"]], hooks=[{"after_run": lambda result, ctx: changed}])
    assert (deltas(events), result.text) == (["he", "llo", RESET, "bye"], "bye")


async def test_s1_only_the_turn_that_changed_is_reset() -> None:
    events, _ = await stream(
        [["first", ToolUse("look")], "second"], tools=[look], hooks=[{"after_response": lambda text, ctx: "other"}]
    )
    assert [event.turn for event in events if isinstance(event, TextReset)] == [2]
    assert list(fold(events).values()) == ["first", "other"]


async def test_s1_a_reset_takes_back_the_reasoning_too() -> None:
    events, result = await stream([[ReasoningDelta("hm"), "a"]], hooks=[{"after_response": lambda text, ctx: "b"}])
    shown = [event for event in events if isinstance(event, TextDelta | ReasoningDelta | TextReset)]
    assert shown[:3] == [ReasoningDelta("hm"), TextDelta("a"), TextReset()]
    assert set(map(repr, shown[3:])) == {repr(ReasoningDelta("hm")), repr(TextDelta("b"))}
    assert result.message.reasoning == "hm"


async def test_s1_changed_reasoning_follows_as_well() -> None:
    async def reword(call: Any, next: Any) -> Any:
        return (await next()).replace(reasoning="ah")

    events, result = await stream([[ReasoningDelta("hm"), "a"]], app=App().use(chat=reword))
    said = ""
    for event in events:
        said = "" if isinstance(event, TextReset) else said + event.text if isinstance(event, ReasoningDelta) else said
    assert said == result.message.reasoning == "ah"


async def test_s1_a_degraded_answer_belongs_to_the_turn_that_failed() -> None:
    degrade = {"on_error": lambda error, ctx: "sorry"}
    events, result = await stream([["let me", ToolUse("look")], ["he", Boom()]], tools=[look], hooks=[degrade])
    assert list(fold(events).values()) == ["let me", "sorry"]
    assert [event.turn for event in events if isinstance(event, TextReset)] == [2]
    assert (result.text, result.degraded) == ("sorry", True)


async def test_s1_a_degraded_answer_belongs_to_turn_1_if_none_had_begun() -> None:
    def fail(value: Any, ctx: Any) -> None:
        raise Boom

    events, _ = await stream([], hooks=[{"before_run": fail, "on_error": lambda error, ctx: "sorry"}])
    assert [(event.turn, event.text) for event in events if isinstance(event, TextDelta)] == [(1, "sorry")]


async def test_s1_a_degraded_answer_that_continues_what_was_sent_only_adds() -> None:
    events, _ = await stream([["he", Boom()]], hooks=[{"on_error": lambda error, ctx: "hello"}])
    assert deltas(events) == ["he", "llo"]


async def test_s1_an_answer_of_a_layer_after_a_failed_stream_replaces_it() -> None:
    async def save(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Boom:
            return "saved"

    for scope in ("chat", "agent", "run"):
        events, _ = await stream([["he", Boom()]], app=App().use(**{scope: save}))
        assert deltas(events) == ["he", RESET, "saved"]


async def test_s1_the_text_of_a_turn_whose_tools_failed_the_step_is_taken_back() -> None:
    """History keeps the turns whose tools ran; the others said nothing in the end."""

    async def refuse(call: Any, next: Any) -> Any:
        raise Boom

    events, result = await stream(
        [["let me see", ToolUse("look")]],
        app=App().use(tool=refuse),
        tools=[look],
        hooks=[{"on_error": lambda error, ctx: "sorry"}],
    )
    assert deltas(events) == ["let me see", RESET, "sorry"]
    assert [message.text for message in result.messages] == ["hi", "sorry"]


def spying(seen: list[Any]) -> Any:
    """A layer that notes what is sent through it."""

    async def layer(call: Any, next: Any) -> Any:
        async def my_send(delta: Any) -> None:
            seen.append(delta)
            await call.send(delta)

        return await next(call.replace(send=my_send))

    return layer


# --- S7 --------------------------------------------------------------------------------------------------------------


async def retry(call: Any, next: Any) -> Any:
    try:
        return await next()
    except Boom:
        return await next()


@pytest.mark.parametrize("scope", ["chat", "agent", "run"])
async def test_s7_a_retry_after_text_went_out_sends_a_reset_first(scope: str) -> None:
    """B35: the consumer never has the beginning twice, and history holds one message."""
    events, result = await stream([["Hello ", Boom()], ["Hello ", "world"]], app=App().use(**{scope: retry}))
    assert list(fold(events).values())[-1] == "Hello world"
    assert deltas(events) == ["Hello ", RESET, "Hello ", "world"]
    assert [message.text for message in result.messages] == ["hi", "Hello world"]


@pytest.mark.parametrize("scope", ["chat", "agent", "run"])
@pytest.mark.parametrize("first", [Boom(), [Boom()]])
async def test_s7_a_retry_before_any_text_went_out_sends_none(scope: str, first: Any) -> None:
    """B35."""
    events, _ = await stream([first, ["Hello ", "world"]], app=App().use(**{scope: retry}))
    assert deltas(events) == ["Hello ", "world"]


async def test_s7_reasoning_alone_is_taken_back_too() -> None:
    events, _ = await stream([[ReasoningDelta("hm"), Boom()], "x"], app=App().use(chat=retry))
    assert [type(event) for event in events if isinstance(event, ReasoningDelta | TextReset | TextDelta)] == [
        ReasoningDelta,
        TextReset,
        TextDelta,
    ]


@pytest.mark.parametrize("scope", ["chat", "agent", "run"])
async def test_s7_a_repeat_after_a_success_sends_a_reset_too(scope: str) -> None:
    @repeats
    async def best_of_two(call: Any, next: Any) -> Any:
        await next()
        return await next()

    events, _ = await stream(["one", "two"], app=App().use(**{scope: best_of_two}))
    assert deltas(events) == ["one", RESET, "two"]


async def test_s7_the_wrappers_of_send_outside_see_the_reset_too() -> None:
    seen: list[Any] = []
    await stream([["a", Boom()], "b"], app=App().use(chat=[spying(seen), retry]))
    assert seen == [TextDelta("a"), TextReset(), TextDelta("b")]


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_s7_a_step_that_begins_again_takes_back_all_of_its_turns(scope: str) -> None:
    replies = [["one", ToolUse("look")], ["tw", Boom()], ["three"]]
    events, result = await stream(replies, app=App().use(**{scope: retry}), tools=[look])
    assert deltas(events)[:2] == ["one", "tw"]
    assert result.text == "three"
    texts = [text for text in fold(events).values() if text]
    assert texts == ["three"]


async def test_s7_a_tool_retry_resets_nothing_of_the_turn_that_asked() -> None:
    failures = [FatalToolError("once")]

    @tool
    async def flaky() -> str:
        if failures:
            raise failures.pop()
        return "x"

    async def again(call: Any, next: Any) -> Any:
        try:
            return await next()
        except FatalToolError:
            return await next()

    events, _ = await stream([["see", ToolUse("flaky")], "done"], app=App().use(tool=again), tools=[flaky])
    assert deltas(events) == ["see", "done"]


async def test_s1_a_nested_steps_stream_says_what_its_result_says() -> None:
    """Its own agent layers are done when it ends, long before those of the run."""
    nested: list[Result] = []
    inner = Agent(name="inner", model=ScriptedModel([["said", " inside"]]))

    async def rewrite(call: Any, next: Any) -> Any:
        result = await next()
        return result.replace(text=f"<{result.text}>")

    async def ask(input: Any, ctx: Context) -> None:
        nested.append(await ctx.run(inner, "q"))

    app = App().use(agent=rewrite, only=inner)
    outer = Agent(name="outer", model=ScriptedModel(["done"]), hooks=[{"before_run": ask}])
    events, result = await collect(app.stream(outer, "hi"))
    (step,) = {event.step for event in events if event.agent == "inner"}
    assert fold([event for event in events if event.step == step]) == {(step, 1): "<said inside>"}
    assert (nested[0].text, result.text) == ("<said inside>", "done")


async def test_s11_hooks_and_layers_fire_alike_and_in_one_order_in_run_and_stream() -> None:
    """B34."""
    logs: list[list[str]] = []
    results: list[Result] = []
    for way in (by_run, by_stream):
        log: list[str] = []
        logs.append(log)
        model = ScriptedModel([["see", ToolUse("look")], ChatReply("done", usage=Usage(3, 2))])
        hooks = {name: logging_hook(name, log) for name in HOOKS}
        agent = Agent(name="a", model=model, tools=[look], hooks=[hooks], instructions="be brief")
        app = App()
        for scope in ("run", "agent", "chat", "tool"):
            layers: dict[str, Any] = {scope: [logging_layer(f"{scope} {n}", log) for n in (1, 2)]}
            app.use(**layers)
        results.append(await way(app, agent, "hi", run_id="r"))
        assert len(model.calls) == 2
    assert logs[0] == logs[1] == ORDER
    plain, streamed = results
    assert plain == streamed
    assert (plain.usage, plain.finish_reason) == (Usage(3, 2, requests=2), "stop")


HOOKS = ("before_run", "before_prompt", "before_tool", "after_tool", "after_response", "after_run", "on_error")
CHAT = ["chat 1 in", "chat 2 in", "chat 2 out", "chat 1 out"]
ORDER = [
    *("run 1 in", "run 2 in", "agent 1 in", "agent 2 in", "before_run"),
    *("before_prompt", *CHAT),
    *("before_tool", "tool 1 in", "tool 2 in", "tool 2 out", "tool 1 out", "after_tool"),
    *("before_prompt", *CHAT),
    *("after_response", "after_run", "agent 2 out", "agent 1 out", "run 2 out", "run 1 out"),
]


def logging_hook(name: str, log: list[str]) -> Any:
    def hook(value: Any, ctx: Context) -> None:
        log.append(name)

    return hook


def logging_layer(name: str, log: list[str]) -> Any:
    async def layer(call: Any, next: Any) -> Any:
        log.append(f"{name} in")
        try:
            return await next()
        finally:
            log.append(f"{name} out")

    return layer
