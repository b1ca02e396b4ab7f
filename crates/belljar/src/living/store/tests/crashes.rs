//! A crash at every step of every change: the old state or the new one is found, nothing in between, and nothing is left.
//! Each is tried twice: by an error, which is quick, and by a process that kills itself there as `kill -9` would.

use super::overlay::Tree;
use super::*;
use crate::model::sandbox::SandboxWorkspace;

/// Set for a process that is to die: the verb, the steps that it passes, what disks stand on, and where.
const DYING: &str = "BELLJAR_DIES_AT";
const NAME: &str =
    "living::store::tests::crashes::kill_9_in_any_change_leaves_the_old_state_or_the_new";

/// A change that can break off.
struct Verb {
    name: &'static str,
    /// What happens before it.
    prepare: fn(&Rig),
    change: fn(&Store, &Path) -> Result<(), StoreError>,
    /// Whether automatic points are part of what it changes; else one more of them is no harm.
    automatic: bool,
}

const fn verb(name: &'static str, change: fn(&Store, &Path) -> Result<(), StoreError>) -> Verb {
    Verb { name, prepare: |_| {}, change, automatic: true }
}

fn verbs() -> Vec<Verb> {
    let marked = |name, change| Verb { automatic: false, ..verb(name, change) };
    vec![
        verb("snapshot", |store, _| store.snapshot("one", Some(tag("q")), Taking::Seal).map(drop)),
        verb("copy", |store, _| store.snapshot("one", Some(tag("q")), Taking::Copy).map(drop)),
        verb("forget", |store, _| store.remove_snapshot("one", &tag("p"))),
        verb("rollback", |store, _| store.rollback("one", &tag("p")).map(drop)),
        verb("fork", |store, _| {
            let names = ["x", "y", "z"].map(|text| Some(name(text))).to_vec();
            store.fork("one", names, Taking::Copy, &owner()).map(drop)
        }),
        verb("promote", |store, _| store.promote("two", &name("one"), Displaced::Remove).map(drop)),
        verb("swap", |store, _| {
            let displaced = Displaced::Rename(name("old"));
            store.promote("two", &name("one"), displaced).map(drop)
        }),
        verb("create", |store, _| store.create(new_sandbox("new")).map(drop)),
        verb("remove", |store, _| store.remove("one")),
        verb("mark", |store, _| store.mark("one", Taking::Seal).map(drop)),
        verb("mark-copy", |store, _| store.mark("one", Taking::Copy).map(drop)),
        marked("undo", |store, _| store.undo("one").map(drop)),
        Verb {
            prepare: |rig| drop(rig.store().undo("one").unwrap()),
            ..marked("redo", |store, _| store.redo("one").map(drop))
        },
        Verb {
            prepare: |rig| {
                let mut file = fs::File::create_new(rig.path.join("archive")).unwrap();
                let record = rig.store().get("one").unwrap();
                rig.store().export(&record, &Side::Point(tag("p")), &mut file).unwrap();
            },
            ..verb("import", |store, path| {
                let mut file = fs::File::open(path.join("archive")).unwrap();
                let new = new_sandbox("imported");
                store.import(new, &mut file, ImportLimits::default()).map(drop)
            })
        },
        Verb {
            // One more than this, and some are merged.
            prepare: |rig| {
                for number in 0..super::super::points::MOST_SHEETS {
                    write(rig, "one", "many", &number.to_string());
                    rig.store().mark("one", Taking::Seal).unwrap();
                }
                write(rig, "one", "many", "last");
            },
            ..verb("merge", |store, _| {
                store.snapshot("one", Some(tag("q")), Taking::Seal).map(drop)
            })
        },
        Verb {
            prepare: with_workspace,
            ..verb("discard", |store, _| store.discard("three").map(drop))
        },
    ]
}

fn write(rig: &Rig, id: &str, path: &str, text: &str) {
    let _attached = rig.attached(id);
    assert!(rig.overlay(id).write(path, text, 0o644));
}

