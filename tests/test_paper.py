"""The reproduced study, without its data: loader, exact against sampled errors, NumPy baseline, runner."""

import dataclasses
import functools
import json
import sys

import jax
import numpy as np
import pytest

import jaxdp
from benchmarks import harness
from benchmarks.paper import __main__ as command
from benchmarks.paper import baseline, data, figure2, figure4, figure5, runner, speed, study, tuning

pytestmark = pytest.mark.slow

SETTINGS = study.Settings(None, True, n=60, repetitions=4, releases=300, epsilons=(1.0,), candidates=512)
SIGMAS = 6.1  # alpha 1e-9, two-sided
LIBRARY = {**tuning.PAPER, "split": 1.0 / (1.0 + 2.0 ** (2.0 / 3.0))}


@pytest.fixture(scope="module")
def column():
    return data.synthetic()["gamma"]


@pytest.fixture(scope="module")
def bounds(column):
    return figure5.variance_bounds(column, SETTINGS, 0)


@pytest.fixture(scope="module")
def grids(column):
    most = column.upper**2 / 4.0
    other = study.line(0.0, most, SETTINGS.candidates)
    return {"asymmetric": study.stream(0.0, most, base=1.1, multiple=128), "inverse": other, "smooth": other}


def test_loader_says_what_is_missing_and_where_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(data.DataMissing, match="UCI machine learning repository, Abalone"):
        data.load("abalone", tmp_path)
    with pytest.raises(data.DataMissing, match="JAXDP_DATA"):
        data.load("mnist", None)
    with pytest.raises(ValueError, match=r"^name must be one of .* got 'iris'"):
        data.load("iris", tmp_path)
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    assert data.directory() == tmp_path
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(data.DataMissing, match="none does not exist"):
        data.directory()


def test_loader_checks_rows_and_numbers(tmp_path, monkeypatch):
    values = np.arange(10, dtype=np.int32)
    np.savez(tmp_path / "toy.npz", x=values)
    monkeypatch.setitem(data.ROWS, "toy", {"x": 10})
    monkeypatch.setitem(data.NUMBERS, ("toy", "x"), (4.5, 8.25, 0, 9))
    assert data.load("toy", tmp_path)["x"].tolist() == values.tolist()
    wrong = {
        "x must have 10 rows, got 9": values[:9],
        "mean, variance": np.append(values[:9], np.int32(8)),
        "must have an array 'x'": None,
    }
    for index, (message, other) in enumerate(wrong.items()):
        folder = tmp_path / str(index)
        folder.mkdir()
        np.savez(folder / "toy.npz", **({"y": values} if other is None else {"x": other}))
        with pytest.raises(ValueError, match=message):
            data.load("toy", folder)


def test_columns_fall_back_under_their_own_names():
    names = [column.name for column in data.columns(None)]
    assert names[0] == "gamma"
    assert not set(names) & set(data.ROWS["variance_columns"])
    for column in (*data.synthetic().values(), *data.columns(None)):
        assert column.lower <= column.values.min() <= column.values.max() <= column.upper
        assert column.values.dtype == np.float32


def test_fallbacks_of_scikit_learn():
    pytest.importorskip("sklearn")
    assert "sklearn_diabetes_age" in [column.name for column in data.columns(None)]


@pytest.mark.parametrize("kind", study.MECHANISMS)
def test_sampled_means_agree_with_exact_lines(bounds, grids, kind):
    many = dataclasses.replace(SETTINGS, releases=8000)
    made = study.one_cell(bounds, grids, many, kind=kind, epsilon=1.0, label="test")
    sigma = made["half"] / study.Z90
    assert abs(made["sampled"] - made["exact"]) <= SIGMAS * sigma
    # Negative control: an expected error that is 30% off.
    assert abs(made["sampled"] - 0.7 * made["exact"]) > SIGMAS * sigma
    if kind == "inverse":
        assert made["closed_form"] == pytest.approx(made["exact"], rel=0.02)


