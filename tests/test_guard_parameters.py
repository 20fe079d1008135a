"""Bad parameters of built-in guards are refused when they are built, all at once (G9), from code and by type (G14)."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import middlechain.guardrails
from middlechain import ConfigurationError
from middlechain.guardrails import (
    banned_words,
    check,
    contains,
    json_schema,
    json_valid,
    length,
    min_length,
    pii,
    prompt_injection,
    regex,
    secrets,
)
from middlechain.guardrails.parameters import needed
from middlechain.guardrails.registry import OTHER_NAMES, TYPES, build
from middlechain.guards import Guard

# What each guard needs to be built.
ENOUGH: dict[str, dict[str, Any]] = {
    "banned_words": {"words": ["bad"]},
    "regex": {"pattern": "a+"},
    "contains": {"patterns": ["hello"]},
    "length": {"max_characters": 500},
    "min_length": {"min_characters": 3},
    "json_valid": {},
    "json_schema": {"schema": {"type": "object"}},
    "pii": {},
    "secrets": {},
    "prompt_injection": {},
    "check": {"fn": str.isascii},
}
EVERY = [(factory, ENOUGH[type]) for type, factory in TYPES.items()]


def issues(make: Callable[[], Guard]) -> list[str]:
    """What is wrong, one sentence each."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    found = list(caught.value.issues)
    assert found
    assert all(issue in str(caught.value) for issue in found)
    return found


# A bad parameter of each kind, and what the one sentence about it says: the parameter, the value, the fix.
BAD: list[tuple[Callable[..., Guard], dict[str, Any], str]] = [
    (banned_words, {"words": []}, "words=[]; give a list of texts, none of them empty"),
    (banned_words, {"words": "bad"}, "words='bad'; give a list of texts"),
    (banned_words, {"words": {"bad": 1}}, "words={'bad': 1}; give a list of texts"),
    (banned_words, {"words": 3}, "words=3; give a list of texts"),
    (banned_words, {"words": ["bad", 3]}, "words= has 3; give a list of texts"),
    (banned_words, {"words": ["bad", " "]}, "words= has ' '; give a list of texts, none of them empty"),
    (banned_words, {"words": ["bad", "\u200b"]}, "leave it out"),
    (banned_words, {"words": ["bad"], "match": "prefix"}, "match='prefix'; give 'word' or 'substring'"),
    (banned_words, {"words": ["redacted"], "outcome": "rewrite"}, "it is itself what the guard looks for"),
    (regex, {"pattern": "("}, "the pattern '(' is not valid"),
    (regex, {"pattern": r"(a)\1"}, "check(fn)"),
    (regex, {"pattern": 3}, "pattern=3; give a pattern"),
    (regex, {"pattern": "a", "expect_match": "yes"}, "expect_match='yes'; give True or False"),
    (regex, {"pattern": "a", "fold": 1}, "fold=1; give True or False"),
    (regex, {"pattern": "a", "expect_match": True, "outcome": "rewrite"}, "nothing to rewrite where a match"),
    (regex, {"pattern": "a", "expect_match": True, "replacement": 1}, "replacement=1; give a text"),
    (contains, {"patterns": []}, "patterns=[]; give a list of texts"),
    (contains, {"patterns": [""]}, "patterns= has ''; give a list of texts"),
    (contains, {"patterns": ["\u200b"]}, "leave it out"),
    (length, {}, "max_characters= and max_tokens= are both missing; give at least one of them"),
    (length, {"max_characters": -1}, "max_characters=-1; give a whole number from 0 up"),
    (length, {"max_tokens": 2.5}, "max_tokens=2.5; give a whole number from 0 up"),
    (length, {"max_tokens": True}, "max_tokens=True; give a whole number from 0 up"),
    (min_length, {"min_characters": 0}, "min_characters=0; give a whole number from 1 up"),
    (json_schema, {"schema": True}, "schema=True; give a JSON schema"),
    (json_schema, {"schema": {"type": "objekt"}}, "it is no JSON schema: 'objekt' is not valid"),
    (json_schema, {"schema": {"const": object()}}, "it is not JSON"),
    (json_schema, {"schema": {"const": float("nan")}}, "it is not JSON"),
    (json_schema, {"schema": {"$schema": "https://example.com/x"}}, "its $schema 'https://example.com/x' is unknown"),
    (json_schema, {"schema": {"items": [{"$ref": "https://example.com/x"}]}}, "is no JSON schema"),
    (json_schema, {"schema": {"allOf": [{"$ref": "https://example.com/x"}]}}, "leads nowhere in it"),
    (json_schema, {"schema": {"$ref": "#/$defs/x"}}, "'#/$defs/x' leads nowhere in it; put what it means under $defs"),
    (json_schema, {"schema": {"$dynamicRef": "#x"}}, "'#x' leads nowhere in it"),
    (json_schema, {"schema": {"not": {"pattern": r"(a)\1"}}}, "has a back-reference"),
    (json_schema, {"schema": {"pattern": "a)(?:b"}}, "it is no JSON schema"),
    (json_schema, {"schema": {"patternProperties": {"a": {}}}}, "patternProperties, which no guard matches"),
    (pii, {"kinds": []}, "kinds=[]; give a list of texts"),
    (pii, {"kinds": ["emial"]}, "kinds= has the unknown 'emial' (did you mean 'email'?); give any of email"),
    (secrets, {"kinds": ["github", "azure"]}, "kinds= has the unknown 'azure'; give any of aws, github"),
    (check, {"fn": 3}, "fn=3; give a function of (text), or of (text, ctx)"),
    (check, {"fn": lambda: True}, "give a function of (text)"),
    (check, {"fn": lambda a, b, c: True}, "give a function of (text)"),
    (check, {"fn": str.isascii, "reason": None}, "reason=None; give a text"),
]  # fmt: skip


