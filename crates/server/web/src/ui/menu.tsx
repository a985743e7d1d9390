// A menu that a button opens, moved through by the arrow keys.

import { useEffect, useRef, useState } from "preact/hooks";
import { Icon, IconButton, type IconName } from "./icons.tsx";

export interface Item {
  icon: IconName;
  label: string;
  run: () => void;
  isGrave?: boolean;
}

export function Menu({ label, icon = "dots", items, class: kind = "" }: {
  label: string;
  icon?: IconName;
  items: Item[];
  class?: string;
}) {
  const [isOpen, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const close = (refocus: boolean) => {
    setOpen(false);
    if (refocus) root.current?.querySelector<HTMLElement>(".icon-button")?.focus();
  };
  useEffect(() => {
    if (!isOpen) return;
    root.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const outside = (event: Event) => {
      if (!root.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, [isOpen]);
  const onKeyDown = (event: KeyboardEvent) => {
    const all = [...(root.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") close(true);
    else if (event.key === "Tab") setOpen(false);
    else if (step) all.at((at + step) % all.length)?.focus();
    else return;
    if (event.key !== "Tab") event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class={`menu ${kind} ${isOpen ? "is-open" : ""}`} ref={root}>
      <IconButton icon={icon} label={label} expanded={isOpen} onClick={() => setOpen(!isOpen)} />
      {isOpen && (
        <div class="menu-items" role="menu" aria-label={label} onKeyDown={onKeyDown}>
          {items.map((item) => (
            <button
              type="button"
              role="menuitem"
              tabIndex={-1}
              class={item.isGrave ? "is-grave" : ""}
              key={item.label}
              onClick={() => {
                close(true);
                item.run();
              }}
            >
              <Icon name={item.icon} />
              {item.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
