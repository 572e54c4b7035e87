"""Lowest bits of floats as features: they tell float noise on two inputs apart, and say nothing about lattices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.audit import _binomial, _codes, _events
from jaxdp.audit._describe import describe
from jaxdp.audit._outputs import MAX_COORDINATES, Feature, Layout

RUNS = 30_000


def lowest(values):
    """Codes of an array, in the scope that its layout asks for."""
    values = np.asarray(values)
    layout = Layout.of(jax.ShapeDtypeStruct((), np.float32) if values.dtype != np.float64 else np.float64(0), bits=True)
    with layout.scope():
        return np.asarray(_codes.lowest_bit(values, layout.code))


def oracle(value):
    """Exponent of the largest power of two that divides a number, from its fraction."""
    numerator, denominator = float(value).as_integer_ratio()
    return -(denominator.bit_length() - 1) if denominator > 1 else (numerator & -numerator).bit_length() - 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_lowest_bits_are_exact(dtype):
    rng = np.random.default_rng(0)
    tiny = np.finfo(dtype).smallest_subnormal
    some = np.concatenate([[1.0, -0.5, 3.0, 96.0, np.pi, tiny, 6 * tiny, np.finfo(dtype).max], rng.normal(size=200)])
    some = some.astype(dtype)
    assert lowest(some).tolist() == [oracle(value) for value in some]
    odd = lowest(np.array([0.0, -0.0, np.inf, -np.inf, np.nan], dtype))
    assert [_codes.spell_bit(code) for code in odd] == ["zero", "zero", "infinite", "infinite", "nan"]
    assert _codes.spell_bit(-54) == "2^-54" and min(odd) > lowest(some).max()


def test_features_of_floats_only_and_of_few():
    def names(output, **options):
        layout = Layout.of(output, **options)
        found = layout.features(np.arange(min(layout.size, MAX_COORDINATES)))
        assert layout.statistics_count == sum(not f.table for f in found) - min(layout.size, MAX_COORDINATES)
        return [feature.name for feature in found if feature.bit]

    pair = {"tag": np.zeros(2, np.int32), "value": np.zeros(2, np.float32)}
    expected = ["lowest bit of output['value'][0]", "lowest bit of output['value'][1]"]
    assert names(pair, bits=True) == expected
    assert names(np.float32(0), bits=True) == ["lowest bit of output"]
    # Discrete outputs, long vectors and whoever does not ask have none.
    assert names(pair) == names(pair["tag"], bits=True) == names(np.zeros(17, np.float32), bits=True) == []


def test_columns_follow_the_names():
    outputs = {"tag": np.zeros((5, 2), np.int32), "value": np.full((5, 2), [0.75, 8.0], np.float32)}
    layout = Layout.of(jax.tree.map(lambda leaf: leaf[0], outputs), bits=True)
    codes = np.asarray(layout.statistics(outputs))
    assert codes.shape == (5, layout.statistics_count) and codes[0, -2:].tolist() == [-2, 3]


def test_events_in_words():
    feature = Feature("lowest bit of output", np.dtype(np.int32), bit=True)
    layout = Layout.of(np.float32(0), bits=True)
    edges = np.array([-55, -54, -3, 1999, 2000])

    def text(*cells):
        return describe(layout, feature, edges, np.isin(np.arange(6), cells), None)

    assert text(0, 1) == "lowest bit of output <= 2^-54"
    assert text(2) == "2^-53 <= lowest bit of output <= 2^-3"
    assert text(0, 4) == "lowest bit of output in {... to 2^-55, zero}"


def certificate(sampler, inputs, seed=0):
    """A small audit without the engine: event on one half, verified limits on the other, alpha 1e-9 in all."""
    rng = np.random.default_rng(seed)
    drawn = [[sampler(rng, x) for x in inputs] for _ in range(3)]
    layout = Layout.of(drawn[0][0][0], bits=True)
    features = layout.features(np.arange(layout.size))

    def codes(outputs):
        with layout.scope():
            both = layout.coordinates(outputs), layout.statistics(outputs)
            return list(np.concatenate([np.asarray(part) for part in both], axis=1).T)

    read = [[codes(side) for side in half] for half in drawn]
    edges = [_events.find_edges(np.concatenate([side[j] for side in read[0]]), f) for j, f in enumerate(features)]
    counts = [
        [np.stack([_events.count_cells(side[j], each) for side in half]) for j, each in enumerate(edges)]
        for half in read
    ]
    event = _events.choose(
        layout,
        features,
        edges,
        *counts[:2],
        None,
        runs=RUNS,
        alpha=1e-9,
        epsilon=0.1,
        delta=0.0,
        test="clopper-pearson",
    )
    cells = [_events.count_cells(side[event.feature], event.edges) for side in read[2]]
    hits = event.hits(np.stack(cells))[:, event.main]
    one, other = hits[::-1] if event.reverse else hits
    ratio = _binomial.lower_limit(one, RUNS, 5e-10) / _binomial.upper_limit(other, RUNS, 5e-10)
    return float(np.log(np.maximum(ratio, 1.0))), event.text


def float_laplace(dtype):
    def sample(rng, x):
        return x + rng.laplace(scale=10.0, size=RUNS).astype(dtype)

    return sample


def lattice_laplace(rng, x):
    steps = rng.geometric(0.1, RUNS) - rng.geometric(0.1, RUNS) + x
    return steps.astype(np.float64) / 16.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("inputs", [(0, 1), (1, 2)])
def test_float_noise_is_told_apart_by_its_lowest_bits(dtype, inputs):
    """float64 noise too, in both modes: its claim is 0.1, a classifier on bit patterns certified 0.25."""
    found, text = certificate(float_laplace(dtype), [dtype(x) for x in inputs])
    assert found > 2.0 and text.startswith("lowest bit of output <= 2^-")


def test_lattice_noise_is_not_refuted():
    for seed in range(5):
        # One step of the lattice loses log(1 / 0.9).
        found, _ = certificate(lattice_laplace, [0, 1], seed)
        assert found <= -np.log(0.9)


def test_bit_features_work_under_jit():
    layout = Layout.of(np.float32(0), bits=True)
    codes = jax.jit(lambda x: layout.statistics(x))(jnp.asarray([0.5, 3.0], jnp.float32))
    assert codes.ravel().tolist() == [-1, 0]
