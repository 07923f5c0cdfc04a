"""The kernels of `tiles`. A program works on a tile of queries and keys of one row and head, in fp32.

Capital names are pointers and constants, small ones numbers; `m` and `n` are columns of queries and keys, `place` a row
and head together. Scores are kept in powers of two.
"""

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore, misc"


@triton.jit
def _which(blocks):
    """The block and the place of a program. NOTE: only the first side of a grid may be longer than 65,535."""
    number = tl.program_id(0)
    return number % blocks, number // blocks


@triton.jit
def _bits(index, seed):
    """Random bits of each query, or of each key."""
    x = index.to(tl.uint32) ^ seed
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _kept(one, other, threshold):
    """Whether an element is kept: the bits of its query and its key, mixed, against the share that is dropped.

    NOTE: whole numbers are what dropout costs, so there are as few operations per element as still mix well.
    """
    x = (one ^ other) * 0x9E3779B1
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x >= tl.cast(threshold, tl.uint32)


@triton.jit
def _seeds(SEED, place, DROP: tl.constexpr):
    """The two seeds of a row and head."""
    first = tl.full((), 0, tl.uint32)
    second = tl.full((), 0, tl.uint32)
    if DROP:
        first = tl.load(SEED).to(tl.uint32)
        second = tl.load(SEED + 1).to(tl.uint32)
        mixed = (place.to(tl.uint32) + first) * 0x9E3779B1
        first = mixed ^ (mixed >> 15)
        second = (second ^ mixed) * 0x85EBCA6B
        second = second ^ (second >> 13)
    return first, second


@triton.jit
def _scores(s, m, n, mine, theirs, WEIGHS, RQ, RK, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr):
    """Scores in powers of two, far below any other where a query may not look; `m` and `n` run along the tile's sides.

    NOTE: columns outside of a row have a sequence of their own, which nobody sees.
    """
    if BIAS:
        weighs = tl.load(WEIGHS + (m * RK + n), mask=(m < RQ) & (n < RK), other=0.0).to(tl.float32)
        s += weighs * 1.4426950408889634  # log2(e)
    seen = mine == theirs
    if CAUSAL:
        seen = seen & (n <= m)
    if WINDOW > 0:
        seen = seen & (n - m < WINDOW) & (m - n < WINDOW)
    return tl.where(seen, s, -1e30)


