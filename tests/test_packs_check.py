"""What `pack.check()` says: every issue, each with its place (P1), and what is wrong with validators (P2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from middlechain import ConfigurationError
from middlechain.packs import Issue, load, loads

from .packs.build import BROKEN, DESK, data, function, issues, pack, prompt, use_stand_in


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)


def one(given: Any) -> tuple[str, str, str]:
    (issue,) = issues(given)
    return issue


# All of it at once


def test_p1_a_pack_in_which_nothing_is_amiss_has_no_issues() -> None:
    assert load(DESK).check() == []
    assert pack().check() == []


def test_p1_all_issues_are_listed_at_once_with_their_places() -> None:
    found = {(issue.kind, issue.place) for issue in load(BROKEN).check()}
    desk = "prompts.desk"
    assert found == {
        ("unsupported", "template_engine.features[0]"),
        ("unsupported", "evals[0]"),
        ("error", "fragments.sign"),
        ("error", f"{desk}.system_template"),
        ("note", f"{desk}.variables[0].default"),
        ("error", f"{desk}.variables[1].default"),
        ("error", f"{desk}.tools[0]"),
        ("error", f"{desk}.tool_policy.max_rounds"),
        ("error", f"{desk}.parameters.temperature"),
        ("error", f"{desk}.validators[0].type"),
        ("error", f"{desk}.validators[1].message"),
        ("error", f"{desk}.validators[1].params.direction"),
        ("error", f"{desk}.validators[1].params"),
        ("note", f"{desk}.validators[2].fail_on_violation"),
        ("unsupported", f"{desk}.media"),
        ("error", "prompts.greeter.system_template"),
        ("note", "tools.find_book"),
    }


def test_p1_building_an_agent_refuses_with_all_errors_at_once_and_nothing_else() -> None:
    broken = load(BROKEN)
    with pytest.raises(ConfigurationError, match=r"broken.pack.json' cannot be used; it has \d+ issues:\n- ") as caught:
        broken.agent("greeter", variables={"colour": "red"})
    errors = [f"{issue.place}: {issue.message}" for issue in broken.check() if issue.kind == "error"]
    assert list(caught.value.issues[:-1]) == errors
    assert caught.value.issues[-1].startswith("prompts.greeter.variables: there is no variable 'colour'")
    assert all(f"\n- {sentence}" in str(caught.value) for sentence in caught.value.issues)


def test_p1_what_is_not_supported_and_notes_keep_no_agent_from_being_made() -> None:
    mild = pack(
        {"evals": [{"id": "polite"}]}, media={"enabled": True}, validators=[{"type": "other", "enabled": False}]
    )
    assert {issue.kind for issue in mild.check()} == {"unsupported", "note"}
    assert mild.agent("chat").name == "chat"


def test_p1_an_issue_reads_as_a_line() -> None:
    assert str(Issue("note", "tools.x", "take it out")) == "tools.x: note: take it out"


def test_p1_a_message_names_what_is_wrong_and_ends_with_the_fix() -> None:
    for issue in load(BROKEN).check():
        assert len(issue.message) > 20
        assert "; " in issue.message or "?" in issue.message or ", " in issue.message


# The shape of it


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({"system_template": 5}, "system_template", "5 should be a valid string; correct it"),
        ({"system_template": ""}, "system_template", "'' should have at least 1 character; correct it"),
        ({"tools": ["a", 5]}, "tools[1]", "5 should be a valid string; correct it"),
        ({"variables": {}}, "variables", "{} should be a valid list; correct it"),
        ({"parameters": []}, "parameters", "[] is no object; write one: {...}"),
        ({"variables": ["name"]}, "variables[0]", "'name' is no object; write one: {...}"),
        ({"model_overrides": {"x y": 1}}, 'model_overrides["x y"]', "1 is no object; write one: {...}"),
        ({"parameters": {"top_p": 2}}, "parameters.top_p", "2 should be less than or equal to 1; correct it"),
        ({"parameters": {"max_tokens": 1.5}}, "parameters.max_tokens", "1.5 should be a valid integer; correct it"),
        ({"parameters": {"max_tokens": True}}, "parameters.max_tokens", "True should be a valid integer; correct it"),
    ],
)
def test_p1_a_value_of_a_wrong_shape_is_an_error_with_its_place(
    fields: dict[str, Any], place: str, message: str
) -> None:
    assert one(pack(**fields)) == ("error", f"prompts.chat.{place}", message)


def test_p1_a_prompt_that_is_no_object_is_an_error_and_the_others_are_checked() -> None:
    given = loads(json.dumps(data({"chat": "Be kind.", "desk": prompt(tools=["ghost"])})))
    assert [place for _, place, _ in issues(given)] == ["prompts.chat", "prompts.desk.tools[0]"]
    with pytest.raises(ConfigurationError, match=r"2 issues:\n- prompts.chat: 'Be kind.' is no object"):
        given.agent("chat")


def test_p1_what_is_right_is_checked_further_where_something_beside_it_is_wrong() -> None:
    places = [place for _, place, _ in issues(pack(description=5, tools=["ghost"]))]
    assert places == ["prompts.chat.description", "prompts.chat.tools[0]"]


def test_p1_a_root_field_of_a_wrong_shape_is_an_error() -> None:
    assert one(pack({"tools": []})) == ("error", "tools", "[] should be a valid dictionary; correct it")
    assert one(pack({"template_engine": "v1"}))[:2] == ("error", "template_engine")


def test_p1_a_missing_template_is_an_error() -> None:
    given = prompt()
    del given["system_template"]
    found = one(loads(json.dumps(data({"chat": given}))))
    assert found == ("error", "prompts.chat.system_template", "system_template is missing; add it")


def test_p1_what_the_format_asks_for_and_nothing_depends_on_is_a_note() -> None:
    bare = loads(json.dumps({"prompts": {"chat": {"system_template": "Be kind."}}}))
    kinds = {kind for kind, _, _ in issues(bare)}
    assert kinds == {"note"}
    assert [place for _, place, _ in issues(bare)] == [
        *("id", "name", "version", "template_engine"),
        *("prompts.chat.id", "prompts.chat.name", "prompts.chat.version"),
    ]
    assert bare.agent("chat").instructions == "Be kind."


def test_p1_an_unknown_field_that_is_near_a_known_one_is_an_error() -> None:
    found = one(pack(validatrs=[]))
    assert found == (
        "error",
        "prompts.chat.validatrs",
        "there is no field 'validatrs' here; did you mean 'validators'?",
    )


def test_p1_any_other_unknown_field_is_not_supported() -> None:
    kind, place, message = one(pack({"personas": {}}))
    assert (kind, place) == ("unsupported", "personas")
    assert message == "there is no field 'personas' here, so it does nothing; take it out"


def test_p1_an_unknown_field_that_may_change_what_is_allowed_is_an_error() -> None:
    assert one(pack(tool_policy={"zzz": 1}))[:2] == ("error", "prompts.chat.tool_policy.zzz")
    assert one(pack(validators=[{"type": "shout", "zzz": 1}]))[:2] == ("error", "prompts.chat.validators[0].zzz")


# What is not supported


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"evals": [{"id": "a"}, {}]}, ["evals[0]", "evals[1]"]),
        ({"workflow": {"version": 1}}, ["workflow"]),
        ({"agents": {"entry": "chat"}}, ["agents"]),
        ({"skills": ["./a", {"path": "./b"}, {"name": "c"}]}, ["skills[0]", "skills[1]", "skills[2]"]),
        ({"compositions": {"a": {}}}, ["compositions"]),
        ({"provider": {"name": "openai"}}, ["provider"]),
    ],
)
def test_p1_what_a_pack_has_and_this_library_does_not_do_is_listed(fields: dict[str, Any], places: list[str]) -> None:
    found = issues(pack(fields))
    assert [place for _, place, _ in found] == places
    assert {kind for kind, _, _ in found} == {"unsupported"}


@pytest.mark.parametrize("field", ["media", "pipeline"])
def test_p1_what_a_prompt_has_and_this_library_does_not_do_is_listed(field: str) -> None:
    assert one(pack(**{field: {}}))[:2] == ("unsupported", f"prompts.chat.{field}")
    assert one(pack(evals=[{"id": "polite"}]))[1:] == (
        "prompts.chat.evals[0]",
        "the eval 'polite' is not run; judge texts with a guard, or run it elsewhere",
    )


def test_p1_what_only_documents_a_pack_is_no_issue() -> None:
    given = pack(
        {"metadata": {"domain": "x"}, "compilation": {"schema": "v1"}, "description": "x"},
        tested_models=[{"provider": "x"}],
        description="x",
    )
    assert given.check() == []


def test_p1_features_of_templates_that_there_are_not_are_listed() -> None:
    engine = {"version": "v1", "syntax": "{{variable}}", "features": ["fragments", "loops"]}
    assert one(pack({"template_engine": engine}))[:2] == ("unsupported", "template_engine.features[1]")


@pytest.mark.parametrize("syntax", ["${variable}", "{variable}"])
def test_p1_another_syntax_of_templates_is_an_error(syntax: str) -> None:
    found = one(pack({"template_engine": {"version": "v1", "syntax": syntax}}))
    assert found == (
        "error",
        "template_engine.syntax",
        f"templates are written as '{syntax}'; write them as '{{{{variable}}}}'",
    )
    assert pack({"template_engine": {"version": "v1", "syntax": "{{ variable }}"}}).check() == []


def test_p1_a_parameter_that_not_every_server_knows_is_noted() -> None:
    assert one(pack(parameters={"top_k": 5}))[:2] == ("note", "prompts.chat.parameters.top_k")
    assert pack(parameters={"top_k": None}).check() == []


# Tools


@pytest.mark.parametrize(
    ("tool", "place", "message"),
    [
        ({"name": "find", "description": "x"}, "", ""),
        (function("find", "title", title="string"), "", ""),
        (function("seek"), "name", "the tool 'find' is called 'seek' here; give it one name"),
        (function("find", "titel", title="string"), "parameters.required[0]", "did you mean 'title'?"),
        (
            {**function("find"), "parameters": {"type": "array", "properties": {}}},
            "parameters.type",
            "'array' should be 'object'; correct it",
        ),
        ({**function("find"), "parameters": {"type": "object"}}, "parameters.properties", "is missing; add it"),
        (
            {**function("find"), "parameters": {"type": "object", "properties": {}, "required": "title"}},
            "parameters.required",
            "'title' should be a valid list; correct it",
        ),
        (
            {**function("find"), "parameters": {"type": "object", "properties": {}, "required": [[]]}},
            "parameters.required[0]",
            "[] should be a valid string; correct it",
        ),
        ({**function("find"), "parameters": []}, "parameters", "[] is no object; write one: {...}"),
        ("find", "", "'find' is no object; write one: {...}"),
    ],
)
def test_p1_a_tool_that_a_model_could_not_be_told_of_is_an_error(tool: Any, place: str, message: str) -> None:
    found = [
        (at, text) for kind, at, text in issues(pack({"tools": {"find": tool}}, tools=["find"])) if kind == "error"
    ]
    where = f"tools.find.{place}".removesuffix(".")
    assert [at for at, _ in found if at.startswith("tools.")] == ([where] if message else [])
    assert all(text.endswith(message) for at, text in found if at.startswith("tools."))


def test_p1_a_tool_that_is_not_defined_is_an_error_with_the_nearest_name() -> None:
    found = one(pack({"tools": {"find": function("find")}}, tools=["find", "fimd"]))
    assert found == ("error", "prompts.chat.tools[1]", "the pack defines no tool 'fimd'; did you mean 'find'?")
    assert one(pack(tools=["find"]))[2] == "the pack defines no tool 'find'; there are none; correct the name"


def test_p1_a_tool_that_no_prompt_lists_or_that_one_lists_twice_is_noted() -> None:
    tools = {"tools": {"find": function("find")}}
    assert one(pack(tools))[:2] == ("note", "tools.find")
    assert one(pack(tools, tools=["find", "find"]))[:2] == ("note", "prompts.chat.tools[1]")


def test_p1_a_blocked_tool_that_the_pack_does_not_define_is_noted() -> None:
    tools = {"tools": {"find": function("find")}}
    found = one(pack(tools, tools=["find"], tool_policy={"blocklist": ["find", "fund"]}))
    assert found == (
        "note",
        "prompts.chat.tool_policy.blocklist[1]",
        "the pack defines no tool 'fund'; did you mean 'find'?",
    )


@pytest.mark.parametrize(
    ("policy", "place"),
    [({"tool_choice": "find"}, "tool_choice"), ({"max_tool_calls_per_turn": 0}, "max_tool_calls_per_turn")],
)
def test_p1_a_policy_that_is_none_is_an_error(policy: dict[str, Any], place: str) -> None:
    assert one(pack(tool_policy=policy))[:2] == ("error", f"prompts.chat.tool_policy.{place}")
    assert one(pack(tool_policy=5))[:2] == ("error", "prompts.chat.tool_policy")


# Validators


def test_p2_an_unknown_type_is_an_error_at_the_type() -> None:
    found = one(pack(validators=[{"type": "shuot", "enabled": True}]))
    assert found[:2] == ("error", "prompts.chat.validators[0].type")
    assert found[2].endswith("(did you mean 'shout'?)")
    assert pack(validators=[{"type": "shout", "enabled": True}]).check() == []


def test_p2_bad_parameters_are_errors_at_the_params_each_by_itself() -> None:
    found = issues(pack(validators=[{"type": "shout", "params": {"wrod": 1, "colour": 2, "word": "HEY"}}]))
    assert found == [
        ("error", "prompts.chat.validators[0].params", "shout: there is no parameter 'wrod'; take it out"),
        ("error", "prompts.chat.validators[0].params", "shout: there is no parameter 'colour'; take it out"),
    ]


@pytest.mark.parametrize("direction", ["inputs", "", None, 5, []])
def test_p2_a_wrong_direction_is_an_error(direction: Any) -> None:
    kind, place, message = one(pack(validators=[{"type": "shout", "params": {"direction": direction}}]))
    assert (kind, place) == ("error", "prompts.chat.validators[0].params.direction")
    assert message == f"the direction is {direction!r}; write 'input' or 'output' or 'both', or leave it out"


@pytest.mark.parametrize("field", ["message", "direction"])
def test_p2_a_message_or_direction_beside_the_params_is_an_error_with_the_fix(field: str) -> None:
    found = one(pack(validators=[{"type": "shout", field: "input"}]))
    assert found == (
        "error",
        f"prompts.chat.validators[0].{field}",
        f"{field} stands beside params; move it into them: params.{field}",
    )
    assert pack(validators=[{"type": "shout", "params": {field: "input"}}]).check() == []


@pytest.mark.parametrize("given", [True, False])
def test_p2_fail_on_violation_is_accepted_and_noted(given: bool) -> None:
    validators = [{"type": "shout", "fail_on_violation": given}]
    found = one(pack(validators=validators))
    assert found[:2] == ("note", "prompts.chat.validators[0].fail_on_violation")
    assert len(tuple(pack(validators=validators).agent("chat").pack_guards.output)) == 1


def test_p2_a_validator_without_a_type_or_that_is_none_is_an_error() -> None:
    assert one(pack(validators=[{"enabled": True}]))[:2] == ("error", "prompts.chat.validators[0].type")
    assert one(pack(validators=["shout"]))[:2] == ("error", "prompts.chat.validators[0]")


def test_p2_a_validator_that_is_off_is_only_noted_where_it_could_not_be_switched_on() -> None:
    kind, place, message = one(pack(validators=[{"type": "shuot", "enabled": False}]))
    assert (kind, place) == ("note", "prompts.chat.validators[0]")
    assert message.startswith("it is off, and could not be switched on: there is no guard of type 'shuot'")
    assert pack(validators=[{"type": "shout", "enabled": False}]).check() == []
