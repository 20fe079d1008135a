"""Approval of tool calls (T11): what waits, what may be decided, and that an approved call runs at most once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
    Result,
    Rewrite,
    RunFinished,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolUse,
    User,
    WrongReturn,
    loop,
    parallel,
    repeats,
    sequence,
    tool,
)
from middlechain.pauses import Pause, dump_pause, load_pause, taken, waiting_in

from .conftest import Go
from .scenes import Boom
from .test_conversations import WAYS, Shelf, Way, asked, check_kept, check_valid, ping, said, says

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

    active = False

    @repeats
    async def twice(call: Any, next: Any) -> None:
        await next()
        if active:
            await next()

    layers: Any = {scope: twice}
    a = says("a", pays(1, 2), "first", "second", tools=[till.pay])
    conversation = await waiting(App().use(**layers), a, how)
    active = True
    result = await how.resume(conversation, {"p1": True, "p2": True})
    assert (sorted(till.paid), result.text, told(conversation)) == ([1, 2], "second", ["paid 1", "paid 2"])
    check_kept(conversation)


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


@pytest.mark.parametrize("stored", [False, True])
async def test_t11_cancelled_within_one_of_two_the_other_is_not_said_to_wait_unless_it_does(
    how: Way, stored: bool
) -> None:
    started = anyio.Event()

    @tool(approve=True)
    async def slow() -> str:
        started.set()
        await anyio.sleep_forever()
        return "never"

    options: dict[str, Any] = {"sessions": Shelf(), "id": "c"} if stored else {}
    a = says("a", [*pays(1), ToolUse("slow", {}, "s1")], "fine", tools=[slow, Till().pay])
    conversation = await waiting(App(), a, how, **options)
    async with anyio.create_task_group() as group:
        group.start_soon(how.resume, conversation, {"s1": True})
        await started.wait()
        group.cancel_scope.cancel()
    assert "s1" not in ids(conversation)
    assert told(conversation)[1] == UNKNOWN
    check_kept(conversation)


# Hooks, layers and guards


async def test_t11_what_a_hook_and_a_layer_make_of_a_call_is_what_waits_and_what_runs(how: Way) -> None:
    till = Till()

    def hook(call: ToolCall, ctx: Context) -> ToolCall:
        return call.replace(args={"amount": call.args["amount"] if call.args["amount"] > 9 else 10})

    async def layer(call: Any, next: Any) -> None:
        await next(call.replace(args={"amount": call.args["amount"] * (2 if call.args["amount"] < 20 else 1)}))

    a = says("a", pays(1), "thanks", tools=[till.pay], hooks=[{"before_tool": hook}])
    conversation = await waiting(App().use(tool=layer), a, how)
    assert conversation.pending == (ToolCall("pay", {"amount": 20}, "p1"),)
    await how.resume(conversation, {"p1": True})
    assert till.paid == [20]


@pytest.mark.parametrize("by", ["hook", "layer"])
async def test_t11_what_hooks_and_layers_make_another_call_of_than_was_approved_waits_again(how: Way, by: str) -> None:
    till, amounts = Till(), [1, 2, 2]

    def hook(call: ToolCall, ctx: Context) -> ToolCall:
        return call.replace(args={"amount": amounts.pop(0)})

    async def layer(call: Any, next: Any) -> None:
        await next(hook(call, call.ctx))

    hooks: Any = [{"before_tool": hook}] if by == "hook" else []
    app = App() if by == "hook" else App().use(tool=layer)
    conversation = await waiting(app, says("a", pays(9), "thanks", tools=[till.pay], hooks=hooks), how)
    assert conversation.pending == (ToolCall("pay", {"amount": 1}, "p9"),)
    result = await how.resume(conversation, {"p9": True})
    assert (result.pending, till.paid) == ((ToolCall("pay", {"amount": 2}, "p9/2"),), [])
    assert conversation.pending == result.pending
    check_kept(conversation)
    with pytest.raises(ConfigurationError, match="decided already"):  # a second click approves nothing else
        await how.resume(conversation, {"p9": True})
    result = await how.resume(conversation, {"p9/2": True})
    assert (result.text, till.paid) == ("thanks", [2])


async def test_t11_a_layer_that_answers_in_its_place_leaves_nothing_to_approve(how: Way) -> None:
    till = Till()

    async def layer(call: Any, next: Any) -> str:
        return "answered"

    conversation = App().use(tool=layer).conversation(says("a", pays(1), "thanks", tools=[till.pay]))
    result = await how.send(conversation, "q")
    assert (result.text, result.pending, told(conversation), till.paid) == ("thanks", (), ["answered"], [])


async def test_t11_a_layer_that_answers_in_its_place_on_resume_is_the_result(how: Way) -> None:
    till, answers = Till(), False

    async def layer(call: Any, next: Any) -> Any:
        if answers:
            return ToolOutput("no funds", is_error=True)
        await next()
        return None

    conversation = await waiting(App().use(tool=layer), says("a", pays(1), "pity", tools=[till.pay]), how)
    answers = True
    result = await how.resume(conversation, {"p1": True})
    assert (result.text, told(conversation), till.paid, conversation.pending) == ("pity", ["no funds"], [], ())


async def test_t11_a_call_renamed_into_one_that_needs_approval_waits_and_one_renamed_out_of_it_runs(how: Way) -> None:
    till = Till()

    def into(call: ToolCall, ctx: Context) -> ToolCall:
        return ToolCall("pay", {"amount": 7}) if call.name == "ping" else call

    a = says("a", ["look", ToolUse("ping", {}, "x")], "thanks", tools=[till.pay, ping], hooks=[{"before_tool": into}])
    conversation = await waiting(App(), a, how)
    assert conversation.pending == (ToolCall("pay", {"amount": 7}, "x"),)
    await how.resume(conversation, {"x": True})
    assert (till.paid, told(conversation)) == ([7], ["paid 7"])

    def out(call: ToolCall, ctx: Context) -> ToolCall:
        return ToolCall("ping")

    a = says("a", pays(1), "thanks", tools=[till.pay, ping], hooks=[{"before_tool": out}])
    other = App().conversation(a)
    assert (await how.send(other, "q")).text == "thanks"
    assert (told(other), till.paid) == (["pong"], [7])


async def test_t11_code_cannot_wait_and_gets_an_error_result(go: Go) -> None:
    till, outputs = Till(), []

    @tool
    async def work(ctx: Context) -> str:
        outputs.append(await ctx.call_tool("pay", {"amount": 1}))
        outputs.append(await ctx.call_tool("free", {"amount": 2}))
        return "worked"

    @tool(name="free")
    async def gratis(amount: int) -> str:
        return f"free {amount}"

    a = says("a", ["look", ToolUse("work", {}, "w")], "done", tools=[work, till.pay, gratis])
    result = await go(App(), a, "q")
    assert (result.text, result.pending, till.paid) == ("done", (), [])
    assert [(one.content, one.is_error) for one in outputs] == [
        ("The tool 'pay' did not run: it needs approval, and code cannot wait for one.", True),
        ("free 2", False),
    ]


def judging(outcome: Callable[[str], Any]) -> dict[str, Any]:
    def judge(text: str, ctx: Context) -> Any:
        return outcome(text) if "evil" in text else None

    return {"output": [judge]}


MADE = ToolCall("send", {"to": "evil", "lines": ["an evil line", "a good one"]})


async def sending(how: Way, till: Till, outcome: Callable[[str], Any]) -> Conversation:
    uses = [ToolUse("send", {"to": "x"}, "s1"), *pays(1)[1:]]
    a = says("a", uses, "thanks", "later", tools=[till.send, till.pay], guardrails=judging(outcome))
    return await waiting(App(), a, how)


async def test_t11_g4_a_call_in_the_place_of_another_is_rewritten_by_the_output_guards(how: Way) -> None:
    till = Till()
    conversation = await sending(how, till, lambda text: Rewrite(text.replace("evil", "kind")))
    result = await how.resume(conversation, {"s1": MADE, "p1": True})
    assert (result.text, sorted(till.paid)) == ("thanks", [-1, 1])
    assert told(conversation) == ["sent ['an kind line', 'a good one'] to kind", "paid 1"]


async def test_t11_g2_a_call_in_the_place_of_another_that_a_guard_blocks_runs_nothing(how: Way) -> None:
    till = Till()
    conversation = await sending(how, till, lambda text: Enforced("bad"))
    result = await how.resume(conversation, {"s1": MADE, "p1": True})
    assert (result.blocked, result.finish_reason, till.paid, result.pending) == (True, "safety", [], ())
    check_valid(conversation.messages)
    check_kept(conversation)
    assert "evil" not in str(conversation.messages)


async def test_t11_g3_a_call_in_the_place_of_another_that_a_guard_denies_runs_nothing_and_all_wait(how: Way) -> None:
    till = Till()
    conversation = await sending(how, till, lambda text: Deny("bad"))
    with pytest.raises(GuardrailDenied):
        await how.resume(conversation, {"s1": MADE, "p1": True})
    assert (till.paid, ids(conversation)) == ([], {"s1", "p1"})
    check_kept(conversation)
    assert (await how.resume(conversation, {"s1": True, "p1": True})).text == "thanks"


async def test_t11_a_call_that_no_guard_minds_runs_as_it_is(how: Way) -> None:
    till = Till()
    conversation = await sending(how, till, lambda text: Deny("bad"))
    await how.resume(conversation, {"s1": ToolCall("send", {"to": "good"}), "p1": True})
    assert told(conversation) == ["sent None to good", "paid 1"]


# Inside of others


def payer(name: str, till: Till, *replies: Any, id: str = "", **options: Any) -> Agent:
    first = ["pays", ToolUse("pay", {"amount": 5}, id or f"p-{name}")]
    return says(name, first, f"{name} has paid", *replies, tools=[till.pay], **options)


def handoff_target(till: Till) -> Agent:
    return says("a", ["over", ToolUse("transfer_to_b", {}, "t1")], handoffs=[payer("b", till)])


def as_tool_twice(till: Till) -> Agent:
    inner = payer("inner", till)
    middle = says("middle", ["ask", ToolUse("inner", {"input": "sub"}, "i1")], "middle", tools=[inner.as_tool()])
    return says("outer", ["ask", ToolUse("middle", {"input": "sub"}, "m1")], "end", tools=[middle.as_tool()])


def second_pass(till: Till) -> Agent:
    return loop(
        says("a", "no", ["pays", ToolUse("pay", {"amount": 5}, "p2")], "yes", tools=[till.pay]), max_iterations=2
    )


def nested(till: Till) -> Agent:
    return sequence(says("a", "one"), parallel(payer("b", till), says("c", "see")), says("d", "end"))


PLACES: list[tuple[Callable[[Till], Agent], str]] = [
    (handoff_target, "b has paid"),
    (lambda till: sequence(payer("a", till), says("b", "end")), "end"),
    (lambda till: sequence(says("a", "one"), payer("b", till)), "b has paid"),
    (second_pass, "yes"),
    (lambda till: parallel(payer("a", till), says("b", "two")), "a has paid\n\ntwo"),
    (as_tool_twice, "end"),
    (nested, "end"),
]
NAMES = ["handoff", "first", "last", "loop", "parallel", "tool", "nested"]


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("make", "text"), PLACES, ids=NAMES)
async def test_t11_what_waits_inside_makes_all_around_it_wait_and_goes_on_there(
    how: Way, make: Callable[[Till], Agent], text: str, stored: bool, approved: bool
) -> None:
    till, shelf = Till(), Shelf()
    agent, app = make(till), App()
    options: dict[str, Any] = {"sessions": shelf, "id": "c"} if stored else {}
    conversation = await waiting(app, agent, how, **options)
    (call,) = conversation.pending
    assert (call.name, call.args, till.paid) == ("pay", {"amount": 5}, [])
    if stored:
        conversation = app.conversation(agent, **options)
        await conversation.load()
        assert conversation.pending == (call,)
    with pytest.raises(ContractError):
        await how.send(conversation, "next")
    result = await how.resume(conversation, {call.id: approved})
    assert (result.text, result.finish_reason, till.paid) == (text, "stop", [5] if approved else [])
    assert not conversation.pending
    check_kept(conversation)
    with pytest.raises(ConfigurationError, match="decided already"):
        await how.resume(conversation, {call.id: True})


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_t11_a2_two_branches_with_equal_ids_are_told_apart(how: Way, stored: bool, at_once: bool) -> None:
    one, two = Till(), Till()
    agent = parallel(payer("a", one, id="same"), payer("b", two, id="same"))
    options: dict[str, Any] = {"sessions": Shelf(), "id": "c"} if stored else {}
    conversation = await waiting(App(), agent, how, **options)
    first, second = [call.id for call in conversation.pending]
    assert first != second
    if at_once:
        result = await how.resume(conversation, {first: False, second: True})
    else:
        result = await how.resume(conversation, {second: True})
        assert ([call.id for call in result.pending], one.paid, two.paid) == ([first], [], [5])
        if stored:
            conversation = App().conversation(agent, **options)
        result = await how.resume(conversation, {first: False})
    assert (one.paid, two.paid, result.text) == ([], [5], "a has paid\n\nb has paid")
    check_kept(conversation)


async def test_t11_a5_two_levels_with_equal_ids_are_told_apart(how: Way) -> None:
    inner, outer = Till(), Till()
    agent = payer("inner", inner, id="same").as_tool()
    uses = [ToolUse("pay", {"amount": 1}, "same"), ToolUse("inner", {"input": "sub"}, "i1")]
    a = says("outer", uses, "end", tools=[outer.pay, agent])
    conversation = await waiting(App(), a, how)
    assert sorted(call.args["amount"] for call in conversation.pending) == [1, 5]
    decisions = {call.id: call.args["amount"] == 5 for call in conversation.pending}
    assert len(decisions) == 2
    result = await how.resume(conversation, decisions)
    assert (inner.paid, outer.paid, result.text) == ([5], [], "end")
    assert told(conversation) == [REFUSED, "inner has paid"]


# Streams


async def test_t11_a_stream_of_a_send_and_of_a_resume_gives_the_same_as_they_do(how: Way) -> None:
    till = Till()
    a = says("a", pays(1), "thanks", tools=[till.pay])
    conversation = App().conversation(a)
    async with conversation.stream("q") as stream:
        text = [event.text async for event in stream if hasattr(event, "text")]
    assert ("".join(text), stream.result.finish_reason) == ("pays", "pending")
    async with conversation.stream(resume={"p1": True}) as stream:
        text = [event.text async for event in stream if hasattr(event, "text")]
    assert ("".join(text), stream.result.text, till.paid) == ("thanks", "thanks", [1])


# Pauses


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
CALLS = st.builds(ToolCall, st.text(), st.dictionaries(st.text(), JSON, max_size=2))
EXCHANGES = st.lists(st.text().map(User) | st.text().map(Assistant), max_size=3).map(tuple)
DONE = st.builds(
    lambda text, messages, blocked: Result(text, messages=messages, blocked=blocked, agent="x", finish_reason="stop"),
    st.text(),
    EXCHANGES,
    st.booleans(),
)


def _pauses(inner: st.SearchStrategy[Mapping[str, Pause]]) -> st.SearchStrategy[Pause]:
    return st.builds(
        Pause,
        agent=st.text(),
        exchange=EXCHANGES,
        calls=st.dictionaries(st.text(), CALLS, max_size=2).map(
            lambda calls: {id: call.replace(id=id) for id, call in calls.items()}
        ),
        inner=inner,
        transfer=st.none() | st.text(),
        iteration=st.integers(1, 9),
        fails=st.integers(0, 9),
        since=st.integers(0, 9),
        done=st.dictionaries(st.integers(0, 3).map(str), DONE, max_size=2),
    )


NO_PAUSES: st.SearchStrategy[Mapping[str, Pause]] = st.just({})
PAUSES = st.recursive(
    _pauses(NO_PAUSES),
    lambda inner: _pauses(st.dictionaries(st.text(), inner, max_size=2)),
    max_leaves=4,
)


@given(PAUSES)
def test_t11_a_pause_survives_json(pause: Pause) -> None:
    loaded = load_pause(json.loads(json.dumps(dump_pause(pause))))
    assert loaded == pause
    assert list(waiting_in(loaded)) == list(waiting_in(pause))


@given(PAUSES, st.data())
def test_t11_what_is_taken_of_a_pause_is_exactly_what_was_decided(pause: Pause, data: st.DataObject) -> None:
    calls = waiting_in(pause)
    assert [call.id for call in calls.values()] == list(calls)
    decided = data.draw(st.sets(st.sampled_from(sorted(calls)))) if calls else set()
    rest = waiting_in(taken(pause, dict.fromkeys(decided, True)))
    assert len(rest) == len(calls) - len(decided)
