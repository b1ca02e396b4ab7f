//! What one client does in a round, and what it may expect afterwards. Each has sandboxes of its own, so what is
//! acknowledged is known exactly, and only its last request can be in doubt.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::Ordering;

use serde_json::json;

use super::wire::{Answer, Server};
use super::{Chance, Round};

/// Files in the workspace, by name.
pub(super) type Files = BTreeMap<String, String>;

/// One sandbox, as its client knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub files: Files,
    /// Points by tag.
    pub points: BTreeMap<String, Files>,
    /// What its files ever were: an undo leads to one of these.
    pub past: Vec<Files>,
    pub undo: bool,
    /// An exec that counts for ever.
    pub counts: Option<String>,
    pub standing: Standing,
}

/// Whether something of a sandbox runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Standing {
    /// Never was, and begins with its first use.
    #[default]
    Fresh,
    Runs,
    Stopped,
}

pub(super) type World = BTreeMap<String, Known>;

/// One client. Its sandboxes are called after it.
#[derive(Debug)]
pub(super) struct Client {
    pub name: String,
    pub chance: Chance,
    /// What may be: one world, or with a request in doubt several.
    pub worlds: Vec<World>,
    /// What the request in doubt touches.
    pub doubted: BTreeSet<String>,
    /// What was asked, for whoever must understand a failure.
    pub told: Vec<String>,
    made: u32,
}

/// A request in the making.
struct Act {
    what: &'static str,
    method: &'static str,
    path: String,
    body: Vec<u8>,
    /// The sandboxes that it touches.
    touches: Vec<String>,
    /// What may be when it breaks off in the middle, beside what was and what shall be.
    between: Vec<World>,
    after: World,
}

const MOST_SANDBOXES: usize = 4;
const MOST_POINTS: usize = 3;
const COUNTING: &str = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.03; done";

impl Client {
    pub(super) fn new(name: &str, chance: Chance) -> Self {
        let (name, worlds) = (name.to_owned(), vec![World::new()]);
        Self { name, chance, worlds, doubted: BTreeSet::new(), told: Vec::new(), made: 0 }
    }

    pub(super) fn world(&self) -> &World {
        &self.worlds[0]
    }

    /// Works until it is told to stop, or until something broke that had to break.
    pub(super) fn work(&mut self, server: &Server, round: &Round) {
        self.doubted.clear();
        self.told.clear();
        while !round.is_over() {
            let Some(act) = self.choose() else { continue };
            let excused_before = round.excuses(&act.touches);
            let answer = server.ask(act.method, &act.path, &act.body);
            let status = answer.as_ref().map_or(0, |answer| answer.status);
            round.answers.fetch_add(1, Ordering::SeqCst);
            self.told.push(format!("{} {} {}: {status}", act.what, act.method, act.path));
            if !self.take(server, act, answer, round, excused_before) {
                return;
            }
        }
    }

    /// Learns from the answer; whether to go on.
    fn take(
        &mut self,
        server: &Server,
        act: Act,
        answer: io::Result<Answer>,
        round: &Round,
        excused_before: bool,
    ) -> bool {
        match answer {
            Ok(answer) if answer.is_ok() => {
                let before = std::mem::replace(&mut self.worlds, vec![act.after]);
                match act.what {
                    "count" => {
                        let id = answer.json()["id"].as_str().expect("an id").to_owned();
                        self.known(&act.touches[0]).counts = Some(id);
                    }
                    "export" => return self.import(server, &act.touches[0], &answer.body, round),
                    "exec" => {
                        let end = answer.json();
                        if end["end"]["exit_code"] != 0 {
                            // Its keeper was killed under it, and that is how it ended.
                            assert!(round.excuses(&act.touches), "{}: {end}", act.path);
                            self.worlds.extend(before);
                            self.worlds.extend(act.between);
                            self.doubted.extend(act.touches);
                            return false;
                        }
                    }
                    "promote" => round.renamed(&act.touches),
                    "undo" | "redo" => return self.look(server, &act.touches, round),
                    _ => {}
                }
                true
            }
            // There may be nothing to go back to.
            Ok(answer) if answer.text().contains("nothing to ") => {
                self.known(&act.touches[0]).counts = None;
                true
            }
            answer => {
                let told = answer.map_or_else(|error| error.to_string(), |one| one.text());
                let excused = excused_before || round.excuses(&act.touches);
                assert!(excused, "{} {}: {told}\n{}", act.method, act.path, self.told.join("\n"));
                self.worlds.push(act.after);
                self.worlds.extend(act.between);
                self.doubted.extend(act.touches);
                false
            }
        }
    }

