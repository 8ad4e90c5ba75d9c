"""A release has the program, its chart and what is in its images; the same commit gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools import release
from tools.rooms import source_roots

ROOT = release.ROOT


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release as `make release` makes it, but without images."""
    to = tmp_path_factory.mktemp("release") / "new"
    command = [sys.executable, "-m", "tools.release", "--without-images", "--to", str(to)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return to


@pytest.mark.long
def test_the_wheel_has_every_module_and_command(released: Path) -> None:
    (wheel,) = released.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entries,) = (name for name in names if name.endswith("entry_points.txt"))
        commands = archive.read(entries).decode()
    for root in source_roots():
        for module in (ROOT / root).rglob("*.py"):
            assert str(module.relative_to(ROOT / root)) in names
    assert "epochmq = epochmq.main:main" in commands
    assert "kubectl-epochmq = epochmq.main:main" in commands
    units = {path.name for path in (ROOT / "systemd").iterdir()}
    assert units
    assert units == {Path(name).name for name in names if "/share/epochmq/systemd/" in name}


@pytest.mark.long
def test_the_source_distribution_has_what_the_tests_need(released: Path) -> None:
    (path,) = released.glob("epochmq-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "requirements.lock", "pyproject.toml", "LICENSE", "README.md"} <= names
    assert not [name for name in names if name.startswith((".git/", ".venv", ".cache", "build/"))]


def test_the_chart_is_packed_as_it_stands_in_the_tree(released: Path, tmp_path: Path) -> None:
    (path,) = released.glob("epochmq-operator-*.tgz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    packed = {one.relative_to(tmp_path): one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    there = release.CHART.parent
    assert packed == {
        one.relative_to(there): one.read_bytes() for one in release.CHART.rglob("*") if one.is_file()
    }


@pytest.mark.parametrize("name", release.BILLS)
def test_a_bill_of_materials_has_every_locked_package_with_its_checksums(released: Path, name: str) -> None:
    bill = json.loads((released / f"epochmq-{name}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "epochmq"
    lock = (ROOT / f"requirements-{name}.lock").read_text()
    locked = set(re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE))
    assert {(one["name"], one["version"]) for one in bill["components"]} == locked
    for one in bill["components"]:
        hashes = [each for reference in one["externalReferences"] for each in reference["hashes"]]
        assert hashes, one["name"]
        assert all(each["content"] in lock for each in hashes), one["name"]


def test_every_file_has_its_checksum(released: Path) -> None:
    lines = (released / release.SUMS).read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums.keys() == {path.name for path in released.iterdir()} - {release.SUMS}
    for name, digest in sums.items():
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest


@pytest.mark.soak
def test_the_same_commit_gives_the_same_bytes(released: Path, tmp_path: Path) -> None:
    release.make_release(tmp_path / "again")
    assert (tmp_path / "again" / release.SUMS).read_text() == (released / release.SUMS).read_text()


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.whl").touch()
    with pytest.raises(release.ReleaseError, match="is not empty; a release needs a new directory"):
        release.make_release(tmp_path)


def test_another_version_in_the_list_of_changes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = release.version()
    for name in ("pyproject.toml", "sidecar/epochmq_sidecar/openapi.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.0.9\n\n## 0.0.8\n", encoding="utf-8")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(release.ReleaseError, match=f"CHANGELOG.md.* is '0.0.9', expected '{wanted}'"):
        release.version()


def test_another_version_in_the_chart_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Chart.yaml").write_text("version: 0.0.9\nappVersion: '0.0.9'\n")
    monkeypatch.setattr(release, "CHART", tmp_path)
    with pytest.raises(release.ReleaseError, match=r"Chart.yaml version is '0.0.9', expected '"):
        release.version()
