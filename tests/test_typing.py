"""The files in `typing/` are user code, right and wrong, as mypy and pyright see it. Here it runs, and so it is alive.

What it claims is checked by `mypy` and `pyright`, both strict, as `.ci/run` calls them. A use that is to be refused
bears both their marks, `# type: ignore[...]` and `# pyright: ignore[...]`, and a mark that is not needed is an error:
a wrong use that is suddenly accepted fails the check. It lies in a function that nobody calls, or it is only defined.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "typing").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_code_for_the_type_checkers_runs(path: Path) -> None:
    import_module(f"tests.typing.{path.stem}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_the_type_checkers_are_to_refuse_is_marked_for_both(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for_mypy = [line for line in lines if "# type: ignore[" in line]
    for_pyright = [line for line in lines if "# pyright: ignore[" in line]
    assert for_mypy
    assert for_mypy == for_pyright
