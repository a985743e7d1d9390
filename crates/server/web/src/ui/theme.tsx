// Light, dark, or as the system has it.

import { useEffect, useState } from "preact/hooks";
import { keep, recall } from "../chat/storage.ts";
import { IconButton, type IconName } from "./icons.tsx";

type Theme = "auto" | "light" | "dark";

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const ICONS: Record<Theme, IconName> = { auto: "auto", light: "sun", dark: "moon" };
const NAMES: Record<Theme, string> = { auto: "as the system", light: "light", dark: "dark" };

export function applyTheme(theme: Theme = recall<Theme>("theme", "auto")): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function ThemeButton() {
  const [theme, setTheme] = useState<Theme>(recall<Theme>("theme", "auto"));
  useEffect(() => {
    applyTheme(theme);
    keep("theme", theme === "auto" ? undefined : theme);
  }, [theme]);
  const label = `Colours: ${NAMES[theme]}`;
  return <IconButton icon={ICONS[theme]} label={label} class="theme" onClick={() => setTheme(NEXT[theme])} />;
}
