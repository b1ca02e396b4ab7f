//! Agents that are not ours: what they say is bounded, timed and checked.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use belljar_jail::agent;
use belljar_jail::agent::wire::{
    Answer, Bytes, Fault, Kind, Listed, MAX_FRAME_BYTES, Meta, Request, Time,
};

use super::rig::{block_on, path};
use crate::living::files::{FileError, Files, PutOptions};

/// Files behind an agent that answers each question so: the bytes that it sends.
fn lied_to(answer: impl Fn(u64, Request) -> Vec<u8> + Send + Sync + 'static) -> Files {
    let answer = Arc::new(answer);
    let start = move || {
        let (ours, theirs) = agent::pair().unwrap();
        let answer = Arc::clone(&answer);
        std::thread::spawn(move || {
            let mut socket = UnixStream::from(theirs);
            let mut length = [0; 4];
            while socket.read_exact(&mut length).is_ok() {
                let mut rest = vec![0; u32::from_le_bytes(length) as usize];
                socket.read_exact(&mut rest).unwrap();
                let (id, request) = Request::read(&rest).unwrap();
                let bytes = answer(id, request);
                // The other side may have heard enough.
                if socket.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        let started: super::super::Starting = Box::pin(std::future::ready(Ok(ours)));
        started
    };
    Files::with_patience(Arc::new(start), Arc::new(|| None), Duration::from_millis(500))
}

fn meta(kind: Kind) -> Meta {
    let modified = Time { seconds: 0, nanos: 0 };
    Meta { kind, bytes: 5, mode: 0o644, modified, device: 1, inode: 1 }
}

fn said(result: Result<impl std::fmt::Debug, FileError>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.fault.kind(), "agent", "{error}");
    error.to_string()
}

#[test]
fn an_honest_answer_is_taken_and_each_lie_is_noticed() {
    let told = Answer::Meta { meta: meta(Kind::File), target: None };
    let honest = {
        let told = told.clone();
        lied_to(move |id, _| told.frame(id))
    };
    assert_eq!(block_on(honest.stat(&path("x"))).unwrap().bytes, 5);

    let other = {
        let told = told.clone();
        lied_to(move |id, _| told.frame(id + 1))
    };
    assert!(said(block_on(other.stat(&path("x")))).contains("not asked"));
    let done = lied_to(|id, _| Answer::Done {}.frame(id));
    assert!(said(block_on(done.stat(&path("x")))).contains("not asked"));
    let huge = lied_to(|_, _| u32::MAX.to_le_bytes().to_vec());
    assert!(said(block_on(huge.stat(&path("x")))).contains("too much"));
    let over = u32::try_from(MAX_FRAME_BYTES + 1).unwrap();
    let over = lied_to(move |_, _| over.to_le_bytes().to_vec());
    assert!(said(block_on(over.stat(&path("x")))).contains("too much"));
    let noise = lied_to(|_, _| [&20u32.to_le_bytes()[..], &[0xaa; 20]].concat());
    assert!(said(block_on(noise.stat(&path("x")))).contains("not asked"));
    let errno = lied_to(|id, _| {
        Answer::Fault { fault: Fault::Kernel { errno: 1 << 31 }, at: Bytes::default() }.frame(id)
    });
    assert!(said(block_on(errno.stat(&path("x")))).contains("error that there is not"));
}

#[test]
fn a_slow_agent_is_given_up_and_never_used_again() {
    let slow = lied_to(|_, _| vec![9]);
    assert!(said(block_on(slow.stat(&path("x")))).contains("in time"));
    assert!(slow.0.idle.lock().unwrap().is_empty());
    let silent = lied_to(|_, _| Vec::new());
    assert!(said(block_on(silent.read(&path("x"), 10))).contains("in time"));
    // One that says more than it was asked has something to say before the next question, and is let go.
    let told = Answer::Meta { meta: meta(Kind::File), target: None };
    let chatty = lied_to(move |id, _| [told.frame(id), told.frame(id + 1)].concat());
    block_on(chatty.stat(&path("x"))).unwrap();
    assert!(chatty.0.idle.lock().unwrap().is_empty());
}

#[test]
fn names_that_no_directory_has_are_noticed() {
    for name in ["..", ".", "", "a/b", "../../etc/passwd", "a\0b", &"x".repeat(256)] {
        let listed = Listed { name: Bytes(name.into()), meta: meta(Kind::File), target: None };
        let page = Answer::Page { entries: vec![listed], next: None };
        let liar = lied_to(move |id, request| {
            if matches!(request, Request::Stat { .. }) {
                return Answer::Meta { meta: meta(Kind::Directory), target: None }.frame(id);
            }
            page.frame(id)
        });
        assert!(said(block_on(liar.list(&path("x")))).contains("not asked"), "{name:?}");
        let packed = block_on(liar.download_tar(&path("x"), Vec::new(), 1 << 20));
        assert!(said(packed).contains("not asked"), "{name:?}");
    }
    // A page that is empty and goes on would go on for ever.
    let endless = lied_to(|id, _| Answer::Page { entries: Vec::new(), next: Some(1) }.frame(id));
    assert!(said(block_on(endless.list(&path("x")))).contains("not asked"));
    // Pages that never end are cut at what a listing may have.
    let listed = Listed { name: Bytes(b"x".to_vec()), meta: meta(Kind::File), target: None };
    let full = Answer::Page { entries: vec![listed; 1000], next: Some(1) };
    let endless = lied_to(move |id, _| full.frame(id));
    let error = block_on(endless.list(&path("x"))).unwrap_err();
    assert_eq!(error.fault.kind(), "refused", "{error}");
}

#[test]
fn more_than_was_asked_for_is_noticed() {
    let opened = || Answer::Opened { handle: 1, meta: meta(Kind::File) };
    let liar = lied_to(move |id, request| {
        if matches!(request, Request::Open { .. }) {
            return opened().frame(id);
        }
        Answer::Data { data: Bytes(vec![1; 100]) }.frame(id)
    });
    assert!(said(block_on(liar.read_range(&path("x"), 0, 99))).contains("not asked"));
    // A file that never ends is cut at what the caller takes.
    let endless = lied_to(move |id, request| {
        if let Request::Read { length, .. } = request {
            return Answer::Data { data: Bytes(vec![1; length as usize]) }.frame(id);
        }
        let opens = matches!(request, Request::Open { .. });
        if opens { opened().frame(id) } else { Answer::Done {}.frame(id) }
    });
    let error = block_on(endless.read(&path("x"), 1 << 20)).unwrap_err();
    assert_eq!(error.fault.kind(), "too_large", "{error}");
}

#[test]
fn a_tree_that_is_never_gone_is_given_up() {
    let liar = lied_to(|id, _| Answer::Removed { entries: 1, more: true }.frame(id));
    let error = block_on(liar.remove(&path("x"), true)).unwrap_err();
    assert_eq!(error.fault.kind(), "refused", "{error}");
}

#[test]
fn an_agent_that_cannot_be_started_is_told() {
    let start = || {
        let never: super::super::Starting =
            Box::pin(std::future::ready(Err(crate::model::error::Error::Lost {
                what: "it is stopped",
            })));
        never
    };
    let files = Files::new(Arc::new(start), Arc::new(|| None));
    let error = block_on(files.put(&path("x"), &b"x"[..], PutOptions::default()));
    assert!(said(error).contains("it is stopped"));
}
