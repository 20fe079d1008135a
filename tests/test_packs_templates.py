"""Templates of packs: variables, their types and rules, and fragments (P3)."""

from __future__ import annotations

from typing import Any

import pytest

from middlechain import ConfigurationError

from .packs.build import issues, pack, variable


def said(template: str, values: dict[str, Any] | None = None, /, root: Any = None, **variables: dict[str, Any]) -> str:
    """The system prompt of an agent, made of a template, values, and the variables by name."""
    declared = [variable(name, **fields) for name, fields in variables.items()]
    agent = pack(root, system_template=template, variables=declared).agent("chat", variables=values)
    assert isinstance(agent.instructions, str)
    return agent.instructions


def refused(template: str, values: dict[str, Any] | None = None, /, root: Any = None, **variables: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        said(template, values, root, **variables)
    (issue,) = caught.value.issues
    return issue


# Filling in


def test_p3_variables_are_filled_in_and_the_rest_stays_as_it_is() -> None:
    text = "{a} {{a}} }} {{ a }}{{b}} { {c} } 5 % $a"
    assert said(text, {"a": "one", "b": "two"}, a={}, b={}) == "{a} one }} onetwo { {c} } 5 % $a"


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string", "five", "five"),
        ("number", 5, "5"),
        ("number", 0.5, "0.5"),
        ("boolean", True, "true"),
        ("boolean", False, "false"),
        ("array", ["a", 1], '["a",1]'),
        ("array", ("a",), '["a"]'),
        ("object", {"a": {"b": None}}, '{"a":{"b":null}}'),
        ("string", "", ""),
        ("number", 0, "0"),
    ],
)
def test_p3_a_value_is_filled_in_as_text_or_as_json(kind: str, value: Any, text: str) -> None:
    assert said("<{{a}}>", {"a": value}, a={"type": kind}) == f"<{text}>"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 5),
        ("string", None),
        ("number", "5"),
        ("number", True),
        ("number", float("nan")),
        ("number", float("inf")),
        ("boolean", "true"),
        ("boolean", 1),
        ("array", "a"),
        ("array", {"a": 1}),
        ("object", ["a"]),
        ("object", "{}"),
    ],
)
def test_p3_a_value_of_another_type_is_refused_and_not_converted(kind: str, value: Any) -> None:
    message = refused("<{{a}}>", {"a": value}, a={"type": kind})
    assert message == (
        f"prompts.chat.variables[0]: the value {value!r} for the variable 'a' is no {kind}; give another"
    )


def test_p3_a_huge_number_is_one() -> None:
    assert said("{{a}}", {"a": 10**400}, a={"type": "number"}) == str(10**400)


def test_p3_a_value_that_has_no_form_as_text_is_refused() -> None:
    assert "'a' has no form as text (" in refused("{{a}}", {"a": {"b": object()}}, a={"type": "object"})


def test_p3_what_a_value_says_is_not_filled_in_again() -> None:
    assert said("{{a}}", {"a": "{{b}} {{fragments.f}}", "b": "secret"}, a={}, b={}) == "{{b}} {{fragments.f}}"


def test_p3_parts_of_objects_and_arrays_can_be_referred_to() -> None:
    order = {"lines": [{"title": "Emma"}, {"title": "Ulysses"}]}
    assert said("{{order.lines[1].title}}", {"order": order}, order={"type": "object"}) == "Ulysses"


@pytest.mark.parametrize(
    "template", ["{{a.c}}", "{{a.b.c}}", "{{a.b[0]}}", "{{a[0]}}", "{{a.list[1]}}", "{{a.list.b}}"]
)
def test_p3_a_part_that_a_value_has_not_is_refused(template: str) -> None:
    message = refused(template, {"a": {"b": "text", "list": [1]}}, a={"type": "object"})
    assert message.startswith("prompts.chat.system_template: the variable 'a' has no ")
    assert message.endswith(" where the template looks for it; give a value that has it")


def test_p3_a_part_of_a_text_is_refused_when_the_pack_is_checked() -> None:
    (found,) = issues(pack(system_template="{{a.b}}", variables=[variable("a")]))
    assert found[:2] == ("error", "prompts.chat.system_template")
    assert found[2].startswith("the template refers to a part of 'a', which is a string; write {{a}}, or declare it")


# What is missing


def test_p3_a_required_variable_without_a_value_is_refused() -> None:
    message = refused("{{a}}", a={"required": True})
    assert message == (
        "prompts.chat.variables[0]: the variable 'a' has no value; give it one with variables={'a': ...}"
    )
    assert said("{{a}}", {"a": "x"}, a={"required": True}) == "x"


