//! What each operation does, and how it says that it cannot.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::rig::{Rig, block_on, path};
use crate::living::files::{
    FileEventKind, FileFault, Files, InsidePath, Position, PutOptions, Room,
};
use crate::model::sandbox::FileKind;

fn put(files: &Files, at: &str, contents: &[u8]) -> Result<u64, FileFault> {
    block_on(files.put(&path(at), contents, PutOptions::default())).map_err(|error| error.fault)
}

fn read(files: &Files, at: &str) -> Result<Vec<u8>, FileFault> {
    block_on(files.read(&path(at), 1 << 30)).map_err(|error| error.fault)
}

#[test]
fn what_is_put_is_read_back_whole_and_in_parts() {
    let rig = Rig::new();
    let files = rig.files();
    let contents: Vec<u8> = (0..1_000_000u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
    assert_eq!(put(&files, "deep/er/file", &contents), Ok(1_000_000));
    assert!(read(&files, "/workspace/deep/er/file").as_ref() == Ok(&contents));
    let part = block_on(files.read_range(&path("deep/er/file"), 999_990, 100)).unwrap();
    assert_eq!(part, &contents[999_990..]);
    // By the host's own eyes, with nothing left beside it.
    assert!(fs::read(rig.inside("workspace/deep/er/file")).unwrap() == contents);
    assert_eq!(fs::read_dir(rig.inside("workspace/deep/er")).unwrap().count(), 1);
    let most = block_on(files.read(&path("deep/er/file"), 999_999)).unwrap_err();
    assert_eq!(most.fault, FileFault::TooLarge);
}

#[test]
fn a_put_replaces_a_file_at_once_and_keeps_its_mode() {
    let rig = Rig::new();
    let files = rig.files();
    fs::write(rig.inside("workspace/run.sh"), "old").unwrap();
    fs::set_permissions(rig.inside("workspace/run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::hard_link(rig.inside("workspace/run.sh"), rig.inside("workspace/other")).unwrap();
    assert_eq!(put(&files, "run.sh", b"new"), Ok(3));
    let told = block_on(files.stat(&path("run.sh"))).unwrap();
    assert_eq!((told.mode, told.bytes, told.kind), (0o750, 3, FileKind::File));
    assert_eq!(
        fs::read(rig.inside("workspace/other")).unwrap(),
        b"old",
        "written through a hard link"
    );
    let once = PutOptions { replace: false, mode: Some(0o6755), ..PutOptions::default() };
    let again = block_on(files.put(&path("run.sh"), &b"x"[..], once)).unwrap_err();
    assert_eq!(again.fault, FileFault::Exists);
    block_on(files.put(&path("setuid"), &b"x"[..], once)).unwrap();
    assert_eq!(block_on(files.stat(&path("setuid"))).unwrap().mode, 0o755);
}

#[test]
fn links_inside_are_followed_as_programs_follow_them() {
    let rig = Rig::new();
    let files = rig.files();
    assert_eq!(put(&files, "/tmp/real", b"1"), Ok(1));
    symlink("/tmp/real", rig.inside("workspace/link")).unwrap();
    symlink("../tmp/../workspace/link", rig.inside("workspace/second")).unwrap();
    assert_eq!(put(&files, "second", b"22"), Ok(2));
    assert_eq!(fs::read(rig.inside("tmp/real")).unwrap(), b"22");
    assert_eq!(read(&files, "second"), Ok(b"22".to_vec()));
    let told = block_on(files.stat(&path("link"))).unwrap();
    assert_eq!((told.kind, told.target.as_deref()), (FileKind::Symlink, Some("/tmp/real")));
    symlink("round", rig.inside("workspace/round")).unwrap();
    assert_eq!(read(&files, "round"), Err(FileFault::Links));
    assert_eq!(put(&files, "round", b""), Err(FileFault::Links));
}

#[test]
fn patches_change_a_file_in_place() {
    let rig = Rig::new();
    let files = rig.files();
    let write = |position, data: &[u8]| {
        block_on(files.write_at(&path("log"), position, data)).unwrap();
    };
    write(Position::End, b"one ");
    write(Position::End, b"two");
    let before = fs::metadata(rig.inside("workspace/log")).unwrap().ino();
    write(Position::Offset(1), b"NE");
    assert_eq!(read(&files, "log"), Ok(b"oNE two".to_vec()));
    assert_eq!(fs::metadata(rig.inside("workspace/log")).unwrap().ino(), before);
    let long = vec![7; 600_000];
    write(Position::End, &long);
    assert_eq!(fs::metadata(rig.inside("workspace/log")).unwrap().len(), 600_007);
}

#[test]
fn directories_are_made_moved_and_removed() {
    let rig = Rig::new();
    let files = rig.files();
    let fault =
        |result: Result<(), crate::living::files::FileError>| result.map_err(|error| error.fault);
    let make = |at: &str, parents| fault(block_on(files.make_directory(&path(at), 0o755, parents)));
    assert_eq!(make("a/b/c", false), Err(FileFault::NotFound));
    assert_eq!(make("a/b/c", true), Ok(()));
    assert_eq!(make("a/b/c", true), Ok(()));
    assert_eq!(make("a/b/c", false), Err(FileFault::Exists));
    assert_eq!(put(&files, "a/file", b"x"), Ok(1));
    assert_eq!(make("a/file/d", true), Err(FileFault::NotDirectory));
    let rename = |from: &str, to: &str, replace| {
        fault(block_on(files.rename(&path(from), &path(to), replace)))
    };
    assert_eq!(put(&files, "other", b"y"), Ok(1));
    assert_eq!(rename("a/file", "other", false), Err(FileFault::Exists));
    assert_eq!(rename("a/file", "other", true), Ok(()));
    assert_eq!(rename("a", "moved", false), Ok(()));
    let mode = block_on(files.set_mode(&path("nowhere"), 0o600)).unwrap_err();
    assert_eq!(mode.to_string(), "/workspace/nowhere: does not exist");
    assert_eq!(fault(block_on(files.set_mode(&path("other"), 0o4711))), Ok(()));
    assert_eq!(fault(block_on(files.set_modified(&path("other"), 1_234_567_890_123))), Ok(()));
    let told = block_on(files.stat(&path("other"))).unwrap();
    assert_eq!((told.mode, told.modified_ms), (0o711, 1_234_567_890_123));
    let remove =
        |at: &str, all| block_on(files.remove(&path(at), all)).map_err(|error| error.fault);
    assert_eq!(remove("moved", false), Err(FileFault::NotEmpty));
    assert_eq!(remove("moved", true), Ok(3));
    assert_eq!(remove("moved", true), Err(FileFault::NotFound));
    assert_eq!(remove("/", true), Err(FileFault::IsDirectory));
    assert_eq!(read(&files, "/workspace"), Err(FileFault::IsDirectory));
    assert_eq!(rename("other", "/small/other", false), Err(FileFault::OtherFileSystem));
    assert!(files.0.idle.lock().unwrap().len() == 1, "one agent waits for more");
}

#[test]
fn closed_directories_are_removed_with_what_they_hold() {
    let rig = Rig::new();
    let files = rig.files();
    fs::create_dir_all(rig.inside("workspace/closed/in")).unwrap();
    fs::write(rig.inside("workspace/closed/in/x"), "x").unwrap();
    for (name, mode) in [("closed/in", 0o000), ("closed", 0o500)] {
        let place = rig.inside("workspace").join(name);
        fs::set_permissions(place, fs::Permissions::from_mode(mode)).unwrap();
    }
    assert_eq!(read(&files, "closed/in/x"), Err(FileFault::Denied));
    assert_eq!(block_on(files.remove(&path("closed"), true)).unwrap(), 3);
}

#[test]
fn links_are_removed_and_never_what_they_lead_to() {
    let rig = Rig::new();
    let files = rig.files();
    assert_eq!(put(&files, "/tmp/kept/file", b"x"), Ok(1));
    fs::create_dir(rig.inside("workspace/tree")).unwrap();
    symlink("/tmp/kept", rig.inside("workspace/tree/link")).unwrap();
    symlink("/tmp/kept", rig.inside("workspace/alone")).unwrap();
    assert_eq!(block_on(files.remove(&path("tree"), true)).unwrap(), 2);
    assert_eq!(block_on(files.remove(&path("alone"), true)).unwrap(), 1);
    assert_eq!(read(&files, "/tmp/kept/file"), Ok(b"x".to_vec()));
}

#[test]
fn names_may_be_any_bytes() {
    let rig = Rig::new();
    let files = rig.files();
    let strange = InsidePath::new(b"new\nline \xff\\ \"%41").unwrap();
    block_on(files.put(&strange, &b"x"[..], PutOptions::default())).unwrap();
    let listed = block_on(files.list(&path("/workspace"))).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].name, "new\nline \u{fffd}\\ \"%41");
    let raw = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        listed[0].raw_path.as_ref().unwrap(),
    );
    let again = InsidePath::new(raw.unwrap()).unwrap();
    assert_eq!(block_on(files.read(&again, 9)).unwrap(), b"x");
    let name = fs::read_dir(rig.inside("workspace")).unwrap().next().unwrap().unwrap().file_name();
    assert_eq!(name.as_bytes(), b"new\nline \xff\\ \"%41");
    let long = path(&format!("/workspace/{}", "x".repeat(256)));
    let error = block_on(files.put(&long, &b""[..], PutOptions::default())).unwrap_err();
    assert_eq!(error.fault, FileFault::NameTooLong);
    assert!(InsidePath::new(b"a\0b").is_err());
}

