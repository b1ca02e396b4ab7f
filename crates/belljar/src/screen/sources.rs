//! Which texts of a run are code, and where they come from.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};

use crate::languages::Languages;
use crate::model::spec::{MAX_CODE_BYTES, Program, Source, Spec, WORKSPACE};

/// Texts of one run that are read.
const MAX_SOURCES: usize = 256;

/// One text, or why there is none.
#[derive(Clone, Debug)]
pub(crate) struct SourceText {
    /// As the request would name it.
    pub language: String,
    pub source: String,
    pub text: Result<String, String>,
}

/// Where a text lies before it is read.
#[derive(Clone, Debug)]
enum Place {
    Given(Vec<u8>),
    Host(PathBuf),
    /// A file of a workspace, which may be somebody else's: links do not lead out of it.
    Workspace(PathBuf, PathBuf),
}

/// The code of a run, not read yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(Vec<(String, String, Place)>);

impl Sources {
    /// The program itself, and the files beside it that are code of the same language.
    pub(crate) fn of(spec: &Spec, languages: &Languages) -> Self {
        let mut all = Vec::new();
        let language = match &spec.program {
            Program::Command { argv } => {
                let (language, text) = inline(argv).unzip();
                let text = text.map(|text: String| Place::Given(text.into_bytes()));
                all.extend(
                    language
                        .clone()
                        .zip(text)
                        .map(|(language, text)| (language, "command".to_owned(), text)),
                );
                language
            }
            Program::Code { language, path } => {
                let own = spec.workspace.as_ref().and_then(|workspace| {
                    let inside = path.strip_prefix(WORKSPACE).ok()?;
                    Some(Place::Workspace(workspace.path.clone(), inside.to_owned()))
                });
                let own = own.map(|place| (language.clone(), shown(path), place));
                all.extend(own);
                Some(language.clone())
            }
        };
        let Some(language) = language else { return Self(all) };
        let extensions = languages.get(&language).map(|one| one.extensions.as_slice());
        let extensions = extensions.unwrap_or_default();
        for file in &spec.placed {
            let main = matches!(&spec.program, Program::Code { path, .. } if *path == file.path);
            let extension = file.path.extension().and_then(|one| one.to_str());
            if main || extension.is_some_and(|one| extensions.iter().any(|known| known == one)) {
                let place = match &file.source {
                    Source::Given(contents) => Place::Given(contents.0.clone()),
                    Source::Host(path) => Place::Host(path.clone()),
                };
                all.push((language.clone(), shown(&file.path), place));
            }
        }
        Self(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads them, each no further than a program may be long.
    pub(crate) fn read(self) -> Vec<SourceText> {
        let more = self.0.len().saturating_sub(MAX_SOURCES);
        let mut texts: Vec<_> = self.0.into_iter().take(MAX_SOURCES).map(read_one).collect();
        if let Some(last) = texts.last_mut().filter(|_| more > 0) {
            last.text = Err(format!("and {more} more files are more than {MAX_SOURCES}"));
        }
        texts
    }
}

fn read_one((language, source, place): (String, String, Place)) -> SourceText {
    let bytes = match place {
        Place::Given(bytes) => Ok(bytes),
        Place::Host(path) => open(&path, FLAGS, Mode::empty()).and_then(read_file),
        Place::Workspace(top, inside) => {
            let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            open(&top, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .and_then(|top| openat2(&top, &inside, FLAGS, Mode::empty(), beneath))
                .and_then(read_file)
        }
    };
    let text = bytes.map_err(|errno| format!("cannot be read: {errno}")).and_then(|bytes| {
        if bytes.len() > MAX_CODE_BYTES {
            return Err(format!("is longer than {MAX_CODE_BYTES} bytes"));
        }
        String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())
    });
    SourceText { language, source, text }
}

/// Nothing waits: a pipe in a workspace is no file.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

fn read_file(file: OwnedFd) -> rustix::io::Result<Vec<u8>> {
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(rustix::io::Errno::INVAL);
    }
    let mut bytes = Vec::new();
    let read = File::from(file).take(MAX_CODE_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| {
        rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
    })?;
    Ok(bytes)
}

/// A path as its owner would write it.
fn shown(path: &Path) -> String {
    path.strip_prefix(WORKSPACE).unwrap_or(path).display().to_string()
}

/// The code in `bash -c CODE`, `python3 -c CODE`, `node -e CODE`.
fn inline(argv: &[String]) -> Option<(String, String)> {
    let program = argv.first()?.rsplit('/').next()?;
    let program = program.trim_end_matches(|one: char| one.is_ascii_digit() || one == '.');
    let (language, letters): (_, &[&str]) = match program {
        "bash" | "sh" | "dash" => ("bash", &["c"]),
        "python" | "pypy" => ("python", &["c"]),
        "node" | "nodejs" => ("node", &["e", "p", "-eval", "-print"]),
        _ => return None,
    };
    let mut words = argv[1..].iter();
    while let Some(word) = words.next() {
        let flag = word.strip_prefix('-')?;
        let long = flag.starts_with('-');
        let takes = letters.iter().any(|one| if long { flag == *one } else { flag.ends_with(one) });
        if takes {
            return Some((language.to_owned(), words.next()?.clone()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_in_a_command_is_found_behind_its_options() {
        let found = |argv: &[&str]| {
            let argv: Vec<String> = argv.iter().map(|one| (*one).to_owned()).collect();
            inline(&argv).map(|(language, code)| format!("{language}: {code}"))
        };
        assert_eq!(found(&["bash", "-c", "ls"]).as_deref(), Some("bash: ls"));
        assert_eq!(found(&["/bin/sh", "-e", "-xc", "ls"]).as_deref(), Some("bash: ls"));
        assert_eq!(found(&["python3.11", "-I", "-c", "1"]).as_deref(), Some("python: 1"));
        assert_eq!(found(&["node", "--eval", "1"]).as_deref(), Some("node: 1"));
        for other in [&["ls", "-c", "x"][..], &["bash", "file", "-c", "x"], &["bash", "-c"], &[]] {
            assert_eq!(found(other), None, "{other:?}");
        }
    }
}
