//! The same by docker: a container that stays, execs in it, commits of it, and containers from a commit.

use std::path::Path;

use anyhow::{Context, Result};

use super::{FILES, FORKS, timed};
use crate::bench::Times;
use crate::bench::contenders::{DOCKER_IMAGE, make_docker_image};
use crate::shell;

/// A commit takes its time; more rounds would tell no more.
const MOST_ROUNDS: u32 = 10;
const COMMITTED: &str = "belljar-bench-commit";

/// What docker took: with no files, and for each tree.
pub(super) struct Measured {
    pub execs: Vec<Times>,
    pub trees: Vec<Vec<Times>>,
}

/// Measures it, where there is an engine and an image can be made.
pub(super) fn measure(scratch: &Path, rounds: u32) -> Result<Measured> {
    make_docker_image(scratch)?;
    let _image = Image;
    let rounds = rounds.min(MOST_ROUNDS);
    let mut execs = ["docker run -d", "docker exec, first", "docker exec, next"].map(Times::of);
    for _ in 0..rounds {
        let mut container = None;
        execs[0].sorted_ms.push(timed(|| {
            container = Some(Container::start(DOCKER_IMAGE)?);
            Ok(())
        })?);
        let container = container.context("no container")?;
        for one in &mut execs[1..] {
            one.sorted_ms.push(timed(|| container.exec("true"))?);
        }
    }
    let trees = FILES.iter().map(|files| tree(*files, rounds)).collect::<Result<Vec<_>>>()?;
    execs.iter_mut().for_each(|times| times.sorted_ms.sort_by(f64::total_cmp));
    Ok(Measured { execs: execs.into(), trees })
}

/// So many files in a container; then, in turns, one small change, a commit, and eight containers from it.
fn tree(files: u32, rounds: u32) -> Result<Vec<Times>> {
    let mut all = ["docker commit", "docker run -d x8"].map(Times::of);
    let container = Container::start(DOCKER_IMAGE)?;
    container.exec(&format!(
        "mkdir -p /tree && cd /tree && for d in $(seq 0 99); do mkdir -p $d; done && \
         seq 1 {files} | while read n; do echo $n > $((n % 100))/$n; done"
    ))?;
    for round in 0..rounds {
        container.exec(&format!("echo {round} > /tree/changed"))?;
        all[0].sorted_ms.push(timed(|| docker(&["commit", &container.0, COMMITTED]).map(drop))?);
        let mut forks = Vec::new();
        all[1].sorted_ms.push(timed(|| {
            for _ in 0..FORKS {
                forks.push(Container::start(COMMITTED)?);
            }
            Ok(())
        })?);
        drop(forks);
        docker(&["image", "rm", COMMITTED])?;
    }
    all.iter_mut().for_each(|times| times.sorted_ms.sort_by(f64::total_cmp));
    Ok(all.into())
}

fn docker(words: &[&str]) -> Result<String> {
    shell::output(shell::command("docker").args(words))
}

/// One that sleeps until it is dropped.
struct Container(String);

impl Container {
    fn start(image: &str) -> Result<Self> {
        let words = ["run", "-d", "--network=none", "--volume=/usr:/usr:ro", image];
        let id = docker(&[&words[..], &["/usr/bin/sleep", "100000"]].concat())?;
        Ok(Self(id.trim().to_owned()))
    }

    fn exec(&self, script: &str) -> Result<()> {
        docker(&["exec", &self.0, "/usr/bin/bash", "-c", script]).map(drop)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Err(error) = docker(&["rm", "-f", &self.0]) {
            shell::complain(format!("{error:#}"));
        }
    }
}

struct Image;

impl Drop for Image {
    fn drop(&mut self) {
        if let Err(error) = docker(&["image", "rm", DOCKER_IMAGE]) {
            shell::complain(format!("{error:#}"));
        }
    }
}
