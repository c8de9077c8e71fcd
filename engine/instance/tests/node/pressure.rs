//! Writes that find no memory: how often they are tried again, and what is counted of them.

use std::time::Duration;

use pinion_bson::{Document, doc};

use crate::harness::{Client, options, with_options};

const UNAVAILABLE: i32 = 365;
/// Less than one document takes in memory.
const CACHE_BYTES: u64 = 256 * 1024;

/// What `metrics.operation` says of memory that was short: all errors, and those that clients got.
async fn counted(client: &Client) -> [i64; 2] {
    let status = client.ok(doc! { "serverStatus": 1 }).await;
    let metrics = status.get_document("metrics").expect("a section");
    let operation = metrics.get_document("operation").expect("a section");
    [
        "temporarilyUnavailableErrors",
        "temporarilyUnavailableErrorsEscaped",
    ]
    .map(|name| operation.get_i64(name).expect("a counter"))
}

async fn set(client: &Client, retries: i32) {
    let parameters = doc! {
        "setParameter": 1,
        "temporarilyUnavailableMaxRetries": retries,
        "temporarilyUnavailableBackoffBaseMs": 1,
    };
    client.at("admin").ok(parameters).await;
}

/// Writes that number of documents one behind the other; gives the code of the first error.
async fn fill(client: &Client, numbers: std::ops::Range<i32>) -> Option<i32> {
    let text = "x".repeat(200_000);
    for number in numbers {
        let insert = doc! { "insert": "c", "documents": [{ "_id": number, "x": &text }] };
        let reply = client.run(insert).await;
        if let Some(code) = first_code(&reply) {
            return Some(code);
        }
    }
    None
}

fn first_code(reply: &Document) -> Option<i32> {
    let errors = reply.get_array("writeErrors").ok()?;
    let error = errors.first().and_then(|error| error.as_document());
    Some(error.expect("an error").get_i32("code").expect("a code"))
}

/// Storage waits for no memory here, so writes come faster than they are merged.
#[test]
fn writes_without_memory_are_tried_again_and_counted() {
    let mut options = options(1);
    options.storage.cache_bytes = CACHE_BYTES;
    options.storage.memory_wait = Duration::ZERO;
    with_options(1200, 1, options, |client| async move {
        set(&client, 0).await;
        assert_eq!(counted(&client).await, [0, 0]);
        assert_eq!(fill(&client, 0..200).await, Some(UNAVAILABLE));
        assert_eq!(counted(&client).await, [1, 1]);
        set(&client, 100_000).await;
        assert_eq!(fill(&client, 200..240).await, None);
        let [errors, escaped] = counted(&client).await;
        assert!(errors > 1, "{errors}");
        assert_eq!(escaped, 1);
    });
}
