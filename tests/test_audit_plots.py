"""The readings of an audit's counts (trade-off curve, Gaussian parameter) and the pictures of it."""

import importlib
import sys

import numpy as np
import pytest
from scipy import special, stats

from jaxdp.audit import _plot
from jaxdp.audit.report import AuditReport
from jaxdp.audit.views import claimed_tradeoff, gaussian_lower, tradeoff

pytest.importorskip("matplotlib")
plots = importlib.import_module("jaxdp.audit.plots")

CUTS = np.linspace(-2.5, 2.5, 31)
RUNS = 4000


def report(mu=1.0, seed=0, runs=RUNS, epsilon=1.0, confidence=0.9):
    """An audit of the Gaussian mechanism by half lines: N(mu, 1) against N(0, 1)."""
    rng = np.random.default_rng(seed)
    hits = [tuple(np.sum(rng.normal(at, 1.0, runs)[:, None] > -CUTS, axis=0).tolist()) for at in (mu, 0.0)]
    middle = len(CUTS) // 2
    return AuditReport(
        "gaussian", epsilon, 0.01, confidence, 2 * runs, "output > 0", "summary over neighbour",
        hits[0][middle], runs, hits[1][middle], runs, *hits,
    )  # fmt: skip


def gaussian_tradeoff(rates, mu=1.0):
    return special.ndtr(special.ndtri(1.0 - rates) - mu)


# -- readings -----------------------------------------------------------------------------------------------


def hull_of_estimates(found):
    one, other = _plot.nested_rates(found)
    return np.concatenate([[0.0], other, [1.0]]), np.concatenate([[1.0], 1.0 - one, [0.0]])


def test_the_certified_curve_is_convex_and_lies_above_the_true_one():
    inside = np.linspace(0.001, 0.999, 200)
    wrong, naive, gaps = 0, 0, []
    for seed in range(200):
        found = report(seed=seed)
        rates, misses = tradeoff(found)
        assert (rates[0], misses[0], rates[-1], misses[-1]) == (0.0, 1.0, 1.0, 0.0)
        assert np.all(np.diff(rates) > 0) and np.all(np.diff(np.diff(misses) / np.diff(rates)) > -1e-12)
        lower, upper = found.band
        assert np.all(np.interp(upper, rates, misses) <= 1.0 - lower + 1e-12)
        truth = gaussian_tradeoff(inside)
        wrong += bool(np.any(np.interp(inside, rates, misses) < truth - 1e-12))
        naive += bool(np.any(np.interp(inside, *hull_of_estimates(found)) < truth - 1e-12))
        gaps.append(np.max(np.interp(inside, rates, misses) - truth))
    # The confidence is 0.9: more than 45 of 200 has probability 1e-7. A negative control: estimates are no bound.
    assert wrong <= 45 and naive > 150
    assert np.median(gaps) < 0.06  # not valid by silence


def test_the_certified_gaussian_parameter_is_valid_and_close():
    for mu in (0.0, 1.0):
        found = np.array([gaussian_lower(report(mu, seed)) for seed in range(200)])
        assert np.sum(found > mu) <= 45
    assert np.median(found) > 0.85
    # A negative control: without the limits nearly all exceed the truth.
    estimates = []
    for seed in range(50):
        one, other = _plot.nested_rates(report(1.0, seed))
        estimates.append(np.max(special.ndtri(one[5:-5]) - special.ndtri(other[5:-5])))
    assert np.sum(np.array(estimates) > 1.0) > 40


def test_the_reverse_direction_certifies_no_gaussian_parameter():
    found = report(1.0)
    swapped = AuditReport(
        **{name: getattr(found, name) for name in found.__dataclass_fields__}
        | dict(nested_hits=found.nested_other_hits, nested_other_hits=found.nested_hits)
    )
    assert gaussian_lower(swapped) == 0.0


def test_events_never_and_always_seen():
    never = AuditReport("", 1.0, 0.0, 0.95, 200, "", "", 100, 100, 0, 100)
    rates, misses = tradeoff(never)
    assert np.all(np.isfinite([*rates, *misses])) and 2.0 < gaussian_lower(never) < np.inf
    sure = AuditReport("", 1.0, 0.0, 0.95, 200, "", "", 100, 100, 100, 100)
    assert tradeoff(sure)[0].tolist() == [0.0, 1.0] and gaussian_lower(sure) == 0.0


@pytest.mark.parametrize("epsilon, delta", [(0.0, 0.0), (1.0, 0.0), (0.5, 0.1)])
def test_the_claimed_tradeoff_is_that_of_randomised_response(epsilon, delta):
    rates = np.linspace(0.0, 1.0, 101)
    curve = claimed_tradeoff(epsilon, delta, rates)
    p = np.array([delta, (1 - delta) * np.exp(epsilon) / (1 + np.exp(epsilon)), (1 - delta) / (1 + np.exp(epsilon)), 0])
    q = p[::-1]
    # The best tests reject outcomes in the order of their ratios.
    corners = np.concatenate([[0.0], np.cumsum(q)]), 1.0 - np.concatenate([[0.0], np.cumsum(p)])
    first = np.searchsorted(corners[0], 0.0, side="right") - 1
    np.testing.assert_allclose(curve, np.interp(rates, corners[0][first:], corners[1][first:]), atol=1e-12)


