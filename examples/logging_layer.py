"""A line of log for each model call and each tool call of a run, with how long it took, also where it fails.

You will see:

    event="model call" run_id=r1 agent=Calculator turn=1 outcome=ok asks_for=['divide'] seconds=...
    event="tool call" run_id=r1 agent=Calculator tool=divide outcome=error seconds=...
    event="model call" run_id=r1 agent=Calculator turn=2 outcome=ok asks_for=[] seconds=...
    divide reports an error: ZeroDivisionError: the tool 'divide' failed. (I am a set of rules, not a language model.)
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from middlechain import Agent, App, ChatCall, ChatReply, Next, ToolCall, ToolOutput, observes


@contextmanager
def timed(log: FilteringBoundLogger, event: str) -> Generator[dict[str, Any]]:
    began = anyio.current_time()
    fields: dict[str, Any] = {"outcome": "raised"}
    try:
        yield fields
    finally:
        log.info(event, **fields, seconds=anyio.current_time() - began)


@observes  # it changes no answer, so a stream that cannot take text back need not wait for it
class CallLog:  # a bundle: each method is a layer around the calls that it is named after
    async def chat(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> ChatReply:
        with timed(call.ctx.log.bind(turn=call.ctx.turn), "model call") as fields:
            reply = await next()
            fields.update(outcome="ok", asks_for=[use.name for use in reply.tool_calls])
            return reply

    async def tool(self, call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
        with timed(call.ctx.log.bind(tool=call.name), "tool call") as fields:
            output = await next()
            fields["outcome"] = "error" if output.is_error else "ok"
            return output


def divide(a: float, b: float) -> float:
    return a / b


def mask(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    return {**event, "seconds": "..."}  # so that this example prints the same every time


app = App(model="demo").use(CallLog())

if __name__ == "__main__":
    structlog.configure([mask, structlog.processors.LogfmtRenderer(key_order=["event", "run_id", "agent"])])
    print(app.run_sync(Agent(name="Calculator", tools=[divide]), "Divide 7 by 0", run_id="r1").text)
