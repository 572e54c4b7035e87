"""The commands that audit functions of a user's, the catalogue, and certify again."""

import json

import jax
import pytest

from jaxdp.__main__ import main

SOURCE = """
import jax, jax.numpy as jnp

def noisy_sum(key, records):
    return jnp.sum(records, dtype=jnp.float32) + jax.random.laplace(key, (), jnp.float32)

def raising(key, records):
    raise RuntimeError("no such column")

def undefined(key, records):
    return jnp.where(jnp.sum(records) > 2, jnp.nan, jax.random.laplace(key, (), jnp.float32))

def branching(key, records):
    return 1.0 if jax.random.laplace(key, (), jnp.float32) > 0 else 0.0

def in_python(records):
    return sum(records) > 2

def in_numpy(generator, records, n):
    return sum(records) + generator.laplace(size=n)

number = 3
"""
INPUTS = {
    "pairs": [[[0, 1, 1], [1, 1, 1]], [[0, 1, 1], [2, 1, 1]]],
    "epsilon": 1.0,
    "neighbours": "one record in 0..2 is replaced",
    "sensitivity": 1,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "users_module.py").write_text(SOURCE)
    (tmp_path / "inputs.json").write_text(json.dumps(INPUTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "users_module", raising=False)
    return tmp_path


def run(*arguments):
    # The user's own settings, not those of the tests.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return main([str(each) for each in arguments])


def audit(name, *options):
    return run("audit", "--target", f"users_module:{name}", "--inputs", "inputs.json", "--samples", 100_000, *options)


def test_a_planted_sensitivity_error_is_refuted_and_certified_again(folder, capsys):
    assert audit("noisy_sum", "--json", "found.json") == 1
    text = capsys.readouterr().out
    for word in ("refuted at confidence 0.99", "pair       1", "[[0, 1, 1], [2, 1, 1]]", "hits", "event", "replaced"):
        assert word in text, word
    assert "the declared sensitivity is 1" in text and "passed" not in text.lower()
    assert run("recertify", "found.json") == 1
    assert "refuted at confidence 0.99" in capsys.readouterr().out
    document = json.loads((folder / "found.json").read_text())
    document["report"]["epsilon_lower"] = 7.0
    (folder / "forged.json").write_text(json.dumps(document))
    assert run("recertify", "forged.json") == 2
    assert "THE FILE STATES 7" in capsys.readouterr().out


@pytest.mark.parametrize("name, kind", [("in_python", "python"), ("in_numpy", "numpy-batched")])
def test_code_outside_of_jax(folder, capsys, name, kind):
    assert audit(name, "--kind", kind, "--samples", 20_000) == 1
    assert "refuted" in capsys.readouterr().out


def test_nan_is_shown(folder, capsys):
    assert audit("undefined") == 1
    text = capsys.readouterr().out
    assert "0.00% of the outputs on the summary and 100.00% on the neighbour are NaN" in text


@pytest.mark.parametrize(
    "target, message",
    [
        ("users_module:raising", "--target users_module:raising: RuntimeError: no such column"),
        ("users_module:branching", "must be a pure JAX function that vmaps over keys (TracerBoolConversionError"),
        ("users_module:missing", "'users_module' has no 'missing'"),
        ("users_module:number", "--target must be a function, got 3"),
        ("no_such_module:f", "cannot import 'no_such_module' (ModuleNotFoundError"),
        ("users_module", "--target must be module:function, got 'users_module'"),
    ],
)
def test_what_cannot_be_audited_is_said_in_one_line(folder, capsys, target, message):
    assert run("audit", "--target", target, "--inputs", "inputs.json", "--samples", 1000) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "inputs.json is not JSON"),
        ("[1]", "--inputs must be an object with pairs, epsilon"),
        ('{"pairs": [[0, 1]], "epsilon": 1, "epsilom": 2}', "--inputs must be an object with pairs, epsilon"),
        ('{"pairs": [[0, 1]], "epsilon": -1}', "epsilon must lie in [0, inf), got -1"),
        ('{"pairs": [["a", "b"]], "epsilon": 1}', "inputs must be numbers and lists of numbers"),
        ('{"pairs": [], "epsilon": 1}', "pairs must be a sequence"),
    ],
)
def test_bad_inputs(folder, capsys, text, message):
    (folder / "inputs.json").write_text(text)
    assert audit("noisy_sum") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_bad_usage(folder, capsys):
    assert run("audit", "--inputs", "inputs.json") == 2
    assert "--target and --inputs go together" in capsys.readouterr().err
    for text in ("{}", "[]"):
        (folder / "empty.json").write_text(text)
        assert run("recertify", "empty.json") == 2
    assert run("recertify", "missing.json") == 2


def test_the_catalogue_beside_published_figures(folder, capsys):
    assert run("audit", "--catalogue", "--mechanism", "SVT5", "--samples", 50_000, "--json", "rows.json") == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("SVT5"))
    assert row.endswith("REFUTED") and "1.7612" in row and "14.3143" in row
    assert run("recertify", "rows.json") == 1
    assert "SVT5: refuted" in capsys.readouterr().out
    assert run("audit", "--catalogue", "--mechanism", "Gauss") == 2
