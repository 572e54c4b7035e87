"""The benchmarks' harness: ratios, exponents, checks, tables and the command line. CI runs the scripts themselves."""

import argparse
import itertools
import json
import math
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import gpu, harness, machine, report
from benchmarks.harness import Contestant, Size, agree, check, figure, growth, race


@pytest.fixture
def clock(monkeypatch):
    """Calls say themselves how long they took: (wall, CPU time)."""
    monkeypatch.setattr(harness, "_timed", lambda call: call())


def _taking(*times):
    """A call that takes the given seconds in turn, the last of them ever after."""
    left = list(times)
    return lambda: (lambda taken: (taken, taken))(left.pop(0) if len(left) > 1 else left[0])


_NORMAL = Size()


def _race(*contestants, size=_NORMAL, turns=3, **options):
    return {record["contestant"]: record for record in race("title", contestants, size=size, turns=turns, **options)}


class TestRace:
    def test_ratio_is_of_rates_per_unit(self, clock):
        slow = Contestant("slow", _taking(2.0), units=1, reference=True)
        records = _race(slow, Contestant("jaxdp", _taking(1.0), units=4))
        assert records["jaxdp"]["ratio"]["median"] == records["jaxdp"]["cpu_ratio"]["median"] == 8.0
        assert records["jaxdp"]["units_per_s"] == 4.0 and records["slow"]["ratio"]["median"] == 1.0

    def test_reference_is_the_fastest_marked_one(self, clock):
        marked = [Contestant("two", _taking(2.0), reference=True), Contestant("three", _taking(3.0), 6, reference=True)]
        records = _race(*marked, Contestant("fastest", _taking(0.1)))
        assert {record["reference"] for record in records.values()} == {"three"}

    def test_ratios_are_taken_inside_a_turn(self, clock):
        times = [1.0, 1.0, 8.0, 64.0]  # The first call compiles.
        records = _race(
            Contestant("a", _taking(*times), reference=True), Contestant("b", _taking(*np.multiply(times, 0.5)))
        )
        assert records["b"]["ratio"] == dict.fromkeys(("min", "q25", "median", "q75", "max"), 2.0)
        assert records["a"]["wall_s"]["max"] == 64.0

    def test_compile_time_is_apart(self, clock):
        record = _race(Contestant("a", _taking(5.0, 1.0), reference=True))["a"]
        assert (record["first_call_s"], record["compile_s"], record["wall_s"]["max"]) == (5.0, 4.0, 1.0)

    def test_median_of_the_calls_in_a_turn_counts(self, clock):
        record = _race(Contestant("a", _taking(0.0, 1.0, 1.0, 100.0), reference=True, calls=3), turns=1)["a"]
        assert record["wall_s"]["median"] == 1.0

    def test_promises(self, clock):
        slow = Contestant("slow", _taking(2.0), reference=True, at_most=1.0)
        kept = Contestant("kept", _taking(1.0), at_least=2.0)
        missed = Contestant("missed", _taking(1.0), at_least=2.1)
        records = _race(slow, kept, missed)
        assert [records[name]["kept"] for name in ("slow", "kept", "missed")] == [False, True, False]
        assert "kept" not in _race(Contestant("a", _taking(1.0), reference=True))["a"]

    @pytest.mark.parametrize(
        ("size", "turns"), [(Size(), 9), (Size(quick=True), 2), (Size(deadline=time.monotonic() - 1.0), 2)]
    )
    def test_turns(self, clock, size, turns):
        record = _race(Contestant("a", _taking(1.0), reference=True), size=size, turns=9, n=7)["a"]
        assert record["turns"] == turns and record["n"] == 7

    def test_results_are_waited_for_and_timed(self):
        record = _race(Contestant("a", lambda: time.sleep(0.02) or jnp.ones(3), reference=True), turns=2)["a"]
        assert record["wall_s"]["min"] >= 0.02 > record["cpu_s"]["median"]


def test_size():
    assert Size().of(10, 2) == 10 and Size(scale=16).of(10, 2) == 160 and Size(quick=True, scale=16).of(10, 2) == 2


@pytest.mark.parametrize(("cost", "exponent"), [(lambda n: n**1.5, 1.0), (lambda n: n, 1.5), (lambda n: n**3, 0.5)])
def test_growth(clock, cost, exponent):
    calls = {n: _taking(99.0, 1e-9 * n**1.5) for n in (100, 1000, 10_000)}
    record = growth("time", calls, size=Size(), turns=3, cost=cost, formula="cost")
    assert record["exponent"] == pytest.approx(exponent) and record["kept"] == (exponent == 1.0)


