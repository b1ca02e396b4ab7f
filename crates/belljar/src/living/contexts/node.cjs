// A node context: runs one piece of code after the other in the global scope, and tells what each came to.
//
// It stands in the same process as the code it runs, which can do to it what it likes: nothing said from here is
// believed about anything but that code's own result. Requests come as lines of JSON on descriptor 7; answers go as
// marked frames between the output of the code on 8 and 9, which are its standard output and error.
"use strict";
const fs = require("node:fs"), net = require("node:net"), util = require("node:util"), vm = require("node:vm");
const inspector = require("node:inspector"), { createRequire } = require("node:module"), path = require("node:path");
const { Buffer } = require("node:buffer"), own = process;
const REQUESTS = 7, ANSWERS = 8, MARKS = 9;
const MAX_FRAME = 4000; // with its head below PIPE_BUF: written at once, or others' output could come in between
const MAX_TEXT = 1 << 20, MAX_RESULT = 14 << 20;
const INTERRUPTED = "ERR_SCRIPT_EXECUTION_INTERRUPTED";

const LOOK_MS = 20; // how often it is looked for an interrupt while the code waits

let session = null;
const soon = setImmediate, every = setInterval, noMore = clearInterval;

// Node's own thread that waits for interrupts, held for as long as we live. A listener in its place would be taken away and
// put back around each script that a signal may end, and one that comes in between would end us.
const watchdog = (() => {
  const told = own.noDeprecation;
  own.noDeprecation = true;
  try {
    const found = own.binding("contextify");
    return found.startSigintWatchdog() && found;
  } catch {
    return null; // another node: then with a listener
  } finally {
    own.noDeprecation = told;
  }
})();

function heard() {
  if (!interrupt) return;
  tell({ heard: true }, MARKS);
  interrupt();
}

// Whether one came since this was last asked, while no script was there to be ended.
function wasInterrupted() {
  watchdog.startSigintWatchdog();
  return watchdog.stopSigintWatchdog();
}

// Before a call: what came before it is not for it, and listeners of the last do not stand in our way.
function forgetInterrupts() {
  if (!watchdog) return;
  if (own.listenerCount("SIGINT") > 0) {
    own.removeAllListeners("SIGINT");
    watchdog.stopSigintWatchdog();
    watchdog.startSigintWatchdog();
  }
  wasInterrupted();
}

const nap = new Int32Array(new SharedArrayBuffer(4));
let nonce = null, call = "00000000", waiting = [], busy = false, interrupt = null;

function write(fd, bytes) {
  for (let at = 0; at < bytes.length;) {
    try {
      at += fs.writeSync(fd, bytes, at);
    } catch (error) {
      if (error.code !== "EAGAIN") own.exit(74); // the code closed what we speak through
      Atomics.wait(nap, 0, 0, 1);
    }
  }
}

function tell(message, to = ANSWERS) {
  const payload = Buffer.from(JSON.stringify(message));
  for (let at = 0; at < payload.length; at += MAX_FRAME) {
    const part = payload.subarray(at, at + MAX_FRAME);
    const kind = at + MAX_FRAME >= payload.length ? "e" : "m";
    const head = `\x1e${nonce}${call}${kind}${part.length.toString(16).padStart(4, "0")}`;
    write(to, Buffer.concat([Buffer.from(head), part]));
  }
}

// Lone surrogates are no text that could travel.
const clean = (text) => Buffer.from(String(text), "utf8").toString("utf8");

function shortened(text) {
  if (text.length <= MAX_TEXT) return text;
  const half = MAX_TEXT >> 1;
  return `${text.slice(0, half)}\n[belljar: ${text.length - 2 * half} characters dropped here]\n${text.slice(-half)}`;
}

// A value in every form that it has.
function forms(value) {
  const data = {};
  try {
    data["text/plain"] = shortened(clean(util.inspect(value, { maxArrayLength: 1000, maxStringLength: MAX_TEXT })));
  } catch (error) {
    data["text/plain"] = `<a value that cannot be shown: ${clean(error?.name)}>`;
  }
  if (value !== null && typeof value === "object" && !(value instanceof Error)) {
    const plain = Array.isArray(value) || [Object.prototype, null].includes(Object.getPrototypeOf(value));
    try {
      const json = plain ? JSON.stringify(value) : undefined;
      if (json !== undefined && json.length <= MAX_RESULT) data["application/json"] = JSON.parse(clean(json));
    } catch { /* it goes round in circles, or holds what JSON has not */ }
  }
  return data;
}

// Shows a value on the way, or one in the forms that are given.
function display(value, mimes) {
  const data = mimes ? {} : forms(value);
  for (const [mime, form] of Object.entries(mimes ?? {})) {
    data[mime] = form instanceof Uint8Array ? Buffer.from(form).toString("base64")
      : typeof form === "string" ? clean(form) : JSON.parse(clean(JSON.stringify(form)));
  }
  tell({ main: false, dropped: [], result: data });
}

