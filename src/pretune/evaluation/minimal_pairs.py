"""Minimal pairs: the share of acceptable sentences with the higher probability (Warstadt et al., 2020).

The score of a sentence is the sum of log-probabilities for a decoder, the pseudo-log-likelihood for an encoder, and
the log-probability of filling a blank with the sentence for an encoder-decoder. A tie counts as wrong and is reported:
sentences with the same tokens are tied.
"""

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from pretune.core.errors import DataError, UsageError, explain_missing
from pretune.data.sequences import Bools, Ints
from pretune.evaluation import EvaluationResult
from pretune.inference.scoring import (
    DEFAULT_SCORING,
    ProgressCallback,
    ScoringConfig,
    TokenLogProbs,
    compute_token_logprobs,
)
from pretune.inference.scoring_queries import Passages, encode_passages
from pretune.inference.text_model import get_tokenizer
from pretune.tasks.encoding import deduplicate
from pretune.tasks.example import Example, Examples
from pretune.tasks.table import BlankRows, Jsonl, TableRow, is_blank, open_table, read_lines, remove_compression


def evaluate_minimal_pairs(
    model: nn.Module,
    examples: Examples,
    *scorings: ScoringConfig,
    name: str = "minimal_pairs",
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Evaluate the share of pairs whose acceptable sentence (`text`) is likelier than the other (`pair`).

    With several scorings, the score of a sentence is the sum of theirs. If pairs have sets (`group`), the headline is
    the mean over the sets, as published for BLiMP; the groups are phenomena if the examples have them, else sets.
    """
    sentences, pair_indices = _tokenize_unique(model, examples)
    results = [
        compute_token_logprobs(model, sentences, scoring, on_progress) for scoring in scorings or (DEFAULT_SCORING,)
    ]
    sums = np.sum([logprobs.sums for logprobs in results], axis=0)[pair_indices]  # [pairs, 2]
    correct, is_tie = sums[:, 0] > sums[:, 1], sums[:, 0] == sums[:, 1]
    sets = average_by_group(correct, [example.group for example in examples])
    phenomena = average_by_group(correct, [example.facts.get("linguistics_term") for example in examples])
    scores = {"accuracy": float(correct.mean())}
    if sets:
        scores = {"accuracy": float(np.mean(list(sets.values()))), "pair_accuracy": scores["accuracy"]}
    counts = {"pairs": len(examples), "ties": int(is_tie.sum())}
    counts |= {"sets": len(sets), "cut": results[0].truncated_passages}
    return EvaluationResult(task=name, scores=scores, groups=phenomena or sets, counts=_drop_zero_counts(counts))


def evaluate_bias_pairs(
    model: nn.Module,
    examples: Examples,
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Evaluate how often the more stereotyped sentence is the likelier (Nangia et al., 2020); 0.5 is unbiased.

    Only the tokens that both sentences share are summed, given all others, so the frequency of the words that differ
    does not count. A decoder sees the differing words only in the context before a token.
    """
    sentences, pair_indices = _tokenize_unique(model, examples)
    # As published: one token is masked at a time.
    logprobs = compute_token_logprobs(model, sentences, replace(scoring, rest=False), on_progress)
    sums = np.array([_sum_shared_tokens(sentences, logprobs, (left, right)) for left, right in pair_indices.tolist()])
    is_stereotyped, is_tie = sums[:, 0] > sums[:, 1], sums[:, 0] == sums[:, 1]
    counts = {"pairs": len(examples), "ties": int(is_tie.sum()), "cut": logprobs.truncated_passages}
    return EvaluationResult(
        task="bias_pairs",
        scores={"stereotyped": float(is_stereotyped.mean())},
        groups=average_by_group(is_stereotyped, [example.group for example in examples]),
        counts=_drop_zero_counts(counts),
    )


def average_by_group(correct: Bools, names: Sequence[str | None]) -> dict[str, float]:
    """Return the accuracy by group; empty if a name is missing."""
    if any(name is None for name in names):
        return {}
    groups, owner = np.unique(np.array(names, dtype=str), return_inverse=True)
    means = np.bincount(owner, weights=correct) / np.bincount(owner)
    return dict(zip(groups.tolist(), means.tolist(), strict=True))


def _tokenize_unique(model: nn.Module, examples: Examples) -> tuple[Passages, Ints]:
    """Tokenize every distinct sentence once; return them and the indices [pairs, 2] of each pair."""
    if not examples:
        raise DataError("no pairs to compare; is the file empty?")
    texts = [text or "" for example in examples for text in (example.text, example.pair)]
    passages = encode_passages(get_tokenizer(model), texts)
    keys = [tokens.tobytes() for tokens in np.split(passages.tokens, passages.offsets[1:-1])]
    _, indices = deduplicate(keys)
    _, first_positions = np.unique(indices, return_index=True)
    return passages.take(first_positions), indices.reshape(-1, 2)


def _sum_shared_tokens(sentences: Passages, logprobs: TokenLogProbs, pair: tuple[int, int]) -> tuple[float, float]:
    """Return the sums of log-probabilities of two sentences over the tokens that they share."""
    logs = [logprobs[i] for i in pair]
    left, right = (sentences.tokens[sentences.offsets[i] :][: len(logprobs[i])].tolist() for i in pair)
    sums = [0.0, 0.0]
    for block in difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
        for side, start in enumerate((block.a, block.b)):
            sums[side] += float(np.nansum(logs[side][start : start + block.size]))
    return sums[0], sums[1]


def _drop_zero_counts(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts without zeros; pairs and ties are always reported."""
    return {name: count for name, count in counts.items() if count or name in ("pairs", "ties")}


ORDERS = ("good-first", "bad-first")
GOOD, BAD = "sentence_good", "sentence_bad"
TABLE_SUFFIXES = frozenset({".csv", ".tsv"})
TEXT_SUFFIXES = frozenset({"", ".txt", ".jsonl", ".json", ".ndjson"}) | TABLE_SUFFIXES
"""File extensions of pairs."""
IGNORED_STEMS = frozenset(
    {"readme", "license", "licence", "copying", "notice", "citation", "authors", "changelog", "manifest"}
)
"""Names of files that describe a folder."""


def read_pairs(path: Path, order: str = "good-first") -> list[Example]:
    """Read the pairs of a file, each with the better sentence as its text.

    A file has two lines per pair, in the given `order`; or it is a table or JSON lines with both sentences by name.
    """
    if order not in ORDERS:
        raise UsageError(f"unknown order '{order[:40]}' (allowed: {', '.join(ORDERS)})")
    if not path.is_file():
        raise DataError(f"{path}: {explain_missing(path)}; pass a file of sentence pairs with --data")
    rows = [(number, line.strip()) for number, line in read_lines(path) if line.strip()]
    if not rows:
        raise DataError(f"{path}: no sentences; expected two lines per pair, the better sentence first, or JSON lines")
    if rows[0][1].startswith("{"):
        return BlankRows().parse_all(path, open_table(path).read_rows(), _parse_object)
    if re.match(r"\[\s*(\{|$)", rows[0][1]):
        raise DataError(f"{path}: a JSON array; write JSON lines, one object with {GOOD} and {BAD} per line")
    if _is_table(path, rows[0][1]):
        table = open_table(path, [GOOD, BAD])
        for column in (GOOD, BAD):
            table.check_column(column)
        return BlankRows().parse_all(path, table.read_rows(), _parse_object)
    if len(rows) % 2:
        raise DataError(f"{path}:{rows[-1][0]}: odd number of lines ({len(rows)}); expected two lines per pair")
    examples = []
    for (number, first), (_, second) in zip(rows[::2], rows[1::2], strict=True):
        good, bad = (first, second) if order == "good-first" else (second, first)
        examples.append(Example(text=good, pair=bad, id=str(number)))
    return examples


def read_pair_folder(path: Path, order: str = "good-first") -> tuple[list[Example], list[str]]:
    """Read the pairs of each file of a folder, with the file's name as their set; also return the skipped files.

    Hidden files are ignored. Files that describe the folder (README, LICENSE, …), of other extensions, empty ones, and
    tables and JSON lines without both sentences are skipped; any other file that is not readable as pairs is an error.
    """
    examples: list[Example] = []
    skipped_files: list[str] = []
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    names = Counter(_get_set_name(file) for file in files)
    for file in files:
        if not _holds_pairs(file):
            skipped_files.append(file.name)
            continue
        name = _get_set_name(file)
        examples += [replace(pair, group=name if names[name] == 1 else file.name) for pair in read_pairs(file, order)]
    if not examples:
        hint = f" (skipped: {', '.join(skipped_files[:5])})" if skipped_files else ""
        raise DataError(
            f"{path}: no file of sentence pairs in this folder{hint}; pass .txt, .jsonl, .csv or .tsv files"
        )
    return examples, skipped_files


def _get_set_name(file: Path) -> str:
    """Return the name of a file without its format extensions."""
    name = remove_compression(file)
    while name.suffix.lower() in TEXT_SUFFIXES - {""}:
        name = name.with_suffix("")
    return name.name


def _holds_pairs(file: Path) -> bool:
    inner = remove_compression(file)
    if inner.suffix.lower() not in TEXT_SUFFIXES or inner.stem.lower() in IGNORED_STEMS:
        return False
    first = next((line.strip() for _, line in read_lines(file) if line.strip()), "")
    if first and _is_table(file, first):
        return {GOOD, BAD} <= {*open_table(file, [GOOD, BAD]).columns}
    if not first.startswith("{"):
        return bool(first)
    return {GOOD, BAD} <= next(iter(Jsonl().read_rows(file))).values.keys()


def _is_table(file: Path, first: str) -> bool:
    """Return True for CSV and TSV by the extension, or by a first line that names both sentences."""
    cells = {cell.strip(' "') for cell in re.split(r"[\t,;|]", first)}
    return remove_compression(file).suffix.lower() in TABLE_SUFFIXES or {GOOD, BAD} <= cells


def _parse_object(row: TableRow) -> Example:
    group = next((str(row.values[name]) for name in ("UID", "group") if not is_blank(row.values.get(name))), None)
    return Example(text=row.get_text(GOOD), pair=row.get_text(BAD), group=group, id=row.number)


def read_bias_pairs(path: Path) -> list[Example]:
    """Read a table with `sent_more` (the more stereotyped sentence), `sent_less`, and optionally `bias_type`."""
    if not path.is_file():
        problem = explain_missing(path)
        raise DataError(f"{path}: {problem}; pass a table with sent_more and sent_less with --data")
    table = open_table(path, ["sent_more", "sent_less"])
    return BlankRows().parse_all(path, table.read_rows(), _parse_bias_pair)


def _parse_bias_pair(row: TableRow) -> Example:
    group = str(row.values["bias_type"]) if row.values.get("bias_type") else None
    return Example(text=row.get_text("sent_more"), pair=row.get_text("sent_less"), group=group)
