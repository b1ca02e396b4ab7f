//! Hostile threads in the sandbox's root swap files, directories, links and FIFOs as quickly as they can while every
//! operation runs from outside. First it is shown that they fool who resolves paths on the host, however careful.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::rig::{Rig, SECRET, block_on, path};
use crate::living::files::{FileError, FileFault, Files, Position, PutOptions};

/// How long the control may take to be fooled; it takes well under a second.
const CONTROL: Duration = Duration::from_secs(60);

/// What many have written: look at each part of the path for links, then open it.
fn naive_read(root: &Path, below: &str) -> io::Result<Vec<u8>> {
    let path = checked(root, below)?;
    // One that waits at a FIFO for ever proves nothing but that.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut contents = Vec::new();
    file.read_to_end(&mut contents)?;
    Ok(contents)
}

fn checked(root: &Path, below: &str) -> io::Result<PathBuf> {
    let mut at = root.to_owned();
    for part in Path::new(below) {
        at.push(part);
        if fs::symlink_metadata(&at)?.is_symlink() {
            return Err(io::Error::other("a link"));
        }
    }
    // Whoever has looked may have to wait for a processor before it opens.
    std::thread::yield_now();
    Ok(at)
}

/// Until it works or the time is up.
fn fooled(mut attempt: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < CONTROL {
        if attempt() {
            return true;
        }
    }
    false
}

/// One attack at a time: their attackers take all processors there are.
static TURN: Mutex<()> = Mutex::new(());

/// A rig whose attackers are at work.
fn attacked() -> (Rig, Files, MutexGuard<'static, ()>) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::attacked_by("swaps");
    let files = rig.files();
    // The first answer comes after they were started; now they have made what they swap.
    let begun = fooled(|| block_on(files.stat(&path("fifo"))).is_ok());
    assert!(begun);
    (rig, files, turn)
}

/// Errors that swapped paths may give. Never one of ours: no agent may be lost or confused.
fn is_honest(error: &FileError) -> bool {
    matches!(
        error.fault,
        FileFault::NotFound
            | FileFault::NotDirectory
            | FileFault::IsDirectory
            | FileFault::NotRegular
            | FileFault::NotEmpty
            | FileFault::Exists
            | FileFault::Links
            | FileFault::Changed
    )
}

fn honest<T>(result: Result<T, FileError>) -> Option<T> {
    result.map_err(|error| assert!(is_honest(&error), "{error}")).ok()
}

#[test]
fn reading_while_paths_are_swapped_never_reaches_the_host() {
    let (rig, files, _turn) = attacked();
    let root = rig.inside("");
    let control = fooled(|| naive_read(&root, "workspace/d/secret").is_ok_and(|got| got == SECRET));
    assert!(control, "the attack is too weak to prove anything");
    let mut whole = 0;
    block_on(async {
        for _ in 0..3000 {
            for name in ["d/secret", "l/secret", "f"] {
                if let Some(got) = honest(files.read(&path(name), 1 << 20).await) {
                    assert!(got == b"inside" || got.is_empty(), "{name}: {got:?}");
                    whole += 1;
                }
            }
        }
    });
    assert!(whole > 100, "too few got through to prove anything: {whole}");
}

#[test]
fn writing_while_paths_are_swapped_never_reaches_the_host() {
    let (rig, files, _turn) = attacked();
    let root = rig.inside("");
    let control = fooled(|| {
        let Ok(place) = checked(&root, "workspace/d") else { return false };
        fs::write(place.join("written"), "x").ok();
        rig.outside("written").exists()
    });
    assert!(control, "the attack is too weak to prove anything");
    fs::remove_file(rig.outside("written")).unwrap();
    let mut written = 0;
    block_on(async {
        let options = PutOptions { parents: false, ..PutOptions::default() };
        for _ in 0..700 {
            for name in ["d/written", "l/written", "f"] {
                written +=
                    honest(files.put(&path(name), &b"inside"[..], options).await).unwrap_or(0);
            }
            for (name, position) in [("d/secret", Position::Offset(0)), ("f", Position::Offset(0))]
            {
                honest(files.write_at(&path(name), position, b"inside").await);
            }
            honest(files.make_directory(&path("d/made"), 0o755, false).await);
            honest(files.symlink(&path("d/link"), b"x").await);
            honest(files.set_mode(&path("d/secret"), 0o600).await);
            honest(files.rename(&path("d/link"), &path("l/link"), false).await);
        }
    });
    rig.assert_outside_is_whole();
    assert!(written > 100, "too few got through to prove anything: {written}");
}

