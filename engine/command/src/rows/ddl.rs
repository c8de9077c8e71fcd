//! Commands that define collections and indexes, and list them.

use pinion_wire::CommandSpec;

pub(super) const DDL: &[CommandSpec] = commands! {
    "create" [] "make a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Statement;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "collMod" [] "change a collection, a view or an index" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "drop" [] "drop a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dropDatabase" [] "drop a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "renameCollection" [] "rename a collection" {
        class: Command, role: Plain, namespace: FullName, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "cloneCollectionAsCapped" [] "copy a collection into a capped one" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "convertToCapped" [] "make a collection a capped one" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "createIndexes" [] "make indexes" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Statement;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dropIndexes" ["deleteIndexes"] "drop indexes" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "reIndex" [] "make the entries of all indexes anew" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "setIndexCommitQuorum" [] "change which members a build of indexes waits for" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "createSearchIndexes" [] "indexes of a search server" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "updateSearchIndex" [] "indexes of a search server" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dropSearchIndex" [] "indexes of a search server" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "listSearchIndexes" [] "indexes of a search server" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "listIndexes" [] "the indexes of a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "listCollections" [] "the collections of a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "listDatabases" [] "the databases" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }
};
