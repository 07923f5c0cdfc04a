"""Dependency parsing: trees are read, found, encoded and scored as the CoNLL 2018 shared task does."""

import io
import itertools
import random
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from pretune.adaptation.adapted import adapt
from pretune.adaptation.freeze import Frozen, freeze
from pretune.adaptation.heads.dependency import UNKNOWN_HEAD, Dependency, decode_arcs
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.errors import DataError
from pretune.core.types import IGNORE_INDEX
from pretune.evaluation.baselines.tagging import AdjacentHead, BiLSTMParser
from pretune.metrics.entities import attachment
from pretune.nn.lstm import BiLSTM
from pretune.tasks.benchmarks.conll import ConlluReader, DependencyReader, is_tree
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import predict
from pretune.tasks.stream import TaskStream
from pretune.tasks.types import score
from pretune.tasks.types.dependency import DEPENDENCY, find_tree
from tests.contracts.tiny import take_steps
from tests.tasks.small import body, examples_of, model_for, task_of

CONLLU = """\
# sent_id = a
# text = She didn't read
1\tShe\tshe\tPRON\tPRP\t_\t4\tnsubj\t4:nsubj\t_
2-3\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdid\tdo\tAUX\tVBD\t_\t4\taux\t4:aux\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t4:advmod\t_
4\tread\tread\tVERB\tVB\t_\t0\troot\t0:root\t_

# text = Tea and cakes
1\tTea\ttea\tNOUN\tNN\t_\t0\troot\t0:root\t_
2\tand\tand\tCCONJ\tCC\t_\t3\tcc\t3:cc\t_
2.1\tbrought\tbring\tVERB\tVBN\t_\t_\t_\t1:acl\t_
3\tcakes\tcake\tNOUN\tNNS\t_\t1\tconj\t1:conj\t_

"""


def write(folder: Path, text: str) -> Path:
    path = folder / "trees.conllu"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    """Multiword tokens and empty nodes are no words; heads are numbers of words."""
    first, second = DependencyReader()(write(tmp_path, CONLLU))
    assert (first.words, first.heads) == (("She", "did", "n't", "read"), (4, 4, 4, 0))
    assert (first.tags, first.id, first.text) == (("nsubj", "aux", "advmod", "root"), "a", "She didn't read")
    assert (second.words, second.heads, second.id) == (("Tea", "and", "cakes"), (0, 3, 1), "9")
    assert [example.tags[0] for example in ConlluReader()(write(tmp_path, CONLLU))] == ["PRON", "NOUN"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("4\tnsubj", "7\tnsubj", 3),  # no such word
        ("4\tnsubj", "_\tnsubj", 3),
        ("\t4\tnsubj\t4:nsubj\t_", "\t4", 3),  # columns
        ("0\troot\t0:root\t_\n\n#", "1\troot\t0:root\t_\n\n#", 1),  # a cycle without a root
        ("4\taux", "0\taux", 1),  # two roots
        ("\n3\tn't", "\n5\tn't", 6),  # a word number
        ("nsubj\t4", "subject\t4", 3),  # a relation that is not allowed
    ],
)
def test_a_bad_tree_is_named(tmp_path: Path, old: str, new: str, line: int) -> None:
    assert old in CONLLU
    reader = DependencyReader(labels=("nsubj", "aux", "advmod", "root", "cc", "conj"))
    with pytest.raises(DataError, match=rf"trees\.conllu:{line}:") as fault:
        [*reader(write(tmp_path, CONLLU.replace(old, new, 1)))]
    assert "\n" not in str(fault.value)


def test_the_tree_is_the_best_of_all_trees() -> None:
    rng = np.random.default_rng(0)
    for number in range(60):
        n = 1 + number % 5
        scores = rng.normal(size=(n, n + 1)) * (0.1, 1, 10)[number % 3]
        scores[:, 0] += 4 * (number % 2)  # several words would like to be the root
        trees = [heads for heads in itertools.product(range(n + 1), repeat=n) if is_tree(heads)]
        best = max(trees, key=lambda heads: sum(scores[word, head] for word, head in enumerate(heads)))
        assert find_tree(scores) == list(best)
    assert find_tree(np.zeros((0, 1))) == [] and is_tree(find_tree(rng.normal(size=(90, 91))))
    with pytest.raises(DataError, match="finite"):
        find_tree(np.full((2, 3), np.nan))


# Three sentences, and the scores of the CoNLL 2018 script: 5 of 9 words with head and relation, 7 with the head.
GOLD = [
    [(4, "nsubj"), (4, "aux"), (4, "advmod"), (0, "root")],
    [(0, "root"), (3, "cc"), (1, "conj")],
    [(2, "nsubj:pass"), (0, "root")],
]
PARSED = [
    [(4, "nsubj:outer"), (4, "cop"), (1, "advmod"), (0, "root")],
    [(0, "root"), (1, "cc"), (1, "punct")],
    [(2, "nsubj"), (0, "root")],
]


