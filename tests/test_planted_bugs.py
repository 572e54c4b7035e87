"""Mutation tests of the auditor: bugs that real libraries had, each of which it has to refute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import first

from jaxdp.audit import Claim, examine

pytestmark = pytest.mark.slow

EPSILON = 1.0
CLAIM = Claim.pure(EPSILON, neighbours="replace-one")


def laplace(key, scale, shape=()):
    return np.float32(scale) * jax.random.laplace(key, shape, jnp.float32)


def clipped_sum(records, clip=True):
    return jnp.sum(jnp.clip(records, 0.0, 1.0) if clip else records)


def sparse(key, queries, *, keep, reuse=False, cutoff=1):
    """Sparse vector at epsilon 1 with the noise of one crossing, which stops after `keep` crossings."""
    one, other = jax.random.split(key)
    threshold = laplace(one, 2.0 / EPSILON)
    noise = laplace(one if reuse else other, 4.0 * cutoff / EPSILON, () if reuse else queries.shape)
    above = queries + noise >= threshold
    before = jnp.cumsum(above.astype(jnp.int32)) - above.astype(jnp.int32)
    return jnp.where(before < keep, above.astype(jnp.int32), np.int32(-1))


def sensitivity_halved(key, records):
    return clipped_sum(records) + laplace(key, 0.5 / EPSILON)


def scale_for_twice_the_budget(key, records):
    """The scale of epsilon where that of epsilon / 2 was due: two queries share the budget."""
    return jnp.stack([clipped_sum(records), clipped_sum(1 - records)]) + laplace(key, 1.0 / EPSILON, (2,))


def noise_shared_by_all(key, queries):
    return sparse(key, queries, keep=1, reuse=True)


def no_abort(key, queries):
    return sparse(key, queries, keep=len(queries))


def one_crossing_too_many(key, queries):
    return sparse(key, queries, keep=2)


def two_cells_move(key, records):
    """A histogram: replacing a record moves two counts, the noise is for one."""
    counts = jnp.sum(records[:, None] == np.arange(3, dtype=np.int32)[None, :], axis=0, dtype=jnp.float32)
    return counts + laplace(key, 1.0 / EPSILON, (3,))


def one_noise_for_two_sums(key, records):
    return jnp.stack([clipped_sum(records), clipped_sum(records[:1])]) + laplace(key, 2.0 / EPSILON)


def nan_gets_through(key, records):
    return clipped_sum(records) / np.float32(3) + laplace(key, 1.0 / (3.0 * EPSILON))


def clamped_after_the_noise(key, records):
    return jnp.clip(clipped_sum(records, clip=False) + laplace(key, 1.0 / EPSILON), 0.0, 3.0)


def count_in_the_open(key, records):
    """A mean whose noise and denominator use the true number of records."""
    n = jnp.sum(records >= 0.0, dtype=jnp.float32)
    return jnp.sum(jnp.maximum(records, 0.0)) / n + jax.random.laplace(key, (), jnp.float32) / (n * np.float32(EPSILON))


RECORDS = np.float32([0.5, 0.0, 1.0])
TOP = np.float32([1.0, 0.0, 1.0]), np.float32([0.0, 0.0, 1.0])
LAST = np.float32([1.0, 0.0, 1.0]), np.float32([1.0, 0.0, 0.0])
FALL = np.float32([0] * 8 + [1, 1]), np.float32([1] * 8 + [0, 0])
RISE = np.float32([1] + [0] * 5), np.float32([0] + [1] * 5)
BUGS = [
    pytest.param(sensitivity_halved, [TOP], 2e5, id="sensitivity halved"),
    pytest.param(scale_for_twice_the_budget, [TOP], 1e6, id="scale off by 2"),
    pytest.param(noise_shared_by_all, [RISE], 2e5, id="threshold noise reused"),
    pytest.param(no_abort, [(np.float32([1, -1] * 5), np.float32([-1, 1] * 5) * 0)], 2e6, id="missing abort"),
    pytest.param(one_crossing_too_many, [FALL, FALL[::-1]], 1e7, id="off-by-one cut-off"),
    pytest.param(two_cells_move, [(np.int32([0, 1, 2]), np.int32([1, 1, 2]))], 1e6, id="wrong neighbour"),
    pytest.param(one_noise_for_two_sums, [LAST], 2e5, id="noise reused"),
    pytest.param(nan_gets_through, [(RECORDS, np.float32([np.nan, 0.0, 1.0]))], 1e5, id="NaN"),
    pytest.param(clamped_after_the_noise, [(RECORDS, np.float32([9.0, 0.0, 1.0]))], 1e5, id="clamp after noise"),
    pytest.param(count_in_the_open, [(np.float32([0, -1]), np.float32([0, 1]))], 1e6, id="true count"),
]


@pytest.mark.parametrize("bug, pairs, runs", first(3, BUGS))
def test_planted_bugs_are_refuted(key, bug, pairs, runs):
    found = examine(key, bug, CLAIM, pairs, num_samples=int(runs), confidence=0.999)
    assert found.report.refuted, str(found)


def sound_sum(key, records):
    return clipped_sum(jnp.where(jnp.isnan(records), 0.0, records)) + laplace(key, 1.0 / EPSILON)


def sound_sparse(key, queries):
    return sparse(key, queries, keep=1)


SOUND = [(sound_sum, [TOP, (RECORDS, np.float32([np.nan, 9.0, 1.0]))]), (sound_sparse, [FALL, RISE])]


@pytest.mark.parametrize("sound, pairs", first(1, SOUND))
def test_their_sound_versions_are_not(key, sound, pairs):
    found = examine(key, sound, CLAIM, pairs, num_samples=1_000_000, confidence=0.999)
    assert not found.refuted, str(found)
