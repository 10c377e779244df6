// The trainings in the folder beside this one's checkpoints: their curves over each other, and how their job files differ.

const MOST_CURVES = 8, MOST_DIFFERENCES = 40;
const RUN_AXES = {step: ['step', value => Math.round(value).toLocaleString('en')], elapsed_s: ['time', clock],
                  samples: ['samples', value => Math.round(value).toLocaleString('en')]};

const runs = {all: [], own: '', hidden: new Set(), axis: 'step', chart: null};

/// By "section.key" the value, as text.
function keysOf(job) {
  const keys = new Map();
  let section = '';
  for (const line of job.split('\n')) {
    const head = line.match(/^\[(.+)\]$/), at = line.indexOf(' = ');
    if (head) section = head[1] + '.'; else if (at > 0) keys.set(section + line.slice(0, at), line.slice(at + 3));
  }
  return keys;
}

/// Those that are on the chart: with a curve, the newest ones.
const drawnRuns = () => runs.all.filter(run => run.curve.step.length).slice(0, MOST_CURVES);
const colourOfRun = run => { const at = drawnRuns().indexOf(run); return at < 0 ? 'var(--line)' : colourOf(at); };

/// A run's curve at the others' places: what lies between two points of it is on the line between them.
function resampled(curve, name, xs) {
  const own = curve[name];
  let i = 0;
  return xs.map(x => {
    if (x < own[0] || x > own[own.length - 1]) return null;
    while (i + 1 < own.length && own[i + 1] < x) ++i;
    const [x0, x1, y0, y1] = [own[i], own[i + 1] ?? own[i], curve.loss[i], curve.loss[i + 1] ?? curve.loss[i]];
    return known(y0) && known(y1) ? (x1 > x0 ? y0 + (y1 - y0) * Math.max(0, x - x0) / (x1 - x0) : y0) : null;
  });
}

function showRunCurves() {
  const shown = drawnRuns().filter(run => !runs.hidden.has(run.name)), [nameX, formatX] = RUN_AXES[runs.axis];
  const xs = [...new Set(shown.flatMap(run => run.curve[runs.axis]))].filter(known).sort((a, b) => a - b);
  const few = xs.filter((_, i) => i % Math.ceil(xs.length / 1000) === 0 || i === xs.length - 1);
  runs.chart.show({xs: few, nameX, formatX, marks: [],
    lines: shown.map(run => ({name: run.name, colour: colourOfRun(run), ys: resampled(run.curve, runs.axis, few)})),
    dots: shown.map(run => ({name: `${run.name}, evaluated`, colour: colourOfRun(run), points: run.evaluations.map(one => [one[runs.axis], one.loss])}))
      .filter(line => line.points.length)});
}

function bestOf(run) {
  const last = run.evaluations[run.evaluations.length - 1];
  const [first] = last ? Object.entries(last.metrics) : [];
  if (!last) return UNKNOWN;
  const [name, value] = first || ['loss', last.loss];
  return `${last.data} ${name.replaceAll('_', ' ')} ${/accuracy$/.test(name) ? percent(value, 2) : number(value)}`;
}

function showRunTable() {
  const box = run => {
    const input = make('input', {type: 'checkbox', checked: !runs.hidden.has(run.name), disabled: !drawnRuns().includes(run), 'aria-label': `Show ${run.name}`, onchange: () => {
      if (input.checked) runs.hidden.delete(run.name); else runs.hidden.add(run.name);
      showRunCurves();
    }});
    return make('label', {'data-key': `${run.name}|${colourOfRun(run)}|${drawnRuns().includes(run)}`, class: 'run'}, input, make('i', {class: 'swatch', colour: colourOfRun(run)}),
                run.name + (run.name === runs.own ? ' (this one)' : ''));
  };
  showTable(byId('run-list'), [
    {title: 'run', left: true, of: box}, {title: 'state', left: true, of: run => run.state}, {title: 'loss', of: run => number(run.loss)},
    {title: 'last evaluation', of: bestOf}, {title: 'steps', of: run => run.steps ? `${run.step.toLocaleString('en')}/${run.steps.toLocaleString('en')}` : String(run.step)},
    {title: 'samples', of: run => rate(run.samples)}, {title: 'time', of: run => run.elapsed_s ? clock(run.elapsed_s) : UNKNOWN},
    {title: 'rate', of: run => known(run.samples_per_s) ? `${rate(run.samples_per_s)} ${run.counts}/s` : UNKNOWN},
    {title: 'workers', left: true, of: run => run.workers.slice(0, 4).join(', ') + (run.workers.length > 4 ? ` and ${run.workers.length - 4} more` : '')},
  ], runs.all, () => '');
}

function showRunDifferences() {
  const told = drawnRuns().filter(run => run.job), keys = told.map(run => keysOf(run.job));
  const names = [...new Set(keys.flatMap(one => [...one.keys()]))].filter(name => new Set(keys.map(one => one.get(name))).size > 1);
  byId('run-differences').hidden = told.length < 2;
  say(byId('run-alike'), names.length ? (names.length > MOST_DIFFERENCES ? `${names.length - MOST_DIFFERENCES} more differ.` : '') : 'Their job files say the same.');
  showTable(byId('run-keys'), [{title: 'key', left: true, of: name => name},
    ...told.map((run, i) => ({title: run.name, left: true, of: name => keys[i].get(name) ?? UNKNOWN}))], names.slice(0, MOST_DIFFERENCES), () => '');
}

async function loadRuns() {
  if (!job.hello.press) { say(byId('runs-none'), 'Runs are shown to the browser that has opened the link which the job has printed.'); return; }
  try {
    const answer = await fetch('/runs');
    if (!answer.ok) throw new Error(answer.statusText);
    const {this: own, runs: all} = await answer.json();
    Object.assign(runs, {own, all});
    say(byId('runs-none'), '');
    byId('runs-shown').hidden = !all.length;
    if (!all.length) { say(byId('runs-none'), 'None has done a step yet.'); return; }
    runs.chart ??= new Chart(byId('run-chart'), {title: 'Loss of runs', format: value => number(value)});
    showRunTable();
    showRunCurves();
    showRunDifferences();
  } catch {
    say(byId('runs-none'), 'No answer.');
  }
}
byId('runs-load').onclick = loadRuns;
for (const axis of Object.keys(RUN_AXES)) {
  byId(`runs-${axis}`).onclick = () => {
    runs.axis = axis;
    for (const other of Object.keys(RUN_AXES)) byId(`runs-${other}`).setAttribute('aria-pressed', String(other === axis));
    showRunCurves();
  };
}
