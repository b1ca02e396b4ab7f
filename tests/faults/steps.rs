//! Every step broken on purpose: by an error, and by the death of the process that reaches it.

use belljar::{Step, step_name};
use belljar_tests::Level;

use crate::guard::{Guarded, Mark};

/// A level at which each step is reached.
fn level_of(step: Step) -> Level {
    match step {
        Step::Scratch => Level::Basic,
        Step::Plan
        | Step::Cgroup
        | Step::Clone
        | Step::IdMap
        | Step::ReadBack
        | Step::Sources
        | Step::Become
        | Step::Hostname
        | Step::Loopback
        | Step::Root
        | Step::Binds
        | Step::Devices
        | Step::Proc
        | Step::Writable
        | Step::Placed
        | Step::Pivot
        | Step::Fork
        | Step::InitLockdown
        | Step::Session
        | Step::JoinCgroup
        | Step::CgroupNamespace
        | Step::Directory
        | Step::Rlimits
        | Step::Identity
        | Step::NoNewPrivileges
        | Step::Capabilities
        | Step::Landlock
        | Step::Descriptors
        | Step::Seccomp
        | Step::Exec
        | Step::Egress => Level::Standard,
    }
}

/// The steps that levels without a root of their own go through as well.
const ON_THE_HOST: [Step; 22] = [
    Step::Plan,
    Step::Scratch,
    Step::Clone,
    Step::IdMap,
    Step::ReadBack,
    Step::Become,
    Step::Proc,
    Step::Placed,
    Step::Fork,
    Step::InitLockdown,
    Step::Session,
    Step::JoinCgroup,
    Step::Directory,
    Step::Rlimits,
    Step::Identity,
    Step::NoNewPrivileges,
    Step::Capabilities,
    Step::Landlock,
    Step::Descriptors,
    Step::Seccomp,
    Step::Exec,
    Step::Cgroup,
];

/// The keeper's own steps: its death is the loss of the run, not a step that it could name.
const IN_THE_KEEPER: [Step; 7] = [
    Step::Plan,
    Step::Scratch,
    Step::Cgroup,
    Step::Clone,
    Step::IdMap,
    Step::ReadBack,
    Step::Egress,
];

fn broken(step: Step, level: Level, how: &str) -> (Guarded, Mark) {
    let mark = Mark::new();
    let fault = format!("{}{how}", step_name(step));
    let mut options = vec!["--level", level.name(), "--break-at", &fault];
    if step == Step::Egress {
        options.extend(["--egress", "belljar.invalid"]); // the only runs that reach it
    }
    let guarded = Guarded::belljar(&options, &mark);
    (guarded, mark)
}

fn stops_by_error(step: Step, level: Level) {
    let (guarded, mark) = broken(step, level, "");
    let error = guarded.error();
    assert_eq!(guarded.code, 125, "{guarded:?}");
    assert_eq!(error["kind"], "setup", "{guarded:?}");
    assert_eq!(error["step"], step_name(step), "{guarded:?}");
    assert_eq!(error["errno"], "EIO", "{guarded:?}");
    mark.assert_unmade();
    guarded.assert_clean();
}

fn stops_by_death(step: Step, level: Level) {
    let (guarded, mark) = broken(step, level, ":die");
    let error = guarded.error();
    assert_eq!(guarded.code, 125, "{step:?}: {guarded:?}");
    if IN_THE_KEEPER.contains(&step) {
        assert_eq!(error["kind"], "lost", "{step:?}: {guarded:?}");
        guarded.assert_clean_soon();
    } else {
        // A process that is killed names no step; that it was killed is told.
        assert_eq!(error["kind"], "setup", "{step:?}: {guarded:?}");
        assert_eq!(error["errno"], "ECHILD", "{step:?}: {guarded:?}");
        guarded.assert_clean();
    }
    mark.assert_unmade();
}

#[test]
fn an_error_at_every_step_is_told_as_that_step_and_leaks_nothing() {
    for step in Step::ALL {
        stops_by_error(step, level_of(step));
    }
}

#[test]
fn an_error_at_every_step_without_namespaces_is_told_and_leaks_nothing() {
    for step in ON_THE_HOST {
        stops_by_error(step, Level::Basic);
    }
}

#[test]
fn a_death_at_every_step_is_told_and_leaks_nothing() {
    for step in Step::ALL {
        stops_by_death(step, level_of(step));
    }
}

#[test]
fn a_death_at_every_step_without_namespaces_is_told_and_leaks_nothing() {
    for step in ON_THE_HOST {
        stops_by_death(step, Level::Basic);
    }
}

#[test]
fn a_step_that_a_level_does_not_have_breaks_nothing() {
    let (guarded, _mark) = broken(Step::Pivot, Level::Basic, "");
    assert_eq!(guarded.code, 0, "{guarded:?}");
    guarded.assert_clean();
}

#[test]
fn a_step_of_no_known_name_is_the_callers_mistake() {
    let mark = Mark::new();
    let guarded = Guarded::belljar(&["--break-at", "levitate"], &mark);
    assert_eq!(guarded.code, 2, "{guarded:?}");
    assert!(guarded.error()["message"].to_string().contains("levitate"));
    mark.assert_unmade();
}
