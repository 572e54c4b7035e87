"""Validity of certificates on the audit catalogue, its best events and its worst pairs."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

from jaxdp.audit.catalogue import catalogue, sparse_vector_variants
from jaxdp.audit.monte_carlo import monte_carlo

pytestmark = pytest.mark.slow

ALPHA = 0.1
ENTRIES = {entry.name: entry for entry in catalogue()}


def audit(key, entry, runs, score, **options):
    options = {"epsilon": entry.epsilon, "num_samples": runs, "confidence": 1.0 - ALPHA, **options}
    return monte_carlo(key, entry.many, *entry.worst, score=score, **options)


def test_the_law_chooses_the_event(key):
    entry = ENTRIES["SVT6"]
    report = audit(key, entry, 10**6, entry.event(10**6, ALPHA), selection=0.01)
    law = entry.loss_law(*entry.worst)
    threshold, _ = law.best_event(10**6, ALPHA)
    assert report.direction == "summary over neighbour"
    for hits, runs, masses in (
        (report.hits, report.runs, law.masses),
        (report.other_hits, report.other_runs, law.other_masses),
    ):
        assert stats.binomtest(hits, runs, np.sum(masses[law.values >= threshold - 1e-9])).pvalue > 1e-9
    with pytest.raises(ValueError, match="entry must have a law of its loss, got 'Algorithm 3'"):
        sparse_vector_variants(1.0, 3, 5)[2].event(100, ALPHA)


@pytest.mark.parametrize("name", ["ReportNoisyMax1", "RAPPOR"])
def test_few_certificates_exceed_the_truth(key, name):
    entry = ENTRIES[name]
    epsilon, score = entry.loss_law(*entry.worst).epsilon, entry.log_ratio(*entry.worst)
    certified = [audit(each, entry, 2**14, score).epsilon_lower for each in jax.random.split(key, 200)]
    assert np.sum(np.array(certified) > epsilon) <= 200 * ALPHA + 3.0 * math.sqrt(200 * ALPHA * (1.0 - ALPHA))
    # Negative control: zero is exceeded more often.
    assert np.sum(np.array(certified) > 0.0) > 60


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "SVT34Parallel"])
def test_the_worst_pair_is_the_worst(name):
    entry = ENTRIES[name]
    certified = [entry.loss_law(*pair).certificate(2 * 10**8, ALPHA) for pair in entry.pairs]
    chosen = entry.loss_law(*entry.worst).certificate(2 * 10**8, ALPHA)
    assert chosen >= max(certified) * (1.0 - 1e-3)
