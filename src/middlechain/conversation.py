"""A conversation: exchanges one after the other, with what was said kept between them, in memory or in a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
import anyio.lowlevel
from typing_extensions import Unpack

from middlechain.agent import name_of_agent
from middlechain.bus import log_failure
from middlechain.errors import ConfigurationError, ContractError
from middlechain.messages import Input, Message, ToolMessage, user_message
from middlechain.options import ExchangeOptions, SendOptions, Target, refuse_unknown
from middlechain.outcomes import said_in
from middlechain.pauses import (
    NEVER_RAN,
    UNKNOWN_OUTCOME,
    Decisions,
    Pause,
    dump_pause,
    first_input,
    in_flight,
    load_pause,
    taken,
    waiting_in,
    waits,
)
from middlechain.records import Run
from middlechain.results import Result
from middlechain.resuming import check_changed
from middlechain.runs import execute
from middlechain.streams import Stream
from middlechain.targets import agent_for, heir
from middlechain.tool_calls import ToolCall

if TYPE_CHECKING:
    from middlechain.app import App
    from middlechain.sessions import Sessions

__all__ = ["Begin", "Conversation"]

Begin: TypeAlias = Callable[[Run], Coroutine[Any, Any, Result]]


class Conversation:
    """A conversation with an agent or a flow: `app.conversation(...)` makes one.

    `send` asks, and what was said before is the history. Two sends at once take turns. A failed or cancelled exchange
    leaves nothing, or, if tools have run, the user's message and the turns whose tools ran: the next request is always
    valid. Where an agent hands the conversation over, the other one answers from then on.

    With a store, each exchange begins with what the store has and is saved when it ends, and each turn whose tools have
    run as soon as they have.
    """

    def __init__(
        self,
        app: App,
        listened: Callable[[SendOptions, Begin], Coroutine[Any, Any, Result]],
        streamed: Callable[[ExchangeOptions, Begin, bool], Stream],
        target: Target,
        history: tuple[Message, ...],
        options: ExchangeOptions,
        sessions: Sessions | None,
        id: str,
    ) -> None:
        self._app = app
        self._listened = listened
        self._streamed = streamed
        self._target = target
        self._options = options
        self._sessions = sessions
        self.id = id
        self._turns: tuple[object, anyio.Lock] | None = None  # of the event loop that it was used on last
        self._history = history  # what it begins with, where the store has nothing
        self._messages = history
        self._begins = len(history)  # where the exchange that waits for approval begins
        self._pause: Pause | None = None
        self._decided: frozenset[str] = frozenset()  # ids that have been: they never mean another call
        self._agent = name_of_agent(agent_for(app, target))
        self._version = 0  # of what this object knows; -1 after a save that failed
        self._stored = 0  # how many messages the store has, as far as they are the same

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said, never the system prompt. Of a store: as it was when it was looked at last; see `load`."""
        return self._messages

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """The calls that wait for approval, by the ids that `resume` takes."""
        return () if self._pause is None else tuple(waiting_in(self._pause).values())

    @property
    def agent(self) -> str:
        """Name of the agent that answers now: the target, or whoever the conversation was handed over to."""
        return self._agent

    async def load(self) -> None:
        """Look at the store, so that `messages` and `pending` say what it has; every `send` does so by itself.

        Raises:
            ConfigurationError: when the store cannot be read.
        """
        async with self._turn:
            await self._refresh()

    async def send(self, input: Input, **options: Unpack[SendOptions]) -> Result:
        """Ask, and wait for the answer.

        Args:
            input: text, parts, or a `User` message.
            options: see `SendOptions`; they go before those of the conversation.

        Raises:
            ContractError: while calls wait for approval.
            SessionConflict: when somebody else has saved the session meanwhile; the answer is not kept then.
            Exception: as `app.run`.
        """
        return await self._listened(self._with(options, "send", SendOptions), partial(self._send, input))

    async def resume(self, decisions: Decisions, **options: Unpack[SendOptions]) -> Result:
        """Go on with an exchange that waits for approval. What is not decided goes on waiting.

        Args:
            decisions: by the id of a call in `pending`: True lets it run, False refuses it, a `ToolCall` runs in its
                place; that one is checked and judged as if the model had made it.
            options: as in `send`.

        Raises:
            ConfigurationError: for an id that does not wait, or has been decided, a decision of another type, or a
                `ToolCall` that cannot be made. Nothing runs then, and the calls go on waiting.
            Exception: as `send`.
        """
        return await self._listened(self._with(options, "resume", SendOptions), partial(self._resume, decisions))

    def stream(
        self,
        input: Input | None = None,
        *,
        resume: Decisions | None = None,
        resets: bool = True,
        **options: Unpack[ExchangeOptions],
    ) -> Stream:
        """`send`, or `resume`, as a stream: `async with conversation.stream("...") as stream`.

        Args:
            input: as in `send`.
            resume: decisions, as in `resume`; in place of an input.
            resets: as in `app.stream`.
            options: see `ExchangeOptions`.

        Raises:
            ConfigurationError: for both an input and decisions, or neither.
        """
        if input is not None and resume is None:
            begin: Begin = partial(self._send, input)
        elif resume is not None and input is None:
            begin = partial(self._resume, resume)
        else:
            raise ConfigurationError("conversation.stream() takes an input, or resume= with decisions: one of the two")
        return self._streamed(self._with(options, "stream", ExchangeOptions), begin, resets)

    def _with(self, options: Mapping[str, Any], method: str, known: Any) -> Any:
        refuse_unknown(options, f"conversation.{method}()", known.__annotations__)
        return {**self._options, **options}

    @property
    def _turn(self) -> anyio.Lock:
        """Held by the exchange that is going on; a conversation serves several event loops in turn."""
        loop = anyio.lowlevel.current_token().native_token
        if self._turns is None or self._turns[0] is not loop:
            self._turns = loop, anyio.Lock()
        return self._turns[1]

    async def _send(self, input: Input, run: Run) -> Result:
        async with self._turn:
            await self._refresh()
            if self._pause is not None:
                waiting = ", ".join(f"{id!r} ({call.name})" for id, call in waiting_in(self._pause).items())
                raise ContractError(
                    f"this conversation waits for approval of {waiting}; "
                    "decide with conversation.resume({id: True or False}) first"
                )
            user_message(input)  # what is none is refused before anything is done
            target = heir(self._app, self._target, self._agent)
            if self._decided:
                run.ids = dict.fromkeys(self._decided)
            return await self._exchange(run, len(self._messages), partial(execute, run, target, input))

    async def _resume(self, decisions: Decisions, run: Run) -> Result:
        async with self._turn:
            await self._refresh()
            pause = self._check(decisions)
            target = heir(self._app, self._target, self._agent)
            check_changed(self._app, target, pause, decisions)
            said, rest = self._messages[self._begins :], taken(pause, decisions)
            still = waiting_in(rest)
            run.ids = {**dict.fromkeys(self._decided | decisions.keys()), **still}
            with anyio.CancelScope(shield=True):  # from here on they have run, for all that anybody else knows
                told = _told(said, pause, decisions)
                await self._keep(self._begins, told, rest, decided=self._decided | decisions.keys())
            try:
                begin = partial(execute, run, target, first_input(pause), resumed=(pause, decisions))
                return await self._exchange(run, self._begins, begin, [*in_flight(pause, decisions)])
            except BaseException:
                if not run.outputs:  # nothing has run, so they wait as before
                    await self._keep_behind(self._begins, said, pause, self._decided - decisions.keys())
                raise

    async def _exchange(
        self,
        run: Run,
        begins: int,
        begin: Callable[[tuple[Message, ...]], Awaitable[Result]],
        flight: Sequence[tuple[Message, bool]] = (),
    ) -> Result:
        """Run, and keep what was said, or what remains of it."""
        saving = anyio.Lock()  # members of a parallel may end a turn at the same time

        async def keep_turn() -> None:
            with anyio.CancelScope(shield=True):  # what the store has, this object has to know
                async with saving:
                    await self._keep(begins, [_begun(message, flight) for message in _finished(run)], self._pause)
            await anyio.lowlevel.checkpoint_if_cancelled()

        run.keep = None if self._sessions is None else keep_turn
        try:
            result = await begin(self._messages[:begins])
        except BaseException:
            said = _finished(run)
            if said and (run.outputs or self._pause is None):
                self._handed_over(run)
                await self._keep_behind(begins, said, None)
            raise
        self._handed_over(run)
        with anyio.CancelScope(shield=True):
            await self._keep(begins, result.messages, result.pause)
        return result

    def _handed_over(self, run: Run) -> None:
        root = run.root
        if root is not None and root.caller is not None:
            with suppress(ConfigurationError):  # a run layer had somebody else answer, who handed it over
                heir(self._app, self._target, root.plan.name)
                self._agent = root.plan.name

    def _check(self, decisions: Decisions) -> Pause:
        """What the decisions are about."""
        if not isinstance(decisions, Mapping) or not decisions:
            raise ConfigurationError(
                f"the decisions are {decisions!r:.80}; map the ids of calls that wait to True, False or a ToolCall"
            )
        waiting = {} if self._pause is None else waiting_in(self._pause)
        for id, decision in decisions.items():
            if id not in waiting:
                known = ", ".join(map(repr, waiting)) or "none"
                said = "has been decided already" if id in self._decided else "waits for no approval"
                raise ConfigurationError(f"the call {id!r} {said}; those that wait: {known}")
            if not isinstance(decision, bool | ToolCall):
                raise ConfigurationError(
                    f"the decision about {id!r} is {decision!r:.80}; give True, False, or a ToolCall in its place"
                )
        return cast("Pause", self._pause)

    async def _refresh(self) -> None:
        """Take over what the store has that is newer."""
        if self._sessions is None:
            return
        saved = await self._sessions.load(self.id, newer_than=max(self._version, 0))
        if saved is None and self._version < 0:  # a save has failed, and there is no such session (any more)
            self._version, self._stored, self._messages, self._pause = 0, 0, self._history, None
            self._begins = len(self._history)
        if saved is None:
            return
        state = saved.state
        self._messages, self._version, self._stored = saved.messages, saved.version, len(saved.messages)
        self._agent, self._begins = state["agent"], state["begins"]
        pause = None if state["pause"] is None else load_pause(state["pause"])
        self._pause = pause if pause is not None and waiting_in(pause) else None
        self._decided = frozenset(state["decided"])

    async def _keep_behind(
        self, begins: int, said: Sequence[Message], pause: Pause | None, decided: frozenset[str] | None = None
    ) -> None:
        """As `_keep`, behind an error or a cancellation, whose place nothing may take: a failure is logged."""
        with anyio.CancelScope(shield=True):
            try:
                await self._keep(begins, said, pause, decided)
            except Exception:  # noqa: BLE001 - what ended the exchange goes on
                log_failure("what remains of an exchange could not be saved", session=self.id)

    async def _keep(
        self, begins: int, said: Sequence[Message], pause: Pause | None, decided: frozenset[str] | None = None
    ) -> None:
        """Save what was said in the exchange that begins there, if there is a store, and note it."""
        messages = (*self._messages[:begins], *(said if pause is not None else map(_given_up, said)))
        if decided is None:
            decided = self._decided
            if pause is None and self._pause is not None:  # nobody will be asked about the others any more
                decided |= waiting_in(self._pause).keys()
        if self._sessions is not None:
            keep = min(self._stored, _in_common(self._messages, messages))
            state = {
                "agent": self._agent,
                "begins": begins,
                "pause": None if pause is None else dump_pause(pause),
                "decided": sorted(decided),
            }
            try:
                await self._sessions.save(
                    self.id, keep=keep, messages=messages[keep:], state=state, version=self._version
                )
            except Exception:
                self._version = -1  # what the store has now has to be looked at
                raise
            self._version += 1
            self._stored = len(messages)
        self._messages, self._begins, self._pause, self._decided = messages, begins, pause, decided


