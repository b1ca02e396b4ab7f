//! A request that was checked once: every case named, every limit known.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::time::Instant;

use super::GradeRequest;
use super::case::{Case, Kind};
use super::session::INSIDE;
use crate::engine::Engine;
use crate::model::error::SpecError;

/// More cases than this are several grades.
const MAX_CASES: usize = 10_000;
/// The time of one case, unless told.
const CASE_LIMIT: Duration = Duration::from_secs(10);
/// The time of all of it, unless told.
const TOTAL_LIMIT: Duration = Duration::from_secs(600);
const MAX_TOTAL_MS: u64 = 24 * 3_600_000;
const MAX_PARALLEL: usize = 256;
/// Characters of feedback, unless told.
const FEEDBACK_CHARS: usize = 2000;

/// What a grade works from.
#[derive(Debug)]
pub(super) struct Checked {
    pub request: GradeRequest,
    /// All of them, hidden ones last.
    pub cases: Vec<Case>,
    /// The candidate's name in its workspace.
    pub file: String,
    pub language: String,
    pub deadline: Instant,
    pub parallel: usize,
    pub feedback_chars: usize,
}

impl Checked {
    pub(super) fn new(engine: &Engine, mut request: GradeRequest) -> Result<Self, SpecError> {
        request.limits.resolve()?;
        if !request.level.has_namespaces() {
            let reason = "must be standard or strict: only there a candidate has a process table, \
                          a disk and a network of its own";
            return Err(SpecError::new("level", reason));
        }
        let language = language(engine, &request)?;
        let cases = cases(&mut request)?;
        if language.name != "python"
            && let Some(case) = cases.iter().find(|case| case.kind() != Kind::Streams)
        {
            let reason = format!(
                "is {}, and case \"{}\" calls a function, which only Python candidates have here: \
                 give stdin and expected_stdout",
                language.name, case.name
            );
            return Err(SpecError::new("language", reason));
        }
        let total = match request.total_ms {
            Some(ms) if ms == 0 || ms > MAX_TOTAL_MS => {
                let reason = format!("must be between 1 and {MAX_TOTAL_MS} ms");
                return Err(SpecError::new("total_ms", reason));
            }
            given => given.map_or(TOTAL_LIMIT, Duration::from_millis),
        };
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let parallel = request.parallel.unwrap_or(cores).get();
        if parallel > MAX_PARALLEL {
            let reason = format!("is {parallel}, more than {MAX_PARALLEL}");
            return Err(SpecError::new("parallel", reason));
        }
        Ok(Self {
            cases,
            file: language.file,
            language: language.name,
            deadline: Instant::now() + total,
            parallel,
            feedback_chars: request.feedback_chars.unwrap_or(FEEDBACK_CHARS),
            request,
        })
    }

    /// The time that a case has.
    pub(super) fn limit(&self, case: &Case) -> Duration {
        let asked = case.timeout_ms.or(self.request.limits.wall_ms);
        asked.map_or(CASE_LIMIT, Duration::from_millis)
    }

    /// The time that loading has: as much as the longest case, for whatever it prepares.
    pub(super) fn load_limit(&self) -> Duration {
        let longest = self.cases.iter().map(|case| self.limit(case)).max();
        longest.unwrap_or(CASE_LIMIT).max(CASE_LIMIT)
    }

    /// The candidate's name as a module.
    pub(super) fn module(&self) -> &str {
        self.file.rsplit_once('.').map_or(self.file.as_str(), |(stem, _)| stem)
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

struct Named {
    name: String,
    file: String,
}

fn language(engine: &Engine, request: &GradeRequest) -> Result<Named, SpecError> {
    let languages = engine.languages();
    let found = match (&request.language, &request.file_name) {
        (Some(name), _) => languages.get(name)?,
        (None, Some(file)) => languages.detect(Some(std::path::Path::new(file)), &request.code)?,
        (None, None) if !request.code.starts_with("#!") => languages.get("python")?,
        (None, None) => languages.detect(None, &request.code)?,
    };
    if request.code.trim().is_empty() {
        return Err(SpecError::new("code", "is empty: there is no candidate"));
    }
    let plain = if found.name == "python" { "solution.py" } else { found.file.as_str() };
    let file = request.file_name.clone().unwrap_or_else(|| plain.to_owned());
    if file.contains('/') || file == INSIDE || file.is_empty() {
        let reason = format!("must be a name without /, and not {INSIDE}");
        return Err(SpecError::new("file_name", reason));
    }
    if request.files.contains_key(&file) || request.files.contains_key(INSIDE) {
        let reason = format!("name {file}, which is the candidate, or {INSIDE}, which is ours");
        return Err(SpecError::new("files", reason));
    }
    Ok(Named { name: found.name.clone(), file })
}

fn cases(request: &mut GradeRequest) -> Result<Vec<Case>, SpecError> {
    let (public, hidden) =
        (std::mem::take(&mut request.cases), std::mem::take(&mut request.hidden));
    for (field, list) in [("cases", &public), ("hidden", &hidden)] {
        for (index, case) in list.iter().enumerate() {
            case.check(&format!("{field}[{index}]"))?;
        }
    }
    let hidden = hidden.into_iter().map(|case| Case { hidden: true, ..case });
    let mut all: Vec<Case> = public.into_iter().chain(hidden).collect();
    if all.is_empty() {
        return Err(SpecError::new("cases", "are none: there is nothing to grade by"));
    }
    if all.len() > MAX_CASES {
        return Err(SpecError::new("cases", format!("are {}, more than {MAX_CASES}", all.len())));
    }
    if all.iter().map(|case| case.weight).sum::<f64>() <= 0.0 {
        return Err(SpecError::new("cases", "have no weight: one of them must count"));
    }
    for (index, case) in all.iter_mut().enumerate() {
        if case.name.is_empty() {
            case.name = format!("case {}", index + 1);
        }
        if case.hidden && !request.show_hidden {
            case.name = case.concealing_name();
        }
        case.func_name = case.func_name.take().or_else(|| request.func_name.clone());
    }
    Ok(all)
}
