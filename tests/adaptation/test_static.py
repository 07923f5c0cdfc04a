"""Static vectors: gradients against autograd, counts against a loop, files that come back equal, words of a topic."""

import contextlib
import itertools
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pretune.adaptation import word2vec
from pretune.adaptation.cooccurrence import Glove, count_pairs
from pretune.adaptation.word2vec import Word2Vec, WordCorpus
from pretune.core.errors import DataError, DivergedError, UsageError
from pretune.inference.word_vectors import WordVectors, is_word_vectors
from tests.selection import scale_examples


def topics(texts: int = 600, seed: int = 0) -> list[list[str]]:
    """Texts about one of two things; the words of a topic meet each other and never those of the other."""
    rng = np.random.default_rng(seed)
    return [[f"{'ab'[i % 2]}{rng.integers(20)}" for _ in range(12)] for i in range(texts)]


def compute_separation(vectors: WordVectors) -> float:
    """By how much words of one topic are nearer to each other than to those of the other, in cosine."""
    unit = vectors.matrix - vectors.matrix.mean(0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosine, topic = unit @ unit.T, np.array([word[0] for word in vectors.words])
    same = topic[:, None] == topic[None]
    return float(cosine[same & ~np.eye(len(unit), dtype=bool)].mean() - cosine[~same].mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        Word2Vec(width=16, epochs=8, subsample=None),
        Word2Vec(mode="cbow", rate=0.2, width=16, epochs=8, subsample=None),
        Glove(width=16, window=5),
    ],
    ids=["skip_gram", "cbow", "glove"],
)
def test_words_of_one_topic_lie_together_and_the_seed_decides_all(spec: Word2Vec | Glove) -> None:
    first, same_seed, other_seed = spec.train(topics()), spec.train(topics()), spec.train(topics(), seed=1)
    assert compute_separation(first) > 0.5
    assert first.matrix.tobytes() == same_seed.matrix.tobytes() and first.words == same_seed.words
    assert first.matrix.tobytes() != other_seed.matrix.tobytes()
    assert {word[0] for word, _ in first.find_nearest("a3", 5)} == {"a"}


