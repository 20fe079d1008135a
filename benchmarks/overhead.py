"""What middlechain costs beside a bare loop: `python benchmarks/overhead.py [--quick] [--check] [--json]`.

Each workload (`workloads.py`) runs on middlechain (`ours.py`) and on `Bare`, a hand-written loop (`bare.py`), in one
process and in turn, with models that answer at once. The table gives the median of either side and the median of the
rounds' ratios: microseconds are those of this machine, the ratios carry over. Times are processor time, which other
processes disturb less, but for W3, which waits, and W6, which is processes of its own. The budgets are in `README.md`
beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from samples import Row
from workloads import measure


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    lines = [f"{'workload':<37}{'ours':>11}{'bare':>11} {'in':<8}{'figure':<22}{'budget':>7}"]
    for one in rows:
        figure = f"{one.figure:.2f} {one.unit}"
        budget = "" if one.budget is None else f"{'>= ' if one.floor else ''}{one.budget:g}"
        sides = f"{one.workload:<37}{one.ours:>11.3f}{one.bare:>11.3f} {one.measure:<8}"
        lines.append(f"{sides}{figure:<22}{budget:>7}  {one.verdict}".rstrip())
    return "\n".join(lines)


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Time middlechain beside a bare loop.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds: quicker, and coarser")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a figure misses its budget")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.quick))
    data = [{**asdict(one), "verdict": one.verdict} for one in rows]
    print(json.dumps(data, indent=2) if options.json else table(rows))
    return int(options.check and any(one.verdict in {"OVER", "UNDER"} for one in rows))


if __name__ == "__main__":
    sys.exit(main())
