"""Exact laws of the sparse-vector mechanisms, by quadrature over the threshold's noise.

Given the noise rho of the threshold the queries are independent, so that a pattern of answers has the probability

    integral of f(rho) prod_i P(answer i | rho) d rho,

and a released noisy value v that was compared with the threshold adds the density of v and cuts the integral off at
rho = v - threshold. A value with fresh noise is independent of all that.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jaxdp.audit.catalogue._loss_law import LossLaw, binned, combine, laplace, mixture
from jaxdp.audit.catalogue._noise import LAPLACE, Panels

__all__ = ["MAX_QUERIES", "Rules", "pattern_masses", "sparse_loss_law", "threshold_table"]

MAX_QUERIES = 16
"""Patterns of answers are enumerated."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """What one of the sparse-vector mechanisms does.

    Attributes:
        threshold: What the noisy queries are compared with, before noise.
        threshold_scale: Scale of the Laplace noise on the threshold.
        query_scale: Scale of the Laplace noise on each query; 0 for none.
        cutoff: Number of queries above at which it ends; None for no end.
        redraw: Whether the threshold's noise is fresh after each query above.
        release: What is shown of a query above: "bit", "compared" (the noisy value that was compared) or "fresh".
        value_scale: Scale of the fresh noise.
    """

    threshold: float
    threshold_scale: float
    query_scale: float
    cutoff: int | None = None
    redraw: bool = False
    release: str = "bit"
    value_scale: float = 0.0

    def panels(self, inputs: np.ndarray, width: float = 1.0, inner: int = 1) -> Panels:
        """Quadrature over the threshold's noise."""
        scales = (self.threshold_scale, self.query_scale or self.threshold_scale)
        return Panels.around(np.append(np.ravel(inputs) - self.threshold, 0.0), scales, width, inner)

    def below(self, query: float, noise: np.ndarray) -> np.ndarray:
        """P(query below | noise of the threshold)."""
        gap = noise + self.threshold - query
        return LAPLACE.below(gap, self.query_scale) if self.query_scale else (gap > 0.0).astype(np.float64)

    def above(self, query: float, noise: np.ndarray) -> np.ndarray:
        """P(query above | noise of the threshold); 1 where the value released will say so."""
        if self.release == "compared":
            return np.ones_like(noise)
        gap = noise + self.threshold - query
        return LAPLACE.above(gap, self.query_scale) if self.query_scale else (gap <= 0.0).astype(np.float64)


def pattern_masses(rules: Rules, queries: np.ndarray, panels: Panels) -> tuple[np.ndarray, np.ndarray]:
    """Codes (patterns,), sums of 2^i over the queries i above, and integrands (patterns, panels, 8) over the noise.

    Summed over the panels, an integrand is the probability of its pattern, unless compared values are released.
    """
    if len(queries) > MAX_QUERIES:
        raise ValueError(f"queries must be at most {MAX_QUERIES} for exact laws, got {len(queries)}")
    density = LAPLACE.density(panels.nodes, rules.threshold_scale)
    codes, rows, ended = [0], [density], {}
    for i, query in enumerate(queries):
        below, above = rules.below(query, panels.nodes), rules.above(query, panels.nodes)
        after, after_rows = [], []
        for code, row in zip(codes, rows, strict=True):
            after.append(code)
            after_rows.append(row * below)
            more, crossed = code | 1 << i, row * above
            if more.bit_count() == rules.cutoff:
                ended[more] = crossed
                continue
            after.append(more)
            # Fresh noise: what has been so far is a factor.
            after_rows.append(np.sum(panels.integrate(crossed)) * density if rules.redraw else crossed)
        codes, rows = after, after_rows
    ended.update(zip(codes, rows, strict=True))
    order = sorted(ended)
    return np.array(order), np.stack([ended[code] for code in order])


def sparse_loss_law(rules: Rules, summary: np.ndarray, neighbour: np.ndarray) -> LossLaw:
    """The law of the log ratio, atoms for bits; compared values are cut into cells of 1/16 of a scale or less."""
    pair = np.stack([np.ravel(summary), np.ravel(neighbour)]).astype(np.float64)
    several = rules.cutoff != 1
    compared = rules.release == "compared"
    panels = rules.panels(pair, *((1.0 / 16.0, 32) if several else (1.0 / 64.0, 256)) if compared else (1.0, 1))
    codes, rows = pattern_masses(rules, pair[0], panels)
    other_rows = pattern_masses(rules, pair[1], panels)[1]
    if not compared:
        laws = _with_fresh_values(rules, pair, codes, *(panels.integrate(each).sum(1) for each in (rows, other_rows)))
        return mixture(*laws)
    laws = [
        _with_compared_values(rules, pair, code, panels, both)
        for code, *both in zip(codes, rows, other_rows, strict=True)
    ]
    return mixture(*laws)


