"""Runs inside the guest, as root: belljar on a stock Debian with systemd, cgroup v2 and an older kernel.

Prints what libtest prints, so that the host reads it like any other suite.
"""

import glob
import hashlib
import json
import os
import subprocess
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

BELLJAR = "/opt/belljar/belljar"
V2 = "/sys/fs/cgroup"
CONTROLLERS = ["memory", "pids", "cpu"]
# Software emulation on a busy host: what takes milliseconds elsewhere takes seconds here.
PATIENCE_S = 60

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
ROOT = {"PATH": PATH, "HOME": "/root"}
ANN = {"PATH": PATH, "HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/1000"}
AS_ANN = ["setpriv", "--reuid=1000", "--regid=1000", "--init-groups"]

tests = []


def test(body):
    tests.append(body)
    return body


class Answer:
    def __init__(self, done):
        self.code = done.returncode
        self.err = done.stderr.decode(errors="replace")
        try:
            self.outcome = json.loads(done.stdout)
        except ValueError:
            self.outcome = None
        self.raw = done.stdout.decode(errors="replace")

    def __getattr__(self, name):
        if name not in (self.outcome or {}):
            raise AssertionError(f"no outcome: exit {self.code}, {self.raw!r} {self.err!r}")
        return self.outcome[name]

    def layers(self):
        return {layer["name"]: layer for layer in self.receipt["layers"]}


def run(before, *args, env=ROOT, code="print(6 * 7)", **more):
    """One `belljar run` of Python code, started by way of `before`."""
    command = [*before, BELLJAR, "run", "--json", "--language", "python", *args, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, timeout=PATIENCE_S, cwd="/", **more)
    return Answer(done)


def in_cgroup(path):
    """Starts a program inside a cgroup."""
    return ["sh", "-c", f'echo $$ > {path}/cgroup.procs && exec "$@"', "sh"]


def expect_kept(answer, kind="exited"):
    """The run ended so, under limits that were read back from v2, and nothing was let go."""
    assert answer.verdict["kind"] == kind, (answer.outcome, answer.err)
    for controller in CONTROLLERS:
        layer = answer.layers()[f"cgroup_{controller}"]
        assert layer["mechanism"] == f"cgroup v2 {controller}", layer
        assert layer["verified"], layer
    missing = [one for one in answer.receipt["missing"] if one["name"].startswith("cgroup")]
    assert not missing, missing
    if kind == "exited":
        assert answer.exit_code == 0 and answer.stdout == "42\n", answer.outcome


# What every place must keep.

MEMORY_BOMB = "b = bytearray(400 << 20)\nprint(len(b))"
FORK_BOMB = """
import os, time
made = 0
try:
    for _ in range(40):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(42 if 0 < made < 12 else made)
"""
SPIN = "while True: pass"
SLEEP = "import time; time.sleep(600)"


def limits_hold(before, env):
    plain, memory, forks, cpu, wall = together(
        lambda: run(before, env=env),
        lambda: run(before, "--memory", "64m", env=env, code=MEMORY_BOMB),
        lambda: run(before, "--pids", "12", env=env, code=FORK_BOMB),
        lambda: run(before, "--cpu-time", "1s", "--timeout", "50s", env=env, code=SPIN),
        lambda: run(before, "--timeout", "3s", env=env, code=SLEEP),
    )
    expect_kept(plain)
    expect_kept(memory, "memory_limit")
    assert memory.fault_domain == "limit", memory.outcome
    assert memory.memory_peak_bytes <= 64 << 20, memory.memory_peak_bytes
    expect_kept(forks)
    expect_kept(cpu, "cpu_time_limit")
    assert 900 <= cpu.cpu_ms, cpu.cpu_ms
    expect_kept(wall, "wall_time_limit")


