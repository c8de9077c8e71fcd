//! Accepting connections and handing them to the cores in turn.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use pinion_runtime::{
    CoreId, Incoming, Listener, Queue, core_count, core_id, core_local, join_all, on_all_cores,
    shutdown_requested, sleep, submit_to,
};
use pinion_wire::ServerCounters;

use crate::core::{ServerCore, ServerOptions, ServerShared};
use crate::limits::{ACCEPT_PAUSE, MAX_ACCEPT_PAUSE};

/// Serves connections until the node is asked to shut down and `farewell` has completed, which
/// begins then; then ends them and returns.
///
/// Called on one core. Before it, every core has set its `Registry` as a core-local value.
pub async fn serve(
    listeners: Vec<Listener>,
    options: ServerOptions,
    farewell: impl Future<Output = ()>,
) {
    let shared = install_shared(options).await;
    let end = async {
        shutdown_requested().await;
        farewell.await;
    };
    accept_until(end, &listeners, &shared).await;
    // A client that connects from here on is refused by the system at once.
    drop(listeners);
    drain().await;
}

/// Sets up the connection layer on every core, without accepting anything: for callers that bring
/// their messages to `Direct`.
pub async fn install(options: ServerOptions) {
    install_shared(options).await;
}

async fn install_shared(options: ServerOptions) -> Arc<ServerShared> {
    let shared = Arc::new(ServerShared::new(options));
    let for_cores = shared.clone();
    on_all_cores(move |_| {
        let shared = for_cores.clone();
        async move { ServerCore::install(shared) }
    })
    .await;
    shared
}

async fn accept_until(
    end: impl Future<Output = ()>,
    listeners: &[Listener],
    shared: &Arc<ServerShared>,
) {
    let turn = Cell::new(0);
    let mut accepting = pin!(join_all(
        listeners
            .iter()
            .map(|listener| accept(listener, shared, &turn))
    ));
    let mut end = pin!(end);
    poll_fn(|context| match end.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => accepting.as_mut().poll(context).map(|_| ()),
    })
    .await;
}

/// Ends all connections on all cores. `serve` does it at shutdown.
pub async fn drain() {
    on_all_cores(|_| async { core_local::<ServerCore>().drain().await }).await;
}

async fn accept(listener: &Listener, shared: &Arc<ServerShared>, turn: &Cell<usize>) {
    let mut pause = ACCEPT_PAUSE;
    loop {
        match listener.accept().await {
            Ok(incoming) => {
                pause = ACCEPT_PAUSE;
                hand_over(incoming, shared, turn).await;
            }
            Err(error) => {
                tracing::warn!(target: "NETWORK", id = 23_022u64, ctx = "listener", error = %error, "Error accepting new connection");
                sleep(pause).await;
                pause = (pause * 2).min(MAX_ACCEPT_PAUSE);
            }
        }
    }
}

async fn hand_over(incoming: Incoming, shared: &Arc<ServerShared>, turn: &Cell<usize>) {
    let Some(place) = shared.admit() else {
        ServerCounters::add(&core_local::<ServerCounters>().rejected, 1);
        tracing::info!(target: "NETWORK", id = 22_942u64, ctx = "listener", remote = %incoming.peer_addr(), connectionCount = shared.open(), "Connection refused because there are too many open connections");
        return;
    };
    let connection_id = shared.next_connection_id();
    let core = CoreId((turn.get() % core_count()) as u16);
    turn.set(turn.get().wrapping_add(1));
    if core == core_id() {
        core_local::<ServerCore>().take(incoming, place, connection_id);
    } else {
        submit_to(core, Queue::Foreground, move || async move {
            core_local::<ServerCore>().take(incoming, place, connection_id);
        })
        .await;
    }
}
