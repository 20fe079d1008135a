"""Every way in which an agent comes to run inside of a run, times all that must hold for it there (M9, M10, A6).

The rows are `WAYS`: each builds a target around a given inner agent and says what the layers of that agent will see.
The columns are the functions marked `@aspect`: each gets a `Cell`, runs the target in it, and looks. One test crosses
the two, in `run` and in `stream`, on both event loops, by clocks that jump ahead when everybody waits.

In each row the inner agent is asked "q". It calls its tool `rm`, says that all is gone, and so does whoever asked it.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import anyio
import pytest
from trio.testing import MockClock

from middlechain import (
    Agent,
    AgentFinished,
    AgentHooks,
    AgentStarted,
    App,
    Assistant,
    ChatReply,
    Context,
    Deny,
    Event,
    GuardrailDenied,
    Layers,
    LimitExceeded,
    LimitReached,
    Limits,
    Message,
    ModelStarted,
    Result,
    RunFinished,
    RunStarted,
    TextDelta,
    TextReset,
    ToolFinished,
    ToolMessage,
    ToolOutput,
    ToolStarted,
    ToolUse,
    Usage,
    User,
    loop,
    parallel,
    sequence,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go, by_stream
from .guarding import CANNED, against, found, redacting
from .scenes import SCOPES, Boom, deltas, fold
from .test_deadlines import Witness

pytestmark = pytest.mark.anyio


# --- clocks ----------------------------------------------------------------------------------------------------------


class Idle(selectors.DefaultSelector):
    """Where an asyncio loop waits. This one does not: it notes how long it should have."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.skipped += max(timeout, 0)
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time jumps ahead when everybody waits, as that of trio's `MockClock` does."""

    def __init__(self) -> None:
        self.idle = Idle()
        super().__init__(self.idle)

    def time(self) -> float:
        return super().time() + self.idle.skipped


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both event loops, as everywhere, with clocks that jump."""
    if request.param == "trio":
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return "asyncio", {"loop_factory": JumpingLoop}


# --- the rows: ways in which an inner agent comes to run -------------------------------------------------------------


def reply(text: str = "", *uses: ToolUse) -> ChatReply:
    """A reply as models of this table give it: each costs ten tokens, and 1."""
    return ChatReply(text, uses, usage=Usage(input_tokens=6, output_tokens=4, cost=1.0))


def echo(call: Any) -> ChatReply:
    """Say what was said last."""
    return reply(call.messages[-1].text)


def agent(name: str, *replies: Any, **options: Any) -> Agent:
    return Agent(name=name, model=ScriptedModel(replies, chunk=3), **options)


def in_a_sequence(inner: Agent, name: str) -> Agent:
    return sequence(agent("first", reply("q")), inner, name=name)


def in_a_parallel(inner: Agent, name: str) -> Agent:
    return parallel(inner, agent("beside", reply("aside")), merge=lambda results, ctx: results[0].text, name=name)


def in_a_loop(inner: Agent, name: str) -> Agent:
    return loop(inner, until=lambda ctx: True, name=name)


def as_a_tool(inner: Agent, name: str) -> Agent:
    return agent(name, reply("asking", ToolUse(inner.name, {"input": "q"})), echo, tools=[inner.as_tool()])


def by_handoff(inner: Agent, name: str) -> Agent:
    return agent(name, reply("asking", ToolUse(f"transfer_to_{inner.name}")), handoffs=[inner])


def from_a_tool(inner: Agent, name: str) -> Agent:
    @tool
    async def delegate(ctx: Context) -> str:
        return (await ctx.run(inner, "q")).text

    return agent(name, reply("asking", ToolUse("delegate")), echo, tools=[delegate])


def from_a_hook(inner: Agent, name: str) -> Agent:
    async def ask(input: Any, ctx: Context) -> str:
        return (await ctx.run(inner, input)).text

    return agent(name, lambda call: reply(asked_of(call)), hooks=[{"before_run": ask}])


def from_a_layer(inner: Agent, name: str) -> Agent:
    async def redirect(call: Any, next: Any) -> Any:
        return await call.ctx.run(inner, call.input)

    return agent(name, middleware=[Layers(agent=redirect)])


class Owner(Agent):
    """Owns its step: it does what `ask` does."""

    def __init__(self, ask: Callable[[Context, Any], Awaitable[Any]], **options: Any) -> None:
        super().__init__(**options)
        self.ask = ask

    async def run(self, input: Any, ctx: Context) -> Any:
        return await self.ask(ctx, input)


def from_an_owned_step(inner: Agent, name: str) -> Agent:
    async def ask(ctx: Context, input: Any) -> Result:
        planned = await ctx.chat(input)
        return await ctx.run(inner, planned.text)

    return Owner(ask, name=name, model=ScriptedModel([echo]))


def as_a_tool_of_code(inner: Agent, name: str) -> Agent:
    async def ask(ctx: Context, input: Any) -> str:
        output = await ctx.call_tool(inner.name, {"input": input})
        return (await ctx.chat(output.content)).text

    return Owner(ask, name=name, model=ScriptedModel([echo]), tools=[inner.as_tool()])


def as_an_owned_step(inner: Agent, name: str) -> Agent:
    """The inner agent is code too: what a model's turns would be are calls of `ctx.chat` and `ctx.call_tool`."""

    async def take_turns(ctx: Context, input: Any) -> str:
        said: list[Message] = [User(input)]
        while (answer := await ctx.chat(said, tools=coded.tools)).tool_calls:  # type: ignore[arg-type]  # all are Tools
            said.append(Assistant(answer.text, answer.tool_calls))
            for use in answer.tool_calls:
                output = await ctx.call_tool(use.name, json.loads(use.arguments))
                said.append(ToolMessage(output.content, use.id, use.name, output.is_error))
        return answer.text

    options = ("name", "model", "tools", "hooks", "guardrails", "limits", "middleware")
    coded = Owner(take_turns, **{option: getattr(inner, option) for option in options})
    return Owner(lambda ctx, input: ctx.run(coded, input), name=name)


