//! Random lives of a sandbox beside a model of it.
#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::collapsible_match,
    reason = "each function does its part of the acts"
)]

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::overlay::{Node, Tree};
use super::*;
use crate::model::sandbox::ChangeKind;

#[derive(Clone, Debug)]
enum Act {
    Write(usize, u8, bool),
    Remove(usize),
    Rename(usize, usize),
    Chmod(usize, bool),
    Link(usize, usize),
    Symlink(usize),
    Mkdir(usize),
    Snapshot(bool),
    Rollback(usize),
    Forget(usize),
    Fork(bool),
    Mark,
    Undo,
    Redo,
    Restart,
}

const PATHS: [&str; 12] = [
    "a",
    "b",
    "etc",
    "etc/passwd",
    "etc/dir",
    "etc/dir/x",
    "home",
    "home/n",
    "home/n/m",
    "home/n/m/o",
    "d",
    "d/e",
];

fn act() -> impl Strategy<Value = Act> {
    let path = || 0..PATHS.len();
    prop_oneof![
        6 => (path(), 0..4u8, any::<bool>()).prop_map(|(path, text, long)| Act::Write(path, text, long)),
        4 => path().prop_map(Act::Remove),
        2 => (path(), path()).prop_map(|(from, to)| Act::Rename(from, to)),
        2 => (path(), any::<bool>()).prop_map(|(path, open)| Act::Chmod(path, open)),
        1 => (path(), path()).prop_map(|(from, to)| Act::Link(from, to)),
        1 => path().prop_map(Act::Symlink),
        4 => path().prop_map(Act::Mkdir),
        3 => any::<bool>().prop_map(Act::Snapshot),
        2 => (0..8usize).prop_map(Act::Rollback),
        1 => (0..8usize).prop_map(Act::Forget),
        1 => any::<bool>().prop_map(Act::Fork),
        2 => Just(Act::Mark),
        2 => Just(Act::Undo),
        2 => Just(Act::Redo),
        1 => Just(Act::Restart),
    ]
}

/// What should be there.
struct Model {
    now: Tree,
    points: BTreeMap<String, Tree>,
    /// Every stack that was ever sealed, and what it held.
    stacks: HashMap<Vec<SheetId>, Tree>,
    /// Other sandboxes, which must not change.
    others: Vec<(String, Tree)>,
    id: String,
}

impl Model {
    fn change(&mut self, path: &str, node: Node) {
        self.now.insert(path.to_owned(), node);
    }

    fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.now.retain(|other, _| other != path && !other.starts_with(&below));
    }

    /// The record's stack is what was sealed last, if nothing was written since.
    fn learn(&mut self, record: &Record, untouched: bool) {
        if untouched {
            let held = self.stacks.entry(record.stack.clone()).or_insert_with(|| self.now.clone());
            assert_eq!(held, &self.now, "one stack held two states");
        }
    }
}

fn files(rig: &Rig, model: &mut Model, act: &Act) {
    let overlay = rig.overlay(&model.id);
    match act {
        Act::Write(path, text, long) => {
            let text = text.to_string().repeat(if *long { 9 } else { 1 });
            if overlay.write(PATHS[*path], &text, 0o644) {
                model.change(PATHS[*path], Node::File(text, 0o644));
            }
        }
        Act::Remove(path) => {
            if overlay.remove(PATHS[*path]) {
                model.remove(PATHS[*path]);
            }
        }
        Act::Rename(from, to) => {
            let node = model.now.get(PATHS[*from]).cloned();
            if overlay.rename(PATHS[*from], PATHS[*to]) {
                model.remove(PATHS[*from]);
                model.change(PATHS[*to], node.unwrap());
            }
        }
        Act::Chmod(path, open) => {
            let mode = if *open { 0o755 } else { 0o600 };
            if overlay.chmod(PATHS[*path], mode) {
                let Some(Node::File(text, _)) = model.now.get(PATHS[*path]).cloned() else {
                    panic!()
                };
                model.change(PATHS[*path], Node::File(text, mode));
            }
        }
        Act::Link(from, to) => {
            if overlay.link(PATHS[*from], PATHS[*to]) {
                let node = model.now[PATHS[*from]].clone();
                model.change(PATHS[*to], node);
            }
        }
        Act::Symlink(path) => {
            if overlay.symlink(PATHS[*path], "/etc/passwd") {
                model.change(PATHS[*path], Node::Link("/etc/passwd".to_owned()));
            }
        }
        Act::Mkdir(path) => {
            if overlay.mkdir(PATHS[*path]) {
                model.change(PATHS[*path], Node::Directory);
            }
        }
        _ => {}
    }
}

