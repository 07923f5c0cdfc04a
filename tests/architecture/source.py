"""The package as text: what the architecture tests read."""

import ast
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.conftest import ROOT

SRC = ROOT / "src"
PACKAGE = SRC / "pretune"


def files() -> list[Path]:
    """Every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def parse(source: str) -> ast.Module:
    """The syntax tree of a source text, parsed once: several tests walk over the whole package."""
    return ast.parse(source)


@functools.cache
def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a syntax tree, listed once."""
    return tuple(ast.walk(tree))


def name_of(file: Path) -> str:
    """A file's path below src/, for messages and test ids."""
    return str(file.relative_to(SRC))


def violations_of(law: Callable[[Path], list[str]], among: Iterable[Path] | None = None) -> list[str]:
    """All violations of a law, each with its file."""
    return [f"{name_of(file)}: {fault}" for file in (files() if among is None else among) for fault in law(file)]


def folder_of(file: Path) -> str:
    """The stage a file belongs to; '' for the files right inside the package."""
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every imported name with its line, wherever the import stands: `from a import b` gives 'a.b'."""
    for node in walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the string nodes that stand alone: docstrings of modules, classes, functions and values."""
    return {
        id(node.value)
        for node in walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
