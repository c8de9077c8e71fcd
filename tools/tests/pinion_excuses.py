"""Errors that clients may see while processes of a set or a cluster are struck."""

from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    NotPrimaryError,
    OperationFailure,
    WaitQueueTimeoutError,
)

# A member or a router that does not answer, or is about to end.
UNREACHABLE = {6, 7, 89, 91, 133, 202, 9001, 11600}
# A member that is primary no more, or not yet.
NOT_PRIMARY = {189, 10058, 10107, 11602, 13435, 13436}
# What takes longer than was allowed.
TIMEOUTS = {50, 64, 202, 262, 290}
# What is to be tried again: cursors of processes that have ended, places and versions that are
# not known yet, conflicts, snapshots.
TRY_AGAIN = {43, 70, 112, 134, 175, 246, 249, 251, 13388}
# Definitions that wait for others, or end since something does not let them run.
DEFINITIONS = {24, 46, 117, 125, 12586, 12587}
EXCUSED = UNREACHABLE | NOT_PRIMARY | TIMEOUTS | TRY_AGAIN


def codes(error):
    """All codes that an error of a server has."""
    details = getattr(error, "details", None) or {}
    found = set() if getattr(error, "code", None) is None else {error.code}
    if isinstance(error, BulkWriteError):
        found = set()
    parts = [*details.get("writeErrors", []), *details.get("writeConcernErrors", [])]
    if "writeConcernError" in details:
        parts.append(details["writeConcernError"])
    return found | {part["code"] for part in parts}


def is_excused(error, others=()):
    """Whether a driver's error is one of faults; `others` are codes that may come too."""
    if isinstance(error, (ConnectionFailure, NotPrimaryError, WaitQueueTimeoutError)):
        return True
    if isinstance(error, OperationFailure):
        found = codes(error)
        return bool(found) and found <= EXCUSED | set(others)
    return False
