"""An answer printed as it is written, in two ways; then all at once, since a layer may still change it.

You will see:

    You| said:| Hello?| (I| am| a| set| of| rules,| not| a| language| model.)|
    You| said:| Hello?| (I| am| a| set| of| rules,| not| a| language| model.)| 61 letters in 1 call
    YOU SAID: HELLO? (I AM A SET OF RULES, NOT A LANGUAGE MODEL.)|
"""

import sys

import anyio
import structlog

from middlechain import Agent, App, ChatCall, ChatReply, Context, Layers, Next, observes


class Parrot(Agent):
    model = "demo"  # it streams word by word

    @observes
    def after_response(self, response: str, ctx: Context) -> None:  # hooks on the way out are marked likewise
        ctx.letters = len(response)


@observes  # a promise to return what next() gave, so text need not wait; an answer of its own would be a WrongReturn
async def count(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    call.ctx.calls = call.ctx.get("calls", 0) + 1
    return await next()


async def shout(call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
    reply = await next()
    return reply.replace(text=reply.text.upper())


app = App().use(chat=count)


def show(piece: str) -> None:
    print(piece, end="|", flush=True)  # the bars show the pieces; whoever reads an answer is better off with end=""


async def main() -> None:
    async with app.stream(Parrot, "Hello?") as stream:
        async for piece in stream.text():
            show(piece)
    print()
    result = await app.run(Parrot, "Hello?", on_text=show)
    print(f" {result.state.letters} letters in {result.state.calls} call")
    # An unmarked layer has all text wait for it, whether it changes any or not. The log says so, once for an app.
    await app.run(Parrot, "Hello?", on_text=show, use=[Layers(chat=shout)])
    print()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout is for the answer alone
    anyio.run(main)
