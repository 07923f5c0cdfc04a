"""Speed of BLiMP (67,000 minimal pairs) with a model of the size of BERT-base or GPT-2, compared with transformers.

    python -m bench.speed.blimp --data DIR [--tokenizer DIR] [--model bert-base] [--limit N] [--compile] [--peer N]

Without --tokenizer one is trained on the sentences (not timed). Weights are random: the time does not depend on them.
Sixteen sentences are also scored one at a time by the plain forward pass; the largest relative difference is printed
and must be small. With `--peer N`, N pairs are also scored by transformers with the same weights and precision: the
same inputs as tensors, sorted by length, padded in batches of 512, after one warm-up pass. Prints JSON with seconds,
pairs per second and the ratio.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

import pretune as pt
from bench import common
from pretune.evaluation.minimal_pairs import evaluate_minimal_pairs
from pretune.inference.scoring import ScoringConfig, compute_token_logprobs, encode_passages
from pretune.inference.scoring.logprobs import build_scoring_method
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.runs.evaluation_job import subsample
from pretune.tasks import TASKS
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train

KINDS = {
    "encoder": ("wordpiece", "cls-sep"),
    "decoder": ("bpe", "endoftext"),
    "encoder-decoder": ("unigram", "sentinels"),
}
"""Tokenizer kind and style for each model shape."""


def score_unbatched(model: torch.nn.Module, text: str) -> float:
    """Return the log-probability of a text, one sequence at a time, with an fp64 softmax."""
    tokenizer = model.tokenizer
    total = 0.0
    for query in build_scoring_method(model, tokenizer).build_queries(encode_passages(tokenizer, [text])):
        for number in range(len(query.sequences)):
            sequence = query.sequences.take(np.array([number]))
            labels = sequence.targets.tolist()
            segments = None if sequence.segments is None else [sequence.segments.tolist()]
            source = {} if sequence.source is None else {"source": [sequence.source.tokens.tolist()]}
            target = {"target" if source else "sequences": [sequence.tokens.tolist()]}
            batch = pt.batch(**target, **source, labels=[labels], segments=segments)
            with torch.no_grad():
                rows = model(batch.to(model.tokens.weight.device)).logits.double().log_softmax(-1)
            total += sum(float(row[label]) for row, label in zip(rows, [x for x in labels if x >= 0], strict=True))
    return total


def score_with_transformers(model: torch.nn.Module, texts: list[str], precision: str) -> tuple[float, float]:
    """Return the sum of the scores of all texts by transformers, and its seconds without preparing the inputs."""
    import transformers

    kind = "AutoModelForCausalLM" if model.shape == "decoder" else "AutoModelForMaskedLM"
    device = model.tokens.weight.device
    with tempfile.TemporaryDirectory() as folder:
        pt.save(model, Path(folder) / "model")
        theirs = getattr(transformers, kind).from_pretrained(Path(folder) / "model").to(device).eval()
    tokens, labels = [], []
    for query in build_scoring_method(model, model.tokenizer).build_queries(encode_passages(model.tokenizer, texts)):
        cuts = query.sequences.offsets[1:-1]
        tokens += [torch.from_numpy(row) for row in np.split(query.sequences.tokens, cuts)]
        labels += [torch.from_numpy(row) for row in np.split(query.sequences.targets, cuts)]
    order = sorted(range(len(tokens)), key=lambda number: len(tokens[number]))
    tokens, labels = [tokens[number] for number in order], [labels[number] for number in order]

    def score() -> float:
        total = torch.zeros((), device=device, dtype=torch.float64)
        for low in range(0, len(tokens), 512):
            ids = pad_sequence(tokens[low : low + 512], batch_first=True)
            mask = pad_sequence([torch.ones_like(row) for row in tokens[low : low + 512]], batch_first=True)
            targets = pad_sequence(labels[low : low + 512], batch_first=True, padding_value=-100).to(device)
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                logits = theirs(ids.to(device), attention_mask=mask.to(device)).logits
            rows = logits[targets >= 0].float().log_softmax(-1)
            total += rows.gather(1, targets[targets >= 0][:, None]).double().sum()
        return float(total)

    score()
    seconds, total = common.time_call(score, clock=common.wall_clock)
    return total, seconds


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--tokenizer", help="folder with a tokenizer.json")
    parser.add_argument("--data", required=True, help="folder with BLiMP's files, or a folder above it")
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--limit", type=int, help="score only this many pairs")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help="default: bfloat16 on a GPU, else float32")
    parser.add_argument("--tokens", type=int, help="tokens per batch")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--peer", type=int, default=0, help="also score this many pairs with transformers")
    options = parser.parse_args()

    device = common.find_device()
    options.precision = options.precision or ("bfloat16" if device == "cuda" else "float32")
    spec = resolve(options.model)
    pairs = list(TASKS.get("blimp").read("test", Path(options.data)))
    if options.tokenizer:
        tokenizer = Tokenizer.load(options.tokenizer)
    else:
        kind, style = KINDS[spec.shape]
        tokenizer = train(kind, [pair.text for pair in pairs[::5]], vocab=8000, style=style)
    model = build(replace(spec, vocab=max(tokenizer.vocab, spec.vocab)), device=device).eval()
    model.assets.tokenizer = tokenizer
    pairs = subsample(pairs, options.limit)
    config = ScoringConfig(precision=options.precision, tokens=options.tokens)

    texts = [text for pair in pairs[:: max(1, len(pairs) // 8)][:8] for text in (pair.text, pair.pair)]
    scores = compute_token_logprobs(model, encode_passages(tokenizer, texts), config).sums
    reference = [score_unbatched(model, text) for text in texts]
    difference = max(abs(a - b) / abs(b) for a, b in zip(scores, reference, strict=True))
    assert difference < (0.02 if options.precision == "bfloat16" else 1e-4), (
        f"scores differ by {difference:.2%} from the reference"
    )
    if options.compile:
        model.compile()

    seconds, evaluation = common.time_call(
        lambda: evaluate_minimal_pairs(model, pairs, config), clock=common.wall_clock
    )
    comparison = {}
    if options.peer:
        texts = [text for pair in subsample(pairs, options.peer) for text in (pair.text, pair.pair)]
        total, theirs = score_with_transformers(model, texts, options.precision)
        ours = float(compute_token_logprobs(model, encode_passages(tokenizer, texts), config).sums.sum())
        assert abs(ours - total) < 0.01 * abs(total), f"scores differ: {ours} and {total} (transformers)"
        rate = len(texts) / 2 / theirs
        comparison = {"transformers_pairs_per_second": round(rate, 1), "ratio": round(len(pairs) / seconds / rate, 2)}
    result = {
        "model": options.model,
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": common.describe_device(device),
        "precision": options.precision,
        "compiled": options.compile,
        "pairs": len(pairs),
        "seconds": round(seconds, 2),
        "pairs_per_second": round(len(pairs) / seconds, 1),
        "accuracy": round(evaluation.scores["accuracy"], 4),
        "ties": evaluation.counts["ties"],
        "largest_relative_difference_to_reference": difference,
        **comparison,
    }
    print(json.dumps(result))
    common.write_result(result, options.out)


if __name__ == "__main__":
    main()
