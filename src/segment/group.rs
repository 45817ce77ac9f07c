//! The group page: what the students of one job on one host share. One word is the fence of model switches; each lane has a cursor that outlives
//! the process which moves it.

use super::sync::{AtomicU64, Ordering};
use crate::base::{Error, Result, Status};
use crate::os::memory::{self, Mapping};
use crate::os::process;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const MAGIC: u64 = u64::from_le_bytes(*b"LWGROUP1");

/// Lanes that a group page has room for.
pub const MAX_LANES: u64 = 4080;

/// The page's format: 64 KiB.
#[repr(C)]
struct Page {
    magic: AtomicU64,
    uuid: [AtomicU64; 2],
    unused: [u64; 13],
    generation: AtomicU64,
    unused2: [u64; 15],
    lanes: [Lane; MAX_LANES as usize],
}

#[repr(C)]
struct Lane {
    /// Samples taken so far: the step that comes next.
    cursor: AtomicU64,
    /// Whose tickets these are now: pid (upper half) and the low bits of its start time, or 0.
    owner: AtomicU64,
}

/// A mapped group page.
pub struct GroupPage(Mapping);

impl GroupPage {
    /// A new page: generation 0, all cursors 0.
    pub fn create() -> Result<(GroupPage, OwnedFd)> {
        let len = size_of::<Page>();
        let fd = memory::memfd("lw_group", len)?;
        memory::reserve(fd.as_fd(), 0, len, "the group page")?;
        let page = GroupPage(Mapping::new(fd.as_fd(), len)?);
        let uuid = process::random_u128();
        page.page().uuid[0].store(uuid as u64, Ordering::Relaxed);
        page.page().uuid[1].store((uuid >> 64) as u64, Ordering::Relaxed);
        page.page().magic.store(MAGIC, Ordering::Release);
        Ok((page, fd))
    }

    /// Maps and checks a page that another process made.
    pub fn map(fd: BorrowedFd<'_>) -> Result<GroupPage> {
        if !memory::is_sealed(fd) || memory::file_len(fd)? != size_of::<Page>() {
            return Err(Error::new(Status::Corrupt, "group page refused: not sealed, or of another size"));
        }
        let page = GroupPage(Mapping::new(fd, size_of::<Page>())?);
        if page.page().magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::new(Status::Corrupt, "group page refused: it does not start with LWGROUP1"));
        }
        Ok(page)
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is page-aligned and as long as a `Page`, which consists of atomics and of fields that are never accessed.
        unsafe { &*self.0.start().as_ptr().cast::<Page>() }
    }

    /// The page's name.
    pub fn uuid(&self) -> u128 {
        let half = |i: usize| u128::from(self.page().uuid[i].load(Ordering::Relaxed));
        half(0) | half(1) << 64
    }

    /// The generation now: 0 until a model is set. SeqCst, so that it is ordered after a sample's own loads and against `raise`.
    pub fn generation(&self) -> u64 {
        self.page().generation.load(Ordering::SeqCst)
    }

    /// The fence: from here on nothing older than `to` is delivered. False if another raised it first.
    pub fn raise(&self, from: u64, to: u64) -> bool {
        self.page().generation.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn lane(&self, lane: u64) -> &Lane {
        &self.page().lanes[lane as usize]
    }

    /// Says whether a page has room for that lane.
    pub fn check_lane(lane: u64) -> Result<()> {
        if lane < MAX_LANES {
            return Ok(());
        }
        Err(Error::invalid(format!("lane {lane} (rank x data workers + worker) is beyond the {MAX_LANES} that one group has")))
    }

    /// The step that the lane's next sample has. `lane` was checked.
    pub fn cursor(&self, lane: u64) -> u64 {
        self.lane(lane).cursor.load(Ordering::Acquire)
    }

    /// Moves the lane's cursor.
    pub fn set_cursor(&self, lane: u64, step: u64) {
        self.lane(lane).cursor.store(step, Ordering::Release);
    }

    fn me() -> u64 {
        u64::from(process::pid()) << 32 | process::start_time(process::pid()).unwrap_or(0) & 0xFFFF_FFFF
    }

    /// Makes this process the one that opens the lane's tickets. Refused while another living process is.
    pub fn own_lane(&self, lane: u64) -> Result<()> {
        let me = GroupPage::me();
        let owner = &self.lane(lane).owner;
        let mut seen = owner.load(Ordering::Acquire);
        loop {
            let pid = (seen >> 32) as u32;
            if seen != 0 && process::start_time(pid).is_some_and(|t| t & 0xFFFF_FFFF == seen & 0xFFFF_FFFF && process::is_alive(pid, t)) {
                let message = format!(
                    "lane {lane} is read by another student already (process {pid}); each rank and data worker reads its own lane: check student_rank and group"
                );
                return Err(Error::new(Status::InUse, message));
            }
            match owner.compare_exchange(seen, me, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Gives the lane up.
    pub fn disown_lane(&self, lane: u64) {
        let _ = self.lane(lane).owner.compare_exchange(GroupPage::me(), 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raise_is_seen_through_another_mapping_and_happens_once() {
        let (a, fd) = GroupPage::create().unwrap();
        let b = GroupPage::map(fd.as_fd()).unwrap();
        assert_eq!((a.uuid(), a.generation()), (b.uuid(), 0));
        assert!(a.raise(0, 1) && !b.raise(0, 1));
        assert_eq!(b.generation(), 1);
        b.set_cursor(7, 99);
        assert_eq!(a.cursor(7), 99);
    }

    #[test]
    fn a_lane_has_one_owner() {
        let (page, _fd) = GroupPage::create().unwrap();
        page.own_lane(3).unwrap();
        assert_eq!(page.own_lane(3).unwrap_err().status, Status::InUse);
        page.disown_lane(3);
        page.own_lane(3).unwrap();
        assert!(GroupPage::check_lane(MAX_LANES).is_err());
    }
}