function describe(error, details, name, most) {
  if (error?.code === INTERRUPTED) {
    return { name: "Interrupted", value: "the code was interrupted", traceback: "", line: null };
  }
  const isError = error instanceof Error || (error !== null && typeof error === "object" && "stack" in error);
  let told = "", value = "", kind = "Thrown";
  try {
    told = isError ? String(error.stack) : `Thrown: ${util.inspect(error)}`;
    value = isError ? String(error.message) : util.inspect(error);
    kind = isError ? String(error.name) : kind;
  } catch { /* then it tells nothing of itself */ }
  // From our own frames on nothing is the code's.
  const lines = told.split("\n"), end = lines.findIndex((one) => /\(node:inspector:|belljar_context/.test(one));
  told = (end < 0 ? lines : lines.slice(0, end)).join("\n");
  const at = new RegExp(`${name.replace(/[<>]/g, "\\$&")}:(\\d+)`).exec(told);
  const line = at ? Number(at[1]) : kind === "SyntaxError" ? Math.min(details?.lineNumber + 1, most) : null;
  if (kind === "SyntaxError" && !at) told = `${name}:${line}\n${told}`;
  return {
    name: clean(kind).slice(0, 1000), value: shortened(clean(value)), traceback: shortened(clean(told)),
    line: Number.isInteger(line) && line > 0 ? line : null,
  };
}

// V8 has a mode for consoles, which only its inspector speaks: `await` at the top, `let` and `const` that may be
// declared again, and the value of the last expression.
function evaluate(code, name) {
  return new Promise((resolve, reject) => {
    const expression = `${code}\n//# sourceURL=${name}`;
    session.post("Runtime.evaluate", { expression, replMode: true, awaitPromise: true, objectGroup: "cell" },
      (error, answer) => {
        if (error) return reject(error);
        if (answer.exceptionDetails) {
          const details = answer.exceptionDetails;
          return reject({ details, value: details.exception ? real(details.exception) : new Error(details.text) });
        }
        resolve(real(answer.result));
      });
  });
}

// The value itself, of what the inspector tells about it.
function real(remote) {
  if (remote.type === "undefined") return undefined;
  let value;
  const args = [remote.objectId ? { objectId: remote.objectId }
    : remote.unserializableValue ? { unserializableValue: remote.unserializableValue } : { value: remote.value }];
  globalThis.__belljar_take = (taken) => { value = taken; };
  session.post("Runtime.evaluate", { expression: "globalThis.__belljar_take", objectGroup: "cell" }, (_, taker) => {
    session.post("Runtime.callFunctionOn", {
      functionDeclaration: "function (taken) { this(taken); }", objectId: taker.result.objectId, arguments: args,
    });
  });
  delete globalThis.__belljar_take;
  return value;
}

async function run(order) {
  const name = `<cell_${order.number}>`;
  const before = Object.keys(order.env).map((key) => [key, own.env[key]]);
  Object.assign(own.env, order.env);
  let error = null;
  const looking = watchdog && every(() => wasInterrupted() && heard(), LOOK_MS);
  // A new one each time: an interrupt may leave the last in the middle of something.
  session?.disconnect();
  session = new inspector.Session();
  session.connect();
  try {
    const stopped = new Promise((_, reject) => {
      interrupt = () => reject(Object.assign(new Error("interrupted"), { code: INTERRUPTED }));
    });
    stopped.catch(() => {});
    // In a script of its own, so that a signal ends what runs in it.
    globalThis.__belljar_run = () => evaluate(order.code, name);
    const ran = vm.runInThisContext("globalThis.__belljar_run()", { breakOnSigint: true, filename: "belljar_context" });
    const value = await Promise.race([ran, stopped]);
    if (value !== undefined) tell({ main: true, dropped: [], result: forms(value) });
  } catch (raised) {
    const most = order.code.split("\n").length;
    error = raised?.details ? describe(raised.value, raised.details, name, most) : describe(raised, null, name, most);
  }
  interrupt = null;
  if (looking) noMore(looking);
  delete globalThis.__belljar_run;
  session.post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
  for (const [key, value] of before) value === undefined ? delete own.env[key] : own.env[key] = value;
  tell({ end: true, error });
  tell({ end: true }, MARKS);
}

async function next() {
  if (busy) return;
  busy = true;
  while (waiting.length > 0) {
    const order = waiting.shift();
    if (nonce === null) {
      nonce = order.nonce;
    } else {
      // A signal that came before this order is dispatched within this turn of the loop, and must meet nothing.
      await new Promise((turn) => soon(turn));
      forgetInterrupts();
      call = order.call;
      tell({ begin: true });
      await run(order);
    }
  }
  busy = false;
}

// What is said when nobody waits for it: told, and no reason to end.
function astray(error) {
  own.stderr.write(`Uncaught ${util.inspect(error)}\n`);
}

Object.assign(globalThis, { require: createRequire(path.join(own.cwd(), "cell.js")), display });
own.argv.length = 1;
if (!watchdog) own.on("SIGINT", heard);
own.on("uncaughtException", astray);
own.on("unhandledRejection", astray);
let pending = [];
const requests = new net.Socket({ fd: REQUESTS, readable: true, writable: false });
requests.on("end", () => own.exit(0));
requests.on("data", (chunk) => {
  for (let at; (at = chunk.indexOf(10)) >= 0; chunk = chunk.subarray(at + 1)) {
    pending.push(chunk.subarray(0, at));
    waiting.push(JSON.parse(Buffer.concat(pending).toString("utf8")));
    pending = [];
  }
  pending.push(chunk);
  next();
});
