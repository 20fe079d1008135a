"""Conversations (C4): what is kept of an exchange however it ends, and that the next request is always valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    ConfigurationError,
    Context,
    Conversation,
    Deny,
    Enforced,
    FatalToolError,
    GuardrailDenied,
    Layers,
    LimitExceeded,
    Limits,
    Message,
    Result,
    RunCall,
    System,
    TextDelta,
    ToolError,
    ToolMessage,
    ToolUse,
    User,
    guardrail,
    loop,
    parallel,
    sequence,
    tool,
)
from middlechain.sessions import Saved, SessionConflict
from middlechain.testing import ScriptedModel, collect

from .scenes import Boom

CANNED = "I can't help with that."
Said = tuple[str, str]


# What these tests share


def check_valid(messages: Sequence[Message]) -> None:
    """Any server takes it: a user begins, and each call has one result, right behind the reply that made it, in order.

    Ids are unique in their reply and not empty, and arguments are a JSON object.
    """
    if not messages:
        return
    assert isinstance(messages[0], User), "a conversation begins with what a user asked"
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        assert not isinstance(message, ToolMessage), f"a result of no call: {message}"
        if isinstance(message, Assistant):
            ids = [use.id for use in message.tool_calls]
            assert all(ids)
            assert len(set(ids)) == len(ids)
            results, rest = rest[: len(ids)], rest[len(ids) :]
            assert [(one.tool_call_id, one.name) for one in results if isinstance(one, ToolMessage)] == [
                (use.id, use.name) for use in message.tool_calls
            ]
            assert all(isinstance(json.loads(use.arguments), dict) for use in message.tool_calls)


def waits(message: Message) -> bool:
    """Whether it is the result of a call that waits for approval."""
    return isinstance(message, ToolMessage) and "waits for approval" in message.text


def check_kept(conversation: Conversation) -> None:
    """What the conversation has is valid, and says of a call that it waits if, and only if, something does."""
    check_valid(conversation.messages)
    assert any(map(waits, conversation.messages)) == bool(conversation.pending)


class Valid(ScriptedModel):
    """A model that takes valid requests only, in which nothing waits and nothing was blocked on its way in."""

    async def chat(self, call: ChatCall) -> ChatReply:
        messages = call.messages[1:] if isinstance(call.messages[0], System) else call.messages
        check_valid(messages)
        assert not any(map(waits, messages))
        assert not any(message.blocked for message in messages if isinstance(message, User))
        return await super().chat(call)


class Shelf:
    """A store in memory, by the protocol. What it is given goes through JSON, as on its way to a file."""

    def __init__(self) -> None:
        self.kept: dict[str, Saved] = {}
        self.saves: list[Saved] = []

    async def load(self, id: str, /, *, newer_than: int = 0) -> Saved | None:
        await checkpoint()
        saved = self.kept.get(id)
        return saved if saved is not None and saved.version > newer_than else None

    async def save(
        self, id: str, /, *, keep: int, messages: Sequence[Message], state: Mapping[str, Any], version: int
    ) -> None:
        await checkpoint()
        before = self.kept.get(id, Saved((), {}, 0))
        if before.version != version:
            raise SessionConflict(id)
        assert 0 <= keep <= len(before.messages)
        said = (*before.messages[:keep], *messages)
        check_valid(said)
        self.kept[id] = Saved(said, json.loads(json.dumps(state)), version + 1)
        self.saves.append(self.kept[id])

    def copy(self) -> Shelf:
        """What there would be if the process died now."""
        other = Shelf()
        other.kept = dict(self.kept)
        return other


class Way:
    """Sends and resumes, plainly or as a stream that is read to its end."""

    def __init__(self, streamed: bool) -> None:
        self.streamed = streamed

    async def send(self, conversation: Conversation, input: Any, **options: Any) -> Result:
        if self.streamed:
            return (await collect(conversation.stream(input, **options))).result
        return await conversation.send(input, **options)

    async def resume(self, conversation: Conversation, decisions: Any, **options: Any) -> Result:
        if self.streamed:
            return (await collect(conversation.stream(resume=decisions, **options))).result
        return await conversation.resume(decisions, **options)


WAYS = [pytest.param(Way(False), id="send"), pytest.param(Way(True), id="stream")]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@tool
async def ping() -> str:
    return "pong"


def says(name: str, *replies: Any, **options: Any) -> Agent:
    """An agent that gives these replies, one after the other, and whose model takes valid requests only."""
    return Agent(name=name, model=Valid(replies), **options)


def calls_of(agent: Agent) -> list[ChatCall]:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.calls


def said(messages: Sequence[Message]) -> list[Said]:
    return [(message.role, message.text) for message in messages]


def asked(agent: Agent) -> list[list[Said]]:
    """What each request to the agent's model said."""
    return [said(call.messages) for call in calls_of(agent)]


PINGED = [("user", "q"), ("assistant", "look"), ("tool", "pong")]
LOOK = ["look", ToolUse("ping", {}, "p1")]


def failing_once(what: Callable[[], Any]) -> Callable[..., Any]:
    """A function that fails at its first call, and keeps what there is afterwards."""
    calls: list[Any] = []

    def fails(*args: Any) -> Any:
        calls.append(args)
        return what() if len(calls) == 1 else None

    return fails


def boom() -> Any:
    raise Boom("once")


