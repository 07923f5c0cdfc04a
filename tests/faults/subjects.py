"""Every file that the package reads: the directories that hold them, small and valid, and the commands that read them.

A command has SUBJECT for the directory, and OUT for what it makes. To cover another format, add a maker of a directory
to `MAKERS` and its readers to `READERS`.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

import pretune as pt
from pretune.cli import main
from tests.cli.world import STUDY
from tests.contracts.tiny import model_of
from tests.inference import speakers
from tests.inference.readers import encoder
from tests.reports import report_files
from tests.runs import tasked

SMALL = ["--set=model.width=16", "--set=model.heads=2", "--set=model.depth=1", "--set=model.hidden=16",
         "--set=data.max_length=32", "--set=train.batch_tokens=64", "--set=train.samples_every=0"]  # fmt: skip
LINES = ["a lovely sea.", "the dreadful wind.", "an old house by the river."]


def run(*words: str) -> None:
    """A command that must succeed."""
    assert main(["--quiet", *words]) == 0, words


def pretrain(*words: str, out: str = "OUT", data: str = "data") -> list[str]:
    return [
        "pretrain",
        "bert-tiny",
        f"--data={data}",
        "--objective=masked",
        "--steps=2",
        f"--out={out}",
        *SMALL,
        *words,
    ]


def finetune(*words: str, base: str = "base", train: str = "table.csv", out: str = "OUT") -> list[str]:
    return ["finetune", base, f"--train={train}", "--steps=2", "--baselines=none", f"--out={out}", *words]


def make_texts(_: Path) -> None:
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("\n\n".join(tasked.corpus(40)))
    Path("lines.txt").write_text("\n".join(LINES) + "\n")
    tasked.classes(Path("table.csv"), 40)


def make_tokenizer(folder: Path) -> None:
    run("tokenizer", "texts", "--vocab=120", f"--out={folder}")


def make_bpe(folder: Path) -> None:
    run("tokenizer", "texts", "--kind=bpe", "--vocab=300", f"--out={folder}")


def make_unigram(folder: Path) -> None:
    run("tokenizer", "texts", "--kind=unigram", "--vocab=400", f"--out={folder}")


def make_data(folder: Path) -> None:
    run("prepare", "texts", "--tokenizer=tokenizer", f"--out={folder}", "--workers=0", "--holdout=0.2")


def make_slice(folder: Path) -> None:
    for number in (2, 1):
        words = ["--tokenizer=tokenizer", "--workers=0", "--holdout=0.2", f"--shard={number}/2"]
        run("prepare", "texts", f"--out={'other slice' if number == 2 else folder}", *words)


def make_base(folder: Path) -> None:
    run(*pretrain(out=str(folder)))


def make_killed(folder: Path) -> None:
    """A run that was killed after its first checkpoint."""
    shutil.copytree("base", folder)
    for name in ("cost.json", "config.json", "model.safetensors", "MANIFEST.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints" / "step-00000002")


def make_started(folder: Path) -> None:
    """A run that was killed before its first checkpoint."""
    folder.mkdir()
    shutil.copy("base/run.json", folder)
    (folder / ".lock").write_text('{"pid": 1, "host": "a", "since": "2020-01-01 00:00:00"}')


def make_tuned(folder: Path) -> None:
    run(*finetune(out=str(folder)))


PAIRS = ["finetune", "reader", "--train=pairs.tsv", "--type=embedding", "--steps=2"]


def make_embedding(folder: Path) -> None:
    Path("pairs.tsv").write_text(
        "anchor\tpositive\n" + "".join(f"{line} {n}\t{line}\n" for n in range(4) for line in LINES)
    )
    run(*PAIRS, f"--out={folder}")


def make_trials(folder: Path) -> None:
    run(*finetune("--lr=1e-3,1e-4", out=str(folder)))
    (folder / "cost.json").unlink()  # as killed before its end


def make_adapter(folder: Path) -> None:
    run(*finetune("--method=lora", out=str(folder)))


def make_peft(folder: Path) -> None:
    """An adapter of another library, on a saved model."""
    from pretune.adaptation.peft.io import save_adapter
    from pretune.adaptation.peft.lora import LoRA

    model, method = encoder(), LoRA(rank=2)
    method.apply(model)
    save_adapter(model, method, folder, base=str(Path("reader").absolute()))
    (folder / "adapter.json").unlink()
    (folder / "MANIFEST.json").unlink(missing_ok=True)


def make_reader(folder: Path) -> None:
    pt.save(encoder(), folder)


def make_sentences(folder: Path) -> None:
    """A model in the format of sentence-transformers."""
    pt.save(encoder(), folder)
    (folder / "MANIFEST.json").unlink()
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(
            (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
        )
    ]
    report_files.write(folder / "modules.json", modules)
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    report_files.write(folder / "1_Pooling" / "config.json", pooling)
    report_files.write(folder / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False})
    report_files.write(
        folder / "config_sentence_transformers.json", {"prompts": {"query": "q: "}, "default_prompt_name": None}
    )


def make_sharded(folder: Path) -> None:
    from tests.faults.test_names import sharded

    sharded(folder)


def make_writer(folder: Path) -> None:
    pt.save(speakers.gpt(), folder)


def make_llama(folder: Path) -> None:
    pt.save(model_of("llama3-1b"), folder)


def make_index(folder: Path) -> None:
    docs = [{"id": f"d{i}", "text": text} for i, text in enumerate(LINES)]
    report_files.lines(Path("docs.jsonl"), docs)
    run("index", "reader", "--input=docs.jsonl", f"--out={folder}")


def make_graph(folder: Path) -> None:
    """An approximate index, in two parts."""
    Path("many.txt").write_text("\n".join(f"{line} {number}" for number in range(30) for line in LINES))
    run("index", "reader", "--input=many.txt", f"--out={folder}", "--method=hnsw")


def make_reports(folder: Path) -> None:
    """Runs of every kind as a report shows them, and a comparison of them."""
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
    stages = [{"name": "a", "seconds": 1.0, "about": "b", "notes": ["c"]}]
    report_files.results(folder, runs=[path.name for path in runs], stages=stages, data="data")
    tree = json.loads((folder / "books" / "run.json").read_text())
    tree["data"]["path"] = "data"  # beside the run, so that the card of a copy is read
    report_files.write(folder / "books" / "run.json", tree)


def make_analyses(folder: Path) -> None:
    """A run with the files of `pretune analyze`."""
    shutil.copytree("base", folder)
    run("analyze", "attention", str(folder), "--input=lines.txt")


def make_study(folder: Path) -> None:
    folder.mkdir()
    (folder / "study.yaml").write_text(STUDY.replace("my texts", "texts"))


def make_study_results(folder: Path) -> None:
    Path("study.yaml").write_text(STUDY.replace("my texts", "texts"))
    run("compare", "study.yaml", "--seeds=1", f"--out={folder}")


def make_settings(folder: Path) -> None:
    """Settings of users, partial and complete."""
    from tests.runs.configs import build_finetune_config, build_pretrain_config

    folder.mkdir()
    (folder / "part.yaml").write_text(
        "model: {name: bert-tiny, depth: 1}\ndata: {path: data, max_length: 64}\nobjective: masked\n"
        "train:\n  steps: 20\n  lr: 1e-3\n  schedule: {floor: 0.1}\n  optimizer: {kind: lamb}\n"
    )
    config = build_pretrain_config(config=folder / "part.yaml", device="cpu")
    (folder / "complete.yaml").write_text(yaml.safe_dump(config.to_dict()))
    tuning = build_finetune_config("base", train="table.csv").to_dict()
    (folder / "tuning.yaml").write_text(yaml.safe_dump(tuning))


def make_vectors(folder: Path) -> None:
    folder.mkdir()
    run("vectors", "texts", "--kind=ppmi", "--width=8", f"--out={folder / 'vectors.txt'}")


def make_tables(folder: Path) -> None:
    """Tables and lines of JSON."""
    folder.mkdir()
    rows = [line.rsplit(",", 1) for line in Path("table.csv").read_text().splitlines()[1:]]
    report_files.lines(folder / "table.jsonl", [{"text": text, "label": label} for text, label in rows])
    report_files.lines(folder / "docs.jsonl", [{"id": f"d{i}", "text": text} for i, text in enumerate(LINES)])


MAKERS: dict[str, Callable[[Path], None]] = {
    "texts": make_texts, "tokenizer": make_tokenizer, "data": make_data, "slice": make_slice, "base": make_base,
    "reader": make_reader, "sentences": make_sentences, "sharded": make_sharded, "writer": make_writer,
    "llama": make_llama, "index": make_index, "reports": make_reports, "study": make_study, "vectors": make_vectors,
    "settings": make_settings, "peft": make_peft, "tuned": make_tuned, "tables": make_tables, "started": make_started,
    "killed": make_killed, "other data": make_data, "adapter": make_adapter, "trials": make_trials, "bpe": make_bpe,
    "unigram": make_unigram, "graph": make_graph, "analyses": make_analyses,
    "embedding": make_embedding, "study results": make_study_results,
}  # fmt: skip
"""Makers of the directories, each of which may use those before it."""

EMBED = ["--input=lines.txt", "--out=OUT.npy"]
REPORT = ["report", "SUBJECT", "--out=OUT.html"]
EXPORT = ["export", "SUBJECT", "--to=hf", "--out=OUT"]
EVALUATE = ["evaluate", "SUBJECT", "--text=lines.txt"]
PREPARE = ["prepare", "texts", "--workers=0", "--holdout=0.2"]

READERS: dict[str, list[list[str]]] = {
    "tokenizer": [
        [*PREPARE, "--tokenizer=SUBJECT", "--out=OUT"],
        ["show-batch", "masked", "--text=A sea.", "--tokenizer=SUBJECT"],
    ],
    "bpe": [[*PREPARE, "--tokenizer=SUBJECT", "--out=OUT"]],
    "unigram": [[*PREPARE, "--tokenizer=SUBJECT", "--out=OUT"]],
    "data": [
        pretrain(data="SUBJECT"),
        [*PREPARE, "--tokenizer=tokenizer", "--out=SUBJECT"],
        [*PREPARE, "--tokenizer=tokenizer", "--out=SUBJECT", "--overwrite"],
    ],
    "slice": [["prepare", "SUBJECT", "other slice", "--merge", "--out=OUT"]],
    "base": [
        ["show", "./SUBJECT"],
        ["verify", "SUBJECT"],
        REPORT,
        ["fill", "SUBJECT", "the ___ sea."],
        EVALUATE,
        EXPORT,
        ["pretrain", "--resume", "--out=SUBJECT"],
        ["pretrain", "bert-tiny", "--data=data", "--steps=2", "--out=OUT", "--from=SUBJECT"],
        pretrain("--teacher=SUBJECT"),
        finetune(base="SUBJECT"),
        ["pretrain", "--config=SUBJECT/run.json", "--out=OUT"],
        ["pretrain", "--config=SUBJECT", "--dry-run", "--out=OUT"],
    ],
    "other data": [finetune("--forgetting=SUBJECT")],
    "killed": [["pretrain", "--resume", "--out=SUBJECT"], ["verify", "SUBJECT"], REPORT],
    "started": [["pretrain", "--resume", "--out=SUBJECT"]],
    "tuned": [
        ["predict", "SUBJECT", "--input=lines.txt"],
        ["predict", "SUBJECT", "tuned", "--input=lines.txt"],
        ["verify", "SUBJECT"],
        REPORT,
        ["finetune", "--resume", "--out=SUBJECT"],
        ["finetune", "--config=SUBJECT/run.json", "--out=OUT"],
        ["finetune", "--config=SUBJECT", "--dry-run", "--out=OUT"],
        ["export", "SUBJECT", "tuned", "--to=hf", "--out=OUT"],
        finetune("--teacher=SUBJECT"),
        ["show", "./SUBJECT"],
    ],
    "trials": [["finetune", "--resume", "--out=SUBJECT"], ["verify", "SUBJECT"], REPORT],
    "adapter": [["predict", "SUBJECT", "--input=lines.txt"], ["verify", "SUBJECT"], EXPORT],
    "peft": [["embed", "SUBJECT", *EMBED], ["verify", "SUBJECT"]],
    "sentences": [["embed", "SUBJECT", *EMBED], EXPORT, ["verify", "SUBJECT"]],
    "embedding": [[*PAIRS, "--resume", "--out=SUBJECT"], ["embed", "SUBJECT", *EMBED], REPORT],
    "sharded": [["verify", "SUBJECT"], ["show", "./SUBJECT"]],
    "writer": [["generate", "SUBJECT", "The king", "--max-new-tokens=2"], ["verify", "SUBJECT"], EVALUATE],
    "llama": [["show", "./SUBJECT"], ["verify", "SUBJECT"]],
    "index": [
        ["search", "SUBJECT", "the lovely sea"],
        ["search", "SUBJECT", "the lovely sea", "--bm25"],
        ["index", "reader", "--input=lines.txt", "--add", "--out=SUBJECT"],
    ],
    "graph": [
        ["search", "SUBJECT", "the lovely sea"],
        ["index", "reader", "--input=lines.txt", "--add", "--out=SUBJECT"],
    ],
    "reports": [REPORT],
    "analyses": [REPORT],
    "study": [["compare", "SUBJECT/study.yaml", "--dry-run", "--out=OUT"]],
    "study results": [
        ["compare", "study.yaml", "--seeds=1", "--out=SUBJECT"],
        ["compare", "study.yaml", "--seeds=1", "--merge=SUBJECT", "--out=OUT"],
    ],
    "settings": [
        ["pretrain", "--config=SUBJECT/part.yaml", "--dry-run", "--out=OUT"],
        ["pretrain", "--config=SUBJECT/complete.yaml", "--dry-run", "--out=OUT"],
        ["finetune", "--config=SUBJECT/tuning.yaml", "--dry-run", "--out=OUT"],
    ],
    "vectors": [
        ["neighbors", "SUBJECT/vectors.txt", "sea"],
        ["embed", "SUBJECT/vectors.txt", *EMBED],
    ],
    "tables": [
        ["predict", "tuned", "--input=SUBJECT/table.jsonl"],
        finetune(train="SUBJECT/table.jsonl"),
        ["prepare", "SUBJECT/docs.jsonl", "--workers=0", "--tokenizer=tokenizer", "--out=OUT"],
        ["index", "reader", "--input=SUBJECT/docs.jsonl", "--out=OUT"],
        ["search", "index", "--queries=SUBJECT/docs.jsonl"],
    ],
}  # fmt: skip
"""The commands that read each directory."""


QUICK = ("tokenizer", "slice", "started", "peft", "sentences", "writer", "index", "reports", "study", "settings")
"""Directories that the default suite changes."""


def select_files(subject: Path, command: list[str]) -> list[Path]:
    """Return the files that a command may read: the one that it names, or all."""
    named = [Path(subject, word.partition("SUBJECT/")[2]) for word in command if "SUBJECT/" in word]
    return named or sorted(
        path for path in subject.rglob("*") if path.is_file() and path.suffix not in (".md", ".html")
    )
