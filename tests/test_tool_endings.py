"""How tools end (T4): their own exceptions are results; interrupts, limits and denials never are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.from_thread
import pytest

from middlechain import (
    Agent,
    App,
    Context,
    FatalToolError,
    GuardrailDenied,
    LimitExceeded,
    Limits,
    Next,
    ToolCall,
    ToolError,
    ToolMessage,
    ToolOutput,
    ToolUse,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go

pytestmark = pytest.mark.anyio


def raising(style: str, error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """A tool function that raises."""

    def sync() -> str:
        raise error

    async def on_loop() -> str:
        raise error

    def generator() -> Iterator[str]:
        yield "a"
        raise error

    async def async_generator() -> AsyncIterator[str]:
        yield "a"
        raise error

    return {"sync": sync, "async": on_loop, "generator": generator, "async generator": async_generator}[style]


STYLES = ["sync", "async", "generator", "async generator"]


class Lab:
    """An agent whose first reply calls these tools, and which never answers for an interrupt by mistake."""

    def __init__(
        self, *functions: Any, calls: list[str] | None = None, replies: Any = None, answer: str | None = "sorry"
    ) -> None:
        self.tools = [f if hasattr(f, "schema") else tool(f) for f in functions]
        names = [t.name for t in self.tools] if calls is None else calls
        uses = [ToolUse(name, {}, f"c{n}") for n, name in enumerate(names)]
        self.model = ScriptedModel([uses, "done"] if replies is None else replies)
        self.errors: list[Exception] = []
        self.outputs: list[ToolOutput] = []
        self.unwound: list[str] = []

        async def careless(call: Any, next: Any) -> Any:
            try:
                return await next()
            except Exception:
                self.unwound.append("caught")
                raise
            finally:
                self.unwound.append(type(call).__name__)

        async def look(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> None:
            self.outputs.append(await next())

        def on_error(error: Exception, ctx: Context) -> str | None:
            self.errors.append(error)
            return answer

        self.app = App().use(run=careless, agent=careless, chat=careless, tool=[careless, look])
        self.agent = Agent(name="a", model=self.model, tools=self.tools, hooks=[{"on_error": on_error}])

    @property
    def results(self) -> list[ToolMessage]:
        return [m for m in self.model.calls[-1].messages if isinstance(m, ToolMessage)]


# T4


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ValueError("password=1234"), "ValueError: the tool 'bad' failed."),
        ({"expose_errors": True}, ValueError("no such row"), "ValueError: no such row"),
        ({}, ToolError("no such row"), "no such row"),
        ({"expose_errors": True}, ToolError("no such row"), "no such row"),
        ({}, ToolError("lone \ud800"), "lone \ufffd"),
        ({}, OSError(13, "/etc/shadow"), "PermissionError: the tool 'bad' failed."),
        ({}, ExceptionGroup("many", [ValueError("password=1234")]), "ExceptionGroup: the tool 'bad' failed."),
        ({}, StopIteration("x"), "StopIteration: the tool 'bad' failed."),
    ],
    ids=["kept shut", "opened", "for the model", "both", "surrogate", "path", "group", "StopIteration"],
)
async def test_t4_a_tools_own_exception_is_that_calls_result_and_the_run_goes_on(
    go: Go, style: str, options: dict[str, Any], error: Exception, text: str
) -> None:
    lab = Lab(tool(name="bad", **options)(raising(style, error)))
    result = await go(lab.app, lab.agent, "hi")
    assert (result.text, result.degraded, lab.errors) == ("done", False, [])
    assert [(m.text, m.is_error) for m in lab.results] == [(text, True)]
    (output,) = lab.outputs
    assert (output.content, output.is_error, output.error) == (text, True, error), "layers see the exception itself"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", [StopAsyncIteration, RuntimeError, TimeoutError, AssertionError, RecursionError])
async def test_t4_any_other_exception_is_a_result_like_any_other(go: Go, style: str, kind: type[Exception]) -> None:
    lab = Lab(tool(name="bad")(raising(style, kind("secret"))))
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert [(m.is_error, "secret" in m.text, "'bad'" in m.text) for m in lab.results] == [(True, False, True)]


@pytest.mark.parametrize("base", [ValueError, ToolError])
async def test_t4_an_exception_that_cannot_say_what_it_is_is_a_result_too(go: Go, base: type[Exception]) -> None:
    class Mute(base):  # type: ignore[misc, valid-type]  # its base is a parameter
        def __str__(self) -> str:
            raise RuntimeError("no words")

    lab = Lab(tool(name="bad", expose_errors=True)(raising("async", Mute())))
    text = (await go(lab.app, lab.agent, "hi")).text  # by itself: pytest would ask the exception for its words
    assert text == "done"
    assert [m.is_error for m in lab.results] == [True]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("answer", ["sorry", None])
async def test_t4_a_fatal_tool_error_ends_the_step_and_on_error_gets_it(go: Go, style: str, answer: str | None) -> None:
    error = FatalToolError("no way on")
    error.__cause__ = KeyError("why")
    lab = Lab(raising(style, error), answer=answer)
    if answer is None:
        with pytest.raises(FatalToolError) as caught:
            await go(lab.app, lab.agent, "hi")
        assert caught.value is error
    else:
        assert (await go(lab.app, lab.agent, "hi")).error is error
    assert lab.errors == [error]
    assert isinstance(error.__cause__, KeyError)
    assert len(lab.model.calls) == 1


@pytest.mark.parametrize("kind", ["limit", "denial"])
async def test_t4_limits_and_denials_in_a_tool_are_never_its_result(go: Go, kind: str) -> None:
    async def deny(call: Any, next: Any) -> Any:
        raise GuardrailDenied("policy", "input", "no")

    child = Agent(name="child", model=ScriptedModel(["never"]), limits=Limits(turns=0))

    async def consult(ctx: Context) -> str:
        return (await ctx.run(child, "well?")).text

    lab = Lab(consult, answer=None)
    if kind == "denial":
        lab.app.use(agent=deny, only=child)
    with pytest.raises((LimitExceeded, GuardrailDenied)) as caught:
        await go(lab.app, lab.agent, "hi")
    assert type(caught.value) is (LimitExceeded if kind == "limit" else GuardrailDenied)
    assert lab.errors == [caught.value]
    assert lab.outputs == []


# B28


@pytest.mark.parametrize("answer", ["sorry", None])
async def test_m6_the_error_of_one_call_comes_out_as_itself_and_never_in_a_group(go: Go, answer: str | None) -> None:
    """B28: with another tool running beside it, and with the traceback down to the user's line."""
    error = ValueError("x")
    started = anyio.Event()

    async def sleeper() -> None:
        started.set()
        await anyio.sleep_forever()

    async def quick() -> None: ...

    async def before_tool(call: ToolCall, ctx: Context) -> None:
        if call.name == "quick":
            await started.wait()
            raise error

    lab = Lab(sleeper, quick, answer=answer)
    lab.agent.hooks = [*lab.agent.hooks, {"before_tool": before_tool}]
    if answer is None:
        with pytest.raises(ValueError, match=r"^x$") as caught:
            await go(lab.app, lab.agent, "hi")
        assert caught.value is error
        assert caught.traceback[-1].name == "before_tool"
    else:
        await go(lab.app, lab.agent, "hi")
    assert lab.errors == [error]
    assert error.__cause__ is None


