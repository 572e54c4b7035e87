"""What every mechanism must do, for each one that is registered: a new one is tested without a change here."""

import copy
import dataclasses
import functools
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.sharding import Mesh, PartitionSpec
from marks import thorough
from oracles import ALPHA, quick_jit

import jaxdp
from jaxdp import DiscreteLaw, LatticeLaw, MixedLaw, audit
from jaxdp._mechanism import examples, neighbours


def make(label, epsilon=1.0):
    return dict(examples(epsilon))[label]


LABELS = list(dict(examples()))
# The first variant of each class, where variants differ in numbers only; and those whose summary is one array.
BASIC = list({type(record): label for label, record in reversed(list(examples()))}.values())
ARRAYS = [label for label in BASIC if hasattr(make(label).worst_case()[0], "dtype")]
# The least loss on worst_case, as a share of epsilon, where theory is not tight; 0.8 for all others.
LOOSE = {"AboveThreshold(noise=laplace)": 0.4, "SparseVector(cutoff=2,noise=laplace)": 0.4}
LOOSE |= {"SmoothSensitivity": 0.3, "AsymmetricSensitivity": 0.7}
BAD = {
    "epsilon": (0.0, -1.0, np.nan, np.inf),
    "delta": (-0.1, 1.0, np.nan),
    "sensitivity": (0.0, -1.0, np.nan, np.inf),
    "threshold": (np.nan, np.inf, -np.inf),
    "offset": (np.nan, np.inf, -np.inf),
}
BAD_STATIC = {
    "delta": (-0.1, 1.0, np.nan),
    "monotonic": (1, "no"),
    "noise": ("gauss", None),
    "granularity": (3.0, 0.0, -1.0, np.nan, np.inf),
    "cutoff": (0, -1, 1.5, True),
    "size": (0, -1, 1.5, True),
    "max_changed": (0, 1.5, True),
    "direction": ("left",),
    "tail": (3,),
}
ROWS = 2**11

each_mechanism = pytest.mark.parametrize("label", LABELS)
# Transformations of further variants run the same code but for numbers and kinds of noise.
each_but_later = pytest.mark.parametrize("label", [x if x in BASIC else thorough(x) for x in LABELS])
each_class = pytest.mark.parametrize("label", BASIC)
each_class_of_arrays = pytest.mark.parametrize("label", ARRAYS)


def parameters(record, *, static):
    return [field.name for field in dataclasses.fields(record) if bool(field.metadata.get("static")) == static]


def traced_law(record, summary):
    takes_rows = "rows" in inspect.signature(record.law).parameters
    return record.law(summary, **({"rows": ROWS} if takes_rows else {}))


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def narrow(tree):
    """Doubles and 64-bit integers as JAX has them by default, for vmap outside of jit."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)), tree)


def stack(trees):
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *map(narrow, trees))


def rows(tree):
    """Releases as rows of numbers, as precise as they come in a 32-bit program."""
    leaves = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def masses(law, outcomes):
    """Probabilities of all of a law's outcomes."""
    log_p = law.log_p if isinstance(law, DiscreteLaw) else jax.vmap(law.log_prob)(outcomes)
    return np.exp(np.asarray(log_p))


def enumerated(law):
    """All outcomes, but 1e-13 of the mass, and their probabilities."""
    if isinstance(law, DiscreteLaw):
        outcomes = law.outcomes
    elif isinstance(law, LatticeLaw) and np.ndim(law.location) == 0:
        low, high, step = *(float(law.quantile(prob)) for prob in (1e-13, 1.0 - 1e-13)), float(law.granularity)
        outcomes = np.arange(low, high + step, step, dtype=np.float32)
    elif isinstance(law, MixedLaw):
        values, _ = enumerated(law.law)
        outcomes = jaxdp.Release(np.append(values, np.float32(np.nan)), np.arange(len(values) + 1) < len(values))
    else:
        raise NotImplementedError(f"tell the contract tests how to enumerate a {type(law).__name__}")
    return outcomes, masses(law, outcomes)


