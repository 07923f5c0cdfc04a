"""Triton kernels of disentangled attention over packed rows, for CUDA only (`pretune.nn.distance_tiles`).

A tile of BM queries from m0 on and BN keys from n0 on has BM + BN - 1 distances. Products of its queries (and keys)
with the vectors of these distances are `[BM, BM + BN]`; query i and key j need column BM - 1 - i + j: a gather inside
the tile. So the forward pass has no matrix of scores in memory, and the backward pass one, their gradients.
Names are those of `pretune.nn.kernels`; PK and PQ are keys and queries of the distances R - 1 down to -R, `[2R, H, D]`.
"""

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from pretune.nn.kernels import (
    compute_tile_offsets,
    draw_keep_mask,
    hash_bits,
    load_rows,
    load_seeds,
    locate_program,
    store_rows,
    store_tile,
)

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore, misc"


@triton.jit
def _load_distances(
    X, h, m0, n0, heads, R, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Load the vectors of a tile's distances `[BM + BN, D]`; zero outside of the table."""
    c, d = n0 - m0 + R - BM + tl.arange(0, BM + BN), tl.arange(0, DP)
    places = X + (c[:, None] * heads + h) * D + d[None, :]
    return tl.load(places, mask=((c >= 0) & (c < 2 * R))[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _score_distances(
    q, k, PK, PQ, h, m0, n0, heads, R, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    C2P: tl.constexpr, P2C: tl.constexpr,
):  # fmt: skip
    """Return the scores of a tile's distances `[BM, BN]`, not scaled."""
    i, j = tl.arange(0, BM), tl.arange(0, BN)
    s = tl.zeros([BM, BN], tl.float32)
    if C2P:
        vectors = _load_distances(PK, h, m0, n0, heads, R, D, DP, BM, BN)
        s += tl.gather(tl.dot(q, tl.trans(vectors)), (BM - 1 - i)[:, None] + j[None, :], 1)
    if P2C:
        vectors = _load_distances(PQ, h, m0, n0, heads, R, D, DP, BM, BN)
        s += tl.trans(tl.gather(tl.dot(k, tl.trans(vectors)), (BM - 1 - i)[None, :] + j[:, None], 1))
    return s


@triton.jit
def _spread_queries(ds, BM: tl.constexpr, BN: tl.constexpr):
    """Return the gradients of a tile's scores `[BM, BN]` by distance `[BM, BM + BN]`."""
    i, c = tl.arange(0, BM), tl.arange(0, BM + BN)
    j = c[None, :] - (BM - 1) + i[:, None]
    return tl.where((j >= 0) & (j < BN), tl.gather(ds, tl.minimum(tl.maximum(j, 0), BN - 1), 1), 0.0)


@triton.jit
def _spread_keys(ds, BM: tl.constexpr, BN: tl.constexpr):
    """Return the gradients of a tile's scores `[BN, BM]` by distance `[BN, BM + BN]`."""
    j, c = tl.arange(0, BN), tl.arange(0, BM + BN)
    i = BM - 1 + j[:, None] - c[None, :]
    return tl.where((i >= 0) & (i < BM), tl.gather(ds, tl.minimum(tl.maximum(i, 0), BM - 1), 1), 0.0)


@triton.jit
def forward(
    Q, K, V, PK, PQ, O, NORM, SEQUENCE, SPAN, SEED, q_token, q_head, k_token, k_head, v_token, v_head,
    scale, threshold, inverse, heads, R, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DROP: tl.constexpr, C2P: tl.constexpr, P2C: tl.constexpr,
):  # fmt: skip
    """Compute the output of a block of queries, and the base-2 logarithm of its softmax denominator."""
    block, place = locate_program(blocks)
    row, h = place // heads, place % heads
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    q = load_rows(Q, row, R, h, m, d, q_token, q_head, D)
    q_ids = tl.load(SEQUENCE + row * R + m, mask=m < R, other=-2)
    low = tl.load(SPAN + (row * blocks + block) * 2) // BN * BN
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    first, second = load_seeds(SEED, place, DROP)
    bits = hash_bits(m, first)
    top = tl.full([BM], -1e20, tl.float32)  # above masked scores, so that their probability is 0
    total = tl.zeros([BM], tl.float32)
    output = tl.zeros([BM, DP], tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        k = load_rows(K, row, R, h, n, d, k_token, k_head, D)
        k_ids = tl.load(SEQUENCE + row * R + n, mask=n < R, other=-3)
        s = tl.dot(q, tl.trans(k))
        s += _score_distances(q, k, PK, PQ, h, block * BM, start, heads, R, D, DP, BM, BN, C2P, P2C)
        s = tl.where(q_ids[:, None] == k_ids[None, :], s * scale, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        if DROP:
            p = tl.where(draw_keep_mask(bits[:, None], hash_bits(n, second)[None, :], threshold), p, 0.0)
        v = load_rows(V, row, R, h, n, d, v_token, v_head, D)
        output = output * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        top = new
    has_keys = total > 0
    store_rows(O, output * (inverse / tl.where(has_keys, total, 1.0))[:, None], row, R, h, m, d, heads * D, D, D)
    norm = tl.where(has_keys, top + tl.log2(tl.where(has_keys, total, 1.0)), 1e30)
    tl.store(NORM + place * R + m, norm, mask=m < R)


@triton.jit
def compute_key_gradients(
    Q, K, V, PK, PQ, G, NORM, DELTA, SEQUENCE, SPAN, SEED, DK, DV, DS,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, factor, threshold, inverse, heads, R, first_row, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DROP: tl.constexpr, C2P: tl.constexpr, P2C: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of keys and values over all queries; stores those of scores."""
    block, place = locate_program(blocks)
    row, h = first_row + place // heads, place % heads
    n, d = block * BN + tl.arange(0, BN), tl.arange(0, DP)
    k = load_rows(K, row, R, h, n, d, k_token, k_head, D)
    v = load_rows(V, row, R, h, n, d, v_token, v_head, D)
    k_ids = tl.load(SEQUENCE + row * R + n, mask=n < R, other=-3)
    low = tl.load(SPAN + (row * blocks + block) * 2) // BM * BM
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    first, second = load_seeds(SEED, row * heads + h, DROP)
    key_bits = hash_bits(n, second)
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    for start in range(low, high, BM):
        m = start + tl.arange(0, BM)
        q = load_rows(Q, row, R, h, m, d, q_token, q_head, D)
        g = load_rows(G, row, R, h, m, d, heads * D, D, D)
        norm = tl.load(NORM + (row * heads + h) * R + m, mask=m < R, other=1e30)
        delta = tl.load(DELTA + (row * heads + h) * R + m, mask=m < R, other=0.0)
        q_ids = tl.load(SEQUENCE + row * R + m, mask=m < R, other=-2)
        s = tl.dot(k, tl.trans(q))
        s += tl.trans(_score_distances(q, k, PK, PQ, h, start, block * BN, heads, R, D, DP, BM, BN, C2P, P2C))
        s = tl.where(q_ids[None, :] == k_ids[:, None], s * scale, -1e30)
        p = tl.exp2(s - norm[None, :])
        slope = tl.dot(v, tl.trans(g))
        dropped_p = p
        if DROP:
            keep_mask = draw_keep_mask(hash_bits(m, first)[None, :], key_bits[:, None], threshold)
            slope = tl.where(keep_mask, slope * inverse, 0.0)
            dropped_p = tl.where(keep_mask, p, 0.0)
        dv += tl.dot(dropped_p.to(g.dtype), g)
        ds = (p * (slope - delta[None, :])).to(q.dtype)
        store_tile(DS, ds, place, m, n, R, R)
        dk += tl.dot(ds, q)
        if P2C:
            vectors = _load_distances(PQ, h, start, block * BN, heads, R, D, DP, BM, BN)
            dk += tl.dot(_spread_keys(ds, BM, BN).to(q.dtype), vectors)
    store_rows(DK, dk * factor, row, R, h, n, d, heads * D, D, D)
    store_rows(DV, dv * inverse, row, R, h, n, d, heads * D, D, D)


@triton.jit
def compute_query_gradients(
    K, PK, SPAN, DS, DQ, k_token, k_head, factor, heads, R, first_row, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, C2P: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of queries from those of scores."""
    block, place = locate_program(blocks)
    row, h = first_row + place // heads, place % heads
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    low = tl.load(SPAN + (row * blocks + block) * 2) // BN * BN
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    dq = tl.zeros([BM, DP], tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        k = load_rows(K, row, R, h, n, d, k_token, k_head, D)
        offsets, is_inside = compute_tile_offsets(place, m, n, R, R)
        ds = tl.trans(tl.load(DS + offsets, mask=is_inside, other=0.0))
        dq += tl.dot(ds, k)
        if C2P:
            vectors = _load_distances(PK, h, block * BM, start, heads, R, D, DP, BM, BN)
            dq += tl.dot(_spread_queries(ds, BM, BN).to(k.dtype), vectors)
    store_rows(DQ, dq * factor, row, R, h, m, d, heads * D, D, D)


@triton.jit
def compute_distance_gradients(
    Q, K, SPAN, DS, DPK, DPQ, q_token, q_head, k_token, k_head, factor, heads, R, first_row, last_row, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, SPLITS: tl.constexpr,
    C2P: tl.constexpr, P2C: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the distances of one diagonal of tiles, over a group of rows, to DPK and DPQ.

    Tiles of a diagonal have the same distances. Diagonal t has the query blocks `block + t - blocks + 1`.
    """
    t, h, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shift = t - (blocks - 1)  # query block minus key block
    d = tl.arange(0, DP)
    dpk = tl.zeros([2 * BM, DP], tl.float32)
    dpq = tl.zeros([2 * BM, DP], tl.float32)
    for row in range(first_row + part, last_row, SPLITS):
        for block in range(tl.maximum(-shift, 0), tl.minimum(blocks, blocks - shift)):
            low = tl.load(SPAN + (row * blocks + block) * 2) // BM * BM
            high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
            m, n = (block + shift) * BM + tl.arange(0, BM), block * BM + tl.arange(0, BM)
            if ((block + shift) * BM >= low) & ((block + shift) * BM < high):
                offsets, is_inside = compute_tile_offsets((row - first_row) * heads + h, m, n, R, R)
                ds = tl.load(DS + offsets, mask=is_inside, other=0.0)
                if C2P:
                    q = load_rows(Q, row, R, h, m, d, q_token, q_head, D)
                    dpk += tl.dot(tl.trans(_spread_queries(tl.trans(ds), BM, BM)).to(q.dtype), q)
                if P2C:
                    k = load_rows(K, row, R, h, n, d, k_token, k_head, D)
                    dpq += tl.dot(tl.trans(_spread_keys(ds, BM, BM)).to(k.dtype), k)
    c = tl.arange(0, 2 * BM)
    places = (((part * heads + h) * (2 * blocks - 1) + t) * 2 * BM + c)[:, None].to(tl.int64) * D + d[None, :]
    inside = (c < 2 * BM)[:, None] & (d < D)[None, :]
    if C2P:
        tl.store(DPK + places, tl.load(DPK + places, mask=inside, other=0.0) + dpk * factor, mask=inside)
    if P2C:
        tl.store(DPQ + places, tl.load(DPQ + places, mask=inside, other=0.0) + dpq * factor, mask=inside)