async def test_m6_of_two_hooks_that_fail_at_once_one_is_raised_and_the_other_is_a_note_on_it(go: Go) -> None:
    """B28."""
    errors = {"c0": ValueError("zero"), "c1": KeyError("one")}
    arrived: list[str] = []
    both = anyio.Event()

    async def first() -> None: ...

    async def before_tool(call: ToolCall, ctx: Context) -> None:
        arrived.append(call.id)
        if len(arrived) == 2:
            both.set()
        with anyio.CancelScope(shield=True):
            await both.wait()
        raise errors[call.id]

    lab = Lab(first, calls=["first", "first"], answer=None)
    lab.agent.hooks = [*lab.agent.hooks, {"before_tool": before_tool}]
    with pytest.raises((ValueError, KeyError)) as caught:
        await go(lab.app, lab.agent, "hi")
    assert caught.value in errors.values()
    (other,) = [error for error in errors.values() if error is not caught.value]
    assert [type(other).__name__ in note for note in caught.value.__notes__] == [True]


async def test_m6_the_models_error_comes_out_of_a_stream_as_itself(go: Go) -> None:
    """B28."""
    error = ConnectionError("down")
    agent = Agent(model=ScriptedModel([["par", error]]))
    with pytest.raises(ConnectionError) as caught:
        await go(App(), agent, "hi")
    assert caught.value is error
