"""`on_error` (H7): which exceptions it gets, what it makes of them, and what it can never hide."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatCall,
    Context,
    FatalToolError,
    GuardrailDenied,
    LimitExceeded,
    Limits,
    Message,
    Result,
    RunFinished,
    ToolMessage,
    ToolUse,
    User,
    WrongReturn,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go

pytestmark = pytest.mark.anyio


class Boom(Exception):
    """Raised somewhere in a step."""


@tool
async def add(a: int = 0, b: int = 0) -> int:
    return a + b


@tool
async def fatal() -> str:
    raise FatalToolError("no way on") from Boom("because")


class Catch:
    """An `on_error` that notes what it gets, and answers with what it was given."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.got: list[Exception] = []

    async def on_error(self, error: Exception, ctx: Context) -> Any:
        self.got.append(error)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def failing(place: str, error: BaseException) -> tuple[App, Agent, ScriptedModel]:
    """An app and an agent that fail in one place with this very error."""

    async def layer(call: Any, next: Any) -> Any:
        raise error

    def hook(given: Any, ctx: Any) -> Any:
        raise error

    app = App()
    if place.endswith("layer"):
        app.use(**{place.removesuffix(" layer"): layer})
    model = ScriptedModel([error] if place == "model" else [[ToolUse("add", {}, "c1")], "done"])
    hooks = [] if place == "model" or place.endswith("layer") else [{place: hook}]
    return app, Agent(name="a", model=model, tools=[add, fatal], hooks=hooks, instructions="P"), model


