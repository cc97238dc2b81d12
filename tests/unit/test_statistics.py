"""Student's t and its company against scipy, and Holm, TOST and Satterthwaite by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from harness.statistics import holm, rounded, satterthwaite, t_quantile, t_two_sided, t_upper, tost

FREEDOM = [1, 2, 2.5, 3, 7, 7.3, 8, 13.9, 14, 20, 28, 40, 77.7, 100, 200]


@pytest.mark.parametrize("df", FREEDOM)
def test_quantiles_agree_with_scipy_to_twelve_digits(df: float) -> None:
    for upper in (0.4, 0.25, 0.2, 0.1, 0.05, 0.025, 0.01, 0.05 / 80, 0.05 / 248, 1e-6, 1e-9):
        assert t_quantile(upper, df) == pytest.approx(stats.t.isf(upper, df), rel=1e-12)


@pytest.mark.parametrize("df", FREEDOM)
def test_tails_agree_with_scipy_to_twelve_digits(df: float) -> None:
    for t in (0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0):
        assert t_two_sided(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=1e-12)
        assert t_upper(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-12)
        assert t_upper(-t, df) == pytest.approx(stats.t.cdf(t, df), rel=1e-12)


def test_the_ends_of_the_distribution_are_exact() -> None:
    assert t_two_sided(0.0, 7) == 1.0
    assert t_two_sided(math.inf, 7) == 0.0
    assert t_quantile(0.5, 7) == 0.0


def test_holm_is_in_order_and_counts_hypotheses_without_a_p_value() -> None:
    assert holm([0.01, 0.04, 0.03], 3) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, 0.04, 0.03], 5) == pytest.approx([0.05, 0.12, 0.12])
    assert holm([0.5, 0.9], 40) == [1.0, 1.0]
    assert holm([], 3) == []


def test_two_one_sided_tests_are_scipys() -> None:
    estimate, se, df, margin = 0.001, 0.0012, 9.0, 0.005
    lower = stats.t.sf((estimate + margin) / se, df)
    upper = stats.t.cdf((estimate - margin) / se, df)
    assert tost(estimate, se, df, margin) == pytest.approx(max(lower, upper), rel=1e-12)
    assert tost(0.004, 0.0, df, margin) == 0.0
    assert tost(0.006, 0.0, df, margin) == 1.0


def test_satterthwaite_lies_between_its_terms_and_is_exact_for_one() -> None:
    assert satterthwaite([(2.0, 7)]) == 7
    assert satterthwaite([(1.0, 8), (1.0, 8)]) == pytest.approx(16)
    assert 7 < satterthwaite([(3.0, 7), (0.5, 16)]) < 23
    assert satterthwaite([(0.0, 7), (0.0, 16)]) == 7


def test_rounding_keeps_nine_digits_and_no_negative_zero() -> None:
    assert rounded(0.1234567891234) == 0.123456789
    assert rounded(None) is None
    assert math.copysign(1, rounded(-0.0) or 0.0) == 1
