"""An agent that owns its step: it drafts a sentence, has it criticised, and improves it until a tool finds it short.

You will see:

    chat: Explain it in one sentence. -> Middleware is a kind of code that goes around what any other code calls.
    tool: count_words -> 14
    chat: What makes it long? -> It says what the thing is before it says what it does.
    chat: Make it shorter. It says what the thing is before it says what it does. -> Middleware wraps calls.
    tool: count_words -> 3
    Middleware wraps calls.
"""

from middlechain import Agent, App, ChatCall, ChatReply, Context, Limits, Next, System, ToolCall, ToolOutput, User
from middlechain.testing import ScriptedModel


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


class Writer(Agent):
    tools = (count_words,)
    limits = Limits(turns=9)  # each ctx.chat is a turn, so a loop that does not end is ended

    async def run(self, input: str, ctx: Context) -> str:  # takes the place of the turns, and no hook fires
        draft = await ctx.chat([System("Explain it in one sentence."), User(input)])
        while int((await ctx.call_tool("count_words", {"text": draft.text})).content) > 10:
            critique = await ctx.chat([System("What makes it long?"), User(draft.text)])
            draft = await ctx.chat([System(f"Make it shorter. {critique.text}"), User(draft.text)])
        return draft.text


async def show_chat(call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:
    reply = await next()
    print(f"chat: {call.messages[0].text} -> {reply.text}")


async def show_tool(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> None:
    output = await next()
    print(f"tool: {call.name} -> {output.content}")


replies = [
    "Middleware is a kind of code that goes around what any other code calls.",
    "It says what the thing is before it says what it does.",
    "Middleware wraps calls.",
]
app = App(model=ScriptedModel(replies)).use(chat=show_chat, tool=show_tool)  # layers see all that the step calls

if __name__ == "__main__":
    print(app.run_sync(Writer, "Middleware").text)
