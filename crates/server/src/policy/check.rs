//! Whether what was asked may be. A limit above its ceiling is refused by the rule's name; one that was left out takes
//! the usual value or the ceiling, whichever is less. Nothing that was asked for is changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar::sandbox::SandboxRequest;
use belljar::{Level, LimitsRequest, RunRequest, ScreenMode};

use super::rules::Rules;
use crate::problem::Problem;

/// A section that applies, by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    pub(crate) rules: &'a Rules,
}

/// The parts that runs, grades and sandboxes have in common.
struct Common<'a> {
    /// What stands before a field's name: `requests[3].`.
    above: &'a str,
    level: Level,
    limits: &'a mut LimitsRequest,
    allow_missing: &'a [String],
    allow_syscalls: &'a [String],
}

impl Section<'_> {
    pub(super) fn refuse(&self, rule: &str, field: &str, why: &str) -> Problem {
        let rule = format!("{}.{rule}", self.name);
        Problem::ruled(&rule, field, format!("{field} {why} (rule {rule})"))
    }

    pub(crate) fn check_run(&self, asked: &mut RunRequest, above: &str) -> Result<(), Problem> {
        self.common(Common {
            above,
            level: asked.level,
            limits: &mut asked.limits,
            allow_missing: &asked.allow_missing,
            allow_syscalls: &asked.allow_syscalls,
        })?;
        let is_code = asked.command.is_none();
        self.language(asked.language.as_deref(), is_code, above)?;
        self.screen(&mut asked.screen);
        Ok(())
    }

    /// The level, the limits and the language of anything that is run.
    pub(crate) fn check_parts(
        &self,
        level: Level,
        limits: &mut LimitsRequest,
        language: Option<&str>,
    ) -> Result<(), Problem> {
        let none: &[String] = &[];
        self.common(Common {
            above: "",
            level,
            limits,
            allow_missing: none,
            allow_syscalls: none,
        })?;
        self.language(language, true, "")
    }

    pub(crate) fn screen(&self, mode: &mut ScreenMode) {
        *mode = (*mode).max(self.rules.screen.unwrap_or(ScreenMode::Off));
    }

    fn common(&self, asked: Common<'_>) -> Result<(), Problem> {
        let Common { above, level, limits, allow_missing, allow_syscalls } = asked;
        let rules = self.rules;
        if let Some(least) = rules.least_level.filter(|least| level < *least) {
            let why = format!("is {level}, below {least}");
            return Err(self.refuse("least_level", &format!("{above}level"), &why));
        }
        let usual =
            LimitsRequest::default().resolve().map_err(|error| Problem::from(&error.into()))?;
        for (name, most, usual, asked) in ceilings(&rules.limits, &usual, limits) {
            let Some(most) = most else { continue };
            match *asked {
                Some(value) if value > most => {
                    let why = format!("is {value}, above {most}: ask for no more");
                    let (rule, field) = (format!("limits.{name}"), format!("{above}limits.{name}"));
                    return Err(self.refuse(&rule, &field, &why));
                }
                None if usual > most => *asked = Some(most),
                Some(_) | None => {}
            }
        }
        let strict: &[String] = &[];
        let missing = match (&rules.allow_missing, rules.least_level) {
            (Some(listed), _) => Some(listed.as_slice()),
            (None, Some(_)) => Some(strict),
            (None, None) => None,
        };
        self.listed(missing, allow_missing, "allow_missing", above)?;
        self.listed(rules.allow_syscalls.as_deref(), allow_syscalls, "allow_syscalls", above)
    }

    fn listed(
        &self,
        may: Option<&[String]>,
        asked: &[String],
        field: &str,
        above: &str,
    ) -> Result<(), Problem> {
        let Some(may) = may else { return Ok(()) };
        match asked.iter().find(|one| !may.contains(one)) {
            None => Ok(()),
            Some(one) => {
                let why = format!("has {one:?}, and there may be {}", words(may));
                Err(self.refuse(field, &format!("{above}{field}"), &why))
            }
        }
    }

    /// Whether code in a language may run, or a command.
    pub(crate) fn language(
        &self,
        language: Option<&str>,
        is_code: bool,
        above: &str,
    ) -> Result<(), Problem> {
        let Some(may) = &self.rules.languages else { return Ok(()) };
        let (field, asked) = match (is_code, language) {
            (false, _) => ("command", "command"),
            (true, Some(language)) => ("language", language),
            // Told by a file's name or first line: not before it is read, so it must be said.
            (true, None) => ("language", ""),
        };
        if may.iter().any(|one| one == asked) {
            return Ok(());
        }
        let why = match (is_code, asked) {
            (false, _) => format!("is not among {}", words(may)),
            (true, "") => format!("must be said: one of {}", words(may)),
            (true, asked) => format!("is {asked:?}, and there may be {}", words(may)),
        };
        Err(self.refuse("languages", &format!("{above}{field}"), &why))
    }

    pub(crate) fn check_sandbox(&self, asked: &mut SandboxRequest) -> Result<(), Problem> {
        self.common(Common {
            above: "",
            level: asked.level,
            limits: &mut asked.limits,
            allow_missing: &asked.allow_missing,
            allow_syscalls: &asked.allow_syscalls,
        })?;
        let image = asked.image.as_deref().unwrap_or("host");
        if let Some(may) =
            self.rules.images.as_ref().filter(|may| !may.iter().any(|one| one == image))
        {
            let why = format!("is {image:?}, and there may be {}", words(may));
            return Err(self.refuse("images", "image", &why));
        }
        if let Some(longest) = self.rules.retention {
            let most = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
            match asked.ttl_ms {
                Some(ttl) if ttl > most => {
                    let why = format!("is {ttl}, above {most}: ask for no more");
                    return Err(self.refuse("retention", "ttl_ms", &why));
                }
                None => asked.ttl_ms = Some(most),
                Some(_) => {}
            }
        }
        self.write_paths(&mut asked.write_paths)
    }

    fn write_paths(&self, asked: &mut Vec<PathBuf>) -> Result<(), Problem> {
        let Some(may) = &self.rules.write_paths else { return Ok(()) };
        if asked.is_empty() {
            asked.clone_from(may);
            return Ok(());
        }
        match asked.iter().find(|one| !is_within(one, may)) {
            None => Ok(()),
            Some(one) => {
                let may: Vec<String> = may.iter().map(|one| one.display().to_string()).collect();
                let why = format!("has {}, and there may be {}", one.display(), words(&may));
                Err(self.refuse("write_paths", "write_paths", &why))
            }
        }
    }

    /// Whether a host directory, by its real path, may be a workspace. Nothing where no rule says so.
    pub(crate) fn workspace(&self, real: &Path) -> Option<Result<(), Problem>> {
        let may = self.rules.workspaces.as_ref()?;
        if is_within(real, may) {
            return Some(Ok(()));
        }
        let why = "is in none of the directories that may be workspaces";
        Some(Err(self.refuse("workspaces", "workspace.path", why)))
    }

    /// Whether a program may take so long as this field says.
    pub(crate) fn time(&self, asked: Option<u64>, field: &str) -> Result<(), Problem> {
        match (asked, self.rules.limits.wall_ms) {
            (Some(asked), Some(most)) if asked > most => {
                let why = format!("is {asked}, above {most}: ask for no more");
                Err(self.refuse("limits.wall_ms", field, &why))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a path is one of these or below one. By its parts, so that nothing climbs out.
fn is_within(path: &Path, may: &[PathBuf]) -> bool {
    let climbs = path.components().any(|part| part == std::path::Component::ParentDir);
    !climbs && may.iter().any(|one| path.starts_with(one))
}

pub(super) fn words(all: &[String]) -> String {
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Which sections of a file are those of these labels.
pub(crate) fn labelled<'a>(
    sections: &'a BTreeMap<String, Rules>,
    labels: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = (&'a str, &'a Rules)> {
    sections.iter().filter_map(move |(section, rules)| {
        let applies = match section.split_once('=') {
            Some((name, value)) => labels.get(name).is_some_and(|found| found == value),
            None => labels.contains_key(section),
        };
        applies.then_some((section.as_str(), rules))
    })
}

/// Each limit: its name, its ceiling, its usual value, and where the asked one stands.
fn ceilings<'a>(
    most: &LimitsRequest,
    usual: &belljar::Limits,
    asked: &'a mut LimitsRequest,
) -> [(&'static str, Option<u64>, u64, &'a mut Option<u64>); 11] {
    [
        ("wall_ms", most.wall_ms, usual.wall_ms, &mut asked.wall_ms),
        ("cpu_ms", most.cpu_ms, usual.cpu_ms, &mut asked.cpu_ms),
        ("millicpus", most.millicpus, usual.millicpus, &mut asked.millicpus),
        ("memory_bytes", most.memory_bytes, usual.memory_bytes, &mut asked.memory_bytes),
        ("processes", most.processes, usual.processes, &mut asked.processes),
        ("disk_bytes", most.disk_bytes, usual.disk_bytes, &mut asked.disk_bytes),
        ("inodes", most.inodes, usual.inodes, &mut asked.inodes),
        ("open_files", most.open_files, usual.open_files, &mut asked.open_files),
        ("file_bytes", most.file_bytes, usual.file_bytes, &mut asked.file_bytes),
        ("output_bytes", most.output_bytes, usual.output_bytes, &mut asked.output_bytes),
        (
            "output_total_bytes",
            most.output_total_bytes,
            usual.output_total_bytes,
            &mut asked.output_total_bytes,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        super::super::rules::PolicyFile::parse(&format!("[keys.ci]\n{text}"))
            .unwrap()
            .keys
            .remove("ci")
            .unwrap()
    }

    fn refused(text: &str, mut asked: RunRequest) -> Option<(String, String)> {
        let rules = rules(text);
        let section = Section { name: "keys.ci", rules: &rules };
        let problem = section.check_run(&mut asked, "").err()?;
        assert_eq!((problem.status, &*problem.kind), (403, "policy"));
        let rule = problem.refusal.as_ref().unwrap().rule.clone();
        assert!(problem.detail.contains(&rule), "{}", problem.detail);
        Some((rule, problem.field.as_deref().unwrap().to_owned()))
    }

    fn python() -> RunRequest {
        RunRequest::code("python", "1")
    }

    #[test]
    fn every_limit_has_its_ceiling() {
        let names = [
            "wall_ms",
            "cpu_ms",
            "millicpus",
            "memory_bytes",
            "processes",
            "disk_bytes",
            "inodes",
            "open_files",
            "file_bytes",
            "output_bytes",
            "output_total_bytes",
        ];
        for name in names {
            let text = format!("limits = {{ {name} = 7 }}");
            let mut above = python();
            above.limits = serde_json::from_value(serde_json::json!({ name: 8 })).unwrap();
            let told = refused(&text, above.clone()).unwrap();
            assert_eq!(told, (format!("keys.ci.limits.{name}"), format!("limits.{name}")));
            above.limits = serde_json::from_value(serde_json::json!({ name: 7 })).unwrap();
            assert_eq!(refused(&text, above), None);
            // Left out it is the ceiling, as the usual value is above.
            let (rules, mut left_out) = (rules(&text), python());
            Section { name: "x", rules: &rules }.check_run(&mut left_out, "").unwrap();
            assert_eq!(serde_json::to_value(&left_out.limits).unwrap()[name], 7);
        }
    }

    #[test]
    fn a_ceiling_above_the_usual_value_changes_nothing() {
        let (rules, mut asked) = (rules("limits = { wall_ms = 99999999 }"), python());
        Section { name: "x", rules: &rules }.check_run(&mut asked, "").unwrap();
        assert_eq!(asked, python());
    }

    #[test]
    fn levels_languages_and_lists_are_kept() {
        let basic = RunRequest { level: Level::Basic, ..python() };
        let text = "least_level = \"standard\"";
        assert_eq!(refused(text, basic).unwrap().0, "keys.ci.least_level");
        assert_eq!(refused(text, python()), None);
        let missing = RunRequest { allow_missing: vec!["cgroup".into()], ..python() };
        assert_eq!(refused(text, missing.clone()).unwrap().0, "keys.ci.allow_missing");
        assert_eq!(refused(&format!("{text}\nallow_missing = [\"cgroup\"]"), missing), None);
        let text = "languages = [\"bash\"]";
        assert_eq!(refused(text, python()).unwrap().1, "language");
        assert_eq!(refused(text, RunRequest::code("bash", "1")), None);
        assert_eq!(refused(text, RunRequest::command(["ls"])).unwrap().1, "command");
        assert_eq!(refused("languages = [\"command\"]", RunRequest::command(["ls"])), None);
        let unsaid = RunRequest { language: None, ..python() };
        assert_eq!(refused(text, unsaid).unwrap().1, "language");
    }

    #[test]
    fn paths_are_kept_by_their_parts() {
        let may = [PathBuf::from("/srv/a")];
        for (path, within) in
            [("/srv/a", true), ("/srv/a/b", true), ("/srv/ab", false), ("/srv/a/../b", false)]
        {
            assert_eq!(is_within(Path::new(path), &may), within, "{path}");
        }
    }

    #[test]
    fn sections_of_labels_apply_by_name_or_value() {
        let file = "[labels.team]\n[labels.\"team=red\"]\n[labels.\"team=blue\"]\n";
        let file = super::super::rules::PolicyFile::parse(file).unwrap();
        let labels = [("team".to_owned(), "red".to_owned())].into();
        let found: Vec<&str> = labelled(&file.labels, &labels).map(|(name, _)| name).collect();
        assert_eq!(found, ["team", "team=red"]);
    }
}