@dataclass(frozen=True)
class Way:
    """A row of the table.

    Args:
        around: builds the target: what asks the inner agent, under that name.
        via: what agent layers of the inner agent see as `call.via`.
        chats: how often models of others are asked.
        tools: the tools of others that are called to get there.
        caller: whether there is an agent that asks.
        becomes: what the inner agent's result is to whoever asked: the `result` itself, or just a `text`.
        catches: whether an exception of the inner agent ends as the error result of a tool.
        copies: whether the inner agent works on a copy of the context variables, as tools and branches do.
        coded: whether the inner agent owns its step.
    """

    around: Callable[[Agent, str], Agent]
    via: str
    chats: int = 0
    tools: tuple[str, ...] = ()
    caller: bool = True
    becomes: str = "result"
    catches: bool = False
    copies: bool = False
    coded: bool = False

    def __str__(self) -> str:
        return self.around.__name__

    @property
    def requests(self) -> int:
        """How often models are asked in all: the inner agent's is asked twice."""
        return self.chats + 2


WAYS = [
    Way(in_a_sequence, "flow", chats=1, caller=False),
    Way(in_a_parallel, "flow", chats=1, caller=False, copies=True),
    Way(in_a_loop, "flow", caller=False),
    Way(as_a_tool, "tool", chats=2, tools=("inner",), becomes="text", catches=True, copies=True),
    Way(by_handoff, "handoff", chats=1, tools=("transfer_to_inner",)),
    Way(from_a_tool, "run", chats=2, tools=("delegate",), becomes="text", catches=True, copies=True),
    Way(from_a_hook, "run", chats=1, becomes="text"),
    Way(from_a_layer, "run"),
    Way(from_an_owned_step, "run", chats=1),
    Way(as_a_tool_of_code, "tool", chats=1, tools=("inner",), becomes="text", catches=True, copies=True),
    Way(as_an_owned_step, "run", coded=True),
]


# --- a cell ----------------------------------------------------------------------------------------------------------


class Cell:
    """One way to run an inner agent in an app, and what became of it."""

    def __init__(self, way: Way, go: Go) -> None:
        self.way = way
        self.go = go
        self.events: list[Event] = []
        self.app = App().observe(self.events.append)
        self.runs = 0
        self.retold = False  # whether a run layer changes the answer, of which a stream tells after the step has ended
        self.removed: list[str] = []  # what `rm` was called with
        self.in_rm: Callable[[Context], None] = lambda ctx: None

        @tool
        async def rm(path: str, ctx: Context) -> str:
            self.removed.append(path)
            self.in_rm(ctx)
            return "removed"

        self.rm = rm

    def inner(self, *replies: Any, **options: Any) -> Agent:
        """The inner agent: it uses its tool, and says that it has."""
        replies = replies or (reply("I look.", ToolUse("rm", {"path": "/"})), reply("all gone"))
        return agent("inner", *replies, tools=[self.rm], **options)

    async def run(self, inner: Agent | None = None, **options: Any) -> Result:
        """Run the target around it, and see that the events are in order, however the run ends."""
        self.events.clear()
        self.removed.clear()
        self.runs += 1
        target = self.way.around(self.inner() if inner is None else inner, "outer")
        try:
            result = await self.go(self.app, target, "q", **options)
            assert result.text in {"", *fold(self.events).values()} or self.go is not by_stream
            return result
        except Exception:
            assert self.outcome == "failed"
            raise
        finally:
            if self.outcome != "cancelled":
                check_events(self.events, self.retold)
                check_s1(self.events)

    async def fails(self, error: type[Exception], inner: Agent | None = None, **options: Any) -> Any:
        """Run it, and give the error that it ends with."""
        with pytest.raises(error) as caught:
            await self.run(inner, **options)
        return caught.value

    @property
    def outcome(self) -> str:
        """How the run ended."""
        assert isinstance(self.events[-1], RunFinished)
        return self.events[-1].outcome

    @property
    def inner_result(self) -> Result | None:
        """What came of the inner agent's step."""
        [finished] = [event for event in self.events if isinstance(event, AgentFinished) and event.agent == "inner"]
        return finished.result

    def of(self, kind: type[Event]) -> Counter[str]:
        """How many events of a kind each agent has."""
        return Counter(event.agent for event in self.events if isinstance(event, kind))