fn history(rig: &mut Rig, model: &mut Model, act: &Act) {
    let pick = |model: &Model, number: usize| {
        let tags: Vec<_> = model.points.keys().cloned().collect();
        (!tags.is_empty()).then(|| tags[number % tags.len()].clone())
    };
    match act {
        Act::Snapshot(busy) => {
            let taking = if *busy { Taking::Copy } else { Taking::Seal };
            let point = rig.store().snapshot(&model.id, None, taking).unwrap();
            model.stacks.insert(point.stack, model.now.clone());
            model.points.insert(point.tag.to_string(), model.now.clone());
        }
        Act::Rollback(number) => {
            let Some(chosen) = pick(model, *number) else { return };
            rig.store().rollback(&model.id, &tag(&chosen)).unwrap();
            model.now = model.points[&chosen].clone();
        }
        Act::Forget(number) => {
            let Some(chosen) = pick(model, *number) else { return };
            rig.store().remove_snapshot(&model.id, &tag(&chosen)).unwrap();
            model.points.remove(&chosen);
        }
        Act::Fork(busy) => {
            let taking = if *busy { Taking::Copy } else { Taking::Seal };
            let mut forks =
                rig.store().fork(&model.id, vec![None, None], taking, &owner()).unwrap();
            model.others.push((model.id.clone(), model.now.clone()));
            model.others.push((forks.remove(0).id, model.now.clone()));
            model.id = forks.remove(0).id;
        }
        Act::Mark => {
            rig.store().mark(&model.id, Taking::Seal).unwrap();
        }
        Act::Undo | Act::Redo => {
            let undo = matches!(act, Act::Undo);
            let before = rig.store().get(&model.id).unwrap();
            if rig.store().is_untouched(&before).unwrap() {
                model.learn(&before, true);
            }
            let moved =
                if undo { rig.store().undo(&model.id) } else { rig.store().redo(&model.id) };
            match moved {
                Ok(record) => model.now = model.stacks[&record.stack].clone(),
                Err(error) => assert!(matches!(error, StoreError::Nothing(_)), "{error}"),
            }
        }
        Act::Restart => rig.reopen(),
        _ => {}
    }
}

/// The differences between two trees, as the model sees them.
fn expected(before: &Tree, after: &Tree) -> BTreeMap<String, ChangeKind> {
    let mut found = BTreeMap::new();
    for path in before.keys().chain(after.keys()) {
        let kind = match (before.get(path), after.get(path)) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
            (Some(was), Some(is)) if was == is => continue,
            (Some(Node::File(was, _)), Some(Node::File(is, _))) if was == is => {
                ChangeKind::Metadata
            }
            _ => ChangeKind::Modified,
        };
        found.insert(format!("/{path}"), kind);
    }
    found
}

fn told(rig: &Rig, id: &str, before: &Side, after: &Side) -> BTreeMap<String, ChangeKind> {
    let record = rig.store().get(id).unwrap();
    let found = rig.store().diff((&record, before), (&record, after)).unwrap();
    assert!(!found.cut && found.changes.is_sorted_by_key(|change| change.path.clone()));
    found.changes.into_iter().map(|change| (change.path, change.kind)).collect()
}

fn live(acts: &[Act]) {
    let mut rig = Rig::new();
    let id = rig.create("one").id;
    let image = rig.overlay(&id).tree();
    let mut model = Model {
        now: image.clone(),
        points: BTreeMap::new(),
        stacks: HashMap::new(),
        others: Vec::new(),
        id,
    };
    for act in acts {
        files(&rig, &mut model, act);
        let undoing = matches!(act, Act::Undo | Act::Redo | Act::Mark);
        if undoing {
            // What is sealed by these is what is there now.
            let mut record = rig.store().get(&model.id).unwrap();
            let untouched = rig.store().is_untouched(&record).unwrap();
            if !untouched && !matches!(act, Act::Redo) {
                record.stack.push(record.upper_id());
            }
            if untouched || !matches!(act, Act::Redo) {
                model.stacks.insert(record.stack, model.now.clone());
            }
        }
        history(&mut rig, &mut model, act);
        assert_eq!(rig.overlay(&model.id).tree(), model.now, "after {act:?}");
    }
    for (id, tree) in &model.others {
        assert_eq!(&rig.overlay(id).tree(), tree, "another sandbox changed");
    }
    assert_eq!(told(&rig, &model.id, &Side::Image, &Side::Present), expected(&image, &model.now));
    let points: Vec<_> = model.points.iter().collect();
    for pair in points.windows(2) {
        let (old, new) = (Side::Point(tag(pair[0].0)), Side::Point(tag(pair[1].0)));
        assert_eq!(told(&rig, &model.id, &old, &new), expected(pair[0].1, pair[1].1));
    }
    for (chosen, tree) in &points {
        let side = Side::Point(tag(chosen));
        assert_eq!(told(&rig, &model.id, &side, &Side::Present), expected(tree, &model.now));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_life_of_a_sandbox_is_what_the_model_says(acts in proptest::collection::vec(act(), 1..24)) {
        live(&acts);
    }
}
