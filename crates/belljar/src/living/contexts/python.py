"""A Python context: runs one piece of code after the other in one namespace, and tells what each came to.

It stands in the same process as the code it runs, which can do to it what it likes: nothing said from here is
believed about anything but that code's own result. Requests come as lines of JSON on what was standard input;
answers go as marked frames between the output of the code, on what were standard output and standard error.
"""
import ast, base64, builtins, fcntl, io, json, linecache, os, resource, signal, sys, traceback, types

MAX_FRAME = 4000  # with its head below PIPE_BUF: written at once, or others' output could come in between
MAX_TEXT = 1 << 20  # of one form of a value that is text
MAX_ERROR = 1 << 20
MAX_RESULT = 14 << 20  # of all forms of a value together, as they travel
TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
OWN_NAME = "<belljar>"


class Channel:
    """Our own copies of the three streams; the code gets an empty input, and the output as it is."""

    def __init__(self):
        lowest = min(200, max(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 4))
        self.asked, self.told, self.marks = (fcntl.fcntl(n, fcntl.F_DUPFD_CLOEXEC, lowest) for n in (0, 1, 2))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self.pending, self.pid, self.call = b"", os.getpid(), "0" * 8
        self.nonce = self.hear()["nonce"]

    def hear(self):
        while b"\n" not in self.pending:
            more = os.read(self.asked, 1 << 16)
            if not more:
                leave(0)
            self.pending += more
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def tell(self, message, to=None):
        if os.getpid() != self.pid:
            return  # a copy of us has nothing to say
        payload = json.dumps(message, ensure_ascii=True, allow_nan=False).encode()
        for at in range(0, len(payload), MAX_FRAME):
            part = payload[at:at + MAX_FRAME]
            kind = "e" if at + MAX_FRAME >= len(payload) else "m"
            head = "\x1e%s%s%s%04x" % (self.nonce, self.call, kind, len(part))
            os.write(self.told if to is None else to, head.encode() + part)


def leave(code):
    os._exit(code)


class Out(io.TextIOWrapper):
    """Standard output that holds nothing back: who watches sees what was printed, though no line has ended."""

    def write(self, text):
        count = super().write(text)
        self.flush()
        return count


def open_streams():
    for name, fd in ("stdout", 1), ("stderr", 2):
        raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
        out = Out(raw, encoding="utf-8", errors="backslashreplace", newline="\n")
        setattr(sys, name, out)
        setattr(sys, "__%s__" % name, out)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)


def flush():
    for out in sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__:
        try:
            out.flush()
        except BaseException:
            pass  # closed, or none of ours: as the code pleases
    if "ctypes" in sys.modules:  # then there may be libraries that print on their own
        try:
            sys.modules["ctypes"].pythonapi.fflush(None)
        except BaseException:
            pass


def clean(text):
    """Lone surrogates are no text that could travel."""
    return text.encode("utf-8", "replace").decode()


def shortened(text, most):
    if len(text) <= most:
        return text
    half = most // 2
    return "%s\n[belljar: %d characters dropped here]\n%s" % (text[:half], len(text) - 2 * half, text[-half:])


# Values in every form that they have.

TEXT_FORMS = [
    ("text/html", "_repr_html_"), ("text/markdown", "_repr_markdown_"), ("image/svg+xml", "_repr_svg_"),
    ("text/latex", "_repr_latex_"), ("application/javascript", "_repr_javascript_"), ("application/json", "_repr_json_"),
]
BYTE_FORMS = [("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"), ("application/pdf", "_repr_pdf_")]
TABLE = "application/vnd.belljar.table+json"
MAX_TABLE_CELLS = 100_000


def forms(value):
    data = {"text/plain": plain(value)}
    if isinstance(value, type):
        return data
    for mime, name in TEXT_FORMS + BYTE_FORMS:
        put(data, mime, call_form(value, name))
    bundle = call_form(value, "_repr_mimebundle_")
    if isinstance(bundle, dict):
        for mime, form in bundle.items():
            put(data, str(mime), form)
    if is_figure(value):
        put(data, "image/png", picture(value))
    if isinstance(value, (dict, list)):
        put(data, "application/json", value)
    frame = sys.modules.get("pandas")
    if frame is not None and isinstance(value, getattr(frame, "DataFrame", ())) and value.size <= MAX_TABLE_CELLS:
        put(data, TABLE, {str(name): value[name].tolist() for name in value.columns if value.columns.is_unique})
    return data


