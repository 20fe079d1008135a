"""Validators of packs with the built-in guards (P2, G14): one registry makes both."""

from __future__ import annotations

from typing import Any

import pytest

from middlechain import App, ConfigurationError
from middlechain.guardrails.registry import TYPES
from middlechain.testing import ScriptedModel

from .conftest import Go
from .packs.build import issues, pack

PHRASE = {"pattern": r"(?i)\bblue folder\b", "expect_match": False, "message": "Not that one."}


def validator(type: str, **params: Any) -> dict[str, Any]:
    return {"type": type, "enabled": True, "params": params}


@pytest.mark.parametrize("direction", ["input", "output", "both"])
@pytest.mark.anyio
async def test_p2_a_pattern_blocks_on_its_side_with_its_message(go: Go, direction: str) -> None:
    made = pack(validators=[validator("regex", **PHRASE, direction=direction)])
    for side, text in (("input", "The Blue Folder, please"), ("output", "q")):
        model = ScriptedModel(["It is in the blue folder." if side == "output" else "Here."])
        result = await go(App(), made.agent("chat", model=model), text)
        hit = direction in {side, "both"}
        assert (result.blocked, result.text == "Not that one.") == (hit, hit)
        assert [one.type for one in result.validations if not one.passed] == (["regex"] if hit else [])


@pytest.mark.anyio
async def test_p2_text_that_keeps_the_rules_passes(go: Go) -> None:
    made = pack(validators=[validator("regex", **PHRASE, direction="both"), validator("length", max_characters=20)])
    result = await go(App(), made.agent("chat", model=ScriptedModel(["Here."])), "The red folder")
    assert (result.text, result.blocked) == ("Here.", False)


def test_p2_all_that_is_wrong_with_validators_is_listed_at_once() -> None:
    made = pack(
        validators=[
            validator("banned_words", words=[]),
            validator("regex", pattern="("),
            validator("banned_word", words=["x"]),
            validator("length", max_characters="many", direction="sideways"),
            validator("regex", patern="x"),
        ]
    )
    found = [(kind, place.removeprefix("prompts.chat.validators")) for kind, place, _ in issues(made)]
    assert found == [
        ("error", "[0].params"),
        ("error", "[1].params"),
        ("error", "[2].type"),
        ("error", "[3].params.direction"),
        ("error", "[3].params"),
        ("error", "[4].params"),
        ("error", "[4].params"),
    ]
    assert "did you mean 'banned_words'?" in issues(made)[2][2]
    with pytest.raises(ConfigurationError) as caught:
        made.agent("chat")
    assert len(caught.value.issues) == len(found)


@pytest.mark.parametrize("type", sorted(TYPES))
def test_g14_each_built_in_can_be_named_by_a_pack_and_refuses_a_parameter_that_it_has_not(type: str) -> None:
    found = [(place, message) for _, place, message in issues(pack(validators=[validator(type, colour="red")]))]
    assert any(place.endswith("[0].params") and "'colour'" in message for place, message in found)
    assert not any(place.endswith("[0].type") for place, _ in found)
