"""Triton kernels of the tiles of `tiles`, for CUDA only; tests compare each with PyTorch.

A program computes a tile of queries and keys of one row and head, in fp32, with scores in base 2. Upper-case
names are pointers and constants, lower-case names numbers; `m` and `n` are columns of queries and keys, `place` is the
index of a row and head.

Disentangled attention has keys PK and queries PQ of the distances R - 1 down to -R, `[2R, H, D]`. A tile of BM queries
from m0 on and BN keys from n0 on has BM + BN - 1 distances. Products of its queries (and keys) with their vectors are
`[BM, BM + BN]`; query i and key j need column BM - 1 - i + j: a gather inside the tile, so that the forward pass has no
matrix of scores in memory, and the backward pass one, their gradients.
"""

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore, misc"


@triton.jit
def locate_program(blocks):
    """Return block and place of a program. NOTE: only the first dimension of a grid may exceed 65,535."""
    number = tl.program_id(0)
    return number % blocks, number // blocks


@triton.jit
def hash_bits(index, seed):
    """Hash the index of each query or key to 32 bits."""
    x = index.to(tl.uint32) ^ seed
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def draw_keep_mask(query_bits, key_bits, threshold):
    """Return the mask of kept elements: the mixed bits of query and key against the dropout threshold.

    NOTE: integer operations are the cost of dropout, so there are as few per element as still mix well.
    """
    x = (query_bits ^ key_bits) * 0x9E3779B1
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x >= tl.cast(threshold, tl.uint32)


@triton.jit
def load_seeds(SEED, place, DROP: tl.constexpr):
    """Return the two seeds of a row and head."""
    first = tl.full((), 0, tl.uint32)
    second = tl.full((), 0, tl.uint32)
    if DROP:
        first = tl.load(SEED).to(tl.uint32)
        second = tl.load(SEED + 1).to(tl.uint32)
        bits = (place.to(tl.uint32) + first) * 0x9E3779B1
        first = bits ^ (bits >> 15)
        second = (second ^ bits) * 0x85EBCA6B
        second = second ^ (second >> 13)
    return first, second


@triton.jit
def _mask_scores(
    s, m, n, q_sequence, k_sequence, BIAS_TABLE, RQ, RK, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr
):
    """Return base-2 scores with bias, -1e30 where masked; `m` and `n` are broadcast over the tile.

    NOTE: columns outside of a row have sequence ids that match nothing.
    """
    if BIAS:
        bias = tl.load(BIAS_TABLE + (m * RK + n), mask=(m < RQ) & (n < RK), other=0.0).to(tl.float32)
        s += bias * 1.4426950408889634  # log2(e)
    is_visible = q_sequence == k_sequence
    if CAUSAL:
        is_visible = is_visible & (n <= m)
    if WINDOW > 0:
        is_visible = is_visible & (n - m < WINDOW) & (m - n < WINDOW)
    return tl.where(is_visible, s, -1e30)


