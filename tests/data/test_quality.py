"""`prepare(quality=…)`: what it keeps, what the card says, and that processes, slices and order do not matter."""

import random
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.data.prepare import quality
from pretune.data.prepare.run import merge
from pretune.runs.prepare import prepare
from tests.data.texts import blocks, sentence, stories, story, texts_of, tree

GOOD, OTHER = [story(number) for number in range(0, 600, 4)], [story(number) for number in range(2, 600, 4)]
NOISE = ["".join(random.Random(n).choices("asdfghjkl ", k=150)).strip() for n in range(150)]


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[str, str]:
    """A corpus that is half noise, and a reference."""
    mixed = [text for pair in zip(GOOD, NOISE, strict=True) for text in pair]
    return blocks(tmp_path / "mixed.txt", mixed), blocks(tmp_path / "good.txt", OTHER)


@pytest.mark.usefixtures("small")
class TestFilter:
    def test_it_keeps_what_is_like_the_reference(
        self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path
    ) -> None:
        corpus, reference = inputs
        data = pt.prepare(
            [corpus], tokenizer=tokenizer, out=tmp_path / "d", quality=[reference], keep="50%", holdout="10%"
        )
        kept = [*texts_of(data), *texts_of(data, "valid")]
        assert len({*kept} & {*GOOD}) > 0.8 * len(kept) and texts_of(data, "valid")
        made, page = data.card["quality"], (data.path / "card.md").read_text()
        assert (made["kept_documents"], made["dropped_documents"]) == (150, 150) and made["accuracy"] > 0.6
        assert data.card["dropped"]["low_quality"] == 150 and "| low quality |  |  | 150 |" in page
        assert made["sources"] == [
            {"source": corpus, "documents": 300, "kept_documents": 150, "score": made["sources"][0]["score"]}
        ]
        assert [example["is_kept"] for example in made["examples"]] == [True] * 3 + [False] * 3
        scores = [example["score"] for example in made["examples"]]
        assert scores[2] > scores[3] and scores[:3] == sorted(scores[:3], reverse=True)
        for example in made["examples"]:
            assert any(
                " ".join(text.split()).startswith(example["text"].removesuffix(" …")) for text in [*GOOD, *NOISE]
            )
        assert page.count("\n## ") == 6 and f"{scores[0]:.2f}" in page
        assert data.card["command"].endswith(f"--quality {reference} --holdout 0.1 --keep 0.5")

    @pytest.mark.slow
    def test_processes_slices_and_order(self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path) -> None:
        corpus, reference = inputs
        options: Any = {"tokenizer": tokenizer, "quality": [reference], "keep": "30%", "clean": ["plain"], "near": 0.9}
        made = [prepare([corpus], out=tmp_path / f"w{n}", workers=n, **options) for n in (0, 2)]
        assert tree(made[0].path) == tree(made[1].path)
        slices = [tmp_path / f"s{n}" for n in (1, 2, 3)]
        for number, folder in enumerate(slices, 1):
            prepare([corpus], out=folder, shard=f"{number}/3", workers=0, **options)
        assert tree(merge(slices, out=tmp_path / "merged").path) == tree(made[0].path)
        turned = blocks(tmp_path / "turned.txt", [*NOISE, *GOOD[::-1]])
        other = prepare([turned], out=tmp_path / "turned", workers=0, **options)
        assert sorted(texts_of(other)) == sorted(texts_of(made[0]))

    def test_validation_text_is_not_filtered(self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path) -> None:
        corpus, reference = inputs
        valid = blocks(tmp_path / "valid.txt", NOISE[:20])
        data = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "d", valid=[valid], quality=[reference], keep=0.5)
        assert texts_of(data, "valid") == NOISE[:20]
        assert data.card["quality"]["kept_documents"] == 140 == len(texts_of(data))  # half of 300 - 20

    def test_the_published_threshold(self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path) -> None:
        data = prepare([inputs[0]], tokenizer=tokenizer, out=tmp_path / "d", quality=[inputs[1]])
        assert data.card["quality"]["shift"] == 0 and data.card["quality"]["keep"] is None
        assert 0 < data.card["quality"]["kept_documents"] < 300

    def test_the_sample_is_bounded(
        self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quality, "SAMPLE_NGRAMS", 4000)
        data = prepare([inputs[0]], tokenizer=tokenizer, out=tmp_path / "d", quality=[inputs[1]], keep="50%")
        counts = [data.card["quality"][f"{name}_documents"] for name in ("reference", "corpus")]
        assert all(10 < count < 40 for count in counts)

    def test_it_is_a_part_of_the_fingerprint(self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path) -> None:
        corpus, reference = inputs
        options: Any = {"tokenizer": tokenizer, "out": tmp_path / "d"}
        prepare([corpus], quality=[reference], keep="40%", **options)
        assert not prepare([corpus], quality=[reference], keep=0.4, **options).is_new
        with pytest.raises(DataError, match=r"keep is 0\.5, it was 0\.4"):
            prepare([corpus], quality=[reference], keep="50%", **options)
        blocks(Path(reference), stories(150, 6000))
        with pytest.raises(DataError, match=r"reference source .* has changed"):
            prepare([corpus], quality=[reference], keep="40%", **options)
        assert prepare([corpus], overwrite=True, **options).is_new


class TestMistakes:
    def test_an_empty_reference(self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path) -> None:
        (tmp_path / "empty.txt").write_text(" \n")
        with pytest.raises(DataError, match=r"empty\.txt"):
            prepare([inputs[0]], tokenizer=tokenizer, out=tmp_path / "d", quality=[tmp_path / "empty.txt"])
        assert not (tmp_path / "d").exists()

    def test_the_corpus_as_reference(self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path) -> None:
        copy = blocks(tmp_path / "copy.txt", [text for pair in zip(GOOD, NOISE, strict=True) for text in pair][::-1])
        for reference in (inputs[0], copy):
            with pytest.raises(DataError, match="corpus itself"):
                prepare([inputs[0]], tokenizer=tokenizer, out=tmp_path / "d", quality=[reference])
        assert not (tmp_path / "d").exists()

    def test_a_reference_that_says_little_is_a_warning(
        self, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        prose = [" ".join(sentence(random.Random(number)) for _ in range(5)) for number in range(600)]
        corpus, reference = blocks(tmp_path / "a.txt", prose[:300]), blocks(tmp_path / "b.txt", prose[300:])
        prepare([corpus], tokenizer=tokenizer, out=tmp_path / "d", quality=[reference], keep="50%")
        assert "accuracy" in capsys.readouterr().err

    @pytest.mark.parametrize("keep", ["130%", -0.1, "most", 0, "0%", "nan"])
    def test_a_share_that_cannot_be(
        self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path, keep: str | float
    ) -> None:
        with pytest.raises(UsageError, match="keep") as caught:
            prepare([inputs[0]], tokenizer=tokenizer, out=tmp_path / "d", quality=[inputs[1]], keep=keep)
        assert str(keep) in str(caught.value)

    def test_a_share_without_reference(self, inputs: tuple[str, str], tokenizer: Path, tmp_path: Path) -> None:
        with pytest.raises(PretuneError, match="--quality"):
            prepare([inputs[0]], tokenizer=tokenizer, out=tmp_path / "d", keep="30%")
