"""Hybrid M buckets: the row counts for which plans are kept (FlashInfer's fp4_gemm mapping, uncapped).

Powers of two up to 256, then steps of 256 up to 2048, steps of 512 up to 4096, powers of two up to 2^31. One function
serves tuning and lookup, so that no M is ever filed under one bucket and searched under another.
"""

from __future__ import annotations

from kernels.errors import KernelError

__all__ = ["HYBRID_BUCKET_VERSION", "MAX_M", "hybrid_m_bucket", "tuning_buckets"]

HYBRID_BUCKET_VERSION = 1
MAX_M = 2**31


def hybrid_m_bucket(m: int) -> int:
    """The bucket of `m` rows, rounded up; 0 gives 1. KernelError `m-out-of-range` outside 0..2^31."""
    if m < 0 or m > MAX_M:
        raise KernelError("m-out-of-range", f"M={m} has no plan bucket: rows must lie in 0..{MAX_M}; split the batch")
    if m <= 1:
        return 1
    if m <= 256 or m > 4096:
        return 1 << (m - 1).bit_length()
    step = 256 if m <= 2048 else 512
    return -(-m // step) * step


def tuning_buckets(max_m: int) -> tuple[int, ...]:
    """Every bucket a batch of at most `max_m` rows can fall into, ascending; 16 of them for 2048.

    FlashInfer appends `max_m` itself even where it is no bucket, and so times 300 rows but files the result under 512.
    Here the last entry is the bucket of `max_m`. KernelError `m-out-of-range` below 1 or above 2^31.
    """
    if max_m < 1:
        raise KernelError("m-out-of-range", f"max M={max_m} leaves nothing to tune: give at least 1 row")
    last = hybrid_m_bucket(max_m)
    buckets = [1]
    while buckets[-1] < last:
        buckets.append(hybrid_m_bucket(buckets[-1] + 1))
    return tuple(buckets)
