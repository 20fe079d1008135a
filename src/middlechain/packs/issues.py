"""What may be wrong with a pack, and where in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, TypeAlias

from middlechain.errors import ConfigurationError

__all__ = ["Issue", "Kind", "Place", "nearest", "refuse"]

Kind: TypeAlias = Literal["error", "unsupported", "note"]


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing to know about a pack.

    Args:
        kind: `"error"` keeps agents from being made, `"unsupported"` is what this library does not do, `"note"` is what
            has no effect, or another one than it seems.
        place: where, as a path into the JSON, such as `prompts.chat.validators[0].type`.
        message: what, with the fix.
    """

    kind: Kind
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.message}"


_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a pack, which takes note of what is wrong there. All places of a pack share one list.

    Args:
        path: keys and indexes from the root.
        issues: where they are noted.
    """

    path: tuple[str | int, ...] = ()
    issues: list[Issue] = field(default_factory=list)

    def at(self, *keys: str | int) -> Place:
        """A place further in."""
        return Place((*self.path, *keys), self.issues)

    def error(self, message: str) -> None:
        """Note what keeps agents from being made."""
        self.issues.append(Issue("error", str(self), message))

    def unsupported(self, message: str) -> None:
        """Note what this library does not do."""
        self.issues.append(Issue("unsupported", str(self), message))

    def note(self, message: str) -> None:
        """Note what has no effect, or another one than it seems."""
        self.issues.append(Issue("note", str(self), message))

    def __str__(self) -> str:
        shown = "".join(_step(key) for key in self.path)
        return shown.removeprefix(".") or "$"


def _step(key: str | int) -> str:
    if isinstance(key, str):
        return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key)}]"
    return f"[{key}]"


def nearest(name: str, names: Iterable[str], what: str = "there are", likeness: float = 0.6) -> str:
    """The fix for a name that is not known: the one that was meant, or all there are.

    Args:
        name: as it was written.
        names: that are known.
        what: stands before all of them.
        likeness: how near the one that was meant must be, from 0 to 1, which is the same.
    """
    names = list(names)
    near = get_close_matches(name, names, 1, likeness)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"{what} {', '.join(map(repr, names)) or 'none'}; correct the name"


def refuse(issues: Iterable[Issue], what: str) -> None:
    """Raise one error with all the issues of kind `"error"`, if there are any.

    Args:
        issues: of any kind.
        what: what cannot be done because of them.

    Raises:
        ConfigurationError: then; its `issues` are a sentence for each.
    """
    sentences = tuple(f"{issue.place}: {issue.message}" for issue in issues if issue.kind == "error")
    if sentences:
        count = "1 issue" if len(sentences) == 1 else f"{len(sentences)} issues"
        raise ConfigurationError(f"{what}; it has {count}:" + "".join(f"\n- {one}" for one in sentences), sentences)
