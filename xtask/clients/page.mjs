// The chat page in a browser. It prints a line of JSON: what was found, or what is not as expected.

import { chromium } from "playwright-core";

const [url, executablePath] = process.argv.slice(2);
const limit = { timeout: 300_000 };

function check(condition, ...found) {
  if (!condition) throw new Error(found.map((x) => JSON.stringify(x)).join(" ") || "not as expected");
}

async function drive(page) {
  const asked = []; // the bodies of the requests for answers
  page.on("request", (request) => {
    if (request.url().endsWith("/v1/chat/completions")) asked.push(request.postDataJSON());
  });
  const say = async (text) => {
    await page.fill("#prompt", text);
    await page.click("#send");
  };
  const answered = () => page.waitForSelector("#send:visible", limit);
  const shown = async () => {
    const all = await page.$$eval(".message", (nodes) => nodes.map((node) => node.className));
    check(!all.some((name) => name.includes("failed")), await page.innerText("#chat"));
    return all;
  };
  await page.goto(url);
  await page.waitForSelector("#model option", { state: "attached", ...limit });

  // The context of the server is smaller than 1,024 tokens.
  await say("Say hi.");
  await answered();
  check((await shown()).length === 2, await shown());
  check(!("max_tokens" in asked[0]), asked[0]);
  const [first] = asked[0].messages;
  check(asked[0].messages.length === 1 && first.content === "Say hi.", asked[0]);

  // A new chat in the middle of an answer has nothing of it.
  await say("Count from 1 to 1000, one number in each line.");
  await page.waitForFunction(() => [...document.querySelectorAll(".assistant")].at(-1).innerText !== "", null, limit);
  check(await page.isVisible("#stop"), "the answer has ended already");
  await page.click("#clear");
  check(await page.isVisible("#send"), "a new chat cannot be written to");
  await say("Say hello.");
  await answered();
  check((await shown()).length === 2, await shown());
  check(asked.length === 3, asked.length);
  const said = asked[2].messages.map(({ role, content }) => `${role}: ${content}`);
  check(said.join() === "user: Say hello.", said);

  // The next message of the new chat follows its own answer.
  const answer = await page.innerText(".assistant span");
  await say("Again.");
  await answered();
  const roles = asked[3].messages.map(({ role }) => role);
  check(roles.join() === "user,assistant,user", roles);
  check(asked[3].messages[1].content.trim() === answer.trim(), asked[3], answer);
}

const flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"];
const quiet = ["--disable-background-networking", "--disable-component-update"];
const browser = await chromium.launch({ executablePath, headless: true, args: [...flags, ...quiet] });
try {
  await drive(await browser.newPage());
  console.log(JSON.stringify({ result: "ok", note: browser.version() }));
} catch (error) {
  console.log(JSON.stringify({ result: "failed", note: error.message }));
} finally {
  await browser.close();
}
