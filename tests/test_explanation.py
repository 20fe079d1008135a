"""`app.explain(agent)` is true: what is printed is what happens, in that order (S10, M2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from middlechain import (
    Agent,
    App,
    ConfigurationError,
    Context,
    Event,
    Guardrails,
    Layers,
    Limits,
    ToolUse,
    guardrail,
    observes,
    repeats,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go
from .scenes import Boom

pytestmark = pytest.mark.anyio

SCOPES = ("run", "agent", "chat", "tool")
HOOKS = {
    "agent": ("before_run", "after_run", "after_response"),
    "chat": ("before_prompt",),
    "tool": ("before_tool", "after_tool"),
}


class Probe:
    """A layer, or a hook, that notes when it is entered and when it is left; printed under its name."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def __repr__(self) -> str:
        return self.name

    async def __call__(self, call: Any, next: Any) -> Any:
        self.log.append(self.name)
        answer = await next()
        self.log.append(f"/{self.name}")
        return answer


def hook(name: str, log: list[str]) -> Callable[..., None]:
    def probe(value: Any, ctx: Context) -> None:
        log.append(probe.__qualname__)

    probe.__qualname__ = name
    return probe


def everywhere(owner: str, log: list[str], count: int = 2) -> dict[str, list[Probe]]:
    return {scope: [Probe(f"{owner}-{scope}-{n}", log) for n in range(count)] for scope in SCOPES}


def hooked(owner: str, log: list[str]) -> dict[str, Callable[..., None]]:
    return {name: hook(f"{owner}-{name}", log) for names in HOOKS.values() for name in names}


def probed(log: list[str]) -> tuple[App, Agent]:
    """An app and an agent with a probe wherever there can be one."""

    @tool
    async def work() -> str:
        log.append("work")
        return "x"

    model = ScriptedModel(lambda call: [ToolUse("work", {})] if len(call.messages) < 3 else "done")
    agent = Agent(
        name="probed",
        model=model,
        tools=[work],
        instructions="prompt",
        hooks=[hooked("first", log), hooked("second", log)],
        middleware=[Layers(**everywhere("agent", log))],
    )
    return App(name="shop", agents=[agent]).use(**everywhere("app", log)), agent


def printed(app: App, agent: Any) -> list[str]:
    """The names of probes in the order in which they stand on the page."""
    return re.findall(r"\b(?:first|second|app|agent)-[\w-]+", str(app.explain(agent)))


async def test_explain_is_true_the_order_seen_is_the_order_printed(go: Go) -> None:
    log: list[str] = []
    app, agent = probed(log)
    names = printed(app, agent)
    await go(app, agent, "hi")
    assert set(names) == {name.removeprefix("/") for name in log} - {"work"}
    for scope in SCOPES:
        layers = [name for name in names if f"-{scope}-" in name]
        entered = [name for name in log if f"-{scope}-" in name and not name.startswith("/")]
        left = [name.removeprefix("/") for name in log if f"-{scope}-" in name and name.startswith("/")]
        rounds = len(entered) // len(layers)
        assert entered == layers * rounds
        assert left == layers[::-1] * rounds
        for inward in (name for name in HOOKS.get(scope, ()) if name.startswith("before_")):
            assert once(log, inward) == [name for name in names if name.endswith(f"-{inward}")]
        for outward in (name for name in HOOKS.get(scope, ()) if name.startswith("after_")):
            assert once(log, outward) == [name for name in names if name.endswith(f"-{outward}")][::-1]


def once(log: list[str], name: str) -> list[str]:
    """The probes of a hook in the order in which they were called first."""
    return list(dict.fromkeys(entry for entry in log if entry.endswith(f"-{name}")))


async def test_explain_is_true_of_what_lies_around_what(go: Go) -> None:
    """What stands further up on the page, in a scope or around it, was entered earlier."""
    log: list[str] = []
    app, agent = probed(log)
    names = printed(app, agent)
    await go(app, agent, "hi")
    inward = [name for name in names if not re.search(r"-after_", name)]
    first = {name: log.index(name) for name in inward}
    run_agent = [name for name in inward if "-run-" in name or "-agent-" in name or name.endswith("before_run")]
    for scope in (["before_prompt", "-chat-"], ["before_tool", "-tool-"]):
        path = [*run_agent, *(name for name in inward if any(part in name for part in scope))]
        assert sorted(path, key=first.__getitem__) == path


