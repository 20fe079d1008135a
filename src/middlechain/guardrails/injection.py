"""A guard against the best-known ways to talk a model out of its instructions. It is a heuristic.

It knows English phrases that are rarely said otherwise. Another language or wording, an encoding, a picture, and an
instruction that is spread over several messages pass. It makes attacks dearer, and protects nothing that must not
happen: give tools no more rights than whoever talks to the agent has.
"""

from __future__ import annotations

from typing_extensions import Unpack

from middlechain.guardrails.looking import guard_against
from middlechain.guardrails.parameters import Given, MatchOutcome, Options
from middlechain.guardrails.patterns import any_of
from middlechain.guards import Guard

__all__ = ["prompt_injection"]


def prompt_injection(
    *, outcome: MatchOutcome = "enforce", replacement: str = "[redacted]", **options: Unpack[Options]
) -> Guard:
    """A heuristic against prompt injection, for the way in: it knows common phrases, on folded text, and no more.

    Args:
        outcome: `"enforce"` (default), `"deny"`, or `"rewrite"`: each match is replaced.
        replacement: what takes the place of a match.
        options: `message=` and what else every guard takes; see `Options`.

    Raises:
        ConfigurationError: for bad parameters, with all that is wrong.
    """
    given = Given(prompt_injection, options)
    phrases = (*_ORDERS, *_ROLES, *_LEAKS, *_MARKS)
    return guard_against(given, any_of(phrases, fold=True), "looks like a prompt injection", outcome, replacement)


_WHICH = (
    r"(?:(?:all|any|every|each|the|your|my|our|these|those|this|that|of|and|previous|prior|earlier|above|preceding"
    r"|foregoing|initial|original|former|existing|current|given|system|safety|developer|hidden|secret)\s+)"
)
_RULES = r"(?:instruction|direction|prompt|rule|guideline|command|directive|constraint|restriction|safeguard)s?\b"
_LIMITS = r"(?:restriction|filter|limitation|guideline|safeguard|censorship|rule)s?\b"
_ASKED = (
    r"(?:(?:me|us|out|back|verbatim|all|of|the|your|full|entire|complete|exact|whole|current|contents|text|what|is|are"
    r"|in)\s+)"
)
_PROMPT = (
    r"(?:system\s*prompt|(?:system|initial|hidden|original|secret|developer)\s+(?:prompt|message|instructions?))\b"
)
_ORDERS = (
    rf"\b(?:ignore|disregard|forget|override|bypass|discard)\s+{_WHICH}+{_RULES}",
    rf"\b(?:do\s+not|don['\u2019]?t|stop|never)\s+(?:follow|following|obey|obeying)\s+{_WHICH}+{_RULES}",
    r"\b(?:ignore|disregard|forget)\s+(?:all|everything|anything|whatever)\s+(?:that\s+)?(?:above|before|i\s+said)\b",
    r"\b(?:ignore|disregard|forget)\s+(?:all|everything|anything|whatever)\s+(?:that\s+)?(?:came|was\s+said)\s+before\b",
    r"\b(?:ignore|disregard|forget)\s+(?:all|everything|anything|whatever)\s+(?:that\s+)?you\s+(?:know|were\s+told)\b",
)
_ROLES = (
    r"\byou\s+are\s+now\s+(?:dan\b|jailbroken|free\s+(?:of|from)|(?:an?\s+)?(?:unrestricted|uncensored|unfiltered))",
    r"\byou\s+are\s+no\s+longer\s+(?:bound|restricted|limited|an?\s+(?:ai|assistant|language\s+model|chatbot))\b",
    rf"\b(?:act|behave|pretend|respond|answer|role-?play)\s+(?:\w+\s+){{0,8}}(?:without|no)\s+(?:\w+\s+){{0,2}}{_LIMITS}",
    r"\bdo\s+anything\s+now\b",
    r"\b(?:enable|activate|enter|switch\s+to|now\s+in)\s+(?:developer|dan|god|jailbreak)\s+mode\b",
)
_LEAKS = (
    rf"\b(?:reveal|show|print|repeat|output|display|give|tell|share|leak|expose|recite|dump)\s+{_ASKED}*{_PROMPT}",
    rf"\bwhat(?:['\u2019]s|\s+is|\s+are|\s+was|\s+were)\s+(?:in\s+)?your\s+(?:(?:exact|full|entire)\s+)*{_PROMPT}",
    r"\b(?:repeat|print|output)\s+(?:everything|all|the\s+(?:words|text))\s+above\b",
)
_MARKS = (r"<\|(?:im_start|im_end|system|endoftext|start_header_id|eot_id)\|>", r"\[/?inst\]", "<</?sys>>")
