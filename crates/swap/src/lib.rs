//! Inside TLS on the way out of a sandbox: a secret that never entered it is put in place of its placeholder.
//!
//! The egress process ends the client's TLS with a certificate of the sandbox's own [`Authority`], begins another with the
//! real host ([`Outside`]), and between the two every request goes through a [`Swap`]: placeholders become values for the
//! hosts that a secret is bound to, are refused for all others, and a value that comes back is hidden again. What is spoken
//! is HTTP/1.1, both ways read strictly and written anew ([`carry`]).

mod answer;
mod asks;
mod authority;
mod body;
mod carry;
mod head;
mod inflow;
mod outside;
mod records;
mod sealed;
mod swap;
mod trust;

pub use asks::asks;
pub use authority::Authority;
pub use carry::{Between, Carried, Judge, Peer, Trouble, carry};
pub use outside::Outside;
pub use sealed::{Pair, Sealed};
pub use swap::{Binding, Current, Stray, Swap, placeholder};
pub use trust::{VARIABLES, bundle, java_store};
