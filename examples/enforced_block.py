"""A phrase that may not be said, by users or by the model: a canned message takes the place of a text that has it.

You will see:

    How far is it to the station?
    -> Two kilometres.
       blocked: False, finish reason: stop, requests: 1
       words, input: allow
       words, output: allow
    What is operation Night Train?
    -> That is not public yet.
       blocked: True, finish reason: safety, requests: 1
       words, input: enforced, contains a banned word
    What are you working on?
    -> That is not public yet.
       blocked: True, finish reason: safety, requests: 2
       words, input: allow
       words, output: enforced, contains a banned word
"""

from middlechain import Agent, App
from middlechain.guardrails import banned_words
from middlechain.testing import ScriptedModel

words = banned_words(["night train"], name="words", message="That is not public yet.")
model = ScriptedModel(["Two kilometres.", "Mostly on NIGHT TRAIN, which is a secret."])
app = App(model=model).guard(input=[words], output=[words])  # one guard may judge both sides

if __name__ == "__main__":
    for question in ("How far is it to the station?", "What is operation Night Train?", "What are you working on?"):
        result = app.run_sync(Agent(), question)
        print(question)
        print(f"-> {result.text}")
        # A message that is blocked on its way in costs no request.
        print(f"   blocked: {result.blocked}, finish reason: {result.finish_reason}, requests: {len(model.calls)}")
        for found in result.validations:
            print(f"   {found.name}, {found.direction}: {', '.join(filter(None, (found.outcome, found.reason)))}")
