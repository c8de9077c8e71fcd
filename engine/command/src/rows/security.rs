//! Commands by which connections authenticate, and those of users and roles.

use pinion_wire::CommandSpec;

pub(super) const SECURITY: &[CommandSpec] = commands! {
    "saslStart" [] "authenticate this connection" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: yes, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "saslContinue" [] "authenticate this connection" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: yes, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "authenticate" [] "authenticate this connection" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "logout" [] "be nobody again" {
        class: Command, role: Plain, namespace: None, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }

    "usersInfo" [] "what is known of users" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "rolesInfo" [] "what is known of roles" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: OptIn, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "createUser" [] "make a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "updateUser" [] "change a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "dropUser" [] "drop a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "grantRolesToUser" [] "give roles to a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "revokeRolesFromUser" [] "take roles from a user" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "createRole" [] "make a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "updateRole" [] "change a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "dropRole" [] "drop a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "grantPrivilegesToRole" [] "give privileges to a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "revokePrivilegesFromRole" [] "take privileges from a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "grantRolesToRole" [] "give roles to a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "revokeRolesFromRole" [] "take roles from a role" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "dropAllUsersFromDatabase" [] "drop the users of a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "dropAllRolesFromDatabase" [] "drop the roles of a database" {
        class: Command, role: Plain, namespace: Database, admin_only: no, api_v1: no, sequences: [];
        read_concern: Local, write_concern: yes, on_secondary: Never, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: ConfigServer }

    "invalidateUserCache" [] "read users and roles again" {
        class: Command, role: Plain, namespace: None, admin_only: yes, api_v1: no, sequences: [];
        read_concern: Local, write_concern: no, on_secondary: Always, in_transaction: Never;
        retryable: no, explain: No, op: Command, top: No, counts_as_command: yes;
        before_login: no, during_reopen: no, for_members: no; privileges: Undeclared, routing: Router }
};
