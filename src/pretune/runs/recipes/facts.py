"""Facts that a recipe chooses from: the amount of text, the speed and memory of the device, and the time for training.

The speed of a device is measured in a fraction of a second, by matrix products and by copies: a training step takes the
time of its products, and that of reading and writing the activations between them.
"""

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretune.core.api import StrPath
from pretune.core.errors import DataError
from pretune.core.log import format_count
from pretune.core.machine import measure_memory
from pretune.data.prepared_data import PreparedData
from pretune.inference.text_model import count_unknown
from pretune.runs.data_phases import compute_unigram_loss, count_unigrams
from pretune.runs.estimate import measure_flops
from pretune.text.corpora import open_corpus
from pretune.text.tokenizer import Tokenizer

SCANNED_BYTES = 4_000_000
"""Text that is read; the rest is counted by the size of its files."""
BYTES_PER_TOKEN = 4.2
"""Bytes of English text for each token of a vocabulary of 8,192 to 32,768, before there is a tokenizer."""
ACTIVATION_ELEMENTS = 130
"""Elements that a step moves for each token, layer and unit of width: from an MFU of 30 % at width 512 on an H200."""
EFFICIENCY = {"cpu": 0.45, "cuda": 1.0}
"""Share of the measured rates that training reaches: on a processor, two cores with AVX-512."""
START_SECONDS = {"cpu": 2.0, "cuda": 25.0}
"""Seconds from the plan to the first steps, compilation included, and for the end of the run."""
SAMPLE_BYTES = 200_000
"""Text that is tokenized to count its tokens."""
COPIES = 5
"""Copies that are timed."""


MAX_WORD = 24
"""Characters of a long word. Nearly no text is in longer ones, in Chinese, Japanese and Thai 86 % and more."""


def separates_words(texts: Iterable[str]) -> bool:
    """Return False for text of a language that is written without spaces between words.

    >>> separates_words(["The old man saw a bird."]), separates_words(["ราชการส่วนท้องถิ่นและราชการส่วนกลางของประเทศ"])
    (True, False)
    """
    lengths = [len(word) for text in texts for word in text.split()]
    return sum(length for length in lengths if length > MAX_WORD) <= sum(lengths) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """The amount of training text."""

    bytes: int
    tokens: int
    documents: int = 0
    unknown: float = 0.0  # share of the tokens that a tokenizer does not know
    has_spaces: bool = True  # between words
    unigram: float | None = None  # loss of a unigram model, of prepared data

    @classmethod
    def scan(cls, inputs: Sequence[StrPath], tokenizer: Tokenizer | None = None) -> "TextFacts":
        """Return the facts of text files: the start is read, the rest estimated from the size of the files.

        Without a tokenizer, tokens have the usual length.
        """
        corpus = open_corpus([os.fspath(name) for name in inputs])
        documents, n_bytes, sample, sample_bytes, count = corpus.read_documents(), 0, [], 0, 0
        for count, document in enumerate(documents, 1):  # noqa: B007
            n_bytes += len(document.text.encode(errors="replace"))
            if sample_bytes < SAMPLE_BYTES:
                sample.append(document.text[:SAMPLE_BYTES])
                sample_bytes += len(sample[-1].encode(errors="replace"))
            if n_bytes >= SCANNED_BYTES:
                break
        if not n_bytes:
            raise DataError("the text is empty; pass files or folders with text")
        size = n_bytes if next(documents, None) is None else max(corpus.text_bytes or n_bytes, n_bytes)
        has_spaces, count = separates_words(sample), round(count * size / n_bytes)
        if tokenizer is None:
            tokens = round(size / BYTES_PER_TOKEN)
            return cls(bytes=size, tokens=tokens, documents=count, has_spaces=has_spaces)
        ids = tokenizer.encode_batch(sample, literal=True).ids
        unknown = count_unknown(tokenizer, ids) / max(len(ids), 1)
        tokens = round(size * len(ids) / sample_bytes)
        return cls(bytes=size, tokens=tokens, documents=count, unknown=unknown, has_spaces=has_spaces)

    @classmethod
    def from_prepared_data(cls, data: PreparedData) -> "TextFacts":
        """Return the facts of prepared data."""
        split = data.card["splits"]["train"]
        counts = count_unigrams(data.open_shards(), data.vocab) if split["tokens"] else np.zeros(1, dtype=np.int64)
        unigram = compute_unigram_loss(counts, counts, ())
        return cls(bytes=split["bytes"], tokens=split["tokens"], unigram=unigram)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Speed and memory of the devices of a run."""

    name: str
    device_type: str  # cpu or cuda
    flops: float  # of matrix products, per second and device
    bandwidth: float  # of memory, in bytes per second and device
    memory: float  # bytes of a device
    count: int = 1
    pace: float = 1.0  # of real steps, relative to the estimate; 1 until they are timed

    @property
    def element_bytes(self) -> int:
        return 2 if self.device_type == "cuda" else 4

    def compute_token_seconds(self, flops: float, units: int) -> float:
        """Return the seconds of a token in training: its FLOPs, and the sum of the widths of all layers (`units`)."""
        copies = ACTIVATION_ELEMENTS * units * self.element_bytes / self.bandwidth
        return (flops / self.flops + copies) / self.count / EFFICIENCY[self.device_type] / self.pace

    @classmethod
    def measure(cls, device: torch.device, count: int = 1) -> "DeviceFacts":
        """Measure a device."""
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            name, memory, elements = properties.name, float(properties.total_memory), 2**28
            dtype, size = torch.bfloat16, 4096
        else:
            name = f"a processor with {format_count(torch.get_num_threads(), 'threads')}"
            memory, elements, dtype, size = measure_memory() or math.inf, 2**24, torch.float32, 512
        return cls(
            name=name,
            device_type=device.type,
            flops=measure_flops(device, dtype, size),
            bandwidth=_measure_bandwidth(device, torch.ones(elements, device=device, dtype=dtype)),
            memory=memory,
            count=count,
        )


def _measure_bandwidth(device: torch.device, source: Tensor) -> float:
    """Return the bytes per second that a copy reads and writes; the fastest counts, as others may be busy."""
    target, best = torch.empty_like(source), float("inf")
    for _ in range(COPIES):
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Text, device, and the seconds that are left for training."""

    text: TextFacts
    device: DeviceFacts
    seconds: float
