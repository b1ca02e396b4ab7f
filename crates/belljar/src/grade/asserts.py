"""Runs asserts where nothing of the candidate is. What an assert calls of it is called where the candidate is, and
comes back as a plain value; so what is compared here has no methods of the candidate's making."""
import ast, builtins, importlib

CLOSED = 77


def main():
    channel = Channel()
    setup = channel.hear()["setup"] or ""
    channel.tell({"loaded": True})
    while True:
        pid = os.fork()
        if pid == 0:
            check(channel, setup)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == CLOSED:
            os._exit(0)
        channel.tell({"ended": code})


def check(channel, setup):
    order = channel.hear()
    if order is None:
        os._exit(CLOSED)
    link = Link(channel, order["n"])
    try:
        run(link, setup, order)
        told = {"passed": True}
    except BaseException as error:
        told = {"raised": getattr(error, "told_by_candidate", None) or describe(error, None)}
    channel.tell({"n": order["n"], **told})


def run(link, setup, order):
    names = {"__name__": "belljar_assert", "__builtins__": builtins, "@explain": explain,
             "@named": link.named, "@module": Module(link)}
    parsed = ast.parse(setup, "<setup>"), ast.parse(order["source"], "<assert>")
    imports = Imports(set(order["modules"]) - set(STANDARD))
    trees = [imports.visit(tree) for tree in parsed]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    link.stops = any(isinstance(node, ast.Name) and node.id == "StopIteration" for node in nodes)
    for name in theirs(trees, nodes, order):
        try:
            if name == "candidate" and order["candidate"]:
                names[name] = link.ask("get", [order["candidate"]])
            else:
                names[name] = module_named(name, nodes) or link.ask("get", [name])
        except Missing:
            pass  # a NameError, if it comes to that
    reached = []
    names["@reached"] = lambda: reached.append(1)
    other = any(isinstance(node, (ast.Try, ast.Raise, ast.With)) for node in nodes)
    if not other and not any(isinstance(node, ast.Assert) for node in nodes):
        raise SyntaxError("the assert holds no assert statement")
    for tree, name in zip(trees, ("<setup>", "<assert>")):
        tree = ast.fix_missing_locations(Explained().visit(tree))
        exec(compile(tree, name, "exec", dont_inherit=True, optimize=0), names)
    if not reached and not other:
        raise AssertionError("no assert statement was reached")


def theirs(trees, nodes, order):
    """Names that are read and nowhere made: they are the candidate's. One that Python has as well is the test's own: who
    is tested does not say what `abs` or `len` is. Unless the test can mean nothing else: the function it is about, or
    the only one that an assert calls which calls nothing else of the candidate."""
    read, made = {one for tree in trees for one in used(tree)}, made_in(nodes)
    found = read - made - BUILTINS
    if order["candidate"] in read - made:
        found.add(order["candidate"])
    if found:
        return found
    called = {node.func.id for node in ast.walk(trees[1]) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    called -= made
    if len(called) > 1 and called & set(order["shadows"]):
        raise TypeError(f"which of {', '.join(sorted(called))} is the candidate's? Give func_name")
    return called if len(called) == 1 else set()


BUILTINS = {*dir(builtins), "__name__"}


def made_in(nodes):
    made = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            made.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.arg) and node.arg != "candidate":  # which is passed on by its own name
            made.add(node.arg)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return made


def used(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id[:1] != "@"}


STANDARD = getattr(sys, "stdlib_module_names", ())  # from Python 3.10 on


def module_named(name, nodes):
    """A module that the test uses and does not import. What the candidate has by that name may be made to agree."""
    looked_up = {node.attr for node in nodes if isinstance(node, ast.Attribute) and is_name(node.value, name)}
    called = any(isinstance(node, ast.Call) and is_name(node.func, name) for node in nodes)
    if name not in STANDARD or called or not looked_up:
        return None
    module = importlib.import_module(name)
    return module if all(hasattr(module, one) for one in looked_up) else None


def is_name(node, name):
    return isinstance(node, ast.Name) and node.id == name


class Imports(ast.NodeTransformer):
    """The candidate by the name of its file: it is not here to be imported, so its names are asked for."""

    def __init__(self, modules):
        self.modules = modules

    def visit_ImportFrom(self, node):
        if node.level or node.module not in self.modules:
            return node
        wanted = [one for one in node.names if one.name != "*"]
        return self.made(node, [(one, ast.Call(ast.Name("@named", ast.Load()), [ast.Constant(one.name)], [])) for one in wanted])

    def visit_Import(self, node):
        wanted = [one for one in node.names if one.name in self.modules]
        made = self.made(node, [(one, ast.Name("@module", ast.Load())) for one in wanted])
        node.names = [one for one in node.names if one not in wanted]
        return [node, *made] if node.names else made

    def made(self, node, pairs):
        all = [ast.Assign([ast.Name(one.asname or one.name, ast.Store())], value) for one, value in pairs]
        return [ast.copy_location(one, node) for one in all or [ast.Pass()]]


