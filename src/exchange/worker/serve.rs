//! Which student's tickets come next, and the tasks in hand.
//!
//! Students share a worker by time: each has a virtual clock that runs while it is served, and the one whose clock is furthest behind is next (start-time
//! fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996). A student that comes back from silence starts at the others' time, so it cannot claim the past.

use super::attachment::Attachment;
use super::pending::Commit;
use super::{Inner, Task};
use crate::base::{Error, Result, Status};
use crate::exchange::message::Model;
use crate::medium::{Buffer, Mark, Place, Stream, Write};
use crate::os::clock::{self, Nanos};
use crate::os::futex;
use crate::os::memory::AlignedBuf;
use crate::segment::cell::CellState;
use crate::segment::payload::writing_bytes;
use crate::segment::slot::{Content, SlotWord};
use std::borrow::Cow;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a student's tickets are left alone whose generation the broker does not know yet (its leader is about to say it, or the broker restarts), whose
/// generation is past (the student has not looked since), or for which no slot is free.
const MODEL_UNKNOWN: Duration = Duration::from_millis(100);
const MODEL_PAST: Duration = Duration::from_millis(50);
const NO_SLOT: Duration = Duration::from_millis(1);

struct Client {
    attachment: Arc<Attachment>,
    /// Nanoseconds of service, as the fair queue counts them.
    served: u64,
    /// A slot taken for a cell that another worker was faster to claim.
    spare: Option<(u32, SlotWord)>,
    /// Memory that samples were made in, for use again.
    scratch: Vec<Buffer>,
}

/// What became of an attempt to claim.
enum Claimed {
    /// Tasks were claimed, or others were faster.
    Done,
    /// Tickets are open, and every slot that this worker may use is in use.
    NoSlot,
}

/// A task in hand, or committed and pending.
pub(super) struct InHand {
    id: u64,
    attachment: Arc<Attachment>,
    cell: u32,
    version: u64,
    position: u64,
    lane: u64,
    step: u64,
    slot: u32,
    slot_word: SlotWord,
    claimed_at: u64,
    /// How many were claimed together: they share the time that they take.
    together: u64,
    /// For mediums whose slots have no address here: the sample is made here and brought to its slot at commit.
    scratch: Option<Arc<Buffer>>,
}

impl InHand {
    fn is_in_host_memory(&self) -> bool {
        self.attachment.medium.place() == Place::Host
    }

    /// The sample as far as it is written; `None` if it is on a device, or the slot was taken away, since this process was declared dead.
    fn sample(&mut self) -> Option<&mut [u8]> {
        let bytes = self.attachment.layout.nbytes();
        let start = match &self.scratch {
            _ if !self.is_in_host_memory() => return None,
            Some(scratch) => NonNull::new(scratch.start())?,
            None => self.attachment.medium.slot(self.slot)?,
        };
        writing_bytes(&self.attachment.segment.slots()[self.slot as usize], self.slot_word, start, bytes)
    }

    /// Whether its ticket still waits for a sample.
    fn is_wanted(&self) -> bool {
        let word = self.attachment.segment.cells()[self.cell as usize].word();
        word.version() == self.version && matches!(word.state(), CellState::Open | CellState::Claimed) && self.attachment.is_serving()
    }

    /// Says what is wrong with the sample that was written, or makes it whole.
    fn finish(&mut self) -> Result<()> {
        let layout = self.attachment.layout.clone();
        if !layout.asks_something() {
            return Ok(());
        }
        if self.is_in_host_memory() {
            return self.sample().map_or(Ok(()), |sample| layout.finish(sample));
        }
        // Values on a device are looked at in a copy. Nothing else is to be done: such a layout has no ragged dimension.
        let mut copy = AlignedBuf::new(layout.nbytes());
        self.attachment.medium.read(self.slot, copy.bytes_mut())?;
        layout.finish(copy.bytes_mut())
    }
}

