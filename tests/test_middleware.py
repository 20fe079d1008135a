"""The calling contract of a layer (M1, M3, M4), in all four scopes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from types import coroutine
from typing import Any

import pytest

from middlechain import (
    Agent,
    AgentFinished,
    App,
    Assistant,
    ChatReply,
    FatalToolError,
    Limits,
    ModelFinished,
    NothingReturned,
    Result,
    RunFinished,
    TextDelta,
    ToolFinished,
    ToolOutput,
    ToolUse,
    User,
    WrongReturn,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .scenes import ANSWERS, SCOPES, STARTED, Go, Scene, said

pytestmark = pytest.mark.anyio
every_scope = pytest.mark.parametrize("scope", SCOPES)

# --- M1: what a layer is ---------------------------------------------------------------------------------------------


async def a_function(call: Any, next: Any) -> Any:
    return await next()


async def with_argument(prefix: str, call: Any, next: Any) -> Any:
    return await next()


def plain(call: Any, next: Any) -> Any:
    return next()


async def returns_the_coroutine(call: Any, next: Any) -> Any:
    return next()


def nested(call: Any, next: Any) -> Any:
    return returns_the_coroutine(call, next)


class Callable_:
    async def __call__(self, call: Any, next: Any) -> Any:
        return await next()

    def method(self, call: Any, next: Any) -> Any:
        return next()

    @staticmethod
    async def static(call: Any, next: Any) -> Any:
        return await next()


class Later:
    """Awaitable without being a coroutine."""

    def __init__(self, going: Any) -> None:
        self.going = going

    def __await__(self) -> Generator[Any, Any, Any]:
        result = yield from self.going.__await__()
        return result


class Made:
    """A class is a callable, too: what it makes is what it returns."""

    def __new__(cls, call: Any, next: Any) -> Any:
        return next()


@coroutine
def generator_based(call: Any, next: Any) -> Generator[Any, Any, Any]:
    result = yield from next().__await__()
    return result


KINDS: dict[str, Any] = {
    "async def": a_function,
    "lambda": lambda call, go_on: go_on(),
    "partial": partial(with_argument, "x"),
    "object": Callable_(),
    "bound method": Callable_().method,
    "static method": Callable_.static,
    "class": Made,
    "plain def": plain,
    "coroutine of a coroutine": nested,
    "async def without await": returns_the_coroutine,
    "awaitable object": lambda call, go_on: Later(go_on()),
    "awaitable of awaitables": lambda call, go_on: Later(returns_the_coroutine(call, go_on)),
    "generator-based": generator_based,
}


@every_scope
@pytest.mark.parametrize("kind", KINDS)
async def test_m1_any_callable_is_a_layer(scope: str, kind: str, go: Go) -> None:
    scene = Scene(scope, KINDS[kind])
    assert (await scene.go(go), scene.ran) == ("inner 1", 1)


@every_scope
async def test_m1_a_plain_def_may_answer_without_anything_to_await(scope: str, go: Go) -> None:
    scene = Scene(scope, lambda call, go_on: "mine")
    assert (await scene.go(go), scene.ran) == ("mine", 0)


@every_scope
async def test_m1_a_layer_has_returned_only_when_there_is_nothing_left_to_await(scope: str, go: Go) -> None:
    async def in_the_end(next: Any) -> Any:
        return said(await next()) + "!"

    scene = Scene(scope, lambda call, go_on: Later(Later(in_the_end(go_on))))
    assert await scene.go(go) == "inner 1!"


@every_scope
async def test_m1_next_without_arguments_goes_on_with_the_same_call(scope: str, go: Go) -> None:
    seen: list[Any] = []

    def see(call: Any, next: Any) -> Any:
        seen.append(call)
        return next()

    await Scene(scope, see, see).go(go)
    assert seen[0] is seen[1]


CHANGES: dict[str, dict[str, Any]] = {
    "run": {"input": "changed"},
    "agent": {"input": "changed"},
    "chat": {"messages": [User("changed")]},
    "tool": {"args": {"x": 7}},
}


@every_scope
async def test_m1_next_with_a_changed_copy_goes_on_with_that(scope: str, go: Go) -> None:
    seen: list[Any] = []

    async def change(call: Any, next: Any) -> Any:
        return await next(call.replace(**CHANGES[scope]))

    def see(call: Any, next: Any) -> Any:
        seen.append(call.args["x"] if scope == "tool" else call.messages[0].text if scope == "chat" else call.input)
        return next()

    scene = Scene(scope, see, change, see)
    await scene.go(go)
    assert seen == [1, 7] if scope == "tool" else seen == ["hi", "changed"]
    if scope != "tool":
        assert scene.model.calls[0].messages[-1].text == "changed"


async def test_m1_the_tool_gets_the_changed_arguments(go: Go) -> None:
    got: list[int] = []
    work = tool(name="work")(_recorder(got))
    agent = Agent(model=ScriptedModel([[ToolUse("work", {"x": 1})], "done"]), tools=[work])
    app = App().use(tool=lambda call, go_on: go_on(call.replace(args={"x": call.args["x"] + 1})))
    await go(app, agent, "hi")
    assert got == [2]


def _recorder(got: list[int]) -> Callable[..., Any]:
    async def record(x: int) -> None:
        got.append(x)

    return record


@every_scope
@pytest.mark.parametrize("wrong", [0, "text", object()])
async def test_m1_next_refuses_what_is_not_a_call_and_says_what_to_give(scope: str, wrong: Any, go: Go) -> None:
    async def careless(call: Any, next: Any) -> Any:
        return await next(wrong)

    scene = Scene(scope, careless)
    with pytest.raises(WrongReturn, match=rf"{scope} layer .*careless.*{type(wrong).__name__}.*replace") as caught:
        await scene.go(go)
    assert "or nothing" in str(caught.value)
    assert scene.ran == 0


# --- M3: what a layer returns ----------------------------------------------------------------------------------------


@every_scope
@pytest.mark.parametrize("text", ["mine", ""])
@pytest.mark.parametrize("shorthand", [True, False])
async def test_m3_the_value_returned_replaces_the_answer(scope: str, text: str, shorthand: bool, go: Go) -> None:
    async def layer(call: Any, next: Any) -> Any:
        await next()
        return text if shorthand else scene.answer(text)

    scene = Scene(scope, layer)
    assert (await scene.go(go), scene.ran) == (text, 1)


@every_scope
async def test_m3_outer_layers_get_an_answer_whatever_shorthand_the_inner_one_used(scope: str, go: Go) -> None:
    got: list[Any] = []

    async def outer(call: Any, next: Any) -> None:
        got.append(await next())

    scene = Scene(scope, outer, lambda call, go_on: "mine")
    assert await scene.go(go) == "mine"
    assert [(type(answer), said(answer)) for answer in got] == [(type(scene.answer("")), "mine")]


@every_scope
async def test_m3_none_after_a_successful_next_keeps_what_next_gave(scope: str, go: Go) -> None:
    """B08 (as the specification settles it): a layer that awaits `next()` and returns nothing is an observer."""

    async def audit(call: Any, next: Any) -> None:
        await next()

    scene = Scene(scope, audit)
    assert (await scene.go(go), scene.ran) == ("inner 1", 1)


@every_scope
async def test_m3_none_after_a_failed_and_then_a_successful_next_keeps_the_success(scope: str, go: Go) -> None:
    async def retry(call: Any, next: Any) -> None:
        try:
            await next()
        except FatalToolError:
            await next()

    scene = Scene(scope, retry, script=[FatalToolError("once")])
    assert (await scene.go(go), scene.ran) == ("inner 2", 2)


@every_scope
async def test_m3_none_without_next_raises_and_names_the_layer_and_the_fix(scope: str, go: Go) -> None:
    """B08: the twin that is an error."""

    async def audit_mw(call: Any, next: Any) -> None:
        return

    scene = Scene(scope, audit_mw)
    with pytest.raises(NothingReturned, match=rf"{scope} layer .*audit_mw.*return await next\(\), or a ") as caught:
        await scene.go(go)
    assert caught.value.__cause__ is None
    assert scene.ran == 0


@every_scope
async def test_m3_none_after_a_failed_next_is_chained_to_what_next_raised(scope: str, go: Go) -> None:
    """B08: a swallowed failure is not lost."""
    error = FatalToolError("inside")

    async def swallow(call: Any, next: Any) -> None:
        try:
            await next()
        except FatalToolError:
            return

    scene = Scene(scope, swallow, script=[error])
    with pytest.raises(NothingReturned, match="swallow") as caught:
        await scene.go(go)
    assert caught.value.__cause__ is error


@every_scope
@pytest.mark.parametrize("wrong", [0, False, {}, [], b"", 1.5, object(), "another scope's answer"])
@pytest.mark.parametrize("calls_next", [True, False])
async def test_m3_any_other_type_raises_and_names_layer_type_and_fix(
    scope: str, wrong: Any, calls_next: bool, go: Go
) -> None:
    """`0`, `False` and `{}` are values: they do not keep, they are wrong."""
    if wrong == "another scope's answer":
        wrong = ChatReply("x") if scope != "chat" else ToolOutput("x")

    async def careless(call: Any, next: Any) -> Any:
        if calls_next:
            await next()
        return wrong

    scene = Scene(scope, careless)
    with pytest.raises(WrongReturn, match=rf"{scope} layer .*careless.*{type(wrong).__name__}") as caught:
        await scene.go(go)
    expected = type(scene.answer("")).__name__
    assert str(caught.value).endswith(f"return a {expected}, a str, or None to keep what next() gave")


async def test_m3_a_chat_layers_answer_is_what_hooks_history_stream_and_result_get(go: Go) -> None:
    heard: list[str] = []
    model = ScriptedModel([["he", "llo"], "later"])
    agent = Agent(model=model, hooks=[{"after_response": lambda text, ctx: heard.append(text)}])
    app = App().use(chat=shout)
    result = await go(app, agent, "hi")
    assert (result.text, result.message.text, heard) == ("HELLO", "HELLO", ["HELLO"])
    await go(app, agent, "and now?", history=result.messages)
    assert [message.text for message in model.calls[1].messages] == ["hi", "HELLO", "and now?"]


async def shout(call: Any, next: Any) -> ChatReply:
    reply: ChatReply = await next()
    return reply.replace(text=reply.text.upper())


async def test_m3_a_chat_layers_answer_is_what_the_stream_says() -> None:
    events, result = await collect(App().use(chat=shout).stream(Agent(model=ScriptedModel(["hello"])), "hi"))
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert (texts, result.text) == (["hello", "HELLO"], "HELLO")


@pytest.mark.parametrize("calls", [[ToolUse("two", {})], []], ids=["changed", "dropped"])
async def test_m3_a_chat_layers_answer_decides_which_tools_run(calls: list[ToolUse], go: Go) -> None:
    ran: list[str] = []

    @tool
    async def one() -> None:
        ran.append("one")

    @tool
    async def two() -> None:
        ran.append("two")

    async def redirect(call: Any, next: Any) -> Any:
        reply = await next()
        return reply.replace(tool_calls=calls) if reply.tool_calls else reply

    model = ScriptedModel([["thinking", ToolUse("one", {})], "done"])
    result = await go(App().use(chat=redirect), Agent(model=model, tools=[one, two]), "hi")
    assert ran == ["two"] * len(calls)
    assert result.text == ("done" if calls else "thinking")


async def test_m3_a_tool_layers_answer_is_what_hooks_history_and_the_next_request_get(go: Go) -> None:
    heard: list[str] = []
    scene = Scene("tool", plain_cut, hooks=[{"after_tool": lambda result, ctx: heard.append(result.output)}])
    assert await scene.go(go) == "cut"
    assert heard == ["cut"]
    assert scene.model.calls[1].messages[-1].text == "cut"


async def plain_cut(call: Any, next: Any) -> str:
    await next()
    return "cut"


async def test_m3_an_agent_layers_answer_is_what_the_caller_of_a_nested_step_gets(go: Go) -> None:
    inner = Agent(name="inner", model=ScriptedModel(["raw"]))
    got: list[str] = []

    async def fan_out(value: Any, ctx: Any) -> None:
        got.append((await ctx.run(inner, "sub")).text)

    outer = Agent(name="outer", model=ScriptedModel(["done"]), hooks=[{"before_run": fan_out}])
    app = App().use(agent=lambda call, go_on: go_on() if call.agent is outer else "from the layer")
    assert (await go(app, outer, "hi")).text == "done"
    assert got == ["from the layer"]


@pytest.mark.parametrize("scope", ["run", "agent"])
async def test_m3_a_layers_result_has_text_and_messages_in_step(scope: str, go: Go) -> None:
    async def reword(call: Any, next: Any) -> Result:
        result: Result = await next()
        return result.replace(text="mine")

    scene = Scene(scope, reword)
    result = await go(scene.app, scene.agent, "hi")
    assert [(type(message), message.text) for message in result.messages] == [(User, "hi"), (Assistant, "mine")]
    assert (result.text, result.output, result.message.text) == ("mine", "mine", "mine")


# --- M4: a layer that answers by itself ------------------------------------------------------------------------------


@every_scope
async def test_m4_a_layer_that_does_not_call_next_answers_in_its_place(scope: str, go: Go) -> None:
    """B07 (d), B09: nothing inside runs, not even other layers, in `run` and in `stream`."""
    inside: list[Any] = []

    def see(call: Any, next: Any) -> Any:
        inside.append(call)
        return next()

    scene = Scene(scope, lambda call, go_on: ANSWERS[scope]("mine"), see)
    assert (await scene.go(go), scene.ran, inside) == ("mine", 0, [])


@every_scope
async def test_m4_the_call_still_appears_in_events(scope: str, go: Go) -> None:
    scene = Scene(scope, lambda call, go_on: "mine")
    await scene.go(go)
    assert STARTED[scope] in [type(event) for event in scene.events]
    finished = {"run": RunFinished, "agent": AgentFinished, "chat": ModelFinished, "tool": ToolFinished}[scope]
    [last] = [event for event in scene.events if isinstance(event, finished)]
    answer = {"run": "outcome", "agent": "result", "chat": "reply", "tool": "output"}[scope]
    assert getattr(last, answer) == "completed" if scope == "run" else said(getattr(last, answer)) == "mine"


@every_scope
async def test_m4_nothing_is_spent(scope: str, go: Go) -> None:
    spent = Limits(tool_calls=0) if scope == "tool" else Limits(chat_calls=0)
    scene = Scene(scope, lambda call, go_on: "mine")
    assert await scene.go(go, limits=spent) == "mine"
    scene = Scene(scope, lambda call, go_on: "mine")
    result = await go(scene.app, scene.agent, "hi")
    assert result.usage.requests == (2 if scope == "tool" else None)


async def test_m4_a_chat_layer_that_answers_the_second_turn_costs_one_request(go: Go) -> None:
    """B09: a short-circuit after a tool turn."""
    scene = Scene("tool")
    scene.app.use(chat=lambda call, go_on: go_on() if call.ctx.turn == 1 else "canned")
    result = await go(scene.app, scene.agent, "hi")
    assert (result.text, len(scene.model.calls), scene.ran) == ("canned", 1, 1)


@pytest.mark.parametrize("scope", ["run", "agent", "chat"])
async def test_m4_the_answer_of_a_layer_streams_like_any_other(scope: str) -> None:
    """B09: as deltas and one result."""
    scene = Scene(scope, lambda call, go_on: ANSWERS[scope]("canned"))
    events, result = await collect(scene.app.stream(scene.agent, "hi"))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == result.text == "canned"
    assert {event.turn for event in events if isinstance(event, TextDelta)} == {1}
