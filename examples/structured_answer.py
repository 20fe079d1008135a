"""An answer of a type: a reply that does not fit goes back to the model, and no reader of the stream sees any of it.

You will see:

    {"number": 7, "euros": 42.5}|
    output: Invoice(number=7, euros=42.5)
    in the history: ['Invoice No. 7, 42.50 euros', '{"number": 7, "euros": 42.5}']
    the model was told: The answer did not fit: euros: Field required. Answer again, with JSON alone.
"""

from dataclasses import dataclass

import anyio

from middlechain import Agent, App
from middlechain.testing import ScriptedModel


@dataclass
class Invoice:
    number: int
    euros: float


class Reader(Agent):
    instructions = "Read the invoice."
    output = Invoice  # any type that pydantic has a JSON schema for; the model is sent the schema
    output_retries = 1  # how often what does not fit goes back; then it is an OutputError


async def main() -> None:
    model = ScriptedModel(['{"number": 7}', '{"number": 7, "euros": 42.5}'], chunk=8)
    async with App(model=model).stream(Reader, "Invoice No. 7, 42.50 euros") as stream:
        async for piece in stream.text():
            print(piece, end="|")
    print()
    print(f"output: {stream.result.output}")
    print(f"in the history: {[message.text for message in stream.result.messages]}")
    print(f"the model was told: {model.calls[1].messages[-1].text}")


if __name__ == "__main__":
    anyio.run(main)
