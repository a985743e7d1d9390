// The page in a browser, on the real server with models that say what they are told to (see
// `xtask/src/web/stub.rs`): the last message's words choose the answer.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { env } from "node:process";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { isDeepStrictEqual } from "node:util";
import { chromium } from "playwright-core";
import { fontconfig } from "./fonts.mjs";
import { serve, serveWithTools } from "./server.mjs";
import { looks } from "./shots.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WIDE = { width: 1280, height: 800 };
/** How long anything may take, in milliseconds: a busy machine is no failure. */
const LIMIT = 60_000;
const PHONE = { width: 390, height: 700 };

let browser, server, context, page, problems, foreign;

before(async () => {
  browser = await chromium.launch({
    executablePath: env.BROWSER,
    env: { ...env, FONTCONFIG_FILE: await fontconfig() },
    args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--font-render-hinting=none"],
  });
  server = await serve();
});

after(async () => {
  await browser?.close();
  server?.stop();
});

/** A page of a profile of its own; what goes wrong in it is collected. */
async function open(options = {}, url = server.url) {
  context = await browser.newContext({ viewport: WIDE, colorScheme: "light", reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(LIMIT);
  problems = [];
  foreign = [];
  page = await newTab(url);
  return page;
}

/** Another tab of the profile; `before` runs in it before the page does. */
async function newTab(url, before) {
  const page = await context.newPage();
  if (before) await page.addInitScript(before);
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(message.text());
  });
  page.on("request", (request) => {
    const { protocol, origin } = new URL(request.url());
    if (protocol === "http:" && origin !== new URL(url).origin) foreign.push(request.url());
  });
  await page.goto(url);
  await page.waitForSelector("#prompt, #key");
  return page;
}

beforeEach(() => open());

afterEach(async () => {
  await context.close();
  assert.deepEqual(problems, []);
  assert.deepEqual(foreign, []);
});

async function say(text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

/** All texts are formatted. */
const formatted = () => page.waitForFunction(() => !document.querySelector(".prose[aria-busy=true]"));
const answered = async () => {
  await page.waitForSelector(".message.assistant:last-child .again:not([disabled])");
  await formatted();
};
const texts = (selector) => page.locator(selector).allInnerTexts();
const last = () => page.locator(".message.assistant").last().locator(".prose").last().innerText();
const length = async () => (await last()).length;

/** Waits until what is read is as expected. */
async function eventually(read, expected) {
  const end = Date.now() + LIMIT;
  for (;;) {
    const found = await read();
    if (isDeepStrictEqual(found, expected) || Date.now() > end) return assert.deepEqual(found, expected);
  }
}

/** The bodies of the requests for answers from now on. */
function asked() {
  const bodies = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/v1/chat/completions")) bodies.push(request.postDataJSON());
  });
  return bodies;
}

/** What breaks WCAG's rules of level AA, as far as a program can tell. */
async function barriers() {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }),
  );
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
}

test("a chat is answered, kept, and there after a reload", async () => {
  const bodies = asked();
  await say("hello");
  await answered();
  assert.equal(await last(), "Hello there! How can I help?");
  // What nobody set is the model's own.
  assert.deepEqual(Object.keys(bodies[0]).sort(), ["messages", "stream", "stream_options"]);
  assert.match(await page.innerText(".facts"), /stub.*7 tokens/s);
  await say("and now?");
  await answered();
  const roles = bodies[1].messages.map(({ role, content }) => `${role}: ${content}`);
  assert.deepEqual(roles, ["user: hello", "assistant: Hello there! How can I help?", "user: and now?"]);
  await page.reload();
  await page.waitForSelector(".message");
  await eventually(() => texts(".said"), ["hello", "and now?"]);
  await formatted();
  assert.equal(await last(), "I see.");
  assert.equal(await page.title(), "hello – realizar");
});

