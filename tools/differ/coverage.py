"""What a run has sent, by command, field and operator; a run that never sent something it must send fails."""

from collections import Counter

QUERY = ("$eq $ne $gt $gte $lt $lte $in $nin $and $or $nor $not $exists $type $all $elemMatch $size $mod $regex $options "
         "$bitsAllSet $bitsAnySet $bitsAllClear $bitsAnyClear").split()
UPDATE = ("$set $unset $inc $mul $min $max $rename $push $pull $pullAll $addToSet $pop $setOnInsert $currentDate $bit "
          "$each $position $slice $sort").split()
STAGES = "$match $project $sort $skip $limit $count $group $sum $avg $min $max $first $last $push $addToSet $literal".split()
COMMANDS = ("isMaster ping buildInfo hostInfo connectionStatus whatsmyuri getParameter setParameter getCmdLineOpts getLog listCommands "
            "serverStatus listDatabases listCollections listIndexes create drop dropDatabase createIndexes dropIndexes renameCollection insert update "
            "delete find explain getMore killCursors findAndModify count distinct aggregate dbStats collStats validate dataSize currentOp killOp fsync "
            "startSession endSessions refreshSessions killSessions shutdown").split()
FIELDS = ("find.filter find.sort find.projection find.skip find.limit find.batchSize find.singleBatch find.hint find.comment find.maxTimeMS "
          "find.readConcern find.$readPreference insert.ordered update.ordered update.upsert update.multi update.hint delete.limit delete.hint "
          "findAndModify.sort findAndModify.fields findAndModify.new findAndModify.remove findAndModify.upsert findAndModify.hint "
          "count.query count.limit count.skip count.hint distinct.key distinct.query aggregate.cursor aggregate.hint explain.verbosity getMore.batchSize "
          "createIndexes.unique createIndexes.sparse listCollections.filter listCollections.nameOnly dropIndexes.index renameCollection.dropTarget").split()
CONTEXTS = {"filter": "query", "query": "query", "q": "query", "u": "update", "update": "update", "pipeline": "stage", "projection": "projection",
            "fields": "projection"}
REQUIRED = ([f"command {name}" for name in COMMANDS] + [f"answered {name}" for name in COMMANDS if name != "shutdown"] + [f"field {name}" for name in FIELDS]
            + [f"query {name}" for name in QUERY] + [f"update {name}" for name in UPDATE] + [f"stage {name}" for name in STAGES]
            + ["projection $slice", "projection $elemMatch", "index compound", "index descending", "index dotted",
               "index before data", "index after data", "upserted", "write error", "unordered write error", "duplicate key",
               "several batches", "wrong type", "missing field", "unknown field"])


class Coverage:
    """Counts of what was sent and of what was answered."""

    def __init__(self):
        self.counts = Counter()

    def program(self, program, spoiled):
        for what, _ in spoiled:
            self.counts[{"wrong": "wrong type", "missing": "missing field", "unknown": "unknown field"}[what.split()[0]]] += 1
        inserted = False
        for command in program:
            name = next(iter(command))
            self.counts[f"command {name}"] += 1
            for field, value in command.items():
                self.counts[f"field {name}.{field}"] += 1
                self.walk(name, CONTEXTS.get(field), value)
            if name == "createIndexes":
                self.counts["index after data" if inserted else "index before data"] += 1
                self.index(command.get("indexes"))
            inserted = inserted or name == "insert"

    def index(self, specs):
        for spec in specs if isinstance(specs, list) else []:
            key = spec.get("key") if isinstance(spec, dict) else None
            if isinstance(key, dict):
                self.counts["index compound"] += len(key) > 1
                self.counts["index descending"] += -1 in key.values()
                self.counts["index dotted"] += any("." in name for name in key)

    def walk(self, name, context, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                if context and key.startswith("$"):
                    self.counts[f"{context} {key}"] += 1
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
        cursor = reply.get("cursor")
        if isinstance(cursor, dict):
            self.counts["several batches"] += len(cursor.get("sizes", [])) > 1

    def missing(self):
        return [name for name in REQUIRED if not self.counts[name]]

    def report(self):
        """Lines for people: how often each thing was sent."""
        groups = {}
        for name, count in sorted(self.counts.items()):
            kind, _, rest = name.partition(" ")
            if kind in ("command", "answered", "query", "update", "stage", "projection", "error"):
                groups.setdefault(kind, []).append(f"{rest} {count}")
            elif kind != "field":
                groups.setdefault("other", []).append(f"{name} {count}")
        return [f"{kind}: {', '.join(items)}" for kind, items in groups.items()]
