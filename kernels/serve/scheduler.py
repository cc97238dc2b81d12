"""Continuous batching, as values: which sequences run in the next step, and how many tokens of each.

A step holds at most `max_num_batched_tokens` tokens. Sequences that decode come first with one token each; what is left
goes to prompts in arrival order, cut into chunks. A sequence owns one KV slot from admission to its end, so nothing
is ever preempted.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

__all__ = ["Batch", "Limits", "Piece", "Scheduler", "Sequence"]


@dataclass(frozen=True)
class Limits:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(eq=False)
class Sequence:
    """One request inside the engine. `computed` counts the tokens whose keys and values lie in the cache."""

    prompt: SequenceOf[int]
    max_tokens: int
    stop_token: int | None = None
    output: list[int] = field(default_factory=list)
    computed: int = 0
    slot: int = -1
    finish_reason: str | None = None

    @property
    def decoding(self) -> bool:
        return self.computed >= len(self.prompt)

    def accept(self, token: int) -> None:
        """Append one sampled token and decide whether it was the last."""
        self.output.append(token)
        if token == self.stop_token:
            self.finish_reason = "stop"
        elif len(self.output) >= self.max_tokens:
            self.finish_reason = "length"


@dataclass(frozen=True)
class Piece:
    """`count` tokens of one sequence from position `start`. `samples` when the last of them predicts a new token."""

    sequence: Sequence
    start: int
    count: int
    samples: bool

    def tokens(self) -> SequenceOf[int]:
        if self.start >= len(self.sequence.prompt):
            return self.sequence.output[-1:]
        return self.sequence.prompt[self.start : self.start + self.count]


@dataclass(frozen=True)
class Batch:
    decodes: tuple[Piece, ...]  # one token each, by slot
    prefills: tuple[Piece, ...]  # in arrival order

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.decodes + self.prefills


class Scheduler:
    """First come, first served. Slots are handed out lowest first, so that running ones lie side by side."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._free = list(range(limits.max_num_seqs))

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def next_batch(self) -> Batch:
        """The next step's work. Admits waiting sequences while a slot and a token of the budget are left."""
        decodes = sorted((s for s in self.running if s.decoding), key=lambda s: s.slot)
        budget = self.limits.max_num_batched_tokens
        decodes = decodes[:budget]
        budget -= len(decodes)
        prefills = []
        for sequence in (s for s in self.running if not s.decoding):
            if budget > 0:
                prefills.append(_prompt_piece(sequence, budget))
                budget -= prefills[-1].count
        while budget > 0 and self.waiting and self._free:
            sequence = self.waiting.popleft()
            sequence.slot = heapq.heappop(self._free)
            self.running.append(sequence)
            prefills.append(_prompt_piece(sequence, budget))
            budget -= prefills[-1].count
        return Batch(tuple(Piece(s, s.computed, 1, True) for s in decodes), tuple(prefills))

    def advance(self, batch: Batch, sampled: SequenceOf[int]) -> list[tuple[Sequence, int]]:
        """Record a finished step. `sampled` holds one token for each sampling piece, in the order of `pieces`."""
        tokens = iter(sampled)
        delivered = []
        for piece in batch.pieces:
            sequence = piece.sequence
            sequence.computed += piece.count
            if not piece.samples:
                continue
            token = next(tokens)
            if sequence.finish_reason is None:
                sequence.accept(token)
                delivered.append((sequence, token))
                if sequence.finish_reason is not None:
                    self._release(sequence)
        return delivered

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence whose client has gone. Between steps only; harmless when it has already ended."""
        if sequence.finish_reason is not None:
            return
        sequence.finish_reason = "abort"
        if sequence in self.running:
            self._release(sequence)
        else:
            self.waiting.remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        heapq.heappush(self._free, sequence.slot)


def _prompt_piece(sequence: Sequence, budget: int) -> Piece:
    count = min(budget, len(sequence.prompt) - sequence.computed)
    return Piece(sequence, sequence.computed, count, sequence.computed + count == len(sequence.prompt))
