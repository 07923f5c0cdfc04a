"""What keeps the tree readable: short files, documented names, and no behaviour by a family's name."""

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pretune.adaptation import METHOD_PRESETS
from pretune.core.registry import Registry
from pretune.tasks.types import TASK_TYPES
from tests.architecture.source import PACKAGE, SRC, docstrings, files, folder_of, name_of, parse, violations_of, walk

LONGEST = 450
SHAPELESS = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
FAMILIES = PACKAGE / "models" / "families"
RECIPES = PACKAGE / "runs" / "recipes"


def test_a_file_is_one_idea() -> None:
    assert [name_of(file) for file in files() if len(file.read_text().splitlines()) > LONGEST] == []
    assert [name_of(file) for file in files() if file.stem in SHAPELESS] == []


def undocumented(source: str) -> list[str]:
    """What of a module says nothing: itself, or a public class or function; a torch module may leave it to its spec."""
    tree = parse(source)
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        if not (isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Module") for base in node.bases))
    ]
    missing = [node.name for node in public if not ast.get_docstring(node)]
    return missing if ast.get_docstring(tree) or not tree.body else ["the module", *missing]


def test_public_names_are_documented() -> None:
    assert violations_of(lambda file: undocumented(file.read_text())) == []


def loose_json(source: str) -> list[int]:
    """The lines of calls that would write NaN, which no strict reader takes."""
    calls = (node for node in walk(parse(source)) if isinstance(node, ast.Call))
    writers = [call for call in calls if ast.unparse(call.func) in ("json.dumps", "json.dump")]
    return [call.lineno for call in writers if "allow_nan=False" not in map(ast.unparse, call.keywords)]


def test_json_is_written_without_nan() -> None:
    assert violations_of(lambda file: [f"line {line}" for line in loose_json(file.read_text())]) == []


def uses(source: str, names: Iterable[str]) -> list[str]:
    """Where a source text, its docstrings and comments aside, writes one of the names as a word.

    A word ends at anything but a letter or digit, or where a capital begins the next: `load_bert`, `BertModel`.
    """
    options = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    word = re.compile(rf"(?<![A-Za-z0-9])({options})(?![A-Za-z0-9])", re.IGNORECASE)
    capital = "|".join(sorted((re.escape(name.capitalize()) for name in names), key=len, reverse=True))
    camel = re.compile(rf"(?<![A-Z])({capital})(?=[A-Z])")
    tree = parse(source)
    silent = docstrings(tree)
    found: list[str] = []
    for node in walk(tree):
        texts: list[str] = []
        match node:
            case ast.Constant(value=str(text)) if id(node) not in silent:
                texts = [text]
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.keyword(arg=str(text)):
                texts = [text]
            case ast.ClassDef(name=text) | ast.FunctionDef(name=text):
                texts = [text]
            case ast.alias(name=text, asname=other):
                texts = [text, other or ""]
            case ast.ImportFrom(module=str(text)):
                texts = [text]
        found += [f"line {getattr(node, 'lineno', '?')}: {t}" for t in texts if word.search(t) or camel.search(t)]
    return found


def families() -> Registry[object]:
    """The table of families."""
    if not (FAMILIES / "__init__.py").exists():
        pytest.skip("no families yet")
    registry: Registry[object] = importlib.import_module("pretune.models.families").FAMILIES
    return registry


def test_no_family_is_known_outside_its_file() -> None:
    """But for ULMFiT, which is the name of a way to fine-tune as well (`METHOD_PRESETS`), for the words of GGUF, and
    for recipes, which choose a family.

    That format names the architectures and the tokenizers that it knows after models: constants of the files that read
    and write it, and nothing else there.
    """
    names = [name for name in families().list_names() if name not in METHOD_PRESETS]
    others = [file for file in files() if not {FAMILIES, RECIPES} & {*file.parents}]

    def read(file: Path) -> str:
        return without_constants(file.read_text()) if file.name == "gguf.py" else file.read_text()

    assert violations_of(lambda file: uses(read(file), names), others) == []


