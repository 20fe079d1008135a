"""The tools of a pack: what the model is told of them is the pack's, what runs is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from middlechain.errors import ConfigurationError
from middlechain.packs.format import SchemaPart, ToolPart, read
from middlechain.packs.issues import Place, nearest
from middlechain.tools import Tool, tool

__all__ = ["PackTool", "check_names", "make_tools", "read_tools"]


@dataclass(frozen=True, slots=True)
class PackTool:
    """A tool as the pack has it.

    Args:
        description: what the model is told of it.
        schema: of its arguments, as the model gets it.
        properties: the names of its arguments.
        required: the names of those that the model must give.
    """

    description: str
    schema: Mapping[str, Any]
    properties: tuple[str, ...]
    required: tuple[str, ...]


def read_tools(data: Mapping[str, object], place: Place) -> dict[str, PackTool]:
    """The tools of a pack by name. What is wrong with them is noted."""
    found: dict[str, PackTool] = {}
    for name, one in data.items():
        here = place.at(name)
        part = read(ToolPart, one, here)
        if part is None:
            continue
        if part.name not in {"", name}:
            here.at("name").error(f"the tool {name!r} is called {part.name!r} here; give it one name")
        schema = read(SchemaPart, part.parameters, here.at("parameters")) or SchemaPart()
        for index, needed in enumerate(schema.required):
            if needed not in schema.properties:
                here.at("parameters", "required", index).error(
                    f"{needed!r:.60} is required and no property; {nearest(needed, schema.properties)}"
                )
        found[name] = PackTool(part.description, part.parameters, tuple(schema.properties), tuple(schema.required))
    return found


def check_names(names: Sequence[str], tools: Mapping[str, object], place: Place) -> None:
    """Note the names of a prompt's tools that the pack does not define."""
    for index, name in enumerate(names):
        if name not in tools:
            place.at(index).error(f"the pack defines no tool {name!r}; {nearest(name, tools)}")
        elif name in names[:index]:
            place.at(index).note(f"the tool {name!r} is listed twice; leave it once")


def make_tools(
    names: Sequence[str],
    parts: Mapping[str, PackTool],
    given: Mapping[str, Callable[..., Any]],
    spared: frozenset[str],
    place: Place,
) -> list[Tool]:
    """The tools of an agent. What is missing or does not fit is noted.

    Args:
        names: of the prompt's tools.
        parts: of all tools of the pack.
        given: functions by name.
        spared: names that need no function, since they are blocked.
        place: of the prompt's tools.
    """
    made: list[Tool] = []
    for name in given:
        if name not in names:
            place.error(f"the prompt has no tool {name!r} for the function; {nearest(name, names)}")
    for index, name in enumerate(names):
        part = parts.get(name)
        if part is None or name in spared or name in names[:index]:
            continue
        if name not in given:
            place.at(index).error(f"the tool {name!r} has no function; give it one with tools={{{name!r}: function}}")
            continue
        one = _make(name, part, given[name], place.at(index))
        made += [] if one is None else [one]
    return made


def _make(name: str, part: PackTool, function: Callable[..., Any], place: Place) -> Tool | None:
    try:
        made = tool(function)
    except ConfigurationError as error:
        place.error(f"the function for {name!r} cannot be a tool: {error}")
        return None
    _check_agreement(name, made, part, place)
    signature = replace(made.signature, schema=part.schema)
    return replace(made, name=name, description=part.description, signature=signature)


def _check_agreement(name: str, made: Tool, part: PackTool, place: Place) -> None:
    """Note where the parameters of the function are not those that the model is told of."""
    taken = made.signature.fields
    for missing in [one for one in part.properties if one not in taken]:
        place.error(
            f"the function for {name!r} has no parameter {missing!r}, which the pack has; "
            f"{nearest(missing, taken, 'it has')}"
        )
    for further in [one for one in taken if one not in part.properties]:
        place.error(
            f"the function for {name!r} has a parameter {further!r}, which the pack has not; "
            f"{nearest(further, part.properties, 'it has')}"
        )
    needed = cast("Sequence[str]", made.signature.schema.get("required", ()))
    for bare in [one for one in needed if one in part.properties and one not in part.required]:
        place.error(
            f"the function for {name!r} needs {bare!r}, which the pack lets the model leave out; give it a default"
        )
