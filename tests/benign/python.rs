//! Python's standard library, part by part.

use belljar_tests::{Level, Sandbox, each_level};

fn python(level: Level, code: &str, output: &str) {
    super::expect(level, "python", code, output);
}

each_level!(threads, [standard, strict], |level| {
    python(
        level,
        "from concurrent.futures import ThreadPoolExecutor
import threading
with ThreadPoolExecutor(16) as pool: print(sum(pool.map(lambda x: x * x, range(1000))))
lock, total = threading.Lock(), [0]
def add():
    for _ in range(1000):
        with lock: total[0] += 1
threads = [threading.Thread(target=add) for _ in range(10)]
[t.start() for t in threads]; [t.join() for t in threads]
print(total[0])",
        "332833500\n10000\n",
    );
});

each_level!(asyncio, [standard, strict], |level| {
    python(
        level,
        "import asyncio
async def main():
    results = await asyncio.gather(*(asyncio.sleep(0.01, i) for i in range(100)))
    print(sum(results))
    child = await asyncio.create_subprocess_exec('tr', 'a-z', 'A-Z', stdin=-1, stdout=-1)
    print((await child.communicate(b'shout'))[0].decode(), child.returncode)
    shell = await asyncio.create_subprocess_shell('echo $((2 + 3)); exit 4', stdout=-1)
    print((await shell.communicate())[0].decode().strip(), shell.returncode)
    async def serve(reader, writer):
        writer.write((await reader.readline())[::-1]); await writer.drain(); writer.close()
    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b'abc\\n'); print(await reader.read())
    print(await asyncio.to_thread(lambda: 'threaded'))
    try: await asyncio.wait_for(asyncio.sleep(9), 0.01)
    except asyncio.TimeoutError: print('timeout')
asyncio.run(main())",
        "4950\nSHOUT 0\n5 4\nb'\\ncba'\nthreaded\ntimeout\n",
    );
});

each_level!(multiprocessing_pool, [standard, strict], |level| {
    for method in ["fork", "spawn", "forkserver"] {
        python(
            level,
            &format!(
                "import multiprocessing as mp
def square(x): return x * x
if __name__ == '__main__':
    mp.set_start_method('{method}')
    with mp.Pool(4) as pool: print(pool.map(square, range(10)))"
            ),
            "[0, 1, 4, 9, 16, 25, 36, 49, 64, 81]\n",
        );
    }
});

each_level!(multiprocessing_queue_manager_and_locks, [standard, strict], |level| {
    python(
        level,
        "import multiprocessing as mp
def work(queue, shared, lock, value, pipe):
    with lock: value.value += 1
    shared['seen'] = shared.get('seen', 0) + 1
    queue.put('from child'); pipe.send({'a': [1, 2]})
if __name__ == '__main__':
    queue, lock, value = mp.Queue(), mp.Lock(), mp.Value('i', 41)
    ours, theirs = mp.Pipe()
    with mp.Manager() as manager:
        shared = manager.dict()
        child = mp.Process(target=work, args=(queue, shared, lock, value, theirs))
        child.start(); print(queue.get(), ours.recv()); child.join()
        print(dict(shared), value.value, child.exitcode)",
        "from child {'a': [1, 2]}\n{'seen': 1} 42 0\n",
    );
});

each_level!(shared_memory, [standard, strict], |level| {
    python(
        level,
        "from multiprocessing import shared_memory, Process
def fill(name):
    block = shared_memory.SharedMemory(name=name); block.buf[:4] = b'done'; block.close()
if __name__ == '__main__':
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    child = Process(target=fill, args=(block.name,)); child.start(); child.join()
    print(bytes(block.buf[:4])); block.close(); block.unlink()
    numbers = shared_memory.ShareableList([1, 'two', 3.0]); print(list(numbers))
    numbers.shm.close(); numbers.shm.unlink()",
        "b'done'\n[1, 'two', 3.0]\n",
    );
});

