"""Where conversations are kept between processes: what a store does, and the one over SQLite.

When a conversation is loaded and saved is the business of whoever uses a store.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar

from anyio import CancelScope, CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from middlechain.errors import ConfigurationError, ContractError
from middlechain.messages import Message, dump, history_of, load

__all__ = ["Saved", "SessionConflict", "Sessions", "SqliteSessions"]

T = TypeVar("T")
Database: TypeAlias = sqlite3.Connection

APPLICATION = 0x4D644368  # "MdCh" marks a file as one of ours
LAYOUT = 1  # of the tables
TABLES = (
    "CREATE TABLE sessions (id TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, state TEXT NOT NULL)",
    "CREATE TABLE messages (session TEXT NOT NULL, place INT NOT NULL, json TEXT NOT NULL, UNIQUE (session, place))",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {LAYOUT}",
)


class SessionConflict(ContractError):
    """Somebody else has saved or deleted the conversation since it was loaded; nothing of this save was kept.

    Args:
        id: the id of the conversation.
    """

    id: str

    def __init__(self, id: str) -> None:
        super().__init__(
            f"session {id!r} was saved or deleted by somebody else since it was loaded, so this save is not kept; "
            "load it again and repeat the step, or let one at a time work on it"
        )
        self.id = id


@dataclass(frozen=True, slots=True)
class Saved:
    """A conversation as a store has it.

    Args:
        messages: all of it, from the first.
        state: plain JSON data beside the messages: who has the conversation, and what waits for approval.
        version: counts the saves, from 1.
    """

    messages: tuple[Message, ...]
    state: Mapping[str, Any]
    version: int


class Sessions(Protocol):
    """What a store does: any object with these two methods is one."""

    async def load(self, id: str, /, *, newer_than: int = 0) -> Saved | None:
        """The conversation of that id.

        Args:
            id: what tells conversations apart.
            newer_than: a version that the caller has already; default 0: none.

        Returns:
            None where there is no such conversation, or none newer than the version `newer_than`.
        """
        ...

    async def save(
        self, id: str, /, *, keep: int, messages: Sequence[Message], state: Mapping[str, Any], version: int
    ) -> None:
        """Keep the first messages, put others after them, and note the state: all of it or nothing.

        Args:
            id: what tells conversations apart.
            keep: how many of the stored messages stay, counted from the first; those behind them are dropped.
            messages: what comes after them.
            state: plain JSON data, in place of the stored one.
            version: the one that was loaded, 0 for a new conversation. The stored one becomes `version + 1`.

        Raises:
            SessionConflict: when the stored version is another one; nothing is changed then.
        """
        ...


class SqliteSessions:
    """Conversations in one SQLite file.

    The file is opened at first use, and again at a use after `aclose()`. One store may serve several event loops and
    threads, and several stores and processes may use one file: one of them writes at a time and the others wait up to
    30 seconds for that, while a load waits for no writer of another store. Work is done in a worker thread, and one
    store does one thing at a time; what has begun is ended even when its caller is cancelled.

    The file must lie on a local disk: over a network file system its locks do not hold. While it is open there are a
    `-wal` and a `-shm` file beside it, which belong to it. An open store must not be used on both sides of a fork.

    Args:
        path: the file, which is made if it is not there; its directory must be. A relative path is resolved at once.
        synchronous: `"NORMAL"` (default): a save outlives a killed process; a power cut may lose the last ones.
            `"FULL"`: a save outlives a power cut too, and takes as long as the disk needs for that.

    Raises:
        ConfigurationError: for arguments of another kind; and at first use when the file cannot be opened or written,
            is another program's, or was written by a later version. The file is left as it is then.
    """

    def __init__(self, path: str | os.PathLike[str], *, synchronous: Literal["NORMAL", "FULL"] = "NORMAL") -> None:
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str) or path == ":memory:":
            raise ConfigurationError(f"SqliteSessions got {path!r:.80}; give the path of a file, as a str or a Path")
        if synchronous not in ("NORMAL", "FULL"):
            raise ConfigurationError(f"SqliteSessions got synchronous={synchronous!r:.80}; give 'NORMAL' or 'FULL'")
        self._path = Path(path).absolute()
        self._synchronous = synchronous
        self._database: Database | None = None
        self._lock = threading.Lock()  # between event loops
        self._turn: RunVar[CapacityLimiter] = RunVar("middlechain_sessions_turn")  # in each, so that one thread waits

    def __repr__(self) -> str:
        return f"SqliteSessions({str(self._path)!r}, synchronous={self._synchronous!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def load(self, id: str, /, *, newer_than: int = 0) -> Saved | None:
        """As in `Sessions`.

        Raises:
            ConfigurationError: when the id is not text, or what is stored cannot be read; it says what and where.
            sqlite3.Error: when the file fails.
        """
        checked = _checked(id)
        return await self._in_turn(lambda: _load(self._opened(), checked, newer_than))

    async def save(
        self, id: str, /, *, keep: int, messages: Sequence[Message], state: Mapping[str, Any], version: int
    ) -> None:
        """As in `Sessions`. Nothing is changed when it raises.

        Raises:
            SessionConflict: when the stored version is another one.
            ContractError: when `keep` is negative or more than is stored, or the state is not plain JSON data.
            ConfigurationError: when the id is not text, or something among the messages is not a message.
            sqlite3.Error: when the file fails, or another process has been writing for 30 seconds.
        """
        checked, noted, said = _checked(id), _json(state, id), history_of(messages)
        await self._in_turn(lambda: _save(self._opened(), checked, keep, said, noted, version))

    async def ids(self) -> list[str]:
        """The ids of all conversations, sorted. Raises `sqlite3.Error` when the file fails."""
        return await self._in_turn(lambda: _ids(self._opened()))

    async def delete(self, id: str, /) -> bool:
        """Forget a conversation, and say whether there was one. What is saved under its id later is a new one.

        Raises:
            ConfigurationError: when the id is not text.
            sqlite3.Error: as for `save`.
        """
        checked = _checked(id)
        return await self._in_turn(lambda: _delete(self._opened(), checked))

    async def aclose(self) -> None:
        """Close the file after what is under way; when cancelled, too. Any later use opens it again."""
        with CancelScope(shield=True):
            await self._in_turn(self._close)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Do it in a worker thread, after whatever came before it."""

        def alone() -> T:
            with self._lock:
                return work()

        if (limiter := self._turn.get(None)) is None:
            self._turn.set(limiter := CapacityLimiter(1))
        return await run_sync(alone, limiter=limiter)

    def _opened(self) -> Database:
        if self._database is None:
            self._database = _open(self._path, self._synchronous)
        return self._database

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _checked(id: object) -> str:
    if isinstance(id, str):
        with suppress(UnicodeEncodeError):
            return id.encode().decode()
    raise ConfigurationError(f"the id of a session is {id!r:.80}; give text that UTF-8 can encode")


