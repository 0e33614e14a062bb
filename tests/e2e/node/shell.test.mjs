// mongosh: what an operator types.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { startServer } from './server.mjs';

const SHELL = fileURLToPath(new URL('node_modules/.bin/mongosh', import.meta.url));
const LIMIT = { timeout: 90_000 };
let server;

before(async () => {
  assert.ok(existsSync(SHELL), 'mongosh is not installed');
  server = await startServer();
}, LIMIT);
after(async () => server && assert.equal(await server.stop(), 0), LIMIT);

/** Evaluates a script in mongosh; resolves to what it prints, as JSON. */
async function shell(script) {
  const options = ['--quiet', '--norc', server.uri, '--eval', `print(EJSON.stringify((() => { ${script} })()))`];
  const { stdout } = await promisify(execFile)(SHELL, options, { timeout: 60_000 });
  return JSON.parse(stdout.trim().split('\n').at(-1));
}

test('connects without complaint', LIMIT, async () => {
  const { stdout, stderr } = await promisify(execFile)(SHELL, ['--norc', server.uri, '--eval', 'db.hello().ok'], { timeout: 60_000 });
  assert.match(stdout, /^1$/m);
  assert.equal(stderr, '');
});

test('show dbs, show collections, indexes, stats', LIMIT, async () => {
  const result = await shell(`
    const shop = db.getSiblingDB('shop');
    shop.orders.insertMany([{ _id: 1, total: 5 }, { _id: 2, total: 7 }]);
    shop.orders.createIndex({ total: -1 });
    return {
      databases: db.adminCommand({ listDatabases: 1 }).databases.map((d) => d.name),
      collections: shop.getCollectionNames(),
      indexes: shop.orders.getIndexes().map((i) => i.name),
      count: shop.orders.stats().count,
      objects: shop.stats().objects,
      sum: shop.orders.aggregate([{ $group: { _id: null, s: { $sum: '$total' } } }]).toArray()[0].s,
      found: shop.orders.find({ total: { $gt: 5 } }).toArray(),
      members: rs.status().members.map((m) => m.stateStr),
      hosts: rs.conf().members.length,
    };`);
  assert.ok(result.databases.includes('shop'));
  assert.deepEqual(result.collections, ['orders']);
  assert.deepEqual(result.indexes.sort(), ['_id_', 'total_-1']);
  assert.deepEqual([result.count, result.objects, result.sum], [2, 2, 12]);
  assert.deepEqual(result.found, [{ _id: 2, total: 7 }]);
  assert.deepEqual([result.members, result.hosts], [['PRIMARY'], 1]);
});

test('errors keep their codes', LIMIT, async () => {
  const result = await shell(`
    const codes = {};
    const attempt = (name, call) => { try { call(); codes[name] = 0; } catch (e) { codes[name] = e.code ?? e.errorResponse?.code; } };
    const shop = db.getSiblingDB('shop2');
    shop.u.createIndex({ a: 1 }, { unique: true });
    shop.u.insertOne({ a: 1 });
    attempt('duplicate', () => shop.u.insertOne({ a: 1 }));
    attempt('unknown', () => shop.runCommand({ nonsense: 1 }).ok || (() => { throw { code: 59 }; })());
    attempt('operator', () => shop.u.find({ a: { $nonsense: 1 } }).toArray());
    attempt('drop', () => shop.dropDatabase());
    return codes;`);
  assert.deepEqual(result, { duplicate: 11000, unknown: 59, operator: 2, drop: 0 });
});

test('explain names the index', LIMIT, async () => {
  const stage = await shell(`
    const c = db.getSiblingDB('plans').c;
    c.createIndex({ k: 1 });
    c.insertMany([{ k: 1 }, { k: 2 }]);
    return JSON.stringify(c.find({ k: 1 }).explain());`);
  assert.match(stage, /IXSCAN/);
});
