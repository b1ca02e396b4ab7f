use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::body::{BodyReader, Taken};
use crate::head::Body;
use crate::swap::{Binding, Swap};

const TOKEN: &str = "bjph_abcdefghijkmnpqrstuvwxyz23456789abcdefgh";
const OTHER: &str = "bjph_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";
const DECOY: &str = "decoy-0123456789-decoy";
const VALUE: &str = "sk-real-value-0123456789";

fn swap(in_body: bool) -> Swap {
    let one = |token: &str, value: &str, host: &str| Binding {
        placeholder: token.to_owned(),
        value: value.to_owned(),
        hosts: vec![host.to_owned()],
        in_body,
        ..Binding::default()
    };
    let bindings = vec![one(TOKEN, VALUE, "a.example"), one(OTHER, "other-value", "b.example")];
    Swap::new(bindings, &[DECOY.to_owned()])
}

/// Says no to DELETE, and tells why everything ends.
struct Strict;

impl Judge for Strict {
    fn allows(&mut self, method: &str, _: &str) -> Result<(), String> {
        if method == "DELETE" { Err("DELETE is not allowed".to_owned()) } else { Ok(()) }
    }

    fn ends(&mut self, trouble: &Trouble) -> Option<String> {
        Some(format!("because of {trouble:?}"))
    }
}

/// A real host that repeats what it was sent, and tells us.
struct Origin {
    authority: Arc<Authority>,
    address: std::net::SocketAddr,
    heard: mpsc::UnboundedReceiver<String>,
}

impl Origin {
    async fn start(name: &'static str) -> Self {
        let authority = Arc::new(Authority::new().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, heard) = mpsc::unbounded_channel();
        let acceptor = TlsAcceptor::from(authority.server(name).unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, tell) = (acceptor.clone(), tell.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut bytes = Vec::new();
                    let mut piece = [0; 4096];
                    while let Ok(read) = stream.read(&mut piece).await {
                        if read == 0 {
                            break;
                        }
                        bytes.extend_from_slice(&piece[..read]);
                        while let Some(end) = whole(&bytes) {
                            let request: Vec<u8> = bytes.drain(..end).collect();
                            let said = String::from_utf8_lossy(&request).into_owned();
                            let answer = format!(
                                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}",
                                said.len()
                            );
                            // In two pieces, cut within what must not be seen.
                            let cut = answer.find(VALUE).map_or(answer.len() / 2, |at| at + 9);
                            stream.write_all(&answer.as_bytes()[..cut]).await.unwrap();
                            stream.flush().await.unwrap();
                            stream.write_all(&answer.as_bytes()[cut..]).await.unwrap();
                            stream.flush().await.unwrap();
                            tell.send(said).ok();
                        }
                    }
                });
            }
        });
        Self { authority, address, heard }
    }
}

/// Where a whole request ends.
fn whole(bytes: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(bytes).ok()?;
    let end = text.find("\r\n\r\n")? + 4;
    if text[..end].contains("chunked") {
        return text[end..].find("0\r\n\r\n").map(|at| end + at + 5);
    }
    let length = text[..end].lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    (bytes.len() >= end + length).then_some(end + length)
}

