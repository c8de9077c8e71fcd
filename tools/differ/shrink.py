"""Makes a differing program as small as possible and prints it as a script."""

from bson.son import SON


def shrink(program, differs):
    """The smallest program found by leaving out parts while `differs(program)` stays true."""
    changed = True
    while changed:
        changed = False
        for smaller in candidates(program):
            if differs(smaller):
                program, changed = smaller, True
                break
    return program


def candidates(program):
    for i in range(len(program)):
        if len(program) > 1:
            yield program[:i] + program[i + 1 :]
    for i, command in enumerate(program):
        for smaller in reductions(command, top=True):
            yield program[:i] + [smaller] + program[i + 1 :]


# Without these the answer would be a matter of natural order, and the smaller program would differ
# for another reason.
KEPT = {"_id", "sort", "$sort"}


def reductions(value, top=False):
    """Values like this one with one part left out, outermost parts first."""
    if isinstance(value, dict):
        keys = list(value)
        for key in keys[1 if top else 0 :]:
            if key in KEPT:
                continue
            yield SON((k, v) for k, v in value.items() if k != key)
        for key in keys:
            for smaller in reductions(value[key]):
                yield SON((k, smaller if k == key else v) for k, v in value.items())
    elif isinstance(value, list):
        for i in range(len(value)):
            if not (isinstance(value[i], dict) and "$sort" in value[i]):
                yield value[:i] + value[i + 1 :]
        for i in range(len(value)):
            for smaller in reductions(value[i]):
                yield value[:i] + [smaller] + value[i + 1 :]


def script(program):
    """The program as Python, to be run with this folder in PYTHONPATH and PyMongo at hand."""
    lines = ["import sys; from bson import *; from bson.datetime_ms import DatetimeMS; from bson.son import SON",
             "from codec import DBPointer, Symbol, Undefined; from wire import Client",
             "nan, inf = float('nan'), float('inf'); db = Client(sys.argv[1])"]
    lines += [f"print(db.command('differ', {command!r}))" for command in program]
    return "\n".join(lines)
