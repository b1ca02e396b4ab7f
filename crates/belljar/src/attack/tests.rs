//! The catalogue is whole, and every act with a control works outside.

use super::*;
use std::collections::BTreeSet;
use std::path::Path;

const LEVELS: [&str; 4] = ["none", "basic", "standard", "strict"];

#[test]
fn catalogue_is_large_and_its_names_are_unique() {
    let names: BTreeSet<_> = CATALOGUE.iter().map(|probe| probe.name).collect();
    assert!(CATALOGUE.len() >= 70, "{}", CATALOGUE.len());
    assert_eq!(names.len(), CATALOGUE.len());
}

#[test]
fn each_category_has_at_least_five_probes() {
    for category in Category::ALL {
        let count = CATALOGUE.iter().filter(|probe| probe.category == category).count();
        assert!(count >= 5, "{category:?}: {count}");
    }
}

#[test]
fn each_probe_says_what_it_is_and_which_layer_stops_it() {
    const LAYERS: [&str; 22] = [
        "user_namespace",
        "pid_namespace",
        "mount_namespace",
        "net_namespace",
        "ipc_namespace",
        "uts_namespace",
        "cgroup_namespace",
        "root",
        "proc",
        "devices",
        "no_new_privileges",
        "capabilities",
        "identity",
        "rlimits",
        "seccomp",
        "cgroup_memory",
        "cgroup_pids",
        "cgroup_cpu",
        "environment",
        "descriptors",
        "session",
        "disk",
    ];
    for probe in CATALOGUE {
        assert!(probe.what.len() >= 6 && !probe.what.ends_with('.'), "{}", probe.name);
        assert!(LAYERS.contains(&probe.layer), "{}: {}", probe.name, probe.layer);
    }
    for layer in LAYERS {
        assert!(CATALOGUE.iter().any(|probe| probe.layer == layer), "no probe of {layer}");
    }
}

#[test]
fn at_basic_no_probe_is_said_to_be_stopped_by_a_layer_that_basic_lacks() {
    for probe in CATALOGUE.iter().filter(|probe| expected(probe, "basic").is_some()) {
        let layer = layer_at(probe, "basic");
        assert!(!layer.ends_with("_namespace") && !layer.starts_with("cgroup"), "{}", probe.name);
        assert!(!["root", "proc", "devices", "disk"].contains(&layer), "{}", probe.name);
    }
    assert_eq!(layer_at(find("read_secret").unwrap(), "basic"), "landlock");
    assert_eq!(layer_at(find("read_secret").unwrap(), "standard"), "root");
}

#[test]
fn a_stricter_level_keeps_every_promise_of_a_weaker_one() {
    for probe in CATALOGUE {
        let kept = LEVELS.map(|level| expected(probe, level).is_some());
        assert!(kept.is_sorted(), "{}: {kept:?}", probe.name);
        assert!(kept[3], "{} is stopped nowhere", probe.name);
    }
}

#[test]
fn an_attempt_survives_json() {
    let all = [
        Attempt::Allowed { detail: "a\n\"b\"".into() },
        Attempt::Hidden { detail: String::new() },
        Attempt::Refused { errno: "EPERM".into() },
        Attempt::Killed { signal: "SIGSYS".into() },
        Attempt::NotApplicable { why: "none".into() },
        Attempt::Unanswered { why: "late".into() },
    ];
    for attempt in all {
        let line = Line { probe: "x".into(), attempt };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
    }
}

#[test]
fn only_a_promise_that_was_broken_is_an_escape() {
    let probe = find("hostname").unwrap();
    let seen = Attempt::Allowed { detail: "host".into() };
    assert_eq!(judge(probe, "basic", &seen), Finding::NotApplicable);
    assert_eq!(judge(probe, "standard", &seen), Finding::Escaped);
    let hidden = Attempt::Hidden { detail: "belljar".into() };
    assert_eq!(judge(probe, "standard", &hidden), Finding::Contained);
    let late = Attempt::Unanswered { why: "late".into() };
    assert_eq!(judge(probe, "standard", &late), Finding::Escaped);
    let nothing = Attempt::NotApplicable { why: "none".into() };
    assert_eq!(judge(probe, "standard", &nothing), Finding::NotApplicable);
}

#[test]
fn an_expectation_fits_only_its_own_end() {
    let refused = Attempt::Refused { errno: "EPERM".into() };
    assert!(Expect::Errno("EPERM").fits(&refused));
    assert!(!Expect::Errno("EACCES").fits(&refused));
    assert!(Expect::OneOf(&[HIDDEN, "EPERM"]).fits(&refused));
    assert!(!Expect::Hidden.fits(&refused));
    assert!(!Expect::Errno("EPERM").fits(&Attempt::Allowed { detail: String::new() }));
}

#[test]
fn a_sandbox_that_ended_early_is_charged_to_the_probe_that_ended_it() {
    let printed: String = CATALOGUE[..CATALOGUE.len() - 1]
        .iter()
        .map(|probe| {
            format!(
                "{{\"probe\":\"{}\",\"attempt\":{{\"refused\":{{\"errno\":\"EPERM\"}}}}}}\n",
                probe.name
            )
        })
        .collect();
    let all = collect(&printed, Some("SIGKILL"));
    assert_eq!(all.last().unwrap().0.name, "memory_bomb");
    assert_eq!(all.last().unwrap().1, Attempt::Killed { signal: "SIGKILL".into() });
    assert!(matches!(collect(&printed, None).last().unwrap().1, Attempt::Unanswered { .. }));
}

#[test]
fn a_probe_without_control_is_never_tried_unprotected() {
    let prepared = Fixture::prepare().unwrap();
    for level in ["outside", "none"] {
        let answer = attempt("metadata_service", &prepared.at(level)).unwrap();
        assert!(matches!(answer, Attempt::NotApplicable { .. }), "{answer:?}");
    }
}

#[test]
fn preparation_is_taken_away_again() {
    let prepared = Fixture::prepare().unwrap();
    let fixture = prepared.outside();
    let json = serde_json::to_string(&fixture).unwrap();
    assert!(serde_json::from_str::<Fixture>(&json).is_ok());
    assert!(fixture.secret.exists());
    drop(prepared);
    assert!(!fixture.secret.parent().unwrap().exists());
    assert!(!Path::new(&format!("/proc/{}", fixture.victim)).exists());
}

#[test]
fn every_act_with_a_control_works_outside() {
    let prepared = Fixture::prepare().unwrap();
    let mut printed = Vec::new();
    attempt_all(&prepared.outside(), &mut printed).unwrap();
    let all = collect(std::str::from_utf8(&printed).unwrap(), None);
    let user = belljar_sys::attempt::host::user();
    let mut works = 0;
    let mut broken = Vec::new();
    for (probe, attempt) in &all {
        match shown(probe, user, attempt) {
            Shown::Works => works += 1,
            Shown::NotHere => {}
            Shown::Broken => broken.push((probe.name, attempt)),
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    let enough = if user == 0 { 100 } else { 40 };
    assert!(works >= enough, "only {works} of {} shown: {all:#?}", all.len());
}
