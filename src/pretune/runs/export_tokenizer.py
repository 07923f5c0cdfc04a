"""The tokenizer of an exported model with a task head: it encodes texts as the task does.

A fine-tuned decoder reads a text between a start and an end token (Radford et al., 2018), which its own tokenizer does
not add. Other libraries know neither this nor the maximum length of the task, so both are written into the files.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer as RawTokenizer
from tokenizers.processors import TemplateProcessing

from pretune.adaptation.adapted import ModelWithHead
from pretune.models.model import LanguageModel
from pretune.runs.finetune.saved_task import SavedTask
from pretune.tasks.encoding import build_task_template
from pretune.text.template import TEXT_A, TEXT_B, Layout
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.files import CONFIG_FILE, TOKENIZER_FILE


def set_task_tokenizer(model: ModelWithHead, saved_task: SavedTask | None) -> None:
    """Write the encoding of a task into the tokenizer's files of a model, in place.

    Padding goes to the side where classes and poolings look for the text: to the left of a model that is read at the
    last column, to the right of all others.
    """
    body, tokenizer = model.model, model.tokenizer
    if tokenizer is None:
        return
    spec, files = body.spec, dict(body.assets.files)
    template = tokenizer.template if saved_task is None else build_task_template(tokenizer, spec)
    if template != tokenizer.template:
        raw = RawTokenizer.from_str(tokenizer.raw.to_str())
        raw.post_processor = TemplateProcessing(
            single=_list_pieces(tokenizer, template.single),
            pair=_list_pieces(tokenizer, template.pair),
            special_tokens=[
                (tokenizer.get_token(token), token) for token, _ in {*template.single, *template.pair} if token >= 0
            ],
        )
        files |= {**tokenizer.build_files(), TOKENIZER_FILE: raw.to_str(pretty=True).encode()}
    length = spec.max_length if saved_task is None else saved_task.max_length
    body.assets = replace(body.assets, files=files, tokenizer=RawTokenizer.from_buffer(files[TOKENIZER_FILE]))
    settings = body.assets.read_json(CONFIG_FILE)
    settings["padding_side"] = "left" if spec.shape == "two-stream" else "right"
    if length is not None:
        settings["model_max_length"] = length
    files[CONFIG_FILE] = _encode_json(settings)


def set_pad_token(body: LanguageModel) -> None:
    """Name a token for padding if the tokenizer has none, in place: sentence-transformers pads, and reads the mask."""
    tokenizer = body.tokenizer
    if tokenizer is None or "pad" in tokenizer.special:
        return
    token = tokenizer.get_token(next(iter(tokenizer.special.values()), 0))
    settings = {**body.assets.read_json(CONFIG_FILE), "pad_token": token}
    body.assets = replace(body.assets, files={**body.assets.files, CONFIG_FILE: _encode_json(settings)})


def _encode_json(settings: Mapping[str, Any]) -> bytes:
    return (json.dumps(settings, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _list_pieces(tokenizer: Tokenizer, layout: Layout) -> list[str]:
    """Return a layout in the words of the library `tokenizers`, such as `[CLS]:0` and `$A:0`."""
    names = {TEXT_A: "$A", TEXT_B: "$B"}
    return [f"{names.get(token) or tokenizer.get_token(token)}:{segment}" for token, segment in layout]
