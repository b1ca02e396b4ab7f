//! Records, names, owners and bounds.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn a_sandbox_is_found_again_by_name_and_id_after_a_restart() {
    let mut rig = Rig::new();
    let made = rig.create("agent-1");
    rig.reopen();
    assert_eq!(rig.store().get("agent-1").unwrap(), made);
    assert_eq!(rig.store().get(&made.id).unwrap(), made);
    let error = rig.store().get("../x").unwrap_err().to_string();
    assert_eq!(error, "there is no sandbox ../x");
}

#[test]
fn a_second_owner_is_told_who_the_first_is() {
    let rig = Rig::new();
    let error = Store::open(rig.config()).unwrap_err().to_string();
    assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
}

#[test]
fn a_state_directory_that_others_may_write_is_refused() {
    let rig = Rig::new();
    let open = rig.path.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let config = StoreConfig { state: open, ..rig.config() };
    let error = Store::open(config).unwrap_err().to_string();
    assert!(error.contains("writable by you alone (it has mode 777"), "{error}");
}

#[test]
fn names_are_unique() {
    let rig = Rig::new();
    rig.create("one");
    let taken = rig.store().create(new_sandbox("one")).unwrap_err();
    assert!(matches!(taken, StoreError::Taken(_)), "{taken}");
}

#[test]
fn a_record_that_cannot_be_read_stops_the_start_and_sweeps_nothing() {
    let mut rig = Rig::new();
    let record = rig.create("one");
    let disks = rig.disks();
    rig.store = None;
    let path = rig.path.join("state/sandboxes").join(&record.id).join("record.json");
    let good = fs::read(&path).unwrap();
    for bad in [&b"{"[..], b"{\"format\": 99}", b"{\"format\": 1, \"id\": 3}"] {
        fs::write(&path, bad).unwrap();
        let error = Store::open(rig.config()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
    assert_eq!(rig.disks(), disks);
    fs::write(&path, good).unwrap();
    rig.reopen();
}

#[test]
fn removing_takes_the_files_along_and_leaves_what_others_stand_on() {
    let rig = Rig::new();
    let one = rig.create("one");
    rig.overlay("one").write("a", "mine", 0o644);
    let fork = rig.store().fork("one", vec![None], Taking::Seal, &owner()).unwrap().remove(0);
    rig.store().remove(&one.id).unwrap();
    assert!(rig.store().get("one").is_err());
    assert_eq!(rig.disks().len(), 2);
    assert_eq!(read(&rig.store().trees(&fork)[0].lowers[0].join("a")), "mine");
    rig.store().remove(&fork.id).unwrap();
    assert_eq!(rig.disks(), Vec::<String>::new());
}

#[test]
fn two_changes_of_one_sandbox_do_not_meet() {
    let rig = Rig::new();
    let one = rig.create("one");
    let hold = rig.store().hold(&one.id).unwrap();
    assert!(matches!(rig.store().mark(&one.id, Taking::Seal), Err(StoreError::Busy(_))));
    drop(hold);
    rig.store().mark(&one.id, Taking::Seal).unwrap();
}
