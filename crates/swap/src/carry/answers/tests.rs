use tokio::io::{AsyncReadExt, DuplexStream, duplex, split};

use super::*;
use crate::swap::Binding;

const VALUE: &str = "sk-real-value-0123456789";
const OTHER: &str = "the-value-of-another-host";
const GET: Asked = Asked { to_head: false, waits: false };
const MASK: &str = "[secret]****************";

fn current() -> Current {
    let one = |value: &str, host: &str| Binding {
        placeholder: format!("bjph_{host}"),
        value: value.to_owned(),
        hosts: vec![host.to_owned()],
        ..Binding::default()
    };
    let current = Current::default();
    current.renew(vec![one(VALUE, "a.example"), one(OTHER, "b.example")], Vec::new());
    current
}

/// A host's side of a conversation.
struct Talk {
    server: DuplexStream,
    client: DuplexStream,
    ask: mpsc::Sender<Asked>,
    run: tokio::task::JoinHandle<(Result<u64, Trouble>, bool)>,
    current: Arc<Current>,
}

impl Talk {
    async fn new(asked: &[Asked]) -> Self {
        let (server, outer) = duplex(1 << 20);
        let (inner, client) = duplex(1 << 20);
        let (ask, hear) = mpsc::channel(MAX_ASKED);
        for one in asked {
            ask.send(*one).await.unwrap();
        }
        let current = Arc::new(current());
        let theirs = Arc::clone(&current);
        let run = tokio::spawn(async move {
            let ((from, _outer), (_inner, mut to)) = (split(outer), split(inner));
            let midway = AtomicBool::new(false);
            let answers = Answers {
                from,
                to: &mut to,
                host: "a.example",
                current: &theirs,
                asked: hear,
                midway: &midway,
            };
            let ended = answers.run().await;
            (ended, midway.load(Ordering::Relaxed))
        });
        Self { server, client, ask, run, current }
    }

    /// What has come by the time that the host has said this.
    async fn say(&mut self, text: &str) {
        self.server.write_all(text.as_bytes()).await.unwrap();
    }

    /// So many bytes of what came.
    async fn hear(&mut self, count: usize) -> String {
        let mut bytes = vec![0; count];
        self.client.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// All that comes to the end.
    async fn end(mut self) -> (String, Result<u64, Trouble>, bool) {
        drop((self.server, self.ask));
        let (ended, midway) = self.run.await.unwrap();
        let mut heard = Vec::new();
        self.client.read_to_end(&mut heard).await.unwrap();
        (String::from_utf8_lossy(&heard).into_owned(), ended, midway)
    }
}

/// Everything that a program gets when a host says this in answer to one request.
async fn answered(text: &str) -> (String, Result<u64, Trouble>, bool) {
    let mut talk = Talk::new(&[GET]).await;
    talk.say(text).await;
    talk.end().await
}

fn length(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn an_echo_in_chunks_is_hidden_whole() {
    let (one, two) = VALUE.split_at(9);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Echo: v\r\n\r\n";
    let text = format!(
        "{chunked}9;x=y\r\n{one}\r\n{:x}\r\n{two}\r\n3\r\nend\r\n0\r\nT: r\r\n\r\n",
        two.len()
    );
    let (heard, ended, midway) = answered(&text).await;
    assert!(ended.is_ok() && !midway, "{ended:?}");
    let (head, body) = heard.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Transfer-Encoding: chunked") && head.contains("X-Echo: v"), "{head}");
    let plain: String = body.split("\r\n").skip(1).step_by(2).collect();
    assert_eq!(plain, format!("{MASK}end"), "{body}");
    assert!(body.ends_with("0\r\n\r\n") && !body.contains("T: r"), "{body}");
}

#[tokio::test]
async fn echoes_are_hidden_in_heads_in_lengths_and_to_the_end_of_a_connection() {
    let (heard, ended, _) = answered(&length(&format!("x {VALUE} y"))).await;
    assert_eq!((heard, ended.is_ok()), (length(&format!("x {MASK} y")), true));
    let open = format!("HTTP/1.0 200 OK\r\nLocation: /?k={VALUE}\r\n\r\nit is {VALUE}");
    let (heard, ended, _) = answered(&open).await;
    assert!(ended.is_ok() && heard.contains(&format!("Location: /?k={MASK}\r\n")), "{heard}");
    assert!(heard.ends_with(&format!("it is {MASK}")), "{heard}");
}

/// What a program sees of a guess at the beginning is the same whether it is right or wrong, at every moment.
#[tokio::test]
async fn a_right_guess_at_a_beginning_is_treated_as_a_wrong_one() {
    let sizes = |guess: &'static str| async move {
        let mut talk = Talk::new(&[GET]).await;
        let filling = "-".repeat(500);
        let whole = format!("{filling}{guess}{filling}");
        talk.say(&format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{filling}{guess}",
            whole.len()
        ))
        .await;
        // All but the tail, whatever that is.
        let tail = talk.current.now().returning("a.example").tail();
        assert!((100..400).contains(&tail), "{tail}");
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 1007\r\n\r\n".len();
        let first = talk.hear(head + 500 + guess.len() - tail).await;
        let more = tokio::time::timeout(std::time::Duration::from_millis(50), talk.hear(1)).await;
        assert!(more.is_err(), "no more than that: {more:?}");
        talk.say(&filling).await;
        let (rest, ended, _) = talk.end().await;
        assert!(ended.is_ok(), "{ended:?}");
        let shown = format!("{first}{rest}");
        assert!(shown.contains(guess), "{shown}");
        (first.len(), rest.len())
    };
    assert_eq!(sizes("sk-real").await, sizes("sk-fake").await);
    for guess in ["s", "sk-", "sk-real", "sk-real-value-012345678"] {
        let (heard, ended, _) = answered(&length(guess)).await;
        assert_eq!((heard, ended.is_ok()), (length(guess), true), "at the end of a message");
        let open = format!("HTTP/1.1 200 OK\r\nX: {guess}\r\n\r\n{guess}");
        let (heard, ..) = answered(&open).await;
        assert!(heard.contains(&format!("X: {guess}\r\n")) && heard.ends_with(guess), "{heard}");
    }
    // Of a host that it is not for nothing is hidden: it does not know it.
    assert!(answered(&length(OTHER)).await.0.ends_with(OTHER));
}

