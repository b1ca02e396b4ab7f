//! What holds for every language: who waits, who is ended, what is found again.

use std::collections::BTreeMap;

use super::*;

#[tokio::test]
async fn contexts_are_apart_and_run_at_once() {
    let all = contexts();
    let first = all.create(Some("python"), None, BTreeMap::new()).await.unwrap();
    let second = all.create(None, None, BTreeMap::from([("A".into(), "1".into())])).await.unwrap();
    assert_eq!((first.language.as_str(), first.count, first.busy), ("python", 0, false));
    let meet = |mine: &str, other: &str, id: &str| CodeRequest {
        code: format!(
            "import os, time\nopen({mine:?}, 'w').close()\n\
             while not os.path.exists({other:?}): time.sleep(0.01)\nx = {mine:?}\nos.environ.get('A')"
        ),
        context: Some(id.to_owned()),
        ..CodeRequest::default()
    };
    let (mut one, mut two) = (|_| (), |_| ());
    let (one, two) = tokio::join!(
        all.run(meet("one", "two", &first.id), &mut one),
        all.run(meet("two", "one", &second.id), &mut two),
    );
    assert!(one.unwrap().results.is_empty());
    assert_eq!(value(&two.unwrap()), "'1'");
    assert_eq!(error_name(&run(&all, "python", "x").await), "NameError");
    let ids: Vec<_> = all.list().into_iter().map(|info| info.id).collect();
    assert_eq!(ids.len(), 3);
    all.remove(&first.id).await.unwrap();
    assert_eq!(all.list().len(), 2);
    let gone = all.run(meet("one", "two", &first.id), &mut |_| ()).await.unwrap_err();
    assert!(matches!(&gone, Error::Spec(error) if error.field == "context"), "{gone}");
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told_by_its_field() {
    let all = contexts();
    run(&all, "bash", ":").await;
    let wrong = |context: &str, language: &str, timeout_ms| CodeRequest {
        context: Some(context.to_owned()),
        language: Some(language.to_owned()),
        timeout_ms,
        ..CodeRequest::default()
    };
    for (request, field) in [
        (wrong("bash", "python", None), "language"),
        (wrong("bash", "cobol", None), "language"),
        (wrong("nobody", "bash", None), "context"),
        (wrong("bash", "bash", Some(0)), "timeout_ms"),
    ] {
        let refused = all.run(request, &mut |_| ()).await.unwrap_err();
        assert!(matches!(&refused, Error::Spec(error) if error.field == field), "{refused}");
    }
    let refused = all.create(None, Some(PathBuf::from("x")), BTreeMap::new()).await.unwrap_err();
    assert!(matches!(&refused, Error::Spec(error) if error.field == "cwd"), "{refused}");
    for _ in all.list().len()..MAX_CONTEXTS {
        all.create(Some("bash"), None, BTreeMap::new()).await.unwrap();
    }
    let refused = all.create(Some("bash"), None, BTreeMap::new()).await.unwrap_err();
    assert!(matches!(&refused, Error::Spec(error) if error.field == "context"), "{refused}");
}

#[tokio::test]
async fn time_is_up_for_code_that_heeds_and_for_code_that_does_not() {
    let settings = Settings { grace: Duration::from_millis(300), ..Settings::default() };
    let all = contexts_with(settings);
    run(&all, "python", "kept = 41").await;
    let limited = |code: &str| CodeRequest { timeout_ms: Some(300), ..asked("python", code) };
    let told = all.run(limited("while True: pass"), &mut |_| ()).await.unwrap();
    assert_eq!(error_name(&told), "TimeLimit");
    assert_eq!(told.error.as_ref().unwrap().line, Some(1));
    assert!(told.elapsed_ms >= 300 && told.end.is_none());
    assert_eq!(value(&run(&all, "python", "kept").await), "41");
    let deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass";
    let told = all.run(limited(deaf), &mut |_| ()).await.unwrap();
    assert_eq!(error_name(&told), "TimeLimit");
    assert!(told.error.as_ref().unwrap().value.contains("did not heed it"), "{told:?}");
    assert!(told.end.is_some());
    let next = run(&all, "python", "kept").await;
    assert!(next.restarted && error_name(&next) == "NameError");
}

#[tokio::test]
async fn writing_without_end_is_stopped() {
    let all = contexts_with(Settings { output_bytes: 4 << 20, ..Settings::default() });
    let told = run(&all, "python", "while True: print('x' * 10000)").await;
    assert_eq!(error_name(&told), "OutputLimit");
    assert!(told.stdout_truncated);
    assert_eq!(value(&run(&all, "python", "1").await), "1");
}

#[tokio::test]
async fn death_is_told_and_the_next_call_says_that_it_is_fresh() {
    let all = contexts();
    for (death, how) in [
        ("import os; os._exit(4)", "exited with status 4"),
        ("import os; os.closerange(0, 1 << 16)", "exited with status 74"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by signal"),
    ] {
        run(&all, "python", "kept = 41").await;
        let told = run(&all, "python", death).await;
        assert_eq!(error_name(&told), "ContextDied", "{death}");
        assert!(told.error.as_ref().unwrap().value.contains(how), "{death}: {told:?}");
        let next = run(&all, "python", "kept").await;
        assert!(next.restarted && error_name(&next) == "NameError", "{death}: {next:?}");
    }
    // Between two calls: what was asked next is run all the same, in a fresh one.
    run(&all, "python", "import threading, os\nthreading.Timer(0.05, os._exit, [1]).start()").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let next = run(&all, "python", "6 * 7").await;
    assert!(next.restarted && value(&next) == "42", "{next:?}");
}

#[tokio::test]
async fn restart_ends_the_call_and_forgets() {
    let all = contexts();
    run(&all, "bash", "x=5").await;
    let busy = tokio::spawn({
        let all = Arc::clone(&all);
        async move { run(&all, "bash", "trap '' INT; while :; do :; done").await }
    });
    while !all.list()[0].busy {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let info = all.restart("bash").await.unwrap();
    assert_eq!(info.id, "bash");
    let told = busy.await.unwrap();
    assert_eq!(error_name(&told), "ContextDied");
    assert!(told.error.unwrap().value.contains("by request"));
    assert_eq!(run(&all, "bash", "echo [$x]").await.stdout, "[]\n");
}

#[tokio::test]
async fn a_call_that_is_given_up_is_interrupted_and_the_next_one_runs() {
    let all = contexts();
    run(&all, "python", "kept = 41").await;
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let mut sink = |event| {
        if matches!(event, CodeEvent::Output { .. }) {
            said.send(()).unwrap();
        }
    };
    tokio::select! {
        _ = all.run(asked("python", "print('go')\nwhile True: pass"), &mut sink) => unreachable!(),
        _ = heard.recv() => {}
    }
    let next = run(&all, "python", "kept").await;
    assert!(value(&next) == "41" && !next.restarted);
}

#[tokio::test]
async fn calls_wait_for_each_other_and_too_many_are_told_to_come_again() {
    let all = contexts();
    run(&all, "bash", "n=0").await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..=MAX_WAITING {
        let all = Arc::clone(&all);
        calls.spawn(
            async move { run(&all, "bash", "n=$((n + 1)); sleep 0.02; echo $n").await.stdout },
        );
    }
    while !all.list()[0].busy {
        tokio::task::yield_now().await;
    }
    for _ in 0..MAX_WAITING {
        tokio::task::yield_now().await;
    }
    let refused = all.run(asked("bash", ":"), &mut |_| ()).await.unwrap_err();
    assert!(matches!(refused, Error::Busy { waiting: MAX_WAITING, .. }), "{refused}");
    let mut told: Vec<u32> =
        calls.join_all().await.iter().map(|out| out.trim().parse().unwrap()).collect();
    told.sort_unstable();
    assert_eq!(told, (1..=17).collect::<Vec<_>>());
}

#[tokio::test]
async fn events_come_as_they_happen_and_in_order() {
    let all = contexts();
    let mut events = Vec::new();
    let code = "import sys\nprint('a', end='')\ndisplay(1)\nprint('b')\n2";
    all.run(asked("python", code), &mut |event| events.push(event)).await.unwrap();
    let output = |text: &str| CodeEvent::Output { stream: Stream::Stdout, text: text.to_owned() };
    let started = CodeEvent::Started { context: "python".into(), count: 1, restarted: false };
    assert_eq!(events[0], started);
    assert_eq!(events[1], output("a"));
    assert!(matches!(&events[2], CodeEvent::Result(result) if !result.main));
    assert!(events[3..].contains(&output("b")) || events[3..].contains(&output("b\n")));
    assert!(matches!(events.last(), Some(CodeEvent::Result(result)) if result.main));
}

#[tokio::test]
async fn what_came_of_an_interrupt_is_told_and_code_that_is_deaf_is_ended_with_its_context() {
    let settings = Settings {
        timeout: Duration::from_millis(PATIENCE_MS),
        deaf: Duration::from_millis(700),
        ..Settings::default()
    };
    let all = contexts_with(settings);
    let interrupted = async |code: &str| {
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut sink = |event| {
            if matches!(event, CodeEvent::Output { .. }) {
                said.send(()).unwrap();
            }
        };
        let interrupt = async {
            heard.recv().await;
            all.interrupt("python").await.unwrap()
        };
        let (told, came) = tokio::join!(all.run(asked("python", code), &mut sink), interrupt);
        (told.unwrap(), came)
    };
    run(&all, "python", "kept = 41").await;
    let (told, came) = interrupted("import time; print('go'); time.sleep(1000)").await;
    assert!(matches!(came, Interrupted::Heard | Interrupted::Ended), "{came:?}");
    assert_eq!(error_name(&told), "KeyboardInterrupt");
    // What has heard it may take longer than what has not.
    let clears = "import time\ntry:\n    print('go'); time.sleep(1000)\nfinally:\n    time.sleep(1.5); done = 1";
    let (told, came) = interrupted(clears).await;
    assert_eq!((error_name(&told), came), ("KeyboardInterrupt", Interrupted::Heard));
    assert_eq!(value(&run(&all, "python", "kept + done").await), "42");
    let deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('go')\nwhile True: pass";
    let (told, came) = interrupted(deaf).await;
    assert_eq!((error_name(&told), came), ("Interrupted", Interrupted::Restarted));
    assert!(told.error.as_ref().unwrap().value.contains("did not heed it"), "{told:?}");
    let next = run(&all, "python", "kept").await;
    assert!(next.restarted && error_name(&next) == "NameError");
}

#[tokio::test]
async fn an_interrupt_in_the_middle_of_a_long_result_leaves_the_context_sound() {
    let all = contexts();
    run(&all, "python", "kept = 41").await;
    let shows = "print('go')\nwhile True: display({'text/plain': 'x' * 300000}, raw=True)";
    for _ in 0..5 {
        let told = run_and_interrupt(&all, "python", shows).await;
        assert_eq!(error_name(&told), "KeyboardInterrupt", "{:?}", told.error);
        assert_eq!(value(&run(&all, "python", "kept").await), "41");
    }
}
