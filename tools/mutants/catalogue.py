"""Lists where cosmic-ray can change the code of the packages, and draws mutants from that list with a
seed."""

from __future__ import annotations

import ast
import difflib
import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tools.mutants.packages import ROOT, MutatedPackage, package_files

REMOVE_CALL: Final = "epochmq/RemoveCallStatement"
"""An operator that cosmic-ray does not have: replaces a statement that is only a call by `pass`."""

NUMBERS: Final = "core/NumberReplacer"
SAME_IN_PRACTICE: Final = ("_Is_Eq", "_Eq_Is", "_IsNot_NotEq", "_NotEq_IsNot")
"""Operators whose result differs only for types that redefine equality."""

LOGGERS: Final = ("log", "_log", "logger")
Position = tuple[int, int]  # line from 1, column from 0
SourceSpan = tuple[Position, Position]
MutationSite = tuple[str, Position]


@dataclass(frozen=True)
class Mutant:
    """One change of one module. `before` and `after` are the changed lines, stripped. `lines` are the first
    and the last line of the statement, or of its head if it has a body; numbers start at 1."""

    package: str
    path: str
    line: int
    lines: tuple[int, int]
    function: str
    operator: str
    occurrence: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """Identifies the mutant independently of its line number."""
        text = "\0".join((self.path, self.function, self.operator, self.before, self.after))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """The mutant as plain data, for the report."""
        return asdict(self)


class MutatedModule:
    """One parsed module."""

    def __init__(self, package: MutatedPackage, path: Path, root: Path = ROOT) -> None:
        self.package = package
        self.path = path
        self.source = (root / path).read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)
        self._left_out = list(_left_out(self.tree))
        self._constants = [_span(node) for node in _constants(self.tree)]
        self._statements = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]

    @property
    def dotted_name(self) -> str:
        """Its name in imports."""
        return ".".join(self.path.with_suffix("").parts[1:])

    def sites(self, operators: dict[str, Any]) -> dict[MutationSite, list[tuple[str, int]]]:
        """All mutations, by position: (operator, occurrence)."""
        found: dict[MutationSite, list[tuple[str, int]]] = defaultdict(list)
        nodes = list(ast_nodes(get_ast(self.source)))
        for name, operator in operators.items():
            positions = (position for node in nodes for position in operator.mutation_positions(node))
            for occurrence, (start, _) in enumerate(positions):
                if self._counts(name, start):
                    found[str(self.path), start].append((name, occurrence))
        for occurrence, statement in enumerate(_calls(self.tree)):
            start = (statement.lineno, statement.col_offset)
            found[str(self.path), start].append((REMOVE_CALL, occurrence))
        return found

    def lot(self, at: Position, seed: int) -> str:
        """A position's lot in the draw with this seed: 64 hexadecimal digits."""
        lines = self.source.splitlines()
        line = lines[at[0] - 1]
        same = lines[: at[0] - 1].count(line)
        text = "\0".join((str(seed), str(self.path), line, str(same), str(at[1])))
        return hashlib.sha256(text.encode()).hexdigest()

    def _counts(self, operator: str, at: Position) -> bool:
        if operator == NUMBERS and any(start <= at < end for start, end in self._constants):
            return False
        return not any(start <= at < end for start, end in self._left_out)

    def code(self, operator: str, occurrence: int) -> str | None:
        """The text of the module with this mutation; None if there is no such mutation."""
        if operator == REMOVE_CALL:
            return _without_call(self.source, list(_calls(self.tree))[occurrence])
        changed: str | None = mutate_code(self.source, get_operator(operator)(), occurrence)
        return changed

    def mutant(self, operator: str, occurrence: int, at: Position) -> Mutant | None:
        """The mutant; None if the change has no effect on the syntax tree, or is not valid Python."""
        changed = self.code(operator, occurrence)
        if changed is None:
            return None
        try:
            if ast.dump(ast.parse(changed)) == ast.dump(self.tree):
                return None
        except SyntaxError:
            return None
        before, after = _changed_lines(self.source, changed)
        return Mutant(
            package=self.package.name,
            path=str(self.path),
            line=at[0],
            lines=self._statement_lines(at[0]),
            function=self._function(at[0]),
            operator=operator,
            occurrence=occurrence,
            before=before,
            after=after,
        )

    def _statement_lines(self, line: int) -> tuple[int, int]:
        best = (line, line)
        size = len(self.source)
        for node in self._statements:
            start, end = node.lineno, _head_end(node)
            if start <= line <= end and end - start < size:
                best, size = (start, end), end - start
        return best

    def _function(self, line: int) -> str:
        names = []
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first <= line <= (node.end_lineno or first):
                    names.append((first, node.name))
        return ".".join(name for _, name in sorted(names))


