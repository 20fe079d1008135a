"""The help desk of `middlechain demo`: its tools, layers, hooks and agents, and what the demo shows of them."""

from __future__ import annotations

import io
import os
import pty
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from middlechain import (
    App,
    Assistant,
    ChatReply,
    ConfigurationError,
    Conversation,
    FatalToolError,
    ToolMessage,
    ToolUse,
)
from middlechain.cli.demo import MESSAGES, play
from middlechain.cli.helpdesk import COLLEAGUE, Orders
from middlechain.cli.screen import Screen
from middlechain.cli.team import help_desk
from middlechain.testing import ScriptedModel

on_both_loops = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _log_nowhere_afterwards() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "orders.sqlite"


@pytest.fixture
def desk(database: Path) -> App:
    return help_desk(database)


def results_of(result: Any) -> list[tuple[str, bool]]:
    """What the model got to read of the tools that it called, handoffs aside."""
    return [
        (message.text, message.is_error)
        for message in result.messages
        if isinstance(message, ToolMessage) and not message.name.startswith("transfer_to_")
    ]


async def ask(go: Any, desk: App, message: str, agent: str = "front desk") -> Any:
    with capture_logs():
        return await go(desk, agent, message, data=COLLEAGUE)


async def call(go: Any, desk: App, agent: str, *uses: ToolUse) -> list[tuple[str, bool]]:
    """What a model that calls these tools gets to read."""
    desk.model = ScriptedModel([ChatReply(tool_calls=uses), "done"])
    return results_of(await ask(go, desk, "go", agent))


def in_conversation(desk: App) -> Conversation:
    return desk.conversation("front desk", data=COLLEAGUE)


@on_both_loops
async def test_a_question_is_answered_from_the_database(go: Any, desk: App) -> None:
    result = await ask(go, desk, "What is the status of order 1042?")
    assert "Order 1042 of Ada Lovelace" in result.text
    assert "189.00 euros paid, 0.00 euros refunded" in result.text
    assert not result.degraded


@on_both_loops
async def test_the_hook_keeps_addresses_from_the_model_and_changes_nothing_else(go: Any, desk: App) -> None:
    result = await ask(go, desk, "What is the status of order 1044?")
    assert not any("grace@example.com" in message.text for message in result.messages)
    assert results_of(result) == [
        ("Order 1044 of Grace Hopper (address hidden) is delivered; 79.99 euros paid, 0.00 euros refunded.", False)
    ]


@on_both_loops
async def test_the_orders_of_a_customer_are_listed(go: Any, desk: App) -> None:
    result = await ask(go, desk, 'List the orders of "Ada Lovelace"')
    listed = '[{"order":1042,"status":"shipped"},{"order":1043,"status":"in preparation"}]'
    assert results_of(result) == [(listed, False)]


@on_both_loops
async def test_an_order_that_is_not_there_is_an_error_that_the_model_reads(go: Any, desk: App) -> None:
    assert await call(go, desk, "order desk", ToolUse("order_status", {"order_id": 1})) == [
        ("There is no order 1.", True)
    ]


@on_both_loops
async def test_a_refund_within_the_limit_is_made_and_kept(go: Any, desk: App, database: Path) -> None:
    result = await ask(go, desk, "Please refund order 1042: 50 euros")
    assert results_of(result) == [("50.00 euros of order 1042 are refunded.", False)]
    assert "50.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
async def test_t11_a_refund_above_what_one_may_grant_alone_waits_and_is_made_when_approved(
    desk: App, database: Path
) -> None:
    conversation = in_conversation(desk)
    with capture_logs():
        result = await conversation.send("Please refund order 1042: 50.01 euros")
        assert (result.finish_reason, result.agent) == ("pending", "refund desk")
        assert ", 0.00 euros refunded" in Orders(database).order_status(1042)
        (waiting,) = conversation.pending
        result = await conversation.resume({waiting.id: True})
    assert results_of(result) == [("50.01 euros of order 1042 are refunded.", False)]
    assert "50.01 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
async def test_t11_a_refund_that_is_not_approved_is_not_made_and_the_model_goes_on(desk: App, database: Path) -> None:
    conversation = in_conversation(desk)
    with capture_logs():
        await conversation.send("Please refund order 1042: 150 euros")
        (waiting,) = conversation.pending
        result = await conversation.resume({waiting.id: False})
    assert result.text.startswith("refund_order reports an error: The call was refused")
    assert ", 0.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
