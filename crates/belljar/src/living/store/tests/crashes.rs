//! A crash at every step of every change: the old state or the new one is found, nothing in between, and nothing is left.

use super::overlay::Tree;
use super::*;

/// What can be told of a store from outside: each sandbox by name, with its points and its files.
fn told(rig: &Rig) -> Vec<(String, Vec<String>, Tree)> {
    let mut all: Vec<_> = rig
        .store()
        .list()
        .into_iter()
        .map(|record| {
            let points = record.points.iter().map(|point| point.tag.to_string()).collect();
            (record.name.to_string(), points, rig.overlay(&record.id).tree())
        })
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

fn prepared() -> Rig {
    let rig = Rig::new();
    rig.create("one");
    rig.overlay("one").write("a", "first", 0o644);
    rig.store().snapshot("one", Some(tag("p")), Taking::Seal).unwrap();
    rig.overlay("one").remove("etc");
    rig.store().mark("one", Taking::Seal).unwrap();
    rig.overlay("one").write("b", "second", 0o644);
    rig.store().fork("one", vec![Some(name("two"))], Taking::Copy).unwrap();
    rig
}

/// Does `change` with a crash after each number of steps, until it passes them all.
fn at_every_step(change: impl Fn(&Store) -> Result<(), StoreError>) {
    let before = told(&prepared());
    let after = {
        let rig = prepared();
        change(rig.store()).unwrap();
        told(&rig)
    };
    assert_ne!(before, after, "the change changes nothing");
    let mut stopped = 0;
    for steps in 0..1000 {
        let mut rig = prepared();
        rig.store().steps.stop_after(steps);
        let result = change(rig.store());
        rig.reopen();
        let found = told(&rig);
        assert!(found == before || found == after, "step {steps}: {found:#?}");
        let named: BTreeSet<String> = rig
            .store()
            .list()
            .iter()
            .flat_map(|record| record.sheets().map(|sheet| sheet.disk).collect::<Vec<_>>())
            .collect();
        assert_eq!(
            rig.disks(),
            named.into_iter().collect::<Vec<_>>(),
            "step {steps} left something"
        );
        match result {
            Err(StoreError::Stopped(_)) => stopped += 1,
            Ok(()) => {
                assert_eq!(found, after);
                assert!(stopped > 1, "no step was reached");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it never came to an end");
}

#[test]
fn a_crash_in_a_snapshot_leaves_the_old_state_or_the_new() {
    at_every_step(|store| store.snapshot("one", Some(tag("q")), Taking::Seal).map(drop));
    at_every_step(|store| store.snapshot("one", Some(tag("q")), Taking::Copy).map(drop));
}

#[test]
fn a_crash_in_a_rollback_leaves_the_old_state_or_the_new() {
    at_every_step(|store| store.rollback("one", &tag("p")).map(drop));
}

#[test]
fn a_crash_in_a_fork_leaves_all_forks_or_none() {
    let names = || vec![Some(name("x")), Some(name("y")), Some(name("z"))];
    at_every_step(|store| store.fork("one", names(), Taking::Copy).map(drop));
}

#[test]
fn a_crash_in_a_promotion_leaves_the_old_state_or_the_new() {
    at_every_step(|store| {
        store.promote("two", &name("one"), Displaced::Rename(name("old"))).map(drop)
    });
    at_every_step(|store| store.promote("two", &name("one"), Displaced::Remove).map(drop));
}

#[test]
fn a_crash_in_making_or_removing_leaves_a_whole_sandbox_or_none() {
    at_every_step(|store| store.create(new_sandbox("new")).map(drop));
    at_every_step(|store| store.remove("one"));
}
