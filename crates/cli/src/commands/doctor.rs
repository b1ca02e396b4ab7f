//! `belljar doctor`: what this host keeps, what would mend the rest, and an attack on all of it.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

use belljar::attack::fixture::Fixture;
use belljar::attack::{Attempt, Category, Finding, Probe, judge, run_level};
use belljar::doctor::fixes::{self, Change, Fix, User};
use belljar::doctor::{Diagnosis, LevelState, diagnose};
use belljar::{Config, Engine, Error, Level};

use crate::args::Doctor;
use crate::render;

pub(crate) async fn doctor(args: Doctor) -> u8 {
    let result = if args.fix {
        fix(&args)
    } else if args.attack {
        attack(&args).await
    } else {
        examine(&args).await
    };
    result.unwrap_or_else(|error| render::trouble(&error.to_string(), render::error_code(&error)))
}

async fn examine(args: &Doctor) -> Result<u8, Error> {
    let engine = Engine::open(Config::default())?;
    let diagnosis = diagnose(&engine).await;
    let code = u8::from(!diagnosis.standard_works());
    if args.json {
        return Ok(render::json(&diagnosis).max(code));
    }
    render::line(&describe(&diagnosis));
    Ok(code)
}

fn describe(diagnosis: &Diagnosis) -> String {
    let Diagnosis { belljar, kernel, uid, levels, host, languages } = diagnosis;
    let mut text = format!("belljar {belljar} on Linux {kernel}, as uid {uid}\n\nlevels\n");
    for (index, one) in levels.iter().enumerate() {
        text += &describe_level(one, &levels[..index]);
    }
    text += "\nhost\n";
    for fact in host {
        // What helps stands at the lowest level that does not work without it.
        let needed = match &fact.fix {
            Some(_) => format!(" (needed from {})", fact.needed_from),
            None => String::new(),
        };
        text += &format!("  {:<16} {}{needed}\n", fact.name, render::visible(&fact.found));
    }
    text += "\nlanguages\n";
    for fact in languages {
        text += &format!("  {:<16} {}\n", fact.name, render::visible(&fact.found));
        if let Some(fix) = &fact.fix {
            text += &format!("  {:<16} fix: {fix}\n", "");
        }
    }
    text.trim_end().to_owned()
}

/// One level; what was said at a lower one is not said again.
fn describe_level(one: &LevelState, lower: &[LevelState]) -> String {
    let default = if one.level == Level::default() { " (default)" } else { "" };
    let state = if one.works { "works" } else { "does not work here" };
    let mut text = format!("  {:<9} {state}{default}\n", one.level.name());
    let mut line = |words: &str| text += &format!("            {words}\n");
    let problem = one.problem.as_ref();
    let same = lower.iter().find(|below| problem.is_some() && below.problem.as_ref() == problem);
    match (problem, same) {
        (Some(_), Some(below)) => line(&format!("for the same reason as {}", below.level)),
        (Some(problem), None) => line(&render::visible(problem)),
        (None, _) => {}
    }
    let first_said = |fix| lower.iter().find(|below| below.fixes.contains(fix));
    let mut above: Vec<Level> =
        one.fixes.iter().filter_map(first_said).map(|below| below.level).collect();
    above.dedup();
    for level in above.iter().filter(|level| same.is_none_or(|below| below.level != **level)) {
        line(&format!("fix: as for {level}"));
    }
    for fix in one.fixes.iter().filter(|fix| first_said(fix).is_none()) {
        line(&format!("fix: {fix}"));
    }
    text
}

