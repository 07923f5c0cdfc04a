"""Documents of two sides: kept exactly, from text to sequences; what is too long loses ends, never its sides."""

import gzip
import json
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.data.pairs import ParallelPairs, SegmentPairs, trim_pair
from pretune.data.prepare.run import merge
from pretune.data.prepared_data import PreparedData
from pretune.data.samples import Documents
from pretune.data.sampling import LimitedMixing
from pretune.data.shards import DataIndex, Shards, ShardSplit, ShardWriter, write_index
from pretune.runs.prepare import prepare
from pretune.text.tokenizer import Tokenizer
from tests.data.corpora import CLS, FRAMES, SEP, every, split
from tests.data.test_mixing import mixture
from tests.data.texts import MANY, blocks, texts_of, tree

documents = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=12)
"""The lengths of both sides; a second of 0 is a document of one side."""


def write(folder: Path, given: list[tuple[int, int]], *, full: int = 2**20) -> Shards:
    """Every token is its own position."""
    lengths = [first + second for first, second in given]
    total = sum(lengths)
    with ShardWriter(folder / "train", "uint16", max_tokens=full, has_sides=True) as writer:
        writer.add(
            np.arange(total),
            np.cumsum([0, *lengths]),
            words=np.ones(total, dtype=bool),
            sides=[first if second else 0 for first, second in given],
        )
    index = DataIndex(
        tokenizer_sha256="a" * 64,
        vocab=2000,
        dtype="uint16",
        fingerprint="f" * 64,
        sources=("pairs",),
        splits={"train": ShardSplit(shards=writer.shards)},
    )
    write_index(folder, index)
    return Shards.open(folder)


@given(documents, st.integers(1, 60), st.integers(8, 70), st.sampled_from(["none", "around", "behind"]), st.data())
def test_sides_are_exact(given: list[tuple[int, int]], full: int, limit: int, frame: str, data: st.DataObject) -> None:
    """Whatever the shards and the frame: no side is mixed with another, all fits, and what fits whole is whole."""
    apart: Literal["framed", "bare"] | None = data.draw(st.sampled_from([None, "framed", "bare"]))
    with tempfile.TemporaryDirectory() as folder:
        shards = write(Path(folder), given, full=full)
        assert shards.pairs == sum(second > 0 for _, second in given)
        samples = ParallelPairs(limit=limit, apart=apart).open(shards, FRAMES[frame])
        draws = every(samples)
        cut = samples.cut(draws)
        assert cut.lengths.tolist() == samples.lengths(draws).tolist() and (cut.lengths <= limit).all()
        assert samples.measure_lengths(draws).second_lengths.tolist() == [
            length - begin if begin else 0 for length, begin in zip(cut.lengths, cut.sides, strict=True)
        ]
        starts = {int(start): pair for start, pair in zip(shards.documents[:-1], given, strict=True)}
        room = limit - samples.template.pair_special_count
        seen: list[int] = []
        for tokens, special, begin in zip(split(cut), split(cut, "special"), cut.sides.tolist(), strict=True):
            text = [(place >= begin > 0, token) for place, token in enumerate(tokens) if not special[place]]
            first, second = ([token for side, token in text if side == which] for which in (False, True))
            seen += first + second
            if begin:
                one, other = starts[first[0]]
                kept = trim_pair(np.array([one]), np.array([other]), room)
                assert first == list(range(first[0], first[0] + int(kept[0][0])))
                assert second == list(range(first[0] + one, first[0] + one + int(kept[1][0])))
                if one + other <= room:
                    assert (len(first), len(second)) == (one, other), "what fits is whole"
                else:
                    assert len(first) + len(second) == room and min(len(first), len(second)) >= 1
        whole = [sum(pair) for pair in given if not pair[1] or sum(pair) <= room]
        assert len(seen) == len({*seen}) and len(seen) >= sum(whole)
        if all(not second or first + second <= room for first, second in given):
            assert sorted(seen) == list(range(len(shards))), "nothing is lost"


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 60))
def test_the_longer_side_gives_way(first: int, second: int, limit: int) -> None:
    """One token of the longer at a time, until both fit."""
    one, other = first, second
    while one + other > limit:
        one, other = (one - 1, other) if one > other else (one, other - 1)
    found = [int(side[0]) for side in trim_pair(np.array([first]), np.array([second]), limit)]
    assert sum(found) == one + other and abs(found[0] - one) <= 1


