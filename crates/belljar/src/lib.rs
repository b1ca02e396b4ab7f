//! Run code that AI agents write where it can do no harm, and be told the truth about it.

pub mod seccomp;
