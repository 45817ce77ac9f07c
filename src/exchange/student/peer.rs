//! What the broker tells a student.

use super::Inner;
use crate::base::{Error, Result};
use crate::exchange::link::Peer;
use crate::exchange::message::{Uuid, WorkerIntro};
use crate::os::futex;
use crate::segment::group::GroupPage;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The link's view of a student.
pub(super) struct StudentPeer {
    pub(super) inner: Arc<Inner>,
}

impl Peer for StudentPeer {
    fn joined(&self, group_page: Option<OwnedFd>, _epoch: u64) {
        let Some(fd) = group_page else { return };
        match GroupPage::map(fd.as_fd()) {
            Ok(page) => {
                let uuid = page.uuid();
                if let Some(had) = self.inner.group.get().filter(|had| had.uuid() != uuid) {
                    // Only if a new broker met a newcomer before any of the old students: nothing can merge two pages, so say it.
                    tracing::error!(
                        "the broker has another group page ({uuid:032x}) than this student ({:032x}): restart the job's students together",
                        had.uuid()
                    );
                } else {
                    // Before anybody here can open a ticket: generations are numbers of this page.
                    self.inner.segment.hot().group.set(uuid);
                    let _ = self.inner.group.set(page);
                    let _ = self.inner.group_fd.set(fd);
                }
            }
            Err(e) => tracing::error!("{e}"),
        }
    }

    fn seat(&self, worker: WorkerIntro, pidfd: OwnedFd, bell: OwnedFd) -> Result<u32> {
        let uuid = worker.uuid.0;
        let seat = self.inner.seat(worker, pidfd, bell).inspect_err(|e| self.inner.refusals.note_no_seat(uuid, &e.message))?;
        self.inner.refusals.seated(uuid);
        self.inner.watch_event.set();
        futex::ring(&self.inner.sweep_word);
        Ok(seat)
    }

    fn gone(&self, uuid: Uuid) {
        self.inner.seats.hint_gone(uuid.0);
        futex::ring(&self.inner.sweep_word);
    }

    fn model_hint(&self, _group: &str, _generation: u64) {
        self.inner.refresh();
    }

    fn group_page(&self) -> Option<OwnedFd> {
        self.inner.group_fd.get().and_then(|fd| fd.try_clone().ok())
    }

    fn refused(&self, error: Error) {
        self.inner.refusals.note(None, &error.message);
    }
}
