"""One journal for two apps: a bundle that opens a database with the first of them and closes it with the last.

You will see:

    opened
    ('shop', 'model call')
    ('shop', 'order_status')
    ('shop', 'model call')
    ('bank', 'model call')
    closed
"""

import sqlite3

import anyio

from middlechain import Agent, App, ChatCall, ChatReply, Next, ToolCall, ToolOutput, observes


@observes
class Journal:
    apps = 0  # how many use it: each of them starts it and stops it

    async def start(self) -> None:
        self.apps += 1
        if self.apps == 1:
            self.db = sqlite3.connect(":memory:")
            self.db.execute("CREATE TABLE entries (app TEXT, what TEXT)")
            print("opened")

    async def stop(self) -> None:
        self.apps -= 1
        if self.apps == 0:
            print(*self.db.execute("SELECT * FROM entries"), "closed", sep="\n")
            self.db.close()

    async def chat(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:  # None keeps what next() gave
        self.db.execute("INSERT INTO entries VALUES (?, ?)", (call.ctx.app.name, "model call"))
        await next()

    async def tool(self, call: ToolCall, next: Next[ToolCall, ToolOutput]) -> None:
        self.db.execute("INSERT INTO entries VALUES (?, ?)", (call.ctx.app.name, call.name))
        await next()


def order_status(order: int) -> str:
    return f"Order {order} is shipped."


async def main() -> None:
    desk, journal = Agent(model="demo", tools=[order_status]), Journal()
    async with App("shop").use(journal) as shop, App("bank").use(journal) as bank:  # in a web app: in its lifespan
        await shop.run(desk, "What is the status of order 7?")
        await bank.run(desk, "Hello!")


if __name__ == "__main__":
    anyio.run(main)
