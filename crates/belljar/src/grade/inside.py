"""Beside a candidate: loads it, and lets a copy of the loaded process answer each case.

Nothing in here is a secret and nothing in here decides anything: the candidate can do to this process what it
likes. What is expected, and the comparison, are outside.
"""
import builtins, gc, marshal, resource, signal, time, types

CLOSED = 77
BUILTINS = {one for one in dir(builtins) if one[:1] != "_"}
# A zygote's, which does what copy_for_each() does, but without Python in the parent, and without what Python does after a
# copy: new random numbers, and what modules that know of copies have asked for. Most candidates would not notice.
copies = None
NOTICED = b"random", b"fork", b"thread", b"secrets", b"uuid", b"logging"


def main():
    channel = Channel()
    order = loads(channel.read()[1:])
    module, texts = load(channel, order)
    if order["threads"] == "refuse" and len(os.listdir("/proc/self/task")) > 1:
        channel.tell({"threads": True})
        os._exit(0)
    path, names = order["file"], module.__dict__
    channel.write(b"l" + dumps([one for one in names if one in BUILTINS][:500], 2))
    side = LAST
    if order["copies"]:
        gc.freeze()  # copies share what nobody touches
        if copies and order["alone"] and not any(word in text for text in texts for word in NOTICED):
            side = copies(order["cases"], channel.sink)
            if side < 0:
                raise OSError(-side, os.strerror(-side))
        else:
            side = copy_for_each(channel.sink, order["cases"])
    if side != GONE:
        answer_at_once(channel, module, path, names, side == LAST)
    os._exit(0)


def load(channel, order):
    path, setup = order["file"], order["setup"] or ""
    module = types.ModuleType(os.path.splitext(os.path.basename(path))[0])
    module.__file__ = path
    sys.modules[module.__name__], sys.argv = module, [path]
    try:
        if setup:
            exec(compile(setup, "<setup>", "exec", dont_inherit=True, optimize=0), module.__dict__)
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True, optimize=0), module.__dict__)
    except BaseException as error:
        channel.tell({"failed": describe(error, path)})
        os._exit(0)
    return module, (source, setup.encode())


COPY, LAST, GONE = 0, 1, 2  # who returns


def copy_for_each(sink, left):
    """A copy for each case but the last: after that nobody is left whom this process could harm."""
    while left != 1:
        pid = os.fork()
        if pid == 0:
            return COPY
        _, status, usage = os.wait4(pid, 0)
        sweep()
        if status == CLOSED << 8:
            return GONE
        write(sink, END + dumps([status, usage.ru_maxrss], 2))
        left -= 1
    return LAST


END = b"\x10\0\0\0e"  # with the length of two numbers that are not large


def answer_at_once(channel, module, path, names, last):
    """The shortest way to the answer of a plain call, for most: every object that is looked at is on a page that has to
    be copied first. Whatever is not plain goes the long way."""
    message = read(channel.source, 65536)
    if message[4:5] != b"c":
        return answer(channel, module, path, last, channel.rest(message))
    name, args, kwargs = loads(message[29:])
    function = names.get(name)
    if type(function) is not Function:
        return answer(channel, module, path, last, message[4:])
    try:
        value = function(*args, **kwargs)
    except BaseException as error:
        return tell(channel, message[5:29], {"raised": describe(error, path)}, last)
    if type(value) is int and -LARGE <= value < LARGE or is_plain(value, 0, MAX_PLAIN) >= 0:
        if sys.stdout is not printed_at_once:
            flush()
        memory = peak().to_bytes(8, "little") if last else NO_MEMORY
        value = b"v%b%b%b" % (message[5:29], memory, dumps(value, 2))
        if len(value) < 256:
            return write(channel.sink, b"%c\0\0\0%b" % (len(value), value))
        return channel.write(value)
    try:
        told = value_told(settled(value), None)
    except BaseException as error:
        told = {"raised": describe(error, path)}
    tell(channel, message[5:29], told, last)


read, write, loads, dumps, Function = os.read, os.write, marshal.loads, marshal.dumps, types.FunctionType
NO_MEMORY = bytes(8)  # it is told with the end


def tell(channel, nonce, told, last):
    flush()
    if last:
        told["memory"] = peak()
    channel.tell({"n": nonce.decode(), **told})


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def sweep():
    """Ends what the case left behind. Only where our parent is the first process: then the process table is the
    sandbox's own."""
    for _ in range(2000 if os.getppid() == 1 else 0):
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return  # none is left
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # what the candidate started while it was loaded; process 1 reaps the rest
        except ChildProcessError:
            pass
        time.sleep(0.0005)


