//! How a monitor asks a host: hellos, of which some wait for a change and stream their replies, and
//! pings for the round trip.

use std::rc::Rc;

use pinion_bson::{RawDocumentBuf, cstr, rawdoc};
use pinion_runtime::{Duration, now};
use pinion_server::{PooledConnection, RemoteError, RemoteReply};
use pinion_sharding_protocol::limits::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT};
use pinion_sharding_protocol::{HelloReply, MonitorInput, TopologyVersion};
use pinion_wire::HostPort;

use super::monitors::SetMonitor;

/// Asks a host for its state; with a version, once that has changed, and again with each change.
/// The monitor limits the time.
pub(super) async fn hello(
    set: Rc<SetMonitor>,
    host: HostPort,
    check: u64,
    awaits: Option<TopologyVersion>,
) {
    let connection = match set.take_idle(&host) {
        Some(connection) => Ok(connection),
        None => set.pool.open(&host, HEARTBEAT_TIMEOUT).await,
    };
    let outcome = match (connection, awaits) {
        (Err(error), _) => Err(error),
        (Ok(connection), None) => ask(&set, &host, check, connection).await,
        (Ok(connection), Some(version)) => stream(&set, &host, check, connection, version).await,
    };
    if let Err(error) = outcome {
        let why = error.to_string();
        set.step(MonitorInput::Failed { host, check, why });
    }
}

async fn ask(
    set: &Rc<SetMonitor>,
    host: &HostPort,
    check: u64,
    mut connection: PooledConnection,
) -> Result<(), RemoteError> {
    let since = now();
    let reply = connection.run(&command(None)).await?;
    let rtt = since.elapsed();
    set.keep_idle(host, connection);
    set.step(replied(host, check, Some(rtt), &reply));
    Ok(())
}

async fn stream(
    set: &Rc<SetMonitor>,
    host: &HostPort,
    check: u64,
    mut connection: PooledConnection,
    version: TopologyVersion,
) -> Result<(), RemoteError> {
    connection.stream(&command(Some(version))).await?;
    loop {
        let reply = connection.next().await?;
        if !reply.more_to_come() {
            set.keep_idle(host, connection);
            set.step(replied(host, check, None, &reply));
            return Ok(());
        }
        set.step(replied(host, check, None, &reply));
    }
}

fn replied(
    host: &HostPort,
    check: u64,
    rtt: Option<Duration>,
    reply: &RemoteReply,
) -> MonitorInput {
    MonitorInput::Replied {
        host: host.clone(),
        check,
        rtt,
        reply: Box::new(HelloReply::parse(reply.body())),
        more_to_come: reply.more_to_come(),
    }
}

/// Those of MongoDB 4.4 know the command by its older name alone.
fn command(awaits: Option<TopologyVersion>) -> RawDocumentBuf {
    let mut command = rawdoc! { "isMaster": 1 };
    if let Some(version) = awaits {
        let limit_ms = HEARTBEAT_INTERVAL.as_millis() as i64;
        command.append(cstr!("topologyVersion"), version.to_document());
        command.append(cstr!("maxAwaitTimeMS"), limit_ms);
    }
    command.append(cstr!("$db"), "admin");
    command
}

/// Measures a round trip.
pub(super) async fn ping(set: Rc<SetMonitor>, host: HostPort, check: u64) {
    let input = match round_trip(&set, &host).await {
        Ok(rtt) => MonitorInput::Pinged { host, check, rtt },
        Err(error) => {
            let why = error.to_string();
            MonitorInput::Failed { host, check, why }
        }
    };
    set.step(input);
}

async fn round_trip(set: &SetMonitor, host: &HostPort) -> Result<Duration, RemoteError> {
    let mut connection = set.pool.acquire(host, HEARTBEAT_TIMEOUT).await?;
    let since = now();
    let reply = connection.run(&rawdoc! { "ping": 1, "$db": "admin" }).await;
    let rtt = since.elapsed();
    connection.give_back(&reply);
    reply.map(|_| rtt)
}