# History


@pytest.mark.anyio
async def test_c4_what_was_said_before_is_the_history_of_the_next_exchange(way: Way) -> None:
    agent = says("a", "one", LOOK, "two", "three", tools=[ping], instructions="be kind")
    conversation = App().conversation(agent)
    assert conversation.messages == ()
    first = await way.send(conversation, "q1")
    second = await way.send(conversation, "q2")
    third = await way.send(conversation, User("q3", name="eve"))
    assert [first.text, second.text, third.text] == ["one", "two", "three"]
    assert conversation.messages == (*first.messages, *second.messages, *third.messages)
    assert said(conversation.messages) == [
        ("user", "q1"),
        ("assistant", "one"),
        ("user", "q2"),
        ("assistant", "look"),
        ("tool", "pong"),
        ("assistant", "two"),
        ("user", "q3"),
        ("assistant", "three"),
    ]
    assert [len(request) for request in asked(agent)] == [2, 4, 6, 8]
    assert calls_of(agent)[-1].messages[1:] == conversation.messages[:-1]
    check_kept(conversation)


@pytest.mark.anyio
async def test_c4_two_conversations_and_plain_runs_know_nothing_of_each_other(way: Way) -> None:
    agent = says("a", "one", "two", "three")
    app = App()
    one, other = app.conversation(agent), app.conversation(agent)
    await way.send(one, "q1")
    await way.send(other, "q2")
    await app.run(agent, "q3")
    assert asked(agent) == [[("user", "q1")], [("user", "q2")], [("user", "q3")]]
    assert said(one.messages) == [("user", "q1"), ("assistant", "one")]
    assert said(other.messages) == [("user", "q2"), ("assistant", "two")]
    assert one.id != other.id


@pytest.mark.anyio
async def test_c4_a_history_is_given_as_messages_or_as_dicts(way: Way) -> None:
    uses = [{"id": "7", "type": "function", "function": {"name": "ping", "arguments": "{}"}}]
    dicts = [
        {"role": "user", "content": "before"},
        {"role": "assistant", "content": None, "tool_calls": uses},
        {"role": "tool", "tool_call_id": "7", "name": "ping", "content": "pong"},
        {"role": "assistant", "content": "was said"},
    ]
    messages = [
        User("before"),
        Assistant("", [ToolUse("ping", "{}", "7")]),
        ToolMessage("pong", "7", "ping"),
        Assistant("was said"),
    ]
    both: list[Sequence[Any]] = [dicts, messages]
    for history in both:
        agent = says("a", "one")
        conversation = App().conversation(agent, history=history)
        assert conversation.messages == tuple(messages)
        result = await way.send(conversation, "q")
        assert calls_of(agent)[0].messages == (*messages, User("q"))
        assert conversation.messages == (*messages, *result.messages)


@pytest.mark.anyio
async def test_c4_no_store_has_nothing_to_be_looked_at() -> None:
    conversation = App().conversation(says("a", "one"))
    await conversation.send("q")
    await conversation.load()
    assert said(conversation.messages) == [("user", "q"), ("assistant", "one")]


# Exchanges that fail

NO_TOOL_HAD_RUN: dict[str, Callable[[], tuple[Agent, App, dict[str, Any]]]] = {
    "the model": lambda: (says("a", Boom(), "fine"), App(), {}),
    "the model, in mid-stream": lambda: (says("a", ["fi", Boom()], "fine"), App(), {}),
    "a chat layer": lambda: (says("a", "fine"), App().use(chat=layer(failing_once(boom))), {}),
    "a chat layer, behind": lambda: (says("a", "lost", "fine"), App().use(chat=layer(failing_once(boom), True)), {}),
    "an agent layer": lambda: (says("a", "fine"), App().use(agent=layer(failing_once(boom))), {}),
    "an agent layer, behind": lambda: (says("a", "lost", "fine"), App().use(agent=layer(failing_once(boom), True)), {}),
    "a run layer": lambda: (says("a", "fine"), App().use(run=layer(failing_once(boom))), {}),
    "a run layer, behind": lambda: (says("a", "lost", "fine"), App().use(run=layer(failing_once(boom), True)), {}),
    "before_run": lambda: (says("a", "fine", hooks=[{"before_run": failing_once(boom)}]), App(), {}),
    "before_prompt": lambda: (says("a", "fine", hooks=[{"before_prompt": failing_once(boom)}]), App(), {}),
    "before_tool": lambda: (
        says("a", LOOK, "fine", tools=[ping], hooks=[{"before_tool": failing_once(boom)}]),
        App(),
        {},
    ),
    "after_response": lambda: (says("a", "lost", "fine", hooks=[{"after_response": failing_once(boom)}]), App(), {}),
    "after_run": lambda: (says("a", "lost", "fine", hooks=[{"after_run": failing_once(boom)}]), App(), {}),
    "on_error": lambda: (says("a", Boom(), "fine", hooks=[{"on_error": failing_once(boom)}]), App(), {}),
    "a limit": lambda: (says("a", "fine"), App(), {"limits": Limits(chat_calls=0)}),
    "a limit, for the tools": lambda: (says("a", LOOK, "fine", tools=[ping]), App(), {"limits": Limits(tool_calls=0)}),
    "a denied input": lambda: (says("a", "fine"), App().guard(input=[against("q")]), {}),
    "a denied output": lambda: (says("a", "bad", "fine"), App().guard(output=[against("bad")]), {}),
}


