"""Random reads: find, count, distinct, aggregate, explain, and cursors that are continued and
closed by hand."""

from bson import Int64
from bson.son import SON

import values
from filters import Filters

# Stands for the id of the cursor that the last command opened, which is another one on each server.
LAST_CURSOR = Int64(0x7C0DE_000_0001)
ODD_KEYS = ["", ".", "a.", ".a", "a..b", "$a", "a.$b", "_id", "a.$id"]
ACCUMULATORS = ["$sum", "$avg", "$min", "$max", "$first", "$last", "$push", "$addToSet"]


class Reads(Filters):
    """Needs `self.rng` and `self.collection`."""

    def find(self):
        rng = self.rng
        command = SON([("find", self.collection), ("filter", self.filter())])
        if rng.random() < 0.5:
            command["sort"] = self.sort()
            self.maybe(command, "limit", lambda: rng.choice([0, 1, 2, 5, 1.0, Int64(3)]))
            self.maybe(command, "skip", lambda: rng.choice([0, 1, 2, 100]))
            self.maybe(command, "singleBatch", lambda: rng.choice([True, False]), 0.1)
        self.maybe(command, "projection", self.projection)
        self.maybe(command, "batchSize", lambda: rng.choice([0, 1, 2, 3, 1.0, Int64(2)]))
        self.maybe(command, "hint", self.hint, 0.05)
        self.maybe(command, "noCursorTimeout", lambda: True, 0.03)
        self.maybe(command, "allowDiskUse", lambda: True, 0.03)
        self.generic(command)
        return command

    def generic(self, command):
        """Arguments that every command takes and that change nothing here."""
        rng = self.rng
        self.maybe(command, "comment", lambda: rng.choice(["why", SON([("a", 1)]), 1]), 0.03)
        self.maybe(command, "maxTimeMS", lambda: rng.choice([60_000, Int64(60_000), 60_000.0, 0]), 0.03)
        self.maybe(command, "readConcern", lambda: SON([("level", rng.choice(["local", "available"]))]), 0.03)
        self.maybe(command, "$readPreference", lambda: SON([("mode", rng.choice(["primary", "secondaryPreferred"]))]), 0.03)

    def count(self):
        rng = self.rng
        command = SON([("count", self.collection)])
        self.maybe(command, "query", self.filter, 0.9)
        self.maybe(command, "limit", lambda: rng.choice([0, 1, 2, -1, 1.0, Int64(2)]))
        self.maybe(command, "skip", lambda: rng.choice([0, 1, 2]))
        self.maybe(command, "hint", self.hint, 0.05)
        self.generic(command)
        return command

    def distinct(self):
        command = SON([("distinct", self.collection), ("key", values.path(self.rng) if self.rng.random() < 0.95 else self.rng.choice(ODD_KEYS))])
        self.maybe(command, "query", self.filter, 0.5)
        self.generic(command)
        return command

    def aggregate(self):
        command = SON([("aggregate", self.collection), ("pipeline", self.pipeline()), ("cursor", self.cursor())])
        self.maybe(command, "hint", self.hint, 0.03)
        self.maybe(command, "allowDiskUse", lambda: True, 0.03)
        self.generic(command)
        return command

    def cursor(self):
        return SON([("batchSize", self.rng.choice([0, 1, 2, 3, 100]))]) if self.rng.random() < 0.5 else SON()

    def explain(self):
        rng = self.rng
        inner = rng.choice([self.find, self.find, self.find, self.count, self.aggregate, self.distinct,
                            self.find_and_modify, lambda: self.update(1), self.delete])()
        for name in ("comment", "maxTimeMS", "readConcern", "$readPreference"):
            inner.pop(name, None)
        command = SON([("explain", inner)])
        self.maybe(command, "verbosity", lambda: rng.choice(["queryPlanner", "executionStats"]), 0.7)
        return command

    def continued(self):
        """A cursor opened with a small batch, continued and closed command by command."""
        rng = self.rng
        opened = SON([("find", self.collection), ("filter", SON()), ("sort", SON([("_id", 1)])), ("batchSize", rng.choice([0, 1, 2]))])
        if rng.random() < 0.3:
            opened = SON([("aggregate", self.collection), ("pipeline", [SON([("$sort", SON([("_id", -1)]))])]),
                          ("cursor", SON([("batchSize", rng.choice([0, 1]))]))])
        commands = [opened]
        for _ in range(rng.choice([1, 2, 3])):
            more = SON([("getMore", LAST_CURSOR), ("collection", self.collection)])
            self.maybe(more, "batchSize", lambda: rng.choice([0, 1, 2, 1.0, Int64(1), -1]), 0.7)
            if rng.random() < 0.1:
                more["collection"] = "other"
            commands.append(more)
        kind = rng.random()
        if kind < 0.4:
            ids = rng.choice([[LAST_CURSOR], [LAST_CURSOR, Int64(5)], [Int64(5)], []])
            commands.append(SON([("killCursors", self.collection if rng.random() < 0.9 else "other"), ("cursors", ids)]))
            commands.append(SON([("getMore", LAST_CURSOR), ("collection", self.collection)]))
        elif kind < 0.5:
            commands.insert(rng.randint(1, len(commands)), SON([("dropIndexes", self.collection), ("index", "*")]))
        elif kind < 0.55:
            commands.insert(rng.randint(1, len(commands)), SON([("drop", self.collection)]))
        return commands

    # Aggregation

    def pipeline(self):
        rng = self.rng
        stages = [SON([("$match", self.filter())])] if rng.random() < 0.6 else []
        kind = rng.random()
        if kind < 0.25:
            stages.append(SON([("$sort", SON([(values.path(rng), rng.choice([1, -1])), ("_id", 1)]))]))
            for _ in range(rng.choice([0, 1, 2])):
                stages.append(SON([(rng.choice(["$skip", "$limit"]), rng.choice([1, 2, 5, 1.0, Int64(2)]))]))
            self.maybe_stage(stages, "$project", self.project)
            self.maybe_stage(stages, "$match", self.filter)
        elif kind < 0.6:
            # Accumulators see documents in natural order, which an index scan changes in MongoDB.
            stages.append(SON([("$sort", SON([("_id", 1)]))]))
            stages.append(SON([("$group", self.group())]))
            stages.append(SON([("$sort", SON([("_id", 1)]))]))
            self.maybe_stage(stages, "$match", lambda: SON([("r", self.predicate())]))
            self.maybe_stage(stages, "$project", lambda: SON([("r", 1), ("_id", rng.choice([0, 1]))]))
        elif kind < 0.8:
            stages.append(SON([("$project", self.project())]))
        elif kind < 0.9:
            stages.append(SON([("$count", rng.choice(["n", "", "$n", "a.b", 1]))]))
        else:
            stages.append(rng.choice([
                SON([(rng.choice(["$limit", "$skip"]), rng.choice([0, -1, "a", 1.5, None]))]),
                SON([("$nosuch", 1)]), SON(), SON([("$match", 1)]), SON([("$sort", SON())]), SON([("$sort", 1)]),
                SON([("$group", SON())]), SON([("$group", 1)]), SON([("$project", SON())]), SON([("$project", 1)]),
                SON([("$match", SON()), ("$limit", 1)]), SON([("$sort", SON([("a", 2)]))]),
                SON([("$group", SON([("_id", 1), ("a.b", SON([("$sum", 1)]))]))]), SON([("$group", SON([("_id", 1), ("a", 1)]))]),
                SON([("$group", SON([("_id", 1), ("a", SON([("$nosuch", 1)]))]))]), SON([("$group", SON([("a", SON([("$sum", 1)]))]))]),
            ]))
        return stages

    def maybe_stage(self, stages, name, make, chance=0.2):
        if self.rng.random() < chance:
            stages.append(SON([(name, make())]))

    def project(self):
        rng = self.rng
        if rng.random() < 0.5:
            flag = rng.choice([1, 0, True, False])
            out = SON((values.path(rng), flag) for _ in range(rng.choice([1, 2])))
            self.maybe(out, "_id", lambda: rng.choice([0, 1]))
            return out
        return SON([(rng.choice(["x", "y.z", "a"]), self.expression())])

    def expression(self):
        rng = self.rng
        return rng.choice(["$" + values.path(rng), "$_id", "$$ROOT", SON([("x", "$" + values.path(rng))]), ["$a", "$b"],
                           SON([("$literal", values.scalar(rng))]), "$$CURRENT.a", "text"])

    def group(self):
        rng = self.rng
        key = rng.choice([None, "$" + rng.choice(values.FIELDS), 1, "$a.b", SON([("x", "$a"), ("y", "$b")]), "$nosuch", ["$a"]])
        stage = SON([("_id", key)])
        for name in rng.sample(["r", "s", "t"], rng.choice([1, 2])):
            operator = rng.choice(ACCUMULATORS)
            argument = rng.choice([1, "$" + values.path(rng), "$_id", SON([("x", "$a")])])
            stage[name] = SON([(operator, argument)])
        return stage
