"""The models that the package brings: from a finished run to `src/pretune/pretrained/NAME`.

    python -m bench.quality.small_models RUN --name small-encoder --command "pretune pretrain encoder …" \\
        --scores scores.json [--out DIR]

RUN is a run of `pretune pretrain`, or what remains of one: the directory of `pretune export RUN --to compact` with
run.json, cost.json and metrics.jsonl beside its files. The directory gets the weights in 8 bits, config and tokenizer,
the settings and the cost (`pretune finetune` chooses its settings by them), the learning curve (metrics.jsonl without
samples), and a card. Paths of the machine are left out. MANIFEST.json has the hashes of all files but the card.

Checked: the stored weights are those of RUN in 8 bits, bit for bit; the learning rate of fine-tuning after a brief
pre-training is the same; the size is at most 16 MB. The divergence of the outputs is measured, and printed.

scores.json has a section of the card for each key: a text, rows (a list of objects with the same keys), or one object
of names and values.

    {"Fine-tuning": [{"task": "SST-2", "accuracy": 0.871}], "Held-out text": {"bits per byte": 1.21}}
"""

import json
import math
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pretune as pt
from bench import common
from pretune.core import io
from pretune.core.errors import CheckpointError
from pretune.core.log import format_markdown
from pretune.core.run_dir import PATHS_KEY, RunDir
from pretune.models import tensor_files
from pretune.models.compact import COMPACT_FILE, quantize_rows, restore_rows
from pretune.models.hf.files import ASSET_FILES, CONFIG_FILE
from pretune.reports.facts import build_cost_rows, build_pretraining_rows
from pretune.runs.finetune.defaults import find_brief_rate
from pretune.runs.model_card import escape_markdown
from pretune.training.run_logger import read_metrics

NAMES = ("small-encoder", "small-decoder")
PRETRAINED = common.ROOT / "src" / "pretune" / "pretrained"
MAX_BYTES = 16_000_000
MAX_STEP_LINES = 100
"""Maximum number of lines of training steps in metrics.jsonl."""
CURVE = ("loss", "accuracy")
"""Validation metrics of the learning curve."""
MAX_CURVE_ROWS = 12
"""Maximum number of rows of the learning curve in the card."""
CORPORA = (
    ("Wikipedia", "articles of English Wikipedia, as of May 2015", "CC BY-SA 3.0"),
    ("ELTeC-eng", "British novels, 1840 to 1920", "text: public domain; markup: CC BY 4.0"),
    ("Wikinews", "English news articles", "CC BY 2.5"),
)
SENTENCES = (
    "The capital of France is Paris.",
    "She opened the door and walked slowly into the garden.",
    "The government said on Monday that the election will take place in June.",
    "Water consists of hydrogen and oxygen.",
)
"""Texts on which outputs are compared."""
BLANKS = (
    "Paris is the [MASK] of France.",
    "The capital of France is [MASK].",
    "She [MASK] the door and left the house.",
    "Water is a [MASK] liquid.",
)
PROMPTS = ("The capital of France is", "She opened the door and", "The government said on Monday that")
_MACHINE_PATH = re.compile(r"(?<![\w./:])/(?:[\w.@+-]+/)*([\w.@+-]+)/?")
"""An absolute path; the last name stays."""


def strip_paths(value: Any) -> Any:
    """Return a value of a JSON file with the last names of absolute paths in place of the paths, in keys too."""
    if isinstance(value, str):
        return _MACHINE_PATH.sub(r"\1", value)
    if isinstance(value, Mapping):
        return {strip_paths(name): strip_paths(part) for name, part in value.items()}
    return [strip_paths(part) for part in value] if isinstance(value, list) else value


def read_settings(run_dir: RunDir, name: str) -> dict[str, Any]:
    """Return run.json with a name in place of its data, which is not shipped: `--data` has to replace it."""
    settings = {key: value for key, value in run_dir.read_settings().items() if key != PATHS_KEY}
    return {**strip_paths(settings), "data": {**settings["data"], "path": f"{name}-data"}}