each_level!(process_pool_executor, [standard, strict], |level| {
    python(
        level,
        "from concurrent.futures import ProcessPoolExecutor
if __name__ == '__main__':
    with ProcessPoolExecutor(3) as pool: print(list(pool.map(pow, [2, 3, 4], [10, 10, 10])))",
        "[1024, 59049, 1048576]\n",
    );
});

each_level!(subprocess_pipelines, [standard, strict], |level| {
    python(
        level,
        "import subprocess as s
first = s.Popen(['printf', 'b\\\\na\\\\nc\\\\n'], stdout=s.PIPE)
second = s.Popen(['sort', '-r'], stdin=first.stdout, stdout=s.PIPE); first.stdout.close()
print(second.communicate()[0], first.wait())
print(s.run('cat | wc -c', shell=True, input=b'12345', capture_output=True).stdout.strip())
try: s.run(['sleep', '10'], timeout=0.05)
except s.TimeoutExpired: print('timeout')
print(s.run(['false']).returncode, s.getoutput('id -un'))
try: s.run(['no-such-program'])
except FileNotFoundError: print('not found')",
        "b'c\\nb\\na\\n' 0\nb'5'\ntimeout\n1 sandbox\nnot found\n",
    );
});

each_level!(sqlite_with_write_ahead_log, [standard, strict], |level| {
    python(
        level,
        "import sqlite3
db = sqlite3.connect('data.db'); print(db.execute('pragma journal_mode=wal').fetchone()[0])
db.execute('create table t (id integer primary key, name text)')
with db: db.executemany('insert into t (name) values (?)', ((f'n{i}',) for i in range(1000)))
other = sqlite3.connect('data.db'); print(other.execute('select count(*), max(name) from t').fetchone())
with other: other.execute('delete from t where id > 10')
print(db.execute('select count(*) from t').fetchone()[0]); db.execute('vacuum')
memory = sqlite3.connect(':memory:'); print(memory.execute('select 6 * 7').fetchone()[0])",
        "wal\n(1000, 'n999')\n10\n42\n",
    );
});

each_level!(temporary_files, [standard, strict], |level| {
    python(
        level,
        "import os, shutil, tempfile
with tempfile.NamedTemporaryFile() as f: f.write(b'x'); f.flush(); print(os.path.getsize(f.name), f.name.startswith('/tmp/'))
with tempfile.TemporaryDirectory() as d:
    open(d + '/a', 'w').write('hello'); shutil.copytree(d, d + '/../copy'); print(os.listdir('/tmp/copy'))
with tempfile.TemporaryFile() as f: f.write(b'abc'); f.seek(1); print(f.read())
with tempfile.SpooledTemporaryFile(max_size=4) as f: f.write(b'longer'); f.seek(0); print(f.read())
shutil.make_archive('/tmp/packed', 'zip', '/tmp/copy'); shutil.unpack_archive('/tmp/packed.zip', '/tmp/un'); print(open('/tmp/un/a').read())
os.utime('/tmp/un/a', (1, 2)); print(os.stat('/tmp/un/a').st_mtime); os.link('/tmp/un/a', '/tmp/hard'); os.symlink('hard', '/tmp/soft'); print(open('/tmp/soft').read())",
        "1 True\n['a']\nb'bc'\nb'longer'\nhello\n2.0\nhello\n",
    );
});

each_level!(memory_maps, [standard, strict], |level| {
    python(
        level,
        "import mmap, os
with open('f', 'w+b') as f:
    f.truncate(1 << 20)
    with mmap.mmap(f.fileno(), 0) as m: m[:5] = b'hello'; m.flush(); m[-1] = 7
    f.seek(0); print(f.read(5), os.path.getsize('f'))
# What numpy does for a large array: anonymous pages, huge if possible, resized in place.
big = mmap.mmap(-1, 256 << 20); big.madvise(mmap.MADV_HUGEPAGE); big[::1 << 20] = bytes(256)
big.madvise(mmap.MADV_DONTNEED); print(len(big)); big.resize(128 << 20); print(len(big))
shared = mmap.mmap(-1, 4096)
if os.fork() == 0: shared[:2] = b'ok'; os._exit(0)
os.wait(); print(shared[:2])",
        "b'hello' 1048576\n268435456\n134217728\nb'ok'\n",
    );
});

