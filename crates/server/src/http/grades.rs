//! `POST /v1/grades`: a candidate and its cases, one Grade, with each case as it ends if that is asked for.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use belljar::audit::Caller;
use belljar::grade::{CaseResult, Grade, GradeRequest};
use belljar::{Error, Place};
use hyper::header::{CONTENT_TYPE, HeaderValue};

use crate::api::{Access, Api, start};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Server, Who, body};
use crate::limits::Left;
use crate::policy::Running;
use crate::problem::Problem;
use crate::scope::Scope;
use crate::wire::{self, GradeTold};

pub(super) fn enter(api: &mut Api) {
    let one = start("grade", Access::Scope(Scope::Runs), "Grade a candidate by its cases");
    let one = one.takes::<GradeRequest>().gives::<Grade>(200).streams().refuses(&[422]);
    api.post(wire::GRADES, grade, one);
}

async fn grade(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    request: Request,
) -> Result<Response, Problem> {
    // Before the body is read, so that a full server holds no more bodies than it has places.
    let place = server.queue.enter().map_err(|error| Problem::from(&error))?;
    let format = Format::of(request.headers());
    let text = body::text(request).await?;
    let mut asked = belljar::grade::formats::read_request(&text)
        .map_err(|error| Problem::from(&Error::from(error)))?;
    let applied = server.policy.of(&principal, &asked.labels);
    applied.check_parts(asked.level, &mut asked.limits, asked.language.as_deref())?;
    applied.case_times("cases", &asked.cases)?;
    applied.case_times("hidden", &asked.hidden)?;
    applied.screen(&mut asked.screen);
    let counted = server.policy.enter(&applied, 1)?;
    // More at once would only wait for a turn.
    let running = std::num::NonZeroUsize::new(server.queue.running());
    asked.parallel = asked.parallel.or(running).min(running);
    // A mistake has a status of its own, whatever the form of the answer.
    server.engine.check_grade(&asked).map_err(|error| Problem::from(&error))?;
    let caller = principal.caller.clone();
    // Whatever the number of its cases, as a run counts once whatever it starts.
    let left = server.limits.admit_caller(&caller, &applied)?;
    server.limits.admit_labels(&caller, &asked.labels)?;
    let mut answer = match format {
        Format::Json => {
            let answer = document(&server, place, asked, caller).await;
            drop(counted);
            answer?
        }
        Format::Lines | Format::Events => stream(server, place, (asked, caller), format, counted),
    };
    Left::mark(left.as_ref(), &mut answer);
    Ok(answer)
}

async fn document(
    server: &Server,
    place: Place,
    asked: GradeRequest,
    caller: Caller,
) -> Result<Response, Problem> {
    let grade = carry_out(server, place, (asked, caller), &mut |_| {}).await;
    let grade = grade.map_err(|error| Problem::from(&error))?;
    let json = serde_json::to_vec(&grade).map_err(|error| {
        Problem::from(&Error::Backend { operation: "write the answer", source: error.into() })
    })?;
    let mut response = json.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(wire::JSON));
    Ok(response)
}

async fn carry_out(
    server: &Server,
    place: Place,
    (asked, caller): (GradeRequest, Caller),
    tell: &mut (dyn FnMut(&CaseResult) + Send),
) -> Result<Grade, Error> {
    tokio::select! {
        biased;
        () = server.stop.cancelled() => Err(Error::Cancelled),
        result = server.engine.grade_with(asked, caller, Some(place), tell) => result,
    }
}

fn stream(
    server: Arc<Server>,
    place: Place,
    asked: (GradeRequest, Caller),
    format: Format,
    counted: Running,
) -> Response {
    let outbox = Outbox::default();
    let told = outbox.clone();
    let work = Box::pin(async move {
        let mut each = |result: &CaseResult| write(format, &told, &GradeTold::Case(result));
        let grade = carry_out(&server, place, asked, &mut each).await;
        match &grade {
            Ok(grade) => write(format, &told, &GradeTold::Grade(grade)),
            Err(error) => {
                if matches!(error, Error::Cancelled) {
                    told.break_off();
                }
                write(format, &told, &GradeTold::Error(&Problem::from(error)));
            }
        }
        drop(counted);
    });
    lines::answer(format, outbox, work)
}

fn write(format: Format, to: &Outbox, event: &GradeTold<'_>) {
    to.tell(format, event.name(), event);
}