def test_scores_of_the_shared_task() -> None:
    scores = attachment(GOLD, PARSED)
    assert scores == pytest.approx({"las": 5 / 9, "uas": 7 / 9, "clas": 10 / 13})
    with pytest.raises(DataError, match="sentence 1"):
        attachment([GOLD[0], GOLD[1]], [GOLD[0], GOLD[0]])


def test_scores_are_those_of_the_official_script() -> None:
    official = pytest.importorskip("stanza.utils.conll18_ud_eval", reason="stanza < 1.4 has the script; not installed")
    rng = random.Random(0)
    labels = ("nsubj", "nsubj:pass", "root", "punct", "case", "obl:tmod", "dep")
    gold, parsed = [], []
    for _ in range(50):
        n = rng.randint(1, 12)
        trees = [find_tree(np.array([[rng.random() for _ in range(n + 1)] for _ in range(n)])) for _ in range(2)]
        gold.append([(head, rng.choice(labels)) for head in trees[0]])
        pairs = zip(gold[-1], trees[1], strict=True)
        parsed.append([(h if rng.random() < 0.7 else g, rng.choice(labels)) for (g, _), h in pairs])
        if not is_tree([head for head, _ in parsed[-1]]):
            parsed[-1] = gold[-1]
    texts = (
        "".join(
            "".join(f"{i}\tw{i}\t_\t_\t_\t_\t{h}\t{r}\t_\t_\n" for i, (h, r) in enumerate(tree, start=1)) + "\n"
            for tree in trees
        )
        for trees in (gold, parsed)
    )
    theirs = official.evaluate(*(official.load_conllu(io.StringIO(text)) for text in texts))
    assert attachment(gold, parsed) == pytest.approx({name: theirs[name.upper()].f1 for name in ("las", "uas", "clas")})


@pytest.mark.parametrize(("shape", "carrier"), [("bert", 0), ("gpt2", -1)])
def test_the_token_of_a_word(shape: str, carrier: int) -> None:
    """A word is its first token; for a left-to-right model its last, which has seen all of it."""
    task = task_of("dependency")
    encoder = TaskEncoder.from_task(task, model_for(shape, task), max_length=32)
    words = ("unfathomable", "rivers", "flow")
    items = encoder.encode([Example(text="", words=words, heads=(2, 3, 0), tags=("det", "dep", "root"))])
    assert items.alignment is not None and items.sequences.targets is not None
    places = np.flatnonzero(items.alignment >= 0)
    pool = encoder.rules.tokenize([" ".join(words)])
    counts = [int(((pool.starts >= a) & (pool.starts < b)).sum()) for a, b in ((0, 13), (13, 20), (20, 25))]
    ends = 1 + np.cumsum(counts) - 1
    assert counts[0] > 1 and places.tolist() == (ends if carrier else ends - np.array(counts) + 1).tolist()
    distance, relation = decode_arcs(torch.from_numpy(items.sequences.targets[places]), len(task.labels))
    assert relation.tolist() == [1, 2, 0]
    assert distance.tolist() == [*np.diff(places), 0]


def test_a_truncated_head_is_unknown_and_the_tree_is_whole() -> None:
    task = task_of("dependency")
    model = model_for("bert", task).eval()
    encoder = TaskEncoder.from_task(task, model, max_length=8)
    words = ("a", "a", "a", "a", "a", "a", "a", "a", "a")
    heads = (9, 1, 2, 3, 4, 5, 6, 7, 0)
    example = Example(text="", words=words, heads=heads, tags=("det",) * 8 + ("root",))
    items = encoder.encode([example])
    targets = items.sequences.targets
    assert targets is not None and items.counts.words_lost == 3
    assert (targets == UNKNOWN_HEAD).sum() == 1 and (targets != IGNORE_INDEX).sum() == 6
    assert model.spec.counts(TaskStream(items, batch=1)[0])["loss"] == 5
    found = predict(model, encoder, [example, replace(example, words=words[:1])])
    assert is_tree(found[0].heads) and found[0].heads[6:] == (6, 7, 8) and found[1].heads == (0,)