test("Markdown is rendered, and nothing in it runs or loads", async () => {
  await say("markdown");
  await answered();
  const prose = page.locator(".prose");
  await prose.locator("math").waitFor();
  assert.equal(await prose.locator("h2").innerText(), "A heading");
  assert.deepEqual(await texts(".prose td"), ["one", "1", "two", "22"]);
  assert.equal(await prose.locator("pre").innerText(), 'fn main() {\n    println!("hi");\n}');
  assert.equal(await prose.locator(".hljs-keyword").first().innerText(), "fn");
  assert.match(await prose.innerText(), /<b>a tag<\/b>.*☑ done.*☐ open/s);
  assert.deepEqual(await prose.locator("img, b, script").count(), 0);
  const links = await prose.locator("a").evaluateAll((all) => all.map((a) => [a.textContent, a.getAttribute("href")]));
  assert.deepEqual(links, [["a picture", "http://example.com/track.png"], ["unsafe", null]]);
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await prose.locator(".copy").click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'fn main() {\n    println!("hi");\n}');
  await eventually(() => prose.locator(".copy").innerText(), "Copied");
  assert.deepEqual(await barriers(), []);
});

test("an answer is stopped by Escape, and continued", async () => {
  await say("alphabet");
  await page.waitForFunction(() => (document.querySelector(".prose")?.textContent.length ?? 0) > 60);
  await page.keyboard.press("Escape");
  await page.waitForSelector(".cut");
  assert.match(await page.innerText(".cut"), /Stopped/);
  const before = await length();
  assert.ok("abcdefghijklmnopqrstuvwxyz".repeat(10000).startsWith(await last()));
  await page.click("text=Continue");
  await page.waitForFunction((n) => document.querySelector(".prose").textContent.length > n, before + 30);
  await page.click("#stop");
  await page.waitForSelector("text=Stopped");
  assert.ok("abcdefghijklmnopqrstuvwxyz".repeat(10000).startsWith(await last()));
});

test("a new chat during an answer has nothing of it, and the answer goes on", async () => {
  const bodies = asked();
  await say("alphabet");
  await page.waitForFunction(() => document.querySelector(".prose")?.textContent.length > 20);
  await page.click("#new-chat");
  await page.waitForSelector(".welcome");
  assert.equal(await page.locator(".message").count(), 0);
  await say("hello");
  await answered();
  assert.equal(bodies.length, 2);
  assert.deepEqual(bodies[1].messages, [{ role: "user", content: "hello" }]);
  assert.deepEqual(await texts(".said"), ["hello"]);
  assert.equal(await last(), "Hello there! How can I help?");
  // The first one went on by itself, and can be stopped where it is.
  await page.click(".entry a[title=alphabet]");
  await page.waitForSelector("#stop");
  const before = await length();
  await page.waitForFunction((n) => document.querySelector(".prose").textContent.length > n, before);
  await page.keyboard.press("Escape");
  await page.waitForSelector(".cut");
  await eventually(() => texts(".said"), ["alphabet"]);
});

test("an answer that a reload interrupts is marked", async () => {
  await say("alphabet");
  await page.waitForFunction(() => document.querySelector(".prose")?.textContent.length > 20);
  // It is written while it streams, once a second.
  const written = () => page.evaluate(async () => {
    const request = indexedDB.open("realizar");
    await new Promise((resolve) => (request.onsuccess = resolve));
    const all = request.result.transaction("conversations").objectStore("conversations").getAll();
    await new Promise((resolve) => (all.onsuccess = resolve));
    request.result.close();
    return all.result[0]?.turns[1]?.text.length ?? 0;
  });
  while ((await written()) < 20);
  await page.reload();
  await page.waitForSelector(".cut");
  assert.match(await page.innerText(".cut"), /Stopped.*Continue/s);
});

test("answers are repeated, messages edited, and branches kept apart", async () => {
  await say("hello");
  await answered();
  await page.click(".again");
  await answered();
  await eventually(() => page.innerText(".assistant .siblings"), "2 / 2");
  await page.hover(".message.user");
  await page.click(".edit");
  await page.fill(".editor textarea", "something");
  await page.keyboard.press("Enter");
  await answered();
  assert.equal(await last(), "I see.");
  await page.click(".user .siblings [aria-label='Previous version']");
  await page.waitForSelector("text=How can I help?");
  await eventually(() => page.innerText(".user .siblings"), "1 / 2");
  await page.click("[aria-label='Branch into a new chat']");
  await page.waitForFunction(() => document.querySelectorAll(".entry").length === 2);
  await eventually(() => page.locator(".siblings").count(), 0);
});

