"""W6: `import middlechain` as a whole process, beside one that imports what a bare loop needs."""

from __future__ import annotations

import subprocess
import sys
import time

from samples import Row, Sample, row

OURS, BARE = "import middlechain", "import asyncio, json, dataclasses"


def process(code: str) -> float:
    """The microseconds of a Python process that runs the code, from its start to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - start) * 1e6


def imports(rounds: int) -> Row:
    """The row of W6."""
    samples: list[Sample] = []
    for number in range(rounds + 1):
        first = process(BARE) if number % 2 else 0.0
        mine = process(OURS)
        theirs = first or process(BARE)
        if number:  # the first round reads the disk
            samples.append((mine, theirs))
    return row("W6 import, a whole process", samples, 2.2)
