//! Archives: what is in them arrives, and what should not be is refused by name.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::rig::{Rig, block_on, path};
use crate::living::files::archive::{BLOCK, Entry, Packer, Reader, What, clean};
use crate::living::files::{FileError, FileFault, Room, Uploaded};

fn entry(path: &str, what: What, bytes: usize) -> Entry {
    let bytes = u64::try_from(bytes).unwrap();
    Entry { path: path.into(), what, bytes, mode: 0o640, modified_s: 1_000_000_000 }
}

/// Whatever is asked for, sound or not.
fn archive(entries: &[(Entry, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    block_on(async {
        let mut packer = Packer::new(&mut bytes);
        for (entry, contents) in entries {
            packer.begin(entry).await.unwrap();
            packer.write(contents).await.unwrap();
            packer.end(entry.bytes).await.unwrap();
        }
        packer.close().await.unwrap();
    });
    bytes
}

/// Regular files of these names and contents.
pub(super) fn pack(files: &[(&str, &str)]) -> Vec<u8> {
    let entries: Vec<_> = files
        .iter()
        .map(|(name, text)| (entry(name, What::File, text.len()), text.as_bytes()))
        .collect();
    archive(&entries)
}

/// Every regular file of an archive.
pub(super) async fn unpack(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, FileError> {
    let mut reader = Reader::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = reader.next().await? {
        let mut contents = Vec::new();
        while let Some(chunk) = reader.chunk().await? {
            contents.extend_from_slice(&chunk);
        }
        if entry.what == What::File {
            all.push((String::from_utf8(entry.path).unwrap(), contents));
        }
    }
    Ok(all)
}

fn refusal(entries: &[(Entry, &[u8])]) -> String {
    let rig = Rig::new();
    let files = rig.files();
    let archive = archive(entries);
    let error = block_on(files.upload_tar(&archive[..], &path("/workspace"))).unwrap_err();
    rig.assert_outside_is_whole();
    assert_eq!(error.fault.kind(), "refused", "{error}");
    error.to_string()
}

#[test]
fn names_that_lead_elsewhere_are_refused_by_name() {
    for (name, word) in [
        ("/etc/passwd", "absolute"),
        ("../outside/secret", "`..`"),
        ("a/../../outside/secret", "`..`"),
        ("a/..", "`..`"),
    ] {
        let said = refusal(&[(entry(name, What::File, 1), b"x")]);
        assert!(said.contains(name) && said.contains(word), "{said}");
    }
    for (name, word) in [
        (&"x".repeat(256), "too long"),
        (&"d/".repeat(300), "deeper"),
        (&"dd/".repeat(2000), "longer"),
    ] {
        let error = clean(name.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(clean(b"./a//b/./c/").unwrap(), b"a/b/c");
}

#[test]
fn links_out_devices_and_tricks_are_refused_by_name() {
    let link = |name, to: &str| (entry(name, What::Link(to.into()), 0), &b""[..]);
    let symlink = |name, to: &str| (entry(name, What::Symlink(to.into()), 0), &b""[..]);
    let file = |name| (entry(name, What::File, 1), &b"x"[..]);
    for (entries, name, word) in [
        (vec![link("hard", "../outside/secret")], "hard", "outside"),
        (vec![link("hard", "/etc/passwd")], "hard", "outside"),
        (vec![link("hard", "never-came")], "hard", "did not come"),
        (vec![symlink("s", "/tmp"), file("s/through")], "s/through", "goes through"),
        (vec![file("f"), file("f/below")], "f/below", "goes through"),
        (vec![file("twice"), file("./twice")], "twice", "twice"),
        (vec![symlink("twice", "x"), file("twice")], "twice", "twice"),
    ] {
        let said = refusal(&entries);
        assert!(said.contains(name) && said.contains(word), "{said}");
    }
    for (kind, word) in
        [(b'3', "device"), (b'4', "device"), (b'6', "FIFO"), (b'S', "sparse"), (b'Z', "kind")]
    {
        let mut bytes = pack(&[("strange", "")]);
        bytes[156] = kind;
        sign(&mut bytes);
        let error = block_on(unpack(&bytes)).unwrap_err().to_string();
        assert!(error.contains("strange") && error.contains(word), "{error}");
    }
}

/// Makes the sum of the first header right again.
fn sign(bytes: &mut [u8]) {
    bytes[148..156].copy_from_slice(b"        ");
    let sum: u64 = bytes[..BLOCK].iter().map(|byte| u64::from(*byte)).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn links_that_were_there_before_are_not_followed() {
    let rig = Rig::new();
    let files = rig.files();
    fs::create_dir(rig.inside("tmp/kept")).unwrap();
    fs::write(rig.inside("tmp/kept/file"), "kept").unwrap();
    symlink("/tmp/kept", rig.inside("workspace/dir")).unwrap();
    symlink("/tmp/kept/file", rig.inside("workspace/link")).unwrap();
    fs::hard_link(rig.inside("tmp/kept/file"), rig.inside("workspace/hard")).unwrap();
    let through = pack(&[("dir/file", "x")]);
    let error = block_on(files.upload_tar(&through[..], &path("/workspace"))).unwrap_err();
    assert_eq!(error.fault, FileFault::Links);
    // In the place of a file or link there is a new file; what they led to is as it was.
    let over = pack(&[("link", "new"), ("hard", "new")]);
    block_on(files.upload_tar(&over[..], &path("/workspace"))).unwrap();
    assert_eq!(fs::read(rig.inside("tmp/kept/file")).unwrap(), b"kept");
    assert!(!fs::symlink_metadata(rig.inside("workspace/link")).unwrap().is_symlink());
    assert_eq!(fs::read(rig.inside("workspace/link")).unwrap(), b"new");
}

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let rig = Rig::new();
    let files = rig.files();
    let long = format!("top/{}/{}", "l".repeat(120), "n".repeat(120));
    let mut closed = entry("top/closed", What::Directory, 0);
    closed.mode = 0o555;
    let mut run = entry("top/run", What::File, 3);
    run.mode = 0o4755;
    let big = vec![9; 700_000];
    let entries = [
        (closed, &b""[..]),
        (entry("top/closed/in", What::File, 2), b"in"),
        (run, b"run"),
        (entry(&long, What::File, big.len()), &big),
        (entry("top/hard", What::Link(b"top/run".to_vec()), 0), b""),
        (entry("top/soft", What::Symlink(b"../../../../etc".to_vec()), 0), b""),
        (entry("top/empty", What::Directory, 0), b""),
    ];
    let done = block_on(files.upload_tar(&archive(&entries)[..], &path("/tmp/new/place"))).unwrap();
    let bytes = u64::try_from(big.len()).unwrap() + 5;
    assert_eq!(done, Uploaded { files: 3, directories: 2, links: 2, bytes });
    let at = |name: &str| rig.inside("tmp/new/place/top").join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("run"), mode("closed"), mode("closed/in")), (0o755, 0o555, 0o640));
    assert_eq!(fs::metadata(at("run")).unwrap().ino(), fs::metadata(at("hard")).unwrap().ino());
    assert_eq!(fs::metadata(at("closed")).unwrap().mtime(), 1_000_000_000);
    assert_eq!(fs::read_link(at("soft")).unwrap().to_str(), Some("../../../../etc"));

    let mut out = Vec::new();
    let packed =
        block_on(files.download_tar(&path("/tmp/new/place/top"), &mut out, 1 << 30)).unwrap();
    assert_eq!((packed.files, packed.links, packed.noted), (4, 1, 0), "{packed:?}");
    let mut found = block_on(unpack(&out)).unwrap();
    found.sort();
    let mut expected = vec![
        ("top/closed/in".to_owned(), b"in".to_vec()),
        ("top/run".to_owned(), b"run".to_vec()),
        ("top/hard".to_owned(), b"run".to_vec()),
        (long, big),
    ];
    expected.sort();
    assert!(found == expected, "{:?}", found.iter().map(|one| &one.0).collect::<Vec<_>>());
    let most =
        block_on(files.download_tar(&path("/tmp/new/place/top"), Vec::new(), 100)).unwrap_err();
    assert_eq!(most.fault.kind(), "refused");
    fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o755)).unwrap(); // to be cleaned up
}

#[test]
fn others_read_our_archives_and_we_read_theirs() {
    let rig = Rig::new();
    let files = rig.files();
    let long = "x".repeat(150);
    let place = rig.inside("workspace/tree/deep");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join(&long), "contents").unwrap();
    let mut ours = Vec::new();
    block_on(files.download_tar(&path("tree"), &mut ours, 1 << 20)).unwrap();
    fs::write(rig.inside("tmp/ours.tar"), &ours).unwrap();
    let tar = |arguments: &[&str]| {
        let arguments: Vec<_> = arguments.iter().map(Into::into).collect();
        let done = belljar_sys::spawn::output("/usr/bin/tar", &arguments).unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let host = |name: &str| rig.inside(name).to_str().unwrap().to_owned();
    let listed = tar(&["-tf", &host("tmp/ours.tar")]);
    assert_eq!(listed, format!("tree/\ntree/deep/\ntree/deep/{long}\n"));
    fs::write(place.join("short"), "short").unwrap();
    // Together too long for one field of a header, each short enough for one of the two that there are.
    let split = format!("tree/{}/{}", "p".repeat(90), "q".repeat(20));
    fs::create_dir(rig.inside("workspace").join(&split).parent().unwrap()).unwrap();
    fs::write(rig.inside("workspace").join(&split), "split").unwrap();
    for (number, (format, name, looked_for, contents)) in [
        ("--format=gnu", "tree", "tree/deep/short", "short"),
        ("--format=pax", "tree", "tree/deep/short", "short"),
        ("--format=ustar", &*split, &*split, "split"),
        ("--format=v7", "tree/deep/short", "tree/deep/short", "short"),
    ]
    .into_iter()
    .enumerate()
    {
        for pack in ["-cf", "-czf"] {
            let file = host("tmp/theirs");
            tar(&[format, pack, &file, "-C", &host("workspace"), name]);
            let bytes = fs::read(&file).unwrap();
            let into = path(&format!("/tmp/{number}{pack}"));
            block_on(files.upload_tar(&bytes[..], &into)).unwrap();
            let got = rig.inside(&format!("tmp/{number}{pack}/{looked_for}"));
            assert_eq!(fs::read_to_string(got).unwrap(), contents, "{format} {pack}");
        }
    }
    for number in 0..2 {
        let got = rig.inside(&format!("tmp/{number}-cf/tree/deep/{long}"));
        assert_eq!(fs::read(got).unwrap(), b"contents", "{number}");
    }
}

#[test]
fn archives_that_are_none_or_are_cut_are_errors() {
    let sound = pack(&[("a", "some contents"), ("b", "more")]);
    assert_eq!(block_on(unpack(&sound)).unwrap().len(), 2);
    assert!(block_on(unpack(&[0; 2 * BLOCK])).unwrap().is_empty());
    for end in [0, 1, 100, 511, 513, 520, 1023, 1024, 1024 + 30, 2048] {
        assert!(block_on(unpack(&sound[..end])).is_err(), "{end}");
    }
    assert!(block_on(unpack(&[7; 4096])).is_err());
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(&sound).unwrap();
    let packed = packed.finish().unwrap();
    assert_eq!(block_on(unpack(&packed)).unwrap().len(), 2);
    assert!(block_on(unpack(&packed[..packed.len() / 2])).is_err());
    // A size that no disk has, in GNU's binary form, with nothing behind it.
    let mut lie = pack(&[("huge", "")]);
    lie[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    sign(&mut lie);
    assert!(block_on(unpack(&lie)).is_err());
    let rig = Rig::new();
    let files = rig.files_with(Some(Room { bytes: 1 << 20, inodes: 10 }));
    let error = block_on(files.upload_tar(&lie[..], &path("/workspace"))).unwrap_err();
    assert_eq!(error.fault, FileFault::Full);
}

#[test]
fn a_packed_bomb_meets_the_disk_and_not_our_memory() {
    let rig = Rig::new();
    let files = rig.files();
    let zeroes = vec![0; 64 << 20];
    let plain = archive(&[(entry("bomb", What::File, zeroes.len()), &zeroes)]);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&plain).unwrap();
    let packed = packed.finish().unwrap();
    assert!(packed.len() < 100_000, "{}", packed.len());
    let error = block_on(files.upload_tar(&packed[..], &path("/small"))).unwrap_err();
    assert_eq!(error.fault, FileFault::Full);
}

#[test]
fn more_entries_than_an_archive_may_have_are_refused() {
    let one = archive(&[(entry("d", What::Directory, 0), b"")]);
    let many = one[..BLOCK].repeat(200_001);
    let error = block_on(unpack(&many)).unwrap_err().to_string();
    assert!(error.contains("200000"), "{error}");
}
