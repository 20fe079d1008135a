"""Building guards (G1), in which order they judge (G5), and that the first block wins (G4)."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest

from middlechain import (
    Agent,
    Allow,
    App,
    ConfigurationError,
    Context,
    Deny,
    Enforced,
    GuardrailDenied,
    Guardrails,
    Layers,
    Rewrite,
    Validation,
    guardrail,
)
from middlechain.guards import Guard
from middlechain.testing import ScriptedModel

from .conftest import Go
from .guarding import against, found, noting, setup

pytestmark = pytest.mark.anyio


def no_ssn(text: str, ctx: Context) -> Enforced | None:
    return Enforced("looks like one") if "078" in text else None


def the(guards: Any) -> Guard:
    """The one guard that was made of what was given."""
    (guard,) = Guardrails(output=[guards]).output
    assert isinstance(guard, Guard)
    return guard


class Judge:
    """A guard as an object."""

    name = "judge"
    mode = "observe"
    timeout = 2.5
    id = "J-1"

    def judge(self, text: str, ctx: Context) -> Deny:
        return Deny("always")


# --- G1: what a guard is made of -------------------------------------------------------------------------------------


def test_g1_a_plain_function_is_named_by_its_name() -> None:
    class Rules:
        def rule(self, text: str, ctx: Context) -> None: ...

        def __call__(self, text: str, ctx: Context) -> None: ...

    def local(text: str, ctx: Context) -> None: ...

    assert the(no_ssn).name == "no_ssn"
    assert the(local).name == "local"
    assert the(partial(no_ssn)).name == "no_ssn"
    assert the(Rules().rule).name == "rule"
    assert the(Rules()).name == "Rules"
    assert the(lambda text, ctx: None).name == "<lambda>"
    guard = the(no_ssn)
    assert (guard.type, guard.judge, guard.outcome, guard.mode, guard.on_failure) == (
        "no_ssn",
        no_ssn,
        None,
        "enforce",
        "deny",
    )
    assert (guard.timeout, guard.when, guard.hold, guard.id, guard.audit, guard.message) == (
        None,
        "reply",
        None,
        "",
        False,
        None,
    )


@pytest.mark.parametrize("form", ["@guardrail", "@guardrail()", "guardrail(name)", "guardrail(function, option)"])
def test_g1_the_decorator_makes_a_guard_that_can_still_be_called(form: str) -> None:
    make: Any = {
        "@guardrail": guardrail,
        "@guardrail()": guardrail(),
        "guardrail(name)": guardrail("no-ssn", id="7"),
        "guardrail(function, option)": lambda function: guardrail(function, id="7"),  # type: ignore[call-overload]
    }[form]
    guard = make(no_ssn)
    assert (guard.name, guard.type) == (("no-ssn",) * 2 if form == "guardrail(name)" else ("no_ssn",) * 2)
    assert guard.id == ("7" if "(name)" in form or "option" in form else "")
    assert guard("078-05-1120", None) == Enforced("looks like one")
    assert guard("hello", None) is None
    assert the(guard) is guard


def test_g1_the_decorator_takes_every_option() -> None:
    options: dict[str, Any] = {
        "outcome": "deny",
        "mode": "observe",
        "timeout": 2,
        "on_failure": "allow",
        "when": "final",
        "hold": "sentence",
        "id": "G-7",
        "audit": True,
        "message": "no",
    }
    guard = guardrail("no-ssn", **options)(no_ssn)
    assert {name: getattr(guard, name) for name in options} == options


def test_g1_an_object_with_a_name_and_a_judge_is_a_guard_with_its_attributes_as_options() -> None:
    judge = Judge()
    guard = the(judge)
    assert (guard.name, guard.type, guard.judge, guard.scan) == ("judge", "judge", judge.judge, None)
    assert (guard.mode, guard.timeout, guard.id, guard.when) == ("observe", 2.5, "J-1", "reply")

    class Typed(Judge):
        type = "classifier"

        def scan(self, ctx: Context) -> Any: ...

    typed = Typed()
    assert (the(typed).type, the(typed).scan) == ("classifier", typed.scan)


def test_g1_a_guard_says_what_it_is() -> None:
    assert repr(the(no_ssn)) == "Guard('no_ssn')"
    assert repr(Guard("mine", no_ssn, "banned_words")) == "Guard('mine', type='banned_words')"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, r"guardrails: output= got 5; give guards: functions of \(text, ctx\), or objects with a name and a judge"),
        ("no_ssn", r"guardrails: output= got 'no_ssn'; give guards"),
        (None, r"guardrails: output= got None; give guards"),
        (Judge, r"guardrails: output= got the class Judge; give an object of it: Judge\(\.\.\.\)"),
        (type("Anonymous", (), {"judge": no_ssn})(), r'the name of a guard is \'\'; give a text, such as "no-ssn"'),
        (type("Odd", (Judge,), {"name": 5})(), "the name of a guard is 5; give a text"),
        (type("Odd", (Judge,), {"mode": "watch"})(), "the guard 'judge' has mode='watch'; give 'enforce' or 'observe'"),
        (type("Odd", (Judge,), {"scan": 5})(), "the guard 'judge' has scan=5; give a function"),
        (type("Odd", (Judge,), {"type": 5})(), "the guard 'judge' has type=5; give a text"),
    ],
)
def test_g1_what_is_no_guard_is_refused_with_the_fix(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        Guardrails(output=[given])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outcome": "block"}, "has outcome='block'; give None or 'enforce' or 'deny' or 'rewrite'$"),
        ({"mode": "monitor"}, "has mode='monitor'; give 'enforce' or 'observe'$"),
        ({"mode": None}, "has mode=None; give"),
        ({"on_failure": "pass"}, "has on_failure='pass'; give 'deny' or 'allow'$"),
        ({"when": "end"}, "has when='end'; give 'reply' or 'final'$"),
        ({"timeout": 0}, r"has timeout=0; give seconds above 0, or None$"),
        ({"timeout": -1.5}, r"has timeout=-1.5; give seconds above 0"),
        ({"timeout": float("nan")}, "has timeout=nan; give seconds above 0"),
        ({"timeout": "1"}, "has timeout='1'; give seconds above 0"),
        ({"timeout": True}, "has timeout=True; give seconds above 0"),
        ({"hold": -1}, "has hold=-1; give a number of characters from 0 up"),
        ({"hold": 1.5}, "has hold=1.5; give a number of characters"),
        ({"hold": True}, "has hold=True; give a number of characters"),
        ({"hold": "word"}, """has hold='word'; .*"sentence", or None for the whole reply$"""),
        ({"id": 7}, "has id=7; give a text$"),
        ({"audit": "no"}, "has audit='no'; give True or False$"),
        ({"message": 5}, "has message=5; give a text, or None for the constant one$"),
    ],
)
def test_g9_bad_options_are_refused_when_the_guard_is_built(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^the guard 'no-ssn' {message}"):
        guardrail("no-ssn", **options)(no_ssn)


def test_g1_an_unknown_option_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^guardrail\(\) has no option 'modus'; it has outcome, mode, timeout"
    ):
        guardrail("no-ssn", modus="observe")  # type: ignore[call-overload]


@pytest.mark.parametrize("given", [5, [no_ssn], {}])
def test_g1_what_cannot_be_called_is_no_guard(given: Any) -> None:
    for make in (guardrail, guardrail("name")):
        with pytest.raises(ConfigurationError, match=r"^a guard is .*; give a function of \(text, ctx\)$"):
            make(given)
    with pytest.raises(ConfigurationError, match=r"^the guard 'x' has judge=.*; give a function$"):
        Guard("x", given)


@pytest.mark.parametrize(
    "given",
    [
        [no_ssn],
        no_ssn,
        "input",
        {"inputs": []},
        {"input": [], "both": []},
        5,
    ],
)
def test_section_1_guardrails_are_a_mapping_of_the_sides_or_guardrails(given: Any) -> None:
    fix = r'give \{"input": \[\.\.\.\], "output": \[\.\.\.\]\}, or Guardrails\(\.\.\.\)$'
    for where, build in (
        (r"App\(\)", lambda: App(guardrails=given)),
        (r"Agent\('Agent'\)", lambda: Agent(guardrails=given)),
        (r"app\.run\(\)", lambda: App().run_sync(Agent(model=ScriptedModel(["x"])), "hi", guardrails=given)),
    ):
        with pytest.raises(ConfigurationError, match=rf"^{where}: guardrails= is .*; {fix}"):
            build()


@pytest.mark.parametrize("given", ["no_ssn", no_ssn, 5, {"name": no_ssn}, the(no_ssn), None])
@pytest.mark.parametrize("side", ["input", "output"])
def test_section_1_each_side_is_a_list_of_guards(given: Any, side: str) -> None:
    for build in (lambda: Guardrails(**{side: given}), lambda: App().guard(**{side: given})):
        with pytest.raises(ConfigurationError, match=rf"^guardrails: {side}= is .*; give a list of guards$"):
            build()


async def test_section_1_guardrails_may_be_given_as_a_mapping_or_as_an_object(go: Go) -> None:
    for given in (
        {"input": [no_ssn], "output": (no_ssn,)},
        Guardrails(input=[no_ssn], output=iter([no_ssn])),
        Guardrails([no_ssn], [no_ssn]),
    ):
        agent = Agent(model=ScriptedModel(["fine"]), guardrails=given)
        assert found(await go(App(), agent, "hi")) == [("no_ssn", "allow")] * 2
    empty: list[Any] = [None, {}, Guardrails(), {"input": []}]
    for nothing in empty:
        agent = Agent(model=ScriptedModel(["fine"]), guardrails=nothing)
        assert (await go(App(guardrails=nothing), agent, "hi", guardrails=nothing)).validations == ()


async def test_g1_outcomes_carry_what_they_are_given() -> None:
    assert Enforced("r") == Enforced("r", None, None, None)
    assert Deny("r", "m", {"k": 1}, 0.5) == Deny(reason="r", message="m", metadata={"k": 1}, score=0.5)
    assert Rewrite("t") == Rewrite("t", "", None, None)
    assert Allow() == Allow(None, None)
    assert Validation("n") == Validation("n", "", "", "output", True, "allow", "", None, None, None)


@pytest.mark.parametrize("style", ["sync", "async", "awaitable of an awaitable"])
async def test_m1_a_guard_may_be_sync_or_async(go: Go, style: str) -> None:
    """B39: sync guards run on the loop; nothing is decided by looking at the function."""
    import threading

    threads: set[int] = set()

    def plain(text: str, ctx: Context) -> Enforced:
        threads.add(threading.get_ident())
        return Enforced("r")

    async def coroutine(text: str, ctx: Context) -> Enforced:
        return plain(text, ctx)

    async def nested(text: str, ctx: Context) -> Any:
        return coroutine(text, ctx)

    guard = {"sync": plain, "async": coroutine}.get(style, nested)
    for side in ("input", "output"):
        agent, _ = setup(["fine"], **{side: [guard]})
        assert (await go(App(), agent, "hi")).blocked
    assert threads == {threading.get_ident()}


# --- G5: order -------------------------------------------------------------------------------------------------------


class Packed(Agent):
    """An agent as one that was loaded from a pack."""

    pack_guards = Guardrails(input=[noting([], "pack")], output=[noting([], "pack"), noting([], "pack 2")])


async def test_g5_the_packs_then_the_apps_then_the_agents_then_the_runs(go: Go) -> None:
    def both(name: str) -> Any:
        return {"input": [noting([], name)], "output": [noting([], name), noting([], f"{name} 2")]}

    app = App(guardrails=both("app")).guard(**both("guard")).guard(output=[noting([], "guard 3")])
    agent = Packed(model=ScriptedModel(["fine"]), guardrails=both("agent"))
    result = await go(app, agent, "hi", guardrails=both("run"))
    assert [one.name for one in result.validations if one.direction == "input"] == [
        "pack",
        "app",
        "guard",
        "agent",
        "run",
    ]
    assert [one.name for one in result.validations if one.direction == "output"] == [
        name
        for place in ("pack", "app", "guard", "agent", "run")
        for name in (place, f"{place} 2", *(["guard 3"] if place == "guard" else []))
    ]


async def test_g5_guards_of_a_class_an_instance_and_a_run(go: Go) -> None:
    class Guarded(Agent):
        model = ScriptedModel(lambda call: "fine")
        guardrails = Guardrails(output=[noting([], "class")])

    app = App()
    assert found(await go(app, Guarded, "hi")) == [("class", "allow")]
    assert found(await go(app, Guarded(guardrails={"output": [no_ssn]}), "hi")) == [("no_ssn", "allow")]
    assert found(await go(app, Guarded, "hi", guardrails={"output": [no_ssn]})) == [
        ("class", "allow"),
        ("no_ssn", "allow"),
    ]
    assert found(await go(app, Guarded, "hi")) == [("class", "allow")], "those of a run are for that run alone"
    agent = Guarded()
    agent.guardrails = Guardrails(input=[no_ssn])
    assert found(await go(app, agent, "hi")) == [("no_ssn", "allow")]
    assert found(await go(app, copy.copy(agent), "hi")) == [("no_ssn", "allow")]


async def test_g5_guards_registered_during_a_run_are_for_later_runs(go: Go) -> None:
    app = App()

    def register(text: str, ctx: Context) -> None:
        app.guard(output=[noting([], "late")])

    agent = Agent(model=ScriptedModel(lambda call: "fine"), guardrails={"input": [register]})
    assert found(await go(app, agent, "hi")) == [("register", "allow")]
    assert found(await go(app, agent, "hi")) == [("register", "allow"), ("late", "allow")]


async def test_g5_guard_gives_the_app_back_and_knows_layers_from_guards(go: Go) -> None:
    app = App()
    assert app.guard(input=[no_ssn]) is app
    with pytest.raises(TypeError):
        app.guard([no_ssn])  # type: ignore[call-arg]

    async def passing(call: Any, next: Any) -> None:
        await next()

    agent = Agent(model=ScriptedModel(["fine"]))
    result = await go(app.use(chat=passing), agent, "hi", use=[Layers(agent=passing)], guardrails={"output": [no_ssn]})
    assert found(result) == [("no_ssn", "allow")] * 2


# --- G4: the first block wins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("first", [Enforced("1", "first"), Deny("1")])
@pytest.mark.parametrize("second", [Enforced("2", "second"), Deny("2")])
async def test_g4_the_first_block_wins_and_later_guards_do_not_run(go: Go, side: str, first: Any, second: Any) -> None:
    log: list[str] = []
    guards = [
        noting(log, "before"),
        against("bad", first, "one"),
        against("bad", second, "two"),
        noting(log, "after"),
    ]
    agent, _ = setup(["bad"], **{side: guards})
    if isinstance(first, Deny):
        with pytest.raises(GuardrailDenied) as caught:
            await go(App(), agent, "bad")
        assert caught.value.guardrail == "one"
    else:
        result = await go(App(), agent, "bad")
        assert (result.blocked_by, result.text) == ("one", "first")
        assert found(result) == [("before", "allow"), ("one", "enforced")]
    assert log == ["bad"]


async def test_g4_rewrites_chain(go: Go) -> None:
    def adding(letter: str) -> Guard:
        return guardrail(f"add {letter}")(lambda text, ctx: text + letter)

    agent, model = setup(["r"], input=[adding("a"), adding("b")], output=[adding("c"), no_ssn, adding("d")])
    result = await go(App(), agent, "i")
    assert (model.calls[0].messages[0].text, result.text) == ("iab", "rcd")
    assert [outcome for _, outcome in found(result)] == ["rewrite", "rewrite", "rewrite", "allow", "rewrite"]


async def test_g4_a_guard_blocks_what_an_earlier_one_wrote_and_misses_what_it_took_away(go: Go) -> None:
    writing = against("bad", "worse")
    for guards, blocked in (
        ([writing, against("worse", name="late")], True),
        ([writing, against("bad", name="late")], False),
        ([against("bad", name="early"), writing], True),
    ):
        for side in ("input", "output"):
            agent, _ = setup(["bad"], **{side: guards})
            assert (await go(App(), agent, "bad")).blocked is blocked
