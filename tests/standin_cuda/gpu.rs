//! What a trainer's or a teacher's own code does with a device, here with the stand-in driver: streams and copies on them.

use std::ffi::{CString, c_int, c_void};
use std::ptr;

/// The driver's function of that name.
fn function(name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: NUL-terminated names; the library is never closed.
    let found = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "the stand-in lacks {name:?}");
    found
}

macro_rules! answer {
    ($name:literal ($($argument:expr => $type:ty),*)) => {
        // SAFETY: the stand-in's function of that name has these parameters, and the pointers among them are to places of the caller's.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(function($name))($($argument),*) }
    };
}

macro_rules! call {
    ($name:literal ($($argument:expr => $type:ty),*)) => {
        assert_eq!(answer!($name($($argument => $type),*)), 0, $name)
    };
}

/// A device's primary context, current on this thread, and a stream.
pub struct Gpu {
    pub stream: *mut c_void,
}

impl Gpu {
    pub fn new(device: i32) -> Gpu {
        let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
        call!("cuInit"(0 => u32));
        call!("cuDevicePrimaryCtxRetain"(&raw mut context => *mut *mut c_void, device => i32));
        call!("cuCtxPushCurrent_v2"(context => *mut c_void));
        call!("cuStreamCreate"(&raw mut stream => *mut *mut c_void, 1 => u32));
        Gpu { stream }
    }

    /// Queues a copy from the host, which must stay until it is done. A teacher that does not look at the answer: it learns at commit what became of it.
    pub fn upload(&self, to: *mut u8, from: &[u8]) {
        let _ =
            answer!("cuMemcpyHtoDAsync_v2"(to as u64 => u64, from.as_ptr().cast() => *const c_void, from.len() => usize, self.stream => *mut c_void));
    }

    /// As [`Gpu::upload`], of memory that this process can only name; what the driver answers.
    pub fn try_upload(&self, to: u64, from: *const u8, len: usize) -> c_int {
        answer!("cuMemcpyHtoDAsync_v2"(to => u64, from.cast() => *const c_void, len => usize, self.stream => *mut c_void))
    }

    /// Memory of this device.
    pub fn alloc(&self, size: usize) -> u64 {
        let mut at = 0;
        call!("cuMemAlloc_v2"(&raw mut at => *mut u64, size => usize));
        at
    }

    /// Begins to capture what is queued on the stream into a graph, as `torch.cuda.graph` does: no thread of this process may do what could harm that, unless it says
    /// that it does not concern it.
    pub fn begin_capture(&self) {
        call!("cuStreamBeginCapture_v2"(self.stream => *mut c_void, 0 => c_int));
    }

    /// Whether the capture has come through.
    pub fn end_capture(&self) -> bool {
        let mut graph = ptr::null_mut();
        answer!("cuStreamEndCapture"(self.stream => *mut c_void, &raw mut graph => *mut *mut c_void)) == 0
    }

    /// Queues a copy to the host, which must stay until it is done.
    pub fn download(&self, to: &mut [u8], from: *const u8) {
        call!("cuMemcpyDtoHAsync_v2"(to.as_mut_ptr().cast() => *mut c_void, from as u64 => u64, to.len() => usize, self.stream => *mut c_void));
    }

    pub fn synchronize(&self) {
        call!("cuStreamSynchronize"(self.stream => *mut c_void));
    }

    pub fn free_bytes(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        call!("cuMemGetInfo_v2"(&raw mut free => *mut usize, &raw mut total => *mut usize));
        free
    }

    /// Stops all streams of this process until the answer is dropped.
    pub fn hold() -> Hold {
        set_hold(1);
        Hold
    }

    /// Bytes of host memory that this process has page-locked, as the stand-in has counted.
    pub fn locked_bytes() -> usize {
        // SAFETY: the stand-in's function of that name, without parameters.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(function("standinCudaLocked"))() }
    }

    /// Bytes that copies between devices took through the host in this process, and the devices on which it has a context, a bit each.
    pub fn staged_and_contexts() -> (usize, u32) {
        // SAFETY: the stand-in's functions of these names, without parameters.
        unsafe {
            let staged = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(function("standinCudaStaged"));
            let contexts = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u32>(function("standinCudaContexts"));
            (staged(), contexts())
        }
    }

    /// Handles opened and closed by this process, as the stand-in has counted.
    pub fn opens_and_closes() -> (u64, u64) {
        let (mut opens, mut closes) = (0, 0);
        // SAFETY: the stand-in's function of that name, which gives nothing back; both places are writable.
        unsafe {
            let count = function("standinCudaCounts");
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, *mut u64)>(count)(&raw mut opens, &raw mut closes);
        }
        (opens, closes)
    }
}

/// See [`Gpu::hold`].
pub struct Hold;

impl Drop for Hold {
    fn drop(&mut self) {
        set_hold(0);
    }
}

fn set_hold(hold: c_int) {
    // SAFETY: the stand-in's function of that name, which gives nothing back.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(function("standinCudaHold"))(hold) };
}
