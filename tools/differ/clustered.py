"""Pinion as a router: its collections on two shards where that is asked for, and what a router
answers otherwise, as MongoDB's does."""

from bson import MaxKey, MinKey
from bson.son import SON

from programs import COLLECTION

# Ranges of `_id`: two of numbers, and two of what comes behind them.
BOUNDS = [MinKey(), 2, 5, "m", MaxKey()]
# What routers answer for themselves, and not as a node without a replica set.
OF_ROUTERS = {"connectionStatus", "replSetGetStatus", "killOp", "getParameter"}
# Replies that show the shards.
SHOW_SHARDS = {"count", "createIndexes", "dropIndexes", "dbStats", "collStats", "validate", "explain"}


# What a standalone refuses since it is none of a set.
OF_SETS = ("Transaction numbers are only allowed on", "replica set", "when a host is not replicated", "Standalones can't specify commitQuorum")


class Refused(Exception):
    """The cluster has not sharded the collection."""


def run(server, command):
    reply = server.client.command("admin", command)
    if not reply.get("ok"):
        raise Refused(f"{command!r}: {reply!r}")


def shard(server, database):
    """Shards the collection of a program, which is not there yet, by ranges of `_id`."""
    namespace = f"{database}.{COLLECTION}"
    for number in range(2):
        run(server, SON([("addShardToZone", f"s{number}"), ("zone", f"z{number}")]))
    for number, (low, high) in enumerate(zip(BOUNDS, BOUNDS[1:])):
        run(server, SON([("updateZoneKeyRange", namespace), ("min", SON([("_id", low)])), ("max", SON([("_id", high)])), ("zone", f"z{number % 2}")]))
    run(server, SON([("shardCollection", namespace), ("key", SON([("_id", 1)]))]))


def end_transactions(server):
    """Ends those that the program before has left open: a database with one is not dropped."""
    run(server, SON([("killAllSessions", [])]))


def code(reply):
    return 0 if reply.get("ok") else reply.get("code")


def codes(reply):
    """Those of the statements of a batch."""
    return [error.get("code") for error in reply.get("writeErrors", [])]


def reason(command, router, other):
    """Why a router may answer otherwise than the other server; None if it may not."""
    name = next(iter(command))
    if name in OF_ROUTERS:
        return "routers have another state than a standalone"
    if code(other) and any(text in other["errmsg"] for text in OF_SETS):
        return "shards are replica sets"
    if code(router) == code(other) == 0 and name in SHOW_SHARDS and {"shards", "raw", "queryPlanner", "stages"} & router.keys():
        return same_but_shards(name, router, other)
    if name == "createIndexes" and code(router) == 67:
        return "a unique index begins with the shard key"
    if codes(router) == [61] and codes(other) == [2]:
        return "a shard key is no array and no regular expression"
    if name == "getMore" and code(router) == code(other) == 0 and router["cursor"]["open"] < other["cursor"]["open"]:
        return "a cursor of several shards that have come to their end is at its end"
    return None


def same_but_shards(name, router, other):
    if name == "count" and router["n"] != other["n"]:
        return None
    return "the reply shows the shards"


def diverged(router, other):
    """Whether both have other contents from here."""
    return code(router) != code(other) or codes(router) != codes(other)
