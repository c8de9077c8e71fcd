"""Commands about the server and its sessions. Their replies differ, so only the stable part of a
reply counts."""

from bson import Binary, Int64
from bson.son import SON

SESSION = SON([("id", Binary(bytes(range(16)), 4))])
OTHER_SESSION = SON([("id", Binary(bytes(range(1, 17)), 4))])


def admin(*fields):
    return SON([*fields, ("$db", "admin")])


def commands():
    """Every command of this kind in its plain form."""
    return [
        SON([("validate", "c")]), SON([("dbStats", 1)]), SON([("collStats", "c")]), SON([("dataSize", "differ.c")]),
        SON([("isMaster", 1)]), SON([("ismaster", 1)]), SON([("ping", 1)]), SON([("buildInfo", 1)]), SON([("buildinfo", 1)]), SON([("hostInfo", 1)]),
        SON([("connectionStatus", 1)]), SON([("connectionStatus", 1), ("showPrivileges", True)]), SON([("whatsmyuri", 1)]),
        SON([("hello", 1)]),
        admin(("getParameter", 1), ("logLevel", 1)), admin(("getParameter", 1), ("quiet", 1), ("notablescan", 1)), admin(("getParameter", 1), ("nosuch", 1)),
        SON([("getParameter", 1), ("quiet", 1)]),
        admin(("setParameter", 1), ("quiet", False)), admin(("setParameter", 1), ("logLevel", 0)), admin(("setParameter", 1), ("nosuch", 1)),
        admin(("setParameter", 1)), admin(("setParameter", 1), ("cursorTimeoutMillis", 600_000)), admin(("setParameter", 1), ("logLevel", "x")),
        admin(("getCmdLineOpts", 1)), SON([("getCmdLineOpts", 1)]),
        admin(("getLog", "*")), admin(("getLog", "global")), admin(("getLog", "startupWarnings")), admin(("getLog", "nosuch")), admin(("getLog", 1)),
        SON([("listCommands", 1)]), SON([("serverStatus", 1)]), SON([("serverStatus", 1), ("network", 0)]),
        admin(("currentOp", 1)), admin(("currentOp", 1), ("active", True)), SON([("currentOp", 1)]),
        admin(("killOp", 1), ("op", 99_999_999)), admin(("killOp", 1)), admin(("killOp", 1), ("op", "x")), SON([("killOp", 1), ("op", 1)]),
        admin(("fsync", 1)), SON([("fsync", 1)]),
        SON([("startSession", 1)]), SON([("endSessions", [SESSION])]), SON([("endSessions", [])]), SON([("refreshSessions", [SESSION])]),
        SON([("refreshSessions", [])]), SON([("killSessions", [OTHER_SESSION])]), SON([("killAllSessions", [])]),
        SON([("shutdown", 1)]), SON([("nosuch", 1)]), SON([("replSetGetStatus", 1)]), admin(("replSetGetStatus", 1)),
        SON([("find", "c"), ("lsid", SESSION)]), SON([("insert", "other"), ("documents", [SON([("_id", 1)])]), ("lsid", SESSION), ("txnNumber", Int64(1))]),
        SON([("find", "c"), ("lsid", SESSION), ("txnNumber", Int64(1)), ("startTransaction", True), ("autocommit", False)]),
        SON([("insert", "other"), ("documents", [SON([("_id", 1)])]), ("writeConcern", SON([("w", 2)]))]),
        SON([("insert", "other"), ("documents", [SON([("_id", 2)])]), ("writeConcern", SON([("w", "majority")]))]),
        SON([("insert", "other"), ("documents", [SON([("_id", 3)])]), ("writeConcern", SON([("w", 1), ("j", True)]))]),
        SON([("insert", "other"), ("documents", [SON([("_id", 4)])]), ("writeConcern", SON([("w", "nosuch")]))]),
        SON([("find", "c"), ("writeConcern", SON([("w", 1)]))]), SON([("insert", "other"), ("documents", [SON([("_id", 5)])]), ("readConcern", SON([("level", "local")]))]),
        SON([("find", "c"), ("readConcern", SON([("level", "snapshot")]))]), SON([("find", "c"), ("readConcern", SON([("level", "linearizable")]))]),
        SON([("find", "c"), ("readConcern", SON([("afterClusterTime", SON())]))]), SON([("find", "c"), ("maxTimeMS", -1)]), SON([("find", "c"), ("maxTimeMS", 1.5)]),
    ]


# What of a reply counts: None for all, else the fields whose values, or whose presence, count.
COMPARED = {
    "isMaster": {"ismaster", "maxBsonObjectSize", "maxMessageSizeBytes", "maxWriteBatchSize", "logicalSessionTimeoutMinutes", "minWireVersion", "readOnly"},
    "hello": set(),
    "buildInfo": {"bits", "maxBsonObjectSize"},
    "hostInfo": set(),
    "connectionStatus": None,
    "whatsmyuri": set(),
    "getCmdLineOpts": set(),
    "getLog": {"names"},
    # What a program before this one has set may have been taken by one server alone.
    "getParameter": {"logLevel", "notablescan"},
    "setParameter": set(),
    "listCommands": set(),
    "serverStatus": set(),
    "currentOp": set(),
    "fsync": set(),
    # MongoDB has databases of its own: admin, config, local.
    "listDatabases": {"databases"},
    "startSession": {"timeoutMinutes"},
    "dbStats": {"db", "collections", "views", "objects", "avgObjSize", "dataSize", "indexes", "scaleFactor"},
    "collStats": {"ns", "size", "count", "avgObjSize", "capped", "nindexes", "scaleFactor"},
    "dataSize": {"size", "numObjects"},
    "validate": {"ns", "valid", "nrecords", "nIndexes", "nInvalidDocuments"},
}
ALIASES = {"ismaster": "isMaster", "buildinfo": "buildInfo", "dbstats": "dbStats", "collstats": "collStats", "datasize": "dataSize"}


def compared(name):
    """The fields of a reply that count, or None when all do."""
    return COMPARED.get(ALIASES.get(name, name))
