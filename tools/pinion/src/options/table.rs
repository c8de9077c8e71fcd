//! The table of start options: mongod's names on the command line and in the configuration file,
//! and which of them Pinion has.

/// What follows an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Nothing on the command line, a boolean in the file.
    Switch,
    /// One value.
    Value,
    /// A value that may be given more than once (`--setParameter name=value`).
    Repeated,
}

/// Whether Pinion acts on an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    /// It does.
    Yes,
    /// It does not; the start stops with this reason rather than run without what was asked for.
    No(&'static str),
    /// mongod's option names a behaviour that Pinion always has, so only this value can be
    /// accepted.
    Only(&'static str, &'static str),
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionSpec {
    /// The name on the command line, without dashes.
    pub name: &'static str,
    /// A one-letter form, or `\0`.
    pub short: char,
    /// The dotted path in the YAML file, or an empty string where there is none.
    pub path: &'static str,
    pub shape: Shape,
    pub support: Support,
    pub help: &'static str,
}

const NO_SECURITY: &str = "encryption is not available in this version";
const NO_USERS: &str = "there are no users in this version, so no client has to authenticate";
const NO_SHARDING: &str = "sharding is not available in this version";

const fn yes(
    name: &'static str,
    path: &'static str,
    shape: Shape,
    help: &'static str,
) -> OptionSpec {
    OptionSpec {
        name,
        short: '\0',
        path,
        shape,
        support: Support::Yes,
        help,
    }
}

const fn no(name: &'static str, path: &'static str, shape: Shape, why: &'static str) -> OptionSpec {
    OptionSpec {
        name,
        short: '\0',
        path,
        shape,
        support: Support::No(why),
        help: "",
    }
}

/// Every option that mongod documents and Pinion has, and those that it refuses by name.
pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "config",
        short: 'f',
        path: "",
        shape: Shape::Value,
        support: Support::Yes,
        help: "YAML configuration file",
    },
    yes(
        "dbpath",
        "storage.dbPath",
        Shape::Value,
        "Data directory; made when it does not exist [default: ./data]",
    ),
    yes(
        "port",
        "net.port",
        Shape::Value,
        "Port to listen on; 0 takes a free one [default: 27017]",
    ),
    yes(
        "bind_ip",
        "net.bindIp",
        Shape::Value,
        "Comma-separated addresses to listen on [default: localhost]",
    ),
    yes(
        "bind_ip_all",
        "net.bindIpAll",
        Shape::Switch,
        "Listen on every address",
    ),
    yes(
        "ipv6",
        "net.ipv6",
        Shape::Switch,
        "Listen on IPv6 addresses too",
    ),
    yes(
        "maxConns",
        "net.maxIncomingConnections",
        Shape::Value,
        "Most simultaneous connections [default: 65536]",
    ),
    yes(
        "logpath",
        "systemLog.path",
        Shape::Value,
        "File for the log instead of standard output",
    ),
    yes(
        "logappend",
        "systemLog.logAppend",
        Shape::Switch,
        "Append to the log file instead of moving it aside",
    ),
    yes(
        "logRotate",
        "systemLog.logRotate",
        Shape::Value,
        "What SIGUSR1 and the logRotate command do with the log file: rename it, or reopen it after another program has [default: rename]",
    ),
    yes(
        "quiet",
        "systemLog.quiet",
        Shape::Switch,
        "Log less about connections",
    ),
    OptionSpec {
        name: "verbose",
        short: 'v',
        path: "systemLog.verbosity",
        shape: Shape::Value,
        support: Support::Yes,
        help: "Log verbosity, 0 to 5 [default: 0]",
    },
    yes(
        "pidfilepath",
        "processManagement.pidFilePath",
        Shape::Value,
        "File to write the process id to",
    ),
    yes(
        "syncdelay",
        "storage.syncPeriodSecs",
        Shape::Value,
        "Seconds between checkpoints; 0 takes none [default: 60]",
    ),
    yes(
        "journalCommitInterval",
        "storage.journal.commitIntervalMs",
        Shape::Value,
        "Most milliseconds between journal flushes, 1 to 500 [default: 100]",
    ),
    yes(
        "wiredTigerCacheSizeGB",
        "storage.wiredTiger.engineConfig.cacheSizeGB",
        Shape::Value,
        "Memory budget of the node in GiB [default: half of what the machine has beyond 1 GiB, at least 0.25]",
    ),
    yes(
        "setParameter",
        "setParameter",
        Shape::Repeated,
        "Set a server parameter, as name=value",
    ),
    yes(
        "cpus",
        "pinion.cpus",
        Shape::Value,
        "Number of cores to run on [default: all of the affinity mask]",
    ),
    yes(
        "partitions",
        "pinion.partitions",
        Shape::Value,
        "Number of partitions of a new data directory [default: number of cores]",
    ),
    yes(
        "lockMemory",
        "pinion.lockMemory",
        Shape::Switch,
        "Take the memory budget from the system at start, lock it, and keep it",
    ),
    yes(
        "spinMicros",
        "pinion.spinMicros",
        Shape::Value,
        "Most microseconds that a busy core spins before it parks; 0 never spins [default: 200]",
    ),
    OptionSpec {
        name: "storageEngine",
        short: '\0',
        path: "storage.engine",
        shape: Shape::Value,
        support: Support::Only(
            "wiredTiger",
            "Pinion has one storage engine; wiredTiger is accepted for it",
        ),
        help: "",
    },
    OptionSpec {
        name: "directoryperdb",
        short: '\0',
        path: "storage.directoryPerDB",
        shape: Shape::Switch,
        support: Support::Only("false", "Pinion keeps one page file for each partition"),
        help: "",
    },
    OptionSpec {
        name: "noauth",
        short: '\0',
        path: "",
        shape: Shape::Switch,
        support: Support::Only("true", ""),
        help: "",
    },
    OptionSpec {
        name: "journal",
        short: '\0',
        path: "storage.journal.enabled",
        shape: Shape::Switch,
        support: Support::Only("true", "Pinion always journals"),
        help: "",
    },
    OptionSpec {
        name: "authorization",
        short: '\0',
        path: "security.authorization",
        shape: Shape::Value,
        support: Support::Only("disabled", NO_USERS),
        help: "",
    },
    OptionSpec {
        name: "tlsMode",
        short: '\0',
        path: "net.tls.mode",
        shape: Shape::Value,
        support: Support::Only("disabled", NO_SECURITY),
        help: "",
    },
    OptionSpec {
        name: "sslMode",
        short: '\0',
        path: "net.ssl.mode",
        shape: Shape::Value,
        support: Support::Only("disabled", NO_SECURITY),
        help: "",
    },
    OptionSpec {
        name: "logFormat",
        short: '\0',
        path: "systemLog.logFormat",
        shape: Shape::Value,
        support: Support::Only("json", "the log is JSON"),
        help: "",
    },
    OptionSpec {
        name: "timeStampFormat",
        short: '\0',
        path: "systemLog.timeStampFormat",
        shape: Shape::Value,
        support: Support::Only("iso8601-utc", "the log's times are ISO 8601 in UTC"),
        help: "",
    },
    OptionSpec {
        name: "logDestination",
        short: '\0',
        path: "systemLog.destination",
        shape: Shape::Value,
        support: Support::Only("file", "the log goes to standard output or to a file"),
        help: "",
    },
    OptionSpec {
        name: "nounixsocket",
        short: '\0',
        path: "",
        shape: Shape::Switch,
        support: Support::Only("true", ""),
        help: "",
    },
    OptionSpec {
        name: "unixDomainSocket",
        short: '\0',
        path: "net.unixDomainSocket.enabled",
        shape: Shape::Switch,
        support: Support::No("only TCP sockets are served"),
        help: "",
    },
    OptionSpec {
        name: "timeZoneInfo",
        short: '\0',
        path: "processManagement.timeZoneInfo",
        shape: Shape::Value,
        support: Support::Only(
            "/usr/share/zoneinfo",
            "Pinion has the time zone database built in; /usr/share/zoneinfo is accepted for it",
        ),
        help: "",
    },
    no("nojournal", "", Shape::Switch, "Pinion always journals"),
    yes(
        "fork",
        "processManagement.fork",
        Shape::Switch,
        "Have another process run the server, and end when it serves; needs --logpath",
    ),
    no(
        "repair",
        "",
        Shape::Switch,
        "repair is not available in this version",
    ),
    no(
        "shutdown",
        "",
        Shape::Switch,
        "send the process SIGTERM, or run the shutdown command",
    ),
    no(
        "syslog",
        "",
        Shape::Switch,
        "the log goes to standard output or to a file",
    ),
    no("auth", "", Shape::Switch, NO_USERS),
    yes(
        "keyFile",
        "security.keyFile",
        Shape::Value,
        "file with the key by which the members of the replica set know each other",
    ),
    OptionSpec {
        name: "clusterAuthMode",
        short: '\0',
        path: "security.clusterAuthMode",
        shape: Shape::Value,
        support: Support::Only("keyFile", "members know each other by a key file alone"),
        help: "",
    },
    yes(
        "transitionToAuth",
        "security.transitionToAuth",
        Shape::Switch,
        "let members in that have no key yet, while the set is given one",
    ),
    no(
        "clusterIpSourceAllowlist",
        "security.clusterIpSourceAllowlist",
        Shape::Value,
        "members know each other by a key file alone",
    ),
    no(
        "enableEncryption",
        "security.enableEncryption",
        Shape::Switch,
        NO_SECURITY,
    ),
    OptionSpec {
        name: "noscripting",
        short: '\0',
        path: "",
        shape: Shape::Switch,
        support: Support::Only("true", ""),
        help: "",
    },
    OptionSpec {
        name: "javascriptEnabled",
        short: '\0',
        path: "security.javascriptEnabled",
        shape: Shape::Switch,
        support: Support::No("there is no server-side JavaScript"),
        help: "",
    },
    no(
        "tlsCertificateKeyFile",
        "net.tls.certificateKeyFile",
        Shape::Value,
        NO_SECURITY,
    ),
    no(
        "tlsCertificateKeyFilePassword",
        "net.tls.certificateKeyFilePassword",
        Shape::Value,
        NO_SECURITY,
    ),
    no(
        "tlsClusterFile",
        "net.tls.clusterFile",
        Shape::Value,
        NO_SECURITY,
    ),
    no("tlsCAFile", "net.tls.CAFile", Shape::Value, NO_SECURITY),
    no("tlsCRLFile", "net.tls.CRLFile", Shape::Value, NO_SECURITY),
    no(
        "tlsAllowInvalidCertificates",
        "net.tls.allowInvalidCertificates",
        Shape::Switch,
        NO_SECURITY,
    ),
    no(
        "tlsAllowInvalidHostnames",
        "net.tls.allowInvalidHostnames",
        Shape::Switch,
        NO_SECURITY,
    ),
    no(
        "tlsAllowConnectionsWithoutCertificates",
        "net.tls.allowConnectionsWithoutCertificates",
        Shape::Switch,
        NO_SECURITY,
    ),
    no(
        "tlsDisabledProtocols",
        "net.tls.disabledProtocols",
        Shape::Value,
        NO_SECURITY,
    ),
    no(
        "tlsFIPSMode",
        "net.tls.FIPSMode",
        Shape::Switch,
        NO_SECURITY,
    ),
    no(
        "sslPEMKeyFile",
        "net.ssl.PEMKeyFile",
        Shape::Value,
        NO_SECURITY,
    ),
    no("sslCAFile", "net.ssl.CAFile", Shape::Value, NO_SECURITY),
    no(
        "networkMessageCompressors",
        "net.compression.compressors",
        Shape::Value,
        "snappy, zstd and zlib are always offered",
    ),
    no(
        "unixSocketPrefix",
        "net.unixDomainSocket.pathPrefix",
        Shape::Value,
        "only TCP sockets are served",
    ),
    no(
        "listenBacklog",
        "net.listenBacklog",
        Shape::Value,
        "the system's longest backlog is always used",
    ),
    yes(
        "replSet",
        "replication.replSetName",
        Shape::Value,
        "the replica set that this node is to be a member of",
    ),
    yes(
        "oplogSize",
        "replication.oplogSizeMB",
        Shape::Value,
        "megabytes of oplog that a member keeps",
    ),
    yes(
        "oplogMinRetentionHours",
        "storage.oplogMinRetentionHours",
        Shape::Value,
        "hours for which a member keeps its oplog, whatever its size",
    ),
    OptionSpec {
        name: "enableMajorityReadConcern",
        short: '\0',
        path: "replication.enableMajorityReadConcern",
        shape: Shape::Value,
        support: Support::Only("true", "a member always has majority reads"),
        help: "",
    },
    no("shardsvr", "", Shape::Switch, NO_SHARDING),
    no("configsvr", "", Shape::Switch, NO_SHARDING),
    no(
        "clusterRole",
        "sharding.clusterRole",
        Shape::Value,
        NO_SHARDING,
    ),
    no("configdb", "sharding.configDB", Shape::Value, NO_SHARDING),
    yes(
        "profile",
        "operationProfiling.mode",
        Shape::Value,
        "Write operations to system.profile: 0 or off, 1 or slowOp, 2 or all [default: off]",
    ),
    yes(
        "slowms",
        "operationProfiling.slowOpThresholdMs",
        Shape::Value,
        "Log commands that take at least so many milliseconds (default 100)",
    ),
    yes(
        "slowOpSampleRate",
        "operationProfiling.slowOpSampleRate",
        Shape::Value,
        "Share of the slow operations that the profiler writes [default: 1]",
    ),
    no(
        "wiredTigerJournalCompressor",
        "storage.wiredTiger.engineConfig.journalCompressor",
        Shape::Value,
        "the journal is not compressed in this version",
    ),
    no(
        "wiredTigerDirectoryForIndexes",
        "storage.wiredTiger.engineConfig.directoryForIndexes",
        Shape::Switch,
        "Pinion keeps one page file for each partition",
    ),
    no(
        "wiredTigerCollectionBlockCompressor",
        "storage.wiredTiger.collectionConfig.blockCompressor",
        Shape::Value,
        "pages are not compressed in this version",
    ),
    no(
        "wiredTigerIndexPrefixCompression",
        "storage.wiredTiger.indexConfig.prefixCompression",
        Shape::Value,
        "pages always share key prefixes",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_unique() {
        for (i, a) in OPTIONS.iter().enumerate() {
            for b in &OPTIONS[i + 1..] {
                assert_ne!(a.name, b.name);
                assert!(
                    a.path.is_empty() || a.path != b.path,
                    "{} and {} share {}",
                    a.name,
                    b.name,
                    a.path
                );
            }
        }
    }
}
