"""Runs rounds of volume faults: `python -m tests.integration.volumes MODE ROUNDS [--seed N] [--threads]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.volumes.modes import (
    ActingVolumes,
    ControlledVolumes,
    DLedgerVolumes,
    VolumeGroup,
)
from tests.integration.volumes.rounds import VolumeRounds
from tests.integration.volumes.traffic import JavaTraffic, ThreadTraffic, Traffic

MODES: dict[str, Callable[[Path], VolumeGroup]] = {
    "controllers": ControlledVolumes,
    "dledger": DLedgerVolumes,
    "acting": ActingVolumes,
}


def main() -> int:
    """The exit status is 1 when a round failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.volumes", description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kind", action="append", help="only faults whose names contain this")
    parser.add_argument("--threads", action="store_true", help="without Java")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="epochmq-volumes-"))
    print(f"seed {options.seed}, in {folder}", flush=True)
    group = MODES[options.mode](folder)
    seed = options.seed

    def traffic(made: VolumeGroup) -> Traffic:
        return ThreadTraffic(made, seed) if options.threads else JavaTraffic(made)

    with VolumeRounds(group, traffic, seed) as rounds:
        kinds = rounds.draw(options.rounds * (20 if options.kind else 1))
        if options.kind:
            kinds = [one for one in kinds if any(part in one for part in options.kind)][: options.rounds]
        rounds.run(kinds)
    return 0 if all(one.passed for one in rounds.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
