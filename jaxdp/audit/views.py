"""Other readings of an audit's counts: the trade-off curve and the Gaussian parameter that they certify.

A test of hypotheses that rejects "the other input" on an event S has false positive rate q = P(S) on the other input
and false negative rate 1 - p, with p = P(S) on the one input. For each of the nested events of a report, p >= L and
q <= U, all together at the stated confidence (`AuditReport.band`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from jaxdp.audit.report import AuditReport

__all__ = ["claimed_tradeoff", "gaussian_lower", "tradeoff"]


def tradeoff(report: AuditReport) -> tuple[np.ndarray, np.ndarray]:
    """The certified upper bound on the trade-off curve of the pair of inputs that was audited.

        f(q) = the least false negative rate of all tests of false positive rate q

    is convex, so it lies below the lower convex hull of the points (U, 1 - L) of all nested events, (0, 1) and (1, 0).
    The band is that of the single points, and the hull is taken of the bounded points: a hull of estimates would be no
    bound.

    Args:
        report: An audit report with nested events.

    Returns:
        False positive rates, ascending from 0 to 1, and false negative rates of the corners of the hull; both hold
        together at the report's confidence.

    Example:
        >>> from jaxdp.audit import AuditReport
        >>> report = AuditReport("", 1.0, 0.0, 0.95, 1000, "", "", 900, 1000, 90, 1000)
        >>> [corner.round(2).tolist() for corner in tradeoff(report)]
        [[0.0, 0.11, 1.0], [1.0, 0.12, 0.0]]
    """
    lower, upper = report.band
    points = sorted({(0.0, 1.0), (1.0, 0.0), *zip(upper.tolist(), (1.0 - lower).tolist(), strict=True)})
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1 and _above(hull[-2], hull[-1], (x, y)):
            hull.pop()
        # Of points at one rate the first, lowest one counts.
        if not hull or x > hull[-1][0]:
            hull.append((x, y))
    return tuple(np.array(hull).T)


def claimed_tradeoff(epsilon: float, delta: float, rates: Any) -> np.ndarray:
    """The trade-off curve of an (epsilon, delta) claim: the least false negative rates that it allows.

        f(q) = max(0, 1 - delta - e^epsilon q, e^-epsilon (1 - delta - q))

    Args:
        epsilon: The claim.
        delta: The claim.
        rates: False positive rates, any shape.

    Returns:
        float64 array of that shape.

    Source:
        Wasserman, Zhou (2010); Dong, Roth, Su (2022), proposition 3.
    """
    q = np.asarray(rates, np.float64)
    rest = 1.0 - delta
    return np.maximum(0.0, np.maximum(rest - np.exp(epsilon) * q, np.exp(-epsilon) * (rest - q)))


def gaussian_lower(report: AuditReport) -> float:
    """Certified: the mechanism is not mu-GDP (Gaussian differential privacy) for any mu below this.

        mu >= max over the nested events of Phi^-1(L) - Phi^-1(U), at least 0

    mu-GDP means that every test has Phi^-1(1 - false positive rate) - Phi^-1(false negative rate) <= mu. There is no
    absolute value: an event that is less likely than it should be shows nothing in this direction.

    Args:
        report: An audit report.

    Returns:
        mu, valid at the report's confidence; inf where an event is certain on the one input and never happens on the
        other.

    Source:
        Dong, Roth, Su (2022).

    Example:
        >>> from jaxdp.audit import AuditReport
        >>> report = AuditReport("", 1.0, 0.0, 0.95, 2 * 10**6, "", "", 691_462, 10**6, 308_538, 10**6)
        >>> round(gaussian_lower(report), 3)  # Phi(1/2) = 0.691462
        0.995
    """
    lower, upper = report.band
    usable = (lower > 0.0) & (upper < 1.0)
    found = special.ndtri(lower[usable]) - special.ndtri(upper[usable])
    return float(np.max(found, initial=0.0))


def _above(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether the middle point lies on or above the line between the others."""
    rise = (middle[1] - left[1]) * (right[0] - left[0])
    return rise >= (right[1] - left[1]) * (middle[0] - left[0])
