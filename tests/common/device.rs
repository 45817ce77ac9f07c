//! A user's medium on a device of the user's own, whose addresses are nothing that a host could follow. (Behind them is shared memory all the same.)

use laneway::base::Result;
use laneway::medium::{Attach, MappedMedium, Mark, Medium, MediumChoice, Place, Stream, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

const STRIDE: usize = 8192;

struct Device(MappedMedium);

/// A new one.
pub fn medium(slots: u32) -> MediumChoice {
    MediumChoice::Custom(Box::new(Device(MappedMedium::shm(slots, STRIDE).unwrap())))
}

impl Medium for Device {
    fn kind(&self) -> &str {
        "device"
    }
    fn buf_name(&self) -> &str {
        ""
    }
    fn slot_count(&self) -> u32 {
        self.0.slot_count()
    }
    fn slot_stride(&self) -> usize {
        self.0.slot_stride()
    }
    fn slot(&self, slot: u32) -> Option<NonNull<u8>> {
        NonNull::new(std::ptr::without_provenance_mut((1 << 60) + slot as usize * STRIDE))
    }
    fn reserve(&self, slots: u32) -> Result<()> {
        self.0.reserve(slots)
    }
    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        self.0.read(slot, out)
    }
    fn write(&self, slot: u32, data: &[u8]) -> Result<()> {
        self.0.write(slot, data)
    }
    fn share(&self) -> Option<BorrowedFd<'_>> {
        self.0.share()
    }
    fn unlink(&self) -> Result<()> {
        Ok(())
    }
    fn place(&self) -> Place {
        Place::Cuda(5)
    }
    fn settle(&self, writes: &[Write<'_>], _: Stream) -> Result<Option<Box<dyn Mark>>> {
        for write in writes {
            let mut sample = vec![0; write.len];
            self.0.read(write.slot, &mut sample)?;
            write.rests.iter().for_each(|rest| sample[rest.clone()].fill(0));
            self.0.write(write.slot, &sample)?;
        }
        Ok(None)
    }
}

/// What workers attach with to mediums of that kind; its own is "device".
pub struct AttachDevice(pub &'static str);

impl Attach for AttachDevice {
    fn kind(&self) -> &str {
        self.0
    }
    fn attach(&self, _: &str, fd: Option<OwnedFd>, slots: u32, stride: usize) -> Result<Box<dyn Medium>> {
        Ok(Box::new(Device(MappedMedium::attach("shm", "", fd.expect("the descriptor travels"), slots, stride)?)))
    }
}