class TestAgree:
    def test_numbers(self):
        tree = {"a": np.array([1.0, -10.0, np.inf]), "b": 0.0}
        assert agree("same", tree, tree, within=0.0)["passed"]
        near = {"a": np.array([1.1, -10.0, np.inf]), "b": 0.0}
        assert agree("near", near, tree, within=0.011)["passed"]  # Relative to the largest entry, 10.
        assert not agree("off", near, tree, within=0.009)["passed"]

    @pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, wrong):
        assert not agree("one", np.array([1.0, wrong]), np.ones(2), within=1.0)["passed"]
        assert not agree("other", np.ones(2), np.array([1.0, wrong]), within=1.0)["passed"]
        assert not agree("sign", np.array([1.0, -wrong]), np.array([1.0, wrong]), within=1.0)["passed"]

    def test_other_shapes_raise(self):
        with pytest.raises(ValueError, match="shapes"):
            agree("broadcast", np.ones(3), np.ones(1), within=1.0)
        with pytest.raises(ValueError):
            agree("leaves", [1.0], [1.0, 2.0], within=1.0)


class TestCheck:
    law = np.log([0.5, 0.3, 0.2 - 1e-6, 1e-6])

    def test_same_and_other_law(self):
        counts = np.random.default_rng(0).multinomial(100_000, np.exp(self.law))
        other = np.log([0.52, 0.28, 0.2 - 1e-6, 1e-6])
        assert check("law", counts, self.law)["passed"] and not check("law", counts, self.law, differ=True)["passed"]
        assert check("other", counts, other, differ=True)["passed"] and not check("other", counts, other)["passed"]

    def test_impossible_outcomes_are_counted(self):
        counts = np.random.default_rng(0).multinomial(100_000, [0.49, 0.3, 0.2, 0.01])
        assert not check("law", counts, np.log([0.5, 0.3, 0.2, 1e-300]))["passed"]

    def test_many_rare_outcomes(self):
        p = np.full(10_000, 1e-4)
        counts = np.random.default_rng(0).multinomial(2_000, p)
        assert check("law", counts, np.log(p))["passed"] and "bins" in check("law", counts, np.log(p))["found"]
        half = np.where(np.arange(10_000) < 5_000, 1.3e-4, 0.7e-4)
        assert check("other", counts, np.log(half), differ=True)["passed"]

    def test_level(self):
        # The p-value is uniform for the right law: a sum over 400 seeds that is off shows a wrong statistic.
        rng, p = np.random.default_rng(1), np.exp(self.law)
        values = [check("law", rng.multinomial(5_000, p), self.law)["p"] for _ in range(400)]
        assert abs(np.mean(values) - 0.5) < 6.0 * math.sqrt(1.0 / 12.0 / 400.0)

    def test_too_few_raise(self):
        with pytest.raises(ValueError, match="too few"):
            check("law", [10, 20], np.log([0.5, 0.5]))


@pytest.fixture
def records(clock):
    """Of two scripts, one of which failed."""
    contestants = [
        Contestant("NumPy", _taking(3.0, 2.0), reference=True, units=10),
        Contestant("jaxdp, array", _taking(4.0, 1.0), units=100, at_least=50.0),
        Contestant("jaxdp, vmap", _taking(4.0, 1.0), units=100, at_most=2.0),
    ]
    calls = {n: _taking(1e-6 * n) for n in (10, 100)}
    own = [
        *race("Draws", contestants, size=Size(), turns=2, unit="draw"),
        *race("Words", [*contestants[:1], Contestant("jaxdp, words", _taking(0.5))], size=Size(), turns=2),
        growth("time", calls, size=Size(), turns=2, cost=float, formula="n"),
        figure("share", 0.25, "of draws", against="0.25", passed=True),
        figure("error", 2.0, "units", passed=False),
        check("right law", [500, 500], np.log([0.5, 0.5])),
        check("wrong law", [500, 500], np.log([0.9, 0.1])),
    ]
    facts = machine.facts() | {"quick": False, "scale": 1}
    return [{"benchmark": "exponential", **record, **facts} for record in own] + [
        {"benchmark": "bounds", "error": "MemoryError: too large", **facts}
    ]


def test_tables(records):
    lines = list(report.tables(records, {"exponential": "Title of it.\n\nBody.", "bounds": "Bounds."}, {}))
    text = "\n".join(lines)
    assert "## exponential\n\nTitle of it." in text and "Body." in text and "scale 1." in text
    row = next(line for line in lines if line.startswith("| jaxdp, array"))
    assert "| 20 (20 to 20) | ≥ 50x: MISSED |" in row and "| 100 |" in row and "| 3 s |" in row
    quick = "\n".join(
        report.tables([record | {"quick": True} for record in records], {"exponential": "", "bounds": ""}, {})
    )
    assert "| ≥ 50x |" in quick and "quick sizes" in quick  # promises are not about these
    assert "≤ 2 s: kept" in text and "| time | n | 1.00 | 1 ± 0.15: kept |" in text
    assert "| share | 0.25 of draws | 0.25 |" in text and "| error | 2 units |  FAILED |" in text
    assert "- right law: 1,000 releases on 2 bins" in text and text.count(": agrees") == 1
    assert next(line for line in lines if line.startswith("- wrong law")).endswith("FAILED")
    assert "Not measured: MemoryError: too large" in text


