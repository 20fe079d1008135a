"""Structured answers: what an agent's `output=` type means for what is asked of the model, and for what it answers.

It decides, and acts on nothing: who asks again, how often, and what becomes of an answer is the business of the turn.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any

from middlechain.chat import Settings
from middlechain.errors import ConfigurationError
from middlechain.signature import schema_generator, tidy
from middlechain.values import cut

__all__ = ["Structure", "Unfit", "structure_of"]

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Unfit(ValueError):
    """An answer is not of the type that was asked for; the message tells the model what does not fit."""


class Structure:
    """The type of an agent's structured answers; `structure_of` makes one.

    Args:
        given: the type, as `output=` has it.
    """

    __slots__ = ("_adapter", "_is_object", "_name", "schema", "type")

    type: Any  # whatever pydantic can read: a class, a union, an `Annotated`
    schema: Mapping[str, Any]

    def __init__(self, given: Any) -> None:
        from pydantic import TypeAdapter

        self.type = given
        self._adapter = TypeAdapter[Any](given)
        schema = _from_root(self._adapter.json_schema(schema_generator=schema_generator()))
        self._is_object = schema.get("type") == "object"
        self._name = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(schema.get("title", "")))[:64].strip("_") or "answer"
        self.schema = tidy(schema)
        _json(self.schema)  # a user may add anything to it, and it has to be sent

    def settings(self, settings: Settings) -> Settings:
        """The settings that ask the server for this type.

        Args:
            settings: come back as they are for a schema whose root is no object, which servers refuse, and where
                `extra` has a `response_format` already.
        """
        if not self._is_object or "response_format" in settings.extra:
            return settings
        asked = {"type": "json_schema", "json_schema": {"name": self._name, "schema": self.schema}}
        return replace(settings, extra={**settings.extra, "response_format": asked})

    def instructions(self, prompt: str) -> str:
        """The system prompt that asks the model for this type; as it is where the settings can."""
        if self._is_object:
            return prompt
        asked = f"Answer with JSON alone that matches this JSON schema: {_json(self.schema)}"
        return f"{prompt}\n\n{asked}" if prompt else asked

    def parse(self, text: str) -> Any:
        """The answer as a value of the type.

        Exceptions of the type's own validators go through, but for `ValueError` and `AssertionError`, by which
        pydantic has them say what does not fit.

        Args:
            text: JSON, in one Markdown code fence or in none, with nothing but blank space around it. A text, a date or
                a member of an enum is in quotes too: a bare word is no JSON, and is not guessed at.

        Raises:
            Unfit: when it is something else, does not fit the type, or holds a number that is not finite.
        """
        from pydantic import ValidationError

        text = _unfenced(text)
        try:
            value = self._adapter.validate_json(text, by_alias=True, by_name=True)
        except ValidationError as error:
            why = _explain(error)
        else:
            if self._says_finite(text, value):
                return value
            why = "every number has to be finite, and JSON knows neither NaN nor Infinity"
        raise Unfit(why)  # outside of the handler: pydantic's error quotes an answer that a guard may yet refuse

    def repair(self, error: Unfit) -> str:
        """What the model is told of an answer that did not fit."""
        return f"The answer did not fit: {error}. Answer again, with JSON alone."

    def accepts(self, value: object) -> bool:
        """Whether the value is of the type as it stands, without being read as one, and has a JSON text."""
        try:
            found = self._adapter.validate_python(value, strict=True, by_alias=True, by_name=True)
            self._text(value, by_alias=True)
        except ValueError:  # pydantic's errors, too
            return False
        return bool(found == value)

    def text_of(self, value: Any) -> str:
        """The JSON text of a value of the type, which `parse` reads back.

        Fields are named as in the schema; by their Python names where pydantic would write other names than it reads.

        Raises:
            ValueError: when some part of it has no JSON form, such as an infinite number.
        """
        text = self._text(value, by_alias=True)
        try:
            same = bool(self.parse(text) == value)
        except Unfit:
            same = False
        return text if same else self._text(value, by_alias=False)

    def _text(self, value: Any, *, by_alias: bool) -> str:
        if not _is_finite(self._adapter.dump_python(value, round_trip=True, warnings=False)):
            raise ValueError("a number that is not finite has no JSON form")
        return self._adapter.dump_json(value, by_alias=by_alias, round_trip=True, warnings=False).decode()

    def _says_finite(self, text: str, value: Any) -> bool:
        """Whether all numbers are: pydantic takes `NaN` for JSON, and `1e999` and `"inf"` for infinite numbers."""
        from pydantic_core import from_json

        try:
            plain = self._adapter.dump_python(value, round_trip=True, warnings=False, exclude_unset=True)
        except ValueError:  # it cannot be written, which nobody has asked for yet
            plain = None
        return _is_finite([from_json(text), plain])


def structure_of(given: object, owner: str) -> Structure | None:
    """What `output=` means.

    Args:
        given: the type of the answers; None and `str` are plain text, and give None.
        owner: whose output it is, as an error names it.

    Raises:
        ConfigurationError: when no JSON schema can be made of it.
    """
    if given is None or given is str:
        return None
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    try:
        if isinstance(given, str | Mapping | partial) or inspect.isroutine(given):
            raise TypeError("it is no type")  # pydantic would look up the name, and take a function for its parameters
        return Structure(given)
    except (PydanticUserError, SchemaError, NameError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the output of {owner} is {given!r:.80}, of which no JSON schema can be made "
            f"({str(error).partition(chr(10))[0]}); give a type that has one, such as a pydantic model or list[str]"
        ) from error


def _from_root(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with its root in place: that of a recursive type is a reference, which servers refuse."""
    if "$ref" not in schema:
        return schema
    root = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    return {**root, **{key: value for key, value in schema.items() if key != "$ref"}}


_FENCED = re.compile(r"```(?:json)?\s(.*)```", re.DOTALL | re.IGNORECASE)


def _unfenced(text: str) -> str:
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    return fenced[1].strip() if fenced else text


def _is_finite(data: Any) -> bool:
    """Whether all numbers in it are, however deep."""
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return False
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, list | tuple | AbstractSet):
            waiting += item
    return True


_MOST = 10  # problems, and no more of them are told
_INTERNAL = re.compile(r"[a-z-]+\[.*\]", re.DOTALL)  # pydantic's own marks among names: `function-after[check(), str]`


def _explain(error: Any) -> str:
    """What does not fit, field by field, in pydantic's words; nothing of the answer but the names in it."""
    details = error.errors(include_url=False, include_input=False)
    problems = []
    for detail in details[:_MOST]:
        place = ".".join(str(part) for part in detail["loc"] if not _INTERNAL.fullmatch(str(part)))
        problem = detail["msg"]
        if detail["type"] == "union_tag_invalid":  # pydantic's words quote the tag
            problem = "{discriminator} should be one of {expected_tags}".format(**detail["ctx"])
        problems.append(cut(f"{place}: {problem}" if place else problem, 300))
    if len(details) > _MOST:
        problems.append(f"and {len(details) - _MOST} more")
    return "; ".join(problems)