class Explained(ast.NodeTransformer):
    """Asserts that say what they found."""

    def visit_Assert(self, node):
        self.generic_visit(node)
        before = [ast.parse("reached()").body[0]]
        before[0].value.func.id = "@reached"
        if node.msg is None:
            node.msg = ast.Constant(f"{ast.unparse(node.test)[:300]} is false")
            if isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
                test = node.test
                for name, side in ("@left", test.left), ("@right", test.comparators[0]):
                    before.append(ast.Assign([ast.Name(name, ast.Store())], side))
                left, right = ast.Name("@left", ast.Load()), ast.Name("@right", ast.Load())
                node.test = ast.Compare(left, test.ops, [right])
                sign = ast.Constant(type(test.ops[0]).__name__)
                node.msg = ast.Call(ast.Name("@explain", ast.Load()), [left, sign, right], [])
        return [*(ast.copy_location(one, node) for one in before), node]


SIGNS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Is": "is", "IsNot": "is not",
         "In": "in", "NotIn": "not in"}


def explain(left, sign, right):
    return " ".join([repr(left)[:300], SIGNS[sign], repr(right)[:300], "is false"])


class Missing(Exception):
    """The candidate has no such name."""


class Outgoing(Encoder):
    def other(self, value, kind, depth):
        if kind is Remote:
            return {"$object": object.__getattribute__(value, "number")}
        return super().other(value, kind, depth)


class Link:
    """The way to the candidate."""

    def __init__(self, channel, nonce):
        self.channel, self.nonce, self.stops = channel, nonce, False

    def named(self, name):
        try:
            return self.ask("get", [name])
        except Missing:
            raise ImportError(f"cannot import name '{name}' from the candidate") from None

    def ask(self, act, args):
        try:
            sent = Outgoing().encode(args)
        except Refused as error:
            raise TypeError(f"an argument {error}: an assert can pass plain values to the candidate") from None
        self.channel.tell({"n": self.nonce, "do": act, "args": sent})
        told = self.channel.hear()
        if told is None:
            os._exit(CLOSED)
        if "missing" in told:
            raise Missing(args[0])
        if "raised" in told:
            raise_as(told["raised"], self.stops or act == "next")
        if "refused" in told:
            raise TypeError("what the candidate returned " + told["refused"])
        if act == "call" and told.get("changed"):
            for one, new in zip(args[1], told["changed"]):
                change(one, decode(new, self.remote))
        if act == "get" and told["type"] == "module":
            return importlib.import_module(args[0])  # our own: the candidate's may be changed
        return decode(told["value"], self.remote)

    def remote(self, number):
        return Remote(self, number)


def change(one, new):
    """A list, dict or set that the candidate changed is changed here too."""
    if type(one) is list and type(new) is list:
        one[:] = new
    elif type(one) is type(new) and type(one) in (dict, set):
        one.clear()
        one.update(new)


def raise_as(told, stops):
    """Raises what the candidate did. A StopIteration that nobody waits for would end a loop of the test, and with it what
    the rest of that would have found."""

    def known(name):
        found = getattr(builtins, name, None)
        return found if isinstance(found, type) and issubclass(found, BaseException) else None

    kind = known(told["type"])
    if kind is None:
        base = next(filter(None, map(known, told["bases"])), Exception)
        kind = type(told["type"], (base,), {})
    if issubclass(kind, StopIteration) and not stops:
        kind = RuntimeError
    error = kind.__new__(kind)
    error.args, error.told_by_candidate = (told["message"],), told
    raise error


class Module:
    """The candidate as a module."""

    def __init__(self, link):
        self.link = link

    def __getattr__(self, name):
        try:
            return self.link.ask("get", [name])
        except Missing:
            raise AttributeError(f"the candidate has no attribute '{name}'") from None


class Remote:
    """Something that stays where the candidate is. It can be called, looked into and read out; it cannot be compared,
    since it would be the candidate's own word that counts then."""

    def __init__(self, link, number):
        self.link, self.number = link, number

    def __call__(self, *args, **kwargs):
        return self.link.ask("call", [self, args, kwargs])

    def __getattr__(self, name):
        return self.link.ask("attribute", [self, name])

    def __getitem__(self, key):
        return self.link.ask("item", [self, key])

    def __len__(self):
        return self.link.ask("length", [self])

    def __iter__(self):
        return iter(self.link.ask("list", [self]))

    def __next__(self):
        return self.link.ask("next", [self])

    def __str__(self):
        return self.link.ask("text", [self])

    def __repr__(self):
        return "<an object of the candidate>"

    def __int__(self):
        return self.link.ask("int", [self])

    def __float__(self):
        return self.link.ask("float", [self])

    def refuse(self, *_):
        raise TypeError("an object of the candidate's own class cannot be compared: return plain values, or look into it")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = refuse


if __name__ == "__main__":
    main()
