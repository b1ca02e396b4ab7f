//! Files by a real agent, in a root of its own: as whoever runs the tests, root or not.

mod archives;
mod attacks;
mod copies;
mod lies;
mod operations;
mod rig;
