import assert from "node:assert/strict";
import test from "node:test";
import { additionFrom, changeFrom, draftOf, kindsIn, tellsNothing, withKind } from "../../web/data/endpoint-draft.js";

const DRAFT = { type: "feishu", url: " https://open.feishu.cn/hook/x ", language: "zh", min_severity: "critical", kinds: "nonfinite,stalled", some: "1", secret: " s " };

test("a new endpoint is sent with what its type needs, and nothing else", () => {
  const wanted = { type: "feishu", url: "https://open.feishu.cn/hook/x", language: "zh", min_severity: "critical", kinds: ["nonfinite", "stalled"] };
  assert.deepEqual(additionFrom(DRAFT, true), { ...wanted, secret: "s" });
  assert.deepEqual(additionFrom(DRAFT, false), wanted, "a type without signatures refuses a secret");
  assert.deepEqual(additionFrom({ ...DRAFT, secret: "  " }, true), wanted, "an empty one is made by the server, or none");
  assert.deepEqual(additionFrom({ ...DRAFT, some: "" }, false)["kinds"], []);
});

test("a change leaves the address alone unless one is typed: of a chat's only the end is known", () => {
  /** @type {import("../../web/data/types.js").Endpoint} */
  const endpoint = { id: 3, type: "slack", url: "https://hooks.slack.com/\u2026XXXX", language: "en", kinds: ["stalled"], min_severity: "info", signed: false, enabled: true, disabled_reason: null, created_at: "" };
  const draft = draftOf(endpoint);
  assert.deepEqual(changeFrom(draft), { language: "en", kinds: ["stalled"], min_severity: "info" });
  assert.equal(changeFrom({ ...draft, url: "https://hooks.slack.com/services/new" })["url"], "https://hooks.slack.com/services/new");
  assert.deepEqual(changeFrom(draftOf({ ...endpoint, kinds: [] }))["kinds"], []);
});

test("kinds are chosen one by one; none at all would mean silence", () => {
  assert.deepEqual(kindsIn({ kinds: withKind(DRAFT, "underflow", true) }), ["nonfinite", "stalled", "underflow"]);
  assert.deepEqual(kindsIn({ kinds: withKind(DRAFT, "stalled", true) }), ["nonfinite", "stalled"]);
  const none = { ...DRAFT, kinds: withKind({ kinds: "stalled" }, "stalled", false) };
  assert(tellsNothing(none));
  assert(!tellsNothing({ ...none, some: "" }) && !tellsNothing(DRAFT));
});