/// Tasks whose samples a device is still writing.
struct Underway {
    ids: Vec<u64>,
    mark: Box<dyn Mark>,
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
    clients: Vec<Client>,
    epoch: u64,
    tasks: Vec<InHand>,
    next_id: u64,
    /// Whose tickets are open, and of which generation: scratch space of `turn`.
    waiting: Vec<(usize, u64)>,
}

impl Inner {
    fn serve(&self) -> MutexGuard<'_, Serve> {
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
            n => format!("no task within the time allowed: {n} student(s) attached ask for nothing now, or no model is set"),
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

    /// Brings samples to their slots. Not under the lock: a device may take its time. What is under way when this returns has a mark; it is waited for here where
    /// the samples are to be looked at before anybody gets them.
    fn settle(&self, done: &[(u64, usize)], stream: Stream) -> Result<Vec<Underway>> {
        let mut parts: Vec<(Arc<Attachment>, u32, Option<Arc<Buffer>>, usize, u64)> = Vec::new();
        let serve = self.serve();
        for (id, length) in done {
            let task = &serve.tasks[serve.index(*id)?];
            if *length != task.attachment.layout.nbytes() {
                // `commit` says so, once what is before it is published.
                break;
            }
            if task.scratch.is_some() || !stream.is_none() || task.attachment.medium.place() != Place::Host {
                parts.push((task.attachment.clone(), task.slot, task.scratch.clone(), *length, *id));
            }
        }
        drop(serve);
        let mut underway = Vec::new();
        for group in parts.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
            let writes: Vec<_> =
                group.iter().map(|(_, slot, scratch, len, _)| Write { slot: *slot, scratch: scratch.as_deref(), len: *len }).collect();
            let attachment = &group[0].0;
            match attachment.medium.settle(&writes, stream)? {
                Some(mark) if attachment.layout.asks_something() => mark.wait()?,
                Some(mark) => underway.push(Underway { ids: group.iter().map(|part| part.4).collect(), mark }),
                None => {}
            }
        }
        Ok(underway)
    }

    pub(super) fn hold(&self, id: u64) -> Result<Box<dyn Send>> {
        let serve = self.serve();
        let task = &serve.tasks[serve.index(id)?];
        Ok(Box::new((task.attachment.clone(), task.scratch.clone())))
    }

    pub(super) fn write(&self, id: u64, data: &[u8]) -> Result<()> {
        let mut serve = self.serve();
        let index = serve.index(id)?;
        let task = &mut serve.tasks[index];
        let have = task.attachment.layout.nbytes();
        if data.len() > have {
            return Err(Error::invalid(format!("task {id}: {} bytes do not fit into a sample of {have}", data.len())));
        }
        if let Some(Buffer::Host(bytes)) = task.scratch.as_mut().and_then(Arc::get_mut) {
            bytes.bytes_mut()[..data.len()].copy_from_slice(data);
            return Ok(());
        }
        let (attachment, slot, scratch) = (task.attachment.clone(), task.slot, task.scratch.clone());
        drop(serve);
        match scratch.as_deref() {
            Some(Buffer::Cuda(block)) => block.write(data),
            Some(Buffer::Host(_)) => Err(Error::new(Status::InUse, format!("task {id} is being committed by another thread"))),
            None => attachment.medium.write(slot, data),
        }
    }

    pub(super) fn commit(&self, done: &[(u64, usize)], stream: Stream) -> Result<u32> {
        self.publish_finished();
        // What lies in host memory is made whole before it is brought to its slot; what is on a device is looked at once it is complete.
        let mut refused = None;
        let done = self.refuse(done, true, &mut refused);
        let underway = self.settle(&done, stream)?;
        let done = self.refuse(&done, false, &mut refused);
        let mut later = Vec::new();
        let wanted = self.publish_or_keep(&done, underway, &mut later);
        // Without the tasks' lock, which is taken after the pending ones', not before.
        later.into_iter().for_each(|commit| self.defer(commit));
        let wanted = wanted?;
        refused.map_or(Ok(wanted), |text| Err(Error::new(Status::TaskFailed, text)))
    }

    /// Publishes what is complete; what is under way goes to `later`. How many are wanted: still, or so far.
    fn publish_or_keep(&self, done: &[(u64, usize)], underway: Vec<Underway>, later: &mut Vec<Commit>) -> Result<u32> {
        let mut serve = self.serve();
        let mut wanted = 0;
        let mut kept = Vec::new();
        for Underway { ids, mark } in underway {
            let mut tasks = Vec::with_capacity(ids.len());
            for id in &ids {
                let index = serve.index(*id)?;
                tasks.push(serve.tasks.swap_remove(index));
            }
            wanted += tasks.iter().filter(|t| t.is_wanted()).count() as u32;
            later.push(Commit { tasks, mark });
            kept.extend(ids);
        }
        for (id, length) in done.iter().filter(|(id, _)| !kept.contains(id)) {
            let index = serve.index(*id)?;
            let bytes = serve.tasks[index].attachment.layout.nbytes();
            if *length != bytes {
                return Err(Error::invalid(format!("task {id}: {length} bytes were committed and a sample has {bytes}")));
            }
            let task = serve.tasks.swap_remove(index);
            wanted += u32::from(self.publish_sample(&mut serve, task));
        }
        serve.account(self, done.len(), clock::now() as u64);
        Ok(wanted)
    }

    fn publish_sample(&self, serve: &mut Serve, task: InHand) -> bool {
        let length = task.attachment.layout.nbytes();
        let won = serve.publish(task, length, false, clock::now() as u64);
        let counter = if won { &self.stats.made } else { &self.stats.lost };
        counter.fetch_add(1, Ordering::Relaxed);
        won
    }

    /// Publishes what was committed before its device had finished it; with `failure`, what became of it instead.
    pub(super) fn publish_late(&self, tasks: Vec<InHand>, failure: Option<&str>) {
        let mut serve = self.serve();
        for task in tasks {
            match failure {
                None => _ = self.publish_sample(&mut serve, task),
                Some(text) => {
                    tracing::error!("task (lane {}, step {}), which was committed: {text}", task.lane, task.step);
                    self.publish_failure(&mut serve, task, text);
                }
            }
        }
    }

    /// Fails the tasks whose samples are not what their layouts ask for, of those in host memory or of the others; the rest. The first reason goes to `first`.
    fn refuse<'a>(&self, done: &'a [(u64, usize)], in_host_memory: bool, first: &mut Option<String>) -> Cow<'a, [(u64, usize)]> {
        let mut serve = self.serve();
        let is_asked = |task: &InHand| task.attachment.layout.asks_something() && task.is_in_host_memory() == in_host_memory;
        if !done.iter().any(|(id, _)| serve.index(*id).is_ok_and(|i| is_asked(&serve.tasks[i]))) {
            return Cow::Borrowed(done);
        }
        let mut rest = Vec::with_capacity(done.len());
        for (at, (id, length)) in done.iter().enumerate() {
            let index = serve.index(*id).ok().filter(|i| serve.tasks[*i].attachment.layout.nbytes() == *length);
            let Some(index) = index else {
                // `commit` says what is wrong with it; it and what is behind it stay in hand.
                rest.extend(&done[at..]);
                break;
            };
            let task = &mut serve.tasks[index];
            match if is_asked(task) { task.finish() } else { Ok(()) } {
                Ok(()) => rest.push((*id, *length)),
                Err(e) => {
                    let text = format!("the sample was refused: {}", e.message);
                    tracing::warn!("task (lane {}, step {}): {text}", task.lane, task.step);
                    let task = serve.tasks.swap_remove(index);
                    self.publish_failure(&mut serve, task, &text);
                    self.stats.refused.fetch_add(1, Ordering::Relaxed);
                    first.get_or_insert(text);
                }
            }
        }
        Cow::Owned(rest)
    }

    pub(super) fn set_length(&self, id: u64, dimension: &str, length: u64) -> Result<()> {
        let mut serve = self.serve();
        let index = serve.index(id)?;
        let task = &mut serve.tasks[index];
        let layout = task.attachment.layout.clone();
        match task.sample() {
            Some(sample) => layout.set_length(sample, dimension, length),
            None => Ok(()),
        }
    }

    pub(super) fn fail(&self, id: u64, text: &str) -> Result<()> {
        let serve = self.serve();
        let attachment = serve.tasks[serve.index(id)?].attachment.clone();
        drop(serve);
        // What the generator has queued before it failed must not reach the slot once it is another's.
        let _ = attachment.medium.quiesce().inspect_err(|e| tracing::error!("{e}"));
        let mut serve = self.serve();
        let index = serve.index(id)?;
        let task = serve.tasks.swap_remove(index);
        self.publish_failure(&mut serve, task, text);
        Ok(())
    }

    fn publish_failure(&self, serve: &mut Serve, task: InHand, text: &str) {
        let length = task.attachment.segment.write_text(task.slot, text);
        serve.publish(task, length, true, clock::now() as u64);
        self.stats.failed.fetch_add(1, Ordering::Relaxed);
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
        self.clients.retain_mut(|c| {
            let stays = attached.iter().any(|a| Arc::ptr_eq(a, &c.attachment));
            if !stays {
                c.drop_spare();
            }
            stays
        });
        let start = self.clients.iter().map(|c| c.served).min().unwrap_or(0);
        for attachment in attached {
            if !self.clients.iter().any(|c| Arc::ptr_eq(&c.attachment, &attachment)) {
                self.clients.push(Client { attachment, served: start, spare: None, scratch: Vec::new() });
            }
        }
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
        // A student has room for so many of this seat's tasks and no more, whatever this worker could take.
        let held = self.tasks.iter().filter(|t| Arc::ptr_eq(&t.attachment, attachment)).count();
        let left = (attachment.student.max_batch as usize).saturating_sub(held);
        let room = self.room(inner)?.min(max as usize).min(left);
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
                    let scratch = had.unwrap_or_else(|| attachment.medium.scratch(capacity)).inspect_err(|_| {
                        attachment.segment.slots()[slot as usize].free(slot_word);
                    })?;
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
            };
            if attachment.layout.is_ragged()
                && let Some(sample) = task.sample()
            {
                attachment.layout.begin(sample);
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
                place: attachment.medium.place(),
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

    /// Makes the sample or the error text of a task, which is in hand no more, visible; true if it was still wanted.
    fn publish(&mut self, task: InHand, length: usize, failed: bool, now: u64) -> bool {
        let segment = &task.attachment.segment;
        let made_in = now.saturating_sub(task.claimed_at);
        let content =
            Content { cell: task.cell, version: task.version, length: length as u64, failed, beside: task.attachment.medium.is_beside(), made_in };
        let slot = &segment.slots()[task.slot as usize];
        let won = slot.ready(task.slot_word, &content).is_some_and(|ready| {
            let won = segment.cells()[task.cell as usize].publish(task.version, task.attachment.seat, task.slot);
            if !won {
                slot.free(ready);
            }
            won
        });
        // What was made for a student that has died meanwhile is made in vain, too.
        let won = won && task.attachment.is_serving();
        task.attachment.place().count(won);
        let hot = segment.hot();
        if won && hot.bell.must_ring(task.position) {
            futex::ring(&hot.bell.word);
        }
        if let Some(client) = self.clients.iter_mut().find(|c| Arc::ptr_eq(&c.attachment, &task.attachment)) {
            client.served += (made_in / task.together).max(1);
            client.scratch.extend(task.scratch.and_then(Arc::into_inner));
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
