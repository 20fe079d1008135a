"""What the documents show is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(path: Path) -> str:
    """What an example prints; a warning fails it."""
    command = [sys.executable, "-W", "error", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_the_readme_shows_the_example_that_is_run_and_what_it_prints() -> None:
    example = ROOT / "examples" / "hello.py"
    (code,) = blocks("python")
    assert example.read_text(encoding="utf-8").endswith(code)
    assert run(example) == blocks("text")[0]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_offline_and_prints_something(example: Path) -> None:
    assert run(example)


def test_the_contract_is_cited_by_the_tests() -> None:
    """Each clause that is built has tests that bear its id."""
    contract = (ROOT / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
    clauses = set(re.findall(r"\*\*([MHTSCLOK]\d+)\*\*", contract))
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    cited = {
        clause.upper()
        for clause in re.findall(r"test_((?:[mhtsclok]\d+_)+)", tests)
        for clause in clause.strip("_").split("_")
    }
    assert clauses - cited == set()
