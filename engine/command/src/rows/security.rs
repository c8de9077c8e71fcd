//! Commands by which connections authenticate, and those of users and roles.

use pinion_wire::CommandSpec;

pub(super) const SECURITY: &[CommandSpec] = commands! {
    "saslStart" [] "authenticate this connection" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: yes, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "saslContinue" [] "authenticate this connection" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: yes, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "authenticate" [] "authenticate this connection" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "logout" [] "be nobody again" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "usersInfo" [] "users, of which there are none" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "rolesInfo" [] "roles, of which there are none" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "createUser" [] "make a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "updateUser" [] "change a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dropUser" [] "drop a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "grantRolesToUser" [] "give roles to a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "revokeRolesFromUser" [] "take roles from a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "createRole" [] "make a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "updateRole" [] "change a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dropRole" [] "drop a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "grantPrivilegesToRole" [] "give privileges to a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "revokePrivilegesFromRole" [] "take privileges from a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "grantRolesToRole" [] "give roles to a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "revokeRolesFromRole" [] "take roles from a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dropAllUsersFromDatabase" [] "drop the users of a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }

    "dropAllRolesFromDatabase" [] "drop the roles of a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Undeclared }
};
