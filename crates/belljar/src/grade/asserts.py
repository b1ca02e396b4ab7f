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
    names = {"__name__": "belljar_assert", "__builtins__": builtins, "@explain": explain}
    trees = ast.parse(setup, "<setup>"), ast.parse(order["source"], "<assert>")
    for name in free(*trees) | (used(trees[1]) & set(order["shadows"])):
        try:
            if name == "candidate" and order["candidate"]:
                names[name] = link.ask("get", [order["candidate"]])
            else:
                names[name] = link.ask("get", [name])
        except Missing:
            pass  # a NameError, if it comes to that
    reached, nodes = [], [node for tree in trees for node in ast.walk(tree)]
    names["@reached"] = lambda: reached.append(1)
    other = any(isinstance(node, (ast.Try, ast.Raise, ast.With)) for node in nodes)
    if not other and not any(isinstance(node, ast.Assert) for node in nodes):
        raise SyntaxError("the assert holds no assert statement")
    for tree, name in zip(trees, ("<setup>", "<assert>")):
        tree = ast.fix_missing_locations(Explained().visit(tree))
        exec(compile(tree, name, "exec", dont_inherit=True, optimize=0), names)
    if not reached and not other:
        raise AssertionError("no assert statement was reached")


def free(*trees):
    """Names that are read and nowhere made."""
    made = set(dir(builtins)) | {"__name__"}
    for tree in trees:
        for node in ast.walk(tree):
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
    return set().union(*map(used, trees)) - made


def used(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


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
        self.channel, self.nonce = channel, nonce

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
            raise_as(told["raised"])
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


def raise_as(told):
    def known(name):
        found = getattr(builtins, name, None)
        return found if isinstance(found, type) and issubclass(found, BaseException) else None

    kind = known(told["type"])
    if kind is None:
        base = next(filter(None, map(known, told["bases"])), Exception)
        kind = type(told["type"], (base,), {})
    error = kind.__new__(kind)
    error.args, error.told_by_candidate = (told["message"],), told
    raise error


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
