//! Random lives of sandboxes beside a model of them, through real overlays: real programs change the files, and real
//! mounts show them. Thousands of lives on overlays that are played are in the library's own tests.
#![allow(
    clippy::print_stderr,
    reason = "shown of a test that failed, so that it can be done again"
)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use belljar::living::{Force, Sandboxes};
use belljar::sandbox::{ExecRequest, SandboxRequest};
use belljar::{Engine, LimitsRequest, Verdict};
use belljar_tests::{TempDir, block_on, engine};

use crate::rig::bash;
use crate::rounds::Chance;

const SEED: &str = "BELLJAR_LIVES_SEED";
const LIVES: usize = 64;
const STEPS: usize = 7;
const PATHS: [&str; 9] = ["a", "b", "d", "d/e", "d/e/f", "d/g", "n", "n/m", "n/m/o"];
/// What shows every path: its kind, mode and inode, its contents or where it leads.
const LOOK: &str = r#"cd /workspace; shopt -s globstar nullglob dotglob
for p in **/*; do
  if [ -L "$p" ]; then echo "$p l - - $(readlink "$p")"
  elif [ -d "$p" ]; then echo "$p d $(stat -c '%a' "$p") - -"
  else echo "$p f $(stat -c '%a %d:%i' "$p") $(<"$p")"; fi
done"#;

/// What is at a path. Names of one file share its number.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Directory(String),
    File { mode: String, text: String, number: u64 },
    Link(String),
}

type Tree = BTreeMap<String, Node>;

/// One sandbox as it should be.
#[derive(Clone, Debug, Default)]
struct Model {
    now: Tree,
    /// Every state that it ever had, by version; the present one is `at`.
    versions: Vec<Tree>,
    at: usize,
    points: BTreeMap<String, usize>,
    /// Versions that can be gone back to, and where it stands among them after an undo.
    automatic: Vec<usize>,
    standing: Option<usize>,
    undo: bool,
}

impl Model {
    fn new(undo: bool) -> Self {
        Self { undo, versions: vec![Tree::new()], ..Self::default() }
    }

    /// Something was written: this is a version of its own.
    fn settle(&mut self) {
        self.versions.push(self.now.clone());
        self.at = self.versions.len() - 1;
    }

    fn go(&mut self, version: usize) {
        self.at = version;
        self.now = self.versions[version].clone();
    }

    fn is_untouched(&self) -> bool {
        self.standing.is_some_and(|standing| self.automatic[standing] == self.at)
    }

    /// What happens before each exec.
    fn before_exec(&mut self) {
        if self.undo && !self.is_untouched() {
            self.mark();
        }
    }

    fn mark(&mut self) {
        if let Some(standing) = self.standing.take() {
            self.automatic.truncate(standing + 1);
        }
        if self.automatic.last() != Some(&self.at) {
            self.automatic.push(self.at);
        }
    }

    /// Whether there was something to undo.
    fn undo(&mut self) -> bool {
        if self.automatic.is_empty() {
            return false;
        }
        let here = match self.standing.filter(|_| self.is_untouched()) {
            Some(standing) => standing,
            None => {
                self.mark();
                self.automatic.len() - 1
            }
        };
        let earlier = self.automatic[..here].iter().rposition(|version| *version != self.at);
        let Some(target) = earlier else { return false };
        self.standing = Some(target);
        self.go(self.automatic[target]);
        true
    }

    fn redo(&mut self) -> bool {
        let Some(standing) = self.standing.filter(|_| self.is_untouched()) else { return false };
        let later = self.automatic[standing..].iter().position(|version| *version != self.at);
        let Some(target) = later.map(|later| standing + later) else { return false };
        self.standing = Some(target);
        self.go(self.automatic[target]);
        true
    }

    fn rollback(&mut self, tag: &str) {
        if self.undo {
            self.mark();
        }
        self.standing = None;
        self.go(self.points[tag]);
    }

    fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || matches!(self.now.get(path), Some(Node::Directory(_)))
    }

    fn may_hold(&self, path: &str) -> bool {
        self.is_directory(path.rsplit_once('/').map_or("", |(above, _)| above))
    }

    /// Whether a file has more names than one. An overlay that writes such a file, and it is of a lower sheet, writes a copy
    /// under that one name: what the kernel does then is not ours to test.
    fn is_shared(&self, number: u64) -> bool {
        let same =
            |node: &&Node| matches!(node, Node::File { number: other, .. } if *other == number);
        self.now.values().filter(same).count() > 1
    }

    fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.now.retain(|other, _| other != path && !other.starts_with(&below));
    }

    /// One thing that a program may do here, as a line of a script; nothing if it may not.
    fn act(&mut self, chance: &mut Chance, number: u64) -> Option<String> {
        let path = PATHS[chance.below(PATHS.len())];
        let there = self.now.get(path).cloned();
        if !self.may_hold(path) {
            return None;
        }
        match (chance.below(8), there) {
            (0 | 1, None) => {
                let node =
                    Node::File { mode: "644".to_owned(), text: format!("t{number}"), number };
                self.now.insert(path.to_owned(), node);
                Some(format!("echo t{number} > {path}"))
            }
            (0 | 1, Some(Node::File { mode, number: same, .. })) if !self.is_shared(same) => {
                let node = Node::File { mode, text: format!("t{number}"), number: same };
                self.now.insert(path.to_owned(), node);
                Some(format!("echo t{number} > {path}"))
            }
            (2, None) => {
                self.now.insert(path.to_owned(), Node::Directory("755".to_owned()));
                Some(format!("mkdir {path}"))
            }
            (3, Some(_)) => {
                self.remove(path);
                Some(format!("rm -r {path}"))
            }
            (4, Some(node)) => self.rename(chance, path, &node),
            (5, None) => {
                // Both names at once: an overlay does not tell that a copy of what is below has two.
                let to = PATHS[chance.below(PATHS.len())];
                if to == path || self.now.contains_key(to) || !self.may_hold(to) {
                    return None;
                }
                let (mode, text) = ("644".to_owned(), format!("t{number}"));
                let node = Node::File { mode, text, number };
                self.now.insert(path.to_owned(), node.clone());
                self.now.insert(to.to_owned(), node);
                Some(format!("echo t{number} > {path}; ln {path} {to}"))
            }
            (6, None) => {
                self.now.insert(path.to_owned(), Node::Link("../nowhere".to_owned()));
                Some(format!("ln -s ../nowhere {path}"))
            }
            (7, Some(Node::File { text, number, .. })) if !self.is_shared(number) => {
                let mode = if chance.below(2) == 0 { "600" } else { "751" };
                let node = Node::File { mode: mode.to_owned(), text, number };
                self.now.insert(path.to_owned(), node);
                Some(format!("chmod {mode} {path}"))
            }
            _ => None,
        }
    }

    fn rename(&mut self, chance: &mut Chance, from: &str, node: &Node) -> Option<String> {
        let to = PATHS[chance.below(PATHS.len())];
        let inside = to.starts_with(&format!("{from}/"));
        let below = format!("{from}/");
        let is_moved = |path: &str| path == from || path.starts_with(&below);
        let shared = self.now.iter().any(|(path, node)| {
            is_moved(path) && matches!(node, Node::File { number, .. } if self.is_shared(*number))
        });
        if inside || shared || self.now.contains_key(to) || !self.may_hold(to) {
            return None;
        }
        let moved: Vec<_> = self
            .now
            .iter()
            .filter_map(|(path, node)| {
                path.strip_prefix(&below).map(|rest| (format!("{to}/{rest}"), node.clone()))
            })
            .collect();
        self.remove(from);
        self.now.insert(to.to_owned(), node.clone());
        self.now.extend(moved);
        Some(format!("mv {from} {to}"))
    }
}

/// What is told of a tree, with the numbers of its files made comparable: by the first name of each.
fn plain(tree: &Tree) -> BTreeMap<String, String> {
    let mut first: BTreeMap<u64, &str> = BTreeMap::new();
    let mut told = BTreeMap::new();
    for (path, node) in tree {
        let words = match node {
            Node::Directory(mode) => format!("d {mode}"),
            Node::Link(target) => format!("l {target}"),
            Node::File { mode, text, number } => {
                let name = first.entry(*number).or_insert(path);
                format!("f {mode} {text} as {name}")
            }
        };
        told.insert(path.clone(), words);
    }
    told
}

fn parse(text: &str) -> Tree {
    let node = |line: &str| {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let [path, kind, mode, number, rest] = words[..] else { panic!("{line}") };
        let node = match kind {
            "d" => Node::Directory(mode.to_owned()),
            "l" => Node::Link(rest.to_owned()),
            _ => {
                let (device, number) = number.split_once(':').expect("a device and an inode");
                let [device, number]: [u64; 2] =
                    [device, number].map(|word| word.parse().expect("a number"));
                let number = (device << 40) ^ number;
                Node::File { mode: mode.to_owned(), text: rest.to_owned(), number }
            }
        };
        (path.to_owned(), node)
    };
    text.lines().map(node).collect()
}

/// A life under way.
struct Life<'a> {
    engine: &'a Engine,
    state: &'a Path,
    sandboxes: Sandboxes,
    name: String,
    model: Model,
    /// Forks, which must not change.
    others: Vec<(String, Tree)>,
    told: String,
    counted: u64,
}

impl Life<'_> {
    async fn run(&self, name: &str, script: &str) -> String {
        let ran = self.sandboxes.exec(name, bash(script)).await.expect("an exec");
        let (info, [out, err]) = ran.collect().await.expect("an end");
        let end = info.end.expect("an end");
        let words = (out.text(), err.text());
        assert_eq!(end.verdict, Verdict::Exited { code: 0 }, "{script}\n{words:?}\n{}", self.told);
        words.0
    }

    /// The files are what the model says.
    async fn look(&mut self) {
        self.model.before_exec();
        let found = self.run(&self.name, LOOK).await;
        assert_eq!(plain(&parse(&found)), plain(&self.model.now), "{}", self.told);
    }

    fn tell(&mut self, words: &str) {
        writeln!(self.told, "{words}").expect("memory");
    }

    async fn write(&mut self, chance: &mut Chance) {
        self.model.before_exec();
        let mut script = "set -e; cd /workspace\n".to_owned();
        for _ in 0..chance.below(6) + 1 {
            self.counted += 1;
            script.extend(self.model.act(chance, self.counted).map(|line| line + "\n"));
        }
        // So that it is a version of its own, whatever else happened.
        self.counted += 1;
        let (mode, text) = ("644".to_owned(), format!("t{}", self.counted));
        self.model.remove("v");
        let node = Node::File { mode, text, number: self.counted };
        self.model.now.insert("v".to_owned(), node);
        writeln!(script, "rm -f v; echo t{} > v", self.counted).expect("memory");
        self.model.settle();
        self.tell(&script);
        self.run(&self.name, &script).await;
    }

    async fn snapshot(&mut self) {
        self.counted += 1;
        let tag = format!("p{}", self.counted);
        self.tell(&format!("snapshot {tag}"));
        self.sandboxes.snapshot(&self.name, Some(tag.clone())).await.expect("a point");
        self.model.points.insert(tag, self.model.at);
    }

    async fn rollback(&mut self, chance: &mut Chance) {
        let tags: Vec<_> = self.model.points.keys().cloned().collect();
        if tags.is_empty() {
            return;
        }
        let tag = &tags[chance.below(tags.len())];
        self.tell(&format!("rollback {tag}"));
        self.sandboxes.rollback(&self.name, tag).await.expect("it goes back");
        self.model.rollback(tag);
    }

    /// A fork goes on in its place, and what it came from must stay as it is.
    async fn fork(&mut self) {
        self.counted += 1;
        let name = format!("fork-{}", self.counted);
        self.tell(&format!("fork {} {name}", self.name));
        self.sandboxes.fork(&self.name, 1, Some(name.clone())).await.expect("a fork");
        self.others.push((std::mem::replace(&mut self.name, name), self.model.now.clone()));
        (self.model.automatic, self.model.standing) = (Vec::new(), None);
    }

    async fn step(&mut self, chance: &mut Chance) {
        match chance.below(13) {
            0..=4 => self.write(chance).await,
            5 | 6 => self.snapshot().await,
            7 | 8 => self.rollback(chance).await,
            9 if self.others.len() < 2 => self.fork().await,
            10 | 11 if self.model.undo => {
                let (undo, before) = (chance.below(3) > 0, self.model.at);
                let can = if undo { self.model.undo() } else { self.model.redo() };
                self.tell(&format!(
                    "{} {before} to {}",
                    if undo { "undo" } else { "redo" },
                    self.model.at
                ));
                let moved = if undo {
                    self.sandboxes.undo(&self.name).await
                } else {
                    self.sandboxes.redo(&self.name).await
                };
                assert_eq!(moved.is_ok(), can, "{moved:?}\n{}", self.told);
            }
            12 => self.again().await,
            _ => return,
        }
        self.look().await;
    }

    /// As another server that finds it.
    async fn again(&mut self) {
        self.tell("another server");
        let place = self.state.with_file_name("unused");
        let unused = Sandboxes::open(self.engine, &place).await.expect("a state");
        drop(std::mem::replace(&mut self.sandboxes, unused));
        self.sandboxes = Sandboxes::open(self.engine, self.state).await.expect("a state");
    }
}

async fn live(engine: &Engine, state: &Path, chance: &mut Chance) {
    let mut sandboxes = Sandboxes::open(engine, state).await.expect("a state");
    for undo in [false, true] {
        let limits = LimitsRequest { wall_ms: Some(600_000), ..LimitsRequest::default() };
        let name = format!("undo-{undo}");
        let new = SandboxRequest { name: Some(name.clone()), limits, undo, ..Default::default() };
        sandboxes.create(new).await.expect("a sandbox");
        let clean = Some("clean".to_owned());
        sandboxes.snapshot(&name, clean).await.expect("a point");
    }
    for number in 0..LIVES {
        let undo = number % 2 == 1;
        let name = format!("undo-{undo}");
        let mut life = Life {
            engine,
            state,
            sandboxes,
            name: name.clone(),
            model: Model::new(undo),
            others: Vec::new(),
            told: format!("life {number}\n"),
            counted: number as u64 * 1000,
        };
        life.counted += 1;
        // The first is its own past: nothing is undone beyond it.
        life.sandboxes.fork(&name, 1, Some("one".to_owned())).await.expect("a fork");
        "one".clone_into(&mut life.name);
        if !undo && chance.below(2) == 0 {
            let request = ExecRequest { background: true, ..bash("sleep 1000") };
            drop(life.sandboxes.exec("one", request).await.expect("an exec"));
        }
        for _ in 0..STEPS {
            life.step(chance).await;
        }
        for (name, tree) in &life.others {
            let found = life.run(name, LOOK).await;
            assert_eq!(plain(&parse(&found)), plain(tree), "{name} changed\n{}", life.told);
        }
        for (tag, version) in life.model.points.clone() {
            life.sandboxes.rollback(&life.name, &tag).await.expect("it goes back");
            let found = life.run(&life.name, LOOK).await;
            let expected = plain(&life.model.versions[version]);
            assert_eq!(plain(&parse(&found)), expected, "{tag}\n{}", life.told);
        }
        let gone = life.others.iter().map(|(name, _)| name).chain([&life.name]);
        for name in gone {
            life.sandboxes.remove(name, Force::Yes).await.expect("it is removed");
        }
        sandboxes = life.sandboxes;
    }
    for name in ["undo-false", "undo-true"] {
        sandboxes.remove(name, Force::Yes).await.expect("it is removed");
    }
}

#[test]
fn any_life_through_real_overlays_is_what_the_model_says() {
    let seed = std::env::var(SEED).ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
        u64::from(now.subsec_nanos()) + now.as_secs()
    });
    eprintln!("{SEED}={seed}");
    let directory = TempDir::new();
    let engine = engine();
    block_on(live(&engine, &directory.join("state"), &mut Chance::new(seed)));
}
