"""Plant faults in copies of the library, one rule flipped in each, and see that the suite catches every one.

    python tests/planted_faults.py [NAME ...]

Prints a line for each fault and exits 1 if one is not caught. Each copy runs the tests that are named beside its fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Fault(NamedTuple):
    """One rule flipped: `old` becomes `new` in `room`."""

    name: str
    clause: str
    room: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault("truthiness for None after the response", "H6", "answering", "if value is not None:\n            if not isinstance(value, str):\n                raise wrong_return(hook, \"after_response\"",
          "if value:\n            if not isinstance(value, str):\n                raise wrong_return(hook, \"after_response\"", "test_hooks.py"),
    Fault("truthiness for None in on_error", "H7", "steps", "if value is None:\n            continue", "if not value:\n            continue", "test_on_error.py"),
    Fault("truthiness for None in before_prompt", "H1", "turn", "if value is not None:\n            if not isinstance(value, str):", "if value:\n            if not isinstance(value, str):", "test_hooks.py"),
    Fault("an empty answer of a layer is dropped", "M3", "chain", "if value is None:\n                    value = next.keep()", "if not value:\n                    value = next.keep()", "test_middleware.py"),
    Fault("what before_tool made is dropped", "H4", "turn", "call = await _before_tool(step, call)", "await _before_tool(step, call)", "test_hooks.py test_tool_hooks.py"),
    Fault("hooks inside the tool layers", "B18", "turn", "            call = await _before_tool(step, call)\n        output = await chain_of(step, TOOL, run_tool)(call)",
          "            pass\n        output = await chain_of(step, TOOL, run_tool)(call)\n        call = await _before_tool(step, call)", "test_tools.py test_tool_hooks.py"),
    Fault("layers fold inside out", "M2", "chain", "in reversed(tuple(layers))", "in tuple(layers)", "test_registration.py test_middleware.py"),
    Fault("run's layers outside the app's", "M2", "layers", "(*self.found.registrations, *plan.found.registrations, *self.of_run.registrations)",
          "(*self.of_run.registrations, *self.found.registrations, *plan.found.registrations)", "test_registration.py"),
    Fault("hooks run first to last on the way out", "H3", "agent", "functions if name in INWARD else reversed(functions)", "functions", "test_hooks.py"),
    Fault("no reset when a chat layer asks again", "S7", "chat", "await call.send(TextReset())", "pass", "test_streams.py test_oracle.py"),
    Fault("no reset when an agent layer begins again", "S7", "edge", "await self._settle_all(())", "pass", "test_streams.py test_oracle.py"),
    Fault("a changed text is only appended", "S1", "edge", "if not (text.startswith(sent) and reasoning.startswith(sent_reasoning)):", "if False:", "test_oracle.py"),
    Fault("the last text is not settled", "S1", "steps", "            result = await step.edge.finish(result, Moment.STEPPED)", "            pass", "test_streams.py"),
    Fault("next() again after a success", "M5", "chain", "if self.answer is not None and not is_marked(", "if False and not is_marked(", "test_next.py"),
    Fault("next() after the layer has returned", "M5", "chain", "if self.state is _LEFT:", "if False:", "test_next.py"),
    Fault("two next() at once", "M5", "chain", "if any(inspect.getcoroutinestate(one) != inspect.CORO_CREATED for one in unfinished):", "if False:", "test_small_print.py"),
    Fault("a tool's exception ends the step", "T4", "execution", "return _failure(tool, _as_raised(error))", "raise", "test_tool_endings.py test_tools.py"),
    Fault("a fatal tool error is a result", "T4", "execution", "except (FatalToolError, LimitExceeded, GuardrailDenied):", "except (LimitExceeded, GuardrailDenied):", "test_tool_endings.py test_tools.py"),
    Fault("the message of any exception goes to the model", "T4", "execution", "if isinstance(error, ToolError) or tool.expose_errors:", "if True:", "test_tool_endings.py test_tools.py"),
    Fault("tools of a reply that was cut off run", "T8", "turn", "if reply.finish_reason in CUT_OFF:", "if False:", "test_tool_history.py"),
    Fault("arguments are an alias", "H9", "tool_calls", 'return cast("dict[str, Any]", fresh(self._args))\n\n    def replace', 'return cast("dict[str, Any]", self._args)\n\n    def replace', "test_tools.py test_tool_hooks.py test_tool_schema.py"),
    Fault("ids stay doubled", "T7", "chat", 'if not id or id in seen:', "if not id:", "test_tool_history.py"),
    Fault("a turn too many", "L1", "answering", "step.turns_taken >= limits.turns", "step.turns_taken > limits.turns", "test_limits.py"),
    Fault("a failed attempt is not counted", "L4", "limits", "            meter.requests += 1\n", "            pass\n", "test_usage.py test_limits.py"),
    Fault("the tools of a reply are admitted one by one", "L1", "admission", "self._step.meter.reserve_tools(len(self._expected))", "self._step.meter.reserve_tools(1)", "test_limits.py"),
    Fault("a run shares its caller's context variables", "M8", "runs", "return await RunIn(copy_context(), _execute(run, target, input, history, resumed))", "return await _execute(run, target, input, history, resumed)", "test_variables.py"),
    Fault("an observer can harm a run", "S9", "bus", "except Exception:  # noqa: BLE001 - an observer", "except ZeroDivisionError:  # noqa: BLE001 - an observer", "test_streams.py test_events.py"),
    Fault("a stream runs far ahead of its reader", "S3", "streams", "AHEAD = 8", "AHEAD = 80", "test_stream_flow.py"),
    Fault("on_error takes cancellation for an error", "H7", "steps", "except Exception as error:  # noqa: BLE001 - on_error gets", "except BaseException as error:  # noqa: BLE001 - on_error gets", "test_on_error.py test_tool_cancellation.py"),
    Fault("a cancelled run does not say so", "S8", "runs", 'outcome = "cancelled"', 'outcome = "failed"', "test_events.py test_stream_closing.py"),
    Fault("an unmarked layer does not hold text back", "S6", "holds", "return not is_marked(function, observes) or is_marked(function, repeats)", "return False", "test_append_only.py"),
    Fault("after_run does not hold text back", "S6", "holds", '_HOOKS = ("after_response", "after_run")', '_HOOKS = ("after_response",)', "test_append_only.py"),
    Fault("held text goes out before the agent layers have returned", "S6", "append_only", "if self._until(tool_turn=False) <= moment:", "if True:", "test_append_only.py test_oracle.py"),
    Fault("the result does not say what was sent before it", "S6", "append_only", "return result if same else result.replace(messages=messages)", "return result", "test_append_only.py test_oracle.py"),
    Fault("a retry in an append-only stream after text went out", "S7", "append_only", "        if not self.has_sent(turn):\n            return", "        return", "test_append_only.py test_oracle.py"),
    Fault("a marked layer may answer by itself", "S6", "chain", "if observing:", "if False:", "test_append_only.py test_oracle.py"),
    Fault("a marked hook may answer by itself", "S6", "turn", "if value is not given and is_marked(hook, observes):", "if False:", "test_append_only.py"),
    Fault("no blank line between turns", "S6", "append_only", "return text if first else BREAK + text", "return text", "test_append_only.py test_oracle.py"),
    Fault("who holds is logged for each run", "S6", "holds", "app.told_of_holds = True", "pass", "test_append_only.py"),
    Fault("hooks of an agent that owns its step fire", "H8", "agent", "_hooks(agent, self.name) if run is None else dict.fromkeys(HOOKS, ())", "_hooks(agent, self.name)", "test_owned_steps.py"),
    Fault("ctx.chat of an owned step is no turn", "H8", "delegation", "            await begin_turn(step)\n            step.next_turn()", "            pass", "test_owned_steps.py"),
    Fault("bundles are stopped in the order of their start", "M12", "lifespan", "self._started.pop()", "self._started.pop(0)", "test_lifespan.py"),
    Fault("a bundle is started twice at once", "M12", "lifespan", "while (other := self._other_start(bundle)) is not None:", "while (other := None) is not None:", "test_lifespan.py"),
    Fault("a layer's own model wins over an override", "override", "chat", "model = call.model if override is None or override.model is None else override.model", "model = call.model or override.model", "test_override.py"),
    Fault("agent layers are explained as the outermost", "S10", "explanation", '(("app", self.stack.found.registrations), ("agent", self.plan.found.registrations))', '(("agent", self.plan.found.registrations), ("app", self.stack.found.registrations))', "test_explanation.py"),
    Fault("hooks on the way out are explained the wrong way round", "S10", "explanation", 'functions if hook.startswith("before_") else reversed(functions)', "functions", "test_explanation.py"),
    Fault("a stream is not watched", "S4", "turn", "plan.model, watch.send, plan.asked)", "plan.model, send, plan.asked)", "test_guard_law.py test_guard_streams.py"),
    Fault("a block lets later guards run", "G4", "judging", "        if block is not None:\n            return block\n    return None", "    return None", "test_guards.py test_output_guards.py"),
    Fault("a guard that raises lets the text pass", "G9", "judging", "return _failed(guard, f\"raised {type(failure).__name__}\", failure)", "return Judgement(Allow())", "test_output_guards.py test_input_guards.py"),
    Fault("the app's guards judge before a pack's", "G5", "layers", "(plan.pack_guards, self.found, plan.guards, self.of_run)", "(self.found, plan.pack_guards, plan.guards, self.of_run)", "test_guards.py"),
    Fault("blocked input is sent to the model again", "G8", "messages", "if not skipping:", "if True:", "test_input_guards.py"),
    Fault("an observing guard blocks", "G10", "judging", 'if guard.mode == "observe" or ', "if ", "test_output_guards.py"),
    Fault("the stream is closed though a layer may change the reply", "S4", "turn", "return blocks and not any(holds_back(layer) for layer, _ in layers)", "return blocks", "test_guard_streams.py"),
    Fault("an answer that is handed on loses its author", "A1", "rows", "return User(answer.content, name=result.agent)", "return User(answer.content)", "test_flows.py"),
    Fault("results in the order in which branches ended", "A2", "branches", "results = [found[place] for place in range(len(self.members))]", "results = [*found.values()]", "test_flows.py"),
    Fault("a loop goes on for one pass more", "A3", "rows", "loop.iteration >= loop.max_iterations", "loop.iteration > loop.max_iterations", "test_flows.py"),
    Fault("one failed turn more than allowed", "A3", "records", "self.fails >= self._max_fails", "self.fails > self._max_fails", "test_flows.py"),
    Fault("a handoff is no deeper", "A5", "targets", "step.history, step.depth + 1)", "step.history, step.depth)", "test_handoffs.py test_delegation.py"),
    Fault("the second transfer is taken too", "A5", "approval", "if admission.transfer is ticket:", "if True:", "test_handoffs.py"),
    Fault("another call than the approved one runs", "T11", "approval", "(approved.name, _plain(approved.args)) == (call.name, wanted.args)", "True", "test_approvals.py"),
    Fault("code runs what needs approval", "T11", "approval", "if ticket.by_code or step_of(call.ctx).by_code:", "if False:", "test_approvals.py"),
    Fault("a layer that begins again runs an approved call again", "T11", "resuming", "one.output = known", "one.output = None", "test_approvals.py"),
    Fault("a turn is not saved before the next", "C4", "answering", "await step.run.keep()", "pass", "test_stored_conversations.py"),
    Fault("two sends at once do not take turns", "C4", "conversation", "loop, anyio.Lock()", "loop, anyio.Semaphore(9)", "test_conversations.py"),
    Fault("a failed exchange leaves more than its tool turns", "C4", "conversation", "return said[: last + 1]", "return said", "test_conversations.py"),
    Fault("an answer that does not fit is not taken back", "T10", "answering", "await step.edge.retract(step.turn)", "pass", "test_structured_answers.py"),
]  # fmt: skip


def caught(fault: Fault) -> bool:
    """Whether the tests fail on a copy with the fault."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        room = source / "middlechain" / f"{fault.room}.py"
        text = room.read_text(encoding="utf-8")
        if text.count(fault.old) != 1:
            raise SystemExit(f"{fault.name!r}: its line stands {text.count(fault.old)} times in {fault.room}; mend it")
        room.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        tests = [str(ROOT / "tests" / name) for name in fault.tests.split() if (ROOT / "tests" / name).exists()]
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "--no-cov", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if ran.returncode not in {0, 1}:
            raise SystemExit(f"{fault.name!r}: the tests did not run:\n{ran.stdout[-2000:]}")
        return ran.returncode == 1


def main(names: list[str]) -> int:
    """Plant all faults, or those named."""
    faults = [fault for fault in FAULTS if not names or fault.name in names]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(caught, faults))
    for fault, hit in zip(faults, found, strict=True):
        print(f"{'caught' if hit else 'NOT CAUGHT'}  {fault.clause:4} {fault.name}")
    print(f"{sum(found)} of {len(faults)} planted faults caught")
    return 0 if all(found) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