@pytest.mark.parametrize("amount", [150.01, "180", "nan", "inf"])
async def test_a_refund_that_no_approval_would_help_is_refused_and_nobody_is_asked(
    go: Any, desk: App, database: Path, amount: Any
) -> None:
    refusal = "Kim may not refund more than 150 euros, approved or not."
    uses = ToolUse("refund_order", {"order_id": 1042, "amount": amount})
    assert await call(go, desk, "refund desk", uses) == [(refusal, True)]
    assert ", 0.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
async def test_t5_a_refund_with_bad_arguments_passes_the_limit_and_does_not_run(go: Any, desk: App) -> None:
    ((text, is_error),) = await call(go, desk, "refund desk", ToolUse("refund_order", {"order_id": 1042}))
    assert is_error
    assert "did not run: amount" in text


@on_both_loops
@pytest.mark.parametrize(("order", "amount"), [(1043, 24.51), (1043, 0), (1043, -1), (1, 5)])
async def test_what_was_not_paid_cannot_be_refunded(go: Any, desk: App, order: int, amount: float) -> None:
    ((text, is_error),) = await call(
        go, desk, "refund desk", ToolUse("refund_order", {"order_id": order, "amount": amount})
    )
    assert is_error
    assert f"{amount:.2f} euros cannot be refunded of order {order}; look up its status." in text


@on_both_loops
async def test_t3_refunds_at_the_same_time_do_not_pay_more_than_was_paid(go: Any, desk: App) -> None:
    uses = [ToolUse("refund_order", {"order_id": 1043, "amount": 10}, str(n)) for n in range(5)]
    results = await call(go, desk, "refund desk", *uses)
    assert [is_error for _, is_error in results].count(False) == 2


@on_both_loops
async def test_h7_a_step_that_crashes_is_answered_by_on_error(go: Any, desk: App) -> None:
    result = await ask(go, desk, "What is the total on the invoice of order 1042?")
    assert result.degraded
    assert isinstance(result.error, FatalToolError)
    assert isinstance(result.error.__cause__, sqlite3.OperationalError)
    assert result.message == Assistant(
        "I cannot answer that right now. A colleague will look into it.", finish_reason="degraded"
    )


@on_both_loops
async def test_with_invoices_in_the_database_the_same_question_is_answered(go: Any, desk: App, database: Path) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE invoices (order_id INTEGER, total_cents INTEGER)")
        db.execute("INSERT INTO invoices VALUES (1042, 18900)")
        db.commit()
    result = await ask(go, desk, "What is the total on the invoice of order 1042?")
    assert "The invoice of order 1042 is over 189.00 euros." in result.text
    assert not result.degraded
    assert await call(go, desk, "order desk", ToolUse("invoice_total", {"order_id": 1})) == [
        ("There is no invoice of order 1.", True)
    ]


@on_both_loops
async def test_the_model_calls_of_a_run_are_timed_in_the_log_without_their_text(go: Any, desk: App) -> None:
    with capture_logs() as logs:
        await go(desk, "front desk", "What is the status of order 1042?", data=COLLEAGUE)
    (entry,) = logs
    assert (entry["event"], entry["model_calls"]) == ("timings", 3)
    assert entry["seconds"] >= 0
    assert "1042" not in str(entry)


@on_both_loops
async def test_a_model_call_that_fails_is_timed_too(go: Any, desk: App) -> None:
    desk.model = ScriptedModel([ValueError("no")])
    with capture_logs() as logs:
        result = await go(desk, "order desk", "hello", data=COLLEAGUE)
    assert [entry["model_calls"] for entry in logs] == [1]
    assert result.degraded


# The team


def test_the_help_desk_is_put_together_rightly(desk: App) -> None:
    desk.check()


@on_both_loops
@pytest.mark.parametrize(
    ("message", "agent"),
    [
        ("What is the status of order 1042?", "order desk"),
        ('List the orders of "Ada Lovelace"', "order desk"),
        ("What is the total on the invoice of order 1042?", "order desk"),
        ("Please refund order 1042: 20 euros", "refund desk"),
        ('Write a letter to the customer: "your order 1043 is late"', "front desk"),
        ("Hello!", "front desk"),
    ],
)
async def test_a5_the_front_desk_hands_over_to_who_can_help(go: Any, desk: App, message: str, agent: str) -> None:
    assert (await ask(go, desk, message)).agent == agent


