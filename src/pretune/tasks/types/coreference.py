"""Coreference: clusters of the mentions of a document, end to end (Lee et al., 2017; Joshi et al., 2019).

    Anna sold her old car . It was hers .      [[0, 0], [2, 2], [8, 8]]   Anna, her, hers
                                               [[2, 4], [6, 6]]           her old car, It

Words are encoded as for tagging. A document that is longer than a sequence is cut between sentences into chunks, each
read by the encoder on its own; spans are linked across all of them, in training across `MAX_CHUNKS`. Clusters of two
mentions or more are learned and predicted, as OntoNotes has them: a mention alone in its cluster is no target. Users'
files are CoNLL-2012 columns, or JSONL with lists of sentences and clusters.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.coreference import CLUSTERS, MAX_SHIFT, WIDTHS, Coreference, encode_mentions
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Bools, Ints, Sequences, compute_starts
from pretune.tasks.benchmarks.coreference import CoreferenceReader, DocumentReader, read_sentence_lists
from pretune.tasks.encoding import (
    EncodingRules,
    Floats,
    Items,
    PooledSequences,
    TokenPool,
    build_items,
    compute_room,
    count_truncated,
    missing_value_error,
)
from pretune.tasks.example import Clusters, Example, Examples, Mention, Prediction, Predictions
from pretune.tasks.table import COLUMNS, TableFile, open_table
from pretune.tasks.table_reader import UserTables
from pretune.tasks.task import Task
from pretune.tasks.types.base import Outputs, Scoring, TaskType
from pretune.tasks.types.span import NUM_SPLITS
from pretune.tasks.types.tagging import TokenInputs, find_word_tokens
from pretune.text.sentences import split_sentences

MAX_CHUNKS = 4
"""Chunks of a document that are trained together; a longer document is several items."""
Node = TypeVar("Node", int, Mention)
_WORD = re.compile(r"\w+(?:-\w+)*|['’]\w+|[^\w\s]")


class Chunks(NamedTuple):
    """The parts of documents that are sequences: ranges of the tokens of a pool."""

    start: Ints
    length: Ints
    owner: Ints  # document of each
    number: Ints  # index among those of its item: a document, in training some chunks of it
    is_cut: Bools  # documents with a sentence that is longer than a sequence


@dataclass(frozen=True, kw_only=True)
class DocumentInputs(TokenInputs):
    """Words in sentences, with clusters of mentions."""

    needs_both_sides = True
    default_length = 384  # the best one of the paper for a large encoder

    def build_head(self, task: Task) -> TaskHead:
        return Coreference()

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode the chunks of each document; `alignment` is the word that a token stands for."""
        pool, sentences = self.tokenize(rules, examples), _number_sentences(rules.task, examples)
        chunks = _split_documents(rules, pool, examples, sentences, MAX_CHUNKS if training else len(pool.ids) + 1)
        layout = pool.lay_out(rules.sequence_template, chunks.start, chunks.length)
        alignment = np.append(self.locate_words(rules, pool, examples), -1)[layout.pool_index]
        first_words = compute_starts(np.array([len(example.words) for example in examples], dtype=np.int64))
        words = first_words[chunks.owner[layout.sequences.find_owners()]] + alignment
        words[alignment < 0] = -1  # [T] number among the words of all documents
        sequences = _mark_words(rules.set_segments(layout.sequences), words, sentences, layout)
        sequences = replace(sequences, chunks=chunks.number)
        counts = replace(
            count_truncated(chunks.is_cut.astype(np.int64), pool.lengths),
            lost=0,
            words_lost=len(sentences) - int((words >= 0).sum()),
        )
        if training:
            targets, lost = _build_targets(rules.task, examples, layout, chunks, words, sentences)
            sequences, counts = replace(sequences, targets=targets), replace(counts, answers_lost=lost)
        sizes = np.diff(np.append(np.flatnonzero(chunks.number == 0), len(chunks.number)))
        return build_items(sequences, counts, examples=chunks.owner, sizes=sizes, alignment=alignment)

    def format(self, example: Example) -> dict[str, object]:
        ends = np.cumsum(example.sentences)[:-1]
        return {"sentences": [[*map(str, words)] for words in np.split(np.array(example.words, dtype=object), ends)]}

    def read_fields(self, fields: Mapping[str, object], text: str | None, source: str) -> dict[str, Any]:
        """Return the sentences of an input, split by rules if it has only a text."""
        column = next((name for name in COLUMNS["document words"] if fields.get(name)), None)
        if column is not None:
            words, sentences = read_sentence_lists(fields[column], source, column)
            return {"words": words, "sentences": sentences, "text": " ".join(words)}
        text = text or ""
        rows = [_WORD.findall(text[start:end]) for start, end in pairwise([*split_sentences(text), len(text)])]
        words = tuple(word for row in rows for word in row)
        return {"words": words, "sentences": tuple(map(len, filter(None, rows))), "text": text}

    def open_file(self, path: Path, column_names: Sequence[str]) -> TableFile:
        """Open JSONL, or columns, whose number differs from sentence to sentence."""
        if not path.is_file() or {".jsonl", ".jsonlines", ".ndjson", ".json"} & set(path.suffixes):
            return open_table(path, column_names)
        return TableFile(path=path, form="conll")

    def build_user_task(self, tables: UserTables) -> Task:
        reader: CoreferenceReader | DocumentReader = CoreferenceReader()
        if tables.train.form == "jsonl":
            reader = DocumentReader(**tables.pick_columns({"text": "document words", "label": "clusters"}))
        groups = {example.group for example in tables.read(reader)}
        task = tables.build_task("coreference", reader, ("coreference",))
        return replace(task, group_field="group" if len(groups) >= NUM_SPLITS else None)  # parts of documents


