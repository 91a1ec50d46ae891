// An order and the run that fulfils it, in one transaction of this service; then a signal, and the result.
//
//   DATABASE_URL=postgres://shop@localhost/shop node order.js 42 19.90
//
// The engine is the schema `durable` of the service's own database: there is nothing to import but a driver.
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

interface Fulfilled {
  order: number;
  paid_by: string;
}

/** Writes the order and starts its run: both are there, or neither is. */
async function place(client: pg.Client, order: number, amount: string): Promise<string> {
  await client.query("begin");
  try {
    const started = await client.query<{ run: string }>(
      "select durable.start('fulfil', $1, id => $2) as run",
      [{ order }, `order-${order}`],
    );
    // an order that is there already fails here, and its run was never started
    await client.query("insert into orders (id, amount) values ($1, $2)", [order, amount]);
    await client.query("commit");
    return started.rows[0]!.run;
  } catch (error) {
    await client.query("rollback");
    throw error;
  }
}

/** Looks until the run has ended; each look is one short statement and holds nothing. */
async function result<T>(client: pg.Client, run: string): Promise<T> {
  for (let pause = 10; ; pause = Math.min(2 * pause, 1000)) {
    const found = await client.query<{ state: string; value: T; error: unknown }>(
      "select state, value, error from durable.result($1)",
      [run],
    );
    const { state, value, error } = found.rows[0]!;
    if (state === "resolved") return value;
    if (state !== "pending") throw new Error(`run ${run} is ${state}: ${JSON.stringify(error)}`);
    await sleep(pause);
  }
}

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
try {
  const run = await place(client, Number(process.argv[2]), process.argv[3] ?? "0");
  // the same `dedup` is the same signal, however often the webhook comes
  await client.query("select durable.signal($1, 'paid', $2, dedup => $3)", [
    run,
    { by: "card" },
    `payment-${run}`,
  ]);
  console.log(JSON.stringify(await result<Fulfilled>(client, run)));
} finally {
  await client.end();
}
