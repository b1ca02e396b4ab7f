//! The least program that embeds Belljar: `cargo run -p belljar --example embed`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it got")]

use std::process::ExitCode;

use belljar::{Config, Engine, Error, RunRequest, Stream};

fn main() -> ExitCode {
    // First of all: this very binary is also started in Belljar's own roles.
    if let Some(code) = belljar::enter_role() {
        return code;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map(|runtime| runtime.block_on(run()));
    match result {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let engine = Engine::open(Config::default())?;
    let request = RunRequest::code("python", "print(sum(range(10)))");
    let mut live = |stream: Stream, bytes: &[u8]| {
        print!("as it comes, {stream:?}: {}", String::from_utf8_lossy(bytes));
    };
    let outcome = engine.prepare(request)?.run(&mut live).await?;
    let layers = outcome.receipt.layers.len();
    println!("{}, {:?}, {layers} layers verified", outcome.verdict.kind(), outcome.fault_domain);
    Ok(())
}
