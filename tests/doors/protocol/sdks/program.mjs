// A program of the published TypeScript SDK: a worker, or a client that plays scenes and prints what it got.
//
//     program.mjs FOLDER URL GROUP PID worker | late-worker
//     program.mjs FOLDER URL GROUP PID ask PREFIX SCENE ...
//     program.mjs FOLDER URL GROUP PID call ID FUNCTION ARGS
//     program.mjs FOLDER URL GROUP PID settle ID VALUE
//     program.mjs FOLDER URL GROUP PID await ID ...
//     program.mjs FOLDER URL GROUP PID cancel ID
//
// FOLDER is where npm has put the SDK. It knows nothing of the engine. URL is that of a gateway, or of a database with
// the functions of a Postgres server of Resonate. A scene is about functions of workers of a
// group, whatever language they are written in; GROUP is that group, also for who only asks. Each answer is a line
// of JSON.

import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, url, group, pid, role, ...rest] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(createRequire(join(folder, "program.js")).resolve(name)).href);
const { HttpNetwork, Resonate } = await load("@resonatehq/sdk");

const there = (ctx) => ctx.options({ target: group });

function add(_ctx, a, b) {
  return a + b;
}

// calls side by side
function* sumOf(ctx, count) {
  const parts = [];
  for (let n = 0; n < count; n++) parts.push(yield* ctx.beginRpc("add", n, 1, there(ctx)));
  let sum = 0;
  for (const part of parts) sum += yield* part;
  return sum;
}

// calls of its own, here
function* steps(ctx, count) {
  let sum = 0;
  for (let n = 0; n < count; n++) sum += yield* ctx.run(add, n, 1);
  return sum;
}

// calls of itself
function* fib(ctx, n) {
  if (n < 2) return n;
  const parts = [yield* ctx.beginRpc("fib", n - 1, there(ctx)), yield* ctx.beginRpc("fib", n - 2, there(ctx))];
  return (yield* parts[0]) + (yield* parts[1]);
}

function* nap(ctx, ms) {
  yield* ctx.sleep(ms);
  return "awake";
}

// begins something and does not wait for it; answers its id
function* leave(ctx) {
  const part = yield* ctx.detached("add", 2, 3, there(ctx));
  return part.id;
}

// waits for what somebody else decides
function* question(ctx) {
  const answer = yield* ctx.promise();
  return `they said ${yield* answer}`;
}

function* fail() {
  throw new Error("no luck");
}

// fails once; answers how often it was called
let calls = 0;
function flaky() {
  calls += 1;
  if (calls === 1) throw new Error("not yet");
  return calls;
}

// calls functions of others, one after the other; answers what it got of each
function* relay(ctx, calls) {
  const answers = [];
  for (const [target, name, args] of calls) {
    try {
      answers.push(yield* ctx.rpc(name, ...args, ctx.options({ target })));
    } catch (error) {
      // a cancelled call without a value throws nothing
      answers.push({ error: error?.message ?? null });
    }
  }
  return answers;
}

// takes a while
async function work(_ctx, seconds) {
  await new Promise((done) => setTimeout(done, seconds * 1000));
  return "worked";
}

function late() {
  return "at last";
}

const outcome = (answer) => answer.catch((error) => ({ error: error.message }));

// how many resolved promises have these tags, page by page: the SDK has this request, and no function that makes it
async function countOf(tags) {
  const network = options.network ?? new HttpNetwork({ url });
  let count = 0;
  let cursor;
  do {
    const head = { corrId: crypto.randomUUID(), version: "2026-04-01" };
    const data = { state: "resolved", tags, limit: 10, cursor };
    const answer = await network.send({ kind: "promise.search", head, data });
    if (answer.head.status !== 200) throw new Error(answer.data);
    count += answer.data.promises.length;
    cursor = answer.data.cursor;
  } while (cursor !== undefined);
  return count;
}

async function play(resonate, scene, id) {
  const options = resonate.options({ target: group, timeout: 300_000, version: 1 });
  const call = (name, ...args) => resonate.rpc(id, name, ...args, options);
  switch (scene) {
    case "rpc":
      return call("add", 2, 3);
    case "fan-out":
      return call("sum_of", 20);
    case "recursion":
      return call("fib", 6);
    case "sleep":
      return call("nap", 300);
    case "long-sleep":
      return call("nap", 5000);
    case "human":
      return call("question");
    case "missing":
      return call("late");
    case "retries":
      return call("flaky");
    case "work":
      return call("work", 3);
    case "fan-out-of-hundred":
      return call("sum_of", 100);
    case "deep-recursion":
      return call("fib", 9);
    case "run":
      return resonate.run(id, "steps", 3);
    case "detached": {
      const child = await resonate.get(await call("leave"));
      return child.result();
    }
    case "rejected":
      return call("fail").catch((error) => error.message);
    case "again":
      return [await call("add", 1, 1), await call("add", 5, 5)];
    case "search":
      return countOf({ "resonate:origin": `${id.slice(0, -scene.length)}fan-out` });
    case "named": {
      // calls of this SDK have arguments by position alone; a promise made by hand has a call with names
      const named = { func: "greet", args: [], kwargs: { name: "ann", loud: true }, version: 1 };
      const tags = { "resonate:target": `poll://any@${group}` };
      const data = btoa(JSON.stringify(named));
      await resonate.promises.create(`${id}-right`, Date.now() + 300_000, { data, tags });
      const handle = await resonate.get(`${id}-right`);
      return [await handle.result(), await call("greet", "ann").catch((error) => error.message)];
    }
    case "schedule": {
      await resonate.schedule(id, "* * * * *", "add", 1, 2);
      const found = await resonate.schedules.get(id);
      await resonate.schedules.delete(id);
      return found.cron;
    }
  }
}

const works = role === "worker" || role === "late-worker";
const own = works ? group : `${group}-asks`;
const options = { pid, group: own };
if (url.startsWith("postgresql:")) {
  const { PostgresNetwork } = await load("@resonatehq/sdk/postgres");
  options.network = new PostgresNetwork({ connectionString: url, ...options });
} else {
  options.url = url;
}
const resonate = new Resonate(options);
const all = { add, sum_of: sumOf, steps, fib, nap, leave, question, fail, flaky, relay, work };
for (const [name, func] of Object.entries(role === "late-worker" ? { late } : all)) resonate.register(name, func);
// until its input ends: it does not outlive the tests
if (works) process.stdin.on("end", () => process.exit(0)).resume();
if (role === "settle") {
  // what is settled by hand is not encoded by this SDK
  const [id, value] = rest;
  await resonate.promises.resolve(id, { data: btoa(JSON.stringify(value)) });
} else if (role === "cancel") {
  await resonate.promises.cancel(rest[0], {});
} else if (role === "await") {
  for (const id of rest) {
    const handle = await resonate.get(id);
    console.log(JSON.stringify(await outcome(handle.result())));
  }
} else if (role === "call") {
  const [id, name, args] = rest;
  const there = resonate.options({ target: group, timeout: 300_000, version: 1 });
  console.log(JSON.stringify(await outcome(resonate.rpc(id, name, ...JSON.parse(args), there))));
} else if (!works) {
  const [prefix, ...scenes] = rest;
  for (const scene of scenes) console.log(JSON.stringify(await play(resonate, scene, prefix + scene)));
}
if (!works) {
  await resonate.stop();
  process.exit(0);
}
