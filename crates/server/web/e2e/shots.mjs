// Screenshots, compared with those that are committed. Pixels may differ by a little, and a small
// part of them by any amount, as browsers draw the same fonts differently from one version to the next.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { env } from "node:process";

/** How far apart two values of a channel may be, of 255. */
const NEAR = 40;
/** The part of the pixels that may be further apart. */
const FAR = 0.01;

/** Counts the pixels that differ; runs in the page, which can decode images. */
async function compare([first, second, near]) {
  const pixels = async (data) => {
    const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
    canvas.drawImage(image, 0, 0);
    return canvas.getImageData(0, 0, image.width, image.height);
  };
  const [a, b] = [await pixels(first), await pixels(second)];
  if (a.width !== b.width || a.height !== b.height) return 1;
  let n = 0;
  for (let at = 0; at < a.data.length; at += 4) {
    const apart = [0, 1, 2].some((channel) => Math.abs(a.data[at + channel] - b.data[at + channel]) > near);
    if (apart) n += 1;
  }
  return n / (a.width * a.height);
}

/** Compares the page with a committed screenshot, or takes it anew. */
export async function looks(page, name) {
  const file = join(import.meta.dirname ?? new URL(".", import.meta.url).pathname, "screenshots", `${name}.png`);
  const shot = await page.screenshot({ animations: "disabled", caret: "hide" });
  if (env.TAKE_SCREENSHOTS) {
    writeFileSync(file, shot);
    return;
  }
  if (!existsSync(file)) throw new Error(`there is no screenshot ${name}: cargo xtask web --screenshots`);
  const apart = await page.evaluate(compare, [shot.toString("base64"), readFileSync(file).toString("base64"), NEAR]);
  if (apart <= FAR) return;
  const seen = join(env.SHOTS, `${name}.png`);
  writeFileSync(seen, shot);
  throw new Error(`${(apart * 100).toFixed(1)} % of the pixels of ${name} differ; it looks as in ${seen}`);
}
