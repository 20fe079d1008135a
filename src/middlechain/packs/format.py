"""The parts of a pack, as the format has them, and how one is read out of JSON without losing the rest to a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from middlechain.packs.issues import Place, nearest

__all__ = [
    "ModelOverride",
    "Parameters",
    "PromptPart",
    "Root",
    "Rules",
    "SchemaPart",
    "TemplateEngine",
    "ToolPart",
    "ToolPolicyPart",
    "ValidatorPart",
    "VariablePart",
    "read",
]


class Part(BaseModel):
    """One object of the format. What is inside it is read by itself, so it is `Any` here.

    Every field has a default, so that the fields that are right can be had where others are wrong.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    needed: ClassVar[tuple[str, ...]] = ()  # nothing can be done without them
    asked_for: ClassVar[tuple[str, ...]] = ()  # the format asks for them, and this library does without
    strict_names: ClassVar[bool] = False  # whether an unknown field may change the meaning of the others
    open_names: ClassVar[bool] = False  # whether it may have any further fields


class Root(Part):
    """The whole pack."""

    asked_for = ("id", "name", "version", "template_engine")

    id: str = ""
    name: str = ""
    version: str = ""
    description: str = ""
    template_engine: Any = None
    prompts: dict[str, Any] = {}
    fragments: dict[str, Any] = {}
    tools: dict[str, Any] = {}
    metadata: Any = None
    compilation: Any = None
    evals: Any = None
    workflow: Any = None
    agents: Any = None
    skills: Any = None
    compositions: Any = None
    json_schema: Any = Field(default=None, alias="$schema")


class TemplateEngine(Part):
    """How templates are written."""

    asked_for = ("version", "syntax")

    version: str = "v1"
    syntax: str = "{{variable}}"
    features: list[str] = []


class PromptPart(Part):
    """One prompt, which becomes an agent."""

    needed = ("system_template",)
    asked_for = ("id", "name", "version")

    id: str = ""
    name: str = ""
    version: str = ""
    description: str = ""
    system_template: str = Field(default="", min_length=1)
    variables: list[Any] = []
    tools: list[str] = []
    tool_policy: Any = None
    parameters: Any = None
    validators: list[Any] = []
    model_overrides: dict[str, Any] = {}
    tested_models: Any = None
    evals: Any = None
    media: Any = None
    pipeline: Any = None


class VariablePart(Part):
    """What a template may refer to."""

    needed = ("name",)
    asked_for = ("type", "required")

    name: str = Field(default="", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")
    type: Literal["string", "number", "boolean", "object", "array"] = "string"
    required: bool = False
    default: Any = None
    description: str = ""
    example: Any = None
    validation: Any = None


class Rules(Part):
    """What the value of a variable must be like."""

    strict_names = True

    pattern: str | None = None
    min_length: int | None = Field(default=None, ge=0)
    max_length: int | None = Field(default=None, ge=0)
    minimum: float | None = None
    maximum: float | None = None
    enum: list[Any] | None = None


class ToolPart(Part):
    """A tool as the model is told of it."""

    asked_for = ("name", "description")

    name: str = Field(default="", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")
    description: str = ""
    parameters: Any = {"type": "object", "properties": {}}


class SchemaPart(Part):
    """What this library must know of the JSON schema of a tool; the model gets all of it."""

    needed = ("type", "properties")
    open_names = True

    type: Literal["object"] = "object"
    properties: dict[str, Any] = {}
    required: list[str] = []


class ToolPolicyPart(Part):
    """How tools may be used."""

    strict_names = True

    tool_choice: Literal["auto", "required", "none"] | None = None
    max_rounds: int | None = Field(default=None, ge=1)
    max_tool_calls_per_turn: int | None = Field(default=None, ge=1)
    blocklist: list[str] = []


class Parameters(Part):
    """How the model is set."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)


class ModelOverride(Part):
    """What differs for one model."""

    system_template_prefix: str = ""
    system_template_suffix: str = ""
    system_template: str | None = None
    parameters: Any = None


class ValidatorPart(Part):
    """A guard."""

    needed = ("type",)
    strict_names = True

    type: str = Field(default="", min_length=1)
    enabled: bool = True
    fail_on_violation: bool = False
    params: dict[str, Any] = {}


P = TypeVar("P", bound=Part)


def read(part: type[P], data: object, place: Place) -> P | None:
    """The part that the data is. What is wrong is noted at its place, and the rest is kept.

    Returns:
        None for what is no object.
    """
    if not isinstance(data, Mapping):
        place.error(f"{data!r:.60} is no object; write one: {{...}}")
        return None
    fields = cast("dict[str, Any]", dict(data))
    _note_missing(part, fields, place)
    try:
        found = part.model_validate(fields)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            here = place.at(*detail["loc"])
            here.error(f"{detail['input']!r:.60} {_lower(detail['msg'])}; correct it")
        wrong = {detail["loc"][0] for detail in error.errors()}
        found = part.model_validate({key: value for key, value in fields.items() if key not in wrong})
    if not part.open_names:
        _note_unknown(found, place)
    return found


def _lower(message: str) -> str:
    """Pydantic's sentence, to stand after the value."""
    return message.removeprefix("Input ").replace("String should", "should")


def _note_missing(part: type[Part], fields: Mapping[str, Any], place: Place) -> None:
    for name in part.needed:
        if name not in fields:
            place.at(name).error(f"{name} is missing; add it")
    for name in part.asked_for:
        if name not in fields:
            place.at(name).note(f"the format asks for {name}, and nothing here depends on it; add it for others")


def _note_unknown(found: Part, place: Place) -> None:
    known = [field.alias or name for name, field in type(found).model_fields.items()]
    for name in found.model_extra or {}:
        fix = nearest(name, known, "the fields are", likeness=0.8)
        if found.strict_names or fix.startswith("did you mean"):
            place.at(name).error(f"there is no field {name!r} here; {fix}")
        else:
            place.at(name).unsupported(f"there is no field {name!r} here, so it does nothing; take it out")
