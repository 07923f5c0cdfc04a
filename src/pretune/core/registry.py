"""Registries: literal tables `name -> "module:attribute"`, resolved on first use.

Listing and describing import nothing heavy, so the command line lists entries without loading torch:

    FAMILIES: Registry[Family] = Registry("family", {"bert": "pretune.models.families.bert:BERT"})
    FAMILIES.list_names()       # ['bert']
    FAMILIES.describe("bert")   # the first line of the entry's docstring, read from the source
    FAMILIES.get("bert")        # imports the module

There is no registration by import side effect. Beside the table there are only entries that somebody chose: those of
installed packages, by the entry points of the registry's group, and those of `register`. Names in a config select
entries; they cannot name code. Entry points are read when a name is not in the table, or when names are listed.
"""

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from pretune.core.errors import UsageError, suggest

T = TypeVar("T")
MAX_LISTED_NAMES = 40
"""Maximum number of names listed in an error."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""Names of entries: `,` and `+` separate names on the command line."""


class Registry(Generic[T]):
    """Named, ordered, lazily imported table of interchangeable entries; `noun` is the word for one entry.

    `group` is the group of entry points by which installed packages add entries; `list_reserved` returns further names
    that they may not have.
    """

    def __init__(
        self,
        noun: str,
        table: Mapping[str, str],
        *,
        group: str | None = None,
        list_reserved: Callable[[], Collection[str]] = tuple,
    ) -> None:
        for name, target in table.items():
            _check_target(target, f"{noun} '{name}'", ValueError)
        self.noun = noun
        self.group = group
        self.table: Mapping[str, str] = MappingProxyType(dict(table))
        """The read-only table of the entries that are built in."""
        self._list_reserved = list_reserved
        self._packages: dict[str, str] | None = None
        self._registered: dict[str, str | T] = {}
        self._cache: dict[str, T] = {}

    def register(self, name: str, target: "str | T") -> None:
        """Add an entry to this process: an object, or "module:attribute", which is imported on first use."""
        if isinstance(target, str):
            _check_target(target, f"{self.noun} '{name}'", UsageError)
        self._refuse_taken(name, target, self._read_packages())
        self._registered[name] = target
        self._cache.pop(name, None)

    def list_names(self) -> list[str]:
        """Return all names: those of the table in its order, then those of packages and of `register`."""
        return list(dict.fromkeys((*self.table, *self._read_packages(), *self._registered)))

    def get(self, name: str) -> T:
        """Return the entry, imported on first use."""
        if name not in self._cache:
            target = self._find(name)
            self._cache[name] = self._import(name, target) if isinstance(target, str) else target
        return self._cache[name]

    def describe(self, name: str) -> str:
        """Return the first line of the docstring of the entry or else of its module, without importing it."""
        target = self._find(name)
        if not isinstance(target, str):
            is_named = isinstance(target, type) or inspect.isroutine(target)  # else the docstring is that of its class
            return (inspect.getdoc(target) or "").partition("\n")[0].strip() if is_named else ""
        module, _, attribute = target.partition(":")
        try:
            module_spec = importlib.util.find_spec(module)  # NOTE: imports the parent packages, which are light
            if module_spec is None or module_spec.origin is None:
                raise ModuleNotFoundError(f"no module '{module}'")
        except ModuleNotFoundError as error:
            raise self._refuse_import(name, target, error) from None
        tree = ast.parse(Path(module_spec.origin).read_bytes())
        text = _find_docstring(tree, attribute) or ast.get_docstring(tree) or ""
        return text.partition("\n")[0].strip()

    def __contains__(self, name: object) -> bool:
        return name in self.table or name in self._registered or name in self._read_packages()

    def __iter__(self) -> Iterator[str]:
        return iter(self.list_names())

    def __len__(self) -> int:
        return len(self.list_names())

    def __repr__(self) -> str:
        return f"Registry('{self.noun}', {len(self)} entries)"

    def _find(self, name: str) -> "str | T":
        """Return the target of a name; raise a UsageError that names the nearest for an unknown one."""
        for targets in (self.table, self._registered):
            if name in targets:
                return targets[name]
        if name in (packages := self._read_packages()):
            return packages[name]
        names = self.list_names()
        hint = f"known: {', '.join(names) or 'none'}"
        if len(names) > MAX_LISTED_NAMES:
            hint = f"`pretune list {self.noun}s` shows all {len(names)}"
        raise UsageError(f"unknown {self.noun} '{name}'{suggest(str(name), names)} ({hint})")

    def _read_packages(self) -> Mapping[str, str]:
        """Return the targets of the entry points of installed packages; read once."""
        if self._packages is None:
            packages: dict[str, str] = {}
            if self.group is not None:
                from importlib.metadata import entry_points  # NOTE: slow to import, and not needed for `--help`

                for point in entry_points(group=self.group):
                    self._refuse_taken(point.name, point.value, packages)
                    packages[point.name] = _check_target(
                        point.value, f"{self.noun} '{point.name}' of the entry points '{self.group}'", UsageError
                    )
            self._packages = packages
        return self._packages

    def _refuse_taken(self, name: str, target: "str | T", packages: Mapping[str, str]) -> None:
        """Raise a UsageError for a name that is malformed, built in, or that of another package's entry."""
        if not NAME.fullmatch(name):
            raise UsageError(f"{self.noun} {name[:60]!r}: a name has letters, digits, '_', '-' and '.'")
        other = self.table.get(name) or packages.get(name)
        if other is None and name in self._list_reserved():
            other = "a name that is built in"
        if other is not None and other != target:
            source = target if isinstance(target, str) else type(target).__name__
            raise UsageError(f"{self.noun} '{name}' is there twice: {other} and {source}; rename the second")

    def _import(self, name: str, target: str) -> T:
        module, _, attribute = target.partition(":")
        try:
            return cast(T, getattr(importlib.import_module(module), attribute))
        except (ImportError, AttributeError) as error:
            raise self._refuse_import(name, target, error) from error

    def _refuse_import(self, name: str, target: str, error: Exception) -> Exception:
        """Return the error itself for an entry of the table, else a line that names the entry of the package."""
        if name in self.table:
            return error
        return UsageError(f"{self.noun} '{name}' ({target}) cannot be imported: {error}")


def _check_target(target: str, place: str, error: type[Exception]) -> str:
    """Return a target of the form 'module:attribute'; raise `error` for another."""
    module, _, attribute = target.partition(":")
    if not module or not attribute.isidentifier():
        raise error(f"{place}: expected 'module:attribute', found '{target}'")
    return target


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
