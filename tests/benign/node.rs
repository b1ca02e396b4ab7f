//! Node: workers, children, servers, files.

use belljar_tests::{Level, Sandbox, each_level};

fn node(level: Level, code: &str, output: &str) {
    super::expect(level, "node", code, output);
}

each_level!(files, [standard, strict], |level| {
    node(
        level,
        "const fs = require('fs'), os = require('os'), path = require('path');
fs.mkdirSync('a/b', { recursive: true }); fs.writeFileSync('a/b/f', 'text'); fs.appendFileSync('a/b/f', '!');
console.log(fs.readFileSync('a/b/f', 'utf8'), fs.readdirSync('a'), fs.statSync('a/b/f').size);
fs.copyFileSync('a/b/f', '/tmp/copy'); fs.renameSync('/tmp/copy', path.join(os.tmpdir(), 'moved')); fs.rmSync('a', { recursive: true });
console.log(fs.existsSync('a'), fs.existsSync('/tmp/moved'), os.homedir(), os.userInfo().username);
const file = fs.mkdtempSync('/tmp/x-') + '/f'; fs.watchFile(file, { interval: 20 }, () => { fs.unwatchFile(file); console.log('seen'); });
fs.promises.writeFile(file, '1').then(() => fs.promises.readFile(file, 'utf8')).then(t => { if (t !== '1') throw t; });",
        "text! [ 'b' ] 5\nfalse true /home/sandbox sandbox\nseen\n",
    );
});

each_level!(file_watches_where_they_are_allowed, [standard, strict], |level| {
    let calls = ["inotify_init1", "inotify_add_watch", "inotify_rm_watch"];
    let allowed = calls.into_iter().flat_map(|call| ["--allow-syscall", call]);
    let code = "const fs = require('fs'), dir = fs.mkdtempSync('/tmp/x-');
const watcher = fs.watch(dir, () => { watcher.close(); console.log('watched'); }); fs.writeFileSync(dir + '/f', '1');";
    let outcome = Sandbox::at(level).with(allowed).run_node(code);
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.as_str()),
        ("watched\n", ""),
        "{outcome:?}"
    );
});

each_level!(worker_threads, [standard, strict], |level| {
    node(
        level,
        "const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
if (isMainThread) {
  const shared = new SharedArrayBuffer(4), counts = new Int32Array(shared); let left = 4;
  for (let i = 0; i < 4; i++) new Worker(__filename, { workerData: shared }).on('exit', () => {
    if (--left === 0) console.log(counts[0]);
  });
} else { const counts = new Int32Array(workerData); for (let i = 0; i < 1000; i++) Atomics.add(counts, 0, 1); }",
        "4000\n",
    );
});

each_level!(child_processes, [standard, strict], |level| {
    node(
        level,
        "const { execFileSync, fork, spawn } = require('child_process');
if (process.send) { process.on('message', m => { process.send(m * 2); process.disconnect(); }); } else {
console.log(execFileSync('sh', ['-c', 'echo $((6 * 7))']).toString().trim());
const child = fork(__filename); child.send(21);
child.on('message', m => console.log('forked', m));
child.on('exit', code => { const cat = spawn('cat'); let out = '';
  cat.stdout.on('data', d => out += d); cat.on('close', c => console.log(code, out, c)); cat.stdin.end('piped'); });
}",
        "42\nforked 42\n0 piped 0\n",
    );
});

each_level!(http_server_on_loopback, [standard, strict], |level| {
    node(
        level,
        "const http = require('http');
const server = http.createServer((request, response) => {
  let body = ''; request.on('data', d => body += d); request.on('end', () => response.end(body.toUpperCase()));
}).listen(0, '127.0.0.1', async () => {
  const url = 'http://localhost:' + server.address().port.toString();
  const answer = await fetch('http://127.0.0.1:' + server.address().port, { method: 'POST', body: 'hello' });
  console.log(answer.status, await answer.text()); server.close(); server.closeAllConnections();
});",
        "200 HELLO\n",
    );
});

each_level!(unix_socket_server, [standard, strict], |level| {
    node(
        level,
        "const net = require('net');
const server = net.createServer(s => s.end('bye')).listen('/tmp/s', () =>
  net.connect('/tmp/s').on('data', d => { console.log(d.toString()); server.close(); }));",
        "bye\n",
    );
});

each_level!(cryptography_and_compression, [standard, strict], |level| {
    node(
        level,
        "const crypto = require('crypto'), zlib = require('zlib'), os = require('os');
console.log(crypto.createHash('sha256').update('a').digest('hex').slice(0, 8), crypto.randomUUID().length);
console.log(crypto.pbkdf2Sync('p', 's', 1000, 8, 'sha256').toString('hex'));
console.log(zlib.gunzipSync(zlib.gzipSync('x'.repeat(1000))).length, os.availableParallelism() > 0, os.totalmem() > 0);
crypto.scrypt('p', 's', 16, (error, key) => console.log(key.toString('hex')));",
        "ca978112 36\n07f5f5e23e40846c\n1000 true true\n4329787752e75d1de359a05806e492d4\n",
    );
});

each_level!(timers_promises_and_webassembly, [standard, strict], |level| {
    node(
        level,
        "const bytes = new Uint8Array([0,97,115,109,1,0,0,0,1,7,1,96,2,127,127,1,127,3,2,1,0,7,7,1,3,97,100,100,0,0,10,9,1,7,0,32,0,32,1,106,11]);
WebAssembly.instantiate(bytes).then(({ instance }) => { console.log(instance.exports.add(40, 2));
  setTimeout(() => { setImmediate(() => console.log('later')); process.nextTick(() => console.log('soon')); }, 5); });",
        "42\nsoon\nlater\n",
    );
});

#[test]
fn processors_are_listed_at_standard() {
    // At strict /proc holds processes only, so the list is empty; the count above still works.
    node(
        Level::Standard,
        "const os = require('os'); console.log(os.cpus().length === os.availableParallelism())",
        "true\n",
    );
}
