//! The way through the gate of a namespace.

use pinion_catalog::{AccessGuard, GateAccess, core_catalog};
use pinion_service::interrupt::interruptible;
use pinion_service::ops::ops;
use pinion_wire::idl::Namespace;
use pinion_wire::{GateKind, OpContext, Result};

/// Passes the gate of a namespace, once it admits the access.
pub(crate) async fn enter(
    ctx: &OpContext,
    ns: &Namespace,
    access: GateAccess,
) -> Result<AccessGuard> {
    let catalog = core_catalog();
    let kind = match access {
        GateAccess::Read | GateAccess::ReadAndStay => GateKind::Read,
        GateAccess::Write => GateKind::Write,
    };
    if let Some(pass) = catalog.gates().try_enter(ns, access) {
        ctx.work().passed_gate(kind, None);
        return Ok(pass);
    }
    let began = pinion_runtime::now();
    let waiting = ops().wait_for_gate(ctx, kind, ns);
    let pass = interruptible(ctx, catalog.gates().enter(ns, access)).await?;
    drop(waiting);
    let us = began.elapsed().as_micros() as u64;
    ctx.work().passed_gate(kind, Some(us));
    Ok(pass)
}
