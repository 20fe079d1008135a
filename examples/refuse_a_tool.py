"""A model that asks for too large a refund, reads why a tool layer refuses it, and goes on with a smaller one.

You will see:

    user: Refund 80 euros of order 7, please.
    model: refund({"order": 7, "euros": 80})
    refused: You may refund up to 50 euros. Ask a supervisor for more.
    model: refund({"order": 7, "euros": 50})
    tool: Refunded 50 euros of order 7.
    model: I refunded 50 euros. A supervisor has to grant the rest.
"""

from middlechain import Agent, App, Assistant, Next, ToolCall, ToolMessage, ToolOutput, ToolUse
from middlechain.testing import ScriptedModel

LIMIT = 50


def refund(order: int, euros: int) -> str:
    """Refund an order, in full or in part."""
    return f"Refunded {euros} euros of order {order}."


async def refund_limit(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
    # Where the arguments miss the schema there is a problem and args is empty: the tool will not run anyway.
    if call.problem is None and call.args["euros"] > LIMIT:
        # Returned, not raised: an exception would end the step; this the model reads, as it reads any tool's result.
        return ToolOutput(f"You may refund up to {LIMIT} euros. Ask a supervisor for more.", is_error=True)
    return await next()


model = ScriptedModel(
    [
        [ToolUse("refund", {"order": 7, "euros": 80})],
        [ToolUse("refund", {"order": 7, "euros": 50})],
        "I refunded 50 euros. A supervisor has to grant the rest.",
    ]
)
app = App(model=model).use(tool=refund_limit, only="refund")

if __name__ == "__main__":
    result = app.run_sync(Agent(tools=[refund]), "Refund 80 euros of order 7, please.")
    for message in result.messages:
        match message:
            case Assistant(tool_calls=(ToolUse(name, arguments),)):
                print(f"model: {name}({arguments})")
            case Assistant():
                print(f"model: {message.text}")
            case ToolMessage():
                print(f"{'refused' if message.is_error else 'tool'}: {message.text}")
            case _:
                print(f"{message.role}: {message.text}")