def is_inner(call: Any) -> bool:
    """For `only=`."""
    name: str = call.agent.name
    return name == "inner"


def calls_of(inner: Any) -> list[Any]:
    """The calls that the agent's model got."""
    calls: list[Any] = inner.model.calls
    return calls


def asked_of(call: Any) -> str:
    """What a call of the model asks."""
    text: str = next(message.text for message in reversed(call.messages) if isinstance(message, User))
    return text


def check_events(events: Sequence[Event], retold: bool) -> None:
    """Of a run that was not cancelled: no event is missing, and none is out of place (S8)."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert isinstance(events[0], RunStarted)
    assert [event for event in events if isinstance(event, RunFinished)] == [events[-1]]
    assert len({event.run_id for event in events}) == 1
    started, finished = {}, set()
    for event in events:
        if isinstance(event, AgentStarted):
            assert event.step not in started
            started[event.step] = event
        elif event.step in started:
            assert event.step not in finished or (retold and isinstance(event, TextDelta | TextReset))
            assert (event.agent, event.parent) == (started[event.step].agent, started[event.step].parent)
            if isinstance(event, AgentFinished):
                finished.add(event.step)
        assert event.parent not in finished
    assert finished == set(started)


def check_s1(events: Sequence[Event]) -> None:
    """What was streamed of each step is what its result says (S1). A plain run sends no deltas to compare."""
    if not deltas(events):
        return
    via = {event.step: event.via for event in events if isinstance(event, AgentStarted)}
    for place, event in enumerate(events):
        if isinstance(event, AgentFinished) and event.result is not None:
            answers = [message.text for message in event.result.messages if isinstance(message, Assistant)]
            live = fold(events[:place]).items()
            shown = {turn: text for (step, turn), text in live if step == event.step and text}
            # The turns of others come first: of who handed over, also to the flow that the step is a member of.
            before = len(answers) - max(shown, default=0) if via[event.step] in {"handoff", "flow"} else 0
            assert shown == {turn: text for turn, text in enumerate(answers[before:], 1) if text}


Aspect: TypeAlias = Callable[[Cell], Awaitable[None]]
ASPECTS: list[Aspect] = []


def aspect(column: Aspect) -> Aspect:
    """A column of the table."""
    ASPECTS.append(column)
    return column


def name_of(column: Aspect) -> str:
    return str(getattr(column, "__name__", column))


# --- the columns: layers ---------------------------------------------------------------------------------------------


@aspect
async def m9_run_layer_of_the_app_runs_once(cell: Cell) -> None:
    ran: list[str] = []

    async def app_layer(call: Any, next: Any) -> Any:
        ran.append(call.target.name)
        return (await next()).text.upper()

    async def inner_layer(call: Any, next: Any) -> None:
        ran.append("those of the inner agent apply when it is the target")

    cell.app.use(run=app_layer)
    cell.retold = True
    assert (await cell.run(cell.inner(middleware=[Layers(run=inner_layer)]))).text == "ALL GONE"
    assert ran == ["outer"]


@aspect
async def m10_agent_layer_wraps_the_step_and_sees_who_asked(cell: Cell) -> None:
    seen: list[tuple[str, str | None, str, int, Any]] = []

    async def see(call: Any, next: Any) -> Any:
        seen.append((call.agent.name, call.caller and call.caller.name, call.via, call.depth, call.input))
        return await next()

    cell.app.use(agent=see)
    await cell.run()
    asked = [one for one in seen if one[0] == "inner"]
    assert asked == [("inner", "outer" if cell.way.caller else None, cell.way.via, 1, "q")]
    assert Counter(one[0] for one in seen) == cell.of(AgentStarted)
    assert [event.via for event in cell.events if isinstance(event, AgentStarted) and event.agent == "inner"] == [
        cell.way.via
    ]


@aspect
async def m10_agent_layer_rewrites_what_is_asked_and_answered(cell: Cell) -> None:
    async def rewrite(call: Any, next: Any) -> Any:
        result = await next(call.replace(input=f"please: {call.input}"))
        return result.replace(text=result.text.upper())

    inner = cell.inner()
    cell.app.use(agent=rewrite, only=is_inner)
    assert (await cell.run(inner)).text == "ALL GONE"
    assert [asked_of(call) for call in calls_of(inner)] == ["please: q"] * 2


@aspect
async def m4_m10_agent_layer_refuses_by_answering(cell: Cell) -> None:
    async def refuse(call: Any, next: Any) -> str:
        return "not now"

    inner = cell.inner()
    cell.app.use(agent=refuse, only=is_inner)
    assert (await cell.run(inner)).text == "not now"
    assert (calls_of(inner), cell.removed) == ([], [])
    assert cell.of(AgentStarted)["inner"] == 1


@aspect
async def m10_agent_layer_redirects_to_another_agent(cell: Cell) -> None:
    seen: list[tuple[str, str, int]] = []

    async def see(call: Any, next: Any) -> None:
        if call.agent.name == "other":
            seen.append((call.caller.name, call.via, call.depth))
        await next()

    async def redirect(call: Any, next: Any) -> Any:
        return await call.ctx.run(other, call.input)

    inner, other = cell.inner(), agent("other", reply("the other's"))
    cell.app.use(agent=see).use(agent=redirect, only=is_inner)
    assert (await cell.run(inner)).text == "the other's"
    assert (calls_of(inner), cell.removed) == ([], [])
    assert seen == [("inner", "run", 2)]


@aspect
async def m9_chat_layer_sees_and_changes_each_reply(cell: Cell) -> None:
    seen: list[str] = []

    async def shout(call: Any, next: Any) -> Any:
        seen.append(call.agent.name)
        assert call.ctx.agent is call.agent
        answer = await next()
        return answer.replace(text=answer.text.upper()) if is_inner(call) else None

    inner = cell.inner()
    cell.app.use(chat=shout)
    assert (await cell.run(inner)).text == "ALL GONE"
    assert seen.count("inner") == len(calls_of(inner)) == 2
    assert Counter(seen) == cell.of(ModelStarted)


@aspect
async def m4_chat_layer_answers_in_the_models_place(cell: Cell) -> None:
    async def canned(call: Any, next: Any) -> str:
        return "from the cache"

    inner = cell.inner()
    cell.app.use(chat=canned, only=is_inner)
    result = await cell.run(inner)
    assert (result.text, calls_of(inner), result.usage.requests or 0) == ("from the cache", [], cell.way.chats)


@aspect
async def b12_m9_tool_layer_refuses_the_inner_agents_tool(cell: Cell) -> None:
    seen: list[tuple[str, str]] = []

    async def deny_rm(call: Any, next: Any) -> Any:
        seen.append((call.ctx.agent.name, call.name))
        return ToolOutput("rm is forbidden", is_error=True) if call.name == "rm" else await next()

    inner = cell.inner()
    cell.app.use(tool=deny_rm)
    assert (await cell.run(inner)).text == "all gone"
    assert cell.removed == []
    assert seen == [*(("outer", name) for name in cell.way.tools), ("inner", "rm")]
    told = calls_of(inner)[1].messages[-1]
    assert (told.text, told.is_error) == ("rm is forbidden", True)


@aspect
async def m2_layers_of_the_app_the_inner_agent_and_the_run_nest_in_this_order(cell: Cell) -> None:
    log: dict[str, list[str]] = {}

    def layers(whose: str) -> Any:
        def layer(scope: str) -> Any:
            async def note(call: Any, next: Any) -> None:
                if is_inner(call):
                    log.setdefault(scope, []).append(whose)
                await next()

            return note

        return Layers(agent=layer("agent"), chat=layer("chat"), tool=layer("tool"))

    cell.app.use(layers("app"))
    await cell.run(cell.inner(middleware=[layers("agent")]), use=[layers("run")])
    order = ["app", "agent", "run"]
    assert log == {"agent": order, "chat": order * 2, "tool": order}


@aspect
async def b12_m12_layers_run_once_for_each_time_they_are_registered(cell: Cell) -> None:
    ran: Counter[str] = Counter()
    layers = counting(ran)
    cell.app.use(layers)
    await cell.run()
    assert ran == (once := called(cell.events))
    ran.clear()
    cell.app.use(layers)
    await cell.run()
    assert ran == {scope: 2 * times for scope, times in once.items()}


def counting(ran: Counter[str]) -> Layers:
    """A layer of each scope that counts what it wraps."""

    def layer(scope: str) -> Any:
        async def count(call: Any, next: Any) -> None:
            ran[scope] += 1
            await next()

        return count

    return Layers(**{scope: layer(scope) for scope in SCOPES})


def called(events: Sequence[Event]) -> dict[str, int]:
    """How many calls of each scope there were, by the events."""
    kinds = dict(zip(SCOPES, (RunStarted, AgentStarted, ModelStarted, ToolStarted), strict=True))
    return {
        scope: count for scope, kind in kinds.items() if (count := sum(isinstance(event, kind) for event in events))
    }


# --- the columns: hooks of the inner agent ---------------------------------------------------------------------------

HOOKS = [name for name in vars(AgentHooks) if name.startswith(("before_", "after_", "on_"))]


def hooks_that(log: list[str], **values: Any) -> dict[str, Any]:
    """All hooks: they note that they were called, and give these values."""

    def hook(name: str) -> Any:
        def call(value: Any, ctx: Context) -> Any:
            log.append(f"{ctx.agent.name}: {name}")
            return values.get(name)

        return call

    return {name: hook(name) for name in HOOKS}


@aspect
async def h2_h8_hooks_of_the_inner_agent_fire_in_order_unless_it_owns_its_step(cell: Cell) -> None:
    log: list[str] = []
    await cell.run(cell.inner(hooks=[hooks_that(log)]))
    first, second = ["before_prompt", "before_tool", "after_tool"], ["before_prompt", "after_response", "after_run"]
    fired = [] if cell.way.coded else ["before_run", *first, *second]
    assert log == [f"inner: {name}" for name in fired]


@aspect
async def h3_hooks_of_the_inner_agent_change_what_it_is_asked_and_what_it_says(cell: Cell) -> None:
    inner = cell.inner(hooks=[hooks_that([], before_run="please", after_tool="done", after_response="It is done.")])
    result = await cell.run(inner)
    first, second = calls_of(inner)
    asked, told, said = asked_of(first), second.messages[-1].text, result.text
    changed = "please", "done", "It is done."
    assert (asked, told, said) == (("q", "removed", "all gone") if cell.way.coded else changed)


@aspect
async def h7_h8_on_error_of_the_inner_agent_answers_unless_it_owns_its_step(cell: Cell) -> None:
    log: list[str] = []
    inner = cell.inner(Boom(), hooks=[hooks_that(log, on_error="sorry")])
    if cell.way.coded:
        await cell.fails(Boom, inner)
        assert log == []
        return
    result = await cell.run(inner)
    assert result.text == "sorry"
    assert log[-1] == "inner: on_error"
    assert cell.inner_result is not None
    assert isinstance(cell.inner_result.error, Boom)
    assert result.degraded is (cell.way.becomes == "result")


# --- the columns: guardrails -----------------------------------------------------------------------------------------


def guarded(cell: Cell, **guards: Any) -> Agent:
    """The inner agent with one guard on its input or its output."""
    return cell.inner(guardrails={direction: [guard] for direction, guard in guards.items()})


def check_blocked(cell: Cell, result: Result, by_code: bool) -> None:
    """What a block of the inner agent's text is to it and to the run. Code gets the canned reply, and goes on (G2)."""
    inner = cell.inner_result
    assert inner is not None
    assert (result.text, inner.text) == (CANNED, CANNED)
    assert found(inner) == [("words", "enforced")]
    assert (inner.blocked, inner.blocked_by) == ((False, None) if by_code else (True, "words"))
    blocked = cell.way.becomes == "result" and not by_code
    assert (result.blocked, result.blocked_by) == ((True, "words") if blocked else (False, None))
    assert cell.outcome == ("blocked" if blocked else "completed")


