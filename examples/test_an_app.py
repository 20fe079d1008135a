"""Tests of an app that needs a key and moves money, with neither. `pytest` runs them as well.

You will see:

    test_a_refund_is_made: passed
    test_a_large_refund_is_refused: passed
"""

# ruff: noqa: S101 - tests assert

from middlechain import Agent, App, Next, ToolCall, ToolOutput, ToolUse
from middlechain.testing import ScriptedModel, no_requests


def refund(order: int, euros: int) -> str:
    """Refund an order, in full or in part."""
    raise RuntimeError("this would move money")


class Desk(Agent):
    model = "openai:gpt-5"
    tools = (refund,)


async def refund_limit(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput:
    if call.problem is None and call.args["euros"] > 50:
        return ToolOutput("You may refund up to 50 euros.", is_error=True)
    return await next()


app = App(agents=[Desk]).use(tool=refund_limit, only="refund")


def asking_for(euros: int) -> ScriptedModel:
    return ScriptedModel([[ToolUse("refund", {"order": 7, "euros": euros})], "Done."])


def test_a_refund_is_made() -> None:
    def pretend(order: int, euros: int) -> str:  # gets the arguments that the tool would get
        return f"Refunded {euros} euros of order {order}."

    model = asking_for(20)
    with no_requests(), app.override(model=model, tools={"refund": pretend}):
        assert app.run_sync(Desk, "Refund it!").text == "Done."
    assert model.calls[1].messages[-1].text == "Refunded 20 euros of order 7."  # what the model was told


def test_a_large_refund_is_refused() -> None:
    model = asking_for(80)
    with no_requests(), app.override(model=model):  # layers, hooks and schemas stay as they are
        app.run_sync(Desk, "Refund it!")
    assert model.calls[1].messages[-1].text == "You may refund up to 50 euros."


if __name__ == "__main__":
    for test in (test_a_refund_is_made, test_a_large_refund_is_refused):
        test()
        print(f"{test.__name__}: passed")
