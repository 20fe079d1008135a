"""Guardrails: what one is, what it may say of a text, and how functions and objects become one.

How a step has its texts judged is in `judging`, and what a stream may send before that in `watch`. The guards that come
with the library are in `middlechain.guardrails`; they are made of the same thing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, cast, overload

from typing_extensions import TypedDict, Unpack

from middlechain.chain import name_of
from middlechain.context import Context
from middlechain.errors import ConfigurationError

__all__ = [
    "Allow",
    "Deny",
    "Enforced",
    "Guard",
    "Guardrails",
    "Outcome",
    "OutcomeName",
    "Rewrite",
    "RewritingScan",
    "Scan",
    "StepGuards",
    "Validation",
    "guardrail",
    "read_guardrails",
]

CANNED = "I can't help with that."


@dataclass(frozen=True, slots=True)
class Allow:
    """The text may pass, with a remark.

    Args:
        score: how sure the guard is, in its own terms.
        metadata: anything more for the `Validation`.
    """

    score: float | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Enforced:
    """The text is blocked, and a canned message takes its place. No error is raised.

    Args:
        reason: why, in one sentence; not the text itself, which is kept nowhere.
        message: what is said instead; default: the guard's, or one constant sentence.
        metadata: anything more for the `Validation`.
        score: how sure the guard is, in its own terms.
    """

    reason: str
    message: str | None = None
    metadata: Mapping[str, Any] | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """The text is refused: `GuardrailDenied` is raised. The arguments are those of `Enforced`; no message is shown."""

    reason: str
    message: str | None = None
    metadata: Mapping[str, Any] | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Another text takes the place of the text; the next guard sees it.

    Args:
        text: the new text; `""` is one.
        reason: why.
        metadata: anything more for the `Validation`.
        score: how sure the guard is, in its own terms.
    """

    text: str
    reason: str = ""
    metadata: Mapping[str, Any] | None = None
    score: float | None = None


Outcome: TypeAlias = Allow | Enforced | Deny | Rewrite
OutcomeName: TypeAlias = Literal["allow", "rewrite", "enforced", "deny", "errored"]
Judged: TypeAlias = Outcome | str | None
Judge: TypeAlias = Callable[[str, Context[Any]], Judged | Awaitable[Judged]]


@dataclass(frozen=True, slots=True)
class Validation:
    """What one guard found on one side of an exchange.

    Args:
        name: of the guard.
        id: of the guard, for those that were given one.
        type: what kind of guard it is: a built-in's type, a function's name, or `layer` for a layer that denied.
        direction: `"input"` or `"output"`.
        passed: whether the text went on, as it was or rewritten.
        outcome: `"allow"`, `"rewrite"`, `"enforced"`, `"deny"`, or `"errored"` for a guard that failed and may.
        reason: why.
        score: the guard's own.
        metadata: the guard's own.
        blocked_text: what was blocked, kept only for a guard with `audit=True`.
    """

    name: str
    id: str = ""
    type: str = ""
    direction: str = "output"
    passed: bool = True
    outcome: OutcomeName = "allow"
    reason: str = ""
    score: float | None = None
    metadata: Mapping[str, Any] | None = None
    blocked_text: str | None = field(default=None, repr=False)


class Scan(Protocol):
    """Reads one text as it streams, and says how much of it may go out.

    It may have an attribute `hit`: whether a block is certain, whatever comes. A stream is closed then, at once.
    """

    def push(self, delta: str, /) -> int:
        """Take more of the text; return how many characters of all of it, from its start, may go out by now."""
        ...


class RewritingScan(Protocol):
    """Reads one text as it streams, and says what may go out in its place."""

    def feed(self, delta: str, /) -> str:
        """Take more of the text; return the further part of the rewritten text that nothing can change any more."""
        ...


