"""Coreference: columns and JSONL are read, every fault is named; chunks, spans and links are those of the documents."""

import itertools
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.adaptation.adapted import adapt
from pretune.adaptation.freeze import Frozen, freeze
from pretune.adaptation.heads.base import TokenHead
from pretune.adaptation.heads.coreference import Coreference, Mentions, SpanRanker, find_documents
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.errors import DataError
from pretune.data.plan import BatchShape
from pretune.evaluation.baselines.mentions import NearestMention, SameWords
from pretune.nn.lstm import BiLSTM
from pretune.tasks.benchmarks.coreference import CONLL2012_COREF, CoreferenceReader, DocumentReader
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import predict
from pretune.tasks.stream import TaskStream
from pretune.tasks.table import BlankRows
from pretune.tasks.types import score
from pretune.tasks.types.coreference import COREFERENCE, MAX_CHUNKS, find_chunks
from pretune.tasks.user_table import build_user_task
from pretune.training.config import TrainConfig
from pretune.training.cuda_graph import build_cuda_graph
from tests.contracts.tiny import take_steps
from tests.selection import scale_examples
from tests.tasks.oracle import perfect
from tests.tasks.small import body, encoder_for, model_for, task_of

CONLL = """\
#begin document (bc/cctv/00/cctv_0000); part 000
cctv  0  0  Anna   NNP  (0)
cctv  0  1  sold   VBD  -
cctv  0  2  her    PRP  (0)|(2
cctv  0  3  old    JJ   -
cctv  0  4  car    NN   2)

cctv  0  0  It     PRP  (2)
cctv  0  1  was    VBD  -
cctv  0  2  hers   PRP  (0)

#end document
#begin document (bc/cctv/00/cctv_0000); part 001
cctv  1  0  Nobody  NN   -
cctv  1  1  came    VBD  -
#end document
"""
CLUSTERS = (((0, 0), (2, 2), (7, 7)), ((2, 4), (5, 5)))
WORDS = ("Anna", "sold", "her", "old", "car", "It", "was", "hers")
SENTENCES = [[*WORDS[:5]], [*WORDS[5:]]]


def test_columns_of_2012(tmp_path: Path) -> None:
    folder = tmp_path / "conll-2012" / "v4" / "train" / "data" / "english" / "bc"
    folder.mkdir(parents=True)
    (folder / "cctv.v4_gold_conll").write_text(CONLL)
    first, second = CONLL2012_COREF.read("train", tmp_path)
    assert (first.words, first.sentences, first.clusters) == (WORDS, (5, 3), CLUSTERS)
    assert (first.id, first.group) == ("bc/cctv/00/cctv_0000 0", "bc/cctv/00/cctv_0000")
    assert (second.words, second.sentences, second.clusters) == (("Nobody", "came"), (2,), ())


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "dev.english.jsonlines"
    clusters = [[[5, 5], [2, 4]], [[2, 2], [0, 0], [7, 7]]]  # in any order
    rows: list[dict[str, Any]] = [
        {"doc_key": "a", "sentences": SENTENCES, "clusters": clusters},
        {"id": 7, "sentences": SENTENCES, "clusters": []},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (reader,) = {file.reader for file in CONLL2012_COREF.splits["dev"] if file.path == path.name}
    first, second = reader(path)
    assert (first.words, first.sentences, first.clusters) == (WORDS, (5, 3), CLUSTERS)
    assert (first.id, second.id, second.clusters) == ("a", "7", ())
    path.write_text(json.dumps({"tokens": ["It", "rained", ".", "We", "left"], "coref": [[[0, 0], [3, 3]]]}))
    (flat,) = DocumentReader(text="tokens", label="coref")(path)
    assert (flat.sentences, flat.clusters) == ((3, 2), (((0, 0), (3, 3)),))


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("(0)|(2\n", "(0)|(2|(0)\n", 1, "twice in a cluster"),
        ("(0)|(2\n", "(0)|(2|(1)\n", 1, "in two clusters"),
        ("car    NN   2)", "car    NN   -", 4, "not closed"),
        ("It     PRP  (2)", "It     PRP  2)", 8, "not open"),
        ("JJ   -", "JJ   0", 5, "no bracket"),
        ("JJ   -", "JJ   (0", 5, "not closed"),
        ("JJ   -", "", 5, "columns"),
        ("part 001", "part 000", 13, "ascending"),
        ("part 001", "", 13, "expected '#begin"),
        ("#end document\n#begin", "#begin", 12, "before '#end"),
        ("#begin document (bc/cctv/00/cctv_0000); part 000\n", "", 1, "expected '#begin"),
    ],
)
def test_bad_columns_are_named(tmp_path: Path, old: str, new: str, line: int, problem: str) -> None:
    assert old in CONLL
    path = tmp_path / "own_conll"
    path.write_text(CONLL.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"own_conll:{line}: .*{problem}") as fault:
        [*CoreferenceReader()(path)]
    assert "\n" not in str(fault.value)


