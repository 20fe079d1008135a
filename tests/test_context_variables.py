"""Context variables of a run and of its tool calls (M8)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from middlechain import Agent, App, ToolUse, tool
from middlechain.testing import ScriptedModel

from .scenes import SCOPES, Boom, Go, Scene, delegating

pytestmark = pytest.mark.anyio
every_scope = pytest.mark.parametrize("scope", SCOPES)
user: ContextVar[str] = ContextVar("user", default="nobody")


@pytest.fixture(autouse=True)
def _as_before() -> None:
    assert user.get() == "nobody"


def setting(value: str) -> Any:
    async def set_it(call: Any, next: Any) -> Any:
        user.set(value)
        return await next()

    return set_it


def noting(seen: list[str]) -> Any:
    async def note(call: Any, next: Any) -> Any:
        seen.append(user.get())
        return await next()

    return note


@every_scope
async def test_m8_what_one_layer_writes_the_next_one_reads(scope: str, go: Go) -> None:
    seen: list[str] = []
    await Scene(scope, setting("layer"), noting(seen)).go(go)
    assert seen == ["layer"]


@every_scope
async def test_m8_what_was_written_inside_is_read_across_next(scope: str, go: Go) -> None:
    seen: list[str] = []

    async def outer(call: Any, next: Any) -> Any:
        answer = await next()
        seen.append(user.get())
        return answer

    await Scene(scope, outer, setting("inside")).go(go)
    assert seen == ["inside"]


@every_scope
async def test_m8_a_layer_can_reset_what_it_set_before_next(scope: str, go: Go) -> None:
    """A token is only good in the context that made it: a hop to another task would break this."""
    seen: list[str] = []

    async def around(call: Any, next: Any) -> Any:
        token = user.set("inside")
        try:
            return await next()
        finally:
            user.reset(token)

    async def outer(call: Any, next: Any) -> Any:
        answer = await next()
        seen.append(user.get())
        return answer

    scene = Scene(scope, outer, around, noting(seen))
    await scene.go(go)
    assert seen == ["inside", "nobody"]


async def test_m8_layers_and_hooks_of_one_run_share_them_in_every_scope(go: Go) -> None:
    trace: list[str] = []

    def step(name: str) -> None:
        trace.append(user.get())
        user.set(name)

    def layer(name: str) -> Any:
        async def mark(call: Any, next: Any) -> Any:
            step(name)
            answer = await next()
            step(f"{name} after")
            return answer

        return mark

    def hook(name: str) -> Any:
        async def mark(value: Any, ctx: Any) -> None:
            step(name)

        return mark

    names = ("before_run", "before_prompt", "after_response", "after_run")
    agent = Agent(model=ScriptedModel(["x"]), hooks=[{name: hook(name) for name in names}])
    await go(App().use(run=layer("run"), agent=layer("agent"), chat=layer("chat")), agent, "hi")
    assert trace == ["nobody", "run", "agent", "before_run", "before_prompt", "chat", "chat after", "after_response",
                     "after_run", "agent after"]  # fmt: skip


async def test_m8_a_run_starts_from_the_callers_variables(go: Go) -> None:
    seen: list[str] = []
    token = user.set("caller")
    await Scene("run", noting(seen)).go(go)
    user.reset(token)
    assert seen == ["caller"]


async def test_m8_the_copy_is_taken_when_the_run_starts() -> None:
    seen: list[str] = []
    scene = Scene("run", noting(seen), noting(seen))
    stream = scene.app.stream(scene.agent, "hi")
    token = user.set("at the start")
    async with stream:
        user.set("while it runs")
        async for _ in stream:
            pass
        assert user.get() == "while it runs"
    user.reset(token)
    assert seen == ["at the start"] * 2


@every_scope
@pytest.mark.parametrize("fails", [False, True])
async def test_m8_after_the_run_the_callers_variables_are_as_before(scope: str, fails: bool, go: Go) -> None:
    """B30: also when it failed."""

    async def set_it(call: Any, next: Any) -> Any:
        answer = await next()
        user.set("leaked")
        if fails:
            raise Boom
        return answer

    try:
        await Scene(scope, set_it).go(go)
    except Boom:
        assert fails
    assert user.get() == "nobody"


async def test_m8_runs_at_the_same_time_do_not_see_each_others(go: Go) -> None:
    seen: dict[str, str] = {}

    async def one(name: str) -> None:
        async def layer(call: Any, next: Any) -> Any:
            user.set(name)
            answer = await next()
            seen[name] = user.get()
            return answer

        async def reply(call: Any) -> str:
            await anyio.wait_all_tasks_blocked()
            return "x"

        await go(App().use(chat=layer), Agent(model=ScriptedModel(reply)), "hi")

    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(one, name)
    assert seen == {"a": "a", "b": "b", "c": "c"}


# --- tool calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("threaded", [False, True])
async def test_m8_the_hooks_the_layers_and_the_tool_of_one_call_share_a_copy(
    calls: int, threaded: bool, go: Go
) -> None:
    trace: dict[int, list[str]] = {0: [], 1: []}
    left: list[str] = []

    def step(place: int, name: str) -> None:
        trace[place].append(user.get())
        user.set(f"{name}{place}")

    def before(call: Any, ctx: Any) -> None:
        step(call.args["place"], "before")

    def after(result: Any, ctx: Any) -> None:
        step(result.args["place"], "after")

    async def layer(call: Any, next: Any) -> Any:
        step(call.args["place"], "layer")
        await anyio.lowlevel.checkpoint()
        return await next()

    def in_thread(place: int) -> str:
        trace[place].append(user.get())
        return "x"

    async def on_loop(place: int) -> str:
        trace[place].append(user.get())
        return "x"

    work = tool(name="work")(in_thread if threaded else on_loop)
    uses = [ToolUse("work", {"place": place}) for place in range(calls)]
    hooks = [{"before_tool": before, "after_tool": after, "before_prompt": lambda prompt, ctx: left.append(user.get())}]
    agent = Agent(model=ScriptedModel([uses, "done"]), tools=[work], hooks=hooks)
    app = App().use(tool=layer, run=setting("run"))
    await go(app, agent, "hi")
    for place in range(calls):
        assert trace[place] == ["run", f"before{place}", f"layer{place}", f"layer{place}"]
    assert left == ["run", "run"]


async def test_m8_what_a_tool_call_writes_stays_in_it(go: Go) -> None:
    seen: list[str] = []
    scene = Scene("tool", setting("tool"))
    scene.app.use(chat=noting(seen))
    await scene.go(go)
    assert seen == ["nobody", "nobody"]


@every_scope
async def test_m8_a_nested_step_in_a_tool_works_on_the_tool_calls_copy(scope: str, go: Go) -> None:
    seen: list[str] = []
    inner = Agent(
        name="inner", model=ScriptedModel(["x"]), hooks=[{"before_run": lambda v, ctx: seen.append(user.get())}]
    )
    app = App().use(**{scope: setting(scope)})
    await go(app, delegating(inner), "hi")
    assert seen == [scope if scope != "chat" else "chat"]


async def test_m8_a_nested_step_outside_of_tools_shares_the_runs(go: Go) -> None:
    seen: list[str] = []

    async def delegate(value: Any, ctx: Any) -> None:
        await ctx.run(inner, "sub")
        seen.append(user.get())

    inner = Agent(
        name="inner", model=ScriptedModel(["x"]), hooks=[{"before_run": lambda v, ctx: user.set("inner") and None}]
    )
    await go(App(), Agent(model=ScriptedModel(["x"]), hooks=[{"before_run": delegate}]), "hi")
    assert seen == ["inner"]


async def test_m8_a_run_within_a_run_has_its_own(go: Go) -> None:
    seen: list[str] = []

    async def whole_run(value: Any, ctx: Any) -> None:
        await go(App().use(run=setting("inner")), Agent(model=ScriptedModel(["x"])), "sub")
        seen.append(user.get())

    await go(App(), Agent(model=ScriptedModel(["x"]), hooks=[{"before_run": whole_run}]), "hi")
    assert seen == ["nobody"]
