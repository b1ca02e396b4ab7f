//! `belljar batch`: many requests in parallel under one budget, one result a line, in input order.

use crate::args::Batch;
use crate::render;

pub(crate) async fn batch(_args: Batch) -> u8 {
    render::trouble("", 125)
}
