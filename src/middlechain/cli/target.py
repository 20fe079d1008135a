"""Finding an app by `module:app` or `path/to/file.py:app`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from middlechain import App, ConfigurationError

__all__ = ["load_app"]


def load_app(target: str) -> App:
    """The app of that name. Its module is imported with the working directory on `sys.path`.

    Args:
        target: `module:app`, such as `shop.support:app`, or `path/to/file.py:app`.

    Raises:
        ConfigurationError: when there is no such module, file or attribute, when importing it fails, or when what is
            there is no app.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ConfigurationError(f"{target!r} does not say where the app is; write MODULE:APP or path/to/file.py:APP")
    _prepend(Path.cwd())
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    app = getattr(module, name, None)
    if isinstance(app, App):
        return app
    problem = f"{place!r} has no {name!r}" if app is None else f"{name!r} in {place!r} is {_kind(app)}, not an App"
    raise ConfigurationError(f"{problem}; {_instead(module, place)}")


def _kind(value: object) -> str:
    """What the value is, with its article."""
    kind = "class" if isinstance(value, type) else type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def _instead(module: ModuleType, place: str) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if apps:
        return f"write {' or '.join(f'{place}:{name}' for name in apps)}"
    return "define one there, such as app = App(agents=[...])"


def _module(name: str) -> ModuleType:
    missing = ConfigurationError(
        f"there is no module {name!r} in {str(Path.cwd())!r} or on sys.path; correct its name, or start from the "
        "directory that holds it"
    )
    if "" in name.split("."):
        raise missing
    try:
        with _importing(name):
            return importlib.import_module(name)
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            raise missing from cause  # it, or a package on the way to it, and not something that it imports
        raise


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {str(path)!r} in {str(Path.cwd())!r}; correct its path")
    _prepend(path.resolve().parent)
    # A name that no other module has; what it defines is looked up under it, by pydantic for one
    loader = SourceFileLoader("__app__", str(path))
    module = ModuleType("__app__")
    module.__file__ = str(path)
    sys.modules["__app__"] = module
    with _importing(str(path)):
        loader.exec_module(module)
    return module


@contextmanager
def _importing(place: str) -> Generator[None]:
    """One error for whatever the code of a module raises."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"importing {place!r} failed with {type(error).__name__}: {error}; mend it there, --debug shows the line"
        ) from error


def _prepend(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
