//! WiredTiger, through its C interface.

use std::ffi::{CStr, CString, c_int};
use std::ptr::{NonNull, null, null_mut};

use crate::data::Key;
use crate::session::{CHECKPOINT_INTERVAL, Durability, Outcome, Peer, Session, Settings, text};

#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code
)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod ffi {
    include!(concat!(env!("OUT_DIR"), "/wiredtiger.rs"));
}

const TABLE: &CStr = c"table:records";
/// What MongoDB gives its collections, without compression.
const TABLE_CONFIG: &CStr = c"key_format=u,value_format=u,type=file,memory_page_max=10m,split_pct=90,leaf_value_max=64MB,checksum=on,block_compressor=none,log=(enabled=true)";

pub struct WiredTiger {
    connection: NonNull<ffi::WT_CONNECTION>,
}

// SAFETY: a connection may be used by any thread; a session is used by the thread that opened it
// alone.
unsafe impl Sync for WiredTiger {}
// SAFETY: as above.
unsafe impl Send for WiredTiger {}

pub struct WiredTigerSession<'a> {
    session: NonNull<ffi::WT_SESSION>,
    cursor: NonNull<ffi::WT_CURSOR>,
    in_snapshot: bool,
    _of: std::marker::PhantomData<&'a WiredTiger>,
}

/// Calls a method of a handle: `call!(handle.method(arguments))`.
macro_rules! call {
    ($handle:expr, $method:ident $(, $argument:expr)*) => {{
        let handle = $handle.as_ptr();
        // SAFETY: the handle is open, and WiredTiger fills in every method of an open handle.
        unsafe {
            ((*handle).$method.expect("every handle has its methods"))(handle $(, $argument)*)
        }
    }};
}

fn check(code: c_int) -> Outcome<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: it returns a string that lives until this thread asks again.
    let message = unsafe { CStr::from_ptr(ffi::wiredtiger_strerror(code)) };
    Err(message.to_string_lossy().into_owned())
}

fn item(bytes: &[u8]) -> ffi::WT_ITEM {
    // SAFETY: all zeros are what WiredTiger asks callers to begin an item with.
    let mut item: ffi::WT_ITEM = unsafe { std::mem::zeroed() };
    item.data = bytes.as_ptr().cast();
    item.size = bytes.len();
    item
}

fn bytes_of(item: &ffi::WT_ITEM) -> &[u8] {
    if item.size == 0 {
        return &[];
    }
    // SAFETY: the cursor that filled it in has not moved.
    unsafe { std::slice::from_raw_parts(item.data.cast(), item.size) }
}

impl WiredTiger {
    fn session_handle(&self) -> Outcome<NonNull<ffi::WT_SESSION>> {
        let mut session = null_mut();
        check(call!(
            self.connection,
            open_session,
            null_mut(),
            null(),
            &mut session
        ))?;
        NonNull::new(session).ok_or("no session".into())
    }

    fn with_session(&self, f: impl FnOnce(NonNull<ffi::WT_SESSION>) -> Outcome<()>) -> Outcome<()> {
        let session = self.session_handle()?;
        let done = f(session);
        check(call!(session, close, null()))?;
        done
    }
}

impl Peer for WiredTiger {
    type Session<'a> = WiredTigerSession<'a>;

    fn version(&self, _: &Settings) -> String {
        // SAFETY: it returns a constant string.
        let version =
            unsafe { CStr::from_ptr(ffi::wiredtiger_version(null_mut(), null_mut(), null_mut())) };
        format!("{} (PyPI's source distribution)", version.to_string_lossy())
    }

    fn about(settings: &Settings) -> String {
        let sync = match settings.durability {
            Durability::Interval => "log buffered and synced every 100 ms",
            Durability::Commit => "transaction_sync=(enabled,method=fsync)",
        };
        format!(
            "{sync}; cache {} MiB, tables as MongoDB makes them, no compression, {} or for 2 GB of log",
            settings.cache_bytes >> 20,
            settings.about_checkpoints(),
        )
    }

    fn open(settings: &Settings) -> Outcome<WiredTiger> {
        std::fs::create_dir_all(&settings.dir).map_err(text)?;
        let config = format!(
            "create,cache_size={},session_max=1000,eviction=(threads_min=4,threads_max=4),log=(enabled=true,remove=true,compressor=none),checkpoint=(wait={},log_size=2GB),transaction_sync=(enabled={},method=fsync)",
            settings.cache_bytes,
            if settings.checkpoints {
                CHECKPOINT_INTERVAL.as_secs()
            } else {
                0
            },
            settings.durability == Durability::Commit
        );
        let config = CString::new(config).map_err(text)?;
        let home = CString::new(settings.dir.as_os_str().as_encoded_bytes()).map_err(text)?;
        let mut connection = null_mut();
        // SAFETY: strings end with zero, and the pointer is to a local.
        check(unsafe {
            ffi::wiredtiger_open(home.as_ptr(), null_mut(), config.as_ptr(), &mut connection)
        })?;
        let connection = NonNull::new(connection).ok_or("no connection")?;
        let wiredtiger = WiredTiger { connection };
        wiredtiger.with_session(|session| {
            check(call!(
                session,
                create,
                TABLE.as_ptr(),
                TABLE_CONFIG.as_ptr()
            ))
        })?;
        Ok(wiredtiger)
    }