@on_both_loops
async def test_a3_a_letter_goes_back_to_the_writer_until_the_reviewer_approves_it(go: Any, desk: App) -> None:
    result = await ask(go, desk, "your order 1043 is late", "letters")
    assert result.text == "Dear customer, we are sorry: your order 1043 is late."
    assert [(message.name, message.text) for message in result.messages[1:-1]] == [
        ("writer", "Dear customer, your order 1043 is late."),
        ("reviewer", "Not yet: it does not say sorry."),
        ("writer", "Dear customer, we are sorry: your order 1043 is late."),
        ("reviewer", "Approved."),
    ]


@on_both_loops
async def test_a3_a_letter_that_says_sorry_at_once_is_not_written_twice(go: Any, desk: App) -> None:
    result = await ask(go, desk, "sorry, it is lost", "letters")
    assert [message.name for message in result.messages[1:-1]] == ["writer", "reviewer"]


@on_both_loops
async def test_a5_the_letter_is_the_answer_of_a_tool_of_the_front_desk(go: Any, desk: App) -> None:
    result = await ask(go, desk, 'Write a letter to the customer: "your order 1043 is late"')
    assert results_of(result) == [("Dear customer, we are sorry: your order 1043 is late.", False)]


# The files


def test_a_file_of_the_help_desk_is_used_again(database: Path) -> None:
    Orders(database).refund_order(1042, 5)
    assert "5.00 euros refunded" in Orders(database).order_status(1042)


def test_an_empty_file_is_filled(database: Path) -> None:
    database.touch()
    assert "shipped" in Orders(database).order_status(1042)


