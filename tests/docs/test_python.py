"""Python on the pages runs as it stands there, in a folder that has what it names, on models of a few thousand weights.

Pages with `>>>` are run by doctest, those about data and extending by tests of their own.
"""

import contextlib
import gzip
import io
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.tasks.example import Example
from pretune.tasks.task import Task, TaskSplits
from pretune.text.tokenizer.training import train
from tests.conftest import ROOT
from tests.runs import tasked
from tests.runs.small import VOCAB

ELSEWHERE = {"data", "extending"}
LONG = {"finetune", "embeddings", "models", "exporters"}
"""Pages that run in `make test-slow` only."""
TASKS = {"evaluation", "finetune", "tasks", "embeddings"}
"""Pages that read published tasks."""
SHORTER: Mapping[str, Mapping[str, str]] = {
    "baselines": {
        "width=200": "width=20",
        "Glove(width=50)": "Glove(width=50, epochs=1)",
        '"cbow")': '"cbow", epochs=1)',
    },
    "text": {', "builtin:docs"': ""},
    "tokenizers": {"vocab=8000)  #": f"vocab={VOCAB['unigram']})  #"},
    "models": {'resolve("electra-small")': 'resolve("electra-small", {"width": 32, "depth": 1, "heads": 2})'},
    "finetune": {
        'method="lora", out': 'method="lora", steps=2, overrides={"task.train_examples": 40, '
        '"task.max_eval_examples": 20}, out'
    },
    "evaluation": {'"blimp,boolq"': '"mr,boolq"', "limit=500": "limit=8"},
    "tasks": {
        "predict(model, encoder, parts.dev)": "predict(model, encoder, dev)",
        "score(task, parts.dev,": "score(task, dev,",
    },
    "embeddings": {'out="runs/vectors"': 'out="runs/vectors", steps=2', "batch=128, epochs=2": "batch=4, epochs=1"},
    "pretrain": {'budget="10m"': "steps=2", '"train.lr": 1e-3': '"train.lr": 1e-3, "model.width": 32'},
}
"""What would take long, and what is run instead."""
FIRST = {
    ("inference", 1): 'model = pt.load("runs/small")',
    ("tasks", 2): "tasks, trains = [task, task], [parts.train, parts.train]",
    ("tasks", 3): "model = adapt(base, build_head(task, base)); dev = parts.dev[:20]",
}
"""What the prose before a block has said."""


def pages() -> list[str]:
    return [page.stem for page in sorted((ROOT / "docs").glob("*.md")) if snippets(page.stem)]


def snippets(page: str) -> list[tuple[str, str | None]]:
    """Blocks of Python without a prompt, each with the output that follows at once; not those that lists have."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```\n(?:```\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)
    return [(code, output or None) for code, output in found if ">>>" not in code]


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, tables, tokenizers and models under the names that pages give them."""
    home = tmp_path_factory.mktemp("pages")
    texts = tasked.corpus(60)
    (home / "books").mkdir()
    (home / "news").mkdir()
    for number, text in enumerate(texts[:40]):
        (home / f"books/{number}.txt").write_text(text)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[40:])
    for name in ("news.jsonl.gz", "news/a.jsonl.gz"):
        (home / name).write_bytes(gzip.compress(lines.encode()))
    made = train("wordpiece", texts, vocab=VOCAB["wordpiece"], style="cls-sep")
    made.save(home / "tok")
    train("unigram", texts, vocab=VOCAB["unigram"]).save(home / "my-tokenizer")
    base = tasked.make_base(home / "encoder", positions=128)
    for name in ("my-model", "runs/small", "runs/books", "runs/base"):
        shutil.copytree(base, home / name)
    shutil.copytree(tasked.make_base(home / "decoder", "gpt2-small", "bpe", "endoftext"), home / "runs/gpt")
    pt.prepare([home / "books"], tokenizer=made, out=home / "data", workers=0)
    for name in ("train", "dev"):
        tasked.table(home / f"{name}.csv", ("review", "stars"), [("a good sea", "5"), ("a bad sea", "1")] * 4)
    pairs = [(f"the old sea {word}", f"a grey sea {word}") for word in tasked.WORDS]
    (home / "pairs.tsv").write_text("anchor\tpositive\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    return home


def names(page: str) -> dict[str, Any]:
    """What a reader has by the time that a page uses it."""
    texts = tasked.corpus(60)
    found: dict[str, Any] = {"pt": pt, "texts": texts}
    if page == "adaptation":
        found |= {"batch": pt.batch([[1, 2, 3], [4, 5]])}
    if page == "baselines":
        examples = [Example(text=text, label=int("sea" in text)) for text in texts]
        task = Task(name="seas", kind="classification", metrics=("accuracy",), splits={}, labels=("dry", "wet"))
        found |= {"task": task, "parts": TaskSplits(train=examples, dev=[], test=examples[:10])}
    if page == "embeddings":
        found |= {"names": [str(number) for number in range(60)]}
    return found


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in pages() if page not in ELSEWHERE]
)
def test_a_page(
    page: str, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    home = tmp_path / "home"
    shutil.copytree(things, home)
    monkeypatch.chdir(home)
    if page in TASKS:
        shared: Path = request.getfixturevalue("shared_data")
        (home / "data/tasks").symlink_to(shared / "tasks")
    if page == "exporters":
        head = {"tune.pooling": {"mode": "mean"}}
        pt.finetune("runs/small", train="train.csv", steps=1, baselines="none", out="runs/labels", overrides=head)
        pt.export("runs/labels", to="hf", out="share/labels")
    if page == "reports":
        pt.finetune("runs/small", train="train.csv", steps=1, baselines="none", out="runs/sst2")
        shutil.rmtree("runs/books")
        pt.pretrain("bert-tiny", data="data", steps=1, out="runs/books", overrides={"model.width": 32})
    found, left = names(page), dict(SHORTER.get(page, {}))
    for number, (code, output) in enumerate(snippets(page)):
        for long, short in SHORTER.get(page, {}).items():
            if long in code:
                left.pop(long, None)
                code = code.replace(long, short)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(FIRST.get((page, number), "") + "\n" + code, f"docs/{page}.md", "exec"), found)
        assert output is None or shown.getvalue() == output
    assert not left, "what is made shorter is not on the page any more"


def test_blocks_are_found_with_their_output() -> None:
    assert len(pages()) > 14 and {"adaptation", "metrics", "tasks", "inference"} <= {*pages()}
    assert len(snippets("tasks")) == 5 and all(output for _, output in snippets("metrics"))
