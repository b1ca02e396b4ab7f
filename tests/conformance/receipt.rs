//! The receipt: what was enforced, as read back, and for which Spec.

use belljar_tests::{Ended, Layer, Level, Outcome, Program, Sandbox, each_level, is_root, outcome};

each_level!(every_layer_of_the_level_is_verified, |level| {
    let outcome = Sandbox::at(level).run_python("pass");
    assert_eq!(outcome.receipt.level, level);
    assert_eq!(outcome.receipt.missing, []);
    let mut found: Vec<Layer> = outcome.receipt.layers.iter().map(|check| check.name).collect();
    let mut promised = level.layers();
    found.sort();
    promised.sort();
    assert_eq!(found, promised);
    for check in &outcome.receipt.layers {
        assert!(check.verified, "{check:?}");
        assert!(!check.mechanism.is_empty(), "{check:?}");
    }
});

each_level!(digest_names_the_spec, |level| {
    let digest = |code: &str, options: &[&str]| {
        let sandbox = Sandbox::at(level).with(options.iter().copied());
        sandbox.run_python(code).receipt.spec_digest
    };
    let first = digest("pass", &[]);
    assert!(first.starts_with("sha256:") && first.len() == 71, "{first}");
    assert_eq!(first, digest("pass", &[]), "the same request has the same digest");
    assert_ne!(first, digest("pass ", &[]));
    assert_ne!(first, digest("pass", &["--timeout", "29s"]));
    assert_ne!(first, digest("pass", &["--env", "A=1"]));
});

#[test]
fn levels_have_digests_of_their_own() {
    let digest = |level| Sandbox::at(level).run_python("pass").receipt.spec_digest;
    assert_ne!(digest(Level::Standard), digest(Level::Strict));
}

each_level!(versions_are_told, |level| {
    let versions = Sandbox::at(level).run_python("pass").receipt.versions;
    assert_eq!(versions.belljar, env!("CARGO_PKG_VERSION"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    assert_eq!(versions.kernel, kernel.trim());
    assert!(versions.interpreter.ends_with("python3"), "{versions:?}");
});

/// Runs belljar where no cgroup can be made: the hierarchies are covered in a mount namespace.
fn without_cgroups(options: &[&str], code: &str) -> Ended {
    let script = r#"mount -t tmpfs none /sys/fs/cgroup && exec "$@""#;
    let namespaces: &[&str] = if is_root() {
        &["--mount"]
    } else {
        &["--user", "--map-current-user", "--keep-caps", "--mount"]
    };
    Program::new("/usr/bin/unshare")
        .args(namespaces)
        .args(["/bin/sh", "-c", script, "sh"])
        .arg(belljar_tests::belljar_bin())
        .args(["run", "--json"])
        .args(options)
        .args(["-c", code])
        .run()
}

#[test]
fn without_a_cgroup_standard_is_unavailable() {
    for level in ["standard", "strict"] {
        let ended = without_cgroups(&["--level", level], "print('ran')");
        assert_eq!(ended.code, Some(125), "{ended:?}");
        let error = &ended.json()["error"];
        assert_eq!(error["kind"], "unavailable");
        let message = error["message"].as_str().expect("a message");
        assert!(
            message.contains("cgroup") && message.contains("--allow-missing cgroup"),
            "{message}"
        );
    }
}

#[test]
fn missing_cgroup_is_on_the_receipt_when_it_was_allowed() {
    let code = "import resource as r; print(r.getrlimit(r.RLIMIT_DATA))";
    let options = ["--allow-missing", "cgroup", "--memory", "256m", "--cpu-time", "7s"];
    let ended = without_cgroups(&options, code);
    let outcome: Outcome = outcome(&ended);
    assert!(outcome.ok(), "{outcome:?}");
    assert_eq!(outcome.stdout, format!("({0}, {0})\n", 256 << 20));
    let missing: Vec<Layer> = outcome.receipt.missing.iter().map(|one| one.name).collect();
    assert_eq!(missing, [Layer::CgroupMemory, Layer::CgroupPids, Layer::CgroupCpu]);
    assert!(outcome.receipt.missing.iter().all(|one| !one.stand_in.is_empty()));
    let found: Vec<Layer> = outcome.receipt.layers.iter().map(|check| check.name).collect();
    assert!(missing.iter().all(|one| !found.contains(one)), "{found:?}");
    assert_eq!(found.len() + missing.len(), Level::Standard.layers().len());
}

#[test]
fn allowing_what_is_there_changes_nothing() {
    let outcome = Sandbox::standard().with(["--allow-missing", "cgroup"]).run_python("pass");
    assert_eq!(outcome.receipt.missing, []);
    assert_eq!(outcome.receipt.layers.len(), Level::Standard.layers().len());
}
