//! Waiting for many descriptors at once (`epoll(7)`).

use crate::base::{Error, Result};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// What a [`Poller`] found: whose token, and what may be done.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The token given at [`Poller::add`].
    pub token: u64,
    /// Something may be read, or the other side is gone.
    pub readable: bool,
    /// Something may be written.
    pub writable: bool,
}

/// A level-triggered epoll instance. It is itself a descriptor that becomes readable when one of its members is ready.
pub struct Poller(Epoll);

impl Poller {
    /// An empty one.
    pub fn new() -> Result<Poller> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Poller).map_err(|e| Error::io("epoll_create1", e))
    }

    /// Watches `fd` for reading.
    ///
    /// A descriptor that is shared with another process must be given to [`Poller::remove`] before it is closed:
    /// closing our copy alone would leave it in the set.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<()> {
        self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token)).map_err(|e| Error::io("epoll_ctl(ADD)", e))
    }

    /// Says what to watch `fd` for from now on.
    pub fn modify(&self, fd: impl AsFd, token: u64, read: bool, write: bool) {
        let mut flags = EpollFlags::empty();
        flags.set(EpollFlags::EPOLLIN, read);
        flags.set(EpollFlags::EPOLLOUT, write);
        let _ = self.0.modify(fd, &mut EpollEvent::new(flags, token));
    }

    /// Forgets `fd`.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = self.0.delete(fd);
    }

    /// Up to 16 members that are ready now, without waiting.
    pub fn ready(&self) -> Vec<Ready> {
        self.wait(0)
    }

    /// Up to 16 members that are ready, waited for up to `timeout_ms` milliseconds.
    pub fn wait(&self, timeout_ms: u16) -> Vec<Ready> {
        let mut events = [EpollEvent::empty(); 16];
        let n = match self.0.wait(&mut events, EpollTimeout::from(timeout_ms)) {
            Ok(n) => n,
            Err(Errno::EINTR) => 0,
            Err(e) => {
                tracing::error!("epoll_wait: {e}");
                0
            }
        };
        let gone = EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        let seen =
            |e: &EpollEvent| Ready { token: e.data(), readable: e.events().intersects(gone), writable: e.events().contains(EpollFlags::EPOLLOUT) };
        events[..n].iter().map(seen).collect()
    }

    /// For polling the poller.
    pub fn raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}
