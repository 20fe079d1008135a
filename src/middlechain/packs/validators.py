"""The validators of a prompt, which become guards. The guards themselves are in `middlechain.guardrails`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from middlechain.errors import ConfigurationError
from middlechain.guards import Guard, Guardrails
from middlechain.packs.format import ValidatorPart, read
from middlechain.packs.issues import Place

__all__ = ["read_validators"]

_DIRECTIONS = ("input", "output", "both")
_MOVED = ("message", "direction")  # they may stand in params, where some look for them beside


def read_validators(data: Sequence[object], place: Place) -> Guardrails:
    """The guards of a prompt, in order. What is wrong with the validators is noted."""
    sides: dict[str, list[Guard]] = {"input": [], "output": []}
    for index, one in enumerate(data):
        here = place.at(index)
        part = _read(one, here)
        if part is None:
            continue
        direction = _direction(part.params, here.at("params", "direction"))
        guard = _build(part, here)
        if guard is None or not part.enabled:
            continue
        for side, guards in sides.items():
            if direction in {side, "both"}:
                guards.append(guard)
    return Guardrails(**sides)


def _read(data: object, place: Place) -> ValidatorPart | None:
    if isinstance(data, Mapping):
        for name in [name for name in _MOVED if name in data]:
            place.at(name).error(f"{name} stands beside params; move it into them: params.{name}")
        data = {name: value for name, value in data.items() if name not in _MOVED}
    part = read(ValidatorPart, data, place)
    if part is not None and "fail_on_violation" in part.model_fields_set:
        place.at("fail_on_violation").note("this does nothing, since validators always enforce; take it out")
    return part if part is not None and part.type else None


def _direction(params: Mapping[str, Any], place: Place) -> str:
    direction = params.get("direction", "output")
    if direction in _DIRECTIONS:
        return str(direction)
    place.error(f"the direction is {direction!r:.60}; write {' or '.join(map(repr, _DIRECTIONS))}, or leave it out")
    return ""


def _build(part: ValidatorPart, place: Place) -> Guard | None:
    """The guard of a validator. A validator that is off is held to the same rules, and may miss them."""
    from middlechain.guardrails.registry import build  # it is large, and many packs have no validators

    params = {name: value for name, value in part.params.items() if name != "direction"}
    try:
        return build(part.type, params)
    except ConfigurationError as error:
        if not part.enabled:
            place.note(f"it is off, and could not be switched on: {error}")
            return None
        for sentence in error.issues:  # of the parameters, each by itself
            place.at("params").error(f"{part.type}: {sentence}")
        if not error.issues:
            place.at("type").error(str(error))
        return None
