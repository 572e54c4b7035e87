"""Features of an output for learned scores: what the log ratio of common mechanisms is a linear function of.

An output is cut into columns: coordinates, differences of neighbouring coordinates, principal directions, and each
array's sum, maximum and minimum. Each column is cut at the quantiles that a pilot shows on either side, and its
features are the ramps between neighbouring cuts, from 0 to 1: their sums are all piecewise linear functions that are
constant in the tails. The log ratio of Laplace noise is the ramp between the medians of the two sides; where supports
end, the ramp between two extreme quantiles is nearly a step. A frequent value is a feature of its own, and the ramps
are zero there: values that only some tags have get their own ratio. So is a NaN or an infinity.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Basis"]

_MAX_COORDINATES, _MAX_ATOMS = 32, 12
# Columns with all ramps, by the largest difference between the sides; the others have that of the medians only.
_CURVED = 12
_LEVELS = np.array([0.5, 0.002, 0.02, 0.1, 0.25, 0.75, 0.9, 0.98, 0.998])
_FREQUENT, _RARE = 0.02, 0.002
# A direction in which floats of size 1 move less than this shows their last bits, no property of the law.
_SMALLEST = 1e-5
_LARGEST = 1e6
_TOLERANCE = 2e-5


@dataclasses.dataclass(frozen=True, eq=False)
class Basis:
    """Standardised features of one output.

    Attributes:
        centre: For each array of the output, its coordinates' centres, float64.
        scale: The same for their spreads.
        keep: Numbers of the coordinates that are read.
        linear: (coordinates, directions) sums of standardised coordinates.
        arrays: Numbers among the kept coordinates of each array of several.
        offset: (columns,) centres of all columns.
        spread: (columns,) their spreads.
        atoms: (A, 2) column and value of frequent values.
        ramps: (R, 3) column, start and end.
        flags: (3, coordinates) whether NaN, infinity and minus infinity were seen.
        use: Numbers of the features that vary.
        mean: (F,) their means.
        deviation: (F,) their standard deviations.
        groups: (F,) features of one group are alike.
    """

    centre: list[np.ndarray]
    scale: list[np.ndarray]
    keep: np.ndarray
    linear: np.ndarray
    arrays: list[np.ndarray]
    offset: np.ndarray
    spread: np.ndarray
    atoms: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2)))
    ramps: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 3)))
    flags: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((3, 0), bool))
    use: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    mean: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    deviation: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(0))
    groups: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))

    @classmethod
    def find(cls, one: Any, other: Any) -> Basis:
        """The basis for outputs like those of a pilot, pytrees with a leading axis of n runs, for both sides."""
        sides = [[_rows(leaf) for leaf in jax.tree_util.tree_leaves(side) if leaf.size] for side in (one, other)]
        pooled = [_finite(np.concatenate(pair)) for pair in zip(*sides, strict=True)]
        centre = [np.median(leaf, axis=0) for leaf in pooled]
        scale = [_spread(leaf) for leaf in pooled]
        z = np.concatenate([(leaf - c) / s for leaf, c, s in zip(pooled, centre, scale, strict=True)], axis=1)
        raw = np.concatenate([_rows(np.concatenate(pair)) for pair in zip(*sides, strict=True)], axis=1)
        z, n = np.clip(z, -_LARGEST, _LARGEST), len(z) // 2
        keep = np.sort(np.argsort(-_distances(z[:n], z[n:]), kind="stable")[:_MAX_COORDINATES])
        z, raw = z[:, keep], raw[:, keep]
        owner = np.repeat(np.arange(len(pooled)), [leaf.shape[1] for leaf in pooled])[keep]
        sizes = np.concatenate(scale)[keep]
        arrays = [np.flatnonzero(owner == j) for j in range(len(pooled)) if np.sum(owner == j) > 1]
        smooth = np.array([not len(_atoms(column)) for column in z.T])
        linear, kinds = _directions(z, sizes, owner, arrays, smooth)
        basis = cls(centre, scale, keep, linear, arrays, np.zeros(1), np.ones(1))
        columns = np.asarray(jax.jit(jax.vmap(basis._raw_columns))(jnp.asarray(z, jnp.float32)), np.float64)
        offset, spread = np.median(columns, axis=0), _spread(columns)
        columns = (columns - offset) / spread
        kinds = np.concatenate([np.zeros(len(keep), int), kinds, np.full(2 * len(arrays), 3)])
        flags = np.stack([np.isnan(raw), raw == np.inf, raw == -np.inf]).any(axis=1)
        atoms, ramps, groups = _cut(columns[:n], columns[n:], kinds)
        basis = dataclasses.replace(basis, offset=offset, spread=spread, atoms=atoms, ramps=ramps, flags=flags)
        pilot = jax.tree_util.tree_map(lambda *pair: np.concatenate(pair), one, other)
        values = np.asarray(jax.jit(jax.vmap(basis.raw))(pilot), np.float64)
        deviation = values.std(axis=0)
        use = np.flatnonzero(deviation > np.sqrt(0.5 / n))
        groups = np.concatenate([np.full(int(flags.sum()), 99), groups])[use]
        return dataclasses.replace(
            basis, use=use, mean=values.mean(axis=0)[use], deviation=deviation[use], groups=groups
        )

    def __call__(self, output: Any) -> jax.Array:
        """(F,) float32 features of one output."""
        values = self.raw(output)[self.use]
        return (values - self.mean.astype(np.float32)) / self.deviation.astype(np.float32)

    def only(self, chosen: np.ndarray) -> Basis:
        """The basis of some of the features, which is cheaper; `chosen` (F,) says which."""
        start = int(self.flags.sum()) + len(self.atoms)
        use, ramp = self.use[chosen], self.use[chosen] >= start
        return dataclasses.replace(
            self,
            ramps=self.ramps[use[ramp] - start],
            use=np.where(ramp, start + np.cumsum(ramp) - 1, use),
            mean=self.mean[chosen],
            deviation=self.deviation[chosen],
            groups=self.groups[chosen],
        )

    def raw(self, output: Any) -> jax.Array:
        """All features, neither centred nor scaled: flags, frequent values, ramps."""
        leaves = [leaf.reshape(-1) for leaf in jax.tree_util.tree_leaves(output) if leaf.size]
        z = jnp.concatenate([_standard(*three) for three in zip(leaves, self.centre, self.scale, strict=True)])[
            self.keep
        ]
        odd = jnp.stack([jnp.isnan(z), z == np.float32(np.inf), z == np.float32(-np.inf)])
        z = jnp.clip(jnp.where(jnp.isfinite(z), z, np.float32(0.0)), np.float32(-_LARGEST), np.float32(_LARGEST))
        columns = (self._raw_columns(z) - self.offset.astype(np.float32)) / self.spread.astype(np.float32)
        places, values = self.atoms[:, 0].astype(np.int32), self.atoms[:, 1].astype(np.float32)
        tolerance = (_TOLERANCE * (1.0 + np.abs(values))).astype(np.float32)
        at = jnp.abs(columns[places] - values) <= tolerance
        # A product is many times faster than a scatter.
        owners = np.equal(self.atoms[:, :1], np.arange(len(self.offset))).astype(np.float32)
        free = jnp.matmul(at.astype(jnp.float32), owners) == np.float32(0.0)
        which, start, end = self.ramps[:, 0].astype(np.int32), *self.ramps[:, 1:].T.astype(np.float32)
        ramps = jnp.clip((columns[which] - start) / (end - start), np.float32(0.0), np.float32(1.0))
        ramps = jnp.where(free[which], ramps, np.float32(0.0))
        parts = [odd[self.flags].astype(jnp.float32), at.astype(jnp.float32), ramps]
        return jnp.concatenate(parts)

    def _raw_columns(self, z: jax.Array) -> jax.Array:
        """Coordinates, directions, then maximum and minimum of each array of several, from standardised coordinates."""
        parts = [z, jnp.matmul(z, self.linear.astype(np.float32), precision="highest")]
        centre, scale = np.concatenate(self.centre)[self.keep], np.concatenate(self.scale)[self.keep]
        for mine in self.arrays:
            size = np.max(scale[mine])
            shift = (centre[mine] - np.mean(centre[mine])) / size
            values = z[mine] * (scale[mine] / size).astype(np.float32) + shift.astype(np.float32)
            parts.append(jnp.stack([jnp.max(values), jnp.min(values)]))
        return jnp.concatenate(parts)


def _standard(leaf: jax.Array, centre: np.ndarray, scale: np.ndarray) -> jax.Array:
    """A standardised array as float32; centred in its own precision if that is higher."""
    if not (jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize > 4):
        leaf = leaf.astype(jnp.float32)
    return ((leaf - centre.astype(leaf.dtype)) / scale.astype(leaf.dtype)).astype(jnp.float32)


def _rows(leaf: Any) -> np.ndarray:
    return np.asarray(leaf).astype(np.float64).reshape(len(leaf), -1)


def _finite(values: np.ndarray) -> np.ndarray:
    """Non-finite values replaced by their column's median."""
    good = np.where(np.isfinite(values), values, np.nan)
    some = np.isfinite(values).any(axis=0)
    centre = np.zeros(values.shape[1])
    centre[some] = np.nanmedian(good[:, some], axis=0)
    return np.where(np.isfinite(values), values, centre)