@triton.jit
def _rows_of(X, row, length, h, columns, d, by_token, by_head, D: tl.constexpr):
    """A tile `[columns, D]` of a row and head; zero outside."""
    places = X + (row * length + columns)[:, None].to(tl.int64) * by_token + h * by_head + d[None, :]
    return tl.load(places, mask=(columns < length)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _put(X, x, row, length, h, columns, d, by_token, by_head, D: tl.constexpr):
    places = X + (row * length + columns)[:, None].to(tl.int64) * by_token + h * by_head + d[None, :]
    tl.store(places, x.to(X.dtype.element_ty), mask=(columns < length)[:, None] & (d < D)[None, :])


@triton.jit
def _tile(place, m, n, RQ, RK):
    """Where a tile of the scores' gradients lies and what of it there is: `[place, keys, queries]`."""
    at = (place.to(tl.int64) * RK + n[:, None]) * RQ + m[None, :]
    return at, (m < RQ)[None, :] & (n < RK)[:, None]


@triton.jit
def _put_tile(DS, ds, place, m, n, RQ, RK):
    at, there = _tile(place, m, n, RQ, RK)
    tl.store(DS + at, ds, mask=there)


@triton.jit
def forward(
    Q, K, V, O, NORM, MINE, THEIRS, SPAN, WEIGHS, SEED, q_token, q_head, k_token, k_head, v_token, v_head,
    scale, threshold, inverse, heads, group, RQ, RK, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """What a block of queries reads, and the logarithm of what its probabilities are divided by."""
    block, place = _which(blocks)
    row, h = place // heads, place % heads
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    q = _rows_of(Q, row, RQ, h, m, d, q_token, q_head, D)
    mine = tl.load(MINE + row * RQ + m, mask=m < RQ, other=-2)
    low = tl.load(SPAN + (row * blocks + block) * 2) // BN * BN
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    if CAUSAL:
        high = tl.minimum(high, (block + 1) * BM)
    first, second = _seeds(SEED, place, DROP)
    bits = _bits(m, first)
    top = tl.full([BM], -1e20, tl.float32)  # above what is not seen, so that its probability becomes 0
    total = tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, DP], tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        k = _rows_of(K, row, RK, h // group, n, d, k_token, k_head, D)
        theirs = tl.load(THEIRS + row * RK + n, mask=n < RK, other=-3)
        s = _scores(
            tl.dot(q, tl.trans(k)) * scale, m[:, None], n[None, :], mine[:, None], theirs[None, :],
            WEIGHS + h * RQ * RK, RQ, RK, CAUSAL, WINDOW, BIAS,
        )  # fmt: skip
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        if DROP:
            p = tl.where(_kept(bits[:, None], _bits(n, second)[None, :], threshold), p, 0.0)
        v = _rows_of(V, row, RK, h // group, n, d, v_token, v_head, D)
        mixed = mixed * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        top = new
    some = total > 0
    _put(O, mixed * (inverse / tl.where(some, total, 1.0))[:, None], row, RQ, h, m, d, heads * D, D, D)
    norm = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), 1e30)
    tl.store(NORM + place * RQ + m, norm, mask=m < RQ)


@triton.jit
def _inner(
    q, k, v, g, delta, norm, m, n, mine, theirs, WEIGHS, scale, bits, others, threshold, inverse, RQ, RK,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """The probabilities that were used (not scaled up), and the gradient of the scores: `[keys, queries]` both."""
    s = _scores(
        tl.dot(k, tl.trans(q)) * scale, m[None, :], n[:, None], mine[None, :], theirs[:, None],
        WEIGHS, RQ, RK, CAUSAL, WINDOW, BIAS,
    )  # fmt: skip
    p = tl.exp2(s - norm[None, :])
    slope = tl.dot(v, tl.trans(g))
    used = p
    if DROP:
        kept = _kept(bits[None, :], others[:, None], threshold)
        slope = tl.where(kept, slope * inverse, 0.0)
        used = tl.where(kept, p, 0.0)
    return used, p * (slope - delta[None, :])


@triton.jit
def whole(
    Q, K, V, O, G, NORM, MINE, THEIRS, WEIGHS, SEED, DQ, DK, DV, DS, dq_token, dk_token,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, factor, threshold, inverse, heads, RQ, RK,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, KEEP: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """All gradients of one row and head, each input read once; BM holds all queries, keys come in blocks."""
    place = tl.program_id(0)
    row, h = place // heads, place % heads
    m, d = tl.arange(0, BM), tl.arange(0, DP)
    q = _rows_of(Q, row, RQ, h, m, d, q_token, q_head, D)
    g = _rows_of(G, row, RQ, h, m, d, heads * D, D, D)
    o = _rows_of(O, row, RQ, h, m, d, heads * D, D, D)
    delta = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    norm = tl.load(NORM + place * RQ + m, mask=m < RQ, other=1e30)
    mine = tl.load(MINE + row * RQ + m, mask=m < RQ, other=-2)
    first, second = _seeds(SEED, place, DROP)
    bits = _bits(m, first)
    dq = tl.zeros([BM, DP], tl.float32)
    for start in range(0, RK, BN):
        n = start + tl.arange(0, BN)
        k = _rows_of(K, row, RK, h, n, d, k_token, k_head, D)
        v = _rows_of(V, row, RK, h, n, d, v_token, v_head, D)
        theirs = tl.load(THEIRS + row * RK + n, mask=n < RK, other=-3)
        used, ds = _inner(
            q, k, v, g, delta, norm, m, n, mine, theirs, WEIGHS + h * RQ * RK, scale, bits, _bits(n, second),
            threshold, inverse, RQ, RK, CAUSAL, WINDOW, BIAS, DROP,
        )  # fmt: skip
        _put(DV, tl.dot(used.to(g.dtype), g) * inverse, row, RK, h, n, d, dk_token, D, D)
        ds = ds.to(q.dtype)
        if KEEP:
            _put_tile(DS, ds, place, m, n, RQ, RK)
        _put(DK, tl.dot(ds, q) * factor, row, RK, h, n, d, dk_token, D, D)
        dq += tl.dot(tl.trans(ds), k)
    _put(DQ, dq * factor, row, RQ, h, m, d, dq_token, D, D)


@triton.jit
def deltas(O, G, DELTA, heads, RQ, blocks, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr):
    """The product of each output and its gradient, summed: what all gradients of scores have in common."""
    block, place = _which(blocks)
    row, h = place // heads, place % heads
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    o = _rows_of(O, row, RQ, h, m, d, heads * D, D, D).to(tl.float32)
    g = _rows_of(G, row, RQ, h, m, d, heads * D, D, D).to(tl.float32)
    tl.store(DELTA + place * RQ + m, tl.sum(o * g, 1), mask=m < RQ)


@triton.jit
def keys(
    Q, K, V, G, NORM, DELTA, MINE, THEIRS, WEIGHS, SEED, SPAN, DK, DV, DS, d_token,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, factor, threshold, inverse, heads, group, RQ, RK,
    begin, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values, over all queries and heads that see them; those of scores are kept."""
    block, place = _which(blocks)
    row, kh = begin + place // (heads // group), place % (heads // group)
    n, d = block * BN + tl.arange(0, BN), tl.arange(0, DP)
    k = _rows_of(K, row, RK, kh, n, d, k_token, k_head, D)
    v = _rows_of(V, row, RK, kh, n, d, v_token, v_head, D)
    theirs = tl.load(THEIRS + row * RK + n, mask=n < RK, other=-3)
    low = tl.load(SPAN + (row * blocks + block) * 2)
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    if CAUSAL:
        low = tl.maximum(low, block * BN)
    low = low // BM * BM
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    for one in range(group):
        h = kh * group + one
        here = row * heads + h
        first, second = _seeds(SEED, here, DROP)
        others = _bits(n, second)
        for start in range(low, high, BM):
            m = start + tl.arange(0, BM)
            q = _rows_of(Q, row, RQ, h, m, d, q_token, q_head, D)
            g = _rows_of(G, row, RQ, h, m, d, heads * D, D, D)
            norm = tl.load(NORM + here * RQ + m, mask=m < RQ, other=1e30)
            delta = tl.load(DELTA + here * RQ + m, mask=m < RQ, other=0.0)
            mine = tl.load(MINE + row * RQ + m, mask=m < RQ, other=-2)
            used, ds = _inner(
                q, k, v, g, delta, norm, m, n, mine, theirs, WEIGHS + h * RQ * RK, scale, _bits(m, first), others,
                threshold, inverse, RQ, RK, CAUSAL, WINDOW, BIAS, DROP,
            )  # fmt: skip
            dv += tl.dot(used.to(g.dtype), g)
            ds = ds.to(q.dtype)
            _put_tile(DS, ds, here - begin * heads, m, n, RQ, RK)
            dk += tl.dot(ds, q)
    _put(DK, dk * factor, row, RK, kh, n, d, d_token, D, D)
    _put(DV, dv * inverse, row, RK, kh, n, d, d_token, D, D)


@triton.jit
def queries(
    K, SPAN, DS, DQ, k_token, k_head, d_token, factor, heads, group, RQ, RK, begin, blocks,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, from those of the scores."""
    block, place = _which(blocks)
    row, h = begin + place // heads, place % heads
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, DP)
    low = tl.load(SPAN + (row * blocks + block) * 2) // BN * BN
    high = tl.load(SPAN + (row * blocks + block) * 2 + 1)
    if CAUSAL:
        high = tl.minimum(high, (block + 1) * BM)
    dq = tl.zeros([BM, DP], tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        k = _rows_of(K, row, RK, h // group, n, d, k_token, k_head, D)
        at, there = _tile(place, m, n, RQ, RK)
        dq += tl.dot(tl.trans(tl.load(DS + at, mask=there, other=0.0)), k)
    _put(DQ, dq * factor, row, RQ, h, m, d, d_token, D, D)


@triton.jit
def biases(
    SPAN, DS, DB, heads, RQ, RK, begin, end, blocks,
    BM: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """The scores' gradients of one tile of a head, summed over a part of the rows and added to what is there."""
    tile, h, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, n = tile // blocks * BM + tl.arange(0, BM), tile % blocks * BN + tl.arange(0, BN)
    total = tl.zeros([BN, BM], tl.float32)
    for row in range(begin + part, end, SPLITS):
        span = (row * tl.cdiv(RQ, BM) + tile // blocks) * 2
        low, high = tl.load(SPAN + span), tl.load(SPAN + span + 1)
        if CAUSAL:
            high = tl.minimum(high, (tile // blocks + 1) * BM)
        if (tile % blocks * BN < high) & ((tile % blocks + 1) * BN > low):
            at, there = _tile((row - begin) * heads + h, m, n, RQ, RK)
            total += tl.load(DS + at, mask=there, other=0.0).to(tl.float32)
    places = DB + ((part * heads + h).to(tl.int64) * RQ + m[None, :]) * RK + n[:, None]
    inside = (m < RQ)[None, :] & (n < RK)[:, None]
    tl.store(places, total + tl.load(places, mask=inside, other=0.0), mask=inside)
