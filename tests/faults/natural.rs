//! The kernel itself says no: system calls that fail under strace, as they do on other hosts.

use belljar::{Step, step_name};

use crate::guard::{Guarded, Mark, belljar_command};

/// Every call of this name fails with EPERM for belljar and all that it starts; with `:when=2` only a
/// process's second one.
fn refused(call: &str, level: &str) -> (Guarded, Mark) {
    let mark = Mark::new();
    let (name, when) = call.split_once(':').unwrap_or((call, "when=1+"));
    let (trace, inject) = (format!("trace={name}"), format!("inject={name}:error=EPERM:{when}"));
    // The shell tells the process id that belljar will have: strace itself is the guard's child.
    let before = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        &trace,
        "-e",
        &inject,
        "/bin/sh",
        "-c",
        "echo $$ >&2; exec \"$@\"",
        "sh",
    ];
    let mut guarded = Guarded::run(belljar_command(&before, &["--level", level], &mark));
    let told = guarded.err.lines().next().and_then(|line| line.parse().ok());
    guarded.pid = told.unwrap_or_else(|| panic!("no process id: {guarded:?}"));
    (guarded, mark)
}

fn stops_at(call: &str, level: &str, step: Step) {
    let (guarded, mark) = refused(call, level);
    let error = guarded.error();
    assert_eq!(guarded.code, 125, "{call}: {guarded:?}");
    assert_eq!(error["kind"], "setup", "{call}: {guarded:?}");
    assert_eq!(error["step"], step_name(step), "{call}: {guarded:?}");
    assert_eq!(error["errno"], "EPERM", "{call}: {guarded:?}");
    mark.assert_unmade();
    guarded.assert_clean();
}

#[test]
fn a_refused_pivot_is_told() {
    stops_at("pivot_root", "standard", Step::Pivot);
}

#[test]
fn refused_mount_attributes_are_told() {
    stops_at("mount_setattr", "standard", Step::Sources);
}

#[test]
fn a_refused_view_of_the_host_is_told() {
    stops_at("open_tree", "standard", Step::Sources);
}

#[test]
fn a_refused_file_system_is_told() {
    stops_at("fsopen", "standard", Step::Writable);
}

#[test]
fn a_refused_filter_is_told() {
    for level in ["basic", "standard"] {
        stops_at("seccomp", level, Step::Seccomp);
    }
    // A traced program gains no privilege, so an ordinary user's newuidmap fails under strace.
    let step = if belljar_tests::is_root() { Step::Seccomp } else { Step::IdMap };
    stops_at("seccomp", "strict", step);
}

#[test]
fn refused_landlock_rules_are_told() {
    for level in ["basic", "standard"] {
        stops_at("landlock_restrict_self", level, Step::Landlock);
    }
}

#[test]
fn a_refused_cgroup_namespace_is_told() {
    stops_at("unshare", "standard", Step::CgroupNamespace);
}

#[test]
fn a_refused_network_is_told() {
    stops_at("unshare:when=2", "standard", Step::Loopback);
}

#[test]
fn a_refused_host_name_is_told() {
    stops_at("sethostname", "standard", Step::Hostname);
}

#[test]
fn refused_limits_are_told() {
    for level in ["basic", "standard"] {
        stops_at("prlimit64,setrlimit", level, Step::Rlimits);
    }
}

#[test]
fn refused_capabilities_are_told() {
    // At basic, where init has none to drop beside the payload.
    stops_at("capset", "basic", Step::Capabilities);
}
