"""A Python that waits for its program.

Started with a word and the names of modules to have loaded; after "--" may come path and text of a program of our own
to have loaded. "start": an interpreter in its sandbox, locked down already. "fork": a zygote, outside of any, whose
copies find themselves in theirs. Either way nothing of a user's program is here before it comes as one message on
descriptor 3.
"""
import sys

base = set(sys.modules)  # what every Python has loaded when its program begins
import _signal, _weakref, atexit, gc, importlib.machinery, io, os, types

# A copy shares every page that neither side has written since, and to read an object is to write its count.
# So what can be done in the zygote is done there, and copies look at as little as they can.
DELIVERY = 3
ROUNDS = 20
how, rest = sys.argv[1], sys.argv[2:]
cut = rest.index("--") if "--" in rest else len(rest)
modules, own = rest[:cut], rest[cut + 1:]
ahead = {}  # loaded, but for its main(): by its text, so that what is run is what was asked for
kept, newest, ours, before, copies = set(), None, set(), {}, None
forms = [(one.encoding, one.errors) for one in (sys.stdin, sys.stdout, sys.stderr)]  # as the locale has it
sys.path[:] = [entry for entry in sys.path if entry]  # the empty one is there for -c alone


def load():
    global kept, newest, ours, before
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # not every host has every module
    if own:
        path, text = own
        ahead[text.encode()] = main = program(path)
        main.__name__ = "ahead"
        exec(compile(text, path, "exec", dont_inherit=True), main.__dict__)
        main.__name__, main.copies = "__main__", copies
        main.rehearse()
    for number in range(1, _signal.NSIG):  # whatever this process was started with
        if _signal.getsignal(number) is _signal.SIG_IGN and number not in (_signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)
    kept, newest = set(sys.modules), next(reversed(sys.modules))
    ours, before = kept - base, dict(os.environ)
    gc.collect()
    gc.freeze()
    if how == "fork":
        # Python writes into code that runs for the first times, to make it faster. Done here, that is shared.
        for _ in range(ROUNDS):
            rehearse("/proc/self/task")  # where no name is a module's
        gc.collect()
        gc.freeze()


def receive():
    rehearse(os.getcwd())
    os.write(DELIVERY, b"r")
    message = os.read(DELIVERY, 1 << 18)
    os.close(DELIVERY)
    if not message:
        os._exit(0)  # nobody wants us any more
    return take(message)


def take(message):
    """Its arguments; its variables become ours."""
    count, _, rest = message.decode(errors="surrogateescape").partition("\0")
    words, count = rest.split("\0"), int(count)
    after = dict(word.split("=", 1) for word in words[count:] if word)
    for name in before.keys() - after.keys():
        del os.environ[name]
    for name, value in after.items():
        if before.get(name) != value:
            os.environ[name] = value
    return words[:count]


def rehearse(directory):
    """Touches what the coming program will need: a page that a copy shares is slow only the first time."""
    take(b"0\0" + b"\0".join(f"{name}={value}".encode(errors="surrogateescape") for name, value in before.items()))
    make_way(directory)
    source = read(os.devnull) + b"import sys\n"
    exec(compile(source, "rehearsal", "exec", dont_inherit=True), program(os.devnull).__dict__)
    sys.stdout.write("")
    flush(0)
    flush_files()
    gc.collect()


def run(argv):
    """Runs a file as `python3 FILE` would; the answer is the exit code."""
    path = argv[1]
    sys.argv, sys.orig_argv = argv[1:], argv
    sys.path.insert(0, os.path.dirname(path))
    make_way(sys.path[0])
    main = sys.modules["__main__"] = program(path)
    try:
        source = read(path)
        if source in ahead:
            sys.modules["__main__"] = ahead[source]
            ahead[source].main()
        else:
            exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as exit:
        return exit_code(exit.code)
    except BaseException as error:
        failed = error
    else:
        return 0
    return report(failed)  # out here what its hook raises has no context of ours


def program(path):
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __cached__=None, __annotations__={}, __builtins__=sys.modules["builtins"],
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    return main


def read(path):
    """The least that reads a file: whole objects for it come with the program, if it wants them."""
    file, parts = os.open(path, os.O_RDONLY | os.O_CLOEXEC), []
    while part := os.read(file, 1 << 15):
        parts.append(part)
    os.close(file)
    return b"".join(parts)


