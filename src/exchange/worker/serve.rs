//! Which student's tickets come next, and claiming them.
//!
//! Students share a worker by time: each has a virtual clock that runs while it is served, and the one whose clock is furthest behind is next (start-time
//! fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996). A student that comes back from silence starts at the others' time, so it cannot claim the past.

use super::attachment::Attachment;
use super::tasks::InHand;
use super::{Inner, Task};
use crate::base::{Error, Result, Status};
use crate::exchange::message::Model;
use crate::medium::{Buffer, Place, cuda};
use crate::os::clock::{self, Nanos};
use crate::os::futex;
use crate::os::memory::AlignedBuf;
use crate::segment::cell::CellState;
use crate::segment::slot::SlotWord;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a student's tickets are left alone whose generation the broker does not know yet (its leader is about to say it, or the broker restarts), whose
/// generation is past (the student has not looked since), or for which no slot is free or this worker has as many in hand and pending as it may. (A pending
/// commit that is published ends that sooner.)
const MODEL_UNKNOWN: Duration = Duration::from_millis(100);
const MODEL_PAST: Duration = Duration::from_millis(50);
const NO_SLOT: Duration = Duration::from_millis(1);

pub struct Client {
    pub attachment: Arc<Attachment>,
    /// Nanoseconds of service, as the fair queue counts them.
    pub served: u64,
    /// A slot taken for a cell that another worker was faster to claim.
    spare: Option<(u32, SlotWord)>,
    /// Memory that samples were made in, for use again.
    pub scratch: Vec<Buffer>,
}

/// What became of an attempt to claim.
enum Claimed {
    /// Tasks were claimed, or others were faster.
    Done,
    /// Tickets are open, and every slot that this worker may use is in use.
    NoSlot,
}

impl Client {
    /// Gives back a slot that was taken in vain.
    fn drop_spare(&mut self) {
        if let Some((slot, word)) = self.spare.take() {
            self.attachment.segment.slots()[slot as usize].free(word);
        }
    }
}

#[derive(Default)]
pub struct Serve {
    pub clients: Vec<Client>,
    epoch: u64,
    pub tasks: Vec<InHand>,
    next_id: u64,
    /// Whose tickets are open, and of which generation: scratch space of `turn`.
    waiting: Vec<(usize, u64)>,
}

