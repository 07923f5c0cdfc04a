"""`pretune generate`: a model writes on."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import hint
from pretune.cli._models import BaseOption, Number, opened
from pretune.cli._names import DEVICES, among
from pretune.cli._progress import Tell, progress
from pretune.cli._prompts import given, unescaped
from pretune.core import log
from pretune.core.counted import counted
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from pretune.inference.generate import Text


RULE = "-" * 8
"""Between two texts, which may have several lines."""


class Early(StrEnum):
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
    early: Annotated[Early | None, typer.Option("--early-stopping", help="Of beams: when there are enough.")] = None,
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
        typer.Option("--device", metavar="NAME", autocompletion=among(*DEVICES), help="cpu, cuda; found by default."),
    ] = None,
    dtype: Annotated[Number, typer.Option("--dtype", help="Precision of the weights.")] = Number.FLOAT32,
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
    texts = given(prompts or [], source, "prompt")
    from pretune.inference.generate import Told, usual, write
    from pretune.inference.generation_config import Wishes, decoding

    found = opened(model, base=base, device=device, dtype=dtype, speaks=True)
    wishes: dict[str, Any] = {
        "max_new_tokens": usual(found) if max_new_tokens is None else max_new_tokens,
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
    asked: Wishes = {name: value for name, value in wishes.items() if value is not None}  # type: ignore[assignment]
    how = decoding(**asked)
    one = len(texts) == num == beams == 1 and not as_json
    flows = stream if stream is not None else one and sys.stdout.isatty()
    with nullcontext() if flows else progress("writing") as tell:
        answers = write(
            found,
            texts,
            how,
            stop=[unescaped(text) for text in stop or ()],
            start=start,
            truncate=truncate,
            prefix=prefix,
            batch=batch,
            compiled=compiled,
            told=Told(pieces=_tell) if tell is None else Told(share=_telling(tell, len(texts) * num)),
        )
    _print(texts, answers, as_json=as_json, flowed=flows)
    empty, every = sum(not text.new for answer in answers for text in answer), len(answers) * num
    if empty:
        log.warn(
            f"{empty:,} of {counted(every, 'texts')} without anything "
            f"new: they ended at once, or are special tokens alone"
        )
    more = ("--num", 3) if num == beams == 1 else ("--temperature", 0)
    hint("generate", model, *(prompts or ("--input", source)), *more, silent=as_json or source == "-")


def _telling(tell: Tell, texts: int) -> Callable[[float], None]:
    return lambda share: tell(share, counted(texts, "texts"))


def _tell(piece: str) -> None:
    log.print_result(piece, end="", flush=True)


def _print(prompts: list[str], answers: "list[list[Text]]", *, as_json: bool, flowed: bool) -> None:
    if flowed:
        log.print_result()
    elif as_json:
        told = [
            {"prompt": prompt, "texts": [_plain(one) for one in answer]}
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        log.print_json(told)
    else:
        log.print_result(f"\n{RULE}\n".join(one.text for answer in answers for one in answer))


def _plain(one: "Text") -> dict[str, Any]:
    return {name: value for name, value in one._asdict().items() if value is not None}
