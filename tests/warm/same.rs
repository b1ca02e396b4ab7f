//! A program cannot tell how its sandbox was started: the same output, errors and end, warm and cold.

use belljar_tests::{Level, Outcome, Sandbox, Server, TempDir, each_level, is_root};

fn server(language: &str) -> Server {
    Server::with(&["--warm", language])
}

/// What a caller and a program see of a run. Addresses and the ids of threads are each process's own.
fn seen(outcome: &Outcome) -> String {
    let mut text = format!("{:?}\n{}\n{}", outcome.verdict, outcome.stdout, outcome.stderr);
    for word in ["0x", "started "] {
        let mut parts = text.split(word);
        let mut blurred = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            blurred += word;
            blurred += part.trim_start_matches(|one: char| one.is_ascii_hexdigit());
        }
        text = blurred;
    }
    text
}

fn same(
    server: &Server,
    (level, language): (Level, &str),
    change: impl Fn(Sandbox) -> Sandbox,
    code: &str,
) {
    let run = |sandbox: Sandbox| seen(&change(sandbox).run_code(language, code));
    let (cold, warm) = (run(server.cold(level)), run(server.warm(level)));
    assert_eq!(warm, cold, "{code}");
}

fn all_same(level: Level, language: &str, programs: &[&str]) {
    let (server, directory) = (server(language), TempDir::new());
    let stdin = directory.file("stdin", "one\ntwo\r\nthree").display().to_string();
    for code in programs {
        let change = |sandbox: Sandbox| {
            sandbox
                .with([
                    "--stdin",
                    &stdin,
                    "--env",
                    "FOO=b r",
                    "--env",
                    "EMPTY=",
                    "--timeout",
                    "20s",
                ])
                .args(["one", "two words", ""])
        };
        same(&server, (level, language), change, code);
    }
}

each_level!(state_of_python_is_as_cold, [standard, strict], |level| {
    all_same(
        level,
        "python",
        &[
            "import os, sys\nprint(sorted(os.environ.items()), sys.argv, sys.orig_argv, sys.path, sys.flags)",
            "print(__file__, __name__, __spec__, __doc__, __package__, __builtins__, __loader__, sorted(globals()))",
            "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n \
         print(s.encoding, s.errors, s.line_buffering, s.write_through, s.name, s.mode, s.fileno(), \
         type(s.buffer), s.isatty(), s.closed, s)",
            "import signal\nprint([(n, str(signal.getsignal(n))) for n in signal.valid_signals()], \
         signal.pthread_sigmask(signal.SIG_BLOCK, []))",
            "import os\nprint(os.getcwd(), os.umask(0), os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0), \
         os.getresuid(), os.getresgid(), os.getgroups(), os.sched_getaffinity(0), os.getpriority(0, 0))",
            "import resource\nprint([(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) \
         if n.startswith('RLIMIT')])",
            "import os, threading\nt = threading.main_thread()\n\
         print(t, t.native_id == os.getpid(), t.ident == threading.get_ident(), threading.enumerate())",
            "import os\nprint(sorted(os.listdir('/proc/self/fd')), open('/proc/self/comm').read())",
            "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.prctl(3, 0, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0))",
            "import locale, sys, time\nprint(locale.getlocale(), locale.setlocale(locale.LC_ALL), \
         locale.getpreferredencoding(), sys.getfilesystemencoding(), time.tzname)",
            "import sys\nprint(sys.executable, sys.prefix, sys.version, sys.meta_path, sys.path_hooks, \
         sys.getrecursionlimit(), sys.dont_write_bytecode, sys.excepthook, sys.displayhook, sys.gettrace())",
            "import os\nprint([sorted(os.listdir(one)) for one in ('.', '/tmp', '/home/sandbox', '/dev/shm')])",
            "import gc, tempfile, warnings, logging, decimal\nprint(gc.isenabled(), gc.get_threshold(), \
         tempfile.gettempdir(), warnings.filters, logging.root.handlers, decimal.getcontext())",
            "print([one for one in open('/proc/self/status') if one.split(':')[0] in ('Uid', 'Gid', 'Groups', \
         'NoNewPrivs', 'Seccomp', 'CapEff', 'CapBnd', 'SigBlk', 'SigCgt', 'NSpid', 'Threads')])",
        ],
    );
});

