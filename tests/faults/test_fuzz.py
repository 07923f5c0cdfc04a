"""Files of strangers, changed at random: indexes, run files, YAML and adapters end in our own errors, or are read.

Four campaigns of fixed seeds: a few inputs each in the default suite, 5,000 in all as a slow test.
"""

import copy
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml

import pretune as pt
from pretune.adaptation.io import load as load_model
from pretune.adaptation.peft.io import AdapterExtras, load_adapter, save_adapter
from pretune.adaptation.peft.lora import LoRA
from pretune.core.errors import PretuneError
from pretune.core.io import MANIFEST, write_manifest
from pretune.inference.embed import build_embedder
from pretune.inference.index import Index, build
from pretune.reports.page import report
from pretune.runs.defaults import build_pretrain_config
from pretune.runs.finetune.defaults import build_finetune_config as choose_tuning
from pretune.runs.finetune.saved_task import SavedTask
from pretune.training.checkpoints import read_state
from pretune.training.checkpoints.checkpoint import TensorSnapshot, describe_state, open_checkpoint, write_checkpoint
from pretune.training.step import TrainState
from tests.contracts.tiny import model_of
from tests.faults.mutations import mutate, restructure, scramble
from tests.inference.readers import TEXTS, encoder
from tests.reports import report_files
from tests.selection import keep_quick

KEYS = ["kind", "step", "labels", "parts", "file", "path", "score", "name", "r", "lora_alpha", "peft_type", "run"]
SEED = 18


class Campaign(NamedTuple):
    """Directories to change, and the work on a changed one that must end well."""

    sources: list[Path]
    work: Callable[[Path], Any]
    vouched: bool = False  # a manifest that lists the changed file


def fuzz(campaign: Campaign, folder: Path, count: int, seed: int) -> Counter[str]:
    """Work on so many changed directories; count how each ended. Anything but a PretuneError is a failure of ours."""
    rng, ends = random.Random(seed), Counter[str]()
    for case in range(count):
        source = rng.choice(campaign.sources)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        names = sorted(str(file.relative_to(source)) for file in source.rglob("*") if file.is_file())
        names += [name for name in names if name.endswith(("json", "yaml"))] * 2
        target = folder / rng.choice(names)
        target.write_bytes(changed(target, rng))
        if campaign.vouched and target.name != MANIFEST and rng.random() < 0.9:
            manifest = json.loads((folder / MANIFEST).read_text())
            extra = {key: value for key, value in manifest.items() if key != "files"}
            write_manifest(folder, manifest["files"], extra)
        try:
            campaign.work(folder)
            ends["read"] += 1
        except PretuneError as error:
            text = str(error)
            assert text and len(text) < 4000, f"case {case} of seed {seed}: {text[:5000]!r}"
            ends[type(error).__name__] += 1
        except BaseException as error:  # a panic of a library in Rust is no Exception
            raise AssertionError(f"case {case} of seed {seed}: {target} ({source.name})") from error
    return ends


def changed(file: Path, rng: random.Random) -> bytes:
    """The content of a file with something wrong in it, mostly in its values rather than its bytes."""
    data = file.read_bytes()
    if rng.random() < 0.2:
        return scramble(data, rng)
    if file.suffix == ".json":
        return json.dumps(mutate(json.loads(data), rng, KEYS)).encode(errors="replace")
    if file.suffix == ".jsonl":
        lines = data.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(mutate(json.loads(lines[at]), rng, KEYS)).encode(errors="replace")
        return b"\n".join([*lines, b""])
    if file.suffix == ".yaml":
        tree = mutate(yaml.safe_load(data), rng, KEYS)
        return yaml.safe_dump(tree).encode(errors="replace")
    return restructure(data, rng, KEYS) if file.suffix == ".safetensors" else scramble(data, rng)


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Campaign]:
    root = tmp_path_factory.mktemp("campaigns")
    return {"index": _index(root), "runs": _runs(root), "yaml": _yaml(root), "adapters": _adapters(root)}


def _index(root: Path) -> Campaign:
    pt.save(encoder(), root / "model")
    made = [root / "exact"]
    build(root / "model", TEXTS[:3], out=made[0])
    build(root / "model", TEXTS[4:6], ids=["a", "b"], out=made[0], add=True)
    try:
        import faiss  # noqa: F401
    except ImportError:
        pass
    else:
        for method in ("hnsw", "ivf"):
            made.append(root / method)
            build(root / "model", [f"{text} {i}" for i in range(10) for text in TEXTS], out=made[-1], method=method)
    ready = build_embedder(root / "model", normalise=True)
    queries = np.ones((2, ready.width), dtype=np.float32)

    def work(folder: Path) -> None:
        index = Index.open(folder)
        index.search(["the cat"], 3, words=True)
        index.check_embedder(ready)
        for _, number in zip(*index.find_nearest(queries, 3), strict=True):
            assert all(index.rows[one] for one in number.tolist() if one >= 0)

    return Campaign(made, work, vouched=True)


