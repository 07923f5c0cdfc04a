"""What a device can do in minutes: a model, and the work around it. The study behind the numbers: docs/results.md."""

import math
from dataclasses import replace

from pretune.core.config import spec

BATCH, EPOCHS = 16, 3
"""Reviews in a step of fine-tuning, and how often all of them are read."""


@spec
class Plan:
    """A small encoder for two slow cores, and how much of everything it is given."""

    vocab: int = 8192
    width: int = 128
    depth: int = 1
    heads: int = 2
    hidden: int = 256
    length: int = 256  # pieces of a review that are read, special tokens included
    crop: int = 128  # pieces of a sequence of pre-training
    window: int = 30  # of the vectors that it starts with: how far apart two pieces may meet
    masked: float = 0.4
    lr: float = 1e-3  # of pre-training
    tune: float = 2e-2  # … of the head in fine-tuning, which begins as a linear probe; see `rate`
    decay: float = 0.1  # the rate of each part of the network over that of the part above it
    fresh: tuple[float, float] = (1e-2, 0.3)  # both, for random weights, which have to change more
    light: float = 1e-3  # of LoRA
    dropout: float = 0.1  # of what the head reads
    batch: int = 4096  # tokens in a step of pre-training
    compile: bool | None = None  # whether pre-training is compiled, which takes time itself; None: on a GPU
    share: float = 0.2  # of the time left that pre-training has
    every: int = 40  # steps after which it is judged on held-out text, and shows how it fills blanks
    few: int = 60  # steps of fine-tuning at least, however few the labels are
    labels: tuple[int, ...] = (200, 1000)
    seeds: int = 3
    once: tuple[str, ...] = ("lora", "gradual")  # rows that get one seed
    test: int = 1000
    dev: int = 1000  # what the numbers here were chosen on (bench/quickstart_rates.py); in nothing else
    watched: int = 100  # … of which fine-tuning sees so many, and chooses nothing by them
    pool: int = 4000  # reviews that labels are drawn from, by each seed anew
    other: float = 0.25  # of the budget, for the encoder that someone else has trained
    other_lengths: tuple[int, ...] = (256, 192, 128, 96, 64)  # pieces of a review that it reads: the most that fit
    late: float = 1.5  # budgets after which nothing is begun but what the conclusion needs

    def steps(self, labels: int) -> int:
        """Of fine-tuning."""
        return max(self.few, math.ceil(EPOCHS * labels / BATCH))

    def rate(self, labels: int) -> float:
        """Of fine-tuning a pre-trained network: fewer labels than 1,000 are learnt by heart unless it is lower."""
        return self.tune * min(1.0, labels / 1000)

    def reads(self, labels: int, *, trained: bool = True) -> int:
        """Reviews that are read for a score; a step of training counts as two readings."""
        once = labels + self.test
        return once + self.watched + 2 * BATCH * self.steps(labels) if trained else once

    @property
    def least(self) -> int:
        """Reviews that are read for the conclusion: two networks, and one as it is."""
        most = max(self.labels)
        return 2 * self.reads(most) + self.reads(most, trained=False)


ALL = (200, 1000, 5000)


def plan_for(device: str, *, full: bool = False) -> Plan:
    """What a CPU is given, or a GPU: a larger model, more labels and all seeds. `full` asks for the latter two."""
    small = Plan()
    plan = replace(small, labels=ALL, once=(), pool=8000) if full or device.startswith("cuda") else small
    if not device.startswith("cuda"):
        return plan
    large = replace(plan, width=512, depth=4, heads=8, hidden=2048, vocab=16_384, crop=256, batch=65_536, share=0.4)
    large = replace(large, every=250)
    return replace(large, lr=5e-4, tune=2e-4, decay=0.8, fresh=(2e-4, 1.0), light=1e-3)