    fn known(&mut self, name: &str) -> &mut Known {
        self.worlds[0].get_mut(name).expect("it is known")
    }

    /// The second half of sending a sandbox on a journey.
    fn import(&mut self, server: &Server, from: &str, archive: &[u8], round: &Round) -> bool {
        let name = self.new_name();
        let mut after = self.world().clone();
        let files = after[from].files.clone();
        after.insert(name.clone(), Known { past: vec![files.clone()], files, ..Known::default() });
        let path = format!("/v1/sandboxes/import?name={name}");
        let act = Act {
            what: "import",
            method: "POST",
            path,
            body: Vec::new(),
            touches: vec![name],
            between: Vec::new(),
            after,
        };
        let excused = round.excuses(&act.touches);
        let answer = server.ask("POST", &act.path, archive);
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        self.told.push(format!("import {}: {status}", act.path));
        self.take(server, act, answer, round, excused)
    }

    /// Where an undo led: to something that was.
    fn look(&mut self, server: &Server, touches: &[String], round: &Round) -> bool {
        let name = &touches[0];
        match read_files(server, name) {
            Ok(found) => {
                let known = self.known(name);
                assert!(known.past.contains(&found), "{name}: {found:?} never was");
                known.files = found;
                true
            }
            Err(error) => {
                assert!(round.excuses(touches), "{error}");
                self.doubt_past(name);
                false
            }
        }
    }

    /// It is anything that it ever was.
    fn doubt_past(&mut self, name: &str) {
        let world = self.world().clone();
        for files in &world[name].past {
            let mut other = world.clone();
            if let Some(known) = other.get_mut(name) {
                known.files.clone_from(files);
            }
            self.worlds.push(other);
        }
        self.doubted.insert(name.to_owned());
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        format!("{}-{}", self.name, self.made)
    }

    fn choose(&mut self) -> Option<Act> {
        let names: Vec<String> = self.world().keys().cloned().collect();
        if names.is_empty() || (names.len() < 2 && self.chance.below(3) == 0) {
            return Some(self.create());
        }
        let name = names[self.chance.below(names.len())].clone();
        let may_grow = names.len() < MOST_SANDBOXES;
        let Known { undo, standing, .. } = self.world()[&name];
        let may_use = standing != Standing::Stopped;
        Some(match self.chance.below(28) {
            0 if may_grow => self.create(),
            1 | 2 if may_grow => self.fork(&name),
            3 if may_grow => self.plain("export", "GET", &name, "/export"),
            4..=8 if may_use => self.put(&name),
            9..=12 if may_use => self.exec(&name),
            13 if may_use => self.delete(&name)?,
            14..=16 => self.snapshot(&name)?,
            17 | 18 => self.rollback(&name)?,
            19 => self.forget(&name)?,
            20 | 21 if undo && may_use => self.step_back("undo", &name),
            22 if undo && may_use => self.step_back("redo", &name),
            23 if may_use && self.world()[&name].counts.is_none() => self.count(&name),
            24 => self.remove(&name),
            25 => self.promote(&names)?,
            26 if standing == Standing::Runs => {
                let what = if self.chance.below(2) == 0 { "stop" } else { "kill" };
                self.end(what, &name)
            }
            26 | 27 if standing != Standing::Runs => self.plain("start", "POST", &name, "/start"),
            _ => return None,
        })
    }