impl Inner {
    pub(super) fn serve(&self) -> MutexGuard<'_, Serve> {
        self.serve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, max: u32, out: &mut Vec<Task>, deadline: Nanos) -> Result<()> {
        let before = out.len();
        loop {
            if self.stopped.load(Ordering::SeqCst) {
                return Err(Error::new(Status::Closed, "this worker was stopped"));
            }
            if self.cancelled.swap(false, Ordering::SeqCst) {
                return Err(Error::new(Status::Interrupted, "the wait for tasks was cancelled"));
            }
            self.publish_finished();
            if let Some(e) = cuda::lost() {
                // It would claim ticket after ticket and fail each at once, before workers that could make them.
                return Err(Error::new(e.status, format!("this worker can make nothing any more: {}", e.message)));
            }
            let turn = self.serve().turn(self)?;
            match &turn {
                Some((student, generation)) => self.serve_turn(student, *generation, max, out, deadline)?,
                None if clock::left(deadline).is_zero() => return Err(Error::new(Status::Timeout, self.why_nothing())),
                None => self.sleep(clock::left(deadline)),
            }
            if out.len() > before {
                self.settle_event();
                return Ok(());
            }
        }
    }

    /// Fetches the model, which may take a while and is done without the lock, and claims. That a model cannot be had now is no reason to give up: the student's
    /// tickets are left alone for a while. (A broker that restarts, a leader that has not told it yet, a student that names a generation that nobody ever set.)
    fn serve_turn(&self, student: &Arc<Attachment>, generation: u64, max: u32, out: &mut Vec<Task>, deadline: Nanos) -> Result<()> {
        let pause = match self.model(student, generation, deadline) {
            Ok(model) => match self.serve().claim(self, student, generation, &model, max, out)? {
                Claimed::Done => return Ok(()),
                Claimed::NoSlot => NO_SLOT,
            },
            Err(e) => {
                tracing::debug!("no model for {}, generation {generation}: {e}", student.student.label());
                if e.status == Status::Stale { MODEL_PAST } else { MODEL_UNKNOWN }
            }
        };
        student.block(generation, clock::after(pause));
        Ok(())
    }

    /// The descriptor of `fd` stays readable only while a ticket is open. One that is opened just after the look sets it again.
    fn settle_event(&self) {
        if let Some(event) = self.ready_event.get().filter(|_| !self.any_open()) {
            event.clear();
            if self.any_open() {
                event.set();
            }
        }
    }

    fn why_nothing(&self) -> String {
        match self.attached().len() {
            0 => "no task within the time allowed: no student is attached (its layout must equal this worker's, and the broker must be the same)"
                .into(),
            n => {
                let pending = match self.pending.samples() {
                    0 => String::new(),
                    committed => format!(", or wait until a device has written the {committed} sample(s) committed to it"),
                };
                format!("no task within the time allowed: {n} student(s) attached ask for nothing now, or no model is set{pending}")
            }
        }
    }

    /// Whether a ticket is open that this worker can make now.
    pub(super) fn any_open(&self) -> bool {
        self.attachments.read().unwrap_or_else(PoisonError::into_inner).iter().any(|a| a.wanted().is_some())
    }

    /// Spins, then sleeps on the bell, until a ticket may be open.
    fn sleep(&self, left: Duration) {
        let look = || {
            self.publish_finished();
            self.any_open()
        };
        if self.spin.until(left, look) {
            return;
        }
        let value = self.bell.word().load(Ordering::Acquire);
        let attached = self.attached();
        // A student whose tickets are blocked here must ring somebody else.
        let (blocked, free): (Vec<_>, Vec<_>) = attached.iter().partition(|a| a.is_blocked());
        free.iter().for_each(|a| a.place().idle.announce());
        if !self.any_open() && !self.stopped.load(Ordering::SeqCst) && !self.cancelled.load(Ordering::SeqCst) {
            self.stats.sleeps.fetch_add(1, Ordering::Relaxed);
            let left = blocked.iter().map(|a| clock::left(a.blocked_until())).fold(left, Duration::min);
            let began = clock::now();
            futex::wait(self.bell.word(), value, left);
            self.stats.waited_ns.fetch_add((clock::now() - began) as u64, Ordering::Relaxed);
        }
        free.iter().for_each(|a| a.place().idle.awake());
    }

    /// Lets go of students that have gone, though nobody takes tasks: a generator may be at it for long. Those whose tasks are in hand stay until these are done.
    pub(super) fn forget_gone(&self) {
        // Not under the lock: while a student is attached, which may take a driver its time, nobody has the list.
        let (epoch, attached) = (self.epoch.load(Ordering::Acquire), self.attached());
        let mut serve = self.serve();
        if self.closed.load(Ordering::Acquire) {
            // `leave` has let go of all, or is about to.
            return;
        }
        let gone = serve.take_over(epoch, attached);
        drop(serve);
        // Nor this: closing a device's memory may wait for the device.
        drop(gone);
    }

    /// Publishes what is committed, gives everything else back and leaves every seat.
    pub(super) fn leave(&self) {
        self.publish_all();
        let mut serve = self.serve();
        let busy = serve.tasks.iter().map(|t| &t.attachment.medium);
        busy.for_each(|m| drop(m.quiesce().inspect_err(|e| tracing::error!("{e}"))));
        for task in serve.tasks.drain(..) {
            let cell = &task.attachment.segment.cells()[task.cell as usize];
            let word = cell.word();
            if word.version() == task.version && word.seat() == task.attachment.seat {
                cell.reopen(word);
            }
            task.attachment.segment.slots()[task.slot as usize].free(task.slot_word);
        }
        serve.clients.drain(..).for_each(|mut c| c.drop_spare());
        let mut attachments = self.attachments.write().unwrap_or_else(PoisonError::into_inner);
        // Whoever holds a task's memory on a device may still have work for it queued there: its student is left with the last hold.
        attachments.drain(..).filter(|a| a.medium.place() == Place::Host || Arc::strong_count(a) == 1).for_each(|a| a.leave());
    }
}

impl Serve {
    /// Takes over the list of students if it has changed.
    fn sync(&mut self, inner: &Inner) {
        let epoch = inner.epoch.load(Ordering::Acquire);
        if epoch != self.epoch {
            drop(self.take_over(epoch, inner.attached()));
        }
    }

    /// Takes over the list of students as of `epoch`, or of a later one; those that have gone.
    fn take_over(&mut self, epoch: u64, attached: Vec<Arc<Attachment>>) -> Vec<Client> {
        if epoch <= self.epoch {
            return Vec::new();
        }
        self.epoch = epoch;
        let has_gone = |c: &mut Client| !attached.iter().any(|a| Arc::ptr_eq(a, &c.attachment));
        let mut gone: Vec<Client> = self.clients.extract_if(.., has_gone).collect();
        gone.iter_mut().for_each(Client::drop_spare);
        let start = self.clients.iter().map(|c| c.served).min().unwrap_or(0);
        for attachment in attached {
            if !self.clients.iter().any(|c| Arc::ptr_eq(&c.attachment, &attachment)) {
                self.clients.push(Client { attachment, served: start, spare: None, scratch: Vec::new() });
            }
        }
        gone
    }

    fn room(&self, inner: &Inner) -> Result<usize> {
        let all = inner.options.batch_size;
        match (all as usize).saturating_sub(self.tasks.len()) {
            0 => Err(Error::invalid(format!("all {all} tasks of this worker's batch_size are in hand: commit or fail some first"))),
            room => Ok(room),
        }
    }

