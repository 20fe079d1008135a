"""A function's signature as a model needs it: a JSON schema to call by, and a check of what came back."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

from middlechain.chain import name_of
from middlechain.context import Context
from middlechain.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["Arguments", "Signature", "read_signature"]


class Arguments(NamedTuple):
    """Arguments that were checked: as the function takes them by name, and as hooks and layers see them."""

    given: dict[str, Any]
    seen: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function is called: `fields` maps a parameter to its place in `model`, `positional` to its default."""

    model: type[BaseModel]
    fields: Mapping[str, str]
    positional: Mapping[str, Any]
    context: str | None
    summary: str
    schema: Mapping[str, Any]
    on_loop: bool

    def check(self, args: Mapping[str, Any]) -> Arguments:
        """The arguments as the function takes them.

        Raises:
            ValueError: when they do not fit; the message says which, and why.
        """
        from pydantic import ValidationError

        try:
            checked = self.model.__pydantic_validator__.validate_python(args)
        except ValidationError as error:
            raise ValueError(_explain(error)) from error
        except Exception as error:  # a validator of the tool's own types failed: the call's fault or not, it cannot run
            raise ValueError(f"the arguments could not be checked ({type(error).__name__})") from error
        given: dict[str, Any] = {}
        same = True
        for name, value in args.items():
            given[name] = read = getattr(checked, self.fields[name])
            if type(read) is not type(value) or type(read) not in _SCALARS:
                same = False
        return Arguments(given, args if same else self._as_data(checked, args))

    def bind(self, given: Mapping[str, Any], ctx: Context[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments by position and by keyword, the context among them."""
        named = dict(given)
        if self.context is not None:
            named[self.context] = ctx
        if not self.positional:
            return [], named
        last = max((place for place, name in enumerate(self.positional) if name in named), default=-1)
        by_position = list(self.positional.items())[: last + 1]
        return [named.pop(name, default) for name, default in by_position], named

    def _as_data(self, checked: BaseModel, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as JSON-like data after pydantic has read them; as they came where that would lose anything."""
        try:
            data = checked.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
            return data if self.model.model_validate(data) == checked else args
        except Exception:  # noqa: BLE001 - objects of a hook's, which have no JSON form or cannot be compared
            return args


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _explain(error: Any) -> str:
    problems = []
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(part) for part in detail["loc"]) or "arguments"
        problems.append(f"{place}: {detail['msg']}")
    return "; ".join(problems)


def read_signature(function: Callable[..., Any]) -> Signature:
    """Read how a function is called.

    Raises:
        ConfigurationError: when no schema can be made of it; the message names the parameter.
    """
    from pydantic import ConfigDict, Field, create_model
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

    name = name_of(function)
    hints = _hints(function, name)
    summary, described = _documentation(function)
    definitions: dict[str, Any] = {}
    fields: dict[str, str] = {}
    positional: dict[str, Any] = {}
    context: str | None = None
    for parameter in _parameters(function, name):
        hint = hints.get(parameter.name, Any)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional[parameter.name] = parameter.default
        if _is_context(hint):
            context = parameter.name
            continue
        field = fields[parameter.name] = f"argument_{len(fields)}"
        default = ... if parameter.default is parameter.empty else parameter.default
        about: dict[str, Any] = {"description": described[parameter.name]} if parameter.name in described else {}
        definitions[field] = (hint, Field(default, alias=parameter.name, **about))
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **definitions)
        schema = tidy(model.model_json_schema(schema_generator=schema_generator()))
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ConfigurationError(
            f"no JSON schema can be made of the parameters of {name!r}: {error}; annotate them with types that have one"
        ) from error
    return Signature(model, fields, positional, context, summary, schema, starts_on_loop(function))


@cache
def schema_generator() -> Any:
    """Pydantic's, without warnings of a default that has no JSON form: the model need not know it."""
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import PydanticSerializationError

    class Quiet(GenerateJsonSchema):
        ignored_warning_kinds = {*GenerateJsonSchema.ignored_warning_kinds, "non-serializable-default"}  # noqa: RUF012

        def encode_default(self, dft: Any) -> Any:
            default = super().encode_default(dft)
            try:
                json.dumps(default, allow_nan=False)
            except ValueError as error:  # infinite, which pydantic would write and no server read
                raise PydanticSerializationError(str(error)) from error
            return default

    return Quiet


def starts_on_loop(function: Any) -> bool:
    """Whether it is an async function, also behind `partial`, `wraps` or `__call__`."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    if not inspect.isroutine(function):
        function = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target = inspect.unwrap(getattr(function, "func", function))
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"an annotation of {name!r} cannot be resolved ({error}); import what it names at the top of its module, "
            "outside of TYPE_CHECKING"
        ) from error


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise ConfigurationError(
                f"the parameter {str(parameter)!r} of {name!r} cannot be described to a model; name each parameter"
            )
    if parameters and parameters[0].name == "self":
        raise ConfigurationError(
            f"{name!r} takes self: make a tool of the bound method, or of a function with a parameter ctx: Context, "
            "and use ctx.agent"
        )
    return parameters


def _is_context(hint: Any) -> bool:
    if isinstance(get_origin(hint) or hint, type) and issubclass(get_origin(hint) or hint, Context):
        return True
    return any(_is_context(option) for option in get_args(hint) if option is Context or get_origin(option) is Context)


def tidy(schema: Any) -> Any:
    """The schema without the titles that pydantic derives from names."""
    if isinstance(schema, list):
        return [tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    without = {}
    for key, value in schema.items():
        if key == "properties":
            without[key] = {name: tidy(item) for name, item in value.items()}
        elif key != "title" or not isinstance(value, str):
            without[key] = value if key in {"default", "enum", "const", "examples"} else tidy(value)
    return without


_SECTION = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def _documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph of the docstring, and what its Google-style Args section says of each parameter."""
    lines = (inspect.getdoc(getattr(function, "func", function)) or "").splitlines()
    summary = " ".join(line.strip() for line in _until_blank(lines))
    starts = [place for place, line in enumerate(lines) if _SECTION.match(line)]
    described: dict[str, str] = {}
    last = ""
    for line in lines[starts[0] + 1 :] if starts else ():
        if line and not line[0].isspace():
            break
        indent = len(line) - len(line.lstrip())
        entry = _ENTRY.match(line.strip()) if indent <= _indent_of_entries(lines, starts[0]) else None
        if entry:
            last = entry[1]
            described[last] = entry[2]
        elif last and line.strip():
            described[last] = f"{described[last]} {line.strip()}".strip()
    return summary, described


def _until_blank(lines: list[str]) -> list[str]:
    end = next((place for place, line in enumerate(lines) if not line.strip()), len(lines))
    return lines[:end]


def _indent_of_entries(lines: list[str], section: int) -> int:
    return next((len(line) - len(line.lstrip()) for line in lines[section + 1 :] if line.strip()), 0)
