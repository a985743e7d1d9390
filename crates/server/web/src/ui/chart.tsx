// A chart of an hour: lines over time, with axes, units and a cursor that tells the values.

import { useRef, useState } from "preact/hooks";

export interface Line {
  name: string;
  /** One value per time; null where there is none. */
  values: (number | null)[];
}

export interface ChartProps {
  title: string;
  unit: string;
  /** Seconds since 1970. */
  times: number[];
  now: number;
  lines: Line[];
  /** The top of the axis, where it is fixed. */
  top?: number;
  format?: (value: number) => string;
}

export const HOUR = 3600;
const WIDTH = 560;
const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 10;
const ABOVE = 10;
const BELOW = 24;

/** Values at which an axis from 0 has marks: a round step, at most five of them. */
export function ticks(most: number): number[] {
  if (!(most > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(most / 4));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => most / n <= 4 + 1e-9) ?? 10 * power;
  const n = Math.ceil(most / step - 1e-9);
  return Array.from({ length: n + 1 }, (_, idx) => Number((idx * step).toPrecision(12)));
}

/** The path of a line; it is broken where values or times are missing. */
export function pathOf(points: ([number, number] | null)[]): string {
  let path = "";
  let isOn = false;
  for (const point of points) {
    if (point) path += `${isOn ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    isOn = point !== null;
  }
  return path;
}

export function short(value: number): string {
  if (value >= 1000) return `${Number((value / 1000).toPrecision(3))}k`;
  return String(Number(value.toPrecision(3)));
}

export function Chart({ title, unit, times, now, lines, top, format = short }: ChartProps) {
  const [at, setAt] = useState<number | null>(null);
  const root = useRef<SVGSVGElement>(null);
  const most = top ?? Math.max(0, ...lines.flatMap((line) => line.values.map((value) => value ?? 0)));
  const marks = ticks(most);
  const end = marks.at(-1) ?? 1;
  const x = (time: number) => LEFT + (1 - (now - time) / HOUR) * (WIDTH - LEFT - RIGHT);
  const y = (value: number) => HEIGHT - BELOW - (value / end) * (HEIGHT - ABOVE - BELOW);
  const latest = at ?? times.length - 1;
  const ago = (time: number) => {
    const minutes = Math.round((now - time) / 60);
    return minutes < 1 ? "now" : `${minutes} min ago`;
  };
  const move = (clientX: number) => {
    const box = root.current?.getBoundingClientRect();
    if (!box || times.length === 0) return;
    const time = now - HOUR * (1 - ((clientX - box.left) * (WIDTH / box.width) - LEFT) / (WIDTH - LEFT - RIGHT));
    const distances = times.map((own) => Math.abs(own - time));
    setAt(distances.indexOf(Math.min(...distances)));
  };
  const shown = (line: Line) => {
    const value = line.values[latest];
    return value === null || value === undefined ? "–" : format(value);
  };
  return (
    <figure class="chart">
      <figcaption>
        <h2>{title}</h2>
        <p class="number">
          {lines.map((line, idx) => (
            <span key={line.name} class={`legend line-${idx}`}>
              {lines.length > 1 && <i />}
              {lines.length > 1 && line.name} <b>{shown(line)}</b>
            </span>
          ))}
          <span class="hint">
            {unit}
            {at !== null && times[at] !== undefined && `, ${ago(times[at])}`}
          </span>
        </p>
      </figcaption>
      <svg
        ref={root}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        tabIndex={0}
        aria-label={`${title} over the last hour: ${lines.map((line) => `${line.name} ${shown(line)}`).join(", ")} ${unit}`}
        onPointerMove={(event) => move(event.clientX)}
        onPointerLeave={() => setAt(null)}
        onBlur={() => setAt(null)}
        onKeyDown={(event) => {
          const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (!step) return;
          event.preventDefault();
          setAt((before) => Math.max(0, Math.min(times.length - 1, (before ?? times.length) + step)));
        }}
      >
        {marks.map((mark) => (
          <g key={mark}>
            <line class="grid" x1={LEFT} x2={WIDTH - RIGHT} y1={y(mark)} y2={y(mark)} />
            <text x={LEFT - 8} y={y(mark) + 4} text-anchor="end">
              {format(mark)}
            </text>
          </g>
        ))}
        {[60, 45, 30, 15, 0].map((minutes) => (
          <text
            key={minutes}
            x={x(now - minutes * 60)}
            y={HEIGHT - 6}
            text-anchor={minutes === 60 ? "start" : minutes === 0 ? "end" : "middle"}
          >
            {minutes === 0 ? "now" : `−${minutes} min`}
          </text>
        ))}
        {lines.map((line, idx) => (
          <path
            key={line.name}
            class={`line line-${idx}`}
            d={pathOf(times.map((time, at) => {
              const value = line.values[at];
              return value === null || value === undefined ? null : [x(time), y(Math.min(value, end))];
            }))}
          />
        ))}
        {at !== null && times[at] !== undefined && (
          <g>
            <line class="cursor" x1={x(times[at])} x2={x(times[at])} y1={ABOVE} y2={HEIGHT - BELOW} />
            {lines.map((line, idx) => {
              const value = line.values[at];
              if (value === null || value === undefined) return null;
              return <circle key={line.name} class={`line-${idx}`} cx={x(times[at] as number)} cy={y(Math.min(value, end))} r={3.5} />;
            })}
          </g>
        )}
      </svg>
    </figure>
  );
}