    /// A request that changes no files.
    fn plain(&mut self, what: &'static str, method: &'static str, name: &str, rest: &str) -> Act {
        let mut after = self.world().clone();
        let starts = ["start", "put", "exec", "delete", "count", "undo", "redo"].contains(&what);
        if let Some(known) = after.get_mut(name).filter(|_| starts) {
            known.standing = Standing::Runs;
        }
        Act {
            what,
            method,
            path: at(name, rest),
            body: Vec::new(),
            touches: vec![name.to_owned()],
            between: Vec::new(),
            after,
        }
    }

    /// A request to one sandbox, after which it is something else.
    fn changing(
        &mut self,
        what: &'static str,
        name: &str,
        rest: &str,
        body: serde_json::Value,
        change: impl FnOnce(&mut Known),
    ) -> Act {
        let mut act = self.plain(what, "POST", name, rest);
        // A body that nobody reads is an error of the connection, when it is closed soon after.
        let said = body.as_object().is_some_and(|words| !words.is_empty());
        act.body = if said { body.to_string().into_bytes() } else { Vec::new() };
        change(act.after.get_mut(name).expect("it is known"));
        act
    }

    fn create(&mut self) -> Act {
        let (name, undo) = (self.new_name(), self.chance.below(2) == 0);
        let mut after = self.world().clone();
        let known =
            Known { undo, standing: Standing::Runs, past: vec![Files::new()], ..Known::default() };
        after.insert(name.clone(), known);
        let limits = json!({"disk_bytes": 64 << 20, "inodes": 4096, "wall_ms": 600_000});
        let body = json!({"name": name, "undo": undo, "limits": limits});
        Act {
            what: "create",
            method: "POST",
            path: "/v1/sandboxes".to_owned(),
            body: body.to_string().into_bytes(),
            touches: vec![name],
            between: Vec::new(),
            after,
        }
    }

    /// Some words that were never written before.
    fn words(&mut self) -> String {
        let repeated = self.chance.below(200) + 1;
        format!("{:016x}", self.chance.next()).repeat(repeated)
    }

    fn put(&mut self, name: &str) -> Act {
        let (file, words) = (format!("f{}", self.chance.below(5)), self.words());
        let written = words.clone();
        let path = format!("/files/workspace/{file}");
        let mut act = self.changing("put", name, &path, json!({}), |known| {
            known.write(&file, written);
        });
        (act.method, act.body) = ("PUT", words.into_bytes());
        act
    }

    fn exec(&mut self, name: &str) -> Act {
        let (file, words) = (format!("f{}", self.chance.below(5)), self.words());
        let script = format!("printf %s {words} > {file}");
        let body = json!({"cmd": ["/bin/sh", "-c", script]});
        let mut act = self.changing("exec", name, "/exec", body, |known| known.write(&file, words));
        // A shell empties the file first.
        let mut empty = act.after.clone();
        empty.get_mut(name).expect("it is known").write(&file, String::new());
        act.between.push(empty);
        act
    }

    fn delete(&mut self, name: &str) -> Option<Act> {
        let file = self.world()[name].files.keys().next()?.clone();
        let path = format!("/files/workspace/{file}");
        let mut act = self.changing("delete", name, &path, json!({}), |known| {
            known.files.remove(&file);
            known.past.push(known.files.clone());
        });
        act.method = "DELETE";
        Some(act)
    }

    fn snapshot(&mut self, name: &str) -> Option<Act> {
        if self.world()[name].points.len() >= MOST_POINTS {
            return None;
        }
        self.made += 1;
        let tag = format!("p{}", self.made);
        let body = json!({ "tag": tag });
        Some(self.changing("snapshot", name, "/snapshots", body, |known| {
            known.points.insert(tag, known.files.clone());
        }))
    }

