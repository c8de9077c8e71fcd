//! Commands that show what a node is, has and does.

use pinion_wire::CommandSpec;

pub(super) const DIAGNOSTICS: &[CommandSpec] = commands! {
    "dbStats" ["dbstats"] "sizes of a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "collStats" ["collstats"] "sizes of a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dataSize" ["datasize"] "bytes of documents" {
        class: Command, role: Plain, namespace: FullName, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dbHash" ["dbhash"] "digests of collections" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "filemd5" [] "digest of a file in GridFS" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "validate" [] "check a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "validateDBMetadata" [] "what a version of the API does not have" {
        class: Command, role: Plain, namespace: InBody, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "listCommands" [] "this list" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "serverStatus" [] "counters" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "top" [] "use by collection" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "connectionStatus" [] "who is connected" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "connPoolStats" [] "connections to other nodes" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "currentOp" [] "running operations" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "killOp" [] "interrupt an operation" {
        class: Command, role: Kill, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "lockInfo" [] "operations behind the gates of namespaces" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "getLog" [] "the last log lines" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "getDiagnosticData" [] "counters for a collector" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "getCmdLineOpts" [] "how this node was started" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "hostInfo" [] "the machine" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "buildInfo" ["buildinfo"] "version and build" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "features" [] "build features" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }
};