/// Names, kinds, rights and contents of all that is not the host's own tree or the kernel's; and who may write where.
/// Only owners differ (see the guide), what is in our own corner, where programs may not look, and the /code of an
/// interpreter that waits.
const ROOT: &str = "import errno, os, stat
OTHERS = ('/usr', '/proc', '/etc/ssl', '/etc/alternatives', '/.belljar', '/code')
mounts = [line.split() for line in open('/proc/self/mountinfo')]
print(sorted((m[4], m[5], m[m.index('-') + 1]) for m in mounts if not m[4].startswith('/.belljar')))
for top, names, files in os.walk('/'):
    names[:] = sorted(n for n in names if os.path.join(top, n) not in OTHERS)
    for path in [top] + [os.path.join(top, n) for n in sorted(files + names)]:
        s = os.lstat(path)
        small = stat.S_ISREG(s.st_mode) and s.st_size < 4096
        try:
            held = open(path).read() if small else os.readlink(path) if stat.S_ISLNK(s.st_mode) else ''
        except OSError as error:
            held = error.errno
        print(path, oct(s.st_mode), s.st_rdev, held, os.access(path, os.W_OK))
for path in ('/x', '/etc/x', '/etc/passwd', '/usr/x', '/home/x', '/dev/x', '/.belljar/x', '/proc/x'):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        print(path, 'written')
    except OSError as error:
        print(path, errno.errorcode[error.errno])
";

each_level!(root_is_as_cold, [standard, strict], |level| {
    all_same(level, "python", &[ROOT]);
});

/// Root's server shows all its sandboxes one root, whose file system nobody can write to; an ordinary user's makes one
/// for each.
#[test]
fn root_that_is_held_ready_is_read_only_beneath_its_mounts_too() {
    let server = server("python");
    let code = "print([line.split()[-1] for line in open('/proc/self/mountinfo') if line.split()[4] == '/'])";
    let outcome = server.warm(Level::Standard).run_code("python", code);
    let expected = if is_root() { "['ro," } else { "['rw," };
    assert!(outcome.stdout.starts_with(expected), "{outcome:?}");
}

each_level!(python_ends_as_cold, [standard, strict], |level| {
    all_same(
        level,
        "python",
        &[
            "def f(x):\n    return 1 / x\nf(0)",
            "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('x') from error",
            "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
            "def f(:\n  pass",
            "if 1:\npass",
            "exec('1 +')",
            "import sys; sys.exit(3)",
            "import sys; sys.exit(259)",
            "import sys; sys.exit(-1)",
            "import sys; sys.exit(1 << 70)",
            "import sys; sys.exit()",
            "import sys; sys.exit('bye é')",
            "import sys; sys.exit([1, 2])",
            "class A:\n def __str__(self): raise ValueError\nimport sys; sys.exit(A())",
            "exit(4)",
            "raise KeyboardInterrupt",
            "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)",
            "import os, signal, time\ntry:\n os.kill(os.getpid(), signal.SIGINT); time.sleep(5)\n\
         except KeyboardInterrupt: print('caught')",
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            "import os; os.abort()",
            "import os; print('x', end=''); os._exit(7)",
            "import sys\nsys.excepthook = lambda *all: print('hook', all[0], all[1])\n1/0",
            "import sys\ndef h(*all): raise ValueError('in hook')\nsys.excepthook = h\n1/0",
            "import atexit, sys\natexit.register(print, 'one')\natexit.register(print, 'two')\nsys.exit(5)",
            "import atexit\ndef boom(): raise ValueError('x')\natexit.register(boom)",
            "import threading, time\ndef f(): time.sleep(0.1); print('thread')\n\
         threading.Thread(target=f).start()\nprint('main')",
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "import threading\ndef f(): 1/0\nt = threading.Thread(target=f, name='T'); t.start(); t.join()",
            "import os\nfile = os.fdopen(os.dup(1), 'w'); file.write('unflushed')",
            "import os\nclass K: pass\nk = K(); k.me = k; k.file = os.fdopen(os.dup(1), 'w'); k.file.write('in a cycle')",
            "import os\ndef f():\n global keep\n file = os.fdopen(os.dup(1), 'wb'); file.write(b'held'); keep = lambda: file\nf()",
            "class A:\n def __init__(self, name): self.name = name\n def __del__(self): print('del', self.name)\n\
         a = A('a'); _b = A('_b'); c = A('c')\nprint('end')",
            "import os\nclass A:\n def __del__(self): print('del', os.getpid())\na = A()",
            "def g():\n try: yield 1\n finally: print('finally')\nx = g(); next(x)",
            "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'finalized')",
            "import sys\nclass B:\n def write(self, text): pass\n def flush(self): raise OSError('bad')\nsys.stdout = B()",
            "import sys\nsys.stdout = None\nprint('x')",
            "import sys\nprint('x'); sys.stdout.close()",
            "import os\nos.close(1)\nprint('x')",
            "import sys; sys.stdout.buffer.write(b'\\xff'); print('\\udc80', 'é'); print('\\ud800', file=sys.stderr)",
            "print('\\ud800')",
            "import warnings\nwarnings.warn('careful')\nwarnings.warn('old', DeprecationWarning)",
        ],
    );
});

