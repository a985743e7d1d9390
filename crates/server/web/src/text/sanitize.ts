// What the page shows of HTML that a worker made from an answer: nothing that runs, loads or submits.

import DOMPurify from "dompurify";

const MATHML = "http://www.w3.org/1998/Math/MathML";

/** Links open beside the page, and say nothing of where they were followed. */
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A") return;
  const href = node.getAttribute("href") ?? "";
  if (!/^(https?:|mailto:)/i.test(href)) node.removeAttribute("href");
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

// The page's policy lets no markup style itself. What formulas need is set by `applyStyles`.
DOMPurify.addHook("uponSanitizeAttribute", (node, data) => {
  if (data.attrName !== "style") return;
  if (node.namespaceURI === MATHML) node.setAttribute("data-style", data.attrValue);
});

/** Sets the styles that formulas need, once their elements are in the page. */
export function applyStyles(within: Element): void {
  for (const node of within.querySelectorAll<MathMLElement>("math[data-style], math [data-style]")) {
    node.style.cssText = node.dataset.style ?? "";
  }
}

export function sanitize(html: string): string {
  return DOMPurify.sanitize(html, {
    USE_PROFILES: { html: true, mathMl: true },
    FORBID_TAGS: ["style", "form", "input", "textarea", "select", "img", "video", "audio", "source", "picture"],
    FORBID_ATTR: ["style", "id", "name", "srcset", "src", "background"],
    ADD_ATTR: ["target"],
  });
}
