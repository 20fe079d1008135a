"""Agents that were made of a pack."""

from __future__ import annotations

from typing import Any

from middlechain.agent import Agent
from middlechain.guards import NO_GUARDRAILS, Guardrails

__all__ = ["PackAgent"]


class PackAgent(Agent):
    """An agent like any other, whose pack's validators come before all other guards. Made by `pack.agent(...)`.

    Args:
        pack_guards: the pack's validators.
        options: those of `Agent`.
    """

    pack_guards: Guardrails = NO_GUARDRAILS

    def __init__(self, pack_guards: Guardrails = NO_GUARDRAILS, **options: Any) -> None:  # Agent names and checks them
        self.pack_guards = pack_guards  # before the plan is made
        super().__init__(**options)
