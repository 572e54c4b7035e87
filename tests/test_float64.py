"""The float64 decorator inside float32 programs, and argmax."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import oracles_base as oracle
import pytest

from jaxdp._float64 import argmax, float64, read

X64 = jax.config.jax_enable_x64


@float64
def softplus_of_sum(x, y):
    """Loses seven digits in float32."""
    return jnp.log1p(jnp.exp(x + y)) - jnp.sum(jnp.stack([x, y]))


def truth(x, y):
    x, y = np.float64(x), np.float64(y)
    return np.log1p(np.exp(x + y)) - (x + y)


def close(got, expected):
    got = np.asarray(got)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-15, atol=1e-15)


X = np.linspace(-3.0, 3.0, 8).astype(np.float32)
Y = np.linspace(0.3, 1.1, 8).astype(np.float32)


@pytest.mark.leaks
def test_in_every_transform():
    for name, got in oracle.transforms(softplus_of_sum, X, Y):
        assert jax.config.jax_enable_x64 == X64, name
        close(got, truth(X, Y))


def test_python_and_numpy_numbers_keep_their_digits():
    third = 1 / 3
    close(softplus_of_sum(third, 0.1), truth(third, 0.1))
    close(softplus_of_sum(np.float64(third), np.float64(0.1)), truth(third, 0.1))
    close(softplus_of_sum(np.float32(third), 0.1), truth(np.float32(third), 0.1))
    # A wrong precision would be seen.
    assert abs(truth(third, 0.1) - truth(np.float32(third), 0.1)) > 1e-9


def test_inside_a_float32_program_between_float32_operations():
    dtypes = []

    @jax.jit
    def program(x):
        narrow = x * 2 + 1
        wide = softplus_of_sum(narrow, 0.1)
        after = wide.astype(jnp.float32) + narrow
        dtypes.extend(value.dtype for value in (narrow, wide, after))
        return wide

    close(program(X[0]), truth(X[0] * 2 + 1, 0.1))
    assert dtypes == [jnp.float32, jnp.float64, jnp.float32]


def test_gradient():
    slope = jax.jit(jax.grad(lambda x: softplus_of_sum(x, 0.25).astype(jnp.float32)))(X[2])
    assert slope.dtype == jnp.float32
    t = float(X[2]) + 0.25
    np.testing.assert_allclose(slope, 1 / (1 + math.exp(-t)) - 1, rtol=1e-6)
    _, tangent = jax.jvp(lambda x: softplus_of_sum(x, 0.25), (X[2],), (np.float32(1.0),))
    np.testing.assert_allclose(np.asarray(tangent), 1 / (1 + math.exp(-t)) - 1, rtol=1e-15)


def test_static_arguments_and_pytrees():
    @float64(static_argnames=("power",))
    def total(tree, *, scale, power):
        return {"sum": (tree["a"] + tree["b"][0]) * scale**power, "count": tree["n"], "flag": tree["flag"]}

    tree = {"a": 0.1, "b": (np.float32(0.2),), "n": np.uint32(7), "flag": np.bool_(True)}
    got = total(tree, scale=0.3, power=2)
    close(got["sum"], (0.1 + np.float64(np.float32(0.2))) * 0.3**2)
    assert got["count"].dtype == jnp.uint32 and got["flag"].dtype == jnp.bool_


def test_the_flag_survives_an_error():
    @float64
    def fail(x):
        raise RuntimeError("as asked")

    with pytest.raises(RuntimeError, match="as asked"):
        fail(1.0)
    assert jax.config.jax_enable_x64 == X64
    assert jnp.asarray(0.5).dtype == (jnp.float64 if X64 else jnp.float32)


def test_sums_of_integers_need_64_bits():
    big = float64(lambda n: jnp.sum(n.astype(jnp.uint64)))
    assert int(jax.jit(big)(np.full(1000, 2**32 - 1, np.uint32))) == 1000 * (2**32 - 1)
    exact = float64(lambda x: x / 3.0)(np.float32(0.1))
    assert abs(Fraction(float(exact)) - Fraction(float(np.float32(0.1))) / 3) <= Fraction(1, 2**57)


def test_read_gives_numpy_numbers_that_do_arithmetic():
    value = read(softplus_of_sum(0.1, 0.2))
    assert isinstance(value, np.float64) and value + 1.0 == truth(0.1, 0.2) + 1.0
    assert isinstance(jax.jit(lambda x: jnp.float32(isinstance(read(x), jax.core.Tracer)))(0.0), jax.Array)


@pytest.mark.parametrize(
    ("values", "index"),
    [
        ([1.0, 3.0, 2.0], 1),
        ([3.0, 1.0, 3.0], 0),
        ([-np.inf, -np.inf], 0),
        ([0.0, np.inf, np.inf], 1),
        ([-0.0, 0.0], 0),
        ([5.0], 0),
        ([np.nan, 1.0], 2),
        ([1.0, np.nan, 2.0], 3),
        ([1.0, 1.0 + 1e-15], 1),
    ],
)
def test_argmax(values, index):
    got = float64(argmax)(np.array(values))
    assert got.dtype == jnp.int32 and got == index
    assert float64(argmax)(np.array([2**63, 2**64 - 1, 5], np.uint64)) == 1
