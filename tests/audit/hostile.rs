//! Text from programs and callers that means harm: to the terminal, the page, the file.

use crate::{Place, id};

/// Sets the title, asks the terminal to answer, turns the writing, opens a tag, ends with what is no text.
const HOSTILE: &str = "\\x1b]0;evil\\x07\\x1b[6n\\x9b2J\\x00\\xe2\\x80\\xae</pre><script>alert(1)</script>\\xff\\r\\n";

fn unseen(text: &str) -> Option<char> {
    text.chars().find(|one| *one != '\n' && belljar::visible::is_unseen(*one))
}

fn place_with_a_hostile_run() -> (Place, String) {
    let place = Place::new();
    let code = format!(
        "import sys\nsys.stdout.buffer.write(b'{HOSTILE}' * 3)\nsys.stderr.buffer.write(b'{HOSTILE}')\n# \u{202e}\u{9b}</pre><script>alert(2)</script>"
    );
    let label = "x=\u{1b}]0;evil\u{7}<script>alert(3)</script>\u{202e}";
    let outcome = place.run(&["--label", label, "-c", &code, "--", "\u{1b}[2J"]);
    // Without us it is all there: the Outcome has it as it was written.
    assert!(outcome["stdout"].as_str().is_some_and(|out| out.contains('\u{1b}')), "{outcome}");
    let id = id(&outcome).to_owned();
    (place, id)
}

#[test]
fn hostile_text_does_not_reach_a_terminal() {
    let (place, id) = place_with_a_hostile_run();
    for command in [
        &["audit", "list"][..],
        &["audit", "list", "--json"],
        &["audit", "show", &id],
        &["audit", "show", &id, "--json"],
        &["audit", "export"],
        &["explain", &id],
        &["explain", &id, "--short"],
        &["explain", &id, "--json"],
        &["report", &id],
        &["report", &id, "--json"],
        &["report", &id, "--html", "-"],
        &["stats"],
        &["stats", "--json"],
    ] {
        let ended = place.belljar().args(command).run();
        assert_eq!(ended.code, Some(0), "{command:?}: {ended:?}");
        assert_eq!(unseen(&ended.out()), None, "{command:?}");
        assert_eq!(unseen(&ended.err()), None, "{command:?}");
    }
}

