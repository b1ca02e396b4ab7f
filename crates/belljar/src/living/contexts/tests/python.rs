//! Python.

use super::*;

const KEPT: &str = "kept = 41";

#[tokio::test]
async fn variables_stay_and_the_last_value_is_told() {
    let all = contexts();
    assert!(run(&all, "python", "x = 6\ndef f(): return x * 7").await.results.is_empty());
    let second = run(&all, "python", "print('hi')\nf()").await;
    assert_eq!((value(&second), second.stdout.as_str()), ("42", "hi\n"));
    assert_eq!((second.count, second.restarted), (2, false));
    assert_eq!(value(&run(&all, "python", "_ + 1").await), "43");
    assert!(run(&all, "python", "x;").await.results.is_empty());
    assert!(run(&all, "python", "").await.ok);
}

#[tokio::test]
async fn values_come_in_every_form_that_they_have() {
    let all = contexts();
    let code = "
class Rich:
    def _repr_html_(self): return '<b>é</b>'
    def _repr_markdown_(self): return '**b**'
    def _repr_svg_(self): return '<svg/>'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': 1}
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_jpeg_(self): raise ValueError
    def _repr_mimebundle_(self): return {'application/x-own': [1]}
display(Rich(), 'second')
{'list': [1, None, 'é']}";
    let told = run(&all, "python", code).await;
    assert_eq!(value(&told), "{'list': [1, None, 'é']}");
    assert_eq!(told.results[0].data["application/json"]["list"][2], "é");
    let rich = &told.results[1].data;
    let expected = [
        ("text/html", "<b>é</b>"),
        ("text/markdown", "**b**"),
        ("image/svg+xml", "<svg/>"),
        ("text/latex", "$x$"),
        ("image/png", "iVBORw=="),
    ];
    for (mime, form) in expected {
        assert_eq!(rich[mime], form, "{mime}");
    }
    assert_eq!(rich["application/json"]["a"], 1);
    assert_eq!(rich["application/x-own"][0], 1);
    assert!(!rich.contains_key("image/jpeg"));
    assert_eq!(plain(&told.results[2]), "'second'");
}

#[tokio::test]
async fn figures_are_pictures_at_show_and_at_the_end() {
    let all = contexts();
    let code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('between')\n\
                plt.figure(); plt.bar([1], [2])\nfig, axes = plt.subplots(); axes.plot([3]); None";
    let told = run(&all, "python", code).await;
    assert!(told.ok, "{told:?}");
    assert_eq!(told.stderr, "");
    let png = |result: &RichResult| result.data["image/png"].as_str().unwrap().to_owned();
    assert_eq!(told.results.len(), 3);
    assert!(told.results.iter().all(|result| png(result).starts_with("iVBORw0KGgo")));
    // Closed, so not shown again; one that is the last value is shown once.
    assert!(run(&all, "python", "1;").await.results.is_empty());
    let last = run(&all, "python", "fig, axes = plt.subplots(); axes.plot([3]); fig").await;
    assert!(png(&last.results[0]).starts_with("iVBORw0KGgo"));
    assert_eq!(last.results.len(), 1);
}

#[tokio::test]
async fn errors_name_the_line_and_show_the_code_alone() {
    let all = contexts();
    let told = run(&all, "python", "y = 1\ndef g():\n    return y / 0\n\ng()").await;
    let error = told.error.as_ref().unwrap();
    assert_eq!((error.name.as_str(), error.line), ("ZeroDivisionError", Some(3)));
    assert!(error.traceback.contains("\"<cell 1>\", line 3, in g\n    return y / 0"));
    assert!(!error.traceback.contains("belljar"), "{}", error.traceback);
    let later = run(&all, "python", "\n\ng()").await.error.unwrap();
    assert_eq!(later.line, Some(3));
    assert!(later.traceback.contains("\"<cell 1>\", line 3"));
    let syntax = run(&all, "python", "a = 1\nif:\n").await.error.unwrap();
    assert_eq!((syntax.name.as_str(), syntax.line), ("SyntaxError", Some(2)));
    let chained = "try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e";
    let chained = run(&all, "python", chained).await.error.unwrap();
    assert_eq!((chained.name.as_str(), chained.value.as_str()), ("KeyError", "'k'"));
    assert!(chained.traceback.contains("ZeroDivisionError"));
    let recursion = run(&all, "python", "def r(): return r()\nr()").await;
    assert_eq!(error_name(&recursion), "RecursionError");
    let exit = run(&all, "python", "import sys; sys.exit(3)").await;
    assert_eq!(
        (error_name(&exit), exit.error.as_ref().unwrap().value.as_str()),
        ("SystemExit", "3")
    );
    let input = run(&all, "python", "input()").await.error.unwrap();
    assert!(input.value.contains("nobody to ask"), "{}", input.value);
    let long = run(&all, "python", "raise ValueError('v' * 200_000)").await.error.unwrap();
    assert_eq!(long.value.len(), 200_000);
    assert_eq!(value(&run(&all, "python", "y").await), "1");
}

#[tokio::test]
async fn await_works_at_the_top() {
    let all = contexts();
    let code = "import asyncio\nasync def f():\n    await asyncio.sleep(0.001)\n    return 5\n\
                seen = await f()\nawait asyncio.gather(f(), f())";
    assert_eq!(value(&run(&all, "python", code).await), "[5, 5]");
    assert_eq!(value(&run(&all, "python", "asyncio.run(f())").await), "5");
}

