//! Commands of connections, sessions and transactions.

use pinion_wire::CommandSpec;

pub(super) const SESSION: &[CommandSpec] = commands! {
    "hello" [] "who this node is" {
        class: Command, role: Hello, namespace: None, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: yes, during_reopen: yes, for_members: no; privileges: Undeclared, routing: Router }

    "isMaster" ["ismaster"] "who this node is" {
        class: Command, role: IsMaster, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: yes, during_reopen: yes, for_members: no; privileges: Undeclared, routing: Router }

    "ping" [] "whether this node answers" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "whatsmyuri" [] "the client's address" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "startSession" [] "begin a session" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "endSessions" [] "end sessions" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "refreshSessions" [] "keep sessions" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "killSessions" [] "kill sessions and what runs in them" {
        class: Command, role: Kill, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "killAllSessions" [] "kill all sessions" {
        class: Command, role: Kill, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "killAllSessionsByPattern" [] "kill all sessions" {
        class: Command, role: Kill, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "commitTransaction" [] "commit a transaction" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Commit;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "abortTransaction" [] "abort a transaction" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: yes, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Abort;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "prepareTransaction" [] "prepare a transaction for its commit" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Prepare;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: yes; privileges: Undeclared, routing: Node }
};
