"""Implements `epochmq upgrade-log`, which makes plain commit logs the old parts of DLedger logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epochmq.exits import ExitCode, UsageError, print_error

if TYPE_CHECKING:
    from epochmq_broker.config.broker_config import BrokerConfig
    from epochmq_broker.membership.dledger.plain_log import PlainLog


def run(files: Sequence[Path], *, dry_run: bool, undo: bool) -> int:
    """Upgrades the directories of the brokers with these configuration files, or undoes that. Nothing changes
    unless all of them can be upgraded."""
    if dry_run and undo:
        raise UsageError("--dry-run with --undo: expected only one of them")
    configs = [_load(path) for path in files]
    try:
        return _undo(configs) if undo else _upgrade(configs, dry_run=dry_run)
    except OSError as error:
        print_error(f"{error.filename or configs[0].root_dir}: {error.strerror or error}")
        return ExitCode.FAILED


def _load(path: Path) -> BrokerConfig:
    from epochmq_broker.config.broker_config import load_broker_config

    if not path.is_file():
        raise UsageError(f"{path} is no file, expected the configuration of a broker (broker.conf)")
    config = load_broker_config(str(path)).config
    if not config.enable_dledger_commit_log:
        raise UsageError(
            f"{path}: enableDLegerCommitLog is false, expected the configuration with which the broker "
            "starts after the upgrade"
        )
    return config


def _upgrade(configs: Sequence[BrokerConfig], *, dry_run: bool) -> int:
    from epochmq_broker.membership.dledger.log_upgrade import upgrade
    from epochmq_broker.membership.dledger.plain_log import check_equal, inspect
    from epochmq_broker.tables.broker_tables import BrokerTables

    found = [(config, plain) for config in configs if (plain := _inspected(config, inspect)) is not None]
    if found:
        check_equal([plain for _, plain in found])
    for config, plain in found:
        print(_describe(plain))
        if dry_run:
            for step in _steps(config, plain):
                print(f"  would {step}")
            continue
        tables = BrokerTables(config, lambda: 0)
        tables.files.load()
        upgrade(config, is_batch_topic=tables.topics.is_batch_cq, on_step=_print_step)
    return ExitCode.OK


def _inspected(config: BrokerConfig, inspect: Callable[[BrokerConfig], PlainLog | None]) -> PlainLog | None:
    found = inspect(config)
    if found is None:
        print(
            f"{config.root_dir}: nothing to do: there is no plain commit log, or the DLedger log has entries"
        )
    return found


def _describe(plain: PlainLog) -> str:
    epoch = f", in epoch {plain.epochs[-1].epoch}" if plain.epochs else ""
    return (
        f"{plain.root}: the plain commit log has {plain.files} files from {plain.begin} on and ends at "
        f"{plain.last.end}{epoch}; checksum of the last file: {plain.last.checksum:08x}"
    )


def _steps(config: BrokerConfig, plain: PlainLog) -> list[str]:
    from epochmq_broker.membership.dledger.log_folders import data_folder

    steps = []
    if plain.was_killed:
        steps.append("recover the log first: the broker did not stop cleanly")
    if not plain.last.is_closed:
        steps.append(f"close {plain.last.path} with a blank record")
    steps.append(f"create {data_folder(config)}/{plain.divided_offset:020d}, where the DLedger log begins")
    return steps


def _undo(configs: Sequence[BrokerConfig]) -> int:
    from epochmq_broker.membership.dledger.log_upgrade import undo

    for config in configs:
        print(f"{config.root_dir}:")
        if not undo(config, on_step=_print_step):
            print("  nothing to do")
    return ExitCode.OK


def _print_step(text: str) -> None:
    print(f"  {text}", flush=True)
