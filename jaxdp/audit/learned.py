"""Learned scores: the log likelihood ratio of an output, estimated from runs, where no law is known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

from jaxdp import _check
from jaxdp.audit import _arguments
from jaxdp.audit._learned_features import Basis
from jaxdp.audit._summaries import Summary
from jaxdp.audit.targets import Batched, Foreign

__all__ = ["learned_score"]

_BLOCK = 2**12
_BLOCKS_PER_CALL = 8
_PILOT, _FITTING, _CALIBRATION = range(3)
_PILOT_RUNS = 2**14
# Passes over growing shares of the runs: the first find the region, the last two decide.
_PASSES = (2**-3, 2**-3, 2**-3, 2**-1, 1.0, 1.0)
_LARGEST = 50.0
_NEGLIGIBLE, _MARGIN = 1e-5, 2.0
_PRECISIONS, _UPDATES = (1e-2, 1e9), 8


def learned_score(
    key: jax.Array, mechanism: Any, summary: Any, neighbour: Any, *, num_samples: int = 2**17
) -> Callable[[Any], jax.Array]:
    """Estimates log p(output | summary) - log p(output | neighbour), as a `score` for `monte_carlo`.

    A logistic regression tells the outputs of both inputs apart; with equally many runs of each its log odds estimate
    the log ratio. Its features (`jaxdp.audit._learned_features`) are made for noise that is added to queries, to their
    sums or to what tags announce: for Laplace noise the log ratio is a sum of them. Weights have a normal prior, whose
    variance is learned for each group of features (MacKay, 1992), so that what carries no evidence costs little. The
    log odds are then stretched to fit runs of their own.

    A score from other runs than the certification's is valid whatever it is; a bad one certifies less. So the key must
    be used for nothing else.

    Args:
        key: One typed key. Consumed.
        mechanism: As in `monte_carlo`, but for `Foreign`.
        summary: What the mechanism reads on the one input.
        neighbour: The same on the neighbouring input.
        num_samples: Runs on each input that the regression is fitted to, at least 100, rounded up to blocks of 4096. A
            weak loss spread over many coordinates needs many: of epsilon e over k coordinates, about (k / e)^2.

    Returns:
        A pure function of one output to float32, finite whatever the output, at most 50 in size.

    Raises:
        ValueError: An argument is out of range.

    Example:
        The sum of two queries is released with as much noise as one of them:

        >>> import jax
        >>> import numpy as np
        >>> def noisy(key, queries):
        ...     return queries + jax.random.laplace(key, (2,), jax.numpy.float32)
        >>> inputs = np.float32([1, 0]), np.float32([0, 1])
        >>> score = learned_score(jax.random.key(0), noisy, *inputs)
        >>> bool(abs(score(np.float32([2, -1])) - 2.0) < 0.1)
        True
        >>> report = jaxdp.audit.monte_carlo(jax.random.key(1), noisy, *inputs, epsilon=1.0, score=score)
        >>> report.refuted and report.epsilon_lower > 1.9
        True
    """
    _check.key(key)
    num_samples = _arguments.check_samples(num_samples)
    if isinstance(mechanism, Foreign):
        raise ValueError(f"mechanism must be a JAX function to learn its score, got {mechanism!r}")
    run = _arguments.sampler_of(mechanism)
    sources = [_Source(run, Summary.of(side, jnp.asarray)) for side in (summary, neighbour)]
    if sources[0].summary.signature == sources[1].summary.signature:
        sources[1].programs = sources[0].programs
    keys = [[jax.random.fold_in(jax.random.fold_in(key, part), side) for side in (0, 1)] for part in range(3)]
    shapes = [jax.tree_util.tree_map(lambda leaf: (leaf.shape, leaf.dtype), source.shape(key)) for source in sources]
    if shapes[0] != shapes[1]:
        raise ValueError(f"mechanism must return outputs of one structure on summary and neighbour, got {shapes}")
    pilot = [source.draw(part_key) for source, part_key in zip(sources, keys[_PILOT], strict=True)]
    basis = Basis.find(*pilot)
    held = min(max(num_samples // 4, _BLOCK), 2**18)
    models = _fit(basis, sources, keys[_FITTING], num_samples)
    found = [source.scores(basis, models, part, held) for source, part in zip(sources, keys[_CALIBRATION], strict=True)]
    tried = [(*_calibrate(*pair), weights) for *pair, weights in zip(*found, models, strict=True)]
    # The sparsest of those that are about as good: equal outputs of few values keep equal scores.
    top = max(fit for fit, *_ in tried) - _MARGIN
    _, shift, stretch, weights = next(each for each in tried if each[0] >= top)
    chosen = np.abs(weights[1:]) > _NEGLIGIBLE
    basis, weights = basis.only(chosen), np.concatenate([weights[:1], weights[1:][chosen]])

    def score(output: Any) -> jax.Array:
        return _score(basis, weights, output) * np.float32(stretch) + np.float32(shift)

    return score


def _score(basis: Basis, weights: Any, output: Any) -> jax.Array:
    weights = jnp.asarray(weights, jnp.float32)
    odds = weights[..., 0] + jnp.matmul(weights[..., 1:], basis(output), precision="highest")
    return jnp.clip(odds, np.float32(-_LARGEST), np.float32(_LARGEST))


class _Source:
    """Runs of one side, in blocks on keys of their own."""

    def __init__(self, run: Callable, summary: Summary):
        self.run, self.summary = run, summary
        self.programs: dict[Any, Callable] = {}

    def shape(self, key: jax.Array) -> Any:
        """Abstract value of a few outputs."""
        return jax.eval_shape(lambda key, arguments: self._outputs(key, arguments, 3), key, self.summary.arguments)

    def draw(self, key: jax.Array) -> Any:
        """Outputs of _PILOT_RUNS runs, on the host."""
        program = self._program("draw", functools.partial(self._outputs, runs=_PILOT_RUNS))
        return jax.tree_util.tree_map(np.asarray, program(key, self.summary.arguments))

    def moments(self, basis: Basis, key: jax.Array, weights: np.ndarray, runs: int, label: int) -> list[np.ndarray]:
        """Gradient (F + 1,) and curvature (F + 1, F + 1) of the log likelihood, summed over runs."""

        def block(weights: jax.Array, label: jax.Array, outputs: Any) -> tuple:
            features = jax.vmap(basis)(outputs)
            features = jnp.concatenate([jnp.ones((_BLOCK, 1), jnp.float32), features], axis=1)
            odds = jnp.matmul(features, weights, precision="highest")
            # Never below p (1 - p), by which Newton's method may diverge; with this bound every step is an ascent.
            small = jnp.abs(odds) < np.float32(1e-2)
            safe = jnp.where(small, np.float32(1.0), odds)
            bound = jnp.where(small, np.float32(0.25), np.float32(0.5) * jnp.tanh(np.float32(0.5) * safe) / safe)
            gradient = jnp.matmul(label - jax.nn.sigmoid(odds), features, precision="highest")
            return gradient, jnp.matmul((features * bound[:, None]).T, features, precision="highest")

        return self._sum("moments", block, key, runs, jnp.asarray(weights, jnp.float32), np.float32(label))

    def scores(self, basis: Basis, models: list[np.ndarray], key: jax.Array, runs: int) -> np.ndarray:
        """Scores (models, runs)."""

        def some(key: jax.Array, arguments: tuple, weights: jax.Array) -> jax.Array:
            outputs = self._outputs(key, arguments, _BLOCK)
            return jax.vmap(lambda output: _score(basis, weights, output), out_axes=1)(outputs)

        call, weights = self._program("scores", some), jnp.asarray(np.stack(models), jnp.float32)
        blocks = range(-(-runs // _BLOCK))
        found = [call(jax.random.fold_in(key, np.uint32(block)), self.summary.arguments, weights) for block in blocks]
        return np.concatenate([np.asarray(each, np.float64) for each in found], axis=1)

    def _outputs(self, key: jax.Array, arguments: tuple, runs: int) -> Any:
        summary = self.summary.join(arguments)
        if isinstance(self.run, Batched):
            return self.run(key, summary, runs)
        return jax.vmap(lambda key: self.run(key, summary))(jax.random.split(key, runs))

    def _sum(self, name: str, function: Callable, key: jax.Array, runs: int, *values: Any) -> list[np.ndarray]:
        """Sums function(*values, outputs) over blocks: in float32 on the device, over calls in float64."""

        def several(key: jax.Array, arguments: tuple, values: tuple, first: jax.Array, count: jax.Array) -> Any:
            def add(number: jax.Array, total: Any) -> Any:
                outputs = self._outputs(jax.random.fold_in(key, first + number), arguments, _BLOCK)
                return jax.tree_util.tree_map(jnp.add, total, function(*values, outputs))

            size = values[0].shape[0]
            start = jnp.zeros(size, jnp.float32), jnp.zeros((size, size), jnp.float32)
            return lax.fori_loop(np.uint32(0), count, add, start)

        call, blocks = self._program(name, several), -(-runs // _BLOCK)
        totals: list[Any] = [0.0, 0.0]
        for first in range(0, blocks, _BLOCKS_PER_CALL):
            plan = np.uint32(first), np.uint32(min(_BLOCKS_PER_CALL, blocks - first))
            found = call(key, self.summary.arguments, values, *plan)
            totals = [total + np.asarray(each, np.float64) for total, each in zip(totals, found, strict=True)]
        return totals

    def _program(self, name: str, function: Callable) -> Callable:
        if name not in self.programs:
            self.programs[name] = jax.jit(function)
        return self.programs[name]


def _fit(basis: Basis, sources: list[_Source], keys: list[jax.Array], runs: int) -> list[np.ndarray]:
    """Most probable weights (F + 1,), the constant first, by Newton's method.

    Three times: with a variance learned for each group of features; with one for each feature, which leaves most out;
    and of the latter only those that stand out from the noise. The sparsest comes first.
    """
    groups = np.unique(basis.groups, return_inverse=True)[1]
    weights, precision = np.zeros(len(groups) + 1), np.ones(len(groups))
    for share in _PASSES:
        some = max(round(share * runs), min(runs, 2 * _BLOCK))
        parts = [
            source.moments(basis, key, weights, some, 1 - side)
            for side, (source, key) in enumerate(zip(sources, keys, strict=True))
        ]
        gradient, curvature = (one + other for one, other in zip(*parts, strict=True))
        target = curvature @ weights + gradient
        weights, precision = _shrunk(curvature, target, precision, groups)
    sparse, own = _shrunk(curvature, target, precision, np.arange(len(groups)))
    variance = np.diag(np.linalg.inv(curvature + np.diag(np.concatenate([[1e-6], own]))))
    sure = sparse**2 > 2.0 * np.log(len(sparse)) * variance
    sure[0] = True
    surest = np.zeros(len(sparse))
    part = curvature[np.ix_(sure, sure)]
    surest[sure] = _shrunk(part, target[sure], own[sure[1:]], np.arange(sure.sum() - 1))[0]
    return [surest, sparse, weights]


def _shrunk(
    curvature: np.ndarray, target: np.ndarray, precision: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights that maximise the posterior, and the precision of each weight's prior, both from a quadratic.

    MacKay's update: precision = (number of weights in the group that the runs determine) / (sum of their squares).
    """
    for _ in range(_UPDATES):
        covariance = np.linalg.inv(curvature + np.diag(np.concatenate([[1e-6], precision])))
        weights = covariance @ target
        known = np.bincount(groups, 1.0 - precision * np.diag(covariance)[1:])
        power = np.bincount(groups, weights[1:] ** 2)
        precision = np.clip(np.maximum(known, 1e-3) / np.maximum(power, 1e-12), *_PRECISIONS)[groups]
    return weights, precision


def _calibrate(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Log likelihood of held-out runs, with the shift and stretch of scores that make them log odds (Platt, 1999).

    Both are near 0 and 1 by a normal prior.
    """
    scores = np.concatenate([one, other])
    design = np.stack([np.ones(len(scores)), scores], axis=1)
    label = np.repeat([1.0, 0.0], [len(one), len(other)])
    mean, precision = np.array([0.0, 1.0]), np.array([100.0, 10.0])
    found = mean
    for _ in range(10):
        odds = design @ found
        bound = np.where(np.abs(odds) < 1e-2, 0.25, 0.5 * np.tanh(0.5 * odds) / np.where(odds == 0.0, 1.0, odds))
        gradient = design.T @ (label - special.expit(odds)) - precision * (found - mean)
        found = found + np.linalg.solve((design * bound[:, None]).T @ design + np.diag(precision), gradient)
    found = np.maximum(found, [-np.inf, 1e-3])
    fit = np.sum(special.log_expit((design @ found) * (2.0 * label - 1.0)))
    return float(fit), float(found[0]), float(found[1])