def layer(act: Callable[..., Any], behind: bool = False) -> Any:
    """A layer that acts before, or behind, what it wraps."""

    async def layer(call: Any, next: Any) -> Any:
        if not behind:
            act(call)
        answer = await next()
        if behind:
            act(call)
        return answer

    return layer


def against(word: str, answer: Any = None) -> Any:
    answer = Deny("found") if answer is None else answer
    return guardrail("words")(lambda text, ctx: answer if text == word else None)


@pytest.mark.anyio
@pytest.mark.parametrize("place", NO_TOOL_HAD_RUN)
@pytest.mark.parametrize("before", [(), (User("hi"), Assistant("hello"))], ids=["at first", "later"])
async def test_c4_an_exchange_that_fails_before_any_tool_ran_leaves_nothing(
    way: Way, place: str, before: tuple[Message, ...]
) -> None:
    agent, app, options = NO_TOOL_HAD_RUN[place]()
    conversation = app.conversation(agent, history=before)
    with pytest.raises((Boom, LimitExceeded, GuardrailDenied)):
        await way.send(conversation, "q", **options)
    assert conversation.messages == before
    result = await way.send(conversation, "again")
    if place in {"before_tool", "a limit, for the tools"}:
        assert said(result.messages)[-1] == ("assistant", "fine")
    else:
        assert said(result.messages) == [("user", "again"), ("assistant", "fine")]
    assert conversation.messages == (*before, *result.messages)
    assert calls_of(agent)[-1].messages == conversation.messages[:-1]
    check_kept(conversation)


def second(act: Callable[[], Any]) -> Callable[..., Any]:
    """A function that acts at its second call alone."""
    calls: list[Any] = []

    def acts(*args: Any) -> Any:
        calls.append(args)
        return act() if len(calls) == 2 else None

    return acts


def looks(*replies: Any, **options: Any) -> Agent:
    return says("a", LOOK, *replies, tools=[ping], **options)


TOOLS_HAD_RUN: dict[str, Callable[[], tuple[Agent, App, dict[str, Any]]]] = {
    "the model": lambda: (looks(Boom(), "fine"), App(), {}),
    "the model, in mid-stream": lambda: (looks(["fi", Boom()], "fine"), App(), {}),
    "a chat layer": lambda: (looks("fine"), App().use(chat=layer(second(boom))), {}),
    "a tool layer, behind": lambda: (looks("fine"), App().use(tool=layer(failing_once(boom), True)), {}),
    "an agent layer, behind": lambda: (looks("lost", "fine"), App().use(agent=layer(failing_once(boom), True)), {}),
    "a run layer, behind": lambda: (looks("lost", "fine"), App().use(run=layer(failing_once(boom), True)), {}),
    "before_prompt": lambda: (looks("fine", hooks=[{"before_prompt": second(boom)}]), App(), {}),
    "before_tool, of the next turn": lambda: (looks(LOOK, "fine", hooks=[{"before_tool": second(boom)}]), App(), {}),
    "after_tool": lambda: (looks("fine", hooks=[{"after_tool": failing_once(boom)}]), App(), {}),
    "after_response": lambda: (looks("lost", "fine", hooks=[{"after_response": failing_once(boom)}]), App(), {}),
    "after_run": lambda: (looks("lost", "fine", hooks=[{"after_run": failing_once(boom)}]), App(), {}),
    "a limit": lambda: (looks("fine"), App(), {"limits": Limits(chat_calls=1)}),
    "a limit, for the next tools": lambda: (looks(LOOK, "fine"), App(), {"limits": Limits(tool_calls=1)}),
    "a limit of turns": lambda: (looks(LOOK, "fine"), App(), {"limits": Limits(turns=2)}),
    "a denied output": lambda: (looks("bad", "fine"), App().guard(output=[against("bad")]), {}),
}


@pytest.mark.anyio
@pytest.mark.parametrize("place", TOOLS_HAD_RUN)
async def test_c4_an_exchange_that_fails_later_keeps_the_message_and_the_turns_whose_tools_ran(
    way: Way, place: str
) -> None:
    agent, app, options = TOOLS_HAD_RUN[place]()
    conversation = app.conversation(agent)
    with pytest.raises((Boom, LimitExceeded, GuardrailDenied)):
        await way.send(conversation, "q", **options)
    withheld = place in {"a tool layer, behind", "after_tool"}
    kept = said(conversation.messages)
    assert kept[:2] == PINGED[:2]
    assert [role for role, _ in kept] == ["user", "assistant", "tool"]
    assert ("withheld" in kept[2][1]) if withheld else (kept == PINGED)
    check_kept(conversation)
    result = await way.send(conversation, "again")
    assert result.text == "fine"
    assert said(conversation.messages)[3:] == [("user", "again"), ("assistant", "fine")]
    assert calls_of(agent)[-1].messages == conversation.messages[:-1]


