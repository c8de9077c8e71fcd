//! Where a test may hold a build up, in each of its phases.

use std::rc::Rc;

use pinion_runtime::{LocalBoxFuture, set_core_local, sleep, try_core_local};
use pinion_service::limits::KILL_POLL;
use pinion_wire::Result;

use super::work::{BuildPhase, Work};

/// Whether builds of this node wait in a phase for now.
pub type HoldBuilds = Rc<dyn Fn(BuildPhase) -> LocalBoxFuture<'static, bool>>;

struct Hold(HoldBuilds);

/// Has this core ask before the builds that work on it continue. Only a node for tests does.
pub fn set_build_hold(hold: HoldBuilds) {
    set_core_local(Rc::new(Hold(hold)));
}

/// Waits while the phase of a build is held up.
///
/// # Errors
/// The build ends, or is stopped.
pub(crate) async fn held(work: &Work) -> Result<()> {
    let Some(hold) = try_core_local::<Hold>() else {
        return Ok(());
    };
    while (hold.0)(work.progress.phase()).await {
        work.check()?;
        sleep(KILL_POLL).await;
    }
    Ok(())
}