@dataclass(frozen=True, kw_only=True)
class ClusterOutputs(Outputs):
    """The kept spans of a document, each with its best antecedent."""

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the clusters of each document: the spans that are linked, if they stand for words."""
        assert items.alignment is not None
        bounds = items.sequences.offsets[np.searchsorted(items.examples, np.arange(len(examples) + 1))]
        predictions: list[Prediction] = []
        for example, (low, high) in zip(examples, pairwise(bounds.tolist()), strict=True):
            rows = logits[low:high].astype(np.int64)
            spans = items.alignment[low + np.maximum(rows[:, :2], 0)].tolist()
            groups = join_links((row, int(rows[row, 2])) for row in np.flatnonzero(rows[:, 2] >= 0).tolist())
            clusters = [[(first, last) for first, last in (spans[row] for row in group)] for group in groups]
            predictions.append(build_prediction(example.words, clusters))
        return predictions

    def combine(self, task: Task, predictions: Predictions, threshold: float | None = None) -> Prediction:
        """Return the clusters of pairs of mentions that most models put into one."""
        votes = Counter(pair for part in predictions for cluster in part.clusters for pair in combinations(cluster, 2))
        pairs = [pair for part in predictions for pair in zip(part.clusters, part.mentions, strict=True)]
        texts = {mention: text for cluster, words in pairs for mention, text in zip(cluster, words, strict=True)}
        clusters = join_links(pair for pair, count in votes.items() if 2 * count > len(predictions))
        return Prediction(clusters=clusters, mentions=tuple(tuple(map(texts.__getitem__, c)) for c in clusters))

    def format(self, task: Task, prediction: Prediction) -> dict[str, object]:
        """Return the clusters, and the texts of their mentions."""
        return {"clusters": _list_clusters(prediction.clusters), "mentions": [*map(list, prediction.mentions)]}


@dataclass(frozen=True, kw_only=True)
class ClusterScoring(Scoring):
    """Clusters are compared as sets of mentions."""

    def count_labels(self, task: Task, examples: Examples) -> Mapping[str, float]:
        clusters = [cluster for example in examples for cluster in example.clusters or ()]
        return {"clusters": len(clusters), "mentions": sum(map(len, clusters))}

    def format_gold(self, task: Task, example: Example) -> Any:
        return None if example.clusters is None else _list_clusters(example.clusters)


COREFERENCE = TaskType(
    name="coreference",
    inputs=DocumentInputs(),
    outputs=ClusterOutputs(),
    scoring=ClusterScoring(gold="clusters", baselines={"majority": "same_words", "svm": "nearest_mention"}),
)
"""Clusters of the mentions of a document."""


def join_links(links: Iterable[tuple[Node, Node]]) -> tuple[tuple[Node, ...], ...]:
    """Return the groups that links form, each in order, in the order of their first members.

    >>> join_links([(4, 1), (5, 4), (3, 2)])
    ((1, 4, 5), (2, 3))
    """
    groups: dict[Node, set[Node]] = {}
    for pair in links:
        group = set[Node]().union(*(groups.get(node, {node}) for node in pair))
        groups.update(dict.fromkeys(group, group))
    return tuple(sorted({tuple(sorted(nodes)) for nodes in groups.values()}))


def build_prediction(words: Sequence[str], clusters: Iterable[Iterable[Mention]]) -> Prediction:
    """Return the prediction of clusters; a mention of no word (-1) is left out, and a cluster of one mention."""
    mentions = (tuple(sorted(mention for mention in cluster if min(mention) >= 0)) for cluster in clusters)
    sorted_clusters = tuple(sorted(cluster for cluster in mentions if len(cluster) > 1))
    texts = (tuple(" ".join(words[first : last + 1]) for first, last in cluster) for cluster in sorted_clusters)
    return Prediction(clusters=sorted_clusters, mentions=tuple(texts))


def _list_clusters(clusters: Clusters) -> list[list[list[int]]]:
    """Return clusters as lists, for JSON."""
    return [[[*mention] for mention in cluster] for cluster in clusters]


def _number_sentences(task: Task, examples: Examples) -> Ints:
    """Return the sentence of each word, numbered through all documents; one without sentences is one."""
    lengths: list[int] = []
    for number, example in enumerate(examples):
        sentences = example.sentences or (len(example.words),)
        if sum(sentences) != len(example.words):
            problem = f"sentences of {sum(sentences)} words in total, but {len(example.words)} words"
            raise missing_value_error(task, number, example, problem)
        lengths += sentences
    return np.repeat(np.arange(len(lengths)), lengths)


def find_chunks(starts: Sequence[int], end: int, limit: int) -> list[int]:
    """Return the first tokens of the chunks of a document, from those of its sentences: whole ones where they fit.

    >>> find_chunks([0, 4, 7], 20, 8)
    [0, 7, 15]
    """
    chunks = [0]
    for start, stop in pairwise([*starts, end]):
        if stop - chunks[-1] > limit and start > chunks[-1]:
            chunks.append(start)
        while stop - chunks[-1] > limit:
            chunks.append(chunks[-1] + limit)
    return chunks


def _split_documents(
    rules: EncodingRules, pool: TokenPool, examples: Examples, sentences: Ints, max_chunks: int
) -> Chunks:
    """Return the chunks of all documents; every `max_chunks` a new item begins."""
    room = compute_room(rules.sequence_template, rules.max_length, pair=False)
    word_index = find_word_tokens(pool, [example.words for example in examples], "first")
    start, owner, number, first_word = list[int](), list[int](), list[int](), 0
    is_cut = np.zeros(len(examples), dtype=bool)
    for document, example in enumerate(examples):
        low, high = pool.offsets[document : document + 2].tolist()
        tokens = np.flatnonzero(word_index[low:high] >= 0)
        of_token = sentences[first_word + word_index[low:high][tokens]]
        first_tokens = tokens[np.diff(of_token, prepend=-1) != 0][1:].tolist()
        chunks = find_chunks([0, *first_tokens], high - low, room)
        is_cut[document] = not {0, *first_tokens}.issuperset(chunks)
        start += [low + chunk for chunk in chunks]
        owner += [document] * len(chunks)
        number += [index % max_chunks for index in range(len(chunks))]
        first_word += len(example.words)
    starts, owners = np.array(start, dtype=np.int64), np.array(owner, dtype=np.int64)
    ends = np.minimum(np.append(starts[1:], pool.offsets[len(examples)]), pool.offsets[owners + 1])
    return Chunks(starts, ends - starts, owners, np.array(number, dtype=np.int64), is_cut)


def _mark_words(sequences: Sequences, words: Ints, sentences: Ints, layout: PooledSequences) -> Sequences:
    """Mark the tokens that stand for a word, and the first ones of sentences; special tokens are alone."""
    is_word = (words >= 0) | (layout.pool_index < 0)
    places = np.flatnonzero(is_word)
    group = np.where(words >= 0, np.append(sentences, -1)[words], -1 - np.arange(len(words)))[places]
    is_sentence = np.zeros(len(words), dtype=bool)
    is_sentence[places] = np.diff(group, prepend=np.iinfo(np.int64).max) != 0
    return replace(sequences, words=is_word, sentences=is_sentence)


def _build_targets(
    task: Task, examples: Examples, layout: PooledSequences, chunks: Chunks, words: Ints, sentences: Ints
) -> tuple[Ints, int]:
    """Return the targets of the mentions that have another one of their cluster in the item, and the number of others.

    A mention needs a token for its first and its last word, in one sentence and sequence.
    """
    sequence, offsets = layout.sequences.find_owners(), layout.sequences.offsets
    token = np.full(len(sentences) + 1, -1)  # that stands for a word
    token[words] = np.arange(len(words))
    token[-1] = -1
    order = np.cumsum(words >= 0)
    item = np.cumsum(chunks.number == 0)
    rows: list[tuple[int, int, int]] = []  # first token, number of words, cluster
    count, first_word, cluster_counts = 0, 0, Counter[int]()
    for number, example in enumerate(examples):
        if example.clusters is None:
            raise missing_value_error(task, number, example, "no clusters")
        for cluster in example.clusters:
            count += len(cluster) if len(cluster) > 1 else 0
            parts: dict[int, list[tuple[int, int]]] = {}
            for mention in cluster:
                first, last = (first_word + place for place in mention)
                low, high = int(token[first]), int(token[last])
                if min(low, high) >= 0 and sequence[low] == sequence[high] and sentences[first] == sentences[last]:
                    width = int(order[high] - order[low]) + 1
                    parts.setdefault(int(item[sequence[low]]), []).append((low, width))
            for place, mentions in parts.items():
                if len(mentions) > 1:
                    rows += [(low, width, cluster_counts[place]) for low, width in mentions]
                    cluster_counts[place] += 1
        first_word += len(example.words)
    start, widths, clusters = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T
    owner = sequence[start]
    slot = offsets[owner] + np.arange(len(start)) - np.searchsorted(owner, owner)
    fits = (slot < offsets[owner + 1]) & (np.abs(start - slot) < MAX_SHIFT) & (widths < WIDTHS) & (clusters < CLUSTERS)
    targets = np.full(len(words), IGNORE_INDEX)
    targets[slot[fits]] = encode_mentions(start - slot, widths, clusters)[fits]
    return targets, count - int(fits.sum())
