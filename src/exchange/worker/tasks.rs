//! Tasks in hand: written, and then published or given up.

use super::Inner;
use super::attachment::Attachment;
use super::pending::Commit;
use super::serve::Serve;
use crate::base::{Error, Result, Status};
use crate::medium::{Buffer, Mark, Place, Stream, Write};
use crate::os::memory::AlignedBuf;
use crate::os::{clock, futex};
use crate::segment::cell::CellState;
use crate::segment::payload::writing_bytes;
use crate::segment::slot::{Content, SlotWord};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A task in hand, or committed and pending.
pub struct InHand {
    pub id: u64,
    pub attachment: Arc<Attachment>,
    pub cell: u32,
    pub version: u64,
    pub position: u64,
    pub lane: u64,
    pub step: u64,
    pub slot: u32,
    pub slot_word: SlotWord,
    pub claimed_at: u64,
    /// How many were claimed together: they share the time that they take.
    pub together: u64,
    /// For mediums whose slots have no address here: the sample is made here and brought to its slot at commit.
    pub scratch: Option<Arc<Buffer>>,
    /// The shapes of a sample with ragged dimensions that is made on a device, where its bytes cannot be looked at. Others have theirs behind their tensors.
    pub shapes: Option<AlignedBuf>,
}

impl InHand {
    fn is_in_host_memory(&self) -> bool {
        self.attachment.medium.place() == Place::Host
    }

    /// The sample as far as it is written; `None` if it is on a device, or the slot was taken away, since this process was declared dead.
    pub fn sample(&mut self) -> Option<&mut [u8]> {
        let bytes = self.attachment.layout.nbytes();
        let start = match &self.scratch {
            _ if !self.is_in_host_memory() => return None,
            Some(scratch) => NonNull::new(scratch.start())?,
            None => self.attachment.medium.slot(self.slot)?,
        };
        writing_bytes(&self.attachment.segment.slots()[self.slot as usize], self.slot_word, start, bytes)
    }

    /// The shapes of the sample as far as they are set, wherever they are; `None` as for [`InHand::sample`].
    pub fn shapes(&mut self) -> Option<&mut [u8]> {
        if self.shapes.is_some() {
            return self.shapes.as_mut().map(AlignedBuf::bytes_mut);
        }
        let start = self.attachment.layout.shapes_start();
        self.sample().map(|sample| &mut sample[start..])
    }

    /// Writes the shapes to where the student looks for them, if that is beside the sample.
    fn tell_shapes(&mut self) {
        if !self.attachment.shapes_are_beside() {
            return;
        }
        let (attachment, slot) = (self.attachment.clone(), self.slot);
        let is_ours = attachment.segment.slots()[slot as usize].word() == self.slot_word;
        if let Some(shapes) = if is_ours { self.shapes() } else { None } {
            attachment.segment.write_shapes(slot, shapes);
        }
    }

    /// What is to be zero of a sample on a device.
    fn rests(&self) -> Result<Vec<Range<usize>>> {
        self.shapes.as_ref().map_or(Ok(Vec::new()), |shapes| self.attachment.layout.rests(shapes.bytes()))
    }

    /// Whether its ticket still waits for a sample.
    fn is_wanted(&self) -> bool {
        let word = self.attachment.segment.cells()[self.cell as usize].word();
        word.version() == self.version && matches!(word.state(), CellState::Open | CellState::Claimed) && self.attachment.is_serving()
    }

    /// Says what is wrong with the sample that was written in host memory, or makes it whole.
    fn finish(&mut self) -> Result<()> {
        let layout = self.attachment.layout.clone();
        self.sample().map_or(Ok(()), |sample| layout.finish(sample))
    }

    /// What is wrong with the lengths of a sample on a device.
    fn wrong_lengths(&self) -> Option<Error> {
        self.shapes.as_ref().and_then(|shapes| self.attachment.layout.lengths(shapes.bytes()).err())
    }
}

