//! Archives there and back, and a corpus of hostile ones.

use std::fs::File;
use std::io::{Seek, Write};

use super::super::archive::{FORMAT, Item, Manifest, What, digest_of, hexadecimal};
use super::*;
use crate::model::request::Data;
use sha2::{Digest, Sha256};

fn export(rig: &Rig, id: &str) -> File {
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(rig.path.join("archive"))
        .unwrap();
    let record = rig.store().get(id).unwrap();
    rig.store().export(&record, &Side::Present, &mut file).unwrap();
    file.rewind().unwrap();
    file
}

fn import(rig: &Rig, file: &mut File) -> Result<Record, StoreError> {
    file.rewind().unwrap();
    rig.store().import(new_sandbox("imported"), file, archive::ImportLimits::default())
}

#[test]
fn an_exported_point_is_the_same_when_it_is_imported() {
    let rig = Rig::new();
    rig.create("one");
    let overlay = rig.overlay("one");
    overlay.write("a", "changed", 0o600);
    overlay.remove("etc");
    rig.store().snapshot("one", None, Taking::Seal).unwrap();
    let overlay = rig.overlay("one");
    overlay.mkdir("etc");
    overlay.write("etc/new", "new", 0o755);
    overlay.link("etc/new", "etc/linked");
    overlay.symlink("home/l", "../etc");
    let mut file = export(&rig, "one");
    let made = import(&rig, &mut file).unwrap();
    assert_eq!(rig.overlay(&made.id).tree(), rig.overlay("one").tree());
    let record = rig.store().get("one").unwrap();
    let same = rig.store().diff((&record, &Side::Present), (&made, &Side::Present)).unwrap();
    assert_eq!(same.changes, []);
}

fn item(path: &str, what: What) -> Item {
    let path = Data::from(path);
    Item {
        tree: "root".to_owned(),
        path,
        mode: 0o644,
        modified: (0, 0),
        attributes: Vec::new(),
        what,
    }
}

fn top() -> Item {
    Item { mode: 0o755, ..item("", What::Directory { opaque: false }) }
}

fn file_of(data: u64, text: &str) -> What {
    let bytes = text.len() as u64;
    let sha256 = hexadecimal(&Sha256::digest(text));
    What::File { bytes, segments: vec![(0, bytes)], data, sha256 }
}

fn manifest(entries: Vec<Item>) -> Manifest {
    let (image, digest) = ("host".to_owned(), String::new());
    let created_at = "2026-01-01T00:00:00Z".to_owned();
    let mut made = Manifest { format: FORMAT, image, created_at, entries, digest };
    made.digest = digest_of(&made).unwrap();
    made
}

