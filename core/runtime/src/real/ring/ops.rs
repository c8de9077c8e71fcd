//! One-shot requests (files, connect): futures whose buffers stay with the core until the kernel is
//! done, also when the future is dropped before.

use std::cell::RefCell;
use std::ffi::CString;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use slab::Slab;

use super::{Kind, user_data};
use crate::DmaBuf;
use crate::real::core::RealCore;
use crate::real::sys::{RawAddress, own_fd};

/// What a request in flight points to, and gets back when it is done.
pub(in crate::real) enum Keep {
    File(Rc<OwnedFd>),
    Buffer(Rc<OwnedFd>, DmaBuf),
    /// Bytes, and the vectors that give the kernel their addresses.
    Parts(Rc<OwnedFd>, Vec<Bytes>, Vec<libc::iovec>),
    Path(CString),
    Address(OwnedFd, Box<RawAddress>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Done(i32),
    /// The future was dropped; the request is still in flight.
    Abandoned,
}

struct Request {
    state: State,
    keep: Keep,
    waker: Option<Waker>,
}

/// The requests in flight of a core.
pub(in crate::real) struct OpTable {
    requests: RefCell<Slab<Request>>,
}

impl OpTable {
    pub fn new() -> OpTable {
        OpTable {
            requests: RefCell::new(Slab::new()),
        }
    }

    /// Requests not yet completed by the kernel, or completed and not yet taken by their future.
    pub fn len(&self) -> usize {
        self.requests.borrow().len()
    }

    /// Takes a completion.
    pub fn complete(&self, index: u32, result: i32) {
        let mut requests = self.requests.borrow_mut();
        let request = &mut requests[index as usize];
        match request.state {
            State::Waiting => {
                request.state = State::Done(result);
                let waker = request.waker.take();
                drop(requests);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            State::Abandoned => {
                let request = requests.remove(index as usize);
                drop(requests);
                request.discard(result);
            }
            State::Done(_) => panic!("request {index} completed twice"),
        }
    }

    fn insert(&self, keep: Keep) -> u32 {
        self.requests.borrow_mut().insert(Request {
            state: State::Waiting,
            keep,
            waker: None,
        }) as u32
    }
}

impl Request {
    /// Drops a request whose answer is not taken.
    fn discard(self, result: i32) {
        if matches!(self.keep, Keep::Path(_)) && result >= 0 {
            drop(own_fd(result));
        }
    }
}

/// A request in flight. Gives the kernel's answer and what it had borrowed.
pub(in crate::real) struct Op {
    core: RealCore,
    index: Option<u32>,
    /// Whether dropping the future should also cancel the request: for those that may wait for a
    /// peer.
    cancel: bool,
}

impl Op {
    /// Starts a request that borrows from `keep`, as `entry` builds it.
    ///
    /// # Safety
    ///
    /// What the entry points to must lie on the heap, owned by the keep, or be one of its
    /// descriptors.
    unsafe fn start(
        core: &RealCore,
        keep: Keep,
        cancel: bool,
        entry: impl FnOnce(&mut Keep) -> squeue::Entry,
    ) -> Op {
        let mut keep = keep;
        let entry = entry(&mut keep);
        let index = core.ops().insert(keep);
        // SAFETY: the table holds `keep` until the completion; moving it there moved no heap
        // memory.
        unsafe {
            core.uring()
                .push(entry.user_data(user_data(Kind::Op, index)))
        };
        Op {
            core: core.clone(),
            index: Some(index),
            cancel,
        }
    }

    /// Reads into the buffer, from byte `skip` of it on.
    pub fn read(
        core: &RealCore,
        file: Rc<OwnedFd>,
        offset: u64,
        buffer: DmaBuf,
        skip: usize,
    ) -> Op {
        assert!(skip < buffer.len());
        // SAFETY: the entry names the keep's descriptor and a range of the keep's buffer.
        unsafe {
            Op::start(core, Keep::Buffer(file, buffer), false, |keep| {
                let Keep::Buffer(file, buffer) = keep else {
                    unreachable!()
                };
                let len = (buffer.len() - skip) as u32;
                let start = buffer.as_mut_ptr().wrapping_add(skip);
                opcode::Read::new(types::Fd(file.as_raw_fd()), start, len)
                    .offset(offset + skip as u64)
                    .build()
            })
        }
    }

    /// Writes the buffer, from byte `skip` of it on; if `durable`, it is on the device when this
    /// completes.
    pub fn write(
        core: &RealCore,
        file: Rc<OwnedFd>,
        offset: u64,
        buffer: DmaBuf,
        skip: usize,
        durable: bool,
    ) -> Op {
        assert!(skip < buffer.len());
        // The kernel starts the write here and has its own worker flush the device when it is done.
        // Given to a thread of the ring's instead (`IOSQE_ASYNC`), the same only starts later: that
        // thread runs on this processor.
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        // SAFETY: as for `read`; nothing else can write to the buffer while the keep owns it.
        unsafe {
            Op::start(core, Keep::Buffer(file, buffer), false, |keep| {
                let Keep::Buffer(file, buffer) = keep else {
                    unreachable!()
                };
                let len = (buffer.len() - skip) as u32;
                let start = buffer.as_ptr().wrapping_add(skip);
                opcode::Write::new(types::Fd(file.as_raw_fd()), start, len)
                    .offset(offset + skip as u64)
                    .rw_flags(flags)
                    .build()
            })
        }
    }