def _in_common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages are the very same at the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (mine, theirs) in pairs if mine is not theirs), min(len(one), len(other)))


def _finished(run: Run) -> tuple[Message, ...]:
    """What remains of an exchange that did not end: up to the last turn whose tools ran."""
    said = () if run.root is None else said_in(run.root)
    last = max((place for place, message in enumerate(said) if isinstance(message, ToolMessage)), default=-1)
    return said[: last + 1]


def _given_up(message: Message) -> Message:
    """The message as it stands when the exchange has ended: what waited then will not run any more."""
    if waits(message):
        return replace(message, content=NEVER_RAN)
    return message


def _told(said: Sequence[Message], pause: Pause, decisions: Decisions) -> list[Message]:
    """What was said, as it is once the decided calls are about to run, and the rest waits."""
    flight = [begun for _, begun in in_flight(pause, decisions)]
    return [
        replace(message, content=UNKNOWN_OUTCOME) if waits(message) and flight and flight.pop(0) else message
        for message in said
    ]


def _begun(message: Message, flight: Sequence[tuple[Message, bool]]) -> Message:
    """The message as it stands should the exchange not go on: the result of a call that runs, or is about to wait."""
    if not waits(message):
        return message
    begun = next((begun for one, begun in flight if one is message), None)
    if begun is None:
        return _given_up(message)
    return replace(message, content=UNKNOWN_OUTCOME) if begun else message