def test_frames() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = write(Path(folder), [(2, 3), (2, 0)])
        for apart, tokens, begin in (
            (None, [CLS, 0, 1, SEP, 2, 3, 4, SEP], 4),
            ("framed", [CLS, 0, 1, SEP, CLS, 2, 3, 4, SEP], 4),
            ("bare", [CLS, 0, 1, SEP, 2, 3, 4, SEP], 4),
        ):
            samples = ParallelPairs(limit=16, apart=apart).open(shards, FRAMES["around"])
            cut = samples.cut(every(samples).take(np.argsort(every(samples).samples)))
            assert split(cut) == [tokens, [CLS, 5, 6, SEP]] and cut.sides.tolist() == [begin, 0]
        assert split(samples.cut(every(samples)), "special")


def test_to_other_objectives_a_pair_is_a_document() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = write(Path(folder), [(3, 4), (5, 2), (2, 0)])
        samples = Documents(limit=20).open(shards)
        assert sorted(split(samples.cut(every(samples)))) == [[*range(7)], [*range(7, 14)], [14, 15]]
        assert len(SegmentPairs(limit=20, share=0).open(shards)) == 3
        assert shards.sentences.tolist() == [0, 3, 7, 12, 14]  # a second side starts a sentence


def test_limits() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = write(Path(folder), [(3, 4)])
        with pytest.raises(UsageError, match=r"\b4\b"):
            ParallelPairs(limit=4).open(shards, FRAMES["around"])
        ParallelPairs(limit=5).open(shards, FRAMES["around"])


@pytest.mark.parametrize("values", [[3, 3], [0, 0], [-1, 3], [7, 0], [2, 0]])
def test_damaged_sides_are_told(values: list[int], tmp_path: Path) -> None:
    write(tmp_path, [(3, 4), (5, 0)])
    file = tmp_path / "train" / "00000.sides.npy"
    np.save(file, np.array(values, dtype=np.int64))
    with pytest.raises(DataError, match=str(file)):
        Shards.open(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=str(file)):
        Shards.open(tmp_path)


@pytest.mark.parametrize("sides", [[7, 0], [-1, 0], [3]])
def test_a_writer_refuses_what_are_no_sides(sides: list[int], tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a", "uint16", has_sides=True) as writer, pytest.raises(UsageError, match="sides"):
        writer.add(np.arange(9), [0, 7, 9], words=np.ones(9, dtype=bool), sides=sides)
    with ShardWriter(tmp_path / "b", "uint16") as writer, pytest.raises(UsageError, match="sides"):
        writer.add(np.arange(9), [0, 7, 9], words=np.ones(9, dtype=bool), sides=[3, 0])


def test_data_without_sides_are_written_as_before(tokenizer: Path, tmp_path: Path) -> None:
    """No new file and no new field: what an older release reads, and the other way round."""
    data = prepare([blocks(tmp_path / "a.txt", MANY[:20])], tokenizer=tokenizer, out=tmp_path / "data")
    assert not [*data.path.rglob("*sides*")] and "pairs" not in (data.path / "data.json").read_text()
    assert data.open_shards().pairs == 0 and not data.open_shards().sides.any()


# From text


def sides_of(data: PreparedData, split: str = "train") -> list[tuple[str, str]]:
    """The sides of every document, as they were."""
    shards, tokenizer = data.open_shards(split), Tokenizer.load(data.tokenizer)
    found = []
    for (start, end), side in zip(pairwise(shards.documents.tolist()), shards.sides.tolist(), strict=True):
        cuts = (start, start + side or end, end) if side else (start, end, end)
        found.append(tuple(tokenizer.decode(shards.read_tokens(a, b).tolist()) for a, b in pairwise(cuts)))
    return found


line = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=12)
rows = st.lists(st.tuples(line, line), min_size=1, max_size=8)


