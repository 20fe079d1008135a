"""Two agents look something up at the same time; a merge has a third one make one answer of what they found.

You will see:

    notes: archive: opened in 1894; press: closed last week
    answer of research: The bridge was opened in 1894 and closed last week.
    user: What about the bridge?
    user (archive): opened in 1894
    user (press): closed last week
    assistant: The bridge was opened in 1894 and closed last week.
"""

from collections.abc import Sequence

from middlechain import Agent, App, Context, Result, User, parallel
from middlechain.testing import ScriptedModel

archive = Agent(name="archive", model=ScriptedModel(["opened in 1894"]))
press = Agent(name="press", model=ScriptedModel(["closed last week"]))
editor = Agent(
    instructions="Make one sentence of these notes.",
    model=ScriptedModel(["The bridge was opened in 1894 and closed last week."]),
)


async def merge(results: Sequence[Result], ctx: Context) -> Result:  # in the order of the members, whoever ended first
    notes = "; ".join(f"{result.agent}: {result.text}" for result in results)
    print(f"notes: {notes}")
    return await ctx.run(editor, notes)  # a step through the layers of the run; a str would do as well


research = parallel(archive, press, merge=merge, name="research")

if __name__ == "__main__":
    result = App().run_sync(research, "What about the bridge?")
    print(f"answer of {result.agent}: {result.text}")
    for message in result.messages:  # each member's answer is a user message of its name
        name = message.name if isinstance(message, User) else None
        print(f"{message.role} ({name}): {message.text}" if name else f"{message.role}: {message.text}")
