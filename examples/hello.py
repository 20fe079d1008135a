"""What each model call carried, and then the answer of an offline model, in capitals.

You will see:

    1 messages in, 1 tool calls out
    3 messages in, 0 tool calls out
    ADD SAYS: 42 (I AM A SET OF RULES, NOT A LANGUAGE MODEL.)
"""

from typing import Any

from middlechain import Agent, App, ChatCall, ChatReply, Context, Next, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Calculator(Agent):
    model = "demo"  # a set of rules that needs no key; "openai:gpt-5" asks a real one
    tools = (add,)

    def after_response(self, response: str, ctx: Context[Any]) -> str:  # a hook: what it returns replaces, None keeps
        return response.upper()


async def count(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:  # a layer: around every model call
    reply = await next()
    print(f"{len(call.messages)} messages in, {len(reply.tool_calls)} tool calls out")
    return reply


app = App(agents=[Calculator]).use(chat=count)

if __name__ == "__main__":
    print(app.run_sync(Calculator, "Please add 2 and 40").text)
