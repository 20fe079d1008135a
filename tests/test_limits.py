"""What a run may spend: every limit, exactly n, one more, and 0 (L1, L2). Nested steps are in `test_usage`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    ConfigurationError,
    Context,
    LimitExceeded,
    LimitReached,
    Limits,
    ModelUnavailable,
    Result,
    RunFinished,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolUse,
    Usage,
    repeats,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go
from .spending import PING, SPENT, Pinger, Watched, ping, refused

pytestmark = pytest.mark.anyio


async def stopped(go: Go, limits: dict[str, Any], agent: Agent) -> Result:
    """The result of a run that stops at a limit."""
    app = Watched(limits=Limits(**limits, on_exceed="stop"))
    result = await go(app, agent, "q")
    assert (result.finish_reason, result.stopped_by, result.degraded) == ("limit", "limit", False)
    assert {event.limit for event in app.of(LimitReached)} == set(limits)  # type: ignore[attr-defined]
    assert app.of(RunFinished) == [RunFinished("stopped")]
    return result


# Every limit: exactly n is allowed, one more is not, and 0 is a limit.
# name, a limit that three turns with two calls each just keep, one that they do not, model calls by then
EACH: list[tuple[str, float, float, int]] = [
    ("turns", 3, 2, 2),
    ("chat_calls", 3, 2, 2),
    ("tool_calls", 4, 3, 2),
    ("tokens", 30, 20, 2),
    ("tokens", 21, 11, 2),  # known afterwards: the call that crosses is the last
    ("cost", 1.5, 1.0, 2),
    ("cost", 1.1, 0.6, 2),
]


def busy(**options: Any) -> Pinger:
    return Pinger(rounds=2, calls=2, usage=SPENT, **options)


@pytest.mark.parametrize(("name", "enough", "little", "calls"), EACH)
async def test_l1_exactly_n_is_allowed_and_is_not_exceeded(
    go: Go, name: str, enough: float, little: float, calls: int
) -> None:
    for on_exceed in ("raise", "stop"):
        app = Watched(limits=Limits(**{name: enough}, on_exceed=on_exceed))  # type: ignore[arg-type]
        result = await go(app, busy(), "q")
        assert (result.text, result.finish_reason, result.stopped_by) == ("done", "stop", None)
        assert app.of(LimitReached) == []
        assert app.of(RunFinished) == [RunFinished("completed")]


@pytest.mark.parametrize(("name", "enough", "little", "calls"), EACH)
async def test_l2_raise_gives_the_limit_the_value_and_the_partial_result(
    go: Go, name: str, enough: float, little: float, calls: int
) -> None:
    agent = busy()
    error = await refused(go, Limits(**{name: little}), agent, name, little)  # type: ignore[arg-type]
    assert len(agent.scripted.calls) == calls
    ran = [message.text for message in error.result.messages if message.role == "tool"]
    assert ran == ["pong"] * (2 if name in {"turns", "tool_calls"} else 4)
    assert error.result.usage == Usage(input_tokens=12, output_tokens=8, cost=1.0, requests=2)


@pytest.mark.parametrize(("name", "enough", "little", "calls"), EACH)
async def test_l2_stop_gives_the_result_so_far(go: Go, name: str, enough: float, little: float, calls: int) -> None:
    agent = busy()
    result = await stopped(go, {name: little}, agent)
    assert len(agent.scripted.calls) == calls
    assert result.text == result.message.text == "round 2"
    assert result.usage.requests == 2


@pytest.mark.parametrize(("name", "enough", "little", "calls"), EACH)
async def test_a_limit_that_was_reached_is_told_once(
    go: Go, name: str, enough: float, little: float, calls: int
) -> None:
    app = Watched(limits=Limits(**{name: little}, on_exceed="stop"))  # type: ignore[arg-type]
    await go(app, busy(), "q")
    assert app.of(LimitReached) == [LimitReached(name, little)]


@pytest.mark.parametrize("name", ["turns", "chat_calls", "tokens", "cost"])
async def test_l1_zero_is_a_limit_and_is_checked_before_spending(go: Go, name: str) -> None:
    agent, none = Pinger(), dict[str, Any]({name: 0})
    error = await refused(go, Limits(**none), agent, name, 0)
    assert agent.scripted.calls == []
    assert (error.result.text, error.result.usage) == ("", Usage())
    assert [message.role for message in error.result.messages] == ["user"]
    assert (await stopped(go, none, agent)).text == ""


async def test_l1_zero_tool_calls_allow_a_run_that_calls_none(go: Go) -> None:
    assert (await go(App(limits=Limits(tool_calls=0)), Pinger(rounds=0), "q")).text == "done"
    await refused(go, Limits(tool_calls=0), Pinger(), "tool_calls", 0)


async def test_l1_zero_depth_allows_the_first_step(go: Go) -> None:
    assert (await go(App(limits=Limits(depth=0)), Pinger(), "q")).text == "done"


async def test_l1_none_is_no_limit(go: Go) -> None:
    agent = Pinger(rounds=12, usage=SPENT)
    assert (await go(App(limits=Limits(turns=None, depth=None)), agent, "q")).text == "done"


async def test_l1_the_default_is_10_turns(go: Go) -> None:
    assert Limits() == Limits(turns=10, depth=16, on_exceed="raise")
    assert (await go(App(), Pinger(rounds=9), "q")).text == "done"
    await refused(go, Limits(), Pinger(rounds=10), "turns", 10)


@pytest.mark.parametrize("name", [name for name in Limits.__dataclass_fields__ if name != "on_exceed"])
@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), "3", [1]])
def test_l1_what_is_no_limit_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"Limits\({name}=.*; give a (whole )?number from 0 up, or None"):
        Limits(**{name: value})


@pytest.mark.parametrize("where", ["app", "run", "agent"])
async def test_limits_are_given_to_the_app_to_a_run_or_to_an_agent(go: Go, where: str) -> None:
    few = Limits(turns=1)
    app = App(limits=few if where == "app" else None)
    with pytest.raises(LimitExceeded, match="turns=1 "):
        await go(
            app, Pinger(limits=few if where == "agent" else None), "q", **({"limits": few} if where == "run" else {})
        )


async def test_the_limits_of_a_run_take_the_place_of_the_apps(go: Go) -> None:
    app = App(limits=Limits(chat_calls=0))
    assert (await go(app, Pinger(), "q", limits=Limits(chat_calls=2))).text == "done"
    with pytest.raises(LimitExceeded):
        await go(app, Pinger(), "q")


async def test_one_run_does_not_spend_what_another_may(go: Go) -> None:
    app = App(limits=Limits(chat_calls=2, tool_calls=1))
    for _ in range(3):
        assert (await go(app, Pinger(), "q")).text == "done"


async def test_ctx_limits_and_ctx_usage_tell_what_may_be_and_what_was_spent(go: Go) -> None:
    seen: list[Any] = []

    async def look(call: ChatCall, next: Any) -> None:
        seen.append((call.ctx.limits, call.ctx.usage.requests, call.ctx.usage.total_tokens))
        await next()

    limits = Limits(turns=5)
    await go(App(limits=limits).use(chat=look), busy(), "q")
    assert seen == [(limits, None, None), (limits, 1, 10), (limits, 2, 20)]


# L1: turns


async def test_l1_turns_count_every_turn_answered_by_a_layer_or_not(go: Go) -> None:
    asked: list[int] = []

    async def again(call: ChatCall, next: Any) -> ChatReply:
        asked.append(call.ctx.turn)
        return ChatReply("", (PING,))

    with pytest.raises(LimitExceeded, match="turns=3 "):
        await go(App(limits=Limits(turns=3)).use(chat=again), Pinger(), "q")
    assert asked == [1, 2, 3]


async def test_l1_turns_are_per_step(go: Go) -> None:
    async def nested(input: Any, ctx: Context) -> None:
        for _ in range(3):
            assert (await ctx.run(Pinger(), "q")).text == "done"

    agent = Pinger(hooks=[{"before_run": nested}])
    assert (await go(App(limits=Limits(turns=2)), agent, "q")).text == "done"


async def test_t1_when_no_further_turn_is_allowed_the_last_replys_tools_do_not_run(go: Go) -> None:
    agent = Pinger(rounds=3)
    result = await stopped(go, {"turns": 2}, agent)
    assert [message.text for message in result.messages] == ["q", "round 1", "pong", "round 2"]
    assert result.message == Assistant("round 2", finish_reason=result.message.finish_reason)
    assert [message.tool_calls for message in result.messages if isinstance(message, Assistant)][-1] == ()


# L1: what counts is what was spent


async def test_l1_a_model_call_that_a_layer_answered_does_not_count(go: Go) -> None:
    async def cache(call: ChatCall, next: Any) -> Any:
        return ChatReply("cached", (PING,)) if call.ctx.turn < 3 else await next()

    agent = Pinger(rounds=0)
    result = await go(App(limits=Limits(chat_calls=1)).use(chat=cache), agent, "q")
    assert (result.text, result.usage.requests, len(agent.scripted.calls)) == ("done", 1, 1)


async def test_l1_l4_every_attempt_counts(go: Go) -> None:
    async def retry(call: ChatCall, next: Any) -> Any:
        for _ in range(2):
            try:
                return await next()
            except ModelUnavailable:
                continue
        return await next()

    down = ModelUnavailable("down")
    app = App().use(chat=retry)
    result = await go(app, Agent(model=ScriptedModel([down, down, ChatReply("a", usage=SPENT)])), "q")
    assert result.usage == SPENT + Usage(requests=3)
    model = ScriptedModel([down, down, "a"])
    with pytest.raises(LimitExceeded, match="chat_calls=2 "):
        await go(app, Agent(model=model), "q", limits=Limits(chat_calls=2))
    assert len(model.calls) == 2


async def test_l4_a_repeated_call_counts_twice(go: Go) -> None:
    @repeats
    async def best_of_two(call: ChatCall, next: Any) -> Any:
        await next()
        return await next()

    result = await go(App().use(chat=best_of_two), Agent(model=ScriptedModel([ChatReply("a", usage=SPENT)] * 2)), "q")
    assert result.usage == SPENT + SPENT + Usage(requests=2)


async def test_l1_a_tool_call_that_a_layer_answered_does_not_count(go: Go) -> None:
    async def stub(call: ToolCall, next: Any) -> Any:
        return "stubbed" if call.ctx.turn < 3 else await next()

    assert (await go(App(limits=Limits(tool_calls=1)).use(tool=stub), Pinger(rounds=3), "q")).text == "done"


@pytest.mark.parametrize("arguments", ["{not json", "[]", '{"unknown": 1}'])
async def test_l1_calls_that_do_not_run_do_not_count(go: Go, arguments: str) -> None:
    """T5: unknown tools and arguments that do not fit."""
    uses = [ToolUse("ghost"), ToolUse("ping", arguments), PING]
    agent = Agent(model=ScriptedModel([uses, "done"]), tools=[ping])
    result = await go(App(limits=Limits(tool_calls=1)), agent, "q")
    assert [message.is_error for message in result.messages if isinstance(message, ToolMessage)] == [True, True, False]


async def test_l1_calls_of_a_reply_that_was_cut_off_do_not_count(go: Go) -> None:
    """T8."""
    cut = ChatReply("", (PING,) * 3, finish_reason="length")
    agent = Agent(model=ScriptedModel([cut, [PING], "done"]), tools=[ping])
    assert (await go(App(limits=Limits(tool_calls=1)), agent, "q")).text == "done"


async def test_l1_the_tool_calls_of_one_reply_are_admitted_together_or_not_at_all(go: Go) -> None:
    ran: list[str] = []

    @tool
    async def work(name: str) -> None:
        ran.append(name)
        await anyio.lowlevel.checkpoint()

    def agent() -> Agent:
        uses = [ToolUse("work", {"name": name}) for name in "abc"]
        return Agent(model=ScriptedModel([uses, "done"]), tools=[work])

    for app in (App(limits=Limits(tool_calls=2)), Watched(limits=Limits(tool_calls=2))):  # heard by nobody, and heard
        with pytest.raises(LimitExceeded, match="tool_calls=2 ") as caught:
            await go(app, agent(), "q")
        assert ran == []
        assert [message.text for message in caught.value.result.messages] == ["q"]
    assert (await go(App(limits=Limits(tool_calls=3)), agent(), "q")).text == "done"
    assert sorted(ran) == ["a", "b", "c"]


async def test_l1_whether_a_reply_is_admitted_does_not_depend_on_which_call_comes_first(go: Go) -> None:
    """One of its two calls is answered by a layer, and one tool call is left."""

    async def cache(call: ToolCall, next: Any) -> Any:
        return "cached" if call.args["name"] == "known" else await next()

    @tool
    async def work(name: str) -> str:
        return name

    async def outcome(*names: str) -> str:
        model = ScriptedModel([[ToolUse("work", {"name": name}) for name in names], "done"])
        try:
            return (
                await go(App(limits=Limits(tool_calls=1)).use(tool=cache), Agent(model=model, tools=[work]), "q")
            ).text
        except LimitExceeded as error:
            return error.limit

    assert len({await outcome(*names) for names in [("new", "known"), ("known", "new")] * 10}) == 1


async def test_l1_a_refused_reply_does_not_spend_what_was_left(go: Go) -> None:
    """Two calls are refused where one is left; that one is still there for whoever goes on."""
    outputs: list[ToolOutput] = []

    async def one_by_hand(error: Exception, ctx: Context) -> str:
        outputs.append(await ctx.call_tool("ping"))
        return "by hand"

    agent = Pinger(rounds=1, calls=2, hooks=[{"on_error": one_by_hand}])
    result = await go(App(limits=Limits(tool_calls=1)), agent, "q")
    assert (result.text, [output.content for output in outputs]) == ("by hand", ["pong"])


async def test_l1_what_ctx_chat_and_ctx_call_tool_spend_counts(go: Go) -> None:
    async def spend(input: Any, ctx: Context) -> None:
        assert (await ctx.chat("aside", model=ScriptedModel([ChatReply("yes", usage=SPENT)]))).text == "yes"
        await ctx.call_tool("ping")
        assert (ctx.usage.requests, ctx.usage.total_tokens) == (1, 10)

    def agent() -> Pinger:
        return Pinger(hooks=[{"before_run": spend}])

    result = await go(App(limits=Limits(chat_calls=3, tool_calls=2)), agent(), "q")
    assert (result.text, result.usage) == ("done", SPENT + Usage(requests=3))
    await refused(go, Limits(chat_calls=2), agent(), "chat_calls", 2)
    await refused(go, Limits(tool_calls=1), agent(), "tool_calls", 1)


async def test_l1_tokens_that_nobody_reported_exceed_nothing(go: Go) -> None:
    assert (await go(App(limits=Limits(tokens=1, cost=0.1)), Pinger(rounds=3), "q")).text == "done"


async def test_l1_the_call_that_crosses_may_be_the_answer(go: Go) -> None:
    result = await go(App(limits=Limits(tokens=1, cost=0.1)), Pinger(rounds=0, usage=SPENT), "q")
    assert (result.text, result.finish_reason, result.usage.total_tokens) == ("done", "stop", 10)
