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
  const { argv, environment } = JSON.parse(message.toString('utf8', 0, length));
  for (const name of Object.keys(process.env)) delete process.env[name];
  for (const [name, value] of environment) process.env[name] = value;
  process.argv.splice(2, Infinity, ...argv.slice(2));
}

// A worker of the program loads this again, and has its program already.
if (require('worker_threads').isMainThread) awaitProgram();
process.execArgv.length = 0; // what starts from here needs none of this
delete require.cache[__filename];
