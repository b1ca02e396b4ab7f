//! Snapshots, copies, undo, forks and promotion, one behaviour each.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use super::*;

#[test]
fn a_copy_of_a_busy_sandbox_is_exact() {
    let rig = Rig::new();
    let record = rig.create("one");
    let upper = rig.store().trees(&record)[0].upper.clone();
    fs::write(upper.join("file"), "text").unwrap();
    fs::set_permissions(upper.join("file"), fs::Permissions::from_mode(0o4640)).unwrap();
    rustix::fs::setxattr(upper.join("file"), "user.note", b"v", XattrFlags::empty()).unwrap();
    fs::hard_link(upper.join("file"), upper.join("other")).unwrap();
    let sparse = fs::File::create(upper.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (64 << 20) - 3).unwrap();
    fs::create_dir_all(upper.join("empty/deep")).unwrap();
    rustix::fs::setxattr(upper.join("empty"), "user.overlay.opaque", b"y", XattrFlags::empty())
        .unwrap();
    std::os::unix::fs::symlink("/etc/shadow", upper.join("link")).unwrap();
    for (name, kind) in
        [("gone", FileType::CharacterDevice), ("fifo", FileType::Fifo), ("sock", FileType::Socket)]
    {
        rustix::fs::mknodat(CWD, upper.join(name), kind, Mode::from_raw_mode(0o600), 0).unwrap();
    }
    let point = rig.store().snapshot("one", Some(tag("p")), Taking::Copy).unwrap();
    assert!(point.copied);
    let copy = rig.store().disks.all.sheet(point.stack.last().unwrap()).join("root");
    let status = |path: &Path| fs::symlink_metadata(path).unwrap();
    let (old, new) = (status(&upper.join("file")), status(&copy.join("file")));
    assert_eq!(
        (new.mode(), new.mtime(), new.mtime_nsec()),
        (old.mode(), old.mtime(), old.mtime_nsec())
    );
    assert_eq!(new.nlink(), 2);
    assert_eq!(new.ino(), status(&copy.join("other")).ino());
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(copy.join("file"), "user.note", &mut value[..]).unwrap(), 1);
    assert_eq!(
        rustix::fs::getxattr(copy.join("empty"), "user.overlay.opaque", &mut value[..]).unwrap(),
        1
    );
    assert_eq!(status(&copy.join("sparse")).len(), 64 << 20);
    assert!(status(&copy.join("sparse")).blocks() < 100, "holes were filled");
    assert!(copy.join("empty/deep").is_dir());
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("/etc/shadow"));
    assert!(status(&copy.join("gone")).file_type().is_char_device());
    assert!(status(&copy.join("fifo")).file_type().is_fifo());
    assert!(status(&copy.join("sock")).file_type().is_socket());
    assert_eq!(rig.store().get("one").unwrap().upper, record.upper, "it went on with its upper");
}

#[test]
fn undo_and_redo_walk_over_marks_until_something_else_is_written() {
    let rig = Rig::new();
    rig.create("one");
    assert!(matches!(rig.store().undo("one"), Err(StoreError::Nothing("undo"))));
    for text in ["1", "2", "3"] {
        rig.store().mark("one", Taking::Seal).unwrap();
        rig.overlay("one").write("a", text, 0o644);
    }
    let now = || {
        let found = rig.overlay("one").node("a").unwrap();
        let super::overlay::Node::File(text, _) = found else { panic!("{found:?}") };
        text
    };
    for expected in ["2", "1", "base a"] {
        rig.store().undo("one").unwrap();
        assert_eq!(now(), expected);
    }
    assert!(matches!(rig.store().undo("one"), Err(StoreError::Nothing("undo"))));
    for expected in ["1", "2", "3"] {
        rig.store().redo("one").unwrap();
        assert_eq!(now(), expected);
    }
    assert!(matches!(rig.store().redo("one"), Err(StoreError::Nothing("redo"))));
    rig.store().undo("one").unwrap();
    rig.store().mark("one", Taking::Seal).unwrap();
    rig.overlay("one").write("a", "other", 0o644);
    assert!(matches!(rig.store().redo("one"), Err(StoreError::Nothing("redo"))));
    rig.store().undo("one").unwrap();
    assert_eq!(now(), "2");
}

