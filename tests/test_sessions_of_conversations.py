"""What outlives a crash, a second try and a second click (C4, T11): whatever is approved, wherever it waits.

In each of these shapes a process is ended after every single save, a layer begins a resumed run again, and what was
decided is decided once more. Nothing runs twice, nothing is forgotten, and no conversation is ever stuck.
"""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from middlechain import (
    Agent,
    AgentCall,
    App,
    Assistant,
    ChatCall,
    ConfigurationError,
    Context,
    Conversation,
    Enforced,
    LimitExceeded,
    Limits,
    Message,
    Result,
    ToolCall,
    ToolError,
    ToolMessage,
    ToolOutput,
    ToolUse,
    loop,
    parallel,
    sequence,
    tool,
)
from middlechain.sessions import SqliteSessions

from .scenes import Boom
from .test_conversations import WAYS, Shelf, Valid, Way, against, check_kept, check_valid, ping, said, says


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


UNKNOWN = "The tool was started and did not finish; what it did by then is not known."
Decide = Callable[[ToolCall], Any]


# Agents that go by what was said, so that they go on in any process


class Bank:
    """What was paid, by whom and for which request; each payment that a model asks for is another one."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []
        self.pay = tool(name="pay", approve=True)(self._pay)

    async def _pay(self, who: str, at: int) -> str:
        self.paid.append((who, at))
        return f"paid {who}"

    def payer(self, name: str, id: str = "p", **options: Any) -> Agent:
        """An agent that pays, then says so."""

        def reply(call: ChatCall) -> Any:
            last = call.messages[-1]
            if isinstance(last, ToolMessage) and last.name == "pay":
                return f"{name} has paid"
            return [f"{name} pays", ToolUse("pay", {"who": name, "at": len(call.messages)}, id)]

        return Agent(name=name, model=Valid(reply), tools=[self.pay], **options)


def asks(name: str, *inner: Agent, beside: Sequence[ToolUse] = (), tools: Sequence[Any] = ()) -> Agent:
    """An agent that asks others, who are its tools, all at once."""
    uses = [*(ToolUse(agent.name, {"input": "sub"}, f"{agent.name}-1") for agent in inner), *beside]

    def reply(call: ChatCall) -> Any:
        return f"{name} is done" if isinstance(call.messages[-1], ToolMessage) else ["asks", *uses]

    return Agent(name=name, model=Valid(reply), tools=[*(agent.as_tool() for agent in inner), *tools])


def answers(name: str) -> Agent:
    return Agent(name=name, model=Valid(lambda call: f"{name} says"))


def hands_over(name: str, to: Agent, beside: Sequence[ToolUse] = (), tools: Sequence[Any] = ()) -> Agent:
    over = ToolUse(f"transfer_to_{to.name}", {}, "t1")
    return Agent(name=name, model=Valid(lambda call: ["over", *beside, over]), handoffs=[to], tools=tools)


def own(who: str) -> ToolUse:
    """A payment beside other calls of a reply."""
    return ToolUse("pay", {"who": who, "at": 0}, "p")


SHAPES: dict[str, Callable[[Bank], Agent]] = {
    "an agent": lambda bank: bank.payer("a"),
    "who gets the conversation": lambda bank: hands_over("a", bank.payer("b")),
    "beside the transfer": lambda bank: hands_over("a", answers("b"), [own("a")], [bank.pay]),
    "the first of a sequence": lambda bank: sequence(bank.payer("a"), answers("b")),
    "in the middle": lambda bank: sequence(answers("a"), bank.payer("b"), answers("c")),
    "the last": lambda bank: sequence(answers("a"), bank.payer("b")),
    "all of a sequence": lambda bank: sequence(bank.payer("a"), bank.payer("b")),
    "a handoff in a sequence": lambda bank: sequence(hands_over("a", bank.payer("b")), answers("c")),
    "each pass of a loop": lambda bank: loop(bank.payer("a"), answers("b"), max_iterations=2),
    "one side by side": lambda bank: parallel(answers("a"), bank.payer("b")),
    "two side by side": lambda bank: parallel(bank.payer("a"), bank.payer("b")),
    "three side by side": lambda bank: parallel(*map(bank.payer, "abc")),
    "a tool": lambda bank: asks("a", bank.payer("b")),
    "a tool of a tool": lambda bank: asks("a", asks("b", bank.payer("c"))),
    "a tool, and beside it": lambda bank: asks("a", bank.payer("b"), beside=[own("a")], tools=[bank.pay]),
    "two tools": lambda bank: asks("a", bank.payer("b"), bank.payer("c")),
    "a flow as a tool": lambda bank: asks("a", sequence(bank.payer("b"), answers("c"), name="flow")),
    "a tool in a flow": lambda bank: parallel(asks("a", bank.payer("b")), sequence(answers("c"), bank.payer("d"))),
    "a flow that gets it": lambda bank: hands_over("a", parallel(bank.payer("b"), bank.payer("c"), name="flow")),
}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Callable[[Bank], Agent]:
    return SHAPES[request.param]


def all_of(conversation: Conversation, decide: Decide) -> dict[str, Any]:
    return {call.id: decide(call) for call in conversation.pending}


def first_of(conversation: Conversation, decide: Decide) -> dict[str, Any]:
    call = conversation.pending[0]
    return {call.id: decide(call)}


def last_of(conversation: Conversation, decide: Decide) -> dict[str, Any]:
    call = conversation.pending[-1]
    return {call.id: decide(call)}


HOW_MANY = pytest.mark.parametrize("some", [all_of, first_of, last_of], ids=["all at once", "in turn", "last first"])


async def through(
    conversation: Conversation, way: Way, some: Any = all_of, decide: Decide = lambda call: True
) -> Result:
    """Send, and decide until nothing waits."""
    result = await way.send(conversation, "q")
    for _ in range(9):
        check_kept(conversation)
        assert conversation.pending == result.pending
        assert len({call.id for call in result.pending}) == len(result.pending)
        if not result.pending:
            break
        result = await way.resume(conversation, some(conversation, decide))
    assert (result.pending, result.pause) == ((), None)
    return result


# It all goes as if nobody had been asked


@pytest.mark.anyio
@HOW_MANY
@pytest.mark.parametrize("restarts", [False, True], ids=["in one process", "each time in another"])
async def test_t11_wherever_calls_wait_they_run_once_when_approved_and_all_goes_as_if_none_had(
    way: Way, shape: Any, some: Any, restarts: bool
) -> None:
    free, bank, store = Bank(), Bank(), Shelf()
    free.pay = tool(name="pay")(free._pay)
    expected = await App().run(shape(free), "q")
    conversation = App().conversation(shape(bank), sessions=store, id="s")
    result = await way.send(conversation, "q")
    assert (bank.paid, result.finish_reason) == ([], "pending")
    while result.pending:
        if restarts:
            conversation = App().conversation(shape(bank), sessions=store, id="s")
            await conversation.load()
            assert conversation.pending == result.pending
        result = await way.resume(conversation, some(conversation, lambda call: True))
        check_kept(conversation)
    assert sorted(bank.paid) == sorted(free.paid)
    assert (result.text, result.agent, result.messages) == (expected.text, expected.agent, expected.messages)
    assert conversation.messages == store.kept["s"].messages == expected.messages


@pytest.mark.anyio
@HOW_MANY
async def test_t11_wherever_calls_wait_they_do_not_run_when_refused(way: Way, shape: Any, some: Any) -> None:
    bank = Bank()
    conversation = App().conversation(shape(bank))
    await through(conversation, way, some, lambda call: False)
    assert bank.paid == []
    check_kept(conversation)


@pytest.mark.anyio
async def test_t11_wherever_calls_wait_another_may_run_in_their_place(way: Way, shape: Any) -> None:
    bank = Bank()
    conversation = App().conversation(shape(bank))
    await through(conversation, way, decide=lambda call: ToolCall("pay", {**call.args, "who": "x"}))
    assert bank.paid
    assert {who for who, _ in bank.paid} == {"x"}


# Decided is decided


@pytest.mark.anyio
@HOW_MANY
async def test_t11_an_id_that_was_decided_never_means_another_call(way: Way, shape: Any, some: Any) -> None:
    bank = Bank()
    conversation = App().conversation(shape(bank))
    await way.send(conversation, "q")
    decided: set[str] = set()
    while conversation.pending:
        seen = {call.id: call for call in conversation.pending}
        now = some(conversation, lambda call: True)
        await way.resume(conversation, now)
        decided |= now.keys()
        before = conversation.messages, conversation.pending, list(bank.paid)
        assert all(seen.get(call.id, call) == call for call in conversation.pending)
        for id in sorted(decided):
            with pytest.raises(ConfigurationError, match="has been decided already"):
                await way.resume(conversation, {id: True})
            with pytest.raises(ConfigurationError, match="has been decided already"):
                await way.resume(conversation, {**all_of(conversation, lambda call: True), id: True})
        assert (conversation.messages, conversation.pending, bank.paid) == before


@pytest.mark.anyio
async def test_t11_a_second_click_does_not_approve_what_nobody_has_seen(way: Way) -> None:
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    uses = [ToolUse("pay", {"amount": amount}, "call_0") for amount in (1, 1000)]
    conversation = App().conversation(says("a", *uses, "thanks", tools=[pay]))
    await way.send(conversation, "q")
    errors: list[ConfigurationError] = []

    async def click() -> None:
        try:
            await way.resume(conversation, {"call_0": True})
        except ConfigurationError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(click)
        tasks.start_soon(click)
    assert (paid, len(errors)) == ([1], 1)
    (call,) = conversation.pending
    assert call.args == {"amount": 1000}
    assert (await way.resume(conversation, {call.id: True})).text == "thanks"
    assert paid == [1, 1000]
    check_kept(conversation)


# Wherever the process ends


class Crashing(Shelf):
    """A store that notes, at each save, what was saved and what had been paid just before it."""

    def __init__(self, bank: Bank) -> None:
        super().__init__()
        self.bank = bank
        self.paid: list[list[tuple[str, int]]] = []

    async def save(self, id: str, /, **what: Any) -> None:
        self.paid.append(list(self.bank.paid))
        await super().save(id, **what)

    def crashes(self) -> Iterator[tuple[Shelf, list[tuple[str, int]]]]:
        """What there would be if the process had ended after each save, as late as can be, and what had been paid."""
        paid = [*self.paid[1:], self.bank.paid]
        for saved, by_then in zip(self.saves, paid, strict=True):
            shelf = Shelf()
            shelf.kept["s"] = saved
            yield shelf, by_then


@pytest.mark.anyio
@HOW_MANY
async def test_t11_c4_wherever_the_process_ends_nothing_runs_twice_and_the_conversation_goes_on(
    way: Way, shape: Any, some: Any
) -> None:
    bank = Bank()
    store = Crashing(bank)
    await through(App().conversation(shape(bank), sessions=store, id="s"), way, some)
    for shelf, paid in store.crashes():
        other = Bank()
        conversation = App().conversation(shape(other), sessions=shelf, id="s")
        await conversation.load()
        check_kept(conversation)
        assert not set(paid) & {(call.args["who"], call.args["at"]) for call in conversation.pending}
        while conversation.pending:
            await way.resume(conversation, some(conversation, lambda call: True))
            check_kept(conversation)
        assert not set(paid) & set(other.paid)
        result = await way.send(conversation, "next")
        assert result.messages[0].text == "next"
        check_kept(conversation)


@pytest.mark.anyio
@pytest.mark.parametrize("act", ["short text", "a layer"])
async def test_t11_a_call_that_was_cut_short_says_so_whatever_the_model_was_told_while_it_waited(
    way: Way, act: str
) -> None:
    copies: list[Shelf] = []
    store = Shelf()

    @tool(approve=True, max_result_chars=20 if act == "short text" else None)
    async def pay() -> str:
        copies.append(store.copy())
        return "paid"

    async def adds(call: ToolCall, next: Any) -> ToolOutput:
        output: ToolOutput = await next()
        return output.replace(content=f"{output.content} Please hold.")

    app = App().use(tool=adds) if act == "a layer" else App()
    agent = says("a", ToolUse("pay", {}, "p"), "thanks", "more", tools=[pay])
    conversation = app.conversation(agent, sessions=store, id="s")
    await way.send(conversation, "q")
    check_kept(conversation)
    await way.resume(conversation, {"p": True})
    other = app.conversation(agent, sessions=copies[0], id="s")
    await other.load()
    assert [message.text for message in other.messages if isinstance(message, ToolMessage)] == [UNKNOWN]
    assert other.pending == ()


# Whoever begins a resumed run again


@pytest.mark.anyio
@HOW_MANY
@pytest.mark.parametrize("scope", ["run", "agent"])
async def test_t11_a_layer_that_tries_again_finds_what_has_run_and_goes_on_from_there(
    way: Way, shape: Any, some: Any, scope: str
) -> None:
    expected = await through(App().conversation(shape(Bank())), way, some)
    bank, failed = Bank(), set[tuple[str, int]]()

    async def flaky(call: ChatCall, next: Any) -> Any:
        """Fails at the first request behind each result; what fails inside of a tool no run layer hears of."""
        key = call.agent.name, len(call.messages)
        inside = call.messages[0].text == "sub"
        if isinstance(call.messages[-1], ToolMessage) and key not in failed and not (inside and scope == "run"):
            failed.add(key)
            raise Boom
        return await next()

    async def tries_again(call: Any, next: Any) -> Any:
        for _ in range(5):
            try:
                return await next()
            except Boom:
                continue
        return await next()

    layers: dict[str, Any] = {scope: tries_again}
    conversation = App().use(chat=flaky, **layers).conversation(shape(bank))
    result = await through(conversation, way, some)
    assert len(set(bank.paid)) == len(bank.paid)
    told = [message.text for message in result.messages if isinstance(message, ToolMessage)]
    cut_short = {UNKNOWN, "The call is not lost: it ran, its result was withheld."} & set(told)  # beside a failure
    assert cut_short or result.messages == expected.messages
    assert result.text == expected.text
    check_kept(conversation)


@pytest.mark.anyio
async def test_t7_what_ran_before_it_waited_is_recorded_though_a_run_layer_answers_in_place(way: Way) -> None:
    uses = ["look", ToolUse("ping", {}, "p1")], ["pays", ToolUse("pay", {"who": "a", "at": 1}, "p2")]
    for flow in (lambda agent: agent, sequence, parallel):
        bank, resumed = Bank(), list[bool]()

        async def answers(call: Any, next: Any, resumed: list[bool] = resumed) -> Any:
            return "in place" if resumed else await next()

        agent = says("a", *uses, "more", tools=[ping, bank.pay])
        conversation = App().use(run=answers).conversation(flow(agent))
        await way.send(conversation, "q")
        resumed.append(True)
        assert (await way.resume(conversation, {"p2": True})).text == "in place"
        assert said(conversation.messages)[:3] == [("user", "q"), ("assistant", "look"), ("tool", "pong")]
        check_kept(conversation)


# Nobody is ever stuck


async def check_not_stuck(conversation: Conversation, way: Way) -> None:
    """What waits can be decided, and then the conversation goes on."""
    while conversation.pending:
        await way.resume(conversation, all_of(conversation, lambda call: True))
    await way.send(conversation, "next")
    check_kept(conversation)


class Asks(Agent):
    """It owns its step, and has another answer."""

    inner: Any = None

    async def run(self, input: Any, ctx: Context) -> Result:
        return await ctx.run(self.inner, input)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "who", ["an owned step", "an agent layer", "a run layer", "a tool", "a tool, by its name", "a function of a flow"]
)
async def test_t11_code_that_asks_an_agent_whose_call_would_wait_leaves_no_conversation_stuck(
    way: Way, who: str
) -> None:
    bank = Bank()
    payer = bank.payer("b")
    app = App()
    agent: Agent = answers("a")

    async def function(input: Any, ctx: Context) -> Result:
        return await ctx.run(payer, input)

    if who == "an owned step":
        agent = Asks(name="a", model="demo")
        vars(agent)["inner"] = payer
    elif who == "an agent layer":

        async def asks_another(call: AgentCall, next: Any) -> Any:
            return await call.ctx.run(payer, call.input)

        app.use(agent=asks_another, only=[agent])
    elif who == "a run layer":

        async def redirects(call: Any, next: Any) -> Any:
            return await next(call.replace(target=payer))

        app.use(run=redirects)
    elif who == "a tool":

        @tool
        async def ask(ctx: Context) -> str:
            return (await ctx.run(payer, "sub")).text or "nothing"

        agent = says("a", ToolUse("ask", {}, "1"), "fine", "more", tools=[ask])
    elif who == "a tool, by its name":

        @tool
        async def ask_by_name(ctx: Context) -> ToolOutput:
            return await ctx.call_tool("b", {"input": "sub"})

        tools = [ask_by_name, payer.as_tool()]
        agent = says("a", ToolUse("ask_by_name", {}, "1"), "fine", "more", tools=tools)
    else:
        agent = sequence(function)
    conversation = app.conversation(agent)
    await way.send(conversation, "q")
    check_kept(conversation)
    assert bank.paid == []
    await check_not_stuck(conversation, way)


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["a hook", "a layer"])
async def test_t11_a_call_that_became_one_to_an_agent_goes_on_where_that_waits(way: Way, by: str) -> None:
    bank = Bank()
    inner = bank.payer("b")

    def renamed(call: ToolCall, *rest: Any) -> Any:
        return call.replace(name="b", args={"input": "sub"}) if call.name == "ask" else None

    async def layer(call: ToolCall, next: Any) -> Any:
        return await next(renamed(call) or call)

    hooks: Any = [{"before_tool": renamed}] if by == "a hook" else []
    app = App().use(tool=layer) if by == "a layer" else App()
    agent = says("a", ToolUse("ask", {}, "1"), "fine", tools=[inner.as_tool()], hooks=hooks)
    conversation = app.conversation(agent)
    (call,) = (await way.send(conversation, "q")).pending
    result = await way.resume(conversation, {call.id: True})
    assert (result.text, bank.paid) == ("fine", [("b", 1)])
    check_kept(conversation)


@pytest.mark.anyio
async def test_t11_an_agent_that_is_asked_with_approval_goes_on_when_what_waits_inside_is_decided(way: Way) -> None:
    bank = Bank()
    ask = tool(approve=True)(bank.payer("b").as_tool())
    agent = says("a", ToolUse("b", {"input": "sub"}, "1"), "fine", tools=[ask])
    conversation = App().conversation(agent)
    (outer,) = (await way.send(conversation, "q")).pending
    assert (outer.name, bank.paid) == ("b", [])
    (call,) = (await way.resume(conversation, {outer.id: True})).pending
    assert (call.name, bank.paid) == ("pay", [])
    result = await way.resume(conversation, {call.id: True})
    assert (result.text, result.pending, bank.paid) == ("fine", (), [("b", 1)])


# What else a pause must remember


@pytest.mark.anyio
@pytest.mark.parametrize("x", [object(), float("nan"), float("inf"), [{1}]], ids=["object", "nan", "inf", "set"])
async def test_t11_a_call_that_cannot_be_written_down_is_refused_and_it_waits_as_before(way: Way, x: Any) -> None:
    ran: list[Any] = []

    @tool(approve=True)
    async def work(x: Any) -> str:
        ran.append(x)
        return "worked"

    conversation = App().conversation(says("a", ToolUse("work", {"x": 1}, "1"), "fine", tools=[work]))
    await way.send(conversation, "q")
    before = conversation.messages, conversation.pending
    with pytest.raises(ConfigurationError, match="'work' cannot be called with"):
        await way.resume(conversation, {"1": ToolCall("work", {"x": x})})
    assert (conversation.messages, conversation.pending, ran) == (*before, [])
    assert (await way.resume(conversation, {"1": ToolCall("work", {"x": 2})})).text == "fine"
    assert ran == [2]


class Total(BaseModel):
    total: int


def counts(text: str = '{"total": 3}') -> Agent:
    return Agent(name="a", model=Valid(lambda call: text), output=Total)


ANSWERED: dict[str, tuple[Callable[[], Any], str]] = {
    "an agent": (counts, "Total(total=3)"),
    "an agent inside": (lambda: sequence(answers("b"), counts(), name="inside"), "Total(total=3)"),
    "who got the conversation": (lambda: hands_over("b", counts()), "Total(total=3)"),
    "a blocked answer": (lambda: counts("bad"), "None"),
    "a text": (lambda: answers("b"), "'b says'"),
    "a function": (lambda: lambda input, ctx: "from it", "'from it'"),
    "a function inside": (lambda: sequence(lambda input, ctx: "from it", name="inside"), "'from it'"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ANSWERED)
@pytest.mark.parametrize("restarts", [False, True])
async def test_t11_a2_a_merge_gets_what_had_been_answered_before_the_wait_as_it_was(
    way: Way, restarts: bool, kind: str
) -> None:
    bank, store = Bank(), Shelf()
    first, expected = ANSWERED[kind]

    def merge(results: Sequence[Result], ctx: Context) -> str:
        return repr(results[0].output)

    def make() -> Agent:
        return parallel(first(), bank.payer("p"), merge=merge)

    app = App().guard(output=[against("bad", Enforced("found"))])
    conversation = app.conversation(make(), sessions=store, id="s")
    (call,) = (await way.send(conversation, "q")).pending
    if restarts:
        conversation = app.conversation(make(), sessions=store, id="s")
        await conversation.load()
    assert (await way.resume(conversation, {call.id: True})).text == expected


@pytest.mark.anyio
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("allowed", [0, 1])
async def test_t11_l1_a_call_that_waits_does_not_count_and_one_that_runs_does(
    way: Way, order: int, allowed: int
) -> None:
    bank = Bank()
    uses = [own("a"), ToolUse("ping", {}, "p2")][::order]
    conversation = App().conversation(says("a", uses, "fine", tools=[bank.pay, ping]))
    limits = Limits(tool_calls=allowed)
    if not allowed:
        with pytest.raises(LimitExceeded):
            await way.send(conversation, "q", limits=limits)
        assert conversation.messages == ()
        return
    (call,) = (await way.send(conversation, "q", limits=limits)).pending
    with pytest.raises(LimitExceeded):
        await way.resume(conversation, {call.id: True}, limits=Limits(tool_calls=0))
    assert (conversation.pending, bank.paid) == ((call,), [])
    assert (await way.resume(conversation, {call.id: True}, limits=limits)).text == "fine"
    assert bank.paid == [("a", 0)]


@tool
async def fail() -> str:
    raise ToolError("no")


@pytest.mark.anyio
@pytest.mark.parametrize(("beside", "stopped_by"), [(ping, "iterations"), (fail, "fails")])
@pytest.mark.parametrize("order", [1, -1])
async def test_t11_a3_a_turn_has_failed_when_all_its_calls_have_those_that_waited_included(
    way: Way, beside: Any, stopped_by: str, order: int
) -> None:
    uses = [ToolUse(beside.name, {}, "1"), own("a")][::order]
    agent = says("a", uses, "fine", tools=[Bank().pay, beside])
    conversation = App().conversation(loop(agent, max_fails=1, max_iterations=1))
    result = await way.send(conversation, "q")
    assert (result.finish_reason, result.stopped_by) == ("pending", None)
    result = await way.resume(conversation, {result.pending[0].id: False})
    assert result.stopped_by == stopped_by


@pytest.mark.anyio
async def test_t11_what_a_hook_made_of_a_call_put_in_place_is_what_runs_once_that_is_approved(way: Way) -> None:
    bank = Bank()

    def shouts(call: ToolCall, ctx: Context) -> ToolCall:
        return call.replace(args={**call.args, "who": call.args["who"].upper()})

    conversation = App().conversation(says("a", own("a"), "fine", tools=[bank.pay], hooks=[{"before_tool": shouts}]))
    (call,) = (await way.send(conversation, "q")).pending
    assert call.args["who"] == "A"
    (call,) = (await way.resume(conversation, {call.id: ToolCall("pay", {"who": "b", "at": 0})})).pending
    assert (call.args["who"], bank.paid) == ("B", [])
    await way.resume(conversation, {call.id: True})
    assert bank.paid == [("B", 0)]


@pytest.mark.anyio
async def test_t11_a5_a_transfer_in_place_of_a_call_beside_one_that_was_taken_gets_an_error_result(way: Way) -> None:
    bank, d = Bank(), answers("d")
    first = hands_over("a", answers("b"), [own("a")], [bank.pay])
    agent = Agent(name="a", model=first.model, tools=[bank.pay], handoffs=[*first.handoffs, d])
    conversation = App().conversation(agent)
    (call,) = (await way.send(conversation, "q")).pending
    result = await way.resume(conversation, {call.id: ToolCall("transfer_to_d", {})})
    assert (result.text, conversation.agent) == ("b says", "b")
    assert [message.is_error for message in result.messages if isinstance(message, ToolMessage)] == [True, False]


# Killed at random

CHILD = """
    import random
    import sys

    import anyio

    from middlechain import Agent, App, ToolMessage, ToolUse, tool
    from middlechain.sessions import SqliteSessions
    from middlechain.testing import ScriptedModel

    path, journal, number = sys.argv[1:]

    @tool
    async def note(text: str) -> str:
        with open(journal, "a") as file:
            file.write(text + chr(10))
        return "noted " + text

    def reply(call):
        asked = max(place for place, message in enumerate(call.messages) if message.role == "user")
        if len(call.messages) - asked > 8:
            return "done"
        place = len(call.messages)
        return [ToolUse("note", {"text": f"{number}-{place}-{n}"}, f"n{n}") for n in range(3)]

    async def main():
        conversation = App().conversation(
            Agent(name="a", model=ScriptedModel(reply), tools=[note]), sessions=SqliteSessions(path), id="c"
        )
        print("begins", flush=True)
        while True:
            await conversation.send(f"q{len(conversation.messages)}")

    anyio.run(main)