def plain(value):
    try:
        return shortened(clean(repr(value)), MAX_TEXT)
    except Exception as error:
        return "<%s whose repr raised %s: %s>" % (type(value).__name__, type(error).__name__, clean(str(error))[:1000])


def call_form(value, name):
    method = getattr(value, name, None) if hasattr(type(value), name) else None
    try:
        form = method() if callable(method) else None
    except Exception:
        return None  # it does not have this form now
    return form[0] if isinstance(form, tuple) and form else form


def put(data, mime, form):
    if isinstance(form, (bytes, bytearray)):
        form = base64.b64encode(form).decode()
    elif isinstance(form, str):
        form = clean(form)
    elif form is None:
        return
    else:
        try:
            form = json.loads(clean(json.dumps(form, ensure_ascii=False, allow_nan=False, default=scalar)))
        except (TypeError, ValueError, RecursionError):
            return
        size = len(json.dumps(form))
    if isinstance(form, str):
        size = len(form)
    if size + data.get("", [0])[0] > MAX_RESULT:
        data.setdefault("", [0]).append("%s of %d bytes" % (mime[:100], size))
    else:
        data.setdefault("", [0])[0] += size
        data[mime] = form


def scalar(value):
    """Numbers of numpy, and dates."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError


def show(*values, **_):
    for value in values:
        if isinstance(value, dict) and _.get("raw"):
            data = {}
            for mime, form in value.items():
                put(data, str(mime), form)
        else:
            data = forms(value)
        send_result(False, data)
        if is_figure(value):
            close_figure(value)


def send_result(main, data):
    cells.ours += 1  # an interrupt in the middle would leave half a message
    try:
        flush()
        channel.tell({"main": main, "dropped": data.pop("", [0])[1:], "result": data})
    finally:
        cells.ours -= 1
    if cells.owed and cells.running and not cells.ours:
        cells.owed = False
        raise KeyboardInterrupt


# Figures of matplotlib.

def is_figure(value):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def picture(figure):
    image = io.BytesIO()
    figure.savefig(image, format="png", bbox_inches="tight")
    return image.getvalue()


def close_figure(figure):
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)


def send_figures(*_, **__):
    """All that are open, as `plt.show()` would."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if hasattr(pyplot, "get_fignums") else ():
        figure = pyplot.figure(number)
        if figure.get_axes() or getattr(figure, "texts", ()) or getattr(figure, "images", ()):
            send_result(False, {"text/plain": plain(figure), "image/png": base64.b64encode(picture(figure)).decode()})
        pyplot.close(figure)


class PyplotWatch:
    """There is no screen: `plt.show()` gives the figures to us from its first call on."""

    def find_spec(self, name, path=None, target=None):
        if name != "matplotlib.pyplot":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_then_change(module):
                run(module)
                module.show = send_figures

            spec.loader.exec_module = run_then_change
        return spec


# One piece of code.

class Cells:
    def __init__(self):
        self.module = types.ModuleType("__main__")
        self.module.__dict__.update(__builtins__=builtins, display=show)
        sys.modules["__main__"], sys.argv = self.module, [""]
        self.flags, self.loop, self.running = TOP_LEVEL_AWAIT, None, False
        self.begun, self.owed, self.ours = False, False, 0

    def run(self, code, number):
        name = "<cell %d>" % number
        linecache.cache[name] = len(code), None, code.splitlines(True), name
        try:
            tree = compile(code, name, "exec", self.flags | ast.PyCF_ONLY_AST, dont_inherit=True)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            body = self.compile(tree, name, "exec")
            value = self.compile(ast.Expression(last.value), name, "eval") if last else None
            self.evaluate(body)
            if value is not None:
                self.present(self.evaluate(value), code)
            send_figures()
        finally:
            cells.ours += 1
            flush()
            cells.ours -= 1

    def compile(self, tree, name, mode):
        code = compile(tree, name, mode, flags=self.flags, dont_inherit=True)
        self.flags |= code.co_flags & FUTURES  # `from __future__` holds for the cells that follow
        return code

    def evaluate(self, code):
        value = eval(code, self.module.__dict__)
        if not code.co_flags & 0x80:  # CO_COROUTINE: there is an await
            return value
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(value)
        try:
            return self.loop.run_until_complete(task)
        except BaseException as error:
            if isinstance(error, OSError):
                self.loop = None  # the code may have closed what it waits with
            elif not task.done():  # an interrupt came in between: what waits is told, and nothing is left half-done
                task.cancel()
                try:
                    self.loop.run_until_complete(task)
                except BaseException:
                    pass
            raise

    def present(self, value, code):
        if value is None:
            return
        self.module.__dict__["_"] = value
        if code.rstrip().endswith(";"):
            return
        send_result(True, forms(value))
        if is_figure(value):
            close_figure(value)


