"""Other shapes and kinds: decoders, encoder-decoders, tags, choices, spans, written answers; each asked afterwards."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, MultiTask
from pretune.adaptation.heads.token import Generation
from pretune.core.errors import DataError, UsageError
from pretune.evaluation.baselines import run_baselines
from pretune.evaluation.embedding import compute_cosines
from pretune.inference.embed import build_embedder
from pretune.metrics.numeric import spearman
from pretune.models.catalog import resolve
from pretune.runs.finetune.adapted_model import build_task_head
from pretune.runs.finetune.config import AdaptationConfig, TaskConfig
from pretune.runs.finetune.entry import finetune, parse_baselines
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.inference import evaluate_run
from pretune.runs.finetune.results import compute_result
from pretune.runs.finetune.saved_task import SavedTask
from pretune.runs.finetune.task_data import TaskData, find_trainable_task, open_task
from pretune.tasks.example import Example
from pretune.tasks.task import Task, TaskSplits
from pretune.tasks.types import score
from tests.runs import tasked

QUICK: dict[str, Any] = {"train.eval_examples": 20, "data.max_length": 32}


def test_a_decoder_with_its_language_loss_beside_the_task(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path, "gpt2-small", kind="bpe", style="endoftext")
    table = tasked.classes(tmp_path / "own.jsonl", 60)
    changes = {**QUICK, "tune.lm_loss_weight": 0.5}
    run = finetune(base, train=table, out=tmp_path / "run", steps=10, baselines="none", overrides=changes)
    assert run.score is not None and run.predict(["the lovely sea"])[0]["label"] in ("bad", "good")
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert any("language" in line for line in lines)


def test_an_encoder_decoder_writes_the_label(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path, "t5-small", kind="unigram", style="sentinels")
    table = tasked.classes(tmp_path / "own.csv", 60)
    run = finetune(base, train=table, out=tmp_path / "run", steps=2, baselines="none", overrides=QUICK)
    said = run.predict(["the lovely sea"])[0]
    assert "text" in said and run.score is not None


@pytest.mark.slow
def test_tags(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path)
    run = finetune(base, train=tasked.tags(tmp_path / "own.conll"), out=tmp_path / "run", lr=1e-2, steps=40)
    assert run.scores["metric"] == "entity_f1" and run.scores["baselines"][0]["score"] > 0.9
    assert run.predict(["the old Anna sea"])[0]["tags"] == ["O", "O", "B-PER", "O"]
    again = run.predict([{"words": ["the", "old", "Anna", "sea"]}])
    assert again[0]["tags"] == ["O", "O", "B-PER", "O"]


@pytest.mark.parametrize("family", ["bert-tiny", "t5-small"])
def test_passages_some_of_which_have_no_answer(tmp_path: Path, family: str) -> None:
    """A span head has a threshold on no answer; a model that writes says nothing in words."""
    folder = tmp_path / "tasks" / "squad2"
    folder.mkdir(parents=True)
    for split, count in (("train-v2.0", 16), ("dev-v2.0", 8)):
        asked = [
            {"id": f"{i}", "question": "what is old?", "answers": [{"text": "sea", "answer_start": 8}] if i % 2 else []}
            for i in range(count)
        ]
        pages = [{"title": "t", "paragraphs": [{"context": "the old sea is grey", "qas": asked}]}]
        (folder / f"{split}.json").write_text(json.dumps({"version": "v2.0", "data": pages}))
    more = {"kind": "unigram", "style": "sentinels"} if family == "t5-small" else {}
    base = tasked.make_base(tmp_path, family, **more)
    changes = {**QUICK, "data.max_new_tokens": 4, "data.stride": 8}
    run = finetune(base, task="squad2", data=tmp_path, out=tmp_path / "run", steps=3, overrides=changes)
    assert (run.saved_task.threshold is None) == (family == "t5-small")
    assert [row["name"] for row in run.scores["baselines"]] == ["first_words", "near_words"]
    assert run.predict([{"question": "what is old?", "context": "the old sea"}])[0]["text"] is not None


@pytest.mark.slow
def test_scored_pairs_have_the_cosine_of_the_base_as_a_baseline(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path)
    draw = random.Random(0)
    words = ["old", "grey", "sea", "house", "wind", "lovely"]
    rows = ["sentence1\tsentence2\tscore"]
    for _ in range(60):
        one = draw.sample(words, 3)
        shared = draw.randrange(4)
        other = one[:shared] + [word for word in words if word not in one][: 3 - shared]
        rows.append(f"{' '.join(one)}\t{' '.join(other)}\t{shared + 0.5}")
    table = tmp_path / "own.tsv"
    table.write_text("\n".join(rows) + "\n")
    wish = {"train": table, "text": "sentence1", "pair": "sentence2", "label": "score", "steps": 2, "overrides": QUICK}
    run = finetune(base, out=tmp_path / "run", **wish)
    simple = {row["name"]: row for row in run.scores["baselines"]}
    assert set(simple) == {"mean", "ridge", "ridge_vectors", "cosine"} and "cosine" not in run.scores["not_run"]
    judged = [json.loads(line) for line in (run.path / "predictions.jsonl").read_text().splitlines()]
    split = run.scores["result"]["split"]
    texts = [(one["input"], one["pair"], one["gold"]) for one in judged if one["split"] == split]
    found = compute_cosines(build_embedder(base), [(one, other) for one, other, _ in texts])
    assert simple["cosine"]["scores"]["spearman"] == pytest.approx(spearman([gold for *_, gold in texts], found))
    random_base = finetune(base, out=tmp_path / "random", method="from-scratch", **wish)
    assert "cosine" in random_base.scores["not_run"]


@pytest.mark.slow
def test_several_tasks_at_once_in_words(tmp_path: Path) -> None:
    """One model, one head, each task scored by its own metric beside its own baselines."""
    two_tasks(tmp_path)
    base = tasked.make_base(tmp_path, "t5-small", kind="unigram", style="sentinels")
    changes = {**QUICK, "data.max_new_tokens": 4, "tune.temperature": 5}
    run = finetune(base, task="cola,sst2", data=tmp_path, out=tmp_path / "run", steps=4, overrides=changes)
    assert run.scores["metric"] == "average" and set(run.scores["result"]["scores"]) == {"average", "cola", "sst2"}
    simple = {row["name"]: row["scores"] for row in run.scores["baselines"]}
    assert simple["majority"]["cola"] == 0 and simple["majority"]["sst2"] == 0.5
    assert simple["majority"]["average"] == 0.25
    assert "text" in run.predict(["sst2 sentence: the lovely sea."])[0]
    assert "text" in run.select_task("sst2").predict(["the lovely sea."])[0]
    assert set(evaluate_run(run, task="cola", data=tmp_path).scores) == {"matthews"}
    with pytest.raises(UsageError, match="'cola,sst2'"):
        evaluate_run(run, data=tmp_path)


def two_tasks(folder: Path, sizes: tuple[int, int] = (40, 10)) -> None:
    """Files of CoLA and SST-2 with so many training examples."""
    rng = random.Random(0)
    for name, line in (
        ("cola", lambda i: f"gj04\t{i % 2}\t\t{tasked.sentence(rng)}"),
        ("sst2", lambda i: f"{tasked.sentence(rng, tasked.GOOD if i % 2 else tasked.BAD)}\t{i % 2}"),
    ):
        place = folder / "tasks" / name
        place.mkdir(parents=True)
        head = ["sentence\tlabel"] if name == "sst2" else []
        for split, count in (("train", sizes[name == "sst2"]), ("dev", 8)):
            (place / f"{split}.tsv").write_text("\n".join([*head, *map(line, range(count))]) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_several_tasks_at_once_with_a_head_each(tmp_path: Path, method: str) -> None:
    """An encoder cannot write: every step is of one task, and its head learns."""
    two_tasks(tmp_path, (20, 100))
    base = tasked.make_base(tmp_path)
    changes = {**QUICK, "train.batch": 16, "tune.temperature": 2}
    steps = 60 if method == "full" else 4
    run = finetune(
        base, task="cola,sst2", data=tmp_path, out=tmp_path / "run", method=method, steps=steps, lr=1e-2,
        baselines="none", overrides=changes,
    )  # fmt: skip
    model = pt.load(run)
    assert isinstance(model, ModelWithHead) and isinstance(model.spec, MultiTask) and len(model.spec.heads) == 2
    found = run.scores["result"]["scores"]["sst2"]
    assert method != "full" or found == 1.0  # which is there to be learnt; the other is not
    assert evaluate_run(run, task="sst2", data=tmp_path).scores["accuracy"] == found
    said = [json.loads(line) for line in (run.path / "predictions.jsonl").read_text().splitlines()]
    assert {(one["task"], one["gold"]) for one in said} >= {("cola", "acceptable"), ("sst2", "negative")}
    again = FinetunedRun.open(run).select_task("sst2").predict([one["input"] for one in said if one["task"] == "sst2"])
    assert [one["label"] for one in again] == [one["label"] for one in said if one["task"] == "sst2"]
    with pytest.raises(UsageError, match=r"--task .*cola, sst2"):
        run.predict(["the lovely sea."])
    with pytest.raises(UsageError, match="'mrpc'"):
        evaluate_run(run, task="mrpc", data=tmp_path)


def test_at_most_so_many_of_each(tmp_path: Path) -> None:
    """A large task is cut, a small one is whole; of a task alone it is the same."""
    two_tasks(tmp_path, (20, 100))
    wanted = TaskConfig(name="cola,sst2", data=str(tmp_path), max_examples_per_task=30)
    opened = open_task(wanted)
    assert [len(mine) for _, mine in opened.index_examples(opened.parts.train)] == [20, 30]
    assert any(note.startswith("sst2: 30 of 100") for note in opened.parts.notes)
    assert open_task(TaskConfig(name="sst2", data=str(tmp_path))).select_train(30, 0) == opened.members[1].parts.train
    assert len(open_task(replace(wanted, name="sst2")).parts.train) == 30
    with pytest.raises(UsageError, match=r"max_examples_per_task .*0"):
        replace(wanted, max_examples_per_task=0)


def test_who_writes_and_who_has_heads() -> None:
    both, tagged = find_trainable_task("cola,sst2"), find_trainable_task("cola,conll2003")
    encoder, writer = resolve("bert-tiny", {}), resolve("t5-small", {})
    assert isinstance(build_task_head(both, writer, None, AdaptationConfig()), Generation)
    assert isinstance(build_task_head(both, encoder, None, AdaptationConfig()), MultiTask)
    assert isinstance(build_task_head(both, writer, None, AdaptationConfig(text_to_text=False)), MultiTask)
    assert isinstance(build_task_head(tagged, writer, None, AdaptationConfig()), MultiTask)  # tags are not written
    with pytest.raises(UsageError, match="'conll2003'"):
        build_task_head(tagged, writer, None, AdaptationConfig(text_to_text=True))
    with pytest.raises(UsageError, match=r"'generation'.*'encoder'"):
        build_task_head(find_trainable_task("cola,xsum"), encoder, None, AdaptationConfig())


KEPT = {"name": "own", "max_length": 32, "stride": 8}


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("pair", "one text", "'pair'"),
        ("span", {"question": "who?"}, "'context'"),
        ("choice", {"text": "what?", "choices": ["one"]}, "'choices'"),
        ("classification", 3, r"\bint\b"),
        ("tagging", {"words": "a b"}, "'words'"),
        ("generation", {"other": "x"}, "'text'.*other"),
    ],
)
def test_an_input_that_is_not_enough_is_refused(kind: Any, given: Any, value: str) -> None:
    with pytest.raises(DataError, match=f"input 3.*{value}"):
        SavedTask(task_kind=kind, **KEPT).build_example(given, "input 3")  # type: ignore[arg-type]


def test_inputs_in_the_fields_that_people_use() -> None:
    kept = SavedTask(task_kind="pair", **KEPT)  # type: ignore[arg-type]
    wanted = ("a", "b")
    for given in (("a", "b"), {"premise": "a", "hypothesis": "b"}, {"text": "a", "pair": "b"}):
        found = kept.build_example(given, "")
        assert (found.text, found.pair) == wanted


@pytest.mark.parametrize(("metric", "low"), [("accuracy", 0.0), ("matthews", -1.0)])
def test_an_interval_ends_where_its_metric_does(metric: str, low: float) -> None:
    task = Task(name="own", kind="classification", metrics=(metric,), splits={}, labels=("a", "b"))
    some = [Example(text="x", label=0)]
    opened = TaskData(task=task, parts=TaskSplits(train=some, dev=some, test=some))
    trials = [{"seed": i, "scores": {split: {metric: float(i)} for split in ("dev", "test")}} for i in range(2)]
    found = compute_result(opened, trials)
    assert (found["low"], found["score"], found["high"]) == (low, 0.5, 1.0)


class TestBeside:
    """Baselines for every kind."""

    def task(self, kind: Any, metric: str, labels: tuple[str, ...] = ()) -> Task:
        return Task(name="own", kind=kind, metrics=(metric,), splits={}, labels=labels)

    def test_scores(self) -> None:
        some = [Example(text=f"{'sea ' * (i % 4)}wind", label=float(i % 4)) for i in range(40)]
        rows, absent = run_baselines(
            self.task("regression", "pearson_spearman"), some, some, ("majority", "svm", "vectors")
        )
        assert [row.name for row in rows] == ["mean", "ridge", "ridge_vectors"]
        assert "pairs" in absent["cosine"]
        assert {one.value for one in rows[0].predictions} == {1.5}
        for row in rows[1:]:
            found = score(self.task("regression", "pearson_spearman"), some, row.predictions)
            assert next(iter(found.values())) > 0.9
        assert "bilstm" in absent and "random" in absent

    def test_they_may_be_asked_for_by_their_own_names(self) -> None:
        assert parse_baselines("mean,ridge,svm") == ("majority", "svm")

    def test_choices(self) -> None:
        some = [Example(text="a grey stone", choices=("the stone is grey", "rivers"), label=0) for _ in range(8)]
        task = self.task("choice", "accuracy")
        rows, _ = run_baselines(task, some, some, ("majority", "svm", "vectors"))
        assert [next(iter(score(task, some, row.predictions).values())) for row in rows] == [1.0, 1.0, 1.0]

    def test_tags_by_the_word_and_its_neighbours(self) -> None:
        """The same word has another tag after another word."""
        pair = [
            Example(text="", words=("a", "saw", "cuts"), tags=("D", "N", "V")),
            Example(text="", words=("they", "saw", "it"), tags=("P", "V", "P")),
        ]
        task = self.task("tagging", "tag_accuracy", ("D", "N", "P", "V"))
        rows, absent = run_baselines(task, pair * 6, pair, ("majority", "svm"))
        found = [next(iter(score(task, pair, row.predictions).values())) for row in rows]
        assert found[0] < 1 and found[1] == 1.0 and "tagging" in absent["vectors"]

    def test_written_answers(self) -> None:
        some = [Example(text="one two three four", target="one two") for _ in range(4)]
        rows, absent = run_baselines(self.task("generation", "rouge"), some, some, ("majority", "svm"))
        assert rows[0].predictions[0].text == "one two" and "generation" in absent["svm"]

    def test_spans(self) -> None:
        passage = "The river is long. In winter the harbour of Kiel froze. Salt is sold there."
        some = [
            Example(text="Which harbour froze?", pair=passage, answers=("Kiel",), spans=((44, 48),)),
            Example(text="What is long?", pair=passage, answers=("The",), spans=((0, 3),)),
        ]
        task = self.task("span", "squad")
        rows, absent = run_baselines(task, some, some, ("majority", "svm", "vectors"))
        assert [one.text for one in rows[0].predictions] == ["The", "The"]
        assert rows[1].predictions[0].text in ("of", "Kiel") and "span" in absent["vectors"]
        assert all(one.text and one.text in passage for one in rows[1].predictions)

    def test_where_most_have_no_answer_none_is_given(self) -> None:
        some = [Example(text="who?", pair="it was Anna", answers=answers) for answers in ((), (), ("Anna",))]
        rows, _ = run_baselines(self.task("span", "squad2"), some, some, ("majority", "svm"))
        assert [[one.text for one in row.predictions] for row in rows] == [["", "", ""], ["", "", ""]]
