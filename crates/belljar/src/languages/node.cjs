// A Node that waits for its program: loaded before the main file, which it lets come only after one message
// on descriptor 3. Nothing of a program is here before.
'use strict';
const DELIVERY = 3;

function awaitProgram() {
  const fs = require('fs');
  fs.writeSync(DELIVERY, 'r');
  const message = Buffer.alloc(1 << 18);
  const length = fs.readSync(DELIVERY, message);
  fs.closeSync(DELIVERY);
  if (length === 0) process.reallyExit(0); // nobody wants us any more
  const [count, ...words] = message.toString('utf8', 0, length).split('\0');
  for (const name of Object.keys(process.env)) delete process.env[name];
  for (const word of words.slice(Number(count))) {
    const middle = word.indexOf('=');
    if (middle > 0) process.env[word.slice(0, middle)] = word.slice(middle + 1);
  }
  process.argv.splice(2, Infinity, ...words.slice(2, Number(count)));
}

// A worker of the program loads this again, and has its program already.
if (require('worker_threads').isMainThread) awaitProgram();
process.execArgv.length = 0; // what starts from here needs none of this
delete require.cache[__filename];
