//! Unix sockets that keep message borders (`SOCK_SEQPACKET`) and carry descriptors. All are non-blocking and close-on-exec.

use crate::base::{Error, Result};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::socket::{accept4, bind, getsockopt, listen as nix_listen, setsockopt, shutdown as nix_shutdown, socket};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Most descriptors that one message may carry here. The kernel closes those beyond.
pub const MAX_FDS: usize = 4;

/// Wanted size of a socket's send buffer: a message may fill at most what the socket may hold.
const SEND_BUFFER: usize = 512 * 1024;

const FLAGS: SockFlag = SockFlag::SOCK_CLOEXEC.union(SockFlag::SOCK_NONBLOCK);

fn address(path: &Path) -> Result<UnixAddr> {
    UnixAddr::new(path).map_err(|e| Error::io(format!("socket path {}", path.display()), e))
}

/// A listening socket at `path`, which must not exist yet.
pub fn listen(path: &Path) -> Result<OwnedFd> {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, FLAGS, None).map_err(|e| Error::io("socket", e))?;
    bind(fd.as_raw_fd(), &address(path)?).map_err(|e| Error::io(format!("bind {}", path.display()), e))?;
    nix_listen(&fd, Backlog::MAXCONN).map_err(|e| Error::io(format!("listen {}", path.display()), e))?;
    Ok(fd)
}

/// The next waiting connection, if there is one.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match accept4(listener, FLAGS) {
        Ok(fd) => {
            enlarge(&fd);
            Ok(Some(fd))
        }
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// A connection to the socket at `path`; an error at once where nobody listens or where the queue of connections is full.
pub fn connect(path: &Path) -> Result<OwnedFd> {
    connect_as(path, SockType::SeqPacket).map_err(|e| Error::io(format!("connect {}", path.display()), e))
}

/// Whether some process listens on the stream or packet socket at `path`. A file that nobody listens on is a left-over.
pub fn is_listening(path: &Path) -> bool {
    [SockType::Stream, SockType::SeqPacket].into_iter().any(|kind| matches!(connect_as(path, kind), Ok(_) | Err(Errno::EAGAIN)))
}

fn connect_as(path: &Path, kind: SockType) -> Result<OwnedFd, Errno> {
    let fd = socket(AddressFamily::Unix, kind, FLAGS, None)?;
    enlarge(&fd);
    nix::sys::socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

// The kernel takes its own maximum (`net.core.wmem_max`) where that is smaller.
fn enlarge(fd: &OwnedFd) {
    let _ = setsockopt(fd, sockopt::SndBuf, &SEND_BUFFER);
}

/// Who is on the other side, as the kernel recorded it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process, in our PID namespace; 0 if it has no number there.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// Who is on the other side.
pub fn peer(fd: BorrowedFd<'_>) -> Result<Credentials> {
    let c = getsockopt(&fd, sockopt::PeerCredentials).map_err(|e| Error::io("SO_PEERCRED", e))?;
    Ok(Credentials { pid: u32::try_from(c.pid()).unwrap_or(0), uid: c.uid() })
}

/// A handle of the process on the other side, where the kernel can give one (Linux 6.5; before, by its number) and that
/// process still lives.
pub fn peer_pidfd(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    getsockopt(&fd, sockopt::PeerPidfd).ok().or_else(|| {
        let pid = peer(fd).ok()?.pid;
        (pid != 0).then(|| super::process::pidfd_of(pid).ok()).flatten()
    })
}

/// Ends the connection in both directions for every process that holds it, forked children too.
pub fn shutdown(fd: BorrowedFd<'_>) {
    let _ = nix_shutdown(fd.as_raw_fd(), Shutdown::Both);
}

/// Sends one message with its descriptors, whole or not at all (`WouldBlock`). Never raises SIGPIPE.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    use nix::sys::socket::{ControlMessage, sendmsg};
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &rights[..0] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    loop {
        match sendmsg::<()>(fd.as_raw_fd(), &[io::IoSlice::new(bytes)], control, flags, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// One received message.
#[derive(Debug)]
pub struct Received {
    /// Bytes of it in the buffer; 0 when the other side has closed.
    pub len: usize,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
    /// The message, or its descriptors, did not fit (or this process may open no more): what arrived is not the whole.
    pub truncated: bool,
}

// Room for exactly the descriptors of one message: the kernel hands out no more than fit. `cmsghdr` wants its alignment,
// which `u64` has.
const CONTROL_WORDS: usize = (std::mem::size_of::<libc::cmsghdr>() + MAX_FDS * 4).div_ceil(8);

/// Receives one message into `buffer`, or says `WouldBlock`. Descriptors are close-on-exec.
///
/// (nix's `recvmsg` loses, open for ever, the descriptors of a message of which some did not fit.)
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is a C struct of integers and pointers, for which all zeroes (no name, no parts) is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = (CONTROL_WORDS * 8) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let len = loop {
        // SAFETY: `header` describes `buffer` and `control`, both writable, of the lengths given, alive through the call.
        let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) };
        match usize::try_from(n) {
            Ok(n) => break n,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel filled `header`; CMSG_FIRSTHDR and CMSG_NXTHDR walk only inside msg_control/msg_controllen of it.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&header) };
    while !message.is_null() {
        // SAFETY: not null, so it points to a whole cmsghdr inside `control`, which is aligned for it.
        let m = unsafe { &*message };
        if m.cmsg_level == libc::SOL_SOCKET && m.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: `message` is a valid cmsghdr; its data follows it inside `control`.
            let data = unsafe { libc::CMSG_DATA(message) };
            // SAFETY: CMSG_LEN only computes: the bytes before the data.
            let bytes = m.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize;
            for i in 0..bytes / 4 {
                // SAFETY: the kernel wrote `bytes` bytes of descriptors there, each a new one that belongs to us alone.
                fds.push(unsafe { OwnedFd::from_raw_fd(data.cast::<i32>().add(i).read_unaligned()) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        message = unsafe { libc::CMSG_NXTHDR(&header, message) };
    }
    let truncated = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    Ok(Received { len, fds, truncated })
}