#[test]
fn removing_while_paths_are_swapped_never_reaches_the_host() {
    let (rig, files, _turn) = attacked();
    let root = rig.inside("");
    let control = fooled(|| {
        if let Ok(place) = checked(&root, "workspace/d")
            && let Ok(names) = fs::read_dir(&place)
        {
            for name in names.flatten() {
                fs::remove_file(place.join(name.file_name())).ok();
            }
        }
        !rig.outside("secret").exists()
    });
    assert!(control, "the attack is too weak to prove anything");
    fs::write(rig.outside("secret"), SECRET).unwrap();
    let (mut removed, mut rounds) = (0, 0);
    let began = Instant::now();
    block_on(async {
        // As long as it takes until enough was there to be removed.
        while (rounds < 2000 || removed < 300) && began.elapsed() < CONTROL {
            rounds += 1;
            for name in ["d", "l", "f"] {
                removed += honest(files.remove(&path(name), true).await).unwrap_or(0);
            }
        }
    });
    rig.assert_outside_is_whole();
    assert!(removed >= 300, "too few got through to prove anything: {removed}");
}

#[test]
fn archives_that_go_in_while_paths_are_swapped_stay_inside() {
    let (rig, files, _turn) = attacked();
    let archive =
        super::archives::pack(&[("d/from-archive", "x"), ("d/e/deeper", "y"), ("f", "inside")]);
    let mut whole = 0;
    block_on(async {
        for _ in 0..400 {
            let into = path("/workspace");
            whole += u32::from(honest(files.upload_tar(&archive[..], &into).await).is_some());
            honest(files.remove(&path("d/e"), true).await);
        }
    });
    rig.assert_outside_is_whole();
    assert!(whole > 0, "none got through, which proves nothing");
}

#[test]
fn archives_that_come_out_while_paths_are_swapped_hold_nothing_of_the_host() {
    let (rig, files, _turn) = attacked();
    let root = rig.inside("");
    let control = fooled(|| naive_read(&root, "workspace/f").is_ok_and(|got| got == SECRET));
    assert!(control, "the attack is too weak to prove anything");
    let mut whole = 0;
    block_on(async {
        for _ in 0..500 {
            let mut archive = Vec::new();
            let done = files.download_tar(&path("/workspace"), &mut archive, 1 << 20).await;
            let holds = |word: &[u8]| archive.windows(word.len()).any(|part| part == word);
            assert!(!holds(SECRET));
            if honest(done).is_some() {
                whole += u32::from(holds(b"inside"));
            }
        }
    });
    assert!(whole > 10, "too few got through to prove anything: {whole}");
}

#[test]
fn files_that_change_while_they_are_packed_are_told_and_the_archive_is_sound() {
    let rig = Rig::attacked_by("sizes");
    fs::create_dir(rig.inside("workspace/t")).unwrap();
    fs::write(rig.inside("workspace/t/still"), "still").unwrap();
    let files = rig.files();
    let (mut told, mut rounds) = (0, 0);
    block_on(async {
        while told < 3 && rounds < 20_000 {
            rounds += 1;
            let mut archive = Vec::new();
            let done = files.download_tar(&path("t"), &mut archive, 1 << 30).await.unwrap();
            told += done.notes.iter().filter(|note| note.reason.contains("meanwhile")).count();
            let listed = super::archives::unpack(&archive).await.unwrap();
            assert!(listed.contains(&("t/still".to_owned(), b"still".to_vec())), "{listed:?}");
        }
    });
    assert!(told >= 3, "no file changed in {rounds} rounds, which proves nothing");
}
