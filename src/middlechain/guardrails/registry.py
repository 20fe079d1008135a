"""The built-in guards by type, as packs and configuration files name them: one table, one way to make each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from middlechain.errors import ConfigurationError
from middlechain.guardrails.checks import check
from middlechain.guardrails.credentials import secrets
from middlechain.guardrails.injection import prompt_injection
from middlechain.guardrails.parameters import MISSING, listed, nearest
from middlechain.guardrails.personal_data import pii
from middlechain.guardrails.shapes import json_schema, json_valid, length, min_length
from middlechain.guardrails.texts import banned_words, contains, regex
from middlechain.guards import Guard

__all__ = ["OTHER_NAMES", "TYPES", "build"]

TYPES: Mapping[str, Callable[..., Guard]] = {
    factory.__name__: factory
    for factory in (
        banned_words,
        regex,
        contains,
        length,
        min_length,
        json_valid,
        json_schema,
        pii,
        secrets,
        prompt_injection,
        check,
    )
}
"""What makes a guard of each type, with parameters by name."""

OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "length": {"max": "max_characters"},
    "min_length": {"min": "min_characters"},
}
"""Names of parameters that packs have beside those of the functions."""


def build(type: str, params: Mapping[str, Any]) -> Guard:
    """Make the guard of a type.

    Args:
        type: a key of `TYPES`.
        params: the parameters of its function, the options that every guard takes included.

    Raises:
        ConfigurationError: for an unknown type, and for bad parameters: unknown, missing and wrong ones all at once.
    """
    factory = TYPES.get(type) if isinstance(type, str) else None
    if factory is None:
        near = nearest(type, TYPES) if isinstance(type, str) else ""
        raise ConfigurationError(f"there is no guard of the type {type!r:.80}{near}; there are {listed(TYPES)}")
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise ConfigurationError(f"the parameters of a guard {type!r} are {params!r:.80}; give them by name")
    others = OTHER_NAMES.get(type, {})
    named = {others.get(name, name): value for name, value in params.items()}
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.default is parameter.empty:
            named.setdefault(name, MISSING)
    return factory(**named)
