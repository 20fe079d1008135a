"""What wraps what, drawn for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from middlechain import Chain
from middlechain.cli.screen import Screen, printable
from middlechain.explanation import Branch, Link

__all__ = ["show_chain"]


def show_chain(chain: Chain, screen: Screen) -> None:
    """Draw a chain on a terminal; a file or a pipe gets it as lines of text, however long."""
    if screen.terminal:
        Console(file=screen.out, highlight=False, markup=False, emoji=False).print(_drawn(chain.root))
    else:
        screen.write(f"{chain}\n")


def _drawn(branch: Branch) -> Tree:
    tree = Tree(Text(printable(branch.title), style="bold"))
    for item in branch.items:
        tree.add(_drawn(item) if isinstance(item, Branch) else _line(item))
    return tree


def _line(link: Link) -> Text:
    line = Text(f"{link.kind} ", style="cyan")
    line.append(printable(str(link).removeprefix(f"{link.kind} ")), style="default")
    if link.remarks:
        line.append(f"  {link.remarks}", style="dim")
    return line