    fn point(&mut self, name: &str) -> Option<String> {
        let tags: Vec<_> = self.world()[name].points.keys().cloned().collect();
        if tags.is_empty() { None } else { Some(tags[self.chance.below(tags.len())].clone()) }
    }

    fn forget(&mut self, name: &str) -> Option<Act> {
        let tag = self.point(name)?;
        let path = format!("/snapshots/{tag}");
        let mut act = self.changing("forget", name, &path, json!({}), |known| {
            known.points.remove(&tag);
        });
        act.method = "DELETE";
        Some(act)
    }

    fn rollback(&mut self, name: &str) -> Option<Act> {
        let tag = self.point(name)?;
        let body = json!({ "tag": tag });
        Some(self.changing("rollback", name, "/rollback", body, |known| {
            known.files = known.points[&tag].clone();
            // Perhaps for the first time: a fork has its parent's points.
            known.past.push(known.files.clone());
            known.counts = None;
        }))
    }

    fn step_back(&mut self, what: &'static str, name: &str) -> Act {
        let path = format!("/{what}");
        let mut act = self.changing(what, name, &path, json!({}), |known| known.counts = None);
        for files in act.after[name].past.clone() {
            let mut other = act.after.clone();
            other.get_mut(name).expect("it is known").files = files;
            act.between.push(other);
        }
        act
    }

    fn count(&mut self, name: &str) -> Act {
        let body = json!({"cmd": ["/bin/bash", "-c", COUNTING], "background": true});
        self.changing("count", name, "/exec", body, |_| {})
    }

    fn fork(&mut self, name: &str) -> Act {
        let fork = self.new_name();
        let new = fork.clone();
        let mut act = self.changing("fork", name, "/fork", json!({ "as": fork }), |_| {});
        let parent = act.after[name].clone();
        let past = vec![parent.files.clone()];
        act.after
            .insert(new.clone(), Known { counts: None, standing: Standing::Fresh, past, ..parent });
        act.touches.push(new);
        act
    }

    fn promote(&mut self, names: &[String]) -> Option<Act> {
        let [old, .., fork] = names else { return None };
        let body = json!({ "as": old });
        let mut act = self.changing("promote", fork, "/promote", body, |_| {});
        let known = act.after.remove(fork)?;
        act.after.insert(old.clone(), known);
        act.touches.push(old.clone());
        Some(act)
    }

    fn remove(&mut self, name: &str) -> Act {
        let mut act = self.plain("rm", "DELETE", name, "?force=true");
        act.after.remove(name);
        act
    }

    fn end(&mut self, what: &'static str, name: &str) -> Act {
        let path = format!("/{what}");
        self.changing(what, name, &path, json!({}), |known| {
            (known.standing, known.counts) = (Standing::Stopped, None);
        })
    }
}

impl Known {
    fn write(&mut self, file: &str, words: String) {
        self.files.insert(file.to_owned(), words);
        self.past.push(self.files.clone());
    }
}

pub(super) fn at(name: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{name}{rest}")
}

/// All files of a workspace, through the server.
pub(super) fn read_files(server: &Server, name: &str) -> Result<Files, String> {
    let ask = |path: &str| {
        let answer = server.ask("GET", path, b"").map_err(|error| format!("{path}: {error}"))?;
        if answer.is_ok() { Ok(answer) } else { Err(format!("{path}: {}", answer.text())) }
    };
    let listed = ask(&at(name, "/files/workspace?list=true"))?.json();
    let mut files = Files::new();
    for entry in listed["entries"].as_array().expect("entries") {
        let file = entry["name"].as_str().expect("a name");
        let contents = ask(&at(name, &format!("/files/workspace/{file}")))?.text();
        files.insert(file.to_owned(), contents);
    }
    Ok(files)
}