CRASHES = [
    ("run", "goes to the caller", False),
    ("agent", "goes to on_error", True),
    ("chat", "goes to on_error", True),
    ("tool", "goes to on_error", True),
    *((name, "goes to on_error", True) for names in HOOKS.values() for name in names),
]


@pytest.mark.parametrize(("where", "told", "degrades"), CRASHES, ids=[row[0] for row in CRASHES])
async def test_s10_a_crash_goes_where_it_is_said_to_go(where: str, told: str, degrades: bool, go: Go) -> None:
    def blast(*args: Any) -> None:
        raise Boom

    @tool
    async def work() -> str:
        return "x"

    model = ScriptedModel(lambda call: [ToolUse("work", {})] if len(call.messages) < 3 else "done")
    on_error = {"on_error": lambda error, ctx: "sorry"}
    hooks = [on_error] if where in SCOPES else [on_error, {where: blast}]
    agent = Agent(model=model, tools=[work], hooks=hooks, instructions="prompt")
    app = App().use(**{where: blast}) if where in SCOPES else App()
    [link] = [link for link in app.explain(agent).links if "blast" in link.name]
    assert link.crash == told
    if degrades:
        assert (await go(app, agent, "hi")).text == "sorry"
        assert {
            link.crash for link in app.explain(Agent(model=model, hooks=hooks[1:])).links if link.name == "x"
        } == set()
    else:
        with pytest.raises(Boom):
            await go(app, agent, "hi")


def test_s10_without_on_error_a_crash_goes_to_the_caller() -> None:
    app = App().use(chat=lambda call, next: next())
    [link] = [link for link in app.explain(Agent(model="demo")).links if link.kind == "layer"]
    assert link.crash == "goes to the caller"


class Bundle:
    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def __repr__(self) -> str:
        return f"Bundle(attempts={self.attempts})"

    @observes
    async def chat(self, call: Any, next: Any) -> Any:
        return await next()

    async def tool(self, call: Any, next: Any) -> Any:
        return await next()

    def on_event(self, event: Event) -> None: ...


async def passing(call: Any, next: Any) -> Any:
    return await next()


def test_s10_each_layer_says_whether_it_holds_text_back_and_how_much() -> None:
    app = App().use(run=passing, agent=passing, chat=[passing, observes(partial(passing))], tool=passing)
    app.use(chat=observes(repeats(partial(passing))))
    keep = {"after_response": lambda text, ctx: None, "after_run": observes(lambda result, ctx: None)}
    links = app.explain(Agent(model="demo", hooks=[keep])).links
    assert [(link.scope, link.kind, link.holds) for link in links if "holds" in link.remarks] == [
        ("run", "layer", "all text of the run"),
        ("agent", "layer", "all text of the step"),
        ("agent", "after_run", ""),
        ("agent", "after_response", "the whole answer"),
        ("chat", "layer", "the whole reply"),
        ("chat", "layer", ""),
        ("chat", "layer", "the whole reply"),
        ("tool", "layer", ""),
    ]


EXPECTED = """\
support in 'shop', outermost first
└─ run, once per run
   ├─ observer Bundle(attempts=3) (app)                a crash is logged and dropped
   └─ agent, once per step
      ├─ on_error Support.on_error (agent)             a crash goes to the caller, caused by the first one
      ├─ chat, once per turn
      │  ├─ layer Bundle(attempts=3) (app)             holds nothing; a crash goes to on_error
      │  ├─ layer passing, only=['support', refund] (app)  holds the whole reply; a crash goes to on_error
      │  ├─ limits chat_calls=5, turns=10, cost=0.5
      │  └─ model 'demo'                               a crash goes to on_error
      └─ tool, once per tool call
         ├─ layer Bundle(attempts=3) (app)             holds nothing; a crash goes to on_error
         ├─ layer passing (agent)                      holds nothing; a crash goes to on_error
         ├─ limits tool_calls=2
         ├─ validation of the arguments
         └─ tools refund                               a crash is an error result for the model"""


class Support(Agent):
    name = "support"

    def on_error(self, error: Exception, ctx: Context) -> None:
        return None


@tool
def refund(amount: int) -> str:
    return f"{amount} refunded"


