"""Test-wide JAX settings, the fixed key and the tracer-leak option.

Two legs are chosen from outside: JAX_ENABLE_X64=1 (read by JAX itself) runs the tests with 64-bit types, and
`--tracer-leaks` wraps each test in jax.checking_leaks(), which is slow: use it with `-m leaks`.
JAX's compilation cache on disk is off unless set, as CI does. Repeated runs are several times faster with it:
    export JAX_COMPILATION_CACHE_DIR=$PWD/.jax_cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
"""

import os
from pathlib import Path

# Before JAX is imported. An accelerator is tested by naming it: JAX_PLATFORMS=cuda python -m pytest
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Two CPU devices, so that the sharding tests really shard.
jax.config.update("jax_num_cpu_devices", 2)


def pytest_addoption(parser):
    text = "wrap each test in jax.checking_leaks() (slow: every call traces again)"
    parser.addoption("--tracer-leaks", action="store_true", help=text)


def pytest_report_header(config):
    platforms, leaks = os.environ["JAX_PLATFORMS"], config.getoption("--tracer-leaks")
    return f"jax {jax.__version__} on {platforms}, x64: {jax.config.jax_enable_x64}, tracer leaks: {leaks}"


@pytest.fixture(autouse=True)
def _tracer_leaks(request):
    if request.config.getoption("--tracer-leaks"):
        with jax.checking_leaks():
            yield
    else:
        yield


@pytest.fixture(autouse=True)
def _bounded_memory_maps():
    # Each compiled function holds three or four memory maps, and Linux ends a process at 65,530 of them.
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 40_000:
        jax.clear_caches()


@pytest.fixture
def key():
    """The same typed key for every test: a failure repeats."""
    return jax.random.key(2024)
