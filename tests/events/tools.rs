//! Real tools probe the kernel in ways that look strange. They are innocent, and are told to be.

use belljar_tests::{Level, Sandbox, each_level};

use super::assert_innocent;

fn innocent(level: Level, script: &str, last: &str) {
    let options = ["--timeout", "100s", "--cpu-time", "100s", "--memory", "1g"];
    let outcome = Sandbox::at(level).with(options).run_bash(&format!("set -e\n{script}"));
    assert_eq!(outcome.stdout.lines().last(), Some(last), "{outcome:?}");
    assert_innocent(&outcome);
}

// A wheel is a zip file with three files of its own; made here, so that nothing is fetched.
each_level!(pip_installs_a_local_wheel, [standard, strict], |level| {
    innocent(
        level,
        r#"/usr/bin/python3 - <<'END'
import zipfile
with zipfile.ZipFile('demo-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('demo/__init__.py', 'answer = 42\n')
    wheel.writestr('demo-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n')
    wheel.writestr('demo-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr('demo-1.0.dist-info/RECORD', 'demo/__init__.py,,\ndemo-1.0.dist-info/METADATA,,\ndemo-1.0.dist-info/WHEEL,,\ndemo-1.0.dist-info/RECORD,,\n')
END
/usr/bin/pip3 install --quiet --no-index --target /tmp/site ./demo-1.0-py3-none-any.whl
PYTHONPATH=/tmp/site /usr/bin/python3 -c 'import demo; print(demo.answer)'"#,
        "42",
    );
});

each_level!(pytest_runs_tests, [standard, strict], |level| {
    innocent(
        level,
        r#"cat > test_it.py <<'END'
import threading, tempfile, subprocess
def test_adds(tmp_path):
    (tmp_path / 'f').write_text('x'); assert (tmp_path / 'f').read_text() == 'x'
def test_threads():
    found = []
    one = threading.Thread(target=lambda: found.append(1)); one.start(); one.join(); assert found == [1]
def test_children(): assert subprocess.run(['true']).returncode == 0
END
/usr/bin/python3 -m pytest -q test_it.py | tail -1 | sed 's/ in .*//'"#,
        "3 passed",
    );
});

each_level!(git_makes_a_commit, [standard, strict], |level| {
    innocent(
        level,
        "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
/usr/bin/git init --quiet repository; cd repository
echo text > file; /usr/bin/git add file; /usr/bin/git commit --quiet -m first
echo more >> file; /usr/bin/git commit --quiet -am second; /usr/bin/git gc --quiet
/usr/bin/git rev-list --count HEAD",
        "2",
    );
});

each_level!(node_runs_scripts_of_npm, [standard, strict], |level| {
    innocent(
        level,
        r#"cat > package.json <<'END'
{"name": "demo", "version": "1.0.0", "scripts": {"hello": "node -e 'console.log(6 * 7)'"}}
END
/usr/bin/npm run --silent hello"#,
        "42",
    );
});

each_level!(numpy_calculates, [standard, strict], |level| {
    innocent(
        level,
        r#"/usr/bin/python3 -c '
import numpy as np
a = np.random.default_rng(1).random((300, 300))
print(np.allclose(a @ np.linalg.inv(a), np.eye(300)))'"#,
        "True",
    );
});

each_level!(sqlite_keeps_rows, [standard, strict], |level| {
    innocent(
        level,
        r#"/usr/bin/sqlite3 d.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES (1), (2);' > /dev/null
/usr/bin/python3 -c '
import sqlite3
c = sqlite3.connect("d.db"); c.execute("INSERT INTO t VALUES (3)"); c.commit()
print(c.execute("SELECT sum(x) FROM t").fetchone()[0])'"#,
        "6",
    );
});

each_level!(shell_tools_look_around, [standard, strict], |level| {
    innocent(
        level,
        "ls -la / > /dev/null; df > /dev/null 2>&1 || true; id > /dev/null; ps > /dev/null 2>&1 || true
tar cf /tmp/a.tar /etc/passwd 2> /dev/null; tar xf /tmp/a.tar -C /tmp; cp -a /etc/passwd /tmp/b; mv /tmp/b /tmp/c
find /usr/share/doc -maxdepth 1 | head -3 > /dev/null; xz -z -k /tmp/c; sort /tmp/c > /dev/null; timeout 5 true
nproc > /dev/null; uname -a > /dev/null; date > /dev/null; env > /dev/null; echo done",
        "done",
    );
});
