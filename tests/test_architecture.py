"""Imports only ever point down the page, and `import middlechain` is light and quiet."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import middlechain

SOURCE = Path(middlechain.__file__).parent
# The page, top to bottom. A room may import those below it.
PAGE = """
    app conversation streams options checks explanation runs delegation flows rows branches members steps answering
    resuming turn outcomes targets watch append_only edge agent holds layers judging pauses results guards
    structured chat registry execution approval nested tool_calls admission override tools values signature records
    context bus variables background limits lifespan events chain messages parts errors
""".split()  # noqa: SIM905 - a page
# These may import the page; the page never imports them.
OFF_THE_CORRIDOR = ("guardrails", "packs", "models", "cli", "sessions", "testing", "helpdesk")
FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.name != "__main__.py" and path.parent.name != "__pycache__"
)


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def at_run_time(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports in a file, in functions too, without those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from (found for other in child.orelse for found in at_run_time(other))
        else:
            yield from at_run_time(child)


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that one statement imports, in full."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.module == "middlechain":  # from middlechain import messages: a room, or something out of __init__
        return [f"middlechain.{alias.name}" for alias in node.names]
    return [node.module or ""]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_only_ever_point_down_the_page(path: Path) -> None:
    room = room_of(path)
    assert room in (*PAGE, *OFF_THE_CORRIDOR, "__init__"), f"{room} is a new room: give it a place in PAGE"
    for node in at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{path.name}:{node.lineno}"
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{where}: write the import in full"
        for name in imported(node):
            assert name.partition(".")[0] != "asyncio", f"{where} imports asyncio; use anyio, so that trio works too"
            top, _, below = name.partition(".")
            if top != "middlechain" or room not in PAGE:
                continue
            other = below.partition(".")[0]
            assert other in PAGE, f"{where}: {room} imports {name}, which is off the corridor; move what it needs down"
            assert PAGE.index(other) > PAGE.index(room), (
                f"{where}: {room} imports {name}, which lies above it; move what it needs to a room below {room}, "
                f"or {other} down the page"
            )


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) == "models"], ids=lambda path: path.name)
def test_the_models_need_no_app(path: Path) -> None:
    above = PAGE[: PAGE.index("chat")]
    names = [name for node in at_run_time(ast.parse(path.read_text(encoding="utf-8"))) for name in imported(node)]
    assert not [name for name in names if name.split(".")[1:2] and name.split(".")[1] in above]


def test_every_room_of_the_page_exists() -> None:
    assert [room for room in PAGE if not (SOURCE / f"{room}.py").is_file()] == []


def test_the_page_has_no_room_twice_and_none_of_its_names_is_exported() -> None:
    assert len(set(PAGE)) == len(PAGE)
    assert set(PAGE) & set(middlechain.__all__) == set()


def fresh(code: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["openai", "httpx", "httpx2", "structlog", "pydantic", "trio", "typer", "rich"])
def test_import_middlechain_does_not_import(name: str) -> None:
    assert fresh(f"import sys, middlechain; print({name!r} in sys.modules)") == "False"


def test_import_middlechain_imports_what_it_offers_and_prints_nothing() -> None:
    assert fresh("import middlechain; [getattr(middlechain, name) for name in middlechain.__all__]") == ""


def test_import_middlechain_configures_no_logging() -> None:
    code = "import logging; before = dict(vars(logging.root)); import middlechain; import structlog; "
    assert fresh(code + "print(vars(logging.root) == before, structlog.is_configured())") == "True False"


def test_import_middlechain_reads_no_environment() -> None:
    code = (
        "import os, anyio, dataclasses, typing_extensions, importlib.metadata\n"  # their reads are not ours
        "read = []\n"
        "class Watched(dict):\n"
        "    def __getitem__(self, key): read.append(key); return super().__getitem__(key)\n"
        "    def get(self, key, default=None): read.append(key); return super().get(key, default)\n"
        "os.environ = Watched(os.environ)\n"
        "import middlechain\n"
        "print(read)"
    )
    assert fresh(code) == "[]"
