// The state of the job as the server tells it, and when what is drawn.

const MOST_POINTS = 4000, LATELY_S = 3, MOST_SHARES = 16;
const COLUMNS = ['step', 'at', 'elapsed_s', 'loss', 'samples_per_s', 'efficiency', 'of_fastest', 'learning_rate', 'loss_scale', 'shares'];
const MARKED = ['checkpoint', 'evaluation', 'shares', 'lost', 'left', 'joined'];

const job = {hello: {can: [], press: null}, status: null, history: null, profile: null, latency: [], events: [], lines: [], recent: []};
let byTime = false, asked = false;

const charts = {};
function addChart(name, title, format, fromZero) {
  charts[name] = new Chart(byId('charts'), {title, format, fromZero});
}
addChart('loss', 'Loss', value => number(value));
addChart('rate', 'Rate', rate, true);
addChart('efficiency', 'Efficiency', value => percent(value), true);
addChart('shares', 'Shares', value => number(value), true);
addChart('learning', 'Learning rate', value => number(value), true);
addChart('scale', 'Loss scale', value => number(value), true);

/// A mean that follows: single batches are not alike.
function smoothed(ys) {
  let mean = null;
  const weight = 2 / (1 + Math.max(1, ys.length / 50));
  return ys.map(y => known(y) ? (mean = mean === null ? y : mean + weight * (y - mean)) : null);
}

function showCharts() {
  const {points, evaluations} = job.history, xs = byTime ? points.elapsed_s : points.step;
  const xOf = step => {
    if (!byTime) return step;
    return points.step.length ? points.elapsed_s[nearest(points.step, step)] : 0;
  };
  const marks = job.events.filter(event => MARKED.includes(event.kind)).slice(-60).map(({step, kind, text}) => ({x: xOf(step), kind, text}));
  const shared = {xs, marks, nameX: byTime ? 'time' : 'step', formatX: byTime ? clock : value => Math.round(value).toLocaleString('en')};
  const show = (name, lines, dots = []) => charts[name].show({...shared, lines, dots});
  const many = points.loss.length > 100;
  const dots = ['validation', 'test'].map((data, i) => ({
    name: `${data} loss`, colour: colourOf(1 + i), points: evaluations.filter(one => one.data === data).map(one => [xOf(one.step), one.loss]),
  })).filter(line => line.points.length);
  show('loss', many ? [{name: 'one step', colour: colourOf(0), ys: points.loss, faint: true}, {name: 'training loss', colour: colourOf(0), ys: smoothed(points.loss)}]
                    : [{name: 'training loss', colour: colourOf(0), ys: points.loss}], dots);
  const counts = job.status ? job.status.counts : 'samples', workers = points.shares.length ? points.shares[points.shares.length - 1].length : 0;
  show('rate', [{name: `${counts}/s`, colour: colourOf(0), ys: points.samples_per_s}]);
  const one = !job.status || job.status.workers.length < 2;
  show('efficiency', [{name: 'of the sum of all alone', colour: colourOf(0), ys: points.efficiency},
                      ...(one ? [] : [{name: 'of the fastest alone', colour: colourOf(1), ys: points.of_fastest}])]);
  const shares = Array.from({length: workers < 2 ? 0 : Math.min(workers, MOST_SHARES)}, (_, rank) => ({
    name: `worker ${rank}`, colour: colourOf(rank), ys: points.shares.map(list => list[rank] === undefined ? null : list[rank])}));
  show('shares', shares);
  show('learning', [{name: 'learning rate', colour: colourOf(0), ys: points.learning_rate}]);
  show('scale', [{name: 'loss scale', colour: colourOf(0), ys: points.loss_scale}]);
  const kinds = MARKED.filter(kind => marks.some(mark => mark.kind === kind));
  byId('marks').replaceChildren(...kinds.map(kind => make('span', {class: `k-${kind}`}, make('i', {class: 'swatch mark'}), kind)));
}

