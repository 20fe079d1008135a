"""The help desk of `middlechain demo`, second half: its agents, how they work together, and the app that has them.

Read it from top to bottom: an agent with two hooks, two agents that take turns until one of them is content, the model
that stands in for them, and the app. The tools and the layers are next door, in `helpdesk`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from middlechain import (
    Agent,
    App,
    ChatCall,
    ChatReply,
    Context,
    Input,
    ToolResult,
    User,
    loop,
    observes,
    sequence,
    tool,
)
from middlechain.cli.helpdesk import Orders, Timings, needs_approval, refund_limit

__all__ = ["Desk", "Reviewer", "Rule", "Writer", "help_desk"]


class Desk(Agent):
    """An agent with two hooks: a hook is a method, and None keeps what there is. All three desks are of this class."""

    instructions = "You work at the help desk of a shop. Look things up; do not guess."

    def after_tool(self, result: ToolResult, ctx: Context) -> str | None:
        """Hide e-mail addresses, so that no model provider gets to see them."""
        return re.sub(r"[\w.+-]+@[\w.-]+\w", "address hidden", result.output)

    def on_error(self, error: Exception, ctx: Context) -> str | None:
        """Answer for a step that crashed. The result is marked as degraded and holds the error."""
        return "I cannot answer that right now. A colleague will look into it."


class Rule:
    """A model of one rule: it knows no language, and stands in for one that does, so that the demo needs no key.

    Whatever has a name and an `async chat(call)` is a model.

    Args:
        rule: makes the reply of the users' messages, and of what other agents said, in their order.
    """

    def __init__(self, rule: Callable[[Sequence[str]], str]) -> None:
        self.name = f"rule {rule.__name__}"
        self._rule = rule

    async def chat(self, call: ChatCall, /) -> ChatReply:
        """Answer the call by the rule."""
        return ChatReply(self._rule([message.text for message in call.messages if isinstance(message, User)]))


def draft(said: Sequence[str]) -> str:
    """What the letter is about comes first, and what the reviewer says of it last."""
    sorry = "we are sorry: " if "sorry" in said[-1] else ""
    return f"Dear customer, {sorry}{said[0]}."


def judge(said: Sequence[str]) -> str:
    """The letter comes last."""
    return "Approved." if "sorry" in said[-1] else "Not yet: it does not say sorry."


class Writer(Agent):
    """Writes the letter."""

    name = "writer"
    model = Rule(draft)
    instructions = "Write a letter to a customer. Do what the reviewer asks for."

    @observes
    def after_response(self, response: str, ctx: Context) -> None:
        """Keep the letter, for whoever needs it in this run."""
        ctx.letter = response


class Reviewer(Agent):
    """Reads the letter, and approves it or says what it lacks."""

    name = "reviewer"
    model = Rule(judge)
    instructions = "Answer 'Approved.' to a letter that says sorry. Of any other one, say what it lacks."

    @observes
    def after_response(self, response: str, ctx: Context) -> None:
        """Note whether the letter is approved, which ends the loop."""
        ctx.approved = response.startswith("Approved")


def approved_letter(input: Input, ctx: Context) -> str:
    """The answer is the letter, not what the reviewer said of it."""
    letter: str = ctx.letter
    return letter


letters = sequence(
    loop(Writer, Reviewer, until=lambda ctx: ctx.approved, max_iterations=3),
    approved_letter,
    name="letters",
    description="Writes to a customer: a writer and a reviewer, until approved.",
)


def help_desk(database: Path) -> App:
    """The app.

    Args:
        database: path of the SQLite file, see `Orders`.

    Raises:
        ConfigurationError: when the file cannot be used.
    """
    orders = Orders(database)
    order_desk = Desk(
        name="order desk",
        description="Looks up the status of an order, its invoice, a list of orders.",
        tools=[orders.order_status, orders.customer_orders, orders.invoice_total],
    )
    refund_desk = Desk(
        name="refund desk",
        description="Pays euros back: a few at once, more with approval.",
        tools=[tool(approve=needs_approval)(orders.refund_order)],
    )
    front_desk = Desk(
        name="front desk",
        description="Hands each conversation over to the desk that can help.",
        instructions="You work at the front desk of a shop. Hand over to who can help, or have a letter written.",
        handoffs=[order_desk, refund_desk],
        tools=[letters.as_tool("write_letter")],
    )
    app = App(name="help desk", model="demo", agents=[front_desk, order_desk, refund_desk, letters])
    app.use(Timings())
    app.use(tool=refund_limit, only="refund_order")
    return app
