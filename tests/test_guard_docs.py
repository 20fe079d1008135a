"""The page on built-in guards has a row for every parameter, and the look-alikes that the code has (G11, G12)."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from middlechain.guardrails.credentials import SECRET_KINDS
from middlechain.guardrails.folding import LOOK_ALIKES
from middlechain.guardrails.parameters import Options
from middlechain.guardrails.personal_data import PII_KINDS
from middlechain.guardrails.registry import OTHER_NAMES, TYPES
from middlechain.guards import Guard

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "reference" / "guardrails.md").read_text(encoding="utf-8")


def tables() -> list[list[list[str]]]:
    """The cells of each table, without its head."""
    found = re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE)
    return [
        [[cell.strip() for cell in row.strip("|").split("|")] for row in table.split("\n")[2:-1]] for table in found
    ]


def parameters() -> dict[str, dict[str, tuple[str, str]]]:
    """For each guard in the table: its parameters, each with its other name and its default as they are printed."""
    guards: dict[str, dict[str, tuple[str, str]]] = {}
    for guard, parameter, other, default, _ in tables()[0]:
        if guard:
            guards[guard.strip("`")] = last = {}
        last[parameter.strip("`")] = (other.strip("`"), default.strip("`"))
    return guards


def printed(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def test_g11_the_table_has_every_parameter_with_its_default_and_its_names() -> None:
    table = parameters()
    shared = table.pop("all")
    assert table.keys() == TYPES.keys()
    for type, factory in TYPES.items():
        of_pack = {name: other for other, name in OTHER_NAMES.get(type, {}).items()}
        assert table[type] == {
            name: (of_pack.get(name, ""), "" if one.default is one.empty else printed(one.default))
            for name, one in inspect.signature(factory).parameters.items()
            if one.kind is not one.VAR_KEYWORD
        }
    assert shared.keys() == Options.__annotations__.keys()
    defaults = {name: one.default for name, one in inspect.signature(Guard).parameters.items()}
    assert {name: default for name, (_, default) in shared.items() if name != "name"} == {
        name: printed(defaults[name]) for name in shared if name != "name"
    }


def test_g12_the_look_alikes_are_those_of_the_code() -> None:
    rows = next(table for table in tables() if len(table[0]) == 2 and table[0][0] == "a")
    assert {character: letter for letter, row in rows for character in row.split()} == dict(LOOK_ALIKES)


def test_g11_the_kinds_are_those_of_the_code() -> None:
    named = [set(re.findall(r"`(\w+)`", row[0])) for table in tables() for row in table if len(row) == 2]
    assert set(PII_KINDS) | set(SECRET_KINDS) == {name for names in named for name in names}
    for factory, kinds in (("pii", PII_KINDS), ("secrets", SECRET_KINDS)):
        (row,) = [row for row in tables()[0] if row[1] == "`kinds`" and f"(#{factory})" in row[4]]
        assert re.findall(r"`(\w+)`", row[4]) == list(kinds)
        assert all(f"`{kind}`" in (TYPES[factory].__doc__ or "") for kind in kinds)


@pytest.mark.anyio
async def test_the_guard_of_the_page_on_presidio_works_with_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class AnalyzerEngine:
        def analyze(self, text: str, entities: list[str], language: str, score_threshold: float) -> list[Any]:
            assert (language, score_threshold) == ("en", 0.5)
            return [SimpleNamespace(start=found.start(), end=found.end()) for found in re.finditer("Ada", text)]

    class AnonymizerEngine:
        def anonymize(self, text: str, analyzer_results: list[Any]) -> Any:
            for found in reversed(analyzer_results):
                text = f"{text[: found.start]}<PERSON>{text[found.end :]}"
            return SimpleNamespace(text=text)

    for name, engine in (("presidio_analyzer", AnalyzerEngine), ("presidio_anonymizer", AnonymizerEngine)):
        module: Any = ModuleType(name)
        setattr(module, engine.__name__, engine)
        monkeypatch.setitem(sys.modules, name, module)
    page = (DOCS / "how-to" / "use-presidio.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "presidio_guard"}
    exec(compile(code, "presidio_guard.py", "exec"), names)
    assert await names["no_names"]("Ada met Ada.", None) == "<PERSON> met <PERSON>."
    assert await names["no_names"]("Nobody met nobody.", None) is None
    assert names["desk"]("demo").agents["desk"].name == "desk"
