//! node.

use super::*;

#[tokio::test]
async fn variables_stay_may_be_declared_again_and_the_last_value_is_told() {
    let all = contexts();
    assert_eq!(value(&run(&all, "node", "const x = 6; let y = 7; x * y").await), "42");
    assert_eq!(value(&run(&all, "node", "const x = 8; class A {}; x + y").await), "15");
    let told = run(&all, "js", "console.log('é'); console.error('bad'); ({ a: [1, 'é'] })").await;
    assert_eq!((told.stdout.as_str(), told.stderr.as_str()), ("é\n", "bad\n"));
    assert_eq!(value(&told), "{ a: [ 1, 'é' ] }");
    assert_eq!(told.results[0].data["application/json"]["a"][1], "é");
    assert!(run(&all, "node", "undefined").await.results.is_empty());
    let sub = "require('child_process').execSync('echo sub', { stdio: 'inherit' }); 1n";
    let told = run(&all, "node", sub).await;
    assert_eq!((value(&told), told.stdout.as_str()), ("1n", "sub\n"));
    let told = run(&all, "node", "display(1); display(null, { 'text/html': '<b>' }); 2").await;
    assert_eq!(told.results.len(), 3);
    assert_eq!(told.results[2].data["text/html"], "<b>");
}

#[tokio::test]
async fn await_works_at_the_top() {
    let all = contexts();
    let code = "const later = await new Promise((done) => setTimeout(() => done('v'), 5)); later";
    assert_eq!(value(&run(&all, "node", code).await), "'v'");
    assert_eq!(value(&run(&all, "node", "later").await), "'v'");
}

#[tokio::test]
async fn errors_name_the_line_and_show_the_code_alone() {
    let all = contexts();
    let told = run(&all, "node", "function f() {\n  throw new TypeError('bad');\n}\nf()").await;
    let error = told.error.as_ref().unwrap();
    assert_eq!(
        (error.name.as_str(), error.value.as_str(), error.line),
        ("TypeError", "bad", Some(2))
    );
    assert!(error.traceback.contains("at f (<cell_1>:2:9)"), "{}", error.traceback);
    assert!(!error.traceback.contains("belljar"), "{}", error.traceback);
    let syntax = run(&all, "node", "let a;\nif (").await.error.unwrap();
    assert_eq!((syntax.name.as_str(), syntax.line), ("SyntaxError", Some(2)));
    let rejected = run(&all, "node", "await Promise.reject(new RangeError('r'))").await;
    assert_eq!(error_name(&rejected), "RangeError");
    assert_eq!(error_name(&run(&all, "node", "throw 5").await), "Thrown");
    let astray = "setTimeout(() => { throw new Error('astray') }, 1); \
                  await new Promise((done) => setTimeout(done, 20)); 3";
    let told = run(&all, "node", astray).await;
    assert!(value(&told) == "3" && told.stderr.contains("astray"), "{told:?}");
}

#[tokio::test]
async fn interrupts_end_the_code_and_keep_the_variables() {
    let all = contexts();
    run(&all, "node", "const kept = 41").await;
    for busy in
        ["console.log('go'); while (true) {}", "console.log('go'); await new Promise(() => {})"]
    {
        let told = run_and_interrupt(&all, "node", busy).await;
        assert_eq!(error_name(&told), "Interrupted", "{busy}");
        assert_eq!(value(&run(&all, "node", "kept").await), "41", "{busy}");
    }
}

#[tokio::test]
async fn process_exit_ends_the_context_and_is_told() {
    let all = contexts();
    let told = run(&all, "node", "console.log('before'); process.exit(4)").await;
    assert_eq!((error_name(&told), told.stdout.as_str()), ("ContextDied", "before\n"));
    assert_eq!(told.end.unwrap().exit_code, Some(4));
    assert!(run(&all, "node", "1").await.restarted);
}