def _runs(root: Path) -> Campaign:
    """Files of runs for a report, the task of a fine-tuned run, and a checkpoint's state."""
    folder = root / "runs" / "all"
    runs = [report_files.pretrained(folder / "books"), report_files.tuned(folder / "films")]
    point = {"score": 0.5, "std": 0.1, "low": 0.4, "high": 0.6, "each": [0.4, 0.6], "baselines": {"svm": 0.4}}
    curve = [{"labels": labels, **point} for labels in (10, 20)]
    forgetting = {"before": {"loss": 1.0}, "after": {"loss": 2.0}, "distance": 0.1}
    runs += [report_files.tuned(folder / "more", curve=curve, forgetting=forgetting)]
    for kind, gold, answer in (("regression", 1.0, {"score": 2.0}), ("tagging", ["A"], {"tags": ["B"], "words": ["x"]}),
                               ("span", ["a"], {"text": "b"})):  # fmt: skip
        runs.append(report_files.tuned(folder / kind, kind=kind))
        lines = [{"split": "test", "id": str(i), "gold": gold, "input": "text", **answer} for i in range(3)]
        report_files.lines(runs[-1] / "predictions.jsonl", lines)
    report_files.results(folder, runs=["books"], stages=[{"name": "a", "seconds": 1.0, "about": "b", "notes": ["c"]}])
    data = folder / "data" / "card.json"
    tree = json.loads((folder / "books" / "run.json").read_text())
    tree["data"]["path"] = "data"  # beside the run, so that the card of a copy is read
    report_files.write(folder / "books" / "run.json", tree)
    assert data.is_file()
    names = [run.name for run in runs]

    tuned = root / "runs" / "task"
    tuned.mkdir()
    SavedTask(name="films", task_kind="classification", labels=("bad", "good"), metrics=("accuracy",), scale=(0.0, 1.0),
         max_length=20, stride=5).write(tuned)  # fmt: skip

    facts = TrainState(phases=[0, 3], eval_metrics={"loss": 1.0}, meter={"flops": 1.0}).to_dict()
    facts.pop("progress")
    groups = {"model": {"a": torch.ones(2)}, "history": {"progress": torch.ones(3)}}
    taken = TensorSnapshot(groups=groups, tied_names={"model": {"b": "a"}}, events=[])
    kept = root / "runs" / "step-00000007"
    write_checkpoint(kept, taken, describe_state(7, taken, {"state": facts, "config": "abc"}, 1.0))

    def work(folder: Path) -> None:
        if (folder / "task.json").exists():
            SavedTask.read(folder).build_task()
        elif (folder / "films").exists():
            report([folder, *(folder / name for name in names)], folder / "report.html")
        else:
            found = open_checkpoint(folder)
            found.load_tensors("model")
            read_state(found)

    return Campaign([folder, folder, tuned, kept], work, vouched=False)


def _yaml(root: Path) -> Campaign:
    from tests.data.texts import byte_tokenizer

    (root / "corpus.txt").write_text("\n\n".join(f"The {word} sat here. It ran." for word in "abcdefgh" * 8))
    data = root / "prepared"
    pt.prepare([root / "corpus.txt"], tokenizer=byte_tokenizer(root / "tokenizer"), out=data)
    part, tuning = root / "yaml-part", root / "yaml-tuning"
    for folder in (part, tuning):
        folder.mkdir()
    (part / "run.yaml").write_text(
        f"model: {{name: bert-tiny, depth: 1}}\ndata: {{path: {data}, max_length: 64}}\nobjective: masked\n"
        "train:\n  steps: 20\n  lr: 1e-3\n  schedule: {floor: 0.1}\n  optimizer: {kind: lamb}\n"
    )
    whole = root / "yaml-whole"
    whole.mkdir()
    (whole / "run.yaml").write_text(
        yaml.safe_dump(build_pretrain_config(config=part / "run.yaml", device="cpu").to_dict())
    )
    tree = choose_tuning(root / "model", task="sst2").to_dict()
    (tuning / "tuning.yaml").write_text(yaml.safe_dump(tree))

    def work(folder: Path) -> None:
        if (folder / "run.yaml").exists():
            build_pretrain_config(config=folder / "run.yaml", device="cpu")
        else:
            choose_tuning(config=folder / "tuning.yaml")

    return Campaign([part, whole, tuning], work)


def _adapters(root: Path) -> Campaign:
    pt.save(model_of("bert-base"), root / "base")
    base = pt.load(root / "base")
    made = []
    for name, ours in (("ours", True), ("theirs", False)):
        model, method = copy.deepcopy(base), LoRA(rank=2)
        method.apply(model)
        made.append(root / name)
        save_adapter(model, method, made[-1], extras=AdapterExtras(base=str(root / "base")))
        if not ours:
            (made[-1] / "adapter.json").unlink()
        (made[-1] / MANIFEST).unlink(missing_ok=True)

    def work(folder: Path) -> None:
        load_adapter(copy.deepcopy(base), folder)
        load_model(folder)

    return Campaign(made, work)


NAMES = ["index", "runs", "yaml", "adapters"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "x"


@pytest.mark.parametrize("name", keep_quick(NAMES, "index", "yaml"))
def test_a_few(name: str, campaigns: dict[str, Campaign], folder: Path) -> None:
    campaign = campaigns[name]
    for source in campaign.sources:  # unchanged, each is read
        shutil.copytree(source, folder, dirs_exist_ok=False)
        campaign.work(folder)
        shutil.rmtree(folder)
    ends = fuzz(campaign, folder, 12, SEED)
    assert sum(ends.values()) == 12 and len(ends) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_many(name: str, seed: int, campaigns: dict[str, Campaign], folder: Path) -> None:
    ends = fuzz(campaigns[name], folder, 250, 1000 * SEED + seed)
    assert sum(ends.values()) == 250 and ends["read"] < 200
