"""A front desk that hands the conversation over, and a layer that tells the other agent where it comes from.

You will see:

    root: desk is asked 'Did I pay invoice 7?'
    handoff: billing is asked '[from desk] Did I pay invoice 7?'
    billing: You paid it in May.
    root: billing is asked 'How?'
    billing: In cash.
    who has the conversation: billing
"""

import anyio

from middlechain import Agent, AgentCall, App, Next, Result, ToolUse
from middlechain.testing import ScriptedModel

billing = Agent(name="billing", description="Knows invoices and payments.")
desk = Agent(
    name="desk",
    instructions="Find out who can help, and hand the conversation over.",
    handoffs=[billing],  # the model gets a tool transfer_to_billing
)


async def introduce(call: AgentCall, next: Next[AgentCall, Result]) -> Result:
    if call.via == "handoff" and call.caller is not None:
        call = call.replace(input=f"[from {call.caller.name}] {call.input}")
    print(f"{call.via}: {call.agent.name} is asked {call.input!r}")
    return await next(call)


model = ScriptedModel([ToolUse("transfer_to_billing"), "You paid it in May.", "In cash."])
app = App(model=model).use(agent=introduce)


async def main() -> None:
    conversation = app.conversation(desk)
    for question in ("Did I pay invoice 7?", "How?"):
        result = await conversation.send(question)
        print(f"{result.agent}: {result.text}")
    print(f"who has the conversation: {conversation.agent}")


if __name__ == "__main__":
    anyio.run(main)
