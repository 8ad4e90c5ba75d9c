"""Tests that the audit image contains all compiled code that an audit calls: otherwise each Python worker
of each executor compiles it during its first audit, for a second or more a function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.unit.spark.conftest import Group

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import sys, pkgutil, importlib
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from epochmq_spark import decode
from epochmq_spark.decode import precompile
from tests.unit.spark import inprocess

precompile.main()

def compiled():
    names = [f"{decode.__name__}.{one.name}" for one in pkgutil.iter_modules(decode.__path__)]
    modules = [importlib.import_module(name) for name in names]
    functions = {one for module in modules for one in vars(module).values() if isinstance(one, Dispatcher)}
    return {(one.py_func.__name__, signature) for one in functions for signature in one.signatures}

before = compiled()
for group in sys.argv[1:]:
    inprocess.run(inprocess.replicas_of(sorted(Path(group).glob("r*"))))
print(*(name for name, _ in sorted(compiled() - before, key=str)))
"""


@pytest.mark.filterwarnings("ignore")
def test_an_audit_compiles_nothing_that_the_image_lacks(group: Group, dledger_group: Group) -> None:
    """A process of its own: other tests compile functions for other types."""
    folders = [str(group(900)[0].parent), str(dledger_group(900)[0].parent)]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *folders], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
