"""Speed of masked pre-training on a CPU (target P10): our whole pipeline compared with transformers on the same text.

    python -m bench.speed.cpu_pretraining [--sizes tiny,mini,small] [--repeats 3] [--text sentences|documents]
                                                   [--compile]

The text is wikipedia-en/valid of the shared data ($PRETUNE_DATA); a sequence is one sentence, or up to 128 tokens of a
document; the WordPiece vocabulary has 30,522 entries. Both sides use fp32, the same model with dropout, AdamW with
gradient clipping at 1.0, dynamic masking of 15 % of tokens, about 2,048 tokens per step and the same number of threads.
Ours reads shards, packs rows of 128, corrupts and trains. The peer reads tokenized sequences and pads each batch to its
longest sequence (DataCollatorForLanguageModeling): by default 32 sequences in random order with the standard AdamW; the
tuned peer groups sequences by length and uses the fused AdamW; `--compile` adds the tuned peer compiled with dynamic
shapes (ours is not compiled on a CPU). Prints JSON: useful tokens per second of CPU time, medians of alternated rounds
after one warm-up round, and the ratios.
"""

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import pretune as pt
from bench import common
from pretune.data.plan import BatchShape
from pretune.data.samples import Documents, Sentences
from pretune.data.shards import Shards
from pretune.data.stream import BatchStream
from pretune.models.catalog import resolve
from pretune.objectives.base import Vocabulary
from pretune.runs.defaults import replace_heads
from pretune.text.tokenizer import Tokenizer
from pretune.training.optim import AdamW, build_parameter_groups, clip_gradients, step_if

LENGTH, TOKENS, STEPS = 128, 2048, 2
TUNED_PEER = "transformers, tuned"


def train_ours(model: Any, stream: Any, objective: Any) -> Iterator[int]:
    """Train our model on the batches of a stream; yield the useful tokens of each step."""
    optimizer = AdamW(lr=1e-4).build(build_parameter_groups(model))
    for batch in stream.iter_batches():
        totals = objective.counts(batch)
        objective.loss(model, batch).normalize(totals).backward()
        norm = clip_gradients(model.parameters(), 1.0)
        step_if(optimizer, norm.isfinite())
        optimizer.zero_grad(set_to_none=True)
        yield int((batch.sequence >= 0).sum())


def group_sequences(sequences: list[list[int]], *, tuned: bool) -> list[list[int]]:
    """Return the sequence numbers of each batch: 32 in random order, or (tuned) grouped by length up to `TOKENS`."""
    order = np.random.default_rng(0).permutation(len(sequences)).tolist()
    if not tuned:
        return [order[i : i + 32] for i in range(0, len(order), 32)]
    batches: list[list[int]] = [[]]
    for number in sorted(order, key=lambda number: len(sequences[number])):
        if (len(batches[-1]) + 1) * len(sequences[number]) > TOKENS:
            batches.append([])
        batches[-1].append(number)
    return [batches[i] for i in np.random.default_rng(0).permutation(len(batches)).tolist()]


def train_transformers(
    model: Any, sequences: list[list[int]], tokenizer: Any, *, tuned: bool, masked: bool = True, compiled: bool = False
) -> Iterator[int]:
    """Train transformers on padded batches; yield the useful tokens of each step."""
    from transformers import DataCollatorForLanguageModeling

    run = torch.compile(model, dynamic=True) if compiled else model
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=masked)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=tuned)
    batches = group_sequences(sequences, tuned=tuned)
    while True:
        for numbers in batches:
            batch = collate([{"input_ids": sequences[number]} for number in numbers])
            run(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield sum(len(sequences[number]) for number in numbers)


def run_steps(steps: Iterator[int], count: int) -> int:
    """Train for some steps; return the useful tokens."""
    return sum(next(steps) for _ in range(count))


def build_peer(spec: Any) -> Any:
    """Build the BERT of transformers with the size of a spec."""
    stack = spec.encoder
    return common.build_bert(
        vocab_size=spec.vocab,
        hidden_size=spec.width,
        num_hidden_layers=stack.depth,
        num_attention_heads=stack.blocks[0].attention.heads,
        intermediate_size=4 * spec.width,
    ).train()


def main() -> None:
    """Prepare the data, measure all sizes and print the ratios."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--sizes", default="tiny,mini,small")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--text", choices=["sentences", "documents"], default="sentences")
    parser.add_argument("--compile", action="store_true", help="also measure the compiled peer; needs a C++ compiler")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    from transformers import AutoTokenizer

    corpus = common.find_data("corpora/wikipedia-en/valid.txt.xz")
    if not corpus.exists():
        print(f"skipped: needs {corpus} (set PRETUNE_DATA)")
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        tok = pt.train_tokenizer("wordpiece", [str(corpus)], vocab=30_522)
        tok.save(f"{folder}/tok")
        data = pt.prepare([str(corpus)], tokenizer=tok, out=f"{folder}/data", holdout="0%")
        tokenizer, shards = Tokenizer.load(f"{folder}/tok"), Shards.open(data.path, "train")
        kind = Sentences(limit=LENGTH) if options.text == "sentences" else Documents(limit=LENGTH)
        samples = kind.open(shards, tokenizer.template)
        corruption = pt.objective("masked").bind(Vocabulary.from_tokenizer(tokenizer), "encoder")
        stream = BatchStream(samples, BatchShape(rows=TOKENS // LENGTH, length=LENGTH), seed=0, corruption=corruption)
        plain_stream = BatchStream(samples, BatchShape(rows=64, length=LENGTH), seed=0)
        sequences = [part.tolist() for batch in plain_stream.iter_batches(0, 40) for part in batch.split(batch.tokens)]
        reference = AutoTokenizer.from_pretrained(f"{folder}/tok")
        for size in options.sizes.split(","):
            spec = replace_heads(resolve(f"bert-{size}", {"vocab": tokenizer.vocab}), pt.objective("masked"))
            sides = {
                "pretune": train_ours(pt.build(spec, seed=0).train(), stream, pt.objective("masked")),
                "transformers": train_transformers(build_peer(spec), sequences, reference, tuned=False),
                TUNED_PEER: train_transformers(build_peer(spec), sequences, reference, tuned=True),
            }
            if options.compile:
                peer = train_transformers(build_peer(spec), sequences, reference, tuned=True, compiled=True)
                sides[f"{TUNED_PEER}, compiled"] = peer
            measurements = {
                name: partial(common.measure_rate, partial(run_steps, steps, STEPS)) for name, steps in sides.items()
            }
            rates = common.compute_medians(common.alternate(measurements, options.repeats))
            result = {
                "size": size,
                "text": options.text,
                "threads": options.threads,
                "ratio": common.compute_ratios(rates),
            }
            results[size] = {**result, "tokens_per_second": {name: round(rate) for name, rate in rates.items()}}
            print(json.dumps(results[size]), flush=True)
    common.write_result(results, options.out)


if __name__ == "__main__":
    main()
