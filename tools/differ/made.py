"""What servers make themselves: ids and times, which count as one value of their type."""

import time

import bson
from bson.datetime_ms import DatetimeMS
from bson.son import SON

MADE_BY_SERVER = bson.ObjectId("00" * 11 + "aa")
FIXED = {bytes(11) + b"\0", bytes.fromhex("5f0000000000000000000001"), b"\xff" * 12}
DAY_SECS = 86_400


def without_made(value):
    """The value with ids, times and UUIDs that a server made replaced by one of their type."""
    if isinstance(value, bson.ObjectId):
        return value if value.binary in FIXED else MADE_BY_SERVER
    if isinstance(value, DatetimeMS):
        return DatetimeMS(0) if abs(int(value) / 1000 - time.time()) < DAY_SECS else value
    if isinstance(value, bson.Timestamp):
        return bson.Timestamp(7, 7) if abs(value.time - time.time()) < DAY_SECS else value
    if isinstance(value, dict):
        return SON((key, without_made(item)) for key, item in value.items())
    if isinstance(value, list):
        return [without_made(item) for item in value]
    return value
