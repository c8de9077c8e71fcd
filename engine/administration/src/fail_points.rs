//! The commands that a node has for tests, and what they hold up in it.

use std::rc::Rc;

use pinion_catalog::{BuildPhase, set_build_hold};
use pinion_exec::commands::{attach, sessions};
use pinion_service::fail_points::{FailPoint, enter};
use pinion_service::test_commands::{
    configure_fail_point, nothing, test_deprecation, wait_for_fail_point,
};
use pinion_wire::Registry;

/// Attaches the handlers of the commands that a node has only where it was started with
/// `enableTestCommands`.
pub fn register_test_commands(r: &mut Registry) {
    hold_builds();
    attach(r, "configureFailPoint", configure_fail_point);
    attach(r, "waitForFailPoint", wait_for_fail_point);
    attach(r, "refreshLogicalSessionCacheNow", sessions::refresh_now);
    attach(r, "reapLogicalSessionCacheNow", sessions::reap_now);
    attach(r, "testVersion2", nothing);
    attach(r, "testVersions1And2", nothing);
    attach(r, "testDeprecation", test_deprecation);
    attach(r, "testDeprecationInVersion2", nothing);
}

/// Has builds of indexes that work on this core wait where a test holds them up.
fn hold_builds() {
    set_build_hold(Rc::new(|phase| {
        let point = match phase {
            BuildPhase::Scanning => {
                FailPoint::HangIndexBuildDuringCollectionScanPhaseAfterInsertion
            }
            BuildPhase::Loading => FailPoint::HangIndexBuildDuringBulkLoadPhase,
            BuildPhase::Draining => FailPoint::HangIndexBuildDuringDrainWritesPhase,
        };
        Box::pin(async move { enter(point, |_| true).await.is_some() })
    }));
}