    /// Writes parts one behind the other, from byte `skip` of them all on.
    pub fn write_parts(
        core: &RealCore,
        file: Rc<OwnedFd>,
        offset: u64,
        parts: Vec<Bytes>,
        skip: usize,
    ) -> Op {
        let mut to_skip = skip;
        let mut vectors = Vec::with_capacity(parts.len());
        for part in &parts {
            let skipped = to_skip.min(part.len());
            to_skip -= skipped;
            if skipped < part.len() {
                vectors.push(libc::iovec {
                    iov_base: part[skipped..].as_ptr().cast_mut().cast(),
                    iov_len: part.len() - skipped,
                });
            }
        }
        assert!(!vectors.is_empty());
        // SAFETY: the entry names the keep's descriptor and its vectors; those name ranges of the
        // keep's parts, which cannot change while they are shared, and which the kernel only reads.
        unsafe {
            let keep = Keep::Parts(file, parts, vectors);
            Op::start(core, keep, false, |keep| {
                let Keep::Parts(file, _, vectors) = keep else {
                    unreachable!()
                };
                let count = u32::try_from(vectors.len()).expect("a transfer has a limit");
                opcode::Writev::new(types::Fd(file.as_raw_fd()), vectors.as_ptr(), count)
                    .offset(offset + skip as u64)
                    .build()
            })
        }
    }

    /// Flushes the file's data, and the metadata needed to read it, to the device.
    pub fn datasync(core: &RealCore, file: Rc<OwnedFd>) -> Op {
        // SAFETY: the entry names the keep's descriptor.
        unsafe {
            Op::start(core, Keep::File(file), false, |keep| {
                let Keep::File(file) = keep else {
                    unreachable!()
                };
                opcode::Fsync::new(types::Fd(file.as_raw_fd()))
                    .flags(types::FsyncFlags::DATASYNC)
                    .build()
            })
        }
    }

    /// Reserves space for the file's first `len` bytes and extends it to them.
    pub fn allocate(core: &RealCore, file: Rc<OwnedFd>, len: u64) -> Op {
        // SAFETY: the entry names the keep's descriptor.
        unsafe {
            Op::start(core, Keep::File(file), false, |keep| {
                let Keep::File(file) = keep else {
                    unreachable!()
                };
                opcode::Fallocate::new(types::Fd(file.as_raw_fd()), len).build()
            })
        }
    }

    /// Opens a file; the answer is a new descriptor.
    pub fn open(core: &RealCore, path: CString, flags: i32, mode: u32) -> Op {
        // SAFETY: the entry points to the keep's path, which is on the heap.
        unsafe {
            Op::start(core, Keep::Path(path), false, |keep| {
                let Keep::Path(path) = keep else {
                    unreachable!()
                };
                opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr())
                    .flags(flags)
                    .mode(mode)
                    .build()
            })
        }
    }

    /// Connects a socket.
    pub fn connect(core: &RealCore, socket: OwnedFd, address: Box<RawAddress>) -> Op {
        // SAFETY: the entry points to the keep's boxed address and names its descriptor.
        unsafe {
            Op::start(core, Keep::Address(socket, address), true, |keep| {
                let Keep::Address(socket, address) = keep else {
                    unreachable!()
                };
                opcode::Connect::new(
                    types::Fd(socket.as_raw_fd()),
                    address.as_ptr(),
                    address.len(),
                )
                .build()
            })
        }
    }
}

impl Future for Op {
    type Output = (io::Result<u32>, Keep);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self
            .index
            .expect("an operation was polled after it completed") as usize;
        let mut requests = self.core.ops().requests.borrow_mut();
        let request = &mut requests[index];
        let State::Done(result) = request.state else {
            match &mut request.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        };
        let request = requests.remove(index);
        drop(requests);
        self.index = None;
        let result = if result < 0 {
            Err(io::Error::from_raw_os_error(-result))
        } else {
            Ok(result as u32)
        };
        Poll::Ready((result, request.keep))
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let Some(index) = self.index.take() else {
            return;
        };
        let mut requests = self.core.ops().requests.borrow_mut();
        let request = &mut requests[index as usize];
        match request.state {
            State::Waiting => {
                request.state = State::Abandoned;
                request.waker = None;
                drop(requests);
                if self.cancel {
                    let cancel = opcode::AsyncCancel::new(user_data(Kind::Op, index)).build();
                    // SAFETY: the entry points to nothing.
                    unsafe {
                        self.core
                            .uring()
                            .push(cancel.user_data(user_data(Kind::Ignored, 0)))
                    };
                }
            }
            State::Done(result) => {
                let request = requests.remove(index as usize);
                drop(requests);
                request.discard(result);
            }
            State::Abandoned => unreachable!("dropped twice"),
        }
    }
}
