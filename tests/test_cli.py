"""The command line: what goes to which side, what comes first, and what is said of bad input."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any, Self

import pytest
import structlog
from typer.testing import CliRunner

from middlechain import (
    AgentFinished,
    ChatReply,
    CustomEvent,
    ModelFinished,
    Result,
    TextDelta,
    ToolCall,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    ToolUse,
    Usage,
)
from middlechain.cli import main
from middlechain.cli.commands import commands
from middlechain.cli.jsonlines import json_line
from middlechain.cli.screen import Answer, OutputClosed, Screen
from middlechain.events import Origin

ABOUT = "(I am a set of rules, not a language model.)"
SHOP = '''
import sys
from middlechain import Agent, App, tool

@tool
def order_status(order_id: int) -> str:
    """Look up the status of one order."""
    print("looking", order_id)
    return f"order {order_id} is shipped"

porter = Agent(name="porter")
app = App(model="demo", agents=[Agent(name="desk", tools=[order_status]), porter])
'''

Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test in a directory of its own, and nothing left of the modules and the logging that it set up."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    structlog.reset_defaults()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"__app__", "shop", "helper"}:
            del sys.modules[name]


@pytest.fixture
def shop(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SHOP)
    return "shop.py:app"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an app's file and give its target."""

    def write(code: str) -> str:
        (tmp_path / "other.py").write_text("from middlechain import *\nimport anyio, sys\n" + dedent(code))
        return "other.py:app"

    return write


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command line in a process of its own."""
    command = [sys.executable, "-m", "middlechain", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, **options)


@contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The real command line while it runs, with the default handling of Ctrl-C, whatever the one here is.

    It is killed when the block ends and after a minute at the latest, so that nothing that reads from it or waits for
    it can hang.
    """
    # A process inherits that a signal is ignored (nohup and background jobs ignore this one), and no other handling
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Whether the streams are buffered must not depend on the environment of whoever runs the tests
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        options = {"env": environment, **options}
        running = subprocess.Popen([sys.executable, "-m", "middlechain", *arguments], text=True, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    with running:
        watchdog = threading.Timer(60, running.kill)
        watchdog.start()
        try:
            yield running
        finally:
            watchdog.cancel()
            running.kill()


class PseudoTerminal:
    """A terminal for a process to write to, and to read from. If it is raw, it hands on what it gets as it is."""

    def __init__(self, raw: bool = True) -> None:
        self._leader, self.follower = pty.openpty()
        self._closed = False
        if raw:
            tty.setraw(self.follower)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._leader)

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def read(self, size: int) -> str:
        return os.read(self._leader, size).decode()

    def read_all(self) -> str:
        """All that comes until the other side is closed."""
        output = b""
        try:
            while part := os.read(self._leader, 65536):
                output += part
        except OSError:  # Linux says so when the other side is closed, or this one
            pass
        return output.decode()

    @contextmanager
    def shows(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """The real command line while it runs and writes here."""
        with started(*arguments, stdout=self.follower, **options) as running:
            os.close(self.follower)
            yield running


def on_a_terminal(*arguments: str) -> tuple[int, str, str]:
    """The exit code of the real command line, what it writes to a terminal, and what to standard error beside it."""
    with PseudoTerminal() as screen, screen.shows(*arguments, stderr=subprocess.PIPE) as running:
        out = screen.read_all()
        _, err = running.communicate()
    return running.returncode, out, err


def failing(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line that these arguments are refused with."""
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch("error: .*\n", err), err
    return err.removeprefix("error: ").rstrip("\n")


# What is said on which side


def test_the_answer_alone_goes_to_standard_output_and_what_tools_print_to_the_other(shop: str) -> None:
    ended = process("run", "shop:app", "What is the status of order 7?")
    assert ended.stdout == f"order_status says: order 7 is shipped {ABOUT}\n"
    assert ended.stderr == "looking 7\n"
    assert ended.returncode == 0


def test_a_file_is_as_good_as_a_module(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", shop, "status of order 7"]) == 0
    assert capsys.readouterr().out == f"order_status says: order 7 is shipped {ABOUT}\n"


def test_a_module_of_the_working_directory_is_found(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "shop:app", "hello"]) == 0
    assert capsys.readouterr().out.startswith("You said: hello\n")


def test_a_file_finds_the_modules_beside_it(tmp_path: Path, shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "helper.py").write_text("NAME = 'beside'")
    (tmp_path / "inner" / "main.py").write_text(
        "from helper import NAME\nfrom middlechain import *\napp = App(model='demo', agents=[Agent(name=NAME)])"
    )
    assert main(["run", "inner/main.py:app", "hello", "--agent", "beside"]) == 0
    assert capsys.readouterr().out == f"You said: hello {ABOUT}\n"


def test_a_dash_reads_the_message_from_standard_input(shop: str) -> None:
    ended = process("run", shop, "-", input="hello\nthere\n")
    assert ended.stdout.startswith("You said: hello\nthere\nNo tool")


def test_the_agent_is_the_first_one_unless_it_is_named(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", shop, "hello"]) == 0
    assert "I have order_status" in capsys.readouterr().out
    assert main(["run", shop, "hello", "--agent", "porter"]) == 0
    assert capsys.readouterr().out == f"You said: hello {ABOUT}\n"


def test_the_model_option_wins_over_the_agents_own_and_over_layers(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write("""
        from middlechain.testing import ScriptedModel
        async def other(call, next):
            return await next(call.replace(model=ScriptedModel(["from the layer"])))
        agent = Agent(name="a", model=ScriptedModel(["from the agent"]), middleware=[Layers(chat=other)])
        app = App(agents=[agent])
    """)
    assert main(["run", target, "hi"]) == 0
    assert capsys.readouterr().out == "from the layer\n"
    assert main(["run", target, "hi", "--model", "demo"]) == 0
    assert capsys.readouterr().out == f"You said: hi {ABOUT}\n"


def test_s3_on_a_terminal_text_is_out_before_the_model_goes_on(write: Write) -> None:
    target = write("""
        from middlechain.testing import ScriptedModel
        model = ScriptedModel(lambda call: ["first ", anyio.to_thread.run_sync(sys.stdin.readline), "second"])
        app = App(agents=[Agent(name="a", model=model)])
    """)
    with PseudoTerminal() as screen, screen.shows("run", target, "hi", stdin=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert screen.read(6) == "first "
        running.stdin.write("go on\n")
        running.stdin.close()
        assert screen.read_all() == "second\n"
        assert running.wait() == 0


LOOK = """
    from middlechain.testing import ScriptedModel
    def look() -> str: return "seen"
    model = ScriptedModel([["Let me", " look.", ToolUse("look")], ["Found", " it.\\n"]])
    app = App(agents=[Agent(name="a", model=model, tools=[look])])
"""


def test_on_a_terminal_texts_of_several_turns_are_separated_by_a_blank_line(write: Write) -> None:
    assert on_a_terminal("run", write(LOOK), "hi") == (0, "Let me look.\n\nFound it.\n", "")


def test_a_pipe_gets_the_final_answer_alone_with_one_newline(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write(LOOK), "hi"]) == 0
    assert capsys.readouterr() == ("Found it.\n", "")


def test_steps_within_steps_are_not_the_answer(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write("""
        from middlechain.testing import ScriptedModel
        async def delegate(ctx: Context) -> str:
            return (await ctx.run(Agent(name="inner", model=ScriptedModel(["inner words"])), "go")).text.upper()
        model = ScriptedModel([[ToolUse("delegate")], "outer words"])
        app = App(agents=[Agent(name="a", model=model, tools=[delegate])])
    """)
    assert main(["run", target, "hi"]) == 0
    assert capsys.readouterr().out == "outer words\n"


CHANGED = """
    from middlechain.testing import ScriptedModel
    class Desk(Agent):
        def after_response(self, response, ctx):
            return "I may not say that."
    app = App(agents=[Desk(model=ScriptedModel([["The code", " is 1234."]]))])
"""


def test_s6_what_a_hook_changes_is_never_on_a_terminal_as_it_was(write: Write) -> None:
    code, text, notes = on_a_terminal("run", write(CHANGED), "hi")
    assert (code, text) == (0, "I may not say that.\n")
    assert "held back by the hook 'Desk.after_response'" in notes


def test_s6_nor_in_a_pipe(write: Write) -> None:
    ended = process("run", write(CHANGED), "hi")
    assert (ended.stdout, ended.stderr) == ("I may not say that.\n", "")


DEGRADED = """
    from middlechain.testing import ScriptedModel
    class Desk(Agent):
        def on_error(self, error, ctx):
            return "Sorry."
    app = App(agents=[Desk(model=ScriptedModel([["Half a", ModelError("it broke")]]))])
"""
IS_DEGRADED = "[degraded: on_error answered in place of ModelError: it broke]\n"


def test_a_degraded_answer_is_said_to_be_one(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write(DEGRADED), "hi"]) == 0
    assert capsys.readouterr() == ("Sorry.\n", IS_DEGRADED)


def test_on_a_terminal_a_degraded_answer_follows_what_it_takes_the_place_of(write: Write) -> None:
    assert on_a_terminal("run", write(DEGRADED), "hi") == (0, "Half a\n\nSorry.\n", IS_DEGRADED)


def test_an_answer_that_a_guardrail_blocked_is_said_to_be(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write("""
        from middlechain.testing import ScriptedModel
        def never(text, ctx): return Enforced("no", "Not here.")
        app = App(agents=[Agent(name="a", model=ScriptedModel(["x"]))], guardrails={"output": [never]})
    """)
    assert main(["run", target, "hi"]) == 0
    assert capsys.readouterr() == ("Not here.\n", "[blocked by the guardrail 'never']\n")


def test_an_answer_that_a_limit_cut_short_is_said_to_be(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write("""
        from middlechain.testing import ScriptedModel
        app = App(agents=[Agent(name="a", model=ScriptedModel(["x"]))], limits=Limits(turns=0, on_exceed="stop"))
    """)
    assert main(["run", target, "hi"]) == 0
    assert capsys.readouterr() == ("", "[stopped (limit): this is what there was by then]\n")


def test_an_empty_answer_is_said_to_be_empty(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write("""
        from middlechain.testing import ScriptedModel
        app = App(agents=[Agent(name="a", model=ScriptedModel([""]))])
    """)
    assert main(["run", target, "hi"]) == 0
    assert capsys.readouterr() == ("", "[the answer is empty]\n")


def test_logs_go_to_standard_error_unless_the_app_says_otherwise(write: Write) -> None:
    code = """
        import structlog
        async def log(call, next):
            call.ctx.log.info("asked")
            return await next()
        {}
        app = App(model="demo", agents=[Agent(name="a")]).use(chat=log)
    """
    ended = process("run", write(code.format("")), "hi")
    assert ended.stdout == f"You said: hi {ABOUT}\n"
    assert "asked" in ended.stderr
    own = "structlog.configure(processors=[lambda *_: 'its own'])"
    ended = process("run", write(code.format(own)), "hi")
    assert (ended.stdout, ended.stderr) == (f"You said: hi {ABOUT}\n", "its own\n")


def test_a_letter_that_the_terminal_lacks_is_no_reason_to_fail(shop: str) -> None:
    for encoding, heard in (("utf-8", "grüße"), ("ascii", "gr??e")):
        ended = process("run", shop, "grüße", encoding="utf-8", env={**os.environ, "PYTHONIOENCODING": encoding})
        assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, f"You said: {heard}")


# Events


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_s8_events_are_one_json_object_a_line_with_their_payload(shop: str) -> None:
    ended = process("run", shop, "status of order 7", "--events")
    events = events_of(ended.stdout)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "RunStarted"
    assert events[-1] == {**events[-1], "type": "RunFinished", "outcome": "completed"}
    started = next(event for event in events if event["type"] == "ToolStarted")
    assert set(started) == {"type", "run_id", "agent", "step", "parent", "turn", "seq", "call"}
    assert started["call"] == {"name": "order_status", "args": {"order_id": 7}, "id": "call_1_0", "problem": None}
    text = "".join(event["text"] for event in events if event["type"] == "TextDelta")
    assert text == next(event for event in events if event["type"] == "AgentFinished")["result"]["text"]
    assert ended.stderr == "looking 7\n"


def test_events_of_a_run_that_fails_are_followed_by_its_error(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write("""
        from middlechain.testing import ScriptedModel
        app = App(agents=[Agent(name="a", model=ScriptedModel([ModelError("it broke")]))])
    """)
    assert main(["run", target, "hi", "--events"]) == 1
    out, err = capsys.readouterr()
    assert events_of(out)[-1]["outcome"] == "failed"
    assert err == "error: the app raised ModelError: it broke; --debug shows where\n"


def test_what_a_layer_emits_is_an_event_like_any_other(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write("""
        async def tell(call, next):
            await call.ctx.emit("seen", {"at": 1, "what": {2}, "nan": float("nan")})
            await call.ctx.emit("odd", object())
            return await next()
        app = App(model="demo", agents=[Agent(name="a")]).use(chat=tell)
    """)
    assert main(["run", target, "hi", "--events"]) == 0
    seen, odd = [event for event in events_of(capsys.readouterr().out) if event["type"] == "CustomEvent"]
    assert (seen["name"], seen["data"]) == ("seen", {"at": 1, "what": [2], "nan": "NaN"})
    assert odd["data"] == "(object has no JSON form)"


def test_c2_data_and_messages_of_exceptions_are_in_no_event() -> None:
    secret = ToolOutput("it failed", is_error=True, data={"key": "hush"}, error=ValueError("hush"))
    call = ToolCall("look", {"a": float("inf")}, "1")
    for event in (
        ToolFinished(call, secret),
        AgentFinished(Result("x", error=ValueError("hush"), state={"k": "hush"})),
    ):
        line = json_line(event)
        assert "hush" not in line
        assert "ValueError" in line
    assert json.loads(json_line(ToolStarted(call)))["call"]["args"] == {"a": "Infinity"}


def test_an_event_stays_on_one_line_and_reads_as_it_was() -> None:
    text = "a\nb\u2028c\x85d \ud800 \U0001f600"
    line = json_line(TextDelta(text))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["text"] == text


def test_a_reply_is_told_whole_and_what_nobody_reported_is_absent() -> None:
    reply = ChatReply("hi", (ToolUse("look", {"a": 1}, "1"),), "because", Usage(input_tokens=3, cost=0.5), "stop", "m")
    assert json.loads(json_line(ModelFinished(reply)))["reply"] == {
        "text": "hi",
        "tool_calls": [{"name": "look", "arguments": '{"a": 1}', "id": "1"}],
        "reasoning": "because",
        "usage": {"input_tokens": 3, "cost": 0.5},
        "finish_reason": "stop",
        "model": "m",
    }
    assert json.loads(json_line(ModelFinished(None)))["reply"] is None


def test_data_that_contains_itself_has_no_json_form() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert json.loads(json_line(CustomEvent("odd", endless)))["data"] == "(list has no JSON form)"


# Bad input: one error, which ends with the fix


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["bogus"], r"No such command 'bogus'; see middlechain --help"),
        (["--bogus"], r"No such option: --bogus.*; see middlechain --help"),
        (["run", "--bogus"], r"No such option: --bogus.*; see middlechain run --help"),
        (["run"], r"Missing argument .*; see middlechain run --help"),
        (["run", "shop.py:app"], r"Missing argument .*; see middlechain run --help"),
        (["run", "shop", "hi"], r"'shop' does not say where the app is; write MODULE:APP or path/to/file.py:APP"),
        (["run", "shop:", "hi"], r"'shop:' does not say where .*; write MODULE:APP or .*"),
        (["run", ":app", "hi"], r"':app' does not say where .*; write MODULE:APP or .*"),
        (["run", "nowhere:app", "hi"], r"there is no module 'nowhere' in '.*' or on sys.path; correct its name, .*"),
        (["run", "nowhere.at.all:app", "hi"], r"there is no module 'nowhere.at.all' in .*; correct its name, .*"),
        (["run", "shop.inner:app", "hi"], r"there is no module 'shop.inner' in .*; correct its name, .*"),
        (["run", ".shop:app", "hi"], r"there is no module '.shop' in .*; correct its name, .*"),
        (["run", "nowhere.py:app", "hi"], r"there is no file 'nowhere.py' in '.*'; correct its path"),
        (["run", "shop.py:bpp", "hi"], r"'shop.py' has no 'bpp'; write shop.py:app"),
        (["run", "shop.py:sys", "hi"], r"'sys' in 'shop.py' is a module, not an App; write shop.py:app"),
        (["run", "shop.py:order_status", "hi"], r"'order_status' in 'shop.py' is a Tool, not an App; .*"),
        (["run", "shop.py:App", "hi"], r"'App' in 'shop.py' is a class, not an App; write shop.py:app"),
        (["run", "shop.py:porter", "hi"], r"'porter' in 'shop.py' is an Agent, not an App; write shop.py:app"),
        (["run", "json:app", "hi"], r"'json' has no 'app'; define one there, such as app = App\(agents=\[...\]\)"),
        (["run", "shop.py:app", "hi", "--agent", "ghost"], r"the app 'app' has no agent 'ghost'; it has: desk, porter"),
        (["run", "shop.py:app", "hi", "--model", "bogus:x"], r"the model 'bogus:x' has no known prefix .*"),
        (["run", "shop.py:app", "hi", "--model", "openai:m"], r"the model 'm' has no API key; set OPENAI_API_KEY, .*"),
        (["run", "shop.py:app", "hi", "--base-url", "http://[::1]/v1"], r".*, but not which model; add --model NAME"),
        (["run", "shop.py:app", "hi", "--model", "m", "--base-url", "here"], r".* is no address; give one such .*"),
        (["run", "shop.py:app", ""], r"the message is empty; say what to ask, or - to read it from standard input"),
        (["run", "shop.py:app", " \n"], r"the message is empty; .*"),
        (["run", "shop.py:app", "\udcff"], r"the message is no text \(.*\); give it as .*"),
        (["demo", ""], r"the message is empty; .*"),
        (["demo", "hi", "--database", "no/such/place"], r"the database .* cannot be used \(.*\); give the path .*"),
    ],
)  # fmt: skip
def test_bad_input_is_one_error_that_ends_with_the_fix(
    shop: str, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    assert re.fullmatch(error, failing(capsys, *arguments))


def test_an_app_without_agents_is_refused(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    error = failing(capsys, "run", write("app = App()"), "hi")
    assert error == "the app 'app' has no agents to ask; give it some with App(agents=[...])"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("app = App(agnets=[])", r"importing 'other.py' failed with ConfigurationError: .*; mend it there, .*"),
        (
            "import no_such_module",
            r"importing 'other.py' failed with ModuleNotFoundError: No module named .*; mend it .*",
        ),
        ("def", r"importing 'other.py' failed with SyntaxError: .*; mend it there, --debug shows the line"),
        ("sys.exit(3)", r"importing 'other.py' failed with SystemExit: 3; mend it there, --debug shows the line"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_error(
    write: Write, capsys: pytest.CaptureFixture[str], code: str, error: str
) -> None:
    assert re.fullmatch(error, failing(capsys, "run", write(code), "hi"))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("from json import no_such_name", "ImportError: cannot import name 'no_such_name'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_misses_another_is_not_taken_for_missing_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, error: str
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    (package / "inner.py").write_text(SHOP)
    assert failing(capsys, "run", "shop.inner:app", "hi").startswith(f"importing 'shop.inner' failed with {error}")


def test_an_unreachable_server_is_one_error(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # a port that nobody listens on
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        error = failing(capsys, "run", shop, "hi", "--model", "m", "--base-url", address)
    assert re.fullmatch(r"the model 'm' cannot be reached at .*; is the server running\? check base_url", error)


def test_an_error_of_the_apps_own_code_is_one_error_with_a_code_of_its_own(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write("""
        def boom(call, next):
            raise ValueError("boom\\x1b[31m")
        app = App(model="demo", agents=[Agent(name="a")]).use(chat=boom)
    """)
    error = failing(capsys, "run", target, "hi", code=1)
    assert error == "the app raised ValueError: boom\ufffd[31m; --debug shows where"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (  # raised by a tool
            """
            def look() -> str: raise FatalToolError("db gone")
            app = App(model="demo", agents=[Agent(name="a", tools=[look])])
            """,
            "FatalToolError: db gone",
        ),
        (  # raised by a model
            """
            class Mine:
                name = "mine"
                async def chat(self, call): raise ModelError("down")
            app = App(model=Mine(), agents=[Agent(name="a")])
            """,
            "ModelError: down",
        ),
        (  # handed to the scripted model
            """
            from middlechain.testing import ScriptedModel
            app = App(model=ScriptedModel([["a", RateLimited("down")]]), agents=[Agent(name="a")])
            """,
            "RateLimited: down",
        ),
        (  # raised by a hook, and of a kind of its own
            """
            class Closed(MiddlechainError): pass
            class Desk(Agent):
                def before_run(self, input, ctx): raise Closed
            app = App(model="demo", agents=[Desk()])
            """,
            "Closed",
        ),
    ],
)
def test_our_errors_with_the_apps_own_words_are_said_to_be_the_apps(
    write: Write, capsys: pytest.CaptureFixture[str], code: str, error: str
) -> None:
    told = failing(capsys, "run", write(dedent(code)), "look", code=1)
    assert told == f"the app raised {error}; --debug shows where"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("app = App(model='demo', agents=[Agent(name='a')], limits=Limits(turns=0))", r"the limit turns=0 does not .*"),
        (
            """
            def forgetful(call, next): pass
            app = App(model="demo", agents=[Agent(name="a")]).use(chat=forgetful)
            """,
            r".*forgetful.*",
        ),
        (
            """
            from middlechain.testing import ScriptedModel
            app = App(model=ScriptedModel([]), agents=[Agent(name="a")])
            """,
            r"the ScriptedModel 'scripted' has 0 replies .*; give it another, .*",
        ),
        (  # called wrongly by the app's code
            """
            async def elsewhere(call, next): call.ctx.app.agent_named("ghost")
            app = App(model="demo", agents=[Agent(name="a")]).use(chat=elsewhere)
            """,
            r"the app 'app' has no agent 'ghost'; it has: a",
        ),
    ],
)
def test_the_librarys_own_errors_are_told_as_they_are(
    write: Write, capsys: pytest.CaptureFixture[str], code: str, error: str
) -> None:
    assert re.fullmatch(error, failing(capsys, "run", write(dedent(code)), "hi"))


def test_debug_shows_the_traceback_and_the_message_once(write: Write) -> None:
    target = write("""
        def boom(call, next):
            raise ValueError("boom\\x1b[31m")
        app = App(model="demo", agents=[Agent(name="a")]).use(chat=boom)
    """)
    ended = process("run", target, "hi", "--debug")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback")
    assert "in boom" in ended.stderr
    assert ended.stderr.endswith("\nValueError: boom\ufffd[31m\n")
    assert "error: " not in ended.stderr


def test_debug_shows_it_for_bad_input_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere:app", "hi", "--debug"]) == 2
    err = capsys.readouterr().err
    assert re.search(r"\nmiddlechain.errors.ConfigurationError: there is no module 'nowhere' .*\n\Z", err)
    assert err.count("there is no module 'nowhere' in") == 1


HALF = """
    from middlechain.testing import ScriptedModel
    app = App(agents=[Agent(name="a", model=ScriptedModel([["Half a", ValueError("it broke")]]))])
"""
IT_BROKE = "error: the app raised ValueError: it broke; --debug shows where\n"


def test_on_a_terminal_text_that_was_written_before_an_error_keeps_its_line(write: Write) -> None:
    assert on_a_terminal("run", write(HALF), "hi") == (1, "Half a\n", IT_BROKE)


def test_half_an_answer_is_not_in_a_pipe(write: Write) -> None:
    ended = process("run", write(HALF), "hi")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", IT_BROKE)


def test_calls_that_wait_for_approval_are_said_to(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write("""
        @tool(approve=True)
        def pay(amount: float) -> str:
            "Pay."
            return "paid"
        app = App(model="demo", agents=[Agent(name="a", tools=[pay])])
    """)
    assert main(["run", target, "pay 2"]) == 0
    assert capsys.readouterr() == ("", "[waits for approval: pay(amount=2)]\n")


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("middlechain.cli.commands", "middlechain.cli.demo", "middlechain.cli.screen"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["demo"]) == 2
    assert capsys.readouterr() == ("", "error: the command line needs typer; pip install 'middlechain[cli]'\n")


def test_what_else_is_missing_is_not_taken_for_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "middlechain.cli.commands")
    monkeypatch.setitem(sys.modules, "structlog", None)
    with pytest.raises(ModuleNotFoundError, match="structlog"):
        main(["demo"])


def test_a_fault_of_the_command_line_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("middlechain.cli.commands.commands", faulty)
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


# Ways to end


def test_ctrl_c_ends_it_quietly_after_every_finally_has_run(write: Write) -> None:
    target = write("""
        async def wait(call, next):
            print("waiting")
            try:
                await anyio.sleep_forever()
            finally:
                print("cleaned up")
        app = App(model="demo", agents=[Agent(name="a")]).use(chat=wait)
    """)
    with started("run", target, "hi", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "waiting\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate()
    assert (running.returncode, out, err) == (130, "", "cleaned up\n")


def test_ctrl_c_in_process_is_the_same(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write("""
        def interrupt(call, next):
            raise KeyboardInterrupt
        app = App(model="demo", agents=[Agent(name="a")]).use(chat=interrupt)
    """)
    assert main(["run", target, "hi"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments", [["run", "shop.py:app", "hello"], ["run", "shop.py:app", "hi", "--events"], ["demo"]]
)
def test_a_reader_that_has_gone_ends_it_without_a_traceback(shop: str, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with started(*arguments, stdout=writer, stderr=subprocess.PIPE) as running:
        os.close(writer)
        _, err = running.communicate()
    assert (running.returncode, err) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_of_the_notes_that_has_gone_does_not_end_the_run(shop: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with started("run", shop, "status of order 7", stdout=subprocess.PIPE, stderr=writer, env=environment) as running:
        os.close(writer)
        out, _ = running.communicate()
    assert (running.returncode, out) == (0, f"order_status says: order 7 is shipped {ABOUT}\n")


class Closed(io.TextIOWrapper):
    """A stream whose reader has gone."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_notes_that_nobody_reads_any_more_are_dropped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        flushed = 0

        def reconfigure(self, **options: Any) -> None: ...

        def flush(self) -> None:
            self.flushed += 1
            if self.flushed == 1:
                raise BrokenPipeError

    gone = Gone()
    monkeypatch.setattr(sys, "stderr", gone)
    assert main(["--version"]) == 0
    assert gone.flushed == 1


def test_a_closed_output_in_process_is_the_same(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["run", shop, "hi"]) == 141


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_side_that_the_shell_has_closed_is_done_without(
    shop: str, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    monkeypatch.setattr(sys, closed, None)
    assert main(["run", shop, "status of order 7"]) == 0
    getattr(sys, closed).close()


# Version, help, demo


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"middlechain \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_without_a_command_the_help_is_shown() -> None:
    shown = CliRunner().invoke(commands, [])
    assert shown.exit_code == 0
    assert re.search(r"^  run .*^  demo ", shown.output, re.MULTILINE | re.DOTALL)
    assert CliRunner().invoke(commands, ["run", "--help"]).output.count("--") >= 6


def test_the_package_runs_as_a_module_and_does_nothing_when_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["middlechain", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("middlechain", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("middlechain ")
    runpy.run_module("middlechain.__main__", run_name="imported")
    assert capsys.readouterr().out == ""


def test_the_console_script_is_the_same_command_line() -> None:
    script = Path(sys.executable).with_name("middlechain")
    ended = subprocess.run([script, "--version"], check=False, capture_output=True, text=True, timeout=60)
    assert ended.stdout.startswith("middlechain ")


def test_importing_the_library_or_its_command_line_imports_nothing_of_the_extra() -> None:
    code = "import sys, middlechain.cli; assert not {'typer', 'rich', 'openai', 'httpx'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_demo_plays_a_lookup_a_refusal_a_degraded_answer_and_a_letter() -> None:
    ended = process("demo", stdin=subprocess.DEVNULL)
    assert (ended.returncode, ended.stderr) == (0, "")
    for part in (
        "outermost first",
        "Order 1042",
        "nobody can be asked here",
        "[degraded:",
        "pass 2, reviewer: Approved.",
    ):
        assert part in ended.stdout


def test_the_demo_answers_a_message_and_keeps_its_database_where_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "Please refund order 1042: 20 euros", "--database", "kept.sqlite"]) == 0
    assert "20.00 euros of order 1042 are refunded" in capsys.readouterr().out
    assert main(["demo", "What is the status of order 1042?", "--database", "kept.sqlite"]) == 0
    out = capsys.readouterr().out
    assert "20.00 euros refunded" in out
    assert "120" not in out


REFUND = "Please refund order 1042: 120 euros"


def refunded(capsys: pytest.CaptureFixture[str]) -> str:
    """What the demo's database says was refunded."""
    assert main(["demo", "What is the status of order 1042?", "--database", "kept.sqlite"]) == 0
    (amount,) = re.findall(r"(\S+) euros refunded", capsys.readouterr().out)
    return str(amount)


@pytest.mark.parametrize(("options", "amount"), [([], "0.00"), (["--no"], "0.00"), (["--yes"], "120.00")])
def test_where_nobody_can_be_asked_an_option_approves_and_nothing_else(
    options: list[str], amount: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = process("demo", REFUND, "--database", "kept.sqlite", *options, input="y\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert refunded(capsys) == amount


def asked_at_a_terminal(reply: Callable[[PseudoTerminal, subprocess.Popen[str]], None]) -> tuple[int, str]:
    """The exit code of the demo, and what it shows on a terminal where somebody answers its question."""
    with PseudoTerminal(raw=False) as screen:
        options = {"stdin": screen.follower, "stderr": subprocess.DEVNULL}
        with screen.shows("demo", REFUND, "--database", "kept.sqlite", **options) as running:
            text = ""
            while "? [y/N] " not in text:
                text += screen.read(4096)
            reply(screen, running)
            text += screen.read_all()
            return running.wait(), text


@pytest.mark.parametrize(
    ("keys", "says", "amount"),
    [
        ("y\n", "120.00 euros of order 1042 are refunded", "120.00"),
        ("n\n", "The call was refused by the person", "0.00"),
        ("\x04", "The call was refused by the person", "0.00"),  # Ctrl-D
    ],
)
def test_t11_at_a_terminal_the_demo_asks_whether_to_refund(
    keys: str, says: str, amount: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = asked_at_a_terminal(lambda screen, running: screen.type(keys))
    assert code == 0
    assert "  Approve refund_order(order_id=1042, amount=120)? [y/N] " in text
    assert says in text
    assert refunded(capsys) == amount


def test_t11_ctrl_c_at_the_question_ends_the_demo_and_nothing_is_refunded(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = asked_at_a_terminal(lambda screen, running: running.send_signal(signal.SIGINT))
    assert code == 130
    assert text.endswith("\r\n")
    assert refunded(capsys) == "0.00"


def test_t11_a_terminal_that_goes_at_the_question_ends_the_demo_and_nothing_is_refunded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _ = asked_at_a_terminal(lambda screen, running: screen.close())
    assert code == 141
    assert refunded(capsys) == "0.00"


# A real server


def test_base_url_has_the_model_of_that_server_answer(
    llmock: Any, shop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    llmock.call_tool("order_status", {"order_id": 7}).reply("It is on its way.")
    assert main(["run", shop, "Where is it?", "--model", "openai:some:name", "--base-url", llmock.base_url()]) == 0
    assert capsys.readouterr() == ("It is on its way.\n", "looking 7\n")
    assert llmock.last_request.body["model"] == "some:name"


def test_a_server_that_refuses_is_one_error(llmock: Any, shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    llmock.fail(400, message="no such model")
    error = failing(capsys, "run", shop, "hi", "--model", "m", "--base-url", llmock.base_url())
    assert "no such model" in error


def test_a_stream_that_breaks_off_is_one_error(llmock: Any, shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    llmock.reply("one two three four").disconnect(after_chunks=3)
    error = failing(capsys, "run", shop, "hi", "--model", "m", "--base-url", llmock.base_url())
    assert re.fullmatch("the model 'm' .*; ask again", error)


# The screen by itself


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def event(kind: Any, *payload: Any, turn: int = 1, answering: bool = True) -> Any:
    return kind(*payload, origin=Origin("r", "a", "r/1", None, turn, answering))


def shown(*events: Any, result: str, out: io.StringIO | None = None) -> tuple[str, str]:
    out, err = Terminal() if out is None else out, io.StringIO()
    answer = Answer(Screen(out, err))
    for one in events:
        answer.take(one)
    answer.finish(Result(result))
    return out.getvalue(), err.getvalue()


def test_a_note_never_lands_inside_a_line_of_the_answer_on_a_terminal() -> None:
    out, err = Terminal(), Terminal()
    screen = Screen(out, err)
    screen.write("half a ")
    print("a log line", file=screen.beside, flush=True)
    assert err.getvalue() == ""
    screen.write("line")
    screen.end_line()
    assert (out.getvalue(), err.getvalue()) == ("half a line\n", "a log line\n")
    print("at once", file=screen.beside)
    assert err.getvalue().endswith("at once\n")


def test_where_the_two_sides_are_apart_notes_are_written_at_once() -> None:
    out, err = io.StringIO(), Terminal()
    screen = Screen(out, err)
    screen.write("half a ")
    print("a log line", file=screen.beside)
    assert err.getvalue() == "a log line\n"


def test_a_terminal_is_not_steered_by_what_a_model_says_and_a_pipe_gets_it_as_it_is() -> None:
    text = "a\x1b[2J\r\x07b\x9b\tc\n"
    out = Terminal()
    Screen(out, io.StringIO()).write(text)
    assert out.getvalue() == "a\ufffd[2J\ufffd\ufffdb\ufffd\tc\n"
    pipe = io.StringIO()
    Screen(pipe, io.StringIO()).write(text)
    assert pipe.getvalue() == text


def test_notes_are_wrapped_for_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal, pipe = Terminal(), io.StringIO()
    for err in (terminal, pipe):
        Screen(io.StringIO(), err).note("word " * 9 + "end")
    assert terminal.getvalue().count("\n") > 1
    assert pipe.getvalue() == "word " * 9 + "end\n"


def test_a_screen_says_when_nobody_reads_it() -> None:
    with pytest.raises(OutputClosed):
        Screen(Closed(), io.StringIO()).write("x")


def test_a_fault_of_the_output_is_not_taken_for_a_reader_that_has_gone() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "no space left")

    with pytest.raises(OSError, match="no space left"):
        Screen(Full(), io.StringIO()).write("x")


def test_a_tool_that_starts_ends_the_line_so_that_what_it_prints_has_one_of_its_own() -> None:
    out = Terminal()
    answer = Answer(Screen(out, io.StringIO()))
    answer.take(event(TextDelta, "Let me look."))
    answer.take(event(ToolStarted, ToolCall("look", {}, "1")))
    assert out.getvalue() == "Let me look.\n"


def test_text_of_inner_steps_is_not_the_answers() -> None:
    assert shown(event(TextDelta, "x", answering=False), event(TextDelta, "hi"), result="hi") == ("hi\n", "")


def test_an_answer_without_events_is_written_at_the_end() -> None:
    assert shown(result="hi") == ("hi\n", "")
    assert shown(result="hi", out=io.StringIO()) == ("hi\n", "")


EXPLAINED = """
    async def audit(call, next): return await next()
    app = App(name="shop", model="demo", agents=[Agent(name="desk"), Agent(name="porter")]).use(chat=audit, only="desk")
"""


def test_explain_shows_the_chain_of_every_agent_or_of_one(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    target = write(EXPLAINED)
    assert main(["explain", target]) == 0
    out = capsys.readouterr().out
    first, second = out.split("\n\n")
    assert first.startswith("desk in 'shop', outermost first\n└─ run, once per run\n")
    assert re.search(r"layer audit, only='desk' \(app\) +holds the whole reply; a crash goes to the caller\n", first)
    assert second.startswith("porter in 'shop'")
    assert "audit" not in second
    assert main(["explain", target, "--agent", "porter"]) == 0
    assert capsys.readouterr().out == second


def on_this_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What a terminal shows that is the standard output of this process."""
    terminal = Terminal()
    monkeypatch.setattr(terminal, "reconfigure", lambda **options: None, raising=False)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(arguments) == 0
    return terminal.getvalue()


def test_on_a_terminal_each_turn_has_a_paragraph_of_its_own(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_this_terminal(monkeypatch, "run", write(LOOK), "hi") == "Let me look.\n\nFound it.\n"


def test_explain_draws_a_tree_on_a_terminal(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = on_this_terminal(monkeypatch, "explain", write(EXPLAINED), "--agent", "desk")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert "└── run, once per run" in shown
    assert "layer audit, only='desk' (app)" in shown


def test_explain_draws_on_a_terminal(write: Write) -> None:
    code, text, notes = on_a_terminal("explain", write(EXPLAINED), "--agent", "desk")
    assert (code, notes) == (0, "")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"layer audit, only='desk' \(app\)", plain)


@pytest.mark.parametrize(
    ("code", "arguments", "says"),
    [
        ("app = App()", [], r"the app 'app' has no agents to ask"),
        ("app = App(agents=[Agent(name='a')])", ["--agent", "b"], r"has no agent 'b'; it has: a"),
    ],
)
def test_explain_says_what_it_cannot_find(
    code: str, arguments: list[str], says: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", write(code), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(says, err)


def test_on_a_real_terminal_the_answer_stands_before_its_log_lines() -> None:
    question = "What is the status of order 1042?"
    with PseudoTerminal() as screen, screen.shows("demo", question, stderr=screen.follower) as running:
        lines = screen.read_all().splitlines()
        assert running.wait() == 0
    answer = next(place for place, line in enumerate(lines) if line.startswith("order_status says"))
    assert lines[answer].endswith(ABOUT)
    assert "log: " in lines[answer + 1]
