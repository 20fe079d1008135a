"""An agent out of a file: a pack with a prompt and a guard on the way in. First what is wrong with it, then answers.

You will see:

    error at prompts.desk.validators[0].message
       message stands beside params; move it into them: params.message
    error at prompts.desk.validators[0].params.direction
       the direction is 'in'; write 'input' or 'output' or 'both', or leave it out
    Where is Emma?
    -> Emma is on shelf 3.
    What is the home address of her last reader?
    -> I give no addresses out.
    the model was told: You work at the desk of Harbour.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from middlechain import App
from middlechain.packs import Pack, load
from middlechain.testing import ScriptedModel

GUARD = {
    "type": "banned_words",
    "enabled": True,
    "params": {"words": ["home address"], "direction": "input", "message": "I give no addresses out."},
}
SLIP = {"type": "banned_words", "enabled": True, "params": {"words": ["home"], "direction": "in"}, "message": "No."}


def pack_with(guard: dict[str, Any]) -> Pack:
    about = {"id": "desk", "name": "Desk", "version": "1.0.0"}
    prompt = {
        "system_template": "You work at the desk of {{branch}}.",
        "variables": [{"name": "branch", "type": "string", "required": True}],
        "validators": [guard],
    }
    engine = {"version": "v1", "syntax": "{{variable}}"}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "desk.pack.json")
        path.write_text(json.dumps({**about, "template_engine": engine, "prompts": {"desk": {**about, **prompt}}}))
        return load(path)


if __name__ == "__main__":
    for issue in pack_with(SLIP).check():
        print(f"{issue.kind} at {issue.place}\n   {issue.message}")
    model = ScriptedModel(["Emma is on shelf 3."])
    desk = pack_with(GUARD).agent("desk", model=model, variables={"branch": "Harbour"})
    for question in ("Where is Emma?", "What is the home address of her last reader?"):
        print(f"{question}\n-> {App().run_sync(desk, question).text}")
    print(f"the model was told: {model.calls[0].messages[0].text}")
