//! From end to end: what is allowed works, what is not does not, and both are told.

use belljar_tests::{Layer, Sandbox};

use crate::rig::{Web, World, prints, refusal};

const FETCH: &str = "
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try: print(opener.open(sys.argv[1], timeout=20).read().decode().strip())
except Exception as error: print('refused:', type(error).__name__, getattr(error, 'reason', ''))";

#[test]
fn allowed_host_is_reached_by_name_and_no_other() {
    let (world, web) = (World::with(&["a.test", "b.test"]), Web::start());
    let port = web.port;
    let sandbox = world.sandbox(&["a.test"], &[port]);
    let outcome = sandbox.clone().args([format!("http://a.test:{port}/x")]).run_python(FETCH);
    prints(&outcome, &format!("hello from a.test:{port}/x"));
    let refused = sandbox.args([format!("http://b.test:{port}/x")]).run_python(FETCH);
    assert!(refused.stdout.contains("Name or service not known"), "{refused:#?}");
    let event = refusal(&refused, "name");
    assert_eq!(event.fix, "--egress b.test");
    assert!(!world.asked().contains(&"b.test".to_owned()), "{:?}", world.asked());
    assert_eq!(web.requests(), [format!("GET /x a.test:{port}")]);
}

#[test]
fn without_egress_there_is_no_network_at_all() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let url = format!("http://a.test:{}/", web.port);
    let outcome = Sandbox::standard().alone().args([url]).run_python(FETCH);
    assert!(outcome.stdout.starts_with("refused: URLError"), "{outcome:#?}");
    assert!(world.asked().is_empty() && web.requests().is_empty());
    assert!(outcome.reached.is_empty());
    assert!(!outcome.receipt.layers.iter().any(|layer| layer.name == Layer::Egress));
}

#[test]
fn receipt_holds_the_way_out_as_it_was_read_back_and_the_ledger_what_was_reached() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = web.port;
    for level in [belljar_tests::Level::Standard, belljar_tests::Level::Strict] {
        let settings = world.settings(&world.rule(&["a.test"], &[port], ""));
        let sandbox = Sandbox::at(level).alone().host_env("BELLJAR_CONFIG", settings);
        let sandbox = sandbox.with(["--egress", "@test", "--allow-missing", "uid_per_run"]);
        let outcome = sandbox.args([format!("http://a.test:{port}/x")]).run_python(FETCH);
        prints(&outcome, &format!("hello from a.test:{port}/x"));
        let layer = outcome.receipt.layers.iter().find(|layer| layer.name == Layer::Egress);
        assert!(layer.is_some_and(|layer| layer.verified), "{outcome:#?}");
        let [line] = &outcome.reached[..] else { panic!("{outcome:#?}") };
        assert_eq!((line.host.as_str(), line.port, line.connections), ("a.test", port, 1));
        assert!(line.sent_bytes > 50 && line.received_bytes > 50, "{line:?}");
    }
}

#[test]
fn port_that_is_not_named_is_closed_and_told_with_the_program() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let sandbox = world.sandbox(&["a.test"], &[web.port]);
    let code = "
import socket
try: socket.create_connection(('a.test', 4444))
except OSError as error: print(error.errno)";
    let outcome = sandbox.run_python(code);
    prints(&outcome, "111");
    let event = refusal(&outcome, "port");
    assert_eq!(event.fix, "--egress a.test:4444");
    assert!(event.process.as_ref().is_some_and(|one| one.command.contains("python")), "{event:?}");
}

#[test]
fn wrong_egress_is_told_by_field_and_fix() {
    for (entry, words) in [
        ("https://a.test", "without scheme or path"),
        ("*", "every host"),
        ("@nowhere", "@nowhere"),
        ("a.test:x", "is not a port"),
        ("a.test:53", "sandbox's own"),
    ] {
        let ended = Sandbox::standard().alone().with(["--egress", entry]).plain("python", "1");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            ended.code == Some(2) && told.contains("egress") && told.contains(words),
            "{ended:?}"
        );
    }
    let basic = Sandbox::at(belljar_tests::Level::Basic).alone().with(["--egress", "a.test"]);
    let ended = basic.plain("python", "1");
    assert!(
        ended.code == Some(2) && String::from_utf8_lossy(&ended.stderr).contains("level standard"),
        "{ended:?}"
    );
}
