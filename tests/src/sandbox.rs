//! `belljar run` as the suites use it, and the library beside it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use belljar::{Config, Engine, Level, Outcome, RunRequest, Start, StartRequest};

use crate::program::{Ended, Program, Running};
use crate::serving::Server;
use crate::warm::{self, Pass};

/// A run that is about to be asked for: `Sandbox::at(level).run_python("print(1)")`.
#[derive(Clone, Debug)]
pub struct Sandbox {
    level: Level,
    options: Vec<OsString>,
    arguments: Vec<OsString>,
    variables: Vec<(String, OsString)>,
    stdin: Option<Vec<u8>>,
    alone: bool,
    /// A server of the test's own, and how to start there.
    asked_of: Option<(PathBuf, StartRequest)>,
}

impl Sandbox {
    pub fn at(level: Level) -> Self {
        Self {
            level,
            options: Vec::new(),
            arguments: Vec::new(),
            variables: Vec::new(),
            stdin: None,
            alone: false,
            asked_of: None,
        }
    }

    pub fn standard() -> Self {
        Self::at(Level::Standard)
    }

    /// Options of `belljar run`, as typed: `.with(["--memory", "64m"])`.
    pub fn with<T: Into<OsString>>(mut self, options: impl IntoIterator<Item = T>) -> Self {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }

    /// Arguments of the program.
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(args.into_iter().map(Into::into));
        self
    }

    /// Never through a server, not in the warm pass either: for what looks at belljar's own children.
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Through this server, and so: warm, cold, or as it comes.
    pub fn through(mut self, server: &Server, start: StartRequest) -> Self {
        self.asked_of = Some((server.socket(), start));
        self
    }

    /// A variable of belljar's own environment, not of the program's.
    pub fn host_env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// What belljar itself reads on standard input.
    pub fn host_stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    pub fn run_python(&self, code: &str) -> Outcome {
        self.run_code("python", code)
    }

    pub fn run_bash(&self, code: &str) -> Outcome {
        self.run_code("bash", code)
    }

    pub fn run_node(&self, code: &str) -> Outcome {
        self.run_code("node", code)
    }

    /// Runs code and reads the Outcome.
    pub fn run_code(&self, language: &str, code: &str) -> Outcome {
        self.checked(&self.code(language, code).arg("--json").args(self.tail()).run())
    }

    /// Runs a file and reads the Outcome. `-` is standard input.
    pub fn run_file(&self, path: &Path) -> Outcome {
        self.checked(&self.file(path).arg("--json").args(self.tail()).run())
    }

    /// The Outcome, which started as this pass wants it.
    fn checked(&self, ended: &Ended) -> Outcome {
        let outcome = outcome(ended);
        let wanted = match self.asked_of {
            None => None,
            Some((_, StartRequest::Any)) => return outcome,
            Some((_, StartRequest::Warm)) => Some(Start::Warm),
            Some((_, StartRequest::Cold)) => Some(Start::Cold),
        };
        if let Some(start) = wanted {
            assert_eq!(outcome.start, start, "{outcome:?}");
            return outcome;
        }
        let start = self.server().map_or(Start::Cold, |_| Start::Warm);
        assert_eq!(outcome.start, start, "{outcome:?}");
        outcome
    }

    /// The server of the warm pass, for what can be warm.
    fn server(&self) -> Option<&'static Path> {
        let server = warm::server()?;
        let kept = !self.alone && warm::can_be(self.level, &self.options);
        kept.then_some(server)
    }

    /// Runs code as a person would: output passes through, words go to stderr.
    pub fn plain(&self, language: &str, code: &str) -> Ended {
        self.code(language, code).args(self.tail()).run()
    }

    /// The same with a file.
    pub fn plain_file(&self, path: &Path) -> Ended {
        self.file(path).args(self.tail()).run()
    }

    /// Starts code with live output and leaves it running.
    pub fn start(&self, language: &str, code: &str) -> Running {
        self.code(language, code).args(self.tail()).start()
    }

    /// Starts code with `--json` and leaves it running; [`outcome`] reads its end.
    pub fn start_json(&self, language: &str, code: &str) -> Running {
        self.code(language, code).arg("--json").args(self.tail()).start()
    }

    fn code(&self, language: &str, code: &str) -> Program {
        self.command().args(["--language", language, "-c", code])
    }

    fn file(&self, path: &Path) -> Program {
        self.command().arg(path)
    }

    fn command(&self) -> Program {
        let mut program = Program::belljar().args(["run", "--level", self.level.name()]);
        if let Some((server, start)) = &self.asked_of {
            let word = match start {
                StartRequest::Any => "any",
                StartRequest::Cold => "cold",
                StartRequest::Warm => "warm",
            };
            program = program.arg("--server").arg(server).args(["--start", word]);
        } else if let Some(server) = self.server() {
            warm::note(self.level, Pass::Warm);
            program = program.arg("--server").arg(server).args(["--start", "warm"]);
        } else {
            warm::note(self.level, Pass::Cold);
        }
        program = program.args(&self.options);
        for (name, value) in &self.variables {
            program = program.env(name, value);
        }
        match &self.stdin {
            Some(bytes) => program.stdin(bytes.clone()),
            None => program,
        }
    }

    fn tail(&self) -> Vec<OsString> {
        if self.arguments.is_empty() {
            return Vec::new();
        }
        let mut tail = vec![OsString::from("--")];
        tail.extend(self.arguments.iter().cloned());
        tail
    }
}

/// The Outcome that `--json` printed.
pub fn outcome(ended: &Ended) -> Outcome {
    serde_json::from_slice(&ended.stdout)
        .unwrap_or_else(|error| panic!("no Outcome ({error}): {ended:?}"))
}

/// An engine of the library, with the binary under test as launcher; in the warm pass with a pool.
pub fn engine() -> Engine {
    engine_with(|config| config.pool = warm::pool())
}

/// A request as this pass wants it: warm where it can be.
pub fn asked(request: RunRequest) -> RunRequest {
    let code = request.command.is_none() && request.workspace.is_none();
    let warm = warm::server().is_some() && code && warm::level_has_pool(request.level);
    warm::note(request.level, if warm { Pass::Warm } else { Pass::Cold });
    RunRequest { start: if warm { StartRequest::Warm } else { StartRequest::Cold }, ..request }
}

/// The same, with a change to its configuration.
pub fn engine_with(change: impl FnOnce(&mut Config)) -> Engine {
    let mut config = Config { launcher: crate::belljar_bin(), ..Config::default() };
    change(&mut config);
    RUNTIME.with(|_| {}); // what the runtime opens is there before anybody counts
    Engine::open(config).expect("an engine opens")
}

thread_local! {
    /// One for each test: what a pool holds belongs to the runtime in which it was made.
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .expect("a runtime starts");
}

/// Runs a future of the library to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}
