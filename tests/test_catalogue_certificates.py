"""Certificates on the audit catalogue at 2e7 runs a side: close to the best that the exact laws allow."""

import math

import numpy as np
import pytest
from marks import first

from jaxdp.audit.catalogue import catalogue
from jaxdp.audit.monte_carlo import monte_carlo

pytestmark = pytest.mark.slow

ALPHA = 0.1
RUNS = 2 * 10**7
ENTRIES = {entry.name: entry for entry in catalogue()}
NAMES = [
    "LaplaceMechanism",
    "ReportNoisyMax1",
    "ReportNoisyMax4",
    "SVT1",
    "SVT3",
    "SVT6",
    "PrefixSum",
    "NumericalSVT",
    "LaplaceParallel",
]


def audit(key, entry, runs, score, **options):
    options = {"epsilon": entry.epsilon, "num_samples": runs, "confidence": 1.0 - ALPHA, **options}
    return monte_carlo(key, entry.many, *entry.worst, score=score, **options)


@pytest.mark.parametrize("name", first(3, NAMES))
def test_certificates_are_close_to_the_best(key, name):
    entry = ENTRIES[name]
    law = entry.loss_law(*entry.worst)
    threshold, best = law.best_event(RUNS, ALPHA)
    report = audit(key, entry, RUNS, entry.log_ratio(*entry.worst))
    # One certificate scatters by the counts of its event.
    hits = [RUNS * np.sum(masses[law.values >= threshold]) for masses in (law.masses, law.other_masses)]
    scatter = math.sqrt(1.0 / hits[0] + 1.0 / max(hits[1], 1.0))
    assert report.epsilon_lower > 0.97 * best - 4.0 * scatter
    # The float samplers show no more than their laws.
    assert report.epsilon_lower < law.epsilon + 4.0 * scatter
