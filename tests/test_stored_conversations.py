"""Stored conversations (C4, T11): what a store has of them at each moment, also of a process that was killed."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatCall,
    ConfigurationError,
    ContractError,
    Conversation,
    Message,
    ToolCall,
    ToolUse,
    User,
    parallel,
    sequence,
    tool,
)
from middlechain.sessions import SessionConflict, Sessions, SqliteSessions
from middlechain.testing import ScriptedModel

from .scenes import Boom
from .test_conversations import LOOK, PINGED, WAYS, Shelf, Valid, Way, asked, check_kept, check_valid, ping, said, says

pytestmark = pytest.mark.anyio

UNKNOWN = "The tool was started and did not finish; what it did by then is not known."
WAITS = "The call has not run: it waits for approval."
REFUSED = "The call was refused by the person who was asked to approve it. Do not make it again; go on without it."


# What these tests share


class Place:
    """Where conversations are kept. `open` gives a store as another process would have it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._shelf = Shelf()
        self._opened: list[SqliteSessions] = []

    def open(self) -> Sessions:
        if self._path is None:
            return self._shelf
        self._opened.append(SqliteSessions(self._path))
        return self._opened[-1]

    async def stored(self, id: str = "c") -> tuple[Message, ...]:
        saved = await self.open().load(id)
        return () if saved is None else saved.messages

    def close(self) -> None:
        for store in self._opened:
            anyio.run(store.aclose)


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "sessions.db" if request.param == "sqlite" else None)
    yield found
    found.close()