def test_s10_the_page_shows_repr_scope_only_and_owner() -> None:
    agent = Support(tools=[refund], middleware=[Layers(tool=passing)], limits=Limits(tool_calls=2, cost=0.5))
    app = App(name="shop", model="demo", limits=Limits(chat_calls=5), agents=[agent])
    app.use(Bundle(3)).use(chat=passing, only=["support", refund]).use(chat=passing, only="somebody else")
    lines = [re.sub(r"  +", "  ", line) for line in str(app.explain("support")).splitlines()]
    assert lines == [re.sub(r"  +", "  ", line) for line in EXPECTED.splitlines()]


def test_an_agent_that_owns_its_step_shows_its_run_and_no_hooks() -> None:
    class Own(Agent):
        tools = (refund,)

        async def run(self, input: Any, ctx: Context) -> str:
            return "x"

        def on_error(self, error: Exception, ctx: Context) -> str:
            return "sorry"

    links = App().explain(Own).links
    assert [(link.kind, link.name) for link in links] == [
        ("run", f"{Own.__qualname__}.run"),
        ("limits", "turns=10"),
        ("model", "none: give the agent or the app one"),
        ("limits", "none"),
        ("validation", "of the arguments"),
        ("tools", "refund"),
    ]
    assert links[0].crash == "goes to the caller"


def names(items: list[Any]) -> Iterator[str]:
    app = App().use(chat=items)
    yield from (link.name for link in app.explain(Agent(model="demo")).links if link.kind == "layer")


def test_a_layer_is_named_as_it_was_written() -> None:
    class Silent:
        async def __call__(self, call: Any, next: Any) -> Any:
            return await next()

    class Multi(Silent):
        def __repr__(self) -> str:
            return "Multi(\n    x,\n)"

    noted: list[Any] = []
    assert list(names([passing, partial(passing), Silent(), Multi(), noted.append])) == [
        "passing",
        "passing",
        f"{Silent.__qualname__}",
        "Multi( x, )",
        "list.append",
    ]


def test_a_model_object_is_shown_by_its_name() -> None:
    [model] = [
        link.name for link in App(model=ScriptedModel([], name="m1")).explain(Agent()).links if link.kind == "model"
    ]
    assert model == "'m1'"


def test_explain_runs_nothing_and_refuses_what_is_no_agent() -> None:
    log: list[str] = []
    app, agent = probed(log)
    app.explain(agent)
    assert log == []
    with pytest.raises(ConfigurationError, match=r"has no agent 'nobody'"):
        app.explain("nobody")
    with pytest.raises(ConfigurationError, match=r"give an agent, an agent class, or the name of one"):
        app.explain(7)  # type: ignore[arg-type]


async def test_what_is_registered_later_is_shown_from_then_on(go: Go) -> None:
    app, agent = probed([])
    before = len(app.explain(agent).links)
    app.use(chat=passing)
    assert len(app.explain(agent).links) == before + 1


def test_s10_each_guard_says_how_much_it_holds_back_and_what_a_crash_of_it_counts_as() -> None:
    def judge(text: str, ctx: Context) -> None:
        return None

    class Scanning:
        name = "scanning"

        def judge(self, text: str, ctx: Context) -> None:
            return None

        def scan(self, ctx: Context) -> None:
            return None

    class Packed(Agent):
        pack_guards = Guardrails(input=[guardrail("p-in")(judge)], output=[guardrail("p-out", hold=3)(judge)])

    agent = Packed(model="demo", guardrails={"output": [guardrail("last", when="final")(judge), Scanning()]})
    app = App().guard(
        input=[guardrail("a-in", on_failure="allow")(judge)],
        output=[judge, guardrail("by-sentence", hold="sentence")(judge), guardrail("watching", mode="observe")(judge)],
    )
    links = [link for link in app.explain(agent).links if "guard" in link.kind]
    assert [(link.scope, link.kind, link.name, link.owner, link.remarks) for link in links] == [
        ("agent", "input guard", "p-in", "pack", "a crash counts as a deny"),
        ("agent", "input guard", "a-in", "app", "a crash is recorded, and the text passes"),
        ("agent", "output guard", "last", "agent", "holds the whole answer; a crash counts as a deny"),
        ("chat", "output guard", "p-out", "pack", "holds the last 3 characters; a crash counts as a deny"),
        ("chat", "output guard", "judge", "app", "holds the whole reply; a crash counts as a deny"),
        ("chat", "output guard", "by-sentence", "app", "holds the last sentence; a crash counts as a deny"),
        ("chat", "output guard", "watching", "app", "holds nothing; a crash counts as a deny"),
        ("chat", "output guard", "scanning", "agent", "holds what its scan does not let go; a crash counts as a deny"),
    ]
