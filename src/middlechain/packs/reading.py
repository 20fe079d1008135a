"""A pack's text, up to data of which it is certain that it is a pack of a version that can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from middlechain.errors import ConfigurationError
from middlechain.packs.issues import Place

__all__ = ["parse", "read_text"]


def read_text(path: str | Path) -> str:
    """The text of a file.

    Raises:
        ConfigurationError: when it cannot be read, or is not UTF-8.
    """
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the pack {str(path)!r} is no UTF-8 ({error}); save it as UTF-8") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the pack {str(path)!r} cannot be read ({error}); give the path of a JSON file"
        ) from error


def parse(text: str, source: str) -> dict[str, Any]:
    """The data of a pack.

    Args:
        text: JSON.
        source: how messages call the pack.

    Raises:
        ConfigurationError: for what is no JSON, has a key twice, is no pack, or is one of a later major version.
    """
    try:
        data = json.loads(text, object_pairs_hook=_Object, parse_constant=_no_number)
        json.dumps(data, ensure_ascii=False).encode()  # a lone surrogate is no text that a model could get
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the pack {source!r} is no JSON ({error}); correct it there") from error
    twice = list(_twice(data, Place()))
    if twice:
        raise ConfigurationError(f"the pack {source!r} has keys twice: {', '.join(twice)}; leave one of each")
    if not isinstance(data, dict):
        raise ConfigurationError(
            f"the pack {source!r} is a JSON {type(data).__name__}, not an object; give a PromptPack"
        )
    prompts = data.get("prompts")
    if not isinstance(prompts, dict) or not prompts:
        raise ConfigurationError(f"{source!r} is no pack: it has no prompts; a PromptPack has an object of them")
    _check_versions(data, source)
    return data


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys were given twice."""

    __slots__ = ("twice",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        keys = [key for key, _ in pairs]
        self.twice = [] if len(self) == len(keys) else sorted({key for key in keys if keys.count(key) > 1})


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _twice(data: Any, place: Place) -> Iterator[str]:
    if isinstance(data, _Object):
        yield from (str(place.at(key)) for key in data.twice)
        for key, value in data.items():
            yield from _twice(value, place.at(key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _twice(value, place.at(index))


_MAJOR = re.compile(r"v?(\d{1,9})(?:\.|$)")
_MAJOR_IN_URL = re.compile(r"/v(\d{1,9})(?:[./]|$)")


def _check_versions(data: dict[str, Any], source: str) -> None:
    """Refuse what a later major version may mean differently."""
    engine, compilation = data.get("template_engine"), data.get("compilation")
    stated = {
        "$schema": _major(_MAJOR_IN_URL.search(data["$schema"])) if isinstance(data.get("$schema"), str) else None,
        "template_engine.version": _stated(engine, "version"),
        "compilation.schema": _stated(compilation, "schema"),
    }
    for place, major in stated.items():
        if major is not None and major > 1:
            raise ConfigurationError(
                f"the pack {source!r} is of a later version than can be read: {place} says {major}; "
                "give one of version 1, or use a later version of this library"
            )


def _stated(data: object, key: str) -> int | None:
    value = data.get(key) if isinstance(data, dict) else None
    return _major(_MAJOR.match(value)) if isinstance(value, str) else None


def _major(match: re.Match[str] | None) -> int | None:
    return None if match is None else int(match[1])
