//! The sandbox's resolver: each allowed name has an address of our own, and nothing else exists.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use belljar_jail::egress::{From, Why};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::door::{ACCEPT_AGAIN, Shared, stream_of};
use crate::message::{A, Code, Question};
use crate::resolver::Known;

/// The longest question: one name and what clients add to it.
const MAX_QUESTION: usize = 4096;
/// For how many seconds an answer may be kept inside.
const TTL: u32 = 30;
/// How long a connection may wait for its next question.
const STREAM_IDLE: Duration = Duration::from_secs(10);
/// Questions on one connection.
const MAX_ON_STREAM: usize = 1000;

pub(crate) async fn serve_datagrams(shared: Rc<Shared>, socket: UdpSocket) {
    let socket = Rc::new(socket);
    let mut bytes = vec![0; MAX_QUESTION];
    loop {
        let (length, from_address) = match socket.recv_from(&mut bytes).await {
            Ok(received) => received,
            // What an earlier answer met: whoever asked has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(_) => return,
        };
        shared.budget.asking.wait().await;
        let Ok(turn) = Arc::clone(&shared.asking).acquire_owned().await else { return };
        let (shared, socket) = (Rc::clone(&shared), Rc::clone(&socket));
        let question = bytes[..length].to_vec();
        tokio::task::spawn_local(async move {
            let _turn = turn;
            let from = Some(From { address: from_address, datagrams: true });
            if let Some(answer) = answer(&shared, from, &question).await {
                // Whoever has gone does not miss it.
                socket.send_to(&answer, from_address).await.ok();
            }
        });
    }
}

pub(crate) async fn serve_streams(shared: Rc<Shared>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // It has gone already, or there is no descriptor to spare: others may follow.
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let Ok(turn) = Arc::clone(&shared.asking).acquire_owned().await else { return };
        let shared = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            let _turn = turn;
            // Its end, or nonsense: the same to us.
            converse(&shared, stream).await.ok();
        });
    }
}

async fn converse(shared: &Rc<Shared>, mut stream: TcpStream) -> io::Result<()> {
    for _ in 0..MAX_ON_STREAM {
        let length = tokio::time::timeout(STREAM_IDLE, stream.read_u16()).await??;
        if usize::from(length) > MAX_QUESTION {
            return Ok(());
        }
        let mut question = vec![0; length.into()];
        tokio::time::timeout(STREAM_IDLE, stream.read_exact(&mut question)).await??;
        shared.budget.asking.wait().await;
        let Some(answer) = answer(shared, stream_of(&stream), &question).await else {
            return Ok(());
        };
        let length = u16::try_from(answer.len()).unwrap_or(0);
        let framed = [&length.to_be_bytes()[..], &answer].concat();
        tokio::time::timeout(STREAM_IDLE, stream.write_all(&framed)).await??;
    }
    Ok(())
}

async fn answer(shared: &Rc<Shared>, from: Option<From>, bytes: &[u8]) -> Option<Vec<u8>> {
    let question = match Question::read(bytes)? {
        Ok(question) => question,
        Err(answer) => return Some(answer),
    };
    // A name is a way to tell something, whoever is asked for it. As it was written: letters count here.
    if let Some(leak) = shared.ended.leak_in(bytes) {
        shared.ledger.refuse(from, ("a name server", 0, leak.why, &leak.detail)).await;
        return Some(question.answer(Code::NoSuchName, None));
    }
    let allowed = question.name.clone().filter(|name| shared.policy.borrow().knows(name));
    let Some(name) = allowed else {
        if !question.is_reverse() {
            shared.ledger.refuse(from, (&question.shown, 0, Why::Name, "")).await;
        }
        return Some(question.answer(Code::NoSuchName, None));
    };
    if question.kind != A {
        // There are none of the kind. Also of AAAA: who asks for both takes the other.
        return Some(question.answer(Code::Fine, None));
    }
    match shared.resolver.look_up(&name).await {
        Known::Addresses(_) => {}
        Known::NoSuchName => return Some(question.answer(Code::NoSuchName, None)),
        Known::Failed => {
            let what = (&*name, 0, Why::Unreachable, "no name server answered");
            shared.ledger.refuse(from, what).await;
            return Some(question.answer(Code::Failed, None));
        }
    }
    let address = shared.book.borrow_mut().address(&name);
    if address.is_none() {
        shared.ledger.refuse(from, (&name, 0, Why::Budget, "names")).await;
    }
    let code = if address.is_some() { Code::Fine } else { Code::Failed };
    Some(question.answer(code, address.map(|address| (address, TTL))))
}
