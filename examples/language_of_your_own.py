"""Your own language: from raw text to a generative model, in the minutes that you give.

    python examples/language_of_your_own.py my_texts/ --prompt "Er was eens" --budget 10m

The recipe `decoder` trains a byte-level BPE (for text without spaces a unigram tokenizer), so no character is unknown,
and chooses the size of the model and its settings for the text, the device and the time; the log has the reason of each
choice. Prints the bytes per token, the validation perplexity, and three generated texts. Without texts it trains on
docstrings of Python.
Time: 3 min of two cores, unless you give more; the model then generates words and names of functions.
"""

import argparse
import json
from pathlib import Path

import pretune as pt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("texts", nargs="*", default=["builtin:docs"], help="files or folders of text")
    parser.add_argument("--budget", default="3m", help="time from the text to the saved model")
    parser.add_argument("--prompt", default="Return the")
    parser.add_argument("--out", type=Path, default=Path("runs/language"))
    options = parser.parse_args()

    run = pt.pretrain("decoder", text=options.texts, budget=options.budget, out=options.out)
    model = pt.load(run)
    text = json.loads((options.out / "data/card.json").read_text())["splits"]["train"]
    print(
        f"{text['tokens']:,} tokens, {text['bytes'] / text['tokens']:.2f} bytes each; vocabulary {model.spec.vocab:,}"
    )
    print(f"validation: perplexity {run.summary['held_out']['perplexity']:.1f} per token, loss {run.loss:.3f}")

    for text in pt.generate(model, [options.prompt], num=3, max_new_tokens=30, top_p=0.9, seed=1):
        print("-", " ".join(text.split()))


if __name__ == "__main__":
    main()
