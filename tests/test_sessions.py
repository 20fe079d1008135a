"""Where conversations are kept: what is saved is loaded, by whomever, and a save is kept whole or not at all."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from middlechain import (
    Assistant,
    Audio,
    ConfigurationError,
    ContractError,
    File,
    Image,
    Message,
    System,
    Text,
    ToolMessage,
    ToolUse,
    User,
)
from middlechain.sessions import Saved, SessionConflict, Sessions, SqliteSessions

ASKED: list[Message] = [User("how are you?"), Assistant("fine")]
MORE: list[Message] = [User("and now?"), Assistant("", [ToolUse("look", {}, "1")]), ToolMessage("sun", "1", "look")]

TEXTS = st.text(st.characters(exclude_categories=()) | st.sampled_from('\0\ud83d\ude00\n"\\'), max_size=8)
MAYBE = st.none() | TEXTS
DATA = st.binary(max_size=8)
PARTS = (
    st.builds(Text, TEXTS)
    | st.builds(Image, data=DATA, media_type=TEXTS, detail=MAYBE)
    | st.builds(Image, url=TEXTS, data=st.none() | DATA, detail=MAYBE)
    | st.builds(Audio, DATA, TEXTS)
    | st.builds(File, DATA, MAYBE, TEXTS, MAYBE)
    | st.builds(File, name=MAYBE, media_type=TEXTS, id=TEXTS)
)
CONTENT = TEXTS | st.lists(PARTS, max_size=3)
USES = st.lists(st.builds(ToolUse, TEXTS, TEXTS | st.dictionaries(TEXTS, TEXTS), TEXTS), max_size=2)
MESSAGES = st.lists(
    st.builds(System, CONTENT)
    | st.builds(User, CONTENT, MAYBE, st.booleans())
    | st.builds(Assistant, CONTENT, USES, MAYBE, MAYBE, st.booleans())
    | st.builds(ToolMessage, CONTENT, TEXTS, TEXTS, st.booleans()),
    max_size=4,
)
STATES = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@contextmanager
def by_hand(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as SQLite has it, for what no store does."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as database:
        yield database


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def start(store: Sessions, id: str, messages: list[Message] = ASKED, **state: Any) -> None:
    await store.save(id, keep=0, messages=messages, state=state, version=0)


# save and load


@pytest.mark.anyio
async def test_what_one_store_saved_another_one_loads(path: Path) -> None:
    async with SqliteSessions(path) as one:
        await start(one, "a", agent="host")
    async with SqliteSessions(str(path)) as other:
        assert await other.load("a") == Saved(tuple(ASKED), {"agent": "host"}, 1)
        assert await other.load("b") is None


@pytest.mark.anyio
async def test_a_save_puts_its_messages_after_those_that_are_kept_and_replaces_the_state(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a", agent="host", waits=[1])
        await store.save("a", keep=2, messages=MORE, state={"agent": "bill"}, version=1)
        assert await store.load("a") == Saved((*ASKED, *MORE), {"agent": "bill"}, 2)


@pytest.mark.anyio
@pytest.mark.parametrize("keep", [0, 1, 2])
async def test_a_save_drops_what_lies_behind_the_kept_messages(path: Path, keep: int) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        await store.save("a", keep=keep, messages=MORE[:1], state={}, version=1)
        assert await store.load("a") == Saved((*ASKED[:keep], MORE[0]), {}, 2)


@pytest.mark.anyio
async def test_a_save_writes_no_message_again_that_is_kept(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        with by_hand(path) as database:
            before = database.execute("SELECT rowid, * FROM messages").fetchall()
            await store.save("a", keep=2, messages=MORE, state={}, version=1)
            assert database.execute("SELECT rowid, * FROM messages").fetchall()[:2] == before


@pytest.mark.anyio
async def test_a_conversation_may_have_no_messages_and_a_save_add_none(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a", [])
        await store.save("a", keep=0, messages=[], state={"n": 1}, version=1)
        assert await store.load("a") == Saved((), {"n": 1}, 2)


@pytest.mark.anyio
@pytest.mark.parametrize("keep", [-1, 3, 10**30])
async def test_more_messages_than_there_are_cannot_be_kept_nor_fewer_than_none(path: Path, keep: int) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a", n=1)
        with pytest.raises(ContractError, match=r"keep=.*'a' has 2 messages; keep none, some or all of them"):
            await store.save("a", keep=keep, messages=MORE, state={}, version=1)
        assert await store.load("a") == Saved(tuple(ASKED), {"n": 1}, 1)


@pytest.mark.anyio
async def test_a_new_conversation_has_nothing_to_keep(path: Path) -> None:
    async with SqliteSessions(path) as store:
        with pytest.raises(ContractError, match="keep=1, and session 'a' has 0 messages"):
            await store.save("a", keep=1, messages=MORE, state={}, version=0)
        assert await store.load("a") is None


@pytest.mark.anyio
async def test_only_what_is_newer_than_a_version_is_loaded(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        await store.save("a", keep=2, messages=[], state={}, version=1)
        assert await store.load("a", newer_than=1) == Saved(tuple(ASKED), {}, 2)
        assert await store.load("a", newer_than=2) is None
        assert await store.load("a", newer_than=3) is None


@pytest.fixture(scope="module")
def law_of_the_round_trip() -> Iterator[Callable[[list[Message], dict[str, Any]], None]]:
    """Saves and loads with one store for all examples, each under an id and in an event loop of its own."""
    ids = map(str, count())
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteSessions(Path(directory, "sessions.db"))

        async def check(messages: list[Message], state: dict[str, Any]) -> None:
            id = next(ids)
            half = len(messages) // 2
            await store.save(id, keep=0, messages=messages[:half], state={}, version=0)
            await store.save(id, keep=half, messages=messages[half:], state=state, version=1)
            saved = await store.load(id)
            assert saved == Saved(tuple(messages), state, 2)
            assert list(map(type, saved.messages)) == list(map(type, messages))

        yield lambda messages, state: anyio.run(check, messages, state)
        anyio.run(store.aclose)


@given(messages=MESSAGES, state=STATES)
def test_whatever_is_saved_is_loaded_exactly(
    law_of_the_round_trip: Callable[[list[Message], dict[str, Any]], None],
    messages: list[Message],
    state: dict[str, Any],
) -> None:
    law_of_the_round_trip(messages, state)


@pytest.mark.anyio
async def test_the_halves_of_a_character_stay_apart(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a", [User("\ud83d\ude00"), User("\ude00\ud83d\0"), User("\U0001f600")], half="\ud83d")
        saved = await store.load("a")
        assert saved is not None
        assert [message.text for message in saved.messages] == ["\ud83d\ude00", "\ude00\ud83d\0", "\U0001f600"]
        assert saved.state == {"half": "\ud83d"}


NO_JSON: list[Any] = [
    {"n": float("nan")},
    {"n": [float("inf")]},
    {"n": object()},
    {"n": {1, 2}},
    {(1, 2): "n"},
    ["n"],
    None,
]


@pytest.mark.anyio
@pytest.mark.parametrize("state", NO_JSON, ids=["nan", "infinite", "object", "set", "key", "list", "none"])
async def test_a_state_that_is_no_json_is_refused_and_nothing_changed(path: Path, state: Any) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a", n=1)
        with pytest.raises(ContractError, match=r"of session 'a' is not plain JSON data \(.*; give a mapping of"):
            await store.save("a", keep=1, messages=MORE, state=state, version=1)
        assert await store.load("a") == Saved(tuple(ASKED), {"n": 1}, 1)


@pytest.mark.anyio
async def test_what_is_no_message_is_refused_and_nothing_changed(path: Path) -> None:
    odd: Any = object()
    async with SqliteSessions(path) as store:
        await start(store, "a")
        with pytest.raises(ConfigurationError, match="message 1 of the history cannot be read"):
            await store.save("a", keep=0, messages=[User("fine"), odd], state={}, version=1)
        with pytest.raises(ContractError, match="not plain JSON data"):
            await store.save("a", keep=0, messages=[User("fine", name=odd)], state={}, version=1)
        assert await store.load("a") == Saved(tuple(ASKED), {}, 1)


@pytest.mark.anyio
async def test_what_is_changed_while_a_save_waits_is_saved_as_it_was(path: Path) -> None:
    state, messages = {"n": 1}, list(ASKED)
    async with SqliteSessions(path) as store, anyio.create_task_group() as tasks:
        await start(store, "other")
        with by_hand(path) as database:
            database.execute("BEGIN IMMEDIATE")
            tasks.start_soon(partial(store.save, "a", keep=0, messages=messages, state=state, version=0))
            await anyio.wait_all_tasks_blocked()
            state["n"] = 2
            messages.clear()
            database.execute("ROLLBACK")
        assert await store.load("a") == Saved(tuple(ASKED), {"n": 1}, 1)


# ids


@pytest.mark.anyio
@pytest.mark.parametrize("id", ["", "a b", "Zoë \U0001f600", "nul\0", "'; DROP TABLE sessions; --", "x" * 10_000])
async def test_any_text_is_an_id(path: Path, id: str) -> None:
    async with SqliteSessions(path) as store:
        await start(store, id)
        assert await store.load(id) == Saved(tuple(ASKED), {}, 1)
        assert await store.load(id + "\0") is None
        assert await store.ids() == [id]
        assert await store.delete(id)


@pytest.mark.anyio
@pytest.mark.parametrize("id", [None, 7, b"a", ["a"], "\ud83d"], ids=repr)
async def test_what_is_no_text_that_can_be_encoded_is_no_id(path: Path, id: Any) -> None:
    store = SqliteSessions(path)
    works: list[Callable[[], Any]] = [lambda: store.load(id), lambda: start(store, id), lambda: store.delete(id)]
    for work in works:
        with pytest.raises(ConfigurationError, match=r"the id of a session is .*; give text"):
            await work()
    assert bytes_of(path.parent) == {}


@pytest.mark.anyio
async def test_ids_are_all_there_are_in_order(path: Path) -> None:
    async with SqliteSessions(path) as store:
        assert await store.ids() == []
        for id in ("b", "é", "a"):
            await start(store, id)
        assert await store.ids() == ["a", "b", "é"]


@pytest.mark.anyio
async def test_delete_forgets_one_conversation_and_says_whether_there_was_one(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        await start(store, "b")
        assert await store.delete("a")
        assert not await store.delete("a")
        assert await store.load("a") is None
        assert await store.load("b") == Saved(tuple(ASKED), {}, 1)
        with pytest.raises(SessionConflict):
            await store.save("a", keep=0, messages=MORE, state={}, version=1)
        with pytest.raises(ContractError, match="'a' has 0 messages"):
            await store.save("a", keep=2, messages=MORE, state={}, version=0)
        await start(store, "a", MORE)
        assert await store.load("a") == Saved(tuple(MORE), {}, 1)


# conflicts


@pytest.mark.anyio
async def test_of_two_stores_that_loaded_the_same_version_one_saves_and_the_other_hears_of_it(path: Path) -> None:
    async with SqliteSessions(path) as one, SqliteSessions(path) as other:
        await start(one, "a")
        await one.save("a", keep=2, messages=MORE, state={"by": "one"}, version=1)
        with pytest.raises(
            SessionConflict, match=r"session 'a' was saved .* by somebody else .*; load it again"
        ) as caught:
            await other.save("a", keep=0, messages=[], state={"by": "other"}, version=1)
        assert caught.value.id == "a"
        assert await other.load("a") == Saved((*ASKED, *MORE), {"by": "one"}, 2)
        await other.save("a", keep=5, messages=[], state={"by": "other"}, version=2)
        assert await one.load("a", newer_than=2) == Saved((*ASKED, *MORE), {"by": "other"}, 3)


@pytest.mark.anyio
@pytest.mark.parametrize("version", [-1, 0, 2])
async def test_any_version_but_the_stored_one_is_a_conflict(path: Path, version: int) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        with pytest.raises(SessionConflict):
            await store.save(
                "a", keep=9, messages=MORE, state={}, version=version
            )  # said before what is wrong with keep
        assert await store.load("a") == Saved(tuple(ASKED), {}, 1)


@pytest.mark.anyio
async def test_of_many_that_save_one_version_at_once_exactly_one_succeeds(path: Path) -> None:
    outcomes: list[str] = []

    async def save(store: SqliteSessions, name: str) -> None:
        try:
            await store.save("a", keep=2, messages=[User(name)], state={}, version=1)
            outcomes.append(name)
        except SessionConflict:
            outcomes.append("conflict")

    async with SqliteSessions(path) as one, SqliteSessions(path) as other:
        await start(one, "a")
        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(save, (one, other)[n % 2], str(n))
        saved = await one.load("a")
    assert outcomes.count("conflict") == 9
    (winner,) = set(outcomes) - {"conflict"}
    assert saved == Saved((*ASKED, User(winner)), {}, 2)


def test_a_conflict_pickles() -> None:
    again = pickle.loads(pickle.dumps(SessionConflict("a")))
    assert (type(again), again.id, str(again)) == (SessionConflict, "a", str(SessionConflict("a")))


# many at once, cancellation, failure


@pytest.mark.anyio
async def test_nothing_is_lost_or_mixed_where_many_save_at_once(path: Path) -> None:
    async def talk(store: SqliteSessions, id: str) -> None:
        for n in range(3):
            await store.save(id, keep=n, messages=[User(f"{id}:{n}")], state={"id": id}, version=n)

    async with SqliteSessions(path) as store:
        async with anyio.create_task_group() as tasks:
            for n in range(200):
                tasks.start_soon(talk, store, str(n))
        assert len(await store.ids()) == 200
        for id in await store.ids():
            assert await store.load(id) == Saved(tuple(User(f"{id}:{n}") for n in range(3)), {"id": id}, 3)


def test_one_store_serves_event_loops_in_several_threads_at_once_and_one_after_the_other(path: Path) -> None:
    store = SqliteSessions(path)
    together = threading.Barrier(2)

    async def talk(backend: str) -> None:
        together.wait()
        for n in range(50):
            await store.save(backend, keep=n, messages=[User(backend)], state={}, version=n)

    threads = [
        threading.Thread(target=partial(anyio.run, talk, backend, backend=backend)) for backend in ("asyncio", "trio")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for backend in ("asyncio", "trio"):
        assert anyio.run(store.load, backend) == Saved((User(backend),) * 50, {}, 50)
    anyio.run(store.aclose)


@pytest.mark.anyio
async def test_a_save_that_has_begun_is_ended_when_its_caller_is_cancelled(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        with by_hand(path) as database:
            database.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(store.save, "a", keep=2, messages=MORE, state={"n": 1}, version=1))
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
                database.execute("ROLLBACK")
        assert await store.load("a") == Saved((*ASKED, *MORE), {"n": 1}, 2)


@pytest.mark.anyio
async def test_a_save_that_is_cancelled_before_its_turn_does_not_begin(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        with by_hand(path) as database:
            database.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as first, anyio.create_task_group() as second:
                first.start_soon(partial(store.save, "a", keep=2, messages=MORE, state={}, version=1))
                await anyio.wait_all_tasks_blocked()
                second.start_soon(partial(start, store, "b"))
                await anyio.wait_all_tasks_blocked()
                second.cancel_scope.cancel()
                database.execute("ROLLBACK")
        assert await store.load("a") == Saved((*ASKED, *MORE), {}, 2)
        assert await store.load("b") is None


@pytest.mark.anyio
async def test_a_load_does_not_wait_for_somebody_who_writes(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        with by_hand(path) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM messages")
            assert await store.load("a") == Saved(tuple(ASKED), {}, 1)


@pytest.mark.anyio
async def test_what_is_loaded_is_of_one_version_when_somebody_saves_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
    with by_hand(path) as writer:

        class Interrupted(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                if sql.startswith("SELECT place"):
                    writer.execute("DELETE FROM messages")
                return super().execute(sql, *parameters)

        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Interrupted))
        async with SqliteSessions(path) as store:
            assert await store.load("a") == Saved(tuple(ASKED), {}, 1)
            assert await store.load("a") == Saved((), {}, 1)


@pytest.mark.anyio
async def test_a_save_that_fails_on_its_way_changes_nothing_and_the_store_goes_on(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        with by_hand(path) as database:
            database.execute(
                "CREATE TRIGGER full BEFORE INSERT ON sessions BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
            )
            with pytest.raises(sqlite3.IntegrityError, match="the disk is full"):
                await store.save("a", keep=1, messages=MORE, state={}, version=1)
            assert await store.load("a") == Saved(tuple(ASKED), {}, 1)
            database.execute("DROP TRIGGER full")
        await store.save("a", keep=1, messages=MORE, state={}, version=1)
        assert await store.load("a") == Saved((ASKED[0], *MORE), {}, 2)


SAVES_FOR_EVER = """
import sys, anyio
from middlechain import Assistant, User
from middlechain.sessions import SqliteSessions

