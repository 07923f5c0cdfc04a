"""Under `torchrun`: which verbs its processes share, and what becomes of the others."""

import os
from collections.abc import Sequence

from pretune.core import log

SHARED = ("pretrain", "finetune")
"""Verbs that are done by all processes together."""
ALONE = ("--dry-run", "--help", "-h")
"""What even these do in one."""
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""What torchrun sets."""


def idle(verb: str | None, arguments: Sequence[str]) -> bool:
    """Whether this process has nothing to do: a verb that runs in one process is done by the first of several.

    For that one it is from here on as if it were alone.
    """
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if world < 2 or (verb in SHARED and not any(word in ALONE for word in arguments)):
        return False
    if rank:
        with log.hushed("--quiet" in arguments):
            log.say(f"rank {rank} of {world} has nothing to do: {verb or 'this'} runs in one process, the first")
        return True
    for name in NAMES:
        os.environ.pop(name, None)
    return False