#[test]
fn automatic_points_are_bounded_and_many_sheets_are_merged() {
    let rig = Rig::new();
    rig.create("one");
    for number in 0..history::MOST_AUTOMATIC + 20 {
        rig.overlay("one").write("a", &number.to_string(), 0o644);
        if number % 3 == 0 {
            rig.overlay("one").remove("etc");
        } else {
            rig.overlay("one").mkdir("etc");
            rig.overlay("one").write(&format!("etc/{number}"), "x", 0o644);
        }
        let before = rig.overlay("one").tree();
        rig.store().mark("one", Taking::Seal).unwrap();
        assert_eq!(rig.overlay("one").tree(), before, "{number}");
    }
    let record = rig.store().get("one").unwrap();
    assert_eq!(record.points.len(), history::MOST_AUTOMATIC);
    assert!(record.stack.len() <= super::super::points::MOST_SHEETS, "{}", record.stack.len());
    let oldest = record.points[0].tag.clone();
    rig.store().rollback("one", &oldest).unwrap();
    let super::overlay::Node::File(text, _) = rig.overlay("one").node("a").unwrap() else {
        panic!()
    };
    assert_eq!(text, "20");
}

#[test]
fn tags_are_unique_and_absent_ones_are_named() {
    let rig = Rig::new();
    rig.create("one");
    rig.store().snapshot("one", Some(tag("p")), Taking::Seal).unwrap();
    let twice = rig.store().snapshot("one", Some(tag("p")), Taking::Seal).unwrap_err();
    assert!(matches!(twice, StoreError::PointTaken { .. }), "{twice}");
    let absent = rig.store().rollback("one", &tag("q")).unwrap_err().to_string();
    assert_eq!(absent, "one has no point q. hint: belljar sandbox snapshots one");
}

#[test]
fn a_promoted_fork_has_the_name_and_the_other_goes_or_is_renamed() {
    let mut rig = Rig::new();
    let one = rig.create("one");
    let forks = rig
        .store()
        .fork("one", vec![Some(name("x")), Some(name("y"))], Taking::Seal, &owner())
        .unwrap();
    rig.store().promote("x", &name("one"), Displaced::Rename(name("old"))).unwrap();
    assert_eq!(rig.store().get("one").unwrap().id, forks[0].id);
    assert_eq!(rig.store().get("old").unwrap().id, one.id);
    let taken = rig.store().promote("y", &name("one"), Displaced::Rename(name("old"))).unwrap_err();
    assert!(matches!(taken, StoreError::Taken(_)), "{taken}");
    rig.store().promote("y", &name("one"), Displaced::Remove).unwrap();
    rig.reopen();
    assert_eq!(rig.store().get("one").unwrap().id, forks[1].id);
    assert_eq!(rig.store().list().len(), 2);
}

#[test]
fn a_diff_is_cut_where_it_is_bounded_and_shows_usr() {
    let rig = Rig::new();
    let record = rig.create("one");
    let trees = rig.store().trees(&record);
    for number in 0..5 {
        fs::write(trees[1].upper.join(format!("f{number}")), "x").unwrap();
    }
    let whole = rig.store().diff((&record, &Side::Image), (&record, &Side::Present)).unwrap();
    let paths: Vec<_> = whole.changes.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(paths, ["/usr/f0", "/usr/f1", "/usr/f2", "/usr/f3", "/usr/f4"]);
    let cut =
        rig.store().diff_at_most((&record, &Side::Image), (&record, &Side::Present), 3).unwrap();
    assert_eq!((cut.changes.len(), cut.cut), (3, true));
}
