/** An endpoint as it is typed in, and the request that it becomes. */

/** @typedef {import("./types.js").Endpoint} Endpoint */
/** @typedef {Record<string, string>} Draft */

/** The types whose messages are written in a language; a webhook has both. @param {string} type */
export const speaks = (type) => type !== "generic";

/** @param {Endpoint} endpoint @returns {Draft} its address is left out: of a chat only the end is known here */
export function draftOf(endpoint) {
  return { type: endpoint.type, url: "", language: endpoint.language, min_severity: endpoint.min_severity, kinds: endpoint.kinds.join(","), some: endpoint.kinds.length > 0 ? "1" : "" };
}

/** @param {Draft} draft @returns {string[]} */
export const kindsIn = (draft) => (draft["kinds"] ?? "").split(",").filter((kind) => kind !== "");

/** @param {Draft} draft @param {string} kind @param {boolean} told @returns {string} what becomes of `kinds` */
export function withKind(draft, kind, told) {
  const others = kindsIn(draft).filter((other) => other !== kind);
  return (told ? [...others, kind] : others).join(",");
}

/** @param {Draft} draft of a new endpoint @param {boolean} signed whether its type has a secret @returns {Record<string, unknown>} */
export function additionFrom(draft, signed) {
  const secret = (draft["secret"] ?? "").trim();
  return { type: draft["type"], url: (draft["url"] ?? "").trim(), ...common(draft), ...(signed && secret !== "" ? { secret } : {}) };
}

/** @param {Draft} draft of one that is there @returns {Record<string, unknown>} its address stays where none is typed */
export function changeFrom(draft) {
  const url = (draft["url"] ?? "").trim();
  return { ...common(draft), ...(url === "" ? {} : { url }) };
}

/** @param {Draft} draft */
function common(draft) {
  return { language: draft["language"], min_severity: draft["min_severity"], kinds: draft["some"] === "1" ? kindsIn(draft) : [] };
}

/** Only kinds are told, and none is chosen: nothing would ever come. @param {Draft} draft */
export const tellsNothing = (draft) => draft["some"] === "1" && kindsIn(draft).length === 0;
