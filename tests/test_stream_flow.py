"""How deltas flow through layers to the consumer (S2, S3), from nested steps too (S8)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatReply,
    Context,
    Event,
    TextDelta,
    TextReset,
    WrongReturn,
    tool,
)
from middlechain.testing import Collected, ScriptedModel, collect

from .scenes import RESET, delegating, deltas, fold

pytestmark = pytest.mark.anyio


async def stream(
    replies: Any, *, app: App | None = None, hooks: Sequence[Any] = (), tools: Sequence[Any] = ()
) -> Collected:
    """What it gives; and for whatever it gave, S1 holds."""
    agent = Agent(model=ScriptedModel(replies), hooks=hooks, tools=tools)
    said = await collect((app or App()).stream(agent, "hi"))
    answers = [message.text for message in said.result.messages if isinstance(message, Assistant)]
    live = {turn: text for (_, turn), text in fold(said.events).items()}
    assert [live.get(turn, "") for turn in range(1, len(answers) + 1)] == answers
    assert not any(text for turn, text in live.items() if turn > len(answers))
    return said


@tool
async def look() -> str:
    return "seen"


def rewording(text: str | None = None, *, append: str = "") -> Any:
    async def reword(call: Any, next: Any) -> Any:
        answer = await next()
        return answer.replace(text=answer.text + append if text is None else text)

    return reword


# --- S2 --------------------------------------------------------------------------------------------------------------


class Gate:
    """A model whose next chunk comes when the test lets it."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.sent = 0
        self.open = 0
        self._turn = anyio.Event()

    def let(self, count: int = 1) -> None:
        self.open += count
        self._turn.set()

    async def chat(self, call: Any) -> ChatReply:
        for place in range(self.chunks):
            while self.open <= place:
                self._turn = anyio.Event()
                await self._turn.wait()
            await call.send(TextDelta(f"{place} "))
            self.sent += 1
        return ChatReply("".join(f"{place} " for place in range(self.chunks)))

    name = "gate"


def pass_through(call: Any, next: Any) -> Any:
    return next()


async def test_s2_deltas_flow_past_a_layer_and_next_gives_the_complete_reply() -> None:
    got: list[str] = []

    async def layer(call: Any, next: Any) -> Any:
        reply = await next()
        got.append(reply.text)
        return reply

    gate = Gate(2)
    gate.let(1)
    async with App().use(chat=layer).stream(Agent(model=gate), "hi") as events:
        async for event in events:
            if isinstance(event, TextDelta) and event.text == "0 ":
                assert got == []
                gate.let(1)
    assert got == ["0 1 "]


def sending(wrap: Any) -> Any:
    """A layer that wraps `send` of its call: `wrap(send)` gives the new one."""

    async def layer(call: Any, next: Any) -> Any:
        return await next(call.replace(send=wrap(call.send)))

    return layer


def upper(send: Any) -> Any:
    async def my_send(delta: Any) -> None:
        await send(TextDelta(delta.text.upper()) if isinstance(delta, TextDelta) else delta)

    return my_send


async def test_s2_a_layer_touches_deltas_by_wrapping_send() -> None:
    async def layer(call: Any, next: Any) -> Any:
        reply = await next(call.replace(send=upper(call.send)))
        return reply.replace(text=reply.text.upper())

    events, result = await stream([["he", "llo"]], app=App().use(chat=layer))
    assert (deltas(events), result.text) == (["HE", "LLO"], "HELLO")


async def test_s2_the_outer_layer_sees_what_the_inner_one_sends() -> None:
    def quote(send: Any) -> Any:
        async def my_send(delta: Any) -> None:
            await send(TextDelta(f"<{delta.text}>"))

        return my_send

    events, _ = await stream([["a"]], app=App().use(chat=[sending(quote), sending(upper)]))
    assert deltas(events)[0] == "<A>"


async def test_s2_deltas_that_say_something_else_than_the_reply_are_taken_back() -> None:
    """Wrapping `send` alone does not change the answer, so the stream does not say otherwise in the end."""
    events, result = await stream([["he", "llo"]], app=App().use(chat=sending(upper)))
    assert (deltas(events), result.text) == (["HE", "LLO", RESET, "hello"], "hello")


async def test_s2_what_a_layer_still_holds_when_next_returns_is_added() -> None:
    def hold(send: Any) -> Any:
        held: list[Any] = []

        async def my_send(delta: Any) -> None:
            held.append(delta)
            if len(held) > 2:
                await send(held.pop(0))

        return my_send

    events, _ = await stream([["a", "b", "c", "d"]], app=App().use(chat=sending(hold)))
    assert deltas(events) == ["a", "b", "cd"]


async def test_s2_a_layer_sees_the_reset_and_can_forget_what_it_holds() -> None:
    seen: list[Any] = []

    def spy(send: Any) -> Any:
        async def my_send(delta: Any) -> None:
            seen.append(delta)
            await send(delta)

        return my_send

    await stream([["a", TextReset(), "b"]], app=App().use(chat=sending(spy)))
    assert seen == [TextDelta("a"), TextReset(), TextDelta("b")]


async def test_s2_a_layer_that_leaves_send_alone_leaves_the_very_same_send() -> None:
    sends: list[Any] = []

    async def note(call: Any, next: Any) -> Any:
        sends.append(call.send)
        return await next(call.replace(messages=call.messages))

    model = ScriptedModel(["x"])
    await collect(App().use(chat=[note, pass_through, note]).stream(Agent(model=model), "hi"))
    assert sends[0] is sends[1] is model.calls[0].send


