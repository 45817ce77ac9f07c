//! The driver's calls: `libcuda.so.1`, looked up when CUDA is first asked for, so that one build serves machines with and without it. All that is unsafe about CUDA
//! is in this file and in `owners.rs`.
//!
//! Answers are kept as plain numbers: a newer driver may give one that no enumeration of today knows.

use crate::base::{Error, Result, Status};
use crate::os::process;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// `CUdeviceptr`: an address that only the driver may follow.
pub type DevicePtr = u64;
/// `CUcontext`, `CUstream`, `CUevent`: opaque.
pub type Handle = *mut c_void;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle(pub [u8; 64]);

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`: what `cuInit` says in a forked child of a process that has begun with CUDA.
const NOT_INITIALIZED: c_int = 3;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
const DEVICE_UNAVAILABLE: c_int = 46;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_NOT_READY`: no failure, but what `cuEventQuery` says of work that is still under way.
pub const NOT_READY: c_int = 600;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`: somebody else in this process was first.
pub const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` and `…_INVALIDATED`: not while a stream of the context is captured into a graph.
pub const WHILE_CAPTURING: [c_int; 2] = [900, 901];
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: this thread's calls concern no capture that is going on elsewhere in the process.
pub const CAPTURE_RELAXED: c_int = 2;
/// Errors after which nothing of CUDA works in the process any more, as `cuda.h` says of each: memory errors (214, 220, 226), kernels that failed in one way or another
/// (an assertion is 710), a context destroyed (709), an MPS server that has ended its client (810), a device outside that failed (911). 701 is none: such a launch
/// did not happen, and the next one may.
const CONTEXT_LOST: [c_int; 16] = [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911];
/// What is said to a forked child, whoever its parent began CUDA with.
const FORKED: &str = "CUDA was begun by the parent process, and a forked child cannot use it: start processes with the 'spawn' method";

macro_rules! driver_calls {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions that Laneway calls, under the names that the library exports.
        pub struct Calls { $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Calls {
            /// # Safety
            /// `library` is a handle of `dlopen` that is never closed, of a library whose functions have these types.
            unsafe fn find(library: *mut c_void) -> std::result::Result<Calls, &'static str> {
                Ok(Calls { $($name: {
                    // SAFETY: the handle is valid, the name is NUL-terminated.
                    let found = unsafe { libc::dlsym(library, concat!($symbol, "\0").as_ptr().cast()) };
                    if found.is_null() {
                        return Err($symbol);
                    }
                    // SAFETY: not NULL, and by the caller's promise a function of this type; cuda.h has declared it so since CUDA 11.4.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(found) }
                },)* })
            }
        }
    };
}

driver_calls! {
    init: "cuInit" (c_uint);
    device_count: "cuDeviceGetCount" (*mut c_int);
    device: "cuDeviceGet" (*mut c_int, c_int);
    device_name: "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_uuid: "cuDeviceGetUuid_v2" (*mut [u8; 16], c_int);
    can_access_peer: "cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
    enable_peer_access: "cuCtxEnablePeerAccess" (Handle, c_uint);
    retain_context: "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release_context: "cuDevicePrimaryCtxRelease_v2" (c_int);
    push_context: "cuCtxPushCurrent_v2" (Handle);
    pop_context: "cuCtxPopCurrent_v2" (*mut Handle);
    exchange_capture_mode: "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    synchronize: "cuCtxSynchronize" ();
    alloc: "cuMemAlloc_v2" (*mut DevicePtr, usize);
    free: "cuMemFree_v2" (DevicePtr);
    memory_info: "cuMemGetInfo_v2" (*mut usize, *mut usize);
    ipc_handle: "cuIpcGetMemHandle" (*mut IpcHandle, DevicePtr);
    ipc_open: "cuIpcOpenMemHandle_v2" (*mut DevicePtr, IpcHandle, c_uint);
    ipc_close: "cuIpcCloseMemHandle" (DevicePtr);
    register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister: "cuMemHostUnregister" (*mut c_void);
    to_device: "cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, Handle);
    to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePtr, usize, Handle);
    copy: "cuMemcpyDtoDAsync_v2" (DevicePtr, DevicePtr, usize, Handle);
    set: "cuMemsetD8Async" (DevicePtr, u8, usize, Handle);
    copy_peer: "cuMemcpyPeerAsync" (DevicePtr, Handle, DevicePtr, Handle, usize, Handle);
    new_stream: "cuStreamCreate" (*mut Handle, c_uint);
    drop_stream: "cuStreamDestroy_v2" (Handle);
    stream_wait: "cuStreamWaitEvent" (Handle, Handle, c_uint);
    new_event: "cuEventCreate" (*mut Handle, c_uint);
    drop_event: "cuEventDestroy_v2" (Handle);
    record: "cuEventRecord" (Handle, Handle);
    query: "cuEventQuery" (Handle);
    wait: "cuEventSynchronize" (Handle);
    error_name: "cuGetErrorName" (c_int, *mut *const c_char);
    error_text: "cuGetErrorString" (c_int, *mut *const c_char);
}

/// A GPU, or a MIG instance, as this process numbers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number here; `CUDA_VISIBLE_DEVICES` makes it differ between processes.
    pub ordinal: i32,
    /// Its name everywhere.
    pub uuid: [u8; 16],
    /// Its make, for people.
    pub name: String,
}

