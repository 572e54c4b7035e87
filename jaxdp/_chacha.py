"""ChaCha20 as a JAX random generator, and keys drawn from the operating system.

JAX's default generator, threefry2x32, has a 64-bit key and is not advertised as a cryptographic generator.
A privacy guarantee against an adversary who sees releases needs noise that nobody can predict: `secure_key`
gives a typed key with 256 bits of entropy for the ChaCha20 block function of RFC 8439.

Every block is ``block(key, counter, (data low, data high, domain))``. The domain names the use of a key, so
that no two uses share a block:

    random_bits  0: word i is word i % 16 of block i // 16, the standard key stream, nonce 0. A longer draw
                 starts with a shorter one; 8, 16 and 64-bit draws regroup the same words.
    split        1: two children a block. split(key, n)[i] differs from fold_in(key, i), unlike threefry's.
    fold_in      2: the 32-bit datum is the data word, the first half of the block the new key.
    seed         3: zero key, the seed in the data words. NOT secure: only the seed itself is unknown.

One draw or split is limited to 2^32 blocks (2^36 words of 32 bits) and raises ValueError beyond.

These keys work with jit, vmap, scan, shard_map, donation, jax.debug_key_reuse, strict promotion, both modes
of jax_enable_x64, jax.random.key_impl and clone, and pickle. What does not work:

    a generator's name     JAX's table of names is private: write ``impl=chacha20_prng_impl``, not "chacha20";
                           jax_default_prng_impl and untyped PRNGKey arrays cannot be had.
    jax.random.poisson     is written for threefry only.
    serialised jax.export  knows JAX's own key types only: pass jax.random.key_data and wrap it inside.
    64-bit draws           in a jax.enable_x64 scope inside a 32-bit jit fail to lower, as with threefry.

A large draw is computed in chunks, so XLA does not divide ONE draw over devices (each computes all of it):
give every device its own key. Under vmap over keys each key costs at least a block, however little is drawn.
"""

import functools
import math
import secrets
from collections.abc import Sequence

import jax
import jax.core
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["block", "chacha20_prng_impl", "secure_key"]

_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
_BITS, _SPLIT, _FOLD_IN, _SEED = range(4)
# The 16 state words of this many blocks (1 MiB) stay in a CPU's cache over the ten double rounds; those of a
# whole large draw go through memory ten times (twice as slow). Smaller chunks would starve accelerators.
_CHUNK = 2**14


def _rotate_left(x: jax.Array, n: int) -> jax.Array:
    return (x << np.uint32(n)) | (x >> np.uint32(32 - n))


def _shift(row: jax.Array, n: int) -> jax.Array:
    return jnp.concatenate([row[..., n:], row[..., :n]], axis=-1)


def _quarter_rounds(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, ...]:
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _rotate_left(d ^ a, first)
        c = c + d
        b = _rotate_left(b ^ c, second)
    return a, b, c, d


