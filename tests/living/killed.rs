//! What is left when something is killed in the middle: nothing that holds a disk, stands still for ever, or is half a file.

use std::fs;
use std::path::Path;

use belljar::living_talk::MAX_CLIENTS;
use belljar::runtime::{Living, raise};
use belljar_tests::{
    Program, Running, Server, TempDir, block_on, children, is_root, name_of, processes_with,
    wait_for, wait_until,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};
use serde_json::json;

use crate::http::Connection;
use crate::rig::{House, bash, until};
use crate::rounds::keeper_of;
use crate::trees::Served;

/// Set for the process that a test starts of itself.
const ALONE: &str = "BELLJAR_KILLED_ALONE";

/// Runs a test in a process of its own, which takes in whatever loses its parent; says whether this is that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        set_child_subreaper(Some(rustix::process::getpid())).expect("we take orphans in");
        return true;
    }
    let own = std::env::current_exe().expect("our own name");
    let ended = Program::new(own).args([test, "--exact"]).env(ALONE, "1").run();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    false
}

/// One that has just ended by itself is as good as killed; anything else that stands in the way is a failure.
#[track_caller]
fn kill(pid: Pid) {
    let killed = kill_process(pid, Signal::KILL);
    assert!(matches!(killed, Ok(()) | Err(Errno::SRCH)), "{killed:?}");
}

/// The loop devices over this file.
fn devices_over(image: &Path) -> usize {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backing =
        devices.filter_map(|one| fs::read_to_string(one.path().join("loop/backing_file")).ok());
    backing.filter(|path| Path::new(path.trim_end()) == image).count()
}

#[track_caller]
fn done(program: &str, words: &[&str]) {
    let ended = Program::new(program).args(words).run();
    assert_eq!(ended.code, Some(0), "{program} {words:?}: {ended:?}");
}

#[test]
fn a_disk_that_is_taken_away_is_held_by_no_nursery() {
    let directory = TempDir::new();
    let (image, files) = (directory.join("disk.img"), directory.join("disks/01K/files"));
    fs::create_dir_all(&files).expect("a directory");
    let (shown, place) = (image.display().to_string(), files.display().to_string());
    if is_root() {
        done("truncate", &["-s", "4m", &shown]);
        done("/usr/sbin/mkfs.ext4", &["-q", &shown]);
        done("mount", &["-o", "loop", &shown, &place]);
        assert_eq!(devices_over(&image), 1);
    }
    let server = Server::with(&["--warm", "python", "--pool-floor", "1", "--pool", "1"]);
    server.wait_until_full(1);
    let is_nursery = |pid: &u32| name_of(*pid) == "belljar-nursery";
    let nursery = server.children().into_iter().find(is_nursery).expect("there is one");
    if !is_root() {
        // It sees what all see, and nothing longer: only who is root has disks, and mounts of its own.
        let own = fs::read_link("/proc/self/ns/mnt").expect("our mounts");
        // Whom one may not look at is not dumpable, which the server's other children are not either.
        let its = fs::read_link(format!("/proc/{nursery}/ns/mnt"));
        return assert!(its.is_err() || its.is_ok_and(|its| its == own));
    }
    let its = fs::read_to_string(format!("/proc/{nursery}/mountinfo")).expect("root may look");
    assert!(!its.contains(&place), "{its}");
    done("umount", &["--lazy", &place]);
    wait_until("the device is gone", || devices_over(&image) == 0);
}

#[test]
fn what_stands_still_ends_though_nobody_reaps_its_killed_keeper() {
    if !is_alone("killed::what_stands_still_ends_though_nobody_reaps_its_killed_keeper") {
        return;
    }
    let house = House::new();
    house.start("a", &bash("sleep 98768 & sleep 98768"));
    until("it runs", || processes_with("98768").len() > 1);
    let keeper = keeper_of(&house.raise.directory).expect("it stands");
    block_on(house.living.freeze()).expect("it stands still");
    kill(keeper);
    until("it is dead", || keeper_of(&house.raise.directory).is_none());
    let number = keeper.as_raw_nonzero().get().cast_unsigned();
    assert!(children(std::process::id()).contains(&number), "nobody has reaped it");
    let again = block_on(raise(&house.engine, house.raise.clone())).expect("it stands again");
    wait_until("what stood still is gone", || processes_with("98768").is_empty());
    assert!(children(std::process::id()).contains(&number), "nobody has reaped it");
    block_on(again.kill()).expect("it is killed");
}

#[test]
fn a_kill_is_told_only_when_the_keeper_is_gone() {
    let house = House::new();
    let keeper = keeper_of(&house.raise.directory).expect("it stands");
    // As many as it takes, and the next is hung up on: that is not its end.
    let (turned_away, others) = block_on(async {
        let mut all = Vec::new();
        while all.len() < MAX_CLIENTS {
            let next = Living::connect(&house.raise.directory).await.expect("asked");
            all.push(next.expect("it stands"));
        }
        (all.pop().expect("the last"), all)
    });
    let refused = block_on(turned_away.kill());
    assert!(refused.is_err(), "it was told that the sandbox is gone");
    assert_eq!(keeper_of_number(keeper), "belljar-keeper");
    drop(others);
    block_on(turned_away.kill()).expect("there is room now, and it is asked again");
    assert!(!lives(keeper), "it was told that the keeper is gone");
}

