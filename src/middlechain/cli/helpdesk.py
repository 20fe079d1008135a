"""A help desk over a small SQLite file: what `middlechain demo` plays, and the library's parts in one file.

Read it from top to bottom: tools, a layer around model calls, a layer around tool calls, an agent with two hooks, and
the app that puts them together. Nothing here knows whether it is run or streamed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from middlechain import (
    Agent,
    App,
    ChatCall,
    ChatReply,
    ConfigurationError,
    Context,
    FatalToolError,
    Next,
    ToolCall,
    ToolError,
    ToolOutput,
    ToolResult,
    observes,
)

__all__ = ["COLLEAGUE", "HelpDesk", "Orders", "help_desk", "log_timings", "refund_limit"]

# Who sits at the desk. It is given to a run as `data=`: layers and tools read it, the model never sees it.
COLLEAGUE: Mapping[str, Any] = {"user": "Kim", "refund_limit": 50}

_MARK = 1835231332  # tells our files from others
_SCHEMA = """
BEGIN;
PRAGMA application_id = 1835231332;
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer TEXT, email TEXT, status TEXT, paid_cents INTEGER, refunded_cents INTEGER DEFAULT 0
);
INSERT INTO orders (id, customer, email, status, paid_cents) VALUES
    (1042, 'Ada Lovelace', 'ada@example.com', 'shipped', 18900),
    (1043, 'Ada Lovelace', 'ada@example.com', 'in preparation', 2450),
    (1044, 'Grace Hopper', 'grace@example.com', 'delivered', 7999);
COMMIT;
"""


class Orders:
    """The tools: methods over a SQLite file. The docstring and the signature are what a model is told.

    They are plain functions, so they run in worker threads, several at once; each opens a connection of its own.

    Args:
        database: path of the file; it is created unless it is there.

    Raises:
        ConfigurationError: when the file is another program's, or cannot be opened.
    """

    def __init__(self, database: Path) -> None:
        self.database = database
        try:
            with self._open() as db:
                (mark,) = db.execute("PRAGMA application_id").fetchone()
                (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if tables == 0:
                    db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"the database {str(database)!r} cannot be used ({error}); give the path of a file that may be created"
            ) from error
        if tables and mark != _MARK:
            raise ConfigurationError(
                f"the database {str(database)!r} is not one of the help desk's; give the path of a new file"
            )

    def order_status(self, order_id: int) -> str:
        """Look up the status of one order."""
        with self._open() as db:
            row = db.execute(
                "SELECT customer, email, status, paid_cents, refunded_cents FROM orders WHERE id = ?", (order_id,)
            ).fetchone()
        if row is None:
            raise ToolError(f"There is no order {order_id}.")  # the model reads it, and the run goes on
        customer, email, status, paid, refunded = row
        return (
            f"Order {order_id} of {customer} ({email}) is {status}; {_euros(paid)} paid, {_euros(refunded)} refunded."
        )

    def customer_orders(self, customer: str) -> list[dict[str, Any]]:
        """List the orders of a customer.

        Args:
            customer: the full name.
        """
        with self._open() as db:
            rows = db.execute("SELECT id, status FROM orders WHERE customer = ? ORDER BY id", (customer,)).fetchall()
        return [{"order": id, "status": status} for id, status in rows]

    def refund_order(self, order_id: int, amount: float) -> str:
        """Refund an order, in full or in part.

        Args:
            order_id: which order.
            amount: how much, in euros.
        """
        cents = round(amount * 100)
        with self._open() as db:
            refunded = db.execute(
                "UPDATE orders SET refunded_cents = refunded_cents + ? "
                "WHERE id = ? AND ? > 0 AND refunded_cents + ? <= paid_cents",
                (cents, order_id, cents, cents),
            ).rowcount
        if not refunded:
            raise ToolError(f"{_euros(cents)} cannot be refunded of order {order_id}; look up its status.")
        return f"{_euros(cents)} of order {order_id} are refunded."

    def invoice_total(self, order_id: int) -> str:
        """Look up the total on the invoice of an order."""
        try:
            with self._open() as db:
                row = db.execute("SELECT total_cents FROM invoices WHERE order_id = ?", (order_id,)).fetchone()
        except sqlite3.OperationalError as error:
            # The demo's file has no invoices. No model can mend that, so the step ends here and on_error gets it.
            raise FatalToolError(f"the invoices cannot be read ({error}); ask whoever runs the database") from error
        if row is None:
            raise ToolError(f"There is no invoice of order {order_id}.")
        return f"The invoice of order {order_id} is over {_euros(row[0])}."

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        connection = sqlite3.connect(self.database)
        try:
            with connection:  # one transaction
                yield connection
        finally:
            connection.close()


def _euros(cents: int) -> str:
    return f"{cents / 100:.2f} euros"


@observes  # it changes no reply, so a stream that cannot take text back need not wait for it
async def log_timings(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    """A chat layer: logs how long each model call took, streamed or not, also when it failed."""
    began = anyio.current_time()
    try:
        return await next()
    finally:
        call.ctx.log.info("model call", seconds=round(anyio.current_time() - began, 4))


async def refund_limit(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
    """A tool layer: refuses a refund above what this colleague may grant, and tells the model so.

    It answers in place of the tool, which does not run. The model reads the reason and can go on from there. A call
    that has a problem goes on: it will not run either, and the model is told why.
    """
    data = call.ctx.data
    # not <= rather than >, so that NaN is refused
    if call.problem is None and not float(call.args["amount"]) <= data["refund_limit"]:
        reason = f"{data['user']} may refund up to {data['refund_limit']} euros. Ask a supervisor for more."
        return ToolOutput(reason, is_error=True)
    return await next()


class HelpDesk(Agent):
    """An agent with two hooks: a hook is a method, and None keeps what there is."""

    instructions = "You work at the help desk of a shop. Look things up; do not guess."

    def after_tool(self, result: ToolResult, ctx: Context) -> str | None:
        """Hide e-mail addresses, so that no model provider gets to see them."""
        return re.sub(r"[\w.+-]+@[\w.-]+\w", "address hidden", result.output)

    def on_error(self, error: Exception, ctx: Context) -> str | None:
        """Answer for a step that crashed. The result is marked as degraded and holds the error."""
        return "I cannot answer that right now. A colleague will look into it."


def help_desk(database: Path) -> App:
    """The app.

    Args:
        database: path of the SQLite file, see `Orders`.

    Raises:
        ConfigurationError: when the file cannot be used.
    """
    orders = Orders(database)
    desk = HelpDesk(tools=[orders.order_status, orders.customer_orders, orders.refund_order, orders.invoice_total])
    app = App(name="help desk", model="demo", agents=[desk])
    app.use(chat=log_timings)
    app.use(tool=refund_limit, only="refund_order")
    return app
