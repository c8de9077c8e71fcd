//! Files opened while the node runs. Where the process, or the system, has no free descriptor,
//! nothing was written and nothing is lost: the open is tried again until there is one. Every other
//! error is the caller's, and so is one of a write or a flush.

use std::future::Future;
use std::io;
use std::path::Path;

use pinion_runtime::{Duration, File, OpenOptions, fs, sleep};

use crate::limits::{OPEN_PAUSE, OPEN_WARNING_INTERVAL};

/// Opens a file, as soon as there is a descriptor.
///
/// # Errors
/// Those of [`File::open`] but for the lack of a descriptor.
pub(crate) async fn open_file(path: &Path, options: OpenOptions) -> io::Result<File> {
    until_free(path, || File::open(path, options)).await
}

/// Makes the names in a directory durable, for which it is opened, as soon as there is a
/// descriptor.
///
/// # Errors
/// Those of [`fs::sync_dir`] but for the lack of a descriptor.
pub(crate) async fn sync_dir(path: &Path) -> io::Result<()> {
    until_free(path, || fs::sync_dir(path)).await
}

/// Whether an open failed before it did anything, since the process or the system has too many open
/// files.
fn lacks_descriptor(error: &io::Error) -> bool {
    /// Of the system.
    const ENFILE: i32 = 23;
    /// Of the process.
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

async fn until_free<T, Fut>(path: &Path, open: impl Fn() -> Fut) -> io::Result<T>
where
    Fut: Future<Output = io::Result<T>>,
{
    let mut waited = Duration::ZERO;
    loop {
        match open().await {
            Err(error) if lacks_descriptor(&error) => {
                if waited
                    .as_millis()
                    .is_multiple_of(OPEN_WARNING_INTERVAL.as_millis())
                {
                    tracing::warn!(
                        target: "STORAGE", id = 7_300_010u64, path = %path.display(), error = %error,
                        "Waiting for a free file descriptor: raise the limit of open files (ulimit -n)"
                    );
                }
                sleep(OPEN_PAUSE).await;
                waited += OPEN_PAUSE;
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use pinion_runtime::sim::{Sim, SimOptions};

    use super::*;

    /// How often an open is tried that fails with these errors, one after the other, and what it
    /// comes to.
    #[track_caller]
    fn check(errors: &'static [i32], expected: (usize, Option<i32>)) {
        let sim = Sim::new(1, SimOptions::default());
        let found = Rc::new(Cell::new(None));
        let kept = found.clone();
        sim.add_node("node", 1, move |_| {
            let found = found.clone();
            Box::pin(async move {
                let tried = Cell::new(0);
                let opened = until_free(Path::new("/file"), || {
                    let error = errors.get(tried.replace(tried.get() + 1)).copied();
                    async move { error.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code))) }
                });
                let failed = opened.await.err().and_then(|error| error.raw_os_error());
                found.set(Some((tried.get(), failed)));
            })
        });
        let done = kept.clone();
        assert!(sim.run_until(move || done.get().is_some()).is_ok());
        assert_eq!(kept.get(), Some(expected), "{errors:?}");
    }

    #[test]
    fn only_an_open_without_a_descriptor_is_tried_again() {
        check(&[], (1, None));
        check(&[24, 23, 24], (4, None));
        check(&[28], (1, Some(28)));
        check(&[24, 5, 24], (2, Some(5)));
    }
}
