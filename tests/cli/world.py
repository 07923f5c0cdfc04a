"""A folder where every verb has been used once: texts, a table, runs, an index. Names have spaces, as people's do."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pretune as pt
from pretune.cli import main
from tests.inference import speakers
from tests.runs import tasked

SMALL = ["--set", "model.width=32", "--set", "model.heads=2", "--set", "data.max_length=32",
         "--set", "train.batch_tokens=256"]  # fmt: skip
STUDY = """
title: Rates
about: Two masking rates.
question: Is a low or a high rate better?
paper: {citation: "Somebody (2020): Rates"}
settings:
  corpus: [my texts]
  model: bert-tiny
  tokenizer: {kind: wordpiece, vocab: 120}
  pretrain: {objective: masked, steps: 2, model: {width: 32, heads: 2}, data.max_length: 32, train.batch_tokens: 256}
rows: {low: {pretrain.objective.rate: 0.15}, high: {pretrain.objective.rate: 0.5}}
measures: {loss: {kind: validation}}
claims: [{text: A low rate is better., measure: loss, better: low, worse: high}]
"""
LINES = ["a lovely sea.", "the dreadful wind.", "an old house by the river."]


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, as `contextlib.chdir` does."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def make(folder: Path) -> Path:
    """Build it; the folder."""
    with inside(folder):
        Path("my texts").mkdir()
        Path("my texts/a.txt").write_text("\n\n".join(tasked.corpus()))
        Path("lines.txt").write_text("\n".join(LINES) + "\n")
        Path("docs.jsonl").write_text(
            "".join(json.dumps({"id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(LINES))
        )
        tasked.classes(Path("my table.csv"), 40)
        Path("my study.yaml").write_text(STUDY)
        pt.save(speakers.gpt(), "writer")
        for words in (
            ["tokenizer", "my texts", "--vocab=120", "--out=tok"],
            ["prepare", "my texts", "--tokenizer=tok", "--out=data", "--workers=0"],
            ["pretrain", "bert-tiny", "--data=data", "--objective=masked", "--steps=2", "--out=my runs/base", *SMALL],
            [
                "finetune",
                "my runs/base",
                "--train=my table.csv",
                "--steps=2",
                "--baselines=none",
                "--out=my runs/tuned",
            ],
            ["index", "my runs/base", "--input=docs.jsonl", "--out=my index"],
        ):
            assert main(["--quiet", *words]) == 0, words
    return folder


COMMANDS: dict[str, list[str]] = {
    "list": ["objectives"],
    "show": ["my runs/base"],
    "show-batch": ["masked"],
    "tokenizer": ["my texts", "--vocab=100", "--out=OUT"],
    "prepare": ["my texts", "--tokenizer=tok", "--workers=0", "--out=OUT"],
    "pretrain": ["bert-tiny", "--data=data", "--objective=masked", "--steps=1", "--out=OUT", *SMALL],
    "finetune": ["my runs/base", "--train=my table.csv", "--steps=1", "--baselines=none", "--out=OUT"],
    "predict": ["my runs/tuned", "--input=my table.csv"],
    "evaluate": ["my runs/base", "--text=lines.txt"],
    "generate": ["writer", "The king", "--max-new-tokens=4"],
    "fill": ["my runs/base", "the ___ sea."],
    "embed": ["my runs/base", "--input=lines.txt", "--out=OUT.npy"],
    "index": ["my runs/base", "--input=docs.jsonl", "--out=OUT"],
    "search": ["my index", "the lovely sea", "--hits=2"],
    "vectors": ["my texts", "--kind=ppmi", "--width=8", "--out=OUT.txt"],
    "neighbors": ["my runs/base", "sea", "--in=the sea.", "--corpus=lines.txt"],
    "analyze": ["attention", "my runs/base", "--input=lines.txt"],
    "compare": ["my study.yaml", "--seeds=1", "--out=OUT"],
    "report": ["my runs/tuned", "--out=OUT.html"],
    "verify": ["my runs/base"],
    "export": ["my runs/base", "--to=hf", "--out=OUT"],
    "env": [],
}
"""One small use of every verb but the quick start, which has tests of its own; OUT is what it makes."""

SILENT = {"env"}
"""What it says is for a bug report: nothing follows from it."""
