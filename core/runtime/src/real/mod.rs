//! The real backend's place: until its parts are joined, no value of it can exist.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use crate::core::CoreId;
use crate::dma::DmaBuf;
use crate::file::OpenOptions;
use crate::mesh::Parcel;
use crate::process::RuntimeStats;
use crate::task::Queue;
use crate::time::Instant;

macro_rules! uninhabited {
    ($($name:ident)*) => { $(
        #[derive(Clone)]
        pub(crate) enum $name {}
    )* };
}
uninhabited!(RealCore RealSleep RealYield RealFile RealListener RealIncoming RealConnection RealDirLock);

impl RealCore {
    pub(crate) fn now(&self) -> Instant {
        match *self {}
    }
    pub(crate) fn wall_us(&self) -> i64 {
        match *self {}
    }
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(&self, _queue: Queue, _future: F) {
        match *self {}
    }
    pub(crate) fn should_yield(&self) -> bool {
        match *self {}
    }
    pub(crate) fn yield_now(&self) -> RealYield {
        match *self {}
    }
    pub(crate) fn sleep_until(&self, _at: Instant) -> RealSleep {
        match *self {}
    }
    pub(crate) fn mesh_try_push(&self, _to: CoreId, _parcel: Parcel) -> Result<(), Parcel> {
        match *self {}
    }
    pub(crate) fn request_shutdown(&self) {
        match *self {}
    }
    pub(crate) fn stats(&self) -> RuntimeStats {
        match *self {}
    }
}

impl Future for RealSleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        match *self {}
    }
}

impl Future for RealYield {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        match *self {}
    }
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl RealFile {
    pub(crate) async fn open(_path: &Path, _options: &OpenOptions) -> io::Result<RealFile> {
        unsupported()
    }
    pub(crate) async fn read_at(&self, _offset: u64, _len: usize) -> io::Result<DmaBuf> {
        match *self {}
    }
    pub(crate) async fn write_at(&self, _offset: u64, _data: DmaBuf) -> io::Result<()> {
        match *self {}
    }
    pub(crate) async fn datasync(&self) -> io::Result<()> {
        match *self {}
    }
    pub(crate) async fn allocate(&self, _len: u64) -> io::Result<()> {
        match *self {}
    }
    pub(crate) async fn set_len(&self, _len: u64) -> io::Result<()> {
        match *self {}
    }
    pub(crate) async fn len(&self) -> io::Result<u64> {
        match *self {}
    }
    pub(crate) async fn close(self) -> io::Result<()> {
        match self {}
    }
}

impl RealListener {
    pub(crate) async fn bind(_addr: SocketAddr) -> io::Result<RealListener> {
        unsupported()
    }
    pub(crate) async fn accept(&self) -> io::Result<RealIncoming> {
        match *self {}
    }
    pub(crate) fn local_addr(&self) -> SocketAddr {
        match *self {}
    }
}

impl RealIncoming {
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        match *self {}
    }
    pub(crate) fn local_addr(&self) -> SocketAddr {
        match *self {}
    }
    pub(crate) fn attach(self) -> io::Result<RealConnection> {
        match self {}
    }
}

impl RealConnection {
    pub(crate) async fn connect(_addr: SocketAddr) -> io::Result<RealConnection> {
        unsupported()
    }
    pub(crate) async fn recv(&self, _into: &mut BytesMut) -> io::Result<usize> {
        match *self {}
    }
    pub(crate) async fn send(&self, _data: Bytes) -> io::Result<()> {
        match *self {}
    }
    pub(crate) async fn flush(&self) -> io::Result<()> {
        match *self {}
    }
    pub(crate) fn shutdown_write(&self) {
        match *self {}
    }
    pub(crate) fn close(&self) {
        match *self {}
    }
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        match *self {}
    }
    pub(crate) fn local_addr(&self) -> SocketAddr {
        match *self {}
    }
    pub(crate) fn id(&self) -> u64 {
        match *self {}
    }
}

pub(crate) fn fill_os_random(_bytes: &mut [u8]) {
    unreachable!("only a core of this backend asks for it")
}

pub(crate) mod fs {
    use super::*;
    pub(crate) async fn create_dir_all(_path: &Path) -> io::Result<()> {
        unsupported()
    }
    pub(crate) async fn read_dir(_path: &Path) -> io::Result<Vec<String>> {
        unsupported()
    }
    pub(crate) async fn remove_file(_path: &Path) -> io::Result<()> {
        unsupported()
    }
    pub(crate) async fn rename(_from: &Path, _to: &Path) -> io::Result<()> {
        unsupported()
    }
    pub(crate) async fn sync_dir(_path: &Path) -> io::Result<()> {
        unsupported()
    }
    pub(crate) async fn exists(_path: &Path) -> io::Result<bool> {
        unsupported()
    }
    pub(crate) async fn file_len(_path: &Path) -> io::Result<u64> {
        unsupported()
    }
    pub(crate) async fn read_small(_path: &Path) -> io::Result<Vec<u8>> {
        unsupported()
    }
    pub(crate) async fn free_bytes(_path: &Path) -> io::Result<u64> {
        unsupported()
    }
    pub(crate) async fn lock(_path: &Path) -> io::Result<RealDirLock> {
        unsupported()
    }
}
