"""Output of exports: a directory with its model card, or a single file such as `--to gguf --out books.gguf`.

A card describes the model, its labels, its base, and has the lines that load it, which run in its directory. A file is
written beside its name first.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pretune.adaptation.adapted import ModelWithHead
from pretune.core import config, io, log
from pretune.core.errors import UsageError, refuse_broken_link
from pretune.core.hub import PREFIX, is_hub
from pretune.core.run_dir import RunDir
from pretune.inference.text_model import get_language_model
from pretune.models.model import LanguageModel
from pretune.runs.finetune.saved_task import SavedTask
from pretune.runs.model_card import escape_markdown

CARD_FILE = "README.md"
SIGNATURE = "Written by `pretune export`."
"""Last line of a card: a file without it is the user's, and stays."""
TEXT, PAIR = '"a lovely film"', '"a lovely film", "a fine film"'
MAX_LABELS = 50
"""Maximum number of labels that are listed."""
ExportFormat = Literal["hf", "sentence-transformers", "compact", "onnx", "gguf"]
SUFFIXES = {".onnx": "onnx", ".gguf": "gguf"}
"""Suffixes of files, and the formats that write them."""
PIPELINES = {
    **dict.fromkeys(("classification", "multi_label", "regression"), "text-classification"),
    "tagging": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCard:
    """Facts of an export, from which its card is built."""

    name: str
    model: LanguageModel | ModelWithHead
    base: str | None = None
    saved_task: SavedTask | None = None
    form: ExportFormat = "hf"
    class_name: str = ""
    code: str = ""  # that loads it; empty: by the form

    @property
    def head(self) -> Any:
        """Spec of the task head, or None."""
        return self.model.spec if isinstance(self.model, ModelWithHead) and self.model.head is not None else None

    @property
    def body(self) -> LanguageModel:
        """The model without its task head."""
        return get_language_model(self.model)

    def build(self) -> str:
        """Return the text of README.md."""
        library = {"hf": "transformers", "compact": "pretune"}.get(self.form, self.form)
        kind = None if self.head is None else config.get_kind(self.head)
        header = ["---", f"library_name: {library}", f"tags: [pretune, {self.body.spec.family}]"]
        if kind in PIPELINES:
            header.append(f"pipeline_tag: {PIPELINES[kind]}")
        if self.base is not None and is_hub(self.base):
            header.append(f"base_model: {self.base.removeprefix(PREFIX).partition('@')[0]}")
        lines = [*header, "---", f"# {escape_markdown(self.name)}", "", *self._describe(kind), ""]
        lines += ["Load it in this directory:", "", "```python", *self._list_code(kind), "```", ""]
        return "\n".join([*lines, *self._list_notes(kind), "", SIGNATURE, ""])

    def _describe(self, kind: str | None) -> list[str]:
        family = self.body.spec.family
        role = "without a task head" if kind is None else f"with a head for {kind.replace('_', ' ')}"
        lines = [f"A `{family}` model {role}, for `{self.class_name}`."]
        if self.saved_task is not None:
            lines.append(f"- Task: `{escape_markdown(self.saved_task.name)}`")
        if self.base is not None:
            name = self.base if is_hub(self.base) else Path(self.base).name
            lines.append(f"- Base model: `{escape_markdown(name)}`")
        labels: Sequence[str] = getattr(self.head, "labels", ())
        if labels:
            more = f", … ({len(labels)} in all)" if labels[MAX_LABELS:] else ""
            names = ", ".join(f"`{escape_markdown(label)}`" for label in labels[:MAX_LABELS])
            lines.append(f"- Labels, in the order of the outputs: {names}{more}")
        return [lines[0], "", *lines[1:]]

    def _list_notes(self, kind: str | None) -> list[str]:
        notes = []
        if self.saved_task is not None and kind is not None:
            notes.append(f"- Texts are cut at {self.saved_task.max_length} tokens.")
        if kind == "tagging":
            notes.append("- The tag of a word is that of its first token.")
        if self.saved_task is not None and self.saved_task.threshold is not None:
            notes.append(f"- A label is predicted from a probability of {self.saved_task.threshold:.3g}.")
        if self.form == "compact":
            notes.append("- Matrices have 8 bits for each weight; `pretune export --to hf` writes them in float32.")
        if self.form in ("hf", "sentence-transformers"):
            notes.append('- `pretune.load(".")` loads it too.')
        return notes

    def _list_code(self, kind: str | None) -> list[str]:
        if self.code:
            return self.code.splitlines()
        if self.form == "compact":
            return ["import pretune", 'model = pretune.load(".")']
        if self.form == "onnx":
            return list_onnx_code(self.body, has_head=kind is not None, is_choice=kind == "choice")
        if self.form == "sentence-transformers":
            return self._list_sentence_code(kind)
        if self.body.tokenizer is None:
            return list_code_without_tokenizer(self.body, self.class_name, is_choice=kind == "choice")
        start = [
            f"from transformers import AutoTokenizer, {self.class_name}",
            f'tokenizer, model = AutoTokenizer.from_pretrained("."), {self.class_name}.from_pretrained(".").eval()',
        ]
        return [*start, self._format_call(kind)]

    @property
    def _text(self) -> str:
        """One text or two, as the task has them."""
        return PAIR if self.saved_task is not None and not self.saved_task.reads_one_text else TEXT

    def _format_call(self, kind: str | None) -> str:
        inputs = f'**tokenizer({self._text}, truncation=True, return_tensors="pt")'
        if kind in ("classification", "multi_label", "regression"):
            return f"print({self._convert(f'model({inputs}).logits')}, model.config.id2label)"
        if kind == "tagging":
            return f"print([model.config.id2label[i] for i in model({inputs}).logits[0].argmax(-1).tolist()])"
        if kind == "choice":
            pairs = 'tokenizer(["a question"] * 2, ["an answer", "another answer"], padding=True, return_tensors="pt")'
            return f"print(model(**{{k: v[None] for k, v in {pairs}.items()}}).logits.softmax(-1))"
        if kind == "span":
            return f'print(model(**tokenizer({PAIR}, return_tensors="pt")))  # start and end scores of every token'
        if self.body.decoder is not None and self.body.head is not None:
            prompt = self._format_prompt()
            answer = f'model.generate(**tokenizer({prompt}, return_tensors="pt"), max_new_tokens=10)'
            return f"print(tokenizer.batch_decode({answer}))"
        if self.body.spec.is_encoder_decoder:
            return f'print(model.get_encoder()(**tokenizer({TEXT}, return_tensors="pt")))'
        return f"print(model({inputs}))"

    def _format_prompt(self) -> str:
        """Return the prompt of a text-to-text task, or a text."""
        template = None if self.saved_task is None else self.saved_task.template
        return TEXT if template is None else repr(template.source.replace("{text}", "a lovely film"))

    def _list_sentence_code(self, kind: str | None) -> list[str]:
        text = f"({PAIR})" if self._text == PAIR else TEXT
        result = f"model.encode([{text}])"
        if kind is not None:
            logits = f"model.encode([{text}], convert_to_tensor=True)"
            result = f"{self._convert(logits)}, model[0].auto_model.config.id2label"
        return [
            "from sentence_transformers import SentenceTransformer",
            'model = SentenceTransformer(".", device="cpu")',
            f"print({result})",
        ]

    def _convert(self, logits: str) -> str:
        """Return the expression of probabilities, or of a score on the task's scale."""
        kind = config.get_kind(self.head)
        if kind == "classification":
            return f"{logits}.softmax(-1)"
        if kind == "multi_label":
            return f"{logits}.sigmoid()"
        scale = None if self.saved_task is None else self.saved_task.build_task().scale or self.saved_task.scale
        if scale is None:
            return logits
        low, high = scale
        return f"({low} + ({logits} + 1) / 2 * {high - low}).clamp({low}, {high})"


def list_code_without_tokenizer(body: LanguageModel, class_name: str, *, is_choice: bool) -> list[str]:
    """Return the code of a model without a tokenizer, which reads token ids."""
    ids = "[[[1, 2, 3], [1, 2, 3]]]" if is_choice else "[[1, 2, 3]]"
    decoder = ", decoder_input_ids=ids" if body.spec.is_encoder_decoder else ""
    return [
        f"import torch\nfrom transformers import {class_name}",
        f"ids = torch.tensor({ids})",
        f'print({class_name}.from_pretrained(".").eval()(input_ids=ids, attention_mask=torch.ones_like(ids){decoder}))',
    ]


def list_onnx_code(body: LanguageModel, *, has_head: bool, is_choice: bool) -> list[str]:
    """Return the code that runs the graph, or shows its inputs if they are more than tokens."""
    spec = body.spec
    steps = not has_head and spec.decoder is not None and spec.head is not None and not body.assets.modules
    if steps or is_choice or body.tokenizer is None:
        file = "encoder_model" if steps and spec.is_encoder_decoder else "model"
        return [
            "import onnxruntime",
            f'session = onnxruntime.InferenceSession("onnx/{file}.onnx")',
            "print([(entry.name, entry.shape) for entry in session.get_inputs()])",
        ]
    return [
        "import numpy, onnxruntime, tokenizers",
        'text = tokenizers.Tokenizer.from_file("tokenizer.json").encode("a lovely film")',
        'session = onnxruntime.InferenceSession("onnx/model.onnx")',
        'columns = {"input_ids": text.ids, "attention_mask": text.attention_mask, "token_type_ids": text.type_ids}',
        "print(session.run(None, {i.name: numpy.array([columns[i.name]]) for i in session.get_inputs()}))",
    ]


def write_card(card: ExportCard, folder: Path, target: Path) -> None:
    """Write the card into a folder that becomes `target`, unless that has a README.md of the user."""
    old_card = target / CARD_FILE
    if old_card.exists() and SIGNATURE.encode() not in io.read_bounded(old_card, UsageError, 1 << 24):
        log.warn(f"{old_card}: kept, so the export has no card")
        return
    io.atomic_write(folder / CARD_FILE, card.build())


def find_base(directory: Path) -> str | None:
    """Return the base model of a run, as its settings name it."""
    run_dir = RunDir(directory)
    if not run_dir.settings.is_file():
        return None
    tree = run_dir.read_settings()
    base = tree.get("base", {}).get("path") or tree.get("train", {}).get("init_from")
    return base if isinstance(base, str) else None


def is_file_path(path: Path) -> bool:
    """Return whether an output path names a file instead of a directory."""
    return path.suffix.lower() in SUFFIXES


def check_suffix(path: Path, form: str) -> None:
    """Raise `UsageError` if an output path is named like a file of another format."""
    named_format = SUFFIXES.get(path.suffix.lower(), form)
    if named_format != form:
        raise UsageError(
            f"cannot write '{path}' in the format {form}: the name is that of a file in the format {named_format}; use "
            f"--to {named_format}, or another name"
        )


@contextmanager
def open_directory(
    path: Path, files: Mapping[str, Path], *, overwrite: bool, owner: str | None = None
) -> Iterator[Path]:
    """Yield a temporary directory to fill, which becomes `path`; of a file path, the `files` in it take their names.

    Raises `UsageError` if one of them exists and `overwrite` is False.
    """
    if not is_file_path(path):
        with io.atomic_directory(path, overwrite=overwrite, owner=owner) as folder:
            yield folder
        return
    for target in files.values():
        refuse_broken_link(target)
        if target.is_dir():
            raise UsageError(f"cannot write '{target}': it is a directory, not a file; choose another name")
        if target.exists() and not overwrite:
            raise UsageError(f"cannot write '{target}': it exists; use --overwrite, or choose another name")
    with io.translate_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with io.scratch_directory(path) as folder:
            yield folder
            for name, target in files.items():
                io.move_file(folder / name, target)
