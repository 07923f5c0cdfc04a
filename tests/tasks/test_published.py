"""Every task of the table: its facts, and its published files where they are there."""

import string
from itertools import islice
from pathlib import Path

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.metrics import METRICS
from pretune.tasks import TASKS
from pretune.tasks.benchmarks.conll import is_tree
from pretune.tasks.example import Example
from tests.selection import keep_quick

# Folders of the data directory where fewer examples are read than its table says, and how many: rows without a text
# (mpqa) and rows whose right choice was lost (arc).
FEWER = {"mpqa": 3, "arc": 153}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_whole(name: str) -> None:
    task = TASKS.get(name)
    assert task.name == name
    assert task.metrics and all(metric in METRICS for metric in task.metrics)
    assert task.splits and all(files for files in task.splits.values())
    assert len({*task.labels}) == len(task.labels)
    assert bool(task.labels) == (task.kind in ("classification", "pair", "tagging", "srl", "dependency"))
    assert (task.scale is not None) == (task.kind == "regression")
    if task.template is not None and task.template.targets and task.labels:
        assert len(task.template.targets) == len(task.labels)


def check(name: str, example: Example) -> None:
    """Check the fields of every example of a kind."""
    task = TASKS.get(name)
    assert example.text.strip()
    assert example.pair is None or example.pair.strip()
    match task.kind:
        case "classification" | "pair":
            assert type(example.label) is int and 0 <= example.label < len(task.labels)
            assert (example.pair is not None) == (task.kind == "pair")
        case "regression":
            assert task.scale and task.scale[0] <= float(example.label or 0) <= task.scale[1]
        case "dependency":
            assert len(example.words) == len(example.tags) == len(example.heads) and is_tree(example.heads)
            assert {*example.tags} <= {*task.labels}
        case "coreference":
            assert example.clusters is not None and sum(example.sentences) == len(example.words) > 0
        case "tagging" | "srl":
            assert len(example.words) == len(example.tags) > 0
            assert {*example.tags} <= {*task.labels} and all(example.words)
        case "span":
            assert example.pair is not None and len(example.spans) == len(example.answers)
            assert all(
                example.pair[start:end] == text
                for (start, end), text in zip(example.spans, example.answers, strict=True)
            )
        case "choice" | "cloze-choice":
            assert type(example.label) is int and 0 <= example.label < len(example.choices)
            assert len(example.choices) > 1 and all(choice.strip() for choice in example.choices)
        case "generation" | "cloze":
            assert example.target and example.target.strip()
        case "pairs":
            assert example.pair is not None  # NOTE: one pair of BLiMP (passive_1, 324) is twice the same sentence
        case "retrieval":
            assert example.id
    if task.template is not None:
        source, target = task.template.fill(example)
        assert source.strip() and target is not None


@pytest.mark.parametrize("name", keep_quick(TASKS, "stsb", "copa"))
def test_what_is_there_is_read_whole(name: str, shared_data: Path) -> None:
    task = TASKS.get(name)
    available = task.find_available(shared_data)
    if not available:
        pytest.skip(f"no files of {name} in {shared_data}")
    for split, files in available.items():
        count, labels = 0, set()
        for example in files.read():
            check(name, example)
            count += 1
            labels.add(example.label)
        assert count == (files.file.rows or count) > 0, split  # a split of articles has as many rows as they have
        if task.kind in ("classification", "pair"):
            assert labels == {*range(len(task.labels))}, split


def test_every_folder_is_a_name_and_every_count_the_table_s(shared_data: Path) -> None:
    table = (shared_data / "tasks" / "README.md").read_text()
    folders = {path.name for path in (shared_data / "tasks").iterdir() if path.is_dir()}
    assert folders <= {*TASKS}
    digits = set("".join(c if c in string.digits else " " for c in table.replace("\u202f", "")).split())
    for name in folders - {"arc", "sts12-16", "blimp", "multi30k"}:
        for split, files in TASKS.get(name).find_available(shared_data).items():
            rows = files.file.rows
            assert rows is not None and str(rows + FEWER.get(name, 0)) in digits, (name, split)
    arc = sum(files.file.rows or 0 for files in TASKS.get("arc").find_available(shared_data).values())
    assert arc + FEWER["arc"] == 2251 + 570 + 1119 + 299


