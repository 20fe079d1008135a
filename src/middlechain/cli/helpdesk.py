"""The help desk of `middlechain demo`, first half: its tools over a small SQLite file, and what wraps their calls.

Read it from top to bottom: tools, which of their calls wait for approval, layers around runs and model calls, and a
layer around tool calls. The agents are next door, in `team`. Nothing here knows whether it is run or streamed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from middlechain import (
    ChatCall,
    ChatReply,
    ConfigurationError,
    FatalToolError,
    Next,
    Result,
    RunCall,
    ToolCall,
    ToolError,
    ToolOutput,
    observes,
)

__all__ = ["COLLEAGUE", "Orders", "Timings", "needs_approval", "refund_limit"]

# Who sits at the desk, and up to how many euros they may refund. It is given to a run as `data=`: layers and tools read
# it, the model never sees it.
COLLEAGUE: Mapping[str, Any] = {"user": "Kim", "alone": 50, "with_approval": 150}

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


def needs_approval(call: ToolCall) -> bool:
    """A predicate for `tool(approve=)`: whether a refund is above what this colleague may grant alone.

    Such a call does not run. The conversation waits, and goes on when somebody has decided.
    """
    return not _within(call, "alone")


class Timings:
    """A bundle: two layers that belong together. It logs how long the model calls of a run took, also of a failed one.

    What belongs to a run lives in its `ctx`, since one object serves all runs. Both change no answer, and the mark says
    so: a stream that cannot take text back need not wait for them.
    """

    @observes
    async def run(self, call: RunCall, next: Next[RunCall, Result]) -> Result:
        """Around a run, with all the agents that it comes to ask."""
        call.ctx.model_calls, call.ctx.model_seconds = 0, 0.0
        try:
            return await next()
        finally:
            seconds = round(call.ctx.model_seconds, 4)
            call.ctx.log.info("timings", model_calls=call.ctx.model_calls, seconds=seconds)

    @observes
    async def chat(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
        """Around every model call, streamed or not."""
        began = anyio.current_time()
        try:
            return await next()
        finally:
            call.ctx.model_calls += 1
            call.ctx.model_seconds += anyio.current_time() - began


async def refund_limit(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
    """A tool layer: refuses a refund that no approval would help, and tells the model so.

    It answers in place of the tool, which does not run, and nobody is asked about it. The model reads the reason and
    can go on from there. A call that has a problem goes on: it will not run either, and the model is told why.
    """
    if call.problem is None and not _within(call, "with_approval"):
        user, most = call.ctx.data["user"], call.ctx.data["with_approval"]
        return ToolOutput(f"{user} may not refund more than {most} euros, approved or not.", is_error=True)
    return await next()


def _within(call: ToolCall, limit: str) -> bool:
    within: bool = float(call.args["amount"]) <= call.ctx.data[limit]  # which NaN never is
    return within
