//! References to samples: kept, read and given back.

use super::held::Shapes;
use super::{Inner, Reaper, Sample, Student, held};
use crate::base::{Error, Result};
use crate::medium::{Place, Stream};
use crate::os::memory::AlignedBuf;
use crate::os::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One reference to a sample; dropping it gives the reference back, on any thread, and does nothing in a forked child.
pub struct Hold {
    inner: Arc<Inner>,
    slot: u32,
    serial: u64,
}

impl Hold {
    /// The sample's first byte, if it lies where its worker wrote it: `len` bytes that stay as long as this reference.
    pub fn data(&self) -> Option<*const u8> {
        let slot = (self.slot & held::COPY == 0).then_some(self.slot)?;
        self.inner.medium.slot(slot).map(|start| start.as_ptr().cast_const())
    }

    /// Copies bytes of the sample from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.inner.read(self.slot, self.serial, offset, out)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let own = process::fork_depth() == self.inner.forks;
        // Who reads on a device and drops this does not say on which stream.
        let mark = if own { self.inner.medium.mark(Stream::NONE) } else { Ok(None) };
        match mark.inspect_err(|e| tracing::error!("giving a reference back: {e}")) {
            Ok(Some(mark)) => Reaper::push(&self.inner, mark, vec![(self.slot, self.serial)]),
            _ => drop(self.inner.release(self.slot, self.serial).inspect_err(|e| tracing::error!("giving a reference back: {e}"))),
        }
        if process::fork_depth() != self.inner.forks {
            // The last of them would close what belongs to the parent.
            std::mem::forget(self.inner.clone());
        }
    }
}

impl Student {
    /// Another reference to a sample that has one.
    pub fn retain(&self, slot: u32, serial: u64) -> Result<()> {
        self.inner.retain(slot, serial)?;
        self.loose.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// As [`Student::release`], for samples on a device, whose reading is queued on `stream`: their slots are used again only once it is done, and this does not
    /// wait for it. Where one is not held, none is given back.
    pub fn release_on(&self, refs: &[(u32, u64)], stream: Stream) -> Result<()> {
        if self.inner.medium.place() == Place::Host || process::fork_depth() != self.inner.forks {
            self.inner.medium.check_stream(stream)?;
            return self.release_now(refs);
        }
        refs.iter().try_for_each(|(slot, serial)| self.inner.held.check(*slot, *serial))?;
        if let Some(mark) = self.inner.medium.mark(stream)? {
            self.loose.fetch_sub(refs.len() as i64, Ordering::Relaxed);
            Reaper::push(&self.inner, mark, refs.to_vec());
            return Ok(());
        }
        self.release_now(refs)
    }

    /// Copies the first bytes of a sample that is held to `out`, wherever it lies.
    pub fn read(&self, slot: u32, serial: u64, out: &mut [u8]) -> Result<()> {
        let have = self.inner.options.layout.nbytes();
        if out.len() > have {
            return Err(Error::invalid(format!("{} bytes were asked for and a sample has {have}", out.len())));
        }
        // A reference of its own: nobody can free the slot meanwhile.
        self.inner.retain(slot, serial)?;
        let read = self.inner.read(slot, serial, 0, out);
        self.inner.release(slot, serial)?;
        read
    }

    /// The shapes ([`crate::base::Layout::shapes_start`]) of a sample that is held, if it has any and is on a device, where they do not lie behind its tensors: they
    /// stay where they are for as long as it is held. Whatever its worker said: [`crate::base::Layout::shape`] says whether it may be.
    pub fn shapes(&self, slot: u32, serial: u64) -> Result<Shapes> {
        self.inner.held.shapes(slot, serial)
    }

    /// Where samples lie.
    pub fn place(&self) -> Place {
        self.inner.medium.place()
    }

    /// Gives references back; a sample whose last one goes may be overwritten. Works after `close`. In a forked child it does nothing.
    pub fn release(&self, refs: &[(u32, u64)]) -> Result<()> {
        self.release_on(refs, Stream::NONE)
    }

    fn release_now(&self, refs: &[(u32, u64)]) -> Result<()> {
        refs.iter().try_for_each(|(slot, serial)| {
            self.inner.release(*slot, *serial)?;
            self.loose.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        })
    }

    /// A reference that keeps a sample and its memory alive on its own, even after this handle is gone.
    pub fn hold(&self, slot: u32, serial: u64) -> Result<Hold> {
        self.inner.retain(slot, serial)?;
        Ok(Hold { inner: self.inner.clone(), slot, serial })
    }

    /// The same for a sample that `next` gave, whose reference it takes over.
    pub fn keep(&self, sample: &Sample) -> Hold {
        self.loose.fetch_sub(1, Ordering::Relaxed);
        Hold { inner: self.inner.clone(), slot: sample.slot, serial: sample.serial }
    }
}

impl Inner {
    /// Copies bytes of a sample, of which the caller has a reference, from `offset` on: its tensors from where it lies, and its shapes from where they do.
    fn read(&self, slot: u32, serial: u64, offset: usize, out: &mut [u8]) -> Result<()> {
        let shapes = if self.shapes_are_beside() { self.held.shapes(slot, serial)? } else { None };
        let Some(shapes) = shapes else { return self.read_medium(slot, serial, offset, out) };
        let layout = &self.options.layout;
        if offset.checked_add(out.len()).is_none_or(|end| end > layout.nbytes()) {
            return Err(Error::invalid(format!("bytes {offset}+{} of a sample of {}", out.len(), layout.nbytes())));
        }
        let (tensors, behind) = out.split_at_mut(layout.shapes_start().saturating_sub(offset).min(out.len()));
        behind.copy_from_slice(&shapes.bytes()[offset.saturating_sub(layout.shapes_start())..][..behind.len()]);
        if tensors.is_empty() { Ok(()) } else { self.read_medium(slot, serial, offset, tensors) }
    }

    fn read_medium(&self, slot: u32, serial: u64, offset: usize, out: &mut [u8]) -> Result<()> {
        match (slot & held::COPY, offset) {
            (0, 0) => self.medium.read(slot, out),
            (0, _) => self.medium.read_at(slot, offset, out),
            _ => self.held.read_copy(slot, serial, offset, out),
        }
    }

    /// Whether the shapes of samples lie in the segment, beside the samples.
    pub(super) fn shapes_are_beside(&self) -> bool {
        self.segment.header().shapes_bytes > 0
    }

    /// A copy of the shapes in a slot that is READING, if they lie there.
    pub(super) fn copy_shapes(&self, slot: u32) -> Shapes {
        self.shapes_are_beside().then(|| {
            let mut shapes = AlignedBuf::new(self.options.layout.shapes_bytes());
            self.segment.read_shapes(slot, shapes.bytes_mut());
            Arc::new(shapes)
        })
    }

    pub(super) fn retain(&self, slot: u32, serial: u64) -> Result<()> {
        self.held.retain(slot, serial)
    }

    pub(crate) fn release(&self, slot: u32, serial: u64) -> Result<()> {
        if process::fork_depth() != self.forks {
            return Ok(());
        }
        if self.held.release(slot, serial)? {
            self.segment.slots()[slot as usize].let_go();
            self.held.gone();
        }
        Ok(())
    }
}
