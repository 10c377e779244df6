'use strict';
// Everything that comes from the job is put into the page as text: there is no way here to make marked-up text of it.

const byId = id => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'width%') node.style.width = value + '%';
    else if (name === 'colour') node.style.background = value;
    else if (name === 'ink') node.style.color = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/// Changes a text alone where it differs, so that nothing flickers and selections stay.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const UNKNOWN = '–';
const known = value => typeof value === 'number' && Number.isFinite(value);
const colourOf = number => `var(--c${number % 8})`;

function number(value, digits = 3) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(2);
  if (size >= 10 ** (digits + 1)) return Math.round(value).toLocaleString('en');
  return String(Number(value.toPrecision(digits + 1)));
}
const percent = (part, digits = 0) => known(part) ? `${(100 * part).toFixed(digits)} %` : UNKNOWN;
const rate = value => known(value) ? Math.round(value).toLocaleString('en') : UNKNOWN;
const times = value => known(value) ? `${value.toFixed(2)} ×` : UNKNOWN;

function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; value >= 1024 && unit + 1 < units.length; ++unit) value /= 1024;
  return `${unit > 0 && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}
function megabits(bytesPerS) {
  if (!known(bytesPerS)) return UNKNOWN;
  const bits = 8 * bytesPerS;
  return bits < 1e5 ? `${number(bits / 1e3, 1)} kbit/s` : `${number(bits / 1e6, 2)} Mbit/s`;
}

function clock(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const all = Math.round(seconds), two = value => String(value).padStart(2, '0');
  const hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(all % 60)}` : `${minutes}:${two(all % 60)}`;
}
const timeOfDay = at => new Date(1000 * at).toLocaleTimeString('en-GB');
