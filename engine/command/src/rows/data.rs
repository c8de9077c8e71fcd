//! Commands that read and write documents.

use pinion_wire::CommandSpec;

pub(super) const DATA: &[CommandSpec] = commands! {
    "find" [] "query for documents" {
        class: Read, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: All, write_concern: no, on_secondary: OptIn, in_transaction: Statement;
        retryable: no, explain: Find, op: Query, top: Query, counts_as_command: no;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "getMore" [] "continue a cursor" {
        class: Read, role: GetMore, namespace: CollectionField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: All, write_concern: no, on_secondary: Always, in_transaction: Cursor;
        retryable: no, explain: No, op: GetMore, top: GetMore, counts_as_command: no;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "killCursors" [] "close cursors" {
        class: Command, role: Kill, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: CloseCursor;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "insert" [] "insert documents" {
        class: Write, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: ["documents"];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Statement;
        retryable: yes, explain: No, op: Insert, top: Insert, counts_as_command: no;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "update" [] "update documents" {
        class: Write, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: ["updates"];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Statement;
        retryable: yes, explain: Update, op: Update, top: Update, counts_as_command: no;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "delete" [] "delete documents" {
        class: Write, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: ["deletes"];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Statement;
        retryable: yes, explain: Delete, op: Remove, top: Remove, counts_as_command: no;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "bulkWrite" [] "insert, update and delete documents of several collections" {
        class: Write, role: Plain, namespace: InBody, admin_only: yes, api_v1: yes, sequences: ["ops", "nsInfo"];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: AdminStatement;
        retryable: yes, explain: No, op: Command, top: No, counts_as_command: no;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "findAndModify" ["findandmodify"] "change one document and return it" {
        class: Write, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Statement;
        retryable: yes, explain: FindAndModify, op: Command, top: Update, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "count" [] "count documents" {
        class: Read, role: Plain, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: NoSnapshot, write_concern: no, on_secondary: OptIn, in_transaction: Alternative;
        retryable: no, explain: Count, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "distinct" [] "the values of a field" {
        class: Read, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: All, write_concern: no, on_secondary: OptIn, in_transaction: Statement;
        retryable: no, explain: Distinct, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "aggregate" [] "run a pipeline" {
        class: Read, role: Pipeline, namespace: FirstField, admin_only: no, api_v1: yes, sequences: [];
        read_concern: All, write_concern: yes, on_secondary: OptIn, in_transaction: Statement;
        retryable: no, explain: Aggregate, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "mapReduce" ["mapreduce"] "group by functions in JavaScript, which there are none of" {
        class: Command, role: Plain, namespace: FirstField, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: Command, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: PrimaryShard }

    "explain" [] "tell how a command would run" {
        class: Read, role: Plain, namespace: InBody, admin_only: no, api_v1: yes, sequences: [];
        read_concern: All, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }
};