def test_a_document_must_end(tmp_path: Path) -> None:
    path = tmp_path / "own_conll"
    path.write_text(CONLL.removesuffix("#end document\n"))
    with pytest.raises(DataError, match=r"own_conll:13: .*no '#end document'"):
        [*CoreferenceReader()(path)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"clusters": [[[0, 0], [8, 8]]]}, r"\[8, 8\].* from 0 to 7"),
        ({"clusters": [[[0, 0], [-1, 0]]]}, r"\[-1, 0\]"),
        ({"clusters": [[[0, 0], [4, 2]]]}, r"\[4, 2\]"),
        ({"clusters": [[[0, 0], [2, 2], [0, 0]]]}, "twice in a cluster"),
        ({"clusters": [[[0, 0], [2, 2]], [[2, 2], [5, 5]]]}, r"'her' \[2, 2\] is in two clusters"),
        ({"clusters": [[[0, 0], [2, 2]], []]}, "cluster 1 has no mention"),
        ({"clusters": [[0, 0]]}, "list of clusters"),
        ({"clusters": [[[0, "1"]]]}, "list of clusters"),
        ({"clusters": "(0)"}, "list of clusters"),
        ({"sentences": "Anna sold her old car"}, "list of sentences"),
        ({"sentences": [["Anna"], [3]]}, "list of sentences"),
        ({"clusters": None}, "'clusters' is blank"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = tmp_path / "own.jsonl"
    good = {"sentences": SENTENCES, "clusters": [[[0, 0], [2, 2]]]}
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, {**good, **change})))
    with pytest.raises(DataError, match=rf"own\.jsonl:2: .*{problem}") as fault:
        [*DocumentReader().read(path, BlankRows(strict=True))]
    assert "\n" not in str(fault.value)


def test_files_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "dev.v4_gold_conll"
    path.write_text(CONLL)
    task = build_user_task({"train": path}, type="coreference")
    assert (task.kind, task.metrics, len([*task.read("train")])) == ("coreference", ("coreference",), 2)
    path = tmp_path / "own.csv"
    path.write_text("sentences,clusters\na b,0\n")
    with pytest.raises(DataError, match=r"own\.csv:1: expected '#begin"):
        build_user_task({"train": path}, type="coreference")


