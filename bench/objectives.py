"""Speed of corruption by objective on one core, compared with the collators of transformers.

    PYTHONPATH=src OMP_NUM_THREADS=1 python bench/objectives.py [--tokens 65536] [--length 128] [--repeats 15]
                                                              [--only masked permuted] [--out result.json]

A batch has sequences of `length` tokens with their special tokens, words of 1.4 and sentences of 30 tokens on average,
and a vocabulary of 30,000. Our time is that of `corrupt`. The peers get the same sequences as lists of ids with
special-token masks, as a dataset returns them; their time includes building tensors (all sequences have the same
length, so nothing is padded). Prints million tokens per second of CPU time, medians of alternated repeats, and the
ratios.

Peers of masked language modeling: DataCollatorForLanguageModeling, its masking alone on existing tensors, and
whole_word_mask; of permutations: DataCollatorForPermutationLanguageModeling. Goals: a ratio of 5, and 2 million tokens
per second for every objective.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.data.counters import Counters
from pretune.data.sequences import Sequences, compute_offsets
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.masked import MaskedLM
from pretune.objectives.mixture import Mixture

GOAL, RATE = 5.0, 2e6
VOCAB = 30_000
PAD, UNK, CLS, SEP, MASK, BOS, EOS = range(7)
SENTINELS = tuple(range(VOCAB - 1, VOCAB - 101, -1))
VOCABULARY = Vocabulary(
    size=VOCAB,
    special=(PAD, UNK, CLS, SEP, MASK, BOS, EOS, *reversed(SENTINELS)),
    roles=(("pad", PAD), ("unk", UNK), ("cls", CLS), ("sep", SEP), ("mask", MASK), ("bos", BOS), ("eos", EOS)),
    sentinels=SENTINELS,
    start=BOS,
)
MORE: dict[str, Objective] = {"masked, whole words": MaskedLM(words=True)}


def make_sequences(tokens: int, length: int, objective: Objective | None = None) -> Sequences:
    """Create `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]` for an objective on pairs; half of each for a mixture."""
    rng, count = np.random.default_rng(0), tokens // length
    flat = rng.integers(EOS + 1, VOCAB - 200, count * length)
    words, sentences = rng.random(len(flat)) < 1 / 1.4, rng.random(len(flat)) < 1 / 30
    place = np.arange(len(flat)) % length
    pairs = objective is not None and objective.pairs is not None
    special = (place == 0) | (place == length - 1) | (pairs & (place == length // 2))
    flat[place == 0], flat[special & (place > 0)] = CLS, SEP
    after = np.roll(special, 1)
    return Sequences(
        tokens=flat,
        offsets=compute_offsets(np.full(count, length)),
        special=special,
        words=words | special | after if objective is None or objective.words else None,
        sentences=sentences & words | special | after if objective is None or objective.sentences else None,
        segments=(place > length // 2).astype(np.int64) if pairs else None,
        labels=np.arange(count) % 2 if pairs else None,
        sides=np.full(count, length // 2 + 1) * (np.arange(count) % 2 if isinstance(objective, Mixture) else 1)
        if pairs
        else None,
        samples=np.arange(count),
        epochs=np.zeros(count, dtype=np.int64),
    )


def build_call(objective: Objective, shape: ModelShape, tokens: int, length: int) -> Callable[[int], object]:
    """Build a function that corrupts one batch."""
    lesson, sequences = objective.bind(VOCABULARY, shape), make_sequences(tokens, length, objective)
    return lambda turn: lesson.corrupt(sequences, Counters.from_sequences(turn, sequences, copies=lesson.copies))


def build_tokenizer() -> Any:
    """Build a fast tokenizer of transformers with the same vocabulary size."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(VOCAB - 5))]
    raw = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    roles = {f"{name.strip('[]').lower()}_token": name for name in names[:5]}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **roles)


def build_peer_calls(tokens: int, length: int) -> dict[str, tuple[str, Callable[[int], object]]]:
    """Return for each objective the name of its peer and a function that collates one batch."""
    from transformers import DataCollatorForLanguageModeling, DataCollatorForPermutationLanguageModeling

    sequences, made = make_sequences(tokens, length), build_tokenizer()
    assert sequences.special is not None and sequences.words is not None
    ids, special, words = (
        value.reshape(-1, length)
        for value in (sequences.tokens, sequences.special.astype(np.int64), np.cumsum(sequences.words))
    )
    plain = [
        {"input_ids": row.tolist(), "special_tokens_mask": mask.tolist()}
        for row, mask in zip(ids, special, strict=True)
    ]
    # Character offsets with a gap before every word: the collator detects words by gaps.
    spans = [[[5 * w + 2 * t, 5 * w + 2 * t + 2] for t, w in enumerate(row.tolist())] for row in words]
    whole = [{**example, "offset_mapping": span} for example, span in zip(plain, spans, strict=True)]
    masking = DataCollatorForLanguageModeling(tokenizer=made)
    block, mask = torch.tensor(ids), torch.tensor(special)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that whole words have no 80/10/10 replacement
        wholes = DataCollatorForLanguageModeling(tokenizer=made, whole_word_mask=True)
    permuting = DataCollatorForPermutationLanguageModeling(tokenizer=made)
    return {
        "masked": ("DataCollatorForLanguageModeling", lambda _: masking(list(plain))),
        "masked (tensors)": (
            "… its torch_mask_tokens alone",
            lambda _: masking.torch_mask_tokens(block.clone(), special_tokens_mask=mask),
        ),
        "masked, whole words": ("… with whole_word_mask", lambda _: wholes(list(whole))),
        "permuted": (
            "DataCollatorForPermutationLanguageModeling",
            lambda _: permuting([example["input_ids"] for example in plain]),
        ),
    }


def measure(calls: dict[str, Callable[[int], object]], repeats: int) -> dict[str, float]:
    """Return the median CPU seconds of each call, alternated; slow calls get fewer repeats."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            if sum(taken[name]) > 4 and len(taken[name]) >= 3:
                continue
            start = time.process_time()
            call(turn)
            if turn:  # the first repeat is a warm-up
                taken[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="*", help="objectives; default: all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)

    objectives = {name: OBJECTIVES.get(name)() for name in OBJECTIVES} | MORE
    calls: dict[str, Callable[[int], object]] = {}
    for name, objective in objectives.items():
        if not options.only or name in options.only:
            for shape in objective.shapes:
                calls[f"{name} · {shape}"] = build_call(objective, shape, options.tokens, options.length)
    beside = build_peer_calls(options.tokens, options.length)
    named = {f"transformers: {name}": call for name, call in beside.values()}
    seconds = measure({**calls, **named}, options.repeats)

    rates = {name: options.tokens / taken for name, taken in seconds.items()}
    print(f"{options.tokens:,} tokens in sequences of {options.length}, one core; million tokens per second\n")
    ratios: dict[str, float] = {}
    for name, rate in rates.items():
        notes = [] if rate >= RATE or name in named else [f"below {RATE / 1e6:.0f}"]
        for key, (peer, _) in beside.items():
            if name.partition(" · ")[0] == key.removesuffix(" (tensors)"):
                ratio = rate / rates[f"transformers: {peer}"]
                ratios[f"{name} / {peer}"] = ratio
                notes.append(f"{ratio:.1f}x {peer}")
        print(f"{name:<58} {rate / 1e6:7.2f}   {'; '.join(notes)}".rstrip())
    if options.out:
        options.out.write_text(json.dumps({"rates": rates, "ratios": ratios, **vars(options), "out": None}, indent=2))


if __name__ == "__main__":
    main()