function showFigures() {
  const {status} = job, alone = status.workers.filter(worker => !worker.gone).map(worker => worker.samples_per_s_alone);
  const figures = [['loss', number(status.loss)], [`${status.counts}/s`, rate(status.samples_per_s)], ['efficiency', percent(status.efficiency)]];
  if (alone.length > 1) figures.push(['of fastest alone', times(status.samples_per_s / Math.max(...alone))]);
  figures.push(['time left', clock(status.seconds_left)], ['learning rate', number(status.learning_rate)]);
  if (status.loss_scale !== null) figures.push(['loss scale', number(status.loss_scale)]);
  for (const [name, value] of Object.entries(status)) {
    if (!/^(test|validation)_/.test(name) || value === null) continue;
    figures.push([name.replaceAll('_', ' '), /accuracy$/.test(name) ? percent(value, 2) : number(value)]);
  }
  if (status.schedule) figures.push(['schedule', `${status.schedule} × ${status.micro_batches}`]);
  const box = byId('figures'), names = figures.map(([name]) => name).join('|');
  if (box.dataset.names !== names) {
    box.dataset.names = names;
    box.replaceChildren(...figures.map(([name]) => make('div', {}, make('dt', {}, name), make('dd', {'data-figure': name}))));
  }
  figures.forEach(([, value], i) => say(box.children[i].lastChild, value));
}

function showHead() {
  const {status} = job, silent = status.since_step_s > 10;
  byId('phase').classList.toggle('bad', silent);
  say(byId('phase'), silent ? `no step for ${clock(status.since_step_s)}` : status.phase);
  say(byId('where'), status.step ? `epoch ${status.epoch}/${status.epochs}   step ${status.step.toLocaleString('en')}/${status.steps.toLocaleString('en')}` : '');
  byId('done').value = status.steps ? status.step / status.steps : 0;
  document.title = status.step ? `${Math.floor(100 * status.step / status.steps)} % – Bimetal` : 'Bimetal';
}

function showAll() {
  asked = false;
  if (!job.status || !job.history) return;
  showHead();
  showFigures();
  showHosts(job.status);
  showLinks(job.status, job.latency);
  showWorkers(job.status, job.hello, letLeave);
  showMembers(job.events);
  showPlan(job.status, job.history.plan);
  showCharts();
  showLog(job.events, job.lines);
  byId('timeline').hidden = byId('timeline-of').hidden = !job.profile;
  if (job.profile) { showProfiledStep(job.profile, job.status.workers); showTimeline(job.profile, job.status.workers); } else if (job.recent.length > 1) showMeasuredStep(job.recent[0], job.status);
}

/// Not more often than the screen, and not where nobody looks.
function showSoon() {
  if (asked || document.hidden) return;
  asked = true;
  requestAnimationFrame(showAll);
}

function addPoint(status) {
  const {points} = job.history, last = points.step[points.step.length - 1];
  if (!status.step || status.step === last) return;
  const fastest = Math.max(...status.workers.filter(worker => !worker.gone).map(worker => worker.samples_per_s_alone));
  const row = {...status, at: Date.now() / 1000, of_fastest: fastest > 0 ? status.samples_per_s / fastest : null, shares: status.workers.map(worker => worker.share)};
  for (const name of COLUMNS) points[name].push(row[name]);
  if (points.step.length > MOST_POINTS) for (const name of COLUMNS) points[name] = points[name].filter((_, i) => i % 2 === 0);
}

/// It is that of the ranks of then: with others it is not known until the next profile.
function noteLatency(profile) {
  if (profile && profile.latency_s) job.latency = profile.latency_s;
}

const goneOf = status => status.workers.map(worker => worker.gone).join();

function onStatus(status) {
  const before = job.status;
  job.status = status;
  if (before && before.workers.length !== status.workers.length) job.recent = [];
  if (before && goneOf(before) !== goneOf(status)) job.latency = [];
  job.recent.push(status);
  while (job.recent.length > 2 && status.elapsed_s - job.recent[1].elapsed_s >= LATELY_S) job.recent.shift();
  addPoint(status);
}

