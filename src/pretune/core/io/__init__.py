"""File input and output: atomic writes, strict JSON, manifests with hashes, names confined to a directory.

All important writes and all removals go through this package, so a full disk or a kill never leaves a partial file
under its final name, and the same problem always gives the same one-line error.
"""

from pretune.core.io.directories import (
    OWNERS,
    atomic_directory,
    list_files,
    move_file,
    recover,
    remove,
    remove_abandoned,
    scratch_directory,
    sweep,
)
from pretune.core.io.files import (
    FORMAT,
    MANIFEST,
    atomic_write,
    check_links,
    check_manifest,
    is_file_name,
    open_in_place,
    open_regular,
    parse_json,
    read_bounded,
    read_formatted_json,
    read_json,
    real_path,
    resolve_inside,
    sha256,
    translate_write_errors,
    write_json,
    write_manifest,
)
