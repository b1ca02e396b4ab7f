//! Asserts.
use super::CaseVerdict;
use super::judge::Judged;
use super::lanes::{Group, Shared};
use crate::model::error::Error;
use std::sync::Arc;

pub(super) async fn lane(shared: &Arc<Shared>, group: &Group) -> Result<(), Error> {
    shared.tell_rest(group, || Judged::new(CaseVerdict::NotLoaded, "not yet"));
    Ok(())
}
