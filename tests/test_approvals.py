"""Approval of tool calls (T11): what waits, what may be decided, and that an approved call runs at most once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from middlechain import (
    Agent,
    App,
    Assistant,
    ConfigurationError,
    Context,
    ContractError,
    Conversation,
    Deny,
    Enforced,
    FatalToolError,
    GuardrailDenied,
    Message,
    Result,
    Rewrite,
    RunFinished,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolResult,
    ToolUse,
    User,
    WrongReturn,
    loop,
    parallel,
    sequence,
    tool,
)
from middlechain.pauses import Pause, dump_pause, load_pause, taken, waiting_in

from .conftest import Go
from .scenes import Boom
from .test_conversations import WAYS, Shelf, Way, asked, calls_of, check_kept, check_valid, ping, said, says

pytestmark = pytest.mark.anyio

UNKNOWN = "The tool was started and did not finish; what it did by then is not known."
WAITS = "The call has not run: it waits for approval."
REFUSED = "The call was refused by the person who was asked to approve it. Do not make it again; go on without it."


# What these tests share


@pytest.fixture(params=WAYS)
def how(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


class Till:
    """A tool that pays, and what it has paid."""

    def __init__(self, approve: Any = True) -> None:
        self.paid: list[int] = []

        @tool(approve=approve)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        @tool(approve=approve)
        async def send(to: str, lines: list[str] | None = None) -> str:
            self.paid.append(-1)
            return f"sent {lines} to {to}"

        self.pay, self.send = pay, send


def pays(*amounts: int) -> list[Any]:
    return ["pays", *(ToolUse("pay", {"amount": amount}, f"p{amount}") for amount in amounts)]


def told(conversation: Conversation) -> list[str]:
    """The results of all calls, in order."""
    return results_in(conversation.messages)


def results_in(messages: Any) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolMessage)]


def ids(of: Conversation | Result) -> set[str]:
    return {call.id for call in of.pending}


async def waiting(app: App, agent: Agent, how: Way, **options: Any) -> Conversation:
    """A conversation in which something waits."""
    conversation = app.conversation(agent, **options)
    result = await how.send(conversation, "q")
    assert conversation.pending
    assert conversation.pending == result.pending
    check_kept(conversation)
    return conversation


# What waits


async def test_t11_a_call_of_a_tool_with_approve_does_not_run_and_the_step_ends_pending(go: Go) -> None:
    till, outcomes = Till(), []
    called: list[str] = []
    hooks: Any = [
        {name: lambda *args, name=name: called.append(name)}
        for name in ("before_tool", "after_tool", "after_response", "after_run")
    ]
    app = App().observe(lambda event: outcomes.append(event.outcome) if isinstance(event, RunFinished) else None)
    a = says("a", pays(1), "thanks", tools=[till.pay], hooks=hooks)
    result = await go(app, a, "q")
    assert (result.finish_reason, result.pending, outcomes) == (
        "pending",
        (ToolCall("pay", {"amount": 1}, "p1"),),
        ["pending"],
    )
    assert (result.output, result.stopped_by, result.blocked, result.degraded) == (result.output, None, False, False)
    assert (till.paid, len(asked(a)), called) == ([], 1, ["before_tool"])
    assert said(result.messages) == [("user", "q"), ("assistant", "pays"), ("tool", WAITS)]
    assert isinstance(result.messages[-1], ToolMessage)
    assert result.messages[-1].is_error
    assert result.pause is not None


@pytest.mark.parametrize("approve", [False, lambda call: False])
async def test_t11_a_call_that_needs_no_approval_runs_at_once(go: Go, approve: Any) -> None:
    till = Till(approve)
    result = await go(App(), says("a", pays(1), "thanks", tools=[till.pay]), "q")
    assert (till.paid, result.text, result.pending, result.pause) == ([1], "thanks", (), None)


async def test_t11_approved_it_runs_through_hooks_and_layers_again_and_the_step_goes_on(how: Way) -> None:
    till = Till()
    log: list[Any] = []
    names = ("before_run", "before_tool", "after_tool", "after_response", "after_run")
    hooks: Any = [{name: lambda *args, name=name: log.append(name)} for name in names]

    async def layer(call: Any, next: Any) -> None:
        log.append("layer")
        await next()

    a = says("a", pays(1), "thanks", tools=[till.pay], hooks=hooks)
    conversation = await waiting(App().use(tool=layer), a, how)
    assert log == ["before_run", "before_tool", "layer"]
    del log[:]
    result = await how.resume(conversation, {"p1": True})
    assert [one for one in log if one != "before_run"] == [
        "before_tool",
        "layer",
        "after_tool",
        "after_response",
        "after_run",
    ]
    assert (result.text, result.pending, till.paid) == ("thanks", (), [1])
    assert asked(a)[1] == [("user", "q"), ("assistant", "pays"), ("tool", "paid 1")]
    assert result.messages == conversation.messages
    check_kept(conversation)


async def test_t11_refused_it_does_not_run_and_the_model_gets_an_error_result(how: Way) -> None:
    till = Till()
    a = says("a", pays(1), "pity", tools=[till.pay])
    conversation = await waiting(App(), a, how)
    result = await how.resume(conversation, {"p1": False})
    assert (till.paid, result.text, told(conversation)) == ([], "pity", [REFUSED])
    assert isinstance(conversation.messages[2], ToolMessage)
    assert conversation.messages[2].is_error
    assert asked(a)[1][-1] == ("tool", REFUSED)


@pytest.mark.parametrize("is_async", [False, True])
async def test_t11_a_predicate_says_which_calls_wait_and_the_other_calls_of_the_reply_run(
    how: Way, is_async: bool
) -> None:
    async def large_async(call: ToolCall) -> bool:
        return bool(call.args["amount"] > 10)

    till = Till(large_async if is_async else lambda call: call.args["amount"] > 10)
    replies = [*pays(1, 20, 3), ToolUse("ping", {}, "x")]
    a = says("a", replies, "thanks", tools=[till.pay, ping])
    conversation = await waiting(App(), a, how)
    assert (ids(conversation), sorted(till.paid)) == ({"p20"}, [1, 3])
    assert told(conversation) == ["paid 1", WAITS, "paid 3", "pong"]
    await how.resume(conversation, {"p20": True})
    assert told(conversation) == ["paid 1", "paid 20", "paid 3", "pong"]
    assert sorted(till.paid) == [1, 3, 20]


@pytest.mark.parametrize("value", [None, 1, 0, "yes", ""])
async def test_t11_a_predicate_that_returns_no_bool_is_an_error_and_the_call_does_not_run(go: Go, value: Any) -> None:
    till = Till(lambda call: value)
    with pytest.raises(WrongReturn, match="approve="):
        await go(App(), says("a", pays(1), "never", tools=[till.pay]), "q")
    assert till.paid == []


async def test_t11_what_a_predicate_raises_ends_the_step_and_the_call_does_not_run(go: Go) -> None:
    def fails(call: ToolCall) -> bool:
        raise Boom("predicate")

    till = Till(fails)
    with pytest.raises(Boom, match="predicate"):
        await go(App(), says("a", pays(1), "never", tools=[till.pay]), "q")
    assert till.paid == []


@pytest.mark.parametrize("approve", [None, 1, "yes"])
def test_t11_approve_is_a_bool_or_a_predicate(approve: Any) -> None:
    with pytest.raises(ConfigurationError, match="approve"):
        tool(approve=approve)(lambda: "x")


async def test_t11_a_call_that_cannot_be_made_does_not_wait(go: Go) -> None:
    till = Till()
    uses = [ToolUse("pay", {"amount": "much"}, "p1"), ToolUse("pai", {"amount": 1}, "p2")]
    result = await go(App(), says("a", uses, "sorry", tools=[till.pay]), "q")
    assert (result.text, result.pending, till.paid) == ("sorry", (), [])


async def test_t11_without_a_conversation_there_is_the_pending_result_and_nobody_is_asked_again(go: Go) -> None:
    till = Till()
    a = says("a", pays(1), tools=[till.pay])
    result = await go(App(), a, "q")
    assert (result.finish_reason, result.text, len(asked(a))) == ("pending", "pays", 1)
    check_valid(result.messages)


async def test_t11_t10_the_output_of_a_pending_result_is_none(go: Go) -> None:
    result = await go(App(), says("a", pays(1), tools=[Till().pay], output=dict[str, int]), "q")
    assert (result.output, result.finish_reason) == (None, "pending")


# Several at once


async def test_t11_several_wait_in_the_order_of_the_reply(how: Way) -> None:
    for _ in range(10):  # tasks of a reply begin in any order
        conversation = await waiting(App(), says("a", pays(1, 2, 3), tools=[Till().pay]), how)
        assert [call.id for call in conversation.pending] == ["p1", "p2", "p3"]


async def test_t11_several_are_decided_at_once_each_in_its_way(how: Way) -> None:
    till = Till()
    a = says("a", pays(1, 2, 3), "thanks", tools=[till.pay])
    conversation = await waiting(App(), a, how)
    result = await how.resume(conversation, {"p3": ToolCall("pay", {"amount": 30}), "p1": True, "p2": False})
    assert (sorted(till.paid), result.text) == ([1, 30], "thanks")
    assert told(conversation) == ["paid 1", REFUSED, "paid 30"]
    assert [message.tool_call_id for message in conversation.messages if isinstance(message, ToolMessage)] == [
        "p1",
        "p2",
        "p3",
    ]


async def test_t11_what_is_not_decided_goes_on_waiting_and_the_model_is_asked_when_nothing_waits(how: Way) -> None:
    till = Till()
    a = says("a", pays(1, 2, 3), "thanks", tools=[till.pay])
    conversation = await waiting(App(), a, how)
    for decided, left in (("p2", {"p1", "p3"}), ("p3", {"p1"})):
        result = await how.resume(conversation, {decided: True})
        assert (ids(conversation), ids(result), result.finish_reason) == (left, left, "pending")
        assert len(asked(a)) == 1
        check_kept(conversation)
    result = await how.resume(conversation, {"p1": True})
    assert (result.text, till.paid, told(conversation)) == ("thanks", [2, 3, 1], ["paid 1", "paid 2", "paid 3"])


async def test_t11_a_resumed_step_may_wait_again(how: Way) -> None:
    till = Till()
    a = says("a", pays(1), pays(2), "thanks", "later", tools=[till.pay])
    conversation = await waiting(App(), a, how)
    assert ids(await how.resume(conversation, {"p1": True})) == {"p2"}
    check_kept(conversation)
    with pytest.raises(ConfigurationError, match="'p1' has been decided"):
        await how.resume(conversation, {"p1": True})
    result = await how.resume(conversation, {"p2": True})
    assert (till.paid, result.text, told(conversation)) == ([1, 2], "thanks", ["paid 1", "paid 2"])
    assert (await how.send(conversation, "next")).text == "later"


async def test_t11_while_calls_wait_send_is_refused_and_nothing_is_lost(how: Way) -> None:
    till = Till()
    a = says("a", pays(1), "thanks", "later", tools=[till.pay])
    conversation = await waiting(App(), a, how)
    before = conversation.messages
    with pytest.raises(ContractError, match=r"'p1' \(pay\).*resume"):
        await how.send(conversation, "next")
    assert (conversation.messages, ids(conversation), len(asked(a))) == (before, {"p1"}, 1)
    await how.resume(conversation, {"p1": True})
    assert (await how.send(conversation, "next")).text == "later"


# Decisions that are none


@pytest.mark.parametrize(
    "decisions",
    [{}, None, True, ["p1"], {"p9": True}, {"p1": True, "p9": True}, {"p1": None}, {"p1": 1}, {"p1": "yes"}, {1: True}],
)
async def test_t11_decisions_that_are_none_are_refused_and_the_calls_go_on_waiting(how: Way, decisions: Any) -> None:
    till = Till()
    a = says("a", pays(1), "thanks", tools=[till.pay])
    conversation = await waiting(App(), a, how)
    before = conversation.messages
    with pytest.raises(ConfigurationError):
        await how.resume(conversation, decisions)
    assert (conversation.messages, ids(conversation), till.paid) == (before, {"p1"}, [])
    await how.resume(conversation, {"p1": True})
    assert till.paid == [1]


async def test_t11_where_nothing_waits_nothing_can_be_decided(how: Way) -> None:
    conversation = App().conversation(says("a", "one"))
    with pytest.raises(ConfigurationError, match="waits for no approval"):
        await how.resume(conversation, {"p1": True})


async def test_t11_a_decided_id_is_refused_and_says_so(how: Way) -> None:
    till = Till()
    conversation = await waiting(App(), says("a", pays(1), "thanks", tools=[till.pay]), how)
    await how.resume(conversation, {"p1": True})
    with pytest.raises(ConfigurationError, match="'p1' has been decided already"):
        await how.resume(conversation, {"p1": True})
    assert till.paid == [1]


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("pai", {"amount": 1}),
        ToolCall("pay", {"amount": "much"}),
        ToolCall("pay", {}),
        ToolCall("pay", {"amount": 1, "more": 2}),
        ToolCall(""),
    ],
)
async def test_t11_a_call_in_the_place_of_another_that_cannot_be_made_is_refused_and_still_pending(
    how: Way, call: ToolCall
) -> None:
    till = Till()
    conversation = await waiting(App(), says("a", pays(1, 2), "thanks", tools=[till.pay]), how)
    with pytest.raises(ConfigurationError):
        await how.resume(conversation, {"p2": True, "p1": call})
    assert (till.paid, ids(conversation)) == ([], {"p1", "p2"})
    check_kept(conversation)
    await how.resume(conversation, {"p2": True, "p1": ToolCall("pay", {"amount": 10})})
    assert sorted(till.paid) == [2, 10]


async def test_t11_another_tool_may_run_in_place_and_the_history_keeps_the_call_that_the_model_made(how: Way) -> None:
    till = Till()
    a = says("a", pays(1), "thanks", tools=[till.pay, till.send])
    conversation = await waiting(App(), a, how)
    await how.resume(conversation, {"p1": ToolCall("send", {"to": "x"})})
    assert told(conversation) == ["sent None to x"]
    check_kept(conversation)


# Once


@pytest.mark.parametrize("stored", [False, True])
async def test_t11_two_that_resume_at_the_same_time_execute_it_once(how: Way, stored: bool) -> None:
    till = Till()
    options: dict[str, Any] = {"sessions": Shelf(), "id": "c"} if stored else {}
    conversation = await waiting(App(), says("a", pays(1), "thanks", tools=[till.pay]), how, **options)
    refused: list[Exception] = []

    async def decide() -> None:
        try:
            await how.resume(conversation, {"p1": True})
        except ConfigurationError as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(decide)
    assert (till.paid, len(refused)) == ([1], 2)
    assert all("decided already" in str(error) for error in refused)


@pytest.mark.parametrize("scope", ["run", "agent"])
async def test_t11_a_layer_that_begins_a_resumed_run_again_has_the_tool_run_once(how: Way, scope: str) -> None:
    till = Till()

    async def twice(call: Any, next: Any) -> None:
        await next()
        await next()

    a = says("a", pays(1, 2), pays(1, 2), "first", "second", tools=[till.pay])
    conversation = await waiting(App(), a, how)
    layers: Any = {scope: twice}
    app = App().use(**layers)
    again = app.conversation(a)
    again._messages, again._begins, again._pause = conversation.messages, conversation._begins, conversation._pause
    again._decided = conversation._decided
    a = says("a", "first", "second", tools=[till.pay])
    again._target = a
    result = await how.resume(again, {"p1": True, "p2": True})
    assert (sorted(till.paid), result.text, told(again)) == ([1, 2], "second", ["paid 1", "paid 2"])
    check_kept(again)


@pytest.mark.parametrize("scope", ["run", "agent"])
async def test_t11_a_layer_that_tries_again_when_the_model_fails_has_the_tool_run_once(how: Way, scope: str) -> None:
    till = Till()

    async def retry(call: Any, next: Any) -> None:
        try:
            await next()
        except Boom:
            await next()

    layers: Any = {scope: retry}
    a = says("a", pays(1), Boom("once"), "thanks", tools=[till.pay])
    conversation = await waiting(App().use(**layers), a, how)
    result = await how.resume(conversation, {"p1": True})
    assert (till.paid, result.text, told(conversation)) == ([1], "thanks", ["paid 1"])


@pytest.mark.parametrize("scope", ["run", "agent"])
async def test_t11_a_refused_call_is_not_run_by_a_layer_that_begins_again(how: Way, scope: str) -> None:
    till = Till()

    async def retry(call: Any, next: Any) -> None:
        try:
            await next()
        except Boom:
            await next()

    layers: Any = {scope: retry}
    a = says("a", pays(1), Boom("once"), "pity", tools=[till.pay])
    conversation = await waiting(App().use(**layers), a, how)
    result = await how.resume(conversation, {"p1": False})
    assert (till.paid, result.text, told(conversation)) == ([], "pity", [REFUSED])


async def test_t11_what_fails_behind_the_tool_leaves_it_run_and_the_conversation_goes_on(how: Way) -> None:
    till = Till()
    a = says("a", pays(1), Boom("model"), "fine", tools=[till.pay])
    conversation = await waiting(App(), a, how)
    with pytest.raises(Boom):
        await how.resume(conversation, {"p1": True})
    assert (conversation.pending, told(conversation), till.paid) == ((), ["paid 1"], [1])
    with pytest.raises(ConfigurationError, match="decided already"):
        await how.resume(conversation, {"p1": True})
    assert (await how.send(conversation, "next")).text == "fine"
    check_kept(conversation)


async def test_t11_what_fails_behind_one_of_two_ends_the_wait_of_the_other_and_says_so(how: Way) -> None:
    @tool(approve=True)
    async def fatal() -> str:
        raise FatalToolError("over")

    a = says("a", [*pays(1), ToolUse("fatal", {}, "f1")], "fine", tools=[fatal, Till().pay])
    conversation = await waiting(App(), a, how)
    with pytest.raises(FatalToolError):
        await how.resume(conversation, {"f1": True})
    check_kept(conversation)
    assert "f1" not in ids(conversation)
    if not conversation.pending:
        assert (await how.send(conversation, "next")).text == "fine"


@pytest.mark.parametrize("scope", ["run", "agent", "tool"])
async def test_t11_what_fails_before_any_ran_lets_them_wait_as_before(how: Way, scope: str) -> None:
    till = Till()
    fails = False

    async def layer(call: Any, next: Any) -> None:
        if fails:
            raise Boom("before")
        await next()

    layers: Any = {scope: layer}
    conversation = await waiting(App().use(**layers), says("a", pays(1, 2), "thanks", tools=[till.pay]), how)
    before = conversation.messages
    fails = True
    with pytest.raises(Boom):
        await how.resume(conversation, {"p1": True, "p2": False})
    assert (conversation.messages, ids(conversation), till.paid) == (before, {"p1", "p2"}, [])
    fails = False
    await how.resume(conversation, {"p1": True, "p2": False})
    assert (told(conversation), till.paid) == (["paid 1", REFUSED], [1])


async def test_t11_a_tool_that_fails_has_run(how: Way) -> None:
    @tool(approve=True, expose_errors=True)
    async def pay(amount: int) -> str:
        raise Boom("no money")

    conversation = await waiting(App(), says("a", pays(1), "pity", tools=[pay]), how)
    assert (await how.resume(conversation, {"p1": True})).text == "pity"
    assert told(conversation) == ["Boom: no money"]


@pytest.mark.parametrize("stored", [False, True])
async def test_t11_cancelled_within_an_approved_tool_its_outcome_is_unknown_and_it_is_not_pending(
    how: Way, stored: bool
) -> None:
    started = anyio.Event()

    @tool(approve=True)
    async def pay(amount: int) -> str:
        started.set()
        await anyio.sleep_forever()
        return "never"

    options: dict[str, Any] = {"sessions": Shelf(), "id": "c"} if stored else {}
    conversation = await waiting(App(), says("a", pays(1), "fine", tools=[pay]), how, **options)
    async with anyio.create_task_group() as group:
        group.start_soon(how.resume, conversation, {"p1": True})
        await started.wait()
        group.cancel_scope.cancel()
    assert (conversation.pending, told(conversation)) == ((), [UNKNOWN])
    with pytest.raises(ConfigurationError, match="decided already"):
        await how.resume(conversation, {"p1": True})
    assert (await how.send(conversation, "next")).text == "fine"
    check_kept(conversation)


async def test_t11_cancelled_before_the_tool_began_it_waits_as_before(how: Way) -> None:
    till, started = Till(), anyio.Event()
    blocks = False

    async def layer(call: Any, next: Any) -> None:
        if blocks:
            started.set()
            await anyio.sleep_forever()
        await next()

    conversation = await waiting(App().use(tool=layer), says("a", pays(1), "thanks", tools=[till.pay]), how)
    blocks = True
    async with anyio.create_task_group() as group:
        group.start_soon(how.resume, conversation, {"p1": True})
        await started.wait()
        group.cancel_scope.cancel()
    assert (ids(conversation), told(conversation)) == ({"p1"}, [WAITS])
    blocks = False
    assert (await how.resume(conversation, {"p1": True})).text == "thanks"
    assert till.paid == [1]
