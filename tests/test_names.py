"""The names of section 1 are there, and everything else is refused by name, with the nearest one and the fix."""

from __future__ import annotations

from typing import Any

import pytest

import middlechain
from middlechain import (
    Agent,
    AgentHooks,
    App,
    ConfigurationError,
    Context,
    Layers,
    Next,
    Settings,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go

HOOKS = ["before_run", "before_prompt", "before_tool", "after_tool", "after_response", "after_run", "on_error"]
SECTION_1 = [
    *("App", "Agent", "AgentHooks", "Layers", "Limits", "Settings", "Context", "Next", "run", "tool", "repeats"),
    *("RunCall", "AgentCall", "ChatCall", "ToolCall", "Result", "ChatReply", "ToolOutput", "ToolResult"),
    *("Usage", "ToolUse", "System", "User", "Assistant", "ToolMessage", "Text", "Image", "Audio", "File"),
    *("TextDelta", "ReasoningDelta", "TextReset", "RunStarted", "AgentStarted", "ModelStarted", "ModelFinished"),
    *("ToolStarted", "ToolFinished", "LimitReached", "CustomEvent", "AgentFinished", "RunFinished"),
    *("MiddlechainError", "ConfigurationError", "ContractError", "NothingReturned", "WrongReturn", "NextCalledAgain"),
    *("NextCalledLate", "GuardrailDenied", "StreamDenied", "LimitExceeded", "ToolError", "FatalToolError"),
    *("OutputError", "ModelError", "RateLimited", "ModelTimeout", "ModelUnavailable", "BadRequest", "IncompleteReply"),
]


@tool
async def ping() -> str:
    return "pong"


async def keep(call: Any, next: Any) -> None:
    await next()


def model(*replies: Any) -> ScriptedModel:
    return ScriptedModel(replies or (lambda call: "done"))


class Counting:
    """A layer for any scope that counts."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, call: Any, next: Any) -> None:
        self.count += 1
        await next()


# What is there


@pytest.mark.parametrize("name", SECTION_1)
def test_every_name_of_section_1_is_importable_from_middlechain(name: str) -> None:
    assert name in middlechain.__all__
    assert getattr(middlechain, name) is not None


def test_the_list_of_names_is_sorted_without_doubles_and_all_of_it_is_there() -> None:
    assert len(set(middlechain.__all__)) == len(middlechain.__all__)
    assert [name for name in middlechain.__all__ if not hasattr(middlechain, name)] == []


def test_messages_has_dump_and_load_and_testing_has_the_kit() -> None:
    from middlechain import messages, testing

    assert callable(messages.dump)
    assert callable(messages.load)
    assert {"ScriptedModel", "collect", "no_requests"} <= set(testing.__all__)


def test_types_take_parameters() -> None:
    assert Context[int] is not None
    assert Next[int, str] is not None
    assert middlechain.Result[int] is not None


def test_settings_has_the_fields_of_the_contract() -> None:
    fields = ["temperature", "top_p", "max_tokens", "stop", "seed", "tool_choice", "parallel_tool_calls", "extra"]
    assert list(Settings.__dataclass_fields__) == fields
    with pytest.raises(TypeError, match="temprature"):
        Settings(temprature=1)  # type: ignore[call-arg]


@pytest.mark.anyio
async def test_run_without_an_app() -> None:
    assert (await middlechain.run(Agent(), "q", model=model("a"))).text == "a"
    with pytest.raises(ConfigurationError, match="no keyword 'colour'"):
        await middlechain.run(Agent(), "q", model=model(), colour="red")  # type: ignore[call-arg]


def test_run_sync_runs_outside_of_a_loop() -> None:
    assert App(model=model("a")).run_sync(Agent(), "q").text == "a"


@pytest.mark.anyio
async def test_run_sync_is_a_clear_error_inside_a_running_loop() -> None:
    with pytest.raises(middlechain.ContractError, match=r"app\.run_sync\(\).*; write: await app\.run\("):
        App(model=model("a")).run_sync(Agent(), "q")


@pytest.mark.anyio
async def test_agent_hooks_is_never_required_and_inheriting_it_adds_no_calls(go: Go) -> None:
    class Typed(AgentHooks):
        def after_response(self, response: str, ctx: Context) -> str:
            return response + "!"

    class Empty(AgentHooks):
        pass

    class Plain:
        def after_response(self, response: str, ctx: Context) -> str:
            return response + "?"

    agent = Agent(model=model("a"), hooks=[Typed(), Empty(), Plain()])
    assert (await go(App(), agent, "q")).text == "a?!"


# What is refused by name


@pytest.mark.parametrize(
    ("given", "near"),
    [("instruction", "instructions"), ("tool", "tools"), ("setings", "settings"), ("model_", "model")],
)
def test_an_unknown_keyword_of_an_agent_is_refused_with_the_nearest_name(given: str, near: str) -> None:
    class Sub(Agent):
        pass

    for cls in (Agent, Sub):
        with pytest.raises(
            ConfigurationError, match=rf"{cls.__name__} has no option '{given}'; did you mean '{near}'\?"
        ):
            cls(**{given: "x"})  # type: ignore[arg-type]  # the keyword is wrong, not its type


def test_a_keyword_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"'zzz'; it has name, model, instructions, tools, hooks, settings"):
        Agent(zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_as_a_keyword_is_refused_with_how_to_write_it(hook: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"not a keyword; write hooks=\[\{{'{hook}': function\}}\]"):
        Agent(**{hook: keep})  # type: ignore[arg-type]  # the keyword is wrong, not its type


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("before_response", "after_response"),
        ("after_tools", "after_tool"),
        ("on_errors", "on_error"),
        ("before_runs", "before_run"),
        ("on_start", "on_error"),
    ],
)
def test_a_public_method_named_like_a_hook_that_is_none_is_refused_with_the_nearest_name(name: str, near: str) -> None:
    def method(self: Any, *given: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=rf"Sub.*'{name}'.*(did you mean|nearest).*'{near}'") as caught:
        type("Sub", (Agent,), {name: method})
    assert all(hook in str(caught.value) for hook in HOOKS)
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        Agent(hooks=[type("Object", (), {name: method, "before_run": method})()])
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        Agent(hooks=[{name: keep}])


def test_private_methods_and_other_names_are_no_hooks() -> None:
    class Sub(Agent):
        def _before_lunch(self) -> None: ...

        def helper(self) -> None: ...

        def online(self) -> None: ...

    Sub()


@pytest.mark.parametrize("bad", [{"before_run": 7}, {}, "before_run", [object()], [{1: keep}]])
def test_hooks_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="hooks of Agent"):
        Agent(hooks=bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Agent(model="opnai:gpt-5"),
        lambda: App(model="opnai:gpt-5"),
        lambda: type("Sub", (Agent,), {"model": "opnai:gpt-5"}),
    ],
)
def test_an_unknown_prefix_of_a_model_is_refused_when_it_is_built(make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'opnai:gpt-5'.*known: demo, openai.*write it as PREFIX:NAME"):
        make()


@pytest.mark.anyio
async def test_an_unknown_prefix_that_a_layer_gives_is_refused_in_the_run(go: Go) -> None:
    async def swap(call: Any, next: Any) -> Any:
        return await next(call.replace(model="opnai:gpt-5"))

    with pytest.raises(ConfigurationError, match=r"'opnai:gpt-5'.*known: demo, openai"):
        await go(App().use(chat=swap), Agent(model=model()), "q")


@pytest.mark.anyio
@pytest.mark.parametrize("given", ["histroy", "zzz"])
async def test_an_unknown_keyword_of_a_run_is_refused_by_name(go: Go, given: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{given}'.*history"):
        await go(App(), Agent(model=model()), "q", **{given: 1})


def test_an_unknown_keyword_of_an_app_or_a_tool_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"'modle'.*model"):
        App(modle="demo")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"'descripton'.*description"):
        tool(descripton="x")(keep)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="shat"):
        App().use(shat=keep)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="shat"):
        Layers(shat=keep)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "make",
    [
        lambda: App(agents=Agent()),  # type: ignore[arg-type]
        lambda: App(limits=3),  # type: ignore[arg-type]
        lambda: Agent(middleware=Layers(chat=keep)),  # type: ignore[arg-type]
        lambda: Agent(tools=ping),  # type: ignore[arg-type]
        lambda: Agent(hooks=AgentHooks()),  # type: ignore[arg-type]
    ],
    ids=["agents", "limits", "middleware", "tools", "hooks"],
)
def test_a_value_of_the_wrong_kind_is_refused_with_the_fix_when_it_is_built(make: Any) -> None:
    with pytest.raises(ConfigurationError, match="; give "):
        make()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "option",
    [{"limits": 3}, {"use": Layers(chat=keep)}, {"history": middlechain.User("x")}, {"history": "x"}, {"data": [1]}],
    ids=["limits", "use", "a message", "a text", "data"],
)
async def test_an_option_of_the_wrong_kind_is_refused_with_the_fix_before_anything_is_spent(
    go: Go, option: dict[str, Any]
) -> None:
    scripted = model()
    with pytest.raises(ConfigurationError, match="; give "):
        await go(App(), Agent(model=scripted), "q", **option)
    assert scripted.calls == []


# Ways to run that an agent does not have


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("run", "await app.run(agent, ...)"),
        ("run_sync", "app.run_sync(agent, ...)"),
        ("stream", "app.stream(agent, ...)"),
    ],
)
def test_h8_an_agent_does_not_run_by_itself_and_the_error_says_how(name: str, instead: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(Agent(), name)
    assert str(caught.value).endswith(instead)
    assert not hasattr(Agent(), name)
    with pytest.raises(AttributeError, match="'walk'"):
        Agent().walk  # type: ignore[attr-defined]  # noqa: B018


# Two of one name, unknown targets


def test_t2_two_tools_of_one_name_are_refused_when_the_agent_is_built() -> None:
    other = tool(name="ping")(keep_tool)
    for build in (lambda: Agent(tools=[ping, other]), lambda: type("Sub", (Agent,), {"tools": [ping, other]})):
        with pytest.raises(
            ConfigurationError, match=r"two tools named 'ping': .*ping and .*keep_tool; rename one with"
        ):
            build()
    assert Agent(tools=[ping, tool(name="pong")(keep_tool)])


def keep_tool() -> None: ...


def test_two_agents_of_one_name_are_refused() -> None:
    class Other(Agent):
        name = "twin"

    pairs: list[list[Any]] = [
        [Agent(name="twin"), Other],
        [Other, Other()],
        [Agent(name="Sub"), type("Sub", (Agent,), {})],
    ]
    for agents in pairs:
        with pytest.raises(ConfigurationError, match=r"two agents named '(twin|Sub)'; rename one with Agent\(name="):
            App(agents=agents)
    assert App(agents=[Agent(name="a"), Other])


@pytest.mark.anyio
async def test_an_unknown_target_is_refused_with_what_there_is(go: Go) -> None:
    app = App(agents=[Agent(name="support"), Agent(name="sales")])
    with pytest.raises(ConfigurationError, match=r"no agent 'sale'.*support, sales"):
        await go(app, "sale", "q")
    for target in (None, 7, keep, App, object()):
        with pytest.raises(ConfigurationError, match="; give an agent, an agent class, or the name of one"):
            await go(app, target, "q")


@pytest.mark.anyio
async def test_a_run_layer_may_send_the_run_to_another_target(go: Go) -> None:
    async def redirect(call: Any, next: Any) -> Any:
        return await next(call.replace(target="sales"))

    app = App(agents=[Agent(name="support", model=model("a")), Agent(name="sales", model=model("b"))])
    result = await go(app.use(run=redirect), "support", "q")
    assert (result.text, result.agent) == ("b", "sales")


def test_an_app_of_agents_without_the_keyword_says_how_to_give_them() -> None:
    with pytest.raises(ConfigurationError, match=r"the name of an app is \[.*; give a str, and agents as App\(agents="):
        App([Agent()])  # type: ignore[arg-type]


@pytest.mark.parametrize("one", [tool(name="one")(keep_tool), keep_tool], ids=["tool", "function"])
def test_one_tool_without_a_list_says_how_to_write_it(one: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the tools of A are one tool, '.*'; give a list: tools=\[.*\]$"):
        Agent(name="A", tools=one)


def test_section_1_an_agent_that_is_not_named_bears_the_name_of_its_class() -> None:
    class Clerk(Agent): ...

    class Senior(Clerk): ...

    class Named(Agent):
        name = "desk"

    class Night(Named): ...

    assert [one.name for one in (Agent(), Clerk, Clerk(), Senior(), Named(), Night(), Clerk(name="Kim"))] == [
        "Agent",
        "Clerk",
        "Clerk",
        "Senior",
        "desk",
        "desk",
        "Kim",
    ]
