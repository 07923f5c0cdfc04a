"""Your own language: from raw text to a tokenizer and a generative model.

    python examples/language_of_your_own.py my_texts/ --prompt "Er was eens"

The tokenizer is a byte-level BPE: it works for any script, and no character is unknown. Prints the bytes per token, the
validation perplexity, and three generated texts. Without texts it trains on docstrings of Python.
Time: 5 min of one core of a Neoverse-N1 for 200 steps; the model then generates words, but no sentences yet.
"""

import argparse
from pathlib import Path

import pretune as pt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("texts", nargs="*", default=["builtin:docs"], help="files or folders of text")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--model", default="gpt2", help="a decoder of `pretune list families`")
    parser.add_argument("--width", type=int, default=128, help="GPT-2 has 768, with --depth 12")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--prompt", default="Return the")
    parser.add_argument("--out", type=Path, default=Path("runs/language"))
    options = parser.parse_args()

    tokenizer = pt.train_tokenizer("bpe", options.texts, vocab=options.vocab)
    data = pt.prepare(options.texts, tokenizer=tokenizer, out=options.out / "data", holdout="5%")
    text = data.card["splits"]["train"]
    print(f"{text['tokens']:,} tokens, {text['bytes'] / text['tokens']:.2f} bytes each; vocabulary {len(tokenizer):,}")

    sizes = {"model.width": options.width, "model.depth": options.depth, "model.heads": max(options.width // 64, 1)}
    settings = {"data": data, "steps": options.steps, "out": options.out / "model"}
    run = pt.pretrain(options.model, paper=True, **settings, overrides={**sizes, "data.max_length": 128})
    held_out = run.summary["held_out"]
    print(f"validation: perplexity {held_out['perplexity']:.1f} per token, loss {run.loss:.3f}")

    model = pt.load(run)
    for text in pt.generate(model, [options.prompt], num=3, max_new_tokens=30, top_p=0.9, seed=1):
        print("-", " ".join(text.split()))


if __name__ == "__main__":
    main()