def counts_of(outcomes, draws):
    """How often each outcome was drawn; a draw that is none of them is an error."""
    outcomes, draws = rows(outcomes), rows(draws)
    both = np.concatenate([outcomes, draws])
    flat = both.ravel() if both.shape[1] == 1 else np.ascontiguousarray(both).view(f"V{4 * both.shape[1]}").ravel()
    _, place = np.unique(flat, return_inverse=True)
    known, drawn = place[: len(outcomes)], place[len(outcomes) :]
    assert len(np.unique(known)) == len(known) and np.isin(drawn, known).all()
    return np.bincount(drawn, minlength=place.max() + 1)[known]


# Samplers and laws.


@each_mechanism
def test_law_sums_to_one_and_log_prob_is_its_probability(label):
    record = make(label)
    for summary in record.worst_case():
        law = record.law(summary)
        outcomes, p = enumerated(law)
        assert abs(p.sum() - 1.0) <= 1e-12
        for i in np.linspace(0, len(p) - 1, 7).astype(int):
            one = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], outcomes)
            assert np.exp(law.log_prob(one)) == pytest.approx(p[i], rel=1e-12)
        assert float(law.expectation(lambda _: jnp.float32(3.0))) == pytest.approx(3.0, rel=1e-9)


def telling(record, other, draws):
    """A summary on which that many draws tell two records apart, and the probabilities of all outcomes under both."""
    rng = np.random.default_rng(30)
    for summary in (*record.worst_case()[::-1], *neighbours(record, rng), *neighbours(record, rng)):
        outcomes, p = enumerated(record.law(summary))
        q = masses(other.law(summary), outcomes)
        if draws * np.sum((p - q) ** 2 / q) > 6.0 * np.sqrt(2.0 * len(p)) + 100.0:
            return summary, outcomes, p, q
    raise AssertionError("no summary tells the two apart")


@each_mechanism
def test_samplers_have_the_law(label):
    record, size = make(label, 2.0), 250_000
    summary, outcomes, p, q = telling(record, dataclasses.replace(record, epsilon=2.4), size)
    law, keys = record.law(summary), jax.random.split(jax.random.key(31), size)
    draws = quick_jit(jax.vmap(record.sample, (0, None)))(keys, summary)
    for i in range(3):  # vmap over keys is the loop
        assert_same(record.sample(keys[i], summary), jax.tree.map(lambda leaf, i=i: leaf[i], draws))
    more = quick_jit(jax.vmap(law.sample))(keys)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), more) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), draws
    )
    for counts in (counts_of(outcomes, draws), counts_of(outcomes, more)):
        assert oracles.p_value(counts, p) > ALPHA
        # The same draws do not have the law of an epsilon 20% off.
        assert oracles.p_value(counts, q) < ALPHA


# The guarantee.


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@each_mechanism
def test_loss_on_the_worst_case_is_epsilon_at_most_and_nearly(label, epsilon):
    record = make(label, epsilon)
    loss = audit.exact(record, *record.worst_case())
    privacy = record.privacy()
    assert loss <= epsilon * (1.0 + 1e-12)
    assert loss >= LOOSE.get(label, LOOSE.get(type(record).__name__, 0.8)) * epsilon
    assert privacy.epsilon == epsilon and 0.0 <= privacy.delta <= max(1e-15, getattr(record, "delta", 0.0))


@each_mechanism
def test_loss_on_random_neighbours_is_at_most_epsilon(label):
    rng = np.random.default_rng(32)
    record, groups = make(label), {}
    for _ in range(400):
        pair = neighbours(record, rng)
        kind = jax.tree.structure(pair), *(leaf.shape for leaf in jax.tree.leaves(pair))
        groups.setdefault(kind, []).append(pair)
    # One shape, so that one program does: the most frequent one.
    pairs = max(groups.values(), key=len)[:200]
    first, second = (
        jax.tree.map(lambda *leaves: np.stack(leaves), *summaries) for summaries in zip(*pairs, strict=True)
    )
    epsilons = np.array([0.1, 1.0, 4.0])[np.arange(len(pairs)) % 3]
    deltas = np.array([make(label, epsilon).privacy().delta for epsilon in epsilons.tolist()])

    def losses(first, second, epsilon, delta):
        varied = dataclasses.replace(record, epsilon=epsilon)
        law, other = traced_law(varied, first), traced_law(varied, second)
        return law.loss_at(other, delta), other.loss_at(law, delta)

    with jax.enable_x64(True):  # rounded to float32, neighbours may be further apart
        share = np.max(quick_jit(jax.vmap(losses))(first, second, epsilons, deltas), axis=0) / epsilons
    assert len(pairs) >= 20 and np.max(share) <= 1.0 + 1e-12
    # The pairs are neighbours indeed, not copies.
    assert np.max(share) >= 0.1


