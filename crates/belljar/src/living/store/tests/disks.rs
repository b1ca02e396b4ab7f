//! Disks with a file system of their own. They need root and loop devices; `cargo xtask test` runs as root.

use std::io::Write;

use super::*;

#[test]
fn as_root_a_disk_holds_its_limit_and_not_more() {
    if !template::is_possible() {
        return; // An ordinary user's disks are directories, which every other test here uses.
    }
    let rig = Rig::on(Ground::Image);
    let mut new = new_sandbox("one");
    new.request.limits.disk_bytes = Some(16 << 20);
    new.request.limits.inodes = Some(64);
    let record = rig.store().create(new).unwrap();
    assert_eq!(record.ground, Ground::Image);
    let attached = rig.store().attach(&record).unwrap();
    let upper = rig.store().trees(&record)[0].upper.clone();
    let made =
        (0..200).take_while(|number| fs::write(upper.join(number.to_string()), "").is_ok()).count();
    assert!((50..=76).contains(&made), "{made} files within 64 inodes");
    for number in 1..made {
        fs::remove_file(upper.join(number.to_string())).unwrap();
    }
    let piece = vec![7; 1 << 20];
    let mut file = fs::File::create(upper.join("0")).unwrap();
    let mut written = 0;
    while let Ok(count) = file.write(&piece) {
        written += count;
    }
    assert!((15 << 20..=(16 << 20) + 65536).contains(&written), "{written} bytes");
    drop(file);
    // Full as it is, it can be sealed and rolled back.
    drop(attached);
    let point = rig.store().snapshot("one", None, Taking::Seal).unwrap();
    let record = rig.store().rollback("one", &point.tag).unwrap();
    let fork = rig.store().fork("one", vec![None], Taking::Seal, &owner()).unwrap().remove(0);
    let attached = rig.store().attach(&fork).unwrap();
    let seen = rig.store().trees(&fork)[0].lowers[0].join("0");
    assert_eq!(fs::metadata(seen).unwrap().len(), written as u64);
    drop(attached);
    assert!(
        !rig.store().disks.all.is_attached(&record.disk).unwrap(),
        "detached when nobody needs it"
    );
}
