/** The live socket: opens again by itself, and says at any time how the link is, and since when it is lost. */

import { reconnectDelay } from "./data/backoff.js";
import { decodeBlock } from "./data/fsb1.js";

/** @typedef {import("./data/fsb1.js").Block} Block */
/**
 * @typedef {object} Link
 * @property {"connecting" | "open" | "waiting" | "off"} status connecting: for the first time; waiting: lost
 * @property {number} since milliseconds of the wall clock; of a lost link, when something came over it last
 * @property {number | null} retryAt null: being tried
 */
/** @typedef {{ type: "subscribe", run: string, heat: { kind: string, metric: string, format: string } | null } | { type: "unsubscribe" }} Wish */

/** The server gives a sign of life every 10 s: one may be late, two are missing. */
const SILENT_MS = 25_000;

const LOOK_MS = 5000;

/** What the server closes with when a session has ended. */
const POLICY = 1008;

/**
 * @param {{ onMessage: (message: any) => void, onBlock: (block: Block) => void, onLink: (link: Link) => void, onOpen: (again: boolean) => void, onRefused: () => void }} handlers
 * onRefused: the server may no longer know who asks
 */
export function createLive({ onMessage, onBlock, onLink, onOpen, onRefused }) {
  /** @type {WebSocket | null} */
  let socket = null;
  /** @type {number | undefined} */
  let timer;
  /** @type {Wish} */
  let wish = { type: "unsubscribe" };
  let failures = 0;
  let opened = false;
  let heardAt = 0;
  let triedAt = 0;
  /** @type {number | null} */
  let lostAt = null;

  function open() {
    clearTimeout(timer);
    triedAt = Date.now();
    onLink({ status: lostAt === null ? "connecting" : "waiting", since: lostAt ?? Date.now(), retryAt: null });
    const url = new URL("/live/v1", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const own = (socket = new WebSocket(url));
    own.binaryType = "arraybuffer";
    own.onopen = () => {
      refused = false;
      failures = 0;
      lostAt = null;
      heardAt = Date.now();
      onLink({ status: "open", since: Date.now(), retryAt: null });
      own.send(JSON.stringify(wish));
      onOpen(opened);
      opened = true;
    };
    own.onmessage = ({ data }) => {
      heardAt = Date.now();
      if (typeof data === "string") onMessage(JSON.parse(data));
      else onBlock(decodeBlock(data));
    };
    let refused = true;
    own.onclose = ({ code }) => {
      if (socket === own && (refused || code === POLICY)) onRefused();
      lose(own);
    };
  }

  /** @param {WebSocket | null} own */
  function lose(own) {
    if (socket === null || socket !== own) return;
    socket = null;
    own.close();
    lostAt ??= heardAt || Date.now();
    const delay = reconnectDelay(failures++, Math.random());
    onLink({ status: "waiting", since: lostAt, retryAt: Date.now() + delay });
    timer = window.setTimeout(open, delay);
  }

  // A connection whose other end is out of reach closes only after many minutes, and none does while the machine sleeps.
  setInterval(() => Date.now() - Math.max(heardAt, triedAt) > SILENT_MS && lose(socket), LOOK_MS);

  return {
    open,
    /** The machine has no network. */
    drop: () => lose(socket),
    close() {
      clearTimeout(timer);
      lostAt = null;
      const own = socket;
      socket = null;
      own?.close();
      onLink({ status: "off", since: Date.now(), retryAt: null });
    },
    /** Replaces the former subscription. @param {Wish} next */
    subscribe(next) {
      wish = next;
      if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(wish));
    },
    /** Do not wait for the next try. */
    retry() {
      if (socket === null) open();
    },
  };
}
