"""Your own training loop: first a custom masking objective on your texts, then a classifier with LoRA.

    python examples/custom_training_loop.py runs/bert --train reviews.csv

The model is a run or a Hugging Face directory of an encoder with a masked-language-model head; the table has the
columns text and label. `pt.pretrain` and `pt.finetune` add checkpoints, schedules, validation and reports.
Time: 8 s of one Neoverse-N1 core for a model of two layers and 100 steps each.
"""

import argparse
import csv
import random
from pathlib import Path

import torch

import pretune as pt


def mask_long_words(tokenizer: pt.Tokenizer, texts: list[str], rate: float) -> pt.Batch:
    """Mask a share of the words of five letters or more: a batch whose labels are the masked tokens."""
    sequences = [tokenizer.encode(text) for text in texts]
    labels = [[-100] * len(ids) for ids in sequences]
    for ids, targets in zip(sequences, labels, strict=True):
        for place, token in enumerate(ids):
            if len(tokenizer.decode([token], special=False)) >= 5 and random.random() < rate:
                targets[place], ids[place] = token, tokenizer.special["mask"]
    return pt.batch(sequences, labels=labels)


def update(optimizer: torch.optim.Optimizer, loss: pt.Loss) -> None:
    (loss.sum / loss.count.clamp(min=1)).backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="run or Hugging Face directory")
    parser.add_argument("--train", type=Path, required=True, help="CSV with the columns text and label")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/classifier"))
    options = parser.parse_args()
    rows = [(row["text"], row["label"]) for row in csv.DictReader(options.train.open(encoding="utf-8"))]
    names = sorted({label for _, label in rows})
    model, objective = pt.load(options.model), pt.objective("masked")
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-3)
    for _ in range(options.steps):
        texts = [text for text, _ in random.sample(rows, min(8, len(rows)))]
        loss = objective.loss(model, mask_long_words(model.tokenizer, texts, rate=0.3))
        update(optimizer, loss)
    print(f"masked long words: loss {loss.sum / loss.count.clamp(min=1):.3f}")

    model = pt.add_adapter(pt.add_head(model, "classification", labels=names), pt.LoRA(rank=8))
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-3)
    for _ in range(options.steps):
        chunk = random.sample(rows, min(16, len(rows)))
        batch = model.tokenizer([text for text, _ in chunk], labels=[label for _, label in chunk])
        loss = model.loss(batch)
        update(optimizer, loss)
    print(f"classifier: loss {loss.sum / loss.count:.3f}")
    pt.save(model, options.out)  # the adapter, its head, and the base model, which this loop has changed
    model = pt.load(options.out)
    with torch.no_grad():
        predictions = model(model.tokenizer([text for text, _ in rows[:3]])).argmax(-1).tolist()
    print(*(f"{text[:50]} -> {names[label]}" for (text, _), label in zip(rows, predictions, strict=False)), sep="\n")


if __name__ == "__main__":
    main()