/// Tasks whose samples a device is still writing.
struct Underway {
    ids: Vec<u64>,
    /// `None` once a [`Commit`] has it.
    mark: Option<Box<dyn Mark>>,
}

impl Drop for Underway {
    fn drop(&mut self) {
        // The commit has failed. Its events must have been waited for before they are used again.
        if let Some(mark) = self.mark.take() {
            let _ = mark.wait().inspect_err(|e| tracing::error!("{e}"));
        }
    }
}

impl Inner {
    /// Brings samples to their slots. Not under the lock: a device may take its time. What is under way when this returns has a mark; it is waited for here where
    /// the samples are to be looked at before anybody gets them.
    fn settle(&self, done: &[(u64, usize)], stream: Stream) -> Result<Vec<Underway>> {
        struct Part {
            attachment: Arc<Attachment>,
            slot: u32,
            scratch: Option<Arc<Buffer>>,
            rests: Vec<Range<usize>>,
            len: usize,
            id: u64,
        }
        let mut parts: Vec<Part> = Vec::new();
        let serve = self.serve();
        for (id, length) in done {
            let task = &serve.tasks[serve.index(*id)?];
            if *length != task.attachment.layout.nbytes() {
                // `commit` says so, once what is before it is published.
                break;
            }
            if task.scratch.is_some() || !stream.is_none() || task.attachment.medium.place() != Place::Host {
                let (attachment, scratch) = (task.attachment.clone(), task.scratch.clone());
                parts.push(Part { attachment, slot: task.slot, scratch, rests: task.rests()?, len: *length, id: *id });
            }
        }
        drop(serve);
        // One group a student: each has events of its own until it is published, and a device has few of them.
        parts.sort_by_key(|part| Arc::as_ptr(&part.attachment));
        let mut underway = Vec::new();
        for group in parts.chunk_by(|a, b| Arc::ptr_eq(&a.attachment, &b.attachment)) {
            let writes: Vec<_> = group.iter().map(|p| Write { slot: p.slot, scratch: p.scratch.as_deref(), len: p.len, rests: &p.rests }).collect();
            let attachment = &group[0].attachment;
            match attachment.medium.settle(&writes, stream)? {
                Some(mark) if attachment.layout.asks_values() => mark.wait()?,
                Some(mark) => underway.push(Underway { ids: group.iter().map(|part| part.id).collect(), mark: Some(mark) }),
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
        let data = match &mut task.shapes {
            None => data,
            Some(own) => {
                let (tensors, shapes) = data.split_at(data.len().min(task.attachment.layout.shapes_start()));
                own.bytes_mut()[..shapes.len()].copy_from_slice(shapes);
                tensors
            }
        };
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
        self.serve().check(done)?;
        // What lies in host memory is made whole before it is brought to its slot, and lengths are known then; values on a device are looked at once it is complete.
        let mut refused = None;
        let done = self.refuse_in_host_memory(done, &mut refused);
        let underway = self.settle(&done, stream)?;
        let done = self.refuse_on_devices(&done, &mut refused);
        let mut later = Vec::new();
        let wanted = self.publish_or_keep(&done, underway, &mut later);
        // Without the tasks' lock, which whoever publishes them takes.
        let is_late = !later.is_empty();
        later.into_iter().for_each(|commit| self.defer(commit));
        if is_late && self.closed.load(Ordering::Acquire) {
            // `close` may have published what was pending before this was, and nobody looks any more.
            self.publish_all();
        }
        let wanted = wanted?;
        refused.map_or(Ok(wanted), |text| Err(Error::new(Status::TaskFailed, text)))
    }

    /// Publishes what is complete; what is under way goes to `later`. How many are wanted: still, or so far.
    fn publish_or_keep(&self, done: &[(u64, usize)], underway: Vec<Underway>, later: &mut Vec<Commit>) -> Result<u32> {
        let mut serve = self.serve();
        // Again, since the lock was not held meanwhile: no task may be taken from the others and then be nobody's.
        serve.check(done)?;
        let mut wanted = 0;
        let mut kept = Vec::new();
        for mut part in underway {
            let Some(mark) = part.mark.take() else { continue };
            let mut tasks = Vec::with_capacity(part.ids.len());
            for id in &part.ids {
                let index = serve.index(*id)?;
                tasks.push(serve.tasks.swap_remove(index));
            }
            wanted += tasks.iter().filter(|t| t.is_wanted()).count() as u32;
            tasks.iter().for_each(|t| _ = t.attachment.pending.fetch_add(1, Ordering::Relaxed));
            later.push(Commit { tasks, mark });
            kept.append(&mut part.ids);
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

    fn publish_sample(&self, serve: &mut Serve, mut task: InHand) -> bool {
        let length = task.attachment.layout.nbytes();
        task.tell_shapes();
        let won = serve.publish(task, length, false, clock::now() as u64);
        let counter = if won { &self.stats.made } else { &self.stats.lost };
        counter.fetch_add(1, Ordering::Relaxed);
        won
    }

    /// Publishes what was committed before its device had finished it, or the error that came instead.
    pub(super) fn publish_late(&self, tasks: Vec<InHand>, outcome: &Result<()>) {
        let failure = outcome.as_ref().err().map(|e| e.message.as_str());
        let mut serve = self.serve();
        for task in tasks {
            let attachment = task.attachment.clone();
            match failure {
                None => _ = self.publish_sample(&mut serve, task),
                Some(text) => {
                    tracing::error!("task (lane {}, step {}), which was committed: {text}", task.lane, task.step);
                    self.publish_failure(&mut serve, task, text);
                }
            }
            attachment.pending.fetch_sub(1, Ordering::Relaxed);
            if attachment.waits_for_device.swap(false, Ordering::Relaxed) {
                attachment.block(0, 0);
                futex::ring(self.bell.word());
            }
        }
    }

    /// Fails the tasks whose samples in host memory, or whose lengths there, are not what their layouts ask for; the rest. The first reason goes to `first`.
    fn refuse_in_host_memory<'a>(&self, done: &'a [(u64, usize)], first: &mut Option<String>) -> Cow<'a, [(u64, usize)]> {
        let is_asked = |task: &InHand| task.attachment.layout.asks_something() && task.is_in_host_memory();
        let serve = self.serve();
        let tasks = done.iter().filter_map(|(id, _)| serve.index(*id).ok().map(|i| &serve.tasks[i]));
        let any = tasks.clone().any(is_asked);
        let wrong = tasks.filter_map(|task| task.wrong_lengths().map(|e| (task.id, (task.attachment.clone(), e))));
        let mut wrong: HashMap<u64, (Arc<Attachment>, Error)> = wrong.collect();
        drop(serve);
        if !any && wrong.is_empty() {
            return Cow::Borrowed(done);
        }
        // What is queued for a sample on a device must not reach its slot once that is another's.
        let quiesce = |attachment: &Attachment| drop(attachment.medium.quiesce().inspect_err(|e| tracing::error!("{e}")));
        wrong.values().for_each(|(attachment, _)| quiesce(attachment));
        let judge = |task: &mut InHand| match wrong.remove(&task.id) {
            Some((_, e)) => Err(e),
            None if is_asked(task) => task.finish(),
            None => Ok(()),
        };
        Cow::Owned(self.refuse(done, judge, first))
    }

    /// As [`Inner::refuse_in_host_memory`], for those on devices. They are looked at in copies, which are made without the tasks' lock: a device may take its time, and
    /// whoever publishes what another commit left needs the lock before it can give events back to the device.
    fn refuse_on_devices<'a>(&self, done: &'a [(u64, usize)], first: &mut Option<String>) -> Cow<'a, [(u64, usize)]> {
        let mut parts: Vec<(u64, Arc<Attachment>, u32, Vec<u8>)> = Vec::new();
        let serve = self.serve();
        for (id, length) in done {
            // What is behind a task with a wrong length was not brought to its slot either.
            let Ok(index) = serve.index(*id) else { break };
            let task = &serve.tasks[index];
            if *length != task.attachment.layout.nbytes() {
                break;
            }
            if task.attachment.layout.asks_values() && !task.is_in_host_memory() {
                let shapes = task.shapes.as_ref().map_or(Vec::new(), |shapes| shapes.bytes().to_vec());
                parts.push((*id, task.attachment.clone(), task.slot, shapes));
            }
        }
        drop(serve);
        let look = |attachment: &Attachment, slot: u32, shapes: &[u8]| {
            let mut tensors = AlignedBuf::new(attachment.layout.shapes_start());
            attachment.medium.read(slot, tensors.bytes_mut())?;
            attachment.layout.check(tensors.bytes(), shapes)
        };
        let mut wrong: HashMap<u64, Error> =
            parts.into_iter().filter_map(|(id, attachment, slot, shapes)| Some((id, look(&attachment, slot, &shapes).err()?))).collect();
        if wrong.is_empty() { Cow::Borrowed(done) } else { Cow::Owned(self.refuse(done, |task| wrong.remove(&task.id).map_or(Ok(()), Err), first)) }
    }

