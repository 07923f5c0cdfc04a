"""Limits of the engine and of the server."""

from pretune.core.config import Positive, spec


@spec
class ServerConfig:
    """Limits. Every request has bounded size, count, time and memory; `--set NAME=VALUE` changes a limit."""

    max_body: Positive[int] = 2 * 2**20  # bytes of a request
    max_header_bytes: Positive[int] = 2**15  # of the request line and the headers
    max_headers: Positive[int] = 100
    max_texts: Positive[int] = 256  # texts of a request; texts x samples of a completion
    max_characters: Positive[int] = 2**16  # of a text
    max_new_tokens: Positive[int] = 1024  # of a completion
    max_logprobs: Positive[int] = 20  # most probable tokens at every position of a completion
    max_length: Positive[int] = 2048  # tokens of a text, or of a prompt and its completion, if the model has no limit
    max_queue: Positive[int] = 256  # requests that wait for a model
    max_rows: Positive[int] = 32  # texts that a model generates at once
    max_prefill: Positive[int] = 4096  # tokens of prompts that join between two steps
    max_results: Positive[int] = 1000  # hits or neighbors
    max_predictions: Positive[int] = 100  # fillers of a mask
    max_masks: Positive[int] = 32  # of a text
    max_fill_sequences: Positive[int] = 4096  # in the forward passes that fill a text
    max_connections: Positive[int] = 512
    request_seconds: Positive[float] = 120.0  # from the end of a request to the end of its response
    read_seconds: Positive[float] = 10.0  # for the headers of a request, and for its body
    write_seconds: Positive[float] = 10.0  # for a piece of a response
    drain_seconds: Positive[float] = 30.0  # for running requests after SIGTERM