def test_the_database_of_another_program_is_refused_and_left_as_it_is(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE orders (id INTEGER)")
    before = database.read_bytes()
    with pytest.raises(ConfigurationError, match="not one of the help desk's; give the path of a new file"):
        Orders(database)
    assert database.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(database: Path) -> None:
    database.write_text("not a database, but long enough to be read as the header of one, one would think" * 20)
    with pytest.raises(ConfigurationError, match=r"cannot be used \(.*\); give the path of a file that may be created"):
        Orders(database)


# What the demo shows


def in_order(text: str, *parts: str) -> None:
    """Each part stands in the text, behind the one before it."""
    place = 0
    for part in parts:
        assert part in text[place:], part
        place = text.index(part, place) + len(part)


async def played(database: Path, *messages: str, approve: bool | None = None) -> str:
    """What the demo writes into a pipe."""
    out = io.StringIO()
    await play(messages or MESSAGES, database, Screen(out, out), approve)
    return out.getvalue()


@on_both_loops
async def test_the_demo_shows_who_is_there_and_what_wraps_what_and_then_each_answer(database: Path) -> None:
    in_order(
        await played(database),
        "A help desk over a SQLite file",
        "  front desk   Hands each conversation over",
        "  letters ",
        "refund desk in 'help desk', outermost first",
        "Timings.run",
        "on_error",
        "Timings.chat",
        "model 'demo'",
        "after_tool",
        "refund_limit",
        "refund_order",
        "> What is the status of order 1042?",
        "  tool: transfer_to_order_desk() -> ok\n  order desk has the conversation now\n",
        "  tool: order_status(order_id=1042) -> ok\n",
        "is shipped",
        "\n  log: timings model_calls=3 seconds=",
        "> Please refund order 1042: 20 euros",
        "refund desk has the conversation now",
        "20.00 euros of order 1042 are refunded",
        "> Please refund order 1042: 120 euros",
        "tool: refund_order(order_id=1042, amount=120) -> waits for approval",
        "Approve refund_order(order_id=1042, amount=120)? No, since nobody can be asked here; --yes approves it.",
        "tool: refund_order(order_id=1042, amount=120) -> error",
        "The call was refused",
        "> Please refund order 1042: 180 euros",
        "tool: refund_order(order_id=1042, amount=180) -> error",
        "Kim may not refund more than 150 euros",
        "> What is the total on the invoice of order 1042?",
        "tool: invoice_total(order_id=1042) -> ended the step",
        "I cannot answer that right now.",
        "[degraded: on_error answered in place of FatalToolError",
        "> Write a letter",
        "pass 1, writer: Dear customer, your order 1043 is late.\n",
        "pass 1, reviewer: Not yet",
        "pass 2, writer: Dear customer, we are sorry",
        "pass 2, reviewer: Approved.",
        "tool: write_letter(input='your order 1043 is late') -> ok",
        "write_letter says: Dear customer, we are sorry: your order 1043 is late.",
        "helpdesk.py",
        "team.py",
    )


@on_both_loops
async def test_the_demo_fits_a_terminal_of_80_columns(database: Path) -> None:
    ours, _, _ = (await played(database, "hi")).partition("What wraps what")
    assert max(map(len, ours.splitlines())) <= 80


@on_both_loops
async def test_the_demo_says_what_a_message_cannot_be_read_as(database: Path) -> None:
    assert "I have write_letter, transfer_to_order_desk, transfer_to_refund_desk." in await played(database, "hello")


@on_both_loops
async def test_a_model_call_that_fails_in_a_pass_is_none_of_its_drafts(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_letter(said: object) -> str:
        raise ValueError("out of ink")

    monkeypatch.setattr("middlechain.cli.team.Writer.model._rule", no_letter)
    text = await played(database, MESSAGES[-1])
    assert "pass" not in text.partition("> Write")[2]
    assert "write_letter reports an error" in text


REFUND = "Please refund order 1042: 120 euros"
QUESTION = "Approve refund_order(order_id=1042, amount=120)?"


@on_both_loops
@pytest.mark.parametrize(
    ("approve", "says", "refunded"), [(True, "Yes, says --yes.", "120.00"), (False, "No, says --no.", "0.00")]
)
async def test_the_demo_decides_as_an_option_says(database: Path, approve: bool, says: str, refunded: str) -> None:
    assert f"{QUESTION} {says}\n" in await played(database, REFUND, approve=approve)
    assert f" {refunded} euros refunded" in Orders(database).order_status(1042)


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


Keyboard = Callable[[bytes | None], None]


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keyboard]:
    """Type at the terminal that is standard input; None takes the terminal away."""
    leader, follower = pty.openpty()
    open_ends = {leader}

    def type_(keys: bytes | None) -> None:
        if keys is None:
            os.close(leader)
            open_ends.clear()
        else:
            os.write(leader, keys)

    with os.fdopen(follower) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield type_
    for end in open_ends:
        os.close(end)


async def played_on_a_terminal(database: Path) -> str:
    out = Terminal()
    await play([REFUND], database, Screen(out, out))
    return out.getvalue()


@on_both_loops
@pytest.mark.parametrize("keys", [b"y\n", b"Yes \n"])
async def test_t11_at_a_terminal_the_demo_asks_and_a_yes_refunds(
    database: Path, keyboard: Keyboard, keys: bytes
) -> None:
    keyboard(keys)
    text = await played_on_a_terminal(database)
    assert f"  {QUESTION} [y/N] \x1b" in text  # the line was ended by who typed
    assert "120.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
@pytest.mark.parametrize("keys", [b"n\n", b"\n", b"yikes\n", b"\xff\n"])
async def test_t11_whatever_is_no_yes_refuses(database: Path, keyboard: Keyboard, keys: bytes) -> None:
    keyboard(keys)
    assert "The call was refused" in await played_on_a_terminal(database)
    assert ", 0.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
async def test_t11_the_end_of_what_is_typed_refuses(database: Path, keyboard: Keyboard) -> None:
    keyboard(b"\x04")
    text = await played_on_a_terminal(database)
    assert "[y/N] \n" in text
    assert "The call was refused" in text
    assert ", 0.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
async def test_t11_a_terminal_that_goes_while_it_is_asked_refuses(
    database: Path, keyboard: Keyboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(terminal: int) -> None:
        keyboard(None)

    monkeypatch.setattr("anyio.wait_readable", go)
    assert "The call was refused" in await played_on_a_terminal(database)
    assert ", 0.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
async def test_where_the_question_would_not_be_seen_nobody_is_asked(database: Path, keyboard: Keyboard) -> None:
    keyboard(b"y\n")
    assert "No, since nobody can be asked here" in await played(database, REFUND)


@on_both_loops
async def test_where_there_is_no_standard_input_nobody_is_asked(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "No, since nobody can be asked" in await played_on_a_terminal(database)
