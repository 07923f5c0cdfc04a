"""Search: exact products, BM25 by its formula, an index that grows, and what is wrong with one in one line."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.core.errors import CheckpointError, DataError, PretuneError, UsageError
from pretune.inference.generate import StopStrings
from pretune.inference.index import Hit, Index, build
from pretune.inference.rag import answer_questions, build_prompt
from pretune.inference.search_methods import BM25, FAISS_METHODS, search_exact
from pretune.inference.text_model import get_tokenizer
from tests.inference.readers import TEXTS, decoder, encoder
from tests.inference.speakers import bart, bert, gpt, t5
from tests.selection import scale_examples

DOCUMENTS = [text for text in dict.fromkeys(TEXTS) if text]


@settings(max_examples=scale_examples(50), deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 12))
def test_exact_is_a_full_sort(seed: int, sizes: list[int], k: int) -> None:
    """Also where scores tie, across parts and chunks: the earlier vector first."""
    rng = np.random.default_rng(seed)
    parts = [rng.integers(-2, 3, (size, 3)).astype(np.float32) for size in sizes]
    queries = rng.integers(-2, 3, (4, 3)).astype(np.float32)
    scores, numbers = search_exact(parts, queries, k, rows=7)
    every = queries @ np.concatenate(parts).T
    for row, result in enumerate(numbers.tolist()):
        order = sorted(range(every.shape[1]), key=lambda i: (-every[row, i], i))[:k]
        assert result == order
        assert scores[row].tolist() == [every[row, i] for i in order]


def test_bm25_is_its_formula() -> None:
    texts = ["the cat sat on the mat", "a dog", "the cat and the cats"]
    result = BM25(texts)
    # "cats" is "cat": in documents 0 (once of 6 words) and 2 (twice of 5), of 13 words in three
    for query, times in (("cats", 1), ("cat cats", 2)):
        rare = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
        reference = [
            times * rare * n / (n + 1.2 * (1 - 0.75 + 0.75 * size / (13 / 3))) for n, size in ((1, 6), (0, 2), (2, 5))
        ]
        np.testing.assert_allclose(result.score(query), reference)
    scores, numbers = result.search(["cats", "bird", "the"], k=3)
    assert numbers.tolist() == [[2, 0, -1], [-1, -1, -1], [2, 0, -1]] and scores[1].tolist() == [0, 0, 0]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    pt.save(encoder(), tmp_path / "model")
    return tmp_path / "model"


def test_an_index_finds_what_is_in_it(model: Path, tmp_path: Path) -> None:
    made = build(model, DOCUMENTS, out=tmp_path / "i")
    assert len(made) == 6 and made.embedding_config.normalise
    for number, hits in enumerate(made.search(DOCUMENTS, k=2), 1):
        assert hits[0].id == str(number) and hits[0].score == pytest.approx(1.0, abs=1e-5) and hits[1].score < 1
    vectors = pt.embed(model, DOCUMENTS, normalise=True)
    scores, _ = made.find_nearest(vectors[:1], 6)
    np.testing.assert_allclose(np.sort(scores[0]), np.sort(vectors @ vectors[0]), atol=1e-6)


def test_search_from_python(model: Path, tmp_path: Path) -> None:
    made = pt.index(model, TEXTS, out=tmp_path / "i")
    assert pt.search(tmp_path / "i", TEXTS[:2], 3) == made.search(TEXTS[:2], 3)
    assert pt.search(tmp_path / "i", TEXTS[:2], 3, model=pt.load(model)) == made.search(TEXTS[:2], 3)
    assert pt.search(tmp_path / "i", TEXTS[:1], 2, words=True) == made.search(TEXTS[:1], 2, words=True)
    for words in (False, True):
        with pytest.raises(UsageError):
            made.search("the cat", words=words)
        with pytest.raises(UsageError, match=r"\b0\b"):
            made.search(["the cat"], 0, words=words)


def test_it_grows_as_if_made_at_once(model: Path, tmp_path: Path) -> None:
    full = build(model, DOCUMENTS, out=tmp_path / "whole")
    build(model, DOCUMENTS[:2], out=tmp_path / "i")
    build(model, DOCUMENTS[2:3], out=tmp_path / "i", add=True)
    grown = build(model, DOCUMENTS[3:], out=tmp_path / "i", add=True)
    assert [hit.id for hit in grown.search(["the bird"], k=6)[0]] == [
        hit.id for hit in full.search(["the bird"], k=6)[0]
    ]
    assert grown.rows == full.rows and grown.metadata["parts"] == [2, 1, 3]


@pytest.mark.parametrize("method", FAISS_METHODS)
def test_faiss(model: Path, tmp_path: Path, method: str) -> None:
    pytest.importorskip("faiss", reason="the extra `index` is not installed")
    texts = [f"{text} {i}" for i in range(40) for text in DOCUMENTS]
    build(model, texts[:-1], out=tmp_path / "i", method=method)
    made = build(model, texts[-1:], out=tmp_path / "i", add=True)
    exactly = build(model, texts, out=tmp_path / "exact")
    result, reference = (
        np.mean([hit.score for hits in item.search(DOCUMENTS, k=10) for hit in hits]) for item in (made, exactly)
    )
    assert reference - 0.01 < result <= reference + 1e-5
    assert made.search(texts[-1:], k=1)[0][0].score == pytest.approx(1.0, abs=1e-4)
    (graph,) = (tmp_path / "i").glob("graph-*")
    graph.write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match=graph.name):
        made.search(DOCUMENTS)


def test_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    made = build(model, DOCUMENTS, out=tmp_path / "i")
    other = encoder()
    other.tokens.weight.data[5] += 1
    pt.save(other, tmp_path / "other")
    for work in (
        lambda: made.load_embedder(tmp_path / "other"),
        lambda: build(tmp_path / "other", ["the cat"], ids=["1"], out=tmp_path / "i", add=True),  # an id there is, too
        lambda: made.search(["the cat"], model=other),
    ):
        with pytest.raises(CheckpointError, match=made.metadata["fingerprint"][:12]):
            work()
    (tmp_path / "moved").mkdir()
    model.rename(tmp_path / "moved" / "model")
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(model))}.*--model"):
        made.search(["the cat"])
    assert Index.open(tmp_path / "i").load_embedder(tmp_path / "moved" / "model").width == 32  # the same, elsewhere


def damaged(what: str, folder: Path) -> None:
    file = folder / {"vectors": "vectors-00000.npy", "texts": "texts-00000.jsonl"}.get(what, "index.json")
    if what == "vectors":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    elif what == "texts":
        file.write_bytes(file.read_bytes()[:-9])
    elif what == "manifest":
        (folder / "MANIFEST.json").unlink()
    else:
        file.unlink()


@pytest.mark.parametrize("what", ["vectors", "texts", "manifest", "facts"])
def test_damage_is_noticed(model: Path, tmp_path: Path, what: str) -> None:
    build(model, DOCUMENTS, out=tmp_path / "i")
    damaged(what, tmp_path / "i")
    with pytest.raises(CheckpointError):
        Index.open(tmp_path / "i")


@pytest.mark.parametrize(
    ("texts", "options", "error", "value"),
    [
        ([], {}, DataError, r"\b0\b"),
        (["a"], {"ids": ["1", "2"]}, DataError, r"\b1\b.*\b2\b"),
        (["a", "b"], {"ids": ["1", "1"]}, DataError, "'1'"),
        (["a"], {"method": "magic"}, UsageError, "'magic'"),
        (["a"], {"ids": ["1"], "add": True}, DataError, "'1'"),
        (["a"], {"method": "hnsw", "add": True}, UsageError, "'exact'.*'hnsw'"),
        (["a"], {}, UsageError, "--add.*--out"),
    ],
)
def test_invalid_options(
    model: Path, tmp_path: Path, texts: list[str], options: dict[str, Any], error: type[PretuneError], value: str
) -> None:
    build(model, ["the cat"], out=tmp_path / "i")
    with pytest.raises(error, match=value):
        build(model, texts, out=tmp_path / "i", **options)
    assert len(Index.open(tmp_path / "i")) == 1


def test_a_failed_addition_changes_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(model, DOCUMENTS, out=tmp_path / "i")
    previous = {file.name: file.read_bytes() for file in (tmp_path / "i").iterdir()}
    monkeypatch.setattr(
        "pretune.inference.index_files.io.write_manifest", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(PretuneError):
        build(model, ["the bird"], out=tmp_path / "i", add=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "i").iterdir()} == previous


def test_texts_of_any_kind_are_kept(model: Path, tmp_path: Path) -> None:
    texts = ["a\u2028b", "tab\there", 'quo"te', "line\nbreak", "\ud800 half", "東京"]
    build(model, texts, out=tmp_path / "i")
    assert [text for _, text in Index.open(tmp_path / "i").rows] == texts


def test_answers_read_as_many_hits_as_fit() -> None:
    reader = decoder()
    hits = [Hit(str(i), "the cat plays music " * 2, 1.0) for i in range(4)]
    text, read = build_prompt(reader, "who plays?", hits, None)
    assert read == 4 and "who plays?" in text and "[4] the cat" in text
    size = len(get_tokenizer(reader).encode(text, add_special_tokens=False))
    text, read = build_prompt(reader, "who plays?", hits, size - 1)
    assert read == 3 and "[3] the cat" in text and "[4]" not in text
    with pytest.raises(UsageError, match=r"\d+ tokens"):
        answer_questions(reader, ["who plays?"], [hits], max_new_tokens=2)


def test_an_answer() -> None:
    """The reader's continuation of the prompt, up to the end of the line."""
    small = decoder()
    reader = pt.build("gpt2", seed=1, width=32, depth=1, heads=4, hidden=48, vocab=small.spec.vocab, positions=600)
    reader.assets = small.assets
    result = answer_questions(reader.eval(), ["who plays?"], [[Hit("7", "the cat plays", 1.0)]], max_new_tokens=5)
    assert result[0].hits_read == 1 and "the cat plays" in result[0].prompt and "\n" not in result[0].text
    assert json.dumps(result[0]._asdict())


