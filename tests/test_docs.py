"""What the documents show is what happens: this plays every page, and reads what it says of the code.

A page is played from top to bottom, in one process, in an empty directory of its own. In it

- a `python` snippet that begins with `# desk.py` is that file; a command further down uses it,
- a `json` snippet is the file that was named last before it, as in "Write `desk.json`:",
- any other `python` snippet runs after those above it, in the same module, and a warning fails it,
- an `sh` snippet is run line by line. Only `PLAYED` commands are: others fetch or install, and are for a reader. A
  command exits with 0, unless its line goes on with `; echo $?`. `uvicorn` serves until the page ends, which is when it
  has printed all that it prints; it is asked at a free port in place of 8000,
- a `toml` snippet is a `pyproject.toml`, and what it names as entry points is as good as installed from then on,
- a `text` snippet is all that the snippet before it printed, to the letter; only how long pytest took may differ.
  A snippet without one prints nothing,
- a fence without a language is a picture, and no Python.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from textwrap import dedent
from time import monotonic, sleep
from types import ModuleType
from typing import NamedTuple

import pytest

import middlechain
import middlechain.guardrails
import middlechain.packs
import middlechain.sessions
import middlechain.testing
from middlechain import errors, events
from middlechain.events import payload_fields

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PLAYED = {"middlechain", "python", "pytest", "uvicorn"}
TYPED = {".", "cd", "git", "mkdir", "pip", "python3"}
SETTINGS = ("OPENAI_", "PYTEST_", "FORCE_COLOR", "PY_COLORS")  # of a machine, on which no page depends
PATIENCE = 60.0  # seconds for a page

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


class Snippet(NamedTuple):
    """What stands between two fences.

    Args:
        language: as the fence says; `""` for a picture.
        text: the lines between the fences.
        line: where the text begins, from 1.
        above: all that stands above it on the page.
    """

    language: str
    text: str
    line: int
    above: str

    @property
    def file(self) -> str | None:
        """The name of the file that it is, if it is one."""
        if self.language == "json":
            return re.findall(r"`([\w.-]+\.json)`", self.above)[-1]  # type: ignore[no-any-return]  # the group is text
        named = re.match(r"# (\w+\.py)\n", self.text) if self.language == "python" else None
        return None if named is None else named[1]

    @property
    def commands(self) -> list[str]:
        """The commands that are played."""
        lines = self.text.splitlines() if self.language == "sh" else []
        return [line for line in lines if line.split()[0] in PLAYED]


def snippets(page: Path) -> list[Snippet]:
    text = text_of(page)
    return [
        Snippet(found[1], found[2], text.count("\n", 0, found.start(2)) + 1, text[: found.start()])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


# --- playing a page: this runs in a process of its own ----------------------------------------------------------------


class Player:
    """Plays the snippets of a page in the working directory.

    Args:
        page: whose they are, for tracebacks.
        servers: stops what was started for the page.
    """

    def __init__(self, page: Path, servers: ExitStack) -> None:
        self.page = page
        self.servers = servers
        self.module = sys.modules["__main__"] = ModuleType("__main__")
        self.port = 8000

    def play(self, snippet: Snippet) -> list[str]:
        """What the snippet prints. What a server prints is in it when the page has ended."""
        if snippet.file is not None:
            Path(snippet.file).write_text(snippet.text, encoding="utf-8")
        elif snippet.language == "python":
            return [self.run(snippet)]
        elif snippet.language == "toml":
            self.install(tomllib.loads(snippet.text)["project"])
        printed: list[str] = []
        for line in snippet.commands:
            if line.startswith("uvicorn "):
                self.servers.enter_context(self.serving(line, printed))
            else:
                printed.append(self.command(line))
        return printed

    def run(self, snippet: Snippet) -> str:
        code = "\n" * (snippet.line - 1) + snippet.text.replace("localhost:8000", f"localhost:{self.port}")
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, str(self.page), "exec", dont_inherit=True), vars(self.module))
        return printed.getvalue()

    def command(self, line: str) -> str:
        ran = subprocess.run(line, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert ran.returncode == 0, f"{line}\n{ran.stdout}"
        return ran.stdout

    @contextmanager
    def serving(self, line: str, printed: list[str]) -> Iterator[None]:
        with socket.create_server(("localhost", 0)) as probe:
            self.port = probe.getsockname()[1]
        command = [*shlex.split(line), "--port", str(self.port), "--log-level", "warning"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            deadline = monotonic() + PATIENCE
            while not self.listens():
                assert server.poll() is None, line
                assert monotonic() < deadline, line
                sleep(0.01)
            yield
        finally:
            server.terminate()
            printed.append(server.communicate()[0])
            if sys.exc_info()[0] is not None:
                sys.stderr.write(printed[-1])

    def listens(self) -> bool:
        try:
            socket.create_connection(("localhost", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def install(self, project: dict[str, dict[str, dict[str, str]]]) -> None:
        """Make the entry points of a project known to this process, as those of an installed one are."""
        about = Path("installed-1.dist-info")
        about.mkdir()
        lines = [
            line
            for group, points in project["entry-points"].items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
        ]
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n", encoding="utf-8")
        (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def play_page(page: Path) -> None:
    """Play the page, and print what its snippets printed as JSON."""
    sys.path[0] = ""  # as for whoever types along
    with ExitStack() as servers:
        player = Player(page, servers)
        printed = [player.play(snippet) for snippet in snippets(page)]
    print(json.dumps(["".join(pieces) for pieces in printed]))


# --- what the snippets print ------------------------------------------------------------------------------------------


def start(page: Path, directory: Path) -> list[str]:
    """What the snippets of a page print; a process of its own plays it, if there is anything to be played."""
    if not any(snippet.language == "python" or snippet.commands for snippet in snippets(page)):
        return []
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "error",
        "PYTHONUNBUFFERED": "1",  # a server that is terminated has printed all that it has to say
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a reader has pytest and the library, and what comes with that
        "PYTEST_PLUGINS": "anyio.pytest_plugin",
        "COLUMNS": "80",
    }
    command = [sys.executable, __file__, str(page)]
    ran = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    printed: list[str] = json.loads(ran.stdout)
    return printed


@pytest.fixture(scope="module")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Future[list[str]]]]:
    """All pages are played at once, since they wait for processes most of the time."""
    with ThreadPoolExecutor(4) as threads:
        yield {page: threads.submit(start, page, tmp_path_factory.mktemp(page.stem)) for page in PAGES}


def without_times(text: str) -> str:
    return re.sub(r"in \d+\.\d\ds", "in 0.01s", text)


@by_page
def test_a_page_prints_what_it_shows(page: Path, playing: dict[Path, Future[list[str]]]) -> None:
    on_page = snippets(page)
    for place, printed in enumerate(playing[page].result()):
        after = on_page[place + 1] if place + 1 < len(on_page) else None
        shown = after.text if after is not None and after.language == "text" else ""
        if on_page[place].language not in {"text", ""}:
            assert without_times(printed) == without_times(shown), f"{page}:{on_page[place].line}"


@by_page
def test_every_fence_says_what_it_is(page: Path) -> None:
    found = snippets(page)
    assert text_of(page).count("```") == 2 * len(found), "a fence begins its line, and is closed"
    for before, snippet in zip([None, *found], found, strict=False):
        where = f"{page}:{snippet.line}"
        assert snippet.language in {"python", "sh", "console", "toml", "json", "text", ""}, where
        if snippet.language == "json":
            assert json.loads(snippet.text), where
        if not snippet.language:
            with pytest.raises(SyntaxError):
                compile(snippet.text, where, "exec")
        if snippet.language == "text":
            assert before is not None, where
            assert before.commands or (before.language == "python" and before.file is None), f"{where} follows nothing"
        if snippet.language == "sh":
            words = {line.split()[0] for line in snippet.text.splitlines()}
            assert words <= PLAYED | TYPED, f"{where}: say of {words - PLAYED - TYPED} whether it is played"


@by_page
def test_a_file_on_a_page_is_used_there(page: Path) -> None:
    found = snippets(page)
    for snippet in found:
        if snippet.file is not None:
            others = "\n".join(other.text for other in found if other is not snippet)
            by_pytest = re.search(r"^pytest( -q)?$", others, re.MULTILINE)
            assert by_pytest or snippet.file.removesuffix(".py") in others, f"{page}:{snippet.line}: nothing uses it"


# --- what the pages say -----------------------------------------------------------------------------------------------


def prose_of(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings: list[str] = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, each with the anchor in it, or `""`."""
    targets: list[str] = re.findall(r"\]\(([^)\s]+)\)", prose_of(page))
    parted = [target.partition("#") for target in targets if not target.startswith("https://")]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in parted]


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in links_of(page):
        assert target.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors_of(target), f"{page} links to #{anchor} in {target}"


