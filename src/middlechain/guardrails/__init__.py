"""The guards that come with the library. Each function makes one, for `guardrails=` and `app.guard`.

They decide on text alone, the same for a whole reply and for one that streams, and hold a stream back only as far as
something may still become a match. `docs/reference/guardrails.md` has the table of parameters, and what they miss.
"""

from __future__ import annotations

from middlechain.guardrails.checks import check
from middlechain.guardrails.credentials import secrets
from middlechain.guardrails.injection import prompt_injection
from middlechain.guardrails.personal_data import pii
from middlechain.guardrails.shapes import json_schema, json_valid, length, min_length
from middlechain.guardrails.texts import banned_words, contains, regex

__all__ = [
    "banned_words",
    "check",
    "contains",
    "json_schema",
    "json_valid",
    "length",
    "min_length",
    "pii",
    "prompt_injection",
    "regex",
    "secrets",
]