/// A sandbox with changes in a copy-on-write workspace.
fn with_workspace(rig: &Rig) {
    let host = rig.path.join("host");
    fs::write(host.join("edited"), "old").unwrap();
    fs::write(host.join("gone"), "old").unwrap();
    let mut new = new_sandbox("three");
    let mode = WorkspaceMode::CopyOnWrite;
    new.request.workspace = Some(SandboxWorkspace { path: Some(host), volume: None, mode });
    rig.store().create(new).unwrap();
    let _attached = rig.attached("three");
    let overlay = workspace(rig);
    assert!(overlay.write("edited", "new", 0o644) && overlay.remove("gone"));
    for number in 0..4 {
        assert!(overlay.write(&format!("new-{number}"), "new", 0o644));
    }
}

fn workspace(rig: &Rig) -> Overlay {
    let record = rig.store().get("three").unwrap();
    let tree = rig.store().trees(&record).remove(2);
    Overlay::new(tree.upper, tree.lowers)
}

/// What can be told of a store from outside: each sandbox by name, with its points, its files and its workspace.
fn told(rig: &Rig, automatic: bool) -> Vec<(String, Vec<String>, Tree, Option<Tree>)> {
    let all = rig.store().list().into_iter().map(|record| {
        let points = record.points.iter().filter(|point| automatic || !point.automatic);
        let points = points.map(|point| point.tag.to_string()).collect();
        let _attached = rig.attached(&record.id);
        let shared = record.workspace.is_some().then(|| workspace(rig).tree());
        (record.name.to_string(), points, rig.overlay(&record.id).tree(), shared)
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

fn prepared(verb: &Verb, ground: Ground) -> Rig {
    let rig = Rig::on(ground);
    rig.create("one");
    write(&rig, "one", "a", "first");
    rig.store().snapshot("one", Some(tag("p")), Taking::Seal).unwrap();
    {
        let _attached = rig.attached("one");
        assert!(rig.overlay("one").remove("etc"));
    }
    rig.store().mark("one", Taking::Seal).unwrap();
    write(&rig, "one", "b", "second");
    rig.store().fork("one", vec![Some(name("two"))], Taking::Copy, &owner()).unwrap();
    (verb.prepare)(&rig);
    rig
}

/// How a change ended.
#[derive(Debug, PartialEq)]
enum Ended {
    Stopped,
    Done,
}

/// Stops by an error, which every later step meets too.
fn by_error(rig: &mut Rig, verb: &Verb, steps: usize) -> Ended {
    rig.store().steps.stop_after(steps);
    match (verb.change)(rig.store(), &rig.path) {
        Err(StoreError::Stopped(_)) => Ended::Stopped,
        Ok(()) => Ended::Done,
        Err(error) => panic!("{}: {error}", verb.name),
    }
}

/// Lets another process do it, which kills itself.
fn by_kill(rig: &mut Rig, verb: &Verb, steps: usize) -> Ended {
    rig.store = None;
    let told = format!("{} {steps} {:?} {}", verb.name, rig.ground, rig.path.display());
    let own = std::env::current_exe().unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test starts itself")]
    let mut child = std::process::Command::new(own);
    let ended = child.args([NAME, "--exact", "--nocapture"]).env(DYING, told).output().unwrap();
    match std::os::unix::process::ExitStatusExt::signal(&ended.status) {
        Some(9) => Ended::Stopped,
        None if ended.status.success() => Ended::Done,
        _ => panic!("{}: {ended:?}", verb.name),
    }
}

/// The life of the other process.
fn die(told: &str) {
    let words: Vec<_> = told.splitn(4, ' ').collect();
    let all = verbs().into_iter().chain([committing()]);
    let verb = all.into_iter().find(|verb| verb.name == words[0]).unwrap();
    let ground = if words[2] == "Image" { Ground::Image } else { Ground::Directory };
    let store = Store::open(Rig::config_of(Path::new(words[3]), ground)).unwrap();
    store.steps.die_after(words[1].parse().unwrap());
    (verb.change)(&store, Path::new(words[3])).unwrap();
}

/// It changes the host's directory, file by file.
fn committing() -> Verb {
    Verb {
        prepare: with_workspace,
        ..verb("commit", |store, _| store.commit("three", &Which::All, Conflicts::Leave).map(drop))
    }
}

fn host_files(rig: &Rig) -> std::collections::BTreeMap<String, String> {
    let entries = fs::read_dir(rig.path.join("host")).unwrap().map(Result::unwrap);
    entries.map(|one| (one.file_name().into_string().unwrap(), read(&one.path()))).collect()
}

#[test]
fn a_killed_commit_leaves_whole_files_and_the_next_one_ends_it() {
    let commit = |store: &Store| store.commit("three", &Which::All, Conflicts::Leave);
    let verb = committing();
    for steps in 0..1000 {
        let mut rig = prepared(&verb, Ground::Directory);
        let ended = by_kill(&mut rig, &verb, steps);
        rig.reopen();
        for (file, text) in host_files(&rig) {
            let whole = ["edited", "gone"].contains(&file.as_str()) && text == "old";
            assert!(whole || text == "new" && file != "gone", "step {steps}: {file} {text:?}");
            assert!(!file.starts_with('.'), "step {steps} left {file}");
        }
        // What was written before is known as ours, and no conflict.
        assert!(workspace(&rig).write("edited", "newer", 0o644));
        assert_eq!(commit(rig.store()).unwrap().left, [], "step {steps}");
        let files = host_files(&rig);
        assert_eq!((files.len(), files["edited"].as_str()), (5, "newer"), "step {steps}");
        if ended == Ended::Done {
            assert!(steps > 6, "no step was reached");
            return;
        }
    }
    panic!("it never came to an end");
}

/// Does a change with a crash after each number of steps, until it passes them all.
fn at_every_step(verb: &Verb, ground: Ground, crash: fn(&mut Rig, &Verb, usize) -> Ended) {
    let before = told(&prepared(verb, ground), verb.automatic);
    let after = {
        let rig = prepared(verb, ground);
        (verb.change)(rig.store(), &rig.path).unwrap();
        told(&rig, verb.automatic)
    };
    assert_ne!(before, after, "{} changes nothing", verb.name);
    for steps in 0..1000 {
        let mut rig = prepared(verb, ground);
        let ended = crash(&mut rig, verb, steps);
        rig.reopen();
        let found = told(&rig, verb.automatic);
        let place = format!("{} at step {steps}", verb.name);
        assert!(found == before || found == after, "{place}: {found:#?}");
        let named = rig
            .store()
            .list()
            .iter()
            .flat_map(|record| record.sheets().map(|sheet| sheet.disk).collect::<Vec<_>>())
            .collect::<BTreeSet<String>>();
        assert_eq!(rig.disks(), named.into_iter().collect::<Vec<_>>(), "{place} left something");
        for disk in rig.disks() {
            assert!(!rig.store().disks.all.is_attached(&disk).unwrap(), "{place} left a mount");
        }
        if ended == Ended::Done {
            assert_eq!(found, after);
            assert!(steps > 1, "{}: no step was reached", verb.name);
            return;
        }
    }
    panic!("{} never came to an end", verb.name);
}

#[test]
fn a_crash_in_any_change_leaves_the_old_state_or_the_new() {
    for verb in verbs() {
        at_every_step(&verb, Ground::Directory, by_error);
    }
}

/// On what this host does best: as root there are mounts that the dead leave behind.
#[test]
fn kill_9_in_any_change_leaves_the_old_state_or_the_new() {
    if let Ok(told) = std::env::var(DYING) {
        return die(&told);
    }
    let best = if template::is_possible() { Ground::Image } else { Ground::Directory };
    for verb in verbs() {
        // Dozens of points, each on the disk before the next: on a file system of its own that takes long.
        let ground = if verb.name == "merge" { Ground::Directory } else { best };
        at_every_step(&verb, ground, by_kill);
    }
}
