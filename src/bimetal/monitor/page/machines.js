// The workers: their devices, and each one's part of the whole; planned figures beside measured ones.

/// Rows are kept, and their cells' texts changed. columns: {title, left, of(worker) → text or node}
function showTable(table, columns, rows, classOf) {
  const head = columns.map(column => column.title).join('|');
  if (table.dataset.head !== head) {
    table.dataset.head = head;
    table.tHead.replaceChildren(make('tr', {}, columns.map(({title, left}) => make('th', {scope: 'col', class: left && 'left'}, title))));
    table.tBodies[0].replaceChildren();
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.lastChild.remove();
  while (body.rows.length < rows.length) {
    body.append(make('tr', {}, columns.map(({title, left}) => make('td', {class: left && 'left', 'data-label': title}))));
  }
  rows.forEach((row, i) => {
    body.rows[i].className = classOf(row);
    columns.forEach((column, j) => {
      const cell = body.rows[i].cells[j], value = column.of(row);
      if (typeof value === 'string') say(cell, value); else if (cell.dataset.key !== value.dataset.key) { cell.replaceChildren(value); cell.dataset.key = value.dataset.key; }
    });
  });
}

/// Also for people who see no colours: what is told of a worker that does not answer.
const silence = worker => worker.gone || !known(worker.silent_s) ? '' : `silent for ${Math.floor(worker.silent_s)} s`;
const goneOrNot = worker => worker.gone ? 'gone' : silence(worker) && 'silent';

function meter(part) {
  const text = percent(part, 1);
  return make('span', {'data-key': text}, make('span', {class: 'meter', 'aria-hidden': 'true'}, make('i', {'width%': 100 * Math.min(1, part || 0)})), text);
}

function showHosts(status) {
  const hosts = new Map();
  for (const worker of status.workers) hosts.set(worker.host, [...(hosts.get(worker.host) || []), worker]);
  const key = JSON.stringify([...hosts].map(([host, workers]) => [host, workers.map(worker => [worker.rank, worker.device, goneOrNot(worker), megabits(worker.bytes_per_s)])]));
  const box = byId('hosts');
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren(...[...hosts].map(([host, workers]) => {
    const sent = workers.filter(worker => !worker.gone && known(worker.bytes_per_s)).reduce((sum, worker) => sum + worker.bytes_per_s, 0);
    return make('div', {class: 'host'}, make('strong', {}, host || 'unknown'),
      workers.slice(0, 16).map(worker => make('span', {class: `chip ${goneOrNot(worker)}`, ink: worker.gone ? null : colourOf(worker.rank)}, `${worker.rank}${workers.length > 4 ? '' : ' ' + worker.device}${silence(worker) && ' silent'}`)),
      workers.length > 16 ? make('span', {class: 'chip'}, `and ${workers.length - 16} more`) : null,
      make('div', {class: 'hint'}, `sends ${megabits(sent)}`));
  }));
}

function showWorkers(status, hello, leave) {
  const all = status.workers.reduce((sum, worker) => sum + worker.share, 0), has = name => status.workers.some(worker => worker[name] !== null);
  const per = `${status.counts}/s`;
  const columns = [
    {title: 'worker', left: true, of: worker => `${worker.rank}  ${worker.device} on ${worker.host}${worker.gone ? ' (gone)' : silence(worker) && ` (${silence(worker)})`}`},
    has('stage') && {title: 'stage', left: true, of: worker => worker.stage || UNKNOWN},
    {title: 'share', of: worker => worker.gone ? UNKNOWN : String(worker.share)},
    {title: 'of batch', of: worker => worker.gone ? UNKNOWN : percent(worker.share / all, 1)},
    {title: per, of: worker => worker.gone ? UNKNOWN : rate(worker.samples_per_s)},
    {title: 'alone', of: worker => rate(worker.samples_per_s_alone)},
    {title: has('stage') ? 'bubble' : 'waiting', of: worker => worker.gone || worker.wait_part === null ? UNKNOWN : meter(worker.wait_part)},
    {title: 'memory', of: worker => worker.gone ? UNKNOWN : bytes(worker.memory_bytes)},
    {title: 'sends', of: worker => worker.gone ? UNKNOWN : megabits(worker.bytes_per_s)},
    has('staleness') && {title: 'staleness', of: worker => number(worker.staleness, 1)},
    hello.press && hello.can.includes('leave') && {title: 'ask', of: worker => worker.gone ? UNKNOWN
      : make('button', {'data-key': `leave ${worker.rank}`, 'data-leave': worker.rank, 'aria-label': `Let worker ${worker.rank} leave`, onclick: () => leave(worker)}, 'Leave')},
  ].filter(Boolean);
  showTable(byId('workers'), columns, status.workers, goneOrNot);
}

function showMembers(events) {
  const changes = events.filter(event => ['lost', 'left', 'joined'].includes(event.kind)).slice(-6).reverse();
  byId('members').replaceChildren(...changes.map(event => make('li', {}, `${timeOfDay(event.at)}  step ${event.step}  ${event.text}`)));
}

/// Before the first step and now, of each worker and of all together.
function showPlan(status, plan) {
  byId('plan').hidden = !plan;
  if (!plan) return;
  const sum = list => list.reduce((all, one) => all + (known(one) ? one : 0), 0), here = status.workers.filter(worker => !worker.gone);
  const rows = [...status.workers.map(worker => ({
    name: `${worker.rank}  ${worker.device} on ${worker.host}`, gone: worker.gone, share: [plan.shares[worker.rank], worker.share],
    alone: [plan.alone[worker.rank], worker.samples_per_s_alone],
  })), {
    name: 'the job: the sum of all alone, and its rate', share: [sum(plan.shares), sum(here.map(worker => worker.share))], alone: [sum(plan.alone), status.samples_per_s],
  }];
  const ratio = ([before, now]) => before > 0 && known(now) ? percent(now / before) : UNKNOWN;
  showTable(byId('planned'), [
    {title: 'worker', left: true, of: row => row.name},
    {title: 'share planned', of: row => rate(row.share[0])}, {title: 'share now', of: row => row.gone ? UNKNOWN : rate(row.share[1])},
    {title: `${status.counts}/s planned`, of: row => rate(row.alone[0])}, {title: `${status.counts}/s measured`, of: row => rate(row.alone[1])},
    {title: 'measured ÷ planned', of: row => row.gone ? UNKNOWN : ratio(row.alone)},
  ], rows, goneOrNot);
}

const LINK_HEIGHT = 64, MOST_LINKS = 15;

/// Lines from the machine of the first worker to the others: what these send, and how long a message takes where a profile has measured it.
function showLinks(status, latency) {
  const here = status.workers.filter(worker => !worker.gone), hosts = new Map();
  here.forEach((worker, rank) => {
    const host = hosts.get(worker.host) || {sent: 0, latency: null, name: worker.host};
    if (known(worker.bytes_per_s)) host.sent += worker.bytes_per_s;
    if (known(latency[rank]) && (host.latency === null || latency[rank] < host.latency)) host.latency = latency[rank];
    hosts.set(worker.host, host);
  });
  const [first, ...others] = hosts.values(), box = byId('links'), shown = others.slice(0, MOST_LINKS);
  box.hidden = !others.length;
  if (box.hidden) return;
  const label = host => `${megabits(host.sent)}, ${host.latency === null ? 'ms: by a profile' : `${number(1e3 * host.latency, 2)} ms`}`;
  const key = JSON.stringify([first.name, shown.map(host => [host.name, label(host)]), box.clientWidth]);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const width = Math.max(box.clientWidth, 300), height = Math.max(1, shown.length) * LINK_HEIGHT, middle = height / 2, from = width * 0.3, to = width * 0.7;
  const node = (x, y, text, anchor) => [draw('circle', {class: 'node', cx: x, cy: y, r: 5}),
    draw('text', {class: 'name', x: x + (anchor === 'end' ? -10 : 10), y: y + 4, 'text-anchor': anchor}, text.slice(0, Math.floor(width * 0.28 / 7)), draw('title', {}, text))];
  box.replaceChildren(draw('svg', {role: 'img', width, height, viewBox: `0 0 ${width} ${height}`,
    'aria-label': `Links from ${first.name}: ${shown.map(host => `${host.name} sends ${label(host)}`).join('; ')}`},
    shown.flatMap((host, i) => {
      const y = (i + 0.5) * LINK_HEIGHT, at = shown.length > 1 ? 0.7 : 0.5;
      return [draw('line', {class: 'link', x1: from, y1: middle, x2: to, y2: y, 'stroke-width': Math.max(1, Math.min(6, Math.log10(1 + host.sent / 1e4))).toFixed(1)}),
              draw('text', {class: 'label', x: from + at * (to - from), y: middle + at * (y - middle) - 8, 'text-anchor': 'middle'}, label(host)), node(to, y, host.name, 'start')].flat();
    }), node(from, middle, first.name, 'end')));
  if (others.length > shown.length) box.append(make('p', {class: 'hint'}, `and ${others.length - shown.length} more machines`));
}
