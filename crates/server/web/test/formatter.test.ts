import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { type Formatted, unformatted } from "../src/text/formatted.ts";
import { Formatter, type Job, type Reader, type Reply } from "../src/text/formatter.ts";

/** A formatter whose workers do what the test says, and a clock that the test moves. */
function setUp(t: { after(run: () => void): void }) {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  t.after(() => mock.timers.reset());
  const workers: { receive: (reply: Reply) => void; failed: () => void; jobs: Job[]; isEnded: boolean }[] = [];
  const formatter = new Formatter((receive, failed) => {
    const own = { receive, failed, jobs: [] as Job[], isEnded: false };
    workers.push(own);
    return { post: (job) => own.jobs.push(job), end: () => (own.isEnded = true) };
  });
  const reader = (text: string) => {
    const shown: [string, Formatted][] = [];
    const own: Reader & { shown: typeof shown } = { text, language: null, shown, show: (formatted, of) => shown.push([of, formatted]) };
    return own;
  };
  const done = (worker: number, html: string) => {
    const job = workers[worker]!.jobs.at(-1)!;
    const formatted = { blocks: [{ html }], isCut: false, needsMath: false };
    workers[worker]!.receive({ kind: "done", id: job.id, formatted });
    return formatted;
  };
  return { formatter, workers, reader, done };
}

test("a text that grows is formatted from time to time, and what is stale is dropped", (t) => {
  const { formatter, workers, reader, done } = setUp(t);
  const own = reader("a");
  formatter.ask(own);
  assert.equal(workers[0]!.jobs.length, 0);
  workers[0]!.receive({ kind: "ready" });
  for (const text of ["ab", "abc", "abcd"]) {
    own.text = text;
    formatter.ask(own);
  }
  const first = done(0, "A");
  assert.deepEqual(own.shown, [["a", first]]);
  mock.timers.tick(100);
  assert.deepEqual(workers[0]!.jobs.map((job) => job.text), ["a", "abcd"]);
  // Another text took its place.
  own.text = "x";
  formatter.ask(own);
  done(0, "ABCD");
  assert.equal(own.shown.length, 1);
  mock.timers.tick(100);
  const last = done(0, "X");
  assert.deepEqual(own.shown.slice(1), [["x", last]]);
  // It is known from now on.
  const other = reader("x");
  formatter.ask(other);
  assert.deepEqual([other.shown, workers[0]!.jobs.length], [[["x", last]], 3]);
});

test("a worker that gets stuck in a block is ended, and another goes on without the block", (t) => {
  const { formatter, workers, reader, done } = setUp(t);
  const [own, next] = [reader("bad"), reader("good")];
  formatter.ask(own);
  formatter.ask(next);
  workers[0]!.receive({ kind: "ready" });
  const { id } = workers[0]!.jobs[0]!;
  mock.timers.tick(1900);
  workers[0]!.receive({ kind: "step", id, block: 3 });
  mock.timers.tick(1900);
  assert.equal(workers[0]!.isEnded, false);
  mock.timers.tick(200);
  assert.deepEqual([workers[0]!.isEnded, workers.length], [true, 2]);
  workers[1]!.receive({ kind: "ready" });
  assert.deepEqual(workers[1]!.jobs[0]!.plain, [3]);
  done(1, "BAD");
  done(1, "GOOD");
  assert.deepEqual([own.shown.length, next.shown.length], [1, 1]);
  // Another try has more time, and leaves nothing out.
  formatter.ask(own, true);
  const again = workers[1]!.jobs.at(-1)!;
  assert.deepEqual(again.plain, []);
  assert.ok(again.depth > workers[1]!.jobs[0]!.depth);
  mock.timers.tick(19_000);
  assert.equal(workers[1]!.isEnded, false);
});

test("a text that gets stuck as a whole stays plain, also while it grows", (t) => {
  const { formatter, workers, reader } = setUp(t);
  const own = reader("bad");
  formatter.ask(own);
  workers[0]!.receive({ kind: "ready" });
  mock.timers.tick(2100);
  assert.deepEqual(own.shown, [["bad", unformatted("bad")]]);
  own.text = "bad and more";
  formatter.ask(own);
  assert.deepEqual(own.shown[1], ["bad and more", unformatted("bad and more")]);
  assert.equal(workers.length, 1);
  own.text = "other";
  formatter.ask(own);
  assert.equal(workers.length, 2);
});

test("without a worker texts stay plain until they are tried again", (t) => {
  const { formatter, workers, reader, done } = setUp(t);
  const own = reader("text");
  formatter.ask(own);
  workers[0]!.failed();
  assert.deepEqual(own.shown, [["text", unformatted("text")]]);
  formatter.ask(own, true);
  workers[1]!.receive({ kind: "ready" });
  done(1, "TEXT");
  assert.equal(own.shown.length, 2);
});

test("a reader that is gone is shown nothing", (t) => {
  const { formatter, workers, reader, done } = setUp(t);
  const [own, waiting] = [reader("a"), reader("b")];
  formatter.ask(own);
  formatter.ask(waiting);
  formatter.drop(own);
  formatter.drop(waiting);
  workers[0]!.receive({ kind: "ready" });
  done(0, "A");
  assert.deepEqual([own.shown, waiting.shown, workers[0]!.jobs.length], [[], [], 1]);
});