def without_constants(source: str) -> str:
    """A module without its constants."""
    tree = parse(source)
    body = [node for node in tree.body if not isinstance(node, ast.Assign)]
    return ast.unparse(ast.Module(body, []))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""About bert."""\nX = 1\n"""bert"""\n# bert', 0),
        ("albert = robert + bertha", 0),
        ('if name == "bert": pass', 1),
        ('if "bert" in name: pass', 1),
        ("def load_bert(): pass", 1),
        ("class BertModel: pass", 1),
        ("from pretune.models.families.bert import BERT", 2),
        ('name.startswith("gpt-2-")', 1),
        ("x.bert = 1", 1),
        ("f(bert=1)", 1),
    ],
)
def test_the_law_of_names_can_be_broken(source: str, count: int) -> None:
    assert len(uses(source, ["bert", "gpt-2"])) == count


def registries() -> list[tuple[str, str]]:
    """Every registry that a module of the package holds, as (module, name)."""
    found: list[tuple[str, str]] = []
    for file in files():
        module = ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for node in parse(file.read_text()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            call = getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(call, ast.Call) and "Registry" in ast.unparse(call.func):
                found.append((module, target.id))
    return found


@pytest.mark.parametrize(("module", "name"), registries())
def test_every_entry_resolves_and_describes_itself(module: str, name: str) -> None:
    registry: Registry[object] = getattr(importlib.import_module(module), name)
    for entry in registry:
        assert registry.get(entry) is not None
        line = registry.describe(entry)
        assert 0 < len(line) <= 120, f"{registry.noun} '{entry}': {line!r}"


def unlisted(folder: Path, registry: Registry[object], others: set[str]) -> set[str]:
    """The modules of a folder that a table does not list."""
    listed = {target.partition(":")[0].rpartition(".")[2] for target in registry.table.values()}
    return {file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")} - listed - others


def test_every_family_file_is_listed() -> None:
    assert unlisted(FAMILIES, families(), {"shared", "shared_rotary"}) == set()


def test_families_share_only_specs_and_neutral_parts() -> None:
    """A family file takes `build_spec` or the family itself from another; other shared parts are in `shared`."""
    public = {"build_spec", *(target.partition(":")[2] for target in families().table.values())}
    violations = [
        f"{file.name}: {name.name} of {node.module}"
        for file in FAMILIES.glob("*.py")
        for node in walk(parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pretune.models.families")
        if not (node.module or "").startswith("pretune.models.families.shared")
        for name in node.names
        if name.name not in public
    ]
    assert violations == []


def test_every_verb_file_is_listed() -> None:
    from pretune.cli import VERBS

    assert unlisted(PACKAGE / "cli", VERBS, {"app"}) == set()
    assert unlisted(PACKAGE / "cli", VERBS, set()) == {"app"}


def kind_comparisons(source: str) -> list[str]:
    """Comparisons of a task's kind or metric with names: such behaviour belongs to its type, or to the metric."""
    found = []
    for node in walk(parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            has_kind = any(isinstance(side, ast.Attribute) and side.attr in ("kind", "task_kind") for side in sides)
            has_metric = any("task.metrics" in ast.unparse(side) for side in sides)
            names = [text for side in sides for text in ast.walk(side) if isinstance(text, ast.Constant)]
            if (has_kind or has_metric) and any(isinstance(text.value, str) for text in names):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_no_kind_of_task_is_known_outside_its_type() -> None:
    folders = ("tasks", "evaluation", "analysis", "reports", "runs", "server", "cli")
    above = [file for file in files() if folder_of(file) in folders]
    assert violations_of(lambda file: kind_comparisons(file.read_text()), above) == []
    assert unlisted(PACKAGE / "tasks" / "types", TASK_TYPES, {"base"}) == set()


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('task.kind == "span"', 1),
        ('saved.task_kind in ("pair", "span")', 1),
        ('self.task.metrics[0] == "squad2"', 1),
        ("task.kind != other.kind", 0),
        ("task.metrics[0] in MEAN_METRICS", 0),
    ],
)
def test_the_law_of_kinds_can_be_broken(source: str, count: int) -> None:
    assert len(kind_comparisons(source)) == count
