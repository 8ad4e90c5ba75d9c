"""Runs seeds by hand.

python -m tests.simulation raft 17            one seed: its story, or the promise it breaks
python -m tests.simulation controllers 0 500  seeds 0 to 499
python -m tests.simulation every 0 3          seeds 0 to 2 of every kind, in one process
python -m tests.simulation mutations 400      every mistake, each on up to 400 seeds; remembers which found it
python -m tests.simulation mutations 400 cut  those whose name has "cut" in it
"""

from __future__ import annotations

import sys

from tests.simulation.campaign import KINDS, PROCESSES, report, sweep
from tests.simulation.clockwork import ViolationError
from tests.simulation.mutations import search


def main(arguments: list[str]) -> int:
    """Exit status 1 when a promise was broken, 2 when the arguments cannot be understood."""
    if len(arguments) in (2, 3) and arguments[0] == "mutations":
        found = search(int(arguments[1]), PROCESSES, *arguments[2:])
        missed = [mistake for mistake, seed in found.items() if seed is None]
        print(
            f"{len(found) - len(missed)} of {len(found)} found" + "".join(f"\n  not: {one}" for one in missed)
        )
        return 1 if missed else 0
    if len(arguments) == 3 and arguments[0] == "every":
        return sweep_every(range(int(arguments[1]), int(arguments[2])))
    if len(arguments) not in (2, 3) or arguments[0] not in KINDS:
        print(__doc__)
        return 2
    kind, first = arguments[0], int(arguments[1])
    if len(arguments) == 3:
        tally = sweep(kind, range(first, int(arguments[2])))
        print(f"{tally.seeds} seeds, {tally.steps} steps, {tally.counts}, {tally.seconds:.0f} s")
        print(f"failed: {sorted(tally.failed)}" if tally.failed else "no promise broken")
        return 1 if tally.failed else 0
    try:
        world = KINDS[kind].live(KINDS[kind].plan(first))
    except ViolationError:
        print(report(kind, first))
        return 1
    print("\n".join(world.history))
    return 0


def sweep_every(seeds: range) -> int:
    """Runs these seeds of every kind of world. Exit status 1 when a promise was broken."""
    tallies = {kind: sweep(kind, seeds, processes=1) for kind in KINDS}
    failed = {kind: min(tally.failed) for kind, tally in tallies.items() if tally.failed}
    for kind, seed in failed.items():
        print(report(kind, seed))
    print(
        f"{len(seeds)} seeds of {', '.join(KINDS)}: {'a promise broken' if failed else 'no promise broken'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
