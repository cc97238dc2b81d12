"""Tactics: the numbered ways a backend can run one FP4 GEMM, and the digest that makes their order part of a plan.

`CUTLASS_TACTICS` is the order of FlashInfer 0.6.13's SM120/SM121 runner, tile K in FP4 values (its header counts
bytes). Id = 4 * tile + 2 * stream_k + (0 if swap_ab else 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Protocol

from kernels.errors import KernelError

__all__ = ["CUTLASS_TACTICS", "HOPPER_EXPANDED", "Descriptor", "Tactic", "TacticFamily", "TacticSet", "fnv1a64"]

_FNV_OFFSET = 14695981039346656037
_FNV_PRIME = 1099511628211
_TILES = (
    (128, 32, 128),
    (128, 32, 256),
    (128, 64, 128),
    (128, 64, 256),
    (128, 128, 128),
    (128, 128, 256),
    (256, 128, 128),
    (128, 256, 128),
)


def fnv1a64(data: bytes) -> str:
    """FNV-1a, 64 bits, as 16 lower-case hexadecimal digits."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


class Descriptor(Protocol):
    """What a tactic set needs of a tactic: its id, and everything that defines it as one text ending in `;`."""

    @property
    def id(self) -> int: ...

    @property
    def descriptor(self) -> str: ...


@dataclass(frozen=True)
class Tactic:
    """One CUTLASS configuration; tile sizes in elements. `swap_ab` computes the transposed product."""

    id: int
    tile_m: int
    tile_n: int
    tile_k: int
    swap_ab: bool
    stream_k: bool

    @property
    def name(self) -> str:
        side = "swap" if self.swap_ab else "ordinary"
        schedule = "stream-k" if self.stream_k else "dp"
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k}/{side}/{schedule}"

    @property
    def descriptor(self) -> str:
        tile = f"{self.tile_m}:{self.tile_n}:{self.tile_k}"
        return f"{self.id}:{tile}:{int(self.swap_ab)}:{int(self.stream_k)}:{self.name};"


@dataclass(frozen=True)
class TacticSet:
    """The tactics of one runner, in ABI order. `default_id` runs when plans are bypassed; None takes the first.

    Raises KernelError `bad-tactic-set` when there is no tactic, an id repeats or is negative, or the default is absent.
    """

    runner: str
    version: int
    tactics: tuple[Descriptor, ...]
    default_id: int | None = None

    def __post_init__(self) -> None:
        ids = [tactic.id for tactic in self.tactics]
        if not self.runner or not ids or len(set(ids)) != len(ids) or min(ids) < 0:
            raise KernelError(
                "bad-tactic-set", f"{self.runner or 'a runner'} needs tactics with distinct ids >= 0: {ids}"
            )
        if self.default_id is not None and self.default_id not in ids:
            raise KernelError("bad-tactic-set", f"default tactic {self.default_id} of {self.runner} is none of {ids}")

    @cached_property
    def digest(self) -> str:
        """FNV-1a 64 over the descriptors in order: a reordered or edited set has another digest."""
        return fnv1a64("".join(tactic.descriptor for tactic in self.tactics).encode())

    @cached_property
    def _index(self) -> dict[int, Descriptor]:
        return {tactic.id: tactic for tactic in self.tactics}

    @property
    def bypass_id(self) -> int:
        """The tactic that runs with VT_FP4_PLAN_CACHE=0."""
        return self.tactics[0].id if self.default_id is None else self.default_id

    def by_id(self, tactic_id: int) -> Descriptor:
        """The tactic with this id; KernelError `unknown-tactic` names the ids there are."""
        try:
            return self._index[tactic_id]
        except KeyError:
            known = f"{min(self._index)}..{max(self._index)}"
            raise KernelError("unknown-tactic", f"{self.runner} has no tactic {tactic_id}; known: {known}") from None

    def named(self, tactic_id: int) -> tuple[str, int]:
        """The runner of a tactic and its id there: what a plan document says."""
        return self.runner, tactic_id

    def find(self, runner: str, tactic_id: int) -> int | None:
        """The id in this set of a runner's tactic; None when the runner or its tactic is unknown."""
        return tactic_id if runner == self.runner and tactic_id in self else None

    @property
    def runners(self) -> tuple[str, ...]:
        return (self.runner,)

    def __contains__(self, tactic_id: object) -> bool:
        return isinstance(tactic_id, int) and not isinstance(tactic_id, bool) and tactic_id in self._index

    def __iter__(self) -> Iterator[Descriptor]:
        return iter(self.tactics)

    def __len__(self) -> int:
        return len(self.tactics)


@dataclass(frozen=True)
class _Member:
    """A tactic of one runner inside a family."""

    id: int
    runner: str
    tactic: Descriptor

    @property
    def descriptor(self) -> str:
        return f"{self.runner}:{self.tactic.descriptor}"


@dataclass(frozen=True)
class TacticFamily(TacticSet):
    """Several runners' tactics as one set, for a device where tuning chooses across them. Ids count on from member to
    member, in the order given; documents name the runner and its own id (`named`, `find`)."""

    members: tuple[TacticSet, ...] = ()

    @classmethod
    def of(cls, name: str, version: int, *members: TacticSet) -> TacticFamily:
        """The default tactic is the first member's."""
        numbered = enumerate((member.runner, tactic) for member in members for tactic in member)
        tactics = tuple(_Member(number, runner, tactic) for number, (runner, tactic) in numbered)
        default = [tactic.id for tactic in members[0]].index(members[0].bypass_id)
        return cls(name, version, tactics, default, members)

    def named(self, tactic_id: int) -> tuple[str, int]:
        member = self.by_id(tactic_id)
        assert isinstance(member, _Member)
        return member.runner, member.tactic.id

    def find(self, runner: str, tactic_id: int) -> int | None:
        return self._own_ids.get((runner, tactic_id))

    @cached_property
    def _own_ids(self) -> dict[tuple[str, int], int]:
        return {self.named(tactic.id): tactic.id for tactic in self}

    @property
    def runners(self) -> tuple[str, ...]:
        return tuple(member.runner for member in self.members)


def _cutlass(k_divisor: int = 1) -> Iterator[Tactic]:
    order = product(_TILES, (False, True), (True, False))
    for tactic_id, ((tile_m, tile_n, tile_k), stream_k, swap_ab) in enumerate(order):
        yield Tactic(tactic_id, tile_m, tile_n, tile_k // k_divisor, swap_ab, stream_k)


# 21 = 128x128x256/ordinary/dp, what FlashInfer runs for its fallback tactic -1: its 128x128x128 counts K in bytes.
CUTLASS_TACTICS = TacticSet("CutlassFp4GemmRunner", 2, tuple(_cutlass()), default_id=21)
# The same order on Hopper, where operands are expanded to bfloat16 and a tile holds half as much of K.
HOPPER_EXPANDED = TacticSet("hopper_cutlass_bf16", 1, tuple(_cutlass(2)), default_id=21)
