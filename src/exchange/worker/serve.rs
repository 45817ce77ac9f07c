//! Which student's tickets come next, and the tasks in hand.
//!
//! Students share a worker by time: each has a virtual clock that runs while it is served, and the one whose clock is furthest behind is next (start-time
//! fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996). A student that comes back from silence starts at the others' time, so it cannot claim the past.

use super::attachment::Attachment;
use super::{Inner, Task};
use crate::base::{Error, Result, Status};
use crate::os::clock::{self, Nanos};
use crate::os::futex;
use crate::os::memory::AlignedBuf;
use crate::segment::cell::CellState;
use crate::segment::slot::{Content, SlotWord};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

struct Client {
    attachment: Arc<Attachment>,
    /// Nanoseconds of service, as the fair queue counts them.
    served: u64,
    /// A slot taken for a cell that another worker was faster to claim.
    spare: Option<(u32, SlotWord)>,
}

/// A task in hand.
struct InHand {
    id: u64,
    attachment: Arc<Attachment>,
    cell: u32,
    version: u64,
    position: u64,
    slot: u32,
    slot_word: SlotWord,
    claimed_at: u64,
    /// For mediums without memory of their own: the sample is made here and written at commit.
    scratch: Option<AlignedBuf>,
}

#[derive(Default)]
pub struct Serve {
    clients: Vec<Client>,
    epoch: u64,
    tasks: Vec<InHand>,
    next_id: u64,
    scratch: Vec<AlignedBuf>,
    /// Students with open tickets, by index, and the generation of their first one: rebuilt for each claim.
    waiting: Vec<(usize, u64)>,
}

