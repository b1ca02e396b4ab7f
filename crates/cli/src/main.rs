//! The `belljar` command: arguments as typed, then commands, then what the user sees.

mod args;
mod commands;
mod remote;
mod render;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // Before any thread or runtime: this binary is also the keeper, and the attacker in doctor --attack.
    if let Some(code) = belljar::enter_role() {
        return code;
    }
    let arguments = args::Arguments::parse();
    let mut builder = if matches!(arguments.command, args::Command::Serve(_)) {
        commands::serve_runtime()
    } else {
        // One run needs no second thread, and is sooner without.
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_io().enable_time().build();
    let code = match runtime {
        Ok(runtime) => runtime.block_on(commands::dispatch(arguments)),
        Err(error) => render::trouble(&format!("cannot start the runtime: {error}"), 125),
    };
    ExitCode::from(code)
}