def make_way(directory):
    """The program's own files come before modules of the same name, which were loaded without asking them."""
    for entry in os.listdir(directory):
        name, _, suffix = entry.partition(".")
        if name in ours and (suffix in ("", "py", "pyc") or suffix.endswith("so")):
            for one in ours:
                del sys.modules[one]
            return


def exit_code(value):
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF if -(1 << 63) <= value < 1 << 63 else 255
    try:
        text = str(value)
    except BaseException:
        text = ""
    print(text, file=sys.stderr)
    return 1


def report(error):
    kind, trace = type(error), error.__traceback__.tb_next  # without our own frame
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    try:
        sys.excepthook(kind, error, trace)
    except SystemExit as exit:
        return exit_code(exit.code)
    except BaseException as another:
        show("Error in sys.excepthook:", another)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(kind, error, trace)
    if kind is KeyboardInterrupt:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    return 1


def show(title, error):
    """An error of the program that passed through us, without our own frame."""
    error.__traceback__ = error.__traceback__.tb_next
    print(title, file=sys.stderr)
    sys.__excepthook__(type(error), error, error.__traceback__)


def leave(code):
    """Ends as Python does, for all that is the program's own. What was loaded ahead is left as it is: to take
    it apart, object by object, would cost more than the program did."""
    threading = sys.modules.get("threading")
    if threading:
        try:
            threading._shutdown()
        except BaseException as error:
            show(f"Exception ignored in: {threading!r}", error)
    atexit._run_exitfuncs()
    code = flush(code)
    flush_files()
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    left, names = [], ["__main__"]
    for name in reversed(sys.modules):  # the program's own were added last
        if name is newest:
            break
        if name not in kept:
            names.append(name)
    for name in reversed(names):
        module, sys.modules[name] = sys.modules[name], None
        if isinstance(module, types.ModuleType):
            left.append(_weakref.ref(module))
        del module
    gc.collect()  # most of it goes here, whole
    for module in reversed(left):
        names = getattr(module(), "__dict__", {})
        for hidden in (True, False):
            for name in list(names):
                if name != "__builtins__" and hidden == (name[0] == "_" and name[1:2] != "_"):
                    names[name] = None
    gc.collect()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    os._exit(flush(code))


def flush_files():
    """Files that are part of a cycle would be taken apart in no good order. What was loaded ahead has none."""
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
        for file in [one for one in gc.get_objects() if isinstance(one, kind)]:
            try:
                file.flush()
            except BaseException:
                pass  # closed, or read only, or full: as Python says nothing of it either


def flush(code):
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException as error:
            code = 120
            if stream is sys.stdout and sys.stderr is not None:
                show(f"Exception ignored in: {stream!r}", error)
    return code


def renew():
    """What a copy must not share with the others, beyond what Python renews by itself."""
    # As Python has them from its start; all others were given their defaults with the copy.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_IGN)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
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


def open_streams():
    """For the copies, whose streams are pipes: so they are here, too, while they are looked at."""
    own = [os.dup(number) for number in range(3)]
    reads, writes = os.pipe()
    for number, end in enumerate((reads, writes, writes)):
        os.dup2(end, number)
    sys.stdin, sys.stdout, sys.stderr = stream(0), stream(1), stream(2)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    for number, end in enumerate(own):
        os.dup2(end, number)
    for end in (reads, writes, *own):
        os.close(end)


def stream(number):
    """As Python opens its own, without a buffer for what it writes."""
    writes, (encoding, errors) = number > 0, forms[number]
    raw = open(number, "wb" if writes else "rb", 0 if writes else -1, closefd=False)
    text = io.TextIOWrapper(
        raw, encoding=encoding, errors=errors, newline="\n", line_buffering=False, write_through=True
    )
    (raw if writes else raw.raw).name = ("<stdin>", "<stdout>", "<stderr>")[number]
    text.mode = "w" if writes else "r"
    return text


def serve():
    """A zygote's life: one copy for each wish, until the engine is gone."""
    global copies
    import ctypes

    jar, python = ctypes.PyDLL("/proc/self/fd/1"), ctypes.pythonapi
    copies = jar.belljar_copies
    os.dup2(2, 1)
    open_streams()

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