let forget = 0;
function tell(text, stays = false) {
  clearTimeout(forget);
  byId('told').hidden = !text;
  say(byId('told'), text);
  if (text && !stays) forget = setTimeout(() => tell(''), 8000);
}

// ---- buttons -------------------------------------------------------------------------------------

async function press(ask, what) {
  try {
    const answer = await fetch('/press', {method: 'POST', headers: {'Content-Type': 'application/json', 'X-Bimetal-Press': job.hello.press}, body: JSON.stringify(ask)});
    if (!answer.ok) throw new Error(await answer.text());
    tell(what);
    return await answer.json();
  } catch (error) {
    tell(`Not done: ${error.message}`, true);
    return null;
  }
}

function sure(text, action) {
  say(byId('sure-text'), text);
  byId('sure-yes').onclick = () => { byId('sure').close(); action(); };
  byId('sure').showModal();
  byId('sure-no').focus();
}
byId('sure-no').onclick = () => byId('sure').close();

function letLeave(worker) {
  sure(`Let worker ${worker.rank} (${worker.device} on ${worker.host}) leave? The others go on without it.`,
       () => press({ask: 'leave', worker: worker.rank}, `Worker ${worker.rank} leaves after this step.`));
}
byId('save').onclick = () => press({ask: 'save'}, 'A checkpoint is saved after this step.');
byId('stop').onclick = () => sure('Stop the job after this step, with a checkpoint where it has a folder for them?', () => press({ask: 'stop'}, 'The job ends after this step.'));
byId('profile').onclick = () => { job.profile = null; press({ask: 'profile', steps: 10}, 'The next 10 steps are profiled.'); };
byId('sample').onclick = () => press({ask: 'sample'}, 'The model is tried with a sample after this step.');
byId('link').onclick = async () => {
  const made = await press({ask: 'link'}, '');
  if (made) tell(`Open this in the other browser; it works once: ${location.origin}${made.link}`, true);
};
byId('by-step').onclick = () => setAxis(false);
byId('by-time').onclick = () => setAxis(true);
function setAxis(time) {
  byTime = time;
  byId('by-step').setAttribute('aria-pressed', String(!time));
  byId('by-time').setAttribute('aria-pressed', String(time));
  showSoon();
}
byId('search').addEventListener('input', () => showLog(job.events, job.lines));
document.addEventListener('visibilitychange', showSoon);
addEventListener('resize', showSoon);

// ---- the server ----------------------------------------------------------------------------------

function listen() {
  const source = new EventSource('/events');
  const on = (name, take) => source.addEventListener(name, event => { take(JSON.parse(event.data)); showSoon(); });
  on('hello', hello => {
    job.hello = hello;
    say(byId('version'), `Bimetal ${hello.version}${hello.can.length && !hello.press ? '. Buttons are for the browser that has opened the link which the job has printed.' : ''}`);
    for (const name of ['save', 'stop', 'profile', 'sample']) byId(name).hidden = !hello.press || !hello.can.includes(name);
    byId('link').hidden = !hello.press;
    for (const part of document.querySelectorAll('#runs, [href="#runs"]')) part.hidden = !hello.runs;
    if (hello.runs) loadRuns();
    tell('');
  });
  on('history', history => {
    Object.assign(job, {history, profile: history.profile, events: history.events, lines: history.lines, latency: []});
    noteLatency(history.profile);
    showSample(history.sample);
  });
  on('status', onStatus);
  on('news', news => {
    job.events = [...job.events, ...news.events].slice(-1000);
    job.lines = [...job.lines, ...news.lines].slice(-1000);
    job.history.plan = news.plan;
    if (news.profile) { job.profile = news.profile; noteLatency(news.profile); }
    if (news.sample) showSample(news.sample);
    if (news.evaluations) job.history.evaluations = news.evaluations;
  });
  source.onerror = () => {
    byId('phase').classList.add('bad');
    say(byId('phase'), 'no answer: the job has ended, or its network has');
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}
listen();