@pytest.mark.parametrize(("factory", "given", "said"), BAD)
def test_g9_a_bad_parameter_is_refused_with_its_value_and_the_fix(
    factory: Callable[..., Guard], given: dict[str, Any], said: str
) -> None:
    (issue,) = issues(lambda: factory(**given))
    assert said in issue
    assert issues(lambda: build(factory.__name__, given)) == [issue]


BAD_OPTIONS: list[tuple[str, Any, str]] = [
    ("outcome", "block", "outcome='block'; give 'enforce' or 'deny'"),
    ("outcome", ["deny"], "outcome=['deny']; give 'enforce' or 'deny'"),
    ("name", "", "the name of a guard is ''"),
    ("mode", "watch", "mode='watch'; give 'enforce' or 'observe'"),
    ("timeout", -1, "timeout=-1; give seconds above 0"),
    ("on_failure", "ignore", "on_failure='ignore'; give 'deny' or 'allow'"),
    ("when", "never", "when='never'; give 'reply' or 'final'"),
    ("hold", -1, "hold=-1; give a number of characters"),
    ("id", 17, "id=17; give a text"),
    ("audit", "yes", "audit='yes'; give True or False"),
    ("message", 3, "message=3; give a text, or None"),
    ("mesage", "No.", "there is no parameter 'mesage' (did you mean 'message'?)"),
    ("direction", "input", "there is no parameter 'direction'; there are "),
]


@pytest.mark.parametrize(("option", "value", "said"), BAD_OPTIONS)
@pytest.mark.parametrize(("factory", "enough"), EVERY)
def test_g9_every_guard_refuses_bad_options(
    factory: Callable[..., Guard], enough: dict[str, Any], option: str, value: object, said: str
) -> None:
    (issue,) = issues(lambda: factory(**enough, **{option: value}))
    assert said in issue


@pytest.mark.parametrize("factory", [contains, length, min_length, json_valid, json_schema, check])
def test_g11_what_has_no_match_cannot_be_rewritten(factory: Callable[..., Guard]) -> None:
    enough = ENOUGH[factory.__name__]
    assert issues(lambda: factory(**enough, outcome="rewrite")) == ["outcome='rewrite'; give 'enforce' or 'deny'"]
    (issue,) = issues(lambda: factory(**enough, replacement="*"))
    assert issue.startswith("there is no parameter 'replacement'")


@pytest.mark.parametrize("factory", [banned_words, regex, pii, secrets, prompt_injection])
def test_g11_a_replacement_is_a_text(factory: Callable[..., Guard]) -> None:
    (issue,) = issues(lambda: factory(**ENOUGH[factory.__name__], replacement=None))
    assert issue == "replacement=None; give a text"


def test_g9_all_that_is_wrong_is_said_at_once() -> None:
    made: Any = banned_words
    assert len(issues(lambda: made([], match="x", timeout=0, mesage="No.", outcome="no", replacement=3))) == 6
    assert len(issues(lambda: regex("(", fold=1, expect_match=2, audit=3))) == 4  # type: ignore[arg-type]
    assert len(issues(lambda: length(max_characters=-1, max_tokens=-1))) == 2
    assert len(issues(lambda: pii(kinds=["a", "b"]))) == 2  # type: ignore[list-item]
    assert len(issues(lambda: check(3, reason=4))) == 2  # type: ignore[arg-type]