def test_the_map_has_every_page_and_the_readme_has_the_map() -> None:
    on_map = {target for target, _ in links_of(DOCS / "README.md")}
    assert set(DOCS.rglob("*.md")) - on_map == {DOCS / "README.md"}
    assert DOCS / "README.md" in {target for target, _ in links_of(ROOT / "README.md")}


def listed(section: str) -> list[str]:
    """The names that a section of the list of names explains."""
    _, _, rest = text_of(DOCS / "reference" / "names.md").partition(f"\n## {section}\n")
    return re.findall(r"^- `(\w+)`: ", rest.partition("\n## ")[0], re.MULTILINE)


MODULES = [middlechain, middlechain.guardrails, middlechain.packs, middlechain.sessions, middlechain.testing]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_name_is_explained_once(module: ModuleType) -> None:
    assert sorted(listed(f"From `{module.__name__}`")) == sorted(module.__all__)


def rows_of(page: str) -> dict[str, str]:
    """The rows of a page's tables, by the names in their first cells."""
    rows = re.findall(r"^\| (`.+?) \|(.*)\|$", text_of(DOCS / "reference" / page), re.MULTILINE)
    return {name: rest for first, rest in rows for name in re.findall(r"`(\w+)`", first)}


def test_every_error_has_a_row_and_the_tree_is_that_of_the_code() -> None:
    assert rows_of("errors.md").keys() == set(errors.__all__) - {"MiddlechainError"}
    drawn = next(snippet.text for snippet in snippets(DOCS / "reference" / "errors.md") if not snippet.language)
    in_code = (errors.__doc__ or "").partition("\n\n    ")[2].partition("\n\n")[0]

    def tree(text: str) -> list[str]:
        return re.findall(r"^[│├└─ ]*\w+", text, re.MULTILINE)

    assert tree(drawn) == tree(dedent(f"    {in_code}"))


