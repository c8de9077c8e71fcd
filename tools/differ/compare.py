"""Runs a program on two servers and compares every reply and what is left behind."""

import re
from collections import namedtuple

import bson
from bson.son import SON

import clustered
import codec
import explained
import known
import server_commands
from made import holds_present, without_made
from reads import LAST_CURSOR

DROPPED = {"$clusterTime", "operationTime", "electionId", "opTime", "ok", "topologyVersion", "atClusterTime"}


def encode(value):
    """Exact bytes of a value: types, field order and signs count; what a server made itself counts
    as one value."""
    return codec.encode(SON([("", without_made(value))]))


def with_cursor(value, cursor):
    """The command with the id of the server's last cursor where it names one."""
    if isinstance(value, dict):
        return SON((key, with_cursor(item, cursor)) for key, item in value.items())
    if isinstance(value, list):
        return [with_cursor(item, cursor) for item in value]
    return bson.Int64(cursor) if isinstance(value, bson.Int64) and value == LAST_CURSOR else value


class Server:
    """One of the two servers."""

    def __init__(self, client, name):
        self.client = client
        self.name = name
        self.cursor = 0

    def run(self, database, command, keep_open=False):
        """The reply, with the batches of a cursor joined into one list unless the program continues
        it itself."""
        if next(iter(command)) in ("getMore", "killCursors"):
            command = with_cursor(command, self.cursor)
        reply = self.client.command(database, command)
        cursor = reply.get("cursor")
        if not isinstance(cursor, dict) or "firstBatch" not in cursor and "nextBatch" not in cursor:
            return self.hide_cursor(reply)
        opened = "firstBatch" in cursor
        batches = [list(cursor["firstBatch" if opened else "nextBatch"])]
        cursor_id = cursor["id"]
        if keep_open or not opened:
            if opened:
                self.cursor = cursor_id
            open_still = bool(cursor_id)
            return SON([("ok", 1.0), ("cursor", SON([("ns", cursor["ns"]), ("documents", batches[0]), ("sizes", [len(batches[0])]), ("open", open_still)]))])
        while cursor_id:
            more = SON([("getMore", bson.Int64(cursor_id)), ("collection", cursor["ns"].split(".", 1)[1])])
            if "$db" in command:
                more["$db"] = command["$db"]
            options = command.get("cursor")
            size = command.get("batchSize", options.get("batchSize", 0) if isinstance(options, dict) else 0)
            if isinstance(size, int) and size > 0 and not isinstance(size, bool):
                more["batchSize"] = size
            following = self.client.command(database, more)
            if not following.get("ok"):
                return following
            batches.append(list(following["cursor"]["nextBatch"]))
            cursor_id = following["cursor"]["id"]
        return SON([("ok", 1.0), ("cursor", SON([("ns", cursor["ns"]), ("documents", sum(batches, [])),
                                                ("sizes", [len(batch) for batch in batches if batch])]))])

    def hide_cursor(self, reply):
        """`killCursors` returns the ids it was given."""
        for name in ("cursorsKilled", "cursorsNotFound"):
            if isinstance(reply.get(name), list):
                reply[name] = ["last" if id == self.cursor else id for id in reply[name]]
        if self.cursor and "errmsg" in reply:
            reply["errmsg"] = reply["errmsg"].replace(str(self.cursor), "LAST")
        return reply


def agree(command, a, b):
    """Whether two replies to one command are equal in what counts."""
    name = next(iter(command))
    if a.get("ok") and b.get("ok") and (name == "explain" or name == "aggregate" and command.get("explain")):
        return explained.agree(a, b)
    return normal(command, a) == normal(command, b)


def normal(command, reply):
    """The part of a reply that must be equal, as a value that Python compares."""
    name = next(iter(command))
    if not reply.get("ok"):
        return ("error", reply.get("code"), known.code_name(reply), message(reply))
    fields = server_commands.compared(name)
    out = []
    for key, value in reply.items():
        if key in DROPPED or fields is not None and key not in fields:
            continue
        if key == "cursor" and isinstance(value, dict) and "documents" in value:
            sets = set_fields(command)
            documents = [encode(strip_info(name, document, sets)) for document in value["documents"]]
            if not ordered(name, command) or holds_present(value["documents"]):
                # Documents of one update may have got times a millisecond apart, and sort by them.
                documents.sort()
            out.append(("documents", documents, value["sizes"], value.get("open")))
        elif key == "writeErrors":
            out.append((key, [write_error(error) for error in value]))
        elif key == "values" and name == "distinct":
            out.append((key, sorted(encode(item) for item in value)))
        elif key == "note" or name == "createIndexes" and key == "commitQuorum":
            continue
        elif key == "databases":
            out.append((key, [entry["name"] for entry in value if entry["name"] not in ("admin", "config", "local")]))
        elif fields is not None and isinstance(value, (int, float)):
            # 7.0 reports counts and sizes as other number types than 4.4.
            out.append((key, float(value)))
        else:
            out.append((key, encode(value)))
    return ("ok", sorted(out, key=lambda item: item[0]))


def ordered(name, command):
    """Whether the documents of this reply come in one right order."""
    if name in ("find", "aggregate"):
        return "sort" in command or sorted_pipeline(command)
    return name == "getMore"


