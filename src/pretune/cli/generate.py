"""`pretune generate`: a model writes on."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import hint
from pretune.cli._models import BaseOption, Dtype, load_model
from pretune.cli._names import DEVICES, complete_from
from pretune.cli._progress import ProgressReporter, show_progress
from pretune.cli._prompts import read_prompts, unescape
from pretune.core import log
from pretune.core.counted import format_count
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from pretune.inference.generate import GeneratedText


RULE = "-" * 8
"""Between two texts, which may have several lines."""


class EarlyStoppingMode(StrEnum):
    """When a beam search ends."""

    ALWAYS = "always"
    USUAL = "usual"
    NEVER = "never"


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a Hugging Face directory, or hf:OWNER/NAME.")],
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="What to go on from.")] = None,
    source: Annotated[
        str | None, typer.Option("--input", metavar="FILE", help="Prompts, one in a line; - is standard input.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", metavar="N", help="Write so many at most; 64 by default.")
    ] = None,
    min_new_tokens: Annotated[int, typer.Option("--min-new-tokens", metavar="N", help="Do not end before.")] = 0,
    num: Annotated[int, typer.Option("--num", metavar="N", help="Texts for each prompt.")] = 1,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="1 by default; 0: always the likeliest token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="K", help="Of the k likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", metavar="P", help="Of the fewest tokens with this share.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option("--min-p", metavar="P", help="Of tokens this likely, beside the likeliest.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="What is drawn is a function of it.")] = 0,
    beams: Annotated[int, typer.Option("--beams", metavar="N", help="Search for the likeliest texts.")] = 1,
    length_penalty: Annotated[
        float | None, typer.Option("--length-penalty", metavar="X", help="Of beams: above 0 favours long texts.")
    ] = None,
    early: Annotated[
        EarlyStoppingMode | None, typer.Option("--early-stopping", help="Of beams: when there are enough.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", metavar="X", help="Above 1: tokens that are there come less.")
    ] = 1.0,
    no_repeat_ngram: Annotated[
        int, typer.Option("--no-repeat-ngram", metavar="N", help="So many tokens in a row never come twice.")
    ] = 0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before it; \\n is a line's end. Repeatable.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TOKEN", help="What a decoder starts with, such as a language.")
    ] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Prompts see all of themselves (prefix models).")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut prompts that are too long.")] = False,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Texts that are written together.")] = 64,
    base: BaseOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", autocompletion=complete_from(*DEVICES), help="cpu, cuda; found by default."
        ),
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Precision of the weights.")] = Dtype.FLOAT32,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile a step first; for much text on a GPU.")] = False,
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="Show one text as it comes; so on a terminal.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write on from prompts, or answer them.

    A decoder goes on; an encoder-decoder answers.

    Example: pretune generate runs/gpt "Once upon a time" --max-new-tokens 40 --top-p 0.95 --num 3
    """
    if batch < 1:
        raise UsageError(f"--batch {batch} must be at least 1")
    texts = read_prompts(prompts or [], source, "prompt")
    from pretune.inference.generate import TextCallbacks, choose_max_new_tokens, generate_texts
    from pretune.inference.generation_config import GenerationOptions, build_generation_config

    found = load_model(model, base=base, device=device, dtype=dtype, needs_head=True)
    wishes: dict[str, Any] = {
        "max_new_tokens": choose_max_new_tokens(found) if max_new_tokens is None else max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "num": num,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "beams": beams,
        "length_penalty": length_penalty,
        "early_stopping": None if early is None else {"always": True, "usual": False, "never": "never"}[early],
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram": no_repeat_ngram,
    }
    asked: GenerationOptions = {name: value for name, value in wishes.items() if value is not None}  # type: ignore[assignment]
    how = build_generation_config(**asked)
    one = len(texts) == num == beams == 1 and not as_json
    flows = stream if stream is not None else one and sys.stdout.isatty()
    with nullcontext() if flows else show_progress("writing") as tell:
        answers = generate_texts(
            found,
            texts,
            how,
            stop=[unescape(text) for text in stop or ()],
            start=start,
            truncate=truncate,
            prefix=prefix,
            batch=batch,
            compiled=compiled,
            callbacks=TextCallbacks(on_text=_print_piece)
            if tell is None
            else TextCallbacks(on_progress=_report_share(tell, len(texts) * num)),
        )
    _print(texts, answers, as_json=as_json, is_streamed=flows)
    empty, every = sum(not text.new for answer in answers for text in answer), len(answers) * num
    if empty:
        log.warn(
            f"{empty:,} of {format_count(every, 'texts')} without anything "
            f"new: they ended at once, or are special tokens alone"
        )
    more = ("--num", 3) if num == beams == 1 else ("--temperature", 0)
    hint("generate", model, *(prompts or ("--input", source)), *more, silent=as_json or source == "-")


def _report_share(reporter: ProgressReporter, texts: int) -> Callable[[float], None]:
    return lambda share: reporter(share, format_count(texts, "texts"))


def _print_piece(piece: str) -> None:
    log.print_result(piece, end="", flush=True)


def _print(prompts: list[str], answers: "list[list[GeneratedText]]", *, as_json: bool, is_streamed: bool) -> None:
    if is_streamed:
        log.print_result()
    elif as_json:
        told = [
            {"prompt": prompt, "texts": [_to_dict(one) for one in answer]}
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        log.print_json(told)
    else:
        log.print_result(f"\n{RULE}\n".join(one.text for answer in answers for one in answer))


def _to_dict(text: "GeneratedText") -> dict[str, Any]:
    return {name: value for name, value in text._asdict().items() if value is not None}
