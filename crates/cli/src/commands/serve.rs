//! `belljar serve`: a long-lived engine for this user's programs.

use std::num::NonZeroUsize;
use std::thread;

use belljar::egress::Network;
use belljar::living::SandboxLimits;
use belljar::{Config, Error, PoolConfig};
use belljar_evolve::ProposerSpec;
use belljar_server::{AdmissionOptions, Collector, LimitOptions, Listening, Options};

use super::audit::Recorder;
use crate::args::serve::Serve;
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
    if args.print_openapi {
        return render::json(&belljar_server::openapi());
    }
    serve_and_tell(args, say).await
}

/// The same for a command that is a server beside its own work.
pub(crate) async fn serve_and_tell(args: Serve, tell: impl FnOnce(&Listening)) -> u8 {
    let options = match options(&args) {
        Ok(options) => options,
        Err(error) => return render::trouble(&error.to_string(), render::error_code(&error)),
    };
    let audit = match super::audit::config(&args.audit, Recorder::Server) {
        Ok(audit) => audit,
        Err(error) => return render::trouble(&error.to_string(), render::error_code(&error)),
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

fn options(args: &Serve) -> Result<Options, Error> {
    let runs = (cores() * RUNS_FOR_EACH_CORE).max(LEAST_RUNS);
    let proposers = args.proposers.as_deref().map(ProposerSpec::load_named).transpose()?;
    let collector = args.otlp.clone().or_else(collector_of_environment);
    Ok(Options {
        listen: args.listen.0,
        listen_anywhere: args.listen_anywhere,
        socket: args.socket.clone(),
        state: args.audit.state.clone(),
        max_runs: args.max_runs.or(NonZeroUsize::new(runs)).unwrap_or(NonZeroUsize::MIN),
        max_queue: args.max_queue,
        drain: args.drain,
        proposers: proposers.unwrap_or_default(),
        limits: LimitOptions {
            keys: args.rate.0,
            local: args.rate_local.0,
            labels: args.rate_label.clone(),
            sandboxes: args.rate_sandbox.0,
            cpu: args.cpu_budget.clone(),
        },
        policy: args.policy.clone(),
        sandboxes: SandboxLimits {
            sandboxes: args.sandboxes,
            disk_bytes: args.sandbox_disk,
            owner_sandboxes: args.owner_sandboxes,
            owner_disk_bytes: args.owner_disk,
        },
        admission: AdmissionOptions {
            least_memory_bytes: args.shed_memory,
            memory_pressure: args.shed_memory_pressure,
            io_pressure: args.shed_io_pressure,
            cpu_pressure: args.shed_cpu_pressure,
            ..AdmissionOptions::default()
        },
        max_connections: usize::try_from(args.max_connections).unwrap_or(usize::MAX),
        log_level: args.log_level,
        log_form: args.log,
        collector: collector.as_deref().map(Collector::parse).transpose()?,
        inherited: belljar_sys::activation::listen_fds(),
    })
}

/// As OpenTelemetry's own programs read it.
fn collector_of_environment() -> Option<String> {
    let names = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    names.into_iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
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
