"""`middlechain pack check` and `middlechain pack run` (P1)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from middlechain.cli.packs import packs

from .packs.build import BROKEN, DESK, data, function, prompt, use_stand_in, variable

Write = Callable[..., str]


def go(*arguments: str) -> int:
    """Run a command of `middlechain pack`, as the command line does; return the exit code."""
    code: object = packs(list(arguments), standalone_mode=False)
    return code if isinstance(code, int) else 0


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a pack with these fields of its prompt `chat`; return its path."""

    def write(root: Any = None, /, **fields: Any) -> str:
        path = tmp_path / "pack.json"
        path.write_text(json.dumps(data({"chat": prompt(**fields)}, **(root or {}))), encoding="utf-8")
        return str(path)

    return write


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that is refused; return the one line that says why."""
    assert go(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    return said.err.removeprefix("error: ").rstrip("\n")


# check


def test_p1_check_prints_a_line_for_each_issue_and_exits_with_2_for_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_in(monkeypatch)
    assert go("check", str(BROKEN)) == 2
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("template_engine.features[0]: unsupported: templates have variables and fragments")
    assert "prompts.greeter.system_template: error: system_template is missing; add it" in lines
    assert all(line.split(": ")[1] in {"error", "unsupported", "note"} for line in lines)
    assert said.err == ""


def test_p1_check_exits_with_0_where_there_are_only_other_issues(
    capsys: pytest.CaptureFixture[str], write: Write
) -> None:
    assert go("check", write(media={})) == 0
    assert capsys.readouterr().out.startswith("prompts.chat.media: unsupported: ")


def test_p1_check_says_so_beside_where_there_is_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert go("check", str(DESK)) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{DESK}: nothing to say\n")


def test_p1_an_issue_stays_on_its_line_and_steers_no_terminal(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    go("check", write(tools=["a\nb\x1b[2J"]))
    (line,) = capsys.readouterr().out.splitlines()
    assert "\x1b" not in line


@pytest.mark.parametrize("command", [["check"], ["run", "chat", "q", "--model", "demo"]])
def test_p1_what_is_no_pack_is_one_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "pack.json"
    path.write_text("[]", encoding="utf-8")
    said = failing(capsys, command[0], str(path), *command[1:])
    assert said == f"the pack {str(path)!r} is a JSON list, not an object; give a PromptPack"


def test_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert go("check", "nowhere.json", "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


# run


def test_p1_run_asks_a_prompt_and_prints_its_answer_alone(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    assert go("run", write(), "chat", "Hello there", "--model", "demo") == 0
    said = capsys.readouterr()
    assert "Hello there" in said.out
    assert said.err == ""


def test_p1_run_reads_the_message_from_standard_input(
    capsys: pytest.CaptureFixture[str], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe\n"))
    assert go("run", write(), "chat", "-", "--model", "demo") == 0
    assert "From a pipe" in capsys.readouterr().out


def test_p3_run_gives_variables_their_values_each_by_its_type(
    capsys: pytest.CaptureFixture[str], write: Write, llmock: Any
) -> None:
    types = {"s": "string", "n": "number", "b": "boolean", "a": "array", "o": "object"}
    declared = [variable(name, type=kind) for name, kind in types.items()]
    path = write(system_template="{{s}} {{n}} {{b}} {{a}} {{o}}", variables=declared)
    values = ["s=5 = five", "n=5.5", "b=true", "a=[1]", 'o={"k": null}']
    options = [part for value in values for part in ("--var", value)]
    llmock.reply("done")
    assert go("run", path, "chat", "q", "--model", "m", "--base-url", llmock.base_url(), *options) == 0
    assert capsys.readouterr().out == "done\n"
    assert llmock.last_request.body["messages"][0]["content"] == '5 = five 5.5 true [1] {"k":null}'


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("name", "--var 'name' sets no variable of the prompt; write --var NAME=VALUE"),
        ("nmae=x", "--var 'nmae=x' sets no variable of the prompt; did you mean 'name'?"),
        ("floor=two", "--var 'floor=two' is no number ("),
    ],
)
def test_p3_a_value_that_cannot_be_one_is_refused(
    capsys: pytest.CaptureFixture[str], write: Write, option: str, message: str
) -> None:
    path = write(variables=[variable("name"), variable("floor", type="number")])
    assert failing(capsys, "run", path, "chat", "q", "--model", "demo", "--var", option).startswith(message)


def test_p3_run_refuses_with_all_that_is_wrong_at_once(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    path = write(variables=[variable("name", required=True)], parameters={"temperature": "warm"})
    said = failing(capsys, "run", path, "chat", "q", "--model", "demo")
    assert "cannot be used; it has 2 issues:\n- prompts.chat.parameters.temperature: " in said


def test_p1_run_needs_a_model(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    said = failing(capsys, "run", write(), "chat", "q")
    assert said == "a pack names no model; add --model NAME, such as openai:gpt-5, or --model demo"


def test_p3_run_refuses_a_prompt_whose_tools_have_no_functions(
    capsys: pytest.CaptureFixture[str], write: Write
) -> None:
    tools = {name: function(name) for name in ("find", "lend")}
    said = failing(capsys, "run", write({"tools": tools}, tools=["find", "lend"]), "chat", "q", "--model", "demo")
    assert said.startswith("the prompt 'chat' has tools, and no functions for them are given here (find, lend); ")


def test_p3_run_asks_a_prompt_all_of_whose_tools_are_blocked(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    path = write({"tools": {"find": function("find")}}, tools=["find"], tool_policy={"blocklist": ["find"]})
    assert go("run", path, "chat", "Hello", "--model", "demo") == 0
    assert "Hello" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["check", "--help"], ["run", "--help"], ["--help"]])
def test_the_help_says_what_there_is(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert go(*arguments) == 0
    assert "pack" in capsys.readouterr().out
