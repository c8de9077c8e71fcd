//! How rows are written: every answer is required, and they come in one order.

macro_rules! commands {
    ($(
        $name:literal [$($alias:literal),*] $help:literal {
            class: $class:ident, role: $role:ident, namespace: $namespace:ident,
            admin_only: $admin:ident, api_v1: $api:ident, sequences: [$($sequence:literal),*];
            read_concern: $read:ident, write_concern: $write:ident, on_secondary: $secondary:ident,
            in_transaction: $transaction:ident;
            retryable: $retryable:ident, explain: $explain:ident, op: $op:ident, top: $top:ident,
            counts_as_command: $counts:ident;
            before_login: $login:ident, during_reopen: $reopen:ident, for_members: $members:ident;
            privileges: $privileges:ident, routing: $routing:ident
        }
    )*) => {
        &[$(CommandSpec {
            name: $name,
            aliases: &[$($alias),*],
            help: $help,
            class: pinion_wire::CommandClass::$class,
            role: pinion_wire::CommandRole::$role,
            namespace: pinion_wire::CommandNamespace::$namespace,
            admin_only: answer!($admin),
            in_api_v1: answer!($api),
            sequences: &[$($sequence),*],
            read_concern: pinion_wire::ReadConcernSupport::$read,
            supports_write_concern: answer!($write),
            on_secondary: pinion_wire::AllowedOnSecondary::$secondary,
            in_transaction: pinion_wire::InTransaction::$transaction,
            is_retryable: answer!($retryable),
            explain: answer!(pinion_wire::ExplainedCommand, $explain),
            op: pinion_wire::LogicalOp::$op,
            top: answer!(pinion_wire::LogicalOp, $top),
            counts_as_command: answer!($counts),
            before_login: answer!($login),
            during_reopen: answer!($reopen),
            for_members: answer!($members),
            privileges: pinion_wire::CommandPrivileges::$privileges,
            routing: pinion_wire::CommandRouting::$routing,
        }),*]
    };
}

/// `yes` or `no`; or, of a type, a variant or `No`.
macro_rules! answer {
    (yes) => {
        true
    };
    (no) => {
        false
    };
    ($kind:path, No) => {
        None
    };
    ($kind:path, $variant:ident) => {{
        use $kind as Kind;
        Some(Kind::$variant)
    }};
}