def test_summary(records):
    lines = list(report.summary(records))
    assert any("Draws: jaxdp, array | 100 draws/s | 20 to NumPy | ≥ 50x: MISSED |" in line for line in lines)
    assert any("Words: jaxdp, words" in line for line in lines) and not any("Words: NumPy" in line for line in lines)
    assert any("time ~ (n)^1.00" in line for line in lines)
    failed = [line for line in lines if "FAILED" in line]
    assert len(failed) == 2 and "error" in failed[0] and "wrong law" in failed[1]
    assert any("not measured: MemoryError" in line for line in lines)


def test_plot(records, tmp_path):
    pytest.importorskip("matplotlib")
    for name, own in {
        "bars": [r for r in records if "race" in r],
        "curves": [r for r in records if "growth" in r],
    }.items():
        assert report.plot(own, tmp_path / f"{name}.png") and (tmp_path / f"{name}.png").stat().st_size > 1000
    assert not report.plot([r for r in records if "check" in r], tmp_path / "none.png")


def test_written_results_replace_those_of_the_same_script(records, tmp_path):
    pytest.importorskip("matplotlib")
    command._save(records, tmp_path)
    command._save([record | {"commit": "later"} for record in records if record["benchmark"] == "bounds"], tmp_path)
    command._render(tmp_path)
    command._save([], tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(lines) == len(records)
    assert {line["commit"] == "later" for line in lines if line["benchmark"] == "bounds"} == {True}
    text = (tmp_path / "README.md").read_text()
    assert "![exponential](exponential.png)" in text and (tmp_path / "exponential.png").exists()


def _options(**changes):
    return argparse.Namespace(**{"quick": True, "scale": 3, "minutes": None} | changes)


def test_scripts_get_their_size_and_one_failure_costs_nothing_else():
    sizes = []

    def good(size):
        sizes.append(size)
        yield figure("one", 1.0, "")

    def bad(size):
        yield figure("two", 2.0, "")
        raise MemoryError("too large\nfor this")

    scripts = {name: types.SimpleNamespace(run=run) for name, run in {"bad": bad, "good": good}.items()}
    records = list(itertools.chain(*command._run(scripts, _options())))
    assert [(record["benchmark"], record.get("value")) for record in records] == [
        ("bad", 2.0),
        ("bad", None),
        ("good", 1.0),
    ]
    assert records[1]["error"] == "MemoryError: too large"
    assert (sizes[0].quick, sizes[0].scale, sizes[0].deadline) == (True, 3, math.inf)
    assert {"device", "versions", "commit", "time"} <= set(records[0])
    ((late,),) = command._run({"good": scripts["good"]}, _options(minutes=-1.0))
    assert late["error"] == "TimeoutError: no time was left"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no benchmark named 'nothing'"),
        (["bounds", "--scale", "0"], "--scale"),
        (["bounds", "--minutes", "0"], "--minutes"),
    ],
)
def test_bad_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["not json", "[1]", '{"a": 1}'])
def test_a_bad_folder_is_refused_before_anything_runs(text, tmp_path, capsys):
    (tmp_path / "results.jsonl").write_text(text)
    for folder in (tmp_path, tmp_path / "results.jsonl"):
        with pytest.raises(SystemExit) as exit:
            command.main(["bounds", "--quick", "--out", str(folder)])
        assert exit.value.code == 2 and "--out must be a folder" in capsys.readouterr().err


def test_results_of_a_script_that_is_gone_are_left_out(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"benchmark": "gone", "figure": "x"}\n')
    assert command._load(tmp_path) == []


def test_no_name_lists_the_scripts(capsys):
    assert command.main([]) == 0
    listed = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert {"bounds", "discrete_laplace", "end_to_end"} <= {name for name, _ in listed}
    assert not {"harness", "report", "machine", "gpu", "paper"} & {name for name, _ in listed}
    assert all(line.endswith(".") for _, line in listed)


def test_exit_status(monkeypatch, capsys):
    module = types.ModuleType("script", "A script.")
    monkeypatch.setattr(command.importlib, "import_module", lambda name: module)
    for passed, status in ((True, 0), (None, 0), (False, 1)):
        module.run = lambda size, passed=passed: iter([figure("value", 1.0, "", passed=passed)])
        assert command.main(["bounds", "--quick"]) == status
        assert ("FAILED" in capsys.readouterr().out) == (status == 1)


def test_gpu_arguments(capsys):
    assert gpu.arguments(["--quick"])[:2] == ["all", "--quick"]
    if jnp.ones(1).device.platform == "cpu":
        with pytest.raises(SystemExit) as exit:
            gpu.arguments([])
        assert exit.value.code == 2 and "GPU" in capsys.readouterr().err


def test_peak_of_memory_is_seen():
    with machine.Peak() as small:
        pass
    with machine.Peak() as large:
        kept = np.ones(64_000_000, np.uint8)
    if large.bytes == 0:
        pytest.skip("the platform does not tell")
    assert large.bytes >= 0.9 * kept.nbytes > 0.9 * kept.nbytes / 2 > small.bytes
