"""The help desk of `middlechain demo`: its tools, its layers, its hooks, and what the demo shows of them."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from middlechain import App, Assistant, ChatReply, ConfigurationError, FatalToolError, ToolMessage, ToolUse
from middlechain.cli.demo import MESSAGES, play
from middlechain.cli.helpdesk import COLLEAGUE, Orders, help_desk
from middlechain.cli.screen import Screen
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
    return [(message.text, message.is_error) for message in result.messages if isinstance(message, ToolMessage)]


async def ask(go: Any, desk: App, message: str) -> Any:
    with capture_logs():
        return await go(desk, "HelpDesk", message, data=COLLEAGUE)


async def call(go: Any, desk: App, *uses: ToolUse) -> list[tuple[str, bool]]:
    """What a model that calls these tools gets to read."""
    desk.model = ScriptedModel([ChatReply(tool_calls=uses), "done"])
    return results_of(await ask(go, desk, "go"))


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
    assert await call(go, desk, ToolUse("order_status", {"order_id": 1})) == [("There is no order 1.", True)]


@on_both_loops
async def test_a_refund_within_the_limit_is_made_and_kept(go: Any, desk: App, database: Path) -> None:
    result = await ask(go, desk, "Please refund order 1042: 50 euros")
    assert results_of(result) == [("50.00 euros of order 1042 are refunded.", False)]
    assert "50.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
@pytest.mark.parametrize("amount", [50.01, "120", "nan", "inf"])
async def test_a_refund_above_the_limit_is_refused_and_the_model_goes_on(
    go: Any, desk: App, database: Path, amount: Any
) -> None:
    refusal = "Kim may refund up to 50 euros. Ask a supervisor for more."
    assert await call(go, desk, ToolUse("refund_order", {"order_id": 1042, "amount": amount})) == [(refusal, True)]
    assert ", 0.00 euros refunded" in Orders(database).order_status(1042)


@on_both_loops
async def test_t5_a_refund_with_bad_arguments_passes_the_limit_and_does_not_run(go: Any, desk: App) -> None:
    ((text, is_error),) = await call(go, desk, ToolUse("refund_order", {"order_id": 1042}))
    assert is_error
    assert "did not run: amount" in text


@on_both_loops
@pytest.mark.parametrize(("order", "amount"), [(1043, 24.51), (1043, 0), (1043, -1), (1, 5)])
async def test_what_was_not_paid_cannot_be_refunded(go: Any, desk: App, order: int, amount: float) -> None:
    ((text, is_error),) = await call(go, desk, ToolUse("refund_order", {"order_id": order, "amount": amount}))
    assert is_error
    assert f"{amount:.2f} euros cannot be refunded of order {order}; look up its status." in text


@on_both_loops
async def test_t3_refunds_at_the_same_time_do_not_pay_more_than_was_paid(go: Any, desk: App) -> None:
    uses = [ToolUse("refund_order", {"order_id": 1043, "amount": 10}, str(n)) for n in range(5)]
    results = await call(go, desk, *uses)
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
    assert await call(go, desk, ToolUse("invoice_total", {"order_id": 1})) == [
        ("There is no invoice of order 1.", True)
    ]


@on_both_loops
async def test_every_model_call_is_timed_in_the_log_without_its_text(go: Any, desk: App) -> None:
    with capture_logs() as logs:
        await go(desk, "HelpDesk", "What is the status of order 1042?", data=COLLEAGUE)
    assert [entry["event"] for entry in logs] == ["model call", "model call"]
    assert all(entry["seconds"] >= 0 and "1042" not in str(entry) for entry in logs)


@on_both_loops
async def test_a_model_call_that_fails_is_timed_too(go: Any, desk: App) -> None:
    desk.model = ScriptedModel([ValueError("no")])
    with capture_logs() as logs:
        result = await go(desk, "HelpDesk", "hello", data=COLLEAGUE)
    assert [entry["event"] for entry in logs] == ["model call"]
    assert result.degraded


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


@on_both_loops
async def test_the_demo_shows_what_wraps_what_and_then_each_answer(database: Path) -> None:
    out = io.StringIO()
    await play(MESSAGES, database, Screen(out, out))
    text = out.getvalue()
    order = [
        "A help desk over a SQLite file",
        "HelpDesk in 'help desk', outermost first",
        "on_error",
        "log_timings",
        "model 'demo'",
        "after_tool",
        "refund_limit",
        "order_status",
        "> What is the status of order 1042?",
        "tool: order_status(order_id=1042) -> ok",
        "is shipped",
        "> Please refund order 1042: 20 euros",
        "20.00 euros of order 1042 are refunded",
        "> Please refund order 1042: 120 euros",
        "tool: refund_order(order_id=1042, amount=120.0) -> error",
        "Kim may refund up to 50 euros",
        "> What is the total on the invoice of order 1042?",
        "tool: invoice_total(order_id=1042) -> ended the step",
        "I cannot answer that right now.",
        "[degraded: on_error answered in place of FatalToolError",
        "helpdesk.py",
    ]
    places = [text.find(part) for part in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)


@on_both_loops
async def test_the_demo_logs_between_answers_and_never_inside_of_one(database: Path) -> None:
    out = io.StringIO()
    await play(MESSAGES[:1], database, Screen(out, out))
    logged = [line for line in out.getvalue().splitlines() if "log: " in line]
    assert len(logged) == 2
    assert all(line.startswith('  log: event="model call" seconds=') for line in logged)
