"""Dependency parsing: the head of every word and its relation (biaffine: Dozat and Manning, 2017).

    She   read  the  book           heads       2      0     4    2
                                    relations   nsubj  root  det  obj

Words are encoded as for tagging. A word is its first token; for a left-to-right model its last, the only one that has
seen all of the word. The tree is the maximum spanning tree of the scores with one root; the relation of an arc is the
best one. Users' files are CoNLL-U, or JSONL with lists of words, heads and relations.

`find_tree` computes the maximum spanning tree with one root (Chu and Liu, 1965; Edmonds, 1967):

    scores = np.array([[1.0, 0.0, 9.0],        # of word 1: the root, word 1, word 2 as head
                       [5.0, 9.0, 0.0]])       # of word 2
    find_tree(scores)                          # [2, 0]: 2 is the head of 1, the root that of 2
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.dependency import UNKNOWN_HEAD, Dependency, encode_arcs
from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.data.sequences import Ints, compute_offsets
from pretune.tasks.benchmarks.conll import DependencyReader, find_cycle, is_tree
from pretune.tasks.encoding import EncodingRules, Floats, Items, missing_value_error
from pretune.tasks.example import Example, Examples, Prediction, Predictions
from pretune.tasks.table import TableRow, data_error
from pretune.tasks.table_reader import UserTables
from pretune.tasks.task import Task
from pretune.tasks.types.base import Outputs, TaskType
from pretune.tasks.types.tagging import TagListReader, TagScoring, TokenInputs, pick_word_reader, read_tag_ids

Scores = NDArray[np.floating]


def find_tree(scores: Scores) -> list[int]:
    """Return the heads of n words in the tree of the highest total score with exactly one word below the root.

    `scores[w, h]` `[n, 1 + n]` is the score of head h (0: the root) for word w + 1; the score of a word as its own head
    is ignored. Raises DataError if a score is NaN or infinite.

    >>> find_tree(np.array([[3.0, 0.0, 1.0], [3.0, 2.0, 0.0]]))
    [0, 1]
    """
    count, words = len(scores), np.arange(len(scores))
    if not count:
        return []
    values = scores.astype(np.float64)
    values[words, words + 1] = values[:, 0]
    if not np.isfinite(values).all():
        raise DataError("the scores of heads must be finite; the model may have diverged")
    # Every tree has a word below the root. With a penalty larger than any difference between the totals of two trees,
    # the best tree has exactly one.
    values[:, 0] -= 1.0 + count * (values.max() - values.min())
    matrix = np.full((1 + count, 1 + count), -np.inf)  # [dependent, head]; the root has no head
    matrix[1:] = values
    np.fill_diagonal(matrix, -np.inf)
    heads: list[int] = _find_arborescence(matrix)[1:].tolist()
    return heads


def _find_arborescence(scores: Scores) -> NDArray[np.int64]:
    """Return the head of each node in the best tree below node 0; a cycle of best heads is contracted to one node."""
    heads = np.zeros(len(scores), dtype=np.int64)
    heads[1:] = scores[1:].argmax(axis=1)
    cycle = find_cycle(heads)
    if cycle is None:
        return heads
    nodes = np.arange(len(scores))
    rest = nodes[~np.isin(nodes, cycle)]  # the root first
    cycle_node = len(rest)  # number of the cycle among the nodes of the smaller problem
    cycle_scores = scores[cycle, heads[cycle]]
    entering = scores[np.ix_(cycle, rest)] - cycle_scores[:, None]  # gain of breaking the cycle at a node
    leaving = scores[np.ix_(rest, cycle)]
    broken, source = entering.argmax(axis=0), leaving.argmax(axis=1)
    smaller = np.full((cycle_node + 1, cycle_node + 1), -np.inf)
    smaller[:-1, :-1] = scores[np.ix_(rest, rest)]
    smaller[-1, :-1], smaller[:-1, -1] = entering.max(axis=0), leaving.max(axis=1)
    smaller[0] = -np.inf
    inner = _find_arborescence(smaller)
    for number, node in enumerate(rest.tolist()):
        if number:
            head = int(inner[number])
            heads[node] = cycle[source[number]] if head == cycle_node else rest[head]
    heads[cycle[broken[inner[cycle_node]]]] = rest[inner[cycle_node]]
    return heads


ROOT_RELATION, UNKNOWN_RELATION = "root", "dep"
"""Relations of the word below the root, and of a word whose relation is unknown, if the task has them."""


@dataclass(frozen=True, kw_only=True)
class TreeInputs(TokenInputs):
    """Words, each of which has a head and a relation."""

    needs_both_sides = True

    def build_head(self, task: Task) -> TaskHead:
        return Dependency(classes=len(task.labels), labels=task.labels)

    def build_targets(self, task: Task, examples: Examples, words: Ints, positions: Ints) -> Ints:
        relations = read_tag_ids(task, examples)
        heads: list[int] = []  # number of the head among all words; -1 for the root
        for number, example in enumerate(examples):
            if len(example.heads) != len(example.words):
                problem = f"{len(example.heads)} heads for {len(example.words)} words"
                raise missing_value_error(task, number, example, problem)
            first = len(heads)
            heads += [first + head - 1 if head else -1 for head in example.heads]
        token = np.full(len(heads) + 1, -1)  # position of each word; the last is that of the root, which has none
        token[words] = positions
        head = np.array(heads, dtype=np.int64)[words]
        distance = np.where(head < 0, 0, token[head] - positions)
        is_lost = (head >= 0) & (token[head] < 0)
        return np.where(is_lost, UNKNOWN_HEAD, encode_arcs(distance, relations[words], len(task.labels)))

    def format(self, example: Example) -> dict[str, object]:
        """Return the words, and their published heads."""
        gold_heads = {"gold_heads": list(example.heads)} if example.heads else {}
        return {**super().format(example), **gold_heads}

    def build_user_task(self, tables: UserTables) -> Task:
        needs = "dependency parsing needs a CoNLL-U file, or JSONL with lists of words, heads and relations"
        reader = pick_word_reader(tables, DependencyReader, TreeListReader, needs, "relations")
        return tables.build_task("dependency", reader, ("attachment",), reader.labels)


@dataclass(frozen=True, kw_only=True)
class TreeOutputs(Outputs):
    """A score and the best relation of every pair of tokens; a tree is found from all arcs."""

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the tree of every sentence; a word without a token depends on the word before it."""
        assert items.alignment is not None
        lengths, offsets = items.sequences.lengths, items.sequences.offsets
        blocks = pairwise(compute_offsets(lengths * (1 + lengths)))
        predictions: list[Prediction] = []
        for example, low, high, (start, end) in zip(examples, offsets[:-1], offsets[1:], blocks, strict=True):
            pairs = logits[start:end].reshape(high - low, 1 + high - low, 2)  # score and relation of [token, head]
            tokens = np.flatnonzero(items.alignment[low:high] >= 0)
            arcs = pairs[np.ix_(tokens, np.append(0, 1 + tokens))]
            predictions.append(build_tree(len(example.words), items.alignment[low + tokens], arcs, rules.task.labels))
        return predictions

    def combine(self, task: Task, predictions: Predictions, threshold: float | None = None) -> Prediction:
        """Return the tree with the most votes for its arcs (Sagae and Lavie, 2006), with their most frequent relations.

        Of equally frequent ones those of the earliest model are taken.
        """
        words = np.arange(len(predictions[0].heads))
        votes = np.zeros((len(words), 1 + len(words)))
        for number, tree in enumerate(predictions):
            votes[words, tree.heads] += 1 + 1e-6 * (len(predictions) - number)
        heads = find_tree(votes)
        tags: list[str] = []
        for word, head in enumerate(heads):
            of_arc = [tree.tags[word] for tree in predictions if tree.heads[word] == head]
            tags.append(Counter(of_arc or [tree.tags[word] for tree in predictions]).most_common(1)[0][0])
        return Prediction(heads=tuple(heads), tags=tuple(tags))

    def format(self, task: Task, prediction: Prediction) -> dict[str, object]:
        return {"heads": list(prediction.heads), "relations": list(prediction.tags)}


