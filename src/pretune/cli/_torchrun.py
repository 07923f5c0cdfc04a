"""Behaviour of verbs under `torchrun`."""

import os
from collections.abc import Sequence

from pretune.core import log

DISTRIBUTED_VERBS = ("pretrain", "finetune")
"""Verbs that run on all ranks."""
SINGLE_PROCESS_OPTIONS = ("--dry-run", "--help", "-h")
"""Options with which even these run on one rank."""
ENVIRONMENT_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Variables that torchrun sets."""


def is_idle(verb: str | None, arguments: Sequence[str]) -> bool:
    """Return whether this rank has nothing to do, since the verb runs on rank 0 only.

    On rank 0 of such a verb, torchrun's variables are removed, so that it runs as a single process.
    """
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if world < 2 or (verb in DISTRIBUTED_VERBS and not any(word in SINGLE_PROCESS_OPTIONS for word in arguments)):
        return False
    if rank:
        with log.silence("--quiet" in arguments):
            log.info(f"rank {rank} of {world} is idle: {verb or 'this command'} runs on rank 0 only")
        return True
    for name in ENVIRONMENT_VARIABLES:
        os.environ.pop(name, None)
    return False