@aspect
async def g2_guard_on_input_blocks(cell: Cell) -> None:
    inner = guarded(cell, input=against("q"))
    check_blocked(cell, await cell.run(inner), by_code=False)
    assert (calls_of(inner), cell.removed) == ([], [])


@aspect
async def g2_guard_on_output_blocks(cell: Cell) -> None:
    check_blocked(cell, await cell.run(guarded(cell, output=against("gone"))), by_code=cell.way.coded)
    assert cell.removed == ["/"]


@aspect
async def g4_guard_on_input_rewrites(cell: Cell) -> None:
    inner = guarded(cell, input=redacting("q"))
    assert (await cell.run(inner)).text == "all gone"
    assert [asked_of(call) for call in calls_of(inner)] == ["***", "***"]


@aspect
async def g4_guard_on_output_rewrites(cell: Cell) -> None:
    assert (await cell.run(guarded(cell, output=redacting("gone")))).text == "all ***"
    assert "gone" not in "".join(deltas(cell.events))


@aspect
async def g3_guard_on_input_denies(cell: Cell) -> None:
    inner = guarded(cell, input=against("q", Deny("no")))
    denial = await cell.fails(GuardrailDenied, inner)
    assert (denial.guardrail, denial.direction, calls_of(inner)) == ("words", "input", [])
    assert cell.inner_result is None