def test_coarse_and_unbounded_bounds_keep_the_lower_side(bounds, column):
    rough = study.coarse(bounds, column.upper, SETTINGS.n)
    exact, upper = np.asarray(bounds.upper), np.asarray(rough.upper)
    assert np.array_equal(rough.lower, bounds.lower)
    assert np.all(upper >= exact) and np.all(np.diff(upper, axis=1) >= 0.0) and np.array_equal(upper[:, 0], exact[:, 0])
    step = column.upper**2 / SETTINGS.n
    assert np.all(np.diff(upper, axis=1) <= step * 1.001)
    open_end = study.unbounded(bounds)
    assert np.all(np.isinf(open_end.upper[:, 1:])) and np.array_equal(open_end.upper[:, 0], exact[:, 0])


def test_stream_is_public_and_padded():
    made = study.stream(0.0, 100.0, base=1.01, multiple=1024)
    plain = jaxdp.geometric_grid(0.0, 100.0, base=1.01)
    assert len(made) == 1024 and np.all(np.diff(made) > 0.0)
    assert np.allclose(made[: len(plain)], plain) and made[-1] <= 100.2


def test_numpy_baseline_has_the_library_bounds_and_scores(bounds, column, grids):
    rows = study.sampled_rows(column, SETTINGS, 0)
    low, high = baseline.variance_bounds(rows[0], column.lower, column.upper)
    most = column.upper**2 / 4.0
    assert np.allclose(low, np.asarray(bounds.lower)[0, :-1], atol=2e-6 * most)
    # The library's upper bounds are relaxed by at most 1 / (4 n^2).
    gap = (np.asarray(bounds.upper)[0, :-1] - high) / column.upper**2
    assert np.all(gap >= -1e-6) and np.all(gap <= 0.25 / SETTINGS.n**2 + 1e-6)
    one = jaxdp.OutputBounds(np.append(low, 0.0), np.append(high, most))
    grid = grids["asymmetric"].astype(np.float64)
    assert np.array_equal(baseline.signed_scores(low, high, grid), np.floor(one.signed_distance(grid)))


@pytest.mark.parametrize("release", [baseline.asymmetric, baseline.asymmetric_loop])
def test_numpy_baseline_has_the_library_law(release):
    values = np.array([3.0, 2.0, 1.0, 0.0]), np.array([3.0, 5.0, 7.0, 8.0])
    grid, rng = np.linspace(0.0, 8.0, 17), np.random.default_rng(0)
    scores = baseline.signed_scores(*values, grid)
    first = LIBRARY["split"]
    drawn = [release(rng, scores, grid, first, (1.0 - first) / 2.0) for _ in range(20_000)]
    counts = np.bincount(np.searchsorted(grid, drawn), minlength=len(grid))
    one = jaxdp.OutputBounds(np.append(values[0], 0.0), np.append(values[1], 8.0))
    assert harness.check("same law", counts, jaxdp.AsymmetricSensitivity(1.0).law((one, grid)).log_p)["passed"]
    other = jaxdp.AsymmetricSensitivity(1.2).law((one, grid)).log_p
    assert harness.check("epsilon 1.2", counts, other, differ=True)["passed"]


def test_numpy_baseline_of_the_other_mechanisms_agrees(bounds):
    low, high = np.asarray(bounds.lower, np.float64)[0, :-1], np.asarray(bounds.upper, np.float64)[0, :-1]
    one = jaxdp.OutputBounds(
        np.asarray(bounds.lower)[0], np.asarray(bounds.upper)[0], np.asarray(bounds.sensitivity)[0]
    )
    rng = np.random.default_rng(0)
    error = np.abs(baseline.inverse(rng, low, high, 1.0, 40_000) - low[0])
    exact = float(jaxdp.InverseSensitivity(1.0).continuous_error(one))
    assert abs(error.mean() - exact) <= SIGMAS * error.std() / 200.0
    assert abs(error.mean() - 0.9 * exact) > SIGMAS * error.std() / 200.0
    ours = float(jaxdp.SmoothSensitivity(1.0).smooth_sensitivity(one))
    assert baseline.smooth_sensitivity(low, high, float(one.sensitivity), 1.0 / 6.0) == pytest.approx(ours, rel=1e-5)
    noise = np.abs(baseline.heavy_noise(rng, 40_000))
    assert abs(noise.mean() - np.sqrt(0.5)) <= SIGMAS * noise.std() / 200.0


