//! Languages are data: one small TOML file each. Three are built in; others are read from directories.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::grade;
use crate::model::error::SpecError;

/// How programs of one language are run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    pub name: String,
    /// Interpreters in order of preference: absolute paths, or names to look up on the PATH.
    pub commands: Vec<String>,
    /// What follows the interpreter; `{file}` stands for the program.
    pub args: Vec<String>,
    /// The program's name when the request gives none.
    pub file: String,
    #[serde(default)]
    pub extensions: Vec<String>,
    /// Interpreter names after `#!` that mean this language.
    #[serde(default)]
    pub shebangs: Vec<String>,
    /// Arguments that make the interpreter print its version.
    #[serde(default)]
    pub version: Vec<String>,
    /// A directory that the interpreter needs beside itself, if it is not found from its path.
    pub prefix: Option<PathBuf>,
    /// What to do when it is not installed.
    #[serde(default)]
    pub install: String,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// How it is kept ready before there is a program. Without this every run starts cold.
    pub warm: Option<Warm>,
}

/// How a language is kept ready.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Warm {
    pub how: How,
    /// What the interpreter runs to wait for its program: a file beside this one.
    #[serde(default)]
    pub script: String,
    /// What follows a zygote's interpreter, `modules` after that. `{text}` stands for the script itself.
    #[serde(default)]
    pub zygote: Vec<String>,
    /// What follows an interpreter that is started in its sandbox, `modules` after that. `{script}`
    /// stands for the path of the script there, `{file}` for the program's.
    #[serde(default)]
    pub start: Vec<String>,
    /// What is loaded before the program comes; what is not installed is left out.
    #[serde(default)]
    pub modules: Vec<String>,
    /// More variables while it loads them; the program does not see these.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The script, read.
    #[serde(skip)]
    pub text: String,
    /// A program of our own that a zygote has loaded when it comes: path and text.
    #[serde(skip)]
    pub(crate) program: Option<(String, &'static str)>,
}

/// What waits for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// A copy of a zygote; at strict, where nothing is shared, an interpreter that was started.
    Fork,
    /// An interpreter that was started.
    Start,
    /// A sandbox in which the interpreter is started when the program comes.
    Park,
}

/// An interpreter found on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The path as found: what is executed, so that `argv[0]`-based look-ups work.
    pub path: PathBuf,
    /// A directory outside the standard tree that it needs to work.
    pub prefix: Option<PathBuf>,
}

static BUILT_IN: [&str; 3] = [
    include_str!("languages/python.toml"),
    include_str!("languages/bash.toml"),
    include_str!("languages/node.toml"),
];

const PYTHON_SCRIPT: &str = include_str!("languages/python.py");

/// The scripts of the built-in ones.
static SCRIPTS: [(&str, &str); 2] =
    [("python.py", PYTHON_SCRIPT), ("node.cjs", include_str!("languages/node.cjs"))];

/// All languages known to an engine.
#[derive(Clone, Debug)]
pub struct Languages {
    all: Vec<Language>,
}

impl Languages {
    /// The built-in ones and those of `directories`; a later file replaces one of the same name.
    pub fn load(directories: &[PathBuf]) -> Result<Self, SpecError> {
        let mut languages = Self { all: Vec::new() };
        for text in BUILT_IN {
            languages.add(text, "built-in", None)?;
        }
        for directory in directories {
            languages.add_directory(directory)?;
        }
        Ok(languages)
    }

    fn add_directory(&mut self, directory: &Path) -> Result<(), SpecError> {
        let Ok(entries) = std::fs::read_dir(directory) else {
            return Ok(());
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension() == Some(OsStr::new("toml"))) {
            let text = std::fs::read_to_string(path).map_err(|error| {
                SpecError::new(path.display().to_string(), error.to_string().trim_end().to_owned())
            })?;
            self.add(&text, &path.display().to_string(), Some(directory))?;
        }
        Ok(())
    }

    fn add(&mut self, text: &str, origin: &str, directory: Option<&Path>) -> Result<(), SpecError> {
        let mut language: Language = toml::from_str(text).map_err(|error| {
            SpecError::new(
                format!("language file {origin}"),
                error.to_string().trim_end().to_owned(),
            )
        })?;
        if language.commands.is_empty() || language.name.is_empty() {
            let reason = "needs a name and at least one command";
            return Err(SpecError::new(format!("language file {origin}"), reason));
        }
        if let Some(warm) = language.warm.as_mut().filter(|warm| !warm.script.is_empty()) {
            warm.text = script(&warm.script, directory).map_err(|error| {
                let reason = format!("cannot read its script {}: {error}", warm.script);
                SpecError::new(format!("language file {origin}"), reason)
            })?;
            if warm.text == PYTHON_SCRIPT {
                warm.program = Some(grade::program());
            }
        }
        self.all.retain(|known| known.name != language.name);
        self.all.push(language);
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Language> {
        self.all.iter()
    }

    /// The language of that name.
    pub fn get(&self, name: &str) -> Result<&Language, SpecError> {
        self.all.iter().find(|language| language.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.all.iter().map(|one| one.name.as_str()).collect();
            SpecError::new(
                "language",
                format!(
                    "\"{name}\" is not known here: use {}, or add a language file",
                    known.join(", ")
                ),
            )
        })
    }

