// Where the time of a step goes, on each worker: from the last profile, or else from what is always measured.

const PHASES = {data: 'var(--c6)', forward: 'var(--c0)', backward: 'var(--c3)', bubble: 'var(--c5)', wait: 'var(--c1)', update: 'var(--c2)', other: 'var(--line)',
                computing: 'var(--c0)', waiting: 'var(--c1)', 'all else': 'var(--line)'};

/// rows: {name, note, parts: [[phase, part of the whole]]}
function showBars(rows, phases) {
  const bars = byId('bars');
  const text = row => row.parts.filter(([, part]) => part >= 0.0005).map(([phase, part]) => `${phase} ${percent(part, 1)}`).join(', ');
  const key = rows.map(row => row.name + text(row) + row.note).join('|');
  if (bars.dataset.key === key) return;
  bars.dataset.key = key;
  bars.replaceChildren(...rows.flatMap(row => [make('span', {}, row.name),
    make('div', {class: 'stack', role: 'img', 'aria-label': `${row.name}: ${text(row)}${row.note}`, title: text(row) + row.note},
         row.parts.map(([phase, part]) => make('i', {colour: PHASES[phase], 'width%': 100 * Math.max(0, part)})))]));
  byId('phases').replaceChildren(...phases.map(phase => make('span', {}, make('i', {class: 'swatch', colour: PHASES[phase]}), phase)));
}

/// Shows the steps of the last seconds: `before` and `now` are two states of the job.
function showMeasuredStep(before, now) {
  const seconds = now.elapsed_s - before.elapsed_s, steps = now.step - before.step;
  if (!(seconds > 0) || steps <= 0) return;
  say(byId('step-of'), `The last ${steps} ${steps === 1 ? 'step' : 'steps'}: ${number(1e3 * seconds / steps)} ms each. A profile tells more.`);
  showBars(now.workers.flatMap(worker => {
    const then = before.workers[worker.rank];
    if (worker.gone || !then || worker.compute_s === null || then.compute_s === null) return [];
    const part = name => known(worker[name]) && known(then[name]) ? Math.min(1, Math.max(0, (worker[name] - then[name]) / seconds)) : 0;
    const computing = part('compute_s'), waiting = Math.min(part('wait_s'), 1 - computing), exchange = part('communicate_s');
    return [{name: `${worker.rank} ${worker.device}`, note: exchange ? `; exchanging beside it ${percent(exchange, 1)}` : '',
             parts: [['computing', computing], ['waiting', waiting], ['all else', 1 - computing - waiting]]}];
  }), ['computing', 'waiting', 'all else']);
}

function showProfiledStep(profile, workers) {
  const steps = profile.last_step - profile.first_step + 1, beside = profile.phases.indexOf('exchange');
  const phases = profile.phases.filter((phase, i) => i !== beside && profile.seconds.some(seconds => seconds[i] > 0));
  const here = workers.filter(worker => !worker.gone);
  const whole = Math.max(...profile.seconds.map(seconds => seconds.reduce((sum, one, i) => i === beside ? sum : sum + one, 0)), 1e-12);
  say(byId('step-of'), `Profile of steps ${profile.first_step} to ${profile.last_step}: ${number(1e3 * whole / steps)} ms each.`);
  showBars(profile.seconds.map((seconds, rank) => ({
    name: `${here[rank] ? here[rank].rank : rank} ${here[rank] ? here[rank].device : ''}`,
    note: seconds[beside] > 0 ? `; exchange beside it ${percent(seconds[beside] / whole, 1)}` : '',
    parts: phases.map(phase => [phase, seconds[profile.phases.indexOf(phase)] / whole]),
  })), phases);
}