def test_every_event_has_a_row_that_names_its_fields() -> None:
    rows = rows_of("events.md")
    kinds = {name: kind for name, kind in vars(events).items() if name in middlechain.__all__ and name != "Event"}
    assert kinds.keys() == {name for name in rows if name in vars(events)}
    for name, kind in kinds.items():
        assert [field for field in payload_fields(kind) if f"`{field}`" not in rows[name]] == [], name
    shared = [name for name, value in vars(events.Event).items() if isinstance(value, property)]
    assert {*shared, "seq"} == rows.keys() - kinds.keys()


def test_every_room_is_in_the_picture_once() -> None:
    (picture,) = snippets(DOCS / "explanation" / "architecture.md")
    rooms = [room for line in picture.text.splitlines() for room in line[:38].split()]
    off_the_corridor = {"__init__", "__main__", "sessions", "testing"}
    source = Path(middlechain.__file__).parent
    assert sorted(rooms) == sorted({path.stem for path in source.glob("*.py")} - off_the_corridor)


def test_the_readme_shows_the_example_that_is_run() -> None:
    (code,) = (snippet.text for snippet in snippets(ROOT / "README.md") if snippet.language == "python")
    assert text_of(ROOT / "examples" / "hello.py").endswith(code)


def test_the_contract_is_cited_by_the_tests() -> None:
    """Each clause that is built has tests that bear its id."""
    clauses = set(re.findall(r"\*\*([MHTGSCLPOK]\d+)\*\*", text_of(DOCS / "reference" / "contract.md")))
    tests = "".join(text_of(path) for path in (ROOT / "tests").glob("test_*.py"))
    cited = {
        clause.upper()
        for clause in re.findall(r"test_((?:[mhtgsclpok]\d+_)+)", tests)
        for clause in clause.strip("_").split("_")
    }
    assert clauses - cited == set()


if __name__ == "__main__":
    play_page(Path(sys.argv[1]))
