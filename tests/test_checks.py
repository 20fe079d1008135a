"""`app.check()` finds what is wrong before anything runs, all of it at once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from middlechain import Agent, App, ConfigurationError, Context, Settings, tool
from middlechain.testing import ScriptedModel


async def passing(call: Any, next: Any) -> Any:
    return await next()


@tool
def refund(amount: int) -> str:
    return f"{amount}"


class Demanding(Agent):
    model = "demo"

    def __init__(self, database: str) -> None:
        super().__init__()


class Own(Agent):
    async def run(self, input: Any, ctx: Context) -> str:
        return "x"


def issues(app: App, *targets: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as raised:
        app.check(*targets)
    error = raised.value
    assert all(f"\n- {issue}" in str(error) for issue in error.issues)
    return error.issues


def good() -> Agent:
    return Agent(name="good", model="demo", tools=[refund], settings=Settings(tool_choice="refund"))


def test_what_is_in_order_passes() -> None:
    app = App(agents=[good()]).use(chat=passing, only="good").use(tool=passing, only=["refund"])
    app.check()
    app.check("good")
    app.check(good(), Own)
    App(agents=[Own]).check()


def test_all_issues_come_at_once_each_with_its_fix() -> None:
    app = App(
        name="shop",
        agents=[
            Agent(name="mute"),
            Agent(name="choosy", model="demo", settings=Settings(tool_choice="refnd"), tools=[refund]),
            Agent(name="short", model="openai"),
            Demanding,
            Own(name="own", hooks=[{"on_error": lambda error, ctx: "sorry"}]),
        ],
    ).use(chat=passing, only=["mute", "mtue"])
    found = issues(app)
    expected = [
        r"'mute' has no model; give it one",
        r"only='mtue' of the chat layer 'passing' names no agent or tool .*correct the name",
        r"'choosy' say tool_choice='refnd', and it has no such tool \(it has: refund\); correct the name",
        r"'openai' lacks what 'openai' needs .*write it as openai:NAME",
        r"Demanding cannot be made without arguments .*give an object of it",
        r"hooks= of 'own' never fire, since Own\.run owns the step; take them off",
    ]
    assert len(found) == len(expected)
    for issue, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, issue), issue


def test_the_message_names_the_app_and_counts() -> None:
    with pytest.raises(ConfigurationError, match=r"^the app 'shop' has 1 issue:\n- the agent 'mute' has no model"):
        App(name="shop", agents=[Agent(name="mute")]).check()
    with pytest.raises(ConfigurationError, match=r"^the app 'app' has 2 issues:\n- .*\n- "):
        App(agents=[Agent(name="a"), Agent(name="b")]).check()


@pytest.mark.parametrize("settings", [Settings(), *(Settings(tool_choice=choice) for choice in ("auto", "none"))])
def test_a_tool_choice_that_names_no_tool_is_none_of_its_business(settings: Settings) -> None:
    App().check(Agent(model="demo", settings=settings))


def test_the_model_of_the_app_will_do() -> None:
    App(model=ScriptedModel([]), agents=[Agent()]).check()


def test_targets_limit_what_is_looked_at() -> None:
    app = App(agents=[good(), Agent(name="mute")])
    app.check("good")
    assert len(issues(app, "mute")) == 1


def test_a_target_that_is_none_is_an_issue_like_any_other() -> None:
    assert [re.sub(r";.*", "", issue) for issue in issues(App(name="shop"), "nobody", 7)] == [
        "the app 'shop' has no agent 'nobody'",
        "the target of a run is 7",
    ]


def test_an_app_without_agents_has_nothing_to_check_and_says_so() -> None:
    [issue] = issues(App())
    assert issue.endswith("or name them: app.check(agent)")


def test_other_configuration_errors_have_no_issues() -> None:
    assert ConfigurationError("x").issues == ()


def test_nothing_is_asked_of_a_model() -> None:
    model = ScriptedModel(["a"])
    App(agents=[Agent(model=model)]).check()
    assert model.calls == []


def test_hooks_and_layers_that_cannot_be_called_as_such_are_issues() -> None:
    async def one(call: Any) -> Any: ...

    def three(response: str, ctx: Context, more: int) -> None: ...

    class Desk(Agent):
        model = "demo"

        def before_tool(self, call: Any) -> None:  # type: ignore[override]
            return None

    found = issues(App(agents=[Desk(hooks=[{"after_response": three}])]).use(chat=one))  # type: ignore[arg-type]
    assert [re.sub(r"'[^']*\.", "'", issue) for issue in found] == [
        "the hook 'before_tool' cannot be called with two arguments; write before_tool(value, ctx)",
        "the hook 'three' cannot be called with two arguments; write after_response(value, ctx)",
        "the chat layer 'one' cannot be called with two arguments; write it as (call, next)",
    ]


def test_hooks_that_can_be_called_as_such_are_none() -> None:
    def first(value: Any, ctx: Context) -> None: ...

    def second(*args: Any) -> None: ...

    App(agents=[Agent(model="demo", hooks=[{"after_response": first}, {"after_response": second}])]).check()


def test_what_has_no_signature_is_given_the_benefit_of_the_doubt() -> None:
    class Odd:
        __signature__ = 7

        async def __call__(self, call: Any, next: Any) -> Any: ...

    App(agents=[Agent(model="demo")]).use(chat=[Odd(), dict.get]).check()  # type: ignore[list-item]