impl Inner {
    fn serve(&self) -> MutexGuard<'_, Serve> {
        self.serve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, max: u32, out: &mut Vec<Task>, deadline: Nanos) -> Result<()> {
        loop {
            if self.stopped.load(Ordering::SeqCst) {
                return Err(Error::new(Status::Closed, "this worker was stopped"));
            }
            if self.cancelled.swap(false, Ordering::SeqCst) {
                return Err(Error::new(Status::Interrupted, "the wait for tasks was cancelled"));
            }
            let before = out.len();
            self.serve().claim(self, max, out, deadline)?;
            if out.len() > before {
                return Ok(());
            }
            let left = clock::left(deadline);
            if left.is_zero() {
                return Err(Error::new(Status::Timeout, self.why_nothing()));
            }
            self.sleep(left);
        }
    }

    fn why_nothing(&self) -> String {
        match self.attached().len() {
            0 => "no task within the time allowed: no student is attached (its layout must equal this worker's, and the broker must be the same)"
                .into(),
            n => format!("no task within the time allowed: {n} student(s) attached ask for nothing now, or no model is set"),
        }
    }

    pub(super) fn any_open(&self) -> bool {
        self.attachments.read().unwrap_or_else(PoisonError::into_inner).iter().any(|a| a.is_serving() && a.first_open().is_some())
    }

    /// Spins, then sleeps on the bell, until a ticket may be open.
    fn sleep(&self, left: std::time::Duration) {
        if self.spin.until(left, || self.any_open()) {
            return;
        }
        let value = self.bell.word().load(Ordering::Acquire);
        let attached = self.attached();
        attached.iter().for_each(|a| a.place().idle.announce());
        if !self.any_open() && !self.stopped.load(Ordering::SeqCst) && !self.cancelled.load(Ordering::SeqCst) {
            self.stats.sleeps.fetch_add(1, Ordering::Relaxed);
            futex::wait(self.bell.word(), value, left);
        }
        attached.iter().for_each(|a| a.place().idle.awake());
    }

    pub(super) fn commit(&self, done: &[(u64, usize)]) -> Result<u32> {
        let mut serve = self.serve();
        let now = clock::now() as u64;
        let mut wanted = 0;
        for (id, length) in done {
            let index = serve.index(*id)?;
            let bytes = serve.tasks[index].attachment.layout.nbytes();
            if *length != bytes {
                return Err(Error::invalid(format!("task {id}: {length} bytes were committed and a sample has {bytes}")));
            }
            if let Some(scratch) = &serve.tasks[index].scratch {
                let task = &serve.tasks[index];
                task.attachment.medium.write(task.slot, &scratch.bytes()[..*length])?;
            }
            let won = serve.publish(index, *length, false, now);
            wanted += u32::from(won);
            let counter = if won { &self.stats.made } else { &self.stats.lost };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        serve.account(self, done.len(), now);
        Ok(wanted)
    }

    pub(super) fn fail(&self, id: u64, text: &str) -> Result<()> {
        let mut serve = self.serve();
        let index = serve.index(id)?;
        let task = &serve.tasks[index];
        let length = task.attachment.segment.write_text(task.slot, text);
        serve.publish(index, length, true, clock::now() as u64);
        self.stats.failed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Gives everything back and leaves every seat.
    pub(super) fn leave(&self) {
        let mut serve = self.serve();
        for task in serve.tasks.drain(..) {
            let cell = &task.attachment.segment.cells()[task.cell as usize];
            let word = cell.word();
            if word.version() == task.version && word.seat() == task.attachment.seat {
                cell.reopen(word);
            }
            task.attachment.segment.slots()[task.slot as usize].free(task.slot_word);
        }
        for client in serve.clients.drain(..) {
            if let Some((slot, word)) = client.spare {
                client.attachment.segment.slots()[slot as usize].free(word);
            }
        }
        let mut attachments = self.attachments.write().unwrap_or_else(PoisonError::into_inner);
        attachments.drain(..).for_each(|a| a.place().leave());
    }
}

impl Serve {
    fn index(&self, id: u64) -> Result<usize> {
        self.tasks
            .iter()
            .position(|t| t.id == id)
            .ok_or_else(|| Error::invalid(format!("task {id} is not in hand: it was committed or failed before")))
    }

    /// Takes over the list of students if it has changed.
    fn sync(&mut self, inner: &Inner) {
        let epoch = inner.epoch.load(Ordering::Acquire);
        if epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        let attached = inner.attached();
        self.clients.retain(|c| attached.iter().any(|a| Arc::ptr_eq(a, &c.attachment)));
        let start = self.clients.iter().map(|c| c.served).min().unwrap_or(0);
        for attachment in attached {
            if !self.clients.iter().any(|c| Arc::ptr_eq(&c.attachment, &attachment)) {
                self.clients.push(Client { attachment, served: start, spare: None });
            }
        }
    }

    /// Claims up to `max` tickets of the student whose turn it is.
    fn claim(&mut self, inner: &Inner, max: u32, out: &mut Vec<Task>, deadline: Nanos) -> Result<()> {
        self.sync(inner);
        let room = (inner.options.batch_size as usize).saturating_sub(self.tasks.len()).min(max as usize);
        if room == 0 {
            return Err(Error::invalid(format!(
                "all {} tasks of this worker's batch_size are in hand: commit or fail some first",
                inner.options.batch_size
            )));
        }
        let Some((turn, generation)) = self.whose_turn(inner) else { return Ok(()) };
        let attachment = self.clients[turn].attachment.clone();
        let model = match inner.model(&attachment.student.group, generation, deadline) {
            Ok(model) => model,
            Err(e) if matches!(e.status, Status::Timeout | Status::Stale) => {
                tracing::debug!("model of generation {generation}: {e}");
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let now = clock::now() as u64;
        inner.stats.last_take.store(now, Ordering::Relaxed);
        let start = out.len();
        for position in attachment.positions() {
            if out.len() - start >= room {
                break;
            }
            let cell = attachment.segment.cell(position);
            let word = cell.word();
            if word.state() != CellState::Open {
                continue;
            }
            let Some(ticket) = cell.ticket(word).filter(|t| t.generation == generation) else { continue };
            let Some((slot, slot_word)) = self.clients[turn].spare.take().or_else(|| attachment.take_slot()) else { break };
            if cell.claim(word, attachment.seat).is_none() {
                self.clients[turn].spare = Some((slot, slot_word));
                continue;
            }
            cell.note_claim(now);
            let capacity = attachment.layout.nbytes();
            let (data, scratch) = match attachment.medium.slot(slot) {
                Some(data) => (data.as_ptr(), None),
                None => {
                    let scratch = self.scratch.pop().filter(|s| s.len() == capacity).unwrap_or_else(|| AlignedBuf::new(capacity));
                    (scratch.start(), Some(scratch))
                }
            };
            self.next_id += 1;
            let id = self.next_id;
            self.tasks.push(InHand {
                id,
                attachment: attachment.clone(),
                cell: attachment.segment.cell_index(position) as u32,
                version: word.version(),
                position: ticket.position,
                slot,
                slot_word,
                claimed_at: now,
                scratch,
            });
            out.push(Task {
                id,
                lane: ticket.lane,
                step: ticket.step,
                seed: ticket.seed,
                generation,
                attempt: ticket.attempt as u32,
                model: model.clone(),
                layout: attachment.layout.clone(),
                data,
                capacity,
            });
        }
        Ok(())
    }

    /// The student to serve and the generation of its first open ticket.
    fn whose_turn(&mut self, inner: &Inner) -> Option<(usize, u64)> {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.clear();
        for (i, client) in self.clients.iter().enumerate() {
            let a = &client.attachment;
            if !a.is_serving() {
                continue;
            }
            if let Some(ticket) = a.first_open().and_then(|(p, w)| a.segment.cell(p).ticket(w)) {
                waiting.push((i, ticket.generation));
            }
        }
        let turn = self.next_turn(inner, &waiting);
        self.waiting = waiting;
        turn
    }

    fn next_turn(&mut self, inner: &Inner, waiting: &[(usize, u64)]) -> Option<(usize, u64)> {
        let least = waiting.iter().map(|(i, _)| self.clients[*i].served).min()?;
        let stays = |(i, g): &(usize, u64)| inner.models.is_current(&self.clients[*i].attachment.student.group, *g);
        let staying = inner.models.should_stay().then(|| waiting.iter().filter(|w| stays(w)).min_by_key(|(i, _)| self.clients[*i].served)).flatten();
        let turn = staying.or_else(|| waiting.iter().min_by_key(|(i, _)| self.clients[*i].served)).copied();
        // Whoever asked for nothing meanwhile does not save its turns up.
        for (i, client) in self.clients.iter_mut().enumerate() {
            if client.served < least && !waiting.iter().any(|(w, _)| *w == i) {
                client.served = least;
            }
        }
        turn
    }

    /// Makes the sample or the error text visible; true if it was still wanted. The task is not in hand any more.
    fn publish(&mut self, index: usize, length: usize, failed: bool, now: u64) -> bool {
        let task = self.tasks.swap_remove(index);
        let segment = &task.attachment.segment;
        let made_in = now.saturating_sub(task.claimed_at);
        let content = Content { cell: task.cell, version: task.version, length: length as u64, failed, made_in };
        let slot = &segment.slots()[task.slot as usize];
        let won = slot.ready(task.slot_word, &content).is_some_and(|ready| {
            let won = segment.cells()[task.cell as usize].publish(task.version, task.attachment.seat, task.slot);
            if !won {
                slot.free(ready);
            }
            won
        });
        task.attachment.place().count(won);
        let hot = segment.hot();
        if won && hot.bell.must_ring(task.position) {
            futex::ring(&hot.bell.word);
        }
        if let Some(client) = self.clients.iter_mut().find(|c| Arc::ptr_eq(&c.attachment, &task.attachment)) {
            client.served += made_in.max(1);
        }
        if let Some(scratch) = task.scratch {
            self.scratch.push(scratch);
        }
        won
    }

    fn account(&mut self, inner: &Inner, tasks: usize, now: u64) {
        if tasks == 0 {
            return;
        }
        inner.stats.batches.fetch_add(1, Ordering::Relaxed);
        let began = inner.stats.last_take.load(Ordering::Relaxed);
        let took = now.saturating_sub(began);
        inner.stats.batch_ns.store(took, Ordering::Relaxed);
        inner.models.note_batch(took);
    }
}
