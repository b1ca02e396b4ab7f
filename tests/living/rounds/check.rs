//! What must hold after a round: the list is true, everything that was acknowledged is there, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

use belljar_tests::{DEADLINE, cgroup_directories, name_of};
use serde_json::Value;

use super::load::{Client, Files, Known, Standing, World, at, read_files};
use super::wire::Server;
use super::{Field, Killed, entries, keeper_of};

impl Field {
    /// Starts the server again if it was killed, and looks at everything.
    pub(super) fn check(&mut self, clients: &mut [Client], killed: &Killed) {
        self.serve();
        let wire = self.wire();
        let listed = wire.must("GET", "/v1/sandboxes", b"").json();
        let listed: BTreeMap<String, Value> = listed["sandboxes"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| (one["name"].as_str().expect("a name").to_owned(), one.clone()))
            .collect();
        for one in listed.values() {
            self.check_truth(one);
        }
        self.check_leftovers();
        let mut known = BTreeSet::new();
        for client in &mut *clients {
            let prefix = format!("{}-", client.name);
            let own: BTreeMap<&str, &Value> = listed
                .iter()
                .filter(|(name, _)| name.starts_with(&prefix))
                .map(|(name, one)| (name.as_str(), one))
                .collect();
            known.extend(own.keys().map(|name| (*name).to_owned()));
            check_states(client, &own, killed);
            let found = look(&wire, &own);
            settle(client, &found);
            check_counting(&wire, client, killed);
        }
        let strangers: Vec<_> = listed.keys().filter(|name| !known.contains(*name)).collect();
        assert!(strangers.is_empty(), "nobody made {strangers:?}");
    }

    /// The state that is listed is the one that is.
    fn check_truth(&self, one: &Value) {
        let directory = self.state().join("sandboxes").join(one["id"].as_str().expect("an id"));
        let stands = keeper_of(&directory).is_some();
        let state = one["state"].as_str().expect("a state");
        assert_eq!(stands, matches!(state, "running" | "paused"), "{one:#}");
        assert_ne!(state, "removing", "{one:#}");
        assert_ne!(state, "failed", "{one:#}");
        if stands {
            assert_eq!(is_frozen(&directory), state == "paused", "{one:#}");
        }
    }

    /// Nothing is left of what is gone: processes, mounts, devices, cgroups, directories.
    pub(super) fn check_leftovers(&self) {
        let state = self.state();
        let ids = entries(&state.join("sandboxes"));
        let records: Vec<Value> = ids
            .iter()
            .map(|id| {
                let text = fs::read(state.join("sandboxes").join(id).join("record.json"));
                serde_json::from_slice(&text.unwrap_or_else(|error| panic!("{id}: {error}")))
                    .expect("JSON")
            })
            .collect();
        let standing: BTreeSet<&str> = ids
            .iter()
            .filter(|id| keeper_of(&state.join("sandboxes").join(id)).is_some())
            .map(String::as_str)
            .collect();
        let named: BTreeSet<String> = records.iter().flat_map(disks_of).collect();
        assert_eq!(entries(&state.join("disks")), named, "disks that no record names, or none");
        let odd = entries(&state.join("templates")).into_iter().find(|one| !one.ends_with(".img"));
        assert_eq!(odd, None, "half a template");
        let used = records.iter().filter(|one| standing.contains(one["id"].as_str().expect("id")));
        let used: BTreeSet<String> = used.flat_map(disks_of).collect();
        let place = state.display().to_string();
        eventually("loop devices of disks that nothing uses", || {
            loop_devices(&place).into_iter().filter(|disk| !used.contains(disk)).collect()
        });
        eventually("mounts", || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
            let ours = mounts.lines().filter(|line| line.contains(&place));
            ours.map(ToOwned::to_owned).collect()
        });
        eventually("cgroups of sandboxes that do not stand", || {
            self.orphans(); // who was reaped by nobody counts as alive
            let gone = self.ids.iter().filter(|id| !standing.contains(id.as_str()));
            let gone: Vec<_> = gone.collect();
            let all = cgroup_directories().into_iter().map(|one| one.display().to_string());
            all.filter(|one| gone.iter().any(|id| one.contains(id.as_str()))).collect()
        });
        eventually("processes", || {
            let orphans = self.orphans();
            let odd: Vec<_> = orphans
                .iter()
                .map(|pid| format!("{pid} {}", name_of(*pid)))
                .filter(|one| !one.ends_with(" belljar-keeper"))
                .collect();
            if orphans.len() == standing.len() && odd.is_empty() {
                return Vec::new();
            }
            vec![format!("{orphans:?} for {standing:?}; {odd:?}")]
        });
    }

    /// At the end: every point holds what it held when it was acknowledged.
    pub(super) fn check_points(&self, clients: &[Client]) {
        let wire = self.wire();
        for (name, known) in clients.iter().flat_map(Client::world) {
            for (tag, files) in &known.points {
                let body = serde_json::json!({ "tag": tag }).to_string();
                wire.must("POST", &at(name, "/rollback"), body.as_bytes());
                assert_eq!(read_files(&wire, name).as_ref(), Ok(files), "{name} at {tag}");
            }
        }
    }
}

