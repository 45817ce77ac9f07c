//! A thread's robust futex list (`set_robust_list(2)`): the kernel marks a word when the thread that owns it dies, within
//! microseconds and before the process's memory is torn down, which for a large process may take 100 ms and more.

use super::{futex, point};
use std::sync::atomic::{AtomicU32, Ordering};

#[repr(C)]
struct Node {
    next: *const Node,
}

/// `struct robust_list_head` of linux/futex.h, and the one entry that it leads to. The futex word of an entry lies `offset` bytes from it.
#[repr(C)]
struct Head {
    first: *const Node,
    offset: isize,
    pending: *const Node,
    node: Node,
}

/// Keeps one futex word marked as owned by the thread that made this, until it is dropped on that same thread.
///
/// The C library registers a list of its own for each thread (for robust mutexes); this replaces it, so the thread must not lock robust mutexes.
pub struct RobustWord<'a> {
    word: &'a AtomicU32,
    head: Box<Head>,
    // The list belongs to one thread: neither Send nor Sync.
    _thread: std::marker::PhantomData<*const ()>,
}

impl<'a> RobustWord<'a> {
    /// Marks `word` with this thread's id and the waiters bit; the kernel replaces the id with [`futex::OWNER_DIED`] and wakes one sleeper at the thread's death.
    pub fn hold(word: &'a AtomicU32) -> RobustWord<'a> {
        let mut head = Box::new(Head { first: std::ptr::null(), offset: 0, pending: std::ptr::null(), node: Node { next: std::ptr::null() } });
        head.node.next = std::ptr::from_ref::<Head>(&head).cast();
        head.first = &head.node;
        head.offset = (word.as_ptr() as isize).wrapping_sub(std::ptr::from_ref(&head.node) as isize);
        // SAFETY: gettid takes no arguments and cannot fail.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        point();
        word.store(tid | futex::WAITERS, Ordering::Release);
        point();
        // SAFETY: the boxed head has the kernel's layout, stays at its address until `drop` takes it out of the kernel's hands, and its only
        // entry leads back to it, so the kernel's walk at thread exit ends after one word that is mapped for `'a`.
        unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::from_ref::<Head>(&head), HEAD_LEN) };
        RobustWord { word, head, _thread: std::marker::PhantomData }
    }
}

/// `sizeof(struct robust_list_head)`, which the kernel insists on.
const HEAD_LEN: usize = 24;

impl Drop for RobustWord<'_> {
    fn drop(&mut self) {
        self.head.first = std::ptr::from_ref::<Head>(&self.head).cast();
        // SAFETY: a NULL head of the right length is how a thread says that it has no list.
        unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::null::<Head>(), HEAD_LEN) };
        point();
        self.word.store(0, Ordering::Release);
        point();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_thread_that_ends_without_letting_go_leaves_the_mark() {
        let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        std::thread::spawn(move || std::mem::forget(RobustWord::hold(word))).join().unwrap();
        for _ in 0..1000 {
            if word.load(Ordering::Acquire) & futex::OWNER_DIED != 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the kernel did not mark the word: {:#x}", word.load(Ordering::Acquire));
    }

    #[test]
    fn a_thread_that_lets_go_leaves_zero() {
        let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        std::thread::spawn(move || drop(RobustWord::hold(word))).join().unwrap();
        assert_eq!(word.load(Ordering::Acquire), 0);
    }
}
