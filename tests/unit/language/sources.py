"""Reads the Python sources of the product and of the tests: their identifiers, their classes and their
prose."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

from tools.rooms import source_roots

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = source_roots()
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
IDENTIFIER_FIELDS = frozenset({"id", "attr", "arg", "name", "asname", "module", "rest"})
"""The fields of syntax tree nodes that have identifiers."""


@cache
def source_files(*folders: str) -> tuple[Path, ...]:
    """The Python files below the folders, as paths from the root of the project."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return tuple(sorted(path.relative_to(ROOT) for path in found))


@cache
def text_of(path: Path) -> str:
    """The text of a file."""
    return (ROOT / path).read_text()


@cache
def _names_of(path: Path) -> tuple[frozenset[str], tuple[str, ...]]:
    """The identifiers and the classes of a source file. Its syntax tree is not kept: those of all files take
    half a gigabyte, which each garbage collection of the tests after these would walk through."""
    identifiers: set[str] = set()
    classes: list[str] = []
    for node in ast.walk(ast.parse(text_of(path), str(path))):
        if isinstance(node, ast.ClassDef):
            classes.append(node.name)
        for field, value in vars(node).items():
            if field in IDENTIFIER_FIELDS and isinstance(value, str):
                identifiers.update(IDENTIFIER.findall(value))
    return frozenset(identifiers), tuple(classes)


def identifiers_of(path: Path) -> frozenset[str]:
    """Every identifier in a source file: names, attributes, arguments, and the parts of imported modules."""
    return _names_of(path)[0]


def classes_of(path: Path) -> tuple[str, ...]:
    """The names of the classes that a source file defines at any level."""
    return _names_of(path)[1]


@cache
def prose_of(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, text without code in backticks) of every comment, docstring and other text with more than one
    word in a source file."""
    found: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string.strip()):
            found.append((token.start[0], without_code(token.string)))
    return tuple(found)


@cache
def prose_of_document(path: Path) -> str:
    """The text of a document without code in backticks."""
    return without_code(text_of(path))


def without_code(text: str) -> str:
    """A text without code in backticks."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S) if "`" in text else text


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A compiled glob, in which `**` also matches slashes."""
    pattern = re.escape(glob).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return re.compile(pattern + r"\Z")


def in_scope(path: Path, scope: str) -> bool:
    """Whether a path matches a scope: globs separated by commas, of which those after `!` exclude."""
    name = path.as_posix()
    globs = [glob.strip() for glob in scope.split(",")]
    if any(glob_pattern(glob[1:]).match(name) for glob in globs if glob.startswith("!")):
        return False
    return any(glob_pattern(glob).match(name) for glob in globs if not glob.startswith("!"))
