// A worker of the mixed fleet that locks with a library for Node; see run.py for what all workers do.

import { writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Redis } from 'ioredis';
import { Mutex } from 'redis-semaphore';
import Redlock4 from 'redlock';
import Redlock5 from 'redlock-5';

const names = ['library', 'prefix', 'name', 'log', 'port', 'seconds', 'hold-ms', 'retry-ms', 'lease-ms'];
const { values: given } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: 'string' }])) });
const [port, seconds, holdMs, retryMs, leaseMs] = names.slice(4).map((name) => Number(given[name] ?? 0));
const key = given.prefix + given.name;
const client = new Redis({ port });
// What the library reported on its own.
const reported = [];

// For both major versions of redlock. They give up after ten attempts, both to lock and to unlock.
const retries = retryMs ? { retryDelay: retryMs, retryJitter: 0 } : {};

const libraries = {
  'redlock 4'() {
    const manager = new Redlock4([client], retries);
    let lock;
    manager.on('clientError', (error) => reported.push(`clientError: ${error.message}`));
    return {
      acquire: async () => { lock = await manager.lock(key, leaseMs); },
      release: () => manager.unlock(lock),
    };
  },
  // With `using`, which extends the lock.
  'redlock 5'() {
    const manager = new Redlock5([client], retries);
    let lock, letGo, ended;
    return {
      acquire: () => new Promise((resolve, reject) => {
        ended = manager.using([key], leaseMs, { automaticExtensionThreshold: leaseMs / 2 }, async (signal) => {
          signal.addEventListener('abort', () => reported.push(`signal aborted: ${signal.error?.message}`));
          resolve();
          await new Promise((release) => { letGo = release; });
        });
        ended.catch(reject); // No effect once it is acquired.
      }),
      release: () => { letGo(); return ended; },
    };
  },
  // Makes its key from "mutex:" and the name, and refreshes.
  'redis-semaphore'() {
    if (given.prefix !== 'mutex:') throw new Error('the key of redis-semaphore starts with mutex:');
    const onLockLost = (error) => reported.push(`onLockLost: ${error.message}`);
    const mutex = new Mutex(client, given.name, {
      lockTimeout: leaseMs, onLockLost, ...(retryMs && { retryInterval: retryMs }),
    });
    return { acquire: () => mutex.acquire(), release: () => mutex.release(), isHeld: () => mutex.isAcquired };
  },
};

// Until it holds the lock.
async function acquire(lock) {
  for (;;) {
    try {
      return await lock.acquire();
    } catch (error) {
      if (!/ExecutionError|LockError|TimeoutError/.test(error.constructor.name)) throw error;
    }
  }
}

const nowUs = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

async function sections() {
  const end = performance.now() + seconds * 1000;
  const lock = libraries[given.library]();
  const lines = [];
  while (performance.now() < end) {
    await acquire(lock);
    const start = nowUs();
    const count = Number(await client.get('counter'));
    await sleep(holdMs);
    await client.set('counter', count + 1);
    lines.push(`${start} ${nowUs()}\n`);
    await lock.release();
  }
  writeFileSync(given.log, lines.join(''));
}

async function hold() {
  const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const lock = libraries[given.library]();
  await acquire(lock);
  console.log('held');
  await input.next();
  console.log(reported.join('; ') || 'nothing');
  console.log(lock.isHeld ? lock.isHeld() : 'no such call');
  await lock.release().then(
    (answer) => console.log(`ok, ${typeof answer === 'object' ? 'an object' : answer}`),
    (error) => console.log(`raises ${error.name}: ${error.message}`),
  );
}

await (seconds ? sections() : hold());
process.exit();