@pytest.fixture(params=WAYS)
def how(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


class Till:
    """A tool that pays, once approved, and what it has paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool(approve=True)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        self.pay = pay


def pays(*amounts: int) -> list[Any]:
    return ["pays", *(ToolUse("pay", {"amount": amount}, f"p{amount}") for amount in amounts)]


def told(conversation: Conversation) -> list[str]:
    """The results of all calls, in order."""
    return [message.text for message in conversation.messages if message.role == "tool"]


# What is kept


async def test_c4_a_conversation_goes_on_in_another_process_with_all_that_was_said(place: Place, how: Way) -> None:
    a = says("a", "one", LOOK, "two", tools=[ping])
    first = App().conversation(a, sessions=place.open(), id="c")
    await how.send(first, "q1")
    await how.send(first, "q2")
    b = says("a", "three", tools=[ping])
    other = App().conversation(b, sessions=place.open(), id="c")
    assert other.messages == ()  # nobody has looked yet
    await other.load()
    assert other.messages == first.messages
    result = await how.send(other, "q3")
    assert asked(b) == [
        [
            ("user", "q1"),
            ("assistant", "one"),
            ("user", "q2"),
            ("assistant", "look"),
            ("tool", "pong"),
            ("assistant", "two"),
            ("user", "q3"),
        ]
    ]
    assert [message.text for message in result.messages] == ["q3", "three"]
    assert await place.stored() == other.messages
    check_kept(other)


async def test_c4_another_id_knows_nothing_of_it(place: Place, how: Way) -> None:
    a = says("a", "one", "two")
    store = place.open()
    await how.send(App().conversation(a, sessions=store, id="c"), "q1")
    other = App().conversation(a, sessions=store, id="d")
    await how.send(other, "q2")
    assert asked(a)[1] == [("user", "q2")]
    assert said(await place.stored("c")) == [("user", "q1"), ("assistant", "one")]
    assert await place.stored("e") == ()


async def test_c4_what_another_one_has_saved_meanwhile_is_what_the_next_exchange_begins_with(
    place: Place, how: Way
) -> None:
    a = says("a", "one", "two", "three")
    one = App().conversation(a, sessions=place.open(), id="c")
    other = App().conversation(a, sessions=place.open(), id="c")
    await how.send(one, "q1")
    await how.send(other, "q2")
    await how.send(one, "q3")
    assert [text for _, text in asked(a)[2]] == ["q1", "one", "q2", "two", "q3"]
    assert one.messages == await place.stored()


async def test_c4_a_history_is_kept_too_and_a_store_that_has_the_conversation_goes_before_it(
    place: Place, how: Way
) -> None:
    a = says("a", "one", "two")
    before = [User("earlier"), Assistant("yes")]
    await how.send(App().conversation(a, history=before, sessions=place.open(), id="c"), "q1")
    assert [message.text for message in await place.stored()] == ["earlier", "yes", "q1", "one"]
    await how.send(App().conversation(a, history=[User("x"), Assistant("y")], sessions=place.open(), id="c"), "q2")
    assert [text for _, text in asked(a)[1]] == ["earlier", "yes", "q1", "one", "q2"]


async def test_c4_a_store_needs_an_id_and_a_conversation_without_one_none(place: Place) -> None:
    for id in (None, ""):
        with pytest.raises(ConfigurationError, match="no id"):
            App().conversation(says("a"), sessions=place.open(), id=id)
    assert App().conversation(says("a")).id


async def test_c4_who_got_the_conversation_answers_in_another_process_too(place: Place, how: Way) -> None:
    def agents() -> tuple[Agent, Agent]:
        b = says("b", "b one", "b two")
        return says("a", ["over", ToolUse("transfer_to_b", {}, "t1")], "a again", handoffs=[b]), b

    a, _ = agents()
    await how.send(App().conversation(a, sessions=place.open(), id="c"), "q1")
    a, _ = agents()
    other = App().conversation(a, sessions=place.open(), id="c")
    assert other.agent == "a"
    await other.load()
    assert other.agent == "b"
    assert (await how.send(other, "q2")).text == "b one"
    assert asked(a) == []


async def test_c4_a_failed_exchange_leaves_nothing_in_the_store_unless_tools_have_run(place: Place, how: Way) -> None:
    a = says("a", Boom("first"), LOOK, Boom("second"), "fine", tools=[ping])
    conversation = App().conversation(a, sessions=place.open(), id="c")
    with pytest.raises(Boom):
        await how.send(conversation, "gone")
    assert await place.stored() == ()
    with pytest.raises(Boom):
        await how.send(conversation, "q")
    assert said(await place.stored()) == PINGED
    other = App().conversation(a, sessions=place.open(), id="c")
    await how.send(other, "next")
    assert asked(a)[-1] == [*PINGED, ("user", "next")]
    check_kept(other)


# When it is saved


async def test_c4_each_turn_whose_tools_ran_is_saved_before_the_next_model_call(place: Place, how: Way) -> None:
    seen: list[list[tuple[str, str]]] = []
    replies = [LOOK, ["again", ToolUse("ping", {}, "p2"), ToolUse("ping", {}, "p3")], "done"]

    async def reply(call: ChatCall) -> Any:
        seen.append(said(await place.stored()))
        return replies[len(seen) - 1]

    a = Agent(name="a", model=Valid(reply), tools=[ping])
    await how.send(App().conversation(a, sessions=place.open(), id="c"), "q")
    assert seen == [[], PINGED, [*PINGED, ("assistant", "again"), ("tool", "pong"), ("tool", "pong")]]
    assert said(await place.stored()) == [*seen[2], ("assistant", "done")]


async def test_c4_without_tools_an_exchange_is_saved_when_it_ends_and_only_then(how: Way) -> None:
    shelf = Shelf()
    conversation = App().conversation(says("a", "one", "two"), sessions=shelf, id="c")
    await how.send(conversation, "q1")
    await how.send(conversation, "q2")
    assert [len(saved.messages) for saved in shelf.saves] == [2, 4]
    assert [saved.version for saved in shelf.saves] == [1, 2]


async def test_c4_turns_of_steps_inside_are_not_saved_as_if_they_were_the_conversations(how: Way) -> None:
    shelf = Shelf()
    inner = says("inner", LOOK, "inside", tools=[ping])
    a = says("a", ["ask", ToolUse("inner", {"input": "sub"}, "i1")], "done", tools=[inner.as_tool()])
    await how.send(App().conversation(a, sessions=shelf, id="c"), "q")
    for saved in shelf.saves:
        check_valid(saved.messages)
        assert "sub" not in [message.text for message in saved.messages]
    assert said(shelf.kept["c"].messages) == [
        ("user", "q"),
        ("assistant", "ask"),
        ("tool", "inside"),
        ("assistant", "done"),
    ]


async def test_a1_c4_turns_of_members_are_saved_in_their_place(place: Place, how: Way) -> None:
    seen: list[list[str]] = []

    async def reply(call: ChatCall) -> Any:
        seen.append([message.text for message in await place.stored()])
        return [LOOK, "b said"][len(seen) - 1]

    b = Agent(name="b", model=Valid(reply), tools=[ping])
    flow = sequence(says("a", LOOK, "a said", tools=[ping]), b)
    conversation = App().conversation(flow, sessions=place.open(), id="c")
    await how.send(conversation, "q")
    assert seen[0] == ["q", "look", "pong"]
    assert seen[1] == ["q", "look", "pong", "a said", "look", "pong"]
    assert await place.stored() == conversation.messages
    assert conversation.messages[-1].text == "b said"


async def test_a2_c4_members_side_by_side_whose_tools_run_at_the_same_time_are_no_conflict(
    place: Place, how: Way
) -> None:
    flow = parallel(says("a", LOOK, "one", tools=[ping]), says("b", LOOK, "two", tools=[ping]))
    conversation = App().conversation(flow, sessions=place.open(), id="c")
    assert (await how.send(conversation, "q")).text == "one\n\ntwo"
    assert await place.stored() == conversation.messages
    check_kept(conversation)


async def test_a5_c4_agents_that_are_asked_at_the_same_time_are_no_conflict(place: Place, how: Way) -> None:
    inner = [says(name, LOOK, name, tools=[ping]) for name in ("b", "c")]
    uses = [ToolUse(agent.name, {"input": "sub"}, agent.name) for agent in inner]
    a = says("a", ["ask", *uses], "done", tools=[agent.as_tool() for agent in inner])
    conversation = App().conversation(a, sessions=place.open(), id="c")
    assert (await how.send(conversation, "q")).text == "done"
    assert (await place.stored(), told(conversation)) == (conversation.messages, ["b", "c"])


async def test_c4_cancelled_while_a_turn_is_being_saved_the_conversation_goes_on(how: Way) -> None:
    saved = anyio.Event()

    class Slow(Shelf):
        """It has saved, and takes some time to say so."""

        async def save(self, id: str, /, **what: Any) -> None:
            await super().save(id, **what)
            saved.set()
            await anyio.wait_all_tasks_blocked()

    shelf = Slow()
    conversation = App().conversation(says("a", LOOK, "never", "fine", tools=[ping]), sessions=shelf, id="c")
    async with anyio.create_task_group() as group:
        group.start_soon(how.send, conversation, "q")
        await saved.wait()
        group.cancel_scope.cancel()
    assert said(conversation.messages) == PINGED
    assert conversation.messages == shelf.kept["c"].messages
    await how.send(conversation, "next")
    check_kept(conversation)


# Conflicts


async def test_c4_when_somebody_else_has_saved_meanwhile_the_exchange_is_a_conflict_and_is_not_kept(
    place: Place, how: Way
) -> None:
    other = App().conversation(says("a", "theirs"), sessions=place.open(), id="c")

    async def reply(call: ChatCall) -> str:
        if len(a.model.calls) == 1:  # type: ignore[union-attr]
            await other.send("q2")
        return "mine"

    a = Agent(name="a", model=Valid(reply))
    conversation = App().conversation(a, sessions=place.open(), id="c")
    with pytest.raises(SessionConflict) as conflict:
        await how.send(conversation, "q1")
    assert conflict.value.id == "c"
    assert said(await place.stored()) == [("user", "q2"), ("assistant", "theirs")]
    assert conversation.messages == ()
    await how.send(conversation, "q3")
    assert asked(a)[1] == [("user", "q2"), ("assistant", "theirs"), ("user", "q3")]
    assert conversation.messages == await place.stored()


@pytest.mark.parametrize("recovers", [False, True])
async def test_c4_a_conflict_after_a_turn_whose_tools_ran_is_raised_too_whatever_on_error_says(
    place: Place, how: Way, recovers: bool
) -> None:
    other = App().conversation(says("a", "theirs"), sessions=place.open(), id="c")

    @tool
    async def meddle() -> str:
        await other.send("q2")
        return "meddled"

    hooks: Any = [{"on_error": lambda error, ctx: "never mind"}] if recovers else []
    a = says("a", [ToolUse("meddle", {}, "m1")], "never", tools=[meddle], hooks=hooks)
    conversation = App().conversation(a, sessions=place.open(), id="c")
    with pytest.raises(SessionConflict):
        await how.send(conversation, "q1")
    assert len(asked(a)) == 1
    assert said(await place.stored()) == [("user", "q2"), ("assistant", "theirs")]
    await conversation.load()
    assert conversation.messages == await place.stored()


async def test_c4_two_ids_do_not_conflict_and_neither_do_two_in_turn(place: Place, how: Way) -> None:
    other = App().conversation(says("a", "theirs", "theirs 2"), sessions=place.open(), id="d")

    async def reply(call: ChatCall) -> str:
        await other.send("q2")
        return "mine"

    a = Agent(name="a", model=Valid(reply))
    conversation = App().conversation(a, sessions=place.open(), id="c")
    await how.send(conversation, "q1")
    await how.send(conversation, "q3")
    assert (len(await place.stored("c")), len(await place.stored("d"))) == (4, 4)


async def test_c4_a_session_that_was_deleted_meanwhile_is_a_conflict(tmp_path: Path, how: Way) -> None:
    async with SqliteSessions(tmp_path / "s.db") as store:

        async def reply(call: ChatCall) -> str:
            if len(call.messages) > 1:
                assert await store.delete("c")
            return "mine"

        conversation = App().conversation(Agent(name="a", model=Valid(reply)), sessions=store, id="c")
        await how.send(conversation, "q1")
        with pytest.raises(SessionConflict):
            await how.send(conversation, "q2")
        assert await store.ids() == []
        await how.send(conversation, "q3")  # which begins anew, as the store does
        assert said(conversation.messages) == [("user", "q3"), ("assistant", "mine")]
        assert await store.ids() == ["c"]


@pytest.mark.parametrize("by", ["cancellation", "error"])
async def test_l5_no_conflict_takes_the_place_of_what_ended_the_exchange(
    how: Way, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = Shelf()
    other = App().conversation(says("a", "theirs"), sessions=shelf, id="c")

    async def reply(call: ChatCall) -> Any:
        if isinstance(call.messages[-1], User):
            return [*LOOK] if call.messages[-1].text == "q" else "fine"
        await other.send("me first")
        if by == "error":
            raise Boom
        scope.cancel()
        return await anyio.sleep_forever()

    conversation = App().conversation(Agent(name="a", model=Valid(reply), tools=[ping]), sessions=shelf, id="c")
    with anyio.CancelScope() as scope:
        if by == "error":
            with pytest.raises(Boom):
                await how.send(conversation, "q")
        else:
            await how.send(conversation, "q")
    assert scope.cancelled_caught == (by == "cancellation")
    assert "could not be saved" in capsys.readouterr().out
    await how.send(conversation, "next")
    assert [message.text for message in conversation.messages if isinstance(message, User)][-2:] == ["me first", "next"]
    check_kept(conversation)


# What waits for approval


async def test_t11_c4_what_waits_for_approval_waits_in_another_process_too(place: Place, how: Way) -> None:
    till = Till()
    first = App().conversation(says("a", pays(1, 2), tools=[till.pay]), sessions=place.open(), id="c")
    result = await how.send(first, "q")
    a = says("a", "thanks", tools=[till.pay])
    other = App().conversation(a, sessions=place.open(), id="c")
    assert not other.pending
    await other.load()
    assert other.pending == first.pending == result.pending
    assert other.pending == (ToolCall("pay", {"amount": 1}, "p1"), ToolCall("pay", {"amount": 2}, "p2"))
    assert (told(other), till.paid) == ([WAITS, WAITS], [])
    check_kept(other)
    with pytest.raises(ContractError, match=r"waits for approval of .*p[12].*p[12]"):
        await how.send(App().conversation(a, sessions=place.open(), id="c"), "next")
    result = await how.resume(App().conversation(a, sessions=place.open(), id="c"), {"p1": True, "p2": False})
    assert (till.paid, result.text, asked(a)) == (
        [1],
        "thanks",
        [[("user", "q"), ("assistant", "pays"), ("tool", "paid 1"), ("tool", REFUSED)]],
    )
    await other.load()
    assert not other.pending
    assert (told(other), other.messages) == (["paid 1", REFUSED], await place.stored())


async def test_t11_c4_what_is_not_decided_waits_in_a_third_process(place: Place, how: Way) -> None:
    till = Till()
    a = says("a", pays(1, 2), "thanks", "later", tools=[till.pay])
    await how.send(App().conversation(a, sessions=place.open(), id="c"), "q")
    result = await how.resume(App().conversation(a, sessions=place.open(), id="c"), {"p2": True})
    assert ([call.id for call in result.pending], till.paid) == (["p1"], [2])
    third = App().conversation(a, sessions=place.open(), id="c")
    with pytest.raises(ConfigurationError, match="'p2' has been decided already"):
        await how.resume(third, {"p2": True})
    assert ([call.id for call in third.pending], told(third)) == (["p1"], [WAITS, "paid 2"])
    result = await how.resume(third, {"p1": ToolCall("pay", {"amount": 10})})
    assert (result.text, till.paid) == ("thanks", [2, 10])
    with pytest.raises(ConfigurationError, match="'p1' has been decided already"):
        await how.resume(App().conversation(a, sessions=place.open(), id="c"), {"p1": True})
    await how.send(third, "next")
    check_kept(third)


async def test_t11_c4_two_conversations_on_one_store_run_an_approved_call_once(place: Place, how: Way) -> None:
    till = Till()
    a = says("a", pays(1), "thanks", tools=[till.pay])
    await how.send(App().conversation(a, sessions=place.open(), id="c"), "q")
    refused: list[Exception] = []

    async def decide() -> None:
        try:
            await how.resume(App().conversation(a, sessions=place.open(), id="c"), {"p1": True})
        except (SessionConflict, ConfigurationError) as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(decide)
    assert (till.paid, len(refused)) == ([1], 3)
    last = App().conversation(a, sessions=place.open(), id="c")
    await last.load()
    assert (last.pending, told(last), last.messages[-1].text) == ((), ["paid 1"], "thanks")


async def test_t11_c4_a_call_that_is_about_to_run_is_noted_as_taken_before_it_runs(place: Place, how: Way) -> None:
    seen: list[Any] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        other = App().conversation(a, sessions=place.open(), id="c")
        await other.load()
        check_kept(other)
        seen.append(([call.id for call in other.pending], told(other)))
        with pytest.raises(ConfigurationError, match=f"'p{amount}' has been decided already"):
            await other.resume({f"p{amount}": True})
        return f"paid {amount}"

    a = says("a", pays(1, 2), "thanks", tools=[pay])
    conversation = App().conversation(a, sessions=place.open(), id="c")
    await how.send(conversation, "q")
    await how.resume(conversation, {"p2": True})
    await how.resume(conversation, {"p1": True})
    assert seen == [(["p1"], [WAITS, UNKNOWN]), ([], [UNKNOWN, "paid 2"])]
    assert told(conversation) == ["paid 1", "paid 2"]


@pytest.mark.parametrize("fails", ["before", "behind"])
async def test_t11_c4_a_resumed_run_that_fails_lets_them_wait_in_the_store_only_if_none_ran(
    place: Place, how: Way, fails: str
) -> None:
    till = Till()
    times: list[Any] = []

    async def layer(call: Any, next: Any) -> None:
        times.append(call)
        if len(times) == 2 and fails == "before":
            raise Boom("once")
        await next()
        if len(times) == 2:
            raise Boom("once")

    a = says("a", pays(1), "thanks", "again", tools=[till.pay])
    app = App().use(tool=layer)
    await how.send(app.conversation(a, sessions=place.open(), id="c"), "q")
    with pytest.raises(Boom):
        await how.resume(app.conversation(a, sessions=place.open(), id="c"), {"p1": True})
    other = app.conversation(a, sessions=place.open(), id="c")
    await other.load()
    check_kept(other)
    if fails == "before":
        assert ([call.id for call in other.pending], till.paid) == (["p1"], [])
        assert (await how.resume(other, {"p1": True})).text == "thanks"
    else:
        assert (other.pending, till.paid, told(other)) == (
            (),
            [1],
            ["The call is not lost: it ran, its result was withheld."],
        )
        with pytest.raises(ConfigurationError, match="decided already"):
            await how.resume(other, {"p1": True})
        assert (await how.send(other, "next")).text == "thanks"
    assert till.paid == [1]


# A process that is killed

CHILD = """
import sys
import anyio
from middlechain import Agent, App, ToolMessage, ToolUse, tool
from middlechain.sessions import SqliteSessions
from middlechain.testing import ScriptedModel

database, journal, backend, mode = sys.argv[1:]

def block(where):
    print(where, flush=True)
    sys.stdin.read()

@tool(approve=mode == "approved")
async def book(amount: int) -> str:
    with open(journal, "a") as file:
        file.write(f"{amount}\\n")
    if mode == "approved":
        block("in the tool")
    return f"booked {amount}"

def reply(call):
    if isinstance(call.messages[-1], ToolMessage):
        block("at turn 2")
    return ["books", ToolUse("book", {"amount": 1}, "b1"), ToolUse("book", {"amount": 2}, "b2")]

async def main():
    agent = Agent(name="a", model=ScriptedModel(reply), tools=[book])
    conversation = App().conversation(agent, sessions=SqliteSessions(database), id="c")
    if mode == "approved":
        await conversation.resume({"b2": True})
    else:
        await conversation.send("q")

anyio.run(main, backend=backend)
"""


def killed_at(where: str, tmp_path: Path, *args: str) -> None:
    """Run the child until it says where it is, and end it there, with no chance to tidy up."""
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    command = [sys.executable, str(script), str(tmp_path / "s.db"), str(tmp_path / "journal"), *args]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline().strip()
        child.kill()
        assert child.wait() == -9
    assert line == where


async def book(amount: int) -> str:
    raise AssertionError("what the killed process did is not done again")


async def test_c4_after_a_kill_at_the_next_model_call_the_finished_turn_is_there_and_the_history_valid(
    tmp_path: Path, anyio_backend: str
) -> None:
    killed_at("at turn 2", tmp_path, anyio_backend, "plain")
    async with SqliteSessions(tmp_path / "s.db") as store:
        a = says("a", "fine", tools=[tool(book)])
        conversation = App().conversation(a, sessions=store, id="c")
        await conversation.load()
        check_kept(conversation)
        finished = [("user", "q"), ("assistant", "books"), ("tool", "booked 1"), ("tool", "booked 2")]
        assert (said(conversation.messages), conversation.pending) == (finished, ())
        assert (await conversation.send("next")).text == "fine"
        assert asked(a) == [[*finished, ("user", "next")]]
    assert sorted((tmp_path / "journal").read_text().split()) == ["1", "2"]


async def test_t11_c4_after_a_kill_within_an_approved_tool_it_is_not_pending_its_outcome_unknown_and_it_ran_once(
    tmp_path: Path, anyio_backend: str
) -> None:
    journal = tmp_path / "journal"

    @tool(name="book", approve=True)
    async def gentle(amount: int) -> str:
        with journal.open("a") as file:
            file.write(f"{amount}\n")
        return f"booked {amount}"

    uses = [ToolUse("book", {"amount": amount}, f"b{amount}") for amount in (1, 2)]
    async with SqliteSessions(tmp_path / "s.db") as store:
        conversation = App().conversation(says("a", ["books", *uses], tools=[gentle]), sessions=store, id="c")
        await conversation.send("q")
        assert ({call.id for call in conversation.pending}, journal.exists()) == ({"b1", "b2"}, False)
    killed_at("in the tool", tmp_path, anyio_backend, "approved")
    async with SqliteSessions(tmp_path / "s.db") as store:
        a = says("a", "fine", "later", tools=[gentle])
        conversation = App().conversation(a, sessions=store, id="c")
        await conversation.load()
        check_kept(conversation)
        assert ([call.id for call in conversation.pending], told(conversation)) == (["b1"], [WAITS, UNKNOWN])
        with pytest.raises(ConfigurationError, match="'b2' has been decided already"):
            await conversation.resume({"b2": True})
        with pytest.raises(ConfigurationError, match="'b2' has been decided already"):
            await conversation.resume({"b1": True, "b2": True})
        assert journal.read_text() == "2\n"
        result = await conversation.resume({"b1": True})
        assert (result.text, told(conversation)) == ("fine", ["booked 1", UNKNOWN])
        assert asked(a)[0][-2:] == [("tool", "booked 1"), ("tool", UNKNOWN)]
        await conversation.send("next")
        check_kept(conversation)
    assert journal.read_text() == "2\n1\n"


async def test_t11_c4_a_process_that_ends_within_the_only_approved_call_leaves_a_conversation_that_goes_on(
    how: Way,
) -> None:
    copies: list[Shelf] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        copies.append(shelf.copy())
        return f"paid {amount}"

    shelf = Shelf()
    inner = says("inner", pays(1), "inside", tools=[pay])
    middle = says("middle", ["ask", ToolUse("inner", {"input": "sub"}, "i1")], "between", tools=[inner.as_tool()])
    for agent in (says("a", pays(1), "fine", tools=[pay]), middle):
        conversation = App().conversation(agent, sessions=shelf, id=agent.name)
        await how.send(conversation, "q")
        await how.resume(conversation, {"p1": True})
        after = says(agent.name, "later", tools=agent.tools)
        other = App().conversation(after, sessions=copies[-1], id=agent.name)
        await other.load()
        check_kept(other)
        assert (other.pending, told(other)) == ((), [UNKNOWN])
        with pytest.raises(ConfigurationError, match="'p1' has been decided already"):
            await how.resume(other, {"p1": True})
        assert (await how.send(other, "next")).text == "later"
    assert len(copies) == 2


# Many at once


async def _talk(app: App, agent: Agent, store: Sessions, number: int, exchanges: int) -> None:
    conversation = app.conversation(agent, sessions=store, id=f"c{number}")
    for turn in range(exchanges):
        result = await conversation.send(f"{number}.{turn}")
        assert result.text == f"answer to {number}.{turn} after {2 * turn}"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_c4_a_thousand_conversations_of_ten_exchanges_over_one_file_lose_and_mix_nothing(
    tmp_path: Path, anyio_backend: str
) -> None:
    def reply(call: ChatCall) -> str:
        return f"answer to {call.messages[-1].text} after {len(call.messages) - 1}"

    gc.collect()
    app, agent = App(), Agent(name="a", model=ScriptedModel(reply))
    began = time.perf_counter()
    async with SqliteSessions(tmp_path / "s.db") as store:
        async with anyio.create_task_group() as group:
            for number in range(1000):
                group.start_soon(_talk, app, agent, store, number, 10)
        took = time.perf_counter() - began
        assert sorted(await store.ids()) == sorted(f"c{number}" for number in range(1000))
    async with SqliteSessions(tmp_path / "s.db") as store:
        for number in range(1000):
            saved = await store.load(f"c{number}")
            assert saved is not None
            expected: list[str] = []
            for turn in range(10):
                expected += [f"{number}.{turn}", f"answer to {number}.{turn} after {2 * turn}"]
            assert ([message.text for message in saved.messages], saved.version) == (expected, 10)
    print(f"{took:.1f} s")
    assert took < 20
