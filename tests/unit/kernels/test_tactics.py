from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kernels.errors import KernelError
from kernels.tactics import CUTLASS_TACTICS, HOPPER_EXPANDED, Tactic, TacticFamily, TacticSet, fnv1a64


@dataclass(frozen=True)
class OwnDescriptor:
    id: int
    descriptor: str


def test_the_cutlass_set_has_the_published_digest() -> None:
    assert len(CUTLASS_TACTICS) == 32
    assert CUTLASS_TACTICS.digest == "5f63ff989d840dfb"
    assert (CUTLASS_TACTICS.runner, CUTLASS_TACTICS.version) == ("CutlassFp4GemmRunner", 2)


def test_ids_are_in_abi_order_and_each_names_its_configuration() -> None:
    assert [tactic.id for tactic in CUTLASS_TACTICS] == list(range(32))
    assert CUTLASS_TACTICS.by_id(0).descriptor == "0:128:32:128:1:0:128x32x128/swap/dp;"
    assert CUTLASS_TACTICS.by_id(25).descriptor == "25:256:128:128:0:0:256x128x128/ordinary/dp;"
    assert CUTLASS_TACTICS.by_id(31).descriptor == "31:128:256:128:0:1:128x256x128/ordinary/stream-k;"


def test_fnv_gives_the_published_vectors() -> None:
    assert fnv1a64(b"") == "cbf29ce484222325"
    assert fnv1a64(b"foobar") == "85944171f73967e8"


def test_the_digest_changes_with_order_and_with_any_member() -> None:
    tactics = tuple(tactic for tactic in CUTLASS_TACTICS if isinstance(tactic, Tactic))
    swapped = TacticSet("r", 2, (tactics[1], tactics[0], *tactics[2:]))
    edited = TacticSet("r", 2, (replace(tactics[0], tile_n=64), *tactics[1:]))
    assert len({CUTLASS_TACTICS.digest, swapped.digest, edited.digest}) == 3


def test_a_backend_brings_its_own_descriptors() -> None:
    own = TacticSet("OwnRunner", 1, (OwnDescriptor(3, "3:a;"), OwnDescriptor(7, "7:b;")))
    assert own.digest == fnv1a64(b"3:a;7:b;")
    assert 7 in own and 4 not in own and True not in own and 3.0 not in own
    assert own.bypass_id == 3


def test_the_bypass_of_cutlass_is_what_flashinfer_falls_back_to() -> None:
    tactic = CUTLASS_TACTICS.by_id(CUTLASS_TACTICS.bypass_id)
    assert tactic.descriptor == "21:128:128:256:0:0:128x128x256/ordinary/dp;"


def test_an_unknown_id_names_the_known_range() -> None:
    with pytest.raises(KernelError, match=r"no tactic 32; known: 0\.\.31") as caught:
        CUTLASS_TACTICS.by_id(32)
    assert caught.value.code == "unknown-tactic"


@pytest.mark.parametrize(
    ("tactics", "default"),
    [
        ((), None),
        ((OwnDescriptor(1, "x"), OwnDescriptor(1, "y")), None),
        ((OwnDescriptor(-1, "x"),), None),
        ((OwnDescriptor(1, "x"),), 2),
    ],
)
def test_a_set_that_cannot_be_addressed_is_refused(tactics: tuple[OwnDescriptor, ...], default: int | None) -> None:
    with pytest.raises(KernelError) as caught:
        TacticSet("r", 1, tactics, default)
    assert caught.value.code == "bad-tactic-set"


def test_a_family_counts_ids_on_and_names_each_runner_with_its_own_id() -> None:
    family = TacticFamily.of("both", 3, HOPPER_EXPANDED, TacticSet("other", 1, (OwnDescriptor(0, "0:x;"),)))
    assert [family.named(0), family.named(31), family.named(32)] == [
        ("hopper_cutlass_bf16", 0),
        ("hopper_cutlass_bf16", 31),
        ("other", 0),
    ]
    assert (family.find("other", 0), family.find("other", 1), family.find("none", 0)) == (32, None, None)
    assert (family.runners, family.bypass_id) == (("hopper_cutlass_bf16", "other"), 21)
    assert len({family.digest, HOPPER_EXPANDED.digest, CUTLASS_TACTICS.digest}) == 3
