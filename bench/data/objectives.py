"""Speed of corruption by objective on one core, compared with the collators of transformers.

    OMP_NUM_THREADS=1 python -m bench.data.objectives [--tokens 65536] [--length 128] [--repeats 15]
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

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from bench import common
from pretune.data.sampling import Counters
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
    ids = rng.integers(EOS + 1, VOCAB - 200, count * length)
    words, sentences = rng.random(len(ids)) < 1 / 1.4, rng.random(len(ids)) < 1 / 30
    column = np.arange(len(ids)) % length
    pairs = objective is not None and objective.pairs is not None
    special = (column == 0) | (column == length - 1) | (pairs & (column == length // 2))
    ids[column == 0], ids[special & (column > 0)] = CLS, SEP
    after_special = np.roll(special, 1)
    return Sequences(
        tokens=ids,
        offsets=compute_offsets(np.full(count, length)),
        special=special,
        words=words | special | after_special if objective is None or objective.words else None,
        sentences=sentences & words | special | after_special if objective is None or objective.sentences else None,
        segments=(column > length // 2).astype(np.int64) if pairs else None,
        labels=np.arange(count) % 2 if pairs else None,
        sides=np.full(count, length // 2 + 1) * (np.arange(count) % 2 if isinstance(objective, Mixture) else 1)
        if pairs
        else None,
        samples=np.arange(count),
        epochs=np.zeros(count, dtype=np.int64),
    )


def build_call(objective: Objective, shape: ModelShape, tokens: int, length: int) -> Callable[[], object]:
    """Build a function that corrupts one batch."""
    corruption, sequences = objective.bind(VOCABULARY, shape), make_sequences(tokens, length, objective)
    seeds, copies = itertools.count(), corruption.copies
    return lambda: corruption.corrupt(sequences, Counters.from_sequences(next(seeds), sequences, copies=copies))


def build_tokenizer() -> Any:
    """Build a fast tokenizer of transformers with the same vocabulary size."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(VOCAB - 5))]
    raw = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    roles = {f"{name.strip('[]').lower()}_token": name for name in names[:5]}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **roles)


def build_peer_calls(tokens: int, length: int) -> dict[str, tuple[str, Callable[[], object]]]:
    """Return for each objective the name of its peer and a function that collates one batch."""
    from transformers import DataCollatorForLanguageModeling, DataCollatorForPermutationLanguageModeling

    sequences, tokenizer = make_sequences(tokens, length), build_tokenizer()
    assert sequences.special is not None and sequences.words is not None
    ids, special, words = (
        value.reshape(-1, length)
        for value in (sequences.tokens, sequences.special.astype(np.int64), np.cumsum(sequences.words))
    )
    examples = [
        {"input_ids": row.tolist(), "special_tokens_mask": mask.tolist()}
        for row, mask in zip(ids, special, strict=True)
    ]
    # Character offsets with a gap before every word: the collator detects words by gaps.
    spans = [[[5 * w + 2 * t, 5 * w + 2 * t + 2] for t, w in enumerate(row.tolist())] for row in words]
    word_examples = [{**example, "offset_mapping": span} for example, span in zip(examples, spans, strict=True)]
    masking = DataCollatorForLanguageModeling(tokenizer=tokenizer)
    block, mask = torch.tensor(ids), torch.tensor(special)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that whole words have no 80/10/10 replacement
        whole_word_masking = DataCollatorForLanguageModeling(tokenizer=tokenizer, whole_word_mask=True)
    permuting = DataCollatorForPermutationLanguageModeling(tokenizer=tokenizer)
    return {
        "masked": ("DataCollatorForLanguageModeling", lambda: masking(list(examples))),
        "masked (tensors)": (
            "… its torch_mask_tokens alone",
            lambda: masking.torch_mask_tokens(block.clone(), special_tokens_mask=mask),
        ),
        "masked, whole words": ("… with whole_word_mask", lambda: whole_word_masking(list(word_examples))),
        "permuted": (
            "DataCollatorForPermutationLanguageModeling",
            lambda: permuting([example["input_ids"] for example in examples]),
        ),
    }


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="*", help="objectives; default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)

    objectives = {name: OBJECTIVES.get(name)() for name in OBJECTIVES} | MORE
    calls: dict[str, Callable[[], object]] = {}
    for name, objective in objectives.items():
        if not options.only or name in options.only:
            for shape in objective.shapes:
                calls[f"{name} · {shape}"] = build_call(objective, shape, options.tokens, options.length)
    peers = build_peer_calls(options.tokens, options.length)
    peer_calls = {f"transformers: {name}": call for name, call in peers.values()}
    measurements = {name: partial(common.measure_seconds, call) for name, call in (calls | peer_calls).items()}
    seconds = common.compute_medians(common.alternate(measurements, options.repeats, max_seconds=4.0))
    rates = {name: options.tokens / value for name, value in seconds.items()}
    print(f"{options.tokens:,} tokens in sequences of {options.length}, one core; million tokens per second\n")
    ratios: dict[str, float] = {}
    for name, rate in rates.items():
        notes = [] if rate >= RATE or name in peer_calls else [f"below {RATE / 1e6:.0f}"]
        for key, (peer, _) in peers.items():
            if name.partition(" · ")[0] == key.removesuffix(" (tensors)"):
                ratio = rate / rates[f"transformers: {peer}"]
                ratios[f"{name} / {peer}"] = ratio
                notes.append(f"{ratio:.1f}x {peer}")
        print(f"{name:<58} {rate / 1e6:7.2f}   {'; '.join(notes)}".rstrip())
    settings = {"tokens": options.tokens, "length": options.length, "repeats": options.repeats}
    common.write_result({"rates": rates, "ratios": ratios, **settings}, options.out)


if __name__ == "__main__":
    main()
