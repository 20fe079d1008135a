"""How a built-in guard reads what it is given: all that is wrong with its parameters in one error, before any run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal, TypeAlias, TypeVar, cast

from typing_extensions import TypedDict

from middlechain.context import Context
from middlechain.errors import ConfigurationError
from middlechain.guards import Deny, Enforced, Guard, Outcome

__all__ = ["MISSING", "BlockOutcome", "Given", "MatchOutcome", "Options", "block", "listed", "nearest", "needed"]

BlockOutcome: TypeAlias = Literal["enforce", "deny"]
MatchOutcome: TypeAlias = Literal["enforce", "deny", "rewrite"]
T = TypeVar("T")


class Options(TypedDict, total=False):
    """What every built-in guard takes beside its own parameters; see `middlechain.guards.Guard`."""

    name: str
    message: str | None
    mode: Literal["enforce", "observe"]
    timeout: float | None
    on_failure: Literal["deny", "allow"]
    when: Literal["reply", "final"]
    hold: int | Literal["sentence"] | None
    id: str
    audit: bool


class _Missing:
    def __repr__(self) -> str:
        return "(missing)"


MISSING: Any = _Missing()  # stands for a required parameter that JSON left out, so that it is refused with the others


class Given:
    """What one guard was given.

    Args:
        factory: the guard's function; its name is the guard's type.
        options: what it was given beyond its own parameters.
    """

    def __init__(self, factory: Callable[..., Guard], options: Mapping[str, Any]) -> None:
        self.type = factory.__name__
        self.issues: list[str] = []
        self._options = dict(options)
        own = [name for name in inspect.signature(factory).parameters if name != "options"]
        for name, value in options.items():
            if name in Options.__annotations__:
                self._check_option(name, value)
            else:
                known = [*own, *Options.__annotations__]
                self.issues.append(f"there is no parameter {name!r}{nearest(name, known)}; there are {listed(known)}")

    def _check_option(self, name: str, value: object) -> None:
        if name in _PLAIN:
            kinds, wanted = _PLAIN[name]
            if not isinstance(value, kinds):
                self.refuse(name, value, wanted)
            return
        try:
            Guard(**cast("Any", {"name": self.type, "judge": _allow, name: value}))
        except ConfigurationError as error:
            self.issues.append(str(error))

    def refuse(self, name: str, value: object, wanted: str) -> None:
        """Note that a parameter has a value that will not do."""
        self.issues.append(f"{name}={value!r:.80}; {wanted}")

    def text(self, name: str, value: object, wanted: str = "give a text") -> str | None:
        """The text that a parameter must be."""
        if isinstance(value, str):
            return value
        self.refuse(name, value, wanted)
        return None

    def flag(self, name: str, value: object) -> bool | None:
        """The bool that a parameter must be."""
        if isinstance(value, bool):
            return value
        self.refuse(name, value, "give True or False")
        return None

    def choice(self, name: str, value: object, choices: Sequence[str], why: str = "") -> str | None:
        """The one of the choices that a parameter must be."""
        if isinstance(value, str) and value in choices:
            return value
        self.refuse(name, value, f"{why and why + '; '}give {' or '.join(map(repr, choices))}")
        return None

    def number(self, name: str, value: object, least: int) -> int | None:
        """The whole number that a parameter must be."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self.refuse(name, value, f"give a whole number from {least} up")
        return None

    def texts(self, name: str, value: object, known: Iterable[str] = ()) -> list[str] | None:
        """The list of texts that a parameter must be, none of them empty, and each among the known ones, if any are."""
        wanted = "give a list of texts, none of them empty"
        if isinstance(value, str | Mapping | _Missing) or not isinstance(value, Iterable):
            self.refuse(name, value, wanted)
            return None
        texts = list(value)
        before = len(self.issues)
        if not texts:
            self.refuse(name, value, wanted)
        choices = list(known)
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                self.issues.append(f"{name}= has {text!r:.80}; {wanted}")
            elif choices and text not in choices:
                near = nearest(text, choices)
                self.issues.append(f"{name}= has the unknown {text!r:.80}{near}; give any of {listed(choices)}")
        return texts if len(self.issues) == before else None

    def attempt(self, make: Callable[..., T], *given: Any, **options: Any) -> T:
        """What `make` makes of values that passed.

        Where it refuses, or a value did not pass (None), nothing is made and nothing misses it, since `guard` raises.
        """
        if None not in (*given, *options.values()):
            try:
                return make(*given, **options)
            except ConfigurationError as error:
                self.issues.append(str(error))
        return cast("T", None)

    def check(self) -> None:
        """Raise one error with all issues.

        Raises:
            ConfigurationError: when there are any; its `issues` are a tuple of sentences.
        """
        issues = tuple(dict.fromkeys(self.issues))
        if issues:
            text = f" {issues[0]}" if len(issues) == 1 else "".join(f"\n- {issue}" for issue in issues)
            raise ConfigurationError(f"the guard {self.type}() cannot be made:{text}", issues)

    def guard(self, judge: Callable[[str, Context[Any]], Any], outcome: str, **defaults: Any) -> Guard:
        """The guard, if nothing is wrong.

        Args:
            judge: what it does.
            outcome: what a block of it is.
            defaults: what it is where the options do not say.

        Raises:
            ConfigurationError: as `check`.
        """
        self.check()
        made = {"name": self.type, **defaults, **self._options, "type": self.type, "outcome": outcome}
        return Guard(judge=judge, **cast("Any", made))


_PLAIN: Mapping[str, tuple[Any, str]] = {
    "id": (str, "give a text"),
    "audit": (bool, "give True or False"),
    "message": (str | None, "give a text, or None for the constant sentence"),
}


def _allow(_text: str, _ctx: Context[Any]) -> None: ...


def block(outcome: str, reason: str) -> Outcome:
    """What a guard says of a text that it blocks; its reason is the same for all texts."""
    return Deny(reason) if outcome == "deny" else Enforced(reason)


def needed(module: str, guard: str) -> Any:
    """A module that comes with the extra.

    Raises:
        ConfigurationError: where it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = {"stdnum": "python-stdnum"}.get(module.partition(".")[0], module)
        raise ConfigurationError(
            f"it needs {package}, which is not installed ({guard}); pip install 'middlechain[guardrails]'"
        ) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """A question after the name that was meant, where one is near."""
    near = get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def listed(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(names)
