//! Turns the seccomp rules (`src/seccomp/*.toml`) into the static table that `seccomp.rs` includes,
//! so that nothing is parsed when a run starts, and stops the build at a rule that cannot be right:
//! an unknown call, one named twice, a missing reason, a test that does not parse.
//!
//! And builds the library that a warmed interpreter loads. It is linked to the C library of the host, as
//! the interpreter is, while all the rest is one static file; so it takes a cargo of its own.
#![allow(clippy::print_stdout, reason = "a build script speaks to cargo on its standard output")]

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use syscalls::{aarch64, x86_64};

/// In the order in which they are laid over each other; `Profile` counts in the same order.
const LAYERS: [&str; 3] = ["basic", "standard", "strict"];

/// The errors a rule may answer with. All have the same number on x86_64 and aarch64.
const ERRNOS: [(&str, u16); 3] = [("EPERM", 1), ("EINVAL", 22), ("ENOSYS", 38)];

/// What a refusal may be told as.
const KINDS: [&str; 3] = ["syscall_blocked", "escape_attempt", "permission_denied"];
const SEVERITIES: [&str; 5] = ["info", "low", "medium", "high", "critical"];

/// A reason shorter than this explains nothing ("As open" is the shortest honest one).
const SHORTEST_REASON: usize = 7;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    rule: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    calls: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
    action: String,
    /// What a refusal is told as.
    event: Option<String>,
    #[serde(default)]
    except: Vec<Exception>,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    when: Vec<String>,
    action: String,
    /// Where it differs from the rule's.
    event: Option<String>,
}

type Constants = BTreeMap<String, u32>;

/// For each call, the place of its rule in the table at every level (the last layer that names it).
type Decisions = BTreeMap<String, [Option<usize>; LAYERS.len()]>;

fn main() -> Result<(), Box<dyn Error>> {
    build_zygote()?;
    let folder = Path::new("src/seccomp");
    println!("cargo::rerun-if-changed={}", folder.display());
    let constants: Constants = toml::from_str(&fs::read_to_string(folder.join("constants.toml"))?)?;
    let known = known_names();
    let mut rules = String::new();
    let mut count = 0;
    let mut decisions = Decisions::new();
    for (level, name) in LAYERS.iter().enumerate() {
        let path = folder.join(format!("{name}.toml"));
        let layer: Layer = toml::from_str(&fs::read_to_string(&path)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let mut named = BTreeSet::new();
        for rule in &layer.rule {
            check(rule, &known, &mut named)
                .and_then(|()| write_rule(&mut rules, rule, &constants))
                .map_err(|error| format!("{}: {:?}: {error}", path.display(), rule.calls))?;
            for call in &rule.calls {
                let decided = decisions.entry(call.clone()).or_default();
                decided[level..].fill(Some(count));
            }
            count += 1;
        }
    }
    let table = format!(
        "pub(super) static RULES: &[Rule] = &[\n{rules}];\n\
         #[cfg(any(target_arch = \"x86_64\", test))]\n\
         pub(super) static X86_64_CALLS: &[Call] = &[\n{}];\n\
         #[cfg(any(target_arch = \"aarch64\", test))]\n\
         pub(super) static AARCH64_CALLS: &[Call] = &[\n{}];\n\
         pub(super) static NAMES: &[&str] = &{:?};\n",
        calls(&x86_64_calls(), &decisions)?,
        calls(&aarch64_calls(), &decisions)?,
        known.iter().collect::<Vec<_>>(),
    );
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(Path::new(&out).join("seccomp_table.rs"), table)?;
    Ok(())
}

fn build_zygote() -> Result<(), Box<dyn Error>> {
    for part in ["sys", "jail", "zygote"] {
        println!("cargo::rerun-if-changed=../{part}/src");
    }
    let (target, out) = (env::var("TARGET")?, PathBuf::from(env::var("OUT_DIR")?));
    let folder = out.join("zygote");
    #[expect(clippy::disallowed_methods, reason = "a build script has no other way to start cargo")]
    let status = Command::new(env::var("CARGO")?)
        .args(["rustc", "--quiet", "--package", "belljar-zygote", "--profile", "zygote"])
        .args(["--lib", "--crate-type", "cdylib", "--target", &target, "--target-dir"])
        .arg(&folder)
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=-crt-static")
        .env_remove("RUSTC_WORKSPACE_WRAPPER") // clippy's, which builds nothing
        .status()?;
    if !status.success() {
        return Err("cannot build belljar-zygote: see above".into());
    }
    let built = folder.join(target).join("zygote/libbelljar_zygote.so");
    fs::copy(&built, out.join("belljar_zygote.so"))?;
    Ok(())
}

// `Sysno::iter` stops one short of the last call (syscalls 0.8.1), so count the numbers ourselves.

fn x86_64_calls() -> BTreeMap<usize, &'static str> {
    (0..=x86_64::Sysno::last() as usize)
        .filter_map(|number| Some((number, x86_64::Sysno::new(number)?.name())))
        .collect()
}

fn aarch64_calls() -> BTreeMap<usize, &'static str> {
    (0..=aarch64::Sysno::last() as usize)
        .filter_map(|number| Some((number, aarch64::Sysno::new(number)?.name())))
        .collect()
}

/// A call that only one architecture has is still a name one may use on the other.
fn known_names() -> BTreeSet<&'static str> {
    x86_64_calls().into_values().chain(aarch64_calls().into_values()).collect()
}