each_level!(python_runs_as_cold, [standard, strict], |level| {
    all_same(
        level,
        "python",
        &[
            "\u{feff}print('after a mark')",
            "# -*- coding: utf-8 -*-\nprint('é')",
            "import sys\nprint(repr(sys.stdin.read()), repr(sys.stdin.buffer.read()))",
            "print(input('> '), input(), input())\ninput()",
            "import sys\nfor line in sys.stdin: print(repr(line))",
            "import sys\nif __name__ == '__main__': print(sys.modules['__main__'].__dict__ is globals())",
            "import multiprocessing as mp\ndef f(x): return x * x\nif __name__ == '__main__':\n \
         mp.set_start_method('fork')\n with mp.Pool(2) as pool: print(pool.map(f, range(5)))",
            "import multiprocessing as mp\ndef f(x): return x * x\nif __name__ == '__main__':\n \
         mp.set_start_method('spawn')\n with mp.Pool(2) as pool: print(pool.map(f, range(5)))",
            "import multiprocessing as mp\nif __name__ == '__main__':\n with mp.Manager() as m:\n  \
         d = m.dict(); d[1] = 2; print(dict(d), mp.current_process(), mp.parent_process())",
            "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv)', 'a'], \
         capture_output=True))\nprint(subprocess.run('env | sort; exit 3', shell=True, capture_output=True))",
            "import asyncio\nasync def g(i):\n await asyncio.sleep(0.01); return i\nasync def main():\n \
         print(await asyncio.gather(*map(g, range(3))))\n \
         p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1); print(await p.communicate())\n\
         asyncio.run(main())",
            "import pickle\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x, A.__module__)",
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n x: int = 1\n\
         print(A(), A.__annotations__)\ny: int = 3\nprint(__annotations__)",
            "def f(x: Undefined): pass",
            "import runpy\nprint(sorted(runpy.run_path(__file__, run_name='other')) if __name__ == '__main__' else __name__)",
            "import inspect, sys\nprint(inspect.getsource(sys.modules['__main__'])[:14])",
            "import signal, time\nsignal.signal(signal.SIGALRM, lambda *all: print('alarm'))\n\
         signal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(0.2)",
            "import argparse\np = argparse.ArgumentParser(); p.add_argument('n', type=int); p.parse_args()",
            "import doctest, sys\ndef f():\n '''\n >>> f()\n 3\n '''\n return 4\nprint(doctest.testmod())",
        ],
    );
});

each_level!(
    files_of_the_program_come_before_modules_that_were_loaded,
    [standard, strict],
    |level| {
        let (server, directory) = (server("python"), TempDir::new());
        let own = directory.file("own.py", "who = 'mine'\n").display().to_string();
        for name in ["helper", "random", "json", "threading"] {
            let copy = format!("{own}:{name}.py");
            let code = format!(
                "import {name}\nprint({name}.who, {name}.__file__, {name}.__spec__.origin)"
            );
            same(&server, (level, "python"), |sandbox| sandbox.with(["--file", &copy]), &code);
        }
        // What looks alike and is no module changes nothing.
        let copy = format!("{own}:random.txt");
        let code = "import random; print(random.__file__)";
        same(&server, (level, "python"), |sandbox| sandbox.with(["--file", &copy]), code);
    }
);

