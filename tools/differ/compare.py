"""Runs a program on two servers and compares every reply and what is left behind."""

import re

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.son import SON

import known

OPTIONS = CodecOptions(document_class=SON, datetime_conversion=DatetimeConversion.DATETIME_MS)
UNORDERED_REPLIES = {"distinct"}
DROPPED = {"$clusterTime", "operationTime", "electionId", "opTime", "ok", "topologyVersion", "atClusterTime"}


MADE_BY_SERVER = bson.ObjectId("00" * 11 + "aa")
FIXED = {bytes(11) + b"\0", bytes.fromhex("5f0000000000000000000001"), b"\xff" * 12}


def encode(value):
    """Exact bytes of a value: types, field order and signs count; an `_id` that a server made counts as one value."""
    return bson.encode(SON([("", without_made_ids(value))]), codec_options=OPTIONS)


def without_made_ids(value):
    if isinstance(value, bson.ObjectId):
        return value if value.binary in FIXED else MADE_BY_SERVER
    if isinstance(value, dict):
        return SON((key, without_made_ids(item)) for key, item in value.items())
    if isinstance(value, list):
        return [without_made_ids(item) for item in value]
    return value


class Server:
    """One of the two servers."""

    def __init__(self, client, name):
        self.client = client
        self.name = name

    def run(self, database, command):
        """The reply, with the batches of a cursor joined into one list."""
        reply = self.client.command(database, command)
        cursor = reply.get("cursor")
        if not isinstance(cursor, dict) or "firstBatch" not in cursor:
            return reply
        batches = [list(cursor["firstBatch"])]
        cursor_id = cursor["id"]
        while cursor_id:
            more = SON([("getMore", bson.Int64(cursor_id)), ("collection", cursor["ns"].split(".", 1)[1])])
            size = command.get("batchSize", command.get("cursor", {}).get("batchSize", 0) if isinstance(command.get("cursor"), dict) else 0)
            if isinstance(size, int) and size > 0 and not isinstance(size, bool):
                more["batchSize"] = size
            following = self.client.command(database, more)
            if not following.get("ok"):
                return following
            batches.append(list(following["cursor"]["nextBatch"]))
            cursor_id = following["cursor"]["id"]
        return SON([("ok", 1.0), ("cursor", SON([("ns", cursor["ns"]), ("documents", sum(batches, [])),
                                                ("sizes", [len(batch) for batch in batches if batch])]))])


def normal(command, reply):
    """The part of a reply that must be equal, as a value that Python compares."""
    name = next(iter(command))
    if not reply.get("ok"):
        return ("error", reply.get("code"), reply.get("codeName"), message(reply))
    out = []
    for key, value in reply.items():
        if key in DROPPED:
            continue
        if key == "cursor":
            documents = [encode(document) for document in value["documents"]]
            if "sort" not in command and name in ("find", "aggregate") and not sorted_pipeline(command):
                documents.sort()
            out.append(("documents", documents, value["sizes"]))
        elif key == "writeErrors":
            out.append((key, [write_error(error) for error in value]))
        elif key == "values" and name in UNORDERED_REPLIES:
            out.append((key, sorted(encode(item) for item in value)))
        elif key == "note" or name == "createIndexes" and key == "commitQuorum":
            continue
        else:
            out.append((key, encode(value)))
    return ("ok", sorted(out, key=lambda item: item[0]))


UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def message(error):
    """The text of an error where it counts, without the ids that every server makes for itself."""
    return UUID.sub("UUID", error.get("errmsg", "")) if known.message_counts(error) else ""


def sorted_pipeline(command):
    stages = command.get("pipeline")
    return isinstance(stages, list) and any(isinstance(stage, dict) and "$sort" in stage for stage in stages)


def write_error(error):
    return (error.get("index"), error.get("code"), message(error),
            encode(error.get("keyPattern")), encode(error.get("keyValue")))


def difference(program, servers, database):
    """None when both servers agree, else (position, command, reply of a, reply of b)."""
    for server in servers:
        server.client.command(database, SON([("dropDatabase", 1)]))
    for position, command in enumerate(program):
        replies = [server.run(database, command) for server in servers]
        normals = [normal(command, reply) for reply in replies]
        if normals[0] != normals[1]:
            if known.reason(command, *replies):
                if known.diverged(command, *replies):
                    return None
                continue
            return position, command, replies[0], replies[1]
    left = [state(server, database) for server in servers]
    if left[0] != left[1]:
        return len(program), SON([("state", "afterwards")]), show_state(servers[0], database), show_state(servers[1], database)
    return None


ALL = SON([("find", "c"), ("filter", SON()), ("sort", SON([("_id", 1)]))])


def state(server, database):
    documents = [encode(document) for document in server.run(database, ALL)["cursor"]["documents"]]
    indexes = server.run(database, SON([("listIndexes", "c")]))
    names = sorted(index["name"] + str(dict(index["key"])) for index in indexes.get("cursor", {}).get("documents", []))
    return documents, names


def show_state(server, database):
    return SON([("documents", server.run(database, ALL)["cursor"]["documents"]), ("indexes", state(server, database)[1])])
