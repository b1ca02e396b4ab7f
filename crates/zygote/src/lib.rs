//! What a warmed interpreter loads to copy itself into sandboxes; see [`belljar_jail::zygote`].
//!
//! Three C names, each answering 0 or an errno.

use belljar_jail::Interpreter;
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

fn answer(result: belljar_sys::Result<()>) -> i32 {
    result.err().map_or(0, belljar_sys::Errno::raw_os_error)
}
