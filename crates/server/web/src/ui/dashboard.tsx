// The last hour of the server, which it keeps itself: the page may be opened at any time.

import { useEffect, useState } from "preact/hooks";
import type { History, Sample } from "../chat/api.ts";
import { failure } from "../chat/failure.ts";
import { Chart, type ChartProps } from "./chart.tsx";
import { bytes, compact, useApp } from "./use.ts";

type Charts = Pick<ChartProps, "title" | "unit" | "lines" | "top" | "format">[];

/** What is drawn of a model's samples; `interval` is the time between two, in seconds. */
export function charts(samples: Sample[], interval: number): Charts {
  const of = (select: (sample: Sample) => number | null) => samples.map(select);
  const ms = (value: number | null) => (value === null ? null : value * 1000);
  return [
    {
      title: "Generated",
      unit: "tokens/s",
      lines: [{ name: "generated", values: of((own) => own.generated_tokens / interval) }],
    },
    {
      title: "Prompts read",
      unit: "tokens/s",
      lines: [{ name: "prompts", values: of((own) => own.prompt_tokens / interval) }],
    },
    {
      title: "Requests",
      unit: "requests",
      lines: [
        { name: "running", values: of((own) => own.running) },
        { name: "waiting", values: of((own) => own.waiting) },
      ],
    },
    {
      title: "Key-value cache in use",
      unit: "%",
      top: 100,
      lines: [{ name: "used", values: of((own) => own.kv_used * 100) }],
    },
    {
      title: "Time to the first token",
      unit: "ms, mean",
      lines: [{ name: "first token", values: of((own) => ms(own.ttft)) }],
    },
    {
      title: "Time between tokens",
      unit: "ms, mean",
      lines: [{ name: "between tokens", values: of((own) => ms(own.inter_token)) }],
    },
  ];
}

function Models() {
  const app = useApp();
  return (
    <div class="table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th>Model</th>
            <th>State</th>
            <th>Architecture</th>
            <th class="right">Parameters</th>
            <th class="right">Weights</th>
            <th class="right">Context</th>
          </tr>
        </thead>
        <tbody>
          {app.models.map((model) => (
            <tr key={model.id}>
              <td>{model.id}</td>
              <td>{model.failure ? `failed: ${model.failure}` : model.loaded ? "loaded" : "not loaded"}</td>
              <td>{model.architecture ?? "–"}</td>
              <td class="right number">{model.parameters ? compact(model.parameters) : "–"}</td>
              <td class="right number">{model.bytes ? bytes(model.bytes) : "–"}</td>
              <td class="right number">{model.context ? `${compact(model.context)} tokens` : "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Dashboard() {
  const app = useApp();
  const [history, setHistory] = useState<History | null>(null);
  const [problem, setProblem] = useState("");
  const [name, setName] = useState<string | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const refresh = async () => {
      try {
        const found = await app.api.history(abort.signal);
        setHistory(found);
        setProblem("");
        timer = window.setTimeout(refresh, found.interval * 1000);
      } catch (error) {
        if (abort.signal.aborted) return;
        const { message, hint } = failure(error);
        setProblem(`${message} ${hint}`);
        timer = window.setTimeout(refresh, 5000);
      }
    };
    void refresh();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [app.api.key]);
  const own = history?.models.find((model) => model.model === name) ?? history?.models[0];
  return (
    <main class="dashboard" tabIndex={-1}>
      <header class="row">
        <h1>The last hour</h1>
        {(history?.models.length ?? 0) > 1 && (
          <select aria-label="Model of the charts" value={own?.model} onChange={(event) => setName(event.currentTarget.value)}>
            {history?.models.map(({ model }) => (
              <option key={model}>{model}</option>
            ))}
          </select>
        )}
      </header>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {history && !own && <p class="hint">No model is loaded. The charts begin with the first one.</p>}
      {history && own && (
        <div class="charts">
          {charts(own.samples, history.interval).map((chart) => (
            <Chart key={chart.title} {...chart} times={own.samples.map((sample) => sample.time)} now={history.now} />
          ))}
        </div>
      )}
      <h2>Models</h2>
      <Models />
      <p class="hint">
        The same numbers and more are at <code>/metrics</code>, for Prometheus.
      </p>
      <p class="hint">
        This page has parts by others: <a href="page/licenses.txt">their licences</a>.
      </p>
    </main>
  );
}
