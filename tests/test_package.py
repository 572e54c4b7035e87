"""The package as a whole: imports, docstrings, doctests, version, file sizes."""

import ast
import doctest
import importlib
import importlib.metadata
import inspect
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp._mechanism import examples

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for top in ("jaxdp", "tests", "benchmarks") for path in (ROOT / top).rglob("*.py"))
MODULES = ["jaxdp", *sorted(module.name for module in pkgutil.walk_packages(jaxdp.__path__, "jaxdp."))]
PUBLIC_MODULES = [name for name in MODULES if not any(part.startswith("_") for part in name.split("."))]


def _python(code):
    """Runs code in a fresh interpreter, where every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", code]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_starts_no_backend_and_leaves_no_array():
    # The device count can only be set while no backend has started.
    modules = [name for name in MODULES if not name.endswith("__main__")]
    _python(
        "import importlib, jax\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "jax.config.update('jax_num_cpu_devices', 3)\n"
        "assert jax.device_count('cpu') == 3\n"
        "assert jax.live_arrays() == []\n"
    )


def test_import_changes_no_jax_setting():
    _python("import jax\nbefore = dict(jax.config.values)\nimport jaxdp\nassert dict(jax.config.values) == before\n")


def test_core_imports_no_optional_dependency():
    loaded = _python("import sys, jaxdp; print(*sys.modules)").split()
    assert not {"matplotlib", "dp_accounting", "optax", "opendp"} & set(loaded)


def test_version_is_that_of_the_installed_distribution():
    try:
        installed = importlib.metadata.version("jaxdp-privacy")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("jaxdp-privacy is not installed")
    assert jaxdp.__version__ == installed


def _undocumented(name, thing):
    """Yields the dotted names without a docstring: of thing, and of a class's public members."""
    doc = inspect.getdoc(thing) or ""
    # A dataclass or named tuple without a docstring is given its signature as one.
    if not doc or (inspect.isclass(thing) and doc.startswith(f"{thing.__name__}(")):
        yield name
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            described = callable(value) or isinstance(value, (property, classmethod, staticmethod))
            if not member.startswith("_") and described and not inspect.getdoc(value):
                yield f"{name}.{member}"


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_has_a_docstring(module):
    namespace = importlib.import_module(module)
    assert namespace.__doc__, f"{module} has no docstring"
    lacking = []
    for name, thing in vars(namespace).items():
        ours = callable(thing) and (getattr(thing, "__module__", None) or "").startswith("jaxdp")
        if ours and not name.startswith("_"):
            lacking += _undocumented(f"{module}.{name}", thing)
    assert not lacking


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="doctests show the results of the default 32-bit types")
@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__main__")])
def test_doctests(module):
    # As for a reader who changed no JAX setting and has imported these four names.
    names = {"jax": jax, "jnp": jnp, "np": np, "jaxdp": jaxdp}
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        failed, _ = doctest.testmod(importlib.import_module(module), extraglobs=names, optionflags=flags)
    assert failed == 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_source_file(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, "split the file: none is over 400 lines"
    private = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            private += [alias.name for alias in node.names if alias.name.startswith("jax._")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jax":
            private += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr == "_src":
            private.append(f"line {node.lineno}: ._src")
    private = [name for name in private if "._" in name]
    assert not private, "public JAX names only"


@pytest.mark.leaks
def test_tracer_leaks_option_finds_a_leak(request):
    leaked = []
    leaky = jax.jit(lambda x: leaked.append(x) or x + 1)
    if request.config.getoption("--tracer-leaks"):
        with pytest.raises(Exception, match="Leaked"):
            leaky(jnp.float32(1))
    else:
        leaky(jnp.float32(1))


def test_discovery_finds_every_public_mechanism():
    public = {thing for thing in vars(jaxdp).values() if inspect.isclass(thing) and hasattr(thing, "worst_case")}
    assert public == {type(record) for _, record in examples(1.0)} and len(public) >= 5