#[test]
fn hostile_text_does_not_become_a_part_of_the_page() {
    let (place, id) = place_with_a_hostile_run();
    let page = place.belljar().args(["report", &id, "--html", "-"]).run().out();
    assert!(
        page.contains("&lt;script&gt;alert(1)") && page.contains("&lt;script&gt;alert(3)"),
        "{page}"
    );
    let lower = page.to_lowercase();
    for forbidden in
        ["<script", "javascript:", "http://", "https://", "src=", "href=", "onerror", "<iframe"]
    {
        assert!(!lower.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("default-src 'none'"), "a policy forbids the rest");
    assert_eq!(page.matches("<pre>").count(), page.matches("</pre>").count());
}

#[test]
fn hostile_text_does_not_harm_the_trail() {
    let (place, id) = place_with_a_hostile_run();
    place.verified();
    let run = place.show(&id);
    let out = run["end"]["outcome"]["stdout"].as_str().expect("text");
    assert!(
        out.contains("\u{1b}]0;evil") && out.contains('\0'),
        "what was written is recorded: {out:?}"
    );
    assert_eq!(place.list(&["--label", "x"]).len(), 1);
    let path = place.directory().join("trail.jsonl");
    place.audit(&["export", "--out", path.to_str().expect("text")]);
    assert_eq!(place.audit(&["verify", path.to_str().expect("text")]).code, Some(0));
}

#[test]
fn huge_text_is_recorded_in_part() {
    let place = Place::new();
    let code = format!("print('x' * (1 << 20))\n#{}", "y".repeat(1 << 20));
    let file = place.directory().file("huge.py", code);
    let outcome =
        place.run(&["--output", "1m", "--output-total", "4m", file.to_str().expect("text")]);
    let run = place.show(id(&outcome));
    let (kept, out) = (&run["start"]["code"], &run["end"]["outcome"]["stdout"]);
    let (kept, out) = (kept.as_str().expect("text"), out.as_str().expect("text"));
    assert!(kept.len() < 300 << 10 && kept.contains("bytes not recorded]"), "{}", kept.len());
    assert!(out.len() < 40 << 10 && out.contains("bytes not recorded]"), "{}", out.len());
    let text = place.belljar().args(["explain", id(&outcome), "--short", "80"]).run().out();
    assert!(text.trim_end().chars().count() <= 80, "{text}");
}

#[test]
fn secrets_are_nowhere_in_the_trail() {
    let place = Place::new();
    let secret = "correct-horse-battery";
    // Told by the program, in its output, its errors and a file's name, and cut in the middle of it.
    let code = "import os, sys\nkey = os.environ['KEY']\nprint(key)\nprint('<' + key + '>', file=sys.stderr)\n\
                print('a' * 1000 + key * 2000)\nopen(key, 'w').close()\nos.execv('/bin/' + key, [key])";
    let ended = place
        .belljar()
        .env("KEY", secret)
        .args(["run", "--json", "--output", "1000", "--label", &format!("l={secret}")])
        .args(["--env-secret", "KEY", "-c", code, "--", secret])
        .run();
    let outcome = ended.json();
    assert!(outcome["stdout"].as_str().is_some_and(|out| out.contains(secret)), "{outcome}");
    place.verified();
    let bytes = std::fs::read(place.state().join("audit.db")).expect("the trail");
    let text = String::from_utf8_lossy(&bytes);
    for piece in [secret, &secret[..12], &secret[9..]] {
        assert!(!text.contains(piece), "{piece}: {}", place.show(id(&outcome)));
    }
    let run = place.show(id(&outcome)).to_string();
    assert!(run.contains("[secret]"), "{run}");
    let given = place.belljar().args(["run", "--json", "--env-secret", "KEY=short-of-nothing"]);
    let given = given.args(["-c", "import os; print(os.environ['KEY'])"]).run().json();
    assert_eq!(given["stdout"], "short-of-nothing\n");
    for (option, words) in [
        ("KEY=abc", "secret_env has KEY, whose value is shorter than 4 bytes"),
        ("NO_SUCH_NAME", "env-secret names NO_SUCH_NAME, which our environment has not"),
    ] {
        let ended = place.belljar().args(["run", "--env-secret", option, "-c", "1"]).run();
        assert!(ended.code == Some(2) && ended.err().contains(words), "{ended:?}");
    }
}

#[test]
fn encoded_secrets_are_nowhere_in_the_trail() {
    let place = Place::new();
    let secret = "k3y/with+odd&bytes~~?";
    let code = "
import base64, binascii, os, sys, urllib.parse
key = os.environ['KEY'].encode()
for before in (b'', b'x', b'xy'):
    print(base64.b64encode(before + key).decode(), base64.urlsafe_b64encode(before + key).decode())
print(key.hex(), key.hex().upper(), key.hex(' '), urllib.parse.quote(key), urllib.parse.quote_plus(key, safe=''))
sys.stderr.write(base64.encodebytes(b'-' * 50 + key).decode())
try: os.chroot('/' + key.hex())
except OSError: pass
print('a' * 4000 + base64.b64encode(key * 3000).decode())";
    let ended = place
        .belljar()
        .args(["run", "--json", "--output", "1500", "--env-secret"])
        .arg(format!("KEY={secret}"))
        .args(["-c", code])
        .run();
    let outcome = ended.json();
    // What our caller is told is whole: it gave the secret.
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(outcome["stdout"].as_str().is_some_and(|out| out.contains(&hex)), "{outcome}");
    assert!(outcome["events"].to_string().contains(&hex), "{outcome}");
    place.verified();
    let shown = place.show(id(&outcome));
    let bytes = std::fs::read(place.state().join("audit.db")).expect("the trail");
    let text = String::from_utf8_lossy(&bytes);
    let pieces = [
        "k3y%2Fwith",
        "k3y/with",
        "azN5L3dpdGgrb2Rk",
        "M3kvd2l0aCtvZGQm",
        "szeS93aXRoK29kZC",
        "JmJ5dGVzfn4_",
        "JmJ5dGVzfn4/",
        &hex[4..20],
        &hex.to_uppercase()[4..20],
        "6b 33 79",
    ];
    for piece in pieces {
        assert!(!text.contains(piece), "{piece}: {shown}");
    }
    let events = shown["end"]["outcome"]["events"].to_string();
    assert!(events.contains("chroot(path=\\\"/[secret]\\\")"), "{events}");
}
