"""Options of the verbs that are runs, one frozen value each, and the options that several have.

Nothing here imports torch or numpy: the command line is derived from it.
"""

import re
from typing import Literal

from pretune.core.api import Option
from pretune.core.config import parse_assignments

DocumentUnit = Literal["auto", "file", "block", "line", "field"]
Quantization = Literal["int8", "nf4"]

BASE = Option("--base DIR", "Base model of an adapter, if it was moved.")
BY = Option("--by", "Unit of a document.")
CONFIG = Option("--config FILE", "Settings file: YAML, or the run.json of a run.")
CORPUS = Option("CORPUS", "Files, folders, globs, pair:A,B, builtin:NAME, hf:NAME.", is_required=True, kind=list[str])
DEVICE = Option("--device NAME", "cpu or cuda (default: a GPU if available).", names=("cpu", "cuda", "cuda:0"))
FIELD = Option("--field NAME", "Text column or JSON field.")
MODEL = Option(
    "MODEL", "Run, Hugging Face directory, hf:OWNER/NAME, or one of `pretune list models`.", kind=str, is_required=True
)
OUT = Option("--out RUN", "Output directory of the run.")
PAIR = Option("--pair COL", "Column of a second text.")
QUANTIZE = Option("--quantize", "Reduce the weights of linear layers to 8 or 4 bits (int8, nf4).")
RESUME = Option("--resume", "Resume the unfinished run in --out.")
SET = Option("--set PATH=VALUE", "", kind=list[str], parse=parse_assignments)
TASK_DATA = Option("--data DIR", "Directory of task data (default: $PRETUNE_DATA).")
TEXT = Option("--text COL", "Text column.")


def parse_names(text: str) -> list[str]:
    """Return comma-separated names."""
    return [name for name in text.split(",") if name]


def unescape(text: str) -> str:
    r"""Replace the escapes \n, \t and \\ of a shell argument by the characters they stand for.

    >>> unescape(r"one\ntwo"), unescape(r"C:\\new")
    ('one\ntwo', 'C:\\new')
    """
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text)
