"""Loading packs: what can be read, and what is refused before anything of it is kept (P1)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from middlechain import ConfigurationError
from middlechain.packs import load, loads

from .packs.build import BROKEN, DESK, data


def refused(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        loads(text, "mine.json")
    assert "'mine.json'" in str(caught.value)
    assert "; " in str(caught.value)  # what happened; the fix
    return str(caught.value)


def test_p1_a_pack_is_loaded_from_a_file_and_has_its_prompts() -> None:
    for path in (DESK, str(DESK)):
        pack = load(path)
        assert (pack.id, pack.prompts) == ("library-desk", ("desk", "greeter"))
        assert repr(pack) == f"Pack({str(DESK)!r}, prompts=['desk', 'greeter'])"


def test_p1_a_pack_without_an_id_has_an_empty_one() -> None:
    assert loads(json.dumps({"prompts": {"chat": {}}})).id == ""
    assert loads(json.dumps({"id": 5, "prompts": {"chat": {}}})).id == ""


def test_p1_a_pack_whose_content_is_wrong_is_loaded_so_that_it_can_be_checked() -> None:
    assert load(BROKEN).prompts == ("desk", "greeter")


def test_p1_a_byte_order_mark_is_no_reason_to_refuse(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    path.write_text(json.dumps(data()), encoding="utf-8-sig")
    assert load(path).check() == []


@pytest.mark.parametrize("name", ["nowhere.json", "", "a\0b"])
def test_p1_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read \(.*\); give the path of a JSON file"):
        load(f"{tmp_path}/{name}")


def test_p1_a_file_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    path.write_bytes(json.dumps(data(description="é"), ensure_ascii=False).encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"is no UTF-8 \(.*\); save it as UTF-8"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "prompts: {}",
        '{"prompts": {"chat": {"parameters": {"temperature": NaN}}}}',
        '{"prompts": {"chat": {"system_template": "\\ud800"}}}',
        "[" * 100_000,
    ],
)
def test_p1_what_is_no_json_is_refused(text: str) -> None:
    assert "is no JSON (" in refused(text)


@pytest.mark.parametrize("text", ["[]", '"a pack"', "null", "5"])
def test_p1_json_that_is_no_object_is_no_pack(text: str) -> None:
    assert "not an object; give a PromptPack" in refused(text)


@pytest.mark.parametrize("text", ["{}", '{"prompts": {}}', '{"prompts": []}', '{"name": "middlechain"}'])
def test_p1_an_object_without_prompts_is_no_pack(text: str) -> None:
    assert "is no pack: it has no prompts" in refused(text)


def test_p1_a_key_that_stands_twice_is_refused_with_all_places() -> None:
    text = '{"prompts": {"chat": {"tools": [{"a b": 1, "a b": 2}], "id": "x", "id": "y", "id": "z"}}}'
    places = 'prompts.chat.id, prompts.chat.tools[0]["a b"]'
    assert f"has keys twice: {places}; leave one of each" in refused(text)


@pytest.mark.parametrize(
    "later",
    [
        {"$schema": "https://promptpack.org/schema/v2/promptpack.schema.json"},
        {"$schema": "https://promptpack.org/schema/v2.0/promptpack.schema.json"},
        {"template_engine": {"version": "v2", "syntax": "{{variable}}"}},
        {"template_engine": {"version": "2.1", "syntax": "{{variable}}"}},
        {"compilation": {"compiled_with": "x", "created_at": "x", "schema": "v3"}},
    ],
)
def test_p1_a_pack_of_a_later_major_version_is_refused(later: dict[str, Any]) -> None:
    (place,) = later
    message = refused(json.dumps(data(**later)))
    assert f"is of a later version than can be read: {place}" in message
    assert message.endswith("give one of version 1, or use a later version of this library")


@pytest.mark.parametrize(
    "known",
    [
        {"$schema": "https://promptpack.org/schema/latest/promptpack.schema.json"},
        {"$schema": "https://promptpack.org/schema/v1.99.0/promptpack.schema.json"},
        {"template_engine": {"version": "v1.7", "syntax": "{{variable}}"}},
        {"compilation": {"compiled_with": "x", "created_at": "x", "schema": "v1"}},
    ],
)
def test_p1_a_pack_of_this_major_version_is_not(known: dict[str, Any]) -> None:
    assert loads(json.dumps(data(**known))).check() == []


def test_p1_a_version_that_is_no_text_is_an_issue_and_no_crash() -> None:
    pack = loads(json.dumps(data(template_engine={"version": 2, "syntax": "{{variable}}"})))
    assert [issue.place for issue in pack.check()] == ["template_engine.version"]


def test_p1_import_middlechain_imports_no_packs() -> None:
    code = "import sys, middlechain; print([name for name in sys.modules if 'packs' in name or name == 'pydantic'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