def test_tuned_law_is_the_mechanism_s_at_its_own_split(bounds, column):
    one = jax.tree.map(lambda part: np.asarray(part)[:2], bounds)
    made = tuning.evaluate(one, column, 1.0, LIBRARY)
    grid = study.stream(0.0, column.upper**2 / 4.0)
    for index in range(2):
        single = jaxdp.OutputBounds(np.asarray(one.lower)[index], np.asarray(one.upper)[index])
        law = jaxdp.AsymmetricSensitivity(1.0).law((single, grid))
        assert made[index] == pytest.approx(float(law.expected_error(single.value)), rel=1e-5)
        # The paper's e1 = e2 = epsilon / 3 is the law of the monotonic budget at 2 / 3 epsilon.
        paper = jaxdp.AsymmetricSensitivity(2.0 / 3.0).law((dataclasses.replace(single, monotonic=True), grid))
        expected = float(paper.expected_error(single.value))
        assert tuning.evaluate(one, column, 1.0, tuning.PAPER)[index] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", study.MECHANISMS)
def test_speed_race_makes_all_releases(bounds, grids, kind):
    fixed = 1.0 if kind == "asymmetric" else None
    keys = jax.random.split(jax.random.key(0), SETTINGS.repetitions)
    grid = grids.get(kind, grids["inverse"])
    call = functools.partial(speed.release, kind=kind, fixed=fixed, releases=7)
    assert jax.eval_shape(call, keys, bounds, grid, 1.0).shape == (SETTINGS.repetitions, 7)


def test_speed_race_times_all_parts_in_numpy(column):
    rows = study.sampled_rows(column, SETTINGS, 0)
    for loop in (True, False):
        seconds = speed.numpy([column], [rows], dataclasses.replace(SETTINGS, releases=4), loop=loop)
        assert set(seconds) == {"bounds", *study.MECHANISMS} and min(seconds.values()) > 0.0


def test_runner_writes_results_and_goes_on_where_it_stopped(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    settings = dataclasses.replace(SETTINGS, releases=10)
    runner.run(["figure1", "figure2"], settings, out=tmp_path)
    assert (tmp_path / "figure2.png").stat().st_size > 10_000
    made = json.loads((tmp_path / "figure2.json").read_text())
    assert made["results"]["symmetric"]["asymmetry"] == pytest.approx(0.5)
    assert "2/2" in capsys.readouterr().err
    # A finished cell is read, not computed again; --fresh computes it.
    kept = next((tmp_path / "cells").glob("*/figure2-symmetric.json"))
    kept.write_text(kept.read_text().replace('"asymmetry": 0.5', '"asymmetry": 0.75'))
    assert runner.run(["figure2"], settings, out=tmp_path)["figure2"]["symmetric"]["asymmetry"] == 0.75
    again = runner.run(["figure2"], settings, out=tmp_path, fresh=True)
    assert again["figure2"]["symmetric"]["asymmetry"] == pytest.approx(0.5)


@pytest.mark.parametrize(("up", "expected"), [(1.0, 1.95), (8.0, 0.29)])
def test_simulation_of_uniform_bands(up, expected):
    # By an independent, slower computation, with the monotonic budget.
    made = figure4.point(figure2.bounds(up), figure2.grid(up), 1.0)
    assert made["ratio_monotonic"] == pytest.approx(expected, rel=0.05)
    assert made["asymmetry"] == pytest.approx(up / (1.0 + up), abs=1e-6)
    assert made["ratio_general"] > made["ratio_monotonic"]


def test_command_line(capsys, tmp_path):
    assert command.main(["--list"]) == 0
    assert "figure5" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(["figure9"])
    assert command.main(["figure1", "--data", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_models_name_the_extra_that_they_need(monkeypatch):
    from benchmarks.paper import models

    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ImportError, match=r"jaxdp-privacy\[study\]"):
        models._trees(np.zeros((10, 2)), np.zeros(10), 0, binary=False)
