"""Captured decode steps, one graph a batch bucket: a step that only decodes is then one launch.

A row is a slot: row i of a graph is slot i, so that no row has to be gathered. The row of a slot that does not decode
writes at the slot's last position, which nobody reads before the token that belongs there has been stored.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from kernels.backends.base import ActivationProducer
from kernels.backends.cuda import CudaBackend, Graph
from kernels.nvfp4 import F32
from kernels.serve.model import Decoder
from kernels.serve.scheduler import Batch, Limits

__all__ = ["DecodeGraphs", "buckets"]


def buckets(most: int) -> tuple[int, ...]:
    """Powers of two below `most`, and `most`."""
    sizes = [1]
    while sizes[-1] * 2 < most:
        sizes.append(sizes[-1] * 2)
    return (*sizes, most) if most > 1 else (1,)


class DecodeGraphs:
    """Captures every bucket when made, each behind one ordinary run: so kernels are loaded, buffers reserved and plans
    found before the capture. CaptureMissError where a plan is missing, before the capture enqueues anything."""

    def __init__(self, model: Decoder, backend: CudaBackend, producer: ActivationProducer, limits: Limits) -> None:
        self._model = model
        self._backend = backend
        self._producer = producer
        self._idle = limits.max_model_len - 1
        self._inputs: dict[int, Any] = {}
        self._graphs: dict[int, Graph] = {}
        self._sizes = buckets(limits.max_num_seqs)
        for size in self._sizes:
            inputs = self._inputs[size] = backend.xp.zeros((2, size), dtype=np.int64)  # tokens and positions
            slots = backend.xp.arange(size, dtype=np.int64)
            work = partial(model.decode, inputs[0], inputs[1], slots)
            work()
            forwards = model.forwards
            self._graphs[size] = backend.capture(work, lambda: producer.standalone_swizzles)
            model.forwards = forwards  # nothing ran yet

    def run(self, batch: Batch) -> F32 | None:
        """Logits of a step that only decodes, in the order of its pieces; None for another."""
        if batch.prefills:
            return None
        slots = [piece.sequence.slot for piece in batch.decodes]
        size = next(size for size in self._sizes if size > slots[-1])
        rows = np.zeros((2, size), dtype=np.int64)
        rows[1] = self._idle
        for piece in batch.decodes:
            rows[:, piece.sequence.slot] = piece.tokens()[0], piece.start
        self._inputs[size].set(rows)
        graph = self._graphs[size]
        logits = graph.launch()
        self._producer.standalone_swizzles += graph.swizzles
        self._model.forwards += 1
        result: F32 = logits if len(slots) == size else logits[self._backend.xp.asarray(slots)]
        return result
