"""Models of the Hugging Face hub by name: `hf:OWNER/NAME`, or `hf:OWNER/NAME@REVISION`.

    located("hf:google/electra-small-discriminator")    # the folder of its files in the cache of huggingface_hub
    located("runs/books")                               # what is a path stays one

Only configs, tokenizers and safetensors are fetched, so no pickle ever lies there. Without a network a model that was
fetched before is taken from the cache. The library is the extra `hub`, and is imported here alone.
"""

import os
import re
from pathlib import Path
from typing import Any

from pretune.core import log
from pretune.core.errors import PretuneError, ResourceError, UsageError

PREFIX = "hf:"
ALLOWED_PATTERNS = ("*.json", "*.safetensors", "vocab.txt", "merges.txt")
"""What is fetched: names, or patterns of them."""
IGNORED_PATTERNS = ("onnx/*", "openvino/*", "coreml/*", "original/*", "checkpoint-*")
"""Folders that hold the same model in other forms."""
_NAME_PART = re.compile(
    r"\w(?:[\w.-]{0,94}\w)?", re.ASCII
)  # what the hub allows as the name of an owner or a repository
_REVISION = re.compile(r"\w[\w./-]*", re.ASCII)


def is_hub(name: str | os.PathLike[str]) -> bool:
    """Whether a model is named by its place on the hub."""
    return os.fspath(name).startswith(PREFIX)


def is_repository(name: str) -> bool:
    """Say if a text is OWNER/NAME, or NAME, as the hub allows them; never a path such as `../x`.

    >>> is_repository("google/bert"), is_repository("gpt2"), is_repository("../../etc"), is_repository("a/b/c")
    (True, True, False, False)
    """
    parts = name.split("/")
    return len(parts) <= 2 and all(
        _NAME_PART.fullmatch(part) and ".." not in part and "--" not in part for part in parts
    )


def resolve_path(name: str | os.PathLike[str]) -> Path:
    """Where the files of a model are: a directory as it was given, or what was fetched from the hub."""
    if not is_hub(name):
        return Path(name)
    given = os.fspath(name)
    bare = given.removeprefix(PREFIX)
    repository, at, revision = bare.partition("@")
    if not is_repository(repository) or (at and (not _REVISION.fullmatch(revision) or ".." in revision)):
        raise UsageError(f"'{given[:80]}' is no name on the hub; write hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    folder = _download_snapshot(given, repository, revision or None)
    if not any(folder.glob("*.safetensors")):
        raise UsageError(
            f"{given}: has no safetensors, and other files of weights are not read, for they can run code; choose a "
            "model, or a revision, that has them"
        )
    return folder


def _download_snapshot(name: str, repository: str, revision: str | None) -> Path:
    """The folder of a snapshot: the newest, or, where the hub is out of reach, the one in the cache."""
    try:
        from huggingface_hub import snapshot_download, utils
    except ImportError:
        raise UsageError(
            f"'{name}': the hub needs the extra 'hub': pip install 'pretune[hub]'; or give the directory of a model"
        ) from None
    log.info(f"{name}: from the Hugging Face hub")
    bars: Any = utils
    if log.is_quiet():
        bars.disable_progress_bars()
    wishes: dict[str, Any] = {
        "repo_id": repository,
        "revision": revision,
        "allow_patterns": [*ALLOWED_PATTERNS],
        "ignore_patterns": [*IGNORED_PATTERNS],
    }
    try:
        return Path(snapshot_download(**wishes))
    except Exception as fault:  # the library has dozens of kinds, and the network more
        first = fault
    try:
        return Path(snapshot_download(**wishes, local_files_only=True))
    except Exception:
        raise _translate_error(name, first) from None


def _translate_error(name: str, fault: Exception) -> PretuneError:
    """What went wrong, by the names of the library's errors, which have moved between its releases."""
    kinds = {kind.__name__ for kind in type(fault).__mro__}
    if "GatedRepoError" in kinds:
        return UsageError(f"{name}: its owner gives it only to those who ask; do so on the hub, then `hf auth login`")
    if "RevisionNotFoundError" in kinds:
        return UsageError(f"{name}: the hub has no such revision of it; leave @REVISION out for the newest")
    if kinds & {"RepositoryNotFoundError", "HFValidationError"}:
        return UsageError(f"{name}: the hub has no such model, or only for its owner; see huggingface.co/models")
    if isinstance(fault, OSError) and fault.errno is not None and fault.filename:
        return ResourceError(f"{fault.filename}: {fault.strerror}; set HF_HOME to a folder that has room")
    return ResourceError(
        f"{name}: the hub cannot be reached ({type(fault).__name__}), and no copy of it is in the cache; try again "
        "with a network, or give the directory of a model"
    )