#[tokio::test]
async fn interrupts_end_the_code_and_keep_the_variables() {
    let all = contexts();
    run(&all, "python", KEPT).await;
    for busy in [
        "print('go')\nwhile True: pass",
        "import time\nprint('go')\ntime.sleep(60)",
        "import subprocess\nprint('go')\nsubprocess.run(['sleep', '60'])",
        "import asyncio\nprint('go')\nawait asyncio.sleep(60)",
    ] {
        let told = run_and_interrupt(&all, "python", busy).await;
        assert_eq!(error_name(&told), "KeyboardInterrupt", "{busy}");
        assert_eq!(value(&run(&all, "python", "kept").await), "41", "{busy}");
    }
    assert_eq!(all.interrupt("python").await.unwrap(), Interrupted::Idle);
}

#[tokio::test]
async fn nothing_that_code_does_to_its_streams_reaches_the_next_call() {
    let all = contexts();
    run(&all, "python", KEPT).await;
    let closing =
        "import os\nfor fd in range(21):\n    try: os.close(fd)\n    except OSError: pass";
    assert!(run(&all, "python", closing).await.ok);
    let after =
        run(&all, "python", "import sys\nprint('out')\nprint('err', file=sys.stderr)").await;
    assert_eq!((after.stdout.as_str(), after.stderr.as_str()), ("out\n", "err\n"));
    run(&all, "python", "sys.stdout.close()").await;
    assert_eq!(run(&all, "python", "print('again')").await.stdout, "again\n");
    assert_eq!(value(&run(&all, "python", "kept").await), "41");
}

#[tokio::test]
async fn copies_threads_and_other_processes_write_where_they_should() {
    let all = contexts();
    let code = "import os, subprocess\nsubprocess.run(['sh', '-c', 'echo sub; echo bad >&2'])\n\
                os.write(1, b'raw\\0\\xff\\n')\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait()\n7";
    let told = run(&all, "python", code).await;
    assert_eq!(value(&told), "7");
    assert_eq!(told.stdout, "sub\nraw\0\u{fffd}\nchild\n");
    assert_eq!(told.stderr, "bad\n");
    let thread = "import threading\ngo = threading.Event()\n\
                  def later():\n    go.wait()\n    print('late')\n\
                  one = threading.Thread(target=later); one.start()";
    assert_eq!(run(&all, "python", thread).await.stdout, "");
    assert_eq!(run(&all, "python", "go.set(); one.join()").await.stdout, "late\n");
    let raising =
        "if os.fork() == 0:\n    raise SystemError('in the copy')\nelse:\n    _ = os.wait()";
    let told = run(&all, "python", raising).await;
    assert!(told.ok && told.stderr.contains("in the copy"), "{told:?}");
}

#[tokio::test]
async fn floods_are_kept_in_part_and_streamed_whole() {
    let all = contexts();
    let mut streamed = 0;
    let code = "for i in range(20000): print('line %06d' % i)";
    let mut sink = |event| {
        if let CodeEvent::Output { text, .. } = event {
            streamed += text.len();
        }
    };
    let told = all.run(asked("python", code), &mut sink).await.unwrap();
    assert_eq!(streamed, 20000 * 12);
    assert!(told.stdout_truncated && !told.stderr_truncated);
    assert!(told.stdout.starts_with("line 000000\n") && told.stdout.ends_with("line 019999\n"));
    assert!(told.stdout.contains("[belljar: ") && told.stdout.len() < 110 << 10);
}

#[tokio::test]
async fn large_results_are_dropped_and_told() {
    let all = contexts();
    let code = "
class Large:
    def _repr_png_(self): return b'x' * (6 << 20)
    def _repr_html_(self): return 'h' * (40 << 20)
for i in range(150): display(i)
Large()";
    let told = run(&all, "python", code).await;
    assert_eq!((told.results.len(), told.dropped_results), (100, 51));
    let told = run(&all, "python", "Large()").await;
    let dropped = &told.results[0].dropped;
    assert!(dropped.iter().any(|one| one.starts_with("text/html of ")), "{dropped:?}");
    assert!(dropped.iter().any(|one| one.starts_with("image/png of ")), "{dropped:?}");
    assert!(!told.results[0].data.contains_key("image/png"));
    assert_eq!(value(&run(&all, "python", "len('é' * 10)").await), "10");
}

#[tokio::test]
async fn what_looks_like_a_frame_is_output_and_who_speaks_for_us_only_lies_about_itself() {
    let all = contexts();
    let fake = format!("\u{1e}{}{}e0002{{}}", "0".repeat(32), "0".repeat(8));
    let code = format!("print(chr(30) + {:?})\n5", &fake[1..]);
    let told = run(&all, "python", &code).await;
    assert_eq!((value(&told), told.stdout.as_str()), ("5", format!("{fake}\n").as_str()));
    // With the channel's own digits: its result is a lie, or the context is ended; the next call is true.
    let lie = "import sys\nspeak = sys.modules['__main__'].display.__globals__['channel']\n\
               speak.tell({'main': True, 'dropped': [], 'result': {'text/plain': 'lie'}})";
    assert_eq!(value(&run(&all, "python", lie).await), "lie");
    let strange = run(&all, "python", "speak.tell({'unheard': 'of'})\nwhile True: pass").await;
    assert_eq!(error_name(&strange), "ContextDied");
    let next = run(&all, "python", "1").await;
    assert!(next.restarted && value(&next) == "1");
}

#[tokio::test]
async fn variables_of_a_call_are_gone_after_it() {
    let all = contexts();
    let mut request = asked("python", "import os; os.environ['ONCE']");
    request.env.insert("ONCE".to_owned(), "é'\"$".to_owned());
    let told = all.run(request, &mut |_| ()).await.unwrap();
    assert_eq!(value(&told), "'é\\'\"$'");
    assert_eq!(value(&run(&all, "python", "'ONCE' in os.environ").await), "False");
}