/// A client's connection through us, and what came of it.
async fn through(origin: &Origin, swap: Swap, said: &str) -> (String, Result<Carried, Trouble>) {
    let inner = Authority::new().unwrap();
    let outside = Outside::by_bundle(origin.authority.pem().as_bytes()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let carrying = async {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(origin.address).await.unwrap();
        let (swap, peer) = (Current::new(swap), Peer { host: "a.example", port: 443 });
        let between = Between { authority: &inner, outside: &outside, swap: &swap };
        carry(client, server, peer, between, &mut Strict).await
    };
    let asking = async {
        let believes = Outside::by_bundle(inner.pem().as_bytes()).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let mut heard = Vec::new();
        if let Ok(mut stream) = believes.greet(stream, "a.example").await {
            stream.write_all(said.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            stream.shutdown().await.ok();
            // An end without a word is an end.
            stream.read_to_end(&mut heard).await.ok();
        }
        String::from_utf8_lossy(&heard).into_owned()
    };
    let (carried, heard) = tokio::join!(carrying, asking);
    (heard, carried)
}

fn post(headers: &str, body: &str) -> String {
    format!("POST /x HTTP/1.1\r\nHost: a.example\r\n{headers}\r\n{body}")
}

#[tokio::test]
async fn a_value_reaches_its_host_and_never_comes_back() {
    let mut origin = Origin::start("a.example").await;
    let said =
        format!("GET /x HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer {TOKEN}\r\n\r\n")
            .repeat(2);
    let (heard, carried) = through(&origin, swap(false), &said).await;
    for _ in 0..2 {
        let request = origin.heard.recv().await.unwrap();
        assert!(request.contains(&format!("Authorization: Bearer {VALUE}\r\n")), "{request}");
    }
    assert_eq!(carried.unwrap().requests, 2);
    assert!(heard.contains("Bearer [secret]") && !heard.contains("sk-real"), "{heard}");
}

#[tokio::test]
async fn a_placeholder_of_another_host_is_refused_and_so_is_one_in_a_body() {
    let mut origin = Origin::start("a.example").await;
    let stray = format!("GET / HTTP/1.1\r\nHost: a.example\r\nX: {OTHER}\r\n\r\n");
    let (heard, carried) = through(&origin, swap(false), &stray).await;
    assert_eq!(carried, Err(Trouble::Stray(Stray::Token(1))));
    assert!(
        heard.starts_with("HTTP/1.1 403 Forbidden\r\n") && heard.contains("because"),
        "{heard}"
    );
    let decoy = format!("GET /{DECOY} HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(through(&origin, swap(false), &decoy).await.1, Err(Trouble::Stray(Stray::Decoy)));
    let body = format!("k={TOKEN}");
    let sent = post(&format!("Content-Length: {}\r\n", body.len()), &body);
    let (_, carried) = through(&origin, swap(false), &sent).await;
    assert_eq!(carried, Err(Trouble::Stray(Stray::Token(0))), "it was not asked for there");
    let refused = "DELETE / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let (_, carried) = through(&origin, swap(false), refused).await;
    assert_eq!(carried, Err(Trouble::Refused("DELETE is not allowed".to_owned())));
    assert!(origin.heard.try_recv().is_err(), "nothing of it arrived");
}

#[tokio::test]
async fn a_body_is_replaced_where_asked_and_its_length_is_right() {
    let mut origin = Origin::start("a.example").await;
    let body = format!("a={TOKEN}&b={TOKEN}");
    let sent = post(&format!("Content-Length: {}\r\n", body.len()), &body);
    let (_, carried) = through(&origin, swap(true), &sent).await;
    assert_eq!(carried.unwrap().requests, 1);
    let request = origin.heard.recv().await.unwrap();
    let wanted = format!("a={VALUE}&b={VALUE}");
    assert!(request.ends_with(&wanted), "{request}");
    assert!(request.contains(&format!("Content-Length: {}\r\n", wanted.len())), "{request}");
    // In chunks, one of which ends within it.
    let (first, second) = body.split_at(20);
    let chunks =
        format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len());
    let (_, carried) =
        through(&origin, swap(true), &post("Transfer-Encoding: chunked\r\n", &chunks)).await;
    assert_eq!(carried.unwrap().requests, 1);
    let request = origin.heard.recv().await.unwrap();
    assert!(request.contains(VALUE) && !request.contains("bjph_"), "{request}");
    assert_eq!(request.matches(VALUE).count(), 2, "{request}");
}

#[tokio::test]
async fn a_host_that_is_not_who_it_should_be_gets_nothing() {
    let mut origin = Origin::start("b.example").await;
    let said = format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-Api-Key: {TOKEN}\r\n\r\n");
    let (heard, carried) = through(&origin, swap(false), &said).await;
    assert!(matches!(carried, Err(Trouble::Unverified(_))), "{carried:?}");
    assert!(heard.starts_with("HTTP/1.1 502 ") && origin.heard.try_recv().is_err(), "{heard}");
}

/// A host that speaks something else, and says so in its handshake or by its first words.
#[tokio::test]
async fn a_host_without_http_1_is_told_as_such() {
    for in_handshake in [true, false] {
        let origin = Origin::start("a.example").await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = Origin { address: listener.local_addr().unwrap(), ..origin };
        let mut config = (*origin.authority.server("a.example").unwrap()).clone();
        config.alpn_protocols = if in_handshake { vec![b"h2".to_vec()] } else { Vec::new() };
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else {
                return;
            };
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            stream.flush().await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.ok();
        });
        let said = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        let (heard, carried) = through(&origin, swap(false), said).await;
        assert_eq!(carried, Err(Trouble::NotHttp1), "{in_handshake}");
        assert!(heard.starts_with("HTTP/1.1 502 ") && heard.contains("NotHttp1"), "{heard}");
    }
}

#[test]
fn chunks_are_read_however_they_come_and_wrong_ones_are_refused() {
    let text = b"4\r\nabcd\r\nA\r\n0123456789\r\n0\r\n\r\nrest";
    for step in [1, 2, 3, 100] {
        let (mut reader, mut bytes, mut body) =
            (BodyReader::new(Body::Chunked), Inflow::default(), Vec::new());
        let mut pieces = text.chunks(step);
        loop {
            match reader.take(&mut bytes).unwrap() {
                Taken::Piece(piece) => body.extend(piece),
                Taken::End => break,
                Taken::More => bytes.add(pieces.next().unwrap()),
            }
        }
        assert_eq!(body, b"abcd0123456789", "{step}");
    }
    for wrong in [
        &b"4;x\r\nabcd\r\n"[..],
        b"x\r\n",
        b"4\r\nabcdXX",
        b"0\r\nX: y\r\n\r\n",
        b"-1\r\n",
        &[b'1'; 40],
    ] {
        let mut bytes = Inflow::from(wrong);
        let mut reader = BodyReader::new(Body::Chunked);
        let ended = loop {
            match reader.take(&mut bytes) {
                Ok(Taken::Piece(_)) => {}
                Ok(Taken::More | Taken::End) => break Ok(()),
                Err(trouble) => break Err(trouble),
            }
        };
        assert!(ended.is_err(), "{:?}", String::from_utf8_lossy(wrong));
    }
}
