use super::*;
use crate::http::format::Format;
use crate::http::lines;

#[test]
fn events_are_skipped_up_to_the_last_that_was_seen() {
    let piece =
        b"id: 1\nevent: a\ndata: \"id: 2\"\n\nid: 2\nevent: b\ndata: 2\n\nid: 3\ndata: 3\n\n";
    let rest = |id: &str| {
        after_event(piece, id).map(|at| String::from_utf8_lossy(&piece[at..]).into_owned())
    };
    assert_eq!(rest("2").unwrap(), "id: 3\ndata: 3\n\n");
    assert_eq!(rest("3").unwrap(), "");
    assert_eq!(rest("4"), None);
}

fn made(pieces: &[&'static str]) -> Response {
    Response::new(Body::from(pieces.concat()))
}

async fn read(answer: &Arc<Recorded>, before: bool) -> Result<Bytes, Problem> {
    let answer = Arc::clone(answer);
    let reader = if before { Reader::later(answer, None) } else { Reader::first(answer) };
    let response = reader.response().await?;
    Ok(response.into_body().collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn an_answer_is_read_by_all_who_ask_also_while_it_is_made() {
    let answer = Arc::new(Recorded::default());
    let waiting = tokio::spawn({
        let answer = Arc::clone(&answer);
        async move { read(&answer, true).await.unwrap() }
    });
    let first = tokio::spawn({
        let answer = Arc::clone(&answer);
        async move { read(&answer, false).await.unwrap() }
    });
    let mut kept = None;
    let keep = async |came| kept = Some(came);
    answer.record(async { made(&["one ", "two"]) }, keep).await;
    assert_eq!(
        (first.await.unwrap(), waiting.await.unwrap()),
        ("one two".into(), "one two".into())
    );
    assert_eq!(read(&answer, true).await.unwrap(), "one two");
    let Some(Came::Answer(Some(kept))) = kept else { panic!("{kept:?}") };
    let again = Arc::new(Recorded::whole(kept));
    assert_eq!(read(&again, true).await.unwrap(), "one two");
}

#[tokio::test]
async fn a_problem_is_not_told_before_it_is_kept() {
    let answer = Arc::new(Recorded::default());
    let mut told = Box::pin(read(&answer, false));
    let keep = async |came| {
        assert!(matches!(came, Came::Answer(Some(answer)) if answer.head.problem.is_some()));
        let early = std::future::poll_fn(|context| Poll::Ready(told.as_mut().poll(context)));
        assert!(early.await.is_pending());
    };
    let work =
        async { axum::response::IntoResponse::into_response(Problem::coded("conflict", "x")) };
    answer.record(work, keep).await;
    told.await.unwrap();
}

#[tokio::test]
async fn one_that_breaks_off_is_told_so() {
    let answer = Arc::new(Recorded::default());
    drop(Guard(&answer));
    assert_eq!(&*read(&answer, true).await.unwrap_err().kind, "idempotency_lost");
}

#[tokio::test]
async fn a_long_answer_reaches_its_first_reader_whole_and_is_not_kept() {
    let answer = Arc::new(Recorded::default());
    let piece = Bytes::from(vec![7; MOST_BYTES / 2]);
    let frames = vec![piece; 6];
    let body = Body::new(Pieces(frames.into()));
    let maker = tokio::spawn({
        let answer = Arc::clone(&answer);
        async move {
            let keep = async |came| assert_eq!(came, Came::Answer(None));
            answer.record(async { Response::new(body) }, keep).await;
        }
    });
    tokio::task::yield_now().await;
    assert!(!maker.is_finished(), "it waits for its reader");
    assert_eq!(read(&answer, false).await.unwrap().len(), MOST_BYTES * 3);
    maker.await.unwrap();
    assert!(answer.kept_bytes() <= MOST_BYTES);
    assert_eq!(&*read(&answer, true).await.unwrap_err().kind, "idempotency_lost");
}

#[tokio::test]
async fn a_long_answer_does_not_wait_for_who_left_before_its_head() {
    let answer = Arc::new(Recorded::default());
    let reader = Reader::first(Arc::clone(&answer));
    let asked = tokio::spawn(reader.response());
    asked.abort();
    assert!(asked.await.is_err(), "it left");
    let body = Body::from(vec![7; MOST_BYTES + 1]);
    let mut kept = None;
    let recorded = answer.record(async { Response::new(body) }, async |came| kept = Some(came));
    let limit = std::time::Duration::from_secs(60);
    tokio::time::timeout(limit, recorded).await.expect("nobody is waited for");
    assert_eq!((kept, answer.kept_bytes()), (Some(Came::Answer(None)), 0));
}

#[tokio::test]
async fn only_what_was_not_begun_is_forgotten() {
    let came = async |problem: Problem| {
        let mut kept = None;
        let work = async { axum::response::IntoResponse::into_response(problem) };
        Recorded::default().record(work, async |came| kept = Some(came)).await;
        kept.unwrap()
    };
    for kind in NOT_BEGUN {
        assert_eq!(came(Problem::coded(kind, "x")).await, Came::NotBegun, "{kind}");
    }
    assert_eq!(came(Problem::from(&Error::Cancelled)).await, Came::BrokenOff);
    for kind in ["spec", "conflict", "lost", "backend", "idempotency_unavailable"] {
        assert!(matches!(came(Problem::coded(kind, "x")).await, Came::Answer(Some(_))));
    }
    let outbox = Outbox::default();
    let told = outbox.clone();
    let work = Box::pin(async move { told.break_off() });
    let response = lines::answer(Format::Lines, outbox, work);
    let mut kept = None;
    Recorded::default().record(async { response }, async |came| kept = Some(came)).await;
    assert_eq!(kept, Some(Came::BrokenOff), "a stream has begun with its status");
}

#[tokio::test]
async fn a_body_that_ends_in_an_error_has_ended() {
    let answer = Arc::new(Recorded::default());
    let cut = Reader::later(Arc::new(Recorded::default()), None);
    drop(Guard(&cut.answer));
    let mut kept = None;
    let work = async { Response::new(Body::new(cut)) };
    answer.record(work, async |came| kept = Some(came)).await;
    assert_eq!(kept, Some(Came::Answer(None)));
    let body = Reader::first(answer).response().await.unwrap().into_body();
    assert!(body.collect().await.is_err(), "and its readers are told");
}

struct Pieces(VecDeque<Bytes>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}
