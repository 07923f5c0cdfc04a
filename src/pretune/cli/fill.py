"""`pretune fill`: predict masked words."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.cli._inputs import load_model, read_prompts
from pretune.cli._options import DTYPE, DtypeName, TableFormat
from pretune.cli._output import hint, print_data
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.runs.options import BASE, DEVICE, MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretune.inference.unmask import Blanks, FillPrediction


@option_set
class FillOptions(Options):
    """Options of the prediction of masked words."""

    model: str = MODEL.field()
    texts: list[str] | None = option("TEXT", "Text with blanks: [MASK], <mask> or ___.", kind=list[str])
    source: str | None = option("--input FILE", "Texts, one per line; - is standard input.")
    top: int = option("--top K", "Predictions per blank.", default=5)
    pieces: int | None = option(
        "--pieces N", "Maximum number of tokens per word (default: 1; for generative models 8)."
    )
    language: int | None = option(
        "--language N", "Number of the texts' language, for a model with language embeddings."
    )
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()
    dtype: DtypeName = DTYPE.field(default="float32")


def fill(options: FillOptions, output: TableFormat) -> None:
    """Predict masked words, most probable first.

    Example: pretune fill small-encoder "Paris is the [MASK] of France." --top 3
    """
    model, texts, source = options.model, options.texts, options.source
    prompts = read_prompts(texts or [], source, "text")
    from pretune.inference.fill import fill as work
    from pretune.inference.fill import find_blanks
    from pretune.inference.text_model import get_language_model

    loaded_model = load_model(model, base=options.base, device=options.device, dtype=options.dtype, needs_head=True)
    if options.language is not None:
        get_language_model(loaded_model).set_language(options.language)
    records = []
    for text in prompts:
        answers = work(loaded_model, text, k=options.top, pieces=options.pieces)
        blanks = find_blanks(loaded_model, text)
        if output.is_text:
            _show(blanks, answers)
        else:
            records.append(_to_dict(text, blanks, answers))
    print_data(output, records, ("text", "blank", "rank", "probability", "word"), _list_records(records))
    variation = ("--top", max(20, 2 * options.top))
    if options.top >= 20 and options.pieces is None:
        variation = ("--pieces", 3)
    hint("fill", model, *(texts or ("--input", source)), *variation, silent=not output.is_text or source == "-")


def _to_dict(text: str, blanks: "Blanks", answers: "list[list[FillPrediction]]") -> dict[str, object]:
    from pretune.inference.fill import insert_answers

    options = [[answer._asdict() for answer in blank] for blank in answers]
    return {"text": text, "blanks": options, "filled": insert_answers(blanks, answers)}


def _list_records(results: "list[dict[str, Any]]") -> "Iterator[tuple[object, ...]]":
    for result in results:
        for blank, options in enumerate(result["blanks"], 1):
            for rank, answer in enumerate(options, 1):
                yield result["text"], blank, rank, answer["probability"], answer["word"]


def _show(blanks: "Blanks", answers: "list[list[FillPrediction]]") -> None:
    """Print the text with the best predictions, and below it the candidates for each blank."""
    from pretune.inference.fill import insert_answers

    log.print_result(insert_answers(blanks, answers))
    for number, options in enumerate(answers):
        if len(answers) > 1:
            log.print_result(f"  blank {number + 1}")
        for answer in options:
            log.print_result(f"  {answer.probability:8.4f}  {answer.word}")
