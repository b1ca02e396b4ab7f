//! `run-python` and `run-shell`: a sandbox for one program.

use belljar::SpecError;
use belljar::sandbox::{OneShotRequest, SandboxRequest};

use super::super::run::{pairs, read_bounded, read_stdin, text};
use super::{ALL, Called, confined, execs, workspace};
use crate::args::sandbox::Once;
use crate::remote::Failure;

pub(super) async fn python(called: &Called, args: Once) -> Result<u8, Failure> {
    run(called, "run_python", args).await
}

pub(super) async fn shell(called: &Called, args: Once) -> Result<u8, Failure> {
    run(called, "run_shell", args).await
}

async fn run(called: &Called, which: &str, args: Once) -> Result<u8, Failure> {
    let raw = args.raw;
    let request = request(args)?;
    execs::to_the_end(called, &format!("{ALL}/{which}"), &request, raw).await
}

fn request(args: Once) -> Result<OneShotRequest, SpecError> {
    let code = match (args.code, &args.file) {
        (Some(code), _) => code,
        (None, Some(path)) if path.as_os_str() == "-" => {
            if args.stdin.as_ref().is_some_and(|stdin| stdin.as_os_str() == "-") {
                let reason = "is where the code comes from: give the code as a file or with -c";
                return Err(SpecError::new("stdin", reason));
            }
            text("stdin", "standard input", read_bounded(std::io::stdin()))?
        }
        (None, Some(path)) => {
            let opened = std::fs::File::open(path).and_then(read_bounded);
            text("file", &path.display().to_string(), opened)?
        }
        (None, None) => return Err(SpecError::new("code", "is missing: give FILE or -c CODE")),
    };
    let stdin = args.stdin.as_deref().map(read_stdin).transpose()?;
    let workspace = workspace(args.workspace.as_deref(), args.volume)?;
    let sandbox = SandboxRequest { workspace, ..confined(args.confine, &args.limits)? };
    let env = pairs("env", &args.env)?;
    Ok(OneShotRequest { code, sandbox, cwd: args.cwd, env, stdin, timeout_ms: None })
}
