"""What a run has sent, by command, field and operator; a run that never sent something it must send
fails."""

from collections import Counter

from known_fields import bson_name

QUERY = ("$eq $ne $gt $gte $lt $lte $in $nin $and $or $nor $not $exists $type $all $elemMatch $size $mod $regex $options "
         "$bitsAllSet $bitsAnySet $bitsAllClear $bitsAnyClear").split()
UPDATE = ("$set $unset $inc $mul $min $max $rename $push $pull $pullAll $addToSet $pop $setOnInsert $currentDate $bit "
          "$each $position $slice $sort").split()
STAGES = "$match $project $sort $skip $limit $count $group $sum $avg $min $max $first $last $push $addToSet $literal".split()
COMMANDS = ("hello isMaster ping buildInfo hostInfo connectionStatus whatsmyuri getParameter setParameter getCmdLineOpts getLog listCommands "
            "serverStatus listDatabases listCollections listIndexes create drop dropDatabase createIndexes dropIndexes renameCollection insert update "
            "delete find explain getMore killCursors findAndModify count distinct aggregate dbStats collStats validate dataSize currentOp killOp fsync "
            "startSession endSessions refreshSessions killSessions shutdown").split()
FIELDS = ("find.filter find.sort find.projection find.skip find.limit find.batchSize find.singleBatch find.hint find.comment find.maxTimeMS "
          "find.readConcern find.$readPreference find.allowDiskUse find.noCursorTimeout insert.ordered update.ordered update.upsert update.multi update.hint delete.limit delete.hint "
          "findAndModify.sort findAndModify.fields findAndModify.new findAndModify.remove findAndModify.upsert findAndModify.hint "
          "count.query count.limit count.skip count.hint distinct.key distinct.query aggregate.cursor aggregate.hint explain.verbosity getMore.batchSize "
          "createIndexes.unique createIndexes.sparse listCollections.filter listCollections.nameOnly dropIndexes.index renameCollection.dropTarget").split()
TYPES = ("double string object array binData undefined objectId bool date null regex dbPointer javascript symbol javascriptWithScope int timestamp long "
         "decimal minKey maxKey").split()
CONTEXTS = {"filter": "query", "query": "query", "q": "query", "u": "update", "update": "update", "pipeline": "stage", "projection": "projection",
            "fields": "projection"}
REQUIRED = ([f"command {name}" for name in COMMANDS] + [f"answered {name}" for name in COMMANDS if name not in ("shutdown", "hello")] + [f"field {name}" for name in FIELDS]
            + [f"query {name}" for name in QUERY] + [f"update {name}" for name in UPDATE] + [f"stage {name}" for name in STAGES]
            + ["projection $slice", "projection $elemMatch", *(f"index {kind} {when} data" for when in ("before", "after")
                 for kind in ("single", "compound", "descending", "dotted", "unique", "sparse", "multikey")),
               "upserted", "write error", "unordered write error", "write error after others", "duplicate key",
               "several batches", "wrong type", "missing field", "unknown field", "deep array path"]
            + [f"type {name}" for name in TYPES] + [f"sort over {name}" for name in ("one type", "several types")])


def documents_of(program):
    """The documents that a program inserts."""
    return [document for command in program if next(iter(command)) == "insert" and isinstance(command.get("documents"), list)
            for document in command["documents"] if isinstance(document, dict)]


def through_array(value, path):
    """Whether a path ends in an array of a document, or leads through one."""
    for name in path.split("."):
        if isinstance(value, list):
            return True
        value = value.get(name) if isinstance(value, dict) else None
    return isinstance(value, list)


class Coverage:
    """Counts of what was sent and of what was answered."""

    def __init__(self):
        self.counts = Counter()
        self.spoiled = set()
        self.inserted = []

    def program(self, program, spoiled):
        for entry in spoiled:
            self.counts[{"wrong": "wrong type", "missing": "missing field", "unknown": "unknown field"}[entry[0].split()[0]]] += 1
            self.spoiled.add(id(entry))
        self.inserted = documents_of(program)
        for document in self.inserted:
            self.types(document)
        inserted = False
        for command in program:
            name = next(iter(command))
            self.counts[f"command {name}"] += 1
            for field, value in command.items():
                self.counts[f"field {name}.{field}"] += 1
                self.walk(name, CONTEXTS.get(field), value)
            if name == "createIndexes":
                self.index(command.get("indexes"), "after" if inserted else "before")
            if name == "find" and isinstance(command.get("sort"), dict):
                self.sort(command["sort"])
            inserted = inserted or name == "insert"

    def index(self, specs, when):
        for spec in specs if isinstance(specs, list) else []:
            key = spec.get("key") if isinstance(spec, dict) else None
            if isinstance(key, dict):
                kinds = {"single": len(key) == 1, "compound": len(key) > 1, "descending": -1 in key.values(), "dotted": any("." in name for name in key),
                         "unique": spec.get("unique") is True, "sparse": spec.get("sparse") is True,
                         "multikey": any(through_array(document, name) for document in self.inserted for name in key)}
                for kind, is_so in kinds.items():
                    self.counts[f"index {kind} {when} data"] += is_so

    def sort(self, pattern):
        for path in pattern:
            types = {bson_name(document[path]) for document in self.inserted if path in document}
            self.counts["sort over several types" if len(types) > 1 else "sort over one type"] += 1

    def types(self, value):
        self.counts[f"type {bson_name(value)}"] += 1
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            self.types(inner)

    def walk(self, name, context, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                if context and key.startswith("$"):
                    self.counts[f"{context} {key}"] += 1
                elif context == "query" and "." in key:
                    self.counts["deep array path"] += any(through_array(document, key) for document in self.inserted)
                elif name in ("update", "delete", "createIndexes"):
                    self.counts[f"field {name}.{key}"] += 1
                self.walk(name, context or CONTEXTS.get(key), inner)
        elif isinstance(value, list):
            for item in value:
                self.walk(name, context, item)

    def reply(self, command, reply):
        """Counts what a server answered."""
        name = next(iter(command))
        if not reply.get("ok"):
            self.counts[f"error {reply.get('codeName')}"] += 1
            return
        self.counts[f"answered {name}"] += 1
        self.counts["upserted"] += "upserted" in reply
        for error in reply.get("writeErrors", []):
            self.counts["write error"] += 1
            self.counts["duplicate key"] += error["code"] == 11000
            self.counts["unordered write error"] += command.get("ordered") is False
            self.counts["write error after others"] += error["index"] > 0
        cursor = reply.get("cursor")
        if isinstance(cursor, dict):
            self.counts["several batches"] += len(cursor.get("sizes", [])) > 1

    def missing(self):
        return [name for name in REQUIRED if not self.counts[name]]

    def report(self):
        """Lines for people: how often each thing was sent, and how many of the spoiled commands."""
        self.counts["of the spoiled commands"] = len(self.spoiled)
        groups = {}
        for name, count in sorted(self.counts.items()):
            kind, _, rest = name.partition(" ")
            if kind in ("command", "answered", "query", "update", "stage", "projection", "error", "type", "index"):
                groups.setdefault(kind, []).append(f"{rest} {count}")
            elif kind != "field":
                groups.setdefault("other", []).append(f"{name} {count}")
        return [f"{kind}: {', '.join(items)}" for kind, items in groups.items()]
