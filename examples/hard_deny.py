"""A guard that raises: `GuardrailDenied`, or `StreamDenied` where some text was out; then `on_error` answers instead.

You will see:

    run: GuardrailDenied: guardrail 'no-codes' denied the output: matches a forbidden pattern
    stream: The code of the safe is ...
    stream: StreamDenied: guardrail 'no-codes' denied the output: matches a forbidden pattern
    with on_error: Please ask at the front desk.
    degraded: True, blocked: True, blocked by: no-codes
    error: GuardrailDenied, direction: output
"""

import anyio

from middlechain import Agent, App, Context, GuardrailDenied
from middlechain.guardrails import regex
from middlechain.testing import ScriptedModel

no_codes = regex(r"\b\d{4}\b", outcome="deny", name="no-codes")
model = ScriptedModel(lambda call: ["The code of the safe is ", "4711", ", I think."])
app = App(model=model).guard(output=[no_codes])


class Desk(Agent):
    def on_error(self, error: Exception, ctx: Context) -> str | None:  # gets a denial as any other error
        return "Please ask at the front desk." if isinstance(error, GuardrailDenied) else None


async def main() -> None:
    try:
        await app.run(Agent(), "How do I open the safe?")
    except GuardrailDenied as error:
        print(f"run: {type(error).__name__}: {error}")

    try:
        async with app.stream(Agent(), "How do I open the safe?") as stream:
            async for piece in stream.text():
                print(f"stream: {piece}...")  # what is out is not taken back; the code itself never goes out
    except GuardrailDenied as error:  # a StreamDenied is one, too
        print(f"stream: {type(error).__name__}: {error}")

    result = await app.run(Desk, "How do I open the safe?")
    print(f"with on_error: {result.text}")
    print(f"degraded: {result.degraded}, blocked: {result.blocked}, blocked by: {result.blocked_by}")
    if isinstance(result.error, GuardrailDenied):
        print(f"error: {type(result.error).__name__}, direction: {result.error.direction}")


if __name__ == "__main__":
    anyio.run(main)