def _with_fresh_values(rules: Rules, pair: np.ndarray, codes: np.ndarray, p: np.ndarray, q: np.ndarray) -> list:
    """One law for each pattern, of its bits and its fresh values if they are released."""
    if rules.release == "bit":
        return [LossLaw.of(p, q)]
    known: dict[tuple, LossLaw] = {(): LossLaw.of(np.ones(1), np.ones(1))}
    laws = []
    for code, mass, other in zip(codes, p, q, strict=True):
        losses = tuple(sorted(abs(pair[0, i] - pair[1, i]) / rules.value_scale for i in _above(code)))
        for length in range(1, len(losses) + 1):
            if losses[:length] not in known:
                known[losses[:length]] = combine(known[losses[: length - 1]], laplace(losses[length - 1]))
        law = known[losses]
        laws.append(LossLaw.of(mass * law.masses, other * law.other_masses))
    return laws


def _with_compared_values(rules: Rules, pair: np.ndarray, code: int, panels: Panels, rows: list) -> LossLaw:
    """The part of the law where this pattern occurs, from integrands under both inputs."""
    above = _above(code)
    if not above:
        return LossLaw.of(*(np.sum(panels.integrate(row)) for row in rows))
    if len(above) > 2:
        raise ValueError(f"cutoff must be at most 2 for the law of compared values, got {rules.cutoff!r}")
    densities = [
        [LAPLACE.density(panels.nodes + rules.threshold - queries[i], rules.query_scale) for i in above]
        for queries in pair
    ]
    reached = [panels.antiderivative(row) for row in rows]
    # [side, value, panel]: the value is there, with the threshold below it (later: wherever the threshold is).
    least = [
        [panels.integrate(each * density) for density in row] for each, row in zip(reached, densities, strict=True)
    ]
    if len(above) == 1:
        return LossLaw.of(least[0][0], least[1][0])
    later = [[panels.integrate(density) for density in row] for row in densities]
    laws = []
    for i, j in ((0, 1), (1, 0)):
        masses = []
        for side, row in enumerate(densities):
            # Value i is the least: in an earlier panel, or earlier in the same one.
            mass = np.triu(np.multiply.outer(least[side][i], later[side][j]), 1)
            np.fill_diagonal(mass, panels.integrate(reached[side] * row[i] * panels.remainder(row[j])))
            masses.append(mass)
        some = np.minimum(*masses) > 0.0
        p, q = masses[0][some], masses[1][some]
        laws.append(binned(np.log(p / q), p, q))
    return mixture(*laws)


def threshold_table(
    rules: Rules, summary: np.ndarray, neighbour: np.ndarray, codes: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Log ratios of the part of a pattern's density that depends on the least compared value.

    Returns:
        rows: (patterns,) the row of each pattern.
        table: (rows, size) log ratios at equally spaced values; linear interpolation is right to about 1e-6.
        low: First of the values; the log ratio is constant below it.
        step: Their distance.
    """
    pair = np.stack([np.ravel(summary), np.ravel(neighbour)]).astype(np.float64)
    panels = rules.panels(pair, 1.0 / 16.0, 16)
    reached = [panels.antiderivative(pattern_masses(rules, queries, panels)[1]) for queries in pair]
    # Without a value above, the whole integral counts.
    whole = [np.where(codes == 0, each[:, -1, -1], 0.0) for each in reached]
    low = min(np.min(pair) - rules.threshold, 0.0)
    step = (16.0 * rules.threshold_scale + np.max(np.abs(pair)) + abs(rules.threshold) - low) / (size - 1)
    places = low + step * np.arange(size)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(reached[0] / reached[1]).reshape(len(codes), -1)
    table = np.stack([np.interp(places, panels.nodes.ravel(), row) for row in ratio])
    table[codes == 0] = math.log(max(whole[0].sum(), 1e-300) / max(whole[1].sum(), 1e-300))
    table, rows = np.unique(np.round(table, 9), axis=0, return_inverse=True)
    return rows.ravel(), table, low + rules.threshold, step


def _above(code: int) -> list[int]:
    return [i for i in range(int(code).bit_length()) if int(code) >> i & 1]
