"""Under `torchrun`: which verbs its processes share, and what becomes of the others."""

import os
from collections.abc import Sequence

from pretune.core import log

DISTRIBUTED_VERBS = ("pretrain", "finetune")
"""Verbs that are done by all processes together."""
SINGLE_PROCESS_OPTIONS = ("--dry-run", "--help", "-h")
"""What even these do in one."""
ENVIRONMENT_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""What torchrun sets."""


def is_idle(verb: str | None, arguments: Sequence[str]) -> bool:
    """Whether this process has nothing to do: a verb that runs in one process is done by the first of several.

    For that one it is from here on as if it were alone.
    """
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if world < 2 or (verb in DISTRIBUTED_VERBS and not any(word in SINGLE_PROCESS_OPTIONS for word in arguments)):
        return False
    if rank:
        with log.silence("--quiet" in arguments):
            log.info(f"rank {rank} of {world} has nothing to do: {verb or 'this'} runs in one process, the first")
        return True
    for name in ENVIRONMENT_VARIABLES:
        os.environ.pop(name, None)
    return False
