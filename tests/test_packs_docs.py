"""What the documents say of packs is what happens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from middlechain.packs import load
from middlechain.packs.checks import _OF_PACK, _OF_PROMPT

DOCS = Path(__file__).resolve().parent.parent / "docs"


def blocks(document: str, language: str) -> list[str]:
    text = (DOCS / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_how_to_does_what_it_shows(tmp_path: Path) -> None:
    (pack,) = blocks("how-to/load-a-pack.md", "json")
    (tmp_path / "desk.pack.json").write_text(pack, encoding="utf-8")
    assert load(tmp_path / "desk.pack.json").check() == []
    code = "".join(blocks("how-to/load-a-pack.md", "python"))
    there = f"import os; os.chdir({str(tmp_path)!r})\n"  # in there, so that a relative path to the library still holds
    command = [sys.executable, "-W", "error", "-c", there + code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stderr, ran.stdout) == ("", "".join(blocks("how-to/load-a-pack.md", "text")))


def test_the_pack_of_the_how_to_says_nothing_twice() -> None:
    (pack,) = blocks("how-to/load-a-pack.md", "json")
    assert list(json.loads(pack)["prompts"]) == ["desk"]


def test_the_reference_names_all_that_is_not_supported() -> None:
    text = (DOCS / "reference" / "packs.md").read_text(encoding="utf-8")
    assert [name for name in (*_OF_PACK, *_OF_PROMPT) if f"`{name}`" not in text] == []
