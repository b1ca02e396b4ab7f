//! A warm run that may reach a host beside one that may not, in turns, each when everything is ready again.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;

use super::super::peers::CODE;
use super::super::server::{RUNS, Server, settle};
use super::super::{Times, calm, load};

const WAITING: usize = 4;
const WARM_UP: u32 = 10;

/// Times without a way out, and with one.
pub(super) fn measure(
    belljar: &Path,
    scratch: &Path,
    settings: &Path,
    runs: u32,
) -> Result<Vec<Times>> {
    let words = WAITING.to_string();
    let options = ["--pool", &words, "--pool-floor", &words, "--warm", "python"];
    let server = Server::start_with(belljar, scratch, "warm", &options, Some(settings))?;
    let plain = json!({"language": "python", "code": CODE}).to_string();
    let with_exit = json!({"language": "python", "code": CODE, "egress": ["@bench"]}).to_string();
    let mut all = vec![Times::of("without egress"), Times::of("with egress")];
    server.settle(WAITING)?;
    calm();
    let (mut client, mut watch) = (server.tcp()?, server.unix()?);
    for round in 0..WARM_UP + runs {
        for (times, body) in all.iter_mut().zip([&plain, &with_exit]) {
            settle(&mut watch, WAITING)?;
            let started = Instant::now();
            let answer = client.post(RUNS, body)?;
            let took = started.elapsed();
            let outcome = answer.json()?;
            load::check(&outcome, "")?;
            ensure!(outcome["start"] == "warm", "it was not warm: {outcome}");
            if round >= WARM_UP {
                times.sorted_ms.push(took.as_secs_f64() * 1e3);
            }
        }
    }
    all.iter_mut().for_each(|one| one.sorted_ms.sort_by(f64::total_cmp));
    Ok(all)
}
