"""Three desks: one overrides a hook of its class and calls super(), one switches another hook off, for itself alone.

You will see:

    Desk: status says: Order 7 of (hidden) is shipped. (I am a set of rules, not a language model.)
      -- The help desk
    NightDesk: Good night! status says: Order 7 of (hidden) is shipped. (I am a set of rules, not a language model.)
      -- The help desk
    FraudDesk: status says: Order 7 of ada@example.com is shipped. (I am a set of rules, not a language model.)
      -- The help desk
"""

import re

from middlechain import Agent, App, Context, ToolResult


def status(order: int) -> str:
    """Look up the status of an order."""
    return f"Order {order} of ada@example.com is shipped."


class Desk(Agent):
    model = "demo"
    tools = (status,)

    def after_tool(self, result: ToolResult, ctx: Context) -> str | None:
        return re.sub(r"\S+@\S+", "(hidden)", result.output)

    def after_response(self, response: str, ctx: Context) -> str | None:
        return f"{response}\n  -- The help desk"


class NightDesk(Desk):
    def after_response(self, response: str, ctx: Context) -> str | None:
        return super().after_response(f"Good night! {response}", ctx)


class FraudDesk(Desk):
    def after_tool(self, result: ToolResult, ctx: Context) -> None:
        """None keeps the result: this desk sees the address."""


app = App(agents=[Desk, NightDesk, FraudDesk])

if __name__ == "__main__":
    for name in app.agents:
        print(f"{name}: {app.run_sync(name, 'What is the status of order 7?').text}")