fn keeper_of_number(pid: Pid) -> String {
    name_of(pid.as_raw_nonzero().get().cast_unsigned())
}

/// Reaped by whoever has it, or about to be.
fn lives(pid: Pid) -> bool {
    let number = pid.as_raw_nonzero().get();
    let status = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// Begins to put a file, and returns when the agent has most of it.
fn half_put(served: &Served, name: &str) -> Connection {
    let mut slow = Connection::unix(&served.desk.socket);
    let path = Served::at(&format!("/files/workspace/{name}"));
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n");
    slow.write(head.as_bytes()).expect("it is read");
    // More than all that is between us and the agent could hold.
    slow.write(&[b'n'; 3_000_000]).expect("it is read");
    slow
}

/// The agents of a sandbox in which nothing else runs: a payload that executes nothing keeps its name.
fn agents(served: &Served) -> Vec<Pid> {
    let keeper = keeper_of(&directory(served)).expect("it stands");
    let mut left = vec![keeper.as_raw_nonzero().get().cast_unsigned()];
    let mut found = Vec::new();
    while let Some(pid) = left.pop() {
        if name_of(pid) == "belljar-payload" {
            found.extend(Pid::from_raw(pid.cast_signed()));
        }
        left.extend(children(pid));
    }
    found
}

fn directory(served: &Served) -> std::path::PathBuf {
    let info = served.client.get("/v1/sandboxes/one").is(200).json();
    served.desk.state().join("sandboxes").join(info["id"].as_str().expect("an id"))
}

/// What is in the workspace, by name, with sizes.
fn listed(served: &Served) -> String {
    served.shell("stat -c '%n %s' $(ls -A) | sort | tr '\\n' ' '")
}

#[test]
fn a_file_is_whole_or_as_it_was_whoever_is_killed_while_it_is_put() {
    let mut served = Served::new(json!({}));
    served.shell("printf old > old");
    let kept = "old 3 ";
    let start = |served: &Served| {
        let answer = served.client.post(&Served::at("/start"), &json!({}));
        assert!([200, 409].contains(&answer.status), "{answer:?}");
    };
    for name in ["new", "old"] {
        // The agent.
        let mut slow = half_put(&served, name);
        let all = wait_for("an agent", || Some(agents(&served)).filter(|all| !all.is_empty()));
        all.into_iter().for_each(kill);
        slow.write(&[b'n'; 1_000_000]).ok();
        assert_ne!(slow.answer().status / 100, 2, "{name}");
        assert_eq!(listed(&served), kept, "the agent was killed");
        // The keeper.
        let mut slow = half_put(&served, name);
        let all = wait_for("an agent", || Some(agents(&served)).filter(|all| !all.is_empty()));
        kill(keeper_of(&directory(&served)).expect("it stands"));
        // Its agent dies a moment after it, and could bring what comes until then to its end.
        wait_until("its agents are gone", || !all.iter().any(|one| lives(*one)));
        slow.write(&[b'n'; 1_000_000]).ok();
        assert_ne!(slow.answer().status / 100, 2, "{name}");
        start(&served);
        assert_eq!(listed(&served), kept, "the keeper was killed");
        // The server.
        let slow = half_put(&served, name);
        let server: Running = served.server.take().expect("it runs");
        server.signal(Signal::KILL);
        server.wait();
        drop(slow);
        served.server = Some(served.desk.serve());
        assert_eq!(listed(&served), kept, "the server was killed");
        // Server and keeper: nobody is left who could clear anything away.
        let slow = half_put(&served, name);
        let keeper = keeper_of(&directory(&served)).expect("it stands");
        let server: Running = served.server.take().expect("it runs");
        server.signal(Signal::KILL);
        kill(keeper);
        server.wait();
        drop(slow);
        served.server = Some(served.desk.serve());
        start(&served);
        assert_eq!(listed(&served), kept, "both were killed");
    }
    // What was about to be put in another's place when all were killed goes with the next look at it.
    served.shell("mkdir below; touch .belljar-0123456789abcdef.part below/.belljar-x.part");
    kill(keeper_of(&directory(&served)).expect("it stands"));
    wait_until("it is told", || {
        served.client.get("/v1/sandboxes/one").is(200).json()["state"] == "stopped"
    });
    start(&served);
    assert_eq!(served.shell("ls -A; ls -A below"), "below\nold\n.belljar-x.part\n");
}

#[test]
fn what_a_program_left_closed_keeps_nobody_from_the_list() {
    let served = Served::new(json!({}));
    served.shell(
        "mkdir closed dark; touch closed/.belljar-0123456789abcdef.part dark/file .belljar-fedcba9876543210.part; \
         chmod 555 closed; chmod 000 dark",
    );
    kill(keeper_of(&directory(&served)).expect("it stands"));
    wait_until("it is told", || {
        served.client.get("/v1/sandboxes/one").is(200).json()["state"] == "stopped"
    });
    served.client.get("/v1/sandboxes").is(200);
    served.client.post(&Served::at("/start"), &json!({})).is(200);
    assert_eq!(served.shell("ls -A"), "closed\ndark\n");
}
