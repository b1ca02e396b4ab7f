//! Golden plans: what a Spec becomes, word for word, on a host made up for the purpose. A change of any
//! limit, mount, rule or expected layer shows as a difference in a file that a reviewer reads.
//!
//! `BELLJAR_BLESS=1 cargo test -p belljar golden` writes the files anew.

use std::path::{Path, PathBuf};

use belljar_jail::plan::{CgroupVersion, Controller, Identity, MapWriter, Place};

use super::cgroups::{Cgroups, PlaceOf, Places};
use super::host::Host;
use super::plan::{Inputs, make};
use crate::languages::{Interpreter, Languages};
use crate::model::level::Level;
use crate::model::request::RunRequest;
use crate::model::spec::{LanguageFacts, Spec};

fn host(uid: u32) -> Host {
    Host {
        uid,
        gid: uid,
        landlock_abi: Some(7),
        kernel: "6.18.0".to_owned(),
        cgroups: Cgroups::None("unused here".to_owned()),
        scratch_parent: PathBuf::from(format!("/tmp/belljar-{uid}")),
    }
}

fn v2() -> Result<Places, String> {
    let place = Place::Beneath(PathBuf::from("/sys/fs/cgroup/box"));
    let controllers = vec![Controller::Memory, Controller::Pids, Controller::Cpu];
    Ok(Places { all: vec![PlaceOf { version: CgroupVersion::V2, controllers, place }] })
}

fn mapped(uid: u32) -> Identity {
    Identity::Mapped { inside: 1000, uid, gid: uid, writer: MapWriter::Keeper }
}

/// The plan as text. The filter has tests of its own, and what a host shows of itself varies, so the
/// one is told by its presence and the other is left out.
fn text(level: Level, uid: u32, cgroups: &Result<Places, String>, identity: Identity) -> String {
    let languages = Languages::load(&[]).unwrap();
    let language = languages.get("python").unwrap();
    let facts = LanguageFacts { name: language.name.clone(), file: language.file.clone() };
    let mut request = RunRequest { level, ..RunRequest::code("python", "print(1)") };
    request.args = vec!["--fast".to_owned()];
    request.env.insert("MODE".to_owned(), "test".to_owned());
    request.allow_missing = vec!["cgroup".to_owned(), "uid_per_run".to_owned()];
    let spec = Spec::resolve(request, Some(&facts)).unwrap();
    let interpreter = Interpreter { path: PathBuf::from("/usr/bin/python3"), prefix: None };
    let planned = make(&Inputs {
        id: "ID",
        name: "belljar-1-2-ID",
        spec: &spec,
        host: &host(uid),
        cgroups,
        language: Some(language),
        interpreter: Some(&interpreter),
        workspace: None,
        identity,
        egress: None,
        keep_workspace: false,
        hold: None,
        zygote_uid: None,
        fault: None,
    });
    let planned = planned.unwrap();
    let mut plan = serde_json::to_value(&planned.plan).unwrap();
    if let Some(root) = plan["files"].get_mut("root") {
        root["binds"] = "what this host has".into();
        root["symlinks"] = "what this host has".into();
    }
    if plan["lockdown"].is_object() {
        let length = plan["lockdown"]["filter"].as_array().map_or(0, Vec::len);
        plan["lockdown"]["filter"] = (length > 0).into();
        for list in ["looks", "distinct", "alarms", "only_alarms"] {
            let length = plan["lockdown"]["listen"][list].as_array().map_or(0, Vec::len);
            plan["lockdown"]["listen"][list] = (length > 0).into();
        }
        if level == Level::Basic {
            plan["lockdown"]["landlock"]["rules"] = "what this host has".into();
        }
    }
    let missing = serde_json::to_value(&planned.missing).unwrap();
    let whole = serde_json::json!({ "plan": plan, "missing": missing });
    serde_json::to_string_pretty(&whole).unwrap() + "\n"
}

#[track_caller]
fn compare(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/native/golden").join(name);
    if std::env::var_os("BELLJAR_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{} differs; see the module's text", path.display());
}

#[test]
fn golden_none_for_an_ordinary_user() {
    compare("none-user.json", &text(Level::None, 1000, &v2(), Identity::Caller));
}

#[test]
fn golden_basic_for_root() {
    let identity = Identity::Host { uid: 7000, gid: 7000 };
    compare("basic-root.json", &text(Level::Basic, 0, &v2(), identity));
}

#[test]
fn golden_standard_for_an_ordinary_user() {
    compare("standard-user.json", &text(Level::Standard, 1000, &v2(), mapped(1000)));
}

#[test]
fn golden_standard_without_a_cgroup() {
    let none = Err("none".to_owned());
    compare("standard-no-cgroup.json", &text(Level::Standard, 1000, &none, mapped(1000)));
}

#[test]
fn golden_strict_for_root() {
    compare("strict-root.json", &text(Level::Strict, 0, &v2(), mapped(7000)));
}
