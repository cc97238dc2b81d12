from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import PlanDocumentError
from kernels.plans import flashinfer_key, oracle
from kernels.plans.document import check_shape
from kernels.plans.flashinfer_key import (
    OPERATION,
    RUNNER,
    CommonKeys,
    PlanName,
    claims_fp4,
    key_text,
    read_common,
    read_key,
)
from kernels.plans.literal import LiteralError, read_tuple

SMALL = st.sampled_from([-1, 0, 1, 2, 3, 4, 8, 16, 24, 32, 128, 130, 256, 384])
PLACES = st.tuples(*[SMALL] * 9)


def text(m: int, half: int, n: int, scales: tuple[int, int, int], alpha: str = "()") -> str:
    a, b, columns = scales
    inputs = f"(({m}, {half}), ({half}, {n}), (-1, {a}), ({b}, {columns}), {alpha}, (0,), (-1, {n}), (0,), (0,), (-1,))"
    return f"('{OPERATION}', '{RUNNER}', {inputs}, ())"


def reason(key: str) -> str:
    with pytest.raises(PlanDocumentError) as caught:
        read_key(key, "x")
    assert caught.value.code == "bad-key"
    return caught.value.message


def test_a_key_is_written_as_python_writes_the_tuple() -> None:
    wanted = (
        "('fp4_gemm', 'CutlassFp4GemmRunner', ((16, 3072), (3072, 5120), (-1, 384), (384, 5120), (), (0,), "
        "(-1, 5120), (0,), (0,), (-1,)), ())"
    )
    assert key_text(16, 5120, 6144) == wanted


