"""Agents that are made of packs: tools, policy, parameters, overrides (P3), and their validators as guards (P2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from middlechain import (
    Agent,
    App,
    ChatCall,
    ChatReply,
    ConfigurationError,
    Context,
    LimitExceeded,
    Limits,
    Settings,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolUse,
    tool,
)
from middlechain.guards import Guardrails
from middlechain.packs import Pack, PackAgent, load
from middlechain.testing import ScriptedModel
from middlechain.tools import Tool

from .conftest import Go
from .packs.build import DESK, function, issues, pack, use_stand_in, variable

BRANCH = {"branch": "Harbour"}


async def find_book(title: str, shelf: int = 1) -> str:
    return f"{title} on {shelf}"


def lend_book(title: str, reader: str, ctx: Context) -> str:
    return f"{title} to {reader}"


TOOLS = {"find_book": find_book, "lend_book": lend_book}


def desk(**options: Any) -> PackAgent:
    return load(DESK).agent("desk", **{"variables": BRANCH, "tools": TOOLS, **options})


def asks(*names: str, **arguments: Any) -> ChatReply:
    """A reply that asks for tools."""
    return ChatReply(tool_calls=tuple(ToolUse(name, arguments) for name in names))


def tools_of(agent: PackAgent) -> list[Tool]:
    return [one for one in agent.tools if isinstance(one, Tool)]


def results(result: Any) -> list[tuple[str, bool]]:
    return [(one.text, one.is_error) for one in result.messages if isinstance(one, ToolMessage)]


def refusals(make: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        make()
    return list(caught.value.issues)


# An agent like any other


@pytest.mark.anyio
async def test_p1_an_agent_of_a_pack_is_asked_as_any_other(go: Go) -> None:
    model = ScriptedModel([asks("find_book", title="Emma", shelf=3), "There."])
    agent = desk(model=model)
    result = await go(App(), agent, "Where is Emma?")
    assert (result.text, result.agent, agent.description) == ("There.", "desk", "Answers readers at the desk.")
    assert results(result) == [("Emma on 3", False)]
    assert model.calls[0].messages[0].text == "You work at the desk of Harbour. Whisper. The library closes at 18:00."
    assert isinstance(agent, Agent)


def test_p1_options_of_an_agent_are_taken_and_unknown_ones_refused() -> None:
    agent = desk(name="night", description="At night.", hooks=[{"before_run": lambda input, ctx: None}])
    assert (agent.name, agent.description) == ("night", "At night.")
    with pytest.raises(ConfigurationError, match="has no option 'descriptoin'; did you mean 'description'"):
        desk(descriptoin="x")


@pytest.mark.parametrize("option", ["instructions", "pack_guards"])
def test_p1_what_is_the_packs_to_say_is_refused(option: str) -> None:
    (found,) = refusals(lambda: desk(**{option: "x"}))
    assert found == f"prompts.desk: {option}= was given, and is the pack's to say; leave it out"


def test_p1_an_unknown_prompt_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match=r"has no prompt 'dekS'; did you mean 'desk'\?"):
        load(DESK).agent("dekS")
    with pytest.raises(ConfigurationError, match=r"has no prompt 'x'; it has 'desk', 'greeter'; correct the name"):
        load(DESK).variables("x")


def test_p1_a_pack_tells_which_variables_and_functions_a_prompt_needs() -> None:
    assert load(DESK).variables("desk") == {"branch": "string", "closing": "string"}
    assert load(DESK).tools("desk") == ("find_book", "lend_book")
    assert load(DESK).variables("greeter") == {}
    assert load(DESK).tools("greeter") == ()


# Tools


def test_p3_the_model_sees_the_packs_names_descriptions_and_schema() -> None:
    def lookup(title: str, shelf: int | None = None) -> str:
        """Nothing that the model should know."""
        return title

    found, _ = tools_of(desk(tools={**TOOLS, "find_book": lookup}))
    assert (found.name, found.description) == ("find_book", "Find a book on the shelves.")
    assert found.schema == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "A part of its title."},
            "shelf": {"type": "integer", "minimum": 1},
        },
        "required": ["title"],
    }


def test_p3_a_tool_without_parameters_has_an_empty_schema() -> None:
    bare = pack({"tools": {"find": {"name": "find", "description": "x"}}}, tools=["find"])
    (found,) = tools_of(bare.agent("chat", tools={"find": lambda: "x"}))
    assert found.schema == {"type": "object", "properties": {}}


@pytest.mark.anyio
async def test_p3_arguments_are_held_against_the_functions_annotations(go: Go) -> None:
    model = ScriptedModel([asks("find_book", title="Emma", shelf="top"), "Sorry."])
    ((text, is_error),) = results(await go(App(), desk(model=model), "q"))
    assert is_error
    assert "shelf: Input should be a valid integer" in text


def test_p3_the_options_of_a_tool_that_is_given_are_kept() -> None:
    given = tool(name="other", expose_errors=True, max_result_chars=9)(find_book)
    found = tools_of(desk(tools={**TOOLS, "find_book": given}))[0]
    assert (found.name, found.expose_errors, found.max_result_chars) == ("find_book", True, 9)


def test_p3_all_tools_without_a_function_are_listed_but_for_the_blocked_ones() -> None:
    assert refusals(lambda: desk(tools={})) == [
        "prompts.desk.tools[0]: the tool 'find_book' has no function; give it one with tools={'find_book': function}",
        "prompts.desk.tools[1]: the tool 'lend_book' has no function; give it one with tools={'lend_book': function}",
    ]


def test_p3_a_function_for_no_tool_of_the_prompt_is_refused_with_the_nearest_name() -> None:
    (found,) = refusals(lambda: desk(tools={**TOOLS, "fnid_book": find_book}))
    assert found.endswith("the prompt has no tool 'fnid_book' for the function; did you mean 'find_book'?")


def wide(title: str, reader: str, colour: str) -> str:
    return title


def narrow(title: str) -> str:
    return title


def needy(title: str, shelf: int) -> str:
    return title


def any_of(**anything: str) -> str:
    return ""


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("lend_book", wide, "has a parameter 'colour', which the pack has not; it has 'title', 'reader'; correct"),
        ("lend_book", narrow, "has no parameter 'reader', which the pack has; it has 'title'; correct the name"),
        ("find_book", needy, "needs 'shelf', which the pack lets the model leave out; give it a default"),
        ("find_book", any_of, "cannot be a tool: the parameter "),
        ("find_book", "find", "cannot be a tool: tool() got 'find'; give it a function"),
    ],
)
def test_p3_a_function_that_does_not_fit_what_the_model_is_told_is_refused(name: str, given: Any, message: str) -> None:
    (found,) = refusals(lambda: desk(tools={**TOOLS, name: given}))
    assert found.startswith("prompts.desk.tools[")
    assert f"the function for '{name}' {message}" in found


def test_p3_nothing_more_is_said_of_the_tool_that_is_wrong_in_the_pack_itself() -> None:
    lost = pack(tools=["find"])
    (found,) = refusals(lambda: lost.agent("chat", tools={"find": narrow}))
    assert found.endswith("the pack defines no tool 'find'; there are none; correct the name")
    twice = pack({"tools": {"find": function("find", title="string")}}, tools=["find", "find"])

    def find(title: str = "") -> str:
        return title

    assert [one.name for one in tools_of(twice.agent("chat", tools={"find": find}))] == ["find"]


# The policy


def with_policy(model: Any = None, **policy: Any) -> PackAgent:
    def look() -> str:
        return "seen"

    tools = {name: function(name) for name in ("look", "peek")}
    made = pack({"tools": tools}, tools=["look", "peek"], tool_policy=policy)
    given = {name: look for name in ("look", "peek") if name not in policy.get("blocklist", ())}
    return made.agent("chat", model=model, tools=given)


@pytest.mark.anyio
async def test_p3_a_blocked_tool_is_not_offered_and_does_not_run(go: Go) -> None:
    model = ScriptedModel([asks("peek", "look"), "done"])
    result = await go(App(), with_policy(model, blocklist=["peek"]), "q")
    assert results(result) == [
        ("The tool 'peek' did not run: it is blocked here. Answer without it.", True),
        ("seen", False),
    ]
    assert [one.name for one in model.calls[0].tools] == ["look"]


@pytest.mark.anyio
async def test_p3_a_blocked_tool_that_is_added_later_is_not_offered_either(go: Go) -> None:
    ran: list[str] = []

    @tool
    async def peek() -> str:
        ran.append("peek")
        return "seen"

    agent = with_policy(blocklist=["peek"])
    agent.tools = (*agent.tools, peek)

    async def more(call: ChatCall, next: Any) -> Any:
        return await next(call.replace(tools=(*call.tools, peek)))

    async def rename(call: ToolCall, next: Any) -> Any:
        return await next(call.replace(name="peek"))

    model = ScriptedModel([asks("peek"), asks("look"), "done"])
    app = App(model=model).use(chat=more).use(tool=rename, only="look")
    result = await go(app, agent, "q")
    assert [[one.name for one in call.tools] for call in model.calls] == [["look"]] * 3
    assert [is_error for _, is_error in results(result)] == [True, True]
    assert ran == []


@pytest.mark.anyio
async def test_p3_a_layer_that_the_agent_was_given_cannot_slip_past_the_policy(go: Go) -> None:
    class Rename:
        async def tool(self, call: ToolCall, next: Any) -> Any:
            return await next(call.replace(name="peek"))

    made = pack(
        {"tools": {name: function(name) for name in ("look", "peek")}},
        tools=["look", "peek"],
        tool_policy={"blocklist": ["peek"]},
    )
    model = ScriptedModel([asks("look"), "done"])
    agent = made.agent("chat", model=model, tools={"look": lambda: "seen"}, middleware=[Rename()])
    ((text, is_error),) = results(await go(App(), agent, "q"))
    assert is_error
    assert text == "The tool 'peek' did not run: it is blocked here. Answer without it."


@pytest.mark.anyio
async def test_p3_calls_beyond_the_limit_of_an_answer_do_not_run_in_the_order_of_the_calls(go: Go) -> None:
    model = ScriptedModel([asks("look"), asks("look", "peek", "peek"), "done"])
    result = await go(App(), with_policy(model, max_tool_calls_per_turn=2), "q")
    texts = [text for text, _ in results(result)]
    assert texts[:2] == ["seen", "seen"]
    refusal = "The tool 'peek' did not run: no more than 2 calls may be made for one answer. Answer with what there is."
    assert results(result)[2:] == [(refusal, True)] * 2
    assert [call.settings.tool_choice for call in model.calls] == [None, None, "none"]


@pytest.mark.anyio
async def test_p3_the_limit_of_an_answer_holds_for_each_run_anew_and_exactly_so_many_are_allowed(go: Go) -> None:
    model = ScriptedModel([asks("look", "peek"), "done", asks("look", "peek"), "done"])
    app, agent = App(model=model), with_policy(max_tool_calls_per_turn=2)
    first = await go(app, agent, "q")
    second = await go(app, agent, "q", history=first.messages)
    for result in (first, second):
        assert results(result) == [("seen", False), ("seen", False)]


@pytest.mark.anyio
async def test_p3_calls_of_a_reply_that_was_cut_off_and_calls_of_code_do_not_count(go: Go) -> None:
    cut = ChatReply(tool_calls=(ToolUse("look", {}), ToolUse("peek", {})), finish_reason="length")
    model = ScriptedModel([cut, asks("look"), "done"])
    outputs: list[ToolOutput] = []

    class Hooks:
        async def after_tool(self, result: Any, ctx: Context) -> None:
            if not outputs:
                outputs.append(ToolOutput(""))
                outputs.append(await ctx.call_tool("peek"))

        async def before_run(self, input: Any, ctx: Context) -> None:
            outputs.clear()

    agent = with_policy(model, max_tool_calls_per_turn=1)
    agent.hooks = [Hooks()]
    result = await go(App(), agent, "q")
    assert [is_error for _, is_error in results(result)] == [True, True, False]
    assert outputs[1].content == "seen"


@pytest.mark.anyio
async def test_p3_tools_that_must_be_used_need_not_be_used_again(go: Go) -> None:
    model = ScriptedModel([asks("look"), "done"])
    await go(App(), with_policy(model, tool_choice="required"), "q")
    assert [call.settings.tool_choice for call in model.calls] == ["required", "auto"]
    model = ScriptedModel([asks("look"), "done"])
    agent = with_policy(model, tool_choice="required")
    agent.settings = Settings(tool_choice="look")
    await go(App(), agent, "q")
    assert [call.settings.tool_choice for call in model.calls] == ["look", "look"]


@pytest.mark.anyio
async def test_p3_where_no_tools_may_be_used_none_runs(go: Go) -> None:
    model = ScriptedModel([asks("look"), "done"])
    result = await go(App(), with_policy(model, tool_choice="none"), "q")
    assert [call.settings.tool_choice for call in model.calls] == ["none", "none"]
    assert results(result) == [("The tool 'look' did not run: no tools may be used here. Answer without them.", True)]


@pytest.mark.anyio
async def test_p3_max_rounds_are_the_turns_of_a_step(go: Go) -> None:
    agent = with_policy(ScriptedModel(lambda call: asks("look")), max_rounds=3)
    with pytest.raises(LimitExceeded, match="turns=3"):
        await go(App(), agent, "q")
    assert (await go(App(), with_policy(ScriptedModel([asks("look"), "done"]), max_rounds=2), "q")).text == "done"


@pytest.mark.parametrize(
    ("rounds", "given", "turns"),
    [
        (3, None, 3),
        (3, Limits(turns=2), 2),
        (3, Limits(turns=9, tokens=5), 3),
        (3, Limits(turns=None), 3),
        (None, Limits(turns=9), 9),
    ],
)
def test_p3_of_max_rounds_and_the_limits_that_are_given_the_lower_holds(
    rounds: int | None, given: Limits | None, turns: int
) -> None:
    policy = {} if rounds is None else {"max_rounds": rounds}
    limits = pack(tool_policy=policy).agent("chat", limits=given).limits
    assert limits is not None
    assert (limits.turns, limits.tokens) == (turns, None if given is None else given.tokens)


def test_p3_without_a_policy_there_are_no_layers_and_no_limits() -> None:
    agent = pack().agent("chat")
    assert (agent.limits, agent.middleware) == (None, ())
    assert with_policy(max_rounds=3).middleware == ()
    assert with_policy(tool_choice="auto").middleware == ()


@pytest.mark.anyio
async def test_s6_the_layers_of_a_policy_hold_no_text_back() -> None:
    agent = with_policy(ScriptedModel([["a", "b"]]), max_tool_calls_per_turn=1, blocklist=["peek"])
    links = [link for link in App().explain(agent).links if link.kind == "layer"]
    assert [(link.scope, link.holds) for link in links] == [("chat", ""), ("tool", "")]


# Parameters and overrides


def test_p3_parameters_are_settings() -> None:
    given = {
        "temperature": 0.5,
        "top_p": 1,
        "max_tokens": 9,
        "top_k": 3,
        "presence_penalty": -1,
        "frequency_penalty": 0.0,
    }
    settings = pack(parameters=given).agent("chat").settings
    extra = {"top_k": 3, "frequency_penalty": 0.0, "presence_penalty": -1}
    assert settings == Settings(temperature=0.5, top_p=1, max_tokens=9, extra=extra)
    assert pack().agent("chat").settings == Settings()
    assert pack(parameters={"top_k": None}).agent("chat").settings == Settings()


def test_p3_settings_that_are_given_go_before_those_of_the_pack_field_by_field() -> None:
    settings = desk(settings=Settings(temperature=0, seed=7, extra={"user": "x", "frequency_penalty": 1})).settings
    assert settings == Settings(
        temperature=0, max_tokens=300, seed=7, tool_choice="auto", extra={"frequency_penalty": 1, "user": "x"}
    )


OVERRIDES = {
    "small": {"system_template_prefix": "A ", "system_template_suffix": " Z", "parameters": {"temperature": 0.1}},
    "other": {"system_template": "No {{a}}.", "system_template_suffix": "!"},
}


def overridden() -> Pack:
    return pack(
        system_template="Be {{a}}.",
        variables=[variable("a", default="kind")],
        model_overrides=OVERRIDES,
        parameters={"temperature": 0.9, "max_tokens": 5},
    )


@pytest.mark.parametrize(
    ("name", "text", "temperature"),
    [
        ("small", "A Be kind. Z", 0.1),
        ("openai:small", "A Be kind. Z", 0.1),
        ("other", "No kind.!", 0.9),
        ("third", "Be kind.", 0.9),
        ("openai:third", "Be kind.", 0.9),
        ("", "Be kind.", 0.9),
    ],
)
@pytest.mark.anyio
async def test_p3_overrides_go_by_the_name_of_the_model(go: Go, name: str, text: str, temperature: float) -> None:
    for of_app in (False, True):
        model = ScriptedModel(["done"], name=name)
        agent = overridden().agent("chat", model=None if of_app else model)
        await go(App(model=model if of_app else None), agent, "q")
        (call,) = model.calls
        assert call.messages[0].text == text
        assert call.settings == Settings(temperature=temperature, max_tokens=5)


def test_p3_a_model_by_name_is_known_when_the_agent_is_made() -> None:
    agent = overridden().agent("chat", model="openai:small")
    assert (agent.instructions, agent.settings.temperature) == ("A Be kind. Z", 0.1)
    assert agent.middleware == ()


@pytest.mark.anyio
async def test_p3_what_a_layer_or_the_caller_has_set_goes_before_an_override(go: Go) -> None:
    async def warm(call: ChatCall, next: Any) -> Any:
        return await next(call.replace(settings=Settings(temperature=1.5, max_tokens=5, seed=3)))

    model = ScriptedModel(["done", "done"], name="small")
    await go(App(model=model).use(chat=warm), overridden().agent("chat"), "q")
    await go(App(model=model), overridden().agent("chat", settings=Settings(temperature=0.7)), "q")
    assert [call.settings.temperature for call in model.calls] == [1.5, 0.7]
    assert model.calls[0].settings.seed == 3


def test_p3_the_layer_for_the_apps_model_says_what_it_is_and_holds_nothing_back() -> None:
    (link,) = [link for link in App(model="demo").explain(overridden().agent("chat")).links if link.kind == "layer"]
    assert (link.name, link.holds) == ("ModelSettings(small, other)", "")


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ({"system_template": "{{b}}"}, "small.system_template"),
        ({"system_template_prefix": "{{b}}"}, "small.system_template_prefix"),
        ({"system_template_suffix": "{{#b}}"}, "small.system_template_suffix"),
        ({"parameters": {"temperature": 5}}, "small.parameters.temperature"),
        ({"sytem_template": "x"}, "small.sytem_template"),
    ],
)
def test_p3_what_is_wrong_in_an_override_is_an_error_there(override: Mapping[str, Any], place: str) -> None:
    (found,) = issues(pack(model_overrides={"small": override}))
    assert found[:2] == ("error", f"prompts.chat.model_overrides.{place}")


def test_p3_a_part_that_only_an_override_needs_is_looked_for_too() -> None:
    made = pack(
        variables=[variable("a", type="object", default={"b": 1})],
        model_overrides={"small": {"system_template": "{{a.c}}"}},
    )
    (found,) = refusals(lambda: made.agent("chat", model="demo"))
    assert found.startswith("prompts.chat.model_overrides.small: the variable 'a' has no 'c'")


# Validators


def guarded(monkeypatch: pytest.MonkeyPatch, *validators: Mapping[str, Any], **options: Any) -> PackAgent:
    use_stand_in(monkeypatch)
    return pack(validators=list(validators)).agent("chat", **options)


def sides(agent: PackAgent) -> tuple[int, int]:
    return len(tuple(agent.pack_guards.input)), len(tuple(agent.pack_guards.output))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"direction": "input"}, (1, 0)),
        ({"direction": "output"}, (0, 1)),
        ({"direction": "both"}, (1, 1)),
        ({}, (0, 1)),
        (None, (0, 1)),
    ],
)
def test_p2_a_validator_guards_the_side_that_its_direction_says_by_default_the_output(
    monkeypatch: pytest.MonkeyPatch, params: Any, expected: tuple[int, int]
) -> None:
    validator = {"type": "shout", "enabled": True} | ({} if params is None else {"params": params})
    assert sides(guarded(monkeypatch, validator)) == expected


@pytest.mark.parametrize(("enabled", "count"), [({}, 1), ({"enabled": True}, 1), ({"enabled": False}, 0)])
def test_p2_a_validator_is_on_unless_it_is_off(
    monkeypatch: pytest.MonkeyPatch, enabled: dict[str, Any], count: int
) -> None:
    assert sides(guarded(monkeypatch, {"type": "shout", **enabled})) == (0, count)


def test_p2_the_registry_gets_the_type_and_the_params_without_the_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = use_stand_in(monkeypatch)
    params = {"direction": "input", "message": "Softly.", "word": "HO"}
    pack(validators=[{"type": "shout", "params": params}]).check()
    assert asked == [("shout", {"message": "Softly.", "word": "HO"})]


def test_p2_validators_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [{"type": "shout", "params": {"word": word, "direction": "both"}} for word in ("A", "B")]
    agent = guarded(monkeypatch, *words)
    for side in (agent.pack_guards.input, agent.pack_guards.output):
        assert len({id(guard) for guard in side}) == 2
    assert tuple(agent.pack_guards.input) == tuple(agent.pack_guards.output)


def test_p2_validators_are_apart_from_the_guards_that_the_agent_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(text: str, ctx: Context) -> None: ...

    agent = guarded(monkeypatch, {"type": "shout"}, guardrails={"output": [mine]})
    assert [guard.name for guard in agent.pack_guards.output] == ["shout"]
    assert isinstance(agent.pack_guards, Guardrails)
    assert PackAgent.pack_guards == Guardrails()
    assert pack().agent("chat").pack_guards == Guardrails()


@pytest.mark.parametrize(("text", "blocked"), [("HEY you", True), ("hey you", False)])
@pytest.mark.parametrize("direction", ["input", "output"])
@pytest.mark.anyio
async def test_p2_a_validator_blocks_with_its_message(
    monkeypatch: pytest.MonkeyPatch, go: Go, text: str, blocked: bool, direction: str
) -> None:
    validator = {"type": "shout", "params": {"direction": direction, "message": "Softly."}}
    model = ScriptedModel([text if direction == "output" else "done"])
    agent = guarded(monkeypatch, validator, model=model)
    result = await go(App(), agent, text if direction == "input" else "q")
    assert (result.blocked, result.text == "Softly.") == (blocked, blocked)
    assert len(model.calls) == (0 if blocked and direction == "input" else 1)


@pytest.mark.anyio
async def test_g5_the_packs_validators_come_before_the_apps_guards(monkeypatch: pytest.MonkeyPatch, go: Go) -> None:
    seen: list[str] = []

    def app_guard(text: str, ctx: Context) -> None:
        seen.append(text)

    agent = guarded(monkeypatch, {"type": "shout"}, model=ScriptedModel(["HEY"]), guardrails={"output": [app_guard]})
    app = App(guardrails={"output": [app_guard]})
    result = await go(app, agent, "q")
    assert result.blocked
    assert seen == []