    fn session(&self) -> Outcome<WiredTigerSession<'_>> {
        let session = self.session_handle()?;
        let mut cursor = null_mut();
        check(call!(
            session,
            open_cursor,
            TABLE.as_ptr(),
            null_mut(),
            c"overwrite=true".as_ptr(),
            &mut cursor
        ))?;
        Ok(WiredTigerSession {
            session,
            cursor: NonNull::new(cursor).ok_or("no cursor")?,
            in_snapshot: false,
            _of: std::marker::PhantomData,
        })
    }

    fn sync(&self) -> Outcome<()> {
        self.with_session(|session| check(call!(session, log_flush, c"sync=on".as_ptr())))
    }

    fn settle(&self) -> Outcome<()> {
        self.with_session(|session| check(call!(session, checkpoint, null())))
    }

    fn close(self) -> Outcome<()> {
        self.settle()?;
        check(call!(self.connection, close, null()))
    }
}

impl Drop for WiredTigerSession<'_> {
    fn drop(&mut self) {
        // Closing a session closes its cursors and ends its transaction; there is nothing to do
        // about an error.
        let _ = call!(self.session, close, null());
    }
}

impl WiredTigerSession<'_> {
    fn set_key(&mut self, key: &ffi::WT_ITEM) {
        call!(self.cursor, set_key, std::ptr::from_ref(key));
    }

    /// A write that conflicts with another is tried again, as MongoDB does.
    fn insert(&mut self, key: &Key, value: &[u8]) -> Outcome<()> {
        let (key, value) = (item(key), item(value));
        loop {
            self.set_key(&key);
            call!(self.cursor, set_value, std::ptr::from_ref(&value));
            match call!(self.cursor, insert) {
                ffi::WT_ROLLBACK if !self.in_snapshot => {}
                code => return check(code),
            }
        }
    }
}

impl Session for WiredTigerSession<'_> {
    async fn refresh(&mut self) -> Outcome<()> {
        if self.in_snapshot {
            check(call!(self.session, rollback_transaction, null()))?;
        }
        check(call!(
            self.session,
            begin_transaction,
            c"isolation=snapshot".as_ptr()
        ))?;
        self.in_snapshot = true;
        Ok(())
    }

    async fn get(&mut self, key: &Key, mut see: impl FnMut(&[u8])) -> Outcome<bool> {
        self.set_key(&item(key));
        match call!(self.cursor, search) {
            ffi::WT_NOTFOUND => return Ok(false),
            code => check(code)?,
        }
        let mut value = item(&[]);
        check(call!(
            self.cursor,
            get_value,
            std::ptr::from_mut(&mut value)
        ))?;
        see(bytes_of(&value));
        check(call!(self.cursor, reset))?;
        Ok(true)
    }

    async fn scan(
        &mut self,
        from: Option<&Key>,
        limit: usize,
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Outcome<usize> {
        let mut code = match from {
            Some(from) => {
                self.set_key(&item(from));
                let mut side = 0;
                match call!(self.cursor, search_near, &mut side) {
                    0 if side < 0 => call!(self.cursor, next),
                    code => code,
                }
            }
            None => {
                check(call!(self.cursor, reset))?;
                call!(self.cursor, next)
            }
        };
        let mut seen = 0;
        while code == 0 {
            let (mut key, mut value) = (item(&[]), item(&[]));
            check(call!(self.cursor, get_key, std::ptr::from_mut(&mut key)))?;
            check(call!(
                self.cursor,
                get_value,
                std::ptr::from_mut(&mut value)
            ))?;
            see(bytes_of(&key), bytes_of(&value));
            seen += 1;
            if seen == limit {
                break;
            }
            code = call!(self.cursor, next);
        }
        if code != ffi::WT_NOTFOUND {
            check(code)?;
            check(call!(self.cursor, reset))?;
        }
        Ok(seen)
    }

    async fn put(&mut self, key: &Key, value: &[u8]) -> Outcome<()> {
        self.insert(key, value)
    }

    async fn put_all(&mut self, records: &[(Key, Vec<u8>)]) -> Outcome<()> {
        check(call!(self.session, begin_transaction, null()))?;
        self.in_snapshot = true;
        for (key, value) in records {
            self.insert(key, value)?;
        }
        self.in_snapshot = false;
        check(call!(self.session, commit_transaction, null()))
    }
}