# -- pictures -----------------------------------------------------------------------------------------------


def drawn(figure, tmp_path):
    """Draws the figure to a file, and gives its panel."""
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
    return figure.axes[0]


def line(axis, label):
    return next(line for line in axis.lines if str(line.get_label()).startswith(label)).get_xydata()


def test_the_tradeoff_curve(tmp_path):
    found = report(3.0)
    rates = np.linspace(0.0, 1.0, 50)
    axis = drawn(plots.tradeoff_curve(found, exact=(rates, gaussian_tradeoff(rates, 3.0))), tmp_path)
    certified, claimed = line(axis, "certified"), line(axis, "claimed")
    np.testing.assert_array_equal(certified.T, tradeoff(found))
    # The claim is refuted, which shows where the certified line is below the claimed one.
    assert np.min(np.interp(claimed[:, 0], *certified.T) - claimed[:, 1]) < -0.1
    assert axis.get_title().startswith("gaussian\ncertified mu >= 2.")


def test_the_privacy_profile(tmp_path):
    found = report(epsilon=1.5)

    def exact(epsilons):
        return special.ndtr(0.5 - epsilons) - np.exp(epsilons) * special.ndtr(-0.5 - epsilons)

    axis = drawn(plots.privacy_profile(found, exact=exact, most=2.0), tmp_path)
    certified, truth = line(axis, "certified"), line(axis, "exact")
    assert np.all(certified[:, 1] <= truth[:, 1]) and certified[0, 1] > 0.3
    np.testing.assert_allclose(line(axis, "the claim"), [[1.5, 0.01]])


def test_the_log_ratios(tmp_path):
    values = np.concatenate([np.linspace(-3.0, 3.0, 601), [-np.inf, np.inf]])
    p = np.append(stats.norm.pdf(values[:-2], 0.5), [0.0, 0.5])
    q = np.append(stats.norm.pdf(values[:-2], -0.5), [0.5, 0.0])
    axis = drawn(plots.log_ratios(values, p / p.sum(), q / q.sum(), threshold=1.0, claimed=2.0), tmp_path)
    labels = [text.get_text() for text in axis.figure.legends[0].get_texts()]
    power, size = (float(np.sum(each[values > 1.0]) / each.sum()) for each in (p, q))
    assert f"event: above 1\n({power:.3g} against {size:.3g})" in labels and "claimed epsilon 2" in labels
    assert [text.get_text() for text in axis.texts] == ["-inf", "inf"]
    bars = [patch for patch in axis.patches if hasattr(patch, "get_height")]
    assert sum(bar.get_height() for bar in bars) == pytest.approx(2.0)
    # One value alone has bars too.
    drawn(plots.log_ratios([0.0], [1.0], [1.0]), tmp_path)
    with pytest.raises(ValueError, match=r"without NaN, got shapes \(2,\), \(1,\)"):
        plots.log_ratios([0.0, 1.0], [1.0], [1.0])


def test_certificates_against_runs(tmp_path):
    runs, certified = np.array([0, 100, 200, 400, 800]), np.array([0.0, 1.2, 0.8, 1.1, 1.3])
    figure = plots.certificates(runs, certified, claimed=1.0, exact=1.4, predicted=certified + 0.1, title="t")
    axis = drawn(figure, tmp_path)
    # By luck 100 runs refute and 200 do not: the star is where all longer audits refute.
    assert axis.texts[0].get_text() == "refuted from 400 runs on" and axis.get_title() == "t"
    np.testing.assert_array_equal(line(axis, "certified"), np.stack([runs, certified], axis=1)[1:])
    assert not drawn(plots.certificates(runs, certified, claimed=2.0), tmp_path).texts
    assert drawn(plots.certificates(np.arange(1, 90), np.arange(1, 90) / 50, claimed=1.0), tmp_path).texts
    with pytest.raises(ValueError, match="runs and certified must be"):
        plots.certificates([1, 2], [1.0], claimed=1.0)


def test_the_heat_map(tmp_path):
    values = np.array([[0.5, 1.5, np.nan], [0.0, 1.0, 0.25]])
    axis = drawn(plots.heat_map(values, ["one", "two"], ["a", "b", "c"], claimed=1.0), tmp_path)
    assert [text.get_text() for text in axis.texts] == ["0.5", "1.5", "none", "0", "1", "0.25"]
    assert len(axis.patches) == 1  # one frame
    drawn(plots.heat_map(np.zeros((1, 1)), ["one"], ["a"]), tmp_path)
    with pytest.raises(ValueError, match=r"values must have shape \(1, 1\), not empty, got \(2, 3\)"):
        plots.heat_map(values, ["one"], ["a"])


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdp-privacy\[plot\]'"):
        plots.heat_map(np.zeros((1, 1)), ["one"], ["a"])
