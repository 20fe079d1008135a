"""Limits in nested steps, and what usage is counted as (L1, L2, L4, A6)."""

from __future__ import annotations

from typing import Any

import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatCall,
    Context,
    LimitExceeded,
    Limits,
    ModelUnavailable,
    Result,
    TextDelta,
    TextReset,
    ToolUse,
    Usage,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go
from .spending import SPENT, Pinger, Watched, refused

pytestmark = pytest.mark.anyio


# L1: nested steps


class Nest(Agent):
    """Runs itself `levels` deep."""

    def __init__(self, levels: int) -> None:
        self.levels = levels
        super().__init__(name=f"nest{levels}", model=ScriptedModel(lambda call: f"{call.ctx.get('deepest', 0)} deep"))

    async def before_run(self, input: Any, ctx: Context) -> None:
        if self.levels:
            ctx.deepest = ctx.get("deepest", 0) + 1
            await ctx.run(Nest(self.levels - 1), "q")


async def test_l1_depth_counts_nested_steps(go: Go) -> None:
    assert (await go(App(limits=Limits(depth=1)), Nest(1), "q")).text == "1 deep"
    await refused(go, Limits(depth=1), Nest(2), "depth", 1)
    await refused(go, Limits(depth=0), Nest(1), "depth", 0)


async def test_l1_the_default_is_a_depth_of_16(go: Go) -> None:
    await refused(go, Limits(), Nest(levels=17), "depth", 16)
    assert (await go(App(), Nest(levels=16), "q")).text == "16 deep"


async def test_l1_steps_one_after_the_other_are_not_deeper(go: Go) -> None:
    async def three(input: Any, ctx: Context) -> None:
        for _ in range(3):
            await ctx.run(Pinger(), "q")

    assert (await go(App(limits=Limits(depth=1)), Pinger(hooks=[{"before_run": three}]), "q")).text == "done"


@pytest.mark.parametrize(("name", "enough", "little"), [("chat_calls", 4, 3), ("tool_calls", 2, 1), ("tokens", 40, 30)])
async def test_l1_a6_what_nested_steps_spend_counts_for_the_run(
    go: Go, name: str, enough: float, little: float
) -> None:
    def parent() -> Agent:
        async def nested(input: Any, ctx: Context) -> None:
            result = await ctx.run(Pinger(usage=SPENT), "q")
            assert result.usage == SPENT + SPENT + Usage(requests=2)

        return Pinger(usage=SPENT, hooks=[{"before_run": nested}])

    result = await go(App(limits=Limits(**{name: enough})), parent(), "q")  # type: ignore[arg-type]
    assert result.usage == Usage(input_tokens=24, output_tokens=16, cost=2.0, requests=4)
    with pytest.raises(LimitExceeded, match=f"{name}={little} "):
        await go(App(limits=Limits(**{name: little})), parent(), "q")  # type: ignore[arg-type]


async def test_the_limits_of_an_agent_hold_for_its_own_steps_only(go: Go) -> None:
    async def nested(input: Any, ctx: Context) -> None:
        assert (await ctx.run(Pinger(rounds=1, limits=Limits(chat_calls=2)), "q")).text == "done"
        with pytest.raises(LimitExceeded, match="chat_calls=1 "):
            await ctx.run(Pinger(rounds=1, limits=Limits(chat_calls=1)), "q")

    assert (await go(App(), Pinger(rounds=3, hooks=[{"before_run": nested}]), "q")).text == "done"


async def test_l2_a_nested_step_that_stops_at_its_own_limit_does_not_stop_its_caller(go: Go) -> None:
    seen: list[Result] = []

    async def nested(input: Any, ctx: Context) -> None:
        seen.append(await ctx.run(Pinger(rounds=3, limits=Limits(turns=1, on_exceed="stop")), "q"))

    result = await go(App(), Pinger(hooks=[{"before_run": nested}]), "q")
    assert (seen[0].text, seen[0].finish_reason, seen[0].stopped_by) == ("round 1", "limit", "limit")
    assert (result.text, result.finish_reason, result.stopped_by) == ("done", "stop", None)


def delegating(on_exceed: str) -> tuple[App, Agent, list[Result]]:
    """An agent whose tool runs another one; the run allows two model calls, one for each of them."""
    seen: list[Result] = []

    @tool
    async def delegate(ctx: Context) -> str:
        seen.append(await ctx.run(Pinger(), "sub"))
        return seen[-1].text

    app = Watched(limits=Limits(chat_calls=2, on_exceed=on_exceed))  # type: ignore[arg-type]
    return app, Agent(name="boss", model=ScriptedModel([["boss", ToolUse("delegate")], "done"]), tools=[delegate]), seen


async def test_l2_a_limit_of_the_run_stops_a_nested_step_and_then_its_callers(go: Go) -> None:
    app, agent, seen = delegating("stop")
    result = await go(app, agent, "q")
    assert [(one.text, one.finish_reason, one.stopped_by) for one in seen] == [("round 1", "limit", "limit")]
    assert (result.text, result.finish_reason, result.stopped_by) == ("boss", "limit", "limit")
    assert [message.text for message in result.messages] == ["q", "boss", "round 1"]


