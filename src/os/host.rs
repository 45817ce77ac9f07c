//! Where we run and as whom: user, machine, namespaces, and the file that this code was loaded from.

use std::path::PathBuf;

/// Our (effective) user.
pub fn uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// This machine's name, for people.
pub fn hostname() -> String {
    nix::unistd::gethostname().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The inode of our PID namespace: process numbers of another one mean nothing here.
pub fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map(|m| m.ino()).unwrap_or(0)
}

/// The file that this code was loaded from: the shared library, or the program where it is linked in.
pub fn library_path() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let null = std::ptr::null_mut::<libc::c_void>();
    let mut info = libc::Dl_info { dli_fname: null.cast(), dli_fbase: null, dli_sname: null.cast(), dli_saddr: null };
    // SAFETY: the address is that of a function of this library; `info` is writable and alive through the call.
    let found = unsafe { libc::dladdr(library_path as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded, so this is a NUL-terminated string owned by the loader for as long as this library is
    // loaded, and this very code belongs to it.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    std::fs::canonicalize(std::ffi::OsStr::from_bytes(name.to_bytes())).ok()
}
