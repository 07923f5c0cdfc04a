"""A folder imports only from the folders before it; siblings do not know each other."""

import ast
import re

import pytest

from tests.architecture.source import PACKAGE, files, folder_of, imports, parse, violations_of, walk

LAYERS: list[set[str]] = [
    {"core"},
    {"metrics", "text"},
    {"data"},
    {"nn"},
    {"models", "objectives"},
    {"training"},
    {"inference"},
    {"adaptation"},
    {"tasks"},
    {"evaluation"},
    {"analysis"},
    {"reports"},
    {"runs"},
    {"exporters"},
    {"studies"},
    {"server"},
    {"cli"},
]
RANK = {folder: rank for rank, layer in enumerate(LAYERS) for folder in layer}
TARGET = re.compile(r"(pretune(?:\.\w+)+):\w+")


def violations(folder: str, source: str) -> list[str]:
    """The imports in a source text, and the entries of its tables, that a folder may not have."""
    tree = parse(source)
    wanted = list(imports(tree))
    wanted += [  # a table `name -> "module:attribute"` is an import put off
        (node.lineno, found[1])
        for node in walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (found := TARGET.fullmatch(node.value))
    ]
    bad: list[str] = []
    for line, name in wanted:
        top, _, rest = name.partition(".")
        stage = rest.partition(".")[0]
        if top == "" or (top == "pretune" and stage not in RANK):
            bad.append(f"line {line}: '{name}' is not an absolute import of a folder")
        elif top == "pretune" and stage in RANK and stage != folder and RANK[stage] >= RANK[folder]:
            bad.append(f"line {line}: '{folder}' may not import '{name}'")
    return bad


def test_imports_point_downwards() -> None:
    inside = [file for file in files() if folder_of(file)]
    assert violations_of(lambda file: violations(folder_of(file), file.read_text()), inside) == []


def test_every_folder_has_its_place() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= set(RANK)
    loose = {path.name for path in PACKAGE.glob("*.py")}
    assert loose == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize(
    ("folder", "source", "count"),
    [
        ("nn", "from pretune.core.errors import UsageError\nimport torch", 0),
        ("nn", "from pretune.nn.layers import LayerNorm", 0),
        ("cli", "from pretune import __version__", 1),
        ("nn", "from pretune.models.spec import Model", 1),
        ("models", "def f():\n    from pretune.objectives import masked", 1),
        ("core", "import pretune.nn.layers as norm", 1),
        ("text", "from pretune import metrics", 1),
        ("nn", "from pretune import load", 1),
        ("cli", "import pretune", 1),
        ("nn", "from .norm import LayerNorm", 1),
        ("core", "TABLE = {'a': 'pretune.models.families.a:A'}", 1),
        ("models", "TABLE = {'a': 'pretune.models.families.a:A'}", 0),
    ],
)
def test_the_law_can_be_broken(folder: str, source: str, count: int) -> None:
    assert len(violations(folder, source)) == count