def together(*calls):
    """Beside each other: most of the time is set-up, and there are two cores."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


# Where belljar may find itself.


@test
def ordinary_user_in_a_system_service_gets_a_scope():
    limits_hold(AS_ANN, ANN)


@test
def ordinary_user_in_a_login_session_gets_a_scope():
    where = subprocess.run(
        ["runuser", "-l", "ann", "-c", "cat /proc/self/cgroup"], capture_output=True, text=True
    ).stdout
    assert "session-" in where, where
    command = f"{BELLJAR} run --json --language python -c 'print(42)'"
    done = subprocess.run(
        ["runuser", "-l", "ann", "-c", command], env=ROOT, capture_output=True, timeout=PATIENCE_S
    )
    expect_kept(Answer(done))


@test
def ordinary_user_in_a_user_service_gets_a_scope():
    before = [*AS_ANN, "systemd-run", "--user", "--pipe", "--wait", "--quiet"]
    expect_kept(run(before, env=ANN))


@test
def ordinary_user_without_a_bus_daemon_asks_the_manager_itself():
    os.makedirs("/tmp/runtime", exist_ok=True)
    if not os.path.lexists("/tmp/runtime/systemd"):
        os.symlink("/run/user/1000/systemd", "/tmp/runtime/systemd")
    expect_kept(run(AS_ANN, env={**ANN, "XDG_RUNTIME_DIR": "/tmp/runtime"}))


@test
def ordinary_user_with_a_wrong_address_still_finds_the_bus():
    env = {**ANN, "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/dbus/system_bus_socket"}
    expect_kept(run(AS_ANN, env=env))


@test
def ordinary_user_alone_in_a_delegated_scope_uses_that():
    before = [*AS_ANN, "systemd-run", "--user", "--scope", "--quiet", "-p", "Delegate=yes"]
    expect_kept(run(before, env={**ANN}))


@test
def ordinary_user_alone_in_a_delegated_service_uses_that():
    before = ["systemd-run", "--uid=ann", "--pipe", "--wait", "--quiet", "-p", "Delegate=yes"]
    expect_kept(run(before))


@test
def ordinary_user_in_a_scope_that_is_not_delegated_gets_one_that_is():
    before = [*AS_ANN, "systemd-run", "--user", "--scope", "--quiet"]
    expect_kept(run(before, env=ANN))


@test
def ordinary_user_whose_systemd_lacks_a_controller_is_told():
    drop_in = "/run/systemd/system/user@.service.d"
    os.makedirs(drop_in, exist_ok=True)
    write(f"{drop_in}/50-less.conf", "[Service]\nDelegate=\nDelegate=memory pids\n")
    try:
        restart_user_systemd()
        answer = run(AS_ANN, env=ANN)
        assert answer.code == 125, (answer.code, answer.raw[:400], answer.err)
        said = answer.err + answer.raw
        assert "user@1000.service" in said and "Delegate=memory pids cpu" in said, said
    finally:
        os.remove(f"{drop_in}/50-less.conf")
        restart_user_systemd()
    expect_kept(run(AS_ANN, env=ANN))


def restart_user_systemd():
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemctl", "restart", "user@1000.service"], check=True)
    wait_until(lambda: os.path.exists("/run/user/1000/bus"), lambda: "no bus")


@test
def ordinary_user_with_nobody_to_ask_is_told():
    env = {**ANN, "XDG_RUNTIME_DIR": "/nonexistent"}
    answer = run(AS_ANN, env=env)
    assert answer.code == 125, (answer.code, answer.raw, answer.err)
    assert "delegated to uid 1000" in answer.err + answer.raw, answer.err
    answer = run(AS_ANN, "--allow-missing", "cgroup", env=env)
    names = {one["name"] for one in answer.receipt["missing"]}
    assert {"cgroup_memory", "cgroup_pids", "cgroup_cpu"} <= names, names
    assert answer.stdout == "42\n", answer.outcome


@test
def ordinary_user_in_a_leaf_of_a_delegated_directory():
    top, leaf = f"{V2}/lab", f"{V2}/lab/leaf"
    make_lab(top, leaf)
    for path in (top, f"{top}/cgroup.procs", f"{top}/cgroup.subtree_control", leaf, f"{leaf}/cgroup.procs"):
        os.chown(path, 1000, 1000)
    try:
        nobody = {**ANN, "XDG_RUNTIME_DIR": "/nonexistent"}
        limits_hold([*in_cgroup(leaf), *AS_ANN], nobody)
        left = [name for name in os.listdir(top) if name.startswith("belljar")]
        assert not left, left
    finally:
        remove_lab(top, leaf)


@test
def root_in_a_leaf_of_a_directory_of_its_own():
    top, leaf = f"{V2}/lab", f"{V2}/lab/leaf"
    make_lab(top, leaf)
    try:
        expect_kept(run(in_cgroup(leaf)))
        assert not glob.glob(f"{top}/belljar*")
    finally:
        remove_lab(top, leaf)


@test
def root_in_the_root_cgroup_of_a_host_without_systemd():
    hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]
    write(f"{V2}/cgroup.subtree_control", " ".join(f"+{one}" for one in CONTROLLERS))
    expect_kept(run([*in_cgroup(V2), *hide]))
    assert not glob.glob(f"{V2}/belljar*")


@test
def root_in_a_system_service_gets_a_scope():
    limits_hold([], ROOT)


@test
def root_alone_in_a_delegated_scope_uses_that():
    before = ["systemd-run", "--scope", "--quiet", "-p", "Delegate=yes"]
    expect_kept(run(before))


def make_lab(top, leaf):
    wanted = " ".join(f"+{one}" for one in CONTROLLERS)
    write(f"{V2}/cgroup.subtree_control", wanted)
    os.mkdir(top)
    write(f"{top}/cgroup.subtree_control", wanted)
    os.mkdir(leaf)


def remove_lab(top, leaf):
    os.rmdir(leaf)
    os.rmdir(top)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


# The rest of the product on this kernel.


@test
def every_level_runs_for_root():
    every_level_runs([], ROOT, basic=[])


@test
def every_level_runs_for_an_ordinary_user():
    every_level_runs(AS_ANN, ANN, basic=["--allow-missing", "scopes"])


def every_level_runs(before, env, basic):
    answers = together(
        lambda: run(before, "--level", "none", env=env),
        lambda: run(before, "--level", "basic", *basic, env=env),
        lambda: run(before, "--level", "standard", env=env),
        lambda: run(before, "--level", "strict", env=env),
    )
    for answer in answers:
        assert answer.stdout == "42\n", answer.outcome
        assert all(layer["verified"] for layer in answer.receipt["layers"]), answer.receipt


@test
def a_kernel_without_landlock_scopes_is_told_at_basic():
    answer = run(AS_ANN, "--level", "basic", env=ANN)
    assert answer.code == 125 and "ABI 6" in answer.err + answer.raw, (answer.code, answer.raw, answer.err)


@test
def runs_beside_each_other_each_have_a_scope():
    for answer in together(*[lambda: run(AS_ANN, env=ANN)] * 6):
        expect_kept(answer)


@test
def warm_runs_of_root_are_as_whole_as_cold_ones():
    warm_runs_are_whole([], ROOT, uid=0)


@test
def warm_runs_of_an_ordinary_user_are_as_whole_as_cold_ones():
    warm_runs_are_whole(AS_ANN, ANN, uid=1000)


@test
def warm_runs_of_root_in_a_delegated_scope_are_copies_and_as_whole():
    before = ["systemd-run", "--scope", "--quiet", "-p", "Delegate=yes"]
    warm_runs_are_whole(before, ROOT, uid=0)


@test
def warm_runs_of_an_ordinary_user_in_a_delegated_scope_are_copies_and_as_whole():
    before = [*AS_ANN, "systemd-run", "--user", "--scope", "--quiet", "-p", "Delegate=yes"]
    warm_runs_are_whole(before, ANN, uid=1000)


def warm_runs_are_whole(before, env, uid):
    with serving(before, env, uid) as socket:
        for level in ("standard", "strict"):
            ask = lambda start, *more, **kind: run(
                before, "--server", socket, "--level", level, "--start", start, *more, env=env, **kind
            )
            whichever, cold, warm, wall = together(
                lambda: ask("any"),
                lambda: ask("cold"),
                lambda: ask("warm"),
                lambda: ask("warm", "--timeout", "3s", code=SLEEP),
            )
            expect_kept(whichever)
            assert cold.start == "cold" and warm.start == "warm", (cold.outcome, warm.outcome)
            expect_kept(warm)
            assert warm.fault_domain == "program", warm.outcome
            assert all(layer["verified"] for layer in warm.receipt["layers"]), warm.receipt
            assert set(warm.layers()) == set(cold.layers()), (warm.receipt, cold.receipt)
            assert warm.receipt["missing"] == cold.receipt["missing"] == [], warm.receipt
            expect_kept(wall, "wall_time_limit")
        expect_kept(ask("warm", "--memory", "64m", code=MEMORY_BOMB), "memory_limit")
    wait_until(lambda: not leftovers(), leftovers)


@contextmanager
def serving(before, env, uid):
    """`belljar serve` in a directory of its own; it ends well, or the test has failed."""
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, uid, uid)
        socket = f"{directory}/belljar.sock"
        command = [*before, BELLJAR, "serve", "--listen", "none", "--socket", socket, "--state", f"{directory}/state"]
        command += ["--pool", "4", "--pool-floor", "1", "--warm", "python", "--memory-reserve", "0"]
        server = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, cwd="/")
        try:
            said = [server.stderr.readline()]
            while "try: " not in said[-1]:
                assert said[-1], said
                said.append(server.stderr.readline())
            yield socket
            server.terminate()
            _, err = server.communicate(timeout=PATIENCE_S)
            assert server.returncode == 0, (server.returncode, err)
        finally:
            server.kill()
            server.wait()


# Sandboxes that stay, on overlays of a kernel that takes its layers in one text (before Linux 6.5).


@test
def sandboxes_of_root_live():
    Lives([], ROOT, 0).through()


@test
def sandboxes_of_an_ordinary_user_live():
    Lives(AS_ANN, ANN, 1000).through()


class Lives:
    """The life of a sandbox, by commands. Not in /tmp: overlays need attributes that a tmpfs of old has not."""

    def __init__(self, before, env, uid):
        self.before, self.uid = before, uid
        self.state = f"/var/tmp/state-{uid}"
        self.env = {**env, "BELLJAR_STATE": self.state, "BELLJAR_SOCKET": "/nonexistent"}
        os.mkdir(self.state, 0o700)
        os.chown(self.state, uid, uid)

    def do(self, *words, code=0):
        command = [*self.before, BELLJAR, "sandbox", *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def ask(self, *words):
        return json.loads(self.do(*words, "--json"))

    def through(self):
        self.do("create", "one", "--memory", "96m", "--pids", "24", "--disk", "32m", "--undo")
        layers = {one["name"]: one for one in self.ask("info", "one")["receipt"]["layers"]}
        for controller in CONTROLLERS:
            layer = layers[f"cgroup_{controller}"]
            assert layer["verified"] and layer["mechanism"] == f"cgroup v2 {controller}", layer
        disk = layers["disk"]["mechanism"]
        assert disk.startswith("a file system of its own" if self.uid == 0 else "measured"), disk
        self.files()
        self.points()
        self.limits()
        self.stands_still()
        self.is_killed()
        self.do("rm", "--force", "one", "two")
        assert self.ask("list")["sandboxes"] == []
        wait_until(lambda: not leftovers(), leftovers)

    def files(self):
        """In and out by the agent: before Linux 6.10 a file without a name gets its own another way."""
        source, out = f"{self.state}/tree", f"{self.state}/out"
        os.mkdir(source)
        for content in (b"first" * 30_000, b"second"):  # a file that is new, and one that is replaced
            with open(f"{source}/file", "wb") as file:
                file.write(content)
            subprocess.run(["chown", "-R", f"{self.uid}:{self.uid}", source], check=True)
            self.do("cp", f"{source}/file", "one:/workspace/alone")
            self.do("cp", source, "one:/workspace/")
            sums = self.do("shell", "one", "-c", "md5sum < alone; md5sum < tree/file").splitlines()
            assert sums == [f"{hashlib.md5(content).hexdigest()}  -"] * 2, sums
            self.do("cp", "one:/workspace/alone", f"{self.state}/alone")
            self.do("cp", "one:/workspace/tree", out)
            for name in (f"{self.state}/alone", f"{out}/file"):
                with open(name, "rb") as file:
                    assert file.read() == content, name
                os.remove(name)
            os.rmdir(out)
        names = self.do("shell", "one", "-c", "find . -mindepth 1 | sort")
        assert names == "./alone\n./tree\n./tree/file\n", names
        self.do("shell", "one", "-c", "rm -r alone tree")

    def points(self):
        self.do("shell", "one", "-c", "echo 1 > file; mkdir -m 700 empty; ln file link")
        self.do("snapshot", "one", "good")
        self.do("shell", "one", "-c", "echo 22 > file; rmdir empty; rm link; touch new")
        told = self.do("diff", "one", "good")
        assert told == "D /workspace/empty\nM /workspace/file\nD /workspace/link\nA /workspace/new\n", told
        self.do("fork", "one", "--as", "two")
        self.do("rollback", "one", "good")
        look = "cat file; stat -c '%a %h' empty file; ls"
        assert self.do("shell", "one", "-c", look) == "1\n700 2\n644 2\nempty\nfile\nlink\n"
        assert self.do("exec", "two", "--", "cat", "file") == "22\n"
        assert self.do("exec", "two", "--", "hostname") == "two\n"
        self.do("shell", "one", "-c", "rm file")
        self.do("undo", "one")
        assert self.do("exec", "one", "--", "cat", "file") == "1\n"

    def limits(self):
        eats = ["exec", "one", "--json", "--", "python3", "-c", "b = bytearray(300 << 20)"]
        command = [*self.before, BELLJAR, "sandbox", *eats]
        done = subprocess.run(command, env=self.env, capture_output=True, timeout=PATIENCE_S, cwd="/")
        assert Answer(done).end["verdict"]["kind"] == "memory_limit", (done.stdout, done.stderr)
        forks = self.do("shell", "one", "-c", "(for i in $(seq 40); do sleep 2 & done) 2>&1 | grep -c fork; true")
        assert forks != "0\n", forks

    def stands_still(self):
        exec_id = self.do("exec", "one", "--background", "--", "bash", "-c", "while :; do echo x; sleep 0.1; done").strip()
        written = lambda: next(one for one in self.ask("execs", "one")["execs"] if one["id"] == exec_id)["stdout_bytes"]
        wait_until(lambda: written() > 0, lambda: "nothing is written")
        self.do("pause", "one")
        before = written()
        time.sleep(1)
        assert written() == before and self.ask("info", "one")["state"] == "paused"
        self.do("resume", "one")
        wait_until(lambda: written() > before, lambda: "it does not go on")
        # What runs is frozen for a moment, copied, and goes on.
        self.do("snapshot", "one", "busy")
        before = written()
        wait_until(lambda: written() > before, lambda: "it does not go on after a point")
        self.do("stop", "one", "--grace", "1s")
        self.do("start", "one")
        assert self.do("exec", "one", "--", "cat", "file") == "1\n"

    def is_killed(self):
        self.do("exec", "one", "--background", "--", "sleep", "600")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm") as comm, open(f"/proc/{pid}/status") as status:
                    if comm.read() == "belljar-keeper\n" and f"Uid:\t{self.uid}\t" in status.read():
                        os.kill(int(pid), 9)
            except (FileNotFoundError, ProcessLookupError):
                pass
        wait_until(lambda: self.ask("info", "one")["state"] == "stopped", lambda: self.ask("info", "one"))
        self.do("start", "one")
        assert self.do("exec", "one", "--", "cat", "file") == "1\n"


@test
def a_killed_engine_leaves_nothing():
    for before, env in ((AS_ANN, ANN), ([], ROOT)):
        command = [*before, BELLJAR, "run", "--language", "python", "-c", "print('up', flush=True)\n" + SLEEP]
        one = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, cwd="/")
        assert one.stdout.readline() == b"up\n"
        one.kill()
        one.wait()
        wait_until(lambda: not leftovers(), leftovers)


@test
def a_killed_keeper_leaves_nothing():
    for before, env in ((AS_ANN, ANN), ([], ROOT)):
        command = [*before, BELLJAR, "run", "--language", "python", "-c", "print('up', flush=True)\n" + SLEEP]
        one = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")
        assert one.stdout.readline() == b"up\n"
        with open(f"/proc/{one.pid}/task/{one.pid}/children") as children:
            for keeper in children.read().split():
                os.kill(int(keeper), 9)
        _, err = one.communicate(timeout=PATIENCE_S)
        assert one.returncode == 125, (one.returncode, err)
        wait_until(lambda: not leftovers(), leftovers)


@test
def nothing_is_left():
    wait_until(lambda: not leftovers(), leftovers)


def leftovers():
    found = []
    for top, directories, _ in os.walk(V2):
        found += [f"{top}/{name}" for name in directories if name.startswith("belljar-") and name != "belljar-vm.service"]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe").startswith("/opt/belljar"):
                found.append(f"process {pid}")
        except OSError:
            pass
    found += glob.glob("/tmp/belljar*")
    with open("/proc/self/mounts") as mounts:
        found += [line for line in mounts if "belljar" in line]
    for command in (["systemctl"], [*AS_ANN, "systemctl", "--user"]):
        listed = subprocess.run(
            [*command, "list-units", "--all", "--no-legend", "--plain", "belljar-*.scope"],
            env=ANN if len(command) > 1 else ROOT, capture_output=True, text=True,
        )
        found += listed.stdout.splitlines()
    return found


def wait_until(true, what):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def main():
    print(f"guest: Linux {os.uname().release}, {open('/proc/uptime').read().split()[0]} s after boot")
    with open("/opt/belljar/only") as file:
        only = file.read().split()
    chosen = [body for body in tests if not only or any(word in body.__name__ for word in only)]
    failed = 0
    for body in chosen:
        started = time.monotonic()
        try:
            body()
            print(f"test {body.__name__} ... ok ({time.monotonic() - started:.1f} s)")
        except Exception:
            failed += 1
            print(traceback.format_exc())
            print(f"test {body.__name__} ... FAILED")
    word = "FAILED" if failed else "ok"
    print(f"test result: {word}. {len(chosen) - failed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out")


main()
