use std::fs;

use super::super::tests::{Place, run_of};
use super::super::{Store, Verified};
use super::*;

fn spool(place: &Place, run: u64) {
    append(&place.0, run_of(run)).unwrap().expect("it is taken");
}

/// Gives the records back: the trail itself is wanted.
fn is_refused(place: &Place) -> bool {
    append(&place.0, run_of(9)).unwrap().is_err()
}

fn verify(place: &Place) -> Result<Verified, Broken> {
    Store::read(&place.0).unwrap().verify().unwrap()
}

fn edit(place: &Place, change: impl FnOnce(String) -> String) {
    let path = place.0.join(FILE);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, change(text)).unwrap();
}

#[test]
fn one_chain_goes_through_both_files() {
    let place = Place::with(1);
    spool(&place, 1);
    spool(&place, 2);
    let mut store = place.open();
    store.append(run_of(3)).unwrap();
    assert!(store.spool.is_empty());
    spool(&place, 4);
    // A store that was open meanwhile goes on behind what was spooled.
    store.append(run_of(5)).unwrap();
    spool(&place, 6);
    let verified = verify(&place).unwrap();
    assert_eq!((verified.records, verified.unfinished, verified.head.seq), (14, 0, 14));
    let found = Store::read(&place.0).unwrap().of_run("RUN0004").unwrap();
    assert_eq!(found.iter().map(|record| record.seq).collect::<Vec<_>>(), [9, 10]);
}

#[test]
fn many_writers_of_both_kinds_make_one_chain() {
    let place = Place::with(1);
    std::thread::scope(|scope| {
        for thread in 1..9 {
            let place = &place;
            scope.spawn(move || {
                for run in thread * 100..thread * 100 + 20 {
                    if thread % 2 == 0 {
                        spool(place, run);
                    } else {
                        place.open().append(run_of(run)).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(verify(&place).unwrap().records, 2 + 8 * 20 * 2);
}

/// A head that has moved on into the spool, while a trail is being opened, is no sign of a cut.
#[test]
fn opening_while_others_spool_finds_no_damage() {
    let place = Place::with(1);
    std::thread::scope(|scope| {
        for thread in 1..4 {
            let place = &place;
            scope.spawn(move || {
                for run in 0..100 {
                    // Whoever read before has brought the log into the file, which looks different then.
                    if let Err(all) = append(&place.0, run_of(thread * 1000 + run)).unwrap() {
                        place.open().append(all).unwrap();
                    }
                }
            });
        }
        for _ in 0..100 {
            drop(place.open());
            verify(&place).unwrap();
        }
    });
    assert_eq!(verify(&place).unwrap().records, 2 + 3 * 100 * 2);
}

#[test]
fn without_a_trail_or_after_an_accident_the_trail_itself_is_wanted() {
    let place = Place::new();
    assert!(is_refused(&place), "there is none");
    let place = Place::with(1);
    spool(&place, 1);
    let head = Head::open(&place.0).unwrap();
    head.lock().unwrap().begin().unwrap();
    assert!(is_refused(&place), "somebody was killed at work");
    drop(place.open());
    spool(&place, 2);
    fs::remove_file(place.0.join(super::super::FILE)).unwrap();
    assert!(is_refused(&place), "the trail is gone");
    assert!(matches!(Store::open(&place.0, 1), Err(StoreError::Damaged { .. })));
}

#[test]
fn a_line_that_was_being_written_is_dropped_and_the_rest_taken_over() {
    let place = Place::with(1);
    spool(&place, 1);
    Head::open(&place.0).unwrap().lock().unwrap().begin().unwrap();
    edit(&place, |text| format!("{text}{{\"seq\":5,\"at_us\":"));
    assert_eq!(place.open().append(run_of(2)).unwrap().seq, 6);
    assert_eq!(verify(&place).unwrap().records, 6);
}

#[test]
fn what_was_taken_over_before_an_accident_is_not_taken_twice() {
    let place = Place::with(1);
    spool(&place, 1);
    let spooled = fs::read(place.0.join(FILE)).unwrap();
    drop(place.open());
    fs::write(place.0.join(FILE), spooled).unwrap();
    assert!(is_refused(&place), "it is longer than the head says");
    assert_eq!(place.open().append(run_of(2)).unwrap().seq, 6);
    assert_eq!(verify(&place).unwrap().records, 6);
}

#[test]
fn every_change_of_the_spool_is_found() {
    type Change = fn(String) -> String;
    let changes: [(Change, u64, Damage); 6] = [
        (|text| text.replacen("RUN0001", "RUN0002", 1), 3, Damage::Changed),
        (|text| text.replacen("\"at_us\":1000000", "\"at_us\":1000001", 1), 3, Damage::Changed),
        (|text| text.replacen("{\"seq\":3", "{\"sec\":3", 1), 3, Damage::Changed),
        (|text| text.split_inclusive('\n').skip(1).collect(), 3, Damage::Removed),
        (|text| text.split_inclusive('\n').take(3).collect(), 6, Damage::Truncated),
        (|_| String::new(), 3, Damage::Truncated),
    ];
    for (change, seq, damage) in changes {
        let place = Place::with(1);
        spool(&place, 1);
        spool(&place, 2);
        let length = fs::metadata(place.0.join(FILE)).unwrap().len();
        edit(&place, change);
        let broken = verify(&place).unwrap_err();
        assert_eq!((broken.seq, broken.damage), (seq, damage), "{broken}");
        assert!(matches!(Store::open(&place.0, 1), Err(StoreError::Damaged { .. })));
        let same_length = fs::metadata(place.0.join(FILE)).unwrap().len() == length;
        assert!(same_length || is_refused(&place));
    }
}

#[test]
fn a_long_spool_is_taken_over_first() {
    let place = Place::with(1);
    let long = |run| {
        let mut all = run_of(run);
        all[0].entry.detail = "x".repeat(3 << 20);
        append(&place.0, all).unwrap()
    };
    assert!(long(1).is_ok() && long(2).is_ok());
    assert!(long(3).is_err());
    drop(place.open());
    assert!(long(3).is_ok());
    assert_eq!(verify(&place).unwrap().records, 8);
}

#[test]
fn others_cannot_read_the_spool() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::with(1);
    spool(&place, 1);
    let mode = fs::metadata(place.0.join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_database_that_was_changed_by_hand_is_opened_first() {
    let place = Place::with(3);
    spool(&place, 3);
    place.by_hand("DELETE FROM records WHERE seq > 4");
    assert!(is_refused(&place));
    assert!(matches!(Store::open(&place.0, 1), Err(StoreError::Damaged { .. })));
}

#[test]
fn the_way_to_the_disk_does_not_make_it_another_trail() {
    let place = Place::with(3);
    place.open().sync().unwrap();
    spool(&place, 3);
    place.open().shorten().unwrap();
    spool(&place, 4);
    assert_eq!(verify(&place).unwrap().records, 10);
}