/// What ends a moment later, as the kernel and init take theirs, is no leak.
fn eventually(what: &str, left: impl Fn() -> Vec<String>) {
    let deadline = Instant::now() + DEADLINE / 6;
    loop {
        let found = left();
        if found.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left: {what}: {found:#?}");
        std::thread::yield_now();
    }
}

/// The disks that a record needs.
fn disks_of(record: &Value) -> BTreeSet<String> {
    let points = record["points"].as_array().expect("points").iter();
    let stacks = points.map(|point| &point["stack"]).chain([&record["stack"]]);
    let sheets = stacks.flat_map(|stack| stack.as_array().expect("a stack"));
    let disks = sheets.map(|sheet| sheet.as_str().expect("a sheet").split('/').next());
    let own = record["disk"].as_str();
    disks.chain([own]).map(|disk| disk.expect("a disk").to_owned()).collect()
}

/// The disks below this place that a loop device stands on.
fn loop_devices(place: &str) -> BTreeSet<String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backing = devices
        .filter_map(|one| fs::read_to_string(one.path().join("loop/backing_file")).ok())
        .filter(|path| path.starts_with(place));
    backing.filter_map(|path| path.rsplit('/').nth(1).map(ToOwned::to_owned)).collect()
}

fn is_frozen(directory: &std::path::Path) -> bool {
    belljar_tests::block_on(async {
        let living = belljar::runtime::Living::connect(directory).await.expect("asked");
        living.expect("it stands").is_frozen().await.expect("it answers")
    })
}

/// What nobody touched goes on as it was.
fn check_states(client: &Client, listed: &BTreeMap<&str, &Value>, killed: &Killed) {
    for (name, known) in client.world() {
        if client.doubted.contains(name) || killed.keepers.contains(name) {
            continue;
        }
        let one = listed.get(name.as_str()).unwrap_or_else(|| panic!("{name} is gone"));
        let expected = match known.standing {
            Standing::Fresh => "created",
            Standing::Runs => "running",
            Standing::Stopped => "stopped",
        };
        assert_eq!(one["state"], expected, "{one:#}\n{}", client.told.join("\n"));
    }
}

/// All sandboxes of a client as they are, started where they were not.
fn look(wire: &Server, listed: &BTreeMap<&str, &Value>) -> World {
    let one = |(name, one): (&&str, &&Value)| {
        match one["state"].as_str() {
            Some("stopped" | "created") => drop(wire.must("POST", &at(name, "/start"), b"")),
            Some("paused") => drop(wire.must("POST", &at(name, "/resume"), b"")),
            _ => {}
        }
        let files = read_files(wire, name).unwrap_or_else(|error| panic!("{error}"));
        let told = wire.must("GET", &at(name, "/snapshots"), b"").json();
        let points = told["snapshots"].as_array().expect("points").iter();
        let named = points.filter(|point| point["automatic"] == false);
        let points = named
            .map(|point| {
                let tag = point["tag"].as_str().expect("a tag").to_owned();
                let changes = changes(wire, name, &tag);
                (tag, changes)
            })
            .collect();
        let known = Known { files, points, ..Known::default() };
        ((*name).to_owned(), known)
    };
    listed.iter().map(one).collect()
}

