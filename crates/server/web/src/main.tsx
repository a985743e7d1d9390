// The page begins here.

import { render } from "preact";
import { App } from "./app.ts";
import { Shell } from "./ui/shell.tsx";
import { applyTheme } from "./ui/theme.tsx";
import { AppContext } from "./ui/use.ts";

applyTheme();
const app = new App();
window.addEventListener("hashchange", () => app.route());
window.addEventListener("popstate", () => app.route());
document.addEventListener("visibilitychange", () => document.hidden && app.library.saveLive());
window.addEventListener("pagehide", () => app.library.leave());
window.addEventListener("pageshow", (event) => event.persisted && void app.library.refresh());
window.addEventListener("storage", () => app.reloadPrompts());
const root = document.getElementById("app");
if (root) {
  render(
    <AppContext.Provider value={app}>
      <Shell />
    </AppContext.Provider>,
    root,
  );
}
void app.start();
