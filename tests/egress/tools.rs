//! Real tools against real servers: git over HTTPS, a package index for pip, a registry for npm.

use belljar_tests::{Program, Running, Sandbox};

use crate::clients::with_authority;
use crate::rig::{World, prints};

/// Files of its directory over TLS; what is below /git/ is git's own server, as a CGI.
const SITE: &str = "
import os, subprocess
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self): self.git() if self.path.startswith('/git/') else super().do_GET()
    def do_POST(self): self.git()
    def body(self):
        if 'chunked' not in self.headers.get('Transfer-Encoding', ''):
            return self.rfile.read(int(self.headers.get('Content-Length', 0)))
        whole = b''
        while (size := int(self.rfile.readline(), 16)):
            whole += self.rfile.read(size); self.rfile.readline()
        self.rfile.readline()
        return whole
    def git(self):
        path, _, query = self.path[4:].partition('?')
        get = lambda name: self.headers.get(name, '')
        env = {'PATH': '/usr/bin:/bin', 'GIT_PROJECT_ROOT': os.getcwd() + '/repositories', 'GIT_HTTP_EXPORT_ALL': '1',
            'PATH_INFO': path, 'QUERY_STRING': query, 'REQUEST_METHOD': self.command, 'REMOTE_ADDR': '127.0.0.1',
            'CONTENT_TYPE': get('Content-Type'), 'HTTP_CONTENT_ENCODING': get('Content-Encoding'),
            'HTTP_GIT_PROTOCOL': get('Git-Protocol')}
        ended = subprocess.run(['/usr/bin/git', 'http-backend'], input=self.body(), env=env, capture_output=True)
        head, _, body = ended.stdout.partition(b'\\r\\n\\r\\n')
        headers = [line.split(': ', 1) for line in head.decode().split('\\r\\n') if line]
        status = [value for name, value in headers if name == 'Status']
        self.send_response(int(status[0].split()[0]) if status else 200)
        for name, value in headers:
            if name not in ('Status', 'Content-Length'): self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass";

/// A wheel for pip in `simple/`, and a package for npm in `npm/`, whose registry is at the port that is named.
pub(crate) const PACKAGES: &str = "
import base64, hashlib, io, json, os, sys, tarfile, zipfile
os.makedirs('simple/bjprobe'); os.makedirs('npm')
info = 'bjprobe-1.0.dist-info/'
parts = {'bjprobe.py': 'word = \"from the index\"\\n', info + 'METADATA': 'Metadata-Version: 2.1\\nName: bjprobe\\nVersion: 1.0\\n',
    info + 'WHEEL': 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'}
parts[info + 'RECORD'] = ''.join(name + ',,\\n' for name in [*parts, info + 'RECORD'])
with zipfile.ZipFile('simple/bjprobe/bjprobe-1.0-py3-none-any.whl', 'w') as wheel:
    for name, text in parts.items(): wheel.writestr(name, text)
package = {'name': 'bjprobe', 'version': '1.0.0'}
files = {'package/package.json': json.dumps(package), 'package/index.js': 'module.exports = \"from the registry\"'}
out = io.BytesIO()
with tarfile.open(fileobj=out, mode='w:gz') as archive:
    for name, text in files.items():
        entry = tarfile.TarInfo(name); entry.size = len(text); archive.addfile(entry, io.BytesIO(text.encode()))
open('npm/bjprobe-1.0.0.tgz', 'wb').write(out.getvalue())
integrity = 'sha512-' + base64.b64encode(hashlib.sha512(out.getvalue()).digest()).decode()
package['dist'] = {'tarball': f'https://a.test:{sys.argv[1]}/npm/bjprobe-1.0.0.tgz', 'integrity': integrity}
json.dump({'name': 'bjprobe', 'dist-tags': {'latest': '1.0.0'}, 'versions': {'1.0.0': package}}, open('npm/bjprobe', 'w'))";

const WITHOUT_PROXY: &str =
    "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy";

fn on_host(world: &World, words: &[&str]) {
    let ended = Program::new(words[0]).args(&words[1..]).directory(&world.directory.join("")).run();
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
}

/// The site, and a sandbox that may reach it and trusts its authority.
fn site(world: &World) -> (Running, u16, Sandbox) {
    world.certificates(&["a.test"]);
    let (server, port) = world.serve_tls(SITE);
    let sandbox = with_authority(world, &world.sandbox(&["a.test"], &[port]));
    (server, port, sandbox.with(["--timeout", "100s"]))
}

#[test]
fn git_clones_over_https_with_and_without_the_proxy_and_from_no_other_host() {
    let world = World::with(&["a.test", "b.test"]);
    let (_server, port, sandbox) = site(&world);
    let git = |words: &[&str]| on_host(&world, &[&["/usr/bin/git"], words].concat());
    let bare = ["init", "--quiet", "--bare", "--initial-branch", "main", "repositories/probe.git"];
    git(&bare);
    git(&["init", "--quiet", "--initial-branch", "main", "tree"]);
    world.directory.file("tree/file", "from the repository\n");
    git(&["-C", "tree", "add", "file"]);
    let who = ["-C", "tree", "-c", "user.name=test", "-c", "user.email=test@a.test"];
    git(&[&who[..], &["commit", "--quiet", "-m", "first"]].concat());
    git(&["-C", "tree", "push", "--quiet", "../repositories/probe.git", "main"]);
    let code = format!(
        "export GIT_SSL_CAINFO=$PWD/ca.pem\n\
         clone() {{ git clone --quiet https://$1.test:{port}/git/probe.git $2 2>$2.err && cat $2/file; }}\n\
         clone a one\n{WITHOUT_PROXY}\nclone a two\nclone b three || grep -c 'Could not resolve host' three.err"
    );
    let outcome = sandbox.run_bash(&code);
    prints(&outcome, "from the repository\nfrom the repository\n1");
    assert!(outcome.reached.iter().all(|line| line.host == "a.test"), "{:?}", outcome.reached);
}

#[test]
fn pip_and_npm_install_from_the_index_that_is_allowed() {
    let world = World::with(&["a.test"]);
    let (_server, port, sandbox) = site(&world);
    on_host(&world, &["/usr/bin/python3", "-c", PACKAGES, &port.to_string()]);
    let code = format!(
        "npm install --no-audit --no-fund --loglevel error --cafile ca.pem \
         --registry https://a.test:{port}/npm/ bjprobe >/dev/null && node -p 'require(\"bjprobe\")'\n\
         {WITHOUT_PROXY}\n\
         python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --cert ca.pem \
         --index-url https://a.test:{port}/simple/ --target lib bjprobe && \
         PYTHONPATH=lib python3 -c 'import bjprobe; print(bjprobe.word)'"
    );
    let outcome = sandbox.run_bash(&code);
    prints(&outcome, "from the registry\nfrom the index");
    let [line] = &outcome.reached[..] else { panic!("{outcome:#?}") };
    assert_eq!((line.host.as_str(), line.port), ("a.test", port));
}
