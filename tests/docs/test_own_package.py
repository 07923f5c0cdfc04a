"""The package of docs/extending.md: installed, it works with every verb; without it a line names what is missing."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import pretune as pt
from pretune.core.errors import CheckpointError, UsageError
from pretune.runs.listing import REGISTRIES
from tests.docs.test_extending import FILES, PAGE
from tests.runs import tasked

PROJECT = tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0])["project"]
SMALL = (
    "--set model.width=16 --set model.depth=1 --set model.heads=2 --set data.max_length=32 --set train.batch_tokens=256"
)
PRETRAIN = f"pretrain starcoder --data data --steps 2 {SMALL} --out runs/star"
FINETUNE = "finetune runs/star --method rescale --train table.csv --steps 2 --baselines none --out runs/tuned"
SCRIPT = """
import json, pretune as pt
from pretune.cli import main

assert not any(main(["--quiet", *command.split()]) for command in {commands})
assert main({resume}.split()) == 0
family = pt.load("runs/tuned").model.spec.family
print(json.dumps(["starcoder-1b" in pt.list_models(), "rescale" in pt.list_methods(), family]))
"""


def install(site: Path, groups: dict[str, dict[str, str]], name: str = "my-models") -> None:
    """Write what pip installs of the page's package: its modules, and its metadata."""
    (site / "my_models").mkdir(parents=True, exist_ok=True)
    (site / "my_models/__init__.py").touch()
    for file, code in FILES.items():
        (site / "my_models" / Path(file).name).write_text(code, encoding="utf-8")
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line for group, points in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registries that read the entry points anew, and forget what the test adds."""
    for registry in REGISTRIES.values():
        for name, value in (("_packages", None), ("_registered", {}), ("_cache", dict(registry._cache))):
            monkeypatch.setattr(registry, name, value)
    yield
    for name in [name for name in sys.modules if name.startswith("my_models")]:
        del sys.modules[name]


@pytest.mark.slow
def test_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own lists, pre-trains, fine-tunes, predicts, resumes and loads; this one has no such package."""
    monkeypatch.chdir(tmp_path)
    install(tmp_path / "site", PROJECT["entry-points"])
    texts = tasked.corpus(60)
    Path("texts.txt").write_text("\n\n".join(texts))
    tasked.table(Path("table.csv"), ("text", "label"), [("a good sea", "good"), ("a bad sea", "bad")] * 20)
    tokenizer = pt.train_tokenizer("bpe", ["texts.txt"], vocab=300)
    pt.prepare(["texts.txt"], tokenizer=tokenizer, out="data", holdout="20%", workers=0)
    commands = ["list families", "list methods --json", "show starcoder-1b", PRETRAIN, FINETUNE]
    commands += [
        "finetune --config runs/tuned/run.json --out runs/repeated",
        "predict runs/tuned --input table.csv",
        "verify runs/tuned",
    ]
    paths = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")]), str(Path(pt.__file__).parents[1])]
    script = SCRIPT.format(commands=commands, resume=repr(f"{FINETUNE} --resume"))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    assert "starcoder" in done.stdout and "Rescaled outputs of all linear layers" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True, "starcoder"]
    assert json.loads(Path("runs/tuned/run.json").read_text())["method"] == {"kind": "rescale"}

    assert pt.load("runs/star").spec.family == "starcoder"  # the spec is whole
    with pytest.raises(CheckpointError, match="unknown method 'rescale'"):
        pt.load("runs/tuned")
    with pytest.raises(UsageError, match="unknown method 'rescale'"):
        pt.finetune("runs/star", train="table.csv", method="rescale", out="runs/again")
    with pytest.raises(UsageError, match="unknown model 'starcoder'"):
        pt.pretrain("starcoder", data="data", out="runs/again")


def test_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    install(tmp_path, {})
    monkeypatch.syspath_prepend(tmp_path)
    for block in re.findall(r"```python\n(import pretune as pt\n.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/extending.md", "exec"), {})
    assert "rescale" in pt.list_methods() and "starcoder-15b" in pt.list_models("starcoder")
    model = pt.build("starcoder", width=16, depth=1, heads=2, vocab=50)
    names = REGISTRIES["method"].get("rescale")().apply(model)
    assert names and all(name.endswith(".scale") for name in names)
    pt.register("objective", "stretch", "my_models.stretch_masked:StretchMaskedLM")
    assert pt.objective("stretch", rate=0.5).shapes == ("encoder",) and "stretch" in pt.list_objectives()
    assert REGISTRIES["objective"].describe("stretch").startswith("One masked span of every text")


@pytest.mark.parametrize(
    ("kind", "name", "target", "message"),
    [
        ("family", "bert", "m:bert", "family 'bert' is there twice: pretune.models.families.bert:bert and m:bert"),
        ("family", "bert-base", "m:bert", "family 'bert-base' is there twice: a name that is built in and m:bert"),
        ("method", "lora", "m:LoRA", "pretune.adaptation.peft.lora:LoRA and m:LoRA"),
        ("method", "last-only", "m:Last", "'last-only' is there twice: a name that is built in and m:Last"),
        ("method", "a+b", "m:Both", "a name has letters"),
        ("metric", "close", "m", "expected 'module:attribute', found 'm'"),
        ("model", "close", "m:a", "unknown kind 'model'"),
    ],
)
def test_what_cannot_be_registered(fresh: None, kind: str, name: str, target: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        pt.register(kind, name, target)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_name_of_two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """What is built in works all the same; a name that is looked for is an error that names both."""
    install(tmp_path, {"pretune.tasks": {"sst2": "my_models.tickets:TICKETS"}})
    install(tmp_path, {"pretune.metrics": {"close": "my_models.gone:close"}}, "more")
    install(tmp_path, {"pretune.objectives": {"a": "my_models.stretch_masked:Gone"}}, "third")
    install(tmp_path, {"pretune.objectives": {"a": "my_models.stretch_masked:StretchMaskedLM"}}, "fourth")
    monkeypatch.syspath_prepend(tmp_path)
    assert REGISTRIES["task"].get("sst2").name == "sst2"
    with pytest.raises(UsageError, match=r"'sst2' is there twice: pretune.tasks.\S+ and my_models.tickets:TICKETS"):
        pt.list_tasks()
    with pytest.raises(UsageError, match=r"metric 'close' \(my_models.gone:close\) cannot be imported: No module"):
        REGISTRIES["metric"].get("close")
    with pytest.raises(UsageError, match="objective 'a' is there twice"):
        pt.list_objectives()
