"""Each example prints what its docstring says you will see."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
ALLOWED = sys.stdlib_module_names | {"anyio", "middlechain", "structlog"}

for_each = pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)


def run(*arguments: str | Path) -> str:
    """What Python prints when it is called like that; a warning fails it."""
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def tree_of(example: Path) -> ast.Module:
    return ast.parse(example.read_text(encoding="utf-8"))


def promised(example: Path) -> str:
    """The indented lines after "You will see:"."""
    docstring = ast.get_docstring(tree_of(example)) or ""
    found = re.search(r"^You will see:\n\n((?:    .*\n?|\n(?=\n*    ))+)", docstring, re.MULTILINE)
    assert found is not None, "the docstring has no indented lines after a line that says: You will see:"
    return dedent(found[1]).rstrip("\n") + "\n"


@for_each
def test_an_example_prints_what_it_says(example: Path) -> None:
    assert run(example) == promised(example)


@for_each
def test_an_example_is_one_short_file(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 60
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree_of(example))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else ["." * node.level + (node.module or "")]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= ALLOWED


@for_each
def test_an_example_is_in_the_table(example: Path) -> None:
    rows = re.findall(r"^\| \[(.+)\]\((.+)\) \| .+ \|$", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert (example.name, example.name) in rows
    assert len(rows) == len(list(EXAMPLES.glob("*.py")))


def test_pytest_runs_the_tests_among_them() -> None:
    printed = run("-m", "pytest", "-q", "--no-cov", "-p", "no:cacheprovider", EXAMPLES)
    assert "2 passed" in printed
