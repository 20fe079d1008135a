"""The command line: `middlechain run`, `explain` and `demo`. It needs the extra `cli`, which is typer and rich.

Nothing of the extra is imported here, so that its absence can be told in one line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what follows the program's name; default: those of the process.

    Returns:
        The exit code: 0; 1 when code of the app failed; 2 for bad input and errors of the run; 130 after Ctrl-C; 141
        when nobody reads the output any more.
    """
    try:
        from middlechain.cli.commands import invoke
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        sys.stderr.write(f"error: the command line needs {error.name}; pip install 'middlechain[cli]'\n")
        return 2
    return invoke(arguments)