@pytest.mark.parametrize(
    ("n", "k", "scales", "padded"),
    [
        (5120, 6144, (384, 384, 5120), False),
        (5000, 6144, (384, 384, 5000), False),
        (5000, 6144, (384, 384, 5120), True),
        (5120, 6160, (385, 385, 5120), False),
        (5120, 6160, (388, 388, 5120), True),
        (5000, 6160, (388, 388, 5120), True),
    ],
)
def test_scales_may_be_as_counted_or_as_allocated(n: int, k: int, scales: tuple[int, int, int], padded: bool) -> None:
    assert read_key(text(16, k // 2, n, scales), "x") == PlanName((16, n, k), padded, False)


@pytest.mark.parametrize(
    "scales", [(385, 388, 5120), (388, 385, 5000), (385, 385, 5120), (388, 388, 5000), (384, 384, 5120)]
)
def test_a_mixture_of_both_forms_is_no_plan(scales: tuple[int, int, int]) -> None:
    assert "descale" in reason(text(16, 3080, 5000, scales))


def test_alpha_may_have_no_dimension_or_one_element() -> None:
    scales = (384, 384, 5120)
    assert read_key(text(16, 3072, 5120, scales, "()"), "x").alpha_1d is False
    assert read_key(text(16, 3072, 5120, scales, "(1,)"), "x").alpha_1d is True


@pytest.mark.parametrize("alpha", ["(0,)", "(-1,)", "(2,)", "(1, 1)", "(True,)", "1", "None"])
def test_any_other_alpha_is_of_another_runner(alpha: str) -> None:
    assert "input alpha is" in reason(text(16, 3072, 5120, (384, 384, 5120), alpha))


def test_scales_of_32_values_are_called_mxfp4() -> None:
    assert "MXFP4" in reason(text(16, 3072, 5120, (192, 192, 5120)))


@given(PLACES, st.sampled_from(["()", "(1,)", "(0,)"]))
def test_the_short_way_accepts_exactly_what_the_long_way_accepts(sizes: tuple[int, ...], alpha: str) -> None:
    m, half, rows, n, a, b, columns, out, extra = sizes
    key = (
        f"('{OPERATION}', '{RUNNER}', (({m}, {half}), ({rows}, {n}), (-1, {a}), ({b}, {columns}), {alpha}, (0,), "
        f"(-1, {out}), (0,), (0,), ({extra},)), ())"
    )
    assert_ways_agree(key)


@given(st.integers(1, 64), st.integers(1, 40), st.integers(1, 600), st.booleans(), st.booleans())
def test_both_ways_read_every_form_of_a_shape(m: int, blocks: int, n: int, padded: bool, one: bool) -> None:
    up = (-(-blocks // 4) * 4, -(-n // 128) * 128) if padded else (blocks, n)
    key = text(m, 8 * blocks, n, (up[0], up[0], up[1]), "(1,)" if one else "()")
    assert read_common(key) == PlanName((m, n, 16 * blocks), up != (blocks, n), one)
    assert_ways_agree(key)


@given(st.sampled_from(sorted(oracle.plans())), st.data())
def test_both_ways_agree_on_damaged_keys(shape: tuple[int, int, int], data: st.DataObject) -> None:
    key = key_text(*shape)
    at = data.draw(st.integers(0, len(key)))
    gone = data.draw(st.integers(0, 3))
    put = data.draw(st.text(alphabet=" 0123456789(),'-\\\t\x00é", max_size=3))
    assert_ways_agree(key[:at] + put + key[at + gone :])


def assert_ways_agree(key: str) -> None:
    short = read_common(key)
    try:
        long = flashinfer_key._explained(key, "x")
    except PlanDocumentError:
        assert short is None
    else:
        negative = min(long.shape) < 0  # M is judged by whoever reads the document
        assert short == long or (short is None and negative)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    key = key_text(*draw(st.sampled_from(sorted(oracle.plans())[:12])))
    if draw(st.booleans()):
        return key
    at = draw(st.integers(0, len(key)))
    put = draw(st.text(alphabet=" 0123456789(),'-", max_size=2))
    return key[:at] + put + key[at + draw(st.integers(0, 2)) :]


@settings(max_examples=300)
@given(st.lists(damaged(), max_size=12))
def test_what_a_document_remembers_of_its_keys_never_changes_what_a_key_means(keys: list[str]) -> None:
    common = CommonKeys()
    for key in keys:
        found = common.read(key)
        if found is not None:
            assert found == read_key(key, "x")
            check_shape(*found.shape, "x")
        elif key in {key_text(*shape) for shape in oracle.plans()}:
            pytest.fail("a right key was not read")


@pytest.mark.parametrize("rows", ["016", "+16", "1_6", "16 ", " 16", "١٦", "-16", "3", "", "16,"])
def test_rows_are_remembered_by_their_exact_text(rows: str) -> None:
    common = CommonKeys()
    key = key_text(16, 5120, 6144)
    assert common.read(key) is not None and common.read(key_text(32, 5120, 6144)) is not None
    found = common.read(key.replace("((16,", f"(({rows},"))
    assert found is None or (found.shape == (16, 5120, 6144) and rows.strip() == "16")


@pytest.mark.parametrize(
    ("key", "claims"),
    [
        (key_text(16, 5120, 6144), True),
        ("( 'fp4_gemm', 'CudnnFp4GemmRunner', 1)", True),
        ("('fp4_gemm','X')", True),
        ("('fp4_gemn', 'CutlassFp4GemmRunner', 1)", True),
        ("('fp4_gemm_2', 'X')", False),
        ("('trtllm_moe', 'MoERunner', ((1, 2),), ())", False),
        ("_note", False),
        ("", False),
    ],
)
def test_what_claims_to_be_an_fp4_plan(key: str, claims: bool) -> None:
    assert claims_fp4(key) is claims


def test_a_literal_is_read_as_python_reads_it() -> None:
    assert read_tuple("('a', (1,), (), -12, True, False, None)") == ("a", (1,), (), -12, True, False, None)


@pytest.mark.parametrize(
    "source",
    [
        "1",
        "'a'",
        "(1)",
        "(1,2,)",
        "(01,)",
        "(-0,)",
        "(1_0,)",
        "(0x1,)",
        "(1.0,)",
        '("a",)',
        "(٣,)",
        "((((((1,),),),),),)",
    ],
)
def test_what_is_no_bounded_tuple_is_refused(source: str) -> None:
    with pytest.raises(LiteralError):
        read_tuple(source)


@given(st.text(alphabet="(),'-01a ", max_size=40).map(lambda inner: f"({inner})"))
def test_any_text_is_read_or_refused(source: str) -> None:
    try:
        read = read_tuple(source)
    except LiteralError:
        return
    assert re.sub(r" ", "", repr(read)) == re.sub(r" ", "", source)