def _double_round(_: jax.Array, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    a, b, c, d = _quarter_rounds(*rows)
    # Shifted rows bring the diagonals into the columns. Working on four rows rather than sixteen words halves
    # the compilation time of every draw.
    a, b, c, d = _quarter_rounds(a, _shift(b, 1), _shift(c, 2), _shift(d, 3))
    return a, _shift(b, 3), _shift(c, 2), _shift(d, 1)


def _blocks(key: jax.Array, counter: jax.Array, nonce: Sequence[jax.Array | np.uint32]) -> jax.Array:
    """One block for each counter, its 16 words on a new last axis."""
    # A loop's carry keeps its type. In shard_map that includes the mesh axes over which a value varies: tie
    # every row to key, counter and nonce from the start. XLA folds the zeros away.
    zero = (counter ^ key[0] ^ nonce[0]) & np.uint32(0)
    last = jnp.stack([zero + word for word in (counter, *nonce)], axis=-1)
    rows = [jnp.broadcast_to(row, last.shape) for row in (_CONSTANTS, key[:4], key[4:])]
    start = (*((last & np.uint32(0)) + row for row in rows), last)
    # Not unrolled: that costs seconds of compilation for each draw in a program.
    end = lax.fori_loop(0, 10, _double_round, start)
    return jnp.concatenate([x + y for x, y in zip(start, end, strict=True)], axis=-1)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _draw(
    key: jax.Array | None, data: jax.Array | None, domain: int, bit_width: int, shape: tuple[int, ...]
) -> jax.Array:
    """Unsigned integers of `bit_width` bits from the stream that (key, data, domain) names; None is zero."""
    # Zeros are made here: NumPy arguments would be implicit transfers, which jax.transfer_guard refuses.
    key = jnp.zeros(8, np.uint32) if key is None else key
    nonce: list[jax.Array | np.uint32] = [np.uint32(0), np.uint32(0), np.uint32(domain)]
    if data is not None:
        nonce[0] = data.astype(np.uint32)
        if data.dtype.itemsize == 8:
            # As in threefry: a 32-bit seed has a zero high word, so seeds in [0, 2^32) agree in both modes.
            nonce[1] = (data >> np.asarray(32, data.dtype)).astype(np.uint32)

    size = math.prod(shape)
    words = -(-size * bit_width // 32)
    blocks = max(1, -(-words // 16))
    if blocks > 2**32:
        raise ValueError(f"one draw of ChaCha20 is limited to 2^36 words of 32 bits; got {words}")
    chunks = -(-blocks // _CHUNK)
    # Equal chunks: full ones would double the cost of a draw just above _CHUNK.
    per_chunk = -(-blocks // chunks)

    def chunk(first: jax.Array | np.uint32) -> jax.Array:
        return _blocks(key, lax.iota(np.uint32, per_chunk) + first, nonce)

    starts = lax.iota(np.uint32, chunks) * np.uint32(per_chunk)
    stream = chunk(np.uint32(0)) if chunks == 1 else lax.map(chunk, starts)
    stream = stream.reshape(-1)[:words]

    if bit_width == 64:
        pairs = stream.reshape(-1, 2).astype(np.uint64)
        stream = pairs[:, 0] | (pairs[:, 1] << np.uint64(32))
    elif bit_width < 32:
        # Shifts, not a bit cast: the order of the parts must not depend on the platform.
        shifts = np.arange(0, 32, bit_width, dtype=np.uint32)
        stream = (stream[:, None] >> shifts[None, :]).astype(f"uint{bit_width}").reshape(-1)[:size]
    return stream.reshape(shape)


@jax.jit
def block(key_words: jax.Array, counter: jax.Array, nonce: jax.Array) -> jax.Array:
    """The ChaCha20 block function of RFC 8439, section 2.3.

    Args:
        key_words: eight uint32 words, the 256-bit key read little end first.
        counter: the 32-bit block counter, a uint32 scalar.
        nonce: three uint32 words.

    Returns:
        The sixteen uint32 words of the block; the key stream is their bytes, little end first.
    """
    key_words, counter, nonce = (jnp.asarray(x, np.uint32) for x in (key_words, counter, nonce))
    return _blocks(key_words, counter, tuple(nonce[i] for i in range(3)))


# Plain functions around a jitted one: JAX calls them eagerly, and typed keys pickle by their names, which a
# jit decorator would shadow.
def _seed(seed: jax.Array) -> jax.Array:
    if not jnp.issubdtype(seed.dtype, jnp.integer):
        raise TypeError(f"a seed is an integer; got {seed.dtype}")
    return _draw(None, seed, _SEED, 32, (8,))


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _draw(key, None, _SPLIT, 32, (*shape, 8))


def _fold_in(key: jax.Array, data: jax.typing.ArrayLike) -> jax.Array:
    return _draw(key, jnp.asarray(data, np.uint32), _FOLD_IN, 32, (8,))


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    if bit_width not in (8, 16, 32, 64):
        raise TypeError(f"bit_width is 8, 16, 32 or 64; got {bit_width}")
    return _draw(key, None, _BITS, bit_width, tuple(shape))


chacha20_prng_impl = jax.extend.random.define_prng_impl(
    key_shape=(8,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="chacha20",
)


# No argument takes the entropy: a caller's bytes would mostly be a seed or a password under a name that
# promises security. Who has a hardware source wraps its words with jax.random.wrap_key_data.
def secure_key() -> jax.Array:
    """A fresh typed key with 256 bits of entropy from the operating system, for releases that matter.

    A scalar key of `chacha20_prng_impl`. Draw it outside compiled code and pass it as an argument::

        count_key, mean_key = jax.random.split(jaxdp.secure_key())
        release = jax.jit(mechanism.sample)(count_key, count)

    The noise is then as hard to predict as ChaCha20 is to tell from random bits. `jax.random.key(seed)` is
    for tests and experiments: who guesses the seed, or reads it in the code, subtracts the noise.

    The key is a secret. It stays in the process's memory; print, repr, jax.debug.print, pickles and
    checkpoints show its words: never log it. Closed over by a jitted function, it can end up as a constant in
    the compiled program, its dumps and the persistent compilation cache. In the body of a jax.vmap this
    function runs once, and all lanes share the key: split a key and map over the parts. On several hosts each
    call gives another key.

    Raises:
        RuntimeError: inside a function that JAX traces (jit, scan, shard_map): the key would be drawn once,
            and every call of the compiled program would release the same noise.
    """
    # device_put makes the transfer explicit, as jax.transfer_guard("disallow") demands.
    words = jax.device_put(np.frombuffer(secrets.token_bytes(32), np.uint32))
    key = jax.random.wrap_key_data(words, impl=chacha20_prng_impl)
    if isinstance(key, jax.core.Tracer):
        raise RuntimeError("secure_key() was called in a traced function: pass the key as an argument")
    return key
