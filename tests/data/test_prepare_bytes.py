"""The same bytes for any number of processes and slices; what is up to date stays, what is not is noticed."""

import functools
import gzip
import json
import lzma
import random
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.data.prepare import encoding, run
from pretune.data.prepare.pool import map_ordered
from pretune.data.prepare.run import merge
from pretune.data.shards import Shards
from pretune.runs.prepare import prepare
from pretune.text.corpora import items
from pretune.text.corpora.tables import split_documents
from tests.data.texts import MANY, blocks, byte_tokenizer, story, texts_of, tree
from tests.selection import keep_quick


def sliced(corpus: list[str], count: int, folder: Path, **options: Any) -> list[Path]:
    """Slices made one by one, in a random order."""
    numbers = random.Random(0).sample(range(1, count + 1), count)
    for number in numbers:
        made = prepare(corpus, out=folder / f"s{number}", shard=f"{number}/{count}", workers=0, **options)
        assert made.slice == f"{number}/{count}" and made.tokens == 0
    return [folder / f"s{number}" for number in numbers]


@pytest.mark.usefixtures("small")
class TestSameBytes:
    OPTIONS = ({}, {"near": 0.7, "holdout": "10%", "clean": ["plain"]})

    @pytest.mark.parametrize("options", OPTIONS, ids=["plain", "near"])
    def test_workers(self, corpus: str, tokenizer: Path, tmp_path: Path, options: Any) -> None:
        made = [
            prepare([corpus], tokenizer=tokenizer, out=tmp_path / str(workers), workers=workers, **options)
            for workers in (0, 1, 3)
        ]
        assert tree(made[0].path) == tree(made[1].path) == tree(made[2].path)
        every = [*MANY, *(story(1000 + number) for number in range(5))]
        assert Counter(texts_of(made[0]) + texts_of(made[0], "valid")) == Counter(every)

    @pytest.mark.slow
    def test_processes_that_are_spawned(
        self, corpus: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alone = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "alone", workers=0)
        monkeypatch.setattr(run, "map_ordered", functools.partial(map_ordered, method="spawn"))
        spawned = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "spawned", workers=2)
        assert tree(alone.path) == tree(spawned.path)

    @pytest.mark.parametrize("options", OPTIONS, ids=["plain", "near"])
    @pytest.mark.parametrize("count", keep_quick([1, 3, 12], 3))
    def test_slices(self, corpus: str, tokenizer: Path, tmp_path: Path, count: int, options: Any) -> None:
        whole = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "whole", workers=0, **options)
        found = sliced([corpus], count, tmp_path, tokenizer=tokenizer, **options)
        assert tree(merge(found, out=tmp_path / "merged").path) == tree(whole.path)
        assert merge(found, out=tmp_path / "merged").is_new is False

    def test_slices_with_validation_text(self, tokenizer: Path, tmp_path: Path) -> None:
        train, valid = blocks(tmp_path / "t.txt", MANY[:200]), blocks(tmp_path / "v.txt", MANY[150:260])
        options = {"tokenizer": tokenizer, "valid": [valid]}
        whole = prepare([train], out=tmp_path / "whole", workers=0, **options)
        assert texts_of(whole) == MANY[:150] and texts_of(whole, "valid") == MANY[150:260]
        merged = merge(sliced([train], 4, tmp_path, **options), out=tmp_path / "merged")
        assert tree(merged.path) == tree(whole.path)

    @pytest.mark.parametrize("name", keep_quick(["a.txt.gz", "a.txt.xz"], "a.txt.gz"))
    def test_compressed_text_is_read_here(self, tokenizer: Path, tmp_path: Path, name: str) -> None:
        plain = Path(blocks(tmp_path / "a.txt", MANY)).read_bytes()
        (tmp_path / name).write_bytes(gzip.compress(plain) if name.endswith("gz") else lzma.compress(plain))
        made = [
            prepare([str(tmp_path / name)], tokenizer=tokenizer, out=tmp_path / f"{name}{workers}", workers=workers)
            for workers in (0, 2)
        ]
        assert tree(made[0].path) == tree(made[1].path)
        assert sorted(texts_of(made[0]) + texts_of(made[0], "valid")) == sorted(MANY)

    @settings(max_examples=12)
    @given(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\x85\u2028\u2029"), max_size=60)),
        st.integers(1, 200),
        st.integers(1, 4),
    )
    def test_nothing_is_lost_whatever_the_text(self, tokenizer: Path, texts: list[str], size: int, slices: int) -> None:
        kept = [text.strip("\n") for text in texts if text.strip()]
        if not kept:
            return
        with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
            folder = Path(name)
            patch.setattr(encoding, "UNIT_BYTES", size)
            rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
            (folder / "a.jsonl").write_text(rows)
            options = {"tokenizer": tokenizer, "holdout": 0.3}
            try:
                data = prepare([str(folder / "a.jsonl")], out=folder / "data", workers=0, **options)
            except DataError as error:
                assert "--holdout" in str(error)
                return
            found = texts_of(data) + texts_of(data, "valid")
            unique = {" ".join(unicodedata.normalize("NFC", text).split()) for text in kept}
            assert len(found) == len(unique) and {*found} <= {*kept}
            made = sliced([str(folder / "a.jsonl")], slices, folder, **options)
            assert tree(merge(made, out=folder / "merged").path) == tree(data.path)


