"""A degraded answer in place of a crash, with the error beside it; then a bug, which `on_error` lets go on.

You will see:

    text: I cannot look that up right now, Ada. Please try again in a minute.
    degraded: True
    error: ModelUnavailable('all servers are busy')
    finish reason: degraded
    raised: KeyError('customer')
"""

from middlechain import Agent, App, Context, ModelError, ModelUnavailable
from middlechain.testing import ScriptedModel


class Desk(Agent):
    def before_prompt(self, prompt: str, ctx: Context) -> str:
        return f"You are talking to {ctx.data['customer']}."  # a KeyError where a run brings no customer

    def on_error(self, error: Exception, ctx: Context) -> str | None:
        if isinstance(error, ModelError):
            return f"I cannot look that up right now, {ctx.data['customer']}. Please try again in a minute."
        return None  # lets any other error go on to the caller


app = App(model=ScriptedModel(lambda call: ModelUnavailable("all servers are busy", status=503)))

if __name__ == "__main__":
    result = app.run_sync(Desk, "Where is my order?", data={"customer": "Ada"})
    print(f"text: {result.text}")
    print(f"degraded: {result.degraded}")
    print(f"error: {result.error!r}")
    print(f"finish reason: {result.finish_reason}")
    try:
        app.run_sync(Desk, "Where is my order?")
    except KeyError as error:
        print(f"raised: {error!r}")
