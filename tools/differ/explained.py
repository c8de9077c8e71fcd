"""What two explains of the same command must agree about.

Plans are compared where MongoDB had no choice to make: with several plans in question it tries them against each
other on the data, so which one wins says nothing about what is right.
"""

from bson.son import SON

import codec

READING = {"COLLSCAN", "IXSCAN", "IDHACK", "EOF", "COUNT_SCAN", "DISTINCT_SCAN"}
# What a stage tells that must be equal. Pinion reads documents of one index scan in `_id` order.
TOLD = ["direction", "indexBounds", "keyPattern", "indexName", "isMultiKey", "multiKeyPaths", "isUnique", "isSparse"]


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
    """How the winning plan reads: its scans, each with what it tells."""
    planner = planner_of(reply)
    if not isinstance(planner, dict) or "winningPlan" not in planner:
        return None
    found = []
    for stage in stages(planner["winningPlan"]):
        if stage.get("stage") in READING:
            found.append(codec.encode(SON([("stage", stage["stage"]), *((name, stage[name]) for name in TOLD if name in stage)])))
    return found


def chose_among_several(reply):
    planner = planner_of(reply)
    return bool(isinstance(planner, dict) and planner.get("rejectedPlans"))


def agree(a, b):
    """Whether two explains tell the same."""
    if chose_among_several(a) or chose_among_several(b):
        return results(a) == results(b)
    return results(a) == results(b) and access(a) == access(b)


def results(reply):
    """What does not depend on the plan."""
    planner = planner_of(reply)
    statistics = reply.get("executionStats") or {}
    return (isinstance(planner, dict) and planner.get("namespace"), statistics.get("nReturned"), statistics.get("executionSuccess"))