@aspect
async def g3_guard_on_output_denies(cell: Cell) -> None:
    denial = await cell.fails(GuardrailDenied, guarded(cell, output=against("gone", Deny("no"))))
    assert (denial.guardrail, denial.direction) == ("words", "output")
    assert cell.inner_result is None
    assert "gone" not in "".join(deltas(cell.events))


async def catch(call: Any, next: Any) -> Any:
    try:
        return await next()
    except GuardrailDenied:
        return "caught"


@aspect
async def g3_run_layer_that_catches_a_denial_leaves_blocked(cell: Cell) -> None:
    cell.app.use(run=catch)
    cell.retold = True
    for guards in ({"input": against("q", Deny("no"))}, {"output": against("gone", Deny("no"))}):
        result = await cell.run(guarded(cell, **guards))
        assert (result.text, result.blocked, result.blocked_by) == ("caught", True, "words")
        assert cell.outcome == "blocked"


@aspect
async def g3_agent_layer_that_catches_a_denial_leaves_blocked(cell: Cell) -> None:
    cell.app.use(agent=catch, only=is_inner)
    result = await cell.run(guarded(cell, output=against("gone", Deny("no"))))
    assert result.text == "caught"
    assert cell.inner_result is not None
    assert (cell.inner_result.blocked, cell.inner_result.blocked_by) == (True, "words")
    assert result.blocked is (cell.way.becomes == "result")


@aspect
async def g5_guards_of_the_app_judge_the_inner_agent(cell: Cell) -> None:
    judged: list[tuple[str, str]] = []

    def judge(text: str, ctx: Any) -> str:
        judged.append((ctx.agent.name, text))
        return text.replace("gone", "***")

    cell.app.guard(output=[judge])
    assert (await cell.run()).text == "all ***"
    assert ("inner", "all gone") in judged
    assert "gone" not in "".join(deltas(cell.events))


# --- the columns: limits and usage -----------------------------------------------------------------------------------