def future_flags():
    import __future__

    return sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def leave_out_our_own(told):
    for _ in range(100):  # what was raised while what was raised …
        if told is None:
            return
        told.stack[:] = [frame for frame in told.stack if frame.filename != OWN_NAME]
        told = told.__cause__ or told.__context__


def describe(error, name):
    """What went wrong, without the frames that are ours."""
    line = None
    if isinstance(error, SyntaxError) and error.filename == name:
        line = error.lineno
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == OWN_NAME:
        trace = trace.tb_next
    at = trace
    while at is not None:
        line = at.tb_lineno if at.tb_frame.f_code.co_filename == name else line
        at = at.tb_next
    try:
        told = traceback.TracebackException(type(error), error, trace)
        leave_out_our_own(told)
        told = "".join(told.format())
    except BaseException as other:
        told = "<traceback: %s>" % type(other).__name__
    try:
        value = str(error)
    except BaseException as other:
        value = "<text: %s>" % type(other).__name__
    return {
        "name": clean(type(error).__name__)[:1000], "value": shortened(clean(value), MAX_ERROR),
        "traceback": shortened(clean(told), MAX_ERROR), "line": line if isinstance(line, int) and line > 0 else None,
    }


def no_input(*_):
    raise RuntimeError("input() has nobody to ask here: put the value into the code, or into a file that it reads")


def interrupted(*_):
    if not cells.begun:
        return  # nothing of a call runs
    channel.tell({"heard": True}, channel.marks)
    if cells.running and not cells.ours:
        raise KeyboardInterrupt
    cells.owed = True


def mend_streams():
    """Code may have closed them; the next is not to suffer for it."""
    for fd, ours in (0, None), (1, channel.told), (2, channel.marks):
        try:
            os.fstat(fd)
        except OSError:
            source = os.open(os.devnull, os.O_RDONLY) if ours is None else ours
            if source != fd:
                os.dup2(source, fd)
    if sys.__stdout__.closed or sys.__stderr__.closed:
        open_streams()


def one_call(order):
    """Runs the code; an error of it, or None."""
    channel.call, error = order["call"], None
    cells.begun, cells.owed, cells.ours = True, False, 0
    signal.signal(signal.SIGINT, interrupted)
    channel.tell({"begin": True})
    mend_streams()
    os.environ.update(order["env"])
    try:
        cells.running = True
        if cells.owed:
            raise KeyboardInterrupt
        cells.run(order["code"], order["number"])
        cells.running = False
    except BaseException as raised:
        cells.running = False
        error = describe(raised, "<cell %d>" % order["number"])
        raised.__traceback__ = None  # it would hold what the code's functions held
    cells.begun = False
    if os.getpid() != channel.pid:  # a copy that came back here instead of ending
        sys.stderr.write(error["traceback"] if error else "")
        flush()
        leave(1 if error else 0)
    return error


def finish(error, before):
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    if error is not None:
        try:
            send_figures()  # what was drawn before it went wrong
        except Exception:
            pass
    flush()
    channel.tell({"end": True, "error": error})
    channel.tell({"end": True}, channel.marks)


def main():
    global channel, cells, FUTURES
    FUTURES = future_flags()
    signal.signal(signal.SIGINT, lambda *_: None)
    channel = Channel()
    open_streams()
    cells = Cells()
    builtins.display, builtins.input = show, no_input
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.meta_path.insert(0, PyplotWatch())
    while True:
        try:
            order = channel.hear()
            before = {name: os.environ.get(name) for name in order["env"]}
            try:
                error = one_call(order)
            except KeyboardInterrupt as late:  # between the end of the code and our seeing it
                cells.running, cells.begun, error = False, False, describe(late, "")
            finish(error, before)
        except OSError:
            leave(74)  # the code closed what we speak through


main()
