// The last step of a profile: what each rank did when. Of a pipeline these are stages, micro-batches and bubbles.

const ROW = 22, ROW_GAP = 4, MOST_ROWS = 16, NAME_WIDTH = 150;

/// The name of a row: the stage if the model is cut, else the worker.
const rowName = worker => worker ? (worker.stage ? `${worker.rank} ${worker.stage}` : `${worker.rank} ${worker.device}`) : '';

function showTimeline(profile, workers) {
  const box = byId('timeline'), spans = (profile.spans || []).slice(0, MOST_ROWS), key = `${profile.first_step}|${profile.last_step}|${box.clientWidth}`;
  box.hidden = !spans.some(list => list.length);
  byId('timeline-of').hidden = box.hidden;
  if (box.hidden || box.dataset.key === key) return;
  box.dataset.key = key;
  const here = workers.filter(worker => !worker.gone), end = Math.max(...spans.flat().map(span => span[3]));
  const width = Math.max(box.clientWidth, 320), left = Math.min(NAME_WIDTH, width / 4), height = spans.length * (ROW + ROW_GAP) + 20;
  const toX = microseconds => left + microseconds / end * (width - left - 10);
  const parts = niceTicks(0, end / 1000, Math.max(2, Math.floor(width / 110))).flatMap(tick => [
    draw('line', {class: 'grid', x1: toX(1000 * tick), x2: toX(1000 * tick), y1: 0, y2: height - 20}),
    draw('text', {x: toX(1000 * tick), y: height - 5, 'text-anchor': 'middle'}, `${number(tick)} ms`)]);
  spans.forEach((list, rank) => {
    const y = rank * (ROW + ROW_GAP);
    parts.push(draw('text', {class: 'row', x: 0, y: y + 15}, rowName(here[rank]).slice(0, Math.floor(left / 6.2)), draw('title', {}, rowName(here[rank]))));
    for (const [phase, microBatch, from, to] of list) {
      const name = profile.phases[phase], wide = toX(to) - toX(from), of = microBatch >= 0 ? ` of micro-batch ${microBatch}` : '';
      parts.push(draw('rect', {'data-span': name, 'data-micro-batch': microBatch >= 0 ? microBatch : null, x: toX(from).toFixed(1), y, width: Math.max(0.5, wide).toFixed(1), height: ROW,
                               fill: PHASES[name], class: microBatch % 2 === 1 ? 'span odd' : 'span'}, draw('title', {}, `${name}${of}: ${number((to - from) / 1000)} ms`)));
      if (microBatch >= 0 && wide > 14 && name !== 'bubble') parts.push(draw('text', {class: 'on', x: ((toX(from) + toX(to)) / 2).toFixed(1), y: y + 15, 'text-anchor': 'middle'}, String(microBatch)));
    }
  });
  const bubbles = spans.map((list, rank) => {
    const part = list.filter(span => profile.phases[span[0]] === 'bubble').reduce((sum, span) => sum + span[3] - span[2], 0) / end;
    return part > 0 ? `, ${rowName(here[rank])} waits for other stages ${percent(part)} of it` : '';
  }).join('');
  const more = profile.seconds.length > spans.length ? ` Of ${profile.seconds.length} ranks the first ${spans.length}.` : '';
  say(byId('timeline-of'), `Step ${profile.last_step}, ${number(end / 1000)} ms${spans.flat().some(span => span[1] >= 0) ? '; the numbers are those of micro-batches' : ''}.${more}`);
  box.replaceChildren(draw('svg', {role: 'img', 'aria-label': `Step ${profile.last_step} over time, a row for each rank${bubbles}`, width, height, viewBox: `0 0 ${width} ${height}`}, parts));
}
