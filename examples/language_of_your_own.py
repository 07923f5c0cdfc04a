"""A language of your own: from raw text to a tokenizer and a model that writes it, nothing else needed.

    python examples/language_of_your_own.py my_texts/ --prompt "Er was eens"

Pieces are learnt from bytes, so any script will do, and no character is unknown. Printed is how long they are, how
well held-out text is predicted, and what the model writes. Without texts it learns docstrings of Python.
Time: 5 min of one core of a Neoverse-N1 for 200 steps, after which words are words, and sentences not yet.
"""

import argparse
from pathlib import Path

import pretune as pt


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("texts", nargs="*", default=["builtin:docs"], help="files or folders of text")
    arguments.add_argument("--vocab", type=int, default=4096)
    arguments.add_argument("--model", default="gpt2", help="any decoder of `pretune list families`")
    arguments.add_argument("--width", type=int, default=128, help="768 and a depth of 12 is GPT-2")
    arguments.add_argument("--depth", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--prompt", default="Return the")
    arguments.add_argument("--out", type=Path, default=Path("runs/language"))
    asked = arguments.parse_args()

    tokenizer = pt.train_tokenizer("bpe", asked.texts, vocab=asked.vocab)
    data = pt.prepare(asked.texts, tokenizer=tokenizer, out=asked.out / "data", holdout="5%")
    text = data.card["splits"]["train"]
    print(f"{text['tokens']:,} tokens, {text['bytes'] / text['tokens']:.2f} bytes each; {len(tokenizer):,} different")

    shape = {"model.width": asked.width, "model.depth": asked.depth, "model.heads": max(asked.width // 64, 1)}
    goal = {"data": data, "steps": asked.steps, "out": asked.out / "model"}
    run = pt.pretrain(asked.model, **goal, overrides={**shape, "data.max_length": 128})
    held_out = run.summary["held_out"]
    print(
        f"held-out text: perplexity {held_out['perplexity']:.1f} among {len(tokenizer):,} pieces, loss {run.loss:.3f}"
    )

    model = pt.load(run)
    for text in pt.generate(model, [asked.prompt], num=3, max_new_tokens=30, top_p=0.9, seed=1):
        print("-", " ".join(text.split()))


if __name__ == "__main__":
    main()
