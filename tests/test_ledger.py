"""The ledger of a loop: counts under every transformation, totals, budgets, and its table."""

import math
import pickle
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import quick_jit

import jaxdp
from jaxdp import Ledger, Privacy, compose

MANY = 2**31 - 1


def make(**changes):
    parts = {"evaluation": Privacy(0.1), "stopping": Privacy(0.7, 1e-9), "choice": Privacy(0.3, rho=0.01)}
    return Ledger.of(**(parts | changes))


def test_the_total_is_that_of_compose_over_all_calls():
    rng = np.random.default_rng(0)
    for _ in range(30):
        # Binary fractions add up without rounding, in any order.
        parts = {
            name: Privacy(rng.integers(1, 99) / 64, rng.integers(0, 9) / 2**30, rng.choice([None, 3 / 64]))
            for name in "abcd"[: rng.integers(1, 5)]
        }
        ledger, calls = Ledger.of(**parts), []
        for name in rng.choice(list(parts), rng.integers(len(parts), 60)):
            ledger, calls = ledger.spend(name), [*calls, parts[name]]
        got, want = ledger.privacy(), compose(*calls)
        assert (got.epsilon, got.delta, got.neighbours) == (want.epsilon, want.delta, want.neighbours)
        if all((part.rho is None) == (want.rho is None) or part in calls for part in parts.values()):
            assert got.rho == want.rho
    got = make().spend("evaluation", 100).spend("stopping", 7).privacy()
    exact = 100 * Fraction(0.1) + 7 * Fraction(0.7)
    assert abs(Fraction(float(got.epsilon)) - exact) <= 2 * math.ulp(15.0)


def test_mechanisms_enter_with_their_guarantee():
    mechanisms = {
        "laplace": jaxdp.Laplace(1.0, 0.3),
        "choice": jaxdp.ExponentialMechanism(1.0, 0.2),
        "stop": jaxdp.AboveThreshold(0.0, 1.0, 0.1, monotonic=True),
    }
    ledger = Ledger.of(**mechanisms)
    for name in mechanisms:
        ledger = ledger.spend(name)
    got, want = ledger.privacy(), compose(*(mechanism.privacy() for mechanism in mechanisms.values()))
    for field in ("epsilon", "delta", "rho"):
        np.testing.assert_allclose(getattr(got, field), getattr(want, field), rtol=1e-15)


@pytest.mark.leaks
def test_the_loop_carries_it():
    ledger = make()

    def epoch(ledger, i):
        ledger = ledger.spend("evaluation").spend("stopping", i == 2).spend("choice", i)
        return jax.lax.cond(i > 3, lambda it: it.spend("stopping", times=2), lambda it: it, ledger), None

    def run(ledger):
        return jax.lax.scan(epoch, ledger, jnp.arange(5))[0]

    after = quick_jit(run)(ledger)
    assert dict(zip(after.names, np.asarray(after.calls).tolist(), strict=True)) == {
        "evaluation": 5,
        "stopping": 3,
        "choice": 10,
    }
    np.testing.assert_array_equal(after.words, ledger.words)
    # No precision was lost on the way, also in 32 bits.
    want = make().spend("evaluation", 5).spend("stopping", 3).spend("choice", 10).privacy()
    got = after.privacy()
    assert (got.epsilon, got.delta, got.rho) == (want.epsilon, want.delta, want.rho)
    np.testing.assert_allclose([got.epsilon, got.delta], [5 * 0.1 + 3 * 0.7 + 10 * 0.3, 3e-9], rtol=1e-15)
    for other in (pickle.loads(pickle.dumps(after)), jax.tree.map(lambda leaf: leaf, after)):
        assert other.privacy().epsilon == got.epsilon and other.names == after.names
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {np.dtype(np.int32), np.dtype(np.uint32)}


def test_vmap_is_the_loop_and_one_program_serves_every_epsilon():
    traces = []

    @quick_jit
    def spent(epsilon, times):
        traces.append(1)
        ledger = Ledger.of(evaluation=jaxdp.AsymmetricSensitivity(epsilon), other=Privacy(epsilon, 0.25))
        return ledger.spend("evaluation", times).spend("other")

    epsilons, times = np.array([0.1, 0.5, 1.0, 2.0, 4.0], np.float32), np.array([3, 0, 1, 20, 7], np.int32)
    each = [spent(epsilon, many) for epsilon, many in zip(epsilons, times, strict=True)]
    assert len(traces) == 1
    batch = quick_jit(jax.vmap(lambda e, t: Ledger.of(a=Privacy(e, 0.25)).spend("a", t)))(epsilons, times)
    totals = jax.vmap(Ledger.privacy)(batch)
    for i, one in enumerate(each):
        total = one.privacy()
        assert total.epsilon == float(epsilons[i]) * (int(times[i]) + 1)
        assert 0.25 <= total.delta < 0.25 + 1e-15
        assert np.asarray(totals.epsilon)[i] == float(epsilons[i]) * int(times[i])
        assert np.asarray(totals.delta)[i] == 0.25 * int(times[i])
    assert totals.rho is None