test("a full context drops the oldest exchanges with a notice, and marks what it cuts", async () => {
  const bodies = asked();
  await page.selectOption("#model", "small");
  await page.click("#show-settings");
  await page.fill("#system", "Stay.");
  await page.press("#system", "Tab");
  for (const word of ["one", "two", "three"]) {
    await say(`${word} ${"x".repeat(90)}`);
    await answered();
    assert.equal(await last(), "I see.");
  }
  assert.match(await page.innerText(".dropped"), /The context is full: \d earlier exchanges? above (is|are) no longer sent/);
  const { messages } = bodies.at(-1);
  assert.equal(messages[0].content, "Stay.");
  assert.match(messages.at(-1).content, /^three/);
  assert.ok(!messages.some(({ content }) => content.startsWith("one")), JSON.stringify(messages));
  // An answer that fills the context is cut, and continues without what is oldest.
  await say("alphabet");
  await page.waitForSelector(".cut");
  assert.match(await page.innerText(".cut"), /context is full.*Continue/s);
  const before = await length();
  await page.click("text=Continue");
  await page.waitForFunction((n) => document.querySelector(".message:last-child .prose").textContent.length > n, before);
  await answered();
  // What can never fit is refused where it was sent.
  await say("y".repeat(900));
  await page.waitForSelector(".failed");
  assert.match(await page.innerText(".failed"), /has [\d,]+ tokens; the model's context holds 384.*Shorten/s);
  // That is found by asking the server, and browsers report its refusals by themselves.
  problems = problems.filter((problem) => !problem.includes("status of 400"));
});

test("reasoning folds", async () => {
  await say("think");
  await answered();
  assert.equal(await last(), "The answer is 42.");
  const fold = page.locator(".fold > button");
  assert.match(await fold.innerText(), /Thought for 1 second/);
  assert.equal(await fold.getAttribute("aria-expanded"), "false");
  await fold.click();
  assert.equal(await page.innerText(".folded"), "Let me think about it.");
});

test("tool calls are shown, and their results given back", async () => {
  const bodies = asked();
  await page.click("#show-settings");
  const tools = page.getByLabel("Tools (JSON)");
  await tools.fill("[{]");
  await tools.blur();
  await page.waitForSelector("text=The tools are not JSON");
  await tools.fill('[{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]');
  await tools.blur();
  await say("weather");
  await page.waitForSelector(".call h3");
  await answered();
  assert.equal(await page.innerText(".call h3"), "get_weather");
  assert.equal(await page.innerText(".call pre"), '{\n  "city": "Oslo"\n}');
  await page.getByLabel("Result of get_weather").fill("20 degrees");
  await page.click("text=Give the result to the model");
  await page.waitForSelector("text=It is sunny in Oslo.");
  const [, call, result] = bodies[1].messages;
  assert.equal(call.tool_calls[0].function.name, "get_weather");
  assert.deepEqual([result.role, result.content, result.tool_call_id], ["tool", "20 degrees", call.tool_calls[0].id]);
});

test("a field of the settings keeps what is typed while an answer arrives", async () => {
  await page.click("#show-settings");
  await page.waitForSelector("#settings:focus");
  await say("alphabet");
  await page.waitForFunction(() => document.querySelector(".prose")?.textContent.length > 20);
  const tools = page.getByLabel("Tools (JSON)");
  await tools.fill("[{]");
  await page.getByLabel("Temperature").fill("0.5");
  await tools.focus();
  await page.waitForSelector("text=The tools are not JSON");
  await page.fill("#system", "Be kind.");
  // The page is drawn many times meanwhile.
  const before = await length();
  await page.waitForFunction((n) => document.querySelector(".prose").textContent.length > n + 50, before);
  assert.equal(await page.inputValue("#system"), "Be kind.");
  await page.press("#system", "Tab");
  await page.click("text=Save by name…");
  await page.fill("[aria-label='Name of the prompt']", "Kind");
  await page.locator(".entry").hover();
  await page.click("[aria-label='Actions for alphabet']");
  await page.click("[role=menuitem]:has-text('Rename')");
  await page.keyboard.type("Letters");
  await page.keyboard.press("Enter");
  await eventually(() => texts(".entry .title"), ["Letters"]);
  await page.click("#stop");
  await page.waitForSelector(".cut");
  const values = [await tools.inputValue(), await page.getByLabel("Temperature").inputValue(), await page.inputValue("[aria-label='Name of the prompt']")];
  assert.deepEqual(values, ["[{]", "0.5", "Kind"]);
});

test("tools of MCP servers run when the user says so", async () => {
  const own = await serveWithTools();
  try {
    await context.close();
    await open({}, own.url);
    const bodies = asked();
    await page.click("#show-settings");
    await page.waitForSelector("text=broken");
    assert.match(await page.getByLabel("broken").locator("xpath=..").innerText(), /bad option/);
    await page.getByLabel("weather").check();
    await say("weather");
    await answered();
    assert.deepEqual(bodies[0].tools.map((tool) => tool.function.name), ["get_weather"]);
    await page.click(".ask >> text=Decline");
    await page.waitForSelector("text=I see.");
    assert.equal(bodies[1].messages.at(-1).content, "The user declined this call.");

    await say("weather");
    await page.click(".ask >> text=Always in this chat");
    await page.waitForSelector("text=It is sunny in Oslo.");
    const [call, result] = bodies.at(-1).messages.slice(-2);
    assert.deepEqual([result.content, result.tool_call_id], ["20 degrees in Oslo", call.tool_calls[0].id]);
    // Nothing is asked now.
    await say("weather");
    await eventually(() => page.getByText("It is sunny in Oslo.").count(), 2);
    // The server goes once it has said all.
    await answered();
  } finally {
    own.stop();
  }
});

test("settings show the model's defaults, and are the chat's own", async () => {
  const bodies = asked();
  await page.click("#show-settings");
  const temperature = page.getByLabel("Temperature");
  const { data } = await page.evaluate(async () => (await fetch("v1/models")).json());
  assert.equal(await temperature.getAttribute("placeholder"), `${data[0].meta.sampling.temperature} (default)`);
  await temperature.fill("0");
  await page.getByLabel("Keep the probabilities of tokens").check();
  await page.fill("#system", "Be kind.");
  await page.press("#system", "Tab");
  await page.click("text=Save by name…");
  await page.fill("[aria-label='Name of the prompt']", "Kind");
  await page.keyboard.press("Enter");
  await eventually(() => page.inputValue("[aria-label='Saved system prompts']"), "Kind");
  await say("hello");
  await answered();
  assert.equal(bodies[0].temperature, 0);
  assert.equal(bodies[0].messages[0].content, "Be kind.");
  await page.click("[aria-label='Token probabilities']");
  await page.hover(".token >> nth=1");
  assert.match(await page.innerText(".tip"), /␣there\s+[\d.]+ %/);
  await eventually(() => page.locator(".tip tr").count(), 5);
  await page.focus(".tokens");
  await page.keyboard.press("ArrowRight");
  assert.deepEqual(await barriers(), []);
  await page.click("#new-chat");
  await eventually(() => temperature.inputValue(), "");
  await page.selectOption("[aria-label='Saved system prompts']", "Kind");
  await eventually(() => page.inputValue("#system"), "Be kind.");
});

test("chats are searched, renamed, exported, imported, deleted and restored", async () => {
  for (const text of ["hello", "something else"]) {
    await page.click("#new-chat");
    await page.waitForSelector(".welcome");
    await say(text);
    await answered();
  }
  await page.keyboard.press("Control+k");
  await page.keyboard.type("HELP");
  await eventually(() => texts(".entry .title"), ["hello"]);
  const act = async (name, action) => {
    await page.hover(`.entry a[title="${name}"]`);
    await page.click(`[aria-label="Actions for ${name}"]`);
    await page.click(`[role=menuitem]:has-text("${action}")`);
  };
  await act("hello", "Rename");
  await page.fill(".rename", "Greetings");
  await page.keyboard.press("Enter");
  const [download] = await Promise.all([page.waitForEvent("download"), act("Greetings", "Export as JSON")]);
  assert.equal(download.suggestedFilename(), "Greetings.json");
  const file = await download.path();
  await act("Greetings", "Delete");
  await page.fill("#search", "");
  await eventually(() => texts(".entry .title"), ["something else"]);
  await page.click("text=Undo");
  await eventually(() => page.locator(".entry").count(), 2);
  await page.setInputFiles("#import", file);
  await page.waitForFunction(() => document.querySelectorAll(".entry").length === 3);
  await page.click('.entry a[title="Greetings"] >> nth=0');
  await eventually(() => texts(".message .prose"), ["Hello there! How can I help?"]);
});

/** Tests this tab from now on. Browsers hardly draw those behind it. */
async function show(tab) {
  page = tab;
  await tab.bringToFront();
}

test("two tabs that say something behind the same answer get two branches", async () => {
  await say("hello");
  await answered();
  const first = page;
  // This one hears nothing of the other, as one that the browser has frozen.
  const second = await newTab(first.url(), () => {
    globalThis.BroadcastChannel = class {
      postMessage() {}
    };
  });
  await second.waitForSelector(".message.assistant");
  for (const [tab, text] of [[first, "from the first"], [second, "from the second"]]) {
    await show(tab);
    await say(text);
    await answered();
  }
  await eventually(() => texts(".said"), ["hello", "from the second"]);
  await show(first);
  for (let n = 0; n < 2; n += 1) {
    await eventually(() => texts(".said"), ["hello", n === 0 ? "from the first" : "from the second"]);
    await page.reload();
    await page.waitForSelector(".siblings");
    await eventually(() => texts(".siblings"), ["2 / 2"]);
    if (n === 0) continue;
    await page.click("[aria-label='Previous version']");
    await eventually(() => texts(".said"), ["hello", "from the first"]);
    assert.deepEqual(await texts(".prose"), ["Hello there! How can I help?", "I see."]);
  }
});

test("tabs show what the others do", async () => {
  await say("hello");
  await answered();
  const first = page;
  const second = await newTab(first.url());
  await second.waitForSelector(".message.assistant");
  await show(first);
  await say("alphabet");
  await show(second);
  // What arrives in one can be read and stopped in the other.
  await page.waitForFunction(() => [...document.querySelectorAll(".prose")].at(-1).textContent.startsWith("abc"));
  await page.click("#stop");
  for (const tab of [second, first]) {
    await show(tab);
    await page.waitForSelector(".cut");
    await eventually(() => page.locator("#stop").count(), 0);
  }
  await show(second);
  await say("and now?");
  await answered();
  await show(first);
  await eventually(() => texts(".said"), ["hello", "alphabet", "and now?"]);
  await eventually(last, "I see.");
  // A third one, opened during an answer, knows that it arrives elsewhere.
  await say("alphabet");
  await page.waitForSelector("#stop");
  const third = await newTab(first.url());
  await third.waitForSelector("#stop");
  assert.equal(await third.locator(".message:last-child .cut").count(), 0);
  await show(first);
  await page.keyboard.press("Escape");
  await show(third);
  await page.waitForSelector(".message:last-child .cut");
  await show(first);

  await page.hover(".entry");
  await page.click("[aria-label='Actions for hello']");
  await page.click("[role=menuitem]:has-text('Delete')");
  await show(second);
  await page.waitForSelector("text=Another tab has deleted this chat.");
  await page.waitForSelector(".welcome");
  await page.click("text=Undo");
  await eventually(() => texts(".entry .title"), ["hello"]);
  await show(first);
  await eventually(() => texts(".entry .title"), ["hello"]);
});

/** A file of one chat, in which answers follow one another. */
function chatOf(title, ...turns) {
  const all = turns.map((turn, idx) => ({
    id: `t${idx}`, parent: idx === 0 ? null : `t${idx - 1}`, role: idx % 2 ? "assistant" : "user", created: 1, end: "done", ...turn,
  }));
  const conversation = { id: "c", title, named: true, created: 1, updated: 1, leaf: all.at(-1).id, turns: all, settings: {} };
  const text = JSON.stringify({ format: "realizar.conversations", version: 1, conversations: [conversation] });
  return { name: "chat.json", mimeType: "application/json", buffer: Buffer.from(text) };
}

async function openChat(title, ...turns) {
  await page.setInputFiles("#import", chatOf(title, ...turns));
  await page.click(`.entry a[title="${title}"]`);
  await page.waitForSelector(".message");
}

test("nothing in a chat makes the page unusable", async () => {
  const stats = { promptTokens: 1, cachedTokens: 0, answerTokens: 424_242, firstTokenMs: 1, decodeMs: 1 };
  await openChat(
    "Odd",
    { text: "q".repeat(200_000) },
    { text: `*before*\n\n${">".repeat(2000)}\n\n*behind*` },
    { text: "and?" },
    { text: `*first*\n\n${"*a_".repeat(7000)}\n\n*last*` },
    { text: "and?" },
    { text: "", end: "tools", calls: [{ id: "1", name: "f", arguments: "[".repeat(20_000) }] },
    { text: "and?" },
    { text: "no *statistics*", stats },
  );
  const check = async () => {
    await formatted();
    await eventually(() => page.locator(".cut >> text=Try again").count(), 2);
    assert.deepEqual(await texts(".prose em"), ["before", "behind", "first", "last", "statistics"]);
    assert.ok((await page.innerText(".message >> nth=3")).includes("*a_".repeat(7000)));
    await eventually(() => texts(".said .link"), ["Show all 200,000 characters"]);
  };
  // After a reload neither, and an error within a message stays there.
  await page.addInitScript(() => {
    const { get } = Object.getOwnPropertyDescriptor(Intl.NumberFormat.prototype, "format");
    globalThis.isBroken = true;
    Object.defineProperty(Intl.NumberFormat.prototype, "format", {
      get() {
        const format = get.call(this);
        return (n) => {
          if (n === 424_242 && globalThis.isBroken) throw new Error("broken");
          return format(n);
        };
      },
    });
  });
  await page.reload();
  await page.waitForSelector("text=This message cannot be shown as usual");
  assert.match(await page.innerText(".message:last-child"), /^no \*statistics\*/);
  await page.evaluate(() => (globalThis.isBroken = false));
  await page.click(".message:last-child >> text=Try again");
  await check();
  // The end stays in view while texts above it are formatted.
  await eventually(() => page.locator(".to-end").count(), 0);
  await page.click(".message >> nth=1 >> text=Try again");
  await check();
  await page.selectOption("#model", "small");
  await say("hello");
  await answered();
  assert.equal(await last(), "Hello there! How can I help?");
  // Nor does what arrives.
  await page.route("**/v1/chat/completions", (route) => {
    const usage = { prompt_tokens: 20, completion_tokens: 2000 };
    const chunk = { choices: [{ delta: { content: ">".repeat(2000) }, finish_reason: "stop" }], usage };
    return route.fulfill({ contentType: "text/event-stream", body: `data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n` });
  });
  await say("quotes");
  await answered();
  assert.match(await last(), /^>+$/);
  await page.unroute("**/v1/chat/completions");
  await say("hello");
  await answered();
  assert.equal(await last(), "Hello there! How can I help?");
  // The chat is longer than the context, which is found by asking the server.
  problems = problems.filter((problem) => !problem.includes("status of 400"));
});

test("texts run in the direction of their script, and footnotes are at their end", async () => {
  await openChat(
    "Scripts",
    { text: "שלום\nhello" },
    { text: "- مرحبا\n- hello\n\nA claim[^1], and another[^x].\n\n```js\nf()\n```\n\n[^x]: Its *source*.\n[^1]: Here.\n" },
  );
  await formatted();
  const directions = (selector) =>
    page.locator(selector).evaluateAll((all) => all.map((node) => globalThis.getComputedStyle(node).direction));
  assert.deepEqual(await directions(".said"), ["rtl"]);
  assert.deepEqual(await directions(".prose .block"), ["rtl", "ltr", "ltr", "ltr"]);
  await page.fill("#prompt", "مرحبا");
  assert.deepEqual(await directions("#prompt"), ["rtl"]);
  await page.fill("#prompt", "");
  assert.deepEqual(await page.locator(".notes li").allTextContents(), ["Here.\n↩", "Its source.\n↩"]);
  await page.click("[aria-label='Footnote 2']");
  await page.waitForSelector("[data-note-text='2']:focus");
  await page.click("[data-note-of='2']");
  await page.waitForSelector("[data-note='2']:focus");
  assert.deepEqual(await barriers(), []);
});

/** A PDF of one page that has one line. */
function pdf(line) {
  const stream = `BT /F 12 Tf 72 720 Td (${line}) Tj ET`;
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >>",
    `<< /Length ${stream.length} >>\nstream\n${stream}\nendstream`,
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
  ];
  let text = "%PDF-1.4\n";
  const places = objects.map((object, idx) => {
    const at = text.length;
    text += `${idx + 1} 0 obj\n${object}\nendobj\n`;
    return `${String(at).padStart(10, "0")} 00000 n \n`;
  });
  const start = text.length;
  text += `xref\n0 6\n0000000000 65535 f \n${places.join("")}trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n${start}\n%%EOF`;
  return Buffer.from(text, "latin1");
}

