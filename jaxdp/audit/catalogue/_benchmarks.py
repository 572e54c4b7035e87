"""The twenty benchmarks of DP-Sniper (Bichsel et al., 2021), with its parameters and published results."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from jaxdp.audit.catalogue._entry import EVERY, ONE, Entry, Published, entry_of, patterns
from jaxdp.audit.catalogue.additive import Additive, Geometric
from jaxdp.audit.catalogue.responses import Rappor
from jaxdp.audit.catalogue.selection import NoisyMax
from jaxdp.audit.catalogue.sparse import Pair, Sparse, numerical_rules, variant_rules

__all__ = ["catalogue"]


@functools.cache
def catalogue() -> tuple[Entry, ...]:
    """The twenty benchmark mechanisms of DP-Sniper, NOT FOR RELEASE.

    Each has its sampler, its claim with the neighbours that it is made for, the input pairs of DP-Sniper, the exact
    log likelihood ratio of an output and the exact law of that ratio, and the results published for other tools.

    Example:
        >>> entries = {entry.name: entry for entry in catalogue()}
        >>> entry = entries["SVT4"]
        >>> law = entry.loss_law(*entry.worst)
        >>> entry.epsilon, entry.private, round(law.epsilon, 4)
        (0.1, False, 0.1725)
    """
    geometric, rappor, one_time = Geometric(0.1, 5), Rappor(f=0.75, q=0.55), Rappor(f=0.95)
    svt = functools.partial(variant_rules, epsilon=0.1, cutoff=1)
    number, histogram, integer = patterns(None, ONE), patterns(5, ONE, np.int32), patterns(None, ONE, np.int32)
    five, ten = patterns(5, EVERY), patterns(10, EVERY)
    rows: tuple[tuple[Any, ...], ...] = (
        ("LaplaceMechanism", 0.1, ONE, True, Additive(10.0), number, 0),
        ("TruncatedGeometric", math.log1p(2.0**-geometric.k), ONE, True, geometric, integer, 0),
        ("NoisyHist1", 0.1, ONE, True, Additive(10.0), histogram, 0),
        ("NoisyHist2", 0.1, ONE, False, Additive(0.1), histogram, 0),
        ("ReportNoisyMax1", 0.1, EVERY, True, NoisyMax(20.0), five, 6),
        ("ReportNoisyMax2", 0.1, EVERY, True, NoisyMax(20.0, one_sided=True), five, 6),
        ("ReportNoisyMax3", 0.1, EVERY, False, NoisyMax(20.0, value=True), five, 10),
        ("ReportNoisyMax4", 0.1, EVERY, False, NoisyMax(20.0, one_sided=True, value=True), five, 10),
        ("SVT1", 0.1, EVERY, True, Sparse(svt(1, threshold=0.5)), ten, 8),
        ("SVT2", 0.1, EVERY, True, Sparse(svt(2, threshold=1.0)), ten, 8),
        ("SVT3", 0.1, EVERY, False, Sparse(svt(3, threshold=1.0)), ten, 10),
        ("SVT4", 0.1, EVERY, False, Sparse(svt(4, threshold=1.0)), ten, 8),
        ("SVT5", 0.1, EVERY, False, Sparse(svt(5, threshold=1.0)), ten, 5),
        ("SVT6", 0.1, EVERY, False, Sparse(svt(6, threshold=1.0)), ten, 8),
        # What eight differing bits lose; the inputs of the pairs differ in six or fewer.
        ("RAPPOR", rappor.epsilon, ONE, True, rappor, integer, 0),
        ("OneTimeRAPPOR", one_time.epsilon, ONE, True, one_time, integer, 0),
        ("LaplaceParallel", 0.1, ONE, True, Additive(200.0, copies=20), number, 0),
        # 0.1 for each of the two.
        (
            "SVT34Parallel",
            0.2,
            EVERY,
            False,
            Pair(*(Sparse(variant_rules(each, 0.1, 2, 1.0)) for each in (3, 4))),
            ten,
            8,
        ),
        # It keeps 0.1 where one query changes; all ten change in these pairs.
        ("PrefixSum", 1.0, EVERY, True, Additive(10.0, prefix=True), ten, 10),
        ("NumericalSVT", 0.1, EVERY, True, Sparse(numerical_rules(0.1, 2, 1.0)), ten, 8),
    )
    return tuple(entry_of(*row, _PUBLISHED[row[0]]) for row in rows)


_PUBLISHED = {
    name: Published(*row)
    for name, row in {
        "LaplaceMechanism": (0.0968, 0.0976, (0.0998, 0.0996), 21.4, 216.8, (46.0, 47.0)),
        "TruncatedGeometric": (0.1156, 0.1155, (0.1159, 0.1169), 19.5, 162.3, (352.0, 354.0)),
        "NoisyHist1": (0.0978, 0.0977, (0.0828, 0.0994), 37.7, 211.1, (505.0, 504.0)),
        "NoisyHist2": (4.6020, 4.6015, (9.7169, 10.0022), 40.6, 254.1, (817.0, 816.0)),
        "ReportNoisyMax1": (0.0923, 0.0925, (0.0920, 0.0921), 61.8, 491.6, (60.0, 60.0)),
        "ReportNoisyMax2": (0.0975, 0.0979, (0.0996, 0.0997), 58.4, 423.0, (59.0, 60.0)),
        "ReportNoisyMax3": (0.2478, 0.2488, (0.1991, 0.1961), 62.4, 436.7, (132.0, 130.0)),
        "ReportNoisyMax4": (0.3463, 0.3534, (0.1960, 0.1988), 62.9, 451.4, (132.0, 129.0)),
        "SVT1": (0.0858, 0.0858, (0.0298, 0.0298), 126.0, 965.6, (344.0, 352.0)),
        "SVT2": (0.0859, 0.0852, (0.0316, 0.0407), 159.9, 825.3, (403.0, 403.0)),
        "SVT3": (0.1716, 0.1822, (0.0231, 0.1793), 160.3, 879.6, (5821.0, 5857.0)),
        "SVT4": (0.1687, 0.1696, (0.1709, 0.1719), 130.5, 815.2, (556.0, 554.0)),
        "SVT5": (1.7612, 1.7610, (14.3143, 14.3143), 58.9, 526.9, (351.0, 358.0)),
        "SVT6": (0.2720, 0.2698, (0.3220, 0.3200), 95.5, 583.8, (755.0, 765.0)),
        "RAPPOR": (0.2930, 0.3008, (0.2416, 0.0243), 144.9, 529.2, (1178.0, 1173.0)),
        "OneTimeRAPPOR": (0.5978, 0.5999, (0.4706, 0.0602), 89.1, 407.8, (991.0, 982.0)),
        "LaplaceParallel": (0.0350, 0.0299, (0.0126, 0.0135), 104.4, 340.6, (4717.0, 4728.0)),
        "SVT34Parallel": (0.2610, 0.2616, (0.1371, 0.1963), 363.9, 1117.5, (27301.0, 27500.0)),
        "PrefixSum": (0.5040, 0.5774, (0.3516, 0.3446), 97.0, 984.4, (3367.0, 3386.0)),
        "NumericalSVT": (0.0343, 0.0345, None, 151.7, 686.4, None),
    }.items()
}
