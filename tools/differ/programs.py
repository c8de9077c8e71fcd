"""Random programs: lists of commands on one collection, chosen so that both servers have one right answer.

Natural order is `_id` order in Pinion and insertion order in MongoDB. Programs therefore insert in ascending
`_id` order, sort by `_id` last where a limit could choose, and let a single update or delete pick among several
documents only where no secondary index could offer them in another order.
"""

import random

from bson import Int64
from bson.son import SON

import values

COLLECTION = "c"
COMPARISONS = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]
TYPE_NAMES = ["double", "string", "object", "array", "binData", "objectId", "bool", "date", "null", "regex", "int", "long",
              "decimal", "timestamp", "number", "minKey", "maxKey", "javascript"]
WRONG = [1, "x", True, None, [], SON(), 1.5, Int64(7), [1], SON([("x", 1)]), -1]


class Generator:
    """Makes the program of one seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.indexed = False
        self.next_id = 0
        self.numeric_ids = True

    def program(self):
        rng = self.rng
        count = rng.choice([1, 3, 6, 10])
        ids = values.ids(rng, count)
        self.numeric_ids = ids == list(range(count))
        self.next_id = count
        commands = []
        if rng.random() < 0.3:
            commands += self.indexes()
        documents = [SON([("_id", key), *values.document(rng, 3).items()]) for key in ids]
        for document in documents:
            if rng.random() < 0.5:
                document["a"] = values.value(rng, 2)
        commands.append(SON([("insert", COLLECTION), ("documents", documents), ("ordered", rng.random() < 0.7)]))
        if rng.random() < 0.3:
            commands += self.indexes()
        for _ in range(rng.choice([3, 6, 10])):
            commands.append(self.command())
        return commands

    # Commands

    def command(self):
        kind = self.rng.random()
        if kind < 0.30:
            command = self.find()
        elif kind < 0.55:
            command = self.update()
        elif kind < 0.62:
            command = self.delete()
        elif kind < 0.68:
            command = self.insert()
        elif kind < 0.76:
            command = self.find_and_modify()
        elif kind < 0.82:
            command = SON([("count", COLLECTION), ("query", self.filter())])
            self.maybe(command, "limit", lambda: self.rng.choice([0, 1, 2, -1]))
            self.maybe(command, "skip", lambda: self.rng.choice([0, 1, 2]))
        elif kind < 0.87:
            command = SON([("distinct", COLLECTION), ("key", values.path(self.rng))])
            self.maybe(command, "query", self.filter)
        elif kind < 0.96:
            command = SON([("aggregate", COLLECTION), ("pipeline", self.pipeline()), ("cursor", self.cursor())])
        elif kind < 0.98:
            return self.indexes()[0]
        else:
            command = SON([("dropIndexes", COLLECTION), ("index", self.rng.choice(["*", "a_1", "nosuch", SON([("a", 1)])]))])
        return self.spoil(command) if self.rng.random() < 0.08 else command

    def maybe(self, command, name, make, chance=0.3):
        if self.rng.random() < chance:
            command[name] = make()

    def cursor(self):
        return SON([("batchSize", self.rng.choice([0, 1, 2, 3, 100]))]) if self.rng.random() < 0.5 else SON()

    def spoil(self, command):
        """A field with a wrong type, an unknown field, or one missing."""
        rng = self.rng
        names = list(command)
        kind = rng.random()
        if kind < 0.25:
            command[rng.choice(["foo", "Filter", "limits"])] = 1
        elif kind < 0.35 and len(names) > 1:
            del command[rng.choice(names[1:])]
        elif kind < 0.8:
            target = rng.choice(names[1:] or names)
            command[target] = rng.choice(WRONG)
        else:
            field = rng.choice(["limit", "skip", "batchSize", "singleBatch", "maxTimeMS", "ordered", "multi", "upsert", "hint", "sort"])
            command[field] = rng.choice(WRONG)
        return command

    def indexes(self):
        rng = self.rng
        self.indexed = True
        specs = []
        for _ in range(rng.choice([1, 1, 2])):
            paths = []
            for _ in range(rng.choice([1, 1, 2, 3])):
                found = values.path(rng)
                if found not in paths:
                    paths.append(found)
            key = SON((name, rng.choice([1, 1, -1])) for name in paths)
            spec = SON([("key", key), ("name", "_".join(f"{name}_{direction}" for name, direction in key.items()))])
            if rng.random() < 0.2:
                spec["unique"] = True
            if rng.random() < 0.2:
                spec["sparse"] = True
            specs.append(spec)
        return [SON([("createIndexes", COLLECTION), ("indexes", specs)])]

    def insert(self):
        rng = self.rng
        documents = []
        for _ in range(rng.choice([1, 1, 2, 4])):
            if rng.random() < 0.25 or not self.numeric_ids:
                key = rng.randint(0, 3)
            else:
                key, self.next_id = self.next_id, self.next_id + 1
            documents.append(SON([("_id", key), *values.document(rng, 3).items()]))
        if not self.numeric_ids:
            # A new id would come last in MongoDB's natural order whatever its value, so only a refused one is sent.
            documents = [SON([("_id", rng.choice([[1], values.Regex("a")]))])]
        return SON([("insert", COLLECTION), ("documents", documents), ("ordered", rng.random() < 0.5)])

    def find(self):
        rng = self.rng
        command = SON([("find", COLLECTION), ("filter", self.filter())])
        if rng.random() < 0.5:
            sort = SON((values.path(rng), rng.choice([1, -1])) for _ in range(rng.choice([1, 1, 2])))
            sort["_id"] = rng.choice([1, -1])
            command["sort"] = sort
            self.maybe(command, "limit", lambda: rng.choice([1, 2, 5]))
            self.maybe(command, "skip", lambda: rng.choice([0, 1, 2]))
        self.maybe(command, "projection", self.projection)
        self.maybe(command, "batchSize", lambda: rng.choice([0, 1, 2, 3]))
        self.maybe(command, "singleBatch", lambda: True, 0.05)
        self.maybe(command, "hint", lambda: rng.choice([SON([("_id", 1)]), "_id_", SON([("$natural", 1)]), "nosuch"]), 0.05)
        return command

    def projection(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.6:
            flag = rng.choice([1, 0, True, False])
            projection = SON((values.path(rng), flag) for _ in range(rng.choice([1, 2])))
            self.maybe(projection, "_id", lambda: rng.choice([0, 1]))
            return projection
        if kind < 0.8:
            return SON([(rng.choice(values.FIELDS), SON([("$slice", rng.choice([1, -1, 2, 0, [1, 1], [-2, 1]]))]))])
        return SON([(rng.choice(values.FIELDS), SON([("$elemMatch", self.element_filter())]))])

    # Filters

    def filter(self, depth=2):
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            return SON()
        if depth > 0 and kind < 0.2:
            operator = rng.choice(["$and", "$or", "$nor"])
            return SON([(operator, [self.filter(depth - 1) for _ in range(rng.choice([1, 2, 3]))])])
        out = SON()
        for _ in range(rng.choice([1, 1, 1, 2])):
            name = "_id" if rng.random() < 0.12 else values.path(rng)
            out[name] = self.predicate()
        return out

    def predicate(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.3:
            return values.value(rng, 2)
        operators = SON()
        for _ in range(rng.choice([1, 1, 1, 2])):
            name, operand = self.operator()
            operators[name] = operand
        if rng.random() < 0.1:
            return SON([("$not", operators)])
        return operators

    def operator(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.45:
            return rng.choice(COMPARISONS), values.value(rng, 2)
        if kind < 0.6:
            return rng.choice(["$in", "$nin"]), [values.value(rng, 1) for _ in range(rng.choice([0, 1, 2, 4]))]
        if kind < 0.68:
            return "$exists", rng.choice([True, False, 1, 0])
        if kind < 0.75:
            return "$type", rng.choice([rng.choice(TYPE_NAMES), rng.choice([1, 2, 3, 4, 10, 16, 18, -1, 127]), [rng.choice(TYPE_NAMES), 2]])
        if kind < 0.80:
            return "$size", rng.choice([0, 1, 2, 3, -1, 1.5, 2.0, "a"])
        if kind < 0.85:
            return "$all", [values.value(rng, 1) for _ in range(rng.choice([0, 1, 2]))]
        if kind < 0.92:
            return "$elemMatch", self.element_filter()
        if kind < 0.96:
            return "$mod", rng.choice([[2, 0], [2, 1], [3, -1], [0, 1], [1], [2.5, 0], ["a", 1], [2, 0, 1]])
        return "$regex", rng.choice(["a", "^a", "b$", "", "(", values.Regex("A", "i")])

    def element_filter(self):
        rng = self.rng
        if rng.random() < 0.5:
            name, operand = self.operator()
            return SON([(name, operand)])
        return SON([(values.path(rng), self.predicate())])

    # Writes

    def single_filter(self):
        """A filter that picks at most one document, or any where no index can change their order."""
        if self.indexed or not self.numeric_ids:
            return SON([("_id", self.rng.randint(0, 10))])
        return self.filter()

    def update(self):
        rng = self.rng
        statements = []
        for _ in range(rng.choice([1, 1, 1, 2])):
            multi = rng.random() < 0.5
            change = self.change() if multi or rng.random() < 0.85 else values.document(rng, 2)
            statement = SON([("q", self.filter() if multi else self.single_filter()), ("u", change)])
            if multi:
                statement["multi"] = True
            if rng.random() < 0.2:
                key, self.next_id = self.next_id, self.next_id + 1
                statement["q"] = SON([("_id", key), ("b", values.scalar(rng))]) if rng.random() < 0.5 else SON([("_id", key)])
                statement["upsert"] = True
            if rng.random() < 0.03:
                statement[rng.choice(["foo", "multi", "upsert", "q", "u"])] = rng.choice(WRONG)
            statements.append(statement)
        return SON([("update", COLLECTION), ("updates", statements), ("ordered", rng.random() < 0.7)])

    def change(self):
        rng = self.rng
        out = SON()
        for _ in range(rng.choice([1, 1, 1, 2])):
            name, argument = self.modifier()
            out.setdefault(name, SON()).update(argument)
        return out

    def modifier(self):
        rng = self.rng
        kind = rng.random()
        path = values.path(rng) if rng.random() < 0.95 else rng.choice(["_id", "a.$", "a.$[]", "", "a.", "$a"])
        if kind < 0.25:
            return "$set", SON([(path, values.value(rng, 2))])
        if kind < 0.32:
            return "$unset", SON([(path, rng.choice(["", 1]))])
        if kind < 0.42:
            return rng.choice(["$inc", "$mul"]), SON([(path, values.scalar(rng))])
        if kind < 0.5:
            return rng.choice(["$min", "$max"]), SON([(path, values.value(rng, 1))])
        if kind < 0.56:
            return "$rename", SON([(path, rng.choice([values.path(rng), "e", "e.f", 1]))])
        if kind < 0.7:
            return "$push", SON([(path, self.push())])
        if kind < 0.78:
            condition = values.value(rng, 1) if rng.random() < 0.5 else self.element_filter()
            return "$pull", SON([(path, condition)])
        if kind < 0.82:
            return "$pullAll", SON([(path, values.array(rng, 1) if rng.random() < 0.9 else 1)])
        if kind < 0.9:
            argument = values.value(rng, 1)
            if rng.random() < 0.4:
                argument = SON([("$each", values.array(rng, 1))])
            return "$addToSet", SON([(path, argument)])
        if kind < 0.95:
            return "$pop", SON([(path, rng.choice([1, -1, 1.0, 2, "a"]))])
        if kind < 0.98:
            return "$setOnInsert", SON([(path, values.scalar(rng))])
        return rng.choice(["$bit", "$nosuch", "set"]), SON([(path, SON([(rng.choice(["and", "or", "xor"]), rng.choice(values.INTS))]))])

    def push(self):
        rng = self.rng
        if rng.random() < 0.5:
            return values.value(rng, 1)
        out = SON([("$each", values.array(rng, 1) if rng.random() < 0.95 else 1)])
        self.maybe(out, "$position", lambda: rng.choice([0, 1, -1, 5, "a"]))
        self.maybe(out, "$slice", lambda: rng.choice([0, 1, 2, -1, -2, 1.5]))
        self.maybe(out, "$sort", lambda: rng.choice([1, -1, SON([("a", 1)]), SON([("a.b", -1)]), 2]))
        return out

    def delete(self):
        rng = self.rng
        everything = rng.random() < 0.5
        statement = SON([("q", self.filter() if everything else self.single_filter()), ("limit", 0 if everything else 1)])
        if rng.random() < 0.05:
            statement["limit"] = rng.choice([2, -1, "a", 1.0])
        return SON([("delete", COLLECTION), ("deletes", [statement])])

    def find_and_modify(self):
        rng = self.rng
        command = SON([("findAndModify", COLLECTION), ("query", self.filter()), ("sort", SON([("_id", rng.choice([1, -1]))]))])
        if rng.random() < 0.25:
            command["remove"] = True
        else:
            command["update"] = self.change()
            self.maybe(command, "new", lambda: True, 0.5)
            if rng.random() < 0.15:
                key, self.next_id = self.next_id, self.next_id + 1
                command["query"] = SON([("_id", key)])
                command["upsert"] = True
        self.maybe(command, "fields", lambda: SON([(rng.choice(values.FIELDS), 1)]), 0.2)
        return command

    # Aggregation

    def pipeline(self):
        rng = self.rng
        stages = [SON([("$match", self.filter())])] if rng.random() < 0.6 else []
        kind = rng.random()
        if kind < 0.3:
            stages.append(SON([("$sort", SON([(values.path(rng), rng.choice([1, -1])), ("_id", 1)]))]))
            if rng.random() < 0.5:
                stages.append(SON([(rng.choice(["$skip", "$limit"]), rng.choice([1, 2, 5]))]))
        elif kind < 0.6:
            # Accumulators see documents in natural order, which an index scan changes in MongoDB.
            stages.append(SON([("$sort", SON([("_id", 1)]))]))
            stages.append(self.group())
            stages.append(SON([("$sort", SON([("_id", 1)]))]))
        elif kind < 0.8:
            stages.append(SON([("$project", SON([(values.path(rng), 1)]))]))
        elif kind < 0.9:
            stages.append(SON([("$count", rng.choice(["n", "", "$n", "a.b"]))]))
        else:
            stages.append(SON([(rng.choice(["$limit", "$skip"]), rng.choice([0, -1, "a", 1.5]))]))
        return stages

    def group(self):
        rng = self.rng
        key = rng.choice([None, "$" + rng.choice(values.FIELDS), 1, "$a.b", SON([("x", "$a"), ("y", "$b")])])
        stage = SON([("_id", key)])
        for name in rng.sample(["r", "s", "t"], rng.choice([1, 2])):
            operator = rng.choice(["$sum", "$avg", "$min", "$max", "$first", "$last", "$push"])
            argument = rng.choice([1, "$" + values.path(rng), "$_id"])
            stage[name] = SON([(operator, argument)])
        return SON([("$group", stage)])
