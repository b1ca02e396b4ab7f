//! A living sandbox in a directory that vanishes, and what its execs came to.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use belljar::runtime::{
    DiskBound, Follow, Living, Raise, furnish_base, furnish_upper, owner, raise, records, spec,
};
use belljar::sandbox::{ExecEnd, ExecEvent, ExecInfo, ExecRequest, ExecState, SandboxRequest};
use belljar::{Engine, Stream, Tree, Verdict};
use belljar_tests::{DEADLINE, TempDir, block_on, engine};

pub(crate) struct House {
    pub living: Living,
    pub directory: TempDir,
    pub raise: Raise,
    pub engine: Engine,
}

/// What an exec came to.
#[derive(Debug)]
pub(crate) struct Came {
    pub info: ExecInfo,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub gaps: Vec<(u64, u64)>,
}

impl Came {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub(crate) fn end(&self) -> &ExecEnd {
        self.info.end.as_ref().unwrap_or_else(|| panic!("no end: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.end().verdict, Verdict::Exited { code: 0 }, "{self:?}");
        self
    }
}

impl House {
    pub(crate) fn new() -> Self {
        Self::with(&SandboxRequest::default(), |_| {})
    }

    pub(crate) fn with(request: &SandboxRequest, change: impl FnOnce(&mut Raise)) -> Self {
        let directory = TempDir::new();
        let engine = engine();
        let path = directory.path().to_owned();
        furnish_base(&path.join("base")).expect("a base");
        std::fs::create_dir(path.join("id")).expect("a directory");
        let tree = |target: &str, lower: PathBuf, name: &str| Tree {
            target: target.into(),
            lowers: vec![lower],
            upper: path.join(name),
            work: path.join(format!("{name}-work")),
        };
        let trees = vec![
            tree("/", path.join("base"), "upper-root"),
            tree("/usr", PathBuf::from("/usr"), "upper-usr"),
        ];
        let mut raised = Raise {
            id: "01TEST".to_owned(),
            name: "box".to_owned(),
            spec: spec(request).expect("a spec"),
            trees,
            workspace: None,
            write_paths: Vec::new(),
            directory: path.join("id"),
            owner: owner(&engine, 7),
            disk: DiskBound::Measured,
            idle: None,
            expires_at: None,
        };
        change(&mut raised);
        for tree in &raised.trees {
            furnish_upper(tree, raised.owner).expect("an upper");
        }
        let living = block_on(raise(&engine, raised.clone())).expect("it is raised");
        Self { living, directory, raise: raised, engine }
    }

    pub(crate) fn start(&self, id: &str, request: &ExecRequest) {
        block_on(self.living.exec(id, request)).unwrap_or_else(|error| panic!("{id}: {error}"));
    }

    /// Runs a script to its end.
    pub(crate) fn bash(&self, id: &str, script: &str) -> Came {
        self.run(id, &bash(script))
    }

    pub(crate) fn run(&self, id: &str, request: &ExecRequest) -> Came {
        self.start(id, request);
        self.wait(id)
    }

    pub(crate) fn wait(&self, id: &str) -> Came {
        block_on(async {
            collect(self.living.follow(id, [0, 0]).await.expect("it is followed")).await
        })
    }

    pub(crate) fn info(&self, id: &str) -> ExecInfo {
        let all = records(&self.raise.directory, "box", true).expect("records");
        all.into_iter().find(|one| one.id == id).expect("a record")
    }

    pub(crate) fn again(&self) -> Option<Living> {
        block_on(Living::connect(&self.raise.directory)).expect("the question can be asked")
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // Until nobody answers: a keeper with as many clients as it takes turns us away, and that looks like its end.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        block_on(async {
            while let Ok(Some(living)) = Living::connect(&self.raise.directory).await {
                living.kill().await.ok();
                assert!(std::time::Instant::now() < deadline, "it can be killed");
            }
        });
        open_up(self.directory.path());
    }
}

/// An overlay closes its own directory to everybody, and who is not root could not remove it then.
pub(crate) fn open_up(top: &std::path::Path) {
    for one in std::fs::read_dir(top).into_iter().flatten().flatten() {
        let own = one.path().join("work");
        // Only those of overlays are there.
        std::fs::set_permissions(own, std::fs::Permissions::from_mode(0o700)).ok();
    }
}

pub(crate) fn bash(script: &str) -> ExecRequest {
    let cmd = ["/bin/bash", "-c", script].map(ToOwned::to_owned).to_vec();
    ExecRequest { cmd, ..ExecRequest::default() }
}

pub(crate) async fn collect(mut follow: Follow) -> Came {
    let (mut out, mut err, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let next = tokio::time::timeout(DEADLINE, follow.next()).await.expect("in time");
        match next.expect("it is told").expect("an end comes before nothing") {
            ExecEvent::Started { .. } => {}
            ExecEvent::Output { stream: Stream::Stdout, data, .. } => out.extend(data.0),
            ExecEvent::Output { stream: Stream::Stderr, data, .. } => err.extend(data.0),
            ExecEvent::Gap { from, to, .. } => gaps.push((from, to)),
            ExecEvent::Ended(info) => {
                assert_ne!(info.state, ExecState::Running);
                return Came { info, out, err, gaps };
            }
        }
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        pause(Duration::from_millis(10));
    }
}

/// Lets time pass, where the passing of time is what is tested.
pub(crate) fn pause(time: Duration) {
    block_on(async { tokio::time::sleep(time).await });
}