test("text files and PDFs are attached by their text", async () => {
  const bodies = asked();
  await page.setInputFiles("#attach", [
    { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("First note.\r\n") },
    { name: "paper.pdf", mimeType: "application/pdf", buffer: pdf("A line of a paper.") },
    { name: "wide.txt", mimeType: "text/plain", buffer: Buffer.from("\ufeffWide: ä, 😀.", "utf16le") },
    { name: "old.txt", mimeType: "text/plain", buffer: Buffer.from([0x4f, 0x6c, 0x64, 0x3a, 0x20, 0xe4, 0x20, 0x80]) },
    { name: "noise.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 1]) },
  ]);
  await page.waitForSelector(".problem");
  assert.match(await page.innerText(".composer .problem"), /noise\.bin is neither a text file nor a PDF/);
  await eventually(() => texts(".attached li > span:first-of-type"), ["notes.txt", "paper.pdf", "wide.txt", "old.txt"]);
  await eventually(() => texts(".attached .hint"), ["1 page", "read as UTF-16", "read as Latin-1"]);
  await say("Summarize.");
  await answered();
  assert.equal(
    bodies[0].messages[0].content,
    "File: notes.txt\n```\nFirst note.\n```\n\nFile: paper.pdf\n```\nA line of a paper.\n```\n\n" +
      "File: wide.txt\n```\nWide: ä, 😀.\n```\n\nFile: old.txt\n```\nOld: ä €\n```\n\nSummarize.",
  );
  assert.match(await page.innerText(".bubble"), /notes\.txt.*paper\.pdf.*1 page.*Summarize\./s);
});

test("a key is asked for, refused, and taken", async () => {
  const guarded = await serve("--api-key", "right");
  try {
    await context.close();
    await open({}, guarded.url);
    await page.waitForSelector("#key:focus");
    assert.equal(await page.locator("#prompt").count(), 0);
    await page.keyboard.type("wrong");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#key-error");
    assert.match(await page.innerText("#key-error"), /does not accept this key/);
    assert.deepEqual(await barriers(), []);
    await page.waitForSelector("#key:focus");
    await page.keyboard.type("right");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#prompt:focus");
    await say("hello");
    await answered();
    // It lasts for the visit.
    await page.reload();
    await page.waitForSelector(".message");
  } finally {
    guarded.stop();
  }
  // Browsers report each refused request by themselves.
  problems = problems.filter((problem) => !problem.includes("status of 401"));
});

test("a server that is gone is told of where the answer would be", async () => {
  const other = await serve();
  await context.close();
  await open({}, other.url);
  // A server that is gone before it told of its models is another case.
  await page.waitForFunction(() => document.querySelector("#model").value === "stub");
  other.stop();
  await page.waitForFunction(() => fetch("health").then(() => false, () => true));
  await say("hello");
  await page.waitForSelector(".failed");
  assert.match(await page.innerText(".failed"), /The connection to the server was lost.*still running/s);
  problems = problems.filter((problem) => !/ERR_|Failed to load/.test(problem));
});

test("everything is reached by the keyboard alone", async () => {
  const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent.trim());
  const tabTo = async (name) => {
    for (let n = 0; n < 40; n += 1) {
      if ((await focused()) === name) return;
      await page.keyboard.press("Tab");
    }
    assert.fail(`${name} is not reached`);
  };
  await page.waitForSelector("#prompt:focus");
  await page.keyboard.type("hello");
  await page.keyboard.press("Enter");
  await answered();
  await page.keyboard.press("ArrowUp");
  await page.waitForSelector(".editor textarea:focus");
  await page.keyboard.press("Escape");
  await tabTo("Answer again");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".siblings");
  await answered();
  await page.keyboard.press("Control+Shift+O");
  await page.waitForSelector(".welcome");
  await page.waitForSelector("#prompt:focus");
  await page.evaluate(() => document.activeElement.blur());
  await tabTo("To the message");
  await tabTo("Actions for hello");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[role=menuitem]:focus");
  await page.keyboard.press("ArrowUp");
  await eventually(focused, "Delete");
  await page.keyboard.press("Escape");
  await eventually(focused, "Actions for hello");
  await tabTo("Settings of this chat");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#settings:focus");
});

