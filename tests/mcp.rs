//! MCP as real clients speak it: the Python and the npm client, over standard input and output and over HTTP, in both
//! revisions of the protocol.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "mcp/clients.rs"]
mod clients;
