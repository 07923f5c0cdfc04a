"""Inputs of verbs: texts and prompts from the command line, files or standard input; models and devices."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pretune.cli._options import DtypeName
from pretune.core import log
from pretune.core.errors import DataError, UsageError, explain_missing, suggest
from pretune.core.hub import resolve_path
from pretune.runs.options import Quantization

if TYPE_CHECKING:
    import torch

    from pretune.adaptation.adapted import ModelWithHead
    from pretune.models.model import LanguageModel


def read_prompts(texts: Sequence[str], source: str | None, noun: str) -> list[str]:
    """Return the texts, or the lines of a file (`-`: standard input); raise where one is empty."""
    if bool(texts) == (source is not None):
        raise UsageError(f"pass a {noun} or --input FILE (- is standard input), not both")
    if source is None:
        for number, text in enumerate(texts):
            if not text:
                raise UsageError(f"{noun} {number + 1} is empty")
        return list(texts)
    name = "standard input" if source == "-" else source
    content = _read_file(source, name).replace("\r\n", "\n").removesuffix("\n")
    lines = content.split("\n") if content else []  # NOTE: not splitlines, which splits at form feeds and U+2028, too
    if not lines:
        raise DataError(f"{name}: empty; expected one {noun} per line")
    for number, line in enumerate(lines):
        if not line.strip():
            raise DataError(f"{name}: line {number + 1} is empty; expected one {noun} per line")
    return lines


def _read_file(source: str, name: str) -> str:
    """Return the text of a file or, for `-`, of standard input."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{name}: {explain_missing(source)}") from None
    except UnicodeDecodeError as fault:
        raise DataError(f"{name}: not UTF-8 at byte {fault.start}") from None
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise DataError(f"{name}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from None


class InputTexts(NamedTuple):
    """Texts, their ids (None if the file has none), the name of the source, and labels if they were requested."""

    texts: list[str]
    ids: list[str] | None
    name: str
    labels: list[str] | None = None


def read_texts(source: str, field: str = "text", label: str | None = None) -> InputTexts:
    """Read the texts of a file, which may be compressed, or of standard input (`-`).

    In a text file every line is a text, empty ones included. In JSONL, CSV and TSV the text is the column `field`; a
    column `id` is kept, and with `label` the labels of that column are read. A blank cell is an empty text, so that
    every row keeps its place.
    """
    from pretune.tasks.table import read_text

    name, path = "standard input" if source == "-" else source, Path(source)
    if source != "-" and not path.exists():
        raise DataError(f"{name}: {explain_missing(source)}")
    if source != "-" and path.is_dir():
        example = f"`cat {shlex.quote(str(path))}/*.txt > texts.txt` makes one of text files"
        raise DataError(f"{name}: a folder; pass a file with one text per line ({example})")
    if {".jsonl", ".csv", ".tsv"} & {*path.suffixes[-2:]}:
        inputs = _read_rows(path, field, label)
    elif label is not None:
        raise DataError(f"{name}: lines of text have no column '{label[:40]}'; pass a .csv, .tsv or .jsonl file")
    else:
        text = _read_file(source, name).replace("\r\n", "\n") if source == "-" else "".join(read_text(path))
        texts = text.removesuffix("\n").split("\n") if text else []  # no line follows the last newline
        inputs = InputTexts(texts, None, name)
    if not inputs.texts:
        raise DataError(f"{name}: no texts; expected one per line")
    return inputs


def _read_rows(path: Path, field: str, label: str | None) -> InputTexts:
    """Read JSON lines or a table; the only column of a table may have any name."""
    from pretune.tasks.table import open_table, read_id

    reader = open_table(path, [field, *([] if label is None else [label])], allow_single_column=True)
    if reader.form == "delimited" and field not in reader.columns:
        raise DataError(
            f"{path}: no column '{field}'{suggest(field, reader.columns)} (has {', '.join(reader.columns)[:200]}); "
            "pass the text column with --field, or a file with one text per line"
        )
    texts: list[str] = []
    ids: list[str] = []
    labels: list[str] = []
    for row in reader.read_rows():
        value = "" if row.get(field) is None else row.get(field)
        if not isinstance(value, str):
            raise DataError(f"{row.location}: field '{field}' must be a string, got {str(value)[:40]!r}")
        texts.append(value)
        ids.append(read_id(row.values, row.location))
        if label is not None:
            if label not in row.values:
                raise DataError(f"{row.location}: no column '{label[:40]}'{suggest(label, row.values)}")
            labels.append("" if row.values[label] is None else str(row.values[label]))
    numbered_ids = [name or str(number) for number, name in enumerate(ids, 1)]
    return InputTexts(texts, numbered_ids if any(ids) else None, str(path), None if label is None else labels)


def load_model(
    directory: str | Path,
    *,
    base: Path | None = None,
    device: str | None = None,
    dtype: DtypeName = "float32",
    needs_head: bool = False,
    quantize: Quantization | None = None,
) -> "LanguageModel | ModelWithHead":
    """Load a model directory onto a device, by default the first GPU if there is one.

    With `needs_head`, a model saved without its language-modelling head gets the tied one if possible.
    """
    folder = check_model(directory)
    import torch

    from pretune.adaptation.io import load
    from pretune.core.run_dir import RunDir

    torch_dtype, torch_device = getattr(torch, dtype), resolve_device(device)
    head: Literal["tied"] | None = "tied" if needs_head else None
    loaded_model = load(folder, base=base, dtype=torch_dtype, device=torch_device, head=head, quantize=quantize)
    model: Any = getattr(loaded_model, "model", loaded_model)  # without the task head
    if needs_head and model is not loaded_model and model.spec.head is None and RunDir(folder).is_finetuned:
        command = f"pretune predict {shlex.quote(str(folder))} --input FILE"
        raise UsageError(f"{folder}: a fine-tuned run has no language-modelling head; use `{command}`")
    return loaded_model


def check_model(directory: str | Path) -> Path:
    """Return the folder of a model; raise if it is missing, before the slow imports."""
    folder = resolve_path(directory)
    if not folder.exists():
        from pretune.models.families import make_missing_error

        raise make_missing_error(folder)
    return folder


def resolve_device(device: str | None) -> "torch.device":
    """Return the device of this name, which must exist; None: the first GPU if available, else the CPU."""
    import torch

    from pretune.training import distributed

    torch_device = torch.device(distributed.resolve_device(device))
    if device is None:
        log.info(f"device: {torch.cuda.get_device_name(torch_device) if torch_device.type == 'cuda' else 'CPU'}")
    return torch_device