# Transformations.


@pytest.mark.leaks
@each_but_later
def test_vmap_over_records_keys_and_summaries_is_the_loop(label):
    records = [make(label, epsilon) for epsilon in (1.0, 4.0)]
    keys, summaries = jax.random.split(jax.random.key(33)), narrow(records[0].worst_case())

    def both(record, key, summary):
        release = record.sample(key, summary)
        return release, traced_law(record, summary).log_prob(release)

    releases, log_probs = quick_jit(jax.vmap(both))(stack(records), keys, stack(summaries))
    for i, (record, key, summary) in enumerate(zip(records, keys, summaries, strict=True)):
        release = record.sample(key, summary)
        assert_same(release, jax.tree.map(lambda leaf, i=i: leaf[i], releases))
        assert float(log_probs[i]) == pytest.approx(float(record.law(summary).log_prob(release)), rel=1e-9)


@each_class
def test_vmap_outside_of_jit_takes_numpy_doubles_and_64_bit_integers(label, key):
    record = make(label)
    summaries = [jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), s) for s in record.worst_case()]
    if label in ARRAYS:
        summaries += [s.astype(np.int64) for s in summaries]
    for one, other in zip(summaries[::2], summaries[1::2], strict=True):
        both = jax.tree.map(lambda *leaves: np.stack(leaves), one, other)
        releases = jax.vmap(record.sample, (None, 0))(key, both)
        assert_same(record.sample(key, other), jax.tree.map(lambda leaf: leaf[1], releases))


@each_but_later
def test_one_program_serves_all_parameters_and_fails_closed(label, key):
    record, traces = make(label), []
    structure, summaries = jax.tree.structure(record), record.worst_case()

    @quick_jit
    def run(leaves, key, summary):
        traces.append(1)
        traced = jax.tree.unflatten(structure, leaves)
        return traced.sample(key, summary), traced.privacy().epsilon

    def leaves_of(**changes):
        return list(map(jnp.float32, jax.tree.leaves(dataclasses.replace(record, **changes))))

    for epsilon in (0.5, 1.0, 2.0, 4.0):
        release, claimed = run(leaves_of(epsilon=epsilon), key, summaries[0])
        assert_same(release, make(label, epsilon).sample(key, summaries[0]))
        assert float(claimed) == epsilon
    for name in parameters(record, static=False):
        for bad in BAD[name]:
            failed = [run(leaves_of(**{name: bad}), key, summary)[0] for summary in summaries]
            assert_same(*failed)
            for leaf in map(np.asarray, jax.tree.leaves(failed)):
                looks_bad = (
                    np.isnan(leaf) if leaf.dtype.kind == "f" else (leaf < 0 if leaf.dtype.kind == "i" else ~leaf)
                )
                assert looks_bad.all(), (name, bad, leaf)
    assert len(traces) == 1


@pytest.mark.leaks
@each_but_later
def test_scan_in_shard_map_is_the_loop(label):
    record = make(label)
    summary, keys = record.worst_case()[1], jax.random.split(jax.random.key(34), (2, 2))
    mesh = Mesh(np.array(jax.devices()[:2]), ("devices",))
    sharded, replicated = PartitionSpec("devices"), PartitionSpec()

    def body(keys, summary):
        def step(total, key):
            return total + 1, record.sample(key, summary)

        releases = jax.lax.scan(step, jnp.int32(0), keys[0])[1]
        total = record.law(summary).expectation(lambda _: jnp.float32(1.0))
        return jax.tree.map(lambda leaf: leaf[None], releases), total

    program = jax.shard_map(body, mesh=mesh, in_specs=(sharded, replicated), out_specs=(sharded, replicated))
    releases, total = quick_jit(program)(keys, narrow(summary))
    assert float(total) == pytest.approx(1.0, rel=1e-9)
    for i, j in np.ndindex(2, 2):
        one = jax.tree.map(lambda leaf, i=i, j=j: leaf[i, j], releases)
        assert_same(record.sample(keys[i, j], summary), one)