@pytest.mark.anyio
async def test_c4_of_a_reply_whose_tool_ended_the_step_each_call_has_a_result(way: Way) -> None:
    @tool
    async def fatal() -> str:
        await wait_all_tasks_blocked()
        raise FatalToolError("over")

    @tool
    async def slow() -> str:
        await anyio.sleep_forever()
        return "never"

    uses = [ToolUse("slow", {}, "1"), ToolUse("fatal", {}, "2"), ToolUse("ping", {}, "3"), ToolUse("what", {}, "4")]
    agent = says("a", uses, "fine", tools=[ping, fatal, slow])
    conversation = App().conversation(agent)
    with pytest.raises(FatalToolError):
        await way.send(conversation, "q")
    results = [message for message in conversation.messages if isinstance(message, ToolMessage)]
    assert [message.is_error for message in results] == [True, True, False, True]
    assert (results[2].text, "did not finish" in results[0].text) == ("pong", True)
    check_kept(conversation)
    assert (await way.send(conversation, "again")).text == "fine"


@pytest.mark.anyio
async def test_c4_what_a_limit_stopped_is_an_exchange_like_any_other(way: Way) -> None:
    agent = looks(["more", ToolUse("ping", {}, "p2")], "fine")
    conversation = App().conversation(agent)
    result = await way.send(conversation, "q", limits=Limits(turns=2, on_exceed="stop"))
    assert (result.stopped_by, result.text) == ("limit", "more")
    assert said(conversation.messages) == [*PINGED, ("assistant", "more")]
    assert not any(message.tool_calls for message in conversation.messages[3:] if isinstance(message, Assistant))
    assert (await way.send(conversation, "again")).text == "fine"
    check_kept(conversation)


@pytest.mark.anyio
async def test_c4_a_degraded_answer_is_kept_behind_the_turns_whose_tools_ran_and_is_sent(way: Way) -> None:
    for replies, before in (([Boom(), "fine"], [("user", "q")]), ([LOOK, Boom(), "fine"], PINGED)):
        agent = says("a", *replies, tools=[ping], hooks=[{"on_error": lambda error, ctx: "sorry"}])
        conversation = App().conversation(agent)
        result = await way.send(conversation, "q")
        assert (result.degraded, result.finish_reason) == (True, "degraded")
        assert said(conversation.messages) == [*before, ("assistant", "sorry")]
        await way.send(conversation, "again")
        assert asked(agent)[-1] == [*before, ("assistant", "sorry"), ("user", "again")]
        check_kept(conversation)


# Guardrails (G8)


@pytest.mark.anyio
async def test_c4_g8_a_blocked_message_stays_marked_with_its_canned_answer_and_neither_is_sent(way: Way) -> None:
    agent = says("a", "one", "two")
    conversation = App().guard(input=[against("bad", Enforced("found"))]).conversation(agent)
    await way.send(conversation, "q")
    result = await way.send(conversation, "bad")
    assert (result.blocked, result.text) == (True, CANNED)
    marks = [(message.role, message.text, getattr(message, "blocked", None)) for message in conversation.messages]
    assert marks[2:] == [("user", "bad", True), ("assistant", CANNED, True)]
    assert [blocked for _, _, blocked in marks[:2]] == [False, False]
    await way.send(conversation, "again")
    assert asked(agent)[-1] == [("user", "q"), ("assistant", "one"), ("user", "again")]
    assert len(calls_of(agent)) == 2
    check_kept(conversation)


@pytest.mark.anyio
async def test_c4_g8_after_a_blocked_reply_the_message_the_tools_and_the_canned_answer_stay_and_are_sent(
    way: Way,
) -> None:
    agent = says("a", LOOK, ["bad", ToolUse("ping", {}, "p2")], "two", tools=[ping])
    conversation = App().guard(output=[against("bad", Enforced("found"))]).conversation(agent)
    result = await way.send(conversation, "q")
    assert (result.blocked, result.text) == (True, CANNED)
    assert said(conversation.messages) == [*PINGED, ("assistant", CANNED)]
    assert "bad" not in repr(conversation.messages)
    await way.send(conversation, "again")
    assert asked(agent)[-1] == [*PINGED, ("assistant", CANNED), ("user", "again")]
    check_kept(conversation)


# Cancellation, and streams that are left


async def until(stopped: anyio.Event, way: Way, conversation: Conversation) -> None:
    """Send, and leave when the event is set: by cancelling, or by leaving the stream."""
    if way.streamed:
        async with conversation.stream("q") as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(read, stream)
            await stopped.wait()
            tasks.cancel_scope.cancel()
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(conversation.send, "q")
        await stopped.wait()
        tasks.cancel_scope.cancel()


async def read(stream: Any) -> None:
    async for _ in stream:
        pass


def blocking(event: anyio.Event) -> Callable[..., Any]:
    """What sets the event and waits to be cancelled."""

    async def blocks(*args: Any) -> str:
        event.set()
        await anyio.sleep_forever()
        return "never"

    return blocks


@pytest.mark.anyio
async def test_c4_a_cancelled_exchange_in_which_no_tool_had_run_leaves_nothing(way: Way) -> None:
    reached = anyio.Event()
    agent = says("a", "hello", blocking(reached), "fine")
    conversation = App().conversation(agent)
    await way.send(conversation, "hi")
    await until(reached, way, conversation)
    assert said(conversation.messages) == [("user", "hi"), ("assistant", "hello")]
    assert (await way.send(conversation, "again")).text == "fine"
    check_kept(conversation)


