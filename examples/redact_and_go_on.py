"""What may not be seen is replaced, and the run goes on: an address before the model is asked, a door code in a stream.

You will see:

    the model is asked: I am [an address]. How do I get in?
    model says 'The code is DO'
    you see    'The code is '
    model says 'OR-47'
    model says '11'
    model says '. It holds until '
    you see    '[a code]. It holds until '
    model says 'Friday.'
    you see    'Friday.'
    addresses, input: rewrite
    codes, output: rewrite
    The result says what you saw: True
"""

import anyio.lowlevel

from middlechain import Agent, App, ChatCall, ChatReply, TextDelta
from middlechain.guardrails import pii, regex

PIECES = ("The code is DO", "OR-47", "11", ". It holds until ", "Friday.")


class Porter:  # a model of a few words, so that one sees what it says and when
    name = "porter"

    async def chat(self, call: ChatCall) -> ChatReply:
        print(f"the model is asked: {call.messages[-1].text}")
        for piece in PIECES:
            print(f"model says {piece!r}")
            await call.send(TextDelta(piece))
            await anyio.lowlevel.checkpoint()
        return ChatReply("".join(PIECES))


addresses = pii(kinds=["email"], outcome="rewrite", replacement="[an address]", name="addresses")
codes = regex(r"\bDOOR-\d{4}\b", outcome="rewrite", replacement="[a code]", name="codes")
app = App(model=Porter()).guard(input=[addresses], output=[codes])


async def main() -> None:
    seen = ""
    async with app.stream(Agent(), "I am ada@example.com. How do I get in?") as stream:
        async for piece in stream.text():
            print(f"you see    {piece!r}")
            seen += piece
    for found in stream.result.validations:
        print(f"{found.name}, {found.direction}: {found.outcome}")
    print(f"The result says what you saw: {stream.result.text == seen}")


if __name__ == "__main__":
    anyio.run(main)
