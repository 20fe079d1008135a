"""Agents out of PromptPack files: `load(path)`, then `pack.agent("chat", model=..., tools=..., variables=...)`.

A pack says what an agent is told, which tools it has, how its model is set, and which guards it has. This package reads
version 1 of the format, and makes an `Agent` of it that is like any other. What it does not do, `pack.check()` says.
"""

from middlechain.packs.issues import Issue
from middlechain.packs.pack import Pack, load, loads
from middlechain.packs.pack_agent import PackAgent

__all__ = ["Issue", "Pack", "PackAgent", "load", "loads"]