@pytest.mark.anyio
async def test_c4_an_exchange_cancelled_later_keeps_the_turns_whose_tools_ran(way: Way) -> None:
    reached = anyio.Event()
    agent = says("a", LOOK, blocking(reached), "fine", tools=[ping])
    conversation = App().conversation(agent)
    await until(reached, way, conversation)
    assert said(conversation.messages) == PINGED
    assert (await way.send(conversation, "again")).text == "fine"
    check_kept(conversation)


@pytest.mark.anyio
@pytest.mark.parametrize("company", [True, False], ids=["others had ended", "alone"])
async def test_c4_calls_that_a_cancellation_cut_short_have_an_error_result(way: Way, company: bool) -> None:
    reached = anyio.Event()

    @tool
    async def slow() -> str:
        if company:
            await wait_all_tasks_blocked()
        reached.set()
        await anyio.sleep_forever()
        return "never"

    uses = [ToolUse("ping", {}, "1")] * company + [ToolUse("slow", {}, "2")]
    agent = says("a", uses, "fine", tools=[ping, slow])
    conversation = App().conversation(agent)
    await until(reached, way, conversation)
    *others, cut = [message for message in conversation.messages if isinstance(message, ToolMessage)]
    assert [message.text for message in others] == ["pong"] * company
    assert (cut.is_error, "did not finish" in cut.text) == (True, True)
    check_kept(conversation)
    assert (await way.send(conversation, "again")).text == "fine"


@pytest.mark.anyio
async def test_c4_s5_a_stream_left_after_its_first_words_leaves_nothing_and_the_next_exchange_is_clean() -> None:
    async def forever() -> None:
        await anyio.sleep_forever()

    agent = says("a", lambda call: ["on", forever(), "never"], "fine")
    conversation = App().conversation(agent)
    async with conversation.stream("q") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
    assert conversation.messages == ()
    assert (await conversation.send("again")).text == "fine"
    assert asked(agent)[-1] == [("user", "again")]


@pytest.mark.anyio
async def test_c4_s5_a_stream_that_is_never_entered_sends_nothing() -> None:
    agent = says("a", "fine")
    conversation = App().conversation(agent)
    conversation.stream("q")
    async with conversation.stream("q"):
        pass
    assert (conversation.messages, calls_of(agent)) == ((), [])
    assert (await conversation.send("again")).text == "fine"


# Turns


@pytest.mark.anyio
async def test_c4_sends_at_once_take_turns_in_the_order_in_which_they_came(way: Way) -> None:
    gates = [anyio.Event() for _ in range(4)]
    begun: list[str] = []

    async def reply(call: ChatCall) -> str:
        begun.append(call.messages[-1].text)
        await gates[len(begun) - 1].wait()
        return f"to {call.messages[-1].text}"

    agent = says("a", *[reply] * 4)
    conversation = App().conversation(agent)
    async with anyio.create_task_group() as tasks:
        for place in range(4):
            tasks.start_soon(way.send, conversation, f"q{place}")
            await wait_all_tasks_blocked()
        for place in range(4):
            await wait_all_tasks_blocked()
            assert begun == [f"q{place}" for place in range(place + 1)]
            gates[place].set()
    expected = [
        (role, text) for place in range(4) for role, text in (("user", f"q{place}"), ("assistant", f"to q{place}"))
    ]
    assert said(conversation.messages) == expected
    assert asked(agent)[-1] == expected[:-1]


@pytest.mark.anyio
async def test_c4_two_conversations_do_not_wait_for_each_other(way: Way) -> None:
    both = anyio.Event()
    begun: list[ChatCall] = []

    async def reply(call: ChatCall) -> str:
        begun.append(call)
        if len(begun) == 2:
            both.set()
        await both.wait()
        return "fine"

    app, agent = App(), says("a", reply, reply)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for conversation in (app.conversation(agent), app.conversation(agent)):
                tasks.start_soon(way.send, conversation, "q")
    assert len(begun) == 2


@pytest.mark.anyio
async def test_c4_one_that_waits_for_its_turn_may_be_cancelled_and_takes_nothing_with_it(way: Way) -> None:
    gate = anyio.Event()

    async def reply(call: ChatCall) -> str:
        await gate.wait()
        return "fine"

    agent = says("a", reply, reply)
    conversation = App().conversation(agent)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(way.send, conversation, "q1")
        await wait_all_tasks_blocked()
        async with anyio.create_task_group() as second:
            second.start_soon(way.send, conversation, "q2")
            await wait_all_tasks_blocked()
            second.cancel_scope.cancel()
        gate.set()
    await way.send(conversation, "q3")
    assert [text for role, text in said(conversation.messages) if role == "user"] == ["q1", "q3"]


@pytest.mark.anyio
async def test_c4_a_send_waits_while_a_stream_is_open_and_goes_on_when_it_is_left() -> None:
    async def forever() -> None:
        await anyio.sleep_forever()

    agent = says("a", LOOK, lambda call: ["on", forever()], "fine", tools=[ping])
    conversation = App().conversation(agent)
    results: list[Result] = []

    async def send() -> None:
        results.append(await conversation.send("again"))

    async with anyio.create_task_group() as tasks, conversation.stream("q") as stream:
        async for event in stream:
            if isinstance(event, TextDelta) and event.text == "on":
                break
        tasks.start_soon(send)
        await wait_all_tasks_blocked()
        assert len(calls_of(agent)) == 2
    assert [result.text for result in results] == ["fine"]
    assert said(conversation.messages) == [*PINGED, ("user", "again"), ("assistant", "fine")]


