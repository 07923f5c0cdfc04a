"""Registries: one literal table `name -> "module:attribute"`, resolved only when an entry is asked for.

Listing and describing import nothing heavy, so the command line can show what there is without loading torch:

    FAMILIES: Registry[Family] = Registry("family", {"bert": "pretune.models.families.bert:BERT"})
    FAMILIES.names()            # ['bert']
    FAMILIES.describe("bert")   # the first line of the entry's docstring, read from the source
    FAMILIES.get("bert")        # imports the module

There is no registration by import side effect: what is not in the table does not exist.
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
"""So many names are listed in an error."""


class Registry(Generic[T]):
    """A named, ordered, lazily resolved table of interchangeable things; `noun` is the word for one entry."""

    def __init__(self, noun: str, table: Mapping[str, str]) -> None:
        for name, target in table.items():
            module, _, attribute = target.partition(":")
            if not module or not attribute.isidentifier():
                raise ValueError(f"{noun} '{name}': expected 'module:attribute', found '{target}'")
        self.noun = noun
        self._table = MappingProxyType(dict(table))
        self._resolved: dict[str, T] = {}

    @property
    def table(self) -> Mapping[str, str]:
        """The table itself, read-only."""
        return self._table

    def list_names(self) -> list[str]:
        """All names, in the order of the table."""
        return list(self._table)

    def get(self, name: str) -> T:
        """The entry, imported on first use."""
        if name not in self._resolved:
            module, attribute = self._split(name)
            self._resolved[name] = cast(T, getattr(importlib.import_module(module), attribute))
        return self._resolved[name]

    def describe(self, name: str) -> str:
        """The first line of the entry's docstring, else of its module's, read from the source without importing it."""
        module, attribute = self._split(name)
        found = importlib.util.find_spec(module)  # NOTE: imports the parent packages, whose __init__ files are light
        if found is None or found.origin is None:
            raise ModuleNotFoundError(f"{self.noun} '{name}': no module '{module}'")
        tree = ast.parse(Path(found.origin).read_bytes())
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
            known = f"known: {', '.join(self._table) or 'none'}"
            if len(self._table) > MAX_LISTED_NAMES:
                known = f"`pretune list {self.noun}s` shows all {len(self._table)}"
            raise UsageError(f"unknown {self.noun} '{name}'{suggest(str(name), self._table)} ({known})")
        module, _, attribute = self._table[name].partition(":")
        return module, attribute


def _find_docstring(tree: ast.Module, attribute: str) -> str | None:
    """The docstring of a class, a function, or an assignment followed by a string, at the top level of a module."""
    for here, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match here:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name == attribute:
                    return ast.get_docstring(here)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name == attribute:
                    return _get_string(after)
    return None


def _get_string(node: Any) -> str | None:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
    return None
