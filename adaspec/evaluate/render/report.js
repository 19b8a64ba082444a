"use strict";
// Controls of the page, and what its plots show. Names and tokens are foreign: they go into the page
// as text nodes, and into plotly, which reads some markup, through `safe`.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const ORACLE = "oracle:plan-splice", OPPONENT = "static:best";
  const PARTS = [
    ["least_s", "least possible"], ["too_long", "too long"], ["in_vain", "forward in vain"],
    ["too_short", "too short"], ["wrong_source", "wrong source"], ["rest_s", "rest"],
  ];
  const SOURCES = { none: "nothing", ngram: "n-gram", neural: "neural", splice: "splice" };
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"];
  const DASHES = { named: "solid", baseline: "solid", oracle: "dash" };
  const LEGEND = { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", traceorder: "normal" };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 40rem)");
  const state = { shown: new Set(), step: 0 };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const cut = (text, most) => text.length > most ? `${text.slice(0, most - 9)}…${text.slice(-8)}` : text;
  const known = (value) => value !== null && value !== undefined;
  const figure = (value, digits = 2) => known(value) ? value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1") : "–";
  const signed = (value) => known(value) ? `${value >= 0 ? "+" : "−"}${Math.abs(100 * value).toFixed(1)}%` : "–";
  const policyOf = (key) => data.policies.find((policy) => policy.key === key) ?? { key, name: key, kind: "named" };
  const workloadName = (key) => (data.workloads.find((workload) => workload.key === key) ?? { name: key }).name;

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (known(text)) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function fill(select, options, wanted) {
    select.replaceChildren(...options.map(([value, text]) => element("option", text, { value })));
    if (options.some(([value]) => String(value) === String(wanted))) select.value = wanted;
    select.disabled = options.length === 0;
  }

  function colourOf(key) {
    if (key === OPPONENT) return css("--ink");
    const { kind } = policyOf(key);
    const index = data.policies.filter((policy) => policy.kind === kind).findIndex((policy) => policy.key === key);
    const colours = css(`--${kind}`).split(",");
    return colours[Math.max(index, 0) % colours.length];
  }

  function layout(more) {
    const ink = css("--ink"), line = css("--line");
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, fixedrange: true };
    const made = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, hovermode: "closest",
      font: { family: "system-ui, sans-serif", size: 12, color: ink },
      margin: { l: 56, r: 16, t: 8, b: 44 }, showlegend: false,
      hoverlabel: { bgcolor: css("--panel"), bordercolor: line, font: { color: ink }, align: "left" }, ...more,
    };
    for (const name of ["xaxis", "yaxis"]) made[name] = { ...axis, ...(more[name] ?? {}) };
    return made;
  }

  // A plot is drawn once it is near the part of the page that is seen: the page opens sooner.
  const waiting = new Map(), near = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) near.add(entry.target.id); else near.delete(entry.target.id);
      paint(entry.target.id);
    }
  }, { rootMargin: "50%" });

  function draw(id, traces, more, onClick) {
    waiting.set(id, { traces, more, onClick });
    watcher.observe(at(id));
    paint(id);
  }

  function paint(id) {
    if (!near.has(id) || !waiting.has(id)) return;
    const { traces, more, onClick } = waiting.get(id), plot = at(id);
    waiting.delete(id);
    Plotly.react(plot, traces, layout(more), { displayModeBar: false, responsive: true });
    plot.removeAllListeners("plotly_click");
    if (onClick) plot.on("plotly_click", (event) => onClick(event.points[0]));
  }

  const rowsAt = (workload, load) => data.rows.filter((row) => row.workload === workload && row.load === load);
  const isShown = (row) => state.shown.has(row.policy) && known(row.speedup);

  function hover(row) {
    const lines = [`<b>${safe(policyOf(row.policy).name)}</b>, ${row.load} at once`, `${figure(row.speedup)}x no speculation`];
    if (row.ci95) lines.push(`95%: ${figure(row.ci95[0])} to ${figure(row.ci95[1])}`);
    if (known(row.lift_over_static_best)) {
      const ends = row.lift_ci95 ? ` [${signed(row.lift_ci95[0])}, ${signed(row.lift_ci95[1])}]` : "";
      lines.push(`${signed(row.lift_over_static_best)}${ends} over ${OPPONENT}`);
    }
    lines.push(`${figure(row.tokens_per_s, 1)} tokens/s`);
    if (known(row.accepted_per_step)) {
      lines.push(`${figure(row.accepted_per_step)} accepted of ${figure(row.drafted_per_step)} drafted per step`);
    }
    if (row.spec) lines.push(safe(row.spec));
    return lines.join("<br>");
  }

  const bars = (rows) => ({
    type: "data", symmetric: false, thickness: 1.2, width: 4,
    array: rows.map((row) => row.ci95 ? row.ci95[1] - row.speedup : NaN),
    arrayminus: rows.map((row) => row.ci95 ? row.speedup - row.ci95[0] : NaN),
  });

  function drawByLoad(workload) {
    at("by-load-title").textContent = `Speedup over no speculation by requests at once: ${workloadName(workload)}`;
    const traces = data.policies.filter((policy) => state.shown.has(policy.key)).map((policy, index) => {
      const rows = data.rows.filter((row) => row.workload === workload && row.policy === policy.key && isShown(row));
      rows.sort((one, other) => one.load - other.load);
      const colour = colourOf(policy.key);
      return {
        type: "scatter", mode: "lines+markers", name: safe(policy.name), x: rows.map((row) => String(row.load)),
        y: rows.map((row) => row.speedup), text: rows.map(hover), hovertemplate: "%{text}<extra></extra>",
        line: { color: colour, dash: DASHES[policy.kind], width: policy.kind === "named" || policy.key === OPPONENT ? 3 : 1.5 },
        marker: { color: colour, size: 8, symbol: SYMBOLS[index % SYMBOLS.length] },
        error_y: { ...bars(rows), color: colour },
      };
    });
    draw("by-load", traces, {
      xaxis: { type: "category", categoryarray: data.loads.map(String), categoryorder: "array", title: { text: "requests at once" } },
      yaxis: { title: { text: "times no speculation" }, rangemode: "tozero" },
    });
  }

  function drawBars(workload, load) {
    at("bars-title").textContent = `Speedup: ${workloadName(workload)}, ${load} at once`;
    const rows = rowsAt(workload, load).filter(isShown).sort((one, other) => one.speedup - other.speedup);
    const most = narrow.matches ? 18 : 40;
    at("bars").style.minHeight = `${Math.max(8, 3.2 + 1.7 * rows.length)}rem`;
    draw("bars", [{
      type: "bar", orientation: "h", x: rows.map((row) => row.speedup), y: rows.map((_, index) => index),
      marker: { color: rows.map((row) => colourOf(row.policy)) }, text: rows.map((row) => `${figure(row.speedup)}x`),
      textposition: "inside", insidetextanchor: "start", insidetextfont: { color: css("--paper") }, cliponaxis: false,
      customdata: rows.map(hover), hovertemplate: "%{customdata}<extra></extra>", error_x: { ...bars(rows), color: css("--ink") },
    }], {
      xaxis: { title: { text: "times no speculation" }, rangemode: "tozero" },
      yaxis: { tickvals: rows.map((_, index) => index), ticktext: rows.map((row) => safe(cut(policyOf(row.policy).name, most))) },
    });
  }

  const lossesAt = (workload, load) => data.losses.filter((loss) => loss.workload === workload && loss.concurrency === load);
  const partOf = (loss, key) => key in loss.parts ? loss.parts[key] : loss[key];

  function drawGap(workload, load) {
    const losses = lossesAt(workload, load), colours = css("--parts").split(",");
    at("gap-title").textContent = `Milliseconds per token: ${workloadName(workload)}, ${load} at once`;
    const left_out = data.unwatched.length ? ` Not replayed step by step: ${data.unwatched.join(", ")}.` : "";
    const none = losses.length ? "" : "No steps were replayed for this report: that takes a closed loop and policies that decide step by step.";
    at("gap-note").textContent = none + left_out;
    at("gap-plot").hidden = at("gap-table").hidden = !losses.length;
    if (!losses.length) return;
    const shown = [...losses].reverse(), most = narrow.matches ? 16 : 40;
    const places = shown.map((_, index) => index);
    at("gap-plot").style.minHeight = `${9 + 3 * losses.length}rem`;
    const traces = PARTS.map(([key, name], index) => ({
      type: "bar", orientation: "h", name, y: places, x: shown.map((loss) => Math.abs(partOf(loss, key)) < 1e-9 ? 0 : 1e3 * partOf(loss, key)),
      marker: { color: colours[index] }, customdata: shown.map((loss) =>
        `<b>${safe(policyOf(loss.policy).name)}</b><br>${name}: ${figure(1e3 * partOf(loss, key), 3)} ms per token, ` +
        `${figure(100 * partOf(loss, key) / loss.token_s, 1)}% of ${figure(1e3 * loss.token_s, 3)}`),
      hovertemplate: "%{customdata}<extra></extra>",
    }));
    traces.push({
      type: "scatter", mode: "markers", name: ORACLE, y: places, x: shown.map((loss) => 1e3 * loss.reference_token_s),
      marker: { symbol: "diamond", size: 11, color: css("--ink"), line: { color: css("--paper"), width: 1 } },
      customdata: shown.map((loss) => `${ORACLE}: ${figure(1e3 * loss.reference_token_s, 3)} ms per token`),
      hovertemplate: "%{customdata}<extra></extra>",
    });
    draw("gap-plot", traces, {
      barmode: "relative", showlegend: !narrow.matches, legend: LEGEND,
      xaxis: { title: { text: "ms per token" }, rangemode: "tozero" },
      yaxis: { tickvals: places, ticktext: shown.map((loss) => safe(cut(policyOf(loss.policy).name, most))) },
    });
    const table = element("table"), head = element("tr");
    head.append(element("th", "policy", { class: "left", scope: "col" }), ...["ms per token", ...PARTS.map(([, name]) => name), ORACLE]
      .map((name) => element("th", name, { scope: "col" })));
    const body = element("tbody");
    for (const loss of losses) {
      const row = element("tr"), name = element("td", null, { class: "left" });
      name.append(element("code", policyOf(loss.policy).name));
      if (loss.spec) name.append(` (${loss.spec})`);
      row.append(name, ...[loss.token_s, ...PARTS.map(([key]) => partOf(loss, key)), loss.reference_token_s]
        .map((seconds) => element("td", figure(1e3 * seconds, 3))));
      body.append(row);
    }
    const thead = element("thead");
    thead.append(head);
    table.append(thead, body);
    at("gap-table").replaceChildren(table);
  }

  const passagesAt = () => data.passages.filter((passage) =>
    passage.policy === at("policy").value && passage.concurrency === Number(at("load").value) &&
    (at("workload").value === "all" || data.ids[passage.request][0] === at("workload").value));
  const passage = () => passagesAt().find((each) => String(each.request) === at("request").value);
  const requestName = (index) => `${data.ids[index][0]}/${data.ids[index][1]}`;

  function drawScatter() {
    const counts = data.counts.find((each) => each.policy === at("policy").value && each.concurrency === Number(at("load").value));
    at("scatter").hidden = !counts;
    at("scatter-title").textContent = counts ? "Requests: output length and tokens emitted per step" : "";
    if (!counts) return;
    const workload = at("workload").value, sampled = new Set(passagesAt().map((each) => each.request));
    const groups = data.workloads.filter((each) => each.key !== "all" && (workload === "all" || workload === each.key));
    const colours = css("--named").split(",");
    const traces = groups.map((group, index) => {
      const some = counts.request.map((_, place) => place).filter((place) => data.ids[counts.request[place]][0] === group.key);
      some.sort((one, other) => sampled.has(counts.request[one]) - sampled.has(counts.request[other]));
      const ringed = some.map((place) => sampled.has(counts.request[place]));
      return {
        type: "scatter", mode: "markers", name: safe(cut(group.name, 24)), x: some.map((place) => counts.emitted[place]),
        y: some.map((place) => counts.emitted[place] / counts.steps[place]), customdata: some.map((place) => counts.request[place]),
        marker: { color: colours[index % colours.length], symbol: SYMBOLS[index % SYMBOLS.length], opacity: 0.75,
          size: ringed.map((is) => is ? 12 : 7), line: { color: css("--ink"), width: ringed.map((is) => is ? 2.5 : 0) } },
        text: some.map((place) => `<b>${safe(requestName(counts.request[place]))}</b><br>${counts.emitted[place]} tokens in ` +
          `${counts.steps[place]} steps<br>${counts.accepted[place]} accepted of ${counts.drafted[place]} drafted`),
        hovertemplate: "%{text}<extra></extra>",
      };
    });
    draw("scatter", traces, {
      showlegend: true, legend: LEGEND,
      xaxis: { title: { text: "output tokens decoded" }, rangemode: "tozero" }, yaxis: { title: { text: "tokens per step" }, type: "log", tickvals: [1, 2, 5, 10, 20, 50, 100] },
    }, (point) => choose(point.customdata));
  }

  function choose(request) {
    if (![...at("request").options].some((option) => option.value === String(request))) return;
    at("request").value = request;
    state.step = 0;
    drawRequest();
    at("stepping").scrollIntoView({ block: "start" });
  }

  const sourceOf = (step) => step.neural_len ? (step.ngram_len ? "splice" : "neural") : step.ngram_len ? "ngram" : "none";
  const sourceColours = () => ({ none: css("--muted"), ngram: "#e08a00", neural: "#2a7fba", splice: "#00a078" });

  function textOf(token) {
    const text = data.vocabulary ? data.vocabulary[token] : undefined;
    return text === undefined ? String(token) : text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
  }

  const chips = (tokens, kind) => tokens.map((token, index) => element("span", textOf(token), {
    class: `token ${typeof kind === "function" ? kind(index) : kind}`, title: `token ${token}` }));

  function drawRequest() {
    const now = passage();
    at("stepping").hidden = !now;
    if (!now) return;
    const request = data.requests[now.request], steps = now.steps, last = steps[steps.length - 1];
    const seen = last.position + last.emitted;
    at("request-title").textContent = `${requestName(now.request)} under ${policyOf(now.policy).name}, ${now.concurrency} at once: ` +
      `${request.prompt_len} prompt and ${request.output_len} output tokens` +
      (seen < request.output_len ? `, of which ${seen} are shown` : "");
    at("step").max = steps.length - 1;
    drawStep();
  }

  function go(step) {
    const now = passage();
    if (!now) return;
    state.step = Math.min(Math.max(step, 0), now.steps.length - 1);
    drawStep();
  }

  function drawStep() {
    const now = passage(), steps = now.steps, request = data.requests[now.request];
    state.step = Math.min(state.step, steps.length - 1);
    const step = steps[state.step], source = sourceOf(step), output = request.output, from = step.position;
    const index = state.step + 1;
    at("step").value = state.step;
    at("step").setAttribute("aria-valuetext", `step ${index} of ${steps.length}`);
    at("step-name").textContent = `step ${index} of ${steps.length}`;
    at("previous").disabled = state.step === 0;
    at("next").disabled = state.step === steps.length - 1;
    drawCourse(steps, index);
    at("step-facts").textContent = `Output token ${from + 1} of ${request.output_len} is next. ${step.rows} request${step.rows > 1 ? "s" : ""} in the ` +
      `batch, ${step.forwards} forward${step.forwards === 1 ? "" : "s"} of the neural drafter, ${figure(1e3 * step.step_s, 2)} ms. ` +
      `${step.emitted} token${step.emitted > 1 ? "s" : ""} emitted: ${step.emitted - 1} accepted and one of the target's own.`;
    const before = from >= 24 ? output.slice(from - 24, from) : [...request.prompt_end.slice(from - 24), ...output.slice(0, from)];
    at("text").replaceChildren(...chips(before, ""), ...chips(output.slice(from, from + step.emitted), "now right"),
      ...chips(output.slice(from + step.emitted, from + step.emitted + 12), "later"));
    at("drafts").replaceChildren(draftsTable(step, source, output.slice(from)));
    drawWhy(now, step, source);
  }

  function drawCourse(steps, index) {
    const colours = sourceColours();
    const traces = Object.entries(SOURCES).map(([source, name]) => {
      const some = steps.map((_, place) => place).filter((place) => sourceOf(steps[place]) === source);
      return {
        type: "bar", name: source === "none" ? "nothing drafted" : name, x: some.map((place) => place + 1), y: some.map((place) => steps[place].emitted),
        marker: { color: colours[source] }, customdata: some.map((place) => `step ${place + 1}: ${steps[place].emitted} emitted, ` +
          `${steps[place].neural_len} neural and ${steps[place].ngram_len} copied drafted`), hovertemplate: "%{customdata}<extra></extra>",
      };
    });
    draw("course", traces, {
      barmode: "stack", showlegend: true, legend: LEGEND, bargap: 0.1,
      xaxis: { title: { text: "step" }, range: [0.4, steps.length + 0.6] }, yaxis: { title: { text: "emitted" }, rangemode: "tozero" },
      shapes: [{ type: "rect", x0: index - 0.5, x1: index + 0.5, y0: 0, y1: 1, yref: "paper", line: { color: css("--ink"), width: 2 } }],
    }, (point) => go(point.x - 1));
  }

  function draftsTable(step, source, truth) {
    const rightUpTo = (tokens, start = 0) => {
      let right = start;
      while (right - start < tokens.length && truth[right] !== undefined && tokens[right - start] === truth[right]) right += 1;
      return right - start;
    };
    const marked = (tokens, start = 0) => {
      const right = rightUpTo(tokens, start);
      return chips(tokens, (index) => index < right ? "right" : "wrong");
    };
    const lines = [];
    const nothing = (text) => [element("span", text, { class: "faint" })];
    lines.push(["n-gram would draft", step.candidate.length ? marked(step.candidate) : nothing("no match: nothing to copy"),
      step.match ? `${step.match >= 32 ? "at least " : ""}${step.match} tokens match; ${step.candidate_right} right` : ""]);
    const neural = known(step.drafted) ? marked(step.drafted)
      : nothing(step.neural_right < 0 ? "no neural drafts recorded" : "the trace holds how many are right, not which");
    lines.push(["neural would draft", step.neural_right >= 0 && step.drafted && !step.drafted.length ? nothing("nothing recorded here") : neural,
      step.neural_right < 0 ? "" : `${step.neural_right} right${step.holds_neural ? "" : "; the request does not hold the drafter"}`]);
    const drafted = step.drafted ? step.drafted.slice(0, step.neural_len) : [];
    const chosen = [...marked(drafted)];
    if (step.ngram_len) {
      const followed = drafted.length === step.neural_len && rightUpTo(drafted) === drafted.length;
      chosen.push(...(followed ? marked(step.copied, step.neural_len) : chips(step.copied, "wrong")));
      if (step.copied.length < step.ngram_len) chosen.push(element("span", ` … ${step.ngram_len - step.copied.length} more`, { class: "faint" }));
    }
    const lengths = source === "splice" ? `splice: ${step.neural_len} neural, then ${step.ngram_len} copied`
      : source === "none" ? "nothing" : `${SOURCES[source]}, ${step.neural_len + step.ngram_len}`;
    lines.push(["chosen", source === "none" ? nothing("nothing drafted") : chosen.length ? chosen : nothing("tokens not recorded"),
      source === "none" ? "" : `${lengths}; ${step.accepted} accepted`]);
    const table = element("table"), body = element("tbody"), head = element("thead"), row = element("tr");
    row.append(...["", "tokens", "how far it was right"].map((name) => element("th", name, { scope: "col", class: "left" })));
    head.append(row);
    for (const [name, tokens, note] of lines) {
      const line = element("tr"), cell = element("td");
      cell.append(...tokens);
      line.append(element("th", name, { scope: "row" }), cell, element("td", note, { class: "short" }));
      body.append(line);
    }
    table.append(head, body);
    return table;
  }

  function drawWhy(now, step, source) {
    const why = step.reasons, rule = data.rows.find((row) => row.workload === "all" && row.load === now.concurrency && row.policy === now.policy);
    at("curves").hidden = !why;
    if (!why) {
      at("why").replaceChildren(element("p", `${policyOf(now.policy).name} tells no expectations: it goes by its rule` +
        (rule && rule.spec ? `, ${rule.spec}.` : ".")));
      return;
    }
    const expected = source === "ngram" ? why.ngram_value : why.neural_value;
    at("why").replaceChildren(element("p", `At the going rate of ${figure(why.rate, 1)} tokens/s, the time of verifying one more token is worth ` +
      `${figure(why.price, 3)} tokens: the price. The best n-gram draft, ${why.ngram_len} tokens, was expected to bring ` +
      `${figure(why.ngram_value)} tokens more than it costs; the best neural draft with the forwards that had run, ${why.neural_len} tokens ` +
      `with what may be spliced on, ${figure(why.neural_value)}. ` + (source === "none" ? "Neither paid, so nothing was drafted." :
      `So ${source === "ngram" ? "the n-gram draft" : "the neural draft"} was chosen, worth ${figure(expected)}; it brought ${step.accepted}.`)),
    element("p", "The forwards themselves are decided for all requests together. The curves are as the planner left them: revised by what was drafted, where the policy reads that.", { class: "note" }));
    const colours = sourceColours();
    const curve = (values, name, colour) => ({
      type: "scatter", mode: "lines+markers", name, x: values.map((_, place) => place + 1), y: values.map((value) => value / 100),
      line: { color: colour, width: 2.5 }, marker: { size: 6 }, hovertemplate: `${name}: P(first %{x} accepted) = %{y:.2f}<extra></extra>`,
    });
    const longest = Math.max(why.ngram.length, why.neural.length, 2);
    draw("curves", [curve(why.ngram, "n-gram", colours.ngram), curve(why.neural, "neural", colours.neural), {
      type: "scatter", mode: "lines", name: "price", x: [0.5, longest + 0.5], y: [why.price, why.price],
      line: { color: css("--muted"), dash: "dot", width: 2 }, hovertemplate: "price: %{y:.3f}<extra></extra>",
    }], {
      showlegend: true, legend: LEGEND,
      xaxis: { title: { text: "drafted tokens" }, dtick: 1, range: [0.5, longest + 0.5] }, yaxis: { title: { text: "P(all accepted)" }, range: [0, 1.02] },
    });
  }

  function refreshRequests() {
    const options = passagesAt().map((each) => [each.request, `${requestName(each.request)} (${each.steps.length} steps)`]);
    fill(at("request"), options, at("request").value);
    state.step = 0;
    drawScatter();
    drawRequest();
  }

  function refreshPlots() {
    const workload = at("workload").value, load = Number(at("load").value);
    drawByLoad(workload);
    drawBars(workload, load);
    drawGap(workload, load);
  }

  function refresh() {
    refreshPlots();
    refreshRequests();
  }

  function colourSwatches() {
    const colours = css("--parts").split(",");
    for (const each of document.querySelectorAll("[data-part]")) each.style.background = colours[each.dataset.part];
    for (const each of document.querySelectorAll("[data-policy]")) each.style.background = colourOf(each.dataset.policy);
  }

  function start() {
    const usual = new Set([OPPONENT, "fixed:best", "static:tuned", ORACLE, "oracle:combine"]);
    for (const policy of data.policies) {
      if (policy.kind === "named" || usual.has(policy.key)) state.shown.add(policy.key);
      const label = element("label"), box = element("input", null, { type: "checkbox" });
      box.checked = state.shown.has(policy.key);
      box.addEventListener("change", () => {
        if (box.checked) state.shown.add(policy.key); else state.shown.delete(policy.key);
        refreshPlots();
      });
      label.append(box, element("span", null, { class: "swatch", "data-policy": policy.key }), policy.name);
      at("policies").append(label);
    }
    fill(at("workload"), data.workloads.map((workload) => [workload.key, workload.name]));
    fill(at("load"), data.loads.map((load) => [load, load]));
    const watched = [...new Set(data.passages.map((each) => each.policy))];
    fill(at("policy"), watched.map((key) => [key, policyOf(key).name]));
    at("requests").hidden = !watched.length;
    at("gap").hidden = !data.losses.length && !data.unwatched.length;
    at("explore").hidden = !data.rows.length;
    for (const id of ["workload", "load"]) at(id).addEventListener("change", refresh);
    at("policy").addEventListener("change", refreshRequests);
    at("request").addEventListener("change", () => { state.step = 0; drawRequest(); });
    at("step").addEventListener("input", () => go(Number(at("step").value)));
    at("previous").addEventListener("click", () => go(state.step - 1));
    at("next").addEventListener("click", () => go(state.step + 1));
    document.addEventListener("keydown", (event) => {
      const busy = event.target.closest("select, input:not(#step), .wide") || event.altKey || event.ctrlKey || event.metaKey;
      const moves = { ArrowLeft: state.step - 1, ArrowRight: state.step + 1, Home: 0, End: Infinity };
      const inside = at("stepping").contains(event.target) || event.key.startsWith("Arrow");
      if (busy || !(event.key in moves) || !inside || !passage()) return;
      event.preventDefault();
      go(moves[event.key]);
    });
    for (const query of [dark, narrow]) query.addEventListener("change", () => { colourSwatches(); refresh(); });
    colourSwatches();
    if (data.rows.length) refresh();
    document.documentElement.dataset.ready = Math.round(performance.now());
  }

  start();
})();