async def main():
    store, n = SqliteSessions(sys.argv[1]), 0
    while True:
        said = [User(f"{n}" * 1000), Assistant("ok")]
        await store.save("a", keep=2 * n, messages=said, state={"n": n}, version=n)
        n += 1
        print(n, flush=True)

anyio.run(main)
"""


def test_every_save_that_returned_outlives_a_process_that_is_killed(path: Path) -> None:
    command = [sys.executable, "-c", SAVES_FOR_EVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        watchdog = threading.Timer(60, child.kill)
        watchdog.start()
        for _ in range(40):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split("\n")[:-1]
        watchdog.cancel()
    returned = int(rest[-1]) if rest else 40

    async def check() -> None:
        async with SqliteSessions(path) as store:
            saved = await store.load("a")
            assert saved is not None
            assert saved.version >= returned >= 40
            assert [message.text for message in saved.messages[::2]] == [f"{n}" * 1000 for n in range(saved.version)]
            assert len(saved.messages) == 2 * saved.version
            assert saved.state == {"n": saved.version - 1}
            await store.save("a", keep=0, messages=[], state={}, version=saved.version)

    anyio.run(check)


# what cannot be read


@pytest.mark.anyio
@pytest.mark.parametrize(
    "row", ['{"role": "us', "", "5", '{"role": "robot", "content": ""}', b"\xff\xfe", b"{\xff}", 5], ids=repr
)
async def test_a_message_that_cannot_be_read_is_named_and_nothing_is_lost(path: Path, row: Any) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        await start(store, "b")
        with by_hand(path) as database:
            database.execute("UPDATE messages SET json = ? WHERE session = 'a' AND place = 1", (row,))
            with pytest.raises(
                ConfigurationError, match=r"message 1 of session 'a' cannot be read .*; restore it from"
            ):
                await store.load("a")
            assert database.execute("SELECT count(*) FROM messages").fetchone() == (4,)
        assert await store.load("b") == Saved(tuple(ASKED), {}, 1)
        await store.save("a", keep=1, messages=[], state={}, version=1)
        assert await store.load("a") == Saved(tuple(ASKED[:1]), {}, 2)


@pytest.mark.anyio
@pytest.mark.parametrize("state", ["{", "[]", "5", b"\xff"], ids=repr)
async def test_a_state_that_cannot_be_read_is_named(path: Path, state: Any) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
        with by_hand(path) as database:
            database.execute("UPDATE sessions SET state = CAST(? AS TEXT)", (state,))
        with pytest.raises(ConfigurationError, match=r"the state of session 'a' cannot be read .*; restore it from"):
            await store.load("a")


# the file


def test_a_store_that_is_only_built_touches_no_file(path: Path) -> None:
    assert repr(SqliteSessions(path)) == f"SqliteSessions({str(path)!r}, synchronous='NORMAL')"
    assert not path.exists()


@pytest.mark.parametrize("path", [None, 7, b"sessions.db", ":memory:"], ids=repr)
def test_what_is_no_path_of_a_file_is_refused_when_the_store_is_built(path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"got .*; give the path of a file"):
        SqliteSessions(path)


@pytest.mark.parametrize("synchronous", ["OFF", "full", None, 1])
def test_any_other_synchronous_is_refused_when_the_store_is_built(path: Path, synchronous: Any) -> None:
    with pytest.raises(ConfigurationError, match="give 'NORMAL' or 'FULL'"):
        SqliteSessions(path, synchronous=synchronous)


@pytest.mark.anyio
@pytest.mark.parametrize(("synchronous", "number"), [("NORMAL", 1), ("FULL", 2)])
async def test_the_file_is_in_wal_mode_and_as_synchronous_as_it_was_asked(
    path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: Any, number: int
) -> None:
    opened: list[sqlite3.Connection] = []

    class Watched(sqlite3.Connection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened.append(self)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Watched))
    async with SqliteSessions(path, synchronous=synchronous) as store:
        await start(store, "a")
        assert opened[-1].execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert opened[-1].execute("PRAGMA synchronous").fetchone() == (number,)


@pytest.mark.anyio
async def test_a_relative_path_counts_from_where_the_store_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteSessions("a?b#c%20.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    await start(store, "a")
    await store.aclose()
    assert list(bytes_of(tmp_path)) == ["a?b#c%20.db"]


@pytest.mark.anyio
async def test_a_closed_store_may_be_closed_again_and_opens_again_when_it_is_used(path: Path) -> None:
    store = SqliteSessions(path)
    await store.aclose()
    assert bytes_of(path.parent) == {}
    await start(store, "a")
    await store.aclose()
    await store.aclose()
    assert await store.load("a") == Saved(tuple(ASKED), {}, 1)
    await store.aclose()


@pytest.mark.anyio
async def test_a_store_is_closed_in_a_cancelled_scope_too(path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with SqliteSessions(path) as store:
            await start(store, "a")
            assert set(bytes_of(path.parent)) == {"sessions.db", "sessions.db-wal", "sessions.db-shm"}
            scope.cancel()
    assert set(bytes_of(path.parent)) == {"sessions.db"}


@pytest.mark.anyio
async def test_an_empty_file_is_taken_as_a_new_one(path: Path) -> None:
    put(path, b"")
    async with SqliteSessions(path) as store:
        await start(store, "a")
        assert await store.ids() == ["a"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "content", [b"\n\n", b"hello, world\n" * 500, b"\0" * 4096, b"SQLite format 3\0" + b"x" * 5000], ids=len
)
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    put(path, content)
    with pytest.raises(ConfigurationError, match=r"cannot be opened \(file is not a database\); give a file of"):
        await SqliteSessions(path).load("a")
    assert bytes_of(path.parent) == {"sessions.db": content}


@pytest.mark.anyio
@pytest.mark.parametrize("mark", [0, 77])
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
async def test_another_programs_database_is_refused_and_left_as_it_is(path: Path, mode: str, mark: int) -> None:
    with by_hand(path.with_name("other")) as database:
        database.execute("CREATE TABLE recipes (name)")
        database.execute(f"PRAGMA application_id = {mark}")
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("INSERT INTO recipes VALUES ('soup')")  # in WAL mode it is in the log, as after a crash
        for file in path.parent.glob("other*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, file.with_name(file.name.replace("other", path.name)))
    before = bytes_of(path.parent)
    with pytest.raises(
        ConfigurationError, match=r"is another program's database; give SqliteSessions a file of its own"
    ):
        await SqliteSessions(path).load("a")
    assert bytes_of(path.parent) == before


@pytest.mark.anyio
async def test_a_file_of_a_later_version_is_refused_and_left_as_it_is(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
    with by_hand(path) as database:
        database.execute("PRAGMA user_version = 2")
    before = bytes_of(path.parent)
    with pytest.raises(ConfigurationError, match=r"written by a later version, with layout 2 .*; upgrade middlechain"):
        await SqliteSessions(path).load("a")
    assert bytes_of(path.parent) == before


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["missing/sessions.db", ".", "nul\0.db", "half\ud83d.db"], ids=repr)
async def test_a_path_where_no_file_can_be_is_refused_at_first_use(tmp_path: Path, name: str) -> None:
    store = SqliteSessions(tmp_path / name)
    for _ in range(2):  # and again: nothing half open is kept
        with pytest.raises(ConfigurationError, match=r"cannot be opened \(.*; give a file of SqliteSessions"):
            await store.ids()
    await store.aclose()
    assert bytes_of(tmp_path) == {}


@contextmanager
def as_nobody() -> Iterator[Path]:
    """A directory of an ordinary user, who this process is meanwhile: the administrator may write everywhere."""
    with tempfile.TemporaryDirectory() as directory:
        before = os.getresuid()
        user = before[0] or 65534
        os.chown(directory, user, -1)
        os.setresuid(user, user, before[2])
        try:
            yield Path(directory)
        finally:
            os.setresuid(*before)


def test_a_file_that_may_only_be_read_is_refused_at_first_use_and_not_once_it_may_be_written() -> None:
    with as_nobody() as directory:
        store = SqliteSessions(directory / "sessions.db")
        anyio.run(start, store, "a")
        anyio.run(store.aclose)
        before = bytes_of(directory)
        (directory / "sessions.db").chmod(0o444)
        with pytest.raises(ConfigurationError, match=r"cannot be opened \(it may only be read\); give"):
            anyio.run(store.load, "a")
        assert bytes_of(directory) == before
        (directory / "sessions.db").chmod(0o644)
        assert anyio.run(store.load, "a") == Saved(tuple(ASKED), {}, 1)
        anyio.run(store.aclose)


@pytest.mark.anyio
async def test_opening_waits_for_somebody_who_begins_to_write_before_the_file_has_a_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a")
    with by_hand(path) as writer:
        writer.execute("PRAGMA journal_mode = DELETE")
        writes = iter(["BEGIN IMMEDIATE"])
        ran: list[str] = []

        class Watched(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                if sql == "PRAGMA journal_mode = WAL":
                    writer.execute(next(writes, ""))
                if sql == "BEGIN EXCLUSIVE":
                    writer.execute("COMMIT")
                ran.append(sql)
                return super().execute(sql, *parameters)

        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Watched))
        async with SqliteSessions(path) as store:
            assert await store.load("a") == Saved(tuple(ASKED), {}, 1)
            switch = "PRAGMA journal_mode = WAL"
            assert [sql for sql in ran if sql in {switch, "BEGIN EXCLUSIVE"}] == [switch, "BEGIN EXCLUSIVE", switch]
    with by_hand(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.anyio
async def test_a_file_that_cannot_have_a_log_cannot_be_opened_and_is_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []

    class Failing(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            opened.append(self)
            return super().execute("SELECT no_log" if sql == "PRAGMA journal_mode = WAL" else sql, *parameters)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Failing))
    with pytest.raises(ConfigurationError, match=r"cannot be opened \(no such column: no_log\); give a file of"):
        await SqliteSessions(path).load("a")
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        opened[-1].total_changes  # noqa: B018 - asked, a closed one complains


@pytest.mark.anyio
async def test_the_file_is_marked_and_holds_a_row_of_json_for_each_message(path: Path) -> None:
    async with SqliteSessions(path) as store:
        await start(store, "a", [User("é")], n=1)
    with by_hand(path) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"MdCh"),)
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
        ((session, place, row),) = database.execute("SELECT * FROM messages")
        assert (session, place, json.loads(row)) == ("a", 0, {"role": "user", "content": "é"})
        assert database.execute("SELECT * FROM sessions").fetchall() == [("a", 1, '{"n": 1}')]


def test_import_middlechain_does_not_import_the_store() -> None:
    code = "import sys, middlechain; print('sqlite3' in sys.modules or 'middlechain.sessions' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
