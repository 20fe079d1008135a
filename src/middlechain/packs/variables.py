"""The variables of a prompt: what they may be, and the values that they get."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from middlechain.packs.format import Rules, VariablePart, read
from middlechain.packs.issues import Place, nearest
from middlechain.packs.json_types import TYPES, is_number, same
from middlechain.values import text_of

__all__ = ["Variable", "read_values", "read_variables"]


class Variable:
    """One variable, as the pack declares it.

    Attributes:
        name: as templates call it.
        type: `"string"`, `"number"`, `"boolean"`, `"object"` or `"array"`.
        required: whether a value must be given.
        default: the value if none is given; None for nothing at all.
        rules: what the value must be like.
    """

    __slots__ = ("default", "name", "required", "rules", "type")

    def __init__(self, part: VariablePart, rules: Rules) -> None:
        self.name = part.name
        self.type = part.type
        self.required = part.required
        self.default = None if part.required else part.default
        self.rules = rules

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, to stand after it; None if nothing is."""
        if not TYPES[self.type](value):
            return f"is no {self.type}"
        rules = self.rules
        if isinstance(value, str):
            if rules.pattern is not None and re.search(rules.pattern, value) is None:
                return f"does not match {rules.pattern!r}"
            if not _within(len(value), rules.min_length, rules.max_length):
                return f"has {len(value)} characters, {_range(rules.min_length, rules.max_length)} may be"
        elif is_number(value) and not _within(value, rules.minimum, rules.maximum):
            return f"is out of range, {_range(rules.minimum, rules.maximum)} may be"
        if rules.enum is not None and not any(same(value, one) for one in rules.enum):
            return f"is none of {', '.join(map(repr, rules.enum))}"
        return None


def _within(value: Any, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _range(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return f"{most:g} at most" if least is None else f"{least:g} at least"
    return f"{least:g} to {most:g}"


def read_variables(data: Sequence[object], place: Place) -> dict[str, Variable]:
    """The variables of a prompt by name. What is wrong with them is noted."""
    found: dict[str, Variable] = {}
    for index, one in enumerate(data):
        here = place.at(index)
        part = read(VariablePart, one, here)
        if part is None or not part.name:
            continue
        if part.name in found:
            here.at("name").error(f"there are two variables {part.name!r}; leave one")
        rules = _read_rules(part, here)
        found[part.name] = variable = Variable(part, rules)
        _check_default(part, variable, here.at("default"))
    return found


_RULES_FOR = {
    "pattern": "string",
    "min_length": "string",
    "max_length": "string",
    "minimum": "number",
    "maximum": "number",
}


def _read_rules(part: VariablePart, place: Place) -> Rules:
    here = place.at("validation")
    rules = Rules() if part.validation is None else read(Rules, part.validation, here) or Rules()
    for name, kind in _RULES_FOR.items():
        if getattr(rules, name) is not None and part.type != kind:
            here.at(name).note(f"{name} says nothing of a {part.type}, only of a {kind}; take it out")
    for least, most in (("min_length", "max_length"), ("minimum", "maximum")):
        bounds = (getattr(rules, least), getattr(rules, most))
        if None not in bounds and bounds[0] > bounds[1]:
            here.error(f"{least} is above {most}, so nothing fits; correct one of them")
    try:
        re.compile(rules.pattern or "")
    except (re.error, RecursionError, OverflowError, FutureWarning) as error:  # a warning, where those are errors
        here.at("pattern").error(f"{rules.pattern!r:.60} is no regular expression ({error}); correct it")
        return rules.model_copy(update={"pattern": None})
    return rules


def _check_default(part: VariablePart, variable: Variable, place: Place) -> None:
    if part.default is None:
        return
    if part.required:
        place.note("a value must be given, so this default does nothing; take it out, or say required: false")
        return
    problem = variable.problem(part.default)
    if problem is not None:
        place.error(f"the default {part.default!r:.60} {problem}; correct it")


def read_values(variables: Mapping[str, Variable], given: Mapping[str, object], place: Place) -> dict[str, Any]:
    """A value for each variable. What is missing or wrong is noted.

    Args:
        variables: of the prompt.
        given: by whoever builds the agent.
        place: of the variables.
    """
    for name in given:
        if name not in variables:
            place.error(f"there is no variable {name!r}; {nearest(name, variables)}")
    values: dict[str, Any] = {}
    for index, (name, variable) in enumerate(variables.items()):
        values[name] = given.get(name, variable.default)
        if name in given:
            problem = variable.problem(given[name]) or _unspeakable(given[name])
            if problem is not None:
                place.at(index).error(
                    f"the value {given[name]!r:.60} for the variable {name!r} {problem}; give another"
                )
        elif variable.required:
            place.at(index).error(f"the variable {name!r} has no value; give it one with variables={{{name!r}: ...}}")
    return values


def _unspeakable(value: object) -> str | None:
    try:
        text_of(value)
    except ValueError as error:
        return f"has no form as text ({error})"
    return None
