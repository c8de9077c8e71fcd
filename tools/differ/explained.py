"""What two explains of the same command must agree about.

Plans are compared where MongoDB had no choice to make: with several plans in question it tries them
against each other on the data, so which one wins says nothing about what is right.
"""

from bson.son import SON

import codec

READING = {"COLLSCAN", "IXSCAN", "IDHACK", "EOF"}
# Plans that read no documents. Pinion has none: it counts and collects values with an ordinary
# scan.
KEYS_ALONE = {"COUNT_SCAN", "DISTINCT_SCAN", "RECORD_STORE_FAST_COUNT"}
UNDEFINED = "[undefined, undefined]"
# The fields of a stage that must be equal.
STAGE_FIELDS = ["direction", "indexBounds", "keyPattern", "indexName", "isMultiKey", "multiKeyPaths", "isUnique", "isSparse"]


def planner_of(reply):
    if "queryPlanner" in reply:
        return reply["queryPlanner"]
    for stage in reply.get("stages", []):
        if "$cursor" in stage:
            return stage["$cursor"].get("queryPlanner")
    return None


def stages(plan):
    """A plan's stages from the root down."""
    yield plan
    inner = ([plan["inputStage"]] if "inputStage" in plan else []) + list(plan.get("inputStages", []))
    for stage in inner:
        yield from stages(stage)


def access(reply):
    """How the winning plan reads: its scans, each with its fields."""
    planner = planner_of(reply)
    if not isinstance(planner, dict) or "winningPlan" not in planner:
        return None
    found = []
    for stage in stages(planner["winningPlan"]):
        if stage.get("stage") == "IXSCAN" and is_point_on_id(stage):
            # 4.4 takes the short way only for {_id: value}, 7.0 and Pinion for {_id: {$eq: value}}
            # too.
            found.append(codec.encode(SON([("stage", "IDHACK")])))
        elif stage.get("stage") in READING:
            found.append(codec.encode(SON([("stage", stage["stage"]), *((name, stage[name]) for name in STAGE_FIELDS if name in stage)])))
    # The branches of a disjunction come in no particular order.
    return sorted(found)


def is_point_on_id(stage):
    bounds = stage.get("indexBounds", {}).get("_id", [])
    return stage["stage"] == "IXSCAN" and stage.get("indexName") == "_id_" and len(bounds) == 1 and is_point(bounds[0]) and "null" not in bounds[0]


def is_point(interval):
    inside = interval[1:-1]
    return interval[0] == "[" and interval[-1] == "]" and any(inside[:at] == inside[at + 2 :] for at in range(len(inside)) if inside[at : at + 2] == ", ")


def is_empty(reply):
    """Whether the plan reads nothing."""
    return access(reply) == [codec.encode(SON([("stage", "EOF")]))]


def reads_point_or_nothing(a, b):
    """Whether a reads one `_id`, and b the index of `_id` within bounds that hold nothing."""
    scans = [codec.decode(scan) for scan in access(b) or []]
    return results(a) == results(b) and access(a) == [codec.encode(SON([("stage", "IDHACK")]))] and [
        (scan.get("indexName"), scan.get("indexBounds")) for scan in scans] == [("_id_", {"_id": []})]


def differ_in_bounds_alone(a, b, simplify):
    """Whether the scans are equal when `simplify(path, intervals)` is what counts of their
    bounds."""
    def simple(reply):
        scans = [codec.decode(scan) for scan in access(reply) or []]
        for scan in scans:
            scan["indexBounds"] = {path: simplify(path, intervals) for path, intervals in scan.get("indexBounds", {}).items()}
        return scans

    return results(a) == results(b) and access(a) != access(b) and simple(a) == simple(b)


def multikey_too_soon(a, b):
    """Whether the scans differ in nothing but that a's index is multikey and b's is not, and in
    bounds."""
    def plain(reply):
        return [{name: value for name, value in codec.decode(scan).items() if name not in ("isMultiKey", "multiKeyPaths", "indexBounds")} for scan in access(reply) or []]

    def multikey(reply):
        return [codec.decode(scan).get("isMultiKey") for scan in access(reply) or []]

    return results(a) == results(b) and plain(a) == plain(b) and multikey(a) != multikey(b) and all(
        ours or not theirs for ours, theirs in zip(multikey(a), multikey(b)))


def without_undefined(path, intervals):
    """Intervals that neither hold undefined nor end at it."""
    return [interval.replace("undefined)", "null)").replace("(undefined", "(null") for interval in intervals if interval != UNDEFINED]


def outside(paths):
    """Intervals that count only where their path is none of these."""
    return lambda path, intervals: [] if any(path == name or path.startswith(name + ".") for name in paths) else intervals


def chose_among_several(reply):
    planner = planner_of(reply)
    if not isinstance(planner, dict):
        return False
    # Under SUBPLAN every branch of a disjunction was chosen by itself.
    return bool(planner.get("rejectedPlans")) or any(stage.get("stage") == "SUBPLAN" for stage in stages(planner.get("winningPlan", {})))


def reads_keys_alone(reply):
    planner = planner_of(reply)
    return isinstance(planner, dict) and any(stage.get("stage") in KEYS_ALONE for stage in stages(planner.get("winningPlan", {})))


def agree(a, b):
    """Whether two explains say the same."""
    if chose_among_several(a) or chose_among_several(b) or reads_keys_alone(a) or reads_keys_alone(b):
        return results(a) == results(b)
    return results(a) == results(b) and access(a) == access(b)


def results(reply):
    """What does not depend on the plan."""
    planner = planner_of(reply)
    return isinstance(planner, dict) and planner.get("namespace"), statistics_of(reply).get("executionSuccess")


def statistics_of(reply):
    for place in [reply, *(stage.get("$cursor", {}) for stage in reply.get("stages", []))]:
        if "executionStats" in place:
            return place["executionStats"]
    return {}
