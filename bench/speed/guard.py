"""Regression check of the CPU speed ratios against their peers, compared with the recorded ratios.

    python -m bench.speed.guard [--rows encoding] [--record] [--rounds 5] [--out result.json]

Prints JSON and exits with 1 if a row is more than 15 % below its recorded ratio. A ratio compares the CPU times of two
sides, alternated in one process with one thread; the best of several rounds counts, since other load only adds time. A
row that is too low is measured twice more with twice the rounds. Ratios differ between processors: `guard.json` holds
those of each machine, with the package versions; `--record` writes the ratios of this machine. The text is synthetic,
so no data is needed.

    corruption masked      `masked` on 65,536 tokens; DataCollatorForLanguageModeling
    corruption permuted    `permuted`; DataCollatorForPermutationLanguageModeling
    encoding               a megabyte of text to ids, word starts and character starts; ids only by `tokenizers`
    training encoder       BERT-tiny on sentences; transformers tuned (grouped by length, fused AdamW)
    training decoder       a GPT-2 of the same size on documents of 20 to 128 tokens; transformers tuned
    embedding              300 sentences of mixed length with a model of the size of MiniLM-L6; sentence-transformers
    embedding, one text    12 words in each call
    generating llama       32 tokens after a prompt, with six layers of width 256; transformers `generate`
    generating gpt2        the same
"""

import itertools
import json
import math
import os
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench import common

os.environ["TOKENIZERS_PARALLELISM"] = "false"

FILE = Path(__file__).with_name("guard.json")
MAX_LOSS = 0.15
Pair = tuple[Callable[[], int], Callable[[], int]]
"""Our work and the peer's: each call returns the amount of work done."""


def build_corruption(name: str) -> Pair:
    """Build the corruption of an objective and its collator."""
    from bench.data import objectives

    objective = objectives.OBJECTIVES.get(name)()
    ours = objectives.build_call(objective, objective.shapes[0], 65_536, 128)
    _, peer = objectives.build_peer_calls(16_384, 128)[name]
    return lambda: _return_amount(ours(), 65_536), lambda: _return_amount(peer(), 16_384)


def build_encoding() -> Pair:
    """Build our `encode_batch` with a warm word cache and that of `tokenizers`."""
    from pretune.text.tokenizer.training import train

    documents = list(common.make_sentences(2_000, 60))
    tokenizer = train("wordpiece", documents[:600], vocab=4_000)
    size = sum(map(len, documents))
    tokenizer.encode_batch(documents)
    raw: Any = tokenizer.raw
    return (
        lambda: _return_amount(tokenizer.encode_batch(documents), size),
        lambda: _return_amount(
            [encoding.ids for encoding in raw.encode_batch_fast(documents, add_special_tokens=False)], size
        ),
    )


