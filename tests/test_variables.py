"""Context variables: one run's are its own, and every tool call works on a copy of them (M8)."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any

import anyio
import pytest

from middlechain import Agent, App, ChatCall, Context, TextDelta, ToolCall, ToolUse, tool
from middlechain.testing import ScriptedModel, collect

from .conftest import Go

pytestmark = pytest.mark.anyio

VAR: ContextVar[str] = ContextVar("VAR", default="unset")


def add(word: str) -> str:
    """What was there, which is then followed by `word`."""
    before = VAR.get()
    VAR.set(f"{before} {word}")
    return before


def adder(word: str) -> Any:
    """A layer that adds to the variable before and after `next()`."""

    async def layer(call: Any, next: Any) -> None:
        add(word)
        await next()
        add(f"/{word}")

    return layer


def hook(word: str) -> Any:
    async def call(value: Any, ctx: Context) -> None:
        add(word)

    return call


HOOKS = {name: hook(name) for name in ("before_run", "before_prompt", "after_response", "after_run")}


async def test_m8_layers_and_hooks_share_the_runs_variables_also_across_next(go: Go) -> None:
    seen: list[str] = []

    async def look(call: Any, next: Any) -> None:
        await next()
        seen.append(VAR.get())

    VAR.set("caller")
    app = App().use(run=[look, adder("run")], agent=adder("agent"), chat=adder("chat"))
    await go(app, Agent(model=ScriptedModel([lambda call: add("model")]), hooks=[HOOKS]), "q")
    assert seen == [
        "caller run agent before_run before_prompt chat model /chat after_response after_run /agent /run",
    ]
    assert VAR.get() == "caller"  # after the run the caller's context is as before


@pytest.mark.parametrize("scope", ["run", "agent", "chat", "tool"])
async def test_m8_a_token_taken_before_next_is_good_after_it(go: Go, scope: str) -> None:
    async def bind(call: Any, next: Any) -> None:
        token: Token[str] = VAR.set("bound")
        try:
            await next()
        finally:
            VAR.reset(token)

    @tool
    async def look() -> str:
        return VAR.get()

    model = ScriptedModel([["a", ToolUse("look")], ["b", "c"]])
    result = await go(App().use(**{scope: bind}), Agent(model=model, tools=[look]), "q")
    assert result.messages[2].text == ("unset" if scope == "chat" else "bound")


async def test_m8_a_run_starts_from_the_callers_variables(go: Go) -> None:
    VAR.set("caller")
    model = ScriptedModel(lambda call: VAR.get())
    assert (await go(App(), Agent(model=model), "q")).text == "caller"
    VAR.set("later")
    assert (await go(App(), Agent(model=model), "q")).text == "later"


async def test_m8_a_stream_takes_its_copy_when_the_run_starts() -> None:
    VAR.set("made")
    begun, gate = anyio.Event(), anyio.Event()

    async def answer(call: ChatCall) -> str:
        begun.set()
        await gate.wait()
        return VAR.get()

    stream = App().stream(Agent(model=ScriptedModel([answer])), "q")
    VAR.set("started")
    async with stream:
        await begun.wait()
        VAR.set("after")  # too late for this run
        gate.set()
        [event async for event in stream]
        assert stream.result.text == "started"
        assert VAR.get() == "after"
    assert VAR.get() == "after"


async def test_m8_what_a_stream_sets_does_not_reach_its_reader() -> None:
    VAR.set("reader")
    app = App().use(run=adder("run"), chat=adder("chat"))
    async with app.stream(Agent(model=ScriptedModel([["a", "b"]]), hooks=[HOOKS]), "q") as stream:
        async for event in stream:
            assert VAR.get() == "reader"
            if isinstance(event, TextDelta):
                VAR.set("reader")
    assert VAR.get() == "reader"


async def test_m8_a_failed_run_leaves_the_callers_variables_too(go: Go) -> None:
    VAR.set("caller")
    with pytest.raises(ValueError, match="out"):
        await go(App().use(run=adder("run")), Agent(model=ScriptedModel([ValueError("out")]), hooks=[HOOKS]), "q")
    assert VAR.get() == "caller"


async def test_m8_one_run_does_not_see_what_another_set(go: Go) -> None:
    both, seen = anyio.Event(), list[str]()

    async def meet(call: Any, next: Any) -> None:
        VAR.set(call.input)
        seen.append(call.input)
        if len(seen) == 2:
            both.set()
        await both.wait()
        await next()
        assert VAR.get() == call.input

    app, agent = App().use(run=meet), Agent(model=ScriptedModel(lambda call: VAR.get()))
    said: list[tuple[str, str]] = []

    async def one(input: str) -> None:
        said.append((input, (await go(app, agent, input)).text))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, "a")
        tasks.start_soon(one, "b")
    assert sorted(said) == [("a", "a"), ("b", "b")]


async def test_m8_nested_steps_share_the_runs_variables(go: Go) -> None:
    async def nested(input: Any, ctx: Context) -> None:
        add("parent")
        result = await ctx.run(Agent(model=ScriptedModel([lambda call: VAR.get()]), hooks=[HOOKS]), "sub")
        assert result.text == "unset parent before_run before_prompt"
        assert VAR.get() == "unset parent before_run before_prompt after_response after_run"

    await go(App(), Agent(model=ScriptedModel(["done"]), hooks=[{"before_run": nested}]), "q")


# Tool calls


async def test_m8_a_tool_call_works_on_a_copy_its_layers_and_hooks_included(go: Go) -> None:
    seen: list[str] = []

    @tool
    async def work() -> str:
        return add("tool")

    async def look(call: ToolCall, next: Any) -> None:
        await next()
        seen.append(VAR.get())

    def after_tool(result: Any, ctx: Context) -> None:
        seen.append(VAR.get())

    async def before_run(input: Any, ctx: Context) -> None:
        add("run")

    model = ScriptedModel([[ToolUse("work")], lambda call: VAR.get()])
    hooks = [{"before_run": before_run, "before_tool": hook("before_tool"), "after_tool": after_tool}]
    app = App().use(tool=[look, adder("layer")])
    result = await go(app, Agent(model=model, tools=[work], hooks=hooks), "q")
    whole = "unset run before_tool layer tool /layer"
    assert seen == [whole, whole]
    assert result.messages[2].text == "unset run before_tool layer"
    assert result.text == "unset run"  # nothing of it came back into the run


async def test_m8_tool_calls_of_one_reply_do_not_see_each_others(go: Go) -> None:
    both, here = anyio.Event(), list[str]()

    @tool
    async def work(name: str) -> str:
        add(name)
        here.append(name)
        if len(here) == 2:
            both.set()
        await both.wait()
        return VAR.get()

    uses = [ToolUse("work", {"name": name}) for name in "ab"]
    model = ScriptedModel([uses, lambda call: VAR.get()])
    result = await go(App().use(tool=adder("layer")), Agent(model=model, tools=[work]), "q")
    assert [message.text for message in result.messages[2:4]] == ["unset layer a", "unset layer b"]
    assert result.text == "unset"


async def test_m8_one_tool_call_after_the_other_starts_from_the_runs_again(go: Go) -> None:
    @tool
    async def work() -> str:
        return add("tool")

    model = ScriptedModel([[ToolUse("work")], [ToolUse("work")], "done"])
    result = await go(App(), Agent(model=model, tools=[work], hooks=[{"before_prompt": hook("turn")}]), "q")
    texts = [message.text for message in result.messages if message.role == "tool"]
    assert texts == ["unset turn", "unset turn turn"]


async def test_m8_a_sync_tool_reads_them_in_its_thread(go: Go) -> None:
    @tool
    def work() -> str:
        return VAR.get()

    model = ScriptedModel([[ToolUse("work")], "done"])
    app = App().use(tool=adder("layer"), agent=adder("agent"))
    result = await go(app, Agent(model=model, tools=[work]), "q")
    assert result.messages[2].text == "unset agent layer"


async def test_m8_generators_that_a_tool_returns_run_on_its_copy(go: Go) -> None:
    @tool
    async def work() -> Any:
        for word in ("a", "b"):
            yield add(word)

    model = ScriptedModel([[ToolUse("work")], lambda call: VAR.get()])
    result = await go(App(), Agent(model=model, tools=[work]), "q")
    assert (result.messages[2].text, result.text) == ("unsetunset a", "unset")


async def test_m8_a_step_that_a_tool_runs_works_on_the_tools_copy(go: Go) -> None:
    child = Agent(name="child", model=ScriptedModel([lambda call: VAR.get()]), hooks=[HOOKS])

    @tool
    async def delegate(ctx: Context) -> str:
        add("tool")
        said = (await ctx.run(child, "sub")).text
        assert VAR.get().startswith(said)
        return said

    model = ScriptedModel([[ToolUse("delegate")], lambda call: VAR.get()])
    result = await go(App(), Agent(model=model, tools=[delegate]), "q")
    assert result.messages[2].text == "unset tool before_run before_prompt"
    assert result.text == "unset"


async def test_m8_ctx_call_tool_works_on_a_copy_too(go: Go) -> None:
    @tool
    async def work() -> str:
        return add("tool")

    async def call(input: Any, ctx: Context) -> None:
        add("hook")
        assert (await ctx.call_tool("work")).content == "unset hook"
        assert VAR.get() == "unset hook"

    model = ScriptedModel([lambda call: VAR.get()])
    assert (await go(App(), Agent(model=model, tools=[work], hooks=[{"before_run": call}]), "q")).text == "unset hook"


async def test_m8_events_reach_a_stream_whatever_the_variables_are() -> None:
    @tool
    async def work(ctx: Context) -> None:
        VAR.set("tool")
        await ctx.emit("here", VAR.get())

    model = ScriptedModel([[ToolUse("work"), ToolUse("work")], "done"])
    events, result = await collect(App().stream(Agent(model=model, tools=[work]), "q"))
    assert [event.data for event in events if event.type == "CustomEvent"] == ["tool", "tool"]  # type: ignore[attr-defined]
    assert result.text == "done"