def inputs() -> tuple[torch.Tensor, torch.Tensor, word2vec.NeighborMasks, torch.Tensor]:
    """Two texts of a few words, each word with its own window, and shared negatives."""
    torch.manual_seed(4)
    n, groups = 40, 2
    text = np.repeat([0, 1], [25, 15])
    neighbors = [
        (d, after_mask.double(), before_mask.double())
        for d, after_mask, before_mask in word2vec._find_neighbors(text, np.random.default_rng(1).integers(1, 4, n))
    ]
    x, y = (torch.randn(n, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    negatives = torch.randn(groups, word2vec.NEGATIVES_PER_GROUP, 6, dtype=torch.float64, requires_grad=True)
    return x, y, neighbors, negatives


def against(x: torch.Tensor, times: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    """Reference gain of the negatives."""
    total = x.new_zeros(())
    for i in range(len(x)):
        total = total + times[i] * 0.25 * F.logsigmoid(-(negatives[i // word2vec.GROUP_SIZE] @ x[i])).sum()
    return total


def test_skip_gram_has_the_gradient_of_its_loss() -> None:
    x, y, neighbors, negatives = inputs()
    gain, times = x.new_zeros(()), x.new_zeros(len(x))
    for d, after_mask, before_mask in neighbors:
        for i in range(len(x) - d):
            gain = (
                gain
                + after_mask[i, 0] * F.logsigmoid(x[i] @ y[i + d])
                + before_mask[i, 0] * F.logsigmoid(x[i + d] @ y[i])
            )
            times[i] += after_mask[i, 0]
            times[i + d] += before_mask[i, 0]
    gain = gain + against(x, times, negatives)
    expected = torch.autograd.grad(gain, (x, y, negatives))
    group_negatives = word2vec._Negatives(negatives.detach(), 0.25)
    grads = word2vec._step_skip_gram(x.detach(), y.detach(), neighbors, group_negatives)
    for ours, theirs in zip((*grads, group_negatives.gradient.view_as(negatives)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_cbow_gives_each_word_of_a_window_the_gradient_of_their_mean() -> None:
    x, y, neighbors, negatives = inputs()
    weight = x.new_zeros(len(x), len(x))  # who is in whose window
    for d, after_mask, before_mask in neighbors:
        for i in range(len(x) - d):
            weight[i, i + d], weight[i + d, i] = after_mask[i, 0], before_mask[i, 0]
    times = weight.sum(1).clamp(max=1)
    mean = (weight @ x.detach() / weight.sum(1, keepdim=True).clamp(min=1)).requires_grad_()
    gain = (times * F.logsigmoid((mean * y).sum(1))).sum() + against(mean, times, negatives)
    d_mean, d_y, d_negatives = torch.autograd.grad(gain, (mean, y, negatives))
    group_negatives = word2vec._Negatives(negatives.detach(), 0.25)
    grads = word2vec._step_cbow(x.detach(), y.detach(), neighbors, group_negatives)
    torch.testing.assert_close(grads[0], weight.T @ d_mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(grads[1], d_y, rtol=0, atol=1e-10)
    torch.testing.assert_close(group_negatives.gradient.view_as(negatives), d_negatives, rtol=0, atol=1e-10)


def test_windows_reach_no_further_than_drawn_and_never_into_another_text() -> None:
    text, windows = np.array([0, 0, 0, 1, 1]), np.array([1, 2, 1, 2, 1])
    found = {
        (i, i + d)
        for d, after_mask, _ in word2vec._find_neighbors(text, windows)
        for i in after_mask[:, 0].nonzero()[:, 0].tolist()
    }
    found |= {
        (i + d, i)
        for d, _, back in word2vec._find_neighbors(text, windows)
        for i in back[:, 0].nonzero()[:, 0].tolist()
    }
    pairs = itertools.product(range(5), repeat=2)
    assert found == {(i, j) for i, j in pairs if i != j and text[i] == text[j] and abs(i - j) <= windows[i]}


def test_frequent_words_are_left_out_as_the_paper_says() -> None:
    keep = word2vec._compute_keep_probabilities(np.array([9000, 900, 100]), 1e-2)
    share = np.array([0.9, 0.09, 0.01])
    np.testing.assert_allclose(keep, (np.sqrt(share / 1e-2) + 1) * 1e-2 / share)
    assert (word2vec._compute_keep_probabilities(np.array([5, 5]), None) == 1).all()


def test_sums_over_a_batch_are_damped() -> None:
    words = torch.tensor([0] * 16 + [1])
    rates = word2vec._damp_rates(words, 1.0)[:, 0]
    assert rates[:16].sum().item() == pytest.approx(word2vec.MAX_OCCURRENCES) and rates[16].item() == 1.0


def test_what_goes_to_infinity_is_told() -> None:
    with pytest.raises(DivergedError, match=r"1e\+38"):
        Word2Vec(rate=1e38, width=8).train(topics(100))


@settings(max_examples=20)
@given(texts=st.lists(st.lists(st.sampled_from("abcd"), max_size=9), min_size=1, max_size=5), window=st.integers(1, 4))
def test_meetings_are_counted_as_by_a_loop(texts: list[list[str]], window: int) -> None:
    if not any(texts):
        return
    words = WordCorpus.from_texts(texts, min_count=1)
    expected: Counter[tuple[int, int]] = Counter()
    for text in texts:
        ids = [words.words.index(word) for word in text]
        for i, j in itertools.combinations(range(len(ids)), 2):
            if j - i <= window:
                expected[min(ids[i], ids[j]), max(ids[i], ids[j])] += 1 / (j - i)  # type: ignore[assignment]
    first, second, met = count_pairs(words, window)
    counts = dict(zip(zip(first.tolist(), second.tolist(), strict=True), met.tolist(), strict=True))
    assert counts == pytest.approx(dict(expected))


def test_words_are_numbered_by_frequency_and_rare_ones_left_out() -> None:
    words = WordCorpus.from_texts(["A b. B a! A c", "b", "d"], min_count=2)
    assert words.words == ("a", "b") and words.counts.tolist() == [3, 3] and words.total == 8
    assert words.ids.tolist() == [0, 1, 1, 0, 0, 1] and words.text_ids.tolist() == [0, 0, 0, 0, 0, 1]
    assert WordCorpus.from_texts(["a a b b c"], min_count=1, max_words=2).words == ("a", "b")
    with pytest.raises(DataError, match=r"\b5\b"):
        WordCorpus.from_texts(["a b"])
    with pytest.raises(UsageError):
        WordCorpus.from_texts("a b")


FLOATS = arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 5)),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@pytest.mark.slow
@settings(max_examples=scale_examples(40))
@given(matrix=FLOATS, data=st.data())
def test_a_file_comes_back_equal(
    matrix: np.ndarray, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    letters = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1)
    words = data.draw(
        st.lists(letters.filter(lambda w: w.split() == [w]), min_size=len(matrix), max_size=len(matrix), unique=True)
    )
    path = tmp_path_factory.mktemp("vectors") / "v.txt"
    WordVectors(words, matrix).save(path)
    vectors = WordVectors.load(path)
    assert vectors.words == tuple(words) and vectors.matrix.tobytes() == matrix.tobytes()
    assert path.read_text().partition("\n")[0] == f"{len(matrix)} {matrix.shape[1]}"


def test_gensim_reads_our_file(tmp_path: Path) -> None:
    gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
    ours = WordVectors(["film", "straße", "don't"], np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32))
    ours.save(tmp_path / "v.txt")
    theirs = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "v.txt"))
    assert tuple(theirs.index_to_key) == ours.words and (theirs.vectors == ours.matrix).all()
    theirs.save_word2vec_format(str(tmp_path / "w.txt"))
    assert (WordVectors.load(tmp_path / "w.txt").matrix == ours.matrix).all()


def test_a_file_of_glove_has_no_first_line(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("the 0.5 -1\nof 2 3e-2\n")
    vectors = WordVectors.load(tmp_path / "g.txt")
    assert vectors.words == ("the", "of") and vectors.matrix.tolist() == [[0.5, -1], [2, np.float32(0.03)]]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", r"v\.txt: .*\b0\b"),
        ("2 2\na 1 2\n", r"v\.txt: "),
        ("2 2\na 10.0 20.0\n", r"\b2\b.*\b2\b.*\b1\b"),
        ("1 2\na 1 2\nb 1 2\n", r"\b1\b.*\b2\b.*\b2\b"),
        ("0 2\n", r"\b0\b"),
        ("999999999999 999999\na 1 2\n", r"\b999999999999\b"),  # no memory is asked for
        ("a 1 2\na 3 4\n", ":2: .*'a'"),
        ("a 1 2\n" + "b" * (1 << 20) + " 1 2\n", ":2: "),
        ("9" * 5000 + " 2\na 1 2\n", r":2: .*'a'.*\b2\b"),
        ("1 2\na 1\n", r":2: .*'a'.*\b1\b.*\b2\b"),
        ("a 1 2\nb 1 x\n", ":2: .*'b'"),
        ("a 1 2\nb 1 nan\n", ":2: .*'b'"),
    ],
)
def test_a_file_that_is_not_one_of_vectors_is_told(tmp_path: Path, text: str, values: str) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(DataError, match=values):
        WordVectors.load(tmp_path / "v.txt")


@settings(max_examples=scale_examples(200))
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(b"3 2\nthe 0.5 -1\nof 2 3e-2\na 1 1\n")
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        content = content or bytearray(b" ")
    path = tmp_path_factory.mktemp("mutated") / "v.txt"
    path.write_bytes(content)
    is_word_vectors(path)
    with contextlib.suppress(DataError):
        assert np.isfinite(WordVectors.load(path).matrix).all()


def test_what_is_no_regular_text_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin1").write_bytes("café 1 2\n".encode("latin-1"))
    for path in (tmp_path, tmp_path / "absent", tmp_path / "pipe", Path("/dev/zero"), tmp_path / "latin1"):
        with pytest.raises(DataError, match=re.escape(str(path))):
            WordVectors.load(path)
        assert path.name == "latin1" or not is_word_vectors(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 2\n", True),
        ("the 0.5 -1\n", True),
        ("the cat sat\n", False),
        ("", False),
        ("{}", False),
        ("a 1 nan\n", False),
    ],
)
def test_word_vectors_are_known_by_their_first_line(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "v.txt").write_text(text)
    assert is_word_vectors(tmp_path / "v.txt") is expected


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"'skipgram'.*'skip_gram'"):
        Word2Vec(mode="skipgram")  # type: ignore[arg-type]


def test_a_word_with_a_space_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'new york'"):
        WordVectors(["new york"], np.ones((1, 2), np.float32)).save(tmp_path / "v.txt")
    assert not (tmp_path / "v.txt").exists()


def test_unknown_words_and_empty_texts_are_defined() -> None:
    vectors = WordVectors(["good", "bad"], np.array([[1, 0], [0, 3]], np.float32))
    assert vectors["never"].tolist() == [0.5, 1.5] and "never" not in vectors
    assert vectors.average(["Good, BAD!", "good never", "", "never"]).tolist() == [[0.5, 1.5], [1, 0], [0, 0], [0, 0]]