    /// The language of a file, by its extension or its `#!` line.
    pub fn detect(&self, path: Option<&Path>, code: &str) -> Result<&Language, SpecError> {
        let extension = path.and_then(Path::extension).and_then(OsStr::to_str);
        let by_extension = extension
            .and_then(|one| self.all.iter().find(|l| l.extensions.iter().any(|e| e == one)));
        let by_shebang = || {
            let name = shebang(code)?;
            self.all.iter().find(|language| language.shebangs.iter().any(|one| one == name))
        };
        by_extension.or_else(by_shebang).ok_or_else(|| {
            let what = path.map_or("the code".to_owned(), |path| path.display().to_string());
            SpecError::new(
                "language",
                format!(
                    "cannot be told from {what}: it has no known extension and no #! line; \
                     say --language python, bash or node"
                ),
            )
        })
    }
}

/// The interpreter's name in a `#!` line, without directory, `env` and version.
fn shebang(code: &str) -> Option<&str> {
    let line = code.lines().next()?.strip_prefix("#!")?;
    let mut words =
        line.split_ascii_whitespace().map(|word| word.rsplit('/').next().unwrap_or(word));
    let first = words.next()?;
    let name = if first == "env" { words.find(|word| !word.starts_with('-'))? } else { first };
    Some(name.trim_end_matches(|one: char| one.is_ascii_digit() || one == '.'))
        .filter(|short| !short.is_empty())
}

impl Language {
    /// The first interpreter that exists on this host.
    pub fn find(&self) -> Result<Interpreter, SpecError> {
        let found = self.commands.iter().find_map(|command| {
            if command.starts_with('/') {
                return executable(Path::new(command));
            }
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path).find_map(|dir| executable(&dir.join(command)))
        });
        let path = found.ok_or_else(|| {
            let hint = if self.install.is_empty() { "install it" } else { &self.install };
            let name = &self.name;
            SpecError::new("language", format!("{name} is not installed on this host: {hint}"))
        })?;
        let prefix = self.prefix.clone().or_else(|| prefix_of(&path));
        Ok(Interpreter { path, prefix })
    }
}

impl Language {
    /// What the interpreter says of its version. Runs it on the host, so only when asked for by people.
    pub fn probe_version(&self, interpreter: &Interpreter) -> Option<String> {
        let args: Vec<std::ffi::OsString> = self.version.iter().map(Into::into).collect();
        let output = belljar_sys::spawn::output(&interpreter.path, &args).ok()?;
        let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        let text = String::from_utf8_lossy(&text).into_owned();
        let word = text.lines().next()?.split_ascii_whitespace().find(|word| {
            word.trim_start_matches('v').starts_with(|one: char| one.is_ascii_digit())
        })?;
        Some(word.trim_start_matches('v').to_owned())
    }
}

fn executable(path: &Path) -> Option<PathBuf> {
    let metadata = std::fs::metadata(path).ok()?;
    let runs = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    // A script (a version manager's shim, say) would start another program that is not inside.
    let is_script = || {
        let mut start = [0; 2];
        let file = std::fs::File::open(path).ok();
        file.and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start).ok()).is_some()
            && &start == b"#!"
    };
    (runs && !is_script()).then(|| path.to_owned())
}

/// For an interpreter outside the standard tree: the directory above its `bin`.
fn prefix_of(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    if ["/usr", "/bin", "/sbin", "/lib"].iter().any(|standard| real.starts_with(standard)) {
        return None;
    }
    let directory = real.parent()?;
    let above = directory
        .parent()
        .filter(|above| directory.ends_with("bin") && above.components().count() > 2);
    Some(above.unwrap_or(directory).to_owned())
}

/// A file beside the language's own; the built-in ones are there for all.
fn script(name: &str, directory: Option<&Path>) -> std::io::Result<String> {
    let beside = directory.map(|directory| directory.join(name)).filter(|path| path.exists());
    let built_in = SCRIPTS.iter().find(|(known, _)| *known == name);
    match (beside, built_in) {
        (Some(path), _) => std::fs::read_to_string(path),
        (None, Some((_, text))) => Ok((*text).to_owned()),
        (None, None) => Err(std::io::ErrorKind::NotFound.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn languages() -> Languages {
        Languages::load(&[]).unwrap()
    }

    #[test]
    fn a_language_is_told_by_extension_then_by_shebang() {
        let all = languages();
        let detect = |path: &str, code: &str| {
            all.detect(Some(Path::new(path)), code).map(|one| one.name.clone())
        };
        assert_eq!(detect("a.py", "").unwrap(), "python");
        assert_eq!(detect("a.mjs", "").unwrap(), "node");
        assert_eq!(detect("tool", "#!/usr/bin/env -S python3.11 -u\n").unwrap(), "python");
        assert_eq!(detect("tool", "#!/bin/sh\n").unwrap(), "bash");
        assert!(detect("tool", "print(1)").unwrap_err().reason.contains("--language"));
    }

    #[test]
    fn a_language_file_adds_a_language_without_rust() {
        let directory = std::env::temp_dir().join(format!("belljar-lang-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let text = "name = \"perl\"\ncommands = [\"/usr/bin/perl\"]\nargs = [\"{file}\"]\n\
                    file = \"main.pl\"\nextensions = [\"pl\"]\n";
        std::fs::write(directory.join("perl.toml"), text).unwrap();
        let all = Languages::load(std::slice::from_ref(&directory)).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(all.detect(Some(Path::new("x.pl")), "").unwrap().name, "perl");
    }

    #[test]
    fn a_language_file_with_an_unknown_field_is_refused_by_name() {
        let mut all = languages();
        let error = all.add("name = \"x\"\ncolour = 1\n", "x.toml", None).unwrap_err();
        assert!(error.field.contains("x.toml") && error.reason.contains("colour"));
    }
}