def test_counts_end_at_infinity():
    ledger = make().spend("evaluation", MANY - 1)
    assert int(ledger.calls[0]) == MANY - 1 and ledger.privacy().epsilon == (MANY - 1) * 0.1
    for more in (ledger.spend("evaluation"), ledger.spend("evaluation", MANY), make().spend("evaluation", 10**400)):
        assert int(more.calls[0]) == MANY and int(more.spend("evaluation", 5).calls[0]) == MANY
        total = more.privacy()
        assert total.epsilon == np.inf and total.delta == 0.0
        assert not more.within(Privacy(1e9)) and more.get_epsilon(1e-6) == np.inf
        assert f"{MANY} or more" in str(more)
    # A negative number of calls would give budget back.
    bad = jax.jit(lambda times: make().spend("stopping", times))(np.int32(-1))
    assert bad.privacy().epsilon == np.inf and bad.privacy().delta == np.inf and not bad.within(Privacy(1e9, 0.5))


def test_remaining_and_within():
    budget = Privacy(1.0, 1e-8)
    ledger = make().spend("stopping")
    left = ledger.remaining(budget)
    np.testing.assert_allclose([left.epsilon, left.delta], [0.3, 9e-9], rtol=1e-14)
    # Three calls of 0.1 cost 0.30000000000000004 in doubles.
    assert make().spend("evaluation", 3).within(Privacy(0.3)) and not make().spend("evaluation", 3).within(
        Privacy(0.2999)
    )
    assert ledger.spend("evaluation", 3).within(budget) and ledger.spend("evaluation", 3).remaining(budget).epsilon == 0
    over = ledger.spend("evaluation", 4)
    assert not over.within(budget) and over.remaining(budget).epsilon == pytest.approx(-0.1)
    assert not ledger.within(Privacy(1.0)), "delta counts, too"
    assert bool(make().within(Privacy(0.0)))


def test_a_filter_in_a_loop_keeps_the_budget():
    budget = Privacy(1.05)

    def epoch(ledger, _):
        after = ledger.spend("evaluation")
        fits = after.within(budget)
        return jax.tree.map(lambda new, old: jnp.where(fits, new, old), after, ledger), fits

    ledger, released = quick_jit(lambda ledger: jax.lax.scan(epoch, ledger, length=15))(make())
    assert released.tolist() == [True] * 10 + [False] * 5
    assert ledger.privacy().epsilon == 1.0


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf])
def test_bad_traced_numbers_make_the_totals_nan(bad):
    @quick_jit
    def run(epsilon, delta):
        ledger = Ledger.of(a=Privacy(epsilon, delta), b=Privacy(1.0)).spend("b")
        return ledger.privacy(), ledger.within(Privacy(100.0, 0.5)), ledger

    for numbers in ((bad, 0.0), (1.0, bad), (1.0, 1.0)):
        total, fits, ledger = run(*map(np.float32, numbers))
        assert np.isnan(total.epsilon) and np.isnan(total.delta) and not fits
        assert np.isnan(ledger.get_epsilon(1e-6))
    total, fits, _ = run(np.float32(1.0), np.float32(0.25))
    assert float(total.epsilon) == 1.0 and fits