    /// Fails the tasks of which `judge` says what is wrong; the rest. The first reason goes to `first`.
    fn refuse(&self, done: &[(u64, usize)], mut judge: impl FnMut(&mut InHand) -> Result<()>, first: &mut Option<String>) -> Vec<(u64, usize)> {
        let mut serve = self.serve();
        let mut rest = Vec::with_capacity(done.len());
        for (at, (id, length)) in done.iter().enumerate() {
            let index = serve.index(*id).ok().filter(|i| serve.tasks[*i].attachment.layout.nbytes() == *length);
            let Some(index) = index else {
                // `commit` says what is wrong with it; it and what is behind it stay in hand.
                rest.extend(&done[at..]);
                break;
            };
            match judge(&mut serve.tasks[index]) {
                Ok(()) => rest.push((*id, *length)),
                Err(e) => {
                    let text = format!("the sample was refused: {}", e.message);
                    let task = serve.tasks.swap_remove(index);
                    tracing::warn!("task (lane {}, step {}): {text}", task.lane, task.step);
                    self.publish_failure(&mut serve, task, &text);
                    self.stats.refused.fetch_add(1, Ordering::Relaxed);
                    first.get_or_insert(text);
                }
            }
        }
        rest
    }

    pub(super) fn set_length(&self, id: u64, dimension: &str, length: u64) -> Result<()> {
        let mut serve = self.serve();
        let index = serve.index(id)?;
        let task = &mut serve.tasks[index];
        let layout = task.attachment.layout.clone();
        match task.shapes() {
            Some(shapes) => layout.set_length(shapes, dimension, length),
            None if layout.is_ragged() => Ok(()),
            // Which says that there is no such dimension.
            None => layout.set_length(&mut [], dimension, length),
        }
    }

    pub(super) fn with_shapes<T>(&self, id: u64, look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let serve = self.serve();
        Ok(serve.tasks[serve.index(id)?].shapes.as_ref().map(|shapes| look(shapes.bytes())))
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
}

impl Serve {
    /// Whether each of these is in hand, and none is named twice.
    fn check(&self, done: &[(u64, usize)]) -> Result<()> {
        for (id, _) in done {
            self.index(*id)?;
        }
        let mut ids: Vec<u64> = done.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::invalid(format!("task {} is named twice: nothing was committed", pair[0]))),
            None => Ok(()),
        }
    }

    fn index(&self, id: u64) -> Result<usize> {
        self.tasks
            .iter()
            .position(|t| t.id == id)
            .ok_or_else(|| Error::invalid(format!("task {id} is not in hand: it was committed or failed before")))
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
