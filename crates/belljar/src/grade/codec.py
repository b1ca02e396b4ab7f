"""How values leave and enter a sandbox: JSON, with an object of one key for what JSON lacks."""
import binascii, json, math, os, sys

MAX_DEPTH, MAX_VALUES, MAX_BYTES, MAX_BITS, MAX_LINE = 40, 1_000_000, 8_000_000, 330_000, 30_000_000


class Refused(Exception):
    """A value that cannot be passed out."""


class Encoder:
    """Reads what is really stored: by exact types, and for subclasses by the methods of their base. What an
    object says about itself (__class__, __eq__, __iter__, __reduce__) is not asked."""

    def __init__(self, keep=None):
        self.keep, self.values, self.bytes, self.above = keep, 0, 0, set()

    def encode(self, value, depth=0):
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return self.integer(value)
        if kind is str:
            return self.text(value)
        if kind is float:
            return self.number(value)
        return self.deep(value, kind, depth)

    def deep(self, value, kind, depth):
        if depth >= MAX_DEPTH:
            raise Refused(f"is nested deeper than {MAX_DEPTH}")
        if id(value) in self.above:
            raise Refused("holds itself")
        for base, tag in CONTAINERS:
            if kind is base or issubclass(kind, base):
                break
        else:
            return self.other(value, kind, depth)
        self.above.add(id(value))
        try:
            if base is dict:
                return self.pairs(dict.items(value), depth + 1)
            inner = [self.encode(one, depth + 1) for one in self.counted(base.__iter__(value))]
        finally:
            self.above.discard(id(value))
        return {tag: inner} if tag else inner

    def counted(self, values):
        for one in values:
            self.values += 1
            if self.values > MAX_VALUES:
                raise Refused(f"holds more than {MAX_VALUES} values")
            yield one

    def pairs(self, items, depth):
        pairs = [(self.encode(key, depth), self.encode(value, depth)) for key, value in self.counted(items)]
        if all(type(key) is str and key[:1] != "$" for key, _ in pairs):
            plain = dict(pairs)
            if len(plain) == len(pairs):
                return plain
        return {"$dict": pairs}

    def other(self, value, kind, depth):
        if issubclass(kind, int):
            return self.integer(int.__add__(value, 0))
        if issubclass(kind, str):
            return self.text(str.__str__(value))
        if issubclass(kind, float):
            return self.number(float.__mul__(value, 1.0))
        if issubclass(kind, (bytes, bytearray)):
            base = bytes if issubclass(kind, bytes) else bytearray
            self.room(base.__len__(value))
            return {"$bytes": binascii.b2a_base64(base.__getitem__(value, slice(None)), newline=False).decode()}
        if issubclass(kind, complex):
            parts = complex.real.__get__(value), complex.imag.__get__(value)
            return {"$complex": [self.number(one) for one in parts]}
        if getattr(kind, "__module__", None) == "numpy" and hasattr(kind, "tolist"):
            return self.encode(value.tolist(), depth + 1)
        if self.keep:
            return {"$object": self.keep(value)}
        raise Refused(f"is of type {name_of(kind)}, which is no value that can be passed out")

    def integer(self, value):
        if -(1 << 63) <= value < 1 << 63:
            return value
        if value.bit_length() > MAX_BITS:
            raise Refused("is a whole number with more than 99000 digits")
        self.room(value.bit_length() // 3)
        return {"$int": unlimited(str, value)}

    def number(self, value):
        if math.isfinite(value):
            return value
        return {"$float": "nan" if value != value else "inf" if value > 0 else "-inf"}

    def text(self, value):
        self.room(len(value))
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Refused("is a string with half a character (a lone surrogate)") from None
        return value

    def room(self, length):
        self.bytes += length
        if self.bytes > MAX_BYTES:
            raise Refused(f"is longer than {MAX_BYTES} bytes")


CONTAINERS = (list, ""), (tuple, "$tuple"), (dict, ""), (set, "$set"), (frozenset, "$frozenset")


def name_of(kind):
    name = type.__dict__["__name__"].__get__(kind)
    return str.__str__(name)[:100]


def unlimited(convert, value):
    """Python 3.11 and later refuse long numbers as text."""
    if not hasattr(sys, "set_int_max_str_digits"):
        return convert(value)
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return convert(value)
    finally:
        sys.set_int_max_str_digits(before)


def decode(value, known=None):
    kind = type(value)
    if kind is list:
        return [decode(one, known) for one in value]
    if kind is not dict:
        return value
    if len(value) == 1:
        (tag, inner), = value.items()
        if tag[:1] == "$":
            return tagged(tag, inner, known)
    return {key: decode(one, known) for key, one in value.items()}


def tagged(tag, inner, known):
    if tag == "$int":
        return unlimited(int, inner)
    if tag == "$float":
        return float(inner)
    if tag == "$bytes":
        return binascii.a2b_base64(inner)
    if tag == "$object":
        return known(inner)
    inner = decode(inner, known)
    if tag == "$dict":
        return {key: value for key, value in inner}
    return {"$tuple": tuple, "$set": set, "$frozenset": frozenset, "$complex": lambda two: complex(*two)}[tag](inner)


class Channel:
    """Messages in and out, each after its length in four bytes. Most are one JSON object. Nothing comes before the last
    was answered, so what can be read is one message."""

    def __init__(self):
        self.source, self.sink = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)  # what is printed is no answer

    def read(self):
        return self.rest(os.read(self.source, 1 << 16))

    def rest(self, message):
        """The message that begins so."""
        while message and (len(message) < 4 or len(message) - 4 < int.from_bytes(message[:4], "little")):
            more = os.read(self.source, 1 << 20)
            message = message + more if more else b""
        return message[4:]  # nothing: it is closed

    def write(self, message):
        rest = len(message).to_bytes(4, "little") + message
        while rest:
            rest = rest[os.write(self.sink, rest):]

    def hear(self):
        message = self.read()
        return json.loads(message) if message else None

    def tell(self, message):
        text = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        if len(text) > MAX_LINE:
            return self.tell({"n": message["n"], "refused": f"is longer than {MAX_LINE} bytes when it is written"})
        self.write(text)


def describe(error, path):
    """An exception as far as it can be told without asking it twice."""
    kind, line, trace = type(error), None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno
    try:
        message = str(error)[:2000].encode("utf-8", "replace").decode()
    except BaseException:
        message = ""
    bases = [name_of(one) for one in kind.__mro__[1:-1]]
    return {"type": name_of(kind), "bases": bases[:8], "message": message, "line": line if type(line) is int else None}


