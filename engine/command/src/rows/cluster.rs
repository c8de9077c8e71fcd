//! Commands about a cluster with shards, which its routers answer.

use pinion_wire::CommandSpec;

pub(super) const CLUSTER: &[CommandSpec] = commands! {
    "addShard" ["addshard"] "add a replica set to the cluster" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "listShards" [] "the shards of the cluster" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "enableSharding" ["enablesharding"] "make a database, on a shard if that is named" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "shardCollection" ["shardcollection"] "shard a collection by a key" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "addShardToZone" [] "put a shard into a zone" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "removeShardFromZone" [] "take a shard out of a zone" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "updateZoneKeyRange" [] "put a range of keys into a zone, or take it out" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "getShardMap" [] "the hosts of each shard" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "flushRouterConfig" ["flushrouterconfig"] "forget where databases are" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "isdbgrid" [] "whether this is a router" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }
};
