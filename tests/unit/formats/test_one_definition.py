"""Every layout and every reserved name has one definition in the product.

The tests read the sources with `ast`. A format of one number, such as `>q`, is no layout. Formats of equal
shape that belong to different layouts are listed with their reason, and so are words that are no reserved
names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest

from epochmq_protocol import message_const, topics
from tools.rooms import product_modules

STRUCT_CALLS: Final = {"Struct", "pack", "unpack", "pack_into", "unpack_from", "iter_unpack", "calcsize"}
NUMBER: Final = re.compile(r"[@=<>!]?[a-zA-Z?]")
SAME_SHAPE: Final = {
    ">iq": {
        "epochmq_protocol.epoch_entries": "an epoch entry in a handshake",
        "epochmq_protocol.ha_frames": "an acknowledgement of a replica",
    },
    ">II": {
        "epochmq_protocol.transport.connection": "the lengths of a frame and of its header, received",
        "epochmq_broker.requests.fast_handler": "the same lengths, sent",
    },
}
NO_NAMES: Final = {
    ("epochmq_broker.tables.attributes", "DELAY"): "a type of messages (TopicMessageType)",
    ("epochmq_operator.resources.entities", "DELAY"): "a type of messages (TopicMessageType)",
    ("epochmq.console.topic_pages", "DELAY"): "a type of messages (TopicMessageType)",
}
DEFINITIONS: Final = ("epochmq_protocol.message_const", "epochmq_protocol.topics")
MAGIC_NUMBERS: Final = {
    abs(number & mask)
    for number in (message_const.MAGIC_V1, message_const.MAGIC_V2, message_const.BLANK_MAGIC)
    for mask in (-1, 0xFFFFFFFF)
}


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in product_modules().items()}


def struct_formats(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in STRUCT_CALLS and isinstance(node.args[0].value, str):
                yield node.args[0].value


def texts(tree: ast.AST) -> Iterator[str]:
    """The literals of a module that are not docstrings, with bytes as text."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode("latin-1")


def reserved_names() -> set[str]:
    """Names of properties, of the system's topics, and their prefixes."""
    names = {
        value
        for module in (message_const, topics)
        for name, value in vars(module).items()
        if isinstance(value, str) and name.isupper() and len(value) > 2
    }
    return names | {"rmq_sys_wheel_timer"}


def test_no_format_of_a_struct_stands_twice() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for form in struct_formats(tree):
            if not NUMBER.fullmatch(form):
                modules[form].append(module)
    twice = {form: sorted(places) for form, places in modules.items() if len(places) > 1}
    assert twice == {form: sorted(reasons) for form, reasons in SAME_SHAPE.items()}


def test_the_structs_of_files_are_made_by_the_formats() -> None:
    """Of the packages that read and write files, none spells out a struct of several fields, apart from a
    table in memory and a struct of the kernel."""
    users = ("epochmq_store", "epochmq_dledger", "epochmq_spark", "epochmq_broker")
    found = {
        (module, form)
        for module, tree in trees().items()
        if module.startswith(users)
        for form in struct_formats(tree)
        if not NUMBER.fullmatch(form)
    }
    assert found == {
        ("epochmq_broker.services.compaction.newest_offsets", ">16sq"),
        ("epochmq_broker.requests.fast_handler", ">II"),
        ("epochmq_spark.store_lock", "hhqqi4x"),
    }


def test_no_reserved_name_is_a_literal_outside_its_definition() -> None:
    names = reserved_names()
    stored = re.compile("|".join(rf"(?:^|\x02){re.escape(name)}\x01" for name in sorted(names)))
    literals = {
        (module, text)
        for module, tree in trees().items()
        if module not in DEFINITIONS
        for text in texts(tree)
        if text in names or stored.search(text)
    }
    assert literals == set(NO_NAMES)


def test_no_name_is_defined_twice() -> None:
    for module in DEFINITIONS:
        values = [text for text in texts(trees()[module]) if len(text) > 2]
        twice = {text for text in values if values.count(text) > 1}
        assert not twice & reserved_names()


def test_the_magic_numbers_of_records_are_numbers_in_one_module_only() -> None:
    places = {
        module
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value in MAGIC_NUMBERS
    }
    assert places == {"epochmq_protocol.message_const"}


def test_compiled_code_has_plain_numbers() -> None:
    """numba takes a global as a constant if it is an int."""
    pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")
    from epochmq_spark.decode import walk

    for name in ("V1", "V2", "BLANK", "SIZE_MIN", "PHYSICAL_OFFSET_AT", "ENTRY_POSITION_AT", "HEAD_BYTES"):
        assert type(getattr(walk, name)) is int
