//! What bounds the files of a sandbox, and which of them its programs may write.

use std::os::unix::fs::chown;

use belljar_tests::is_root;

use crate::verbs::Desk;

/// An id that is nobody's.
const ORDINARY: u32 = 54_321;

/// The disk as it is told in the receipt.
fn disk_layer(desk: &Desk, name: &str) -> String {
    let info = desk.json(&["info", name]);
    let layers = info["receipt"]["layers"].as_array().expect("layers").clone();
    let disk = layers.iter().find(|one| one["name"] == "disk").expect("the disk");
    assert_eq!(disk["verified"], true, "{disk}");
    disk["mechanism"].as_str().expect("words").to_owned()
}

#[test]
fn a_disk_holds_its_limit_and_the_receipt_says_how() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--disk", "16m", "--inodes", "64"]);
    let told = disk_layer(&desk, "one");
    if !is_root() {
        assert!(told.starts_with("measured by the keeper"), "{told}");
        assert!(told.contains("16777216 bytes, 64 inodes: can be exceeded"), "{told}");
        return; // how it is kept: limits::files_beyond_the_disk_limit_end_what_runs_and_can_be_removed
    }
    assert!(told.starts_with("a file system of its own, "), "{told}");
    let numbers: Vec<u64> = told.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[0] <= 20 << 20 && numbers[0] >= 15 << 20 && numbers[1] <= 96, "{told}");
    // By the kernel: the program is told, and goes on.
    let files =
        "i=0; while touch f$i 2>/tmp/why; do i=$((i+1)); done; cat /tmp/why >&2; rm -f f*; echo $i";
    let made = desk.run(&["shell", "one", "-c", files]);
    assert!(made.err().contains("No space left on device"), "{made:?}");
    let count: u32 = made.out().trim().parse().expect("a number");
    assert!((30..=76).contains(&count), "{count} files within 64 inodes");
    let fills = "head -c 100000000 /dev/zero > big; stat -c %s big";
    let filled = desk.run(&["shell", "one", "-c", fills]);
    assert!(filled.err().contains("No space left on device"), "{filled:?}");
    let bytes: u64 = filled.out().trim().parse().expect("a number");
    assert!((14 << 20..=(16 << 20) + 65536).contains(&bytes), "{bytes} bytes");
    // Full as it is, it can be sealed, rolled back and forked.
    desk.ok(&["snapshot", "one", "full"]);
    desk.ok(&["rollback", "one", "full"]);
    desk.ok(&["fork", "one", "--as", "two"]);
    let size = desk.ok(&["exec", "two", "--", "stat", "-c", "%s", "big"]);
    assert_eq!(size.trim(), bytes.to_string());
}

#[test]
fn programs_write_where_they_may_and_nowhere_else() {
    let desk = Desk::new();
    desk.ok(&["create", "free"]);
    let script = "for d in /workspace /tmp /home/sandbox; do touch $d/file && echo $d; done 2>&1";
    assert_eq!(desk.ok(&["shell", "free", "-c", script]), "/workspace\n/tmp\n/home/sandbox\n");
    desk.ok(&["create", "one", "--write-path", "/workspace/here", "--write-path", "/tmp"]);
    desk.ok(&["shell", "one", "-c", "touch /tmp/file"]);
    let refused = desk.run(&["shell", "one", "-c", "touch /workspace/file; touch ~/file"]);
    assert_eq!(refused.err().matches("Permission denied").count(), 2, "{refused:?}");
}

#[test]
fn a_shared_workspace_is_read_or_written_as_it_was_said() {
    let desk = Desk::new();
    let project = desk.directory.join("project");
    std::fs::create_dir(&project).expect("a directory");
    std::fs::write(project.join("file"), "old\n").expect("a file");
    if is_root() {
        for path in [&project, &project.join("file")] {
            chown(path, Some(ORDINARY), Some(ORDINARY)).expect("root may");
        }
    }
    let shown = project.display().to_string();
    desk.ok(&["create", "reads", "--workspace", &shown]);
    assert_eq!(desk.ok(&["exec", "reads", "--", "cat", "file"]), "old\n");
    let refused = desk.run(&["shell", "reads", "-c", "echo new > file; echo new > other"]);
    assert_eq!(refused.err().matches("Read-only file system").count(), 2, "{refused:?}");
    desk.ok(&["create", "writes", "--workspace", &format!("{shown}:rw")]);
    desk.ok(&["shell", "writes", "-c", "echo new > file; echo more > other"]);
    let read = |name: &str| std::fs::read_to_string(project.join(name)).expect("a file");
    assert_eq!((read("file"), read("other")), ("new\n".to_owned(), "more\n".to_owned()));
    assert_eq!(desk.ok(&["exec", "reads", "--", "cat", "file"]), "new\n");
    // A point of it holds nothing of the host's.
    desk.ok(&["snapshot", "writes", "p"]);
    desk.ok(&["shell", "writes", "-c", "echo newest > file"]);
    desk.ok(&["rollback", "writes", "p"]);
    assert_eq!(read("file"), "newest\n");
}
