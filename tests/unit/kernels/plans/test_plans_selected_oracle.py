from __future__ import annotations

import hashlib

from kernels.buckets import tuning_buckets
from kernels.plans import flashinfer, oracle
from kernels.plans.selected import SelectedPlan, map_sha256, selected, selected_lines

SOURCE = "b41a8ecc18d69174b20263ee85be097d2dd5cf717efd65a03eb466c0c99cf677"
DOCUMENT = "e81e9181db20d0537a43a101fe4f93aa57df9e42900e8a21c91cafa61e107edd"
SELECTED_MAP = "f2d9be7fc4a89de1cfa994ab9be08a423e0c4f6981fe46cb808cef485f4c1fa4"


def test_the_table_regenerates_the_binding_document_byte_for_byte() -> None:
    data = oracle.document_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (11_948, DOCUMENT)
    assert (len(data[:-1]), hashlib.sha256(data[:-1]).hexdigest()) == (11_947, SOURCE)


def test_the_manifest_states_the_digests_that_the_bytes_have() -> None:
    manifest = oracle.manifest()
    assert manifest["source"]["sha256"] == SOURCE
    assert manifest["document"]["sha256"] == DOCUMENT
    assert manifest["selected_map_sha256"] == SELECTED_MAP
    assert manifest["plans"] == len(oracle.plans()) == 64


def test_the_imported_document_gives_the_oracle_map() -> None:
    document = flashinfer.parse(oracle.document_bytes(), flashinfer.GB10_ORACLE, "oracle")
    assert document.plans == oracle.plans()
    assert document.foreign == 0
    assert map_sha256(selected(document.plans)) == SELECTED_MAP


def test_the_oracle_covers_every_bucket_of_2048_tokens_for_four_shapes() -> None:
    keys = oracle.plans().keys()
    shapes = {(n, k) for _, n, k in keys}
    assert shapes == {(5120, 6144), (5120, 17408), (14336, 5120), (34816, 5120)}
    assert set(keys) == {(m, n, k) for m in tuning_buckets(2048) for n, k in shapes}


def test_the_map_is_hashed_in_shape_order_whatever_the_order_given() -> None:
    plans = [(16, 2, 32, 5), (2, 2, 32, 4)]
    lines = "[VT_FP4_CACHE] selected M=2 N=2 K=32 tactic=4\n[VT_FP4_CACHE] selected M=16 N=2 K=32 tactic=5\n"
    assert selected_lines(plans) == lines
    assert map_sha256(reversed(plans)) == map_sha256(plans) == hashlib.sha256(lines.encode()).hexdigest()


def test_one_other_tactic_or_one_missing_key_is_another_map() -> None:
    plans = selected(oracle.plans())
    other = [*plans[:16], SelectedPlan(*plans[16][:3], plans[16].tactic_id ^ 2), *plans[17:]]
    assert len({map_sha256(plans), map_sha256(other), map_sha256(plans[:-1])}) == 3
