// Starts `rockdove serve` in memory on a free loopback port and ends it with the tests.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

const START_LIMIT_MS = 20_000;

/** Starts the program in $ROCKDOVE_BIN; resolves to {uri, stop}. */
export async function startServer() {
  const program = process.env.ROCKDOVE_BIN;
  if (!program) throw new Error('ROCKDOVE_BIN names no rockdove program');
  const server = spawn(program, ['serve', '--memory', '--listen', '127.0.0.1:0', '--log', 'warn'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise((resolve) => server.once('exit', (code) => resolve(code)));
  const port = await listeningPort(server, ended);
  const stop = async () => {
    server.kill('SIGTERM');
    return ended;
  };
  return { uri: `mongodb://127.0.0.1:${port}/`, stop };
}

function listeningPort(server, ended) {
  return new Promise((resolve, reject) => {
    const limit = setTimeout(() => reject(new Error('the server did not listen in time')), START_LIMIT_MS);
    ended.then((code) => reject(new Error(`the server ended with ${code} at start`)));
    createInterface({ input: server.stdout }).on('line', (line) => {
      const found = /listens on 127\.0\.0\.1:(\d+)/.exec(line);
      if (found) {
        clearTimeout(limit);
        resolve(Number(found[1]));
      }
    });
  });
}
