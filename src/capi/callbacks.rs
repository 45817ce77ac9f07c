//! Functions that were given to the library: functions and operators of loaders, mediums, progress, the log's callback.

use super::gate;
use super::guard::guard;
use super::status::lw_status;

/// For hosts that end before their process does, as interpreters: from now on none of them is called, for any handle, for ever; what needs one fails with
/// `LW_CLOSED` (indexing and counting that would tell how far they are: `LW_INTERRUPTED`), and their `drop` is not called either. Waits until `deadline` for those that run: `LW_TIMEOUT` if some still do, call again. Those that the
/// calling thread is in are not waited for. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn lw_callbacks_end(deadline: i64) -> lw_status {
    guard(|| gate::end(deadline))
}