@dataclass(frozen=True, kw_only=True)
class TreeScoring(TagScoring):
    """Heads are right or wrong, and relations; the gold answer of a row are the relations."""

    def format_gold(self, task: Task, example: Example) -> Any:
        return list(example.tags) if example.heads else None


DEPENDENCY = TaskType(
    name="dependency",
    inputs=TreeInputs(),
    outputs=TreeOutputs(),
    scoring=TreeScoring(gold="tree", baselines={"majority": "adjacent_head", "bilstm": "bilstm_parser"}),
)
"""A head and a relation for every word: a dependency tree."""


def build_tree(count: int, words: Ints, arcs: Floats, labels: Sequence[str]) -> Prediction:
    """Return the tree of a sentence of `count` words, from the arcs of those that have a token.

    `arcs` `[w, 1 + w, 2]` has the score and the best relation of each head (first the root) for the words `words`. Any
    other word depends on the word before it.
    """
    heads = list(range(count))  # the word before, counted from 1
    tags = [UNKNOWN_RELATION if UNKNOWN_RELATION in labels else labels[0]] * count
    for index, head in enumerate(find_tree(arcs[:, :, 0])):
        word = int(words[index])
        heads[word] = int(words[head - 1]) + 1 if head else 0
        tags[word] = ROOT_RELATION if not head and ROOT_RELATION in labels else labels[int(arcs[index, head, 1])]
    if len(words) and 0 not in words:  # the first word depends on the one below the root
        heads[0] = heads.index(0, 1) + 1
    return Prediction(heads=tuple(heads), tags=tuple(tags))


@spec
class TreeListReader(TagListReader):
    """Reader of sentences as lists of words, `heads` and relations."""

    def parse_row(self, row: TableRow) -> Example:
        example = TagListReader.parse_row(self, row)  # a class with slots has no `super()`
        heads = row.require("heads")
        is_list = isinstance(heads, list) and all(type(head) is int for head in heads)
        if not is_list or len(heads) != len(example.words) or not is_tree(heads):
            raise data_error(
                f"{row.location}: 'heads' must be a tree: a number from 0 (the root, once) to {len(example.words)} "
                f"for each word, got {str(heads)[:60]}"
            )
        return replace(example, heads=tuple(heads))