def enough(way: Way) -> dict[str, tuple[float, float]]:
    """Of each limit of a run: what is just enough, and what is not (`turns` and `seconds` have their own columns)."""
    return {
        "chat_calls": (way.requests, way.requests - 1),
        "tool_calls": (len(way.tools) + 1, len(way.tools)),
        "tokens": (way.requests * 10, (way.requests - 1) * 10),
        "cost": (way.requests, way.requests - 1),
        "depth": (1, 0),
    }


def limit(name: str, value: Any, **options: Any) -> Limits:
    return Limits(**{name: value}, **options)


def limit_aspects(name: str) -> None:
    """The columns of one limit of a run."""

    async def raises(cell: Cell) -> None:
        just, less = enough(cell.way)[name]
        assert (await cell.run(limits=limit(name, just))).text == "all gone"
        error = await cell.fails(LimitExceeded, limits=limit(name, less))
        assert (error.limit, error.value) == (name, less)
        assert isinstance(error.result, Result)
        assert LimitReached(name, less) in cell.events

    async def stops(cell: Cell) -> None:
        just, less = enough(cell.way)[name]
        assert (await cell.run(limits=limit(name, just, on_exceed="stop"))).stopped_by in {None, "until"}
        inner = cell.inner()
        result = await cell.run(inner, limits=limit(name, less, on_exceed="stop"))
        assert LimitReached(name, less) in cell.events
        if name == "depth":
            assert calls_of(inner) == []
        elif name == "tool_calls":  # others may answer all the same
            check_stopped(cell, result, of_run=True)
            assert cell.removed == []
        else:
            assert (result.stopped_by, result.finish_reason, cell.outcome) == ("limit", "limit", "stopped")

    for check in (raises, stops):
        check.__name__ = f"l1_l2_limit_of_{name}_{check.__name__}"
        aspect(check)


def check_stopped(cell: Cell, result: Result, *, of_run: bool) -> None:
    """The inner agent was stopped. Where its result is that of the run, so was that; but a loop is not, if it was no
    limit of the run (A3)."""
    assert cell.inner_result is not None
    assert (cell.inner_result.stopped_by, cell.inner_result.finish_reason) == ("limit", "limit")
    if cell.way.becomes == "result":
        assert result.stopped_by == ("until" if cell.way.around is in_a_loop and not of_run else "limit")
        assert result.finish_reason == "limit"


for name in enough(WAYS[0]):
    limit_aspects(name)


@aspect
async def l1_l2_limit_of_turns_counts_those_of_each_step(cell: Cell) -> None:
    assert (await cell.run(limits=Limits(turns=2))).text == "all gone"
    error = await cell.fails(LimitExceeded, cell.inner(limits=Limits(turns=1)))
    assert (error.limit, error.value) == ("turns", 1)
    removed = ["/"] if cell.way.coded else []  # code runs its tools itself
    assert cell.removed == removed
    result = await cell.run(cell.inner(limits=Limits(turns=1, on_exceed="stop")))
    check_stopped(cell, result, of_run=False)
    assert cell.removed == removed


@aspect
async def l3_limit_of_seconds_cancels_what_is_in_flight(cell: Cell) -> None:
    for limits in (Limits(seconds=5), Limits(seconds=5, on_exceed="stop")):
        witness, began = Witness(), anyio.current_time()
        inner = cell.inner(["some ", witness.wait_later()])
        if limits.on_exceed == "raise":
            error = await cell.fails(LimitExceeded, inner, limits=limits)
            assert (error.limit, error.value) == ("seconds", 5)
        else:
            result = await cell.run(inner, limits=limits)
            assert (result.stopped_by, result.finish_reason, cell.outcome) == ("limit", "limit", "stopped")
        assert anyio.current_time() - began == pytest.approx(5, abs=0.5)
        assert witness.fate == ["cancelled", "cleaned up"]
        assert LimitReached("seconds", 5) in cell.events


@aspect
async def l1_limits_of_the_inner_agent_are_its_own(cell: Cell) -> None:
    own = Limits(chat_calls=2, tool_calls=1, tokens=20, cost=2)
    assert (await cell.run(cell.inner(limits=own))).text == "all gone"
    for name, less in {"chat_calls": 1, "tool_calls": 0, "tokens": 10, "cost": 1}.items():
        error = await cell.fails(LimitExceeded, cell.inner(limits=limit(name, less)))
        assert (error.limit, error.value) == (name, less)


@aspect
async def a6_usage_counts_for_whoever_asked(cell: Cell) -> None:
    def used(requests: int) -> Usage:
        return Usage(6 * requests, 4 * requests, requests=requests, cost=1.0 * requests)

    counted: list[Usage] = []
    cell.in_rm = lambda ctx: counted.append(ctx.usage)
    result = await cell.run()
    assert result.usage == used(cell.way.requests)
    assert cell.inner_result is not None
    assert cell.inner_result.usage == used(2)
    assert counted[0].requests in range(1, cell.way.requests)
    for event in cell.events:
        if isinstance(event, AgentFinished) and event.agent == "outer" and cell.way.via != "handoff":
            assert event.result is not None
            assert event.result.usage == used(cell.way.requests)


# --- the columns: what is told and shared ----------------------------------------------------------------------------