#[test]
fn what_is_no_file_is_neither_read_nor_written_nor_waited_for() {
    let rig = Rig::new();
    let files = rig.files();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, rig.inside("workspace/fifo"), FileType::Fifo, mode, 0).unwrap();
    // One with somebody at its other end could be opened, and would wait.
    let end = rustix::fs::open(rig.inside("workspace/fifo"), OFlags::RDWR, Mode::empty()).unwrap();
    symlink("/proc/self/mem", rig.inside("workspace/memory")).unwrap();
    let listening = std::os::unix::net::UnixListener::bind(rig.inside("workspace/socket")).unwrap();
    for name in ["fifo", "memory", "socket", "/dev/zero", "/proc/self/environ", "/proc/self/fd/0"] {
        assert_eq!(read(&files, name), Err(FileFault::NotRegular), "{name}");
        let written = block_on(files.write_at(&path(name), Position::Offset(0), b"x"));
        let fault = written.unwrap_err().fault;
        assert!(matches!(fault, FileFault::NotRegular | FileFault::Denied), "{name}: {fault:?}");
    }
    drop((end, listening));
    // The agent's root is the sandbox's, by every name it has.
    assert_eq!(put(&files, "file", b"x"), Ok(1));
    for name in
        ["/proc/self/root/workspace/file", "/../../workspace/file", "/proc/1/cwd/workspace/file"]
    {
        assert_eq!(read(&files, name), Ok(b"x".to_vec()), "{name}");
    }
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing_half_done() {
    let rig = Rig::new();
    let files = rig.files();
    let much = vec![1; 3 << 20];
    assert_eq!(put(&files, "/small/much", &much), Err(FileFault::Full));
    let listed = block_on(files.list(&path("/small"))).unwrap();
    assert!(listed.is_empty(), "{listed:?}");
    // It is the same agent's disk, which has room again.
    assert_eq!(put(&files, "/small/less", &much[..1 << 19]), Ok(1 << 19));
    for number in 0..64 {
        match put(&files, &format!("/small/{number}"), b"") {
            Ok(_) => {}
            Err(fault) => {
                assert_eq!(fault, FileFault::Full, "{number}");
                assert!(number > 32, "{number}");
                return;
            }
        }
    }
    panic!("64 inodes were never used up");
}

