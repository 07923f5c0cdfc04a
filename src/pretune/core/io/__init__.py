"""File input and output: atomic writes, strict JSON, manifests with hashes, names confined to a directory.

All important writes go through this package, so a full disk or a kill never leaves a partial file under its final
name, and the same problem always gives the same one-line error.
"""

from pretune.core.io.files import (
    MANIFEST,
    atomic_directory,
    atomic_write,
    check_links,
    is_file_name,
    open_in_place,
    open_regular,
    read_bounded,
    remove,
    remove_abandoned,
    resolve_inside,
    sweep,
    translate_write_errors,
)
from pretune.core.io.strict_json import check_manifest, parse_json, read_json, sha256, write_json, write_manifest

__all__ = [
    "MANIFEST", "atomic_directory", "atomic_write", "check_links", "check_manifest", "is_file_name", "open_in_place",
    "open_regular", "parse_json", "read_bounded", "read_json", "remove", "remove_abandoned", "resolve_inside", "sha256",
    "sweep", "write_json", "write_manifest", "translate_write_errors",
]  # fmt: skip
