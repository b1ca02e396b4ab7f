//! Tripwires: what stands over the kernel's secrets in /proc tells when somebody opens it.
//!
//! The filter cannot see paths, and to ask about each open would make all of them dear. Init holds a lease on
//! each cover instead: who opens one waits in the kernel until init, which a signal wakes, has told of it.
//! Whoever opens nothing of the kind pays nothing. A lease does not say who opened the file.

use std::os::fd::OwnedFd;

use belljar_sys::lease;

use crate::report::Note;

/// The covers of one sandbox that nobody has opened yet, by their place in the plan.
#[derive(Debug, Default)]
pub(crate) struct Tripwires {
    wires: Vec<(u16, OwnedFd)>,
    /// Those that somebody opened, which may be guarded again.
    sprung: Vec<(u16, OwnedFd)>,
}

impl Tripwires {
    /// Guards a cover. Where the host has leases switched off there is none: a tripwire is no wall.
    pub(crate) fn add(&mut self, place: usize, cover: OwnedFd) {
        if let (Ok(place), Ok(())) = (u16::try_from(place), lease::take(&cover)) {
            self.wires.push((place, cover));
        }
    }

    /// Guards again what was opened, unless somebody has it open still.
    pub(crate) fn set_again(&mut self) {
        for wire in std::mem::take(&mut self.sprung) {
            let guarded = lease::take(&wire.1).is_ok();
            if guarded { &mut self.wires } else { &mut self.sprung }.push(wire);
        }
    }

    /// As [`Self::attend`], of a sandbox in which others hold our descriptors too, and may open a cover again.
    pub(crate) fn attend_all(&mut self, notes: &OwnedFd) {
        for wire in std::mem::take(&mut self.wires) {
            if lease::is_kept(&wire.1) {
                self.wires.push(wire);
                continue;
            }
            rustix::io::write(notes, &Note::Touched(wire.0).to_bytes()).ok(); // as above
            lease::release(&wire.1).ok(); // the kernel does when it has waited long enough
            self.sprung.push(wire);
        }
    }

    /// Tells of what is being opened, and then lets it be: so the word is there before the program goes on.
    /// Each cover is told of once.
    pub(crate) fn attend(&mut self, notes: &OwnedFd) {
        self.wires.retain(|(place, cover)| {
            if lease::is_kept(cover) {
                return true;
            }
            // A keeper that is gone ends us all.
            rustix::io::write(notes, &Note::Touched(*place).to_bytes()).ok();
            false // to close it is to let go of it
        });
    }
}