async def test_s2_without_a_stream_nothing_is_sent() -> None:
    seen: list[Any] = []

    def spy(send: Any) -> Any:
        async def my_send(delta: Any) -> None:
            seen.append(delta)

        return my_send

    model = ScriptedModel([["a", "b"]])
    await App().use(chat=sending(spy)).run(Agent(model=model), "hi")
    assert (model.calls[0].streaming, seen) == (False, [])


async def test_s2_what_is_no_delta_cannot_be_sent() -> None:
    async def layer(call: Any, next: Any) -> Any:
        await call.send("text")
        return await next()

    with pytest.raises(WrongReturn, match=r"str.*; give it a TextDelta, a ReasoningDelta or a TextReset$"):
        await stream(["x"], app=App().use(chat=layer))


# --- S3 --------------------------------------------------------------------------------------------------------------


async def texts(events: Any) -> AsyncIterator[str]:
    async for event in events:
        if isinstance(event, TextDelta):
            yield event.text


@pytest.mark.parametrize(
    "layers", [[], [pass_through] * 3, [sending(lambda send: send)] * 3], ids=["none", "pass", "send"]
)
async def test_s3_whenever_the_model_is_waited_for_every_delta_has_reached_the_consumer(layers: list[Any]) -> None:
    """B36: a thousand chunks, each only after the test let it; all arrive, in order."""
    gate = Gate(1000)
    app = App()
    if layers:
        app.use(chat=layers, agent=[pass_through], run=[pass_through])
    read: list[str] = []
    gate.let(1)
    async with app.stream(Agent(model=gate), "hi") as events:
        async for text in texts(events):
            read.append(text)
            assert gate.open == len(read)
            gate.let(1)
        assert read == [f"{place} " for place in range(1000)]
        assert "".join(read) == events.result.text


@pytest.mark.parametrize("reads", [0, 1, 5, 20])
async def test_s3_a_consumer_that_stops_reading_stops_the_model_within_eight_deltas(reads: int) -> None:
    """B36."""
    gate = Gate(1000)
    gate.let(1000)
    async with App().use(chat=[pass_through] * 3).stream(Agent(model=gate), "hi") as events:
        reader = texts(events)
        for _ in range(reads):
            await anext(reader)
        await anyio.wait_all_tasks_blocked()
        assert reads <= gate.sent <= reads + 8
        await reader.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_s3_the_deltas_of_a_nested_step_arrive_as_they_come_too() -> None:
    gate = Gate(50)
    gate.let(1)
    read = 0
    async with App().stream(delegating(Agent(name="inner", model=gate)), "hi") as events:
        async for event in events:
            if isinstance(event, TextDelta) and event.agent == "inner":
                read += 1
                assert gate.open == read
                gate.let(1)
    assert read == 50


async def test_s3_a_consumer_that_stops_reading_stops_nested_models_as_well() -> None:
    gates = [Gate(1000), Gate(1000)]
    for gate in gates:
        gate.let(1000)
    agent = delegating(*(Agent(name=f"inner {place}", model=gate) for place, gate in enumerate(gates)))
    async with App().stream(agent, "hi") as events:
        async for event in events:
            if isinstance(event, TextDelta):
                break
        await anyio.wait_all_tasks_blocked()
        assert sum(gate.sent for gate in gates) <= 1 + 8


# --- nested steps ----------------------------------------------------------------------------------------------------


async def test_s8_deltas_of_nested_steps_carry_their_own_step_and_each_says_what_its_result_says() -> None:
    inner = [Agent(name=f"inner {place}", model=ScriptedModel([["a", "b", str(place)]])) for place in range(3)]
    events, result = await collect(App().use(agent=rewording(append="!")).stream(delegating(*inner), "hi"))
    by_agent = {event.agent: event.step for event in events if isinstance(event, TextDelta)}
    assert len(set(by_agent.values())) == 4
    live = {step: text for (step, _), text in fold(events).items()}
    assert [live[by_agent[f"inner {place}"]] for place in range(3)] == ["ab0!", "ab1!", "ab2!"]
    assert live[by_agent["outer"]] == result.text == "done!"
    assert [message.text for message in result.messages[2:5]] == ["ab0!", "ab1!", "ab2!"]


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("chunks", [3, 100])
async def test_s3_steps_that_a_hook_runs_at_the_same_time_all_get_through(chunks: int, observed: bool) -> None:
    """Nested steps in tasks of the user's own, each with more deltas than a reader may be behind."""
    inner = [Agent(name=f"inner {place}", model=ScriptedModel([["x"] * chunks])) for place in range(3)]

    async def fan_out(value: Any, ctx: Context) -> None:
        async with anyio.create_task_group() as tasks:
            for agent in inner:
                tasks.start_soon(ctx.run, agent, "sub")

    async def observer(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(event.seq)

    seen: list[int] = []
    outer = Agent(name="outer", model=ScriptedModel(["done"]), hooks=[{"before_run": fan_out}])
    app = App().observe(observer) if observed else App()
    with anyio.fail_after(2):
        events, _ = await collect(app.stream(outer, "hi"))
    assert seen == [event.seq for event in events] * observed
    assert sorted(fold(events).values()) == ["done", *["x" * chunks] * 3]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
