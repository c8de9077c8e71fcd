//! Commands that the nodes of a sharded cluster send to each other, and what operators ask a shard.

use pinion_wire::CommandSpec;

pub(super) const SHARDING: &[CommandSpec] = commands! {
    "_addShard" [] "make this replica set a shard of a cluster" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_flushDatabaseCacheUpdates" ["_flushDatabaseCacheUpdatesWithWriteConcern"] "learn the version of a database, for secondaries too" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_shardsvrDropDatabase" [] "remove a database of which this shard is the primary" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_flushRoutingTableCacheUpdates" ["_flushRoutingTableCacheUpdatesWithWriteConcern"] "learn the routing table of a collection, for secondaries too" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_shardsvrCreateCollection" [] "shard a collection of whose database this shard is the primary" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_shardsvrCreateCollectionParticipant" [] "make a collection on a shard that is to own chunks of it" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_shardsvrDropCollection" [] "remove a collection of whose database this shard is the primary" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_shardsvrDropCollectionParticipant" [] "remove what a shard has of a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_shardsvrDropDatabaseParticipant" [] "remove what a shard has of a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "getShardVersion" [] "version of a collection that this shard goes by" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Node }

    "getDatabaseVersion" [] "version of a database that this shard goes by" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Node }

    "shardingState" [] "which shard of which cluster this node is" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Node }

    "_configsvrAddShard" [] "add a shard to the cluster" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_configsvrCreateDatabase" [] "have a database, on a shard of the cluster" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_configsvrDropDatabase" [] "forget a database that its shard has removed" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_configsvrCommitCreateCollection" [] "write the routing table of a collection that is sharded now" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_configsvrCommitDropCollection" [] "forget the routing table of a collection" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_configsvrAddShardToZone" [] "put a shard into a zone" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_configsvrRemoveShardFromZone" [] "take a shard out of a zone" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }

    "_configsvrUpdateZoneKeyRange" [] "put a range of keys into a zone, or take it out" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }
};
