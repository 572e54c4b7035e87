"""ChaCha20 against RFC 8439 and a slow reference, its streams, and what JAX can do with its keys."""

import pickle
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxdp import _chacha
from jaxdp._chacha import block, chacha20_prng_impl, secure_key

pytestmark = pytest.mark.slow

WORDS = 2**16
# The tests share a few shapes, since nearly all their time is compilation.
KEYS = WORDS // 8


def make_key(seed=2024):
    return jax.random.key(seed, impl=chacha20_prng_impl)


def children(key):
    return jax.random.split(key, KEYS)


def folded(key):
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(KEYS, dtype=np.uint32))


def data(keys):
    return np.asarray(jax.random.key_data(keys))


def little_endian(text):
    return np.frombuffer(bytes.fromhex(text), "<u4")


def slow_block(key, counter, nonce):
    """RFC 8439 section 2.3 in Python integers."""
    mask = 0xFFFFFFFF
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *map(int, key), int(counter), *map(int, nonce)]
    x = list(start)
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in (columns + diagonals) * 10:
        for p, q, r, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[p] = (x[p] + x[q]) & mask
            mixed = x[r] ^ x[p]
            x[r] = (mixed << turn | mixed >> (32 - turn)) & mask
    return np.array([(u + v) & mask for u, v in zip(start, x, strict=True)], np.uint32)


