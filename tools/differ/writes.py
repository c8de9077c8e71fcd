"""Random inserts, updates, deletes and findAndModify."""

from bson.son import SON

import values
from filters import Filters

WRONG_STATEMENT = [1, "x", True, None, [], SON(), 1.5, values.Int64(7), [1], SON([("x", 1)]), -1]


class Writes(Filters):
    """Needs `self.collection`, `self.indexed`, `self.numeric_ids` and `self.next_id` too."""

    def new_id(self):
        key, self.next_id = self.next_id, self.next_id + 1
        return key

    def insert(self):
        rng = self.rng
        documents = []
        for _ in range(rng.choice([1, 1, 2, 4])):
            if rng.random() < 0.25 or not self.numeric_ids:
                key = rng.randint(0, 3)
            else:
                key = self.new_id()
            documents.append(SON([("_id", key), *values.document(rng, 3).items()]))
            if rng.random() < 0.03:
                documents[-1] = rng.choice([SON([("_id", [1])]), SON([("_id", values.Regex("a"))]), SON([("_id", values.Undefined())]),
                                            SON([("_id", SON([("$a", 1)]))]), SON([("_id", key), ("", 1)]), SON([("_id", key), ("a", SON([("b.c", 1)]))])])
        if not self.numeric_ids:
            # A new id would come last in MongoDB's natural order whatever its value, so only a
            # refused one is sent.
            documents = [SON([("_id", rng.choice([[1], values.Regex("a")]))])]
        return SON([("insert", self.collection), ("documents", documents), ("ordered", rng.random() < 0.5)])

    def single_filter(self):
        """A filter that picks at most one document, or any where no index can change their
        order."""
        if self.indexed or not self.numeric_ids:
            return SON([("_id", self.rng.randint(0, 10))])
        return self.filter()

    def update(self, count=None):
        rng = self.rng
        statements = [self.update_statement() for _ in range(count or rng.choice([1, 1, 1, 2, 4]))]
        return SON([("update", self.collection), ("updates", statements), ("ordered", rng.random() < 0.7)])

    def update_statement(self):
        rng = self.rng
        multi = rng.random() < 0.5
        change = self.change() if multi and rng.random() < 0.98 or rng.random() < 0.85 else values.document(rng, 2)
        statement = SON([("q", self.filter() if multi else self.single_filter()), ("u", change)])
        if multi:
            statement["multi"] = True
        if rng.random() < 0.2:
            statement["q"] = self.upsert_filter()
            statement["upsert"] = True
        self.maybe(statement, "hint", self.hint, 0.03)
        if rng.random() < 0.03:
            statement[rng.choice(["foo", "multi", "upsert", "q", "u"])] = rng.choice(WRONG_STATEMENT)
        return statement

    def upsert_filter(self):
        """A filter whose equalities become fields of what an upsert inserts."""
        rng = self.rng
        filter = SON([("_id", self.new_id())])
        kind = rng.random()
        if kind < 0.4:
            filter[rng.choice(["b", "a.b", "c.d", "a"])] = values.scalar(rng)
        elif kind < 0.5:
            filter["b"] = SON([(rng.choice(["$eq", "$gt", "$in", "$all"]), rng.choice([1, [1], [1, 2], values.scalar(rng)]))])
        elif kind < 0.6:
            filter["$and"] = [SON([("b", values.scalar(rng))]), SON([(rng.choice(["c", "b", "b.c"]), values.scalar(rng))])]
        elif kind < 0.65:
            filter["$or"] = [SON([("b", values.scalar(rng))])]
        return filter

    def change(self):
        rng = self.rng
        out = SON()
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            name, argument = self.modifier()
            out.setdefault(name, SON()).update(argument)
        return out

    def modifier(self):
        rng = self.rng
        kind = rng.random()
        path = values.path(rng) if rng.random() < 0.95 else rng.choice(["_id", "a.$", "a.$[]", "", "a.", "$a", ".a", "a..b", "_id.a", "a.$[x]"])
        if kind < 0.22:
            return "$set", SON([(path, values.value(rng, 2))])
        if kind < 0.29:
            return "$unset", SON([(path, rng.choice(["", 1, None]))])
        if kind < 0.39:
            return rng.choice(["$inc", "$mul"]), SON([(path, values.scalar(rng))])
        if kind < 0.48:
            return rng.choice(["$min", "$max"]), SON([(path, values.value(rng, 1))])
        if kind < 0.54:
            return "$rename", SON([(path, rng.choice([values.path(rng), "e", "e.f", 1, "", "a.$", "_id"]))])
        if kind < 0.66:
            return "$push", SON([(path, self.push())])
        if kind < 0.74:
            condition = values.value(rng, 1) if rng.random() < 0.5 else self.element_filter()
            return "$pull", SON([(path, condition)])
        if kind < 0.78:
            return "$pullAll", SON([(path, values.array(rng, 1) if rng.random() < 0.9 else rng.choice([1, None, SON()]))])
        if kind < 0.85:
            argument = values.value(rng, 1)
            if rng.random() < 0.4:
                argument = SON([("$each", values.array(rng, 1) if rng.random() < 0.95 else 1)])
                self.maybe(argument, "foo", lambda: 1, 0.03)
            return "$addToSet", SON([(path, argument)])
        if kind < 0.9:
            return "$pop", SON([(path, rng.choice([1, -1, 1.0, 2, "a", 0, values.Int64(-1)]))])
        if kind < 0.93:
            return "$setOnInsert", SON([(path, values.scalar(rng))])
        if kind < 0.96:
            return "$currentDate", SON([(path, rng.choice([True, False, SON([("$type", "date")]), SON([("$type", "timestamp")]),
                                                          SON([("$type", "x")]), SON(), 1, SON([("x", 1)])]))])
        if kind < 0.985:
            bits = SON([(rng.choice(["and", "or", "xor"]), rng.choice([*values.INTS, values.Int64(2**40), 1.5]))])
            return "$bit", SON([(path, rng.choice([bits, bits, bits, SON(), 1, SON([("nor", 1)])]))])
        return rng.choice(["$nosuch", "set", "$each"]), SON([(path, 1)])

    def push(self):
        rng = self.rng
        if rng.random() < 0.5:
            return values.value(rng, 1)
        out = SON([("$each", values.array(rng, 1) if rng.random() < 0.95 else 1)])
        self.maybe(out, "$position", lambda: rng.choice([0, 1, -1, 5, "a", 1.0, 1.5, values.Int64(2**40)]))
        self.maybe(out, "$slice", lambda: rng.choice([0, 1, 2, -1, -2, 1.5, "a", 2.0]))
        self.maybe(out, "$sort", lambda: rng.choice([1, -1, SON([("a", 1)]), SON([("a.b", -1)]), 2, SON(), "a", SON([("a", 2)])]))
        self.maybe(out, "$foo", lambda: 1, 0.02)
        return out

    def delete(self):
        rng = self.rng
        statements = []
        for _ in range(rng.choice([1, 1, 1, 2])):
            everything = rng.random() < 0.5
            statement = SON([("q", self.filter() if everything else self.single_filter()), ("limit", 0 if everything else 1)])
            if rng.random() < 0.05:
                statement["limit"] = rng.choice([2, -1, "a", 1.0, values.Int64(1), True])
            self.maybe(statement, "hint", self.hint, 0.03)
            statements.append(statement)
        return SON([("delete", self.collection), ("deletes", statements), ("ordered", rng.random() < 0.7)])

    def find_and_modify(self):
        rng = self.rng
        command = SON([("findAndModify", self.collection), ("query", self.filter()),
                       ("sort", SON([(values.path(rng), rng.choice([1, -1])), ("_id", rng.choice([1, -1]))]))])
        if rng.random() < 0.25:
            command["remove"] = True
            self.maybe(command, "new", lambda: True, 0.05)
        else:
            command["update"] = self.change() if rng.random() < 0.9 else values.document(rng, 2)
            self.maybe(command, "new", lambda: True, 0.5)
            if rng.random() < 0.15:
                command["query"] = self.upsert_filter()
                command["upsert"] = True
            self.maybe(command, "remove", lambda: rng.choice([True, False]), 0.03)
        self.maybe(command, "fields", self.projection, 0.2)
        self.maybe(command, "hint", self.hint, 0.03)
        return command