def trim_metrics(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the evaluations and evenly spaced steps, without samples."""
    steps = [line for line in lines if "loss" in line]
    stride = max(1, math.ceil(len(steps) / MAX_STEP_LINES))
    selected_steps = {line["step"] for line in steps[::-1][::stride]}  # the last one is kept
    return [dict(line) for line in lines if "held_out" in line or ("loss" in line and line["step"] in selected_steps)]


def check_weights(source: Path, target: Path) -> None:
    """Raise a CheckpointError unless the stored weights are those of the source in 8 bits."""
    headers, stored_headers = tensor_files.read_headers(source), tensor_files.read_headers(target)
    if headers.keys() != stored_headers.keys():
        raise CheckpointError(
            f"{target}: other tensors than {source}: {sorted(headers.keys() ^ stored_headers.keys())}"
        )
    for name, info in headers.items():
        (weight,), (stored_weight,) = (
            [*tensor_files.read_tensors([part])] for part in (info, stored_headers[name])
        )  # fmt: skip
        is_matrix = weight.dim() == 2 and weight.is_floating_point() and info.scale is None
        expected_weight = restore_rows(*quantize_rows(weight)) if is_matrix else weight
        if not torch.equal(expected_weight, stored_weight):
            raise CheckpointError(f"{target}: tensor '{name}' is not that of {source} in 8 bits")


def compare_outputs(source: Path, target: Path) -> dict[str, float]:
    """Return the mean divergence of the predicted distributions in nats, and the share of equal best tokens."""
    logprobs: list[Tensor] = []
    for folder in (source, target):
        model = pt.load(folder)
        with torch.no_grad():
            logits = model(model.tokenizer(list(SENTENCES))).logits
        logprobs.append(logits.float().log_softmax(-1))
    before, after = logprobs
    divergence = (before.exp() * (before - after)).sum(-1).mean()
    return {
        "divergence": float(divergence),
        "same_token": float((before.argmax(-1) == after.argmax(-1)).float().mean()),
    }


# The card.


def list_curve(lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return rows of steps, tokens and validation metrics, evenly spaced, the first and the last among them."""
    evaluations = {line["step"]: line["held_out"] for line in lines if "held_out" in line and line["step"] > 0}
    steps = sorted(evaluations)
    count = min(len(steps), MAX_CURVE_ROWS)
    places = sorted({round(i * (len(steps) - 1) / max(count - 1, 1)) for i in range(count)})
    tokens_per_step = summary["tokens"] / max(summary["steps"], 1)
    return [
        (
            f"{step:,}",
            f"{step * tokens_per_step / 1e6:.1f}M",
            *(f"{evaluations[step].get(name, math.nan):.3f}" for name in CURVE),
        )
        for step in (steps[place] for place in places)
    ]


def format_sections(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield sections of the card with the scores."""
    for title, content in scores.items():
        yield f"## {escape_markdown(title)}\n"
        if isinstance(content, str):
            yield f"{content}\n"
            continue
        rows = [{"": name, "value": value} for name, value in content.items()] if isinstance(content, dict) else content
        header = [*dict.fromkeys(name for row in rows for name in row)]
        cells = [[escape_markdown(str(row.get(name, ""))) for name in header] for row in rows]
        yield format_markdown(header, cells, text_columns=1) + "\n"


def list_samples(folder: Path, name: str) -> Iterator[str]:
    """Yield outputs of the model, as Markdown code."""
    model = pt.load(folder)
    if name == "small-encoder":
        for text in BLANKS:
            words = ", ".join(f"{answer.word} ({answer.probability:.2f})" for answer in pt.fill(model, text)[0])
            yield f"    {text}  {words}"
    else:
        for text in pt.generate(model, list(PROMPTS), max_new_tokens=24, temperature=0.7, seed=0):
            yield f"    {' '.join(text.split())}"


def build_card(name: str, folder: Path, commands: Sequence[str], scores: Mapping[str, Any]) -> str:
    """Return the text of README.md."""
    run_dir = RunDir(folder)
    settings, cost = run_dir.read_settings(), io.read_json(run_dir.cost, CheckpointError)
    summary, family = cost["run"], settings["model"]["family"]
    is_encoder = name == "small-encoder"
    example = f'fill {name} "Paris is the [MASK] of France."' if is_encoder else f'generate {name} "The king"'
    ability = "encoder that fills masks" if is_encoder else "decoder that continues text"
    curve = list_curve(read_metrics(folder), summary)
    parts = [
        f"---\nlibrary_name: pretune\ntags: [{family}, {settings['objective']['kind']}]\nlanguage: [en]\n"
        f"license: apache-2.0\n---\n# {name}\n",
        f"A small English {ability}, in the layout of `{family}` ({summary['parameters']:,} parameters). It is part of "
        "the package pretune, which trained it from scratch. Use it for a first try, for fine-tuning on few labels, "
        "and for further pre-training on your own text.\n",
        f"```sh\npretune {example}\npretune finetune {name} --train labelled.csv --out runs/mine\n"
        f"pretune pretrain {'encoder' if is_encoder else 'decoder'} --text texts/ --from {name} --budget 10m --out "
        "runs/further\n```\n",
        "## Samples\n",
        "The five most probable words with their probabilities.\n"
        if is_encoder
        else "Continuations at a temperature of 0.7, seed 0.\n",
        "\n".join(list_samples(folder, name)) + "\n",
        *format_sections(scores),
        "## Training\n",
        "```sh\n" + "\n".join(commands) + "\n```\n",
        format_markdown(("", ""), build_pretraining_rows(settings, summary)) + "\n",
        "Validation during training (all points: `metrics.jsonl`):\n",
        format_markdown(("step", "tokens", *CURVE), curve, text_columns=0) + "\n",
        "## Data\n",
        format_markdown(("text", "contents", "licence"), CORPORA) + "\n",
        "The text is not in the package. Its authors are those of Wikipedia, of Wikinews and of the novels, and the "
        "editors of ELTeC. The weights are under the licence of the package, Apache-2.0.\n",
        "## Limits\n",
        "- The articles of Wikipedia are of 2015, and about a quarter of the text is older than 1920: style, facts and "
        "prejudices are those of the sources. Do not rely on what the model states.",
        "- It was not tuned for instructions, chats or safety, and it has no chat template.",
        "- Matrices are stored in 8 bits by row, and are read as 32-bit numbers. `pretune export "
        f"{name} --to hf --out DIR` writes a directory that transformers reads.\n",
        "## Cost\n",
        format_markdown(("", ""), build_cost_rows(cost)) + "\n",
        "`run.json` has all settings and the choices of the recipe with their reasons, `cost.json` the cost. `pretune "
        f"verify {name}` checks the hashes of these files and of the weights.\n",
    ]
    return "\n".join(parts)


def build_command(settings: Mapping[str, Any], name: str) -> str:
    """Return the command of a run by its settings; the names of its texts are not among them."""
    plan, budget = settings["environment"].get("plan") or {}, settings["train"].get("budget")
    words = ["pretune", "pretrain", plan.get("recipe") or settings["model"]["family"], "--text", "TEXTS"]
    words += [] if budget is None else ["--budget", f"{math.ceil(budget / 60)}m"]
    return shlex.join([*words, "--out", name])


# The directory.


def build(source: Path, out: Path, name: str, commands: Sequence[str], scores: Mapping[str, Any]) -> dict[str, Any]:
    """Write the directory of a model and return facts on it."""
    pt.verify(source)
    run_dir = RunDir(source)
    settings = read_settings(run_dir, name)
    with tempfile.TemporaryDirectory() as scratch:
        compact = source
        if not (source / COMPACT_FILE).is_file():
            compact = Path(pt.export(source, to="compact", out=Path(scratch) / name))
        check_weights(source, compact)
        outputs = {} if compact == source else compare_outputs(source, compact)
        if (out / io.MANIFEST).is_file():
            shutil.rmtree(out)
        with io.atomic_directory(out) as folder:
            names = [part for part in (CONFIG_FILE, COMPACT_FILE, *ASSET_FILES) if (compact / part).is_file()]
            for part in names:
                shutil.copyfile(compact / part, folder / part)
            files = RunDir(folder)
            io.write_json(files.settings, settings)
            io.write_json(files.cost, strip_paths(io.read_json(run_dir.cost, CheckpointError)))
            lines = [json.dumps(line) + "\n" for line in strip_paths(trim_metrics(read_metrics(source)))]
            io.atomic_write(files.metrics, "".join(lines))
            names += [files.settings.name, files.cost.name, files.metrics.name]
            io.write_manifest(folder, names)
            io.atomic_write(files.card, build_card(name, folder, strip_paths([*commands]), scores))
            check(source, folder)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    rate = find_brief_rate(out)
    return {"name": name, "out": str(out), "bytes": sum(sizes.values()), "files": sizes, "brief_rate": rate, **outputs}


def check(source: Path, folder: Path) -> None:
    """Raise a CheckpointError for a directory that may not be shipped."""
    pt.verify(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > MAX_BYTES:
        raise CheckpointError(
            f"{folder.name}: {size:,} bytes, but the package allows {MAX_BYTES:,}; train a smaller one"
        )
    if find_brief_rate(folder) != find_brief_rate(source):
        raise CheckpointError(f"{folder.name}: `pretune finetune` would choose another rate than for {source}")
    texts = {path: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.suffix in (".jsonl", ".md")}
    texts |= {folder / name: (folder / name).read_text(encoding="utf-8") for name in ("run.json", "cost.json")}
    for path, text in texts.items():
        if match := re.search(r"(?<![\w./:])/(?:home|root|tmp|work|mnt|data|Users|workspace)/[^\s\"]*", text):
            raise CheckpointError(f"{path.name}: names a path of a machine: {match[0]}")


def main() -> None:
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("run", type=Path, help="run, or its compact export with run.json, cost.json and metrics.jsonl")
    parser.add_argument("--name", choices=NAMES, required=True)
    parser.add_argument("--scores", type=Path, help="JSON file with sections of the card")
    parser.add_argument("--command", action="append", default=[], help="command that made it (default: by run.json)")
    parser.add_argument("--out", type=Path, help="directory (default: that of the package)")
    options = parser.parse_args()
    scores = {} if options.scores is None else json.loads(options.scores.read_text(encoding="utf-8"))
    commands = options.command or [build_command(RunDir(options.run).read_settings(), options.name)]
    result = build(options.run, options.out or PRETRAINED / options.name, options.name, commands, scores)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
