//! Standard streams: pipes, terminals, logs on the disk, and who listens.

use belljar::runtime::{Living, output};
use belljar::sandbox::{ExecEvent, ExecRequest, TerminalSize};
use belljar::{Data, Stream};
use belljar_tests::block_on;

use crate::rig::{House, bash, collect, until};

#[test]
fn input_is_given_written_and_closed() {
    let house = House::new();
    let given = ExecRequest { stdin: Some(Data(b"one\ntwo\n".to_vec())), ..bash("cat; echo end") };
    assert_eq!(house.run("given", &given).ok().text(), "one\ntwo\nend\n");
    assert_eq!(house.bash("none", "cat; echo end").ok().text(), "end\n");
    let kept = ExecRequest { keep_stdin: true, ..bash("read a; echo got $a; cat") };
    house.start("kept", &kept);
    block_on(house.living.input("kept", b"first\n")).expect("input");
    until("it has answered", || house.info("kept").stdout_bytes > 0);
    block_on(house.living.input("kept", b"rest")).expect("input");
    block_on(house.living.close_input("kept")).expect("close");
    assert_eq!(house.wait("kept").ok().text(), "got first\nrest");
    assert!(block_on(house.living.input("kept", b"x")).is_err(), "it has ended");
}

#[test]
fn a_program_that_does_not_read_blocks_nobody() {
    let house = House::new();
    let lots = vec![b'x'; 3 << 20];
    let request = ExecRequest { stdin: Some(Data(lots)), ..bash("sleep 2; wc -c") };
    house.start("slow", &request);
    house.bash("other", "true").ok();
    assert_eq!(house.wait("slow").ok().text().trim(), (3 << 20).to_string());
}

#[test]
fn a_terminal_is_one_and_can_be_resized() {
    let house = House::new();
    let script = "trap 'stty size' WINCH; tty; stty size; [ -t 0 -a -t 1 -a -t 2 ] && echo all; \
                  ps -o tty= -p $$; until read -t 0.1 line; do :; done; echo got $line";
    let request =
        ExecRequest { terminal: Some(TerminalSize { rows: 30, columns: 100 }), ..bash(script) };
    house.start("tty", &request);
    until("it is there", || read(&house, "tty").contains("all"));
    let shown = read(&house, "tty");
    assert!(shown.contains("/dev/pts/0") && shown.contains("30 100"), "{shown}");
    block_on(house.living.resize("tty", TerminalSize { rows: 11, columns: 22 })).expect("resize");
    until("it was told", || read(&house, "tty").contains("11 22"));
    block_on(house.living.input("tty", b"word\n")).expect("input");
    let came = house.wait("tty").ok();
    assert!(came.text().contains("got word"), "{came:?}");
    house.start(
        "interrupt",
        &ExecRequest { terminal: Some(TerminalSize { rows: 5, columns: 5 }), ..bash("sleep 100") },
    );
    block_on(house.living.input("interrupt", b"\x03")).expect("Ctrl-C");
    assert_eq!(house.wait("interrupt").end().signal, Some(2));
    house.start("pipes", &bash("sleep 100"));
    let refused = block_on(house.living.resize("pipes", TerminalSize { rows: 5, columns: 5 }));
    assert!(refused.expect_err("no terminal").to_string().contains("it has no terminal"));
}

fn read(house: &House, exec: &str) -> String {
    let piece = output(&house.raise.directory, exec, Stream::Stdout, 0, 1 << 16).expect("a log");
    piece.map(|piece| String::from_utf8_lossy(&piece.data).into_owned()).unwrap_or_default()
}

#[test]
fn an_exec_is_followed_from_an_offset_by_whoever_comes_later() {
    let house = House::new();
    house.start("a", &bash("echo 0123456789; sleep 1; echo later"));
    until("it has written", || house.info("a").stdout_bytes >= 11);
    let later = house.again().expect("it stands");
    let came =
        block_on(async { collect(later.follow("a", [5, 0]).await.expect("followed")).await }).ok();
    assert_eq!(came.text(), "56789\nlater\n");
    // And once more when it has ended.
    let came =
        block_on(async { collect(later.follow("a", [11, 0]).await.expect("followed")).await });
    assert_eq!(came.text(), "later\n");
    assert!(block_on(later.follow("nobody", [0, 0])).is_err());
}

#[test]
fn what_a_bounded_log_dropped_is_told_as_a_gap() {
    let house = House::new();
    let script = "head -c 30000000 /dev/zero; echo; echo last";
    let came = house.bash("flood", script).ok();
    assert_eq!(came.info.stdout_bytes, 30_000_006);
    let again = house.wait("flood");
    assert_eq!(again.gaps, [(0, 16 << 20)], "two segments of 8 MiB are kept");
    assert_eq!(again.out.len(), 30_000_006 - (16 << 20));
    assert!(again.out.ends_with(b"\nlast\n"));
    let files = std::fs::read_dir(house.raise.directory.join("execs/flood")).expect("files");
    let logs =
        files.flatten().filter(|one| one.file_name().to_string_lossy().starts_with("stdout."));
    assert_eq!(logs.count(), 2);
}

#[test]
fn events_come_one_after_the_other_and_nothing_is_told_twice() {
    let house = House::new();
    house.start("a", &bash("for i in 1 2 3 4 5; do echo $i; sleep 0.05; done"));
    let (offsets, text) = block_on(async {
        let mut follow = house.living.follow("a", [0, 0]).await.expect("followed");
        let (mut offsets, mut text) = (Vec::new(), String::new());
        while let Some(event) = follow.next().await.expect("told") {
            if let ExecEvent::Output { offset, data, .. } = event {
                offsets.push((offset, data.0.len() as u64));
                text.push_str(&String::from_utf8_lossy(&data.0));
            }
        }
        (offsets, text)
    });
    assert_eq!(text, "1\n2\n3\n4\n5\n");
    assert!(offsets.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0), "{offsets:?}");
}

#[test]
fn clients_beyond_the_bound_are_turned_away_and_the_rest_goes_on() {
    let house = House::new();
    let directory = &house.raise.directory;
    let most = belljar::living_talk::MAX_CLIENTS;
    let many: Vec<Living> = (0..most + 8)
        .filter_map(|_| block_on(Living::connect(directory)).expect("asked"))
        .collect();
    let answered = many.iter().filter(|one| block_on(one.usage()).is_ok()).count();
    assert_eq!(answered, most - 1, "one is ours");
    house.bash("a", "true").ok();
}