@pytest.mark.anyio
async def test_c4_when_a_send_has_failed_the_next_in_line_has_its_turn(way: Way) -> None:
    gate = anyio.Event()

    async def reply(call: ChatCall) -> str:
        await gate.wait()
        raise Boom

    conversation = App().conversation(says("a", reply, "fine"))

    async def fails() -> None:
        with pytest.raises(Boom):
            await way.send(conversation, "q1")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fails)
        await wait_all_tasks_blocked()
        tasks.start_soon(way.send, conversation, "q2")
        await wait_all_tasks_blocked()
        gate.set()
    assert said(conversation.messages) == [("user", "q2"), ("assistant", "fine")]


# Who answers


def hands_over(*rest: Any, to: Any, **options: Any) -> Agent:
    """An agent that hands the conversation over in its first reply."""
    name = to if isinstance(to, str) else to.name
    return says("a", ["over", ToolUse(f"transfer_to_{name}", {}, "t1")], *rest, handoffs=[to], **options)


@pytest.mark.anyio
async def test_c4_who_got_the_conversation_answers_from_then_on(way: Way) -> None:
    b = says("b", "b1", "b2")
    a = hands_over(to=b)
    conversation = App().conversation(a)
    assert conversation.agent == "a"
    assert (await way.send(conversation, "q")).agent == "b"
    assert conversation.agent == "b"
    assert (await way.send(conversation, "r")).text == "b2"
    assert (len(calls_of(a)), conversation.agent) == (1, "b")
    assert asked(b)[-1] == said(conversation.messages)[:-1]
    check_kept(conversation)


@pytest.mark.anyio
async def test_c4_who_got_the_conversation_may_hand_it_on_and_back(way: Way) -> None:
    c = says("c", "c1", ["back", ToolUse("transfer_to_a", {}, "t3")], handoffs=["a"])
    b = says("b", ["on", ToolUse("transfer_to_c", {}, "t2")], handoffs=[c])
    a = hands_over("a2", to=b)
    conversation = App(agents=[a]).conversation("a")
    assert (await way.send(conversation, "q")).text == "c1"
    assert conversation.agent == "c"
    assert (await way.send(conversation, "r")).text == "a2"
    assert conversation.agent == "a"
    check_kept(conversation)


@pytest.mark.anyio
async def test_c4_a_refused_handoff_changes_nobody(way: Way) -> None:
    b = says("b", "never")
    a = hands_over("a stays", "a again", to=b, middleware=[Layers(tool=lambda call, next: "no")])
    conversation = App().conversation(a)
    assert (await way.send(conversation, "q")).text == "a stays"
    assert conversation.agent == "a"
    assert (await way.send(conversation, "r")).text == "a again"


@pytest.mark.anyio
async def test_c4_a_failure_behind_the_handoff_leaves_the_conversation_with_who_got_it(way: Way) -> None:
    b = says("b", Boom(), "b2")
    a = hands_over(to=b)
    conversation = App().conversation(a)
    with pytest.raises(Boom):
        await way.send(conversation, "q")
    assert conversation.agent == "b"
    assert [role for role, _ in said(conversation.messages)] == ["user", "assistant", "tool"]
    assert (await way.send(conversation, "again")).text == "b2"
    check_kept(conversation)


@pytest.mark.anyio
async def test_c4_a_failure_before_the_handoff_leaves_it_where_it_was(way: Way) -> None:
    b = says("b", "b1")
    a = says("a", Boom(), "a2", handoffs=[b])
    conversation = App().conversation(a)
    with pytest.raises(Boom):
        await way.send(conversation, "q")
    assert (conversation.agent, conversation.messages) == ("a", ())
    assert (await way.send(conversation, "again")).text == "a2"


@pytest.mark.anyio
async def test_c4_of_agent_classes_each_exchange_has_an_object_of_its_own(way: Way) -> None:
    objects: list[object] = []
    model = Valid([["over", ToolUse("transfer_to_B", {}, "t1")], "b1", "b2"])

    class B(Agent):
        def before_prompt(self, prompt: str, ctx: Context) -> None:
            objects.append(self)

    class A(Agent):
        handoffs = (B,)

    conversation = App(model=model).conversation(A)
    assert [(await way.send(conversation, text)).agent for text in ("q", "r")] == ["B", "B"]
    assert len({id(one) for one in objects}) == len(objects) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("make", [sequence, parallel, loop], ids=lambda make: make.__name__)
async def test_c4_a_flow_has_conversations_too(way: Way, make: Any) -> None:
    options = {"max_iterations": 1} if make is loop else {}
    flow = make(says("a", "a1", LOOK, Boom(), "a3", tools=[ping]), name="flow", **options)
    conversation = App().conversation(flow)
    assert (await way.send(conversation, "q")).text == "a1"
    with pytest.raises(Boom):
        await way.send(conversation, "r")
    assert said(conversation.messages) == [
        ("user", "q"),
        ("assistant", "a1"),
        ("user", "r"),
        ("assistant", "look"),
        ("tool", "pong"),
    ]
    assert (await way.send(conversation, "s")).text == "a3"
    assert conversation.agent == "flow"
    check_kept(conversation)


