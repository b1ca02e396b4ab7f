//! Sandboxes that were made ahead: set up, locked down, verified, and waiting for a program.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_jail::plan::{Cgroup, Delivery, Own, Placed};
use belljar_jail::report::{Message, Started};
use belljar_jail::wire;

use super::exit::Exit;
use super::failure::explain;
use super::identity::Chosen;
use super::kind::Kind;
use super::plan::Planned;
use super::run::{Finished, Keeper, OurStreams, Streams, Talk, follow, send_secrets};
use super::zygote::Zygote;
use crate::events::Tally;
use crate::model::error::Error;
use crate::model::spec::Spec;
use crate::secrets::TRUST;

/// A sandbox that nobody has used. When it is dropped its keeper ends it.
pub(crate) struct Parked {
    keeper: Keeper,
    /// Taken when it is used, which is once.
    streams: Option<OurStreams>,
    started: Started,
    pub planned: Planned,
    made: Instant,
}

/// What a plan was made with, to be held until the keeper is gone.
#[derive(Debug)]
pub(crate) struct Holdings {
    #[expect(dead_code, reason = "held, not read")]
    pub claim: Chosen,
    /// What the keeper removes, unless it was killed: nobody else knows of a sandbox that waited.
    pub cgroup: Option<Cgroup>,
    /// The egress process that it was given, if any: its number is another's once it is reaped.
    pub exit: Option<Exit>,
}

impl Drop for Holdings {
    fn drop(&mut self) {
        self.cgroup.iter().for_each(super::sweep::remove_run_cgroups);
    }
}

impl Parked {
    /// Carries a plan out up to the point where the program is missing. What waits in it is a copy of the
    /// zygote, if the plan says so. It is the kind's with what is its own.
    pub(crate) async fn make(
        mut keeper: Keeper,
        planned: Planned,
        kind: &Kind,
        own: &Own,
        holdings: Holdings,
        zygote: Option<&Zygote>,
    ) -> Result<Self, Error> {
        keeper.hold(holdings);
        let started = Self::start(&keeper, &planned, kind, own, zygote).await;
        let (streams, started) = match started {
            Ok(started) => started,
            Err(error) => {
                keeper.reap();
                if matches!(error, Error::Lost { .. }) {
                    super::sweep::remove_run(&planned.plan);
                }
                return Err(error);
            }
        };
        let streams = Some(streams);
        Ok(Self { keeper, streams, started, planned, made: Instant::now() })
    }

    async fn start(
        keeper: &Keeper,
        planned: &Planned,
        kind: &Kind,
        own: &Own,
        zygote: Option<&Zygote>,
    ) -> Result<(OurStreams, Started), Error> {
        let streams = Streams::open().map_err(Error::backend("make pipes"))?;
        wire::send_plan(&keeper.control, kind.memory.as_fd(), Some(own), streams.theirs(), &[])
            .map_err(Error::backend("hand the plan to the keeper"))?;
        let ours = streams.ours().map_err(Error::backend("use pipes"))?;
        loop {
            match (keeper.next().await.map_err(Error::backend("hear the keeper"))?, zygote) {
                (Some((Message::Started(started), _)), _) => return Ok((ours, started)),
                (Some((Message::Failed(failed), _)), _) => {
                    return Err(explain(failed, &planned.plan));
                }
                (Some((Message::Standing, joining)), Some(zygote)) => {
                    zygote
                        .join(&kind.memory, &joining)
                        .await
                        .map_err(Error::backend("copy a zygote"))?;
                }
                (Some(_) | None, _) => {
                    return Err(Error::Lost { what: "its keeper died before there was a program" });
                }
            }
        }
    }

    pub(crate) fn keeper_id(&self) -> u32 {
        self.keeper.id()
    }

    /// It can still be used.
    pub(crate) fn is_well(&self) -> bool {
        self.keeper.is_quiet()
    }

    pub(crate) fn age(&self) -> Duration {
        self.made.elapsed()
    }

    /// Makes it this run's own, and runs it to the end. `Err(None)`: it could not be reached, nothing of
    /// the program ran, and another sandbox may be tried.
    pub(crate) async fn run(
        mut self,
        spec: &Spec,
        delivery: &Delivery,
        placed: &[OwnedFd],
        exit: Option<Exit>,
        talk: &mut Talk<'_>,
        tally: &mut Tally,
    ) -> (Result<Finished, Option<Error>>, Planned) {
        let finished = self.deliver(spec, delivery, (placed, exit), talk, tally).await;
        let Self { keeper, planned, .. } = self;
        // It has told its end: nothing of the sandbox is left but itself, on its way out.
        drop(keeper);
        if matches!(finished, Err(Some(Error::Lost { .. }) | None)) {
            super::sweep::remove_run(&planned.plan);
        }
        (finished, planned)
    }

    async fn deliver(
        &mut self,
        spec: &Spec,
        delivery: &Delivery,
        (placed, exit): (&[OwnedFd], Option<Exit>),
        talk: &mut Talk<'_>,
        tally: &mut Tally,
    ) -> Result<Finished, Option<Error>> {
        let fds: Vec<BorrowedFd<'_>> = placed.iter().map(AsFd::as_fd).collect();
        let both = exit.as_ref().map(Exit::fds).unwrap_or_default();
        wire::send_delivery(&self.keeper.control, delivery, &fds, &both).map_err(|_| None)?;
        send_secrets(&self.keeper, spec).map_err(|_| None)?;
        drop((fds, both));
        self.keeper.hold_exit(exit.map(Exit::sent));
        let streams = self.streams.take().ok_or(None)?;
        let plan = &mut self.planned.plan;
        plan.placed.clone_from(&delivery.placed); // for what an error names
        let started = Some(self.started.clone());
        follow(&self.keeper, plan, spec, streams, started, talk, tally).await.map_err(|error| {
            // What waited for the program is dead, and nothing is told as a failed set-up once the program
            // was released.
            let died = matches!(&error, Error::Setup { errno, .. } if errno == "ECHILD" || errno == "EPIPE");
            (!died).then_some(error)
        })
    }
}

/// What a delivery says of the files that a Spec places.
pub(crate) fn placed(spec: &Spec) -> Vec<Placed> {
    let file = |path: &std::path::PathBuf| Placed {
        path: path.clone(),
        executable: false,
        read_only: path.starts_with(TRUST),
    };
    spec.all_placed().map(|one| file(&one.path)).collect()
}
