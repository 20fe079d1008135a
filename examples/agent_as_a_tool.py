"""An agent that another one calls as a tool: with a history of its own, through the same layers.

You will see:

    the caller asks helper (root): How do I greet in Paris?
    model call of helper: system, user
    helper asks translator (tool): Good morning
    model call of translator: system, user
    translator answers: Bonjour
    model call of helper: system, user, assistant, tool
    helper answers: In French it is: Bonjour.
    model calls of both: 3
"""

from middlechain import Agent, AgentCall, App, ChatCall, ChatReply, Next, Result, ToolUse
from middlechain.testing import ScriptedModel

translator = Agent(name="translator", instructions="Say it in French.", description="Says a text in French.")
helper = Agent(
    name="helper",
    instructions="Help, and leave translations to the tool.",
    tools=[translator.as_tool(name="translate")],  # one argument, input; the answer's text is the result
)


async def show_step(call: AgentCall, next: Next[AgentCall, Result]) -> None:
    asked_by = "the caller" if call.caller is None else call.caller.name
    print(f"{asked_by} asks {call.agent.name} ({call.via}): {call.input}")
    result = await next()
    print(f"{call.agent.name} answers: {result.text}")


async def show_chat(call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:
    roles = [message.role for message in call.messages]  # each of the two has a history of its own
    print(f"model call of {call.agent.name}: {', '.join(roles)}")
    await next()


model = ScriptedModel([ToolUse("translate", {"input": "Good morning"}), "Bonjour", "In French it is: Bonjour."])
app = App(model=model).use(agent=show_step, chat=show_chat)

if __name__ == "__main__":
    result = app.run_sync(helper, "How do I greet in Paris?")
    print(f"model calls of both: {result.usage.requests}")
