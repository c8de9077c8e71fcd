"""Random BSON values of every type, weighted towards the edges."""

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.son import SON

from codec import DBPointer, Symbol, Undefined

INTS = [0, 1, -1, 2, 3, 5, 10, 127, 128, 255, 256, 2**31 - 1, -(2**31)]
LONGS = [0, 1, -1, 2, 5, 2**31, -(2**31) - 1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**62]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1.5, -1.5, 2.5, 5.0, 1e10, 1e300, -1e300, 5e-324, 2.0**53, 2.0**63, -(2.0**63),
           float("inf"), float("-inf"), float("nan"), 0.1, 3.0]
DECIMALS = ["0", "-0", "1", "1.0", "1.00", "-1", "2", "0.1", "1.5", "5", "1E+3", "1E-3", "9.999999999999999999999999999999999E+6144",
            "1E-6176", "Infinity", "-Infinity", "NaN", "9007199254740993", "9223372036854775808"]
STRINGS = ["", "a", "b", "ab", "abc", "A", "aa", "z", "0", "1", "a.b", "$a", "é", "日本", "a\0b", "x" * 40]
OIDS = [ObjectId("000000000000000000000000"), ObjectId("5f0000000000000000000001"), ObjectId("ffffffffffffffffffffffff")]
DATES = [0, 1, -1, 1600000000000, -1600000000000, 2**52, -(2**52)]
BINARIES = [Binary(b"", 0), Binary(b"a", 0), Binary(b"ab", 0), Binary(b"a", 5), Binary(b"a", 128), Binary(bytes(16), 4), Binary(b"b", 0)]
REGEXES = [Regex("a"), Regex("^a"), Regex("a", "i"), Regex("b$", "m"), Regex("")]
TIMESTAMPS = [Timestamp(0, 1), Timestamp(1, 0), Timestamp(1, 1), Timestamp(2**32 - 1, 2**32 - 1)]
# Types that drivers no longer write, but old data holds.
DEPRECATED = [Undefined(), Symbol("a"), Symbol(""), Symbol("b"), DBPointer("x.y", OIDS[0]), DBPointer("x.y", OIDS[1]), DBPointer("x", OIDS[2])]
CODES = [Code("f"), Code("g"), Code("f", {"a": 1}), Code("f", {})]
FIELDS = ["a", "b", "c", "d"]


def scalar(rng):
    """One value that is neither a document nor an array."""
    kind = rng.random()
    if kind < 0.28:
        return rng.choice(INTS)
    if kind < 0.36:
        return Int64(rng.choice(LONGS))
    if kind < 0.48:
        return rng.choice(DOUBLES)
    if kind < 0.54:
        return Decimal128(rng.choice(DECIMALS))
    if kind < 0.70:
        return rng.choice(STRINGS)
    if kind < 0.77:
        return None
    if kind < 0.83:
        return rng.random() < 0.5
    if kind < 0.86:
        return rng.choice(OIDS)
    if kind < 0.89:
        return DatetimeMS(rng.choice(DATES))
    if kind < 0.92:
        return rng.choice(BINARIES)
    if kind < 0.94:
        return rng.choice(TIMESTAMPS)
    if kind < 0.96:
        return rng.choice(REGEXES)
    if kind < 0.975:
        return rng.choice(CODES)
    if kind < 0.982:
        return rng.choice(DEPRECATED)
    return MinKey() if rng.random() < 0.5 else MaxKey()


def array(rng, depth):
    return [value(rng, depth - 1) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4]))]


def document(rng, depth, fields=FIELDS):
    names = rng.sample(fields, rng.choice([0, 1, 1, 2, 2, 3]))
    return SON((name, value(rng, depth - 1)) for name in names)


def value(rng, depth=2):
    """Any value, nested at most `depth` levels."""
    kind = rng.random()
    if depth <= 0 or kind < 0.68:
        return scalar(rng)
    if kind < 0.84:
        return array(rng, depth)
    return document(rng, depth)


def path(rng):
    """A field path, often through arrays and sub-documents."""
    kind = rng.random()
    first = rng.choice(FIELDS)
    if kind < 0.6:
        return first
    if kind < 0.8:
        return f"{first}.{rng.choice(FIELDS)}"
    if kind < 0.92:
        return f"{first}.{rng.choice(['0', '1', '2'])}"
    return f"{first}.{rng.choice(FIELDS + ['0'])}.{rng.choice(FIELDS + ['1'])}"


def ids(rng, count):
    """`count` different `_id` values in ascending BSON order, so that insertion order is `_id`
    order."""
    if rng.random() < 0.6:
        return list(range(count))
    numbers = sorted(rng.sample([-5, 0, 1, 2.5, 7, Int64(2**40), 1e12, Int64(2**62)], rng.randint(1, 6)))
    strings = sorted(rng.sample(["", "a", "ab", "b", "x" * 30], rng.randint(1, 4)))
    objects = [SON([("a", 1)]), SON([("a", 2)]), SON([("b", 0)])][: rng.randint(0, 3)]
    rest = [Binary(b"a", 0), Binary(b"aa", 0), OIDS[0], OIDS[2], False, True, DatetimeMS(0), DatetimeMS(5), TIMESTAMPS[1], TIMESTAMPS[2]]
    keep = sorted(rng.sample(range(len(rest)), rng.randint(1, 6)))
    mixed = numbers + strings + objects + [rest[i] for i in keep]
    return mixed[:count] if len(mixed) >= count else list(range(count))
