"""Registries: literal tables `name -> "module:attribute"`, resolved on first use.

Listing and describing import nothing heavy, so the command line lists entries without loading torch:

    FAMILIES: Registry[Family] = Registry("family", {"bert": "pretune.models.families.bert:BERT"})
    FAMILIES.list_names()       # ['bert']
    FAMILIES.describe("bert")   # the first line of the entry's docstring, read from the source
    FAMILIES.get("bert")        # imports the module

There is no registration by import side effect: only entries of the table exist.
"""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from pretune.core.errors import UsageError, suggest

T = TypeVar("T")
MAX_LISTED_NAMES = 40
"""Maximum number of names listed in an error."""


class Registry(Generic[T]):
    """Named, ordered, lazily imported table of interchangeable entries; `noun` is the word for one entry."""

    def __init__(self, noun: str, table: Mapping[str, str]) -> None:
        for name, target in table.items():
            module, _, attribute = target.partition(":")
            if not module or not attribute.isidentifier():
                raise ValueError(f"{noun} '{name}': expected 'module:attribute', found '{target}'")
        self.noun = noun
        self._table = MappingProxyType(dict(table))
        self._cache: dict[str, T] = {}

    @property
    def table(self) -> Mapping[str, str]:
        """The read-only table."""
        return self._table

    def list_names(self) -> list[str]:
        """Return all names, in the order of the table."""
        return list(self._table)

    def get(self, name: str) -> T:
        """Return the entry, imported on first use."""
        if name not in self._cache:
            module, attribute = self._split(name)
            self._cache[name] = cast(T, getattr(importlib.import_module(module), attribute))
        return self._cache[name]

    def describe(self, name: str) -> str:
        """Return the first line of the docstring of the entry or else of its module, without importing it."""
        module, attribute = self._split(name)
        module_spec = importlib.util.find_spec(
            module
        )  # NOTE: imports the parent packages, whose __init__ files are light
        if module_spec is None or module_spec.origin is None:
            raise ModuleNotFoundError(f"{self.noun} '{name}': no module '{module}'")
        tree = ast.parse(Path(module_spec.origin).read_bytes())
        text = _find_docstring(tree, attribute) or ast.get_docstring(tree) or ""
        return text.partition("\n")[0].strip()

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"Registry('{self.noun}', {len(self)} entries)"

    def _split(self, name: str) -> tuple[str, str]:
        if name not in self._table:
            hint = f"known: {', '.join(self._table) or 'none'}"
            if len(self._table) > MAX_LISTED_NAMES:
                hint = f"`pretune list {self.noun}s` shows all {len(self._table)}"
            raise UsageError(f"unknown {self.noun} '{name}'{suggest(str(name), self._table)} ({hint})")
        module, _, attribute = self._table[name].partition(":")
        return module, attribute


def _find_docstring(tree: ast.Module, attribute: str) -> str | None:
    """Return the docstring of a top-level class, function, or assignment followed by a string."""
    for node, next_node in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name == attribute:
                    return ast.get_docstring(node)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name == attribute:
                    return _get_string(next_node)
    return None


def _get_string(node: Any) -> str | None:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
    return None