/// A tar of these entries: name, type, contents.
fn tar_of(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, data) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(*kind);
        if *kind == tar::EntryType::Symlink {
            header.set_link_name("/etc").unwrap();
        }
        header.set_cksum();
        builder.append(&header, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn plain(manifest: &Manifest, data: &[&[u8]]) -> Vec<u8> {
    let text = serde_json::to_vec(manifest).unwrap();
    let names: Vec<String> = (0..data.len()).map(|number| format!("data/{number}")).collect();
    let mut entries = vec![("manifest.json", tar::EntryType::Regular, &text[..])];
    for (name, data) in names.iter().zip(data) {
        entries.push((name, tar::EntryType::Regular, data));
    }
    tar_of(&entries)
}

/// Hostile archives, each with a word of why it is refused.
#[expect(clippy::too_many_lines, reason = "one hostile archive after the other")]
fn corpus() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let regular = tar::EntryType::Regular;
    let one = |entries: Vec<Item>| {
        let mut all = vec![top()];
        all.extend(entries);
        plain(&manifest(all), &[b"x"])
    };
    let named = |path: &str| one(vec![item(path, file_of(0, "x"))]);
    let good = manifest(vec![top(), item("f", file_of(0, "x"))]);
    let text = serde_json::to_vec(&good).unwrap();
    let mut other_digest = good.clone();
    other_digest.digest = "0".repeat(64);
    let mut other_image = good.clone();
    other_image.image = "evil".to_owned();
    let mut newer = good.clone();
    newer.format = FORMAT + 1;
    let mut other_time = good.clone();
    other_time.created_at = "2025-01-01T00:00:00Z".to_owned();
    let huge = What::File {
        bytes: 1 << 40,
        segments: vec![(0, 1 << 40)],
        data: 0,
        sha256: "0".repeat(64),
    };
    let overlap =
        What::File { bytes: 4, segments: vec![(0, 3), (1, 4)], data: 0, sha256: "0".repeat(64) };
    let beyond = What::File { bytes: 1, segments: vec![(0, 9)], data: 0, sha256: "0".repeat(64) };
    let link = What::Symlink { target: Data::from("/etc") };
    let marked = Item {
        attributes: vec![(Data::from("user.overlay.opaque"), Data::from("y"))],
        ..item("d", What::Directory { opaque: false })
    };
    let trusted = Item {
        attributes: vec![(Data::from("security.capability"), Data::from("x"))],
        ..item("f", file_of(0, "x"))
    };
    let elsewhere = Item { tree: "../../etc".to_owned(), ..item("f", file_of(0, "x")) };
    let mode = Item { mode: 0o100_644, ..item("f", file_of(0, "x")) };
    let many = (0..20_000).map(|number| item(&format!("e{number}"), What::Fifo)).collect();
    let mut behind = plain(&good, &[b"x"]);
    behind.extend([7; 512]);
    let mut torn = plain(&good, &[b"x"]);
    torn.truncate(1100);
    let mut flipped = plain(&good, &[b"x"]);
    flipped[3] ^= 1;
    vec![
        ("dots", named("../f"), "plain relative path"),
        ("dots inside", named("a/../f"), "plain relative path"),
        ("absolute", named("/etc/passwd"), "plain relative path"),
        ("empty part", named("a//f"), "plain relative path"),
        ("nul", named("a\0b"), "no file can have"),
        ("long name", named(&"n".repeat(256)), "no file can have"),
        ("long path", named(&"n/".repeat(3000)), "too long"),
        ("no directory", named("d/f"), "its directory comes later"),
        (
            "through a link",
            one(vec![item("l", link.clone()), item("l/f", file_of(0, "x"))]),
            "below no directory",
        ),
        (
            "through a file",
            one(vec![item("f", file_of(0, "x")), item("f/g", What::Fifo)]),
            "below no directory",
        ),
        ("twice", one(vec![item("f", link), item("f", file_of(0, "x"))]), "named twice"),
        ("another tree", one(vec![elsewhere]), "tree that does not exist"),
        (
            "top is a link",
            plain(&manifest(vec![item("", What::Symlink { target: Data::from("/") })]), &[]),
            "top of a tree",
        ),
        ("link to later", one(vec![item("l", What::Link { data: 5 })]), "comes later, or never"),
        ("bomb", one(vec![item("f", huge)]), "disk limit"),
        ("entries", one(many), "inode limit"),
        ("overlap", one(vec![item("f", overlap)]), "overlap"),
        ("beyond", one(vec![item("f", beyond)]), "go beyond its end"),
        ("overlay's mark", one(vec![marked]), "attribute that programs cannot set"),
        ("capability", one(vec![trusted]), "attribute that programs cannot set"),
        ("strange mode", one(vec![mode]), "mode that no file has"),
        ("wrong contents", plain(&good, &[b"y"]), "does not have the digest"),
        ("wrong size", plain(&good, &[b"xx"]), "bytes, and 1 were stated"),
        ("wrong digest", plain(&other_digest, &[b"x"]), "digest that it states"),
        ("another image", plain(&other_image, &[b"x"]), "stands on image evil"),
        ("another time", plain(&other_time, &[b"x"]), "manifest does not have the digest"),
        ("newer format", plain(&newer, &[b"x"]), "format 3"),
        ("missing contents", plain(&good, &[]), "where"),
        ("no manifest", tar_of(&[("data/0", regular, b"x")]), "manifest.json should be"),
        (
            "manifest is a link",
            tar_of(&[("manifest.json", tar::EntryType::Symlink, b"")]),
            "manifest.json should be",
        ),
        (
            "link for contents",
            tar_of(&[("manifest.json", regular, &text), ("data/0", tar::EntryType::Symlink, b"")]),
            "data/0 should be",
        ),
        (
            "device for contents",
            tar_of(&[("manifest.json", regular, &text), ("data/0", tar::EntryType::Char, b"")]),
            "data/0 should be",
        ),
        (
            "long-name extension",
            tar_of(&[
                ("manifest.json", regular, &text),
                ("././@LongLink", tar::EntryType::GNULongName, b"../../x"),
            ]),
            "data/0 should be",
        ),
        (
            "slip in the tar",
            tar_of(&[("manifest.json", regular, &text), ("../../etc/x", regular, b"x")]),
            "data/0 should be",
        ),
        ("more behind", behind, "behind its end"),
        ("torn", torn, "ends too early"),
        ("flipped bit", flipped, "no header"),
        ("no JSON", tar_of(&[("manifest.json", regular, b"{]")]), "cannot be read"),
        ("empty", Vec::new(), "ends too early"),
        ("noise", vec![0xAA; 4096], "no header"),
    ]
}

#[test]
fn hostile_archives_are_refused_and_leave_nothing() {
    let mut rig = Rig::new();
    let good = plain(&manifest(vec![top(), item("f", file_of(0, "x"))]), &[b"x"]);
    let path = rig.path.join("archive");
    let open = |bytes: &[u8]| {
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all(bytes).unwrap();
        file
    };
    // The control: built the same way, a good one is taken.
    let made = import(&rig, &mut open(&good)).unwrap();
    rig.store().remove(&made.id).unwrap();
    let corpus = corpus();
    assert!(corpus.len() >= 30);
    for (what, bytes, why) in corpus {
        let error = import(&rig, &mut open(&bytes)).unwrap_err();
        assert!(matches!(error, StoreError::Archive(_)), "{what}: {error}");
        assert!(error.to_string().contains(why), "{what}: {error}");
        assert_eq!(rig.store().list(), [], "{what}");
    }
    rig.reopen();
    assert_eq!(rig.disks(), Vec::<String>::new());
}

#[test]
fn set_id_bits_of_strangers_are_dropped() {
    let rig = Rig::new();
    let setuid = Item { mode: 0o6755, ..item("f", file_of(0, "x")) };
    let bytes = plain(&manifest(vec![top(), setuid]), &[b"x"]);
    let path = rig.path.join("archive");
    fs::write(&path, bytes).unwrap();
    let made = import(&rig, &mut File::open(&path).unwrap()).unwrap();
    let super::overlay::Node::File(_, mode) = rig.overlay(&made.id).node("f").unwrap() else {
        panic!()
    };
    assert_eq!(mode, 0o755);
}
