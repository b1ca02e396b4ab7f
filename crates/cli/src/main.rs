//! The `belljar` command: arguments as typed, then commands, then what the user sees.

mod args;
mod commands;
mod output;
mod remote;
mod render;

use std::process::ExitCode;

use clap::Parser;

/// Open files at once: pipes, sockets and what a run is given.
const LEAST_FILES: i32 = 32;

fn main() -> ExitCode {
    // Before any thread or runtime: this binary is also the keeper, and the attacker in doctor --attack.
    if let Some(code) = belljar::enter_role() {
        return code;
    }
    // The runtime would not say it so plainly. A copy of that number shows that there is room.
    if rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), LEAST_FILES).is_err() {
        let why = format!("needs {LEAST_FILES} open files and more: ulimit -n 1024");
        return ExitCode::from(render::trouble(&why, 125));
    }
    // The sooner the better: it makes itself ready while we read the arguments. With a server about it
    // would be in vain.
    let starts_here = std::env::args_os().nth(1).is_some_and(|command| command == "run")
        && !belljar_server::places::socket().is_some_and(|path| path.exists());
    let ahead = if starts_here { belljar::start_ahead() } else { None };
    let arguments = args::Arguments::parse();
    let mut builder =
        if matches!(arguments.command, args::Command::Serve(_) | args::Command::Mcp(_)) {
            commands::serve_runtime()
        } else {
            // One run needs no second thread, and is sooner without.
            tokio::runtime::Builder::new_current_thread()
        };
    let runtime = builder.enable_io().enable_time().build();
    let code = match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(commands::dispatch(arguments, ahead));
            // Somebody may still be reading a standard input that nobody closes.
            runtime.shutdown_background();
            code
        }
        Err(error) => render::trouble(&format!("cannot start the runtime: {error}"), 125),
    };
    ExitCode::from(code)
}
