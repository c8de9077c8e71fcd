//! Commands that define collections and indexes, and list them.

use pinion_wire::CommandSpec;

pub(super) const DDL: &[CommandSpec] = commands! {
    "create" [] "make a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Statement;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: MakesDatabase }

    "collMod" [] "change a collection, a view or an index" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "drop" [] "drop a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "dropDatabase" [] "drop a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "renameCollection" [] "rename a collection" {
        class: Command, role: Plain, namespace: FullName, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "cloneCollectionAsCapped" [] "copy a collection into a capped one" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "convertToCapped" [] "make a collection a capped one" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "createIndexes" [] "make indexes" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Statement;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: MakesDatabase }

    "dropIndexes" ["deleteIndexes"] "drop indexes" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "reIndex" [] "make the entries of all indexes anew" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Node }

    "setIndexCommitQuorum" [] "change which members a build of indexes waits for" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "createSearchIndexes" [] "indexes of a search server" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "updateSearchIndex" [] "indexes of a search server" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "dropSearchIndex" [] "indexes of a search server" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "listSearchIndexes" [] "indexes of a search server" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "listIndexes" [] "the indexes of a collection" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "listCollections" [] "the collections of a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "listDatabases" [] "the databases" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }
};
