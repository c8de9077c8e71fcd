"""Random filters, projections and sorts."""

from bson.son import SON

import values

COMPARISONS = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]
BITS = ["$bitsAllSet", "$bitsAnySet", "$bitsAllClear", "$bitsAnyClear"]
TYPE_NAMES = ["double", "string", "object", "array", "binData", "objectId", "bool", "date", "null", "regex", "int", "long",
              "decimal", "timestamp", "number", "minKey", "maxKey", "javascript", "javascriptWithScope", "undefined", "symbol",
              "dbPointer", "nosuch"]


class Filters:
    """Needs `self.rng`."""

    def maybe(self, command, name, make, chance=0.3):
        if self.rng.random() < chance:
            command[name] = make()

    def filter(self, depth=2):
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            return SON()
        if depth > 0 and kind < 0.2:
            operator = rng.choice(["$and", "$or", "$or", "$nor"])
            return SON([(operator, [self.filter(depth - 1) for _ in range(rng.choice([1, 2, 3]))])])
        out = SON()
        for _ in range(rng.choice([1, 1, 1, 2])):
            name = "_id" if rng.random() < 0.12 else values.path(rng)
            out[name] = self.predicate()
        if kind > 0.985:
            out[rng.choice(["$comment", "$nosuch", "$and", "$or", "$alwaysTrue", "$expr"])] = rng.choice(["x", 1, [], [1], [SON()]])
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
            if name == "$regex" and rng.random() < 0.4:
                operators["$options"] = rng.choice(["", "i", "m", "s", "x", "im", "q", 1])
        if rng.random() < 0.1:
            return SON([("$not", rng.choice([operators, operators, operators, values.Regex("a"), SON(), 1]))])
        return operators

    def operator(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.42:
            return rng.choice(COMPARISONS), values.value(rng, 2)
        if kind < 0.57:
            items = [values.value(rng, 1) for _ in range(rng.choice([0, 1, 2, 4]))]
            return rng.choice(["$in", "$nin"]), items if rng.random() < 0.97 else rng.choice([1, None, SON(), [SON([("$gt", 1)])]])
        if kind < 0.65:
            return "$exists", rng.choice([True, False, 1, 0, None, "x"])
        if kind < 0.72:
            return "$type", rng.choice([rng.choice(TYPE_NAMES), rng.choice([1, 2, 3, 4, 6, 10, 11, 12, 14, 15, 16, 18, -1, 127, 2.0, 2.5, 0, 99]),
                                        [rng.choice(TYPE_NAMES), 2], []])
        if kind < 0.77:
            return "$size", rng.choice([0, 1, 2, 3, -1, 1.5, 2.0, "a", values.Int64(2)])
        if kind < 0.82:
            return "$all", self.all_operand()
        if kind < 0.89:
            return "$elemMatch", self.element_filter() if rng.random() < 0.97 else rng.choice([1, [], None])
        if kind < 0.925:
            return "$mod", rng.choice([[2, 0], [2, 1], [3, -1], [0, 1], [1], [2.5, 0], ["a", 1], [2, 0, 1], [], 1, [-2, 0], [2, 0.9],
                                       [values.Int64(2**40), 1], [values.Decimal128("2"), 0]])
        if kind < 0.955:
            mask = rng.choice([0, 1, 5, 255, values.Int64(2**40), [0], [0, 2], [70], values.Binary(b"\x01"), -1, 1.5, [-1], "a"])
            return rng.choice(BITS), mask
        return "$regex", rng.choice(["a", "^a", "b$", "", "(", values.Regex("A", "i"), "^ab?", "\\.", "a|b", 1])

    def all_operand(self):
        rng = self.rng
        if rng.random() < 0.2:
            return [SON([("$elemMatch", self.element_filter())]) for _ in range(rng.choice([1, 2]))]
        if rng.random() < 0.04:
            return rng.choice([1, [SON([("$gt", 1)])], None])
        return [values.value(rng, 1) for _ in range(rng.choice([0, 1, 2]))]

    def element_filter(self):
        rng = self.rng
        if rng.random() < 0.5:
            name, operand = self.operator()
            return SON([(name, operand)])
        return SON([(values.path(rng), self.predicate())])

    def projection(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.55:
            flag = rng.choice([1, 0, True, False, 1.0, values.Int64(0), values.Decimal128("1")])
            projection = SON((values.path(rng), flag) for _ in range(rng.choice([1, 2])))
            self.maybe(projection, "_id", lambda: rng.choice([0, 1]))
            return projection
        if kind < 0.75:
            argument = rng.choice([1, -1, 2, 0, [1, 1], [-2, 1], [0, 0], [1], "a", [1, "a"], 1.5])
            return SON([(values.path(rng), SON([("$slice", argument)]))])
        if kind < 0.92:
            return SON([(rng.choice(values.FIELDS), SON([("$elemMatch", self.element_filter())]))])
        mixed = SON([(values.path(rng), 1), (rng.choice(values.FIELDS), 0)])
        return rng.choice([mixed, SON([("_id", 0)]), SON([("_id", 1)]), SON([("a.$", 1)]), SON([("", 1)]), SON([("a.", 1)]), SON([("$a", 1)])])

    def sort(self):
        """A sort over paths of mixed types; the `_id` at its end makes the order complete."""
        rng = self.rng
        sort = SON((values.path(rng), rng.choice([1, -1])) for _ in range(rng.choice([1, 1, 2])))
        if rng.random() < 0.03:
            sort[rng.choice(["a", "", "a.", "$a"])] = rng.choice([0, 2, "a", None, 1.0, -1.5])
        sort["_id"] = rng.choice([1, -1])
        return sort

    def hint(self):
        return self.rng.choice([SON([("_id", 1)]), "_id_", SON([("$natural", 1)]), SON([("$natural", -1)]), "nosuch", "a_1", SON([("a", 1)]), SON()])