def test_p3_all_variables_without_a_value_are_listed() -> None:
    needy = pack(variables=[variable(name, required=True) for name in "abc"])
    with pytest.raises(ConfigurationError) as caught:
        needy.agent("chat", variables={"b": "x"})
    assert [issue.partition(":")[0] for issue in caught.value.issues] == [
        "prompts.chat.variables[0]",
        "prompts.chat.variables[2]",
    ]


def test_p3_a_default_is_filled_in_where_no_value_is_given_and_nothing_where_there_is_none() -> None:
    assert said("<{{a}}{{b}}>", a={"default": "x"}, b={}) == "<x>"
    assert said("<{{a}}{{b}}>", {"a": "y"}, a={"default": "x"}, b={"default": None}) == "<y>"


def test_p3_the_default_of_a_required_variable_is_noted_and_not_used() -> None:
    needy = pack(system_template="{{a}}", variables=[variable("a", required=True, default="x")])
    assert [issue[:2] for issue in issues(needy)] == [("note", "prompts.chat.variables[0].default")]
    with pytest.raises(ConfigurationError, match="the variable 'a' has no value"):
        needy.agent("chat")


def test_p3_a_value_for_no_variable_is_refused_with_the_nearest_name() -> None:
    assert refused("{{name}}", {"nmae": "x"}, name={}).endswith("there is no variable 'nmae'; did you mean 'name'?")


def test_p3_a_variable_that_is_not_declared_is_refused_with_the_nearest_name() -> None:
    (found,) = issues(pack(system_template="{{brnach}}", variables=[variable("branch")]))
    assert found == (
        "error",
        "prompts.chat.system_template",
        "the template refers to 'brnach', which is not declared; did you mean 'branch'?",
    )
    (found,) = issues(pack(system_template="{{x}}"))
    assert found[2].endswith("which is not declared; declare it in the variables of the prompt")


@pytest.mark.parametrize(
    "braces", ["{{#if a}}", "{{/if}}", "{{a | upper}}", "{{}}", "{{a b}}", '{{"a": 1}}', "{{{a}}}"]
)
def test_p3_braces_that_hold_no_variable_are_refused(braces: str) -> None:
    found = issues(pack(system_template=f"x {braces} y", variables=[variable("a")]))
    assert [(kind, place) for kind, place, _ in found] == [("error", "prompts.chat.system_template")]
    assert "is neither a variable nor a fragment (there are no conditionals, loops or filters)" in found[0][2]


def test_p3_braces_that_are_never_closed_are_refused() -> None:
    (found,) = issues(pack(system_template="{{a}} {{b", variables=[variable("a"), variable("b")]))
    assert found[2] == "a '{{' is never closed; close it with '}}'"


# What a variable may be


@pytest.mark.parametrize(
    ("fields", "good", "bad", "why"),
    [
        ({"validation": {"pattern": "^[a-z]+$"}}, "abc", "ab1", "does not match '^[a-z]+$'"),
        ({"validation": {"pattern": "b"}}, "abc", "ac", "does not match 'b'"),
        ({"validation": {"min_length": 2}}, "ab", "a", "has 1 characters, 2 at least may be"),
        ({"validation": {"max_length": 2}}, "ab", "abc", "has 3 characters, 2 at most may be"),
        ({"validation": {"min_length": 1, "max_length": 2}}, "ab", "", "has 0 characters, 1 to 2 may be"),
        ({"validation": {"enum": ["a", "b"]}}, "b", "c", "is none of 'a', 'b'"),
        ({"type": "number", "validation": {"minimum": 1}}, 1, 0.5, "is out of range, 1 at least may be"),
        ({"type": "number", "validation": {"maximum": 1}}, 1, 2, "is out of range, 1 at most may be"),
        ({"type": "number", "validation": {"enum": [1, 2]}}, 1.0, 3, "is none of 1, 2"),
        ({"type": "boolean", "validation": {"enum": [True]}}, True, False, "is none of True"),
        ({"type": "array", "validation": {"enum": [[1]]}}, [1], [2], "is none of [1]"),
    ],
)
def test_p3_a_value_must_keep_the_rules(fields: dict[str, Any], good: Any, bad: Any, why: str) -> None:
    said("{{a}}", {"a": good}, a=fields)
    assert refused("{{a}}", {"a": bad}, a=fields).endswith(
        f"the value {bad!r} for the variable 'a' {why}; give another"
    )


def test_p3_true_is_no_1_among_the_allowed_values() -> None:
    assert "is none of 1" in refused("{{a}}", {"a": True}, a={"type": "boolean", "validation": {"enum": [1]}})