@each_class
def test_keys_are_used_once(label):
    record = make(label)
    with jax.debug_key_reuse(True):
        key, other = jax.random.split(jax.random.key(35))
        release = record.sample(key, record.worst_case()[0])
        jax.block_until_ready(record.law(record.worst_case()[0]).sample(other))
    assert_same(release, record.sample(jax.random.split(jax.random.key(35))[0], record.worst_case()[0]))


# Arguments.


@each_mechanism
def test_bad_parameters_are_rejected_by_name(label, key):
    record = make(label)
    summary = record.worst_case()[0]
    bad = {name: (*BAD[name], True, 1j, "1", np.zeros(2)) for name in parameters(record, static=False)}
    bad |= {name: BAD_STATIC[name] for name in parameters(record, static=True)}
    for name, values in bad.items():
        for value in values:
            broken = dataclasses.replace(record, **{name: value})
            for call in (
                lambda broken=broken: broken.sample(key, summary),
                lambda broken=broken: broken.law(summary),
                broken.privacy,
                broken.worst_case,
            ):
                with pytest.raises(ValueError, match=rf"^{name} "):
                    call()


@each_class
def test_bad_keys_are_rejected(label):
    record = make(label)
    for bad in (
        0,
        None,
        np.zeros(2, np.uint32),
        jax.random.key_data(jax.random.key(0)),
        jax.random.split(jax.random.key(0)),
    ):
        with pytest.raises(ValueError, match=r"^key must be"):
            record.sample(bad, record.worst_case()[0])


@each_class
def test_summaries_of_the_wrong_shape_or_kind_are_rejected(label, key):
    record = make(label)
    for bad in (np.zeros(0), np.zeros((2, 2)), np.zeros((0, 3)), np.array([True]), np.array([1j]), "abc", None):
        for call in (record.law, functools.partial(record.sample, key)):
            with pytest.raises(ValueError, match=r"must (be|have)"):
                call(bad)


@each_class_of_arrays
def test_every_dtype_of_a_summary(label, key):
    record = make(label, 4.0)
    summary = record.worst_case()[1]
    reference = np.asarray(summary, np.float32)
    release = jax.eval_shape(record.sample, key, reference)
    truth = record.law(reference)
    for dtype in (jnp.float16, jnp.bfloat16, np.float64):
        cast = reference.astype(dtype)
        shape = jax.eval_shape(record.sample, key, cast)
        if dtype != jnp.float16:  # two compilations are enough
            for one, other in zip(jax.tree.leaves(record.law(cast)), jax.tree.leaves(truth), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12)
        kind = jax.dtypes.canonicalize_dtype(dtype)
        for leaf, plain in zip(jax.tree.leaves(shape), jax.tree.leaves(release), strict=True):
            assert leaf.dtype == (kind if plain.dtype == np.float32 else plain.dtype)


@each_class_of_arrays
def test_scores_that_are_not_finite_give_a_valid_release(label, key):
    record = make(label, 4.0)
    summary = record.worst_case()[1]
    for value in (np.nan, np.inf, -np.inf):
        bad = np.array(summary, np.float32)
        bad.reshape(-1)[0] = value
        law, release = record.law(bad), record.sample(key, bad)
        assert float(law.expectation(lambda _: jnp.float32(1.0))) == pytest.approx(1.0, rel=1e-9)
        assert all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in jax.tree.leaves(release))
        if isinstance(law, DiscreteLaw):
            assert float(law.log_prob(release)) > -40.0


# Records.


@each_mechanism
def test_records_are_frozen_and_can_be_copied_pickled_and_replaced(label):
    record = make(label)
    summary = record.worst_case()[1]
    log_p = jax.tree.leaves(record.law(summary))
    for twin in (pickle.loads(pickle.dumps(record)), copy.copy(record), copy.deepcopy(record)):
        assert type(twin) is type(record) and twin is not record
        assert_same(jax.tree.leaves(twin.law(summary)), log_p)
        assert repr(twin) == repr(record)
    names = [field.name for field in dataclasses.fields(record)]
    assert all(f"{name}=" in repr(record) for name in names) and repr(record).startswith(type(record).__name__)
    assert dataclasses.replace(record, epsilon=0.5).privacy().epsilon == 0.5 and record.epsilon == 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.epsilon = 2.0
    assert record == record and record != copy.copy(record) and hash(record) == hash(record)