#[test]
fn memory_files_at_standard() {
    python(
        Level::Standard,
        "import os
fd = os.memfd_create('scratch'); os.write(fd, b'kept in memory'); print(os.pread(fd, 4, 0))",
        "b'kept'\n",
    );
}

each_level!(signals, [standard, strict], |level| {
    python(
        level,
        "import os, signal, threading, time
seen = []
for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, frame: seen.append(signal.Signals(number).name))
signal.setitimer(signal.ITIMER_REAL, 0.01)
while 'SIGALRM' not in seen: signal.pause()
if os.fork() == 0: os._exit(0)
while 'SIGCHLD' not in seen: signal.pause()
os.wait(); os.kill(os.getpid(), signal.SIGUSR1); os.killpg(0, signal.SIGTERM)
print(seen)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigwait([signal.SIGUSR2]).name); signal.alarm(5); print(signal.alarm(0))
timer = threading.Timer(0.01, lambda: print('timer')); timer.start(); timer.join()",
        "['SIGALRM', 'SIGCHLD', 'SIGUSR1', 'SIGTERM']\nSIGUSR2\n5\ntimer\n",
    );
});

each_level!(sockets_of_its_own, [standard, strict], |level| {
    python(
        level,
        "import os, select, socket, threading
a, b = socket.socketpair(); a.sendall(b'pair'); print(b.recv(9))
with open('f', 'w') as f: socket.send_fds(a, [b'fd'], [f.fileno()])
print(len(socket.recv_fds(b, 9, 1)[1]))
server = socket.create_server(('127.0.0.1', 0)); server.setblocking(True)
def answer():
    peer, _ = server.accept(); peer.sendall(peer.recv(99).upper()); peer.close()
threading.Thread(target=answer).start()
client = socket.create_connection(server.getsockname()); client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
client.sendall(b'tcp'); print(client.recv(99))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('localhost', 0))
udp.sendto(b'udp', udp.getsockname()); print(udp.recvfrom(9)[0])
unix = socket.socket(socket.AF_UNIX); unix.bind('/tmp/s'); unix.listen()
client = socket.socket(socket.AF_UNIX); client.connect('/tmp/s'); peer, _ = unix.accept(); client.send(b'unix'); print(peer.recv(9))
poll = select.epoll(); poll.register(peer, select.EPOLLIN); client.send(b'!'); print(len(poll.poll(1)))
six = socket.create_server(('::1', 0), family=socket.AF_INET6); print(six.getsockname()[0])
print(socket.gethostname(), socket.gethostbyname('localhost'))",
        "b'pair'\n1\nb'TCP'\nb'udp'\nb'unix'\n1\n::1\nbelljar 127.0.0.1\n",
    );
});

each_level!(http_server_and_client, [standard, strict], |level| {
    python(
        level,
        "import http.server, json, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(sum(body)).encode())
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = 'http://localhost:%d/' % server.server_port
print(urllib.request.urlopen(url, data=b'[1, 2, 3]').read()); server.shutdown()",
        "b'6'\n",
    );
});

each_level!(no_network_is_told_at_once, [standard, strict], |level| {
    python(
        level,
        "import socket
try: socket.create_connection(('192.0.2.1', 80), 5)
except OSError as error: print(error.strerror)
try: socket.getaddrinfo('example.com', 80)
except socket.gaierror: print('no such name')",
        "Network is unreachable\nno such name\n",
    );
});

each_level!(compileall_and_virtual_environment, [standard, strict], |level| {
    python(
        level,
        "import compileall, os, subprocess, sys, venv
os.mkdir('pkg'); open('pkg/__init__.py', 'w').write('value = 42')
print(compileall.compile_dir('pkg', quiet=1), os.listdir('pkg/__pycache__')[0].startswith('__init__'))
venv.create('env', with_pip=False, symlinks=True)
print(subprocess.check_output(['env/bin/python', '-c', 'import sys; print(sys.prefix)']).decode().strip())
print(subprocess.check_output([sys.executable, '-m', 'pkg.__init__'], env={'PATH': '/usr/bin'}))",
        "True True\n/workspace/env\nb''\n",
    );
});