@aspect
async def s8_events_say_whose_they_are(cell: Cell) -> None:
    await cell.run()
    [inner] = [event for event in cell.events if isinstance(event, AgentStarted) and event.agent == "inner"]
    own = [event for event in cell.events if event.step == inner.step and not isinstance(event, TextDelta)]
    turn = ["ModelStarted", "ModelFinished"]
    tools = ["ToolStarted", "ToolFinished"]
    assert [event.type for event in own] == ["AgentStarted", *turn, *tools, *turn, "AgentFinished"]
    assert [event.turn for event in own] == [0, 1, 1, 1, 1, 2, 2, 2]
    outer = [event for event in cell.events if isinstance(event, AgentStarted) and event.agent == "outer"]
    if cell.way.via in {"tool", "run"}:
        assert inner.parent == outer[0].step
    elif cell.way.via == "handoff":
        assert (inner.parent, outer[0].parent) == (None, None)  # side by side
    else:
        assert outer == []  # a flow has no step
    assert cell.outcome == "completed"


@aspect
async def s1_deltas_of_the_inner_step_are_what_its_result_says(cell: Cell) -> None:
    await cell.run()  # which compares the two
    said = [event.text for event in cell.events if isinstance(event, TextDelta) and event.agent == "inner"]
    whole = "all gone" if cell.way.coded else "I look.all gone"  # what code asks for is not streamed (H8)
    assert "".join(said) == (whole if cell.go is by_stream else "")


@aspect
async def c2_data_and_state_are_shared(cell: Cell) -> None:
    state, seen = {"tickets": 1}, list[Any]()
    cell.in_rm = lambda ctx: seen.append((ctx.state, dict(ctx.data)))
    inner = cell.inner()
    result = await cell.run(inner, state=state, data={"tenant": "t-7"})
    assert seen == [(state, {"tenant": "t-7"})]
    assert seen[0][0] is result.state is state
    assert "t-7" not in repr([call.messages for call in calls_of(inner)]) + repr(cell.events)


@aspect
async def c1_free_attributes_are_shared(cell: Cell) -> None:
    async def around(call: Any, next: Any) -> None:
        call.ctx.ticket = 7
        await next()
        assert call.ctx.answered == 8

    def answer(ctx: Context) -> None:
        ctx.answered = ctx.ticket + 1

    cell.in_rm = answer
    cell.app.use(run=around)
    result = await cell.run()
    assert result.state.answered == 8


place: ContextVar[str] = ContextVar("place", default="with the caller")


@aspect
async def m8_context_variables_are_shared_or_copied(cell: Cell) -> None:
    seen: list[str] = []

    async def outside(call: Any, next: Any) -> None:
        place.set("around the run")
        await next()
        seen.append(place.get())

    async def inside(call: Any, next: Any) -> None:
        seen.append(place.get())
        place.set("around the inner agent")
        await next()

    cell.in_rm = lambda ctx: seen.append(place.get())
    cell.app.use(run=outside).use(agent=inside, only=is_inner)
    await cell.run()
    afterwards = "around the run" if cell.way.copies else "around the inner agent"
    assert seen == ["around the run", "around the inner agent", afterwards]
    assert place.get() == "with the caller"


# --- the columns: how it ends ----------------------------------------------------------------------------------------


@aspect
async def l5_cancelling_the_run_ends_the_inner_agent(cell: Cell) -> None:
    witness, before = Witness(), tasks_that_run()
    cell.app.use(chat=witness.around, only=is_inner)
    after: list[str] = []

    async def caller() -> None:
        await cell.run(cell.inner(["some ", witness.wait_later()]))
        after.append("went on")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller)
        await witness.begun.wait()
        tasks.cancel_scope.cancel()
    assert (after, witness.fate) == ([], ["cancelled", "cleaned up", "layer left"])
    assert [event for event in cell.events if isinstance(event, RunFinished)] == [RunFinished("cancelled")]
    assert tasks_that_run() == before


def tasks_that_run() -> set[int]:
    return {task.id for task in anyio.get_running_tasks()}


@aspect
async def t4_exception_of_the_inner_agent_comes_out_as_itself_or_is_a_tools_error_result(cell: Cell) -> None:
    boom = Boom("the secret")
    inner = cell.inner(boom)
    if cell.way.catches:
        asked = cell.way.tools[-1]
        assert (await cell.run(inner)).text == f"Boom: the tool {asked!r} failed."
        [output] = [event.output for event in cell.events if isinstance(event, ToolFinished)]
        assert output is not None
        assert output.error is boom
    else:
        assert await cell.fails(Boom, inner) is boom
    assert cell.inner_result is None


@aspect
async def m6_exception_of_a_layer_around_the_inner_agent_goes_the_same_way(cell: Cell) -> None:
    boom = Boom()

    async def fail(call: Any, next: Any) -> None:
        raise boom

    for scope in ("agent", "chat", "tool"):
        cell.app = App().observe(cell.events.append).use(**{scope: fail}, only=is_inner)
        if cell.way.catches:
            assert (await cell.run()).text == f"Boom: the tool {cell.way.tools[-1]!r} failed."
        else:
            assert await cell.fails(Boom) is boom


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ASPECTS, ids=name_of)
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_m9_m10_a6_s11_whichever_way_it_comes_to_run(way: Way, column: Aspect, go: Go) -> None:
    cell = Cell(way, go)
    await column(cell)
    assert cell.runs  # the cell is not empty