"""


def test_c4_killed_many_times_in_a_row_at_random_the_history_is_valid_and_what_it_says_has_happened(
    tmp_path: Path,
) -> None:
    script, path, journal = tmp_path / "child.py", tmp_path / "s.db", tmp_path / "journal"
    script.write_text(textwrap.dedent(CHILD))
    journal.touch()
    dice = random.Random(7)
    before: tuple[Message, ...] = ()

    async def stored() -> tuple[Message, ...]:
        async with SqliteSessions(path) as store:
            conversation = App().conversation(Agent(name="a", model="demo"), sessions=store, id="c")
            await conversation.load()
            assert conversation.pending == ()
            return conversation.messages

    for number in range(8):
        command = [sys.executable, str(script), str(path), str(journal), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begins\n"
            size = journal.stat().st_size + dice.randrange(1500)
            while journal.stat().st_size < size:
                assert child.poll() is None
            child.kill()
            assert child.wait() == -9
        messages = anyio.run(stored)
        check_valid(messages)
        last = next((place for place, one in enumerate(before) if one != messages[place]), len(before))
        assert last == len(before), "what was stored before has changed"
        assert len(messages) >= len(before)
        noted = [one.text.removeprefix("noted ") for one in messages if isinstance(one, ToolMessage)]
        assert set(noted) <= set(journal.read_text().split())
        assert len(set(noted)) == len(noted)
        assert all(isinstance(one, Assistant | ToolMessage) for one in messages[-1:])
        before = messages
    assert len(before) > 50