def set_fields(command):
    """The fields that an `$addToSet` accumulator makes, whose items come in no particular order."""
    stages = command.get("pipeline")
    groups = [stage.get("$group") for stage in stages if isinstance(stage, dict)] if isinstance(stages, list) else []
    return {field for group in groups if isinstance(group, dict)
            for field, accumulator in group.items() if isinstance(accumulator, dict) and "$addToSet" in accumulator}


def strip_info(name, document, sets=()):
    """A document of a reply without what every server makes for itself, and sets in one order."""
    for field in sets:
        if isinstance(document.get(field), list):
            document[field] = sorted(document[field], key=encode)
    if "$recordId" in document:
        # 4.4 numbers documents as they come; Pinion holds them under the keys of their `_id`.
        document["$recordId"] = None
    if name == "listCollections":
        document = SON((key, value) for key, value in document.items() if key != "info")
        if "idIndex" in document:
            document["idIndex"] = strip_info("listIndexes", document["idIndex"])
    if name == "listIndexes":
        # 4.4 puts `unique` before the key and keeps options as they were given; 7.0 puts it last
        # and makes them bools.
        options = {key: bool(document[key]) for key in ("unique", "sparse", "hidden") if document.get(key)}
        rest = {key: value for key, value in document.items() if key not in ("ns", "unique", "sparse", "hidden")}
        if "background" in rest:
            rest["background"] = bool(rest["background"])
        return SON(sorted({**rest, **options}.items()))
    return document


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


def difference(program, servers, database, coverage=None, rules=None, is_router=False, prepare=None):
    """None when both servers agree, else (position, command, reply of a, reply of b)."""
    if is_router:
        clustered.end_transactions(servers[0])
    for server in servers:
        dropped = server.client.command(database, SON([("dropDatabase", 1)]))
        if not dropped.get("ok"):
            raise OSError(f"dropDatabase on {server.name}: {dropped!r}")
    if prepare:
        prepare(servers[0], database)
    failed = False
    for position, command in enumerate(program):
        keep_open = continues(program[position + 1 :])
        replies = [server.run(database, command, keep_open) for server in servers]
        if coverage:
            coverage.reply(command, replies[0])
        if all(half_done(command, reply) for reply in replies):
            return None
        failed = failed or any(not reply.get("ok") or reply.get("writeErrors") for reply in replies)
        if agree(command, *replies):
            continue
        if is_router and clustered.reason(command, *replies):
            if clustered.diverged(*replies):
                return None
            continue
        # Asked of the first: what a recording does not hold cannot be asked of the second.
        why = known.reason(command, *replies, Before(failed, lambda: indexes_of(servers[0], database, command), program[:position]))
        if not why:
            return position, command, replies[0], replies[1]
        if rules is not None:
            rules.met(why, command, *replies)
        if known.diverged(command, *replies):
            return None
    left = [state(server, database) for server in servers]
    if left[0] != left[1]:
        return len(program), SON([("state", "afterwards")]), show_state(servers[0], database), show_state(servers[1], database)
    return None


# What a rule may ask: whether a command failed before, which indexes the collection has, and what
# was sent before.
Before = namedtuple("Before", "failed indexes commands")


def indexes_of(server, database, command):
    """The indexes of the collection that a command names."""
    return documents_of(server, database, SON([("listIndexes", command[next(iter(command))])]))


def half_done(command, reply):
    """Whether an update of several documents failed.

    What it had changed until then stays changed, and which documents those are is a matter of
    natural order.
    """
    if next(iter(command)) != "update":
        return False
    statements = command.get("updates")
    return any(statements[error["index"]].get("multi") for error in reply.get("writeErrors", []))


def continues(rest):
    """Whether the program itself continues the cursor that the command before `rest` opens."""
    for command in rest:
        name = next(iter(command))
        if name in ("getMore", "killCursors") and mentions_cursor(command):
            return True
        if name in ("find", "aggregate"):
            return False
    return False


def mentions_cursor(value):
    if isinstance(value, dict):
        return any(mentions_cursor(item) for item in value.values())
    if isinstance(value, list):
        return any(mentions_cursor(item) for item in value)
    return isinstance(value, bson.Int64) and value == LAST_CURSOR


def documents_of(server, database, command):
    """The documents that a command lists; none where there is nothing to list them of, as with a
    view's indexes."""
    return server.run(database, command).get("cursor", {}).get("documents", [])


def collections(server, database):
    """The collections with their documents in `_id` order and their indexes."""
    names = sorted(info["name"] for info in documents_of(server, database, SON([("listCollections", 1), ("nameOnly", True)])))
    for name in names:
        if name == "system.views":
            # MongoDB makes it before it finds a view's definition wrong. Pinion has no views, so it
            # never holds any.
            continue
        by_id = SON([("find", name), ("filter", SON()), ("sort", SON([("_id", 1)]))])
        yield name, documents_of(server, database, by_id), documents_of(server, database, SON([("listIndexes", name)]))


def state(server, database):
    """Documents and indexes of every collection, and whether reading through each index finds them
    all."""
    out = {}
    for name, documents, indexes in collections(server, database):
        expected = sorted(encode(document) for document in documents)
        through = []
        for index in indexes:
            if not index.get("sparse"):
                by_index = documents_of(server, database, SON([("find", name), ("filter", SON()), ("hint", index["name"])]))
                through.append(sorted(encode(document) for document in by_index) == expected)
        out[name] = expected, sorted(encode(strip_info("listIndexes", index)) for index in indexes), through
    return out


def show_state(server, database):
    return SON((name, SON([("documents", documents), ("indexes", indexes)])) for name, documents, indexes in collections(server, database))
