//! Tasks in hand: written, and then published or given up.

use super::Inner;
use super::attachment::Attachment;
use super::serve::Serve;
use crate::base::{Error, Result, Status};
use crate::medium::{Buffer, Place, Stream, Write};
use crate::os::memory::AlignedBuf;
use crate::os::{clock, futex};
use crate::segment::payload::writing_bytes;
use crate::segment::slot::{Content, SlotWord};
use std::borrow::Cow;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A task in hand.
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

impl Inner {
    /// Brings samples to their slots. Not under the lock: a device may take its time.
    fn settle(&self, done: &[(u64, usize)], stream: Stream) -> Result<()> {
        let mut parts: Vec<(Arc<Attachment>, u32, Option<Arc<Buffer>>, usize)> = Vec::new();
        let serve = self.serve();
        for (id, length) in done {
            let task = &serve.tasks[serve.index(*id)?];
            if *length != task.attachment.layout.nbytes() {
                // `commit` says so, once what is before it is published.
                break;
            }
            if task.scratch.is_some() || !stream.is_none() || task.attachment.medium.place() != Place::Host {
                parts.push((task.attachment.clone(), task.slot, task.scratch.clone(), *length));
            }
        }
        drop(serve);
        for group in parts.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
            let writes: Vec<_> = group.iter().map(|(_, slot, scratch, len)| Write { slot: *slot, scratch: scratch.as_deref(), len: *len }).collect();
            group[0].0.medium.settle(&writes, stream)?;
        }
        Ok(())
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
        // What lies in host memory is made whole before it is brought to its slot; what is on a device is looked at once it is complete.
        let mut refused = None;
        let done = self.refuse(done, true, &mut refused);
        self.settle(&done, stream)?;
        let done = self.refuse(&done, false, &mut refused);
        let mut serve = self.serve();
        let mut wanted = 0;
        for (id, length) in done.iter() {
            let index = serve.index(*id)?;
            let bytes = serve.tasks[index].attachment.layout.nbytes();
            if *length != bytes {
                return Err(Error::invalid(format!("task {id}: {length} bytes were committed and a sample has {bytes}")));
            }
            let won = serve.publish(index, *length, false, clock::now() as u64);
            wanted += u32::from(won);
            let counter = if won { &self.stats.made } else { &self.stats.lost };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        serve.account(self, done.len(), clock::now() as u64);
        refused.map_or(Ok(wanted), |text| Err(Error::new(Status::TaskFailed, text)))
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
                    self.publish_failure(&mut serve, index, &text);
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
        self.publish_failure(&mut serve, index, text);
        Ok(())
    }

    fn publish_failure(&self, serve: &mut Serve, index: usize, text: &str) {
        let task = &serve.tasks[index];
        let length = task.attachment.segment.write_text(task.slot, text);
        serve.publish(index, length, true, clock::now() as u64);
        self.stats.failed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Serve {
    fn index(&self, id: u64) -> Result<usize> {
        self.tasks
            .iter()
            .position(|t| t.id == id)
            .ok_or_else(|| Error::invalid(format!("task {id} is not in hand: it was committed or failed before")))
    }

    /// Makes the sample or the error text visible; true if it was still wanted. The task is not in hand any more.
    fn publish(&mut self, index: usize, length: usize, failed: bool, now: u64) -> bool {
        let task = self.tasks.swap_remove(index);
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