def _span(node: ast.AST) -> SourceSpan:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def _left_out(tree: ast.AST) -> Iterator[SourceSpan]:
    """Code without effect at run time: annotations, type aliases, class options such as `frozen`, branches
    for the type checker, arguments of log lines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation is not None:
            yield _span(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield _span(node.returns)
        elif _is_log(node) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield _span(node)
        elif isinstance(node, ast.ClassDef):
            options = [
                one for call in node.decorator_list if isinstance(call, ast.Call) for one in call.keywords
            ]
            yield from (_span(keyword.value) for keyword in (*node.keywords, *options))
        elif isinstance(node, ast.Assign) and _is_union(node.value):
            yield _span(node.value)


def _is_union(node: ast.expr) -> bool:
    """Whether it looks like a type alias: names joined by `|`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return all(
            isinstance(one, (ast.Name, ast.Attribute)) or _is_union(one) for one in (node.left, node.right)
        )
    return False


def _constants(tree: ast.AST) -> Iterator[ast.stmt]:
    """Assignments in modules and classes. Their numbers are not mutated: a limit or a default could be any
    number, and its uses are mutated."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef)):
            yield from (one for one in node.body if isinstance(one, (ast.Assign, ast.AnnAssign)))


def _is_log(node: ast.AST) -> bool:
    """Whether the node is a call of a logger."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    while isinstance(function, ast.Attribute):
        if function.attr in LOGGERS:
            return True
        function = function.value
    return isinstance(function, ast.Name) and function.id in LOGGERS


def _calls(tree: ast.AST) -> Iterator[ast.Expr]:
    """Statements that are only a call or an awaited call, in the order of `ast.walk`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            value = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(value, ast.Call) and not _is_log(value):
                yield node


def _head_end(node: ast.stmt) -> int:
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        return max(node.lineno, body[0].lineno - 1)
    return node.end_lineno or node.lineno


def _without_call(source: str, statement: ast.Expr) -> str:
    lines = source.encode().splitlines(keepends=True)
    assert statement.end_lineno is not None
    head = lines[statement.lineno - 1][: statement.col_offset]
    tail = lines[statement.end_lineno - 1][statement.end_col_offset :]
    kept = [*lines[: statement.lineno - 1], head + b"pass" + tail, *lines[statement.end_lineno :]]
    return b"".join(kept).decode()


def _changed_lines(before: str, after: str) -> tuple[str, str]:
    old, new = before.splitlines(), after.splitlines()
    gone: list[str] = []
    come: list[str] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            gone += [line.strip() for line in old[a:b]]
            come += [line.strip() for line in new[c:d]]
    return " ".join(filter(None, gone)), " ".join(filter(None, come))


def operators() -> dict[str, Any]:
    """cosmic-ray's operators without arguments, except those that make no difference in practice."""
    found = {}
    for name in operator_names():
        kind = get_operator(name)
        if not kind.arguments() and not name.endswith(SAME_IN_PRACTICE):
            found[name] = kind()
    return found


def draw(
    packages: list[MutatedPackage], count: int, seed: int, root: Path = ROOT
) -> tuple[list[Mutant], int]:
    """Draws `count` mutants at different positions, and returns the number of positions, too. All positions
    of the packages are equally likely, however many operators apply to them. The draw of a position depends
    on its line's text, not on other code: a change of the code replaces few mutants."""
    modules = {
        str(path): MutatedModule(package, path, root)
        for package in packages
        for path in package_files(package, root)
    }
    lots: dict[MutationSite, str] = {}
    choices: dict[MutationSite, list[tuple[str, int]]] = {}
    known = operators()
    for module in modules.values():
        found = module.sites(known)
        choices |= found
        lots |= {site: module.lot(site[1], seed) for site in found}
    chosen: list[Mutant] = []
    for site in sorted(lots, key=lambda one: lots[one]):
        if len(chosen) == count:
            break
        mutations = sorted(choices[site])
        random.Random(lots[site]).shuffle(mutations)
        made = (modules[site[0]].mutant(*one, site[1]) for one in mutations)
        mutant = next((one for one in made if one is not None), None)
        if mutant is not None:
            chosen.append(mutant)
    return chosen, len(lots)