impl Device {
    /// Its UUID, for people.
    pub fn label(&self) -> String {
        uuid_label(&self.uuid)
    }
}

/// A UUID as `nvidia-smi -L` shows it (which writes `MIG-` before that of a MIG instance).
pub fn uuid_label(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The driver, initialised in this process.
pub struct Driver {
    /// Its functions.
    pub calls: Calls,
    forks: u32,
    /// The first error after which no context of this process works any more.
    lost: OnceLock<Error>,
}

static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();

/// Why nothing of CUDA works in this process any more, if it is so. Does not load the driver.
pub fn lost() -> Option<Error> {
    DRIVER.get()?.as_ref().ok()?.lost.get().cloned()
}

impl Driver {
    /// The driver, loaded at the first call. Says why there is none: no library, no device, or a forked child of the process that has begun with it.
    pub fn get() -> Result<&'static Driver> {
        let driver = DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)?;
        if driver.forks != process::fork_depth() {
            return Err(Error::new(Status::Forked, FORKED));
        }
        Ok(driver)
    }

    fn load() -> Result<Driver> {
        let none = |why: String| Error::new(Status::Unsupported, format!("CUDA is not to be had here: {why}"));
        // SAFETY: a NUL-terminated name; the library's constructors are the driver vendor's.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: after a failed `dlopen` this gives NULL or a NUL-terminated text that is valid until this thread's next call.
            let why = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text).to_string_lossy().into_owned()) };
            return Err(none(why.unwrap_or_else(|| "libcuda.so.1 cannot be loaded".into())));
        }
        // SAFETY: just opened, never closed; libcuda.so.1 is the driver by its name.
        let calls = unsafe { Calls::find(library) }.map_err(|name| none(format!("the driver lacks {name}: one of CUDA 11.4 or newer is needed")))?;
        let driver = Driver { calls, forks: process::fork_depth(), lost: OnceLock::new() };
        // SAFETY: the one argument that there may be.
        match unsafe { (driver.calls.init)(0) } {
            0 => {}
            // By another library: torch, say.
            NOT_INITIALIZED => return Err(Error::new(Status::Forked, FORKED)),
            NO_DEVICE => return Err(none("there is a driver, but no device (what is CUDA_VISIBLE_DEVICES set to?)".into())),
            code => return Err(none(format!("cuInit: {}", driver.describe(code)))),
        }
        Ok(driver)
    }

    fn describe(&self, code: c_int) -> String {
        let text = |call: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut out: *const c_char = std::ptr::null();
            // SAFETY: `out` is writable; where the call succeeds it points to a text of the library's that is never freed.
            unsafe {
                let known = call(code, &raw mut out) == 0 && !out.is_null();
                known.then(|| CStr::from_ptr(out).to_string_lossy().into_owned())
            }
        };
        match (text(self.calls.error_name), text(self.calls.error_text)) {
            (Some(name), Some(text)) => format!("{name} ({code}): {text}"),
            _ => format!("error {code}, which this driver has no name for"),
        }
    }

    /// What an answer means, if it is not success.
    pub fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let more = match code {
            code if CONTEXT_LOST.contains(&code) => "; this process's CUDA context is lost: nothing but a restart brings it back",
            DEVICE_UNAVAILABLE => {
                "; another process has the device for itself (`nvidia-smi -q -d COMPUTE`): set its compute mode to DEFAULT, or use MPS"
            }
            _ => "",
        };
        let status = if code == OUT_OF_MEMORY { Status::NoMemory } else { Status::Io };
        let error = Error::new(status, format!("{what}: {}{more}", self.describe(code)));
        if CONTEXT_LOST.contains(&code) {
            let _ = self.lost.set(error.clone());
        }
        Err(error)
    }

    /// The devices that this process may use.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        self.check("cuDeviceGetCount", unsafe { (self.calls.device_count)(&raw mut count) })?;
        (0..count).map(|ordinal| self.device(ordinal)).collect()
    }

    fn device(&self, ordinal: i32) -> Result<Device> {
        let (id, mut uuid, mut name) = (self.device_id(ordinal)?, [0; 16], [0 as c_char; 128]);
        // SAFETY: both places are writable, the second of the length that is said; the driver ends it with a NUL.
        let name = unsafe {
            self.check("cuDeviceGetUuid", (self.calls.device_uuid)(&raw mut uuid, id))?;
            self.check("cuDeviceGetName", (self.calls.device_name)(name.as_mut_ptr(), name.len() as c_int - 1, id))?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        Ok(Device { ordinal, uuid, name })
    }

    /// The driver's own number of a device.
    pub fn device_id(&self, ordinal: i32) -> Result<c_int> {
        let mut id = 0;
        // SAFETY: `id` is writable.
        self.check(&format!("cuDeviceGet({ordinal})"), unsafe { (self.calls.device)(&raw mut id, ordinal) })?;
        Ok(id)
    }

    /// Whether device `from` reaches the memory of `to` without the host.
    pub fn can_access_peer(&self, from: i32, to: i32) -> Result<bool> {
        let mut can = 0;
        let (from, to) = (self.device_id(from)?, self.device_id(to)?);
        // SAFETY: `can` is writable.
        self.check("cuDeviceCanAccessPeer", unsafe { (self.calls.can_access_peer)(&raw mut can, from, to) })?;
        Ok(can != 0)
    }
}