/// One level's answers to every probe.
struct Score {
    level: Level,
    answers: Vec<(&'static Probe, Attempt, Finding)>,
}

impl Score {
    fn count(&self, category: Option<Category>, finding: Finding) -> usize {
        let counted = self.answers.iter().filter(|(probe, _, found)| {
            *found == finding && category.is_none_or(|one| one == probe.category)
        });
        counted.count()
    }
}

async fn attack(args: &Doctor) -> Result<u8, Error> {
    let engine = Engine::open(Config::default())?;
    let chosen = if args.level.is_empty() { &Level::ALL[..4] } else { &args.level };
    let broken = |source| Error::Backend { operation: "prepare the attack", source };
    let prepared = Fixture::prepare().map_err(broken)?;
    let mut scores = Vec::new();
    let mut unable = Vec::new();
    for level in chosen {
        if io::stderr().is_terminal() {
            render::trouble(&format!("attacking level {level} …"), 0);
        }
        match run_level(&engine, *level, &prepared).await {
            Ok(attempts) => {
                let judged = attempts.into_iter().map(|(probe, attempt)| {
                    let finding = judge(probe, level.name(), &attempt);
                    (probe, attempt, finding)
                });
                scores.push(Score { level: *level, answers: judged.collect() });
            }
            Err(error) => unable.push((*level, error.to_string())),
        }
    }
    let escaped: usize = scores.iter().map(|one| one.count(None, Finding::Escaped)).sum();
    if args.json {
        render::json(&scores_json(&scores, &unable));
    } else {
        render::line(&table(&scores, &unable));
    }
    Ok(u8::from(escaped > 0 || scores.is_empty()))
}

fn table(scores: &[Score], unable: &[(Level, String)]) -> String {
    let mut text = format!("{:<12}", "probes");
    for score in scores {
        text += &format!("{:>28}", score.level.name());
    }
    text += &format!("\n{:<12}", "");
    for _ in scores {
        text += &format!("{:>28}", "contained escaped  n/a");
    }
    let categories = Category::ALL.iter().map(|one| Some(*one)).chain([None]);
    for category in categories {
        let name = category.map_or("total".to_owned(), |one| format!("{one:?}").to_lowercase());
        text += &format!("\n{name:<12}");
        for score in scores {
            let count = |finding| score.count(category, finding);
            let (contained, escaped, other) =
                (count(Finding::Contained), count(Finding::Escaped), count(Finding::NotApplicable));
            text += &format!("{contained:>15} {escaped:>7} {other:>4}");
        }
    }
    for score in scores {
        let escaped = score.answers.iter().filter(|(_, _, found)| *found == Finding::Escaped);
        for (probe, attempt, _) in escaped {
            let level = score.level;
            text += &format!("\nESCAPED at {level}: {} ({}): {attempt:?}", probe.name, probe.what);
        }
    }
    for (level, why) in unable {
        text += &format!("\nnot attacked: {level} does not work here: {}", render::visible(why));
    }
    text + "\n\nn/a: the level does not promise it, or this host lacks what the probe needs"
}

fn scores_json(scores: &[Score], unable: &[(Level, String)]) -> serde_json::Value {
    let levels = scores.iter().map(|score| {
        let probes: Vec<_> = score
            .answers
            .iter()
            .map(|(probe, attempt, finding)| {
                serde_json::json!({
                    "probe": probe.name,
                    "category": probe.category,
                    "layer": probe.layer,
                    "attempt": attempt,
                    "finding": finding,
                })
            })
            .collect();
        serde_json::json!({
            "level": score.level,
            "contained": score.count(None, Finding::Contained),
            "escaped": score.count(None, Finding::Escaped),
            "not_applicable": score.count(None, Finding::NotApplicable),
            "probes": probes,
        })
    });
    let failed: Vec<_> = unable
        .iter()
        .map(|(level, why)| serde_json::json!({ "level": level, "problem": why }))
        .collect();
    serde_json::json!({ "levels": levels.collect::<Vec<_>>(), "not_attacked": failed })
}

fn fix(args: &Doctor) -> Result<u8, Error> {
    let wrong = |field: &str, reason: &str| Error::from(belljar::SpecError::new(field, reason));
    if !rustix::process::geteuid().is_root() {
        return Err(wrong(
            "fix",
            "writes system files: run it as root (sudo belljar doctor --fix)",
        ));
    }
    let user = match &args.user {
        Some(name) => {
            let ids = ids_of(name)
                .ok_or_else(|| wrong("user", &format!("{name} is not in /etc/passwd")))?;
            Some(ids)
        }
        None => None,
    };
    let broken = |source| Error::Backend { operation: "find this binary", source };
    let binary = std::env::current_exe().map_err(broken)?;
    let wanted = fixes::find(Path::new("/"), &binary, user);
    if wanted.is_empty() {
        let more = if user.is_none() { " (to delegate cgroups, say --user NAME)" } else { "" };
        render::line(&format!("nothing to fix{more}"));
        return Ok(0);
    }
    for one in &wanted {
        render::line(&show(one));
        if !args.yes && !confirmed() {
            render::line("left as it is\n");
            continue;
        }
        fixes::apply(one)
            .map_err(|source| Error::Backend { operation: "apply the fix", source })?;
        render::line("done\n");
    }
    Ok(0)
}

/// A fix as it will be made, every byte of it.
fn show(fix: &Fix) -> String {
    let what = match &fix.change {
        Change::File { path, contents, mode, then } => {
            let indented: String = contents.lines().map(|line| format!("    | {line}\n")).collect();
            let commands: Vec<String> =
                then.iter().map(|command| format!("  then run: {}", command.join(" "))).collect();
            let commands = commands.join("\n");
            format!("  write {} (mode {mode:o})\n{indented}{commands}", path.display())
        }
        Change::Delegate { directory, uid, gid } => {
            format!("  make {} and give it to {uid}:{gid}", directory.display())
        }
    };
    format!("{}\n{what}", fix.why)
}

fn confirmed() -> bool {
    let mut err = io::stderr().lock();
    // If the question cannot be shown, the answer below is taken all the same; no input means no.
    write!(err, "go on? [y/N] ").ok();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).is_ok() && answer.trim().eq_ignore_ascii_case("y")
}