@pytest.mark.anyio
async def test_c4_what_a_run_layer_answers_in_place_is_kept_and_is_sent(way: Way) -> None:
    async def answers(call: RunCall, next: Any) -> Any:
        return "from the layer" if call.input == "q" else await next()

    agent = says("a", "fine")
    conversation = App().use(run=answers).conversation(agent)
    assert (await way.send(conversation, "q")).text == "from the layer"
    assert (len(calls_of(agent)), conversation.agent) == (0, "a")
    await way.send(conversation, "r")
    assert asked(agent) == [[("user", "q"), ("assistant", "from the layer"), ("user", "r")]]
    check_kept(conversation)


@pytest.mark.anyio
@pytest.mark.parametrize("repeated", [True, False])
async def test_c4_a_run_layer_that_asks_another_agent_does_not_end_the_conversation(way: Way, repeated: bool) -> None:
    async def redirects(call: RunCall, next: Any) -> Any:
        return await next(call.replace(target=other)) if repeated or call.input == "q" else await next()

    agent, other = says("a", "fine"), says("other", "one", "two")
    conversation = App().use(run=redirects).conversation(agent)
    assert (await way.send(conversation, "q")).agent == "other"
    assert (await way.send(conversation, "r")).text == ("two" if repeated else "fine")
    check_kept(conversation)


# Options


@pytest.mark.anyio
async def test_c4_options_of_the_conversation_hold_for_each_exchange_and_those_of_one_go_before_them(way: Way) -> None:
    log: list[Any] = []

    def noting(name: str) -> Layers:
        def notes(call: ChatCall, next: Any) -> Any:
            log.append(name)
            return next()

        return Layers(chat=notes)

    agent = says("a", *["fine"] * 3)
    app = App().use(Seen(log))
    conversation = app.conversation(
        agent,
        state="own",
        data={"a": 1},
        limits=Limits(turns=3),
        use=[noting("all")],
        guardrails={"input": [against("bad", Enforced("found"))]},
    )
    result = await way.send(conversation, "q")
    assert log == [("own", {"a": 1}, 3), "all"]
    assert result.state == "own"
    log.clear()
    result = await way.send(
        conversation,
        "bad",
        state="other",
        data={"b": 2},
        limits=Limits(turns=4),
        use=[noting("one")],
        guardrails={},
        run_id="r7",
    )
    assert log == [("other", {"b": 2}, 4), "one"]
    assert (result.state, result.run_id, result.blocked) == ("other", "r7", False)
    log.clear()
    assert (await way.send(conversation, "bad")).blocked is True
    assert log == [("own", {"a": 1}, 3)]


