"""`pretune chat`: a chat with a model in the terminal, or line by line through a pipe."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pretune.cli._inputs import load_model
from pretune.cli._options import DTYPE, DtypeName, OutputFormat
from pretune.cli._output import check_new_file
from pretune.cli.generate import GenerateOptions
from pretune.core import io, log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError, suggest
from pretune.runs.options import BASE, DEVICE, MODEL, QUANTIZE, Quantization

if TYPE_CHECKING:
    from pretune.inference.chat import ChatModel
    from pretune.inference.generation_config import GenerationConfig
    from pretune.text.chat import Message

PROMPT = "> "
COMMANDS = ("/reset", "/save FILE", "/exit")
DEFAULT_TEMPERATURE = 0.7
_GENERATION = GenerateOptions.describe()


@option_set
class ChatOptions(Options):
    """Options of a chat."""

    model: str = MODEL.field()
    system: str | None = option("--system TEXT", "System message: how to answer.")
    max_new_tokens: int | None = _GENERATION["max_new_tokens"].field(
        about="Maximum number of tokens of an answer (default: 512, or half of what the model reads)."
    )
    temperature: float = _GENERATION["temperature"].field(
        default=DEFAULT_TEMPERATURE, about="Sampling temperature; 0: greedy decoding."
    )
    top_k: int | None = _GENERATION["top_k"].field()
    top_p: float | None = _GENERATION["top_p"].field()
    min_p: float | None = _GENERATION["min_p"].field()
    seed: int = _GENERATION["seed"].field(default=0)
    repetition_penalty: float = _GENERATION["repetition_penalty"].field(default=1.0)
    no_repeat_ngram: int = _GENERATION["no_repeat_ngram"].field(default=0)
    presence_penalty: float = _GENERATION["presence_penalty"].field(default=0.0)
    frequency_penalty: float = _GENERATION["frequency_penalty"].field(default=0.0)
    stop: list[str] = _GENERATION["stop"].field(default=())
    base: Path | None = BASE.field()
    device: str | None = DEVICE.field()
    dtype: DtypeName = DTYPE.field(default="float32")
    quantize: Quantization | None = QUANTIZE.field()


SEARCH_OPTIONS = """
    temperature top_k top_p min_p seed repetition_penalty no_repeat_ngram presence_penalty frequency_penalty
"""


def chat(options: ChatOptions, output: OutputFormat) -> None:
    """Chat with a model in the terminal, or through a pipe.

    Every line of input is a message; /reset starts anew, /save FILE writes the chat, /exit ends it. The oldest messages
    are dropped when the model cannot read all. --json prints each answer as a message, on one line.

    Example: pretune chat smollm2 --system "Answer in one sentence." --temperature 0.2
    """
    if not options.temperature >= 0:
        raise UsageError(f"--temperature must be at least 0 (greedy), got {options.temperature:g}")
    from pretune.inference.chat import ChatModel
    from pretune.inference.generation_config import GenerationOptions, build_generation_config

    model = ChatModel(
        load_model(
            options.model,
            base=options.base,
            device=options.device,
            dtype=options.dtype,
            needs_head=True,
            quantize=options.quantize,
        )
    )
    count = options.max_new_tokens
    values = {name: value for name in SEARCH_OPTIONS.split() if (value := getattr(options, name)) is not None}
    values["max_new_tokens"] = model.default_new_tokens if count is None else count
    config = build_generation_config(**cast("GenerationOptions", values))
    session = Session(model, config, options, as_json=output.as_json)
    if sys.stdin.isatty():
        log.info(f"{options.model}: write a message; {', '.join(COMMANDS)}")
    for line in _read_lines():
        if session.handle(line):
            break


def _read_lines() -> Iterator[str]:
    """Yield lines of standard input, after a prompt on a terminal."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    import readline  # noqa: F401 (editing and history of `input`)

    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            log.print_result()
            return


class Session:
    """A chat: its messages so far, and how it answers."""

    def __init__(
        self, model: "ChatModel", config: "GenerationConfig", options: ChatOptions, *, as_json: bool = False
    ) -> None:
        self.model, self.config, self.stop, self.as_json = model, config, options.stop, as_json
        self.system: list[Message] = [] if options.system is None else [{"role": "system", "content": options.system}]
        self.messages = [*self.system]
        self.is_terminal = sys.stdin.isatty()
        self.model.fit([*self.system, {"role": "user", "content": "a"}], config.max_new_tokens)  # a template may refuse

    def handle(self, line: str) -> bool:
        """Answer a line, or run a command; return True at the end. On a terminal an error does not end the chat."""
        try:
            if line.startswith("/"):
                return self._run_command(*line.split(maxsplit=1))
            if line.strip():
                self._answer(line)
        except (UsageError, KeyboardInterrupt) as error:
            if not self.is_terminal:
                raise
            log.print_result()
            log.warn(str(error) or "interrupted; the message is left out")
        return False

    def _run_command(self, command: str, argument: str = "") -> bool:
        if command == "/reset":
            self.messages = [*self.system]
        elif command == "/save":
            self._save(argument.strip())
        elif command != "/exit":
            names = [name.split()[0] for name in COMMANDS]
            raise UsageError(
                f"unknown command '{command[:40]}'{suggest(command, names)} (allowed: {', '.join(COMMANDS)})"
            )
        return command == "/exit"

    def _answer(self, line: str) -> None:
        messages: list[Message] = [*self.messages, {"role": "user", "content": line}]
        show = None if self.as_json else partial(log.print_result, end="", flush=True)
        (text,) = self.model.answer(messages, self.config, stop=self.stop, on_text=show)
        answer: Message = {"role": "assistant", "content": text.new}
        log.print_result(json.dumps(answer, ensure_ascii=False, allow_nan=False) if self.as_json else "", flush=True)
        self.messages = [*messages, answer]

    def _save(self, name: str) -> None:
        """Write the messages as a row of a training file."""
        path = Path(name)
        if not name:
            raise UsageError("/save needs a file: /save chat.jsonl")
        if len(self.messages) == len(self.system):
            raise UsageError("there is nothing to save yet")
        if path.exists():
            raise UsageError(f"cannot write '{path}': it exists; choose another name")
        check_new_file(path)
        row = json.dumps({"messages": self.messages}, ensure_ascii=False, allow_nan=False)
        io.atomic_write(path, f"{row}\n")
        log.info(f"saved to {path}")
