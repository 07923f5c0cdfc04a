"""Files of vectors: .npy (the array only), .jsonl and .parquet (with texts)."""

import io as memory
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretune.core import io
from pretune.core.errors import UsageError


def write_vectors(path: Path, vectors: NDArray[np.float32], texts: Sequence[str], ids: Sequence[str]) -> None:
    """Write vectors `[n, W]` atomically, in the format of the file name's suffix."""
    if path.suffix == ".npy":
        buffer = memory.BytesIO()
        np.save(buffer, vectors, allow_pickle=False)
        io.atomic_write(path, buffer.getbuffer().tobytes())
    elif path.suffix == ".jsonl":
        rows = zip(ids, texts, vectors, strict=True)
        lines = (
            json.dumps({"id": name, "text": text, "vector": row.tolist()}, ensure_ascii=False, allow_nan=False)
            for name, text, row in rows
        )
        io.atomic_write(path, "".join(f"{line}\n" for line in lines))
    elif path.suffix == ".parquet":
        io.atomic_write(path, _encode_parquet(vectors, texts, ids))
    else:
        raise UsageError(f"unsupported format '{path}'; use .npy, .jsonl or .parquet")


def _encode_parquet(vectors: NDArray[np.float32], texts: Sequence[str], ids: Sequence[str]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError("writing Parquet needs the extra 'parquet': pip install 'pretune[parquet]'") from None
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    buffer = memory.BytesIO()
    parquet.write_table(pa.table({"id": pa.array(ids), "text": pa.array(texts), "vector": rows}), buffer)
    return buffer.getvalue()