# The key, counter and nonce of RFC 8439: section 2.3.2 and test vectors 1 to 5 of appendix A.1.
VECTORS = [
    (
        bytes(range(32)).hex(),
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        "00" * 32,
        0,
        "00" * 12,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        "00" * 32,
        1,
        "00" * 12,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        "00" * 31 + "01",
        1,
        "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        "00ff" + "00" * 30,
        2,
        "00" * 12,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        "00" * 32,
        0,
        "00" * 11 + "02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


@pytest.mark.parametrize(("key", "counter", "nonce", "expected"), VECTORS)
def test_block_is_that_of_rfc_8439(key, counter, nonce, expected):
    got = block(little_endian(key), np.uint32(counter), little_endian(nonce))
    assert got.dtype == np.uint32
    np.testing.assert_array_equal(got, little_endian(expected))


def test_the_key_stream_of_rfc_8439_section_2_4_2():
    plain = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
        b"sunscreen would be it."
    )
    cipher = bytes.fromhex(
        "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0bf91b65c5524733ab8f593dabcd62b357"
        "1639d624e65152ab8f530c359f0861d807ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736"
        "5af90bbf74a35be6b40b8eedf2785e42874d"
    )
    key, nonce = little_endian(bytes(range(32)).hex()), little_endian("000000000000004a00000000")
    blocks = jax.vmap(block, (None, 0, None))(key, np.arange(1, 3, dtype=np.uint32), nonce)
    stream = np.asarray(blocks).astype("<u4").tobytes()
    assert bytes(p ^ s for p, s in zip(plain, stream, strict=False)) == cipher


def test_block_agrees_with_a_slow_reference():
    inputs = np.random.default_rng(1).integers(0, 2**32, (40, 12), dtype=np.uint32)
    inputs[0] = 0xFFFFFFFF
    got = jax.vmap(lambda x: block(x[:8], x[8], x[9:]))(inputs)
    np.testing.assert_array_equal(got, [slow_block(x[:8], x[8], x[9:]) for x in inputs])


def test_every_function_reads_the_documented_blocks():
    key = make_key()
    words = data(key)
    bits = [slow_block(words, i, (0, 0, 0)) for i in range(4)]
    np.testing.assert_array_equal(jax.random.bits(key, (5, 11), "uint32"), np.concatenate(bits)[:55].reshape(5, 11))
    np.testing.assert_array_equal(jax.random.bits(key, (), "uint32"), bits[0][0])
    expected = np.concatenate([slow_block(words, i, (0, 0, 1)) for i in range(3)]).reshape(6, 8)
    np.testing.assert_array_equal(data(jax.random.split(key, 5)), expected[:5])
    np.testing.assert_array_equal(data(jax.random.split(key, (2, 3))), expected.reshape(2, 3, 8))
    for datum in (0, 7, 2**32 - 1):
        child = jax.random.fold_in(key, np.uint32(datum))
        np.testing.assert_array_equal(data(child), slow_block(words, 0, (datum, 0, 2))[:8])
    np.testing.assert_array_equal(words, slow_block([0] * 8, 0, (2024, 0, 3))[:8])


def test_narrow_and_wide_bits_regroup_the_words():
    key = make_key()
    words = np.asarray(jax.random.bits(key, (40,), "uint32")).astype("<u4")
    for name, count in (("uint8", 157), ("uint16", 79)):
        got = jax.random.bits(key, (count,), name)
        assert got.dtype == name
        np.testing.assert_array_equal(got, words.view(name)[:count])
    with jax.enable_x64(True):
        got = jax.random.bits(key, (4, 5), "uint64")
    assert got.dtype == np.uint64
    np.testing.assert_array_equal(np.ravel(got), words.view("<u8"))


def test_chunked_draws_continue_the_stream():
    count = 16 * _chacha._CHUNK + 5
    key = make_key()
    got = np.asarray(jax.random.bits(key, (count,), "uint32"))
    # Two chunks of half the blocks each: around the seam, and both ends.
    seam = _chacha._CHUNK // 2
    for i in (0, 1, seam - 1, seam, seam + 1, seam + 2, 2 * seam - 1, 2 * seam):
        np.testing.assert_array_equal(got[16 * i :][:16], slow_block(data(key), i, (0, 0, 0))[: count - 16 * i])
    assert np.unique(got[:-5].reshape(-1, 16), axis=0).shape == (_chacha._CHUNK, 16)


def test_empty_draws_and_the_limit_of_one_draw():
    key = make_key()
    assert jax.random.bits(key, (0, 3)).shape == (0, 3)
    assert jax.random.split(key, 0).shape == (0,)
    words = jax.random.key_data(key)
    assert jax.eval_shape(lambda k: _chacha._random_bits(k, 32, (2**36,)), words).shape == (2**36,)
    with pytest.raises(ValueError, match=r"2\^36"):
        jax.eval_shape(lambda k: _chacha._random_bits(k, 8, (2**38 + 1,)), words)
    with pytest.raises(ValueError, match=r"2\^36"):
        jax.eval_shape(lambda k: _chacha._split(k, (2**33 + 1,)), words)
    with pytest.raises(TypeError, match="bit_width"):
        _chacha._random_bits(words, 24, (3,))


def repeated_pairs(streams):
    """How many 64-bit pairs of neighbouring words, at every offset, occur more than once."""
    pairs = [np.asarray(s, np.uint64)[:-1] << 32 | np.asarray(s, np.uint64)[1:] for s in streams]
    pairs = np.concatenate(pairs)
    return pairs.size - np.unique(pairs).size


def test_streams_never_repeat_a_pair_of_words():
    key = make_key()
    keys = [key, *children(key)[:3], *children(children(key)[0])[:2], *folded(key)[:3], make_key(0), make_key(1)]
    streams = [jax.random.bits(k, (WORDS,), "uint32") for k in keys]
    # The words of the children and of the folded keys, as streams of their own.
    streams += [np.ravel(data(children(key))), np.ravel(data(folded(key)))]
    assert repeated_pairs(streams) == 0
    # The check sees a stream that starts inside another one.
    assert repeated_pairs([streams[0], streams[0][-9:]]) == 8


def test_split_and_fold_in_give_different_keys():
    key = make_key()
    every = np.concatenate([data(children(key)), data(folded(key)), data(key)[None]])
    assert len({row.tobytes() for row in every}) == 2 * KEYS + 1


def worst_bit(words, width):
    """The largest deviation of a bit's count of ones from half, in standard deviations."""
    ones = ((np.asarray(words)[:, None] >> np.arange(width, dtype=words.dtype)) & words.dtype.type(1)).sum(0)
    return np.max(np.abs(ones - len(words) / 2)) / np.sqrt(len(words) / 4)


def test_each_bit_is_one_half_of_the_time():
    draws = [np.asarray(jax.random.bits(k, (WORDS,), "uint32")) for k in children(make_key())[:5]]
    assert worst_bit(draws[0], 32) < 6
    narrow = np.asarray(jax.random.bits(make_key(), (WORDS,), "uint8"))
    assert worst_bit(narrow, 8) < 6
    # The first words of many children, where a weak key schedule would show.
    first = jax.vmap(lambda k: jax.random.bits(k, (8,), "uint32"))(children(make_key(1)))
    assert worst_bit(np.ravel(first), 32) < 6
    # One bit in 32 set too often is found.
    biased = draws[0] | (draws[1] & draws[2] & draws[3] & draws[4])
    assert worst_bit(biased, 32) > 10


def test_neighbouring_seeds_data_and_children_differ_in_half_of_the_bits():
    seeds = jax.vmap(make_key)(jnp.arange(KEYS, dtype=np.uint32))
    for keys in (seeds, folded(make_key()), children(make_key())):
        flips = np.bitwise_count(data(keys)[1::2] ^ data(keys)[::2])
        assert abs(flips.mean() - 16) < 6 * np.sqrt(8 / flips.size)


def random_walk(key):
    def step(carry, _):
        carry, now = jax.random.split(carry)
        return carry, jax.random.bits(now, (3,), "uint32")

    return jax.lax.scan(step, key, None, length=4)


def test_transformations_give_the_same_bits():
    def draw(k):
        return jax.random.bits(jax.random.fold_in(k, 3), (20,), "uint32")

    key = make_key()
    keys = children(key)[:6]
    loop = np.stack([draw(k) for k in keys])
    np.testing.assert_array_equal(jax.jit(draw)(keys[0]), loop[0])
    np.testing.assert_array_equal(jax.vmap(draw)(keys), loop)
    twice = jax.jit(jax.vmap(jax.vmap(draw)))(keys.reshape(2, 3))
    np.testing.assert_array_equal(twice.reshape(6, -1), loop)

    end, walked = random_walk(key)
    carry = key
    for row in walked:
        carry, now = jax.random.split(carry)
        np.testing.assert_array_equal(jax.random.bits(now, (3,), "uint32"), row)
    np.testing.assert_array_equal(data(carry), data(end))

    # Last: a donated key is gone.
    child = data(keys[0])
    step = jax.jit(lambda k: jax.random.split(k)[0], donate_argnums=0)
    np.testing.assert_array_equal(data(step(key)), child)
    assert key.is_deleted()


@pytest.mark.parametrize("jit", [False, True])
def test_shard_map(jit):
    devices = len(jax.devices())
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(AxisType.Auto,))
    split, whole = PartitionSpec("d"), PartitionSpec()
    key = make_key()
    keys = children(key)[:devices]
    # The chunked path is a second loop around the first.
    count = 16 * _chacha._CHUNK + 1 if jit else 20

    def local(mine, shared):
        own = jax.random.fold_in(shared, jax.lax.axis_index("d"))
        bits = jax.random.bits(mine[0], (1, count), "uint32")
        if not jit:
            return bits, jax.random.key_data(own)[None]
        raw = block(jax.random.key_data(mine[0]), np.uint32(0), np.zeros(3, np.uint32))
        return bits, jax.random.key_data(own)[None], raw[None], random_walk(own)[1][None]

    run = jax.shard_map(local, mesh=mesh, in_specs=(split, whole), out_specs=split)
    bits, own, *others = (jax.jit(run) if jit else run)(keys, key)
    for i in range(devices):
        np.testing.assert_array_equal(bits[i], jax.random.bits(keys[i], (count,), "uint32"))
        np.testing.assert_array_equal(own[i], data(jax.random.fold_in(key, i)))
        if jit:
            raw, walks = others
            np.testing.assert_array_equal(raw[i], bits[i, :16])
            np.testing.assert_array_equal(walks[i], random_walk(jax.random.fold_in(key, i))[1])


