// The official Node driver: an independent BSON codec, connection pool, session and change stream implementation.
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { Decimal128, GridFSBucket, Long, MongoClient, ObjectId, Timestamp } from 'mongodb';
import { startServer } from './server.mjs';

const LIMIT = { timeout: 30_000 };
let server, client, db;

before(async () => {
  server = await startServer();
  client = await new MongoClient(server.uri, { serverSelectionTimeoutMS: 10_000 }).connect();
}, LIMIT);
after(async () => {
  await client?.close();
  if (server) assert.equal(await server.stop(), 0);
}, LIMIT);
let databases = 0;
beforeEach(() => (db = client.db(`node_${++databases}`)));

test('sees a replica set with a primary', LIMIT, async () => {
  const hello = await client.db('admin').command({ hello: 1 });
  assert.equal(hello.isWritablePrimary, true);
  assert.ok(hello.setName && hello.logicalSessionTimeoutMinutes === 30);
});

test('writes, reads, updates, deletes', LIMIT, async () => {
  const items = db.collection('items');
  const { insertedCount } = await items.insertMany(Array.from({ length: 300 }, (_, n) => ({ _id: n, n, even: n % 2 === 0 })));
  assert.equal(insertedCount, 300);
  assert.equal((await items.find({ even: true }).sort({ n: -1 }).toArray()).length, 150);
  assert.equal((await items.updateMany({ n: { $lt: 10 } }, { $set: { low: true } })).modifiedCount, 10);
  assert.equal((await items.findOneAndUpdate({ _id: 1 }, { $inc: { n: 5 } }, { returnDocument: 'after' })).n, 6);
  assert.equal((await items.deleteMany({ low: true })).deletedCount, 10);
  assert.equal(await items.countDocuments(), 290);
  assert.deepEqual(new Set(await items.distinct('even')), new Set([false, true]));
  const groups = await items.aggregate([{ $group: { _id: '$even', c: { $sum: 1 } } }, { $sort: { _id: 1 } }]).toArray();
  assert.deepEqual(groups, [{ _id: false, c: 145 }, { _id: true, c: 145 }]);
});

test('keeps types and the order of fields', LIMIT, async () => {
  const sent = {
    _id: new ObjectId(), z: 1.5, a: Long.fromString('9007199254740993'), when: new Date(1760000000123),
    none: null, bytes: Buffer.from([0, 255]), number: Decimal128.fromString('1.10'), at: new Timestamp({ t: 5, i: 6 }),
    list: [1, 'two', { three: 3 }],
  };
  await db.collection('types').insertOne(sent);
  const got = await db.collection('types').findOne({}, { promoteLongs: false });
  assert.deepEqual(Object.keys(got), Object.keys(sent));
  assert.equal(got.a.toString(), '9007199254740993');
  assert.equal(got.number.toString(), '1.10');
  assert.equal(got.when.getTime(), 1760000000123);
  assert.ok(got.at instanceof Timestamp && got.at.equals(sent.at));
});

test('a unique index refuses the second', LIMIT, async () => {
  const users = db.collection('users');
  await users.createIndex({ mail: 1 }, { unique: true });
  await users.insertOne({ mail: 'a@example.com' });
  await assert.rejects(users.insertOne({ mail: 'a@example.com' }), { code: 11000 });
});

test('a change stream sees each change once, in order, and resumes', LIMIT, async () => {
  const items = db.collection('items');
  const stream = items.watch([{ $match: { operationType: 'insert' } }], { maxAwaitTimeMS: 500 });
  const seen = [];
  const reading = (async () => {
    for await (const event of stream) {
      seen.push(event);
      if (seen.length === 100) break;
    }
  })();
  await pause(300);
  for (let n = 0; n < 100; n++) {
    await items.insertOne({ _id: n });
    await items.updateOne({ _id: n }, { $set: { x: 1 } });
  }
  await reading;
  await stream.close();
  assert.deepEqual(seen.map((event) => event.documentKey._id), Array.from({ length: 100 }, (_, n) => n));
  const resumed = items.watch([{ $match: { operationType: 'insert' } }], { resumeAfter: seen[49]._id });
  assert.equal((await resumed.next()).documentKey._id, 50);
  await resumed.close();
});

test('a session reads its own writes', LIMIT, async () => {
  await client.withSession({ causalConsistency: true }, async (session) => {
    await db.collection('own').insertOne({ _id: 1 }, { session });
    assert.ok(session.operationTime);
    assert.deepEqual(await db.collection('own').findOne({}, { session }), { _id: 1 });
  });
});

test('files in GridFS', LIMIT, async () => {
  const bucket = new GridFSBucket(db);
  const content = Buffer.alloc(700_000, 'rockdove');
  await new Promise((resolve, reject) => {
    bucket.openUploadStream('a.bin').on('finish', resolve).on('error', reject).end(content);
  });
  const parts = [];
  for await (const part of bucket.openDownloadStreamByName('a.bin')) parts.push(part);
  assert.ok(Buffer.concat(parts).equals(content));
});

test('compresses', LIMIT, async () => {
  const packing = await new MongoClient(server.uri, { compressors: ['zlib'] }).connect();
  const texts = packing.db(db.databaseName).collection('texts');
  await texts.insertOne({ text: 'x'.repeat(10_000) });
  assert.equal((await texts.findOne()).text.length, 10_000);
  await packing.close();
});

test('a hundred clients at once', LIMIT, async () => {
  const items = db.collection('items');
  const wide = new MongoClient(server.uri, { maxPoolSize: 100 });
  await Promise.all(Array.from({ length: 1000 }, (_, n) => wide.db(db.databaseName).collection('items').insertOne({ _id: n })));
  await wide.close();
  assert.equal(await items.countDocuments(), 1000);
});
