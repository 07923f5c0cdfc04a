"""Whole BLiMP (67,000 minimal pairs) with a model of BERT-base's or GPT-2's size: seconds and pairs a second.

    python bench/blimp.py --data DIR [--tokenizer DIR] [--model bert-base] [--limit N] [--precision …] [--compile]

Without a tokenizer one is trained on the sentences, which is not counted. Weights are random: the time does not depend
on them. A few sentences are also scored one at a time by the plain forward pass in fp32; the difference is printed, and
must be small. Prints JSON.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

import pretune as pt
from pretune.evaluate.pairs import minimal_pairs
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.tasks import TASKS
from pretune.text.tokenizer import Tokenizer, train
from pretune.use.score import Asking, judge, passages
from pretune.use.score.judging import form_of

KINDS = {
    "encoder": ("wordpiece", "cls-sep"),
    "decoder": ("bpe", "endoftext"),
    "encoder-decoder": ("unigram", "sentinels"),
}
"""The tokenizer that each shape goes with."""


def slow(model: torch.nn.Module, text: str) -> float:
    """One sequence at a time, the whole softmax in fp64."""
    tokenizer = model.tokenizer
    total = 0.0
    for part in form_of(model, tokenizer).ask(passages(tokenizer, [text])):
        asked = part.sequences
        for at in range(len(asked)):
            one = asked.take(torch.tensor([at]).numpy())
            labels = one.targets.tolist()
            segments = None if one.segments is None else [one.segments.tolist()]
            sides = {} if one.source is None else {"source": [one.source.tokens.tolist()]}
            first = {"target" if sides else "sequences": [one.tokens.tolist()]}
            batch = pt.batch(**first, **sides, labels=[labels], segments=segments)
            with torch.no_grad():
                rows = model(batch.to(model.tokens.weight.device)).logits.double().log_softmax(-1)
            total += sum(float(row[label]) for row, label in zip(rows, [x for x in labels if x >= 0], strict=True))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", help="a directory with a tokenizer.json")
    parser.add_argument("--data", required=True, help="where BLiMP's files are, or a folder above them")
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help="bfloat16 on a GPU, else float32")
    parser.add_argument("--tokens", type=int, help="of a batch")
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    given.precision = given.precision or ("bfloat16" if device == "cuda" else "float32")
    spec = resolve(given.model)
    pairs = list(TASKS.get("blimp").read("test", Path(given.data)))
    if given.tokenizer:
        tokenizer = Tokenizer.load(given.tokenizer)
    else:
        kind, style = KINDS[spec.shape]
        tokenizer = train(kind, [pair.text for pair in pairs[::5]], vocab=8000, style=style)
    model = build(replace(spec, vocab=max(tokenizer.vocab, spec.vocab)), device=device).eval()
    model.assets.tokenizer = tokenizer
    pairs = pairs[:: max(1, len(pairs) // given.limit)][: given.limit] if given.limit else pairs
    asking = Asking(precision=given.precision, tokens=given.tokens)

    texts = [text for pair in pairs[:: max(1, len(pairs) // 8)][:8] for text in (pair.text, pair.pair)]
    fast = judge(model, passages(tokenizer, texts), asking).sums
    right = [slow(model, text) for text in texts]
    apart = max(abs(one - two) / abs(two) for one, two in zip(fast, right, strict=True))
    assert apart < (0.02 if given.precision == "bfloat16" else 1e-4), f"scores are off by {apart:.2%}"
    if given.compile:
        model.compile()

    begun = time.perf_counter()
    found = minimal_pairs(model, pairs, asking)
    seconds = time.perf_counter() - begun
    print(
        json.dumps(
            {
                "model": given.model,
                "parameters": sum(p.numel() for p in model.parameters()),
                "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
                "precision": given.precision,
                "compiled": given.compile,
                "pairs": len(pairs),
                "seconds": round(seconds, 2),
                "pairs_per_second": round(len(pairs) / seconds, 1),
                "accuracy": round(found.scores["accuracy"], 4),
                "ties": found.counts["ties"],
                "largest_relative_difference_to_the_slow_way": apart,
            }
        )
    )


if __name__ == "__main__":
    main()