EXACT = {
    ("cola", "dev", 0): ("The sailors rode the breeze clear of the rocks.", None, 1),
    ("sst2", "dev", 0): ("it 's a charming and often affecting journey . ", None, 1),
    ("mrpc", "dev", 0): (
        "He said the foodservice pie business doesn 't fit the company 's long-term growth strategy .",
        '" The foodservice pie business does not fit our long-term growth strategy .',
        1,
    ),
    ("stsb", "test", 0): ("A girl is styling her hair.", "A girl is brushing her hair.", 2.5),
    ("rte", "train", 0): (
        "No Weapons of Mass Destruction Found in Iraq Yet.", "Weapons of Mass Destruction Found in Iraq.", 1,
    ),
    ("qqp", "train", 0): (
        "What causes stool color to change to yellow?", "What can cause stool to come out as little balls?", 0,
    ),
    ("snli", "dev", 1): (
        "Two women are embracing while holding to go packages.", "Two woman are holding packages.", 0,
    ),
    ("wsc", "train", 0): (
        "Mark told Pete many lies about himself, which Pete included in his book. "
        "*He* should have been more skeptical.",
        "Mark",
        0,
    ),
    ("sst5", "dev", 1): ("one long string of cliches .", None, 1),
    ("emotion", "test", 0): ("im feeling rather rotten so im not very ambitious right now", None, 0),
    ("sts12", "test", 0): (
        "The problem likely will mean corrective changes before the shuttle fleet starts flying again.",
        "He said the problem needs to be corrected before the space shuttle fleet is cleared to fly again.",
        4.4,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "split", "row"), EXACT)
def test_text_is_exact(name: str, split: str, row: int, shared_data: Path) -> None:
    example = next(islice(TASKS.get(name).read(split, shared_data), row, None))
    assert (example.text, example.pair, example.label) == EXACT[name, split, row]


def test_entities_begin_with_b(shared_data: Path) -> None:
    first = next(TASKS.get("conll2003").read("train", shared_data))
    assert first.words[:4] == ("EU", "rejects", "German", "call")
    assert first.tags[:4] == ("B-ORG", "O", "B-MISC", "O")


def test_words_and_parts_of_speech(shared_data: Path) -> None:
    first = next(TASKS.get("ud_ewt").read("dev", shared_data))
    assert first.text == "From the AP comes this story :"
    assert first.tags == ("ADP", "DET", "PROPN", "VERB", "DET", "NOUN", "PUNCT")


def test_winogrande_s_answers_are_in_both_places(shared_data: Path) -> None:
    examples = list(TASKS.get("winogrande").read("train", shared_data))
    right_first = sum(example.label == 0 for example in examples)
    assert 0.45 < right_first / len(examples) < 0.55
    assert examples[0].text.endswith("until the _ was full.")
    assert examples[0].choices[int(examples[0].label or 0)] == "tank"


def test_what_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRETUNE_DATA", str(tmp_path))  # what is looked through as well
    task = TASKS.get("cola")
    with pytest.raises(UsageError, match=r"'cola'.*'dve'.*'dev'"):
        task.find("dve", "nowhere")
    with pytest.raises(DataError, match=r"'cola'.*'dev'.*nowhere/cola.*--data.*dev\.tsv"):
        task.find("dev", "nowhere")


def test_splits_of_two_directories_are_not_mixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place, split in (("own/cola", "train"), ("other/tasks/cola", "train"), ("other/tasks/cola", "dev")):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / f"{split}.tsv").write_text(f"gj04\t1\t\tOf {place}.\n")
    monkeypatch.setenv("PRETUNE_DATA", str(tmp_path / "other"))
    task = TASKS.get("cola")
    assert {*task.find_available(tmp_path / "own")} == {"train"}
    with pytest.raises(DataError, match="own/cola"):
        task.find("dev", tmp_path / "own")
    assert [example.text for example in task.read("dev", tmp_path / "empty")] == ["Of other/tasks/cola."]
    assert {*task.find_available()} == {"train", "dev"}
