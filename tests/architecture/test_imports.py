"""What may be imported at all, what only late, and what never called: light, independent and safe."""

import ast
import json
import os
import subprocess
import sys

import pytest

from pretune.cli import VERBS
from tests.architecture.source import PACKAGE, SRC, files, imports, name_of, parse, violations_of, walk
from tests.selection import keep_quick

HEAVY = [
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "transformers",
    "tokenizers",
    "safetensors",
    "rich",
]
PEERS = {"transformers", "peft", "sentence_transformers", "seqeval", "rouge_score", "accelerate", "nltk"}
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "torch.save",
    "os.system",
    "os.popen",
    *(f"yaml.{name}" for name in ("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all")),
}
MAX_MODULES = 300
"""Modules that `pretune --help` loads at most, Python's own included; 163 when this was written."""
UNSAFE_KEYWORDS = {"allow_pickle", "shell", "trust_remote_code"}


def python(code: str) -> str:
    """The stdout of a fresh interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = f"import json, sys; print(); print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"


def test_importing_the_package_is_light() -> None:
    assert json.loads(python(f"import pretune; dir(pretune); {LOADED}").splitlines()[-1]) == []


@pytest.mark.parametrize(
    "arguments",
    keep_quick([["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)], ["--help"], ["pretrain", "--help"]),
    ids=" ".join,
)
def test_help_is_light(arguments: list[str]) -> None:
    out = python(f"from pretune.cli import main; assert main({arguments}) == 0; {LOADED}")
    assert json.loads(out.splitlines()[-1]) == []


def test_help_imports_few_modules() -> None:
    """`bench/speed/startup.py` measures the time; it follows from what is imported."""
    out = python("import sys; from pretune.cli import main; main(['--help']); print(); print(len(sys.modules))")
    assert int(out.splitlines()[-1]) < MAX_MODULES


def test_public_names_resolve() -> None:
    import pretune

    missing = []
    for name in pretune.__all__:
        try:
            getattr(pretune, name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    assert missing == []
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = pretune.lod


def faults(source: str) -> list[str]:
    """The imports and calls of a source text that are not safe or not independent."""
    tree = parse(source)
    bad = [
        f"line {line}: imports {name}"
        for line, name in imports(tree)
        if name.partition(".")[0] in PEERS | UNSAFE_MODULES or name in UNSAFE_CALLS
    ]
    for node in walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if ast.unparse(node.func) in UNSAFE_CALLS:
            bad.append(f"line {node.lineno}: calls {ast.unparse(node.func)}")
        bad += [
            f"line {node.lineno}: {ast.unparse(keyword)}"
            for keyword in node.keywords
            if keyword.arg in UNSAFE_KEYWORDS and ast.unparse(keyword.value) != "False"
        ]
    return bad


def test_the_package_is_safe_and_independent_of_its_peers() -> None:
    assert violations_of(lambda file: faults(file.read_text())) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import torch, yaml\nmodel.eval()\nyaml.safe_load(x)\ntorch.compile(model)\nre.compile('x')", 0),
        ("import pickle", 1),
        ("from pickle import loads", 1),
        ("def f():\n    import transformers.models as m", 1),
        ("from peft import LoraConfig", 1),
        ("torch.load(path)", 1),
        ("from torch import load", 1),
        ("eval(text)", 1),
        ("exec(text)", 1),
        ("yaml.load(x, Loader=yaml.SafeLoader)", 1),
        ("np.load(path, allow_pickle=True)", 1),
        ("np.load(path, allow_pickle=False)", 0),
        ("np.load(path, allow_pickle=flag)", 1),
    ],
)
def test_the_law_can_be_broken(source: str, count: int) -> None:
    assert len(faults(source)) == count


def test_results_and_messages_have_one_printer() -> None:
    """Data never reach a terminal but through `core.log`, which escapes control characters."""
    own = {"core/log.py"}  # errors are escaped by `one_line`
    found = [
        f"{name_of(file)}:{node.lineno}"
        for file in files()
        if file.relative_to(PACKAGE).as_posix() not in own
        for node in walk(parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "sys.stdout.write")
        if "one_line" not in ast.unparse(node) and "text.getvalue()" not in ast.unparse(node)
    ]
    assert found == []