class TestLongDocuments:
    """Documents in pieces: cut at a thousand characters instead of eight million."""

    @pytest.fixture
    def pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(items, "split_documents", functools.partial(split_documents, max_characters=1000))
        monkeypatch.setattr(encoding, "_MAX_PART_BYTES", 500)
        monkeypatch.setattr(encoding, "UNIT_BYTES", 400)

    def test_pieces_become_one_document(self, tokenizer: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        texts = [story(1), story(2, 60), story(3), story(4, 90), story(2, 60), story(5), story(4, 91)]
        given = blocks(tmp_path / "a.txt", texts)
        whole = prepare([given], tokenizer=tokenizer, out=tmp_path / "whole", holdout=0)
        request.getfixturevalue("pieces")
        data = prepare([given], tokenizer=tokenizer, out=tmp_path / "pieces", holdout=0, workers=0)
        assert texts_of(data) == texts_of(whole) == [*texts[:4], *texts[5:]]
        assert data.card["dropped"]["exact_duplicates"] == 1
        assert data.open_shards().documents.tolist() == whole.open_shards().documents.tolist()
        missing = {*whole.open_shards().sentences.tolist()} - {*data.open_shards().sentences.tolist()}
        assert len(missing) <= 20  # where a sentence starts at a cut it is not seen
        assert {*data.open_shards().sentences.tolist()} <= {*whole.open_shards().sentences.tolist()}
        found = sliced([given], 3, tmp_path, tokenizer=tokenizer, holdout=0)
        assert tree(merge(found, out=tmp_path / "merged").path) == tree(data.path)

    @pytest.mark.usefixtures("pieces")
    def test_near_duplicates_and_filters_of_pieces(self, tokenizer: Path, tmp_path: Path) -> None:
        long = story(2, 60)
        texts = [story(1), long, long.replace("Story", "A story"), "{" + story(3, 60), story(6, 60) + " { "]
        given = blocks(tmp_path / "a.txt", texts)
        clean = ["curly_braces"]
        data = prepare([given], tokenizer=tokenizer, out=tmp_path / "d", holdout=0, near=0.8, clean=clean)
        found = texts_of(data)
        assert found[:2] == texts[:2]
        assert data.card["dropped"]["near_duplicates"] == 1
        assert len(found) == 4 and all("{" not in text for text in found)
        assert texts[3].endswith(found[2]) and texts[4].startswith(found[3])  # the pieces without a brace


class TestUpToDate:
    def test_the_second_call_does_nothing(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        first = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data")
        times = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
        again = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data", workers=2)
        assert first.is_new and not again.is_new and first == again
        assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}

    @pytest.mark.parametrize(
        ("changes", "values"),
        [
            ({"holdout": "2%"}, ("holdout", "0.02", "0.01")),
            ({"clean": ["nfc", "spaces"]}, ("clean", "nfc", "spaces")),
            ({"near": 0.9}, ("near", "0.9")),
            ({"by": "line"}, ("by", "line", "auto")),
            ({"lang": "de"}, ("lang", "de", "auto")),
            ({"sentences": "lines"}, ("sentences", "lines", "rules")),
            ({"shard": "1/2"}, ()),
        ],
    )
    def test_another_setting_is_noticed(
        self, corpus: str, tokenizer: Path, tmp_path: Path, changes: Any, values: tuple[str, ...]
    ) -> None:
        prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data")
        before = tree(tmp_path)
        with pytest.raises(DataError, match="--overwrite") as caught:
            prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data", **changes)
        assert str(tmp_path / "data") in str(caught.value) and all(value in str(caught.value) for value in values)
        assert tree(tmp_path) == before
        assert prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data", overwrite=True, **changes).is_new

    def test_other_sources_and_tokenizers_are_noticed(self, tokenizer: Path, tmp_path: Path) -> None:
        one, two = blocks(tmp_path / "1.txt", MANY[:30]), blocks(tmp_path / "2.txt", MANY[30:60])
        go = functools.partial(prepare, tokenizer=tokenizer, out=tmp_path / "data")
        go([one, two])
        for changed, name in (([one], two), ([two, one], None)):
            with pytest.raises(DataError, match=name):
                go(changed)
        three = blocks(tmp_path / "3.txt", MANY[60:90])
        with pytest.raises(DataError, match=three):
            go([one, two, three])
        with pytest.raises(DataError, match="tokenizer"):
            prepare([one, two], tokenizer=byte_tokenizer(tmp_path / "other", 1), out=tmp_path / "data")
        blocks(tmp_path / "2.txt", MANY[31:61])
        with pytest.raises(DataError, match=two):
            go([one, two])
        with pytest.raises(DataError, match="holdout"):  # and settings come before sources
            go([one], valid=[two])

    def test_overwriting_leaves_nothing_behind(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        options = {"tokenizer": tokenizer, "holdout": "50%"}
        prepare([corpus], out=tmp_path / "data", **options)
        (tmp_path / "data" / "train" / "00001.tokens.npy").write_bytes(b"stale")
        few = blocks(tmp_path / "few.txt", MANY[:3])
        fresh = prepare([few], tokenizer=tokenizer, holdout=0, out=tmp_path / "fresh")
        assert prepare([few], tokenizer=tokenizer, holdout=0, out=tmp_path / "data", overwrite=True).is_new
        assert tree(tmp_path / "data") == tree(fresh.path)
        assert not (tmp_path / "data" / "valid").exists()

    def test_other_peoples_files_are_safe(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        out = tmp_path / "data"
        out.mkdir()
        (out / "notes.txt").write_text("mine")
        with pytest.raises(UsageError, match=str(out)):
            prepare([corpus], tokenizer=tokenizer, out=out)
        with pytest.raises(UsageError, match=r"notes\.txt"):
            prepare([corpus], tokenizer=tokenizer, out=out, overwrite=True)
        assert tree(out) == {"notes.txt": b"mine"}

    def test_damage_is_noticed_and_mended(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        out = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data").path
        good = tree(out)
        for name in ("train/00000.tokens.npy", "data.json", "valid/00000.words.npy"):
            (out / name).write_bytes(good[name][:-3])
            with pytest.raises(DataError, match=name.split("/")[-1]):
                prepare([corpus], tokenizer=tokenizer, out=out)
            assert prepare([corpus], tokenizer=tokenizer, out=out, overwrite=True).is_new
            assert tree(out) == good
        byte_tokenizer(out / "tokenizer", 3)
        with pytest.raises(DataError, match="tokenizer"):
            prepare([corpus], tokenizer=tokenizer, out=out)


@pytest.mark.usefixtures("small")
class TestMerge:
    @pytest.fixture
    def slices(self, tokenizer: Path, tmp_path: Path) -> list[Path]:
        return sorted(sliced([blocks(tmp_path / "a.txt", MANY)], 3, tmp_path, tokenizer=tokenizer))

    def test_all_are_needed_each_once(self, slices: list[Path], tmp_path: Path) -> None:
        for wrong, number in ((slices[:2], 3), (slices[1:], 1), ([*slices, slices[1]], 2)):
            with pytest.raises(DataError, match=rf"slice {number}\b"):
                merge(wrong, out=tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_they_must_belong_together(self, slices: list[Path], tokenizer: Path, tmp_path: Path) -> None:
        given = str(tmp_path / "a.txt")
        prepare([given], tokenizer=tokenizer, out=tmp_path / "t", shard="2/3", holdout="2%")
        with pytest.raises(DataError, match=r"/t\b.*/s1\b.*holdout.*0\.02.*0\.01"):
            merge([slices[0], tmp_path / "t", slices[2]], out=tmp_path / "out")
        prepare([given], tokenizer=tokenizer, out=tmp_path / "u", shard="2/4")
        with pytest.raises(DataError, match=r"/u\b.*\b4\b.*\b3\b"):
            merge([slices[0], tmp_path / "u", slices[2]], out=tmp_path / "out")

    def test_damage(self, slices: list[Path], tmp_path: Path) -> None:
        for name in ("units-00000.bin", "keys.npy", "slice.json", "data.json"):
            good = (slices[1] / name).read_bytes()
            (slices[1] / name).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
            with pytest.raises(DataError, match=f"s2/{name}"):
                merge(slices, out=tmp_path / "out")
            (slices[1] / name).write_bytes(good)
        byte_tokenizer(slices[0] / "tokenizer", 2)
        with pytest.raises(DataError, match="s1/tokenizer"):
            merge(slices, out=tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_what_is_no_slice(self, slices: list[Path], corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        whole = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "whole")
        for wrong in (whole.path, tmp_path, tmp_path / "absent"):
            with pytest.raises(DataError, match=str(wrong)):
                merge([wrong], out=tmp_path / "out")
        with pytest.raises(UsageError, match="--shard"):
            merge(str(slices[0]), out=tmp_path / "out")
        with pytest.raises(DataError, match="'train'"):
            Shards.open(slices[0], "train")
        assert prepare([str(tmp_path / "a.txt")], tokenizer=tokenizer, out=slices[0], shard="1/3").is_new is False

    @pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "", "-1/3", "1/0"])
    def test_shards_that_cannot_be(self, corpus: str, tokenizer: Path, tmp_path: Path, shard: str) -> None:
        with pytest.raises(UsageError, match=f"'{shard}'"):
            prepare([corpus], tokenizer=tokenizer, out=tmp_path / "out", shard=shard)

    def test_slices_are_of_like_size(self) -> None:
        found = [encoding.SplitPart(None, False, size) for size in (5, 1, 1, 8, 1, 1, 1, 4, 2)]  # type: ignore[arg-type]
        for count in range(1, 12):
            cut = [encoding.select_slice(found, number, count) for number in range(1, count + 1)]
            assert [place for part in cut for place in part] == found
        thirds = [encoding.select_slice(found, number, 3) for number in (1, 2, 3)]
        assert [sum(place.size for place in part) for part in thirds] == [7, 9, 8]
