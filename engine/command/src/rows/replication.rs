//! Commands of replica sets: those of operators, and those that members send to each other.

use pinion_wire::CommandSpec;

pub(super) const REPLICATION: &[CommandSpec] = commands! {
    "replSetInitiate" [] "begin a replica set" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetReconfig" [] "change the configuration" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetGetConfig" [] "configuration of the replica set" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetGetStatus" [] "state of the replica set" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetGetRBID" [] "how often this member rolled back" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "replSetStepDown" [] "be primary no longer" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetStepUp" [] "ask for election now" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetFreeze" [] "do not ask for election for a while" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetMaintenance" [] "be in maintenance mode" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetSyncFrom" [] "replicate from this member" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetAbortPrimaryCatchUp" [] "be primary without the newest entries" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetResizeOplog" [] "change how much of the oplog is kept" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "applyOps" [] "apply operations as the oplog has them" {
        class: Write, role: Plain, namespace: InBody, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: no;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "appendOplogNote" [] "write a note into the oplog" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "_isSelf" [] "which process this is" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "replSetHeartbeat" [] "sent by other members" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: yes, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "replSetRequestVotes" [] "sent by other members" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "replSetUpdatePosition" [] "sent by other members" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: yes, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "voteCommitIndexBuild" [] "sent by other members" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "voteAbortIndexBuild" [] "sent by other members" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "_replCatalogRows" [] "the catalog, for a member that copies this one" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "_replFreezeCheckpoint" [] "keep a checkpoint for a member that copies its files" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "_replReadCheckpoint" [] "pages of a checkpoint, for a member that copies its files" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Undeclared }

    "_replReleaseCheckpoint" [] "keep a checkpoint no longer" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Undeclared }
};
