"""A process that has imported everything and computed nothing, forked for every run: an import takes longer than a run.

A run is then the command line in a process and a session of its own, whose exit code and children are its own. It reads
requests, one JSON object a line, and answers each with one number:

    {"start": ["pretrain", …], "err": FILE, "env": {…}, "hook": ["name", …]}   ->  the process
    {"wait": PROCESS, "seconds": 5}                                           ->  its exit code, -SIGNAL, or null
"""

import atexit
import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

LIMIT = 180
"""Seconds after which the system ends a run that hangs; many, for machines differ and may be busy."""


def main() -> None:
    """Serve."""
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.testing  # noqa: F401

    import pretune.runs.finetune.entry
    import pretune.runs.pretrain
    import pretune.training.dataloader  # noqa: F401
    from tests.faults import hooks  # noqa: F401

    gc.collect()
    gc.freeze()  # what is here stays, and its pages are shared
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(json.dumps(_wait(request["wait"], request["seconds"])), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _run(request)
        print(pid, flush=True)


def _run(request: dict[str, Any]) -> NoReturn:
    from pretune.cli import main as command
    from tests.faults import hooks

    os.setsid()
    signal.alarm(LIMIT)
    null = os.open(os.devnull, os.O_RDWR)
    told = os.open(Path(request["err"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, file in enumerate((null, null, told)):
        os.dup2(file, number)
    os.environ.update(request["env"])
    if request["hook"]:
        name, *arguments = request["hook"]
        getattr(hooks, name)(*arguments)
    code = 1
    try:
        code = command(request["start"])
    finally:
        # As a process ends, but for taking apart all that was imported, which takes as long as the run.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, seconds: float) -> int | None:
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.005)


if __name__ == "__main__":
    main()
