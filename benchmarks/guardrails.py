"""What scanning a stream for guards costs: `python benchmarks/guardrails.py [--quick] [--check] [--json]`.

Beside it, as `bare`, stands what is often done by hand: after each delta, Python's `re` searches the whole text so far.
That finds the same matches once they are complete, but cannot tell what has to be held back. Over 1 MB of text, one
search of the whole stands there, or 0 where `re` takes far too long. The replies hold no match, as most do. Times are
processor time, the median of the rounds; the ratios carry over to other machines, the seconds do not.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

from overhead import table
from samples import Row

from middlechain.guardrails.matching import Machine
from middlechain.guardrails.patterns import Pattern, any_of
from middlechain.guardrails.words import Words

DELTA, REPLY, MEGABYTE, PIECE = 4, 2_000, 1_000_000, 4_096

PATTERNS = [
    r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}\b",
    r"\b\d{3}-\d{2}-\d{4}\b",
    r"\b(?:\d[ -]?){13,19}\b",
    r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
    r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b",
    r"(?<!\w)\+\d{1,3}[ .-]?\(?\d{2,4}\)?(?:[ .-]?\d{2,4}){2,4}(?!\w)",
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{36,}",
    r"\beyJ[\w-]+\.[\w-]+\.[\w-]+",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"\bxox[abprs]-[\w-]{10,}",
    r"\b(?:api[_-]?key|secret|token|password)\b\s*[:=]\s*\S+",
]
"""What checks for personal data and secrets look for, or nearly so."""


@dataclass(frozen=True, slots=True)
class Side:
    """A matcher, and the regular expression that finds the same."""

    machine: Machine
    regex: re.Pattern[str]

    def stream(self, text: str, size: int) -> None:
        """Scan the text as it comes."""
        scanner = self.machine.scanner()
        for start in range(0, len(text), size):
            scanner.push(text[start : start + size])
        scanner.close()

    def rescan(self, text: str, size: int) -> None:
        """Search all of the text so far whenever some comes."""
        so_far = ""
        for start in range(0, len(text), size):
            so_far += text[start : start + size]
            self.regex.search(so_far)


def vocabulary(count: int, letters: str = "etaoinshrdlucm") -> list[str]:
    """Words that are no words, the same each time."""
    chance = random.Random(count)
    return ["".join(chance.choices(letters, k=chance.randint(3, 9))) for _ in range(count)]


def prose(words: Sequence[str], length: int) -> str:
    """Text of the words, with some punctuation and digits, the same each time."""
    chance = random.Random(length)
    parts = (chance.choice(words) + chance.choice(("", "", "", ",", ".\n", " 12")) for _ in range(length // 4))
    return " ".join(parts)[:length]


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median of the processor time."""
    taken: list[float] = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return median(taken)


def row(name: str, ours: float, bare: float, unit: str = "x bare", budget: float | None = None) -> Row:
    """A line of the table, of seconds or, for a delta, of microseconds."""
    figure = ours / bare if unit.startswith("x") else ours
    return Row(name, ours, bare, figure, unit, budget, measure="us" if unit == "us" else "s")


def per_delta(name: str, side: Side, length: int, rounds: int) -> list[Row]:
    """The rows of a delta: what it takes, and that divided by what a search of all so far takes."""
    text = prose(vocabulary(3_000), length)
    each = 1e6 * DELTA / length
    ours = each * seconds(lambda: side.stream(text, DELTA), rounds)
    bare = each * seconds(lambda: side.rescan(text, DELTA), max(1, rounds // 5))
    return [row(name, ours, bare, "us", 10), Row(name, ours, bare, bare / ours, "x as fast", 1, floor=True)]


def megabyte(name: str, side: Side, rounds: int) -> list[Row]:
    """The rows of a megabyte, in one piece and in pieces of 4 KiB; of thousands of words without `re`."""
    text = prose(vocabulary(3_000), MEGABYTE)
    bare = seconds(lambda: side.regex.findall(text), rounds) if len(side.regex.pattern) < 2_000 else 0.0
    whole = seconds(lambda: side.machine.spans(text), rounds)
    pieces = seconds(lambda: side.stream(text, PIECE), rounds)
    return [row(f"1 MB, {name}", whole, bare, "s", 0.5), row(f"1 MB in 4 KiB, {name}", pieces, bare, "s", 0.5)]


def near_misses(rounds: int) -> list[Row]:
    """The rows of 5,000 words beside 50, on a text of words that are nearly theirs."""
    words = [f"{word}q" for word in vocabulary(5_000)]
    text = prose([f"{word[:-1]}e" for word in words], MEGABYTE)
    rows: list[Row] = []
    builders: dict[str, Callable[[list[str]], Machine]] = {
        "word": Words,
        "substring": partial(Words, match="substring"),
    }
    for name, build in builders.items():
        many, few = (seconds(partial(build(some).spans, text), rounds) for some in (words, words[:50]))
        rows.append(row(f"5,000 words beside 50, {name}", many, few, "x 50", 3))
    return rows


def measure(quick: bool) -> list[Row]:
    """All rows."""
    rounds = 2 if quick else 5
    patterns = Side(any_of(PATTERNS), re.compile("|".join(f"(?:{one})" for one in PATTERNS)))
    banned = [f"{word}q" for word in vocabulary(5_000)]
    words = Side(Words(banned), re.compile(rf"\b(?:{'|'.join(banned)})\b", re.IGNORECASE))
    nested = Pattern("(a+)+$")
    return [
        *per_delta("a delta, 13 patterns", patterns, REPLY, rounds * 10),
        *per_delta("a delta, 5,000 words", words, REPLY // 5, rounds * 5),
        *megabyte("13 patterns", patterns, rounds),
        *megabyte("5,000 words", words, rounds),
        *near_misses(rounds),
        row("1 MB, (a+)+$ on near misses", seconds(lambda: nested.spans("a" * MEGABYTE + "!"), rounds), 0.0, "s", 0.5),
    ]


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Time the scanners of guards beside searching again and again.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: quicker, and coarser")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a figure misses its budget")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    rows = measure(options.quick)
    data = [{**asdict(one), "verdict": one.verdict} for one in rows]
    print(json.dumps(data, indent=2) if options.json else table(rows))
    return int(options.check and any(one.verdict in {"OVER", "UNDER"} for one in rows))


if __name__ == "__main__":
    sys.exit(main())