#[test]
fn what_does_not_fit_is_refused_where_no_kernel_bounds_it() {
    let rig = Rig::new();
    let files = rig.files_with(Some(Room { bytes: 10, inodes: 1 }));
    assert_eq!(put(&files, "fits", b"0123456789"), Ok(10));
    assert_eq!(put(&files, "does-not", b"0123456789a"), Err(FileFault::Full));
    assert!(!rig.inside("workspace/does-not").exists());
    let append = block_on(files.write_at(&path("fits"), Position::End, b"0123456789a"));
    assert_eq!(append.unwrap_err().fault, FileFault::Full);
    let none = rig.files_with(Some(Room { bytes: 10, inodes: 0 }));
    assert_eq!(put(&none, "file", b""), Err(FileFault::Full));
    let made = block_on(none.make_directory(&path("d"), 0o755, false)).unwrap_err();
    assert_eq!(made.fault, FileFault::Full);
}

#[test]
fn huge_directories_come_in_pages_and_go_in_rounds() {
    let rig = Rig::new();
    let files = rig.files();
    let count = 25_000;
    fs::create_dir(rig.inside("tmp/many")).unwrap();
    for number in 0..count {
        fs::write(rig.inside(&format!("tmp/many/a-rather-long-name-{number}")), "").unwrap();
    }
    let (page, next) = block_on(files.page(&path("/tmp/many"), None, 10)).unwrap();
    assert_eq!((page.len(), next.is_some()), (10, true));
    let all = block_on(files.list(&path("/tmp/many"))).unwrap();
    assert_eq!(all.len(), count);
    assert!(all.windows(2).all(|pair| pair[0].path < pair[1].path), "sorted, each once");
    let removed = block_on(files.remove(&path("/tmp/many"), true)).unwrap();
    assert_eq!(removed, u64::try_from(count).unwrap() + 1);
    assert!(!rig.inside("tmp/many").exists());
}

