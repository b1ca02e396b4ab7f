//! What a warmed interpreter loads to copy itself into sandboxes; see [`belljar_jail::zygote`].
//!
//! Three C names for the zygote, each answering 0 or an errno; and one for what is graded.

use belljar_jail::Interpreter;
use belljar_jail::copies::{self, Side};
use belljar_jail::zygote;

/// Makes this process a zygote.
#[unsafe(no_mangle)]
pub extern "C" fn belljar_begin() -> i32 {
    answer(zygote::begin())
}

/// Waits for the next wish for a sandbox.
#[unsafe(no_mangle)]
pub extern "C" fn belljar_await() -> i32 {
    answer(zygote::await_wish())
}

/// Grants it. The copy that is to be the program calls `interpreter`, which must not return.
#[unsafe(no_mangle)]
pub extern "C" fn belljar_grant(interpreter: Interpreter) -> i32 {
    answer(zygote::grant(interpreter))
}

/// Copies a loaded candidate for each of its cases. 0: this is a copy; 1: one case is left; 2: there are no more. Below
/// that it is an errno.
#[unsafe(no_mangle)]
pub extern "C" fn belljar_copies(cases: i32, sink: i32) -> i32 {
    match copies::for_each(cases, sink) {
        Ok(Side::Copy) => 0,
        Ok(Side::Last) => 1,
        Ok(Side::Closed) => 2,
        Err(errno) => -errno.raw_os_error(),
    }
}

fn answer(result: belljar_sys::Result<()>) -> i32 {
    result.err().map_or(0, belljar_sys::Errno::raw_os_error)
}
