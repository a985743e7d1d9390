// Icons, drawn on a grid of 20 by 20 with one stroke.

const PATHS = {
  plus: "M10 4v12M4 10h12",
  search: "M9 15A6 6 0 1 0 9 3a6 6 0 0 0 0 12ZM13.5 13.5 17 17",
  menu: "M3 6h14M3 10h14M3 14h14",
  close: "M5 5l10 10M15 5 5 15",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7 7V4h9v9h-3M4 7h9v9H4z",
  check: "M4 10.5 8 14.5 16 6",
  edit: "M4 16h3l9-9-3-3-9 9v3ZM11.5 5.5l3 3",
  redo: "M15.5 8A6 6 0 1 0 16 11M16 4v4h-4",
  branch: "M6 4v12M6 12c0-4 8-2 8-8M4 4h4M12 4h4M4 16h4",
  clip: "M14.5 9.5 9 15a3.5 3.5 0 0 1-5-5l6.5-6.5a2.3 2.3 0 0 1 3.3 3.3L7.5 13.1a1 1 0 0 1-1.5-1.5L11.5 6",
  sliders: "M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4",
  chart: "M3 17V3M3 17h14M6 13l3.5-4 3 2.5L17 5",
  sun: "M10 13.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1",
  moon: "M16 12A6.5 6.5 0 0 1 8 4a6.5 6.5 0 1 0 8 8Z",
  auto: "M10 3a7 7 0 1 0 0 14ZM10 3a7 7 0 0 1 0 14",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  down: "M5 8l5 5 5-5",
  dots: "M5 10h.01M10 10h.01M15 10h.01",
  trash: "M4 6h12M8 6V4h4v2M6 6l.5 10h7L14 6",
  save: "M10 3v9M6 8.5l4 4 4-4M4 16h12",
  open: "M10 13V4M6 7.5l4-4 4 4M4 16h12",
  tool: "M12.5 3.5a4 4 0 0 0-4 5.2L3.5 13.7l2.8 2.8 5-5a4 4 0 0 0 5.2-5L14 9l-3-3 2.5-2.5Z",
  think: "M10 3a5 5 0 0 0-3 9v2h6v-2a5 5 0 0 0-3-9ZM8 17h4",
  bars: "M4 16V9M10 16V4M16 16v-5",
  key: "M12.5 11a3.5 3.5 0 1 0-3.3-2.3L3.5 14.5V17H6v-2h2v-2l1.5-1.5",
  file: "M6 3h6l3 3v11H6zM12 3v3h3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

interface ButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  class?: string;
  disabled?: boolean;
  pressed?: boolean;
  expanded?: boolean;
  id?: string;
}

/** A button that shows an icon; its name is in its tooltip, and read aloud. */
export function IconButton({ icon, label, onClick, class: kind = "", disabled, pressed, expanded, id }: ButtonProps) {
  return (
    <button
      type="button"
      id={id}
      class={`icon-button ${kind}`}
      aria-label={label}
      title={label}
      disabled={disabled}
      aria-pressed={pressed}
      aria-expanded={expanded}
      onClick={onClick}
    >
      <Icon name={icon} />
    </button>
  );
}
