"""Exact privacy of an implementation: every random word through the real, compiled sampler, on both inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp.audit import _enumerate, _outputs, _summaries
from jaxdp.audit._finite_precision_report import FinitePrecisionReport as FinitePrecisionReport
from jaxdp.audit._finite_precision_report import Resolution as Resolution
from jaxdp.audit._words import used_bits, word_key

__all__ = ["FinitePrecisionReport", "Resolution", "finite_precision"]

_CHUNK_BITS = 20


def finite_precision(
    sample: Any,
    summary: Any,
    neighbour: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    granularities: tuple[float, ...] = (),
    limit: int = 2**24,
    progress: Callable[[float], Any] | None = None,
) -> FinitePrecisionReport:
    """The exact privacy of a sampler that draws ONE random word, as it is compiled here: all words are tried.

    With w words in all, n(y) of which give the output y on the one input and m(y) on the other,

        delta(epsilon) = max over both directions of sum over y of max(0, n(y) - e^epsilon m(y)) / w.

    Outputs are compared by their bits. Real numbers in a computer have gaps and collisions that depend on the input,
    so that a textbook sampler of float noise gives its input away; this shows by how much, also after rounding.

    How many low bits of the word are ignored is proved from the traced program (a float32 uniform number uses the top
    23 of 32 bits). 2^23 words take seconds, 2^32 words minutes.

    Args:
        sample: A pure JAX function (key, summary) -> output that draws one word of at most 32 bits with jax.random; or
            an object with such a method `sample`. Splitting and folding the key is allowed. The output is at most 64
            bits of booleans, integers and floats.
        summary: What it reads on the one input, any pytree.
        neighbour: The same on the neighbouring input.
        epsilon: The claim to test.
        delta: The claimed delta.
        granularities: Steps of lattices to which outputs (one number) are rounded too, nearest multiple.
        limit: Different outputs of one side in memory at once, at about 100 bytes each; where there are more, the words
            are gone through several times.
        progress: Called with the share done of the current pass over the words, from 0 to 1.

    Returns:
        A FinitePrecisionReport.

    Raises:
        ValueError: An argument is out of range, the sampler draws no word or more than one, or its outputs do not fit.

    Floating point:
        Compilers contract and reorder float arithmetic, so the result is that of the program compiled here, for
        batches of runs. Which outputs collide may differ elsewhere by a few per cent.

    Example:
        >>> def sample(key, x):
        ...     return jnp.where(jax.random.bits(key, dtype=jnp.uint8) < 64, x + 1, x)
        >>> report = finite_precision(sample, np.int32(0), np.int32(1), epsilon=1.0, delta=0.8)
        >>> report.resolutions[0].impossible, report.loss, report.refuted
        (0.75, 0.0, False)
    """
    epsilon, delta, granularities = _claim(epsilon, delta, granularities)
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1:
        raise ValueError(f"limit must be a positive integer, got {limit!r}")
    if progress is not None and not callable(progress):
        raise ValueError(f"progress must be a function of one number, got {progress!r}")
    run = getattr(sample, "sample", sample)
    if not callable(run):
        raise ValueError(f"sample must be a function (key, summary) or have such a method, got {sample!r}")
    place = functools.partial(jax.device_put, device=jax.devices()[0])
    sides = [_summaries.Summary.of(each, place) for each in (summary, neighbour)]
    programs = [_Program(run, side) for side in sides]
    if programs[0].layout != programs[1].layout:
        layouts = " and ".join(str(each.layout.leaves) for each in programs)
        raise ValueError(f"sample must return outputs of one structure on summary and neighbour, got {layouts}")
    width = programs[0].width
    bits = max(each.bits for each in programs)
    leaves = programs[0].layout.leaves
    if granularities and programs[0].layout.size > 1:
        raise ValueError(f"granularities need outputs of one number, got {leaves}")
    if sides[0].signature == sides[1].signature:
        programs[1].compiled = programs[0].compiled
    streams = tuple(
        lambda program=program, number=number: program.stream(bits, width, number, progress)
        for number, program in enumerate(programs)
    )
    found = _enumerate.compare(streams, leaves[0].dtype, granularities, int(limit))
    resolutions = tuple(
        Resolution(step, 2**bits, tuple(map(tuple, each.pairs.tolist())))
        for step, each in zip((0.0, *granularities), found, strict=True)
    )
    name = getattr(sample, "__qualname__", type(sample).__name__)
    return FinitePrecisionReport(name, epsilon, delta, width, bits, resolutions)


class _Program:
    """The compiled sampler of one side as a function of ranges of words."""

    def __init__(self, run: Callable, side: _summaries.Summary):
        self.side = side

        def one(key: jax.Array, arguments: tuple) -> Any:
            return run(key, side.join(arguments))

        self.width, ignored = used_bits(one, side.arguments)
        self.bits = self.width - ignored
        self.layout = _outputs.Layout.of(jax.eval_shape(one, word_key(np.uint32(0)), side.arguments))
        self.widths = [1 if leaf.dtype == np.bool_ else 8 * leaf.dtype.itemsize for leaf in self.layout.leaves]
        taken = sum(width * leaf.size for width, leaf in zip(self.widths, self.layout.leaves, strict=True))
        if taken > 64:
            raise ValueError(f"sample must return at most 64 bits, got {taken} in {self.layout.leaves}")

        def codes(first: jax.Array, shift: jax.Array, arguments: tuple, *, size: int) -> jax.Array:
            words = (first + lax.iota(jnp.uint32, size)) << shift
            outputs = jax.vmap(one, (0, None))(jax.vmap(word_key)(words), arguments)
            with self.layout.scope():
                return self.layout.coordinates(outputs)

        self.compiled = jax.jit(codes, static_argnames="size")

    def stream(self, bits: int, width: int, number: int, progress: Any) -> Iterator[np.ndarray]:
        """Codes of the outputs on all words, in chunks."""
        size = 2 ** min(bits, _CHUNK_BITS)
        chunks = 2**bits // size
        for chunk in range(chunks):
            first, shift = np.uint32(chunk * size), np.uint32(width - bits)
            codes = np.asarray(self.compiled(first, shift, self.side.arguments, size=size))
            yield codes[:, 0] if codes.shape[1] == 1 else self._pack(codes)
            if progress is not None:
                progress((number + (chunk + 1) / chunks) / 2.0)

    def _pack(self, codes: np.ndarray) -> np.ndarray:
        packed, column = np.zeros(len(codes), np.uint64), 0
        for width, leaf in zip(self.widths, self.layout.leaves, strict=True):
            for _ in range(leaf.size):
                mask = np.uint64((1 << width) - 1)
                packed = (packed << np.uint64(width)) | (codes[:, column].astype(np.int64).view(np.uint64) & mask)
                column += 1
        return packed.view(np.int64)


def _claim(epsilon: Any, delta: Any, granularities: Any) -> tuple[float, float, tuple[float, ...]]:
    numbers = {"epsilon": epsilon, "delta": delta}
    for name, value in numbers.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be a real number, got {value!r}") from None
    if not 0.0 <= numbers["epsilon"] < math.inf:
        raise ValueError(f"epsilon must be nonnegative and finite, got {epsilon!r}")
    if not 0.0 <= numbers["delta"] < 1.0:
        raise ValueError(f"delta must be in [0, 1), got {delta!r}")
    steps = tuple(float(step) for step in np.ravel(granularities))
    if not all(0.0 < step < math.inf for step in steps):
        raise ValueError(f"granularities must be positive and finite, got {granularities!r}")
    return numbers["epsilon"], numbers["delta"], steps
