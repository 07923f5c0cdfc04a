"""ELECTRA on one GPU (Clark et al., 2020): train an encoder to detect the tokens that a small model replaced.

    python examples/electra_on_one_gpu.py my_texts/ --budget 4h

On a GPU this trains ELECTRA-small with the settings of its paper, for the given time. Without a GPU it trains a model
of two layers, as a demonstration. Prints the validation metrics of the discriminator, and its prediction for each token
of a sentence. Without texts it trains on docstrings of Python.
Time without a GPU: 4 min of one core of a Neoverse-N1. The discriminator then predicts the rate of replaced tokens, but
hardly which ones they are.
"""

import argparse
from pathlib import Path

import torch

import pretune as pt

TINY = {"model.width": 128, "model.depth": 2, "model.heads": 2, "data.max_length": 64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("texts", nargs="*", default=["builtin:docs"], help="files or folders of text")
    parser.add_argument("--budget", help="training time, such as 4h (default on a GPU: 30m)")
    parser.add_argument("--steps", type=int, help="training steps (default without a GPU: 300)")
    parser.add_argument("--vocab", type=int, help="vocabulary size (default: 30,522 on a GPU, else 4,096)")
    parser.add_argument("--sentence", default="return a list of the names of the banana in the file")
    parser.add_argument("--out", type=Path, default=Path("runs/electra"))
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    if options.budget is None and options.steps is None:
        options.budget, options.steps = ("30m", None) if gpu else (None, 300)

    vocab = options.vocab or (30_522 if gpu else 4096)
    tokenizer = pt.train_tokenizer("wordpiece", options.texts, vocab=vocab, lowercase=True)
    data = pt.prepare(options.texts, tokenizer=tokenizer, out=options.out / "data")
    settings = {"data": data, "budget": options.budget, "steps": options.steps, "out": options.out / "model"}
    run = pt.pretrain("electra-small", **settings, overrides={} if gpu else TINY)
    print({name: round(value, 4) for name, value in run.summary["held_out"].items()})

    model = pt.load(run).eval()  # the discriminator; the generator is in generator/
    tokens = tokenizer.encode(options.sentence, add_special_tokens=False)
    batch = pt.batch([tokens])
    with torch.no_grad():
        replaced = model.detector(model.states(batch)).sigmoid()
    for token, probability in zip(tokens, batch.split(replaced)[0].flatten().tolist(), strict=True):
        print(f"{tokenizer.get_token(token):>12} {probability:5.1%} {'#' * round(40 * probability)}")


if __name__ == "__main__":
    main()