def _spread(values: np.ndarray) -> np.ndarray:
    """Standard deviations without the outermost values; 1 for a constant."""
    low, high = np.quantile(values, [0.005, 0.995], axis=0)
    spread = np.clip(values, low, high).std(axis=0)
    spread = np.where(spread > 1e-7 * np.abs(values).max(axis=0), spread, values.std(axis=0))
    return np.where(spread > 0.0, spread, 1.0)


def _distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Kolmogorov distance between the sides, for each column."""
    found = []
    for a, b in zip(one.T, other.T, strict=True):
        cuts = np.quantile(np.concatenate([a, b]), np.linspace(0.0, 1.0, 65)[:-1], method="lower")
        below = (np.searchsorted(np.sort(side), cuts, side="right") / len(side) for side in (a, b))
        found.append(np.max(np.abs(np.subtract(*below))))
    return np.array(found)


def _atoms(column: np.ndarray) -> np.ndarray:
    """The values of a column that are features of their own: all of a few, else the frequent ones."""
    values, counts = np.unique(np.round(column, 5), return_counts=True)
    if len(values) > _MAX_ATOMS:
        values, counts = (each[counts >= _FREQUENT * len(column)] for each in (values, counts))
    return values[np.argsort(-counts, kind="stable")[:_MAX_ATOMS]]


def _directions(
    z: np.ndarray, sizes: np.ndarray, owner: np.ndarray, arrays: list[np.ndarray], smooth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Columns (coordinates, directions): neighbours' differences, principal directions, sums; and their kinds."""
    unit, found, kinds = np.eye(len(sizes)), [], []
    for j in range(1, len(sizes)):
        if owner[j] == owner[j - 1] and smooth[j] and smooth[j - 1]:
            step = (unit[j] * sizes[j] - unit[j - 1] * sizes[j - 1]) / max(sizes[j], sizes[j - 1])
            found.append(step)
            kinds.append(1)
    mine = np.flatnonzero(smooth)
    if len(mine) > 1:
        vectors = np.linalg.eigh(np.cov(z[:, mine].T))[1]
        found += list(unit[:, mine].dot(vectors).T)
        kinds += [2] * len(mine)
    found += [np.isin(np.arange(len(sizes)), mine) * sizes / sizes[mine].max() for mine in arrays]
    kinds += [3] * len(arrays)
    linear = np.stack(found, axis=1) if found else np.zeros((len(sizes), 0))
    some = (z @ linear).std(axis=0) > _SMALLEST
    return linear[:, some], np.array(kinds, int)[some]


