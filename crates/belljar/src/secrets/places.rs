//! Which names a sandbox may ask for, and where each leads.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Secret, SecretSource, SecretSources, SecretStore};
use crate::model::error::SpecError;
use crate::model::secret::{SecretMode, SecretRequest, check_name};

/// Names another file of sources, in place of the usual ones.
const VARIABLE: &str = "BELLJAR_SECRETS";
const FILE: &str = "secrets.toml";
/// A file of descriptions; what is longer is another file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// A decoy has so many random letters.
const DECOY_LETTERS: usize = 40;

/// Where names lead: files that describe sources, and the store of a state directory. Read anew each time, so a change
/// counts for the next program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretPlaces {
    /// TOML files with a table for each name; later ones win.
    pub files: Vec<PathBuf>,
    /// The state directory whose store has the rest.
    pub state: Option<PathBuf>,
}

impl Default for SecretPlaces {
    /// `$BELLJAR_SECRETS`; else `/etc/belljar/secrets.toml` and the user's own `belljar/secrets.toml`. No store.
    fn default() -> Self {
        if let Some(file) = std::env::var_os(VARIABLE).filter(|file| !file.is_empty()) {
            return Self { files: vec![file.into()], state: None };
        }
        let home = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
        let mut files = vec![PathBuf::from("/etc/belljar").join(FILE)];
        files.extend(home.map(|home| home.join("belljar").join(FILE)));
        Self { files, state: None }
    }
}

/// A secret with its value, for one program.
#[derive(Clone)]
pub struct Given {
    pub variable: String,
    pub mode: SecretMode,
    pub value: Secret,
    /// Values that it had before, which may still be about.
    pub older: Vec<Secret>,
    /// Headers that it may stand in besides the usual ones.
    pub headers: Vec<String>,
}

impl fmt::Debug for Given {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Given({}, {:?})", self.variable, self.mode)
    }
}

impl Given {
    /// What must be hidden because of it.
    pub fn hidden(&self) -> impl Iterator<Item = &str> {
        let shown = self.mode == SecretMode::Canary;
        std::iter::once(&self.value).chain(&self.older).filter(move |_| !shown).map(Secret::reveal)
    }
}

impl SecretPlaces {
    /// The sources that the files describe.
    pub fn sources(&self) -> Result<SecretSources, SpecError> {
        let mut all = SecretSources::new();
        for path in &self.files {
            all.extend(read(path)?);
        }
        Ok(all)
    }

    /// The store, where there is a state directory.
    pub fn store(&self) -> Option<SecretStore> {
        self.state.as_deref().map(SecretStore::in_state)
    }

    /// The values of all that is asked for, now. Waits for commands, so it is nothing for a thread that must not wait.
    pub fn resolve(&self, requests: &[SecretRequest]) -> Result<Vec<Given>, SpecError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        super::protect_memory();
        let sources = self.sources()?;
        let store = self.store();
        requests.iter().map(|request| self.find(request, &sources, store.as_ref())).collect()
    }

    fn find(
        &self,
        request: &SecretRequest,
        sources: &SecretSources,
        store: Option<&SecretStore>,
    ) -> Result<Given, SpecError> {
        let (variable, mode) = (request.variable(), request.mode());
        if mode == SecretMode::Canary {
            let value = decoy()?;
            return Ok(Given { variable, mode, value, older: Vec::new(), headers: Vec::new() });
        }
        let name = &request.name;
        let source = sources.get(name);
        source.map_or(Ok(()), |source| source.check_request(request))?;
        let headers = source.map(|source| source.headers.clone()).unwrap_or_default();
        let in_store = match source {
            None => name,
            Some(SecretSource { store: Some(other), .. }) => other,
            Some(source) => {
                let field = format!("secrets.{name}");
                let value = source.resolve_as(&field, Secret::for_program)?;
                return Ok(Given { variable, mode, value, older: Vec::new(), headers });
            }
        };
        let wrong = |reason: String| SpecError::new("secrets", reason);
        let kept = store.map(|store| store.get(in_store)).transpose();
        let kept = kept.map_err(|why| wrong(format!("has {name}, and {why}")))?.flatten();
        let unknown = || {
            let files: Vec<String> =
                self.files.iter().map(|one| one.display().to_string()).collect();
            wrong(format!(
                "has {name}, which nobody here knows: belljar secret set {in_store}, or a table [{name}] in {}",
                files.join(" or ")
            ))
        };
        let mut kept = kept.ok_or_else(unknown)?.into_iter();
        let value = kept.next().ok_or_else(unknown)?;
        Ok(Given { variable, mode, value, older: kept.collect(), headers })
    }
}

/// One file of sources, if it is there. It names programs that are started, so nobody else may have written it.
fn read(path: &Path) -> Result<SecretSources, SpecError> {
    let wrong = |reason: String| SpecError::new("secrets", format!("{}: {reason}", path.display()));
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(SecretSources::new());
        }
        opened => opened.map_err(|error| wrong(error.to_string()))?,
    };
    let status = file.metadata().map_err(|error| wrong(error.to_string()))?;
    let own = [0, rustix::process::geteuid().as_raw()];
    if !own.contains(&status.uid()) || status.mode() & 0o022 != 0 {
        let mode = status.mode() & 0o7777;
        let reason =
            format!("others may write it (mode {mode:04o}): it must be yours, chmod go-w it");
        return Err(wrong(reason));
    }
    let mut text = String::new();
    let read = file.take(MAX_FILE_BYTES).read_to_string(&mut text);
    read.map_err(|error| wrong(error.to_string()))?;
    let mut sources: SecretSources =
        toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
    let base = path.parent().unwrap_or(Path::new("/"));
    for (name, source) in &mut sources {
        check_name(name).map_err(wrong)?;
        source.check(&format!("secrets.{name}"))?;
        source.from_directory(base).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(sources)
}

