"""Runs seeds by hand.

python -m tests.simulation.whole controlled --seeds 0-99              seeds 0 to 99
python -m tests.simulation.whole controlled --seeds 17 --story        one seed, with its story
python -m tests.simulation.whole controlled --seeds 0-3 --twice       each seed twice: the same run both times
python -m tests.simulation.whole mutations --seeds 0-99               every mistake, each up to the first seed
python -m tests.simulation.whole mutations --seeds 0-99 --only twin   those with "twin" in their names
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.whole import isolation
from tests.simulation.whole.mutations import MISTAKES
from tests.simulation.whole.scenarios import SCENARIOS, simulate

MODULE = "tests.simulation.whole"


def seeds_of(text: str) -> list[int]:
    """`7`, `0-99` or `1,5,9-12`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main(arguments: list[str]) -> int:
    """Exit status 1 when a promise was broken, or a seed gave two different runs."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("scenario", choices=[*sorted(SCENARIOS), "mutations"])
    parser.add_argument("--seeds", required=True, type=seeds_of)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args(arguments)
    isolation.run_fixed(MODULE, arguments)
    if given.scenario == "mutations":
        return search(given.seeds, given.processes, given.only)
    began_s = time.perf_counter()
    seeds = [seed for seed in given.seeds for _ in range(2 if given.twice else 1)]
    failed: list[int] = []
    digests: dict[int, set[int]] = {}
    counts: Counter[str] = Counter()
    virtual_s = 0.0
    for outcome in isolation.run_seeds(simulate(given.scenario), seeds, processes=given.processes):
        digests.setdefault(outcome.seed, set()).add(outcome.digest)
        counts.update(outcome.counts)
        virtual_s += outcome.virtual_s
        if given.story or outcome.failure:
            print("\n".join(outcome.story))
        if outcome.failure:
            failed.append(outcome.seed)
            print(f"seed {outcome.seed}: {outcome.failure}", flush=True)
    differing = [seed for seed, found in digests.items() if len(found) > 1]
    took_s = time.perf_counter() - began_s
    print(f"{len(seeds)} runs, {virtual_s:.0f} s of virtual time in {took_s:.1f} s, {dict(counts)}")
    if differing:
        print(f"runs of one seed differ: {differing}")
    print(f"failed: {sorted(set(failed))}" if failed else "no promise broken")
    return 1 if failed or differing else 0


def search(seeds: list[int], processes: int, only: str) -> int:
    """Searches for each mistake. Exit status 1 when one was not found."""
    missed = 0
    for mistake in MISTAKES:
        if only not in mistake.name:
            continue
        found = None
        runs = 0
        for outcome in isolation.run_seeds(
            simulate(mistake.scenario, mistake.mutations), seeds, processes=processes
        ):
            runs += 1
            if outcome.failure:
                found = outcome
                break
        missed += found is None
        shown = "not found" if found is None else found.failure.strip().splitlines()[-1][:300]
        print(f"{mistake.name}: {runs} seeds: {shown}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
