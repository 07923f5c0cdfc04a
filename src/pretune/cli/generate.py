"""`pretune generate`: generate text from prompts."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pretune.cli._inputs import load_model, read_prompts
from pretune.cli._options import DTYPE, DtypeName, OutputFormat
from pretune.cli._output import ProgressReporter, hint, show_progress
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.runs.options import BASE, DEVICE, MODEL, QUANTIZE, Quantization, unescape

if TYPE_CHECKING:
    from pretune.inference.generate import GeneratedText
    from pretune.inference.generation_config import EarlyStoppingMode


RULE = "-" * 8
"""Separator between generated texts, which may have several lines."""


@option_set
class GenerateOptions(Options):
    """Options of the generation of text."""

    model: str = MODEL.field()
    prompts: list[str] | None = option("PROMPT", "Prompt.", kind=list[str])
    source: str | None = option("--input FILE", "Prompts, one per line; - is standard input.")
    max_new_tokens: int | None = option("--max-new-tokens N", "Maximum number of generated tokens (default: 64).")
    min_new_tokens: int = option("--min-new-tokens N", "Minimum number of generated tokens.", default=0)
    num: int = option("--num N", "Samples per prompt.", default=1)
    temperature: float | None = option("--temperature T", "Sampling temperature (default: 1); 0: greedy decoding.")
    top_k: int | None = option("--top-k K", "Sample from the k most probable tokens.")
    top_p: float | None = option(
        "--top-p P", "Nucleus sampling: the smallest set of tokens with this total probability."
    )
    min_p: float | None = option("--min-p P", "Minimum probability, relative to the most probable token.")
    seed: int = option("--seed N", "Random seed.", default=0)
    beams: int = option("--beams N", "Number of beams; 1: no beam search.", default=1)
    length_penalty: float | None = option("--length-penalty X", "Beam search: above 0 favors longer texts.")
    early_stopping: "EarlyStoppingMode | None" = option(
        "--early-stopping",
        "Beam search: stop when enough texts are complete (default: false).",
        kind=StrEnum("EarlyStopping", {mode: mode for mode in ("true", "false", "never")}),
        parse=lambda text: "never" if text == "never" else text == "true",
    )
    repetition_penalty: float = option(
        "--repetition-penalty X", "Penalize repeated tokens; 1: no penalty.", default=1.0
    )
    no_repeat_ngram: int = option("--no-repeat-ngram N", "Never repeat an n-gram of this size; 0: allow.", default=0)
    presence_penalty: float = option(
        "--presence-penalty X", "Subtract X from the logits of tokens already generated.", default=0.0
    )
    frequency_penalty: float = option(
        "--frequency-penalty X",
        "Subtract X from the logits of a token for each time it was generated.",
        default=0.0,
    )
    stop: list[str] = option(
        "--stop TEXT",
        "Stop before this text; \\n is a newline. Repeatable.",
        default=(),
        kind=list[str],
        parse=lambda texts: [unescape(text) for text in texts],
    )
    start: str | None = option("--start TOKEN", "First decoder token, such as a language code.")
    prefix: bool = option("--prefix", "Attend bidirectionally within the prompt (prefix LMs).", default=False)
    truncate: bool = option("--truncate", "Truncate prompts that exceed the model's length.", default=False)
    batch: int = option("--batch N", "Batch size.", default=64)
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()
    dtype: DtypeName = DTYPE.field(default="float32")
    quantize: Quantization | None = QUANTIZE.field()
    compile_step: bool = option(
        "--compile", "Compile the decoding step; pays off for long outputs on a GPU.", default=False
    )
    stream: bool | None = option(
        "--stream/--no-stream", "Print the text while it is generated (default: on a terminal)."
    )


SEARCH_OPTIONS = """
    min_new_tokens num temperature top_k top_p min_p seed beams length_penalty early_stopping repetition_penalty
    no_repeat_ngram presence_penalty frequency_penalty
"""


def generate(options: GenerateOptions, output: OutputFormat) -> None:
    """Generate text from prompts.

    A decoder continues the prompt; an encoder-decoder maps it to an output.

    Example: pretune generate small-decoder "Once upon a time" --max-new-tokens 40 --top-p 0.95 --num 3
    """
    if options.batch < 1:
        raise UsageError(f"--batch {options.batch} must be at least 1")
    if options.temperature is not None and not options.temperature >= 0:
        raise UsageError(f"--temperature must be at least 0 (greedy), got {options.temperature:g}")
    if options.stream and output.as_json:
        raise UsageError("--stream and --json exclude each other; choose one")
    texts = read_prompts(options.prompts or [], options.source, "prompt")
    from pretune.inference.generate import choose_max_new_tokens, generate_texts
    from pretune.inference.generation_config import GenerationOptions, build_generation_config

    model = load_model(
        options.model,
        base=options.base,
        device=options.device,
        dtype=options.dtype,
        needs_head=True,
        quantize=options.quantize,
    )
    values = {name: getattr(options, name) for name in SEARCH_OPTIONS.split()}
    count = options.max_new_tokens
    values["max_new_tokens"] = choose_max_new_tokens(model) if count is None else count
    set_options = cast("GenerationOptions", {name: value for name, value in values.items() if value is not None})
    generation_config = build_generation_config(**set_options)
    is_single = len(texts) == options.num == options.beams == 1 and not output.as_json
    streams = options.stream if options.stream is not None else is_single and sys.stdout.isatty()
    with nullcontext() if streams else show_progress("generating") as report:
        answers = generate_texts(
            model,
            texts,
            generation_config,
            stop=options.stop,
            start=options.start,
            truncate=options.truncate,
            prefix=options.prefix,
            batch=options.batch,
            torch_compile=options.compile_step,
            on_text=partial(log.print_result, end="", flush=True) if report is None else None,
            on_progress=None if report is None else _report_share(report, len(texts) * options.num),
        )
    _print(texts, answers, as_json=output.as_json, is_streamed=streams)
    _hint_next(options, answers, silent=output.as_json or options.source == "-")


def _hint_next(options: GenerateOptions, answers: "list[list[GeneratedText]]", *, silent: bool) -> None:
    """Warn about empty texts, and suggest a variation."""
    empty, total = sum(not text.new for answer in answers for text in answer), len(answers) * options.num
    if empty:
        log.warn(
            f"{empty:,} of {format_count(total, 'texts')} are empty: "
            f"generation ended at once, or gave only special tokens"
        )
    variation = ("--num", 3) if options.num == options.beams == 1 else ("--temperature", 0)
    hint("generate", options.model, *(options.prompts or ("--input", options.source)), *variation, silent=silent)


def _report_share(reporter: ProgressReporter, texts: int) -> Callable[[float], None]:
    return lambda share: reporter(share, format_count(texts, "texts"))


def _print(prompts: list[str], answers: "list[list[GeneratedText]]", *, as_json: bool, is_streamed: bool) -> None:
    if is_streamed:
        log.print_result()
    elif as_json:
        records = [
            {"prompt": prompt, "texts": [_list_facts(text) for text in answer]}
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        log.print_json(records)
    else:
        log.print_result(f"\n{RULE}\n".join(text.text for answer in answers for text in answer))


def _list_facts(text: "GeneratedText") -> dict[str, object]:
    return {name: value for name, value in text._asdict().items() if value is not None}