fn check<'a>(
    rule: &'a Rule,
    known: &BTreeSet<&str>,
    named: &mut BTreeSet<&'a str>,
) -> Result<(), String> {
    if rule.calls.is_empty() {
        return Err("names no call".into());
    }
    if rule.reason.trim().len() < SHORTEST_REASON {
        return Err("gives no reason".into());
    }
    for call in &rule.calls {
        if !known.contains(call.as_str()) {
            return Err(format!("no system call is named {call}"));
        }
        if !named.insert(call) {
            return Err(format!("{call} has a rule in this file already"));
        }
    }
    Ok(())
}

fn write_rule(out: &mut String, rule: &Rule, constants: &Constants) -> Result<(), String> {
    let mut exceptions = String::new();
    let mut conditions = Vec::new();
    for exception in &rule.except {
        if exception.when.is_empty() {
            return Err("an exception without `when` would replace the action".into());
        }
        let mut tests = String::new();
        for text in &exception.when {
            tests.push_str(&test(text, &rule.args, constants)?);
        }
        let action = action(&exception.action)?;
        let event = exception.event.as_ref().or(rule.event.as_ref());
        let mark = mark(&exception.action, event)?;
        write!(exceptions, "Exception {{ tests: &[{tests}], action: {action}, mark: {mark} }},")
            .map_err(|error| error.to_string())?;
        conditions.push(format!("{} if {}", exception.action, exception.when.join(" and ")));
    }
    writeln!(
        out,
        "Rule {{ action: {}, mark: {}, exceptions: &[{exceptions}], condition: {:?}, reason: {:?} }},",
        action(&rule.action)?,
        mark(&rule.action, rule.event.as_ref())?,
        conditions.join("; "),
        rule.reason.trim(),
    )
    .map_err(|error| error.to_string())
}

fn action(name: &str) -> Result<String, String> {
    if name == "allow" {
        return Ok("Action::Allow".into());
    }
    ERRNOS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| format!("Action::Errno({number})"))
        .ok_or_else(|| format!("{name} is neither \"allow\" nor one of {ERRNOS:?}"))
}

/// What a refusal is told as: every one has been thought about, so every one says it.
fn mark(action: &str, event: Option<&String>) -> Result<String, String> {
    if action == "allow" {
        return Ok("Mark::Quiet".into());
    }
    let event = event.ok_or("refuses something without saying what `event` that is")?;
    if event == "quiet" {
        return Ok("Mark::Quiet".into());
    }
    let camel = |word: &str| -> String {
        let capital = |part: &str| part[..1].to_uppercase() + &part[1..];
        word.split('_').filter(|part| !part.is_empty()).map(capital).collect()
    };
    let (kind, severity) =
        event.split_once(' ').ok_or_else(|| format!("event \"{event}\" is not KIND SEVERITY"))?;
    if !KINDS.contains(&kind) || !SEVERITIES.contains(&severity) {
        return Err(format!("event \"{event}\": use one of {KINDS:?} and one of {SEVERITIES:?}"));
    }
    Ok(format!("Mark::Told(EventKind::{}, Severity::{})", camel(kind), camel(severity)))
}

/// `ARGUMENT [& MASK] [not] in VALUE, VALUE …` as a `Test`.
fn test(text: &str, args: &[String], constants: &Constants) -> Result<String, String> {
    let (subject, values) =
        text.split_once(" in ").ok_or_else(|| format!("\"{text}\" lacks \" in \""))?;
    let (subject, negated) = match subject.strip_suffix(" not") {
        Some(subject) => (subject, true),
        None => (subject, false),
    };
    let (name, mask) = match subject.split_once(" & ") {
        Some((name, mask)) => (name, Some(bits(mask, constants)?)),
        None => (subject, None),
    };
    let (argument, width) = argument(name, args)?;
    let mask = match (mask, width) {
        (Some(mask), _) => u64::from(mask),
        (None, "U32") => u64::from(u32::MAX),
        (None, _) => u64::MAX,
    };
    let values = values
        .split(',')
        .map(|value| bits(value, constants))
        .collect::<Result<Vec<u32>, String>>()?;
    if let Some(value) = values.iter().find(|value| u64::from(**value) & !mask != 0) {
        return Err(format!("\"{text}\": {value:#x} has bits outside the mask, so never equals"));
    }
    Ok(format!(
        "Test {{ argument: {argument}, width: Width::{width}, mask: {mask:#x}, \
         negated: {negated}, values: &{values:?} }},"
    ))
}

/// Where the argument stands, and how much of it the kernel reads.
fn argument(name: &str, args: &[String]) -> Result<(usize, &'static str), String> {
    for (place, declared) in args.iter().enumerate() {
        match declared.split_once(':') {
            Some((known, "u32")) if known == name => return Ok((place, "U32")),
            Some((known, "u64")) if known == name => return Ok((place, "U64")),
            _ => {}
        }
    }
    Err(format!("`args` does not give {name} as u32 or u64"))
}

/// A number, or names of constants joined by `|`.
fn bits(text: &str, constants: &Constants) -> Result<u32, String> {
    let mut all = 0;
    for part in text.trim().split('|') {
        all |= match part.parse() {
            Ok(number) => number,
            Err(_) => *constants
                .get(part)
                .ok_or_else(|| format!("constants.toml does not define {part}"))?,
        };
    }
    Ok(all)
}

fn calls(table: &BTreeMap<usize, &str>, decisions: &Decisions) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    for (number, name) in table {
        let rules = decisions.get(*name).copied().unwrap_or_default();
        writeln!(out, "Call {{ number: {number}, name: {name:?}, rules: {rules:?} }},")?;
    }
    Ok(out)
}