def _cut(one: np.ndarray, other: np.ndarray, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frequent values, ramps and the groups of both."""
    curved = np.argsort(-_distances(one, other), kind="stable")[:_CURVED]
    atoms, ramps, groups, rests = [], [], [], []
    for j, kind in enumerate(kinds):
        values = _atoms(np.concatenate([one[:, j], other[:, j]]))
        rests.append([_rest(side[:, j], values) for side in (one, other)])
        # Of values that are all there is, one is as good as known from the others.
        values = values[int(not any(map(len, rests[-1]))) :]
        atoms += [(j, value) for value in values]
        groups += [10 * kind] * len(values)
    for j, sides in enumerate(rests):
        if min(map(len, sides)) < _RARE * len(one) or np.ptp(np.concatenate(sides)) == 0.0:
            continue
        levels = _LEVELS if j in curved else _LEVELS[:1]
        medians, *pairs = np.stack([np.quantile(side, levels) for side in sides], axis=1)
        middle, half = medians.mean(), max(np.ptp(medians) / 2.0, 1e-3)
        ramps.append((j, middle - half, middle + half))
        groups.append(10 * kinds[j] + 1)
        cuts = functools.reduce(_apart, np.sort(np.ravel([medians, *pairs])), [])
        ramps += [(j, *pair) for pair in itertools.pairwise(cuts)] if pairs else []
        groups += [10 * kinds[j] + 2] * (len(cuts) - 1) if pairs else []
    return np.array(atoms).reshape(-1, 2), np.array(ramps).reshape(-1, 3), np.array(groups, int)


def _rest(column: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    near = np.abs(column[:, None] - atoms[None, :]) <= _TOLERANCE * (1.0 + np.abs(atoms))
    return column[~near.any(axis=1)]


def _apart(cuts: list[float], cut: float) -> list[float]:
    return [*cuts, float(cut)] if not cuts or cut > cuts[-1] + 1e-4 else cuts
