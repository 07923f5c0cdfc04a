"""Start a run on the nodes of a Ray cluster: one Ray worker per node, which calls `torchrun`.

    python examples/clusters/ray_train.py --nodes 4 --processes 8 --out /shared/runs/books -- \
        bert-large --data /shared/books --steps 100000

What follows `--` are the options of `pretune pretrain`. A failed node is replaced up to `--failures` times, and the run
resumes from its last checkpoint. Needs `pip install 'ray[train]'`.
"""

import argparse
import os
import subprocess
from pathlib import Path
from typing import Any

import ray.train
from ray.train.torch import TorchConfig, TorchTrainer


def run_node(settings: dict[str, Any]) -> None:
    """Run the processes of this node; Ray has set the address of the first one."""
    out = Path(settings["out"])
    resumed = any(out.glob("checkpoints/step-*"))
    options = ["--out", str(out), "--resume"] if resumed else [*settings["options"], "--out", str(out)]
    context = ray.train.get_context()
    launcher = f"torchrun --nnodes {context.get_world_size()} --nproc-per-node {settings['processes']}"
    launcher += f" --node-rank {context.get_world_rank()}"
    launcher += f" --master-addr {os.environ['MASTER_ADDR']} --master-port {settings['port']}"
    subprocess.run([*launcher.split(), "-m", "pretune", "pretrain", *options], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="run directory, on a file system that all nodes see")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="processes per node: its GPUs")
    parser.add_argument("--cpu", action="store_true", help="use no GPUs")
    parser.add_argument("--port", type=int, default=29500)
    parser.add_argument("--failures", type=int, default=3)
    parser.add_argument("options", nargs="+", help="options of `pretune pretrain`, after --")
    arguments = parser.parse_args()
    resources = {"CPU": 1.0} if arguments.cpu else {"CPU": 1.0, "GPU": float(arguments.processes)}
    trainer = TorchTrainer(
        run_node,
        train_loop_config=vars(arguments),
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=arguments.nodes,
            use_gpu=not arguments.cpu,
            resources_per_worker=resources,
            placement_strategy="PACK" if arguments.cpu else "STRICT_SPREAD",
        ),
        run_config=ray.train.RunConfig(
            name=Path(arguments.out).name,
            storage_path=str(Path(arguments.out).resolve().parent / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=arguments.failures),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
