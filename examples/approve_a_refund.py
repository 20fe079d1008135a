"""A large refund that waits for a person, who decides it in another app that knows the conversation by its id alone.

You will see:

    the tool runs: 20 euros for order 1
    finish reason: pending
    pending: [('call 2', 'refund', {'order': 2, 'euros': 90})]
    the tool runs: 90 euros for order 2
    Both are paid back.
    refused: the call 'call 2' has been decided already; those that wait: none
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from middlechain import Agent, App, ConfigurationError, Conversation, ToolCall, ToolUse, tool
from middlechain.sessions import SqliteSessions
from middlechain.testing import ScriptedModel


def is_large(call: ToolCall) -> bool:
    return bool(call.args["euros"] > 50)


@tool(approve=is_large)
def refund(order: int, euros: int) -> str:
    """Pay money back."""
    print(f"the tool runs: {euros} euros for order {order}")
    return "done"


def talk(sessions: SqliteSessions, *replies: str | list[ToolUse]) -> Conversation:  # as each process would make it
    app = App(model=ScriptedModel(replies))
    return app.conversation(Agent(name="desk", tools=[refund]), sessions=sessions, id="ada")


async def main(path: Path) -> None:
    wanted = [ToolUse("refund", {"order": n, "euros": euros}, id=f"call {n}") for n, euros in ((1, 20), (2, 90))]
    async with SqliteSessions(path) as sessions:
        result = await talk(sessions, wanted).send("Pay me back orders 1 and 2.")
        print(f"finish reason: {result.finish_reason}")
    # Here the process may end: all that is needed later is in the file.
    async with SqliteSessions(path) as sessions:
        conversation = talk(sessions, "Both are paid back.")
        await conversation.load()  # to see what waits; send and resume look for themselves
        print(f"pending: {[(call.id, call.name, call.args) for call in conversation.pending]}")
        print((await conversation.resume({"call 2": True})).text)
        try:
            await conversation.resume({"call 2": True})
        except ConfigurationError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        anyio.run(main, Path(directory) / "sessions.db")
