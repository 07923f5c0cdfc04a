"""Data of two sides in runs: read by what reads pairs, refused by nothing else, mixed with documents as asked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.data.pairs import ParallelSamples
from pretune.data.sampling import LimitedMixing
from pretune.objectives import build_objective
from pretune.objectives.causal import CausalLM
from pretune.objectives.mixture import Mixture, MixtureCorruption, Part
from pretune.objectives.prefix import PrefixLM
from pretune.objectives.span_corruption import SpanCorruption
from pretune.objectives.supervised import SupervisedSeq2seq
from pretune.runs.config import DataConfig
from pretune.runs.training_data import TrainingData
from pretune.text.tokenizer import Tokenizer
from tests.data.test_parallel import sides_of
from tests.runs.small import FAST, Prepared, shrunk

T5 = Mixture(parts=(Part(objective=SpanCorruption()), Part(objective=SupervisedSeq2seq())))


def opened(data: Path, objective: Any, shape: Any = "encoder-decoder", **options: Any) -> TrainingData:
    return TrainingData.open(DataConfig(path=str(data), max_length=64, **options), objective, shape)


def stream(source: TrainingData, split: str = "train", **options: Any) -> Any:
    wanted = {"length": 64, "tokens": 1024, "ranks": 1, "seed": 0, "has_fixed_slots": False, **options}
    return source.build_stream(split, **wanted)


@pytest.mark.parametrize("name", ["translation", "supervised"])
def test_data_without_sides_are_refused_in_one_line(
    name: str, prepared: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = ("wordpiece", "cls-sep") if name == "translation" else ("unigram", "sentinels")
    model = "bert-tiny" if name == "translation" else "t5-small"
    data = prepared(*kind)
    capsys.readouterr()  # what preparing logs
    assert main(["pretrain", model, "--data", str(data), "--objective", name, "--out", str(tmp_path / "r")]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and name in error and "pretune prepare" in error
    assert not (tmp_path / "r").exists()


def test_documents_among_pairs(prepared: Prepared) -> None:
    """`supervised` refuses them, `translation` masks them as they are, a mixture has parts for both."""
    both = prepared("unigram", "sentinels", "both")
    with pytest.raises(DataError, match=r"5\d .*supervised"):
        stream(opened(both, build_objective("supervised")))
    with pytest.raises(DataError, match=r"5\d .*mixture"):
        stream(opened(both, Mixture(parts=(Part(objective=SupervisedSeq2seq()),))))
    made = stream(opened(prepared("wordpiece", "cls-sep", "both"), build_objective("translation"), "encoder"))
    sides = np.concatenate([made.read_sequences(step)[0].sides for step in made.get_steps(0)])
    assert (sides > 0).sum() > 40 and (sides == 0).sum() > 40


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_a_pair_is_its_source_and_its_target(shape: str, prepared: Prepared) -> None:
    """What is read and what is asked are the sides, to the letter, each once per epoch."""
    data = prepared("unigram", "sentinels", "pairs")
    source = opened(data, build_objective("supervised"), shape)
    tokenizer, made, found = source.tokenizer, stream(source, length=400), []
    for step in made.get_steps(0):
        lesson, _ = made.read_sequences(step)
        for number in range(len(lesson)):
            one = lesson.take(np.array([number]))
            labels = one.targets[one.targets >= 0]
            read = one.tokens[: len(one.tokens) - len(labels)] if one.source is None else one.source.tokens
            assert read[-1] == labels[-1] == tokenizer.special["eos"]
            found.append((tokenizer.decode(read.tolist()), tokenizer.decode(labels.tolist())))
    plain = [tuple(side.removeprefix("<pad>").removesuffix("</s>").strip() for side in pair) for pair in found]
    assert sorted(plain) == sorted(tuple(side.strip() for side in pair) for pair in sides_of(source.data))


def test_a_mixture_reads_pairs_by_one_part_and_documents_by_others(prepared: Prepared) -> None:
    """Which part it is follows from the kind of document, then from (seed, epoch, sample): nothing else."""
    source = opened(prepared("unigram", "sentinels", "both"), T5)
    made = stream(source)
    assert isinstance(made.samples, ParallelSamples) and isinstance(made.corruption, MixtureCorruption)
    sentinels, seen = {*source.vocabulary.sentinels}, set()
    for step in made.get_steps(0):
        lesson, _ = made.read_sequences(step)
        halves = [made.read_sequences(step, part=part, parts=2)[0] for part in range(2)]
        assert [*np.concatenate([half.samples for half in halves])] == [*lesson.samples]
        for number, sample in enumerate(lesson.samples.tolist()):
            one = lesson.take(np.array([number]))
            pair = bool(made.samples.measure_lengths().second_lengths[sample])
            hidden = bool({*one.source.tokens.tolist()} & sentinels)
            assert pair != hidden, "a document has sentinels, a pair has none"
            seen.add(pair)
    assert seen == {True, False}


def test_weights_draw_among_the_parts_of_a_kind(prepared: Prepared) -> None:
    spec = Mixture(
        parts=(
            Part(objective=SupervisedSeq2seq()),
            Part(objective=CausalLM(), weight=3.0),
            Part(objective=PrefixLM(), weight=1.0),
        )
    )
    source = opened(prepared("unigram", "sentinels", "both"), spec, "decoder")
    made = stream(source)
    chosen: list[tuple[bool, int]] = []
    for epoch in range(12):
        for step in made.get_steps(epoch):
            draws, plan = made.get_epoch(epoch)
            which, _ = plan.get_batch(step - made.get_steps(epoch)[0])
            cut = made.samples.cut(draws.take(which))
            rng = reading_counters(made, cut)
            chosen += zip((cut.sides > 0).tolist(), made.corruption.choose_parts(cut, rng).tolist(), strict=True)
    pairs = [part for pair, part in chosen if pair]
    others = np.array([part for pair, part in chosen if not pair])
    assert {*pairs} == {0} and {*others} == {1, 2}
    assert abs((others == 1).mean() - 0.75) < 3 * np.sqrt(0.75 * 0.25 / len(others))


def reading_counters(made: Any, cut: Any) -> Any:
    from pretune.data.sampling import Counters

    return Counters.from_sequences(made.seed, cut, copies=None)


def test_a_mixture_without_pairs_is_that_of_documents(prepared: Prepared) -> None:
    """The default has a part for pairs; where there are none, all is as if it had not."""
    data = prepared("unigram", "sentinels")
    one, other = (stream(opened(data, spec)) for spec in (Mixture(), Mixture().keep_document_parts()))
    assert one.shape == other.shape
    assert (one[0].tokens == other[0].tokens).all()


def test_pairs_are_documents_to_all_others(prepared: Prepared) -> None:
    source = opened(prepared("unigram", "sentinels", "pairs"), build_objective("span_corruption"))
    made = stream(source)
    assert made.samples.lengths().sum() == len(made.samples.shards) + made.samples.template.special_count * len(
        made.samples
    )


def test_limits_by_examples(prepared: Prepared) -> None:
    """Sixty stories and sixty pairs; with a limit of ten, a round still has as many of one as of the other."""
    made = stream(opened(prepared("unigram", "sentinels", "both"), T5, mixing=LimitedMixing(limit=10)))
    assert abs(np.diff(made.mixture.quotas)[0]) <= 1 and (made.mixture.quotas > 10).all()


def test_a_run_of_both_is_resumable_and_written_down(prepared: Prepared, tmp_path: Path) -> None:
    """The whole command, with parts and limits in JSON as `--set` takes them."""
    parts = '[{"objective": {"kind": "span_corruption"}}, {"objective": {"kind": "supervised"}}]'
    changes = {**shrunk("t5-small"), **FAST, "objective.parts": parts}
    changes |= {"data.mixing": '{"kind": "limited", "limit": 30, "temperature": 2.0}'}
    data = prepared("unigram", "sentinels", "both")
    run = pt.pretrain("t5-small", data=data, objective="mixture", out=tmp_path / "r", steps=2, overrides=changes)
    tree = json.loads((tmp_path / "r/run.json").read_text())
    assert [part["objective"]["kind"] for part in tree["objective"]["parts"]] == ["span_corruption", "supervised"]
    assert tree["data"]["mixing"] == {"kind": "limited", "limit": 30, "temperature": 2.0}
    again = pt.pretrain(config=tmp_path / "r/run.json", out=tmp_path / "again")
    assert again.loss == run.loss


@pytest.mark.parametrize("length", [64, 2000])
def test_source_rows_are_as_long_as_they_need_be(length: int, prepared: Prepared) -> None:
    """Of a whole sequence with its frame, though no text may be so long: on either side nothing is left over."""
    made = stream(
        opened(prepared("unigram", "sentinels"), build_objective("span_corruption")), length=length, tokens=4096
    )
    assert (int(made.samples.lengths().max()) == length) == (length == 64)
    hidden = round(0.15 * (length - 1))
    spans = min(round(hidden / 3), len(made.corruption.sentinels) - 1)
    assert (made.shape.source, made.shape.length) == (length - hidden + spans, hidden + spans + 2)


def task(folder: Path, count: int = 30) -> Path:
    """A data directory with a small sentence task."""
    home = folder / "tasks" / "sst2"
    home.mkdir(parents=True)
    for split, rows in (("train", count), ("dev", 4)):
        lines = ["sentence\tlabel", *(f"film number {split} {n} is good\t{n % 2}" for n in range(rows))]
        (home / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_tasks_as_pairs(prepared: Prepared, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(prepared("unigram", "sentinels") / "tokenizer")
    where = task(tmp_path)
    data = pt.prepare(["task:sst2"], tokenizer=tokenizer, out=tmp_path / "d", data=where, holdout=0)
    assert data.index.sources == ("task:sst2",) and data.index.splits["train"].pairs == 30
    wanted = [(f"sst2 sentence: film number train {n} is good", ["negative", "positive"][n % 2]) for n in range(30)]
    assert [tuple(side.strip() for side in pair) for pair in sides_of(data)] == wanted
    assert not pt.prepare(["task:sst2"], tokenizer=tokenizer, out=tmp_path / "d", data=where, holdout=0).is_new
    (where / "tasks/sst2/dev.tsv").write_text("sentence\tlabel\nanother\t1\n")
    with pytest.raises(DataError, match="task:sst2"):
        pt.prepare(["task:sst2"], tokenizer=tokenizer, out=tmp_path / "d", data=where, holdout=0)
    other = pt.prepare(["task:sst2"], valid=["task:sst2:dev"], tokenizer=tokenizer, out=tmp_path / "e", data=where)
    assert other.index.splits["valid"].pairs == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task:sst", "'sst'"),
        ("task:sst2:tran", "'tran'.*'train'"),
        ("task:blimp", "'blimp'"),
        ("task:cola", "'train'"),
    ],
)
def test_tasks_that_are_not_there(
    name: str, value: str, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)  # where they may be
    folder = prepared("unigram", "sentinels") / "tokenizer"
    with pytest.raises(PretuneError, match=value) as caught:
        pt.prepare([name], tokenizer=folder, out=tmp_path / "d", data=task(tmp_path))
    assert "\n" not in str(caught.value)


def test_what_reads_pairs_only_in_a_mixture_of_its_own() -> None:
    assert Mixture().pairs == "apart" and Mixture().reads_documents and Mixture().keep_document_parts().pairs is None
    with pytest.raises(UsageError):
        Mixture(parts=(Part(objective=SupervisedSeq2seq()),)).keep_document_parts()
    nested = Mixture(parts=(Part(objective=Mixture()), Part(objective=SupervisedSeq2seq(), weight=2.0)))
    assert nested.keep_document_parts() == Mixture(parts=(Part(objective=Mixture().keep_document_parts()),))


def test_pairs_that_are_too_long_are_told_and_rows_may_be_longer_than_positions(
    prepared: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    data = prepared("unigram", "sentinels", "pairs")
    source = TrainingData.open(
        DataConfig(path=str(data), max_length=64), build_objective("supervised"), "encoder-decoder", max_positions=64
    )
    made = stream(source)
    pairs = len(made.samples)
    assert f"{pairs} of {pairs}" in capsys.readouterr().err
    assert max(side.max() for side in made.samples.measure_lengths()[:2]) <= 64
    with pytest.raises(UsageError, match=r"\b16\b"):
        stream(
            TrainingData.open(
                DataConfig(path=str(data), max_length=64),
                build_objective("supervised"),
                "encoder-decoder",
                max_positions=16,
            )
        )
    wide = TrainingData.open(
        DataConfig(path=str(data), max_length=400), build_objective("supervised"), "encoder-decoder", max_positions=150
    )
    assert stream(wide, length=400, tokens=4096).shape.source >= 400