def test_g9_a_message_of_one_issue_is_one_line_and_one_of_several_is_a_list() -> None:
    with pytest.raises(ConfigurationError) as caught:
        length()
    assert str(caught.value).startswith("the guard length() cannot be made: max_characters= and")
    with pytest.raises(ConfigurationError) as caught:
        length(max_characters=-1, max_tokens=-1)
    assert str(caught.value).splitlines()[1:] == [f"- {issue}" for issue in caught.value.issues]


# by type


@pytest.mark.parametrize("type", TYPES)
def test_g14_a_guard_by_type_is_the_one_of_the_function(type: str) -> None:
    guard = build(type, {**ENOUGH[type], "message": "No.", "name": "mine"})
    assert (guard.type, guard.name, guard.message) == (type, "mine", "No.")


def test_g14_the_types_are_those_that_the_package_offers() -> None:
    assert set(TYPES) == set(middlechain.guardrails.__all__) == set(ENOUGH)


def test_g14_a_guard_by_type_judges_as_the_one_of_the_function() -> None:
    context: Any = None
    assert build("length", {"max_characters": 3}).judge("1234", context) == length(max_characters=3).judge(
        "1234", context
    )
    found: Any = build("banned_words", {"words": ["bad"], "outcome": "rewrite", "replacement": "*"}).judge(
        "bad", context
    )
    assert found.text == "*"


def test_g14_packs_have_other_names_for_some_parameters() -> None:
    context: Any = None
    assert build("length", {"max": 3}).judge("1234", context) is not None
    assert build("min_length", {"min": 3}).judge("12", context) is not None
    assert set(OTHER_NAMES) == {"length", "min_length"}


def test_g14_unknown_missing_and_wrong_parameters_are_listed_together() -> None:
    found = issues(lambda: build("regex", {"patern": "a", "expect_match": "yes", "timeout": 0}))
    for one in (
        "no parameter 'patern' (did you mean 'pattern'?)",
        "timeout=0",
        "expect_match='yes'",
        "pattern=(missing)",
    ):
        assert [issue for issue in found if one in issue], one
    assert len(found) == 4


@pytest.mark.parametrize("type", ["banned_words", "regex", "contains", "min_length", "json_schema", "check"])
def test_g14_what_is_required_is_missed(type: str) -> None:
    (name,) = ENOUGH[type]
    (issue,) = issues(lambda: build(type, {}))
    assert issue.startswith(f"{name}=(missing); give ")


@pytest.mark.parametrize(
    ("type", "said"),
    [
        ("banned_word", "there is no guard of the type 'banned_word' (did you mean 'banned_words'?); there are "),
        ("pii_leakge", "there is no guard of the type 'pii_leakge'; there are banned_words, regex, contains, length, "),
        (3, "there is no guard of the type 3; there are "),
    ],
)  # fmt: skip
def test_g14_an_unknown_type_is_refused_with_the_known_ones(type: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(type, {})
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("params", [None, ["bad"], {3: "bad"}])
def test_g14_parameters_come_by_name(params: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the parameters of a guard 'length' are .*; give them by name"):
        build("length", params)


# the extra


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("stdnum", lambda: pii()),
        ("stdnum", lambda: pii(kinds=["us_ssn"])),
        ("jsonschema", lambda: json_schema({})),
        ("referencing", lambda: json_schema({})),
    ],
)
def test_g11_what_is_not_installed_is_said_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, module: str, make: Callable[[], Guard]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    package = "python-stdnum" if module == "stdnum" else module
    (issue,) = issues(make)
    assert f"it needs {package}, which is not installed" in issue
    assert "pip install 'middlechain[guardrails]'" in issue
    assert pii(kinds=["email", "phone", "ip_address"]).type == "pii"  # these need nothing


def test_g11_a_module_that_is_there_is_given() -> None:
    assert needed("builtins", "pii") is builtins


@pytest.mark.parametrize("name", ["stdnum", "jsonschema", "referencing", "pydantic"])
@pytest.mark.parametrize("imported", ["middlechain", "middlechain.guardrails.registry"])
def test_an_import_does_not_import_what_only_some_guards_need(imported: str, name: str) -> None:
    code = f"import sys, {imported}; print({name!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