#[test]
fn ten_thousand_levels_are_no_trouble() {
    let rig = Rig::new();
    let files = rig.files();
    let mut at =
        rustix::fs::open(rig.inside("workspace"), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..10_000 {
        rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(at);
    let mut archive = Vec::new();
    let done = block_on(files.download_tar(&path("d"), &mut archive, 1 << 30)).unwrap();
    assert_eq!(done.directories, 256, "as deep as an archive goes");
    assert_eq!(done.noted, 1, "and the rest is told: {done:?}");
    assert_eq!(block_on(files.remove(&path("d"), true)).unwrap(), 10_000);
}

#[test]
fn changes_are_told_to_who_watches() {
    let rig = Rig::new();
    let files = rig.files();
    block_on(async {
        let mut watch = files.watch(&path("/workspace"), true).await.unwrap();
        fs::create_dir(rig.inside("workspace/sub")).unwrap();
        let mut seen = watch.next().await.unwrap();
        fs::write(rig.inside("workspace/sub/file"), "x").unwrap();
        fs::rename(rig.inside("workspace/sub/file"), rig.inside("workspace/moved")).unwrap();
        fs::remove_file(rig.inside("workspace/moved")).unwrap();
        while seen.last().is_none_or(|last| last.kind != FileEventKind::Removed) {
            seen.extend(watch.next().await.unwrap());
        }
        let told: Vec<_> = seen.iter().map(|event| (event.kind, &*event.path)).collect();
        for expected in [
            (FileEventKind::Created, "/workspace/sub"),
            (FileEventKind::Created, "/workspace/sub/file"),
            (FileEventKind::Written, "/workspace/sub/file"),
            (FileEventKind::MovedFrom, "/workspace/sub/file"),
            (FileEventKind::MovedTo, "/workspace/moved"),
            (FileEventKind::Removed, "/workspace/moved"),
        ] {
            assert!(told.contains(&expected), "{expected:?}: {told:?}");
        }
        let mut more = Vec::new();
        for _ in 1..8 {
            more.push(files.watch(&path("/workspace"), false).await.unwrap());
        }
        let refused = files.watch(&path("/workspace"), false).await.unwrap_err();
        assert_eq!(refused.fault.kind(), "refused");
        fs::remove_dir(rig.inside("tmp")).unwrap();
    });
}

#[test]
fn an_agent_that_is_killed_is_replaced_and_nothing_is_put() {
    let rig = Rig::new();
    let files = rig.files();
    assert_eq!(put(&files, "before", b"x"), Ok(1));
    files.rest();
    let error = block_on(async {
        // So little that the agent has most of what could be written.
        let (mut sink, source) = tokio::io::duplex(1 << 10);
        let file = path("half");
        let writing = files.put(&file, source, PutOptions::default());
        let feeding = async {
            use tokio::io::AsyncWriteExt;
            sink.write_all(&vec![1; 600_000]).await.unwrap();
            assert_eq!(fs::read_dir(rig.inside("workspace")).unwrap().count(), 1, "it has no name");
            rig.kill_last();
            sink.write_all(&vec![1; 600_000]).await.ok();
            drop(sink);
        };
        tokio::join!(writing, feeding).0.unwrap_err()
    });
    assert_eq!(error.fault.kind(), "agent", "{error}");
    assert_eq!(read(&files, "half"), Err(FileFault::NotFound));
    assert_eq!(read(&files, "before"), Ok(b"x".to_vec()));
    assert_eq!(put(&files, "after", b"x"), Ok(1));
}

#[test]
fn a_put_that_is_given_up_leaves_nothing() {
    let rig = Rig::new();
    let files = rig.files();
    block_on(async {
        let (sink, source) = tokio::io::duplex(1 << 10);
        let file = path("given-up");
        let writing = files.put(&file, source, PutOptions::default());
        let limit = std::time::Duration::from_millis(300);
        assert!(tokio::time::timeout(limit, writing).await.is_err());
        drop(sink);
    });
    for _ in 0..1000 {
        if fs::read_dir(rig.inside("workspace")).unwrap().count() == 0 {
            return;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    panic!("something stays");
}