def build_training(family: str, objective_name: str) -> Pair:
    """Build our training steps and those of transformers with padded batches, on the same sequences."""
    import torch
    from transformers import AutoTokenizer

    import pretune as pt
    from bench.speed import cpu_pretraining as work
    from pretune.data.plan import BatchShape
    from pretune.data.stream import BatchStream
    from pretune.models.catalog import resolve
    from pretune.objectives.base import Vocabulary
    from pretune.runs.config import DataConfig
    from pretune.runs.defaults import replace_heads
    from pretune.runs.training_data import TrainingData

    torch.manual_seed(0)
    objective = pt.objective(objective_name)
    size = {"width": 128, "depth": 2, "heads": 2}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("\n\n".join(common.make_sentences(3_000, 24)))
        style = "cls-sep" if family == "bert" else "endoftext"
        kind = "wordpiece" if family == "bert" else "bpe"
        tok = pt.train_tokenizer(kind, [str(folder / "text.txt")], vocab=4_000, style=style)
        data = pt.prepare([folder / "text.txt"], tokenizer=tok, out=folder / "data", holdout="0%", workers=0)
        tok.save(folder / "tok")
        reference = AutoTokenizer.from_pretrained(folder / "tok")
        reference.pad_token = reference.pad_token or reference.eos_token
        shape = "encoder" if family == "bert" else "decoder"
        source = TrainingData.open(DataConfig(path=str(data.path), max_length=work.LENGTH), objective, shape)
        samples = source.build_samples("train", work.LENGTH, objective)
        corruption = objective.bind(Vocabulary.from_tokenizer(source.tokenizer), shape)
        stream = BatchStream(
            samples, BatchShape(rows=work.TOKENS // work.LENGTH, length=work.LENGTH), seed=0, corruption=corruption
        )
        plain_stream = BatchStream(samples, BatchShape(rows=32, length=work.LENGTH), seed=0)
        sequences = [part.tolist() for part in plain_stream[0].split(plain_stream[0].tokens)]
        batches = [stream[step] for step in range(2)]  # read before the folder is deleted
    vocab = source.tokenizer.vocab
    settings = {**size, "vocab": vocab, **({} if family == "bert" else {"positions": work.LENGTH})}
    model = pt.build(
        replace_heads(resolve("bert-tiny" if family == "bert" else "gpt2", settings), objective), seed=0
    ).train()
    tokens = {"vocab_size": vocab, "bos_token_id": None, "eos_token_id": None}
    peer: Any
    if family == "bert":
        config = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        peer = common.build_bert(**tokens, **config)
    else:
        config = {"n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": work.LENGTH}
        peer = common.build_gpt2(**tokens, **config)
    ours = work.train_ours(model, _CachedBatches(batches), objective)
    theirs = work.train_transformers(peer.train(), sequences, reference, tuned=True, masked=family == "bert")
    # A call trains once on all batches of its side, so that every round has the same work.
    peer_steps = len(work.group_sequences(sequences, tuned=True))
    return partial(work.run_steps, ours, len(batches)), partial(work.run_steps, theirs, peer_steps)


def build_embedding(*, single: bool) -> Pair:
    """Build our embedder and that of sentence-transformers, with the same random weights; a call embeds all texts."""
    from sentence_transformers import SentenceTransformer

    import pretune as pt
    from bench.speed import embed

    lengths = [min(max(round(18 * math.exp(0.8 * draw)), 3), 220) for draw in _draw_normal(300)]
    words = " ".join(common.make_sentences(sum(lengths) // 10, 12)).split()
    starts = [0, *itertools.accumulate(lengths)]
    texts = [" ".join(words[start:end]) for start, end in itertools.pairwise(starts)]
    if single:
        texts = [" ".join(words[12 * number : 12 * number + 12]) for number in range(10)]
    with tempfile.TemporaryDirectory() as name:
        folder = embed.save_random_model(Path(name), words)
        ours = embed.build_embedder(pt.load(folder, device="cpu"))
        theirs = SentenceTransformer(str(folder), device="cpu")
    calls = [[text] for text in texts] if single else [texts]

    def run_ours() -> int:
        return sum(len(ours(call).vectors) for call in calls)

    def run_peer() -> int:
        return sum(len(theirs.encode(call, show_progress_bar=False)) for call in calls)

    return run_ours, run_peer


def build_generation(family: str) -> Pair:
    """Build the generation of a small decoder of random weights by both sides; a call generates for one prompt."""
    import pretune as pt
    from bench.speed import generate

    reference = generate.build(False, family)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        ours = pt.load(folder, device="cpu")
    prompts, new = generate.make_prompts(1, ours.spec.vocab), 32
    return (
        lambda: _return_amount(generate.generate(ours, prompts, new), new),
        lambda: _return_amount(generate.generate_with_transformers(reference, prompts, new), new),
    )


def _draw_normal(count: int) -> list[float]:
    """Return numbers of a normal distribution, always the same."""
    draw = random.Random(0)
    return [draw.gauss(0, 1) for _ in range(count)]


class _CachedBatches:
    """A stream that repeats the same batches."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def iter_batches(self) -> Iterator[Any]:
        while True:
            yield from self.batches


ROWS: Mapping[str, Callable[[], Pair]] = {
    "corruption masked": lambda: build_corruption("masked"),
    "corruption permuted": lambda: build_corruption("permuted"),
    "encoding": build_encoding,
    "training encoder": lambda: build_training("bert", "masked"),
    "training decoder": lambda: build_training("gpt2", "causal"),
    "embedding": lambda: build_embedding(single=False),
    "embedding, one text": lambda: build_embedding(single=True),
    "generating llama": lambda: build_generation("llama"),
    "generating gpt2": lambda: build_generation("gpt2"),
}


def _return_amount(result: object, amount: int) -> int:
    """Return the amount of work of a call whose result is not needed."""
    return amount


def compute_ratio(pair: Pair, rounds: int, min_seconds: float = 0.2) -> float:
    """Return our best rate over the peer's, in alternated rounds of at least `min_seconds` after a warm-up round."""
    sides = dict(zip(("ours", "peer"), pair, strict=True))
    measurements = {name: partial(common.measure_rate, work, min_seconds=min_seconds) for name, work in sides.items()}
    rates = common.alternate(measurements, rounds)
    return max(rates["ours"]) / max(rates["peer"])


def find_regressions(ratios: Mapping[str, float], record: Mapping[str, float]) -> dict[str, float]:
    """Return the rows that are more than `MAX_LOSS` below their record, with the share that is left."""
    shares = {name: ratios[name] / record[name] for name in ratios if name in record}
    return {name: share for name, share in shares.items() if share < 1 - MAX_LOSS}


def describe_machine() -> str:
    """Return the name of the processor."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    fields = {key.strip(): value.strip() for key, value in lines}
    part = f"{fields.get('CPU implementer', '')} {fields.get('CPU part', '')}".strip()
    return f"{platform.machine()} {fields.get('model name') or part or platform.processor()}".strip()


def get_versions() -> dict[str, str]:
    """Return the versions of the packages that both sides use."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}


def measure(names: list[str], rounds: int, record: Mapping[str, float]) -> dict[str, float]:
    """Return the ratio of each row; one below its record is measured again, and its best ratio counts."""
    ratios: dict[str, float] = {}
    for name in names:
        pair = ROWS[name]()
        ratios[name] = compute_ratio(pair, rounds)
        for _ in range(2):
            if find_regressions({name: ratios[name]}, record):
                ratios[name] = max(ratios[name], compute_ratio(pair, 2 * rounds))
        note = f", recorded {record[name]:.2f}" if name in record else ""
        print(f"{name:<20} {ratios[name]:8.2f} x the peer{note}", file=sys.stderr, flush=True)
    return ratios


def main() -> int:
    """Measure the rows, compare them with the record, and update it with `--record`."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--rows", nargs="*", choices=[*ROWS], default=[*ROWS], metavar="ROW")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="save the ratios of this machine")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    machine, versions = describe_machine(), get_versions()
    records = json.loads(FILE.read_text()) if FILE.exists() else {}
    record = records.get(machine, {})
    record = record["ratios"] if record.get("versions") == versions else {}
    ratios = {name: round(value, 2) for name, value in measure(options.rows, options.rounds, record).items()}
    regressions = find_regressions(ratios, record)
    result = {"machine": machine, "versions": versions, "ratios": ratios, "regressions": regressions}
    common.print_result(result, options.out)
    if options.record:
        records[machine] = {"versions": versions, "ratios": {**record, **ratios}}
        FILE.write_text(json.dumps(records, indent=2) + "\n")
        return 0
    if not record:
        print("no record for this machine and these versions; create one with --record", file=sys.stderr)
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())
