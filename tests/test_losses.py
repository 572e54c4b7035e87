"""Sums and means of losses: exact values, the public grid, unbounded ranges, sensitivities, bad arguments."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import oracles_bounds as oracles
import pytest
from marks import first

import jaxdp
from jaxdp.bounds import _losses, accuracy, mean, squared_error
from jaxdp.bounds import sum as total
from jaxdp.bounds._statistic import STATISTICS

RANGES = {"mean": (-3.0, 7.1), "sum": (-3.0, 7.1), "squared_error": (-1.0, 2.3), "absolute_error": (-1.0, 2.3)}


def _exact(losses, low, high, radius, *, size):
    """Levels in rational arithmetic."""
    z = sorted(Fraction(float(value)) for value in losses)
    n, low, high = len(z), Fraction(low), Fraction(high)
    lower = [sum(z[: n - level], min(level, n) * low) if level < n else n * low for level in range(radius + 1)]
    upper = [sum(z[level:], min(level, n) * high) for level in range(radius + 1)]
    return [float(part / size) for part in (*lower, n * low)], [float(part / size) for part in (*upper, n * high)]


def _loss(name, records):
    """Losses by the definition, and their range."""
    one, *rest = (np.asarray(part, np.float64) for part in records)
    if name in ("mean", "sum"):
        low, high = RANGES[name]
        return np.clip(np.where(np.isnan(one), low, one), low, high), low, high
    if name == "accuracy":
        return (one == rest[0]).astype(float), 0.0, 1.0
    if name in RANGES:
        low, high = RANGES[name]
        p, t = (np.clip(np.where(np.isnan(part), low, part), low, high) for part in (one, rest[0]))
        power = 2 if name == "squared_error" else 1
        return np.abs(p - t) ** power, 0.0, (high - low) ** power
    if name == "binary_cross_entropy":
        c = 4.0
        z = np.clip(np.where(np.isnan(one), -c, one), -c, c)
        return np.log1p(np.exp(np.where(rest[0] == 1, -z, z))), math.log1p(math.exp(-c)), math.log1p(math.exp(c))
    c, classes = 3.0, 3
    z = np.clip(np.where(np.isnan(one), -c, one), -c, c)
    label = np.clip(rest[0].astype(int), 0, classes - 1)
    loss = -np.log(np.exp(z)[np.arange(len(z)), label] / np.exp(z).sum(axis=1))
    return loss, math.log1p(2 * math.exp(-2 * c)), math.log(1 + 2 * math.exp(2 * c))


LOSSES = sorted({*RANGES, "accuracy", "binary_cross_entropy", "cross_entropy"})


@pytest.mark.parametrize("name", LOSSES)
def test_entries_are_the_exact_extremes_to_1e_9_of_the_range(name):
    rng = np.random.default_rng(len(name))
    with jax.enable_x64(True):
        for n, radius in ((1, 3), (7, 4), (7, 4), (7, 4), (30, 30)):
            records = STATISTICS[name].draw(rng, n)
            bounds = STATISTICS[name].call(records, radius)
            losses, low, high = _loss(name, records)
            size = 1 if name == "sum" else n
            lower, upper = _exact(losses, low, high, radius, size=size)
            tolerance = 1e-9 * (high - low) * n / size
            np.testing.assert_allclose(bounds.lower, lower, rtol=0.0, atol=tolerance)
            np.testing.assert_allclose(bounds.upper, upper, rtol=0.0, atol=tolerance)
            np.testing.assert_allclose(bounds.sensitivity, (high - low) / size, rtol=0.0, atol=tolerance)
            assert bounds.monotonic and bounds.radius == radius


@pytest.mark.parametrize("name", LOSSES)
def test_extremes_are_reached(name):
    """Entries are what the same function gives for the replaced data set, when the extreme records are known."""
    worst = {
        "accuracy": ([0, 0], [1, 0]),
        "mean": (list(RANGES["mean"]),),
        "sum": (list(RANGES["sum"]),),
        "squared_error": ([-1.0, 2.0], [2.3, 2.0]),
        "absolute_error": ([-1.0, 2.0], [2.3, 2.0]),
        "binary_cross_entropy": ([4.0, 4.0], [0, 1]),
        "cross_entropy": ([[3.0, 3.0, -3.0], [-3.0, 3.0, -3.0]], [2, 1]),
    }[name]
    n, radius, rng = 6, 3, np.random.default_rng(5)
    ends = tuple(np.asarray(part, np.float64 if np.asarray(part).dtype.kind == "f" else np.int64) for part in worst)
    with jax.enable_x64(True):
        for _ in range(4):
            records = STATISTICS[name].draw(rng, n)
            bounds = STATISTICS[name].call(records, radius)
            losses, *_ = _loss(name, records)
            order = np.argsort(losses, kind="stable")
            for level in range(1, radius + 1):
                for end, chosen, entries in (
                    (0, order[:level], bounds.upper),
                    (1, order[n - level :], bounds.lower),
                ):
                    # Index 0 of `worst` has the largest loss but for the identity and the accuracy.
                    end = 1 - end if name in ("mean", "sum", "accuracy") else end
                    replaced = tuple(part.copy() for part in records)
                    for part, extreme in zip(replaced, ends, strict=True):
                        part[chosen] = extreme[end]
                    value = STATISTICS[name].call(replaced, radius).value
                    np.testing.assert_allclose(entries[level], value, rtol=0.0, atol=1e-9 * 13.0 * n)


def test_integers_and_short_fractions_are_exact():
    x = np.array([3, 17, 40, 99, 100])
    assert mean(x, 0, 100, radius=1).lower.tolist() == [np.float32(51.8), np.float32(31.8), 0.0]
    with jax.enable_x64(True):
        assert float(mean(x, 0, 100, radius=0).value) == 51.8
        assert float(mean(x + 0.375, 0.25, 100.25, radius=0).value) == float(np.mean(np.minimum(x + 0.375, 100.25)))
        assert total(x - 0.5, -1, 127, radius=2).upper.tolist() == [256.5, 381.0, 491.5, 635.0]


def test_many_records_are_summed_exactly():
    """Float32 sums of these stop at 2^24."""
    x = np.full(2**18 + 3, 100.0, np.float32)
    bounds = total(x, 0.0, 128.0, radius=1)
    assert bounds.upper.tolist() == [26_214_700.0, 26_214_728.0, 33_554_816.0]
    right = jnp.arange(100_000) % 3 == 0
    share = accuracy(right, jnp.ones(100_000, bool), radius=2)
    exact = np.array([0.33334, 0.33335, 0.33336, 1.0]).astype(share.upper.dtype)
    np.testing.assert_array_equal(share.upper, exact)


def test_order_of_records_does_not_matter():
    rng = np.random.default_rng(0)
    x = rng.normal(size=1001)
    one, two = (mean(part, -2.0, 2.5, radius=20) for part in (x, rng.permutation(x)))
    np.testing.assert_array_equal(one.lower, two.lower)
    np.testing.assert_array_equal(one.upper, two.upper)


def test_radius_and_levels_beyond_the_records():
    x = np.array([0.25, 0.5])
    wide = mean(x, 0.0, 1.0, radius=5)
    assert wide.lower.tolist() == [0.375, 0.125, 0, 0, 0, 0, 0] and wide.upper.tolist() == [0.375, 0.75, 1, 1, 1, 1, 1]
    for radius in range(4):
        narrow = mean(x, 0.0, 1.0, radius=radius)
        assert narrow.lower.tolist() == [*wide.lower[: radius + 1].tolist(), 0.0]
        assert narrow.upper.tolist() == [*wide.upper[: radius + 1].tolist(), 1.0]


@pytest.mark.parametrize(("low", "high"), [(1e6, 1e6 + 1.0), (-1e-9, 2e-9), (0.1, 3e7), (-5e8, -5e8 + 3.0)])
def test_contract_on_awkward_ranges(low, high):
    """Entries that the cast to float32 moves by more than a record can move f."""
    for x64 in (False, True):
        with jax.enable_x64(x64):
            found, change = _check_family(
                lambda x: mean(x, low, high, radius=6), lambda rng, n: (rng.uniform(low, high, n),), n=50
            )
            assert not any(found.values()) and change <= 0.0


def _check_family(call, draw, *, n, pairs=200, seed=0):
    """Violations of all kinds, and by how much f moves more than the sensitivity allows."""
    x, y, index = oracles.neighbours(draw, np.random.default_rng(seed), n, pairs)
    program = jax.jit(jax.vmap(lambda records: call(*records)))
    results = [program(tuple(jnp.asarray(part) for part in records)) for records in (x, y)]
    one, two = ((np.asarray(b.lower), np.asarray(b.upper)) for b in results)
    rows = np.arange(pairs)
    # The first array alone is replaced upwards or downwards: right for the mean, sum and one-sided errors.
    raised = np.sign(y[0][rows, index] - x[0][rows, index]).astype(int) if len(x) == 1 else np.zeros(pairs, int)
    change = np.abs(one[0][:, 0].astype(float) - two[0][:, 0].astype(float)) - np.asarray(results[0].sensitivity)
    return oracles.violations(one, two, raised), change.max() if np.all(np.isfinite(change)) else -np.inf


UNBOUNDED = {
    "mean": lambda x: mean(x, -1.0, math.inf, radius=8),
    "sum": lambda x: total(x, 0.0, math.inf, radius=8),
    "squared_error": lambda p, t: squared_error(p, t, -3.0, math.inf, radius=8),
    "absolute_error": lambda p, t: jaxdp.bounds.absolute_error(p, t, -3.0, math.inf, radius=8),
}


def _heavy(rng, n):
    kind = rng.integers(4)
    x = rng.lognormal(sigma=[0.1, 1.0, 5.0, 30.0][kind], size=n) - 1.0
    return np.where(rng.random(n) < 0.1, rng.choice([-5.0, 0.0, 1e-300, 1e200, 3.0], n), x)


@pytest.mark.parametrize("n", first(2, [1, 1500, 2, 30]))
@pytest.mark.parametrize("name", UNBOUNDED)
def test_contract_without_an_upper_end(name, n):
    def draw(rng, n):
        return (_heavy(rng, n),) if name in ("mean", "sum") else (_heavy(rng, n), _heavy(rng, n))

    with jax.enable_x64(True):
        found, _ = _check_family(UNBOUNDED[name], draw, n=n, pairs=300)
    assert not any(found.values())


def _tight_neighbours(call, *, n=1500, pairs=300):
    """x' is x with its largest record at the lower end, 0: L^l(x') = L^(l+1)(x) but for rounding."""
    x = np.random.default_rng(n).lognormal(size=(pairs, n))
    y = np.where(x == x.max(axis=1, keepdims=True), 0.0, x)
    with jax.enable_x64(True):
        one, two = (jax.vmap(call)(jnp.asarray(part)) for part in (x, y))
        one, two = ((np.asarray(b.lower), np.asarray(b.upper)) for b in (one, two))
    return oracles.violations(one, two, np.full(pairs, -1))


def test_widening_makes_room_for_rounding_and_is_needed(monkeypatch):
    assert not any(_tight_neighbours(lambda x: mean(x, 0.0, math.inf, radius=8)).values())
    assert not any(_tight_neighbours(lambda x: mean(x, 0.0, 50.0, radius=8)).values())
    # Negative control: the same sums without the factor 1 - l eta.
    jax.clear_caches()
    monkeypatch.setattr(_losses, "_ROOM", -1000.0)
    found = _tight_neighbours(lambda x: mean(x, 0.0, math.inf, radius=8))
    monkeypatch.undo()
    jax.clear_caches()
    assert found["contract"] > 0 and found["monotonicity"] == 0


def test_values_without_an_upper_end():
    x = np.random.default_rng(1).lognormal(sigma=3.0, size=500)
    with jax.enable_x64(True):
        bounds = mean(x, 0.0, math.inf, radius=600)
        expected = [np.sort(x)[: max(500 - level, 0)].sum() / 500 for level in range(601)]
        np.testing.assert_allclose(bounds.lower[:-1], expected, rtol=1e-9)
        assert bounds.lower[-1] == 0.0 and np.all(np.isinf(bounds.upper[1:])) and bounds.upper[0] == bounds.lower[0]
        assert np.isinf(bounds.sensitivity) and bounds.monotonic
    # Numbers beyond float32 and infinite records leave a finite f.
    for dtype in (np.float32, np.float64):
        big = total(np.array([np.inf, 1.0, np.nan, 3e38], dtype), 0.0, math.inf, radius=2)
        assert np.isfinite(big.value) and float(big.lower[2]) == pytest.approx(1.0, abs=1e-12)


def test_dtypes_of_the_entries():
    double = np.float64 if jax.config.jax_enable_x64 else np.float32
    for data, dtype in (
        (np.ones(3, np.float16), np.float32),
        (jnp.ones(3, jnp.bfloat16), np.float32),
        (np.ones(3, np.float32), np.float32),
        (np.ones(3), double),
        (np.ones(3, np.int8), double),
        ([1, 2, 3], double),
    ):
        bounds = mean(data, 0, 2, radius=1)
        assert bounds.lower.dtype == bounds.upper.dtype == bounds.sensitivity.dtype == dtype
    assert squared_error(np.ones(2, np.float32), np.ones(2), 0, 1, radius=0).lower.dtype == double
    # Doubles are read in full even where JAX stores floats.
    whole = mean(np.array([2.0**26 + 1.0] * 2), 2.0**26, 2.0**26 + 2.0, radius=0).value
    assert whole == 2.0**26 + jax.config.jax_enable_x64
    assert total(np.array([2.0**-26] * 2), 0.0, 2.0**-25, radius=0).value == 2.0**-25


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities_are_moved_into_the_range(value):
    moved = {"nan": 0.0, "inf": 4.0, "-inf": 0.0}[str(value)]
    for one, two in (([value, 1.0], [moved, 1.0]), ([value, value], [moved, moved])):
        assert mean(one, 0.0, 4.0, radius=1).lower.tolist() == mean(two, 0.0, 4.0, radius=1).lower.tolist()
        errors = [squared_error(part, [1.0, 3.0], 0.0, 4.0, radius=1).lower.tolist() for part in (one, two)]
        assert errors[0] == errors[1]
    a = jaxdp.bounds.cross_entropy(np.array([[value, 1.0]]), [0], 4.0, radius=0)
    b = jaxdp.bounds.cross_entropy(np.array([[{"inf": 4.0}.get(str(value), -4.0), 1.0]]), [0], 4.0, radius=0)
    assert a.lower.tolist() == b.lower.tolist()


def test_labels():
    logits = np.array([2.0, -1.0, 0.5], np.float32)
    labels = np.array([1, 0, 1])
    same = [jaxdp.bounds.binary_cross_entropy(logits, labels.astype(d), 3.0, radius=1) for d in (int, bool, float)]
    assert same[0].lower.tolist() == same[1].lower.tolist() == same[2].lower.tolist()
    rows = np.eye(3)
    one, two = (jaxdp.bounds.cross_entropy(rows, part, 1.0, radius=1) for part in ([-7, 1, 9], [0, 1, 2]))
    assert one.lower.tolist() == two.lower.tolist()
    assert accuracy(np.array([1, 0, 255], np.uint8), np.array([1, 1, -1]), radius=0).value == pytest.approx(1 / 3)


def test_two_classes_are_the_binary_loss_of_the_difference():
    rng = np.random.default_rng(2)
    logit, label = rng.uniform(-3.0, 3.0, 20), rng.integers(0, 2, 20)
    two = jaxdp.bounds.cross_entropy(np.stack([-logit / 2.0, logit / 2.0], axis=1), label, 1.5, radius=4)
    one = jaxdp.bounds.binary_cross_entropy(logit, label, 3.0, radius=4)
    np.testing.assert_allclose(two.lower, one.lower, rtol=1e-6)
    np.testing.assert_allclose(two.upper, one.upper, rtol=1e-6)


BAD_ENDS = [(1.0, 1.0), (2.0, 1.0), (np.nan, 1.0), (0.0, np.nan), (-np.inf, 1.0), (np.inf, np.inf), (0.0, 1e300)]
BAD_LIMITS = [0.0, -1.0, np.nan, np.inf, 1e300, 1e-300]


def _all_nan(bounds):
    return all(np.all(np.isnan(part)) for part in (bounds.lower, bounds.upper, bounds.sensitivity))


def test_bad_traced_parameters_fail_closed():
    x = jnp.asarray([0.2, 0.4], jnp.float32)
    functions = {
        "mean": lambda a, b: mean(x, a, b, radius=1),
        "sum": lambda a, b: total(x, a, b, radius=1),
        "squared": lambda a, b: squared_error(x, x, a, b, radius=1),
        "absolute": lambda a, b: jaxdp.bounds.absolute_error(x, x, a, b, radius=1),
    }
    for function in functions.values():
        compiled = jax.jit(function)
        for low, high in [*BAD_ENDS[:-1], (0.0, np.inf)]:
            assert _all_nan(compiled(jnp.float32(low), jnp.float32(high))), (low, high)
        assert not _all_nan(compiled(jnp.float32(0.0), jnp.float32(1.0)))
        assert not _all_nan(compiled(0, 1))
    unbounded = jax.jit(lambda a: mean(x, a, math.inf, radius=1))
    assert _all_nan(unbounded(jnp.float32(np.nan))) and _all_nan(unbounded(-jnp.inf))
    unbounded = jax.jit(lambda a: squared_error(x, x, a, math.inf, radius=1))
    assert _all_nan(unbounded(jnp.float32(np.nan))) and _all_nan(unbounded(-jnp.inf))
    assert np.isfinite(unbounded(0.0).value)
    entropies = (
        jax.jit(lambda c: jaxdp.bounds.cross_entropy(jnp.stack([x, x]), jnp.array([0, 1]), c, radius=1)),
        jax.jit(lambda c: jaxdp.bounds.binary_cross_entropy(x, jnp.array([0, 1]), c, radius=1)),
    )
    for compiled in entropies:
        for limit in BAD_LIMITS[:4]:
            assert _all_nan(compiled(jnp.float32(limit)))
        assert not _all_nan(compiled(jnp.float32(2.0)))


@pytest.mark.parametrize("function", [mean, total, squared_error, jaxdp.bounds.absolute_error])
def test_bad_arguments(function):
    x = np.array([0.5, 0.7])
    data = (x,) if function in (mean, total) else (x, x)
    name = "x" if len(data) == 1 else "predictions"
    for low, high in BAD_ENDS:
        if (low, high) == (0.0, 1e300) and jax.config.jax_enable_x64:
            high = 1e301
        with pytest.raises(ValueError, match=r"lower|upper"):
            function(*data, low, high, radius=1)
    for low, word in ((True, "lower"), (1j, "lower"), ([0.0, 1.0], "lower"), ("a", "lower")):
        with pytest.raises(ValueError, match=word):
            function(*data, low, 1.0, radius=1)
    for radius in (-1, 1.0, True, None, np.float32(2)):
        with pytest.raises(ValueError, match="radius"):
            function(*data, 0.0, 1.0, radius=radius)
    for bad in (np.ones((2, 2)), np.array([]), 1.0, np.ones(2, bool), np.ones(2, complex)):
        with pytest.raises(ValueError, match=name):
            function(*([bad] * len(data)), 0.0, 1.0, radius=1)
    if len(data) == 2:
        with pytest.raises(ValueError, match="targets"):
            function(x, np.ones(3), 0.0, 1.0, radius=1)
    function(*data, 0, np.float32(1), radius=np.int64(1))


def test_bad_arguments_of_the_classifiers():
    logits, labels = np.zeros((3, 2)), np.zeros(3, int)
    entropy, binary = jaxdp.bounds.cross_entropy, jaxdp.bounds.binary_cross_entropy
    for limit in BAD_LIMITS:
        with pytest.raises(ValueError, match="limit"):
            entropy(logits, labels, limit, radius=1)
        with pytest.raises(ValueError, match="limit"):
            binary(logits[:, 0], labels, limit, radius=1)
    for bad in (np.zeros(3), np.zeros((3, 1)), np.zeros((0, 2)), np.zeros((3, 2), bool)):
        with pytest.raises(ValueError, match="logits"):
            entropy(bad, labels, 1.0, radius=1)
    for bad in (np.zeros(3), np.zeros((3, 1), int), np.zeros(2, int)):
        with pytest.raises(ValueError, match="labels"):
            entropy(logits, bad, 1.0, radius=1)
    with pytest.raises(ValueError, match="logits"):
        binary(logits, labels, 1.0, radius=1)
    for bad in (np.zeros(2, int), np.zeros(3, complex)):
        with pytest.raises(ValueError, match="labels"):
            binary(logits[:, 0], bad, 1.0, radius=1)
    with pytest.raises(ValueError, match="predictions"):
        accuracy(np.zeros(3), labels, radius=1)
    with pytest.raises(ValueError, match="labels"):
        accuracy(labels, labels[:2], radius=1)
    with pytest.raises(ValueError, match="radius"):
        accuracy(labels, labels, radius=-1)


def test_one_trace_serves_all_ranges_and_data():
    traces = []

    @jax.jit
    def compiled(x, low, high):
        traces.append(1)
        return mean(x, low, high, radius=2).value

    for high in (1.0, 2.0, 5.0):
        compiled(jnp.full(3, high / 2.0), 0.0, high)
    assert len(traces) == 1


@pytest.mark.leaks
def test_inside_scan_and_vmap_of_ranges():
    x = jnp.asarray([0.5, 1.5, 2.5], jnp.float32)
    highs = jnp.asarray([1.0, 2.0, 4.0], jnp.float32)
    _, scanned = jax.lax.scan(lambda carry, high: (carry, mean(x, 0.0, high, radius=1).upper), 0, highs)
    batched = jax.vmap(lambda high: mean(x, 0.0, high, radius=1).upper)(highs)
    alone = np.stack([mean(x, 0.0, float(high), radius=1).upper for high in highs])
    np.testing.assert_array_equal(scanned, alone)
    np.testing.assert_array_equal(batched, alone)


def test_no_more_than_can_be_summed_exactly(monkeypatch):
    monkeypatch.setattr(_losses, "MAX_RECORDS", 3)
    with pytest.raises(ValueError, match="at most 3"):
        mean(np.ones(4), 0.0, 1.0, radius=1)