def _json(data: Mapping[str, Any], id: str) -> bytes:
    try:
        text = json.dumps(dict(data), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"what is to be saved of session {id!r} is not plain JSON data ({error}); "
            "give a mapping of texts, finite numbers, booleans, None, lists and mappings"
        ) from error
    return text.encode(errors="surrogatepass")  # halves of surrogate pairs, escaped, would come back as one character


def _open(path: Path, synchronous: str) -> Database:
    try:
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError("it may only be read")  # SQLite would say so at the first save
        _refuse_others(path)
        database = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            _prepare(database, path)
            database.execute(f"PRAGMA synchronous = {synchronous}")
        except BaseException:
            database.close()
            raise
    except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: no name of a file, such as one with a NUL
        raise ConfigurationError(
            f"the sessions in {str(path)!r} cannot be opened ({error}); "
            "give a file of SqliteSessions, or a new one, where this process may write"
        ) from error
    return database


def _refuse_others(path: Path) -> None:
    """Look without leaving a trace: to open another program's file as usual may tidy up its log."""
    uri = f"{path.as_uri()}?mode=ro&immutable=1"
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(uri, uri=True)) as database:
        _is_new(database, path)  # one that cannot be read this way is told apart once it is open


def _is_new(database: Database, path: Path) -> bool:
    application, layout, tables = database.execute(
        "SELECT *, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application == layout == tables == 0:
        return True
    if application != APPLICATION:
        raise ConfigurationError(f"{str(path)!r} is another program's database; give SqliteSessions a file of its own")
    if layout > LAYOUT:
        raise ConfigurationError(
            f"{str(path)!r} was written by a later version, with layout {layout} where this one knows {LAYOUT}; "
            "upgrade middlechain"
        )
    return False


def _prepare(database: Database, path: Path) -> None:
    with database:
        database.execute("BEGIN IMMEDIATE")  # of several that find a new file, one makes the tables
        for statement in TABLES if _is_new(database, path) else ():
            database.execute(statement)
    while not _switched_to_wal(database):
        with database:
            database.execute("BEGIN EXCLUSIVE")  # waits for the others, which the switch by itself does not


def _switched_to_wal(database: Database) -> bool:
    try:
        database.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def _load(database: Database, id: str, newer_than: int) -> Saved | None:
    with database:
        database.execute("BEGIN")
        found = database.execute(
            "SELECT version, CAST(state AS BLOB) FROM sessions WHERE id = ? AND version > ?", (id, newer_than)
        ).fetchone()
        if found is None:
            return None
        rows = database.execute(
            "SELECT place, CAST(json AS BLOB) FROM messages WHERE session = ? ORDER BY place", (id,)
        ).fetchall()
    version, state = found
    said = tuple(_read(row, f"message {place}", id, lambda data: load([data])[0]) for place, row in rows)
    return Saved(said, _read(state, "the state", id, lambda data: {**data}), version)


def _read(row: bytes, what: str, id: str, build: Callable[[Any], T]) -> T:
    try:
        return build(json.loads(row))
    except (TypeError, ValueError, ConfigurationError) as error:
        raise ConfigurationError(
            f"{what} of session {id!r} cannot be read ({type(error).__name__}), as the file was damaged or edited; "
            "restore it from a backup, or delete the session"
        ) from error


def _save(database: Database, id: str, keep: int, messages: Sequence[Message], state: bytes, version: int) -> None:
    rows = [(id, place, _json(data, id)) for place, data in enumerate(dump(messages), keep)]
    with database:
        database.execute("BEGIN IMMEDIATE")
        stored, length = database.execute(
            "SELECT coalesce((SELECT version FROM sessions WHERE id = :id), 0),"
            " (SELECT coalesce(max(place) + 1, 0) FROM messages WHERE session = :id)",
            {"id": id},
        ).fetchone()
        if stored != version:
            raise SessionConflict(id)
        if not 0 <= keep <= length:
            raise ContractError(
                f"keep={keep!r}, and session {id!r} has {length} messages; keep none, some or all of them"
            )
        database.execute("DELETE FROM messages WHERE session = ? AND place >= ?", (id, keep))
        database.executemany("INSERT INTO messages VALUES (?, ?, CAST(? AS TEXT))", rows)
        database.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, CAST(? AS TEXT))", (id, version + 1, state))


def _ids(database: Database) -> list[str]:
    return [id for (id,) in database.execute("SELECT id FROM sessions ORDER BY id")]


def _delete(database: Database, id: str) -> bool:
    with database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM messages WHERE session = ?", (id,))
        return database.execute("DELETE FROM sessions WHERE id = ?", (id,)).rowcount > 0