test("the dashboard draws an hour with axes and units", async () => {
  const now = 1_800_000_000;
  const samples = Array.from({ length: 600 }, (_, idx) => {
    const load = Math.max(0, Math.sin(idx / 60));
    return {
      time: now - 3000 + idx * 5, prompt_tokens: Math.round(load * 4000), generated_tokens: Math.round(load * 600),
      running: Math.round(load * 6), waiting: Math.round(load * 2), kv_used: load * 0.8,
      ttft: load > 0 ? 0.1 + load * 0.3 : null, inter_token: load > 0 ? 0.02 : null,
    };
  });
  // The server's own numbers are of the right form.
  const real = () => page.evaluate(async () => {
    const { models } = await (await fetch("metrics/history")).json();
    return Object.keys(models[0]?.samples[0] ?? {}).sort();
  });
  await eventually(real, Object.keys(samples[0]).sort());
  const body = { now, interval: 5, models: [{ model: "stub", samples }] };
  await page.route("**/metrics/history", (route) => route.fulfill({ json: body }));
  await page.click("text=Dashboard");
  await page.waitForSelector(".chart");
  assert.equal(await page.locator(".chart").count(), 6);
  assert.deepEqual(await page.locator(".chart >> nth=0").locator("text").allTextContents(), [
    "0", "50", "100", "150", "−60 min", "−45 min", "−30 min", "−15 min", "now",
  ]);
  await page.focus(".chart svg >> nth=0");
  await page.keyboard.press("ArrowLeft");
  await page.waitForSelector(".chart figcaption >> nth=0 >> text=tokens/s, now");
  await page.evaluate(() => document.activeElement.blur());
  assert.deepEqual(await barriers(), []);
  await looks(page, "dashboard");
});