@pytest.mark.parametrize(
    ("fields", "kind", "place"),
    [
        ({"default": 5}, "error", "default"),
        ({"default": "x", "validation": {"min_length": 2}}, "error", "default"),
        ({"type": "text"}, "error", "type"),
        ({"name": "a b"}, "error", "name"),
        ({"validation": {"pattern": "("}}, "error", "validation.pattern"),
        ({"validation": {"min_length": "2"}}, "error", "validation.min_length"),
        ({"validation": {"minlength": 2}}, "error", "validation.minlength"),
        ({"validation": []}, "error", "validation"),
        ({"validation": {"min_length": 3, "max_length": 2}}, "error", "validation"),
        ({"type": "number", "validation": {"minimum": 3, "maximum": 2}}, "error", "validation"),
        ({"validation": {"minimum": 1}}, "note", "validation.minimum"),
        ({"type": "number", "validation": {"pattern": "x"}}, "note", "validation.pattern"),
    ],
)
def test_p3_a_declaration_that_cannot_hold_is_an_issue(fields: dict[str, Any], kind: str, place: str) -> None:
    (found,) = issues(pack(variables=[{**variable("a"), **fields}]))
    assert found[:2] == (kind, f"prompts.chat.variables[0].{place}")


def test_p3_a_variable_without_a_name_and_two_of_one_name_are_errors() -> None:
    nameless = pack(variables=[{"type": "string", "required": False}])
    assert [found[:2] for found in issues(nameless)] == [("error", "prompts.chat.variables[0].name")]
    twice = pack(variables=[variable("a"), variable("a")])
    assert issues(twice) == [("error", "prompts.chat.variables[1].name", "there are two variables 'a'; leave one")]


def test_p3_what_the_format_asks_of_a_variable_is_noted_where_it_is_missing() -> None:
    found = issues(pack(system_template="{{a}}", variables=[{"name": "a"}]))
    assert [(kind, place.rpartition(".")[2]) for kind, place, _ in found] == [("note", "type"), ("note", "required")]


# Fragments


@pytest.mark.parametrize("written", ["{{fragments.rules}}", "{{fragment:rules}}", "{{fragment: rules}}", "{{rules}}"])
def test_p3_a_fragment_is_filled_in_however_it_is_written(written: str) -> None:
    root = {"fragments": {"rules": "Whisper, {{a}}."}}
    assert said(f"<{written}>", {"a": "Ann"}, root, a={}) == "<Whisper, Ann.>"


def test_p3_fragments_may_hold_fragments() -> None:
    root = {"fragments": {"a": "{{fragments.b}}{{fragments.b}}{{c}}", "b": "1", "c": "2"}}
    assert said("{{fragments.a}}{{fragments.b}}", {}, root) == "1121"


def test_p3_an_unknown_fragment_is_an_error_with_the_nearest_name() -> None:
    (found,) = issues(pack({"fragments": {"rules": "x"}}, system_template="{{fragments.rulse}}"))
    assert found == (
        "error",
        "prompts.chat.system_template",
        "the template refers to an unknown fragment 'rulse'; did you mean 'rules'?",
    )


def test_p3_what_a_fragment_refers_to_is_held_against_the_prompt_that_uses_it() -> None:
    root = {"fragments": {"rules": "{{closing}}", "unused": "{{nothing}}"}}
    (found,) = issues(pack(root, system_template="{{fragments.rules}}"))
    assert found[1] == "prompts.chat.system_template"
    assert found[2].startswith("the template of the fragment 'rules' refers to 'closing', which is not declared")


@pytest.mark.parametrize(
    ("fragments", "places"),
    [
        ({"a": "{{fragments.a}}"}, ["fragments.a"]),
        ({"a": "{{fragments.b}}", "b": "{{a}}"}, ["fragments.a", "fragments.b"]),
        ({f"f{n}": f"{{{{fragments.f{n + 1}}}}}" for n in range(51)} | {"f51": ""}, ["fragments.f0", "fragments.f1"]),
        ({f"f{n}": f"{{{{fragments.f{n + 1}}}}}" * 9 for n in range(6)} | {"f6": "ab"}, ["fragments.f0"]),
        ({"a": "{{#each}}"}, ["fragments.a"]),
        ({"a": 5}, ["fragments.a"]),
    ],
)
def test_p3_a_fragment_that_is_endless_or_none_is_an_error(fragments: dict[str, Any], places: list[str]) -> None:
    found = issues(pack({"fragments": fragments}))
    assert [(kind, place) for kind, place, _ in found] == [("error", place) for place in places]


def test_p3_fragments_within_fragments_are_fine_where_they_end() -> None:
    fragments = {f"f{n}": f"{{{{fragments.f{n + 1}}}}}" for n in range(49)} | {"f49": "end"}
    assert said("{{fragments.f0}}", {}, {"fragments": fragments}) == "end"


def test_p3_a_variable_and_a_fragment_of_one_name_are_refused() -> None:
    (found,) = issues(pack({"fragments": {"a": "x"}}, variables=[variable("a")]))
    assert found[:2] == ("error", "prompts.chat.variables")
    assert found[2] == "'a' is a variable, and a fragment of the pack too; rename one of them"