def test_bad_arguments():
    for bad in (-1.0, np.nan, np.inf, True, "1", np.zeros(2)):
        with pytest.raises(ValueError, match=r"^a\.epsilon must"):
            Ledger.of(a=Privacy(bad))
        with pytest.raises(ValueError, match=r"^epsilon must"):
            compose(Privacy(1.0), Privacy(bad))
        with pytest.raises(ValueError, match=r"^a\.delta must"):
            Ledger.of(a=Privacy(1.0, bad if bad is not True else 1.0))
        with pytest.raises(ValueError, match=r"^budget\.epsilon must"):
            make().within(Privacy(bad))
    with pytest.raises(ValueError, match=r"^a\.rho must be at least 0, got -0.1"):
        Ledger.of(a=Privacy(1.0, rho=-0.1))
    with pytest.raises(ValueError, match=r"^parts must"):
        Ledger.of()
    with pytest.raises(ValueError, match=r"^parts must be Privacy, got 0.5"):
        compose(0.5)
    with pytest.raises(ValueError, match=r"^a must be a mechanism or a Privacy, got 0.5"):
        Ledger.of(a=0.5)
    with pytest.raises(ValueError, match=r"^name must be one of \('evaluation', 'stopping', 'choice'\), got 'x'"):
        make().spend("x")
    for bad in (-1, 1.0, np.zeros(2, int), None, "2"):
        with pytest.raises(ValueError, match=r"^times must"):
            make().spend("choice", bad)
    with pytest.raises(ValueError, match=r"^budget must be a Privacy, got 1.0"):
        make().remaining(1.0)
    for delta in (-0.1, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"^delta must"):
            make().get_epsilon(delta)
    with pytest.raises(ValueError, match=r"^delta must be at least 2e-09, the sum of the deltas"):
        make().spend("stopping", 2).get_epsilon(1e-9)
    with pytest.raises(ValueError, match=r"^ledger must be concrete"):
        jax.jit(lambda it: it.get_epsilon(1e-6))(make())


def test_relations_do_not_mix_and_convert():
    training = Privacy(1.0, 1e-6, neighbours="add-remove")
    with pytest.raises(ValueError, match=r"same neighbours"):
        make(training=training)
    with pytest.raises(ValueError, match=r"^budget must have neighbours 'replace-one', got 'add-remove'"):
        make().within(training)
    total = make(training=training.to_replace_one()).spend("training").privacy()
    assert total.epsilon == 2.0 and total.delta == pytest.approx((1.0 + math.e) * 1e-6)
    traced = jax.jit(lambda e: Privacy(e, 1e-6, neighbours="add-remove").to_replace_one().delta)(np.float32(1.0))
    assert traced == pytest.approx(total.delta, rel=1e-6)
    assert Privacy(1.0, rho=0.25, neighbours="add-remove").to_replace_one().rho == 1.0
    assert training.to_replace_one().rho is None
    with pytest.raises(ValueError, match=r"^neighbours must be"):
        Privacy(1.0, neighbours="user").to_replace_one()


def test_two_steps_can_lose_what_the_conversion_says():
    # An outcome of probability 0, delta and e^epsilon delta + delta in turn.
    epsilon, delta = 1.2, 0.01
    rare = np.array([0.0, delta, (math.exp(epsilon) + 1.0) * delta])
    laws = [jaxdp.DiscreteLaw(np.log([1.0 - p, max(p, 1e-300)]), np.arange(2)) for p in rare]
    for low, high in ((0, 1), (1, 2)):
        assert laws[high].hockey_stick(laws[low], epsilon) == pytest.approx(delta)
        assert laws[low].hockey_stick(laws[high], epsilon) <= delta
    both = Privacy(epsilon, delta, neighbours="add-remove").to_replace_one()
    assert laws[2].hockey_stick(laws[0], both.epsilon) == pytest.approx(both.delta)
    assert both.delta > 2.0 * delta


def test_the_table():
    ledger = make().spend("evaluation", 20).spend("stopping")
    text = repr(ledger)
    assert text == str(ledger) and [line.split() for line in text.splitlines()] == [
        ["calls", "epsilon", "delta", "total", "epsilon", "total", "delta"],
        ["evaluation", "20", "0.1", "0", "2", "0"],
        ["stopping", "1", "0.7", "1e-09", "0.7", "1e-09"],
        ["choice", "0", "0.3", "0", "0", "0"],
        ["total", "21", "2.7", "1e-09"],
        ["neighbours:", "replace-one"],
    ]
    seen = []
    jax.jit(lambda it: seen.append(repr(it)) or it.spend("choice"))(ledger)
    assert seen == ["Ledger(evaluation, stopping, choice; traced)"]
    batch = jax.vmap(lambda times: make().spend("evaluation", times))(np.array([3, 8, 5], np.int32))
    for method in (Ledger.privacy, lambda it: it.spend("choice"), lambda it: it.within(Privacy(1.0))):
        with pytest.raises(ValueError, match=r"^ledger must be a single one .*got calls of \(3, 3\)"):
            method(batch)
    lines = str(batch).splitlines()
    assert lines[1].split() == ["evaluation", "8", "0.1", "0", "0.8", "0"]
    assert lines[-1].endswith("the largest of a batch of shape (3,)")
