"""What learns most per second on two slow cores? Small encoders on `builtin:reviews`, judged at 200 and 1,000 labels.

    OMP_NUM_THREADS=1 PYTHONPATH=src python bench/quickstart_study.py --objective masked --rate 0.4 --seconds 100

One run: a vocabulary of pieces, static vectors of the pieces (skip-gram, or counted), an encoder that starts with them
or not, so many processor seconds of an objective, then a linear probe and full fine-tuning, both with few labels, and
the same network from random weights with `--random`. Prints one line of JSON. It is judged on dev reviews: those after
the quick start's test reviews, which are not read at all.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adapt.static.ppmi import Ppmi
from pretune.adapt.static.word2vec import Word2Vec
from pretune.core.seed import generator
from pretune.core.types import Batch
from pretune.data.layout import batch
from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build
from pretune.nn.reading import summary
from pretune.recipes.quickstart.plan import Plan
from pretune.text.corpora.builtin import Reviews
from pretune.text.tokenizer import train

TEST = 1000


def reviews() -> tuple[list[str], list[int]]:
    """Reviews in a mixed order, with their labels; those that the quick start is judged on are not among them."""
    rows = Reviews().labelled()[Plan().test :]
    return [text for text, _ in rows], [label for _, label in rows]


class Reader(nn.Module):
    """An encoder, what it reads a text as, and heads for objectives."""

    def __init__(self, model: LanguageModel, at: str, depth: int) -> None:
        super().__init__()
        self.model, self.at = model, at
        width, vocab = model.spec.width, model.spec.vocab
        self.out = nn.Linear(width, 2)
        nn.init.zeros_(self.out.weight)
        self.words = nn.Linear(width, vocab)
        self.project = nn.Linear(width, width)
        self.found = nn.Linear(width, 1)

    def vectors(self, b: Batch) -> Tensor:
        cells = b.sequence[b.sequence >= 0].unique()  # those of texts, in their order
        return summary(self.model.states(b), b, self.at)[cells]  # type: ignore[arg-type]


def crops(ids: list[Any], chosen: np.ndarray, length: int, rng: np.random.Generator) -> list[list[int]]:
    found = []
    for i in chosen:
        start = int(rng.integers(0, max(len(ids[i]) - length, 0) + 1))
        found.append([2, *ids[i][start : start + length].tolist(), 3])
    return found


def halves(ids: list[Any], chosen: np.ndarray, length: int, rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    """Two crops of each review that do not overlap, in either order."""
    left, right = [], []
    for i in chosen:
        middle = len(ids[i]) // 2
        parts = [ids[i][:middle], ids[i][middle:]]
        cut = []
        for part in parts:
            start = int(rng.integers(0, max(len(part) - length, 0) + 1))
            cut.append([2, *part[start : start + length].tolist(), 3])
        flip = int(rng.integers(2))
        left.append(cut[flip]), right.append(cut[1 - flip])
    return left, right


def pad(sequences: list[list[int]], vocab: int) -> Tensor:
    """Which words each has [B, V]."""
    found = torch.zeros(len(sequences), vocab)
    for row, sequence in enumerate(sequences):
        found[row, sequence] = 1
    found[:, :5] = 0
    return found


class Pretraining:
    """The objectives, each a loss of a batch of reviews."""

    def __init__(self, reader: Reader, ids: list[Any], counts: np.ndarray, args: argparse.Namespace) -> None:
        self.reader, self.ids, self.args = reader, ids, args
        self.noise = np.cumsum(counts**0.75)
        self.idf = torch.from_numpy(np.minimum(1.0, np.sqrt(1e-3 / (counts / counts.sum() + 1e-12)))).float()

    def loss(self, chosen: np.ndarray, rng: np.random.Generator) -> Tensor:
        return sum((getattr(self, name)(chosen, rng) for name in self.args.objective.split("+")), torch.zeros(()))

    def masked(self, chosen: np.ndarray, rng: np.random.Generator) -> Tensor:
        texts = crops(self.ids, chosen, self.args.crop, rng)
        labels = [[-100] * len(text) for text in texts]
        for text, label in zip(texts, labels, strict=True):
            for at in rng.permutation(np.arange(1, len(text) - 1))[: max(1, round(self.args.rate * (len(text) - 2)))]:
                label[at], text[at] = text[at], 4
        b = batch(texts, labels=labels)
        found = self.reader.model.loss(self.reader.model.states(b), b)
        return found.sum / found.count

    def replaced(self, chosen: np.ndarray, rng: np.random.Generator) -> Tensor:
        texts = crops(self.ids, chosen, self.args.crop, rng)
        b = batch(texts)
        tokens = b.tokens.numpy()
        drawn = np.searchsorted(self.noise, rng.random(len(tokens)) * self.noise[-1], side="right")
        swap = (rng.random(len(tokens)) < self.args.rate) & (tokens > 4)
        b.tokens.copy_(torch.from_numpy(np.where(swap, drawn, tokens)))
        states = self.reader.model.states(b)
        logits = self.reader.found(states).squeeze(1)
        real = torch.from_numpy(tokens > 4)
        return F.binary_cross_entropy_with_logits(logits[real], torch.from_numpy(swap).float()[real])

    def words(self, chosen: np.ndarray, rng: np.random.Generator) -> Tensor:
        """From one half of a review, the words of the other half."""
        left, right = halves(self.ids, chosen, self.args.crop, rng)
        said = F.log_softmax(self.reader.words(self.reader.vectors(batch(left))), -1)
        there = pad(right, said.shape[1]) * self.idf
        return -(said * there).sum() / there.sum()

    def own(self, chosen: np.ndarray, rng: np.random.Generator) -> Tensor:
        """From a text with blanks, all of its words."""
        texts = crops(self.ids, chosen, self.args.crop, rng)
        blank = [[t if rng.random() > self.args.rate or t < 5 else 4 for t in text] for text in texts]
        said = F.log_softmax(self.reader.words(self.reader.vectors(batch(blank))), -1)
        there = pad(texts, said.shape[1]) * self.idf
        return -(said * there).sum() / there.sum()

    def contrast(self, chosen: np.ndarray, rng: np.random.Generator) -> Tensor:
        left, right = halves(self.ids, chosen, self.args.crop, rng)
        both = F.normalize(self.reader.vectors(batch([*left, *right])), dim=1)
        a, b = both.chunk(2)
        logits = a @ b.T / 0.05
        return F.cross_entropy(logits, torch.arange(len(a)))


def pretrain(reader: Reader, work: Pretraining, args: argparse.Namespace) -> dict[str, float]:
    if args.seconds <= 0:
        return {"steps": 0, "loss": 0.0}
    optimizer = torch.optim.AdamW(reader.parameters(), lr=args.lr, weight_decay=0.01)
    rng, begun, step, last = generator(0, 11), time.process_time(), 0, 0.0
    reader.train()
    while (share := (time.process_time() - begun) / args.seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, step / 20) * (1 - share)
        loss = work.loss(rng.integers(0, len(work.ids), args.batch), rng)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
        step += 1
        last = loss.item() if last == 0 else 0.98 * last + 0.02 * loss.item()
    return {"steps": step, "loss": round(last, 4)}


def cut(ids: list[Any], length: int) -> list[list[int]]:
    return [[2, *one[: length - 2].tolist(), 3] for one in ids]


@torch.no_grad()
def vectors(reader: Reader, texts: list[list[int]]) -> np.ndarray:
    reader.eval()
    order = np.argsort([len(text) for text in texts])
    found: dict[int, Tensor] = {}
    for start in range(0, len(texts), 64):
        mine = order[start : start + 64]
        found |= dict(zip(mine.tolist(), reader.vectors(batch([texts[i] for i in mine])), strict=True))
    return torch.stack([found[i] for i in range(len(texts))]).numpy()


def probe(reader: Reader, x: list[list[int]], y: list[int], z: list[list[int]], gold: list[int]) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    a, b = vectors(reader, x), vectors(reader, z)
    mean, std = a.mean(0), a.std(0) + 1e-6
    model = GridSearchCV(LogisticRegression(max_iter=300), {"C": [1e-3, 1e-2, 0.1, 1.0]}, cv=3).fit((a - mean) / std, y)
    return float(model.score((b - mean) / std, gold))


def tune(
    reader: Reader, x: list[list[int]], y: list[int], z: list[list[int]], gold: list[int], args: argparse.Namespace
) -> tuple[float, float]:
    begun = time.process_time()
    for parameter in reader.model.parameters():
        parameter.requires_grad_(True)
    reader.model.tokens.weight.requires_grad_(not args.fixed)
    groups = [
        {"params": [p for p in reader.model.parameters() if p.requires_grad], "lr": args.tune_lr},
        {"params": [*reader.out.parameters()], "lr": max(args.tune_lr, 3e-3)},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    rates = [group["lr"] for group in groups]
    rng = generator(args.seed, 12)
    steps = max(round(len(x) * args.epochs / args.tune_batch), args.least)
    labels = np.array(y)
    reader.train()
    order: list[int] = []
    for step in range(steps):
        order = order if len(order) >= args.tune_batch else [*order, *rng.permutation(len(x)).tolist()]
        mine, order = order[: args.tune_batch], order[args.tune_batch :]
        b = batch([x[i] for i in mine])
        logits = reader.out(F.dropout(reader.vectors(b), args.dropout))
        loss = F.cross_entropy(logits, torch.from_numpy(labels[mine]))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / 10) * (1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
    spent = time.process_time() - begun
    with torch.no_grad():
        said = reader.out(torch.from_numpy(vectors(reader, z))).argmax(1).numpy()
    return float((said == np.array(gold)).mean()), spent


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind, value in (
        ("objective", str, "masked"), ("seconds", float, 0.0), ("rate", float, 0.15), ("crop", int, 64),
        ("batch", int, 64), ("lr", float, 1e-3), ("vocab", int, 8192), ("kind", str, "wordpiece"),
        ("width", int, 128), ("depth", int, 2), ("hidden", int, 512), ("length", int, 128), ("at", str, "mean"),
        ("static", int, 3), ("scale", float, 0.05), ("tune_lr", float, 5e-4), ("epochs", float, 4), ("least", int, 60),
        ("tune_batch", int, 32), ("dropout", float, 0.1), ("seed", int, 0), ("cache", str, ""), ("random", int, 0),
        ("fixed", int, 0), ("window", int, 5), ("subsample", float, 1e-4), ("tuned", int, 1), ("seeds", int, 1),
        ("sif", float, 0.0), ("counted", int, 0), ("labels", str, "200,1000"), ("test", int, TEST),
    ):  # fmt: skip
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value)
    args = parser.parse_args()
    texts, gold = reviews()
    rest, told = texts[TEST:], gold[TEST:]
    key = "-".join(map(str, (args.kind, args.vocab, args.width, args.static, args.window, args.subsample)))
    key += "-counted" * args.counted
    kept = Path(args.cache or "/nonexistent") / f"{key}.npz"
    begun = time.process_time()
    if kept.is_file():
        store = np.load(kept)
        flat, offsets, table, spent = store["flat"], store["offsets"], store["table"], float(store["spent"])
    else:
        tokenizer = train(args.kind, rest[:8000], vocab=args.vocab, lowercase=True, style="cls-sep")
        found = tokenizer.encode_batch(texts, literal=True)
        flat, offsets = found.ids.astype(np.int32), found.offsets
        read, table = time.process_time(), np.zeros((args.vocab, args.width), dtype=np.float32)
        pieces = [[str(i) for i in flat[a:b]] for a, b in zip(offsets[TEST:-1], offsets[TEST + 1 :], strict=True)]
        skip = Word2Vec(width=args.width, epochs=args.static, window=args.window, least=2, subsample=args.subsample)
        count = Ppmi(width=args.width, window=args.window, least=2)
        made = (count if args.counted else skip).train(pieces) if args.static else None
        for word in made.words if made else ():
            table[int(word)] = made[word] if made else 0
        spent = time.process_time() - read
        if args.cache:
            np.savez(kept, flat=flat, offsets=offsets, table=table, spent=spent)
    ids = [flat[a:b] for a, b in itertools.pairwise(offsets)]
    prepared = time.process_time() - begun
    positions = max(args.length, args.crop + 2)
    spec = resolve("bert-tiny", {"width": args.width, "depth": args.depth, "hidden": args.hidden, "vocab": args.vocab,
                                 "positions": positions, "dropout": 0.0})  # fmt: skip
    counts = np.bincount(flat[offsets[TEST] :], minlength=args.vocab)

    def fresh() -> Reader:
        torch.manual_seed(args.seed)
        return Reader(build(spec, seed=args.seed), args.at, args.depth)

    reader = fresh()
    if args.static and not args.random:
        there = counts > 0
        rows = table[there] - (table[there].mean(0) if args.sif else 0.0)
        rows = rows / (np.linalg.norm(rows, axis=1, keepdims=True) / args.width**0.5 + 1e-9 if args.sif else rows.std())
        if args.sif:  # frequent pieces share a direction, so that in a mean they weigh less (Arora et al., 2017)
            weight = args.sif / (args.sif + counts[there] / counts.sum())
            shared = generator(0, 13).standard_normal(args.width).astype(np.float32)
            rows = rows * weight[:, None] + shared * np.sqrt(1 - weight**2)[:, None]
        with torch.no_grad():
            reader.model.tokens.weight[torch.from_numpy(there)] = torch.from_numpy(rows * args.scale).float()
            reader.words.weight.copy_(reader.model.tokens.weight)
    told_of = {} if args.random else pretrain(reader, Pretraining(reader, ids[TEST:], counts, args), args)
    start = {name: value.clone() for name, value in reader.state_dict().items()}
    z, goal = cut(ids[: args.test], args.length), gold[: args.test]
    out: dict[str, Any] = {"static_s": round(spent, 1), "prepared_s": round(prepared, 1), **told_of}
    for many in map(int, args.labels.split(",")):
        x, y = cut(ids[TEST : TEST + many], args.length), told[:many]
        out[f"probe_{many}"] = round(probe(reader, x, y, z, goal), 4)
        if args.tuned:
            each = []
            for seed in range(args.seeds):
                args.seed = seed
                reader.load_state_dict(start)
                if args.random:
                    reader = fresh()
                score, took = tune(reader, x, y, z, goal, args)
                each.append(round(score, 4))
            out[f"full_{many}"], out[f"full_{many}_s"] = each, round(took, 1)
            reader.load_state_dict(start)
    print(json.dumps({**{k: v for k, v in vars(args).items() if v != parser.get_default(k) and k != "cache"}, **out}))


if __name__ == "__main__":
    main()
