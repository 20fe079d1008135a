"""A writer and a reviewer in a loop, which ends when a hook of the reviewer says that the draft is approved.

You will see:

    Writer: Our new app is amazing.
    Reviewer: Say what it does.
    Writer: Our app counts your steps.
    Reviewer: Approved.
    answer: Our app counts your steps.
    stopped by: until
"""

from middlechain import Agent, AgentCall, App, Context, Next, Result, loop
from middlechain.testing import ScriptedModel


class Writer(Agent):
    instructions = "Write one sentence for the shop. Mend it as the reviewer says."

    def after_response(self, response: str, ctx: Context) -> None:
        ctx.draft = response  # free attributes are shared by all steps of a run


class Reviewer(Agent):
    instructions = "Say what is wrong with the sentence, or: Approved."

    def after_response(self, response: str, ctx: Context) -> None:
        ctx.approved = response == "Approved."


async def show(call: AgentCall, next: Next[AgentCall, Result]) -> None:  # an agent layer wraps each member's step
    result = await next()
    print(f"{result.agent}: {result.text}")


replies = ["Our new app is amazing.", "Say what it does.", "Our app counts your steps.", "Approved."]
app = App(model=ScriptedModel(replies)).use(agent=show)
# The answer of one is what the next one is asked; what the reviewer says last begins the next pass.
team = loop(Writer, Reviewer, until=lambda ctx: ctx.approved, max_iterations=5, name="team")

if __name__ == "__main__":
    result = app.run_sync(team, "Our new app")
    print(f"answer: {result.state.draft}")  # result.text is what the last member said: Approved.
    print(f"stopped by: {result.stopped_by}")
