"""JSON schemas as a guard may use them: whole, offline, and with patterns that no text can make slow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from middlechain.errors import ConfigurationError
from middlechain.guardrails.parameters import needed
from middlechain.guardrails.patterns import Pattern

__all__ = ["accepts_of"]

_BY_NAME = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
_NO_SCHEMAS = {"const", "default", "dependentRequired", "enum", "examples"}


def accepts_of(schema: Mapping[str, Any]) -> Callable[[Any], bool]:
    """What says whether a value fits the schema.

    Raises:
        ConfigurationError: for what is no JSON schema, refers to what is not in it, or has patterns that are refused.
    """
    jsonschema = needed("jsonschema", "json_schema")
    try:
        schema = json.loads(json.dumps(dict(schema), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(schema, f"it is not JSON ({error}); give one that is") from None
    draft = jsonschema.Draft202012Validator
    if "$schema" in schema:
        draft = jsonschema.validators.validator_for(schema, default=None)
        if draft is None:
            raise _refused(schema, f"its $schema {schema['$schema']!r} is unknown; leave it out for 2020-12")
    try:
        draft.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise _refused(schema, f"it is no JSON schema: {error.message:.200}; correct {error.json_path}") from None
    return _validator(jsonschema, draft, schema)


def _validator(jsonschema: Any, draft: Any, schema: Any) -> Callable[[Any], bool]:
    referencing = needed("referencing", "json_schema")
    registry = referencing.Registry()  # knows nothing and fetches nothing
    specification = needed("referencing.jsonschema", "json_schema").specification_with(draft.META_SCHEMA["$schema"])
    resolver = registry.resolver_with_root(specification.create_resource(schema))
    patterns: dict[str, Callable[[str], bool]] = {}
    for part in _parts(schema):
        if "patternProperties" in part:
            raise _refused(schema, "it has patternProperties, which no guard matches in linear time; use check(fn)")
        for word in ("$ref", "$dynamicRef"):
            if isinstance(part.get(word), str):
                _resolve(resolver, part[word], schema)
        if isinstance(part.get("pattern"), str):
            patterns[part["pattern"]] = _search(part["pattern"])

    def pattern(_validator: Any, pattern: str, value: object, _schema: object) -> Iterator[Exception]:
        if isinstance(value, str) and not patterns[pattern](value):
            yield jsonschema.ValidationError("")

    validator = jsonschema.validators.extend(draft, {"pattern": pattern})(schema, registry=registry)

    def accepts(value: Any) -> bool:
        return bool(validator.is_valid(value))

    return accepts


def _search(pattern: str) -> Callable[[str], bool]:
    """Whether a pattern matches somewhere, be it an empty piece."""
    Pattern(pattern)  # refuses what is none by itself
    somewhere = Pattern(rf"[\s\S]*(?:{pattern})[\s\S]*")
    in_nothing = re.search(pattern, "") is not None
    return lambda text: somewhere.found(text) if text else in_nothing


def _resolve(resolver: Any, reference: str, schema: Any) -> None:
    unresolvable = needed("referencing.exceptions", "json_schema").Unresolvable
    try:
        resolver.lookup(reference)
    except unresolvable:
        raise _refused(
            schema, f"its reference {reference!r} leads nowhere in it; put what it means under $defs"
        ) from None


def _parts(schema: object) -> Iterator[Mapping[str, Any]]:
    """The schema and all schemas in it."""
    if isinstance(schema, list):
        for one in schema:
            yield from _parts(one)
    if not isinstance(schema, dict):
        return
    yield schema
    for word, value in schema.items():
        if word in _BY_NAME and isinstance(value, dict):
            yield from _parts(list(value.values()))
        elif word not in _NO_SCHEMAS:
            yield from _parts(value)


def _refused(schema: object, why: str) -> ConfigurationError:
    return ConfigurationError(f"schema={schema!r:.80}; {why}")