fn ids_of(name: &str) -> Option<User> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let found = fields.first() == Some(&name);
        found.then(|| {
            Some(User { uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()? })
        })?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar::doctor::Fact;

    fn level(level: Level, problem: Option<&str>, fixes: &[&str]) -> LevelState {
        LevelState {
            level,
            works: problem.is_none(),
            problem: problem.map(ToOwned::to_owned),
            fixes: fixes.iter().map(|fix| (*fix).to_owned()).collect(),
        }
    }

    fn fact(name: &str, needed_from: Level, fix: Option<&str>) -> Fact {
        let found = if fix.is_some() { "absent" } else { "there" }.to_owned();
        Fact { name: name.to_owned(), found, needed_from, fix: fix.map(ToOwned::to_owned) }
    }

    #[test]
    fn each_fix_is_said_once_at_the_lowest_level_that_needs_it() {
        let shown = describe(&Diagnosis {
            belljar: "1.2.3".to_owned(),
            kernel: "6.1".to_owned(),
            uid: 1000,
            levels: vec![
                level(Level::None, None, &[]),
                level(Level::Basic, None, &[]),
                level(Level::Standard, Some("needs a cgroup"), &["delegate"]),
                level(Level::Strict, Some("needs an id of its own"), &["delegate", "usermod"]),
                level(Level::Maximum, Some("needs a second kernel; use --level strict"), &[]),
            ],
            host: vec![
                fact("landlock", Level::Basic, None),
                fact("cgroups", Level::Standard, Some("delegate")),
                fact("subordinate ids", Level::Strict, Some("usermod")),
            ],
            languages: vec![fact("node", Level::None, Some("apt-get install nodejs"))],
        });
        let expected = "\
belljar 1.2.3 on Linux 6.1, as uid 1000

levels
  none      works
  basic     works
  standard  does not work here (default)
            needs a cgroup
            fix: delegate
  strict    does not work here
            needs an id of its own
            fix: as for standard
            fix: usermod
  maximum   does not work here
            needs a second kernel; use --level strict

host
  landlock         there
  cgroups          absent (needed from standard)
  subordinate ids  absent (needed from strict)

languages
  node             absent
                   fix: apt-get install nodejs";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_reason_that_was_said_is_not_said_again() {
        let lower = [level(Level::Standard, Some("needs a cgroup"), &["delegate"])];
        let shown =
            describe_level(&level(Level::Strict, Some("needs a cgroup"), &["delegate"]), &lower);
        assert_eq!(
            shown,
            "  strict    does not work here\n            for the same reason as standard\n"
        );
    }
}
