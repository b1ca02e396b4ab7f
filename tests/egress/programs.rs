//! Who was refused: every refusal names the program that asked, by whatever way it asked.

use belljar_tests::Outcome;

use crate::clients::TLS_SERVER;
use crate::rig::{Web, World};

/// The rule and the command of each refusal that names who it was, in the order of their commands.
fn refused(outcome: &Outcome) -> Vec<(String, String)> {
    let events = outcome.events.iter().filter(|event| event.rule.starts_with("egress/"));
    let mut all: Vec<(String, String)> = events
        .map(|event| {
            let who = event.process.as_ref().unwrap_or_else(|| panic!("nobody: {event:#?}"));
            assert!(who.pid > 1 && who.parent.is_some(), "{event:?}");
            (event.rule.clone(), who.command.clone())
        })
        .collect();
    all.sort_by(|one, other| one.1.cmp(&other.1));
    all
}

#[test]
fn refusals_name_the_program_whichever_way_it_asked() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    world.certificates(&["a.test"]);
    let (_server, tls) = world.serve_tls(TLS_SERVER);
    let port = web.port;
    // Each under a name of its own, and none lives long after its answer.
    let code = format!(
        "for n in 1dns 2connect 3socks 4absolute 5sni 6host; do ln -s \"$(command -v curl)\" /tmp/$n; done
/tmp/1dns -s --noproxy '*' http://b.test:{port}/
/tmp/2connect -s -p http://c.test:{port}/
/tmp/3socks -s --proxy socks5h://198.18.0.1:1080 http://d.test:{port}/
/tmp/4absolute -s -o /dev/null http://e.test:{port}/
/tmp/5sni -sk --noproxy '*' --connect-to f.test:{tls}:a.test:{tls} https://f.test:{tls}/
/tmp/6host -s -o /dev/null --noproxy '*' -H 'Host: g.test' http://a.test:{port}/
echo done"
    );
    let outcome = world.sandbox(&["a.test"], &[port, tls]).run_bash(&code);
    assert!(outcome.stdout.ends_with("done\n"), "{outcome:#?}");
    let told = refused(&outcome);
    let rules: Vec<&str> = told.iter().map(|(rule, _)| rule.as_str()).collect();
    let [name, sni, host] = ["egress/name", "egress/sni", "egress/host"];
    assert_eq!(rules, [name, name, name, name, sni, host], "{told:#?}");
    for (place, (_, command)) in told.iter().enumerate() {
        assert!(command.starts_with(&format!("/tmp/{}", place + 1)), "{told:#?}");
    }
    assert_eq!(web.requests(), Vec::<String>::new());
}

#[test]
fn programs_that_ask_at_once_are_told_apart() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let code = "
for n in $(seq 12); do ln -s /usr/bin/python3 /tmp/p$n; done
for n in $(seq 12); do /tmp/p$n -c \"
import socket
try: socket.getaddrinfo('n$n.test', 80)
except OSError: pass\" & done
wait; echo done";
    let outcome =
        world.sandbox(&["a.test"], &[web.port]).with(["--timeout", "100s"]).run_bash(code);
    assert!(outcome.stdout.ends_with("done\n"), "{outcome:#?}");
    let events: Vec<_> = outcome.events.iter().filter(|one| one.rule == "egress/name").collect();
    assert_eq!(events.len(), 12, "{outcome:#?}");
    for event in events {
        // A machine that is too busy to look in time tells of nobody; it never tells of another.
        let Some(who) = &event.process else { continue };
        let number = event.fix.trim_start_matches("--egress n").trim_end_matches(".test");
        assert!(who.command.starts_with(&format!("/tmp/p{number} ")), "{event:?}");
    }
    let named = outcome.events.iter().filter(|one| one.process.is_some()).count();
    assert!(named > 0, "{outcome:#?}");
}