def shape(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


HOOKS = ["before_run", "before_prompt", "before_tool", "after_tool", "after_response", "after_run"]
PLACES = ["model", "agent layer", "chat layer", "tool layer", *HOOKS]


def caught_by(agent: Agent, catch: Catch) -> Agent:
    agent.hooks = [*agent.hooks, catch]
    return agent


@pytest.mark.parametrize("place", PLACES)
async def test_h7_on_error_gets_the_very_exception_wherever_in_the_step_it_was_raised(go: Go, place: str) -> None:
    error = Boom("x")
    app, agent, _ = failing(place, error)
    catch = Catch("sorry")
    result = await go(app, caught_by(agent, catch), "hi")
    assert catch.got == [error]
    assert (result.text, result.output, result.degraded, result.finish_reason) == ("sorry", "sorry", True, "degraded")
    assert result.error is error
    assert result.message == Assistant("sorry", finish_reason="degraded")


@pytest.mark.parametrize("place", PLACES)
async def test_h7_none_lets_the_original_go_on_unchanged(go: Go, place: str) -> None:
    """B30 a: the same object, never wrapped, with the traceback of the line that raised it."""
    error = Boom("x")
    app, agent, _ = failing(place, error)
    catch = Catch(None)
    with pytest.raises(Boom) as caught:
        await go(app, caught_by(agent, catch), "hi")
    assert caught.value is error
    assert catch.got == [error]
    assert (error.__cause__, error.__context__, getattr(error, "__notes__", [])) == (None, None, [])
    assert caught.traceback[-1].name in {"layer", "hook", "_play"}


async def test_h7_an_error_of_a_run_layer_is_not_the_steps(go: Go) -> None:
    error = Boom("x")
    app, agent, _ = failing("run layer", error)
    catch = Catch("sorry")
    with pytest.raises(Boom) as caught:
        await go(app, caught_by(agent, catch), "hi")
    assert caught.value is error
    assert catch.got == []


async def test_h7_limits_are_its_business_too(go: Go) -> None:
    catch = Catch("enough")
    agent = Agent(model=ScriptedModel(["never"]), hooks=[catch], limits=Limits(turns=0))
    result = await go(App(), agent, "hi")
    assert isinstance(result.error, LimitExceeded)
    assert (result.text, result.degraded, result.blocked, catch.got) == ("enough", True, False, [result.error])


async def test_h7_for_a_denial_blocked_stays_set(go: Go) -> None:
    denial = GuardrailDenied("policy", "output", "not that")
    app, agent, _ = failing("chat layer", denial)
    result = await go(app, caught_by(agent, Catch("let us talk of something else")), "hi")
    assert (result.error, result.degraded, result.blocked, result.blocked_by) == (denial, True, True, "policy")


async def test_h7_for_any_other_error_blocked_is_not_set(go: Go) -> None:
    app, agent, _ = failing("chat layer", Boom("x"))
    result = await go(app, caught_by(agent, Catch("sorry")), "hi")
    assert (result.blocked, result.blocked_by) == (False, None)


async def test_h7_a_fatal_tool_error_arrives_with_its_cause(go: Go) -> None:
    catch = Catch("sorry")
    agent = Agent(model=ScriptedModel([[ToolUse("fatal")], "never"]), tools=[fatal], hooks=[catch])
    await go(App(), agent, "hi")
    (error,) = catch.got
    assert isinstance(error, FatalToolError)
    assert isinstance(error.__cause__, Boom)


async def test_h7_history_keeps_the_turns_whose_tools_ran_and_then_the_degraded_answer(go: Go) -> None:
    model = ScriptedModel([["one", ToolUse("add", {"a": 1}, "c1")], ["half an ans", Boom("x")]])
    agent = Agent(model=model, tools=[add], hooks=[Catch("sorry")])
    result = await go(App(), agent, "hi")
    assert shape(result.messages) == [("user", "hi"), ("assistant", "one"), ("tool", "1"), ("assistant", "sorry")]


async def test_h7_history_keeps_nothing_of_a_turn_whose_tools_did_not_run(go: Go) -> None:
    app, agent, _ = failing("before_tool", Boom("x"))
    result = await go(app, caught_by(agent, Catch("sorry")), "hi")
    assert result.messages == (User("hi"), Assistant("sorry", finish_reason="degraded"))


async def test_h7_a_degraded_history_can_be_sent_again(go: Go) -> None:
    app, agent, _ = failing("after_tool", Boom("x"))
    result = await go(app, caught_by(agent, Catch("sorry")), "hi")
    after = ScriptedModel(["fine"])
    await go(App(model=after), Agent(), "again", history=result.messages)
    calls = [use.id for m in after.calls[0].messages if isinstance(m, Assistant) for use in m.tool_calls]
    results = [m.tool_call_id for m in after.calls[0].messages if isinstance(m, ToolMessage)]
    assert calls == results == ["c1"]


async def test_h7_with_several_hook_objects_the_first_value_wins(go: Go) -> None:
    app, agent, _ = failing("model", Boom("x"))
    outer, middle, inner = Catch("never asked"), Catch(""), Catch(None)
    agent.hooks = [outer, middle, inner]
    result = await go(app, agent, "hi")
    assert (result.text, result.degraded) == ("", True), "an empty text is a value"
    assert [len(catch.got) for catch in (outer, middle, inner)] == [0, 1, 1]


async def test_h7_an_on_error_that_raises_goes_on_with_the_original_as_its_cause(go: Go) -> None:
    """B30 b: and is not asked again about its own exception."""
    first, second = Boom("first"), KeyError("second")
    app, agent, _ = failing("model", first)
    other, catch = Catch("never asked"), Catch(second)
    agent.hooks = [other, catch]
    with pytest.raises(KeyError) as caught:
        await go(app, agent, "hi")
    assert caught.value is second
    assert second.__cause__ is first
    assert (catch.got, other.got) == ([first], [])


async def test_h7_an_on_error_that_raises_the_original_again_changes_nothing(go: Go) -> None:
    error = Boom("x")
    app, agent, _ = failing("model", error)
    with pytest.raises(Boom) as caught:
        await go(app, caught_by(agent, Catch(error)), "hi")
    assert caught.value is error
    assert error.__cause__ is None


async def test_h7_a_wrong_value_from_on_error_tells_of_the_original_as_its_cause(go: Go) -> None:
    error = Boom("x")
    app, agent, _ = failing("model", error)
    with pytest.raises(WrongReturn, match="on_error") as caught:
        await go(app, caught_by(agent, Catch(42)), "hi")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("place", ["model", "after_run"])
async def test_h7_after_run_never_follows_on_error(go: Go, place: str) -> None:
    asked: list[Result] = []

    def after_run(result: Result, ctx: Context) -> str | None:
        asked.append(result)
        return "changed"

    app, agent, _ = failing(place, Boom("x"))
    agent.hooks = [*agent.hooks, {"after_run": after_run}]
    result = await go(app, caught_by(agent, Catch("sorry")), "hi")
    assert result.text == "sorry"
    assert len(asked) == (place == "after_run"), "what ran before the failure has run"


async def test_h7_after_run_follows_a_step_that_did_not_fail(go: Go) -> None:
    agent = Agent(model=ScriptedModel(["fine"]), hooks=[{"after_run": lambda result, ctx: "changed"}, Catch("sorry")])
    result = await go(App(), agent, "hi")
    assert (result.text, result.degraded, result.error) == ("changed", False, None)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("place", PLACES)
async def test_h7_interrupts_never_reach_on_error(go: Go, place: str, interrupt: type[BaseException]) -> None:
    """B27: they leave the run as themselves, and no request follows."""
    error = interrupt("now")
    app, agent, model = failing(place, error)
    catch = Catch("sorry")
    with pytest.raises(interrupt) as caught:
        await go(app, caught_by(agent, catch), "hi")
    assert caught.value is error
    assert catch.got == []
    assert len(model.calls) <= (2 if place in {"after_response", "after_run"} else 1)
    assert not any("now" in message.text for call in model.calls for message in call.messages)


@pytest.mark.parametrize("case", ["returns None", "raises", "is cancelled", "answers"])
async def test_h7_context_variables_are_as_before_whatever_on_error_does(go: Go, case: str) -> None:
    """B30: in all four cases."""
    var: ContextVar[str] = ContextVar("var", default="outside")
    scope = anyio.CancelScope()

    def model(call: ChatCall) -> str:
        var.set("inside")
        raise Boom("x")

    class Mend:
        async def on_error(self, error: Exception, ctx: Context) -> str | None:
            assert var.get() == "inside"
            if case == "raises":
                raise KeyError("second")
            if case == "is cancelled":
                scope.cancel()
                await anyio.sleep_forever()
            return "degraded" if case == "answers" else None

    results: list[Result] = []
    expected = {"returns None": Boom, "raises": KeyError}.get(case)
    agent = Agent(model=ScriptedModel(model), hooks=[Mend()])
    with scope:
        if expected is None:
            results.append(await go(App(), agent, "hi"))
        else:
            with pytest.raises(expected):
                await go(App(), agent, "hi")
    assert var.get() == "outside"
    assert scope.cancelled_caught is (case == "is cancelled")
    assert [isinstance(result.error, Boom) for result in results] == ([True] if case == "answers" else [])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_h7_what_on_error_awaits_may_be_cancelled_and_that_goes_on_as_itself(go: Go, anyio_backend: str) -> None:
    """B30 c: a future that somebody else cancelled."""

    class Mend:
        async def on_error(self, error: Exception, ctx: Context) -> str:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
            return "never"

    agent = Agent(model=ScriptedModel([Boom("x")]), hooks=[Mend()])
    with pytest.raises(asyncio.CancelledError):
        await go(App(), agent, "hi")


@pytest.mark.parametrize(
    ("answer", "outcome"), [("sorry", "completed"), (None, "failed")], ids=["answered", "not answered"]
)
async def test_h7_an_answered_failure_completes_the_run(answer: str | None, outcome: str) -> None:
    outcomes: list[Any] = []
    app, agent, _ = failing("model", Boom("x"))
    app.observe(lambda event: outcomes.append(event.outcome) if isinstance(event, RunFinished) else None)
    try:
        await collect(app.stream(caught_by(agent, Catch(answer)), "hi"))
    except Boom:
        assert answer is None
    assert outcomes == [outcome]