@pytest.mark.parametrize("method", [pt.PrefixTuning(count=20), pt.PromptTuning(count=20)])
def test_virtual_tokens_leave_less_room_for_hits(method: Any) -> None:
    small, results = decoder(), []
    hits = [Hit(str(i), "cat", 1.0) for i in range(90)]
    for is_tuned in (False, True):
        reader = pt.build("gpt2", seed=1, width=32, depth=1, heads=4, hidden=48, vocab=small.spec.vocab, positions=300)
        reader.assets = small.assets
        if is_tuned:
            pt.add_adapter(reader, method)
        results += answer_questions(reader.eval(), ["who plays?"], [hits], max_new_tokens=5)
    sizes = [len(get_tokenizer(small).encode(result.prompt, add_special_tokens=False)) for result in results]
    assert sizes[1] <= 300 - 20 - 5 < sizes[0] <= 300 - 5 and 0 < results[1].hits_read < results[0].hits_read


def test_answers_of_encoder_decoders() -> None:
    """They read the question and the passages as they do in SQuAD's template; hits are dropped where they are made for
    less, but for the first where no table of positions ends."""
    hits = [Hit("1", "the cat plays", 1.0), Hit("2", "the dog sleeps", 0.5)]
    for reader, read in ((t5(), 2), (bart(), 1)):  # the second has 48 positions
        (result,) = answer_questions(reader, ["who plays?"], [hits], max_new_tokens=6)
        passages = " ".join(hit.text for hit in hits[:read])
        assert result.prompt == f"question: who plays? context: {passages}" and result.hits_read == read
        (text,) = pt.generate(reader, [result.prompt], max_new_tokens=6, temperature=0)
        assert result.text == StopStrings("\n", after_text=True).truncate(text)[0].strip()
    long = [Hit(str(i), "the cat plays music " * 60, 1.0) for i in range(9)]
    (result,) = answer_questions(t5(), ["who plays?"], [long], max_new_tokens=2)
    assert result.hits_read < 9
    assert build_prompt(t5(), "who plays?", long, 40, 1)[1] == 1 and build_prompt(t5(), "who plays?", [], 40, 1)[1] == 0
    with pytest.raises(UsageError, match="'encoder'"):
        answer_questions(bert(), ["who plays?"], [hits])
    with pytest.raises(UsageError, match=r"\b48\b.*\b64\b"):
        answer_questions(gpt(), ["who plays?"], [hits])


def test_an_answer_may_begin_with_an_empty_line() -> None:
    stops = StopStrings("\n", after_text=True)
    assert stops.truncate("\n\n") == ("\n\n", False)
    assert stops.truncate("\n\nParis\nQuestion:") == ("\n\nParis", True)
    assert StopStrings("\n").truncate("\nParis") == ("", True)
