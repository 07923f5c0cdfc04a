"""Writing of a Hugging Face directory that other libraries read without a difference, or of none.

A task head becomes a class of `transformers` if one computes the same, or else modules of sentence-transformers
(`adaptation.sentence_head`). Every other head is refused. The tokenizer encodes texts as the task does: a fine-tuned
decoder reads a text between a start and an end token (Radford et al., 2018), which its own tokenizer does not add.
"""

from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as RawTokenizer
from tokenizers.processors import TemplateProcessing

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.head_classes import export_head
from pretune.adaptation.heads.base import SequenceHead, TokenHead
from pretune.adaptation.sentence_head import export_modules
from pretune.core import io
from pretune.core.errors import UsageError
from pretune.exporters.output import ExportCard, write_card
from pretune.models.families import FAMILIES
from pretune.models.hf import checkpoint
from pretune.models.hf.checkpoint import SavedHead
from pretune.models.model import LanguageModel
from pretune.runs.finetune.saved_task import SavedTask
from pretune.tasks.encoding import build_task_template
from pretune.text.template import TEXT_A, TEXT_B, Layout
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.files import CONFIG_FILE, TOKENIZER_FILE, encode_json


def choose_head(model: ModelWithHead, saved_task: SavedTask | None) -> SavedHead | None:
    """Return the head as another library computes it; None if the vocabulary head is used.

    Raises `UsageError` if none does.
    """
    if model.head is None:
        return None
    saved_head = _find_class(model)
    if saved_head is not None:
        return saved_head
    length = None if saved_task is None else saved_task.max_length
    try:
        return export_modules(model, model.model.spec.max_length if length is None else length)
    except UsageError as error:
        onnx_option = "--to onnx, " if isinstance(model.head, SequenceHead | TokenHead) else ""
        raise UsageError(
            f"no class of transformers and no modules of sentence-transformers compute this head ({error}); "
            f"use {onnx_option}`pretune predict` or `pretune serve`"
        ) from None


def check_embedding(body: LanguageModel) -> None:
    """Raise `UsageError` for an embedding model of which sentence-transformers would pool other states."""
    layout = FAMILIES.get(body.spec.family).layout
    if body.assets.modules and body.spec.is_encoder_decoder and not (layout and layout.has_encoder_class):
        raise UsageError(
            f"sentence-transformers pools the decoder of a '{body.spec.family}', and this embedding model its encoder; "
            "use --to onnx, or `pretune embed`"
        )


def _find_class(model: ModelWithHead) -> SavedHead | None:
    """Return the head in its class of `transformers`, if that reads the same state of a text as the model."""
    saved_head, spec, tokenizer = export_head(model), model.model.spec, model.tokenizer
    if saved_head is None or not isinstance(model.head, SequenceHead) or spec.shape != "decoder" or tokenizer is None:
        return saved_head
    # The class reads the last token that is not padding, by its id.
    pad = tokenizer.special.get("pad")
    last_tokens = {tokenizer.template.single[-1][0], tokenizer.template.pair[-1][0]}
    if pad in last_tokens:
        return None
    model.model.spec = replace(spec, special=replace(spec.special, pad=pad))
    return saved_head


def write_hf(card: ExportCard, head: SavedHead | None, target: Path, *, overwrite: bool) -> None:
    """Write the directory of a card's model with its task."""
    body = card.body
    if body.assets.modules if head is None else head.modules:
        set_pad_token(body)
    with io.atomic_directory(target, overwrite=overwrite, owner=checkpoint.find_owner(target)) as folder:
        checkpoint.save(body, folder, overwrite=True, head=head, compact=card.form == "compact")
        if card.saved_task is not None:
            card.saved_task.write(folder)  # NOTE: without the settings, which name the user's files
        write_card(card, folder, target)


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
    files[CONFIG_FILE] = encode_json(settings)


def set_pad_token(body: LanguageModel) -> None:
    """Name a token for padding if the tokenizer has none, in place: sentence-transformers pads, and reads the mask."""
    tokenizer = body.tokenizer
    if tokenizer is None or "pad" in tokenizer.special:
        return
    token = tokenizer.get_token(next(iter(tokenizer.special.values()), 0))
    settings = {**body.assets.read_json(CONFIG_FILE), "pad_token": token}
    body.assets = replace(body.assets, files={**body.assets.files, CONFIG_FILE: encode_json(settings)})


def _list_pieces(tokenizer: Tokenizer, layout: Layout) -> list[str]:
    """Return a layout in the words of the library `tokenizers`, such as `[CLS]:0` and `$A:0`."""
    names = {TEXT_A: "$A", TEXT_B: "$B"}
    return [f"{names.get(token) or tokenizer.get_token(token)}:{segment}" for token, segment in layout]
