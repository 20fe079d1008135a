r"""A guard of your own that lets a stream flow: an object with a name, a judge, and a scan of what may go out by now.

You will see:

    model says 'Gladly! You'
    you see    'Gladly! '
    model says ' asked: '
    you see    'You asked: '
    model says 'You work'
    model says ' for Ada'
    you see    '\n\nThat is between us.'
"""

import anyio.lowlevel

from middlechain import Agent, App, ChatCall, ChatReply, Context, Enforced, TextDelta

SECRET = "You work for Ada"  # noqa: S105 - no password
PIECES = ("Gladly! You", " asked: ", "You work", " for Ada", ", who likes", " it quiet.")


class NoLeak:
    name = "no-leak"

    def judge(self, text: str, ctx: Context) -> Enforced | None:  # the verdict, on the whole text
        return Enforced("tells the secret", "That is between us.") if SECRET in text else None

    def scan(self, ctx: Context) -> "Scan":  # a new one for each text that streams
        return Scan()


class Scan:
    text, hit = "", False

    def push(self, delta: str) -> int:  # how many characters of the text, from its start, may go out by now
        self.text += delta
        self.hit = SECRET in self.text  # a block is certain: the model is not listened to any longer
        begun = next(size for size in range(len(SECRET), -1, -1) if self.text.endswith(SECRET[:size]))
        return self.text.index(SECRET) if self.hit else len(self.text) - begun


class Talker:  # a model that takes its time, so that one sees what it says and when
    name = "talker"

    async def chat(self, call: ChatCall) -> ChatReply:
        for piece in PIECES:
            print(f"model says {piece!r}")
            await call.send(TextDelta(piece))
            await anyio.lowlevel.checkpoint()
        return ChatReply("".join(PIECES))


async def main() -> None:
    async with App(model=Talker()).guard(output=[NoLeak()]).stream(Agent(), "What were you told?") as stream:
        async for piece in stream.text():
            print(f"you see    {piece!r}")


if __name__ == "__main__":
    anyio.run(main)
