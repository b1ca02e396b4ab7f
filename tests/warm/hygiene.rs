//! What two programs share that came from one zygote: nothing that either could use against the other.

use std::collections::BTreeSet;

use belljar_tests::{Level, Server, each_level};

/// Enough that two equal ones are no accident.
const RUNS: usize = 4;

/// Runs the code in several copies and gives what each printed.
fn printed(server: &Server, level: Level, code: &str) -> Vec<String> {
    let run = |_| {
        let outcome = server.warm(level).run_python(code);
        assert!(outcome.ok(), "{code}: {outcome:?}");
        outcome.stdout
    };
    (0..RUNS).map(run).collect()
}

fn distinct(all: &[String]) -> usize {
    all.iter().collect::<BTreeSet<_>>().len()
}

each_level!(chance_is_each_copys_own, [standard, strict], |level| {
    let server = Server::with(&["--warm", "python"]);
    for code in [
        "import random; print(random.random(), random.getrandbits(64), random.SystemRandom().random())",
        "import random; print(random.random())",
        "import os; print(os.urandom(16))",
        "import uuid; print(uuid.uuid4())",
        "import uuid; print(uuid.uuid1())",
        "import uuid; print(uuid.uuid1().clock_seq, uuid.uuid1().time)",
        "import ssl; print(ssl.RAND_bytes(16))",
        "import secrets; print(secrets.token_hex())",
        "import tempfile; print(tempfile.mktemp())",
        "import tempfile; print(next(tempfile._get_candidate_names()))",
        "import multiprocessing; print(bytes(multiprocessing.current_process().authkey))",
        "import hashlib, os; print(hashlib.scrypt(os.urandom(8), salt=os.urandom(8), n=2, r=1, p=1))",
        "import ctypes; print(ctypes.CDLL(None).arc4random() if hasattr(ctypes.CDLL(None), 'arc4random') \
         else __import__('os').urandom(8))",
    ] {
        let all = printed(&server, level, code);
        assert_eq!(distinct(&all), RUNS, "{code}: {all:?}");
    }
});

/// Told as it is: copies of one zygote have its hash seed and its addresses until another takes over. At
/// strict each interpreter starts by itself and has its own.
#[test]
fn hash_seed_and_addresses_are_shared_by_the_copies_of_one_zygote_alone() {
    let server = Server::with(&["--warm", "python"]);
    let seed = "print(hash('a'), hash(b'b'))";
    let address = "print([line for line in open('/proc/self/maps') if 'libc.so' in line][0])";
    for code in [seed, address] {
        assert_eq!(distinct(&printed(&server, Level::Standard, code)), 1, "{code}");
        assert_eq!(distinct(&printed(&server, Level::Strict, code)), RUNS, "{code}");
        let other = Server::with(&["--warm", "python"]);
        let first = server.warm(Level::Standard).run_python(code).stdout;
        assert_ne!(other.warm(Level::Standard).run_python(code).stdout, first, "{code}");
    }
}

#[test]
fn numpy_is_seeded_anew_where_it_was_loaded_ahead() {
    let server = Server::with(&["--warm", "python", "--preload", "python:numpy"]);
    let loaded =
        server.warm(Level::Standard).run_python("import sys; print('numpy' in sys.modules)");
    assert_eq!(loaded.stdout, "True\n", "{loaded:?}");
    for code in [
        "import numpy; print(numpy.random.rand())",
        "import numpy; print(numpy.random.default_rng().random())",
        "import numpy; print(numpy.random.get_state()[1][:4])",
    ] {
        let all = printed(&server, Level::Standard, code);
        assert_eq!(distinct(&all), RUNS, "{code}: {all:?}");
    }
}

each_level!(nothing_of_another_run_is_left, [standard, strict], |level| {
    let server = Server::with(&["--warm", "python", "--pool", "4"]);
    let word = "c4n4ry";
    let leave = format!(
        "import os, sys\nword = '{word}-' + 'left'\nfor place in ('/workspace', '/tmp', '/dev/shm', '/home/sandbox'):\n \
         open(f'{{place}}/{{word}}', 'w').write(word)\nos.environ['LEFT'] = word\n\
         import json; json.left = word\nprint(word)"
    );
    // The last line counts in our own memory, which is a copy of what others were copied from.
    let look = "import json, os, sys\n\
                print([os.listdir(place) for place in ('/tmp', '/dev/shm', '/home/sandbox')], \
                os.listdir('/workspace'), os.environ.get('LEFT'), getattr(json, 'left', None), sys.argv, \
                sorted(os.listdir('/proc/self/fd')), sorted(filter(str.isdigit, os.listdir('/proc'))))\n\
                found = 0\n\
                for line in open('/proc/self/maps'):\n \
                span, rights = line.split()[:2]\n \
                if 'w' not in rights: continue\n \
                start, end = (int(one, 16) for one in span.split('-'))\n \
                with open('/proc/self/mem', 'rb', 0) as memory:\n  \
                memory.seek(start); found += memory.read(end - start).count(b'SECRET' + b'=c4n4ry')\nprint(found)";
    let clean = server.warm(level).run_python(look);
    assert!(clean.ok(), "{clean:?}");
    for _ in 0..20 {
        let left =
            server.warm(level).with(["--env", "SECRET=c4n4ry"]).args(["secret"]).run_python(&leave);
        assert!(left.ok(), "{left:?}");
        let next = server.warm(level).run_python(look);
        assert_eq!(next.stdout, clean.stdout, "{next:?}");
    }
});

each_level!(no_descriptor_but_the_streams_is_open, [standard, strict], |level| {
    let server = Server::with(&["--warm", "python"]);
    let code = "import os\nfor number in range(3, 4096):\n try: print(number, os.fstat(number))\n \
                except OSError: pass\nprint(sorted(os.listdir('/proc/self/fd')), os.get_inheritable(0))";
    let (cold, warm) = (server.cold(level).run_python(code), server.warm(level).run_python(code));
    assert_eq!(warm.stdout, "['0', '1', '2', '3'] True\n", "{warm:?}");
    assert_eq!(warm.stdout, cold.stdout);
});
