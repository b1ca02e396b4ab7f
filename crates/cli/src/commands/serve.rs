//! `belljar serve`: a long-lived engine for this user's programs.

use std::num::NonZeroUsize;
use std::thread;

use belljar::egress::Network;
use belljar::{Config, PoolConfig};
use belljar_evolve::ProposerSpec;
use belljar_server::{LimitOptions, Listening, Options};

use super::audit::Recorder;
use crate::args::Serve;
use crate::render;

/// Runs at once where nobody says how many: programs wait as often as they compute, and the limits of a
/// run bound it to one core.
const RUNS_FOR_EACH_CORE: usize = 2;
const LEAST_RUNS: usize = 4;

/// With two workers one request is read and answered while another one's output is.
const LEAST_WORKERS: usize = 2;

/// Requests are served side by side, unlike the work of the other commands.
pub(crate) fn runtime() -> tokio::runtime::Builder {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(cores().max(LEAST_WORKERS));
    builder
}

pub(crate) async fn serve(args: Serve) -> u8 {
    serve_and_tell(args, say).await
}

/// The same for a command that is a server beside its own work.
pub(crate) async fn serve_and_tell(args: Serve, tell: impl FnOnce(&Listening)) -> u8 {
    let runs = (cores() * RUNS_FOR_EACH_CORE).max(LEAST_RUNS);
    let proposers = args.proposers.as_deref().map(ProposerSpec::load_named).transpose();
    let proposers = match proposers {
        Ok(found) => found.unwrap_or_default(),
        Err(error) => return render::trouble(&error.to_string(), render::BAD_REQUEST),
    };
    let audit = match super::audit::config(&args.audit, Recorder::Server) {
        Ok(audit) => audit,
        Err(error) => return render::trouble(&error.to_string(), render::error_code(&error)),
    };
    let options = Options {
        listen: args.listen.0,
        listen_anywhere: args.listen_anywhere,
        socket: args.socket,
        state: args.audit.state,
        max_runs: args.max_runs.or(NonZeroUsize::new(runs)).unwrap_or(NonZeroUsize::MIN),
        max_queue: args.max_queue,
        drain: args.drain,
        proposers,
        limits: LimitOptions {
            keys: args.rate.0,
            local: args.rate_local.0,
            labels: args.rate_label,
            cpu: args.cpu_budget,
        },
    };
    let plain = PoolConfig::default();
    let pool = PoolConfig {
        floor: args.pool_floor.min(args.pool),
        ceiling: args.pool,
        memory_reserve_bytes: args.memory_reserve,
        from_start: if args.warm.is_empty() { plain.from_start } else { args.warm },
        modules: args.preload,
        ..plain
    };
    let config = Config {
        pool: Some(pool).filter(|one| one.ceiling > 0),
        screen_rules: args.screen_rules,
        screen_least: args.screen,
        audit,
        // Whoever asks a server is not its operator, who may still say otherwise in belljar.toml.
        network: Network { private_by_request: false, ..Network::default() },
        ..Config::default()
    };
    raise_file_limit();
    match belljar_server::serve(config, options, tell).await {
        Ok(()) => 0,
        Err(error) => render::trouble(&error.to_string(), render::error_code(&error)),
    }
}

/// Each sandbox that waits takes four descriptors; the soft limit is for programs that use select.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it fewer can wait, and the pool says so when they do not.
    setrlimit(Resource::Nofile, limit).ok();
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Where it listens, and a line that can be tried.
fn say(listening: &Listening) {
    let request = r#"'{"language": "python", "code": "print(6 * 7)"}'"#;
    let socket = listening.socket.display();
    render::trouble(&format!("listening on {socket}"), 0);
    let Some(address) = listening.address else {
        let example = format!("try: curl --unix-socket {socket} http://localhost/v1/runs");
        render::trouble(&format!("{example} -d {request}"), 0);
        return;
    };
    render::trouble(&format!("listening on http://{address}"), 0);
    let token = match &listening.token_file {
        Some(path) => format!("$(cat {})", path.display()),
        None => "$BELLJAR_TOKEN".to_owned(),
    };
    let header = format!("-H \"Authorization: Bearer {token}\"");
    render::trouble(&format!("try: curl http://{address}/v1/runs {header} -d {request}"), 0);
}
