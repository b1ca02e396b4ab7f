"""A Python that waits for its program.

Started with a word and the names of modules to have loaded. "start": an interpreter in its sandbox, locked
down already. "fork": a zygote, outside of any, whose copies find themselves in theirs. Either way nothing of
a program is here before it comes as one message on descriptor 3.
"""
import atexit, gc, importlib, io, json, os, signal, sys, types

DELIVERY = 3
how, modules, last = sys.argv[1], sys.argv[2:], None
sys.path[:] = [entry for entry in sys.path if entry]  # the empty one is there for -c alone


def load():
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # not every host has every module
    global last
    last = next(reversed(sys.modules))
    gc.collect()
    gc.freeze()  # copies share what nobody touches


def receive():
    rehearse()
    before = dict(os.environ)
    os.write(DELIVERY, b"r")
    message = os.read(DELIVERY, 1 << 18)
    os.close(DELIVERY)
    if not message:
        os._exit(0)  # nobody wants us any more
    delivery = json.loads(message)
    after = dict(delivery["environment"])
    for name in before.keys() - after.keys():
        del os.environ[name]
    for name, value in after.items():
        if before.get(name) != value:
            os.environ[name] = value
    return delivery["argv"]


def rehearse():
    """Touches what the coming program will need: a page that a copy shares is slow only the first time."""
    json.loads('{"argv": ["a", 1], "environment": [["b", "c"]]}')
    with open(os.devnull, "rb") as file:
        exec(compile(file.read() + b"import sys\n", "rehearsal", "exec", dont_inherit=True), {})
    os.environ["BELLJAR"] = ""
    del os.environ["BELLJAR"]
    sys.stdout.write("")
    flush(0)
    gc.collect()


def run(argv):
    """Runs a file as `python3 FILE` would; the answer is the exit code."""
    path = argv[1]
    sys.argv, sys.orig_argv = argv[1:], argv
    sys.path.insert(0, os.path.dirname(path))
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __cached__=None, __annotations__={}, __builtins__=sys.modules["builtins"],
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as exit:
        return exit_code(exit.code)
    except BaseException as error:
        return report(error)
    return 0


def exit_code(value):
    if value is None or isinstance(value, int):
        return int(value or 0) & 0xFF
    print(value, file=sys.stderr)
    return 1


def report(error):
    kind, trace = type(error), error.__traceback__.tb_next  # without our own frame
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    try:
        sys.excepthook(kind, error, trace)
    except SystemExit as exit:
        return exit_code(exit.code)
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        sys.__excepthook__(kind, error, trace)
    if kind is KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def leave(code):
    """Ends as Python does, for all that is the program's own. What was loaded ahead is left as it is: to take
    it apart, object by object, would cost more than the program did."""
    threading = sys.modules.get("threading")
    if threading:
        threading._shutdown()
    atexit._run_exitfuncs()
    code = flush(code)
    own = [sys.modules.get("__main__")]
    for name in reversed(sys.modules):  # in the order in which they came
        if name == last:
            break
        own.append(sys.modules[name])
    for module in own:
        names = getattr(module, "__dict__", None) or {}
        for hidden in (True, False):
            for name in list(names):
                if name != "__builtins__" and hidden == (name[0] == "_" and name[1:2] != "_"):
                    names[name] = None
    gc.collect()
    os._exit(flush(code))


def flush(code):
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            code = code or 120
    return code


def renew():
    """What a copy must not share with the others, beyond what Python renews by itself."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # as Python has them from its start
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = stream(0), stream(1), stream(2)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    numpy = sys.modules.get("numpy.random")
    if numpy:
        numpy.seed()
    process = sys.modules.get("multiprocessing.process")
    if process:
        key = process.AuthenticationString(os.urandom(32))
        process._current_process._config["authkey"] = key
    threading = sys.modules.get("threading")
    if threading:
        threading.main_thread()._set_native_id()
    tempfile = sys.modules.get("tempfile")
    if tempfile:
        tempfile._name_sequence = tempfile.tempdir = None


def stream(number):
    """As Python opens its own, without a buffer for what it writes."""
    writes, errors = number > 0, "backslashreplace" if number == 2 else "strict"
    raw = open(number, "wb" if writes else "rb", 0 if writes else -1, closefd=False)
    text = io.TextIOWrapper(
        raw, encoding="utf-8", errors=errors, newline="\n", line_buffering=False, write_through=writes
    )
    (raw if writes else raw.raw).name = ("<stdin>", "<stdout>", "<stderr>")[number]
    text.mode = "w" if writes else "r"
    return text


def serve():
    """A zygote's life: one copy for each wish, until the engine is gone."""
    import ctypes

    sys.stdin = sys.__stdin__ = None  # which is where wishes come from
    jar, python = ctypes.PyDLL("/proc/self/fd/1"), ctypes.pythonapi
    os.dup2(2, 1)

    @ctypes.CFUNCTYPE(None)
    def awake():
        python.PyOS_AfterFork_Child()
        try:
            renew()
            leave(run(receive()))
        finally:
            os._exit(1)

    load()
    error = jar.belljar_begin()
    os.write(0, b"%d" % error)
    while not error and jar.belljar_await() == 0:
        python.PyOS_BeforeFork()
        error = jar.belljar_grant(awake)
        python.PyOS_AfterFork_Parent()
    os._exit(1 if error else 0)


if how == "fork":
    serve()
load()
leave(run(receive()))