def test_the_loss_written_out() -> None:
    """Arc and relation scores of each word, one pair at a time."""
    task = task_of("dependency")
    model = deepcopy(model_for("bert", task)).eval()
    assert isinstance(model.spec, Dependency)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.head.parameters():
        parameter.data.normal_(0, 0.2, generator=generator)
    items = TaskEncoder.from_task(task, model).encode(examples_of("dependency"))
    batch = TaskStream(items, batch=len(items))[0]
    head, arc, wide = model.head, model.spec.arc, model.spec.relation
    assert batch.targets is not None
    model.requires_grad_(False)
    with torch.no_grad():
        vectors = torch.nn.functional.leaky_relu(head.project(model.states(batch)), 0.1)
        whole = model.loss(batch)
        scored = head(model.states(batch), batch)
    root = head.root.weight[0]
    total = 0.0
    words = set(batch.targets.index.tolist())
    for token, label in zip(batch.targets.index.tolist(), batch.targets.labels, strict=True):
        distance, relation = (int(part) for part in decode_arcs(label, len(task.labels)))
        start = token - int(batch.positions[token])
        places = [word for word in sorted(words) if batch.sequence[word] == batch.sequence[token] and word != token]
        heads = {None: root[:arc], **{word: vectors[word, arc : 2 * arc] for word in places}}
        scores = {w: head.arc.weight @ vectors[token, :arc] @ key + head.arc.bias @ key for w, key in heads.items()}
        gold = None if distance == 0 else token + distance
        total -= float(torch.stack([*scores.values()]).log_softmax(0)[[*scores].index(gold)])
        dependent = vectors[token, 2 * arc : 2 * arc + wide]
        other = root[arc:] if gold is None else vectors[gold, 2 * arc + wide :]
        pairs = head.pair.weight.view(len(task.labels), wide, wide)
        logits = torch.einsum("kbd,d,b->k", pairs, dependent, other) + head.out(torch.cat((dependent, other)))
        total -= float(logits.log_softmax(0)[relation])
        column = 0 if gold is None else 1 + gold - start
        torch.testing.assert_close(scored[token, column, 0], scores[gold], rtol=1e-4, atol=1e-4)
        assert int(scored[token, column, 1]) == int(logits.argmax())
    assert int(whole.count) == len(words) and float(whole.sum) == pytest.approx(total, rel=1e-5)


def test_an_ensemble_votes_for_arcs() -> None:
    """Single votes would make a cycle or two roots; the result is a tree, with the relation of the arc that won."""
    combine = partial(DEPENDENCY.outputs.combine, task_of("dependency"))
    trees = [
        Prediction(heads=(2, 0, 2), tags=("det", "root", "dep")),
        Prediction(heads=(2, 0, 1), tags=("dep", "root", "det")),
        Prediction(heads=(0, 3, 1), tags=("root", "dep", "det")),
    ]
    assert combine(trees) == Prediction(heads=(2, 0, 1), tags=("det", "root", "det"))
    assert combine(trees[:2]).heads == trees[0].heads and combine(trees[2:]) == trees[2]
    cycle = [Prediction(heads=heads, tags=("dep",) * 3) for heads in ((2, 3, 0), (0, 1, 2), (3, 0, 2))]
    assert is_tree(combine(cycle).heads)


def test_the_next_word_as_head() -> None:
    examples = examples_of("dependency")
    found = AdjacentHead().predict(examples, examples)
    assert all(is_tree(one.heads) and len(one.tags) == len(one.heads) for one in found)
    assert 0.05 < score(task_of("dependency"), examples, found)["uas"] < 0.5
    with pytest.raises(DataError, match="no parsed"):
        AdjacentHead().predict([Example(text="a", words=("a",))], examples)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["bert", "gpt2"])
def test_parsing_over_a_scalar_mix(shape: str) -> None:
    """The projections of the head are the outputs of a BiLSTM over all frozen layers."""
    task, examples = task_of("dependency"), examples_of("dependency")
    base = deepcopy(body(shape))
    mixing = Mixing(lstm=BiLSTM(hidden=16), dropout=0.0)
    model = adapt(base, Dependency(classes=3, arc=16, relation=8, dropout=0.0, scalar_mix=mixing))
    freeze(model, Frozen())
    encoder = TaskEncoder.from_task(task, model)
    stream = TaskStream(encoder.encode(examples), batch=8)
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-2)
    take_steps(optimizer, lambda step: model.loss(stream[step]).mean(), 40)
    assert score(task, examples, predict(model, encoder, examples))["las"] > 0.8


@pytest.mark.slow
def test_a_bilstm_learns_to_parse() -> None:
    examples = examples_of("dependency")
    parser = BiLSTMParser(hidden=16, depth=1, width=16, epochs=1, steps=60, size=4, dropout=0.0)
    parsed = parser.predict(examples * 2, examples)
    assert all(is_tree(one.heads) for one in parsed) and parsed == parser.predict(examples * 2, examples)
    assert score(task_of("dependency"), examples, parsed)["las"] > 0.6
