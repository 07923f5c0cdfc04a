"""`pretune generate`: generate text from prompts."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from pretune.cli._inputs import load_model, read_prompts
from pretune.cli._options import AsJson, Base, DeviceName, Dtype, ModelName, Quantize, WeightDtype, argument, option
from pretune.cli._output import ProgressReporter, hint, show_progress
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.runs.options import unescape

if TYPE_CHECKING:
    from pretune.inference.generate import GeneratedText


RULE = "-" * 8
"""Separator between generated texts, which may have several lines."""


class EarlyStoppingMode(StrEnum):
    """Stopping criterion of beam search: the values of `early_stopping` in transformers."""

    FIRST_COMPLETE = "true"
    HEURISTIC = "false"
    EXHAUSTIVE = "never"


def generate(
    model: ModelName,
    prompts: Annotated[list[str] | None, argument("PROMPT", "Prompt.")] = None,
    source: Annotated[str | None, option("--input FILE", "Prompts, one per line; - is standard input.")] = None,
    max_new_tokens: Annotated[
        int | None, option("--max-new-tokens N", "Maximum number of generated tokens (default: 64).")
    ] = None,
    min_new_tokens: Annotated[int, option("--min-new-tokens N", "Minimum number of generated tokens.")] = 0,
    num: Annotated[int, option("--num N", "Samples per prompt.")] = 1,
    temperature: Annotated[
        float | None, option("--temperature T", "Sampling temperature (default: 1); 0: greedy decoding.")
    ] = None,
    top_k: Annotated[int | None, option("--top-k K", "Sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, option("--top-p P", "Nucleus sampling: the smallest set of tokens with this total probability.")
    ] = None,
    min_p: Annotated[
        float | None, option("--min-p P", "Minimum probability, relative to the most probable token.")
    ] = None,
    seed: Annotated[int, option("--seed N", "Random seed.")] = 0,
    beams: Annotated[int, option("--beams N", "Number of beams; 1: no beam search.")] = 1,
    length_penalty: Annotated[
        float | None, option("--length-penalty X", "Beam search: above 0 favors longer texts.")
    ] = None,
    early: Annotated[
        EarlyStoppingMode | None,
        option("--early-stopping", "Beam search: stop when enough texts are complete (default: false)."),
    ] = None,
    repetition_penalty: Annotated[
        float, option("--repetition-penalty X", "Penalize repeated tokens; 1: no penalty.")
    ] = 1.0,
    no_repeat_ngram: Annotated[
        int, option("--no-repeat-ngram N", "Never repeat an n-gram of this size; 0: allow.")
    ] = 0,
    presence_penalty: Annotated[
        float, option("--presence-penalty X", "Subtract X from the logits of tokens already generated.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, option("--frequency-penalty X", "Subtract X from the logits of a token for each time it was generated.")
    ] = 0.0,
    stop: Annotated[
        list[str] | None, option("--stop TEXT", "Stop before this text; \\n is a newline. Repeatable.")
    ] = None,
    start: Annotated[str | None, option("--start TOKEN", "First decoder token, such as a language code.")] = None,
    prefix: Annotated[bool, option("--prefix", "Attend bidirectionally within the prompt (prefix LMs).")] = False,
    truncate: Annotated[bool, option("--truncate", "Truncate prompts that exceed the model's length.")] = False,
    batch: Annotated[int, option("--batch N", "Batch size.")] = 64,
    base: Base = None,
    device: DeviceName = None,
    dtype: WeightDtype = Dtype.FLOAT32,
    quantize: Quantize = None,
    compile_step: Annotated[
        bool, option("--compile", "Compile the decoding step; pays off for long outputs on a GPU.")
    ] = False,
    stream: Annotated[
        bool | None, option("--stream/--no-stream", "Print the text while it is generated (default: on a terminal).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Generate text from prompts.

    A decoder continues the prompt; an encoder-decoder maps it to an output.

    Example: pretune generate runs/gpt "Once upon a time" --max-new-tokens 40 --top-p 0.95 --num 3
    """
    if batch < 1:
        raise UsageError(f"--batch {batch} must be at least 1")
    if temperature is not None and not temperature >= 0:
        raise UsageError(f"--temperature must be at least 0 (greedy), got {temperature:g}")
    if stream and as_json:
        raise UsageError("--stream and --json exclude each other; choose one")
    texts = read_prompts(prompts or [], source, "prompt")
    from pretune.inference.generate import TextCallbacks, choose_max_new_tokens, generate_texts
    from pretune.inference.generation_config import GenerationOptions, build_generation_config

    loaded_model = load_model(model, base=base, device=device, dtype=dtype, needs_head=True, quantize=quantize)
    options: dict[str, Any] = {
        "max_new_tokens": choose_max_new_tokens(loaded_model) if max_new_tokens is None else max_new_tokens,
        "min_new_tokens": min_new_tokens, "num": num, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "min_p": min_p, "seed": seed, "beams": beams, "length_penalty": length_penalty,
        "early_stopping": None if early is None else {"true": True, "false": False, "never": "never"}[early],
        "repetition_penalty": repetition_penalty, "no_repeat_ngram": no_repeat_ngram,
        "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty,
    }  # fmt: skip
    set_options: GenerationOptions = {name: value for name, value in options.items() if value is not None}  # type: ignore[assignment]
    generation_config = build_generation_config(**set_options)
    is_single = len(texts) == num == beams == 1 and not as_json
    streams = stream if stream is not None else is_single and sys.stdout.isatty()
    with nullcontext() if streams else show_progress("generating") as report:
        answers = generate_texts(
            loaded_model,
            texts,
            generation_config,
            stop=[unescape(text) for text in stop or ()],
            start=start,
            truncate=truncate,
            prefix=prefix,
            batch=batch,
            torch_compile=compile_step,
            callbacks=TextCallbacks(on_text=_print_piece)
            if report is None
            else TextCallbacks(on_progress=_report_share(report, len(texts) * num)),
        )
    _print(texts, answers, as_json=as_json, is_streamed=streams)
    empty, total = sum(not text.new for answer in answers for text in answer), len(answers) * num
    if empty:
        log.warn(
            f"{empty:,} of {format_count(total, 'texts')} are empty: "
            f"generation ended at once, or gave only special tokens"
        )
    variation = ("--num", 3) if num == beams == 1 else ("--temperature", 0)
    hint("generate", model, *(prompts or ("--input", source)), *variation, silent=as_json or source == "-")


def _report_share(reporter: ProgressReporter, texts: int) -> Callable[[float], None]:
    return lambda share: reporter(share, format_count(texts, "texts"))


def _print_piece(piece: str) -> None:
    log.print_result(piece, end="", flush=True)


def _print(prompts: list[str], answers: "list[list[GeneratedText]]", *, as_json: bool, is_streamed: bool) -> None:
    if is_streamed:
        log.print_result()
    elif as_json:
        records = [
            {"prompt": prompt, "texts": [_to_dict(text) for text in answer]}
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        log.print_json(records)
    else:
        log.print_result(f"\n{RULE}\n".join(text.text for answer in answers for text in answer))


def _to_dict(text: "GeneratedText") -> dict[str, Any]:
    return {name: value for name, value in text._asdict().items() if value is not None}
