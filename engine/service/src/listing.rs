//! What a process says of its commands and its build: `listCommands`, `features`.

use pinion_wire::{Invocation, Registry, Reply, Result};

use crate::node_info::node_info;

/// `listCommands`.
pub async fn list_commands(_: Invocation) -> Result<Reply> {
    // Nothing is read of it, and MongoDB passes over fields that it does not know.
    let mut out = Reply::new();
    out.start_document("commands");
    if let Some(registry) = pinion_runtime::try_core_local::<Registry>() {
        let mut specs: Vec<_> = registry.iter().map(|command| command.spec).collect();
        specs.sort_by_key(|spec| spec.name);
        for spec in specs {
            out.start_document(spec.name)
                .append("help", spec.help)
                .append("requiresAuth", false)
                .append("secondaryOk", !spec.is_write())
                .append("adminOnly", spec.admin_only);
            out.start_array("apiVersions");
            if spec.in_api_v1 {
                out.push("1");
            }
            out.end().start_array("deprecatedApiVersions").end().end();
        }
    }
    out.end();
    Ok(out)
}

/// `features`: whose numbers are equal are one process to a balancer of MongoDB 4.4, which ends its
/// round then. In containers all processes have the same id.
pub async fn features(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["features", "oidReset"]);
    reader.finish()?;
    let mut out = Reply::new();
    let [a, b, c, ..] = node_info().process_id.bytes();
    out.append("oidMachine", i32::from_be_bytes([0, a, b, c]));
    Ok(out)
}
