//! bash.

use super::*;

#[tokio::test]
async fn variables_functions_and_directory_stay() {
    let all = contexts();
    assert!(run(&all, "bash", "x=5; declare -A m=([a]=1); cd /; f() { echo \"f $1\"; }").await.ok);
    let told = run(&all, "bash", "echo $x ${m[a]} $PWD; f é; echo bad >&2; false").await;
    assert_eq!(told.stdout, "5 1 /\nf é\n");
    assert_eq!(told.stderr, "bad\n");
    assert_eq!((told.exit_code, error_name(&told)), (Some(1), "ExitStatus"));
    assert_eq!(run(&all, "bash", "printf 'a\\0b\\xff'").await.stdout, "a\0b\u{fffd}");
}

#[tokio::test]
async fn quotes_and_wrong_syntax_stay_inside_the_call() {
    let all = contexts();
    let told =
        run(&all, "bash", "echo 'it'\"'\"'s' \"a\\\\b\"\n# ' unfinished \" $(\necho two").await;
    assert_eq!(told.stdout, "it's a\\b\ntwo\n");
    for wrong in ["if then", "echo 'unfinished", "}", "done; echo no"] {
        let told = run(&all, "bash", wrong).await;
        assert_eq!((error_name(&told), told.exit_code), ("ExitStatus", Some(2)), "{wrong}");
        assert!(told.stderr.contains("line "), "{told:?}");
    }
    let told = run(&all, "bash", "break; continue; return 7").await;
    assert_eq!(told.exit_code, Some(7));
    assert_eq!(run(&all, "bash", "cat; echo $?").await.stdout, "0\n");
}

#[tokio::test]
async fn interrupts_leave_every_loop_and_function() {
    let all = contexts();
    run(&all, "bash", "kept=41; trap '' INT").await;
    for busy in [
        "echo go; while :; do :; done; echo NOT",
        "echo go; sleep 60; echo NOT",
        "g() { while :; do :; done; }; f() { while :; do g; done; }; echo go; while :; do f; done; echo NOT",
        "echo go; while :; do (while :; do :; done); done; echo NOT",
        "echo go; x=$(sleep 60); echo NOT",
        "echo go; sleep 60 | cat; echo NOT",
    ] {
        let told = run_and_interrupt(&all, "bash", busy).await;
        assert_eq!(error_name(&told), "Interrupted", "{busy}");
        assert_eq!((told.exit_code, told.stdout.as_str()), (Some(130), "go\n"), "{busy}");
        let after = run(&all, "bash", "g() { echo $kept; }; g").await;
        assert_eq!(after.stdout, "41\n", "{busy}");
    }
}

#[tokio::test]
async fn exit_ends_the_shell_and_is_told() {
    let all = contexts();
    run(&all, "bash", "x=5").await;
    let told = run(&all, "bash", "echo before; exit 3").await;
    assert_eq!((error_name(&told), told.stdout.as_str()), ("ContextDied", "before\n"));
    assert!(told.error.as_ref().unwrap().value.contains("exited with status 3"));
    assert_eq!(told.end.as_ref().unwrap().exit_code, Some(3));
    let next = run(&all, "bash", "echo \"[$x]\"").await;
    assert!(next.restarted && next.stdout == "[]\n", "{next:?}");
    assert!(!run(&all, "bash", ":").await.restarted);
}

#[tokio::test]
async fn output_of_what_runs_on_is_told_with_the_next_call() {
    let all = contexts();
    let told =
        run(&all, "bash", "mkfifo p; { read line <p; echo \"late $line\"; } & echo now").await;
    assert_eq!(told.stdout, "now\n");
    assert_eq!(run(&all, "bash", "echo go >p; wait").await.stdout, "late go\n");
    run(&all, "bash", "exec 1>&- 2>&-").await;
    let told = run(&all, "bash", "echo out; echo err >&2").await;
    assert_eq!((told.stdout.as_str(), told.stderr.as_str()), ("out\n", "err\n"));
}

#[tokio::test]
async fn variables_of_a_call_are_gone_after_it() {
    let all = contexts();
    run(&all, "bash", "export TWICE=outer").await;
    let mut request = asked("bash", "echo \"$ONCE\" $TWICE; env | grep -c '^ONCE='");
    request.env.insert("ONCE".to_owned(), "a'b\\n$(c)\n\"d".to_owned());
    request.env.insert("TWICE".to_owned(), "inner".to_owned());
    let told = all.run(request, &mut |_| ()).await.unwrap();
    assert_eq!(told.stdout, "a'b\\n$(c)\n\"d inner\n1\n");
    assert_eq!(run(&all, "bash", "echo [${ONCE-gone}] $TWICE").await.stdout, "[gone] outer\n");
    let mut wrong = asked("bash", ":");
    wrong.env.insert("A;id".to_owned(), String::new());
    let refused = all.run(wrong, &mut |_| ()).await.unwrap_err();
    assert!(matches!(&refused, Error::Spec(error) if error.field == "env"), "{refused}");
    let refused = all.run(asked("bash", "a\0b"), &mut |_| ()).await.unwrap_err();
    assert!(matches!(&refused, Error::Spec(error) if error.field == "code"), "{refused}");
}
