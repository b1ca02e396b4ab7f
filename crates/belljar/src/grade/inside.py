"""Beside a candidate: loads it, and lets a copy of the loaded process answer each case.

Nothing in here is a secret and nothing in here decides anything: the candidate can do to this process what it
likes. What is expected, and the comparison, are outside.
"""
import builtins, gc, resource, signal, time, types

CLOSED = 77
BUILTINS = {one for one in dir(builtins) if one[:1] != "_"}


def main():
    channel = Channel()
    order = channel.hear()
    module = load(channel, order)
    if order["threads"] == "refuse" and len(os.listdir("/proc/self/task")) > 1:
        channel.tell({"threads": True})
        os._exit(0)
    channel.tell({"loaded": True, "names": [one for one in module.__dict__ if one in BUILTINS][:500]})
    if order["copies"]:
        gc.freeze()  # copies share what nobody touches
        copy_for_each(channel, module, order["file"])
    answer(channel, module, order["file"])
    os._exit(0)


def load(channel, order):
    path = order["file"]
    module = types.ModuleType(os.path.splitext(os.path.basename(path))[0])
    module.__file__ = path
    sys.modules[module.__name__], sys.argv = module, [path]
    try:
        if order["setup"]:
            exec(compile(order["setup"], "<setup>", "exec", dont_inherit=True, optimize=0), module.__dict__)
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True, optimize=0), module.__dict__)
    except BaseException as error:
        channel.tell({"failed": describe(error, path)})
        os._exit(0)
    return module


def copy_for_each(channel, module, path):
    while True:
        pid = os.fork()
        if pid == 0:
            answer(channel, module, path)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sweep()
        if code == CLOSED:
            os._exit(0)
        channel.tell({"ended": code})


def sweep():
    """Ends what the case left behind. Only where our parent is the first process: then the process table is the
    sandbox's own."""
    for _ in range(2000 if os.getppid() == 1 else 0):
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return  # none is left
        time.sleep(0.0005)


def answer(channel, module, path):
    """Answers one case; an assert may ask more than once."""
    objects = []
    while True:
        order = channel.hear()
        if order is None:
            os._exit(CLOSED)
        try:
            told = carry_out(order, module, objects)
        except Missing as error:
            told = {"missing": list(error.args[0])}
        except Refused as error:
            told = {"refused": str(error)}
        except BaseException as error:
            told = {"raised": describe(error, path)}
        try:
            sys.stdout.flush()
        except BaseException:
            pass  # closed, or none of ours: as it pleases
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        channel.tell({"n": order["n"], "memory": memory, **told})
        if not order.get("more"):
            return


class Missing(Exception):
    """The candidate has no such name; it has these."""


def carry_out(order, module, objects):
    if "do" not in order:
        args, kwargs = decode(order["args"]), decode(order["kwargs"])
        value = settled(find(module, order["func"])(*args, **kwargs))
        return value_told(value, None)

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
    own = [
        key for key, one in module.__dict__.items()
        if isinstance(one, types.FunctionType) and one.__module__ == module.__name__ and key[:1] != "_"
    ]
    if name is None:
        if len(own) != 1:
            raise Missing(own)
        name = own[0]
    found = module
    for part in name.split("."):
        if isinstance(found, type):
            found = found()
        if not hasattr(found, part):
            raise Missing(own)
        found = getattr(found, part)
    return found


main()
