use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::audit::chain::Damage;

/// A state directory that goes with the test.
pub(super) struct Place(pub PathBuf);

impl Place {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("belljar-store-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(super) fn open(&self) -> Store {
        Store::open(&self.0, 1).unwrap()
    }

    pub(super) fn with(runs: u64) -> Self {
        let place = Self::new();
        let mut store = place.open();
        for run in 0..runs {
            store.append(run_of(run)).unwrap();
        }
        place
    }

    /// As somebody with the file in their hands would.
    pub(super) fn by_hand(&self, sql: &str) {
        let connection = Connection::open(self.0.join(FILE)).unwrap();
        assert!(connection.execute(sql, []).unwrap() > 0, "{sql}");
    }

    fn verify(&self) -> Result<Verified, Broken> {
        Store::read(&self.0).unwrap().verify().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn entry(kind: &str, run: u64) -> Entry {
    Entry {
        at_us: run * 1_000_000,
        kind: kind.into(),
        run: format!("RUN{run:04}"),
        summary: format!("{{\"uid\":{run}}}"),
        detail: "{}".into(),
    }
}

pub(super) fn run_of(run: u64) -> Vec<Append> {
    vec![
        Append { entry: entry("start", run), run_is: RunIs::Begun { engine: "e".into() } },
        Append { entry: entry("end", run), run_is: RunIs::Ended },
    ]
}

#[test]
fn lines_of_a_tenant_are_found_by_their_key() {
    let place = Place::new();
    let mut store = place.open();
    let keys = [Some("one"), Some("one/ci"), Some("one-more"), Some("one0"), None, Some("on")];
    for (number, key) in keys.into_iter().enumerate() {
        let summary = key.map_or("{}".to_owned(), |key| format!("{{\"key\":\"{key}\"}}"));
        let run = format!("RUN{number}");
        let entry = Entry { at_us: 1, kind: "start".into(), run, summary, detail: "{}".into() };
        let run_is = RunIs::Begun { engine: "e".into() };
        store.append(vec![Append { entry, run_is }]).unwrap();
    }
    let lines = |tenant, before| {
        let mut found = Vec::new();
        let which = Rows { tenant, before, since_us: None };
        store
            .each_line_back(which, |line| {
                assert!(line.is_open);
                found.push(line.run);
                Scan::On
            })
            .unwrap();
        found
    };
    assert_eq!(lines(Some("one"), None), ["RUN1", "RUN0"]);
    assert_eq!(lines(Some("one"), Some(2)), ["RUN0"]);
    assert_eq!(lines(Some("none"), None), [""; 0]);
    assert_eq!(lines(None, None).len(), keys.len());
    let text = format!("EXPLAIN QUERY PLAN {}", scan::lines_of_tenant());
    let mut query = store.connection.prepare(&text).unwrap();
    let plan: Vec<String> = query
        .query_map(params![9, "a", "a/", "a0"], |row| row.get(3))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert!(!plan.iter().any(|step| step.starts_with("SCAN")), "{plan:?}");
    assert!(plan.iter().any(|step| step.contains("records_of_key")), "{plan:?}");
}

#[test]
fn scan_ends_where_nothing_can_have_begun_since() {
    let place = Place::new();
    let mut store = place.open();
    let hour = 3_600_000_000;
    for (number, at_us) in [1, hour, 3 * hour, 2 * hour + 1, 4 * hour].into_iter().enumerate() {
        let (run, summary) = (format!("RUN{number}"), "{}".to_owned());
        let entry = Entry { at_us, kind: "start".into(), run, summary, detail: "{}".into() };
        let run_is = RunIs::Begun { engine: "e".into() };
        store.append(vec![Append { entry, run_is }]).unwrap();
    }
    let mut seen = Vec::new();
    let which = Rows { tenant: None, before: None, since_us: Some(3 * hour) };
    let take = |line: Line| {
        seen.push(line.run);
        Scan::On
    };
    store.each_line_back(which, take).unwrap();
    assert_eq!(seen, ["RUN4", "RUN3", "RUN2"], "a clock may be set back by less than an hour");
}

#[test]
fn what_was_appended_is_there_after_opening_again() {
    let place = Place::with(3);
    let head = place.open().append(run_of(3)).unwrap();
    let verified = place.verify().unwrap();
    assert_eq!((verified.records, verified.unfinished, verified.head), (8, 0, head));
    let records = place.open().of_run("RUN0001").unwrap();
    assert_eq!(records.iter().map(|one| one.seq).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn every_column_of_a_row_is_protected() {
    for (column, value) in [
        ("at_us", "at_us + 1"),
        ("kind", "'END'"),
        ("run", "'RUN9999'"),
        ("summary", "summary || ' '"),
        ("detail", "'{ }'"),
        ("prev", "zeroblob(32)"),
        ("hash", "zeroblob(32)"),
        ("hash", "x'00'"),
    ] {
        let place = Place::with(3);
        assert!(place.verify().is_ok());
        place.by_hand(&format!("UPDATE records SET {column} = {value} WHERE seq = 4"));
        let broken = place.verify().unwrap_err();
        assert_eq!((broken.seq, broken.damage), (4, Damage::Changed), "{column}: {broken}");
    }
}

#[test]
fn removed_reordered_and_cut_records_are_named() {
    let place = Place::with(3);
    place.by_hand("DELETE FROM records WHERE seq = 2");
    let broken = place.verify().unwrap_err();
    assert_eq!((broken.seq, broken.damage), (2, Damage::Removed), "{broken}");

    let place = Place::with(3);
    for sql in
        ["SET seq = 100 WHERE seq = 2", "SET seq = 2 WHERE seq = 5", "SET seq = 5 WHERE seq = 100"]
    {
        place.by_hand(&format!("UPDATE records {sql}"));
    }
    let broken = place.verify().unwrap_err();
    assert_eq!((broken.seq, broken.damage), (2, Damage::Reordered), "{broken}");

    let place = Place::with(3);
    place.by_hand("DELETE FROM records WHERE seq > 4");
    let broken = place.verify().unwrap_err();
    assert_eq!((broken.seq, broken.damage), (5, Damage::Truncated), "{broken}");

    let place = Place::with(3);
    place.by_hand("DELETE FROM records WHERE seq < 3");
    let broken = place.verify().unwrap_err();
    assert_eq!((broken.seq, broken.damage), (1, Damage::Removed), "{broken}");
}

#[test]
fn nothing_is_added_to_a_trail_that_was_cut_or_rewritten() {
    for sql in [
        "DELETE FROM records WHERE seq > 4",
        "UPDATE records SET hash = zeroblob(32) WHERE seq = 6",
        "DELETE FROM records",
    ] {
        let place = Place::with(3);
        place.by_hand(sql);
        let error = Store::open(&place.0, 1).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("belljar audit verify"), "{error}");
    }
    let place = Place::with(3);
    fs::remove_file(place.0.join(FILE)).unwrap();
    fs::remove_file(place.0.join(format!("{FILE}-wal"))).ok();
    let error = Store::open(&place.0, 1).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(!place.0.join(FILE).exists(), "no new one hides that");
}

#[test]
fn a_power_failure_is_recorded_as_one() {
    let place = Place::with(3);
    place.by_hand("DELETE FROM records WHERE seq > 4");
    // The head was written before the machine was started again.
    let head = fs::read_to_string(place.0.join("audit.head")).unwrap();
    let older = head.replace(crate::native::boot(), "00000000-0000-0000-0000-000000000000");
    let slots = older.lines().map(|line| {
        let (body, _) = line.trim_end().rsplit_once(' ').unwrap();
        format!("{:159}\n", format!("{body} {}", head::check(body)))
    });
    fs::write(place.0.join("audit.head"), slots.collect::<String>()).unwrap();
    place.open().append(run_of(9)).unwrap();
    let verified = place.verify().unwrap();
    assert_eq!((verified.gaps, verified.records), (1, 7));
}

#[test]
fn a_head_that_was_written_half_leaves_the_other_one() {
    let place = Place::with(3);
    let path = place.0.join("audit.head");
    let bytes = fs::read(&path).unwrap();
    for slot in 0..2 {
        let mut torn = bytes.clone();
        torn[slot * 160 + 3] ^= 1;
        fs::write(&path, &torn).unwrap();
        assert!(Head::kept(&place.0).unwrap().is_some());
        assert!(place.verify().is_ok());
    }
}

#[test]
fn pruning_keeps_a_chain_that_can_be_verified() {
    let place = Place::with(6);
    let pruned = place.open().prune(3_000_000, 7, "test").unwrap().unwrap();
    assert_eq!((pruned.records, pruned.begins_after.seq), (6, 6));
    let verified = place.verify().unwrap();
    assert_eq!((verified.records, verified.begins_after), (7, Some(pruned.begins_after)));
    assert_eq!(place.open().prune(3_000_000, 8, "test").unwrap(), None, "nothing is old any more");
    // All of it, and then it goes on.
    place.open().prune(u64::MAX >> 1, 9, "test").unwrap().unwrap();
    place.open().append(run_of(9)).unwrap();
    assert_eq!(place.verify().unwrap().records, 3);
}

#[test]
fn a_beginning_that_no_record_vouches_for_is_found() {
    let place = Place::with(4);
    let hash: String = {
        let records = place.open().of_run("RUN0000").unwrap();
        records[1].hash.to_string()
    };
    place.by_hand("DELETE FROM records WHERE seq <= 2");
    place.by_hand(&format!("INSERT INTO anchor VALUES (1, 2, x'{hash}')"));
    let broken = place.verify().unwrap_err();
    assert_eq!((broken.seq, broken.damage), (2, Damage::Removed), "{broken}");
}

#[test]
fn a_run_without_an_end_is_not_pruned() {
    let place = Place::with(2);
    place.open().append(run_of(3)[..1].to_vec()).unwrap();
    place.open().append(run_of(4)).unwrap();
    let pruned = place.open().prune(u64::MAX >> 1, 9, "test").unwrap().unwrap();
    assert_eq!(pruned.begins_after.seq, 4);
    assert_eq!(place.verify().unwrap().unfinished, 1);
}

#[test]
fn a_newer_layout_is_refused() {
    let place = Place::with(1);
    Connection::open(place.0.join(FILE)).unwrap().pragma_update(None, "user_version", 2).unwrap();
    for error in [Store::open(&place.0, 1).unwrap_err(), Store::read(&place.0).unwrap_err()] {
        assert!(error.to_string().contains("newer belljar (layout 2"), "{error}");
    }
}

#[test]
fn what_is_no_trail_is_left_alone() {
    let place = Place::new();
    assert!(matches!(Store::read(&place.0).unwrap_err(), StoreError::Absent { .. }));
    fs::create_dir(&place.0).unwrap();
    assert!(matches!(Store::read(&place.0).unwrap_err(), StoreError::Absent { .. }));
    let path = place.0.join(FILE);
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE x (y); PRAGMA user_version = 1")
        .unwrap();
    assert!(matches!(Store::open(&place.0, 1).unwrap_err(), StoreError::Foreign { .. }));
    fs::write(&path, "plain text, and long enough to be taken for something else than nothing")
        .unwrap();
    let error = Store::open(&place.0, 1).unwrap_err().to_string();
    assert!(error.contains("is not a whole SQLite file"), "{error}");
}

#[test]
fn others_cannot_read_what_is_kept() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::with(1);
    let _store = place.open();
    for entry in fs::read_dir(&place.0).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
    }
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Store::open(&place.0, 1).unwrap_err().to_string();
    assert!(error.contains("writable by you alone"), "{error}");
}

#[test]
fn many_writers_make_one_chain() {
    let place = Place::new();
    let (threads, runs) = (8, 25);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let place = &place;
            scope.spawn(move || {
                let mut store = place.open();
                for run in 0..runs {
                    store.append(run_of(thread * runs + run)).unwrap();
                }
            });
        }
    });
    let verified = place.verify().unwrap();
    assert_eq!((verified.records, verified.unfinished), (2 * threads * runs, 0));
    let kept = Head::kept(&place.0).unwrap().unwrap();
    assert_eq!(kept.position, verified.head, "the head never moves back");
}

#[test]
fn a_file_that_was_removed_is_noticed() {
    let place = Place::with(1);
    let store = place.open();
    assert!(store.is_there());
    fs::remove_file(place.0.join(FILE)).unwrap();
    assert!(!store.is_there());
}