/// A value that nobody has, and that looks like a key.
fn decoy() -> Result<Secret, SpecError> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789AZ";
    let mut random = [0u8; DECOY_LETTERS];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| SpecError::new("secrets", format!("cannot be made up: {errno}")))?;
    let letters = random.iter().map(|byte| char::from(LETTERS[usize::from(byte % 64)]));
    Ok(Secret(letters.collect()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("belljar-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
            Self(path)
        }

        fn write(&self, text: &str) {
            std::fs::write(self.0.join(FILE), text).unwrap();
            self.set_mode(0o600);
        }

        fn set_mode(&self, mode: u32) {
            std::fs::set_permissions(self.0.join(FILE), PermissionsExt::from_mode(mode)).unwrap();
        }

        fn places(&self) -> SecretPlaces {
            SecretPlaces { files: vec![self.0.join(FILE)], state: Some(self.0.clone()) }
        }

        fn ask(&self, text: &str) -> Result<Given, SpecError> {
            let mut given = self.places().resolve(&[text.parse().unwrap()])?;
            Ok(given.remove(0))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_name_leads_to_its_source_or_to_the_store() {
        let place = Place::new("places");
        place
            .write("[a]\nenv = \"CARGO_PKG_NAME\"\n[b]\nfile = \"lines\"\n[c]\nstore = \"kept\"\n");
        std::fs::write(place.0.join("lines"), "l1\nl2\n").unwrap();
        let own = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(place.0.join("lines"), own).unwrap();
        assert_eq!(place.ask("a").unwrap().value.reveal(), "belljar");
        assert_eq!(place.ask("b").unwrap().value.reveal(), "l1\nl2");
        let store = place.places().store().unwrap();
        store.set("kept", Secret::for_program(b"first-value".to_vec()).unwrap()).unwrap();
        store.set("kept", Secret::for_program(b"second-value".to_vec()).unwrap()).unwrap();
        for name in ["c", "kept"] {
            let given = place.ask(name).unwrap();
            assert_eq!(given.value.reveal(), "second-value");
            let hidden: Vec<&str> = given.hidden().collect();
            assert_eq!(hidden, ["second-value", "first-value"], "the old one may still be about");
        }
        let unknown = place.ask("none").unwrap_err();
        assert!(unknown.reason.contains("belljar secret set none"), "{unknown}");
        let decoys = [place.ask("x=canary:X").unwrap(), place.ask("x=canary:X").unwrap()];
        assert_ne!(decoys[0].value.reveal(), decoys[1].value.reveal());
        assert_eq!((decoys[0].value.reveal().len(), decoys[0].hidden().count()), (40, 0));
    }

    #[test]
    fn a_file_that_others_may_write_or_that_is_wrong_is_refused() {
        let place = Place::new("sources");
        place.write("[a]\nenv = \"CARGO_PKG_NAME\"\n");
        assert!(place.ask("a").is_ok());
        place.set_mode(0o620);
        assert!(place.ask("a").unwrap_err().reason.contains("chmod go-w"));
        for (text, words) in [
            ("[a]\nvalue = \"s3cr3t\"\n", "unknown field"),
            ("[a]\n", "must say one of"),
            ("[\"a b\"]\nenv = \"X\"\n", "a name is"),
        ] {
            place.write(text);
            let error = place.ask("a").unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn a_table_ties_a_secret_to_its_mode_and_hosts() {
        let place = Place::new("ties");
        let source = "env = \"CARGO_PKG_NAME\"";
        place.write(&format!(
            "[free]\n{source}\n[mode]\n{source}\nmode = \"placeholder\"\n[tied]\n{source}\n\
             hosts = [\"a.example\", \"*.b.example\"]\nheaders = [\"X-Own\"]\n"
        ));
        for text in
            ["free", "free@x.example", "mode@x.example", "tied@a.example,x.b.example,*.b.example"]
        {
            assert!(place.ask(text).is_ok(), "{text}");
        }
        assert_eq!(place.ask("tied@A.example").unwrap().headers, ["X-Own"]);
        for (text, words) in [
            ("mode", "ask for it as mode@HOST"),
            ("tied", "ask for it as tied@a.example"),
            ("tied@x.example", "for x.example, which its table [tied]"),
            ("tied@a.example,b.example", "for b.example, which its table [tied]"),
            ("tied@*.example", "for *.example, which its table [tied]"),
        ] {
            let error = place.ask(text).unwrap_err();
            assert!(error.reason.contains(words), "{text}: {error}");
        }
        place.write(&format!("[tied]\n{source}\nheaders = [\"X: y\"]\n"));
        assert!(place.ask("tied").unwrap_err().to_string().contains("no header's name"));
    }
}