for (const colorScheme of ["light", "dark"]) {
  test(`the page looks as it should, ${colorScheme}`, async () => {
    await context.close();
    await open({ colorScheme });
    await say("markdown");
    await answered();
    await page.waitForSelector("math");
    await page.click("#show-settings");
    await page.waitForSelector("#settings:focus");
    await page.evaluate(async () => {
      // The conversation has its new width, and has been scrolled to its end.
      for (let n = 0; n < 2; n += 1) await new Promise((resolve) => requestAnimationFrame(resolve));
      // What differs from one run to the next.
      for (const facts of document.querySelectorAll(".facts")) facts.style.visibility = "hidden";
      document.querySelector(".scroller").scrollTop = 0;
    });
    assert.deepEqual(await barriers(), []);
    await looks(page, colorScheme);
  });
}

test("a phone has the field and its button in view", async () => {
  await context.close();
  await open({ viewport: PHONE, hasTouch: true, isMobile: true });
  const inView = async (selector) => {
    const box = await page.locator(selector).boundingBox();
    assert.ok(box && box.x >= 0 && box.y >= 0 && box.x + box.width <= PHONE.width && box.y + box.height <= PHONE.height, JSON.stringify(box));
  };
  await inView("#send");
  await say("markdown");
  await answered();
  await inView("#send");
  await inView("#prompt");
  const width = await page.evaluate(() => document.scrollingElement.scrollWidth);
  assert.equal(width, PHONE.width);
  // A keyboard takes a part of the height.
  await page.setViewportSize({ width: PHONE.width, height: 360 });
  const { y, height } = await page.locator("#send").boundingBox();
  assert.ok(y + height <= 360);
  await page.setViewportSize(PHONE);
  await page.evaluate(() => (document.querySelector(".facts").style.visibility = "hidden"));
  await looks(page, "phone");
  await page.tap("button[aria-label=Chats]");
  await page.waitForSelector(".has-list");
  await inView("#search");
  assert.deepEqual(await barriers(), []);
});