each_level!(time_zones_locale_and_identifiers, [standard, strict], |level| {
    python(
        level,
        "import datetime, getpass, locale, os, platform, pwd, time, uuid, zoneinfo
moment = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.timezone.utc)
print(moment.astimezone(zoneinfo.ZoneInfo('Europe/Berlin')).isoformat())
os.environ['TZ'] = 'America/New_York'; time.tzset(); print(time.strftime('%Z', time.localtime(0)))
print(locale.setlocale(locale.LC_ALL, ''), locale.getpreferredencoding(), 'ü'.encode())
print(uuid.uuid4() != uuid.uuid4(), len(str(uuid.uuid1())), len(os.urandom(16)))
print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir, os.path.expanduser('~'), platform.system())",
        "2024-07-01T14:00:00+02:00\nEST\nC.UTF-8 UTF-8 b'\\xc3\\xbc'\nTrue 36 16\nsandbox /home/sandbox /home/sandbox Linux\n",
    );
});

each_level!(libraries_with_native_code, [standard, strict], |level| {
    python(
        level,
        "import bz2, ctypes, decimal, gzip, hashlib, hmac, json, lzma, secrets, ssl, xml.etree.ElementTree as xml, zlib
print(ssl.create_default_context().verify_mode.name, len(ssl.create_default_context().get_ca_certs()) > 0)
print(hashlib.sha256(b'a').hexdigest()[:8], hmac.new(b'k', b'm', 'sha1').hexdigest()[:8], len(secrets.token_hex()))
for module in bz2, gzip, lzma, zlib: assert module.decompress(module.compress(b'x' * 9999)) == b'x' * 9999
print(ctypes.CDLL('libc.so.6').abs(-7), decimal.Decimal(1) / 3, xml.fromstring('<a><b/></a>')[0].tag)",
        "CERT_REQUIRED True\nca978112 772b71c8 64\n7 0.3333333333333333333333333333 b\n",
    );
});

each_level!(pseudo_terminal, [standard, strict], |level| {
    // A child on a terminal of its own, as pexpect and build tools make it.
    python(
        level,
        "import os, pty
pid, fd = pty.fork()
if pid == 0: print(os.isatty(0), os.get_terminal_size(0) is not None); os._exit(3)
said = b''
while True:
    try: part = os.read(fd, 99)
    except OSError: break
    if not part: break
    said += part
print(said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        "b'True True\\r\\n' 3\n",
    );
});

each_level!(looking_around, [standard, strict], |level| {
    let outcome = Sandbox::at(level).run_python(
        "import os, shutil
print(sorted(name for name in os.listdir('/') if not name.startswith('.')))
print(os.getuid(), os.getgid(), os.getcwd(), os.cpu_count() > 0, os.getpid() < 10, os.uname().nodename)
print(len(os.listdir('/usr/bin')) > 100, shutil.which('python3'), shutil.disk_usage('.').total == 100 << 20)
print(open('/proc/self/status').read().startswith('Name'), os.path.exists('/proc/self/fd'), open('/dev/null', 'w').write('x'))
print(sum(len(files) for _, _, files in os.walk('/etc')) > 5)",
    );
    assert!(outcome.ok(), "{outcome:?}");
    let mut lines = outcome.stdout.lines();
    let root = lines.next().expect("a listing");
    for name in ["bin", "dev", "etc", "home", "lib", "proc", "tmp", "usr", "workspace"] {
        assert!(root.contains(&format!("'{name}'")), "{root}");
    }
    for name in ["root", "var", "sys", "run", "boot", "mnt", "media", "srv"] {
        assert!(!root.contains(&format!("'{name}'")), "{root}");
    }
    let rest: Vec<_> = lines.collect();
    assert_eq!(
        rest,
        [
            "1000 1000 /workspace True True belljar",
            "True /usr/bin/python3 True",
            "True True 1",
            "True"
        ]
    );
});