#[tokio::test]
async fn answers_that_cannot_be_looked_into_are_refused_before_a_byte_of_them() {
    for (text, encoded) in [
        ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", false),
        ("HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", false),
    ] {
        let (heard, ended, midway) = answered(text).await;
        assert_eq!((heard.as_str(), midway), ("", false), "{text}");
        assert_eq!(matches!(ended, Err(Trouble::Encoded(_))), encoded, "{ended:?}");
        assert_eq!(matches!(ended, Err(Trouble::Answer(_))), !encoded, "{ended:?}");
    }
    let (_, ended, midway) =
        answered("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz").await;
    assert!(matches!(ended, Err(Trouble::Framing(_))) || ended.is_err(), "{ended:?}");
    assert!(midway, "nothing of ours may be said now");
}

#[tokio::test]
async fn bodies_belong_to_what_was_asked() {
    let to_head = Asked { to_head: true, waits: false };
    let mut talk = Talk::new(&[to_head, GET, GET]).await;
    talk.say("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n").await;
    talk.say("HTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 None\r\n\r\n").await;
    talk.say(&length("last")).await;
    talk.say("HTTP/1.1 408 Too late\r\nContent-Length: 0\r\n\r\n").await;
    let (heard, ended, _) = talk.end().await;
    assert!(ended.is_ok(), "{ended:?}");
    let wanted = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n\
                  HTTP/1.1 204 None\r\n\r\n";
    assert_eq!(heard, format!("{wanted}{}", length("last")), "and nothing that nobody asked for");
}

#[tokio::test]
async fn an_answer_that_is_cut_short_has_no_end() {
    for text in ["HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "HTTP/1.1 200 OK\r\nConte"] {
        let (_, ended, _) = answered(text).await;
        assert_eq!(ended, Err(Trouble::Broken(io::ErrorKind::UnexpectedEof)), "{text}");
    }
}

#[tokio::test]
async fn who_waits_to_go_on_is_told_by_us_in_its_turn() {
    let waits = Asked { to_head: false, waits: true };
    let go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    let mut talk = Talk::new(&[waits, waits]).await;
    assert_eq!(talk.hear(go_on.len()).await, go_on, "before the host says anything");
    talk.say(&length("one")).await;
    let first = length("one");
    assert_eq!(talk.hear(first.len() + go_on.len()).await, format!("{first}{go_on}"));
    talk.say(&length("two")).await;
    assert_eq!(talk.end().await.0, length("two"));
}

#[tokio::test]
async fn a_value_that_changes_half_way_is_hidden_old_and_new() {
    let mut talk = Talk::new(&[GET]).await;
    let new = "sk-newer-value-987654321";
    let (one, two) = VALUE.split_at(12);
    let whole = format!("{one}{two} {new} {}", "-".repeat(300));
    talk.say(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{one}", whole.len())).await;
    talk.hear(20).await; // it has begun
    let mut bindings = talk.current.now().bindings().to_vec();
    new.clone_into(&mut bindings[0].value);
    talk.current.renew(bindings, Vec::new());
    talk.say(&whole[one.len()..]).await;
    let (heard, ended, _) = talk.end().await;
    assert!(ended.is_ok() && heard.contains(&format!("{MASK} {MASK} ---")), "{ended:?} {heard}");
}

/// A record comes when it has ended, without a byte of the next; what stands at its end is shown whatever it is.
#[tokio::test]
async fn a_record_of_a_stream_comes_whole_before_the_next() {
    for (kind, begin, end) in
        [("text/event-stream", "data: ", "\n\n"), ("application/x-ndjson", "{\"a\": \"", "\"}\r\n")]
    {
        let mut talk = Talk::new(&[GET]).await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n");
        talk.say(&format!("{head}\r\n")).await;
        talk.hear(format!("{head}Connection: close\r\n\r\n").len()).await;
        for inside in ["hello", "sk-real", "sk-fake", VALUE, "sk-real-value-012345678"] {
            let record = format!("{begin}{inside}{end}");
            talk.say(&record).await;
            let shown = record.replace(VALUE, MASK);
            let hear = talk.hear(record.len());
            let heard = tokio::time::timeout(std::time::Duration::from_secs(20), hear).await;
            assert_eq!(heard.expect("in time"), shown, "{kind}");
        }
        // What has not ended waits.
        talk.say(begin).await;
        let more = tokio::time::timeout(std::time::Duration::from_millis(50), talk.hear(1)).await;
        assert!(more.is_err(), "{kind}: {more:?}");
        assert_eq!(talk.end().await.0, begin);
    }
}
