/// Shows the model's output for the sample that was asked for: its picture, if it is a small one, and its words.
function showSample(sample) {
  byId('sample-shown').hidden = !sample;
  if (!sample) return;
  say(byId('sample-text'), sample.text);
  const canvas = byId('sample-picture'), [channels, height, width] = sample.shape;
  canvas.hidden = !sample.pixels.length;
  if (canvas.hidden) return;
  Object.assign(canvas, {width, height});
  const image = new ImageData(width, height), size = width * height, of = channels < 3 ? [0, 0, 0] : [0, 1, 2];
  for (let i = 0; i < size; ++i) image.data.set([...of.map(channel => sample.pixels[channel * size + i]), 255], 4 * i);
  canvas.getContext('2d').putImageData(image, 0, 0);
}

// Events and the ranks' logs, to be searched. Notices, warnings and losses come first, then the rest; the newest of each first.

const URGENT = ['notice', 'warning', 'error', 'lost', 'left'];

function showLog(happened, lines) {
  const wanted = byId('search').value.trim().toLowerCase();
  const events = [...happened, ...lines].sort((a, b) => a.at - b.at);
  const found = events.filter(event => !wanted || `${event.kind} ${event.who || ''} ${event.text} step ${event.step}`.toLowerCase().includes(wanted)).reverse();
  const sorted = [...found.filter(event => URGENT.includes(event.kind)), ...found.filter(event => !URGENT.includes(event.kind))].slice(0, 500);
  const list = byId('events'), key = `${wanted}|${sorted.length}|${[happened, lines].map(list => `${list.length} ${list.length && list[list.length - 1].at}`)}`;
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...sorted.map(event => make('li', {class: `k-${event.kind}`},
    make('time', {datetime: new Date(1000 * event.at).toISOString()}, timeOfDay(event.at)), make('span', {class: 'of'}, `step ${event.step}`),
    make('span', {class: 'kind'}, event.kind), make('span', {}, event.who ? [make('span', {class: 'who'}, event.who), ' '] : [], event.text))));
}