// What differs, and is told: an interpreter that was there before has its own start below the program.
each_level!(what_a_waiting_python_shows_of_itself, [standard, strict], |level| {
    let code = "import gc, os, sys\nprint(sys._getframe().f_back is None, gc.get_freeze_count() > 0, \
                b'main.py' in open('/proc/self/cmdline', 'rb').read(), os.path.exists('/code'))";
    let server = server("python");
    assert_eq!(server.cold(level).run_python(code).stdout, "True False True False\n");
    let script = if level == Level::Strict { "True" } else { "False" };
    let found = server.warm(level).run_python(code).stdout;
    assert_eq!(found, format!("False True False {script}\n"));
});

each_level!(node_is_as_cold, [standard, strict], |level| {
    all_same(
        level,
        "node",
        &[
            "console.log(process.argv, process.execArgv, Object.entries(process.env).sort(), require.main === module, \
         module.id, module.paths, module.children.length, module.parent, __filename, Object.keys(require.cache))",
            "console.log(process.pid, process.ppid, process.title, process.execPath, process.cwd(), process.umask(), \
         process.eventNames(), Object.keys(globalThis).sort(), this === module.exports)",
            "const fs = require('fs'); console.log(fs.readdirSync('/proc/self/fd').length)",
            "function f() { throw new Error('boom') }\nf()",
            "setTimeout(() => { throw new TypeError('later') }, 1)",
            "Promise.reject(new Error('rejected'))",
            "function ( {",
            "process.exit(5)",
            "process.exitCode = 6; process.on('exit', code => console.log('exit', code))",
            "console.log(new Error('x').stack)",
            "process.stdin.on('data', d => console.log(JSON.stringify(d.toString()))).on('end', () => console.log('end'))",
            "console.log(JSON.stringify(require('fs').readFileSync(0, 'utf8')))",
            "const { Worker, isMainThread, parentPort } = require('worker_threads');\n\
         if (isMainThread) { new Worker(__filename, { argv: ['z'] }).on('message', m => console.log(m)) }\n\
         else parentPort.postMessage([process.argv, process.execArgv, require.main === module])",
            "const { fork } = require('child_process'); if (process.send) { \
         process.send([process.argv, process.execArgv]); process.disconnect() } else { \
         const child = fork(__filename, ['q']); child.on('message', m => console.log(m)); \
         child.on('exit', (...all) => console.log(all)) }",
            "const cp = require('child_process'); console.log(cp.execSync('env | sort').toString(), \
         cp.spawnSync(process.execPath, ['-p', 'process.execArgv']).stdout.toString())",
            "const cluster = require('cluster'); if (cluster.isPrimary) cluster.fork().on('exit', (...all) => \
         console.log(all)); else process.exit(2)",
            "require('fs').writeFileSync('m.mjs', 'export const x = import.meta.url'); \
         import('./m.mjs').then(m => console.log(m.x))",
            "process.kill(process.pid, 'SIGINT'); setTimeout(() => {}, 5000)",
            "process.nextTick(() => console.log('tick')); Promise.resolve().then(() => console.log('micro')); \
         setImmediate(() => console.log('immediate')); console.log('sync')",
            "process.env.TZ = 'Asia/Tokyo'; console.log(new Date(0).toString())",
            "process.stdout.write('x'.repeat(90000))",
        ],
    );
});

each_level!(modules_of_node_are_as_cold, [standard, strict], |level| {
    let directory = TempDir::new();
    let code = "import fs from 'fs'; console.log(typeof fs, import.meta.url, process.argv, process.execArgv, \
                typeof require); throw new Error('at the end')";
    let module = directory.file("main.mjs", code);
    let run = |sandbox: Sandbox| seen(&sandbox.args(["a"]).run_file(&module));
    let server = server("node");
    let (cold, warm) = (run(server.cold(level)), run(server.warm(level)));
    assert_eq!(warm, cold);
});

each_level!(bash_is_as_cold, [standard, strict], |level| {
    all_same(
        level,
        "bash",
        &[
            "echo \"$0 $# $* $$ $PPID $- $BASH_SOURCE $SHLVL\"; env | sort; set -o; pwd; umask; ulimit -a; trap",
            "tr '\\0' ' ' < /proc/$$/cmdline; cat /proc/$$/comm; ls /proc/$$/fd",
            "nosuch; echo $?; exit 4",
            "if then",
            "read a; echo \"[$a]\"; cat",
            "kill -TERM $$",
            "trap 'echo bye' EXIT; kill -INT $$",
            "yes | head -2; echo ${PIPESTATUS[@]}",
            "ls -A / /tmp . /home/sandbox",
        ],
    );
});
