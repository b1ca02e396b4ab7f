//! The limit of what a warm start can reach: an interpreter with the same modules loaded copies itself, the copy
//! runs the program and exits. No sandbox, no limits, no HTTP; timed inside, so that not even a pipe is counted.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::CODE;
use crate::bench::contenders::INTERPRETER;
use crate::shell;

const LANGUAGE: &str = "crates/belljar/src/languages/python.toml";
/// One line in, one fork, one line out: its nanoseconds. Frozen as the zygote is, so that the copies share as much.
const SCRIPT: &str = r#"
import gc, importlib, os, sys, time
code = sys.argv[1]
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
gc.collect()
gc.freeze()
print("ready", flush=True)
for _ in sys.stdin:
    started = time.perf_counter_ns()
    child = os.fork()
    if child == 0:
        exec(compile(code, "main.py", "exec"), {"__name__": "__main__"})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    took = time.perf_counter_ns() - started
    print(took if status == 0 else -1, flush=True)
"#;

pub(super) struct WarmInterpreter {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl WarmInterpreter {
    pub(super) fn start() -> Result<Self> {
        let mut command = shell::command(INTERPRETER);
        command.args(["-c", SCRIPT, CODE]).args(modules()?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start python3")?;
        let ask = child.stdin.take();
        let mut answers = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut line = String::new();
        answers.read_line(&mut line)?;
        ensure!(line == "ready\n", "the warm interpreter said {line:?}");
        Ok(Self { child, ask, answers })
    }

    pub(super) fn time(&mut self) -> Result<Duration> {
        self.ask.as_mut().context("no pipe")?.write_all(b"\n")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let nanoseconds = line.trim().parse().with_context(|| format!("it said {line:?}"))?;
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for WarmInterpreter {
    fn drop(&mut self) {
        self.ask = None; // the end of its input is its end
        if let Err(error) = self.child.wait() {
            shell::complain(format!("cannot wait for the warm interpreter: {error}"));
        }
    }
}

/// What a warm Python has loaded, from the same list.
fn modules() -> Result<Vec<String>> {
    let text = fs::read_to_string(shell::repo_root().join(LANGUAGE))
        .with_context(|| format!("cannot read {LANGUAGE}"))?;
    let table: toml::Table = text.parse().with_context(|| format!("{LANGUAGE} is no TOML"))?;
    let list = table.get("warm").and_then(|warm| warm.get("modules")?.as_array());
    let names = list.with_context(|| format!("{LANGUAGE} lists no modules"))?;
    Ok(names.iter().filter_map(|name| name.as_str()).map(ToOwned::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_those_of_the_language_file() {
        let modules = modules().unwrap();
        assert!(modules.contains(&"json".to_owned()) && modules.len() > 20, "{modules:?}");
    }
}
