"""Guards on what an agent is asked (G2-G4, G6, G8): before anything is spent, part by part, and again if it changed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest

from middlechain import (
    Agent,
    AgentStarted,
    App,
    Assistant,
    ChatReply,
    Context,
    Deny,
    Event,
    GuardrailDenied,
    GuardrailFired,
    Image,
    ModelStarted,
    Result,
    Rewrite,
    RunFinished,
    System,
    Text,
    TextDelta,
    ToolMessage,
    ToolUse,
    Usage,
    User,
    Validation,
    guardrail,
    repeats,
    tool,
)
from middlechain.messages import dump, load
from middlechain.testing import ScriptedModel

from .conftest import Go
from .guarding import CANNED, FOUND, against, found, noting, redacting, setup, working

pytestmark = pytest.mark.anyio

DENIED = Deny("not this")
PICTURE = Image(data=b"x", media_type="image/png")
BLOCKED = (User("a bad word", blocked=True), Assistant(CANNED, finish_reason="safety", blocked=True))


# --- Enforced and Deny (G2, G3) --------------------------------------------------------------------------------------


async def test_g2_an_enforced_input_asks_no_model(go: Go) -> None:
    agent, model = setup(["fine"], input=[against("bad")])
    result = await go(App(), agent, "a bad word")
    assert (model.calls, result.usage) == ([], Usage())
    assert (result.text, result.finish_reason, result.blocked, result.blocked_by) == (CANNED, "safety", True, "words")
    assert result.validations == (Validation("words", "", "words", "input", False, "enforced", "found"),)
    assert result.messages == BLOCKED
    passed = await go(App(), agent, "a good word")
    assert (passed.text, len(model.calls), passed.blocked) == ("fine", 1, False)
    assert passed.messages == (User("a good word"), Assistant("fine", finish_reason="stop"))


async def test_g2_hooks_and_agent_layers_do_not_run_and_run_layers_and_observers_do(go: Go) -> None:
    log: list[Any] = []

    def layer(name: str) -> Any:
        async def wrapped(call: Any, next: Any) -> None:
            answer = await next()
            log.append((name, answer.text))

        return wrapped

    names = ("before_run", "before_prompt", "after_response", "after_run", "on_error")
    hooks = {name: lambda given, ctx, name=name: log.append(name) for name in names}
    agent, _ = setup(["fine"], input=[against("bad")], output=[noting(log)], hooks=[hooks])
    events: list[Event] = []
    app = App().use(**{kind: layer(kind) for kind in ("run", "agent", "chat")}).observe(events.append)
    await go(app, agent, "a bad word")
    assert log == [("run", CANNED)], "and the canned answer is not judged"
    assert [event.type for event in events if not isinstance(event, TextDelta)] == [
        "RunStarted",
        "AgentStarted",
        "GuardrailFired",
        "AgentFinished",
        "RunFinished",
    ]
    assert [event.outcome for event in events if isinstance(event, RunFinished)] == ["blocked"]
    log.clear()
    await go(app, agent, "a good word")
    assert log[0] == "before_run"
    assert log[-2:] == [("agent", "fine"), ("run", "fine")]


async def test_g3_a_denied_input_raises_before_anything_and_only_on_error_runs(go: Go) -> None:
    log: list[str] = []
    names = ("before_run", "before_prompt", "after_response", "after_run", "on_error")
    hooks = {name: lambda given, ctx, name=name: log.append(name) for name in names}
    events: list[Event] = []
    agent, model = setup(["fine"], input=[against("bad", DENIED)], hooks=[hooks])
    with pytest.raises(GuardrailDenied, match=r"^guardrail 'words' denied the input: not this$") as caught:
        await go(App().observe(events.append), agent, "a bad word")
    assert type(caught.value) is GuardrailDenied
    assert caught.value.validation == Validation("words", "", "words", "input", False, "deny", "not this")
    assert (log, model.calls) == (["on_error"], [])
    assert not [event for event in events if isinstance(event, TextDelta | ModelStarted)]


async def test_g3_a_denied_input_may_be_mended_by_on_error(go: Go) -> None:
    agent, model = setup([], input=[against("bad", DENIED)], hooks=[{"on_error": lambda error, ctx: "sorry"}])
    result = await go(App(), agent, "a bad word")
    assert (result.text, result.degraded, result.blocked, result.blocked_by) == ("sorry", True, True, "words")
    assert (found(result), model.calls) == ([("words", "deny")], [])


@pytest.mark.parametrize("answer", [FOUND, DENIED])
async def test_g2_a_guard_that_takes_its_time_is_waited_for(go: Go, answer: Any) -> None:
    """B13: nothing is asked, run or sent while a guard is still judging."""
    ran: list[Any] = []
    events: list[Event] = []

    @guardrail("slow")
    async def slow(text: str, ctx: Context) -> Any:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert (model.calls, ran, [event for event in events if isinstance(event, TextDelta)]) == ([], [], [])
        return answer

    agent, model = setup([[ToolUse("work")], "done"], input=[slow], tools=[working(ran)])
    app = App().observe(events.append)
    if answer is DENIED:
        with pytest.raises(GuardrailDenied):
            await go(app, agent, "hi")
        assert [event for event in events if isinstance(event, TextDelta)] == []
    else:
        result = await go(app, agent, "hi")
        assert (result.text, result.finish_reason, len(result.validations)) == (CANNED, "safety", 1)
        assert {event.text for event in events if isinstance(event, TextDelta)} <= {CANNED}
    assert (model.calls, ran) == ([], [])


async def test_g1_what_a_guard_sees_on_the_way_in(go: Go) -> None:
    seen: list[Any] = []

    @guardrail("look")
    def look(text: str, ctx: Context) -> None:
        seen.append((text, ctx.direction, ctx.channel, ctx.message, ctx.reply, ctx.messages, ctx.turn))

    history = [User("before"), Assistant("then")]
    message = User([Text("see"), PICTURE], name="eve")
    agent, _ = setup(["fine"], input=[look])
    await go(App(), agent, message, history=history)
    assert seen == [("see", "input", "message", message, None, tuple(history), 0)]


async def test_g1_outside_of_guards_there_is_no_message_under_judgement(go: Go) -> None:
    def hook(text: str, ctx: Context) -> None:
        for name in ("message", "reply", "direction", "channel"):
            with pytest.raises(AttributeError, match=rf"ctx\.{name} exists inside guards only"):
                getattr(ctx, name)

    agent, _ = setup(["fine"], input=[noting([])], hooks=[{"before_prompt": hook}])
    await go(App(), agent, "hi")


# --- Rewrite (G4) ----------------------------------------------------------------------------------------------------


async def test_g4_a_rewritten_input_is_what_layers_hooks_history_and_the_model_have(go: Go) -> None:
    seen: list[Any] = []

    async def look(call: Any, next: Any) -> None:
        seen.append(call.input)
        await next()

    hooks = {"before_run": lambda input, ctx: seen.append(input)}
    agent, model = setup(["fine"], input=[redacting("bad")], hooks=[hooks])
    result = await go(App().use(agent=look), agent, "a bad word")
    assert seen == ["a *** word"] * 2, "a text stays a text"
    assert model.calls[0].messages == (User("a *** word"),)
    assert (result.messages[0], found(result)) == (User("a *** word"), [("redact", "rewrite")])


async def test_g4_a_rewritten_message_stays_a_message_and_parts_stay_parts(go: Go) -> None:
    seen: list[Any] = []
    hooks = {"before_run": lambda input, ctx: seen.append(input)}
    agent, _ = setup(["fine"] * 2, input=[redacting("bad")], hooks=[hooks])
    await go(App(), agent, User("bad", name="eve"))
    await go(App(), agent, [Text("bad"), PICTURE])
    assert seen == [User("***", name="eve"), (Text("***"), PICTURE)]


async def test_g4_an_agent_that_owns_its_step_gets_the_rewritten_input(go: Go) -> None:
    seen: list[Any] = []

    class Owning(Agent):
        async def run(self, input: Any, ctx: Context) -> str:
            seen.append(input)
            return (await ctx.chat(input)).text

    async def swear(call: Any, next: Any) -> Any:
        return await next(call.replace(input="a very bad word"))

    model = ScriptedModel(lambda call: call.messages[-1].text)
    agent = Owning(model=model, guardrails={"input": [redacting("bad")]})
    assert (await go(App(), agent, "a bad word")).text == "a *** word"
    assert (await go(App().use(agent=swear), agent, "hi")).text == "a very *** word"
    assert seen == ["a *** word", "a very *** word"]


# --- parts (B19) -----------------------------------------------------------------------------------------------------


async def test_b19_each_text_part_is_judged_and_other_parts_are_left_alone(go: Go) -> None:
    log: list[str] = []
    parts: list[Any] = [Text("hi"), PICTURE, Text("wire transfer"), Text(""), Text("wire transfer")]
    agent, model = setup(["fine"], input=[noting(log), redacting("wire")])
    result = await go(App(), agent, parts)
    assert log == ["hi", "wire transfer", "wire transfer"]
    expected = (Text("hi"), PICTURE, Text("*** transfer"), Text(""), Text("*** transfer"))
    assert model.calls[0].messages[0].content == expected == result.messages[0].content
    agent, model = setup(["fine"], input=[against("wire transfer")])
    blocked = await go(App(), agent, parts)
    assert (blocked.blocked, model.calls) == (True, [])
    assert blocked.messages[0] == User(parts, blocked=True)


@pytest.mark.parametrize("input", [[], [PICTURE], "", [Text("")]])
async def test_b19_a_message_without_text_asks_no_guard(go: Go, input: Any) -> None:
    log: list[str] = []
    agent, _ = setup(["fine"], input=[noting(log), against("")])
    assert ((await go(App(), agent, input)).text, log) == ("fine", [])


# --- judged again if it was changed (G6) -----------------------------------------------------------------------------


async def keep(call: Any, next: Any) -> Any:
    return await next()


async def equal(call: Any, next: Any) -> Any:
    return await next(call.replace(input=User(call.input)))


@pytest.mark.parametrize("layer", [keep, equal])
async def test_g6_an_input_that_nobody_changed_is_judged_once(go: Go, layer: Any) -> None:
    log: list[str] = []
    agent, _ = setup(["fine"], input=[noting(log)], hooks=[{"before_run": lambda input, ctx: None}])
    await go(App().use(agent=layer), agent, "hi")
    assert log == ["hi"]


async def test_g6_a_rewritten_input_is_not_judged_again(go: Go) -> None:
    log: list[str] = []
    agent, _ = setup(["fine"], input=[redacting("bad"), noting(log)])
    await go(App().use(agent=keep), agent, "a bad word")
    assert log == ["a *** word"]


@pytest.mark.parametrize("where", ["hook", "layer", "both"])
@pytest.mark.parametrize("answer", [FOUND, DENIED, lambda text: "clean"])
async def test_g6_an_input_that_a_hook_or_layer_changed_is_judged_again(go: Go, where: str, answer: Any) -> None:
    seen: list[Any] = []

    async def change(call: Any, next: Any) -> None:
        result = await next(call.replace(input="worse"))
        seen.append(result.text)

    log: list[str] = []
    hooks = {
        "before_run": lambda input, ctx: None if where == "layer" else "a bad word",
        "before_prompt": lambda prompt, ctx: log.append("before_prompt"),
        "after_run": lambda result, ctx: log.append("after_run"),
        "on_error": lambda error, ctx: "denied",
    }
    bad = "worse" if where == "layer" else "bad"
    agent, model = setup(["fine"], input=[noting(log), against(bad, answer)], hooks=[hooks])
    result = await go(App() if where == "hook" else App().use(agent=change), agent, "hi")
    assert log[:2] == ["hi", "worse" if where == "layer" else "a bad word"]
    if answer in (FOUND, DENIED):
        assert (log[2:], model.calls, result.blocked) == ([], [], True)
        assert result.text == (CANNED if answer is FOUND else "denied")
        if answer is FOUND:
            assert result.messages[0].blocked  # type: ignore[union-attr]
            assert seen == ([] if where == "hook" else [CANNED])
    else:
        assert log[2:] == ["before_prompt", "after_run"]
        assert (model.calls[0].messages[0].text, result.text) == ("clean", "fine")


@pytest.mark.parametrize("where", ["hook", "layer"])
@pytest.mark.parametrize("answer", [FOUND, DENIED])
async def test_g6_what_was_blocked_is_judged_again_when_it_is_tried_again(go: Go, where: str, answer: Any) -> None:
    """A layer that tries again whatever failed must not get through with what was just refused."""

    @repeats
    async def stubborn(call: Any, next: Any) -> Any:
        changed = call.replace(input="a bad word") if where == "layer" else call
        for _ in range(2):
            with suppress(GuardrailDenied):
                await next(changed)
        return await next(changed)

    hooks = [{"before_run": lambda input, ctx: "a bad word"}] if where == "hook" else []
    agent, model = setup(["fine"], input=[against("bad", answer)], hooks=hooks)
    if answer is DENIED:
        with pytest.raises(GuardrailDenied):
            await go(App().use(agent=stubborn), agent, "hi")
    else:
        assert (await go(App().use(agent=stubborn), agent, "hi")).blocked
    assert model.calls == []


async def test_g6_a_run_layer_that_changes_the_input_does_so_before_it_is_judged(go: Go) -> None:
    async def change(call: Any, next: Any) -> Any:
        return await next(call.replace(input="a bad word"))

    log: list[str] = []
    agent, model = setup(["fine"], input=[noting(log), against("bad")])
    result = await go(App().use(run=change), agent, "hi")
    assert (log, result.blocked, model.calls) == (["a bad word"], True, [])


async def test_g6_what_a_chat_layer_sends_is_its_own_affair(go: Go) -> None:
    async def add(call: Any, next: Any) -> Any:
        return await next(call.replace(messages=[*call.messages, User("a bad word")]))

    agent, model = setup(["fine"], input=[against("bad")])
    result = await go(App().use(chat=add), agent, "hi")
    assert (result.text, model.calls[0].messages[-1].text) == ("fine", "a bad word")


# --- history (G8, C4) ------------------------------------------------------------------------------------------------


async def test_b15_a_block_does_not_follow_the_conversation(go: Go) -> None:
    """B15: a guard judges the new message and this reply; what was blocked before blocks nothing any more."""
    agent, model = setup(["a bad word", "a clean one"], input=[against("bad")], output=[against("bad")])
    app = App()
    first = await go(app, agent, "a bad question")
    second = await go(app, agent, "hello", history=first.messages)
    third = await go(app, agent, "and now?", history=[*first.messages, *second.messages])
    assert [result.blocked for result in (first, second, third)] == [True, True, False]
    assert third.text == "a clean one"
    assert model.calls[-1].messages == (User("hello"), *second.messages[1:], User("and now?"))
    assert found(third) == [("words", "allow")] * 2


async def test_g8_a_blocked_input_and_its_answer_are_in_history_and_never_sent(go: Go) -> None:
    agent, model = setup(["fine"] * 3, input=[against("bad")], instructions="P")
    app = App()
    blocked = await go(app, agent, "a bad word", history=[User("one"), Assistant("two")])
    assert blocked.messages == BLOCKED
    await go(app, agent, "hello", history=[User("one"), Assistant("two"), *blocked.messages])
    assert model.calls[-1].messages == (System("P"), User("one"), Assistant("two"), User("hello"))
    await go(app, agent, "hello", history=[*BLOCKED, *BLOCKED, User("one"), Assistant("two"), *BLOCKED])
    assert model.calls[-1].messages == (System("P"), User("one"), Assistant("two"), User("hello"))


async def test_g8_the_marks_travel_with_a_history_that_was_stored(go: Go) -> None:
    agent, model = setup(["fine"] * 2, input=[against("bad")])
    blocked = await go(App(), agent, "a bad word")
    stored = dump(blocked.messages)
    assert tuple(load(stored)) == blocked.messages
    await go(App(), agent, "hello", history=stored)
    assert model.calls[-1].messages == (User("hello"),)
    for data in stored:
        data.pop("blocked")
    await go(App(), agent, "hello", history=stored)
    assert len(model.calls[-1].messages) == 3, "without the marks they are messages like any other"


async def test_g8_a_canned_answer_that_a_run_layer_reworded_is_not_sent_either(go: Go) -> None:
    async def reword(call: Any, next: Any) -> Any:
        result = await next()
        return result.replace(text="in other words") if result.blocked else None

    agent, model = setup(["fine"], input=[against("bad")])
    app = App().use(run=reword)
    blocked = await go(app, agent, "a bad word")
    assert blocked.messages == (BLOCKED[0], Assistant("in other words", finish_reason="safety", blocked=True))
    await go(app, agent, "hello", history=blocked.messages)
    assert model.calls[-1].messages == (User("hello"),)


async def test_c4_an_exchange_that_was_blocked_after_tools_ran_is_a_valid_history(go: Go) -> None:
    use = ToolUse("work", {}, "c1")
    agent, model = setup([["fine", use], "a bad word", "fine"], output=[against("bad")], tools=[working([])])
    first = await go(App(), agent, "hi")
    await go(App(), agent, "go on", history=first.messages)
    assert model.calls[-1].messages == (
        User("hi"),
        Assistant("fine", [use], finish_reason="tool_calls"),
        ToolMessage("worked", "c1", "work"),
        Assistant(CANNED, finish_reason="safety", blocked=True),
        User("go on"),
    )


# --- nested steps (M9) -----------------------------------------------------------------------------------------------


async def test_m9_a_nested_step_is_judged_by_the_apps_guards_and_its_own(go: Go) -> None:
    log: list[Any] = []

    def note(name: str) -> Any:
        return guardrail(name)(lambda text, ctx: log.append((name, ctx.agent.name, ctx.direction, text)))

    inner = Agent(
        name="inner", model=ScriptedModel(["in answer"]), guardrails={"input": [note("own")], "output": [note("own")]}
    )

    @tool
    async def delegate(ctx: Context) -> str:
        return (await ctx.run(inner, "in question")).text

    outer = Agent(
        name="outer",
        model=ScriptedModel([[ToolUse("delegate")], "out answer"]),
        tools=[delegate],
        guardrails={"output": [note("outer's")]},
    )
    app = App().guard(input=[note("app")], output=[note("app")])
    result = await go(app, outer, "out question", guardrails={"output": [note("run")]})
    assert log == [
        ("app", "outer", "input", "out question"),
        ("app", "inner", "input", "in question"),
        ("own", "inner", "input", "in question"),
        ("app", "inner", "output", "in answer"),
        ("own", "inner", "output", "in answer"),
        ("run", "inner", "output", "in answer"),
        ("app", "outer", "output", "out answer"),
        ("outer's", "outer", "output", "out answer"),
        ("run", "outer", "output", "out answer"),
    ]
    assert [name for name, _ in found(result)] == ["app", "app", "outer's", "run"]


@pytest.mark.parametrize("side", ["input", "output"])
async def test_m9_a_blocked_nested_step_is_a_blocked_result_for_its_caller_alone(go: Go, side: str) -> None:
    nested: list[Result] = []
    inner, model = setup(["a bad answer"], **{side: [against("bad")]})

    @tool
    async def delegate(ctx: Context) -> str:
        nested.append(await ctx.run(inner, "a bad question"))
        return nested[-1].text

    outer, _ = setup([[ToolUse("delegate")], "done"], tools=[delegate])
    events: list[Event] = []
    result = await go(App().observe(events.append), outer, "hi")
    assert (nested[0].text, nested[0].blocked, nested[0].blocked_by) == (CANNED, True, "words")
    assert (result.text, result.blocked, result.validations) == ("done", False, ())
    assert len(model.calls) == (side == "output")
    (fired,) = [event for event in events if isinstance(event, GuardrailFired)]
    (_, inner_started) = [event for event in events if isinstance(event, AgentStarted)]
    assert fired.step == inner_started.step


async def test_m9_a_denied_nested_step_ends_the_step_that_did_not_catch_it(go: Go) -> None:
    inner, _ = setup([], input=[against("bad", DENIED)])

    @tool
    async def delegate(ctx: Context) -> str:
        return (await ctx.run(inner, "a bad question")).text

    outer, _ = setup(
        [[ToolUse("delegate")], "done"], tools=[delegate], hooks=[{"on_error": lambda error, ctx: "sorry"}]
    )
    result = await go(App(), outer, "hi")
    assert (result.text, result.degraded, result.blocked, result.blocked_by) == ("sorry", True, True, "words")
    assert found(result) == [("words", "deny")]


async def test_h8_an_agent_that_owns_its_step_is_guarded_on_both_sides(go: Go) -> None:
    ran: list[str] = []

    class Owning(Agent):
        async def run(self, input: Any, ctx: Context) -> Any:
            ran.append(input)
            return "an answer" if input == "hi" else Result("a bad answer")

    agent = Owning(guardrails={"input": [against("bad")], "output": [against("bad")]})
    assert (await go(App(), agent, "hi")).text == "an answer"
    blocked = await go(App(), agent, "a bad question")
    assert (blocked.text, blocked.blocked, ran) == (CANNED, True, ["hi"])
    answered = await go(App(), agent, "ho")
    assert (answered.text, answered.blocked, found(answered)) == (
        CANNED,
        True,
        [("words", "allow"), ("words", "enforced")],
    )


async def test_g4_metadata_and_score_of_a_rewrite_are_recorded(go: Go) -> None:
    agent, _ = setup(["fine"], input=[against("bad", Rewrite("good", "softened", {"n": 1}, 0.4), id="R-1")])
    result = await go(App(), agent, "bad")
    assert result.validations == (
        Validation("words", "R-1", "words", "input", True, "rewrite", "softened", 0.4, {"n": 1}),
    )


async def test_g8_a_reply_that_a_chat_layer_gave_is_judged_like_the_models(go: Go) -> None:
    async def cached(call: Any, next: Any) -> ChatReply:
        return ChatReply("a bad word", (ToolUse("work"),))

    ran: list[Any] = []
    agent, model = setup([], output=[against("bad")], tools=[working(ran)])
    result = await go(App().use(chat=cached), agent, "hi")
    assert (result.blocked, ran, model.calls) == (True, [], [])