@given(rows)
@settings(max_examples=12)
def test_from_files_to_shards_and_back(tokenizer: Path, rows: list[tuple[str, str]]) -> None:
    wanted = [row for row in dict.fromkeys(rows) if all(side.strip() for side in row)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, ending in enumerate(("x", "y")):
            (folder / f"a.{ending}").write_text("\n".join(row[number] for row in rows) + "\n")
        given = [f"pair:{folder}/a.x,{folder}/a.y"]
        if not wanted:
            with pytest.raises(DataError):
                prepare(given, tokenizer=tokenizer, out=folder / "data", holdout=0, workers=0)
            return
        data = prepare(given, tokenizer=tokenizer, out=folder / "data", holdout=0, workers=0)
        keys = [" ".join("\0".join(row).split()) for row in wanted]
        if len({*keys}) == len(keys):  # but for white space they differ
            assert sides_of(data) == wanted


TABLES: dict[str, Any] = {
    "t.jsonl": lambda rows: "".join(json.dumps({"id": 1, "x": a, "y": b}) + "\n" for a, b in rows),
    "t.tsv": lambda rows: "id\tx\ty\n" + "".join(f"1\t{a}\t{b}\n" for a, b in rows),
    "t.csv": lambda rows: "id,x,y\n" + "".join(f'1,"{a}","{b}"\n' for a, b in rows),
}
ROWS = [(f"Number {i}, please.", f"Bitte Nummer {i}.") for i in range(40)]


@pytest.mark.parametrize("name", TABLES)
def test_two_columns_of_a_table(name: str, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TABLES[name](ROWS))
    data = prepare([f"pair:{tmp_path}/{name}:x,y"], tokenizer=tokenizer, out=tmp_path / "data", holdout=0)
    assert sides_of(data) == ROWS
    both = f"pair:{tmp_path}/{name}:x,{tmp_path}/{name}:y"
    assert sides_of(prepare([both], tokenizer=tokenizer, out=tmp_path / "b", holdout=0)) == ROWS


def aligned(folder: Path, rows: list[tuple[str, str]], name: str = "a") -> str:
    (folder / f"{name}.x.gz").write_bytes(gzip.compress("\n".join(row[0] for row in rows).encode()))
    (folder / f"{name}.y").write_text("\n".join(row[1] for row in rows) + "\n\n")
    return f"pair:{folder}/{name}.x.gz,{folder}/{name}.y"


def test_pairs_beside_documents(tokenizer: Path, tmp_path: Path, small: None) -> None:
    """Both kinds in one data set, by any number of workers, or in slices; the card and the index count pairs."""
    rows = [(MANY[i], MANY[i + 100]) for i in range(60)]
    pairs = aligned(tmp_path, [*rows, rows[0], ("one side", ""), ("", "")])
    inputs = [blocks(tmp_path / "d.txt", MANY[200:260]), pairs]
    options = {"tokenizer": tokenizer, "holdout": "20%"}
    data = prepare(inputs, out=tmp_path / "data", workers=0, **options)
    train, valid = sides_of(data), sides_of(data, "valid")
    assert Counter(train + valid) == Counter([*rows, *((text, "") for text in MANY[200:260])])
    assert data.index.splits["train"].pairs + data.index.splits["valid"].pairs == 60
    assert data.card["splits"]["train"]["pairs"] == data.index.splits["train"].pairs
    assert sum(split["pairs"] for split in data.to_dict()["splits"].values()) == 60
    assert data.card["dropped"]["exact_duplicates"] == 1 and data.card["skipped"]["half_pairs"] == 1
    assert tree(prepare(inputs, out=tmp_path / "two", workers=2, **options).path) == tree(data.path)
    for number in (1, 2):
        prepare(inputs, out=tmp_path / f"s{number}", shard=f"{number}/2", workers=0, **options)
    assert tree(merge([tmp_path / "s2", tmp_path / "s1"], out=tmp_path / "merged").path) == tree(data.path)


def test_pairs_that_differ_only_in_where_they_are_parted_are_two(tokenizer: Path, tmp_path: Path) -> None:
    rows = [("one two", "three"), ("one", "two three")]
    assert sides_of(prepare([aligned(tmp_path, rows)], tokenizer=tokenizer, out=tmp_path / "d", holdout=0)) == rows


def test_a_cleaner_that_drops_a_side_drops_the_pair(tokenizer: Path, tmp_path: Path) -> None:
    rows = [(MANY[0], MANY[1]), (MANY[2], "short"), ("short", MANY[3])]
    options = {"holdout": 0, "clean": ["short_pages=5"]}
    data = prepare([aligned(tmp_path, rows)], tokenizer=tokenizer, out=tmp_path / "d", **options)
    assert sides_of(data) == rows[:1]


@pytest.mark.parametrize(("second", "name"), [("a\nb\n", "y"), ("a\nb\nc\nd\n", "x"), ("", "y")])
def test_sides_of_unequal_length(second: str, name: str, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1\n2\n3\n")
    (tmp_path / "y").write_text(second)
    with pytest.raises(DataError, match=str(tmp_path / name)):
        prepare([f"pair:{tmp_path}/x,{tmp_path}/y"], tokenizer=tokenizer, out=tmp_path / "d")


def test_names_that_are_no_pairs(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1\n2\n3\n")
    for name, value in (
        (f"pair:{tmp_path}/x", "pair:FILE,FILE"),
        (f"pair:{tmp_path}/x,{tmp_path}/x", f"{tmp_path}/x"),
        (f"pair:{tmp_path}/x,{tmp_path}", str(tmp_path)),
        (f"pair:{tmp_path}/x,{tmp_path}/nothing", f"{tmp_path}/nothing"),
        (f"pair:{tmp_path}/x:a,b", f"{tmp_path}/x"),
    ):
        with pytest.raises((DataError, UsageError), match=value) as caught:
            prepare([name], tokenizer=tokenizer, out=tmp_path / "d")
        assert "\n" not in str(caught.value)


def test_both_sides_of_real_translations(shared_data: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Multi30k: 1,014 captions and their translations, each side to the letter."""
    home = shared_data / "tasks" / "multi30k"
    if not (home / "val.en.gz").exists():
        pytest.skip(f"no Multi30k at {home}")
    both = [gzip.decompress((home / f"val.{lang}.gz").read_bytes()).decode().splitlines() for lang in ("en", "de")]
    data = prepare([f"pair:{home}/val.en.gz,{home}/val.de.gz"], tokenizer=tokenizer, out=tmp_path / "d", holdout=0)
    assert sides_of(data) == [tuple(side.strip("\n") for side in row) for row in zip(*both, strict=True)]
    assert len(texts_of(data)) == 1014
    samples = ParallelPairs(limit=600).open(data.open_shards(), FRAMES["around"])
    assert samples.pair_count == len(samples) == 1014


# Mixing


def test_examples_are_mixed_by_their_number_up_to_a_limit() -> None:
    """r_m = min(e_m, K) / sum min(e_n, K), of the samples; with a temperature each to the power 1 / T (T5, 3.5.2)."""
    counts = [4000, 900, 100]
    for limit, temperature in ((10**6, 1.0), (1000, 1.0), (200, 1.0), (10**6, 2.0), (10**6, 8.0)):
        found, _, _ = mixture(LimitedMixing(limit=limit, temperature=temperature), counts, [10, 40, 20])
        rates = np.minimum(counts, limit) ** (1 / temperature)
        np.testing.assert_allclose(found.quotas / found.quotas.sum(), rates / rates.sum(), atol=2e-3)
    for name, value in (("limit", 0), ("temperature", 0.5)):
        with pytest.raises(UsageError, match=rf"{name}.*\b{value}\b"):
            LimitedMixing(**{name: value})