@triton.jit
def load_rows(X, row, length, h, columns, d, by_token, by_head, D: tl.constexpr):
    """Load a tile `[columns, D]` of a row and head; zero outside."""
    places = X + (row * length + columns)[:, None].to(tl.int64) * by_token + h * by_head + d[None, :]
    return tl.load(places, mask=(columns < length)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def store_rows(X, x, row, length, h, columns, d, by_token, by_head, D: tl.constexpr):
    """Store a tile `[columns, D]` of a row and head."""
    places = X + (row * length + columns)[:, None].to(tl.int64) * by_token + h * by_head + d[None, :]
    tl.store(places, x.to(X.dtype.element_ty), mask=(columns < length)[:, None] & (d < D)[None, :])


@triton.jit
def rotate(X, Y, COS, SIN, x_token, y_token, tokens, heads, D: tl.constexpr, HP: tl.constexpr, BT: tl.constexpr):
    """Rotate the heads of a block of tokens from X to Y, which may be X. D is a power of 2."""
    t = (tl.program_id(0) * BT + tl.arange(0, BT))[:, None, None]
    h, d = tl.arange(0, HP)[None, :, None], tl.arange(0, D // 2)[None, None, :]
    is_inside = (t < tokens) & (h < heads)
    angles = t.to(tl.int64) * D + d
    cos = tl.load(COS + angles, mask=t < tokens, other=0.0).to(tl.float32)
    sin = tl.load(SIN + angles + D // 2, mask=t < tokens, other=0.0).to(tl.float32)
    inputs, outputs = X + t.to(tl.int64) * x_token + h * D + d, Y + t.to(tl.int64) * y_token + h * D + d
    first = tl.load(inputs, mask=is_inside, other=0.0).to(tl.float32)
    second = tl.load(inputs + D // 2, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(outputs, (first * cos - second * sin).to(Y.dtype.element_ty), mask=is_inside)
    tl.store(outputs + D // 2, (second * cos + first * sin).to(Y.dtype.element_ty), mask=is_inside)


@triton.jit
def compute_tile_offsets(place, m, n, RQ, RK):
    """Return offsets and mask of a tile of the scores' gradients `[place, keys, queries]`."""
    offsets = (place.to(tl.int64) * RK + n[:, None]) * RQ + m[None, :]
    return offsets, (m < RQ)[None, :] & (n < RK)[:, None]


@triton.jit
def store_tile(DS, ds, place, m, n, RQ, RK):
    """Store a tile of the scores' gradients `[keys, queries]`."""
    offsets, is_inside = compute_tile_offsets(place, m, n, RQ, RK)
    tl.store(DS + offsets, ds, mask=is_inside)


@triton.jit
def _load_distances(X, h, m0, n0, heads, R, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Load the vectors of a tile's distances `[BM + BN, D]`; zero outside."""
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
    Q, K, V, PK, PQ, O, NORM, Q_SEQUENCE, K_SEQUENCE, SPAN, BIAS_TABLE, SEED,
    q_token, q_head, k_token, k_head, v_token, v_head,
    scale, threshold, inverse, heads, group, RQ, RK, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
    C2P: tl.constexpr, P2C: tl.constexpr,
):  # fmt: skip
    """Compute the output of a block of queries, and the base-2 logarithm of its softmax denominator."""
    block, place = locate_program(blocks)
    row, h = place // heads, place % heads
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    q = load_rows(Q, row, RQ, h, m, d, q_token, q_head, D)
    q_ids = tl.load(Q_SEQUENCE + row * RQ + m, mask=m < RQ, other=-2)
    low = tl.load(SPAN + (row * blocks + block) * 2) // BN * BN
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    if CAUSAL:
        high = tl.minimum(high, (block + 1) * BM)
    first, second = load_seeds(SEED, place, DROP)
    bits = hash_bits(m, first)
    top = tl.full([BM], -1e20, tl.float32)  # above masked scores, so that their probability is 0
    total = tl.zeros([BM], tl.float32)
    output = tl.zeros([BM, DP], tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        k = load_rows(K, row, RK, h // group, n, d, k_token, k_head, D)
        k_ids = tl.load(K_SEQUENCE + row * RK + n, mask=n < RK, other=-3)
        s = tl.dot(q, tl.trans(k))
        if C2P or P2C:
            s += _score_distances(q, k, PK, PQ, h, block * BM, start, heads, RQ, D, DP, BM, BN, C2P, P2C)
        s = _mask_scores(
            s * scale, m[:, None], n[None, :], q_ids[:, None], k_ids[None, :],
            BIAS_TABLE + h * RQ * RK, RQ, RK, CAUSAL, WINDOW, BIAS,
        )  # fmt: skip
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        if DROP:
            p = tl.where(draw_keep_mask(bits[:, None], hash_bits(n, second)[None, :], threshold), p, 0.0)
        v = load_rows(V, row, RK, h // group, n, d, v_token, v_head, D)
        output = output * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        top = new
    has_keys = total > 0
    store_rows(O, output * (inverse / tl.where(has_keys, total, 1.0))[:, None], row, RQ, h, m, d, heads * D, D, D)
    norm = tl.where(has_keys, top + tl.log2(tl.where(has_keys, total, 1.0)), 1e30)
    tl.store(NORM + place * RQ + m, norm, mask=m < RQ)


@triton.jit
def _compute_score_gradient(
    s, v, g, delta, norm, m, n, q_sequence, k_sequence, BIAS_TABLE, scale, query_bits, key_bits,
    threshold, inverse, RQ, RK,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Return the probabilities after dropout (not rescaled) and the gradient of scores `s`, `[keys, queries]` each."""
    s = _mask_scores(
        s * scale, m[None, :], n[:, None], q_sequence[None, :], k_sequence[:, None],
        BIAS_TABLE, RQ, RK, CAUSAL, WINDOW, BIAS,
    )  # fmt: skip
    p = tl.exp2(s - norm[None, :])
    slope = tl.dot(v, tl.trans(g))
    dropped_p = p
    if DROP:
        keep_mask = draw_keep_mask(query_bits[None, :], key_bits[:, None], threshold)
        slope = tl.where(keep_mask, slope * inverse, 0.0)
        dropped_p = tl.where(keep_mask, p, 0.0)
    return dropped_p, p * (slope - delta[None, :])


@triton.jit
def compute_row_gradients(
    Q, K, V, O, G, NORM, Q_SEQUENCE, K_SEQUENCE, BIAS_TABLE, SEED, DQ, DK, DV, DS, dq_token, dk_token,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, factor, threshold, inverse, heads, RQ, RK,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, KEEP: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one row and head, loading each input once; BM covers all queries."""
    place = tl.program_id(0)
    row, h = place // heads, place % heads
    m, d = tl.arange(0, BM), tl.arange(0, DP)
    q = load_rows(Q, row, RQ, h, m, d, q_token, q_head, D)
    g = load_rows(G, row, RQ, h, m, d, heads * D, D, D)
    o = load_rows(O, row, RQ, h, m, d, heads * D, D, D)
    delta = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    norm = tl.load(NORM + place * RQ + m, mask=m < RQ, other=1e30)
    q_ids = tl.load(Q_SEQUENCE + row * RQ + m, mask=m < RQ, other=-2)
    first, second = load_seeds(SEED, place, DROP)
    bits = hash_bits(m, first)
    dq = tl.zeros([BM, DP], tl.float32)
    for start in range(0, RK, BN):
        n = start + tl.arange(0, BN)
        k = load_rows(K, row, RK, h, n, d, k_token, k_head, D)
        v = load_rows(V, row, RK, h, n, d, v_token, v_head, D)
        k_ids = tl.load(K_SEQUENCE + row * RK + n, mask=n < RK, other=-3)
        dropped_p, ds = _compute_score_gradient(
            tl.dot(k, tl.trans(q)), v, g, delta, norm, m, n, q_ids, k_ids, BIAS_TABLE + h * RQ * RK, scale,
            bits, hash_bits(n, second), threshold, inverse, RQ, RK, CAUSAL, WINDOW, BIAS, DROP,
        )  # fmt: skip
        store_rows(DV, tl.dot(dropped_p.to(g.dtype), g) * inverse, row, RK, h, n, d, dk_token, D, D)
        ds = ds.to(q.dtype)
        if KEEP:
            store_tile(DS, ds, place, m, n, RQ, RK)
        store_rows(DK, tl.dot(ds, q) * factor, row, RK, h, n, d, dk_token, D, D)
        dq += tl.dot(tl.trans(ds), k)
    store_rows(DQ, dq * factor, row, RQ, h, m, d, dq_token, D, D)


@triton.jit
def compute_deltas(O, G, DELTA, heads, RQ, blocks, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr):
    """Compute the dot product of each output and its gradient, a term of all score gradients."""
    block, place = locate_program(blocks)
    row, h = place // heads, place % heads
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    o = load_rows(O, row, RQ, h, m, d, heads * D, D, D).to(tl.float32)
    g = load_rows(G, row, RQ, h, m, d, heads * D, D, D).to(tl.float32)
    tl.store(DELTA + place * RQ + m, tl.sum(o * g, 1), mask=m < RQ)


@triton.jit
def compute_key_gradients(
    Q, K, V, PK, PQ, G, NORM, DELTA, Q_SEQUENCE, K_SEQUENCE, BIAS_TABLE, SEED, SPAN, DK, DV, DS, d_token,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, factor, threshold, inverse, heads, group, RQ, RK,
    first_row, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
    C2P: tl.constexpr, P2C: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of keys and values over all queries and heads; stores those of scores."""
    block, place = locate_program(blocks)
    row, kh = first_row + place // (heads // group), place % (heads // group)
    n, d = block * BN + tl.arange(0, BN), tl.arange(0, DP)
    k = load_rows(K, row, RK, kh, n, d, k_token, k_head, D)
    v = load_rows(V, row, RK, kh, n, d, v_token, v_head, D)
    k_ids = tl.load(K_SEQUENCE + row * RK + n, mask=n < RK, other=-3)
    low = tl.load(SPAN + (row * blocks + block) * 2)
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    if CAUSAL:
        low = tl.maximum(low, block * BN)
    low = low // BM * BM
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    for i in range(group):
        h = kh * group + i
        head_place = row * heads + h
        first, second = load_seeds(SEED, head_place, DROP)
        key_bits = hash_bits(n, second)
        for start in range(low, high, BM):
            m = start + tl.arange(0, BM)
            q = load_rows(Q, row, RQ, h, m, d, q_token, q_head, D)
            g = load_rows(G, row, RQ, h, m, d, heads * D, D, D)
            norm = tl.load(NORM + head_place * RQ + m, mask=m < RQ, other=1e30)
            delta = tl.load(DELTA + head_place * RQ + m, mask=m < RQ, other=0.0)
            q_ids = tl.load(Q_SEQUENCE + row * RQ + m, mask=m < RQ, other=-2)
            s = tl.dot(k, tl.trans(q))
            if C2P or P2C:
                s += tl.trans(_score_distances(q, k, PK, PQ, h, start, block * BN, heads, RQ, D, DP, BM, BN, C2P, P2C))
            dropped_p, ds = _compute_score_gradient(
                s, v, g, delta, norm, m, n, q_ids, k_ids, BIAS_TABLE + h * RQ * RK, scale,
                hash_bits(m, first), key_bits, threshold, inverse, RQ, RK, CAUSAL, WINDOW, BIAS, DROP,
            )  # fmt: skip
            dv += tl.dot(dropped_p.to(g.dtype), g)
            ds = ds.to(q.dtype)
            store_tile(DS, ds, head_place - first_row * heads, m, n, RQ, RK)
            dk += tl.dot(ds, q)
            if P2C:
                vectors = _load_distances(PQ, h, start, block * BN, heads, RQ, D, DP, BM, BN)
                dk += tl.dot(_spread_keys(ds, BM, BN).to(q.dtype), vectors)
    store_rows(DK, dk * factor, row, RK, kh, n, d, d_token, D, D)
    store_rows(DV, dv * inverse, row, RK, kh, n, d, d_token, D, D)


@triton.jit
def compute_query_gradients(
    K, PK, SPAN, DS, DQ, k_token, k_head, d_token, factor, heads, group, RQ, RK, first_row, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, C2P: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of queries from those of scores."""
    block, place = locate_program(blocks)
    row, h = first_row + place // heads, place % heads
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    low = tl.load(SPAN + (row * blocks + block) * 2) // BN * BN
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    if CAUSAL:
        high = tl.minimum(high, (block + 1) * BM)
    dq = tl.zeros([BM, DP], tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        k = load_rows(K, row, RK, h // group, n, d, k_token, k_head, D)
        offsets, is_inside = compute_tile_offsets(place, m, n, RQ, RK)
        ds = tl.trans(tl.load(DS + offsets, mask=is_inside, other=0.0))
        dq += tl.dot(ds, k)
        if C2P:
            vectors = _load_distances(PK, h, block * BM, start, heads, RQ, D, DP, BM, BN)
            dq += tl.dot(_spread_queries(ds, BM, BN).to(k.dtype), vectors)
    store_rows(DQ, dq * factor, row, RQ, h, m, d, d_token, D, D)


@triton.jit
def compute_bias_gradients(
    SPAN, DS, DB, RQ, RK, first_row, last_row, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr
):
    """Sum the scores' gradients of one tile of a head over a group of rows, and add them to DB."""
    tile, h, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, parts, blocks = tl.num_programs(1), tl.num_programs(2), tl.cdiv(RK, BN)
    m, n = tile // blocks * BM + tl.arange(0, BM), tile % blocks * BN + tl.arange(0, BN)
    total = tl.zeros([BN, BM], tl.float32)
    for row in range(first_row + part, last_row, parts):
        span = (row * tl.cdiv(RQ, BM) + tile // blocks) * 2
        low, high = tl.load(SPAN + span), tl.load(SPAN + span + 1)
        if CAUSAL:
            high = tl.minimum(high, (tile // blocks + 1) * BM)
        if (tile % blocks * BN < high) & ((tile % blocks + 1) * BN > low):
            offsets, is_inside = compute_tile_offsets((row - first_row) * heads + h, m, n, RQ, RK)
            total += tl.load(DS + offsets, mask=is_inside, other=0.0).to(tl.float32)
    places = DB + ((part * heads + h).to(tl.int64) * RQ + m[None, :]) * RK + n[:, None]
    inside = (m < RQ)[None, :] & (n < RK)[:, None]
    tl.store(places, total + tl.load(places, mask=inside, other=0.0), mask=inside)


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
