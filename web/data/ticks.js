/** Round places on an axis. */

/**
 * @param {number} from @param {number} to @param {number} count about how many
 * @returns {number[]} ascending, inside [from, to]
 */
export function linearTicks(from, to, count) {
  const raw = (to - from) / Math.max(1, count);
  if (!(raw > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) ?? 10);
  const ticks = [];
  for (let i = Math.ceil(from / step); i * step <= to * (1 + 1e-12); i++) ticks.push(i * step);
  return ticks;
}

/** Steps are whole numbers. @param {number} from @param {number} to @param {number} count @returns {number[]} */
export function stepTicks(from, to, count) {
  return linearTicks(from, to, Math.min(count, Math.max(1, to - from))).filter(Number.isInteger);
}

/**
 * On an axis whose lengths are ratios: whole decades where there are several, 1-2-5 in a few, round places inside one.
 * @param {number} from @param {number} to both above 0 @returns {number[]} ascending, inside [from, to]
 */
export function logTicks(from, to) {
  const decades = Math.log10(to / from);
  if (decades < 1) return linearTicks(from, to, 4).filter((tick) => tick > 0);
  const every = decades > 13 ? 4 : decades > 5 ? 2 : 1;
  const ticks = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++) {
    if (power % every !== 0) continue;
    for (const digit of decades < 2.5 ? [1, 2, 5] : [1]) ticks.push(Number(`${digit}e${power}`));
  }
  return ticks.filter((tick) => tick >= from && tick <= to);
}
