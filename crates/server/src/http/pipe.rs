//! Bodies of any length that go through memory piece by piece, in both directions.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, ReadHalf, SimplexStream, WriteHalf,
};

use super::body;
use crate::problem::Problem;

/// What is under way at once.
const PIPE_BYTES: usize = 256 << 10;
/// Sent at once.
const PIECE_BYTES: usize = 64 << 10;

pub(crate) type Reader = ReadHalf<SimplexStream>;
pub(crate) type Writer = WriteHalf<SimplexStream>;

/// Gives a request's body to whoever reads it, as it comes. What goes wrong with either is told.
pub(crate) async fn receive<T, F>(
    mut body: Body,
    take: impl FnOnce(Reader) -> F,
) -> Result<T, Problem>
where
    F: Future<Output = Result<T, Problem>>,
{
    let (reader, mut writer) = tokio::io::simplex(PIPE_BYTES);
    let feed = async move {
        while let Some(piece) = body::next_piece(&mut body).await? {
            // Who reads has stopped: why is told by the other side.
            let written = writer.write_all(&piece).await;
            written.map_err(|_| Problem::field("body", "was not read"))?;
        }
        writer.shutdown().await.map_err(|_| Problem::field("body", "was not read"))
    };
    let taken = take(reader);
    tokio::pin!(feed, taken);
    tokio::select! {
        biased;
        taken = &mut taken => taken,
        fed = &mut feed => match fed {
            Ok(()) => taken.await,
            Err(problem) => {
                // A reader that gave up has the better reason.
                match at_once(taken.as_mut()).await {
                    Some(Err(reason)) => Err(reason),
                    Some(Ok(_)) | None => Err(problem),
                }
            }
        },
    }
}

async fn at_once<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

type Work = Pin<Box<dyn Future<Output = Result<(), Problem>> + Send>>;

/// Answers with what `give` writes. What fails before the first byte still has a status of its own; what fails later
/// cuts the body off, which every client can tell from its end.
pub(crate) async fn answer<F>(
    kind: &'static str,
    give: impl FnOnce(Writer) -> F,
) -> Result<Response, Problem>
where
    F: Future<Output = Result<(), Problem>> + Send + 'static,
{
    let (mut reader, writer) = tokio::io::simplex(PIPE_BYTES);
    let mut work: Option<Work> = Some(Box::pin(give(writer)));
    let mut first = vec![0; PIECE_BYTES];
    let mut filled = 0;
    if let Some(running) = &mut work {
        tokio::select! {
            biased;
            read = reader.read(&mut first) => filled = read.unwrap_or(0),
            ended = running => {
                ended?;
                work = None;
            }
        }
    }
    first.truncate(filled);
    let mut response = Response::new(Body::new(Given { first: first.into(), reader, work }));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

struct Given {
    first: Bytes,
    reader: Reader,
    /// Nothing once it is done.
    work: Option<Work>,
}

impl hyper::body::Body for Given {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.first)))));
        }
        if let Some(work) = &mut self.work
            && let Poll::Ready(ended) = work.as_mut().poll(context)
        {
            self.work = None;
            if let Err(problem) = ended {
                return Poll::Ready(Some(Err(std::io::Error::other(String::from(problem.detail)))));
            }
        }
        let mut piece = vec![0; PIECE_BYTES];
        let mut room = ReadBuf::new(&mut piece);
        match Pin::new(&mut self.reader).poll_read(context, &mut room) {
            // A pipe does not notice that nobody holds its other end.
            Poll::Pending if self.work.is_none() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
            Poll::Ready(Ok(())) => {
                let length = room.filled().len();
                piece.truncate(length);
                Poll::Ready((length > 0).then(|| Ok(Frame::data(piece.into()))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_body_ends_when_its_work_does() {
        for bytes in [0, 1, PIECE_BYTES + 1, 2 * PIPE_BYTES] {
            let response = answer("text/plain", move |mut writer| async move {
                writer.write_all(&vec![b'x'; bytes]).await.map_err(|_| Problem::field("x", "y"))
            });
            let body = response.await.map_err(|problem| problem.detail).unwrap().into_body();
            let limit = std::time::Duration::from_secs(60);
            let whole = tokio::time::timeout(limit, body.collect()).await.expect("it ends");
            assert_eq!(whole.unwrap().to_bytes().len(), bytes);
        }
    }
}
