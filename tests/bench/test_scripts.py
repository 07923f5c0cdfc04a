"""Scripts of bench/: all start; those that run on a CPU are run at their smallest size on synthetic text."""

import gzip
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import pretune as pt
from pretune.studies.read import load_study
from pretune.tasks.benchmarks.coreference import DocumentReader
from pretune.tasks.table import BlankRows
from tests.bench.test_guard import BENCH, load
from tests.studies.studies import make_tree

SCRIPTS = sorted(path.stem for path in BENCH.rglob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
TEXTS = ("wikipedia-en/valid", "wikipedia-en/train-00", "wikinews-en/train", "wikinews-en/valid", "books-en/train-00")
Run = Callable[..., str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a data directory with small corpora, a tokenizer, and prepared data."""
    folder = tmp_path_factory.mktemp("data")
    sentences = list(load("common").make_sentences(360, 12))
    text = "\n\n".join(" ".join(sentences[start : start + 6]) for start in range(0, len(sentences), 6))
    for name in TEXTS:
        path = folder / "corpora" / f"{name}.txt.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(text.encode(), preset=0))
    tokenizer = pt.train_tokenizer("wordpiece", [folder / "corpora/wikipedia-en/valid.txt.xz"], vocab=300)
    tokenizer.save(folder / "tok")
    inputs = [folder / "corpora/wikipedia-en/valid.txt.xz"]
    pt.prepare(inputs, tokenizer=tokenizer, out=folder / "data", holdout="20%", workers=0)
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Run a script, with some names replaced, and return its output. Changes to the process are undone."""

    def run_script(name: str, *arguments: object, data: Path | None = None, **replaced: object) -> str:
        monkeypatch.setenv("PRETUNE_DATA", str(data or tmp_path))
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        monkeypatch.setattr("torch.set_num_threads", lambda count: None)
        script = load(name)
        vars(script).update(replaced)
        script.main()
        return capsys.readouterr().out

    environment, precision = dict(os.environ), torch.get_float32_matmul_precision()
    yield run_script
    os.environ.clear()
    os.environ.update(environment)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(name, "--help")
    assert exit_.value.code == 0 and f"usage: {name}.py" in capsys.readouterr().out


def read(path: Path) -> dict[str, Any]:
    """Return the result that a script wrote."""
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_studies_are_valid() -> None:
    plans = {*(BENCH / "quality/plans").glob("*.yaml")}  # of runs that are compared at equal computation
    studies = {path.stem: load_study(str(path)) for path in {*BENCH.rglob("*.yaml")} - plans}
    assert [scale.name for scale in studies["brief_pretraining"].scales] == ["gpu"]
    assert all(study.rows and study.claims for study in studies.values())


def test_checkpoints(run: Run, tmp_path: Path) -> None:
    run("checkpoints", "--params", "2e4", "--saves", 2, "--device", "cpu", "--out", tmp_path / "out.json")
    assert all(value > 0 for value in read(tmp_path / "out.json").values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16
def test_fp8(run: Run, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretune.nn.fp8.check_device", lambda device: None)
    out = ("--device", "cpu", "--out", tmp_path / "out.json")
    run("fp8", "layers", "--steps", 1, *out)
    (layer,) = read(tmp_path / "out.json")["result"].values()
    assert all(0.01 < error < 0.1 for error in layer["fp8"]["errors"].values())
    assert all(error < 0.005 for error in layer["bf16"]["errors"].values())
    run("fp8", "speed", "--only", "gpt2-small", "--steps", 1, "--rounds", 1, "--kernels", *out)
    (row,) = read(tmp_path / "out.json")["result"].values()
    assert row["fp8 / bf16"] > 0 and row["fp8"]["kernels"] != row["bf16"]["kernels"]
    settings = {"model.width": 32, "model.depth": 1, "model.heads": 2, "data.max_length": 32}
    options = ("--set", json.dumps(settings), "--eval-tokens", 64, "--batch-tokens", 64, "--work", tmp_path / "runs")
    for precision, seed in (("bf16", 0), ("bf16", 1), ("fp8", 0)):
        words = ("--precision", precision, "--seed", seed, "--steps", 2, "--model", "bert-tiny")
        run("fp8", "curve", *words, "--data", home / "data", *options, *out)
    run("fp8", "compare", "--work", tmp_path / "runs", *out)
    gaps = read(tmp_path / "out.json")["result"]["distance from bf16-0"]
    assert {*gaps} == {"bf16-1", "fp8-0"} and gaps["fp8-0"]["largest"] < gaps["bf16-1"]["largest"]


@pytest.mark.slow
def test_lora(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run("lora", "--device", "cpu", "--rounds", 1, "--out", tmp_path / "out.json")
    result = read(tmp_path / "out.json")
    assert len(result["rows"]) == 12 and "error" not in result["rows"]["pretune QLoRA"]
    names = ("--only", "LoRA, p", "pretune L", "--without", "compiled", "QLoRA")
    run("lora", "--device", "cpu", "--rounds", 1, *names, "--out", tmp_path / "some.json")
    assert [*read(tmp_path / "some.json")["rows"]] == [
        *("pretune LoRA", "pretune LoRA, eager", "peft LoRA, padded", "peft LoRA, packed")
    ]
    assert {row.get("trained", 32_768) for row in result["rows"].values()} == {32_768}
    assert {*result["ratios"]} >= {"peft LoRA, padded", "peft LoRA, packed"}


def test_sentences(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tasks/ud_ewt/en_ewt-ud-dev.conllu.gz"
    path.parent.mkdir(parents=True)
    text = "# newdoc id = a\n# newpar id = b\n# text = He ran.\n# text = She sat.\n# newpar id = c\n# text = Over\n"
    path.write_bytes(gzip.compress(text.encode()))
    run("sentences", "--part", "dev", "--out", tmp_path / "out.json")
    result = read(tmp_path / "out.json")
    assert result["spaces, naive"]["recall"] == 1 and result["paragraphs, rules"]["F1"] == 1 and len(result) == 4


def test_coreference(run: Run, tmp_path: Path) -> None:
    run("coreference", "synthetic", tmp_path / "made", "--documents", 12)
    train, test = ([*DocumentReader().read(tmp_path / f"made/{name}.jsonl", BlankRows())] for name in ("train", "test"))
    assert (len(train), len(test)) == (12, 2) and all(example.clusters for example in train)
    gender = {"she": "she", "her": "she", "he": "he", "him": "he", "his": "he"}
    for example in train:
        for cluster in example.clusters or ():
            words = {" ".join(example.words[first : last + 1]).lower() for first, last in cluster}
            assert len({gender[word] for word in words & {*gender}}) < 2
    row = {"text": "Ann met Eve when she left.", "target": {"span1_index": 0, "span1_text": "ann",
           "span2_index": 4, "span2_text": "she"}, "label": True}  # fmt: skip
    (tmp_path / "tasks/wsc").mkdir(parents=True)
    for name in ("train", "val"):
        (tmp_path / f"tasks/wsc/{name}.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    run("coreference", "wsc", tmp_path / "schemas")
    (schema,) = DocumentReader().read(tmp_path / "schemas/test.jsonl", BlankRows())
    assert schema.clusters == (((0, 0), (4, 4)),) and schema.words[-1] == "."


def test_objectives(run: Run, tmp_path: Path) -> None:
    words = ("--tokens", 512, "--length", 32, "--repeats", 1, "--only", "masked", "permuted")
    run("objectives", *words, "--out", tmp_path / "out.json")
    assert len(read(tmp_path / "out.json")["ratios"]) == 3


def test_packing(run: Run, tmp_path: Path, home: Path) -> None:
    words = ("--megabytes", 0.05, "--out", tmp_path / "out.json")
    run("packing", *words, data=home, plan_million=lambda lengths: 0.0, TOKENS=2048)
    result = read(tmp_path / "out.json")
    assert 0.2 < result["sentences 128"]["padded"] < result["sentences 128"]["fill"] <= 1


def test_tokenizing(run: Run, tmp_path: Path, home: Path) -> None:
    words = ("--megabytes", 0.02, "--repeats", 2, "--tokenizer", home / "tok", "--out", tmp_path / "out.json")
    run("tokenizing", *words, data=home)
    (result,) = read(tmp_path / "out.json").values()
    rates = result["megabytes_per_second"]
    assert result["tokens"] > 100 and result["ratio"]["warm"] == pytest.approx(rates["warm"] / rates["library"])


@pytest.mark.slow
def test_cpu_pretraining(run: Run, home: Path) -> None:
    result = json.loads(run("cpu_pretraining", "--sizes", "tiny", "--repeats", 1, data=home, TOKENS=256, STEPS=1))
    rates = result["tokens_per_second"]
    assert {*rates} == {"pretune", *result["ratio"]} and min(rates.values()) > 0


def test_generate(run: Run) -> None:
    result = json.loads(run("generate", "--device", "cpu", "--batches", 2, "--new", 3, "--rounds", 1))
    assert result["rows"][0]["ours_over_theirs"] > 0 and result["checked"]["share of texts equal token for token"] == 1


@pytest.mark.slow
def test_serving_engine(run: Run) -> None:
    words = ("--device", "cpu", "--size", "tiny", "--clients", 4, "--requests", 1, "--rounds", 1)
    result = json.loads(run("engine", *words))
    assert result["checked"]["share of equal texts"] == 1 and result["completions"]["pretune"]["per_second"] > 0


@pytest.mark.slow
def test_server(tmp_path: Path) -> None:
    """Both parts at their smallest, as processes: honest clients get right answers, the others errors."""
    command = [sys.executable, "-m", "bench.serving.server", "--size", "tiny", "--clients", "2", "--requests", "1"]
    command += ["--rounds", "1", "--threads", "1", "--load-clients", "16", "--load-seconds", "3"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    result = read(tmp_path / "out.json")
    assert all(result["throughput"][kind]["ratio"] > 0 for kind in ("completions", "embeddings", "classification"))
    outcomes = result["load"]["outcomes"]
    assert all(set(outcomes[role]) <= {"200", "429"} for role in ("completions", "streams", "embeddings"))
    assert set(outcomes["oversized bodies"]) == {"413"} and set(outcomes["slow senders"]) == {"408"}
    assert set(outcomes["hostile bodies"]) <= {"400", "403", "404", "422"} and result["load"]["health_after"] == 200
    assert "| completions | pretune |" in done.stdout and "| deaf clients | closed" in done.stdout


def test_pack(run: Run, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data/tasks/rte").mkdir(parents=True)
    (tmp_path / "data/tasks/rte/dev.tsv").write_text("a\tb\n")
    shutil.copytree(home / "corpora", tmp_path / "data/corpora")
    monkeypatch.chdir(tmp_path)
    facts = json.loads(run("pack", "studies", "--out", "out", "--shards", 1, data=tmp_path / "data"))
    files = {str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file()}
    corpora = {
        f"corpora/{name}.txt.xz" for name in ("wikipedia-en/train-00", "wikipedia-en/valid", "books-en/train-00")
    }
    assert files == corpora | {"tasks/rte/dev.tsv"} and facts["files"] == 4
    facts = json.loads(run("pack", "embeddings", "--out", "packages", data=tmp_path / "data"))
    weights = next(Path("packages").rglob("*.safetensors"))
    assert 40e6 < weights.stat().st_size < 50e6 and facts["bytes"] < 64e6
    with pytest.raises(SystemExit, match="not empty"):
        run("pack", "studies", "--out", "packages", data=tmp_path / "data")
    assert weights.exists()


def test_fill(run: Run, tmp_path: Path, home: Path) -> None:
    words = ("--objective", "prefix", "--length", 64, "--tokens", 1024, "--out", tmp_path / "out.json")
    run("fill", home / "data", *words)
    assert all(0 < share <= 1 for row in read(tmp_path / "out.json").values() for share in row["fill"])


@pytest.mark.slow
def test_reading(run: Run, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent / "src"))
    run("reading", "--megabytes", 1, "--out", tmp_path / "out.json", data=home)
    assert len(read(tmp_path / "out.json")) == 6


@pytest.mark.slow
def test_prepare(run: Run, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed (extra 'peers')")
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent / "src"))
    words = ("--megabytes", 0.05, "--workers", 1, "--tokenizer", home / "tok", "--out", tmp_path / "out.json")
    run("prepare", *words, data=home)
    assert read(tmp_path / "out.json")["ratio"]["wall_clock"] > 0


@pytest.mark.slow
def test_startup(run: Run) -> None:
    result = json.loads(run("startup", "--repeats", 1))
    assert all(0 < times["wall_clock"] < 300 for times in result["seconds"].values())


@pytest.mark.slow
def test_ranks(run: Run) -> None:
    result = json.loads(run("ranks", "--model", "bert-tiny", "--steps", 6, "--repeats", 1))
    assert result["ratio"]["wall_clock"] > 0


@pytest.mark.slow
def test_embed(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    run("embed", "--device", "cpu", "--texts", 8, "--rounds", 1, "--out", tmp_path / "out.json")
    assert read(tmp_path / "out.json")["same"]
    run("embed", "--device", "cpu", "--single", "3", "--out", tmp_path / "single.json")
    assert read(tmp_path / "single.json")["milliseconds by words"]["3"]["ratio"] > 0


def test_sentences_to_embed_are_distinct_and_real(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETUNE_DATA", str(home))
    corpus = load("common").read_corpus("wikipedia-en/valid")
    texts = load("embed").read_sentences("wikipedia-en/valid", 900)
    assert len({*texts}) == 900 and all(text in corpus for text in texts[:300])
    assert sum(text in corpus for text in texts[-200:]) < 10
    assert {*" ".join(texts).split()} <= {*corpus.split()}
    mean, last = (sum(len(text.split()) for text in part) / len(part) for part in (texts[:300], texts[-200:]))
    assert last == pytest.approx(mean, rel=0.2)


@pytest.mark.slow
def test_decoder(run: Run, tmp_path: Path) -> None:
    out = ("--device", "cpu", "--out", tmp_path / "out.json")
    run("decoder", "speed", "--batches", "1,2", "--prompt", 8, "--new", 3, "--rounds", 1, *out)
    result = read(tmp_path / "out.json")
    names = {"pretune bf16", "pretune int8", "pretune nf4", "transformers bf16"}
    assert {*result["rows"]["1"]} == {*result["rows"]["2"]} == names
    assert not any("error" in row for rows in result["rows"].values() for row in rows.values())
    (tmp_path / "text.txt").write_text("\n\n".join(load("common").make_sentences(400, 12)))
    run("decoder", "perplexity", "--text", tmp_path / "text.txt", *out)
    rows = read(tmp_path / "out.json")["rows"]
    assert 0 < abs(rows["int8"]["change"]) < abs(rows["nf4"]["change"]) < 0.1
    assert max(rows[kind]["megabytes"] for kind in ("int8", "nf4")) < rows["unquantized"]["megabytes"]


@pytest.mark.slow
def test_core_throughput(run: Run, tmp_path: Path) -> None:
    words = ("--only", "gpt2", "--rounds", 1, "--steps", 1, "--narrow", "--out", tmp_path / "out.json")
    run("core_throughput", *words)
    assert all(rate > 0 for row in read(tmp_path / "out.json")["rows"] for rate in row["ratio"].values())


@pytest.mark.slow
def test_real_text(run: Run, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOTE: the script patches the loop; the fixture of pytest restores it."""
    from pretune.runs.data_phases import DataPhases
    from pretune.training.loop import Loop

    monkeypatch.setattr(Loop, "run", Loop.run)
    monkeypatch.setattr(DataPhases, "open", DataPhases.open)
    words = ("--data", home / "data", "--tokenizer", home / "tok", "--width", 32, "--batch-tokens", 512)
    run("real_text", *words, "--length", 64, "--workers", 0, "--like-lengths", "--out", tmp_path / "out.json")
    assert all(ratio > 0 for ratio in read(tmp_path / "out.json")["ratio"].values())


@pytest.mark.slow
def test_exactness(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent / "src"))
    words = ("--data", home / "data", "--steps", 14, "--kill-after", 12, "--batch-tokens", 256, "--device", "cpu")
    assert run("exactness", *words)


@pytest.mark.slow
def test_studies(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is gone leaves its records: another one runs what is missing, and gets the same results."""
    names = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        names.append(str(tmp_path / f"{name}.yaml"))
        Path(names[-1]).write_text(yaml.safe_dump(make_tree(tmp_path / name, seeds=1), sort_keys=False))

    def run_studies(work: str, *options: object, code: int = 0) -> dict[str, dict[str, Any]]:
        folder, out = tmp_path / work, tmp_path / f"{work}.tar.gz"
        with pytest.raises(SystemExit) as exit_:
            run("studies", *names, "--scale", "class", "--jobs", 2, "--work", folder, "--out", out, *options)
        assert exit_.value.code == code
        results = {path.parent.name: read(path) for path in folder.glob("*/study.json")}
        return {
            name: {key: value for key, value in result.items() if key != "cost"} for name, result in results.items()
        }

    assert run_studies("none", "--seconds", 0, code=75) == {}

    def stop_when_planned() -> None:
        while not [*(tmp_path / "stopped").glob("*/plan.json")]:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    handler, thread = signal.getsignal(signal.SIGTERM), threading.Thread(target=stop_when_planned)
    thread.start()
    assert run_studies("stopped", code=75) == {} and signal.getsignal(signal.SIGTERM) is handler
    thread.join()
    with tarfile.open(tmp_path / "stopped.tar.gz") as archive:
        assert {"first/plan.json", "second/plan.json"} & {*archive.getnames()}
    words = ("--scale", "class", "--work", tmp_path / "first_steps", "--out", tmp_path / "first.tar.gz")
    run("studies", *names, *words, "--first", "tokenizer")
    with tarfile.open(tmp_path / "first.tar.gz") as archive:
        records = [name for name in archive.getnames() if name.endswith(".json") and name.count("/") == 2]
    assert len(records) == 2 and all("/tokenizer-" in name for name in records)
    whole = run_studies("whole", "--restore", tmp_path / "first.tar.gz")
    assert sorted(whole) == ["first", "second"]
    with tarfile.open(tmp_path / "whole.tar.gz") as archive:
        archive.extractall(tmp_path / "lost", filter="data")
    next((tmp_path / "lost/first/steps").glob("finetune-*.json")).unlink()
    load("studies").save(tmp_path / "lost", tmp_path / "lost.tar.gz")
    assert run_studies("again", "--restore", tmp_path / "lost.tar.gz") == whole
    folders = [path.name.partition("-")[0] for path in (tmp_path / "again/first/steps").iterdir() if path.is_dir()]
    assert sorted(folders) == ["data", "finetune", "pretrain", "tokenizer"]
    (tokenizer,) = [path.name for path in (tmp_path / "again/second/steps").iterdir() if path.is_dir()]
    assert tokenizer.startswith("tokenizer-")  # small enough to be kept