async def test_t4_l2_a_limit_raised_in_a_nested_step_is_never_turned_into_a_tools_result(go: Go) -> None:
    app, agent, seen = delegating("raise")
    with pytest.raises(LimitExceeded, match="chat_calls=2 ") as caught:
        await go(app, agent, "q")
    assert seen == []
    assert caught.value.result.agent == "boss"  # the partial result is the run's, not the nested step's
    assert [message.text for message in caught.value.result.messages][:2] == ["q", "boss"]


# L2


async def test_h7_on_error_gets_a_limit_with_its_partial_result_and_may_answer(go: Go) -> None:
    seen: list[LimitExceeded] = []

    def recover(error: LimitExceeded, ctx: Context) -> str:
        seen.append(error)
        return f"as far as I got: {error.result.text}"

    agent = Pinger(rounds=3, hooks=[{"on_error": recover}])
    result = await go(App(limits=Limits(turns=2)), agent, "q")
    assert (result.text, result.degraded, result.finish_reason) == ("as far as I got: round 2", True, "degraded")
    assert result.error is seen[0]


async def test_l2_a_stopped_step_does_not_fail_so_on_error_is_not_asked(go: Go) -> None:
    def never(error: Exception, ctx: Context) -> str:
        raise AssertionError

    agent = Pinger(rounds=3, hooks=[{"on_error": never}])
    assert (await go(App(limits=Limits(turns=1, on_exceed="stop")), agent, "q")).text == "round 1"


@pytest.mark.parametrize("name", ["turns", "chat_calls", "tool_calls"])
async def test_s1_what_was_streamed_of_a_stopped_run_is_what_its_result_says(name: str) -> None:
    app = App(limits=Limits(**{name: 1}, on_exceed="stop"))
    said: dict[int, str] = {}
    async with app.stream(Pinger(rounds=3), "q") as stream:
        async for event in stream:
            if isinstance(event, TextReset):
                said.pop(event.turn)
            elif isinstance(event, TextDelta):
                said[event.turn] = said.get(event.turn, "") + event.text
    answers = [message.text for message in stream.result.messages if isinstance(message, Assistant)]
    assert list(said.values()) == answers


async def test_l1_a_layer_may_catch_a_limit_and_answer(go: Go) -> None:
    async def fall_back(call: ChatCall, next: Any) -> Any:
        try:
            return await next()
        except LimitExceeded as error:
            return f"no more {error.limit}"

    result = await go(App(limits=Limits(chat_calls=1)).use(chat=fall_back), Pinger(), "q")
    assert (result.text, result.stopped_by) == ("no more chat_calls", None)


# L4


async def test_l4_usage_is_counted_at_the_model_call_whatever_fails_later(go: Go) -> None:
    async def fail_late(call: ChatCall, next: Any) -> Any:
        await next()
        raise ValueError

    spent: list[Usage] = []

    def recover(error: Exception, ctx: Context) -> str:
        spent.append(ctx.usage)
        return "degraded"

    agent = Pinger(usage=SPENT, hooks=[{"on_error": recover}])
    result = await go(App().use(chat=fail_late), agent, "q")
    assert (result.text, result.usage) == ("degraded", SPENT + Usage(requests=1))
    assert spent == [SPENT + Usage(requests=1)]


@pytest.mark.parametrize("scope", ["chat", "agent", "run"])
async def test_l4_an_answer_made_by_a_layer_does_not_hide_what_was_spent(go: Go, scope: str) -> None:
    async def replace(call: Any, next: Any) -> str:
        await next()
        return "mine"

    result = await go(App().use(**{scope: replace}), Pinger(rounds=0, usage=SPENT), "q")
    assert (result.text, result.usage) == ("mine", SPENT + Usage(requests=1))


async def test_l4_a_failed_call_counts_as_a_request_and_reports_no_tokens(go: Go) -> None:
    agent = Agent(model=ScriptedModel([ModelUnavailable("down")]), hooks=[{"on_error": lambda error, ctx: "sorry"}])
    assert (await go(App(), agent, "q")).usage == Usage(requests=1)


async def test_usage_is_always_present_and_what_nobody_reported_is_none(go: Go) -> None:
    async def short(call: Any, next: Any) -> str:
        return "cached"

    for scope in ("run", "agent", "chat"):
        assert (await go(App().use(**{scope: short}), Pinger(), "q")).usage == Usage()
    assert (await go(App(), Pinger(rounds=0), "q")).usage == Usage(requests=1)
    partly = Pinger(rounds=1, usage=Usage(output_tokens=3))
    assert (await go(App(), partly, "q")).usage == Usage(output_tokens=6, requests=2)


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_l4_a_usage_that_a_layer_gives_itself_is_that_of_the_result(go: Go, scope: str) -> None:
    async def bill(call: Any, next: Any) -> Any:
        result = await next()
        return result.replace(usage=Usage(total_tokens=7))

    result = await go(App().use(**{scope: bill}), Pinger(rounds=0, usage=SPENT), "q")
    assert result.usage == Usage(total_tokens=7)