def test_both_modes_of_x64_give_the_same_words():
    def draws():
        key = make_key(2**31 + 5)
        bits = [np.asarray(jax.random.bits(key, (33,), name)) for name in ("uint8", "uint32")]
        return bits + [data(k) for k in (key, jax.random.fold_in(key, 9), jax.random.split(key))]

    with jax.enable_x64(False):
        narrow = draws()
    with jax.enable_x64(True):
        wide = draws()
        # Only here do 64-bit seeds reach the generator whole.
        assert (data(make_key(2**32 + 1)) != data(make_key(1))).any()
    for x, y in zip(narrow, wide, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_seeds_must_be_integers():
    with pytest.raises(TypeError, match="integer"):
        make_key(1.5)


def test_samplers_of_jax_random():
    keys = iter(jax.random.split(make_key(), 5))
    uniform = np.asarray(jax.random.uniform(next(keys), (WORDS,)))
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 6 / np.sqrt(12 * WORDS)
    normal = np.asarray(jax.random.normal(next(keys), (WORDS,)))
    assert abs(normal.mean()) < 6 / np.sqrt(WORDS) and abs(normal.var() - 1) < 6 * np.sqrt(2 / WORDS)
    assert sorted(jax.random.permutation(next(keys), 50).tolist()) == list(range(50))
    dice = np.bincount(jax.random.randint(next(keys), (6000,), 0, 6), minlength=6)
    assert np.max(np.abs(dice - 1000)) < 6 * np.sqrt(6000 * 5 / 36)
    # The documented exception, so that a change in JAX is noticed.
    with pytest.raises(NotImplementedError, match="threefry"):
        jax.random.poisson(next(keys), 3.0)


def test_keys_round_trip():
    key = make_key()
    assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and "chacha20" in str(key.dtype)
    assert jax.random.key_impl(key) == chacha20_prng_impl
    copies = [
        jax.random.wrap_key_data(jax.random.key_data(key), impl=jax.random.key_impl(key)),
        jax.random.wrap_key_data(pickle.loads(pickle.dumps(data(key))), impl=chacha20_prng_impl),
        pickle.loads(pickle.dumps(key)),
        jax.random.clone(key),
        jax.device_put(key, jax.devices()[-1]),
        jax.tree.map(lambda x: x, key),
    ]
    for copy in copies:
        assert copy.dtype == key.dtype
        np.testing.assert_array_equal(data(copy), data(key))
    stacked = jnp.stack([key, copies[0]])
    assert stacked.shape == (2,) and stacked.dtype == key.dtype


def test_key_reuse_is_found():
    with jax.debug_key_reuse(True):
        random_walk(secure_key())
        key = make_key()
        jax.random.bits(jax.random.clone(key))
        first, second = jax.random.split(key)
        jax.vmap(jax.random.uniform)(jax.random.split(first, 3))
        jax.random.uniform(second)
        for consumed in (key, first, second):
            with pytest.raises(jax.errors.KeyReuseError):
                jax.random.bits(consumed)
        with pytest.raises(jax.errors.KeyReuseError):
            jax.jit(lambda k: jax.random.bits(k) + jax.random.bits(k))(make_key(1))


def test_secure_key_is_fresh_and_takes_all_its_entropy(monkeypatch):
    keys = [secure_key() for _ in range(3)]
    assert {k.dtype for k in keys} == {make_key().dtype} and keys[0].shape == ()
    assert len({data(k).tobytes() for k in keys}) == 3
    with jax.transfer_guard("disallow"):
        jax.random.split(secure_key())
    monkeypatch.setattr(secrets, "token_bytes", lambda n: bytes(range(n)))
    np.testing.assert_array_equal(data(secure_key()), little_endian(bytes(range(32)).hex()))


def test_secure_key_refuses_to_become_a_constant():
    def step(carry, _):
        return carry, jax.random.bits(secure_key())

    for traced in (
        jax.jit(lambda: jax.random.bits(secure_key())),
        lambda: jax.lax.scan(step, 0, None, length=2),
    ):
        with pytest.raises(RuntimeError, match="argument"):
            traced()