/// What differs from a point to the present: paths, and how.
fn changes(wire: &Server, name: &str, tag: &str) -> Files {
    let told = wire.must("GET", &at(name, &format!("/diff?from={tag}")), b"").json();
    let all = told["changes"].as_array().expect("changes").iter();
    let all = all.map(|one| {
        let path = one["path"].as_str().expect("a path");
        let file = path.strip_prefix("/workspace/").unwrap_or(path);
        (file.to_owned(), one["kind"].as_str().expect("a kind").to_owned())
    });
    all.collect()
}

/// What should differ.
fn expected_changes(before: &Files, after: &Files) -> Files {
    let mut changes = Files::new();
    for file in before.keys().chain(after.keys()) {
        let kind = match (before.get(file), after.get(file)) {
            (None, _) => "added",
            (_, None) => "removed",
            (was, is) if was == is => continue,
            _ => "modified",
        };
        changes.insert(file.clone(), kind.to_owned());
    }
    changes
}

/// One of the worlds that may be is the one that is; it is the only one from now on.
fn settle(client: &mut Client, found: &World) {
    let is = |world: &&World| {
        let seen: World = world
            .iter()
            .map(|(name, known)| {
                let points = known
                    .points
                    .iter()
                    .map(|(tag, files)| (tag.clone(), expected_changes(files, &known.files)));
                let (files, points) = (known.files.clone(), points.collect());
                (name.clone(), Known { files, points, ..Known::default() })
            })
            .collect();
        seen == *found
    };
    let Some(world) = client.worlds.iter().find(is) else {
        panic!("{found:#?}\nis none of {:#?}\n{}", client.worlds, client.told.join("\n"));
    };
    let mut world = world.clone();
    for known in world.values_mut() {
        known.standing = Standing::Runs;
        if !known.past.contains(&known.files) {
            known.past.push(known.files.clone());
        }
    }
    client.worlds = vec![world];
}

/// Programs in the background of surviving sandboxes go on, and can be followed from their first byte.
fn check_counting(wire: &Server, client: &mut Client, killed: &Killed) {
    let doubted = client.doubted.clone();
    for (name, known) in &mut client.worlds[0] {
        let Some(exec) = known.counts.clone() else { continue };
        let info = wire.must("GET", &at(name, &format!("/execs/{exec}")), b"").json();
        if killed.keepers.contains(name) {
            assert_ne!(info["state"], "running", "{name}: {info}");
        }
        let may_end = killed.keepers.contains(name) || doubted.contains(name);
        if may_end && info["state"] != "running" {
            known.counts = None;
            continue;
        }
        assert_eq!(info["state"], "running", "{name}: {info}");
        let seen = info["stdout_bytes"].as_u64().expect("a number");
        let path = at(name, &format!("/execs/{exec}/events"));
        wire.read_until(&path, |text| counted_in(text) > seen + 2);
    }
}

/// How much the events so far say was written, every number after the one before it.
fn counted_in(text: &str) -> u64 {
    let mut all = String::new();
    for line in text.lines().filter(|line| line.starts_with('{') && line.ends_with('}')) {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        assert_ne!(event["type"], "gap", "{event}");
        all += event["data"].as_str().unwrap_or_default();
    }
    let lines = all.lines().count() + 1;
    let numbers: String = (0..lines).map(|number| format!("{number}\n")).collect();
    assert!(numbers.starts_with(&all), "counted wrongly: {all:?}");
    all.len() as u64
}
