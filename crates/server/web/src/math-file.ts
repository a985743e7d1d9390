// The renderer of formulas, a file of its own: `page/math.js`.

import temml from "temml";

export function render(tex: string, display: boolean): string {
  return temml.renderToString(tex, { displayMode: display, throwOnError: false, trust: false, maxExpand: 200 });
}
