"""A chat layer that asks a model again, which fails twice, and does not ask again where that is of no use.

You will see:

    attempt 1: ModelUnavailable: all servers are busy; again in 0.001 s
    attempt 2: RateLimited: too many requests; again in 0.005 s
    Hello, at last.
    BadRequest: there is no such model

In a stream, a `TextReset` takes back what a failed call had sent. Where nothing can be taken back, as in
`stream.text()`, the text waits until a call has succeeded. Marked `@observes`, the layer would let it through at once;
but a call that fails after the first piece could not be made again then, and its error would go on.
"""

from dataclasses import dataclass

import anyio

from middlechain import (
    Agent,
    App,
    BadRequest,
    ChatCall,
    ChatReply,
    ModelError,
    ModelUnavailable,
    Next,
    RateLimited,
)
from middlechain.testing import ScriptedModel


@dataclass(frozen=True)
class Retry:
    attempts: int = 3
    backoff: float = 1.0  # seconds before the second attempt, twice as many before the third, and so on

    async def chat(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
        for attempt in range(1, self.attempts):
            try:
                return await next()
            except ModelError as error:
                if not error.retryable:
                    raise
                seconds = max(self.backoff * 2 ** (attempt - 1), error.retry_after or 0)
                print(f"attempt {attempt}: {type(error).__name__}: {error}; again in {seconds} s")
            await anyio.sleep(seconds)
        return await next()  # the last attempt: its error goes on


app = App().use(Retry(backoff=0.001))

if __name__ == "__main__":
    busy, too_many = ModelUnavailable("all servers are busy"), RateLimited("too many requests", retry_after=0.005)
    print(app.run_sync(Agent(model=ScriptedModel([busy, too_many, "Hello, at last."])), "Hello?").text)
    try:
        app.run_sync(Agent(model=ScriptedModel([BadRequest("there is no such model")])), "Hello?")
    except BadRequest as error:
        print(f"{type(error).__name__}: {error}")