def answer(channel, module, path, last, message=None):
    """Answers one case; an assert may ask more than once."""
    objects = []
    while True:
        message = channel.read() if message is None else message
        if not message:
            os._exit(CLOSED)
        plain_call = message[:1] in b"cC"
        nonce, order = message[1:25], {}
        if not plain_call:
            order = json.loads(message)
            nonce = order["n"].encode()
        try:
            if plain_call:
                told = value_told(call(module, *marshal.loads(message[25:])), None)
            else:
                told = carry_out(order, module, objects)
        except Missing as error:
            told = {"missing": list(error.args[0])}
        except Refused as error:
            told = {"refused": str(error)}
        except BaseException as error:
            told = {"raised": describe(error, path)}
        tell(channel, nonce, told, last)
        if not order.get("more"):
            return
        message = None


def flush():
    """What is printed goes out at once, unless the candidate has made its own way for it."""
    if sys.stdout is not printed_at_once:
        try:
            sys.stdout.flush()
        except BaseException:
            pass  # closed, or none of ours: as it pleases


MAX_PLAIN, MAX_SHORT, LARGE = 2000, 100_000, 1 << 63
printed_at_once = sys.stdout if getattr(sys.stdout, "write_through", False) else None


def is_plain(value, depth, left):
    """How many values more may come, below 0 if this is not for the short way: not plain, or not short."""
    kind = type(value)
    if kind is int:
        return left if -LARGE <= value < LARGE else -1
    if kind is str:
        return left if len(value) < MAX_SHORT and value.isascii() else -1
    if value is None or kind is bool or kind is float or kind is complex:
        return left
    if kind is bytes:
        return left if len(value) < MAX_SHORT else -1
    if kind is list or kind is tuple or kind is dict or kind is set or kind is frozenset:
        left -= len(value)
        if depth >= MAX_DEPTH or left < 0:
            return -1
        for one in value:
            left = is_plain(one, depth + 1, left)
            if left < 0:
                return -1
        if kind is dict:
            for one in value.values():
                left = is_plain(one, depth + 1, left)
                if left < 0:
                    return -1
        return left
    return -1


def call(module, name, args, kwargs):
    return settled(find(module, name)(*args, **kwargs))


class Missing(Exception):
    """The candidate has no such name; it has these."""


def carry_out(order, module, objects):
    if "do" not in order:
        return value_told(call(module, order["func"], decode(order["args"]), decode(order["kwargs"])), None)

    def keep(value):
        if len(objects) >= 10_000:
            raise Refused("is one object too many")
        objects.append(value)
        return len(objects) - 1

    act, args = order["do"], decode(order["args"], objects.__getitem__)
    if act == "end":
        return {}
    if act == "get":
        return value_told(find(module, args[0]), keep)
    if act == "call":
        called, args, kwargs = args
        before = [Encoder(keep).encode(one) if type(one) in CHANGEABLE else None for one in args]
        told = value_told(settled(called(*args, **kwargs)), keep)
        after = [Encoder(keep).encode(one) if type(one) in CHANGEABLE else None for one in args]
        if before != after:
            told["changed"] = after
        return told
    return value_told(ACTS[act](*args), keep)


CHANGEABLE = list, dict, set
ACTS = {
    "attribute": getattr, "item": lambda one, key: one[key], "length": len, "text": str, "show": repr,
    "list": list, "next": next, "int": int, "float": float,
}


def value_told(value, keep):
    try:
        return {"value": Encoder(keep).encode(value), "type": name_of(type(value))}
    except Refused as error:
        return {"refused": str(error), "type": name_of(type(value))}


def settled(value):
    if isinstance(value, types.CoroutineType):
        import asyncio

        return asyncio.run(value)
    return value


def find(module, name):
    """A function by its name, or the only one; a class on the way is made an object."""
    if name is None:
        own = functions(module)
        if len(own) != 1:
            raise Missing(own)
        name = own[0]
    found = module
    for part in name.split("."):
        if isinstance(found, type):
            found = found()
        if not hasattr(found, part):
            raise Missing(functions(module))
        found = getattr(found, part)
    return found


def functions(module):
    return [
        key for key, one in module.__dict__.items()
        if isinstance(one, types.FunctionType) and one.__module__ == module.__name__ and key[:1] != "_"
    ]


def rehearse():
    """In a zygote, so that its copies need not: Python writes into its own code while that is new."""
    channel = Channel.__new__(Channel)
    (channel.source, ours), (theirs, channel.sink) = os.pipe(), os.pipe()
    module = types.ModuleType("rehearsal")
    exec(compile("def f(n):\n    return [i for i in range(n)]\n", "rehearsal", "exec"), module.__dict__)
    message = b"c" + bytes(24) + dumps(("f", [2], {}), 2)
    for last in (True, False) * 20:
        write(ours, len(message).to_bytes(4, "little") + message)
        answer_at_once(channel, module, "rehearsal", module.__dict__, last)
        read(theirs, 100)
    for one in (channel.source, channel.sink, ours, theirs):
        os.close(one)


if __name__ == "__main__":
    main()