class GuardOptions(TypedDict, total=False):
    """The options that all guards take; see `guardrail`."""

    outcome: Literal["enforce", "deny", "rewrite"] | None
    mode: Literal["enforce", "observe"]
    timeout: float | None
    on_failure: Literal["deny", "allow"]
    when: Literal["reply", "final"]
    hold: int | Literal["sentence"] | None
    id: str
    audit: bool
    message: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A guard as the runtime works with it. Made by `guardrail`, by `middlechain.guardrails`, or of an object.

    Args:
        name: how it is called in validations and errors.
        judge: takes a text and `ctx`, and says what is to become of it.
        type: what kind of guard it is; default: its name.
        scan: makes a `Scan` for a text that streams; default: what `hold` says.
        outcome: what a block of it is to be, whatever the function says: `"enforce"` or `"deny"`; default: as it says.
        mode: `"observe"` records what would have happened, and changes nothing.
        timeout: seconds that one judgement may take; default: no limit.
        on_failure: what a crash, a timeout or a wrong return counts as: `"deny"` (default), or `"allow"`.
        when: `"final"` judges the step's answer alone, `"reply"` (default) every reply.
        hold: how many characters a stream holds back, or `"sentence"`; default: the whole reply.
        id: for the `Validation`.
        audit: whether the `Validation` keeps a text that was blocked.
        message: what is said in place of a blocked text.
    """

    name: str
    judge: Judge
    type: str = ""
    scan: Callable[[Context[Any]], Any] | None = None
    outcome: Literal["enforce", "deny", "rewrite"] | None = None
    mode: Literal["enforce", "observe"] = "enforce"
    timeout: float | None = None
    on_failure: Literal["deny", "allow"] = "deny"
    when: Literal["reply", "final"] = "reply"
    hold: int | Literal["sentence"] | None = None
    id: str = ""
    audit: bool = False
    message: str | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ConfigurationError(f'the name of a guard is {self.name!r:.80}; give a text, such as "no-ssn"')
        if not self.type:
            object.__setattr__(self, "type", self.name)
        _check_options(self)

    def __call__(self, text: str, ctx: Context[Any]) -> Any:
        """Judge the text, as the function does that the guard was made of."""
        return self.judge(text, ctx)

    def __repr__(self) -> str:
        return f"Guard({self.name!r}{'' if self.type == self.name else f', type={self.type!r}'})"


_CHOICES: Mapping[str, tuple[object, ...]] = {
    "outcome": (None, "enforce", "deny", "rewrite"),
    "mode": ("enforce", "observe"),
    "on_failure": ("deny", "allow"),
    "when": ("reply", "final"),
}

_KINDS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("type", str, "a text"),
    ("id", str, "a text"),
    ("audit", bool, "True or False"),
    ("message", (str, type(None)), "a text, or None for the constant one"),
)


def _check_options(guard: Guard) -> None:
    for option, choices in _CHOICES.items():
        value = getattr(guard, option)
        if value not in choices:
            raise ConfigurationError(
                f"the guard {guard.name!r} has {option}={value!r}; give {' or '.join(map(repr, choices))}"
            )
    for option, kinds, expected in _KINDS:
        if not isinstance(getattr(guard, option), kinds):
            raise ConfigurationError(
                f"the guard {guard.name!r} has {option}={getattr(guard, option)!r:.80}; give {expected}"
            )
    for option in ("judge", "scan"):
        function = getattr(guard, option)
        if not callable(function) and (option == "judge" or function is not None):
            raise ConfigurationError(f"the guard {guard.name!r} has {option}={function!r:.80}; give a function")
    if guard.timeout is not None and not (_is_number(guard.timeout) and guard.timeout > 0):
        raise ConfigurationError(
            f"the guard {guard.name!r} has timeout={guard.timeout!r}; give seconds above 0, or None"
        )
    whole = isinstance(guard.hold, int) and not isinstance(guard.hold, bool) and guard.hold >= 0
    if not (guard.hold is None or guard.hold == "sentence" or whole):
        raise ConfigurationError(
            f"the guard {guard.name!r} has hold={guard.hold!r}; give a number of characters from 0 up, "
            '"sentence", or None for the whole reply'
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@overload
def guardrail(function: Judge, /) -> Guard: ...
@overload
def guardrail(name: str = "", /, **options: Unpack[GuardOptions]) -> Callable[[Judge], Guard]: ...
def guardrail(name: str | Judge = "", /, **options: Any) -> Guard | Callable[[Judge], Guard]:
    """Make a guard of a function `(text, ctx)`: `@guardrail("no-ssn")`.

    The function, sync or async, returns None (allow), `Enforced`, `Deny`, `Rewrite` or `Allow`; a str is a `Rewrite`.
    It is called once per text. Anything else that it returns, and what it raises, counts as `Deny`.

    Args:
        name: default: the function's name.
        options: see `Guard`.

    Raises:
        ConfigurationError: for an unknown option, or a bad value of one.
    """
    for option in options:
        if option not in GuardOptions.__annotations__:
            raise ConfigurationError(
                f"guardrail() has no option {option!r}; it has {', '.join(GuardOptions.__annotations__)}"
            )
    if not isinstance(name, str):
        return replace(_of_function(name), **options)

    def make(function: Judge) -> Guard:
        guard = _of_function(function) if not name else Guard(name, _checked(function))
        return replace(guard, **options)

    return make


def _checked(function: object) -> Judge:
    if not callable(function):
        raise ConfigurationError(f"a guard is {function!r:.80}; give a function of (text, ctx)")
    return cast("Judge", function)


def _of_function(function: object) -> Guard:
    return Guard(name_of(_checked(function)).rpartition(".")[2], cast("Judge", function))


def read_guard(given: object, where: str) -> Guard:
    """A guard of whatever was given as one.

    Raises:
        ConfigurationError: for what is none.
    """
    if isinstance(given, Guard):
        return given
    if isinstance(given, type):
        raise ConfigurationError(f"{where} got the class {given.__name__}; give an object of it: {given.__name__}(...)")
    judge = getattr(given, "judge", None)
    if callable(judge):
        options = {name: getattr(given, name) for name in GuardOptions.__annotations__ if hasattr(given, name)}
        name = getattr(given, "name", "")
        kind = getattr(given, "type", "") or ""
        return Guard(name, cast("Judge", judge), kind, getattr(given, "scan", None), **cast("Any", options))
    if callable(given):
        return _of_function(given)
    raise ConfigurationError(
        f"{where} got {given!r:.80}; give guards: functions of (text, ctx), or objects with a name and a judge"
    )


@dataclass(frozen=True, slots=True)
class Guardrails:
    """Guards for both sides, as `guardrails=` takes them; a dict with these keys will do as well.

    Args:
        input: judge what a user, or a caller, says; in order.
        output: judge what the model says; in order.
    """

    input: tuple[Guard, ...] = ()
    output: tuple[Guard, ...] = ()

    if TYPE_CHECKING:  # what `__post_init__` takes

        def __init__(self, input: Iterable[object] = (), output: Iterable[object] = ()) -> None: ...

    def __post_init__(self) -> None:
        for side in ("input", "output"):
            given = getattr(self, side)
            if isinstance(given, str | Mapping | Guard) or not isinstance(given, Iterable):
                raise ConfigurationError(f"guardrails: {side}= is {given!r:.80}; give a list of guards")
            object.__setattr__(self, side, tuple(read_guard(one, f"guardrails: {side}=") for one in given))


NO_GUARDRAILS = Guardrails()


def read_guardrails(given: object, where: str) -> Guardrails:
    """What was given as `guardrails=`.

    Raises:
        ConfigurationError: for anything but `Guardrails`, a mapping with the keys `input` and `output`, or None.
    """
    if given is None:
        return NO_GUARDRAILS
    if isinstance(given, Guardrails):
        return given
    if isinstance(given, Mapping) and given.keys() <= {"input", "output"}:
        return Guardrails(**{str(side): guards for side, guards in given.items()})
    raise ConfigurationError(
        f'{where}: guardrails= is {given!r:.80}; give {{"input": [...], "output": [...]}}, or Guardrails(...)'
    )


class StepGuards(NamedTuple):
    """The guards around an agent's steps, in order."""

    input: tuple[Guard, ...]
    output: tuple[Guard, ...]

    @property
    def reply(self) -> tuple[Guard, ...]:
        """Those that judge every reply."""
        return tuple(guard for guard in self.output if guard.when == "reply")

    @property
    def final(self) -> tuple[Guard, ...]:
        """Those that judge the step's answer alone."""
        return tuple(guard for guard in self.output if guard.when == "final")
