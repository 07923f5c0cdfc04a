"""ELECTRA on one GPU (Clark et al., 2020): learn from every word by asking which ones a small model has replaced.

    python examples/electra_on_one_gpu.py my_texts/ --budget 4h

On a GPU it trains ELECTRA-small as its paper did, for as long as you say. Without one it trains a model of two layers,
to show what happens. Printed is how often the discriminator is right, and what it thinks of the words of a sentence.
Without texts it learns docstrings of Python.
Time without a GPU: 4 min of one core of a Neoverse-N1. It then knows how many words are replaced, and hardly yet which.
"""

import argparse
from pathlib import Path

import torch

import pretune as pt

TINY = {"model.width": 128, "model.depth": 2, "model.heads": 2, "data.max_length": 64}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("texts", nargs="*", default=["builtin:docs"], help="files or folders of text")
    arguments.add_argument("--budget", help="how long, such as 4h; on a GPU 30m by default")
    arguments.add_argument("--steps", type=int, help="how many steps instead; without a GPU 300 by default")
    arguments.add_argument("--vocab", type=int, help="30,522 on a GPU, else 4,096")
    arguments.add_argument("--sentence", default="return a list of the names of the banana in the file")
    arguments.add_argument("--out", type=Path, default=Path("runs/electra"))
    asked = arguments.parse_args()
    gpu = torch.cuda.is_available()
    if asked.budget is None and asked.steps is None:
        asked.budget, asked.steps = ("30m", None) if gpu else (None, 300)

    vocab = asked.vocab or (30_522 if gpu else 4096)
    tokenizer = pt.train_tokenizer("wordpiece", asked.texts, vocab=vocab, lowercase=True)
    data = pt.prepare(asked.texts, tokenizer=tokenizer, out=asked.out / "data")
    goal = {"data": data, "budget": asked.budget, "steps": asked.steps, "out": asked.out / "model"}
    run = pt.pretrain("electra-small", **goal, overrides={} if gpu else TINY)
    print({name: round(value, 4) for name, value in run.summary["held_out"].items()})

    model = pt.load(run).eval()  # the discriminator; the generator lies in generator/
    tokens = tokenizer.encode(asked.sentence, add_special_tokens=False)
    batch = pt.batch([tokens])
    with torch.no_grad():
        replaced = model.detector(model.states(batch)).sigmoid()
    for token, chance in zip(tokens, batch.split(replaced)[0].flatten().tolist(), strict=True):
        print(f"{tokenizer.get_token(token):>12} {chance:5.1%} {'#' * round(40 * chance)}")


if __name__ == "__main__":
    main()
