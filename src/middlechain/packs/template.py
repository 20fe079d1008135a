"""Templates: text with `{{variable}}` and fragments in it.

A fragment may be written `{{fragments.name}}`, `{{fragment:name}}` or, where no variable has that name, `{{name}}`:
packs of all three kinds are about. What is filled in is not read again, so a value cannot bring in another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from middlechain.packs.issues import Place, nearest
from middlechain.packs.json_types import is_array
from middlechain.values import text_of

__all__ = ["Fragment", "Reference", "Template", "check_fragments", "check_template", "parse_template", "render"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A place in a template that a value is filled into.

    Args:
        name: of the variable (or the fragment).
        path: the keys and indexes of a part of it, as in `{{order.items[0].title}}`.
    """

    name: str
    path: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fragment:
    """A place in a template that a fragment is filled into."""

    name: str


Template: TypeAlias = tuple[str | Reference | Fragment, ...]

_BRACES = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_FRAGMENT = re.compile(r"fragments\.([\w-]+)|fragment:\s*([\w-]+)")
_REFERENCE = re.compile(r"([^\W\d]\w*)((?:\.[^\W\d]\w*|\[\d{1,9}\])*)")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_DEEPEST = 50  # fragments within fragments
_MOST = 1_000_000  # characters of a fragment, with those in it


def parse_template(text: str, place: Place) -> Template:
    """The parts of a template. What cannot be read is noted as an error, and left as it stands."""
    parts: list[str | Reference | Fragment] = []
    for index, piece in enumerate(_BRACES.split(text)):
        if index % 2 == 0:
            if "{{" in piece:
                place.error("a '{{' is never closed; close it with '}}'")
            parts.append(piece)
            continue
        found = _read(piece.strip())
        if found is None:
            place.error(
                f"{'{{' + piece + '}}':.60} is neither a variable nor a fragment (there are no conditionals, loops or "
                "filters); write {{name}}, and put text that has such braces into the value of a variable"
            )
        parts.append(piece if found is None else found)
    return tuple(part for part in parts if part)


def _read(inside: str) -> Reference | Fragment | None:
    fragment = _FRAGMENT.fullmatch(inside)
    if fragment is not None:
        return Fragment(fragment[1] or fragment[2])
    reference = _REFERENCE.fullmatch(inside)
    if reference is None:
        return None
    return Reference(reference[1], tuple(int(at) if at else key for key, at in _STEP.findall(reference[2])))


def check_fragments(fragments: Mapping[str, Template], place: Place) -> None:
    """Note fragments that contain themselves, are nested too deep, or say too much by holding each other often."""
    inner = {
        name: [one for part in parts if (one := _fragment_of(part, fragments)) is not None]
        for name, parts in fragments.items()
    }
    sizes: dict[str, int] = {}
    for _ in range(_DEEPEST):
        for name in [one for one in fragments if one not in sizes and all(each in sizes for each in inner[one])]:
            own = sum(len(part) for part in fragments[name] if isinstance(part, str))
            sizes[name] = own + sum(sizes[one] for one in inner[name])
    for name in fragments:
        if name not in sizes:
            place.at(name).error(
                f"this fragment contains itself, or fragments nested more than {_DEEPEST} deep; take one of them out"
            )
        elif sizes[name] > _MOST:
            place.at(name).error(
                f"this fragment has more than {_MOST} characters with those that it contains; shorten it"
            )


def _fragment_of(part: str | Reference | Fragment, fragments: Mapping[str, Template]) -> str | None:
    return part.name if not isinstance(part, str) and part.name in fragments else None


def check_template(
    template: Template, types: Mapping[str, str], fragments: Mapping[str, Template], place: Place
) -> None:
    """Note what a template refers to and what is not there.

    Args:
        template: its parts.
        types: of the variables that the prompt declares.
        fragments: of the pack.
        place: of the template.
    """
    seen: set[str] = set()
    pending: list[tuple[str, Template]] = [("", template)]
    while pending:
        within, parts = pending.pop(0)
        for part in parts:
            if isinstance(part, str):
                continue
            name = part.name
            if isinstance(part, Reference) and name in types:
                _check_path(part, types[name], place)
            elif name not in fragments:
                _note_unknown(part, types, fragments, within, place)
            elif name not in seen:
                seen.add(name)
                pending.append((f" of the fragment {name!r}", fragments[name]))


def _check_path(part: Reference, kind: str, place: Place) -> None:
    if part.path and kind not in {"object", "array"}:
        place.error(
            f"the template refers to a part of {part.name!r}, which is a {kind}; "
            f"write {{{{{part.name}}}}}, or declare it as an object or an array"
        )


def _note_unknown(
    part: Reference | Fragment, types: Mapping[str, str], fragments: Mapping[str, Template], within: str, place: Place
) -> None:
    if isinstance(part, Fragment):
        place.error(
            f"the template{within} refers to an unknown fragment {part.name!r}; {nearest(part.name, fragments)}"
        )
        return
    fix = nearest(part.name, [*types, *fragments])
    place.error(
        f"the template{within} refers to {part.name!r}, which is not declared; "
        f"{fix if fix.startswith('did') else 'declare it in the variables of the prompt'}"
    )


def render(template: Template, values: Mapping[str, Any], fragments: Mapping[str, Template]) -> str:
    """The text of a template that was checked.

    Args:
        template: its parts.
        values: of all variables that are declared; None is filled in as nothing.
        fragments: of the pack.

    Raises:
        LookupError: when a value lacks the part that the template refers to; the message says which.
    """
    return "".join(_text(part, values, fragments) for part in template)


def _text(part: str | Reference | Fragment, values: Mapping[str, Any], fragments: Mapping[str, Template]) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Reference) and part.name in values:
        return _shown(_part_of(values[part.name], part))
    return render(fragments[part.name], values, fragments)


def _part_of(value: Any, part: Reference) -> Any:
    for key in part.path:
        try:
            value = _item(value, key)
        except LookupError:
            raise LookupError(f"the variable {part.name!r} has no {key!r} where the template looks for it") from None
    return value


def _item(value: Any, key: str | int) -> Any:
    fits = isinstance(value, Mapping) if isinstance(key, str) else is_array(value)
    if not fits:
        raise LookupError
    return value[key]


def _shown(value: Any) -> str:
    return "" if value is None else text_of(value)