def test_a_new_input_is_a_document_or_a_text() -> None:
    read = COREFERENCE.inputs.read_input
    text = read({"text": "Anna's car broke. She's sad!"}, None, None, "x")
    assert text.words == ("Anna", "'s", "car", "broke", ".", "She", "'s", "sad", "!") and text.sentences == (5, 4)
    document = read({"sentences": SENTENCES}, None, None, "x")
    assert (document.words, document.sentences, document.clusters) == (WORDS, (5, 3), None)
    assert COREFERENCE.inputs.format(document) == {"sentences": SENTENCES}
    with pytest.raises(DataError, match="list of sentences"):
        read({"sentences": [["a"], 3]}, None, None, "x")


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12), limit=st.integers(1, 16))
@settings(max_examples=scale_examples(100))
def test_chunks_are_whole_sentences_where_they_fit(lengths: list[int], limit: int) -> None:
    starts = [0, *itertools.accumulate(lengths)]
    end = starts.pop()
    chunks = find_chunks(starts, end, limit)
    assert chunks == sorted(set(chunks)) and chunks[0] == 0
    assert all(b - a <= limit for a, b in itertools.pairwise([*chunks, end]))
    for start, length in zip(starts, lengths, strict=True):
        inner = [chunk for chunk in chunks if start < chunk < start + length]
        assert not inner if length <= limit else (start in chunks and len(inner) == -(-length // limit) - 1)


def make_document(sentences: int) -> Example:
    """Sentences of four words; the first word of all of them is the same, and so are the last two."""
    words = ("Nina", "sang", "old", "film") * sentences
    clusters = tuple(
        tuple((4 * number + first, 4 * number + last) for number in range(sentences))
        for first, last in ((0, 0), (2, 3))
    )
    return Example(text=" ".join(words), words=words, sentences=(4,) * sentences, clusters=clusters)


@pytest.mark.parametrize("shape", ["bert", "gpt2", "bart"])
def test_a_long_document_is_linked_across_its_chunks(shape: str) -> None:
    task, example = task_of("coreference"), make_document(30)
    encoder = encoder_for(shape, task, max_length=24)
    items = encoder.encode([make_document(2), example], training=False)
    chunks = items.sequences.chunks
    assert chunks is not None and chunks.tolist() == [0, *range(len(chunks) - 1)] and len(chunks) > MAX_CHUNKS + 1
    assert items.counts.longest <= 24 and items.counts.cut == items.counts.words_lost == 0
    training = encoder.encode([make_document(2), example])
    assert training.sequences.chunks is not None and training.counts.answers_lost == 0
    assert training.sequences.chunks.tolist() == [0, *(number % MAX_CHUNKS for number in range(len(chunks) - 1))]
    assert training.sizes.tolist()[:2] == [1, MAX_CHUNKS] and len(training.sequences) == training.sizes.sum()
    short = replace(example, sentences=(4,) * 8, words=example.words[:32], clusters=make_document(8).clusters)
    (prediction,) = perfect(encoder, [short])  # one item: the oracle knows the clusters of items
    assert prediction.clusters == short.clusters and prediction.mentions[0] == ("Nina",) * 8


def test_predictions_of_chunks_do_not_depend_on_the_batch() -> None:
    task = task_of("coreference")
    model = model_for("bert", task)
    encoder = TaskEncoder.from_task(task, model, max_length=24)
    documents = [make_document(count) for count in (12, 1, 7, 3)]
    together = predict(model, encoder, documents)
    alone = [predict(model, encoder, [document], tokens=8)[0] for document in documents]
    assert [part.clusters for part in together] == [part.clusters for part in alone]
    assert any(part.clusters for part in together)


def test_mentions_that_cannot_be_learned_are_counted() -> None:
    """Across sentences, and alone in their cluster: no targets. A long sentence is cut: the document counts."""
    words = ("Nina",) * 8
    clusters = (((0, 0), (4, 4)), ((1, 1),), ((2, 5), (6, 6), (7, 7)))
    example = Example(text="", words=words, sentences=(4, 4), clusters=clusters)
    items = encoder_for("bert", task_of("coreference")).encode([example])
    assert items.counts.answers_lost == 1 and items.sequences.targets is not None
    assert (items.sequences.targets >= 0).sum() == 4
    long = encoder_for("bert", task_of("coreference"), max_length=8).encode([replace(example, sentences=())])
    assert (long.counts.cut, long.counts.lost, long.counts.truncated_share) == (1, 0, 1.0)
    for problem, change in (("no clusters", {"clusters": None}), ("3 words in total", {"sentences": (3,)})):
        with pytest.raises(DataError, match=problem):
            encoder_for("bert", task_of("coreference")).encode([replace(example, **change)])


def test_spans_and_their_loss_are_those_of_the_definition() -> None:
    """The scores and the loss of one document, computed one span and one pair at a time."""
    torch.manual_seed(0)
    spec = Coreference(hidden=6, max_width=3, ratio=0.9, antecedents=3, dropout=0.0)
    head = SpanRanker(spec, TokenHead(8, 19, 0.0)).eval()
    task = task_of("coreference")
    batch = TaskStream(encoder_for("bert", task).encode([make_document(2)]), batch=1)[0]
    states = torch.randn(len(batch.tokens), 8)
    (document,) = find_documents(batch)
    mentions = Mentions.from_batch(batch)
    with torch.no_grad():
        loss = head.compute_loss(states, batch)
        vectors = head.project(states, batch)[document.tokens[document.words]]
        start, end, value, attention = vectors.split([6, 6, 6, 1], dim=-1)
        spans = {}
        for first, last in itertools.combinations_with_replacement(range(len(vectors)), 2):
            if last - first < 3 and document.sentences[first] == document.sentences[last]:
                inside = slice(first, last + 1)
                average = (attention[inside].softmax(0) * value[inside]).sum(0)
                spans[first, last] = (start[first] + end[last] + average + head.width.weight[last - first]).relu()
        gold = {}
        for token, width, cluster in zip(*(part.tolist() for part in mentions), strict=True):
            first = document.tokens[document.words].tolist().index(token)
            gold[first, first + width - 1] = cluster
        assert set(gold.values()) == {0, 1} and len(gold) == 4
        ranked = sorted(spans, key=lambda span: (span not in gold, -float(head.mention(spans[span]))))
        kept = sorted(ranked[: spec.count_kept(len(vectors))])
        total = 0.0
        for i, span in enumerate(kept):
            pairs = []
            for j, other in enumerate(kept[:i]):
                h, g = spans[span], spans[other]
                coarse = head.coarse(h) @ g + head.mention(h) + head.mention(g)
                distance = head.distance.weight[min(i - j, 5) - 1 if i - j < 8 else 5]
                fine = head.out((head.span(h) + head.antecedent(g) + head.product(h * g) + distance).relu())
                pairs.append((float(coarse), float(coarse + fine), gold.get(other, -1) == gold.get(span, -2)))
            best = sorted(pairs, reverse=True)[:3]
            scores = torch.tensor([0.0, *(fine for _, fine, _ in best)])
            right = [score for _, score, is_right in best if is_right] or [0.0]
            total += float(scores.logsumexp(0) - torch.tensor(right).logsumexp(0))
    assert int(loss.count) == len(kept)
    np.testing.assert_allclose(float(loss.sum), total, rtol=1e-5)


@pytest.mark.slow
def test_a_scalar_mix_is_read_as_the_last_states_are() -> None:
    task, documents = task_of("coreference"), [make_document(3), make_document(2)]
    mixing = Mixing(lstm=BiLSTM(hidden=8), attention=None, dropout=0.0)
    model = adapt(deepcopy(body("bert")), Coreference(hidden=16, dropout=0.0, scalar_mix=mixing))
    freeze(model, Frozen())
    encoder = TaskEncoder.from_task(task, model)
    stream = TaskStream(encoder.encode(documents), batch=2)
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    losses = take_steps(optimizer, lambda step: model.spec.loss(model, stream[step]).mean(), 60)
    assert losses[-1] < 0.6 * losses[0]
    assert len(predict(model, encoder, documents)) == 2


def test_a_part_without_documents_has_gradients_of_zero() -> None:
    task = task_of("coreference")
    model = deepcopy(model_for("bert", task))
    stream = TaskStream(encoder_for("bert", task).encode([make_document(2)]), batch=1)
    loss = model.loss(stream.batch(0, part=0, parts=2))
    assert loss.sum.item() == 0 == int(loss.count)
    loss.sum.backward()
    assert model.head is not None
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.head.parameters())
    shape, config = BatchShape(rows=1, length=8, slots=8), TrainConfig(lr=1e-3, cuda_graphs=True)
    assert build_cuda_graph(shape, model.model.spec, config, torch.device("cpu"), model) is None


def test_models_vote_for_pairs() -> None:
    a, b, c = (0, 0), (2, 2), (4, 5)
    texts = {a: "Anna", b: "her", c: "the car"}
    models = [((a, b, c),), ((a, b),), ((b, c),), ()]
    predictions = [
        Prediction(clusters=model, mentions=tuple(tuple(texts[mention] for mention in part) for part in model))
        for model in models
    ]
    combine = COREFERENCE.outputs.combine
    assert combine(task_of("coreference"), predictions[:3]).clusters == ((a, b, c),)
    assert combine(task_of("coreference"), predictions[:2]).mentions == (("Anna", "her"),)
    assert combine(task_of("coreference"), predictions).clusters == ()


def test_baselines() -> None:
    example = Example(text="", words=WORDS, sentences=(5, 3), clusters=CLUSTERS)
    other = Example(text="", words=("Anna", "saw", "Anna", "and", "her", "old", "car"), sentences=(7,))
    (same,) = SameWords().predict([example], [other])
    assert same.clusters == (((0, 0), (2, 2)),) and same.mentions == (("Anna", "Anna"),)
    (nearest,) = NearestMention().predict([example], [other])
    assert nearest.clusters == (((0, 0), (2, 2), (4, 4)),)
    task = replace(task_of("coreference"), labels=())
    alone = Prediction(clusters=tuple(((place, place),) for place in range(8)))
    assert score(task, [example], [alone])["muc_f1"] == 0 == score(task, [example], [Prediction()])["conll_f1"]
    with pytest.raises(DataError, match="no mention"):
        SameWords().predict([other], [example])
