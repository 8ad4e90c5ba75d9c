"""docs/hosts.md and the units in systemd/ agree, and systemd takes the units."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epochmq_broker.config.broker_config import from_properties
from tests.support.hosts import PAGE, PROGRAM, UNITS, config_files, unit_settings

NAMES = sorted(path.name for path in UNITS.iterdir())
SERVICES = {"namesrv.conf": "epochmq-nameserver.service", "broker.conf": "epochmq-broker.service"}


def settings(name: str) -> dict[str, str]:
    """Key → value of a file that the page shows."""
    return dict(line.split("=", 1) for line in config_files()[name].splitlines() if not line.startswith("#"))


def test_every_unit_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert NAMES == ["epochmq-admin@.service", "epochmq-broker.service", "epochmq-nameserver.service"]
    for name in NAMES:
        assert name.removesuffix(".service") in text


def test_every_file_that_a_unit_reads_is_on_the_page() -> None:
    for name in NAMES:
        config = unit_settings(name)["ExecStart"].rpartition("--config /etc/epochmq/")[2]
        for instance in ("broker", "nameserver") if "%i" in config else ("",):
            assert config.replace("%i", instance) in config_files()


@pytest.mark.parametrize("name", SERVICES)
def test_a_process_writes_only_where_its_unit_lets_it(name: str) -> None:
    unit = unit_settings(SERVICES[name])
    state, run = f"/var/lib/{unit['StateDirectory']}", f"/run/{unit['RuntimeDirectory']}"
    paths = {key: value for key, value in settings(name).items() if value.startswith("/")}
    assert paths.pop("memberSecretPath").startswith("/etc/epochmq/")
    assert paths.pop("adminSocketPath") == f"{run}/admin.sock"
    assert f"--socket {run}/admin.sock " in unit["ExecStop"]
    for key, path in paths.items():
        assert f"{path}/".startswith(f"{state}/"), (key, path)


def test_a_sidecar_asks_the_process_of_its_unit() -> None:
    for name, config in (("broker", "broker.conf"), ("nameserver", "namesrv.conf")):
        assert settings(f"admin-{name}.conf")["adminSocketPath"] == settings(config)["adminSocketPath"]


def test_the_broker_configuration_is_valid() -> None:
    loaded = from_properties(settings("broker.conf"))
    assert (loaded.config.min_in_sync_replicas, loaded.warnings, loaded.without_effect) == (2, (), {})


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("missing: systemd-analyze (systemd)")
    paths = []
    for name in NAMES:
        path = tmp_path / name.replace("@.", "@broker.")
        # A unit whose program is not installed is refused.
        path.write_text((UNITS / name).read_text(encoding="utf-8").replace(PROGRAM, sys.executable))
        paths.append(str(path))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "epochmq" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr
