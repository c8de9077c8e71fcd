"""What servers make themselves: ids and times, which count as one value of their type."""

import time

import bson
from bson.datetime_ms import DatetimeMS
from bson.son import SON

MADE_BY_SERVER = bson.ObjectId("00" * 11 + "aa")
FIXED = {bytes(11) + b"\0", bytes.fromhex("5f0000000000000000000001"), b"\xff" * 12}
DAY_SECS = 86_400
# When recorded servers answered, in seconds since 1970; live ones answer now.
RECORDED_SECS = []


def is_present(value):
    """Whether this is a time that a server took from its clock."""
    if isinstance(value, DatetimeMS):
        secs = int(value) / 1000
    elif isinstance(value, bson.Timestamp):
        secs = value.time
    else:
        return False
    return any(abs(secs - answered) < DAY_SECS for answered in (time.time(), *RECORDED_SECS))


def holds_present(value):
    """Whether such a time is anywhere in a value."""
    if isinstance(value, dict):
        return any(holds_present(item) for item in value.values())
    return any(holds_present(item) for item in value) if isinstance(value, list) else is_present(value)


def without_made(value):
    """The value with ids, times and UUIDs that a server made replaced by one of their type."""
    if isinstance(value, bson.ObjectId):
        return value if value.binary in FIXED else MADE_BY_SERVER
    if isinstance(value, DatetimeMS):
        return DatetimeMS(0) if is_present(value) else value
    if isinstance(value, bson.Timestamp):
        return bson.Timestamp(7, 7) if is_present(value) else value
    if isinstance(value, dict):
        return SON((key, without_made(item)) for key, item in value.items())
    if isinstance(value, list):
        return [without_made(item) for item in value]
    return value