def test_the_table_has_all_rows_and_columns() -> None:
    assert {way.via for way in WAYS} == {"flow", "tool", "handoff", "run"}
    assert {way.around for way in WAYS if way.via == "flow"} == {in_a_sequence, in_a_parallel, in_a_loop}
    assert any(way.coded for way in WAYS)
    columns = [name_of(column) for column in ASPECTS]
    assert len(set(columns)) == len(columns)
    for scope in SCOPES:
        assert any(f"{scope}_layer" in column for column in columns)
    for field in fields(Limits):
        assert any(f"limit_of_{field.name}_" in column for column in columns) or field.name == "on_exceed"
    for direction in ("input", "output"):
        for outcome in ("blocks", "rewrites", "denies"):
            assert any(f"guard_on_{direction}_{outcome}" in column for column in columns)
    for what in ("hooks", "on_error", "denial", "usage", "events", "deltas", "data_and_state", "free_attributes"):
        assert any(what in column for column in columns)
    for what in ("context_variables", "cancelling", "exception"):
        assert any(what in column for column in columns)


# --- one in another, and in another ----------------------------------------------------------------------------------

AROUND_ANY = [way for way in WAYS if not way.coded]  # code takes the place of a plain agent's turns, of nothing else


@pytest.mark.parametrize("outer", AROUND_ANY, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_b12_m9_two_levels_deep_each_layer_still_runs_once_for_each_call(way: Way, outer: Way, go: Go) -> None:
    cell, ran = Cell(way, go), Counter[str]()
    cell.app.use(counting(ran)).use(agent=catch)
    around = cell.way.around
    cell.way = Way(lambda inner, name: outer.around(around(inner, "between"), name), way.via)
    assert (await cell.run()).text == "all gone"
    assert cell.removed == ["/"]
    assert ran == called(cell.events)
    assert cell.of(AgentStarted)["inner"] == 1


FIFTY = 50


def nested(way: Way, inner: Agent, times: int) -> Agent:
    """The agent in a target of that way, which is in another one, and so on."""
    for level in range(times):
        inner = way.around(inner, f"level_{level}")
    return inner


@pytest.mark.parametrize("way", AROUND_ANY, ids=str)
async def test_l1_fifty_deep_ends_at_the_depth_and_never_in_a_recursion_error(way: Way, go: Go) -> None:
    cell = Cell(way, go)
    inner = cell.inner()
    with pytest.raises(LimitExceeded) as caught:
        await go(cell.app, nested(way, inner, FIFTY), "q")
    assert (caught.value.limit, caught.value.value, calls_of(inner)) == ("depth", 16, [])


@pytest.mark.parametrize("way", AROUND_ANY, ids=str)
async def test_l1_as_deep_is_allowed_as_the_limit_says(way: Way, go: Go) -> None:
    cell, depth = Cell(way, go), FIFTY // 2  # what measures coverage takes of Python's stack, too
    result = await go(cell.app, nested(way, cell.inner(), depth), "q", limits=Limits(depth=depth))
    assert (result.text, cell.removed) == ("all gone", ["/"])


async def ends_at_the_depth(go: Go, target: Any, app: App | None = None) -> None:
    with pytest.raises(LimitExceeded) as caught:
        await go(app or App(), target, "q")
    assert (caught.value.limit, caught.value.value) == ("depth", 16)


async def test_l1_an_owned_step_that_asks_itself_ends_at_the_depth(go: Go) -> None:
    me: list[Agent] = []
    me.append(Owner(lambda ctx, input: ctx.run(me[0], input), name="me"))
    await ends_at_the_depth(go, me[0])


async def test_l1_a_tool_that_asks_its_own_agent_ends_at_the_depth(go: Go) -> None:
    @tool
    async def again(ctx: Context) -> str:
        return (await ctx.run(ctx.agent, "q")).text

    await ends_at_the_depth(go, Agent(name="me", model=ScriptedModel(lambda call: [ToolUse("again")]), tools=[again]))


async def test_l1_a_conversation_handed_to_and_fro_ends_at_the_depth(go: Go) -> None:
    ping = Agent(name="ping", model=ScriptedModel(lambda call: [ToolUse("transfer_to_pong")]))
    pong = Agent(name="pong", model=ScriptedModel(lambda call: [ToolUse("transfer_to_ping")]), handoffs=[ping])
    ping.handoffs = [pong]
    await ends_at_the_depth(go, ping)


async def test_l1_a_layer_that_redirects_every_step_ends_at_the_depth(go: Go) -> None:
    async def redirect(call: Any, next: Any) -> Any:
        return await call.ctx.run(call.agent, call.input)

    await ends_at_the_depth(go, agent("me"), App().use(agent=redirect))


async def test_l1_a_flow_whose_function_runs_it_again_ends_at_the_depth(go: Go) -> None:
    flows: list[Agent] = []

    async def again(input: Any, ctx: Context) -> Any:
        return await ctx.run(flows[0], input)

    flows.append(sequence(again))
    await ends_at_the_depth(go, flows[0])
