"""The check of pure modules follows imports: I/O that a pure module reaches through another one is found."""

from __future__ import annotations

import pytest

from tools import purity

PURE = {"p.pure", "p.values"}
SOURCES = {
    "p": "",
    "p.values": "import struct\n",
    "p.driver": "import os\n",
    "p.heavy": "from p import driver\n",
    "p.heavy.part": "import struct\n",
}


def faults(source: str, pure: set[str] | None = None, **more: str) -> list[tuple[int, str]]:
    sources = SOURCES | {"p.pure": source} | {name.replace("__", "."): text for name, text in more.items()}
    return purity.faults_of("p.pure", sources, pure or PURE)


def test_a_pure_module_may_import_the_standard_library_and_pure_modules() -> None:
    assert faults("import struct\nfrom p import values\nfrom p.values import NAME\nimport p.values\n") == []


def test_an_import_for_io_is_a_fault_wherever_it_stands() -> None:
    assert faults("import os.path\n") == [(1, "a pure module imports os.path")]
    assert faults("def read() -> None:\n    from pathlib import Path\n") == [
        (2, "a pure module imports pathlib")
    ]


def test_an_import_of_a_module_that_is_not_pure_is_a_fault() -> None:
    expected = [(2, "a pure module imports p.driver, which is not pure")]
    assert faults("import struct\nfrom p.driver import read\n") == expected
    assert faults("import struct\nfrom p import driver\n") == expected


def test_the_packages_around_an_imported_module_count() -> None:
    [(line, fault)] = faults("from p.heavy.part import name\n", PURE | {"p.heavy.part"})
    assert (line, fault.split(" around ")[0]) == (1, "the package p.heavy")
    [(line, fault)] = faults("import struct\n", p="from p import driver\n")
    assert (line, fault.split(" around ")[0]) == (1, "the package p")


def test_imports_for_type_checking_do_not_count() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import os
    from p.driver import Reader
else:
    import socket
"""
    assert faults(source) == [(7, "a pure module imports socket")]


@pytest.mark.long
def test_every_pure_module_of_the_product_is_pure() -> None:
    assert purity.main() == 0
