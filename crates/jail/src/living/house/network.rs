//! The way out of a living sandbox: opened with it or later, changed while it lives.

use std::os::fd::{BorrowedFd, OwnedFd};

use belljar_sys::process::SingleThreaded;
use belljar_sys::{Errno, Result};

use super::House;
use crate::egress::{Door, EgressPlan, Exit, Reached, Refused, Secrets, Told, note};
use crate::layer::Check;
use crate::living::talk::NetworkState;
use crate::redact::Patterns;
use crate::report::{At, Failed, Step, Stopped};
use crate::wire::{Namespaces, sealed_memory};

/// Refusals that are kept: the latest of each kind.
const MAX_REFUSED: usize = 512;

/// What a sandbox has of a network.
#[derive(Debug)]
pub(crate) struct Network {
    namespaces: Namespaces,
    /// By which programs inside are found.
    init: u32,
    /// To be opened with the sandbox.
    wanted: Option<EgressPlan>,
    /// For when there is a way out; then it has them.
    secrets: Secrets,
    door: Option<Door>,
    refused: Vec<Refused>,
    reached: Vec<Reached>,
}

impl Network {
    pub(super) fn new(namespaces: Namespaces, init: u32, wanted: Option<EgressPlan>) -> Self {
        Self {
            namespaces,
            init,
            wanted,
            secrets: Secrets::default(),
            door: None,
            refused: Vec::new(),
            reached: Vec::new(),
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.door.as_ref().and_then(Door::descriptor)
    }

    /// Hears what the egress process tells.
    pub(super) fn attend(&mut self) {
        let told = self.door.as_mut().map(Door::attend).unwrap_or_default();
        told.into_iter().for_each(|one| self.take(one));
    }

    /// With the last that it has to tell.
    pub(super) fn shut(&mut self) {
        let told = self.door.as_mut().map(Door::finish).unwrap_or_default();
        self.door = None;
        told.into_iter().for_each(|one| self.take(one));
    }

    fn take(&mut self, told: Told) {
        match told {
            Told::Ready | Told::Obeyed => {}
            Told::Reached(lines) => {
                lines.into_iter().for_each(|line| note(&mut self.reached, line))
            }
            Told::Refused(one) => {
                match self.refused.iter_mut().find(|known| known.number == one.number) {
                    // It is told with its program the first time alone.
                    Some(known) => known.count = one.count,
                    None => {
                        if self.refused.len() >= MAX_REFUSED {
                            self.refused.remove(0);
                        }
                        self.refused.push(one);
                    }
                }
            }
        }
    }

    fn number(&self) -> u64 {
        let net = self.namespaces.rest.iter().find(|one| one.1 == belljar_sys::process::NEW_NET);
        net.and_then(|(fd, _)| rustix::fs::fstat(fd).ok()).map_or(0, |stat| stat.st_ino)
    }

    fn open(&mut self, plan: EgressPlan) -> Result<Check> {
        let single = SingleThreaded::prove()?;
        // Whoever does not open now may do so later, and must know them then.
        let secrets = self.secrets.copy()?;
        let mut door = Exit::start(plan, secrets)?.open(&single, &self.namespaces, self.init)?;
        let check = door.verify(self.number());
        if check.verified {
            (self.door, self.secrets) = (Some(door), Secrets::default());
        }
        Ok(check)
    }

    /// Another policy: from now on, for what is open too.
    fn change(&mut self, plan: EgressPlan) -> Result<()> {
        match &mut self.door {
            Some(door) => door.change(&SingleThreaded::prove()?, plan),
            None if plan.rules.is_empty() => Ok(()),
            None => match self.open(plan)?.verified {
                true => Ok(()),
                false => Err(Errno::PERM),
            },
        }
    }

    /// Other values of secrets, from now on.
    fn renew(&mut self, newer: OwnedFd) -> Result<()> {
        match &mut self.door {
            Some(door) => door.renew(newer),
            None => {
                self.secrets.renew(newer);
                Ok(())
            }
        }
    }

    /// In a file of memory: it may be long.
    fn state(&mut self, hidden: &Patterns) -> Result<OwnedFd> {
        self.attend();
        let rules = self.door.as_ref().map(|door| door.plan().rules.clone()).unwrap_or_default();
        let (mut refused, mut reached) = (self.refused.clone(), self.reached.clone());
        refused.iter_mut().for_each(|one| without_secrets(one, hidden));
        reached.iter_mut().for_each(|one| one.host = hidden.hide(&one.host));
        let state = NetworkState { rules, refused, reached };
        let json = serde_json::to_vec(&state).map_err(|_| Errno::PROTO)?;
        sealed_memory("network", &json).map_err(|_| Errno::NOMEM)
    }
}

/// Names and arguments are chosen by programs, which may have values.
fn without_secrets(refused: &mut Refused, hidden: &Patterns) {
    refused.host = hidden.hide(&refused.host);
    refused.detail = hidden.hide(&refused.detail);
    if let Some(program) = &mut refused.program {
        program.command = hidden.mask(&program.command);
    }
}

impl House {
    /// Opens the way out, where the plan has one; what was found of it.
    pub(crate) fn open_door(&mut self) -> std::result::Result<Option<Check>, Failed> {
        let Some(plan) = self.network.wanted.take() else { return Ok(None) };
        let check = self.network.open(plan).at(Step::Egress)?;
        if check.verified {
            return Ok(Some(check));
        }
        let stopped = Stopped::new(Step::ReadBack, Errno::PERM);
        Err(Failed { stopped, checks: vec![check] })
    }

    /// What the egress process must know of secrets.
    pub(crate) fn keep_secrets(&mut self, first: Option<OwnedFd>) {
        self.network.secrets = Secrets::new(first);
    }

    pub(super) fn renew_secrets(&mut self, newer: OwnedFd) -> Result<()> {
        self.network.renew(newer)
    }

    pub(super) fn change_network(&mut self, plan: EgressPlan) -> Result<()> {
        self.network.change(plan)
    }

    pub(super) fn network_state(&mut self) -> Result<OwnedFd> {
        self.network.state(&self.hidden)
    }
}