    /// Claims up to `max` of the student's tickets of that generation.
    fn claim(
        &mut self,
        inner: &Inner,
        attachment: &Arc<Attachment>,
        generation: u64,
        model: &Arc<Model>,
        max: u32,
        out: &mut Vec<Task>,
    ) -> Result<Claimed> {
        // A student gives so many of its tickets to one seat and no more, whatever this worker could take.
        let held = self.tasks.iter().filter(|t| Arc::ptr_eq(&t.attachment, attachment)).count();
        let room = self.room(inner)?.min(max as usize).min(attachment.room(held));
        if room == 0 {
            return Ok(Claimed::NoSlot);
        }
        let Some(turn) = self.clients.iter().position(|c| Arc::ptr_eq(&c.attachment, attachment)) else { return Ok(Claimed::Done) };
        let now = clock::now() as u64;
        inner.stats.last_take.store(now, Ordering::Relaxed);
        let start = out.len();
        let mut full = false;
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
            let Some((slot, slot_word)) = self.clients[turn].spare.take().or_else(|| attachment.take_slot()) else {
                full = true;
                break;
            };
            let capacity = attachment.layout.nbytes();
            let (data, scratch) = match attachment.medium.slot(slot) {
                Some(data) => (data.as_ptr(), None),
                None => {
                    let had = self.clients[turn].scratch.pop().map(Ok);
                    let scratch = match had.unwrap_or_else(|| attachment.medium.scratch(capacity)) {
                        Ok(scratch) => scratch,
                        Err(e) => {
                            attachment.segment.slots()[slot as usize].free(slot_word);
                            // Tasks that were taken are the caller's all the same.
                            if out.len() > start {
                                break;
                            }
                            return Err(e);
                        }
                    };
                    (scratch.start(), Some(Arc::new(scratch)))
                }
            };
            if cell.claim(word, attachment.seat).is_none() {
                self.clients[turn].spare = Some((slot, slot_word));
                self.clients[turn].scratch.extend(scratch.and_then(Arc::into_inner));
                continue;
            }
            cell.note_claim(now);
            let Some(input) = attachment.input(position, word) else {
                // The ticket was withdrawn while its input was read: what was read may be another's.
                self.clients[turn].spare = Some((slot, slot_word));
                self.clients[turn].scratch.extend(scratch.and_then(Arc::into_inner));
                continue;
            };
            self.next_id += 1;
            let id = self.next_id;
            let (is_ragged, place) = (attachment.layout.is_ragged(), attachment.medium.place());
            let mut task = InHand {
                id,
                attachment: attachment.clone(),
                cell: attachment.segment.cell_index(position) as u32,
                version: word.version(),
                position: ticket.position,
                lane: ticket.lane,
                step: ticket.step,
                slot,
                slot_word,
                claimed_at: now,
                together: 1,
                scratch,
                shapes: (is_ragged && place != Place::Host).then(|| AlignedBuf::new(attachment.layout.shapes_bytes())),
            };
            if let Some(shapes) = if is_ragged { task.shapes() } else { None } {
                attachment.layout.begin(shapes);
            }
            self.tasks.push(task);
            out.push(Task {
                id,
                lane: ticket.lane,
                step: ticket.step,
                seed: ticket.seed,
                generation,
                attempt: ticket.attempt as u32,
                model: model.clone(),
                layout: attachment.layout.clone(),
                input,
                data,
                place,
                capacity,
            });
        }
        let claimed = out.len() - start;
        let first = self.tasks.len() - claimed;
        self.tasks[first..].iter_mut().for_each(|t| t.together = claimed as u64);
        Ok(if full && claimed == 0 { Claimed::NoSlot } else { Claimed::Done })
    }

    /// The student to serve and the generation of its first open ticket.
    fn turn(&mut self, inner: &Inner) -> Result<Option<(Arc<Attachment>, u64)>> {
        self.sync(inner);
        self.room(inner)?;
        let (clients, waiting) = (&mut self.clients, &mut self.waiting);
        waiting.clear();
        waiting.extend(clients.iter().enumerate().filter_map(|(i, c)| Some((i, c.attachment.wanted()?))));
        if waiting.is_empty() {
            // Nobody rests with a slot in hand.
            clients.iter_mut().for_each(Client::drop_spare);
            return Ok(None);
        }
        let first = |w: &&(usize, u64)| clients[w.0].served;
        let Some(least) = waiting.iter().map(|w| first(&w)).min() else { return Ok(None) };
        let stays = |w: &&(usize, u64)| inner.models.is_current(clients[w.0].attachment.page(), w.1);
        let staying = inner.models.should_stay().then(|| waiting.iter().filter(stays).min_by_key(first)).flatten();
        let turn = staying.or_else(|| waiting.iter().min_by_key(first)).map(|(i, g)| (clients[*i].attachment.clone(), *g));
        // Whoever asked for nothing meanwhile does not save its turns up.
        for (i, client) in clients.iter_mut().enumerate() {
            if client.served < least && !waiting.iter().any(|(w, _)| *w == i) {
                client.served = least;
            }
        }
        Ok(turn)
    }
}
