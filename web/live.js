/** The live socket: opens again by itself, and says at any time how the link is. */

import { reconnectDelay } from "./data/backoff.js";
import { decodeBlock } from "./data/fsb1.js";

/** @typedef {import("./data/fsb1.js").Block} Block */
/**
 * @typedef {object} Link
 * @property {"connecting" | "open" | "waiting" | "off"} status
 * @property {number} since milliseconds of the wall clock
 * @property {number | null} retryAt
 */
/** @typedef {{ type: "subscribe", run: string, heat: { kind: string, metric: string, format: string } | null } | { type: "unsubscribe" }} Wish */

/**
 * @param {{ onMessage: (message: any) => void, onBlock: (block: Block) => void, onLink: (link: Link) => void, onOpen: (again: boolean) => void }} handlers
 */
export function createLive({ onMessage, onBlock, onLink, onOpen }) {
  /** @type {WebSocket | null} */
  let socket = null;
  /** @type {number | undefined} */
  let timer;
  /** @type {Wish} */
  let wish = { type: "unsubscribe" };
  let failures = 0;
  let opened = false;

  function open() {
    clearTimeout(timer);
    onLink({ status: "connecting", since: Date.now(), retryAt: null });
    const url = new URL("/live/v1", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const own = (socket = new WebSocket(url));
    own.binaryType = "arraybuffer";
    own.onopen = () => {
      failures = 0;
      onLink({ status: "open", since: Date.now(), retryAt: null });
      own.send(JSON.stringify(wish));
      onOpen(opened);
      opened = true;
    };
    own.onmessage = ({ data }) => (typeof data === "string" ? onMessage(JSON.parse(data)) : onBlock(decodeBlock(data)));
    own.onclose = () => {
      if (socket !== own) return;
      socket = null;
      const delay = reconnectDelay(failures++, Math.random());
      onLink({ status: "waiting", since: Date.now(), retryAt: Date.now() + delay });
      timer = window.setTimeout(open, delay);
    };
  }

  return {
    open,
    close() {
      clearTimeout(timer);
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