class Seen:
    """A bundle that notes what a run was given."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    async def run(self, call: RunCall, next: Any) -> None:
        ctx = call.ctx
        self.log.append((ctx.state, dict(ctx.data), ctx.limits.turns))
        await next()


@pytest.mark.anyio
async def test_c4_the_text_of_an_exchange_is_told_as_it_comes_by_on_text_and_by_an_append_only_stream() -> None:
    agent = says("a", LOOK, "fine", LOOK, "fine", "then", tools=[ping])
    conversation = App().conversation(agent)
    told: list[str] = []
    await conversation.send("q", on_text=told.append)
    async with conversation.stream("r", resets=False) as stream:
        pieces = [piece async for piece in stream.text()]
    assert "".join(told) == "".join(pieces) == "look\n\nfine"
    assert (await conversation.send("s", on_text=None)).text == "then"


@pytest.mark.anyio
async def test_c4_what_on_text_raises_ends_the_exchange_and_leaves_nothing() -> None:
    def on_text(piece: str) -> None:
        raise Boom(piece)

    conversation = App().conversation(says("a", "lost", "fine"))
    with pytest.raises(Boom, match="lost"):
        await conversation.send("q", on_text=on_text)
    assert conversation.messages == ()
    assert (await conversation.send("again")).text == "fine"


# What is refused


@pytest.mark.anyio
@pytest.mark.parametrize("input", [7, b"bytes", {"role": "user"}, [7], None], ids=repr)
async def test_c4_what_is_no_input_is_refused_and_nothing_is_lost(way: Way, input: Any) -> None:
    agent = says("a", "one", "two")
    conversation = App().conversation(agent)
    await way.send(conversation, "q")
    before = conversation.messages
    with pytest.raises(ConfigurationError):
        await way.send(conversation, input)
    assert (conversation.messages, len(calls_of(agent))) == (before, 1)
    assert (await way.send(conversation, "r")).text == "two"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "options",
    [
        {"histroy": []},
        {"history": []},
        {"limits": 7},
        {"data": 7},
        {"use": [print]},
        {"guardrails": {"inputs": []}},
        {"resets": 1, "stat": 2},
    ],
    ids=repr,
)
async def test_c4_unknown_and_wrong_options_are_refused_and_nothing_is_lost(way: Way, options: Any) -> None:
    agent = says("a", "one", "two")
    conversation = App().conversation(agent)
    await way.send(conversation, "q")
    before = conversation.messages
    with pytest.raises(ConfigurationError):
        await way.send(conversation, "r", **options)
    assert (conversation.messages, len(calls_of(agent))) == (before, 1)
    assert (await way.send(conversation, "s")).text == "two"


@pytest.mark.anyio
async def test_c4_a_stream_takes_an_input_or_decisions_and_no_on_text() -> None:
    conversation = App().conversation(says("a", "one"))
    both: list[dict[str, Any]] = [{}, {"input": "q", "resume": {"1": True}}]
    for given_ in both:
        with pytest.raises(ConfigurationError, match=r"takes an input, or resume= with decisions"):
            conversation.stream(**given_)
    unknown: Any = {"on_text": print}
    with pytest.raises(ConfigurationError, match="on_text"):
        conversation.stream("q", **unknown)
    with pytest.raises(ConfigurationError, match="on_text"):
        await conversation.send("q", on_text=7)  # type: ignore[arg-type]  # that is what is tested
    assert conversation.messages == ()
    assert (await conversation.send("q")).text == "one"


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("nobody", {}, "no agent 'nobody'"),
        (7, {}, "the target of a run is 7"),
        (Agent(name="a", model="demo"), {"sessions": Shelf()}, "no id"),
        (Agent(name="a", model="demo"), {"sessions": Shelf(), "id": ""}, "no id"),
        (Agent(name="a", model="demo"), {"on_text": print}, "no keyword 'on_text'"),
        (Agent(name="a", model="demo"), {"histroy": []}, "no keyword 'histroy'"),
        (Agent(name="a", model="demo"), {"history": [{"role": "king", "content": ""}]}, "message 0 of the history"),
    ],
)
def test_c4_what_is_no_conversation_is_refused_when_it_is_made(
    target: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        App().conversation(target, **options)


# Several event loops


@pytest.mark.parametrize("backends", [*product(["asyncio", "trio"], repeat=2)], ids="then".join)
@pytest.mark.parametrize("contended", [False, True], ids=["alone", "two at once"])
@pytest.mark.parametrize("made_in", ["no loop", "the first loop"])
def test_o4_one_conversation_serves_several_event_loops_in_turn(
    backends: tuple[str, str], contended: bool, made_in: str
) -> None:
    agent = says("a", *["fine"] * 4)
    made: list[Conversation] = [App().conversation(agent)] if made_in == "no loop" else []

    async def exchange(text: str) -> None:
        if not made:
            made.append(App().conversation(agent))
        async with anyio.create_task_group() as tasks:
            for place in range(1 + contended):
                tasks.start_soon(made[0].send, f"{text} {place}")

    for backend, text in zip(backends, "qr", strict=True):
        anyio.run(exchange, text, backend=backend)
    assert len(made[0].messages) == 4 * (1 + contended)
    check_kept(made[0])


# Whatever happens, the next request is valid

ECHO = st.builds(lambda id: ToolUse("ping", {}, id), st.sampled_from(["", "1", "1", "2"]))
FAIL = st.builds(lambda id: ToolUse("fail", {}, id), st.sampled_from(["", "1", "3"]))
ODD = st.sampled_from(
    [ToolUse("what", {}, "4"), ToolUse("ping", "{", "5"), ToolUse("ping", "[]", "5"), ToolUse("fatal")]
)
USES = st.lists(ECHO | FAIL | ODD, min_size=1, max_size=3)
CUT = st.sampled_from(["length", "safety", "content_filter", "incomplete", "stop", None])
REPLIES = st.lists(
    st.sampled_from(["fine", "bad", "denied", "", Boom("model")])
    | USES
    | st.builds(lambda uses, reason: ChatReply("cut", tuple(uses), finish_reason=reason), USES, CUT)
    | st.builds(lambda uses: ["bad", *uses], USES),
    min_size=1,
    max_size=6,
)
INPUTS = st.lists(st.sampled_from(["q", "q", "bad", "denied"]), min_size=1, max_size=4)


@tool
async def fail() -> str:
    raise ToolError("no")


@tool
async def fatal() -> str:
    raise FatalToolError("over")


def endless(replies: Sequence[Any]) -> Iterator[Any]:
    yield from replies
    while True:
        yield "done"


@given(
    replies=REPLIES, inputs=INPUTS, recovers=st.booleans(), streamed=st.booleans(), turns=st.sampled_from([1, 2, 10])
)
def test_c4_whatever_happens_the_next_request_is_valid(
    replies: list[Any], inputs: list[str], recovers: bool, streamed: bool, turns: int
) -> None:
    script = endless(replies)

    def play(call: ChatCall) -> Any:
        check_valid(call.messages)
        return next(script)

    guards = {
        "input": [against("bad", Enforced("found")), against("denied")],
        "output": [against("bad", Enforced("found")), against("denied")],
    }
    hooks: list[Any] = [{"on_error": lambda error, ctx: "sorry"}] if recovers else []
    agent = Agent(name="a", model=Valid(play), tools=[ping, fail, fatal], hooks=hooks, guardrails=guards)
    store = Shelf()
    conversation = App().conversation(agent, limits=Limits(turns=turns), sessions=store, id="s")
    way = Way(streamed)

    async def talk() -> None:
        for text in inputs:
            before = conversation.messages
            failed = False
            try:
                result = await way.send(conversation, text)
            except (Boom, FatalToolError, GuardrailDenied, LimitExceeded):
                failed = True
            check_kept(conversation)
            assert conversation.messages[: len(before)] == before
            added = conversation.messages[len(before) :]
            assert added == result.messages if not failed else not added or isinstance(added[-1], ToolMessage)
            assert "s" not in store.kept or store.kept["s"].messages == conversation.messages

    anyio.run(talk)
