"""Models by name: which package answers for `"openai:gpt-5"`, and whether a model may leave this process at all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from middlechain.errors import ConfigurationError

if TYPE_CHECKING:
    from middlechain.chat import Model

__all__ = ["check_model", "check_named", "check_requests", "model_named", "no_requests"]

# The two prefixes that the library brings; a package adds its own as an entry point of the group below, whose
# value is a callable that takes what stands after the colon.
_BUILT_IN = {"openai": "middlechain.models.openai:OpenAIModel", "demo": "middlechain.models.demo:DemoModel"}
_GROUP = "middlechain.models"


def model_named(name: str, known: dict[str, Model]) -> Model:
    """The model that a string such as `"openai:gpt-5"` or `"demo"` stands for.

    Args:
        name: `PREFIX:NAME`, or a prefix alone.
        known: models made before, to take it from or to add it to.

    Raises:
        ConfigurationError: when nothing is registered for the prefix.
    """
    model = known.get(name)
    if model is None:
        factory, given = check_named(name)
        model = known[name] = factory(*given)
    return model


def check_named(name: str) -> tuple[Callable[..., Model], tuple[str, ...]]:
    """What makes the model of that name, and from what.

    Raises:
        ConfigurationError: as `model_named`.
    """
    prefix, _, rest = name.partition(":")
    factory = _factory(prefix, name)
    given = (rest,) if rest else ()
    try:
        inspect.signature(factory).bind(*given)
    except TypeError as error:
        raise ConfigurationError(
            f"the model {name!r} lacks what {prefix!r} needs ({error}); write it as {prefix}:NAME"
        ) from error
    return factory, given


def check_model(model: object, owner: str) -> None:
    """Refuse what is not a model, without making one.

    Raises:
        ConfigurationError: for an unknown prefix, or an object without `chat`.
    """
    if isinstance(model, str):
        _entry_point(model.partition(":")[0], model)
    elif model is not None and not callable(getattr(model, "chat", None)):
        raise ConfigurationError(
            f'the model of {owner} is {model!r:.80}; give a name such as "openai:gpt-5", or an object with a '
            "name and an async chat(call)"
        )


def _factory(prefix: str, name: str) -> Callable[..., Model]:
    from importlib.metadata import EntryPoint

    factory: Callable[..., Model] = EntryPoint(prefix, _entry_point(prefix, name), _GROUP).load()
    return factory


def _entry_point(prefix: str, name: str) -> str:
    if prefix in _BUILT_IN:
        return _BUILT_IN[prefix]
    from importlib.metadata import entry_points

    registered = {point.name: point.value for point in entry_points(group=_GROUP)}
    if prefix in registered:
        return registered[prefix]
    known = ", ".join(sorted({*_BUILT_IN, *registered}))
    raise ConfigurationError(
        f'the model {name!r} has no known prefix (known: {known}); write it as PREFIX:NAME, such as "openai:gpt-5", '
        f"or register the prefix as an entry point of the group {_GROUP!r}"
    )


class Requests:
    """Whether models may leave this process."""

    refused = 0


@contextmanager
def no_requests() -> Generator[None]:
    """While this is open, models that would ask a server refuse to (`check_requests`)."""
    Requests.refused += 1
    try:
        yield
    finally:
        Requests.refused -= 1


def check_requests(model: str) -> None:
    """To be called by a model before it asks a server.

    Raises:
        ConfigurationError: inside `no_requests()`.
    """
    if Requests.refused:
        raise ConfigurationError(
            f"the model {model!r} was asked inside no_requests(); give the agent a ScriptedModel, "
            "or replace call.model in a chat layer"
        )
